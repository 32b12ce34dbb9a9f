//! Services and agents that people add: what is shown, asked, started, written and kept.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::support::http::{HttpServer, Reply, good_server, greeting};
use crate::support::{Sandbox, read, servers};

/// Adds the echo server under this name, with more flags of the server.
fn add(sandbox: &Sandbox, name: &str, flags: &[&str], server: &[&str]) -> crate::support::Run {
    let mut args = vec!["services", "add", name];
    args.extend(flags);
    args.extend(["--", servers::mcp_echo()]);
    args.extend(server);
    sandbox.skein(&args)
}

fn listed(sandbox: &Sandbox, name: &str) -> Value {
    let services = sandbox.skein(&["services", "--json"]).json();
    let all = services.as_array().expect("a list");
    all.iter().find(|service| service["name"] == name).cloned().unwrap_or_default()
}

#[test]
fn added_service_has_groups_and_a_sandbox() {
    let sandbox = Sandbox::outside_tmp();
    let run = add(&sandbox, "parrot", &["--yes"], &["--visits"]);
    assert_eq!(run.code, 0, "{}", run.whole());
    for expected in ["service parrot runs: ", "sandbox: writes nothing", "file: "] {
        assert!(run.stderr.contains(expected), "{expected}: {}", run.stderr);
    }
    assert!(run.stdout.contains("  read         echo, add, env"), "{}", run.stdout);
    assert!(run.stdout.contains("  edit         visit"), "{}", run.stdout);
    assert!(run.stdout.contains("goose/assistant (mcp)"), "{}", run.stdout);
    let service = listed(&sandbox, "parrot");
    assert_eq!((&service["layer"], &service["enabled"]), (&json!("user"), &json!(true)));
    assert_eq!(service["groups"]["edit"], json!(["visit"]));
    assert_eq!(service["sandbox"]["files"], json!("read-only"));
    assert_eq!(service["sandbox"]["network"]["otherwise"], json!("off"));
    let file = sandbox.path("config/services/parrot.yaml");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let check = sandbox.skein(&["check", "--json"]).json();
    assert_eq!((&check["errors"], &check["warnings"]), (&json!(0), &json!(0)), "{check:#}");
}

#[test]
fn nothing_starts_and_nothing_is_written_without_consent() {
    let sandbox = Sandbox::new();
    let mark = sandbox.path("started");
    let run = add(&sandbox, "parrot", &[], &["--log-start", &mark.to_string_lossy()]);
    assert_eq!(run.code, 2, "{}", run.whole());
    assert!(run.stderr.contains("service parrot runs: ") && run.stderr.contains("--yes"), "{}", run.stderr);
    assert!(!mark.exists() && !sandbox.path("config/services").exists());
}

#[test]
fn service_that_does_not_start_is_not_written() {
    let sandbox = Sandbox::outside_tmp();
    let run = add(&sandbox, "parrot", &["--yes"], &["--exit-at-start"]);
    assert_eq!(run.code, 1, "{}", run.whole());
    for expected in ["told not to start", "nothing was written", "--no-probe"] {
        assert!(run.stderr.contains(expected), "{expected}: {}", run.stderr);
    }
    assert!(!sandbox.path("config/services/parrot.yaml").exists());
    let run = add(&sandbox, "parrot", &["--yes", "--no-probe"], &["--exit-at-start"]);
    assert_eq!(run.code, 0, "{}", run.whole());
    assert_eq!(listed(&sandbox, "parrot")["groups"], json!({}));
    let missing = sandbox.skein(&["services", "add", "gone", "--yes", "--", "no-such-program-here"]);
    assert_eq!(missing.code, 1, "{}", missing.whole());
    assert!(missing.stderr.contains("there is no program `no-such-program-here`"), "{}", missing.stderr);
}

