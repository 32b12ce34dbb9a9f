//! Files of other tools, and exactly what becomes of them. All of them hold values that begin with `s3cret`.

use super::*;
use crate::manifest::{StdioTransport, Transport};

fn fixture(name: &str) -> ImportedConfig {
    let file = format!("{}/tests/fixtures/import/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(file).expect("a fixture");
    let moved = read_foreign(name, &text).expect("recognised");
    let shown = format!("{moved:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    moved
}

fn service<'a>(moved: &'a ImportedConfig, name: &str) -> &'a ServiceManifest {
    moved.services.iter().find(|service| service.name.as_str() == name).expect("carried over")
}

fn stdio<'a>(moved: &'a ImportedConfig, name: &str) -> &'a StdioTransport {
    match &service(moved, name).transport {
        Transport::Stdio(stdio) => stdio,
        other => panic!("{other:?}"),
    }
}

fn left(moved: &ImportedConfig) -> Vec<&str> {
    moved.left_out.iter().map(|left| left.what.as_str()).collect()
}

fn variables(moved: &ImportedConfig) -> Vec<&str> {
    moved.variables.keys().map(String::as_str).collect()
}

#[test]
fn goose_brings_extensions_model_and_mode() {
    let moved = fixture("goose.yaml");
    assert_eq!(moved.processor, Some("anthropic:claude-sonnet-4-5".into()));
    assert_eq!(moved.approval, Some(ApprovalLevel::Smart));
    let github = stdio(&moved, "github");
    assert_eq!((github.command.as_str(), github.args.len()), ("npx", 2));
    assert_eq!(github.env["LOG_LEVEL"], "debug");
    assert_eq!(github.env["GITHUB_PERSONAL_ACCESS_TOKEN"], "${env:GITHUB_PERSONAL_ACCESS_TOKEN}");
    assert_eq!(service(&moved, "github").timeouts.call, ManifestDuration::seconds(300));
    let Transport::Http(tracker) = &service(&moved, "tracker").transport else { panic!("http") };
    assert_eq!(tracker.headers["Authorization"], "Bearer ${env:TRACKER_AUTHORIZATION}");
    assert_eq!(variables(&moved), ["GITHUB_PERSONAL_ACCESS_TOKEN", "TRACKER_AUTHORIZATION"]);
    let expected = ["developer", "todo", "old", "unused", "GOOSE_TEMPERATURE", "OLLAMA_HOST"];
    assert_eq!(left(&moved), expected);
    let text = service_text(service(&moved, "github"), "a test");
    assert!(text.contains("\navailable_tools: [\"get_issue\"]\n"), "{text}");
}

#[test]
fn extensions_of_goose_name_the_service_of_skein() {
    let extensions = [
        ("developer", "Skein has its own service `developer`"),
        ("computercontroller", "service `computercontroller`"),
        ("Extension Manager", "Skein has its own service `extensionmanager`, which `auto` uses"),
        ("skills", "Skein has its own service `knowledge`"),
        ("code_execution", "modes have the setting `code_execution` instead"),
        ("imagined", "see `skein services` for what Skein has instead"),
    ];
    let listed: String =
        extensions.iter().map(|(name, _)| format!("  {name}: {{enabled: true, type: platform}}\n")).collect();
    let moved = read_foreign("config.yaml", &format!("extensions:\n{listed}")).expect("readable");
    for (name, instead) in extensions {
        let left = moved.left_out.iter().find(|left| left.what == name).expect("left out");
        assert!(left.reason.contains(instead), "{name}: {}", left.reason);
    }
}

#[test]
fn claude_desktop_brings_its_servers() {
    let moved = fixture("claude_desktop_config.json");
    assert_eq!(stdio(&moved, "filesystem").args[2], "/home/me/Documents");
    let github = stdio(&moved, "github-tools");
    assert_eq!(github.args.join(" "), "run -i --rm -e GITHUB_TOKEN ghcr.io/github/github-mcp-server");
    assert_eq!(github.env["GITHUB_TOKEN"], "${env:GITHUB_TOKEN}");
    assert_eq!(github.env["GITHUB_TOOLSETS"], "repos,issues");
    assert_eq!(stdio(&moved, "database").args[2], "${env:DATABASE_ARGUMENT_3}");
}

