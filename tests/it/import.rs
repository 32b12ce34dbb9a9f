//! `skein import`: set-ups of goose, Claude Desktop, Zed and VS Code move in, and nothing that was there is touched.

use crate::support::{Sandbox, files_below, read, repository};

/// The fixtures of other tools; each holds values that begin with `s3cret`.
const FILES: [&str; 5] =
    ["goose.yaml", "claude_desktop_config.json", "mcp.json", "zed_settings.json", "vscode_mcp.json"];

fn fixture(name: &str) -> String {
    repository(&format!("tests/fixtures/import/{name}")).to_string_lossy().into_owned()
}

/// Every file of the configuration with its text.
fn config(sandbox: &Sandbox) -> Vec<(String, String)> {
    let folder = sandbox.path("config");
    if !folder.exists() {
        return Vec::new();
    }
    files_below(&folder).iter().map(|file| (file.to_string_lossy().into_owned(), read(file))).collect()
}

#[test]
fn servers_that_get_the_same_name_are_named() {
    let sandbox = Sandbox::new();
    let servers = r#"{"mcpServers": {"My Tool": {"command": "first"}, "my-tool": {"command": "second"}}}"#;
    sandbox.write("project/servers.json", servers);
    let told = sandbox.skein(&["import", "servers.json", "--json"]).json();
    assert_eq!(told["there"], serde_json::json!([]));
    let left = serde_json::json!([
        {"what": "my-tool", "reason": "`my-tool` becomes the same name as `My Tool`; rename one"}
    ]);
    assert_eq!(told["left_out"], left);
    assert!(read(sandbox.path("config/services/my-tool.yaml")).contains("first"));
}

#[test]
fn what_is_taken_over_passes_the_check_and_holds_no_secret() {
    let sandbox = Sandbox::new();
    for file in FILES {
        let run = sandbox.skein(&["import", &fixture(file)]);
        assert_eq!(run.code, 0, "{}", run.stderr);
        assert!(!run.stdout.contains("s3cret") && !run.stderr.contains("s3cret"), "{}", run.stdout);
    }
    let check = sandbox.skein(&["check", "--json"]).json();
    assert_eq!((&check["errors"], &check["warnings"]), (&0.into(), &0.into()), "{check:#}");
    let services = sandbox.skein(&["services", "--json"]);
    for name in ["github", "tracker", "filesystem", "github-tools", "database", "search", "weather", "notes", "docs"] {
        assert!(services.stdout.contains(&format!("\"{name}\"")), "{name}: {}", services.stdout);
    }
    for (file, text) in config(&sandbox) {
        assert!(!text.contains("s3cret"), "{file}: {text}");
    }
    assert!(sandbox.log().iter().all(|line| !line.to_string().contains("s3cret")));
}

#[test]
fn doing_it_twice_changes_nothing() {
    let sandbox = Sandbox::new();
    FILES.iter().for_each(|file| assert_eq!(sandbox.skein(&["import", &fixture(file)]).code, 0));
    let once = config(&sandbox);
    for file in FILES {
        let again = sandbox.skein(&["import", &fixture(file), "--json"]).json();
        assert_eq!(again["services"], serde_json::json!([]), "{again:#}");
        assert_eq!(again["settings"], serde_json::json!([]), "{again:#}");
    }
    assert_eq!(config(&sandbox), once);
}