#[test]
fn a_program_that_the_sandbox_hides_is_not_called_missing() {
    let sandbox = Sandbox::outside_tmp();
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let program = folder.path().join("server");
    fs::write(&program, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let run = sandbox.skein(&["services", "add", "hidden", "--yes", "--", &program.display().to_string()]);
    assert_eq!(run.code, 1, "{}", run.whole());
    let expected = format!("its sandbox does not show `{}`", program.display());
    assert!(run.stderr.contains(&expected) && run.stderr.contains("move the file"), "{}", run.stderr);
}

#[test]
fn relative_files_of_a_program_become_absolute() {
    let sandbox = Sandbox::outside_tmp();
    sandbox.write("project/bin/run.sh", &format!("exec {}\n", servers::mcp_echo()));
    sandbox.write("project/sh", "");
    sandbox.write("project/serve", "");
    let run = sandbox.skein(&["services", "add", "parrot", "--yes", "--", "sh", "bin/run.sh", "serve", "gone.sh"]);
    assert_eq!(run.code, 0, "{}", run.whole());
    assert!(run.stderr.contains("note: `bin/run.sh` is written as `"), "{}", run.stderr);
    assert!(run.stdout.contains("read         echo, add, env"), "{}", run.stdout);
    let text = read(sandbox.path("config/services/parrot.yaml"));
    assert!(text.contains("/project/bin/run.sh\",\"serve\",\"gone.sh\""), "{text}");
    assert!(text.contains("command: \"sh\""), "{text}");
}

#[test]
fn taken_name_needs_replace_and_built_in_ones_stay() {
    let sandbox = Sandbox::new();
    let flags = ["--yes", "--no-probe"];
    assert_eq!(add(&sandbox, "parrot", &flags, &[]).code, 0);
    let before = read(sandbox.path("config/services/parrot.yaml"));
    let again = add(&sandbox, "parrot", &flags, &["--visits"]);
    assert_eq!(again.code, 2, "{}", again.whole());
    assert!(again.stderr.contains("--replace"), "{}", again.stderr);
    assert_eq!(read(sandbox.path("config/services/parrot.yaml")), before);
    let replaced = add(&sandbox, "parrot", &["--yes", "--no-probe", "--replace", "--json"], &["--visits"]).json();
    assert_eq!(replaced["replaced"], json!(true));
    assert!(read(sandbox.path("config/services/parrot.yaml")).contains("--visits"));
    let built_in = add(&sandbox, "memory", &["--yes", "--no-probe", "--replace"], &[]);
    assert_eq!(built_in.code, 2, "{}", built_in.whole());
    assert!(built_in.stderr.contains("`memory` is a built-in service"), "{}", built_in.stderr);
    let own = read(sandbox.path("config/services/parrot.yaml")).replace("parrot", "macaw");
    sandbox.write("config/services/birds.yaml", &own);
    let elsewhere = add(&sandbox, "macaw", &["--yes", "--no-probe", "--replace"], &[]);
    assert_eq!(elsewhere.code, 2, "{}", elsewhere.whole());
    assert!(elsewhere.stderr.contains("birds.yaml"), "{}", elsewhere.stderr);
}

#[test]
fn manifest_has_names_of_variables_and_no_values() {
    let sandbox = Sandbox::new();
    let run =
        add(&sandbox, "parrot", &["--yes", "--no-probe", "--env", "PARROT_TOKEN", "--host", "api.example.com"], &[]);
    assert_eq!(run.code, 0, "{}", run.whole());
    let text = read(sandbox.path("config/services/parrot.yaml"));
    assert!(text.contains("PARROT_TOKEN: \"${env:PARROT_TOKEN}\""), "{text}");
    assert_eq!(listed(&sandbox, "parrot")["sandbox"]["network"]["allow"], json!(["api.example.com"]));
    let value = add(&sandbox, "other", &["--yes", "--env", "TOKEN=s3cret"], &[]);
    assert_eq!(value.code, 2, "{}", value.whole());
    assert!(!value.whole().contains("s3cret") && value.stderr.contains("write only the name"), "{}", value.whole());
    let header = ["services", "add", "web", "--yes", "--url", "https://example.com/mcp", "--header", "s3cret"];
    let run = sandbox.skein(&header);
    assert_eq!(run.code, 2, "{}", run.whole());
    assert!(!run.whole().contains("s3cret"), "{}", run.whole());
}

#[test]
fn program_that_downloads_packages_reaches_the_registries() {
    let sandbox = Sandbox::new();
    let run =
        sandbox.skein(&["services", "add", "github", "--yes", "--no-probe", "--json", "--", "npx", "-y", "@x/github"]);
    let added = run.json();
    assert_eq!(added["sandbox"]["network"]["allow"], json!(["registries"]), "{added:#}");
    let open = ["services", "add", "open", "--yes", "--no-probe", "--no-sandbox", "--json", "--", "npx", "x"];
    let run = sandbox.skein(&open);
    assert_eq!(run.json()["sandbox"], Value::Null);
    assert!(run.stderr.contains("has all your rights"), "{}", run.stderr);
}

#[test]
fn project_service_is_trusted_if_the_project_was() {
    let sandbox = Sandbox::new();
    let run = add(&sandbox, "parrot", &["--yes", "--no-probe", "--project", "--json"], &[]);
    assert_eq!(run.json()["trusted"], json!(true), "{}", run.whole());
    assert!(sandbox.path("project/.skein/services/parrot.yaml").exists());
    assert_eq!(listed(&sandbox, "parrot")["layer"], json!("project"));
    let wrong = sandbox.skein(&["services", "remove", "parrot"]);
    assert_eq!(wrong.code, 2, "{}", wrong.whole());
    assert!(wrong.stderr.contains("pass --project"), "{}", wrong.stderr);
    assert_eq!(sandbox.skein(&["services", "remove", "parrot", "--project"]).code, 0);
    assert_eq!(listed(&sandbox, "parrot"), Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn address_is_added_with_its_tools_or_refused() {
    let good = HttpServer::start(|request| good_server(request, || greeting(request))).await;
    let old = HttpServer::start(|request| match request.head.starts_with("GET ") {
        true => Reply::Stream("event: endpoint\ndata: /messages\n\n".to_owned()),
        false => Reply::Status(405),
    })
    .await;
    let (good_url, old_url) = (good.url.clone(), old.url.clone());
    tokio::task::spawn_blocking(move || {
        let sandbox = Sandbox::new();
        let run = sandbox.skein(&[
            "services",
            "add",
            "web",
            "--yes",
            "--json",
            "--url",
            &good_url,
            "--header",
            "X-Region: eu",
        ]);
        let added = run.json();
        assert_eq!(added["tools"], json!([{"name": "greet", "group": "edit", "read_only": null}]), "{added:#}");
        let text = read(sandbox.path("config/services/web.yaml"));
        assert!(text.contains("X-Region") && !text.contains("\nsandbox:"), "{text}");
        let run = sandbox.skein(&["services", "add", "old", "--yes", "--url", &old_url]);
        assert_eq!(run.code, 1, "{}", run.whole());
        assert!(run.stderr.contains("HTTP+SSE transport of MCP 2024-11-05"), "{}", run.stderr);
        assert!(!sandbox.path("config/services/old.yaml").exists());
    })
    .await
    .unwrap();
    assert!(good.requests().iter().any(|request| request.head.to_ascii_lowercase().contains("x-region: eu")));
}

#[test]
fn disabled_service_is_off_everywhere_and_says_why() {
    let sandbox = Sandbox::new();
    sandbox.write("config/config.yaml", "version: 1\n# mine\nrecall: true\n");
    assert_eq!(add(&sandbox, "parrot", &["--yes", "--no-probe"], &[]).code, 0);
    let run = sandbox.skein(&["services", "disable", "parrot"]);
    assert_eq!(run.code, 0, "{}", run.whole());
    let service = listed(&sandbox, "parrot");
    assert_eq!(service["enabled"], json!(false));
    assert!(service["disabled_by"].as_str().is_some_and(|file| file.ends_with("config.yaml")), "{service:#}");
    let shown = sandbox.skein(&["services"]).stdout;
    assert!(shown.contains("parrot (off)") && shown.contains("it is disabled by `disabled_services`"), "{shown}");
    assert_eq!(sandbox.skein(&["services", "disable", "parrot", "--json"]).json()["changed"], json!(false));
    let run = sandbox.skein(&["services", "enable", "parrot"]);
    assert_eq!(run.code, 0, "{}", run.whole());
    assert_eq!(listed(&sandbox, "parrot")["enabled"], json!(true));
    assert_eq!(read(sandbox.path("config/config.yaml")), "version: 1\n# mine\nrecall: true\n");
    for (name, expected) in [("summon", "belongs to the orchestrator"), ("parot", "did you mean `parrot`?")] {
        let run = sandbox.skein(&["services", "disable", name]);
        assert_eq!(run.code, 2, "{}", run.whole());
        assert!(run.stderr.contains(expected), "{}", run.stderr);
    }
}

#[test]
fn a_config_with_an_error_is_not_switched() {
    let sandbox = Sandbox::new();
    for (config, error) in [("version: 1\nrecall: [\n", "error[E003]"), ("version: 2\n", "error[E0")] {
        sandbox.write("config/config.yaml", config);
        for change in ["enable", "disable"] {
            let run = sandbox.skein(&["services", change, "memory"]);
            assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.whole());
            assert!(run.stderr.contains(error) && run.stderr.contains("the config file is wrong"), "{}", run.stderr);
            assert_eq!(read(sandbox.path("config/config.yaml")), config);
        }
    }
    // An error elsewhere is no reason: the broken service itself may have to be off.
    sandbox.write("config/config.yaml", "version: 1\n");
    sandbox.write("config/services/broken.yaml", "version: 1\nkind: service\n");
    assert_eq!(sandbox.skein(&["services", "disable", "memory"]).code, 0);
}

#[test]
fn tools_of_a_disabled_service_are_refused_with_the_reason() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.skein(&["services", "disable", "memory"]).code, 0);
    let tools = sandbox.skein(&["tools", "-a", "goose/assistant", "--json"]).json();
    assert!(tools.to_string().contains("disabled by `disabled_services` in"), "{tools:#}");
}