#[test]
fn keys_in_addresses_and_arguments_go_too() {
    let moved = fixture("mcp.json");
    let Transport::Http(search) = &service(&moved, "search").transport else { panic!("http") };
    assert_eq!(search.url, "https://search.example/mcp?api_key=${env:SEARCH_API_KEY}");
    assert_eq!(search.headers["X-Api-Key"], "${env:SEARCH_KEY}");
    assert_eq!(search.headers["Accept-Language"], "en");
    let weather = &stdio(&moved, "weather").args;
    assert_eq!(weather[1..], ["--units", "${env:UNITS:-metric}", "--token", "${env:WEATHER_TOKEN}"]);
    assert_eq!(left(&moved), ["nothing"]);
    assert_eq!(variables(&moved), ["SEARCH_API_KEY", "SEARCH_KEY", "WEATHER_TOKEN"], "UNITS need not be set");
}

#[test]
fn a_default_is_kept_unless_it_may_be_a_secret() {
    let of = |server: serde_json::Value| {
        let text = serde_json::json!({"mcpServers": {"x": server}}).to_string();
        read_foreign("x.json", &text).expect("read")
    };
    let moved =
        of(serde_json::json!({"command": "x", "args": ["--level=${LEVEL:-debug}", "${EMPTY:-}", "-p", "${PORT:-80}"],
        "env": {"HOST": "${HOST:-localhost:80}"}, "cwd": "${DIR:-/srv}/data"}));
    let kept = stdio(&moved, "x");
    assert_eq!(kept.args, ["--level=${env:LEVEL:-debug}", "${env:EMPTY:-}", "-p", "${env:PORT:-80}"]);
    assert_eq!(kept.env["HOST"], "${env:HOST:-localhost:80}");
    assert_eq!(kept.cwd.as_deref(), Some("${env:DIR:-/srv}/data"));
    assert_eq!((left(&moved), variables(&moved)), (vec![], vec![]));
    let moved = of(serde_json::json!({"url": "${BASE:-http://localhost:3000}/mcp"}));
    let Transport::Http(http) = &service(&moved, "x").transport else { panic!("http") };
    assert_eq!(http.url, "${env:BASE:-http://localhost:3000}/mcp");
    for secret in [
        serde_json::json!({"command": "x", "args": ["--token", "${T:-S3CRET}"]}),
        serde_json::json!({"command": "x", "args": ["--token=${T:-S3CRET}"]}),
        serde_json::json!({"command": "x", "args": ["-p", "${T:-S3CRET}"]}),
        serde_json::json!({"command": "x", "args": ["-u", "${T:-me:S3CRET}"]}),
        serde_json::json!({"command": "x", "args": ["-u", "${U}:${T:-S3CRET}"]}),
        serde_json::json!({"command": "x", "args": ["postgres://me:${T:-S3CRET}@h/db"]}),
        serde_json::json!({"command": "x", "env": {"DB_PW": "${T:-S3CRET}"}}),
        serde_json::json!({"command": "x", "env": {"A": "${A_TOKEN:-S3CRET}"}}),
        serde_json::json!({"command": "x", "env": {"A": "${T:-S3CRET0123456789}"}}),
        serde_json::json!({"command": "x", "env": {"A": "postgres://me:${T:-S3CRET}@h/db"}}),
        serde_json::json!({"url": "https://h/mcp", "headers": {"A": "Bearer ${T:-S3CRET}"}}),
        serde_json::json!({"url": "https://h/mcp?q=${T:-S3CRET}"}),
    ] {
        let moved = of(secret);
        let told = format!("{} {:?}", service_text(service(&moved, "x"), "x"), moved.left_out);
        assert!(!told.contains("S3CRET") && told.contains("it may be a secret"), "{told}");
    }
}