#[test]
fn a_dry_run_shows_and_writes_nothing() {
    let sandbox = Sandbox::new();
    let run = sandbox.skein(&["import", &fixture("goose.yaml"), "--dry-run"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    for expected in ["would write", "command: \"npx\"", "model anthropic:claude-sonnet-4-5", "approval smart"] {
        assert!(run.stdout.contains(expected), "{expected}: {}", run.stdout);
    }
    assert_eq!(config(&sandbox), []);
}

#[test]
fn what_the_user_has_stays_and_is_said() {
    let sandbox = Sandbox::new();
    let mine =
        "version: 1 # mine\nkind: service\nname: github\ndescription: Mine.\ntransport: {stdio: {command: mine}}\n";
    sandbox.write("config/services/own.yaml", mine);
    sandbox.write("config/config.yaml", "version: 1\n# my models\nprofiles:\n  default: {processor: 'ollama:mine'}\n");
    let told = sandbox.skein(&["import", &fixture("goose.yaml"), "--json"]).json();
    assert_eq!(told["there"], serde_json::json!(["github"]));
    assert!(told["left_out"].to_string().contains("your profile names ollama:mine already"), "{told:#}");
    assert_eq!(read(sandbox.path("config/services/own.yaml")), mine);
    let config = read(sandbox.path("config/config.yaml"));
    assert!(
        config.starts_with("version: 1\n# my models\nprofiles:\n  default: {processor: 'ollama:mine'}\n"),
        "{config}"
    );
    assert!(config.contains("approval: \"smart\""), "{config}");
}

#[test]
fn a_variable_with_an_empty_default_need_not_be_set() {
    let sandbox = Sandbox::new();
    let servers = r#"{"mcpServers": {"x": {"command": "x", "env": {"X_KEY": "${X_KEY:-}", "Y_KEY": "${Y_KEY}"}}}}"#;
    sandbox.write("project/servers.json", servers);
    let run = sandbox.skein(&["import", "servers.json"]);
    for expected in ["X_KEY (x) is not set, and need not be\n", "Y_KEY (x) is not set: export it"] {
        assert!(run.stdout.contains(expected), "{}", run.whole());
    }
}

#[test]
fn a_config_with_an_error_keeps_its_settings() {
    let sandbox = Sandbox::new();
    let mine = "version: 1\napproval: read-only\nbogus: 1\nprofiles: {default: {processor: 'anthropic:mine'}}\n";
    sandbox.write("config/config.yaml", mine);
    let run = sandbox.skein(&["import", &fixture("goose.yaml")]);
    assert_eq!(run.code, 2, "{}", run.whole());
    assert!(run.stderr.contains("bogus") && run.stderr.contains("the config file is wrong"), "{}", run.stderr);
    let files: Vec<_> = config(&sandbox).into_iter().map(|(_, text)| text).collect();
    assert_eq!(files, [mine], "no file was written");
    // A file without such settings needs no change of the config.
    let servers = sandbox.skein(&["import", &fixture("zed_settings.json")]);
    assert_eq!(servers.code, 0, "{}", servers.whole());
    assert_eq!(read(sandbox.path("config/config.yaml")), mine);
}

#[test]
fn what_cannot_be_carried_over_is_listed_with_the_reason() {
    let sandbox = Sandbox::new();
    let told = sandbox.skein(&["import", &fixture("mcp.json")]).stdout;
    for expected in [
        "left out: nothing: it has neither a command nor a url",
        "left out: memory: Skein has a built-in service of that name",
        "variable WEATHER_TOKEN (weather) is not set",
    ] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
}

#[test]
fn a_file_cannot_be_imported_for_one_project() {
    let sandbox = Sandbox::new();
    let run = sandbox.skein(&["import", "--project", &fixture("mcp.json")]);
    assert_eq!(run.code, 2, "{}", run.whole());
    assert!(run.stderr.contains("--project is for memories") && run.stderr.contains(".mcp.json"), "{}", run.stderr);
    assert_eq!(config(&sandbox), []);
}

#[test]
fn a_file_that_is_none_of_these_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.write("project/other.json", "{\"name\": \"a package\"}");
    for (file, expected) in [("other.json", "none of `mcpServers`"), ("nowhere.json", "cannot be read")] {
        let run = sandbox.skein(&["import", file]);
        assert_eq!(run.code, 2, "{}", run.stdout);
        assert!(run.stderr.contains(expected), "{}", run.stderr);
    }
}

/// goose narrows an extension to some of its tools; so does the manifest that is written.
#[test]
fn available_tools_stay_a_restriction() {
    let sandbox = Sandbox::new();
    let echo = crate::support::servers::mcp_echo();
    let goose = format!(
        "extensions:\n  parrot: {{enabled: true, type: stdio, name: parrot, cmd: '{echo}', available_tools: [echo, add]}}\n"
    );
    sandbox.write("project/goose.yaml", &goose);
    let run = sandbox.skein(&["import", "goose.yaml"]);
    assert_eq!(run.code, 0, "{}", run.whole());
    let tools = sandbox.skein(&["tools", "-a", "goose/assistant", "--json"]).json();
    let names = |key: &str| -> Vec<String> {
        let rows = tools[key].as_array().unwrap().iter().filter(|tool| tool["service"] == "parrot");
        rows.map(|tool| tool["tool"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("tools"), ["add", "echo"]);
    assert!(names("out_of_scope").contains(&"write".to_owned()), "{:?}", names("out_of_scope"));
}

#[test]
fn claude_code_project_servers_are_reported_not_imported() {
    let sandbox = Sandbox::new();
    let servers = r#"{"mcpServers": {"clock": {"command": "clock"}}, "numStartups": 7, "projects": {"/home/me/shop": {"mcpServers": {"till": {"command": "till"}}, "history": []}, "/home/me/empty": {"mcpServers": {}}}}"#;
    sandbox.write("home/.claude.json", servers);
    let file = sandbox.path("home/.claude.json").display().to_string();
    let run = sandbox.skein(&["import", &file]);
    assert_eq!(run.code, 0, "{}", run.whole());
    assert!(run.stdout.contains("till") && run.stdout.contains("for /home/me/shop alone"), "{}", run.stdout);
    assert!(sandbox.path("config/services/clock.yaml").exists());
    assert!(!sandbox.path("config/services/till.yaml").exists());
}

#[test]
fn a_file_of_several_mebibytes_is_imported() {
    let sandbox = Sandbox::new();
    let history = "x".repeat(5 << 20);
    sandbox.write(
        "home/.claude.json",
        &format!(r#"{{"mcpServers": {{"clock": {{"command": "clock"}}}}, "h": "{history}"}}"#),
    );
    let file = sandbox.path("home/.claude.json");
    let run = sandbox.skein(&["import", &file.display().to_string()]);
    assert_eq!(run.code, 0, "{}", run.whole());
    assert!(sandbox.path("config/services/clock.yaml").exists());
    std::fs::File::options().write(true).open(&file).unwrap().set_len(70 << 20).unwrap();
    let run = sandbox.skein(&["import", &file.display().to_string()]);
    assert_eq!(run.code, 2, "{}", run.whole());
    assert!(run.stderr.contains("has 70 MiB or more, and at most 64 MiB are read"), "{}", run.stderr);
    assert!(run.stderr.contains("copy the part that you need"), "{}", run.stderr);
    let endless = sandbox.skein(&["import", "/dev/zero"]);
    assert!(endless.code == 2 && endless.stderr.contains("at most 64 MiB"), "{}", endless.whole());
}

#[test]
fn memories_can_be_looked_at_before_they_are_kept() {
    let sandbox = Sandbox::new();
    sandbox.write("project/memory/style.txt", "use tabs\n\nno semicolons\n");
    let run = sandbox.skein(&["import", "memory", "--dry-run"]);
    assert_eq!(
        (run.code, run.stdout.as_str()),
        (0, "2 memories would be kept\n  style: use tabs\n  style: no semicolons\n"),
        "{}",
        run.whole()
    );
    assert!(!sandbox.path("data/memory.db").exists());
}

#[test]
fn names_of_memory_files_cannot_control_the_terminal() {
    let sandbox = Sandbox::new();
    let key = ["ghp", "0123456789abcdefghijABCDEFGHIJ012345"].join("_");
    sandbox.write("project/memory/a\u{1b}[31mred.txt", &format!("use {key}\n"));
    let run = sandbox.skein(&["import", "memory", "--dry-run"]);
    assert_eq!(run.code, 0, "{}", run.whole());
    assert!(run.stdout.contains("left out of memory/a\u{FFFD}[31mred.txt: an entry holds"), "{:?}", run.stdout);
}

#[test]
fn folder_without_goose_data_is_refused_and_not_stored() {
    let sandbox = Sandbox::new();
    sandbox.write("project/notes/todo.txt", "call the bank\n");
    sandbox.write("project/notes/script.sh", "echo\n");
    sandbox.write("project/deep/todo.txt", "call the bank\n");
    sandbox.write("project/deep/er/todo.txt", "call the bank\n");
    for (folder, expected) in [("notes", "there is `script.sh`"), ("deep", "there is `er`"), ("deep/er/..", "`er`")] {
        let run = sandbox.skein(&["import", folder]);
        assert_eq!(run.code, 2, "{}", run.whole());
        assert!(
            run.stderr.contains("no folder of goose's memories") && run.stderr.contains(expected),
            "{}",
            run.stderr
        );
    }
    assert!(!sandbox.path("data/memory.db").exists());
}

/// An entry of the registry of the Agent Client Protocol.
fn entry(id: &str, distribution: serde_json::Value) -> String {
    let entry = serde_json::json!({
        "id": id, "name": "Helper", "version": "1.2.3", "description": "Helps.", "authors": ["Ada"],
        "license": "MIT", "distribution": distribution, "website": "https://example.com",
    });
    format!("{entry:#}")
}

#[test]
fn an_agent_of_the_registry_becomes_an_agent_here() {
    let sandbox = Sandbox::new();
    let package = serde_json::json!({"npx": {"package": "@x/helper@1.2.3", "args": ["--acp"], "env": {"A": "b"}}});
    sandbox.write("project/agent.json", &entry("helper", package));
    let dry = sandbox.skein(&["import", "registry", "agent.json", "--dry-run"]);
    assert!(
        dry.stdout.contains("would write") && dry.stdout.contains("      package: \"@x/helper@1.2.3\""),
        "{}",
        dry.stdout
    );
    assert_eq!(config(&sandbox), []);
    let run = sandbox.skein(&["import", "registry", "agent.json"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.contains("npx -y @x/helper@1.2.3 --acp"), "{}", run.stdout);
    assert!(run.stdout.contains("left out: website"), "{}", run.stdout);
    let check = sandbox.skein(&["check", "--json"]).json();
    assert_eq!((&check["errors"], &check["warnings"]), (&0.into(), &0.into()), "{check:#}");
    let agent = sandbox.skein(&["agents", "show", "helper", "--json"]).json();
    let metadata = &agent["manifest"]["metadata"];
    assert_eq!((&metadata["version"], &metadata["license"]), (&"1.2.3".into(), &"MIT".into()));
    assert_eq!(agent["modes"][0]["id"], "helper/default");
    assert_eq!(agent["modes"][0]["tool_groups"], serde_json::json!([]));
    let once = config(&sandbox);
    sandbox.write("project/agent.json", &entry("helper", serde_json::json!({"uvx": {"package": "other"}})));
    let again = sandbox.skein(&["import", "registry", "agent.json"]);
    assert_eq!((again.code, again.stdout.contains("is there already")), (0, true), "{}", again.stdout);
    assert_eq!(config(&sandbox), once);
}

#[test]
fn an_archive_of_the_registry_is_not_fetched_but_told() {
    let sandbox = Sandbox::new();
    let build = serde_json::json!({"archive": "https://example.invalid/h.tgz", "cmd": "./helper", "args": ["acp"]});
    let builds: serde_json::Map<_, _> = ["linux-x86_64", "linux-aarch64", "darwin-aarch64", "darwin-x86_64"]
        .map(|platform| (platform.to_owned(), build.clone()))
        .into_iter()
        .collect();
    let one = entry("helper", serde_json::json!({"binary": builds}));
    sandbox.write("project/registry.json", &format!("{{\"version\": \"1\", \"agents\": [{one}]}}"));
    let whole = sandbox.skein(&["import", "registry", "registry.json"]);
    assert_eq!((whole.code, whole.stderr.contains("`--agent ID`: helper")), (2, true), "{}", whole.stderr);
    let run = sandbox.skein(&["import", "registry", "registry.json", "--agent", "helper", "--name", "mine"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("is not fetched: https://example.invalid/h.tgz"), "{}", run.stderr);
    let text = read(sandbox.path("config/agents/mine.yaml"));
    assert!(text.contains("    # the archive for") && text.contains("    command: \"helper\"\n"), "{text}");
}

#[test]
fn registry_errors_have_lines_and_builtin_agents_stay() {
    let sandbox = Sandbox::new();
    sandbox.write("project/agent.json", "{\n  \"id\": \"helper\",\n  \"distribution\": {\"npx\": {\"package\": 7}}\n}");
    let run = sandbox.skein(&["import", "registry", "agent.json"]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("agent.json:3:39: `package` must be text"), "{}", run.stderr);
    sandbox.write("project/goose.json", &entry("goose", serde_json::json!({"npx": {"package": "goose"}})));
    let run = sandbox.skein(&["import", "registry", "goose.json"]);
    assert_eq!((run.code, run.stderr.contains("`--name goose-acp`")), (2, true), "{}", run.stderr);
    assert_eq!(config(&sandbox), []);
}