#[test]
fn enabling_adds_to_the_list_of_the_profile() {
    let sandbox = Sandbox::new();
    assert_eq!(add(&sandbox, "other", &["--yes", "--no-probe"], &[]).code, 0);
    sandbox.write("config/config.yaml", "version: 1\nprofiles:\n  default:\n    services: [other]\n");
    let run = add(&sandbox, "parrot", &["--yes", "--no-probe"], &[]);
    assert!(run.stderr.contains("`skein services enable parrot` turns it on"), "{}", run.whole());
    let run = sandbox.skein(&["services", "enable", "parrot"]);
    assert_eq!(run.code, 0, "{}", run.whole());
    assert_eq!(listed(&sandbox, "parrot")["enabled"], json!(true));
    assert!(read(sandbox.path("config/config.yaml")).contains("services: [\"parrot\", other]"));
}

#[test]
fn only_own_manifests_are_removed() {
    let sandbox = Sandbox::new();
    assert_eq!(add(&sandbox, "parrot", &["--yes", "--no-probe"], &[]).code, 0);
    assert_eq!(sandbox.skein(&["services", "disable", "parrot"]).code, 0);
    let run = sandbox.skein(&["services", "remove", "parrot"]);
    assert_eq!(run.code, 0, "{}", run.whole());
    assert!(!sandbox.path("config/services/parrot.yaml").exists());
    assert!(!read(sandbox.path("config/config.yaml")).contains("parrot"));
    let built_in = sandbox.skein(&["services", "remove", "memory"]);
    assert_eq!(built_in.code, 2, "{}", built_in.whole());
    assert!(built_in.stderr.contains("`skein services disable memory`"), "{}", built_in.stderr);
    let extra = format!(
        "version: 1\nkind: service\nname: extra\ndescription: X.\ntransport: {{stdio: {{command: '{}'}}}}\n",
        servers::mcp_echo()
    );
    sandbox.write("project/more/extra.yaml", &extra);
    let run = sandbox.skein(&["--manifests", "more", "services", "remove", "extra"]);
    assert_eq!(run.code, 2, "{}", run.whole());
    assert!(sandbox.path("project/more/extra.yaml").exists());
}