#[test]
fn a_variable_with_an_empty_default_is_optional() {
    let args = ["run", "-u", "${UID_X:-1000}", "--token", "${T:-}", "image"];
    let env = serde_json::json!({"API_KEY": "${API_KEY:-}", "OTHER_KEY": "${OTHER_KEY:-}"});
    let servers = serde_json::json!({"mcpServers": {
        "a": {"command": "docker", "args": args, "env": env},
        "b": {"command": "b", "env": {"OTHER_KEY": "${OTHER_KEY}"}},
    }});
    let moved = read_foreign("x.json", &servers.to_string()).expect("read");
    let kept = stdio(&moved, "a");
    assert_eq!(kept.args, ["run", "-u", "${env:UID_X:-1000}", "--token", "${env:T:-}", "image"]);
    assert_eq!(kept.env["API_KEY"], "${env:API_KEY:-}");
    assert_eq!((left(&moved), variables(&moved)), (vec![], vec!["API_KEY", "OTHER_KEY", "T"]));
    assert_eq!(moved.optional.iter().collect::<Vec<_>>(), ["API_KEY", "T"]);
}

#[test]
fn what_is_not_imported_names_what_skein_has() {
    let text = r#"{"servers": {"a": {"url": "https://h/mcp", "oauth": {"clientId": "x"}},
        "b": {"command": "b", "sandboxEnabled": true}, "c": {"command": "c", "sandboxEnabled": false}}}"#;
    let moved = read_foreign("mcp.json", text).expect("read");
    let told: Vec<_> = moved.left_out.iter().map(|left| (left.what.as_str(), left.reason.as_str())).collect();
    let expected = [
        ("oauth of a", "settings of a login are not imported; log in with `skein services login a`"),
        ("sandboxEnabled of b", "a sandbox is not imported; describe it with `sandbox` in services/b.yaml"),
    ];
    assert_eq!(told, expected);
}

#[test]
fn zed_settings_are_read_with_their_comments() {
    let moved = fixture("zed_settings.json");
    assert_eq!(stdio(&moved, "notes").command, "notes-mcp");
    assert_eq!(stdio(&moved, "older").command, "/opt/older/bin/mcp");
    assert_eq!(stdio(&moved, "older").env["OLDER_TOKEN"], "${env:OLDER_TOKEN}");
    assert_eq!(left(&moved), ["postgres-context-server", "paused"]);
}

#[test]
fn vs_code_inputs_become_variables() {
    let moved = fixture("vscode_mcp.json");
    assert_eq!(stdio(&moved, "perplexity").env["PERPLEXITY_API_KEY"], "${env:PERPLEXITY_KEY}");
    assert_eq!(left(&moved), ["envFile of perplexity", "here"]);
}

#[test]
fn services_with_different_values_get_separate_variables() {
    let text = r#"{"mcpServers": {"a": {"command": "a", "env": {"TOKEN": "one-s3cret"}},
        "b": {"command": "b", "env": {"TOKEN": "two-s3cret"}}, "c": {"command": "c", "env": {"TOKEN": "one-s3cret"}}}}"#;
    let moved = read_foreign("x.json", text).expect("read");
    let of = |name| stdio(&moved, name).env["TOKEN"].as_str();
    assert_eq!((of("a"), of("b"), of("c")), ("${env:TOKEN}", "${env:B_TOKEN}", "${env:TOKEN}"));
}