#[test]
fn logs_show_what_the_process_wrote() {
    let sandbox = Sandbox::outside_tmp();
    assert_eq!(add(&sandbox, "parrot", &["--yes", "--no-probe"], &["--exit-at-start"]).code, 0);
    let quiet = sandbox.skein(&["services", "logs", "parrot"]);
    assert_eq!((quiet.code, quiet.stdout.as_str()), (0, ""), "{}", quiet.whole());
    assert!(quiet.stderr.contains("has written nothing"), "{}", quiet.stderr);
    assert_eq!(sandbox.skein(&["services", "--probe", "parrot"]).code, 1);
    let run = sandbox.skein(&["services", "logs", "parrot"]);
    assert!(run.stdout.contains("skein-mcp-echo: told not to start"), "{}", run.whole());
    let one = sandbox.skein(&["services", "logs", "parrot", "-n", "1", "--json"]);
    assert_eq!(one.json()["text"], json!("skein-mcp-echo: told not to start"));
    for (name, expected) in [("memory", "it runs inside Skein"), ("parot", "did you mean `parrot`?")] {
        let run = sandbox.skein(&["services", "logs", name]);
        assert_eq!(run.code, 2, "{}", run.whole());
        assert!(run.stderr.contains(expected), "{}", run.stderr);
    }
}