#[test]
fn arguments_that_only_look_like_keys_stay() {
    let of = |args: &[&str]| {
        let text = serde_json::json!({"mcpServers": {"x": {"command": "x", "args": args}}}).to_string();
        stdio(&read_foreign("x.json", &text).expect("read"), "x").args.clone()
    };
    let harmless = [
        "ghcr.io/acme/auth-server:latest",
        "keycloak-mcp:1.2",
        "@acme/key-value@1.0",
        "--port=8080",
        "git+ssh://git@forge/x",
        "--compat",
        "old",
        "-p",
        "8080",
        "-p",
        "127.0.0.1:8080:80/tcp",
        "-p",
        "./data",
        "-p",
        "home/data",
        "-p",
        "@acme/tool@1.0",
    ];
    assert_eq!(of(&harmless), harmless);
    let hidden = of(&["--pw", "hunter2", "-p", "s3cret99", "--db-pw=hunter2"]);
    assert_eq!(hidden, ["--pw", "${env:X_PW}", "-p", "${env:X_P}", "--db-pw=${env:X_DB_PW}"]);
    let hidden = of(&["--header", "Authorization: Bearer s3cret", "--api-key=s3cret", "API_KEY=s3cret"]);
    let expected =
        ["--header", "Authorization:${env:AUTHORIZATION}", "--api-key=${env:X_API_KEY}", "API_KEY=${env:API_KEY}"];
    assert_eq!(hidden, expected);
}

#[test]
fn the_program_decides_what_the_flag_p_means() {
    let of = |command: &str, args: &[&str]| {
        let servers = serde_json::json!({"mcpServers": {"x": {"command": command, "args": args}}});
        stdio(&read_foreign("x.json", &servers.to_string()).expect("read"), "x").args.clone()
    };
    for (command, args) in [
        ("npx", &["-y", "-p", "mcp-remote", "mcp-remote", "https://h/mcp"][..]),
        ("/usr/bin/npm", &["exec", "-p", "one", "-p", "two", "--", "one"]),
        ("pnpm", &["dlx", "-p", "one", "one"]),
        ("bunx", &["-p", "one", "one"]),
        ("uv", &["--directory", "/srv/x", "run", "-p", "python3.12", "server.py"]),
        ("uvx", &["--from", "one", "-p", "pypy3.10", "two"]),
        ("docker", &["run", "-p8080:80", "one"]),
        ("mysql", &["-p${PW}", "-P3306"]),
    ] {
        assert_eq!(of(command, args).join(" "), args.join(" ").replace("${", "${env:"));
    }
    for (command, args, expected) in [
        ("npx", &["-y", "one", "-p", "hunter2"][..], "-y one -p ${env:X_P}"),
        ("uv", &["run", "one", "-p", "hunter2"], "run one -p ${env:X_P}"),
        ("mysql", &["-uroot", "-phunter2"], "-uroot -p${env:X_PASSWORD}"),
        ("/usr/bin/mysqldump", &["-p12345", "db"], "-p${env:X_PASSWORD} db"),
        ("docker", &["exec", "-i", "db", "mariadb", "-phunter2"], "exec -i db mariadb -p${env:X_PASSWORD}"),
        ("mysql", &["-p${PW:-hunter2}"], "-p${env:PW}"),
    ] {
        assert_eq!(of(command, args).join(" "), expected);
    }
}