/// A folder with programs of these names, which do nothing.
fn programs(sandbox: &Sandbox, names: &[&str]) -> std::path::PathBuf {
    for name in names {
        sandbox.write(&format!("bin/{name}"), "#!/bin/sh\nexit 1\n");
        fs::set_permissions(sandbox.path(&format!("bin/{name}")), fs::Permissions::from_mode(0o755)).unwrap();
    }
    sandbox.path("bin")
}

#[test]
fn example_agents_are_added_with_their_sandbox_and_login() {
    let sandbox = Sandbox::new();
    let path = programs(&sandbox, &["npx", "goose"]);
    for (name, agent, login) in [
        ("claude", "claude", "ANTHROPIC_API_KEY"),
        ("codex", "codex", "codex login"),
        ("gemini", "gemini", "GEMINI_API_KEY"),
        ("opencode", "opencode", "opencode auth login"),
        ("goose", "goose-cli", "goose configure"),
    ] {
        let output = sandbox.command(&["agents", "add", name]).env("PATH", &path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains("sandbox: ") && !said.contains("unsandboxed"), "{said}");
        assert!(said.contains(login) && said.contains(&format!("skein run -a {agent}")), "{said}");
        let text = read(sandbox.path(&format!("config/agents/{agent}.yaml")));
        assert!(text.starts_with("# ") && !text.contains("yaml-language-server"), "{text}");
        let again = sandbox.command(&["agents", "add", name]).env("PATH", &path).output().unwrap();
        assert_eq!(again.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&again.stderr).contains("--replace"));
    }
    assert_eq!(sandbox.skein(&["agents", "show", "goose-cli", "--json"]).json()["layer"], json!("user"));
}

#[test]
fn missing_program_of_an_agent_is_reported_and_nothing_written() {
    let sandbox = Sandbox::new();
    let path = programs(&sandbox, &[]);
    let output = sandbox.command(&["agents", "add", "claude"]).env("PATH", &path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("install Node.js") && said.contains("--no-probe"), "{said}");
    assert!(!sandbox.path("config/agents").exists());
    let output = sandbox.command(&["agents", "add", "claude", "--no-probe"]).env("PATH", &path).output().unwrap();
    assert!(output.status.success());
    assert!(sandbox.path("config/agents/claude.yaml").exists());
}