#[test]
fn a_secret_is_found_in_whatever_way_it_is_written() {
    let jwt = ["eyJhbGciOiJIUzI1NiJ9", "eyJzdWIiOiJ4In0", "S3CRETabcdefghijklmn0"].join(".");
    for server in [
        serde_json::json!({"command": "x", "args": [jwt]}),
        serde_json::json!({"command": "sh", "args": ["-c", "export API_KEY='S3CRET'; npx server"]}),
        serde_json::json!({"command": "x", "args": ["Server=h;Password=S3CRET;"]}),
        serde_json::json!({"command": "x", "args": ["{\"apiKey\":\"S3CRET\"}"]}),
        serde_json::json!({"command": "x", "args": ["--apikey:S3CRET"]}),
        serde_json::json!({"command": "x", "args": ["/token:S3CRET"]}),
        serde_json::json!({"command": "x", "args": ["access_token:S3CRET"]}),
        serde_json::json!({"command": "x", "args": ["--user", "me:S3CRET"]}),
        serde_json::json!({"command": "x", "args": ["-k", "S3CRET"]}),
        serde_json::json!({"command": "x", "args": ["-p", "S3CRET"]}),
        serde_json::json!({"command": "x", "args": ["-p", "${T}S3CRET"]}),
        serde_json::json!({"command": "x", "args": ["-p", "+S3CRET/=="]}),
        serde_json::json!({"command": "x", "args": ["--pw=S3CRET"]}),
        serde_json::json!({"command": "x", "env": {"DB_PW": "S3CRET"}}),
        serde_json::json!({"command": "x", "args": ["--token", "${T}S3CRET"]}),
        serde_json::json!({"command": "x", "args": ["--token=${T}S3CRET"]}),
        serde_json::json!({"command": "x", "args": ["--secret", "-S3CRET"]}),
        serde_json::json!({"command": "x", "args": ["--header=Authorization: Bearer S3CRET"]}),
        serde_json::json!({"command": "x", "args": ["postgres://S3CRET@h/db"]}),
        serde_json::json!({"command": "x", "args": ["https://h/#S3CRET"]}),
        serde_json::json!({"command": "x --token=S3CRET"}),
        serde_json::json!({"command": "x", "cwd": "/tmp/token=S3CRET"}),
        serde_json::json!({"url": "https://h/mcp?S3CRET"}),
        serde_json::json!({"url": "https://h/mcp#token=S3CRET"}),
        serde_json::json!({"url": "https://S3CRET@h/mcp"}),
        serde_json::json!({"url": "wss:S3CRET"}),
        serde_json::json!({"url": "https://h/mcp", "headers": {"A": "x ${bad-S3CRET}"}}),
    ] {
        let text = serde_json::json!({"mcpServers": {"x": server}}).to_string();
        let moved = read_foreign("x.json", &text).expect("read");
        let written: Vec<_> = moved.services.iter().map(|service| service_text(service, "x")).collect();
        let told = format!("{written:?} {:?} {:?}", moved.left_out, moved.variables);
        assert!(!told.contains("S3CRET"), "{text}: {told}");
    }
}

#[test]
fn json_may_have_comments_and_trailing_commas_and_nothing_else() {
    let text = "// settings\n{ /* two\n lines */ \"mcpServers\": {\"x\": {\"command\": \"http://x/* no */\", \"args\": [\"a\", ], }, }, // end\n}";
    let moved = read_foreign("settings.json", text).expect("read");
    assert_eq!(stdio(&moved, "x").command, "http://x/* no */");
    assert_eq!(stdio(&moved, "x").args, ["a"]);
    for (text, expected) in [
        ("{\n\"mcpServers\": {,}}", "in line 2"),
        ("{\"mcpServers\": {} /* open", "Unterminated"),
        ("{mcpServers: {}}", "in line 1"),
        ("{\"mcpServers\": 0x1}", "in line 1"),
        ("{\"mcpServers\": {}, \"mcpServers\": {}}", "\"mcpServers\""),
    ] {
        let error = read_foreign("x.json", text).expect_err("refused");
        assert!(error.to_string().contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_file_that_is_none_of_these_is_refused_with_the_reason() {
    for (text, expected) in [("{\"a\": 1}", "none of"), ("a: [", "line"), ("", "empty"), ("- a\n", "none of")] {
        let error = read_foreign("x.yaml", text).expect_err("refused");
        assert!(error.to_string().contains(expected), "{text}: {error}");
    }
}

#[test]
fn characters_that_yaml_refuses_are_written_as_escapes() {
    let command = "a\t\u{7F}\u{85}\u{9F}\u{FFFE}é";
    let config = serde_json::json!({"mcpServers": {"x": {"command": command}}}).to_string();
    let read = read_foreign("x.json", &config).expect("a file of services");
    let written = service_text(&read.services[0], "from x.json");
    let loaded = yaml::parse(&SourceFile::new("x.yaml", written.as_str())).expect("a manifest");
    assert_eq!(loaded["transport"]["stdio"]["command"], command, "{written}");
}
