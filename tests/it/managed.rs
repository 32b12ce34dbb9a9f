//! Managed settings: what a user, a project, a flag or a variable tries against each of them, and what is said about it.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::acp::{Acp, spoken};
use crate::support::model::{Answer, ScriptedModel};
use crate::support::{Run, Sandbox, servers};

/// A way to loosen a setting.
#[derive(Default)]
struct Attempt {
    /// The user's config, without its version.
    user: &'static str,
    /// The config of a trusted project, without its version.
    project: &'static str,
    args: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
}

fn sandbox(managed: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("project/managed.yaml", &format!("version: 1\n{managed}\n"));
    sandbox
}

impl Attempt {
    fn command(&self, sandbox: &Sandbox, args: &[&str]) -> Command {
        if !self.user.is_empty() {
            sandbox.write("config/config.yaml", &format!("version: 1\n{}\n", self.user));
        }
        if !self.project.is_empty() {
            sandbox.write("project/.skein/config.yaml", &format!("version: 1\n{}\n", self.project));
            let trusted = sandbox.skein(&["trust", "--yes"]);
            assert_eq!(trusted.code, 0, "{}", trusted.whole());
        }
        // The prompt of `run` comes last.
        let (front, last) = args.split_at(args.len() - usize::from(args.first() == Some(&"run")));
        let all = [&["--managed", "managed.yaml"][..], front, self.args, last].concat();
        let mut command = sandbox.command(&all);
        command.envs(self.variables.iter().copied());
        command
    }

    fn run(&self, managed: &str, args: &[&str]) -> String {
        let sandbox = sandbox(managed);
        let output = self.command(&sandbox, args).output().expect("the program starts");
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    }
}

fn user(user: &'static str) -> Attempt {
    Attempt { user, ..Attempt::default() }
}

fn project(project: &'static str) -> Attempt {
    Attempt { project, ..Attempt::default() }
}

fn flags(args: &'static [&'static str]) -> Attempt {
    Attempt { args, ..Attempt::default() }
}

fn variable(variables: &'static [(&'static str, &'static str)]) -> Attempt {
    Attempt { variables, ..Attempt::default() }
}

/// Tests one call in a mode, and returns what is printed.
fn decision(attempt: &Attempt, managed: &str, mode: &str, call: &str) -> String {
    attempt.run(managed, &["permissions", "test", "-a", mode, call])
}

const TOUCH: &str = r#"developer__shell {"command": "touch x"}"#;

#[test]
fn nothing_loosens_the_approval_level() {
    let attempts = [
        user("approval: auto"),
        project("approval: auto"),
        flags(&["--approval", "auto"]),
        flags(&["--approval", "smart"]),
        variable(&[("SKEIN_APPROVAL", "auto")]),
    ];
    for attempt in attempts {
        let text = decision(&attempt, "approval: ask", "goose/assistant", TOUCH);
        let expected =
            "ask: the approval level is `ask`; the managed setting `approval` (managed.yaml:2) allows no looser";
        assert!(text.contains(expected), "{text}");
    }
    let flag = decision(&flags(&["--approval", "auto"]), "approval: ask", "goose/assistant", TOUCH);
    assert!(flag.contains("the approval level is `ask`, not `auto`: the managed setting `approval`"), "{flag}");
}

#[test]
fn a_stricter_level_than_the_managed_one_counts() {
    let attempts = [user("approval: read-only"), project("approval: read-only"), flags(&["--approval", "read-only"])];
    for attempt in attempts {
        let text = decision(&attempt, "approval: ask", "goose/assistant", TOUCH);
        assert!(text.contains("refuse: the session is read-only") && !text.contains("managed"), "{text}");
    }
}

#[test]
fn an_editor_cannot_choose_a_looser_level() {
    let sandbox = sandbox("approval: ask");
    let mut client = Acp::launch(&sandbox, sandbox.command(&["--managed", "managed.yaml", "acp", "-a", "goose"]));
    client.introduce(&json!({}));
    let session = client.session();
    let choice = |value: &str| json!({"sessionId": session, "configId": "approval", "value": value});
    let refused = client.refused("session/set_config_option", choice("auto")).to_string();
    let expected =
        "the approval level `auto` is looser than `ask`, which the managed setting `approval` (managed.yaml:2)";
    assert!(refused.contains(expected), "{refused}");
    client.ask("session/set_config_option", choice("read-only"));
}

#[test]
fn a_changed_level_binds_sessions_that_are_open() {
    let sandbox = sandbox("approval: auto");
    let mut client = Acp::launch(&sandbox, sandbox.command(&["--managed", "managed.yaml", "acp", "-a", "goose"]));
    client.introduce(&json!({}));
    let session = client.session();
    let choice = |value: &str| json!({"sessionId": session, "configId": "approval", "value": value});
    client.ask("session/set_config_option", choice("auto"));
    client.prompt(&session, "run touch before");
    assert!(sandbox.path("project/before").exists(), "the level is `auto`");
    sandbox.write("project/managed.yaml", "version: 1\napproval: read-only\n");
    let said = spoken(&client.prompt(&session, "run touch after").1);
    assert!(!sandbox.path("project/after").exists(), "{said}");
    let answer = client.ask("session/set_config_option", choice("deny"));
    assert!(answer.to_string().contains("deny"), "{answer}");
    assert!(client.refused("session/set_config_option", choice("auto")).to_string().contains("`read-only`"));
}

/// Nobody keeps a tighter managed file away with a config that has an error.
#[test]
fn an_invalid_config_does_not_delay_managed_settings() {
    let sandbox = sandbox("approval: auto");
    std::fs::create_dir(sandbox.path("project/.skein")).unwrap();
    let mut client = Acp::launch(&sandbox, sandbox.command(&["--managed", "managed.yaml", "acp", "-a", "goose"]));
    client.introduce(&json!({}));
    let session = client.session();
    let choice = |value: &str| json!({"sessionId": session, "configId": "approval", "value": value});
    client.ask("session/set_config_option", choice("auto"));
    sandbox.write("config/config.yaml", "version: 1\napproval: sometimes\n");
    // The folder belongs to no project any more.
    std::fs::remove_dir(sandbox.path("project/.skein")).unwrap();
    client.prompt(&session, "run touch before");
    assert!(sandbox.path("project/before").exists(), "what was valid before still applies");
    sandbox.write("project/managed.yaml", "version: 1\napproval: read-only\nservices: [developer]\n");
    let said = spoken(&client.prompt(&session, "run touch after").1);
    assert!(!sandbox.path("project/after").exists(), "{said}");
    assert!(client.refused("session/set_config_option", choice("auto")).to_string().contains("`read-only`"));
    let tools = spoken(&client.prompt(&session, "/tools").1);
    assert!(tools.contains("read_file") && !tools.contains("remember"), "{tools}");
    let other = client.session();
    client.prompt(&other, "run touch after");
    assert!(!sandbox.path("project/after").exists(), "new sessions have the settings, too");
    // The file of the administrator has an error: its last valid settings apply.
    sandbox.write("project/managed.yaml", "version: 1\napproval: [auto\n");
    client.prompt(&session, "run touch after");
    assert!(!sandbox.path("project/after").exists());
}

#[test]
fn no_rule_allows_what_a_managed_rule_denies() {
    let allow = "permissions: [{tool: developer__shell, then: allow}]";
    let attempts = [user(allow), flags(&["--allow", "developer__shell"]), flags(&["--approval", "auto"])];
    for attempt in attempts {
        let managed = "permissions: [{tool: developer__shell, arguments: {command: 'touch *'}, then: deny}]";
        let text = decision(&attempt, managed, "goose/assistant", TOUCH);
        let expected = "(the managed setting `permissions` (managed.yaml:2))";
        assert!(text.contains("refuse: required by a rule") && text.contains(expected), "{text}");
    }
}

#[test]
fn nothing_loosens_the_sandbox() {
    let wide = "sandbox: {files: full, network: on}";
    let of_mode = "sandbox: {modes: {coding/backend: {files: full, network: on}}}";
    let attempts = [user(wide), user(of_mode), flags(&["--sandbox", "off"]), flags(&["--sandbox", "preferred"])];
    for attempt in attempts {
        let sandbox = sandbox("sandbox: {enforce: required, files: read-only, network: off}");
        let output = attempt.command(&sandbox, &["agents", "show", "coding", "--json"]).output().unwrap();
        let agent: Value = serde_json::from_slice(&output.stdout).unwrap();
        let modes = agent["modes"].as_array().unwrap();
        let profile = &modes.iter().find(|mode| mode["slug"] == "backend").unwrap()["sandbox"];
        let seen = (&profile["enforce"], &profile["files"], &profile["network"]["otherwise"]);
        assert_eq!(seen, (&json!("required"), &json!("read-only"), &json!("off")), "{profile}");
    }
    let sandbox = sandbox("sandbox: {network: off}");
    let off = flags(&["--sandbox", "off"]).command(&sandbox, &["agents", "show", "coding", "--json"]).output().unwrap();
    let agent: Value = serde_json::from_slice(&off.stdout).unwrap();
    let mut modes = agent["modes"].as_array().unwrap().iter();
    let profile = &modes.find(|mode| mode["slug"] == "backend").unwrap()["sandbox"];
    assert_eq!(profile["enforce"], json!("preferred"), "limits without `enforce` keep the sandbox on: {profile}");
    let flag = flags(&["--sandbox", "off"]).run("sandbox: {enforce: required}", &["agents"]);
    assert!(
        flag.contains("in spite of --sandbox: the managed setting `sandbox` (managed.yaml:2) requires it"),
        "{flag}"
    );
}

/// A user writes an agent that wants more than is allowed.
#[test]
fn an_own_agent_has_the_managed_floors() {
    let own = "version: 1\nkind: agent\nname: own\ndescription: Mine.\nmetadata: {dependencies: [developer]}\nmodes:\n  \
               - {slug: a, description: Works., prompt: own.md, tool_groups: [read, edit, command], \
               dependencies: [developer], approval: auto, sandbox: {files: full, network: on}}\n";
    const EXTRA: &[&str] = &["--manifests", "extra"];
    for (folder, args) in [("config/agents", &EXTRA[..0]), ("project/extra", EXTRA)] {
        let sandbox = sandbox("approval: ask\nsandbox: {enforce: required, files: read-only, network: off}");
        sandbox.write(&format!("{folder}/own.yaml"), own);
        sandbox.write(&format!("{folder}/own.md"), "You work.\n");
        let attempt = flags(args);
        let shown = attempt.command(&sandbox, &["agents", "show", "own", "--json"]).output().unwrap();
        let said = String::from_utf8_lossy(&shown.stderr).into_owned();
        let agent: Value = serde_json::from_slice(&shown.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
        let profile = &agent["modes"][0]["sandbox"];
        let seen = (&profile["enforce"], &profile["files"], &profile["network"]["otherwise"]);
        assert_eq!(seen, (&json!("required"), &json!("read-only"), &json!("off")), "{profile}");
        let decided = attempt.command(&sandbox, &["permissions", "test", "-a", "own/a", TOUCH]).output().unwrap();
        let text = String::from_utf8_lossy(&[decided.stdout, decided.stderr].concat()).into_owned();
        assert!(text.contains("ask: the approval level is `ask`; the managed setting `approval`"), "{text}");
    }
}

#[test]
fn no_command_leaves_a_required_sandbox() {
    let call = r#"developer__shell {"command": "ls", "unsandboxed": "it needs the display"}"#;
    let attempts = [
        Attempt::default(),
        flags(&["--approval", "auto"]),
        flags(&["--allow", r#"developer__shell: {command: "ls"}"#]),
        flags(&["--sandbox", "off"]),
    ];
    for attempt in attempts {
        let text = decision(&attempt, "sandbox: {enforce: required}", "coding/backend", call);
        assert!(text.contains("refuse: the managed setting `sandbox` (managed.yaml:2) forbids"), "{text}");
    }
}

#[test]
fn nothing_reaches_another_host() {
    let allow = "permissions: [{host: example.com, then: allow}]";
    let attempts = [
        user(allow),
        flags(&["--allow", "host: example.com"]),
        flags(&["--approval", "auto"]),
        variable(&[("SKEIN_APPROVAL", "auto")]),
        user("sandbox: {network: on}"),
    ];
    let call = |host: &str| format!(r#"fetch__fetch_url {{"url": "https://{host}/"}}"#);
    for attempt in attempts {
        let managed = "hosts: [docs.rs, '*.docs.rs']";
        let text = decision(&attempt, managed, "coding/pm", &call("example.com"));
        let expected = "(the managed setting `hosts` (managed.yaml:2))";
        assert!(text.contains("refuse: ") && text.contains(expected), "{text}");
        let allowed = decision(&attempt, managed, "coding/pm", &call("docs.rs"));
        assert!(!allowed.contains("refuse: "), "{allowed}");
    }
}

#[test]
fn nothing_brings_back_another_agent() {
    let attempts: [(Attempt, &[&str]); 5] = [
        (Attempt::default(), &["run", "-a", "coding", "hello"]),
        (Attempt::default(), &["run", "-m", "backend", "hello"]),
        (Attempt::default(), &["run", "-a", "coding/backend", "hello"]),
        (user("profiles: {default: {agent: coding, mode: backend}}"), &["run", "hello"]),
        (flags(&["--manifests", "own.yaml"]), &["run", "-a", "own", "hello"]),
    ];
    for (attempt, args) in attempts {
        let sandbox = sandbox("agents: [goose/planner]");
        let own = "version: 1\nkind: agent\nname: own\ndescription: Mine.\n\
                   runtime: {acp: {command: own}}\nmodes: [{slug: a, description: Works.}]\n";
        sandbox.write("project/own.yaml", own);
        let output = attempt.command(&sandbox, args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected = "is not allowed here: the managed setting `agents` (managed.yaml:2) does not list it";
        assert!(output.status.code() == Some(2) && text.contains(expected), "{text}");
    }
    let sandbox = sandbox("agents: [goose/planner]");
    let listed = Attempt::default().command(&sandbox, &["agents", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let mut offered = Vec::new();
    for agent in listed.as_array().unwrap() {
        let modes = agent["modes"].as_array().unwrap().iter().filter(|mode| mode["internal"] == json!(false));
        offered.extend(
            modes.map(|mode| format!("{}/{}", agent["name"].as_str().unwrap(), mode["slug"].as_str().unwrap())),
        );
    }
    assert_eq!(offered, ["goose/planner", "orchestrator/auto"]);
}

#[test]
fn an_editor_cannot_enter_another_mode() {
    let sandbox = sandbox("agents: [goose]");
    let mut client = Acp::launch(&sandbox, sandbox.command(&["--managed", "managed.yaml", "acp"]));
    client.introduce(&json!({}));
    let session = client.session();
    let expected = "is not allowed here: the managed setting `agents` (managed.yaml:2) does not list it";
    let refused = client.refused("session/set_mode", json!({"sessionId": session, "modeId": "coding/backend"}));
    assert!(refused.to_string().contains(expected), "{refused}");
    let prompt = json!([{"type": "text", "text": "@coding/backend hello"}]);
    let refused = client.refused("session/prompt", json!({"sessionId": session, "prompt": prompt}));
    assert!(refused.to_string().contains(expected), "{refused}");
    client.set_mode(&session, "goose/planner");
}

#[test]
fn nothing_brings_back_another_service() {
    let attempts = [
        Attempt::default(),
        user("profiles: {default: {services: [developer, memory, todo]}}"),
        project("profiles: {default: {services: [developer, memory, todo]}}"),
        flags(&["--manifests", "notes.yaml"]),
    ];
    for attempt in attempts {
        let sandbox = sandbox("services: [developer]");
        sandbox.write(
            "project/notes.yaml",
            "version: 1\nkind: service\nname: notes\ndescription: Notes.\ntransport: {stdio: {command: notes}}\n",
        );
        let output = attempt.command(&sandbox, &["tools", "-a", "goose/assistant"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("developer__shell") && !text.contains("memory__"), "{text}");
        assert!(
            text.contains("the managed setting `services` (managed.yaml:2) does not list the service memory"),
            "{text}"
        );
    }
    let sandbox = sandbox("services: [developer]");
    let enabled = Attempt::default().command(&sandbox, &["services", "enable", "memory"]).output().unwrap();
    let text = String::from_utf8_lossy(&enabled.stderr).into_owned();
    let expected = "`memory` is still off: the managed setting `services` (managed.yaml:2) does not list it";
    assert!(!enabled.status.success() && text.contains(expected), "{text}");
}

const OWN_MEMORY: &str = "version: 1\nkind: service\nname: memory\ndescription: Mine.\n\
                          groups: {memory: [echo]}\ntransport: {stdio: {command: own-memory}}\n";
const OWN_CODING: &str = "version: 1\nkind: agent\nname: coding\ndescription: Mine.\n\
                          runtime: {acp: {command: own-agent}}\nmodes: [{slug: backend, description: Works.}]\n";

/// A user gives a manifest the name of what is allowed.
#[test]
fn nobody_replaces_an_allowed_service() {
    for (file, flags) in
        [("config/services/memory.yaml", vec![]), ("project/own.yaml", vec!["--manifests", "own.yaml"])]
    {
        for (managed, is_allowed) in [
            ("services: [developer, memory]", false),
            ("services: ['*']", false),
            ("services: [developer, {name: memory, from: skein}]", false),
            ("services: [developer, {name: memory, from: user}]", true),
        ] {
            let sandbox = sandbox(managed);
            sandbox.write(file, OWN_MEMORY);
            let args = [&["--managed", "managed.yaml"][..], &flags[..], &["tools", "-a", "goose/assistant"]].concat();
            let text = sandbox.skein(&args).whole();
            let expected = "the managed setting `services` (managed.yaml:2) allows the service memory only as Skein";
            assert_eq!(text.contains(expected), !is_allowed, "{managed}: {text}");
        }
    }
    let unmanaged =
        sandbox("services: [developer, memory]").skein(&["--managed", "managed.yaml", "tools", "-a", "goose"]);
    assert!(unmanaged.stdout.contains("memory__remember"), "the service of Skein: {}", unmanaged.whole());
}

#[test]
fn nobody_replaces_an_allowed_agent() {
    let expected = "the managed setting `agents` (managed.yaml:2) allows it only as Skein defines it, not as";
    for (file, flags) in [("config/agents/coding.yaml", vec![]), ("project/own.yaml", vec!["--manifests", "own.yaml"])]
    {
        for managed in ["agents: [coding, goose]", "agents: ['*']"] {
            let sandbox = sandbox(managed);
            sandbox.write(file, OWN_CODING);
            let front = [&["--managed", "managed.yaml"][..], &flags[..]].concat();
            for args in [["-a", "coding/backend"], ["--model", "acp:coding"]] {
                let run = sandbox.skein(&[&front[..], &["run"], &args[..], &["hello"]].concat());
                assert!(run.code == 2 && run.stderr.contains(expected), "{managed}: {}", run.whole());
            }
        }
    }
    let sandbox = sandbox("agents: [{name: coding, from: user}]");
    sandbox.write("config/agents/coding.yaml", OWN_CODING);
    let shown = sandbox.skein(&["--managed", "managed.yaml", "agents", "show", "coding"]);
    assert_eq!(shown.code, 0, "{}", shown.whole());
}

#[test]
fn an_editor_cannot_bring_another_service() {
    let sandbox = sandbox("services: [developer, {name: 'allowed*', from: user}]");
    let mut client = Acp::launch(&sandbox, sandbox.command(&["--managed", "managed.yaml", "acp", "-a", "goose"]));
    client.introduce(&json!({}));
    let echo = |name: &str| json!({"name": name, "command": servers::mcp_echo(), "args": [], "env": []});
    let session = client.session_with(json!([echo("parrot"), echo("allowed-parrot")]));
    let (_, updates) = client.prompt(&session, "help");
    let text = client.heard().iter().map(ToString::to_string).collect::<String>();
    assert!(text.contains("the managed setting `services` (managed.yaml:2) does not list it"), "{text}");
    let tools = spoken(&updates);
    assert!(tools.contains("`/allowed-parrot.echo`") && !tools.contains("`/parrot.echo`"), "{tools}");
}

/// Asks a model once, and returns what came of it.
fn ask(sandbox: &Sandbox, attempt: &Attempt, model: Option<&ScriptedModel>) -> Run {
    let mut command = attempt.command(sandbox, &["run", "-a", "goose/planner", "hello"]);
    command.env("OPENAI_API_KEY", "a-key");
    command.envs(model.map(|model| ("OPENAI_BASE_URL", model.address())));
    let output = command.output().expect("the program starts");
    Run {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[test]
fn nothing_reaches_another_provider_or_model() {
    let own = "providers: {own: {base_url: 'http://127.0.0.1:1/v1'}}\nprofiles: {default: {processor: 'own:a'}}";
    let attempts = [
        flags(&["--model", "openai:scripted"]),
        variable(&[("SKEIN_MODEL", "openai:scripted")]),
        user("profiles: {default: {processor: 'openai:scripted'}}"),
        project("profiles: {default: {processor: 'openai:scripted'}}"),
        Attempt { variables: &[("SKEIN_ACCELERATOR", "openai:scripted")], ..flags(&["--model", "ollama:a"]) },
        user("profiles: {default: {processor: 'ollama:a', accelerator: 'openai:scripted'}}"),
        user("profiles: {default: {processor: ['ollama:a', 'openai:scripted']}}"),
        Attempt { user: "profiles: {other: {processor: 'openai:scripted'}}", ..flags(&["--profile", "other"]) },
        Attempt {
            user: "profiles: {other: {processor: 'openai:scripted'}}",
            ..variable(&[("SKEIN_PROFILE", "other")])
        },
        user(own),
    ];
    for attempt in attempts {
        let model = ScriptedModel::new(|_| Answer::Says(vec!["reached".to_owned()]));
        let run = ask(&sandbox("providers: [ollama]"), &attempt, Some(&model));
        let expected = "the managed setting `providers` (managed.yaml:2) does not list the provider";
        assert!(run.code == 2 && run.stderr.contains(expected), "{}", run.whole());
        assert!(model.requests().is_empty());
        let run = ask(&sandbox("models: ['ollama:*']"), &attempt, Some(&model));
        let expected = "the managed setting `models` (managed.yaml:2) does not list it";
        assert!(run.code == 2 && run.stderr.contains(expected), "{}", run.whole());
        assert!(model.requests().is_empty());
    }
}

#[test]
fn no_provider_gets_another_address() {
    let model = ScriptedModel::new(|_| Answer::Says(vec!["reached".to_owned()]));
    let attempt = flags(&["--model", "openai:scripted"]);
    let run = ask(&sandbox("providers: [openai]"), &attempt, Some(&model));
    let expected = "the managed setting `providers` (managed.yaml:2) allows `openai` only at its built-in address";
    assert!(run.code == 2 && run.stderr.contains(expected), "{}", run.whole());
    let elsewhere = user(
        "providers: {openai: {base_url: 'http://127.0.0.1:1/v1'}}\nprofiles: {default: {processor: 'openai:scripted'}}",
    );
    let run = ask(&sandbox("providers: [openai]"), &elsewhere, None);
    assert!(run.code == 2 && run.stderr.contains(expected), "{}", run.whole());
    let managed = format!("providers: [{{name: openai, base_url: '{}'}}]", model.address());
    let run = ask(&sandbox(&managed), &elsewhere, None);
    assert!(run.code == 2 && run.stderr.contains("only at http://127.0.0.1"), "{}", run.whole());
    assert!(model.requests().is_empty());
    // The stated address is used without any setting of the user.
    let run = ask(&sandbox(&managed), &attempt, None);
    assert_eq!((run.code, run.stdout.trim()), (0, "reached"), "{}", run.whole());
}

/// The model of the test is in no table of prices.
#[test]
fn nobody_makes_a_model_free_under_a_managed_limit() {
    let limit = "limits: {turn: {cost: 1 USD}}";
    let free = "models: {'openai:scripted': {input: 0, output: 0}}";
    let scripted = flags(&["--model", "openai:scripted"]);
    let model = ScriptedModel::new(|_| Answer::Says(vec!["reached".to_owned()]));
    for user in ["", free] {
        let attempt = Attempt { user, ..flags(&["--model", "openai:scripted"]) };
        let run = ask(&sandbox(limit), &attempt, Some(&model));
        let expected = "its price is unknown and the cost is limited (the managed setting `limits` (managed.yaml:2))";
        assert!(run.code == 1 && run.stderr.contains(expected), "{}", run.whole());
        assert!(run.stderr.contains("under `prices` in the managed file"), "{}", run.whole());
        assert!(model.requests().is_empty());
    }
    let priced = format!("{limit}\nprices: {{'openai:scripted': {{input: 0, output: 0}}}}");
    let run = ask(&sandbox(&priced), &scripted, Some(&model));
    assert_eq!((run.code, run.stdout.trim()), (0, "reached"), "{}", run.whole());
}

/// What a command says that wants to export spans, and whether something reached the receiver.
fn export(managed: &str, attempt: &Attempt) -> (String, bool) {
    let receiver = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    receiver.set_nonblocking(true).unwrap();
    let address = format!("http://{}", receiver.local_addr().unwrap());
    let sandbox = sandbox(&managed.replace("RECEIVER", &address));
    let mut command = attempt.command(&sandbox, &["run", "-a", "goose/planner", "hello"]);
    let output = command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &address).output().unwrap();
    (String::from_utf8_lossy(&output.stderr).into_owned(), receiver.accept().is_ok())
}

#[test]
fn nothing_sends_telemetry_elsewhere() {
    let attempts = [
        Attempt::default(),
        variable(&[("OTEL_TRACES_EXPORTER", "otlp")]),
        variable(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1/v1/traces")]),
    ];
    for attempt in attempts {
        for managed in ["telemetry: {endpoints: []}", "telemetry: {endpoints: ['https://collector.example.com']}"] {
            let (said, has_arrived) = export(managed, &attempt);
            let expected = "no telemetry is exported: the managed setting `telemetry` (managed.yaml:2) does not allow";
            assert!(said.contains(expected) && !has_arrived, "{managed}: {said}");
        }
    }
    let (said, has_arrived) = export("telemetry: {endpoints: ['RECEIVER']}", &Attempt::default());
    assert!(!said.contains("no telemetry") && has_arrived, "{said}");
    let (said, has_arrived) = export("telemetry: {endpoint: RECEIVER}", &Attempt::default());
    assert!(said.contains("the managed settings cannot be used") && !has_arrived, "an unknown key: {said}");
}

#[test]
fn nothing_starts_with_a_broken_managed_file() {
    for (text, expected) in [
        ("aproval: ask", "managed.yaml:2:1: error[E011]"),
        ("approval: [ask", "managed.yaml"),
        ("permissions: [{tool: developer__shell, then: allow}]", "error[E123]: managed settings cannot allow calls"),
        ("hosts: ['https://docs.rs/']", "managed.yaml:2:9: error[E128]"),
    ] {
        let sandbox = sandbox(text);
        let output = Attempt::default().command(&sandbox, &["run", "-a", "goose/planner", "hello"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(expected), "{text}: {said}");
    }
    let sandbox = Sandbox::new();
    let gone = sandbox.skein(&["--managed", "gone.yaml", "agents"]);
    assert!(
        gone.code == 2 && gone.stderr.contains("the managed settings gone.yaml cannot be read"),
        "{}",
        gone.whole()
    );
}

#[test]
fn doctor_lists_the_managed_settings() {
    let sandbox = sandbox("approval: ask\nservices: [developer]");
    let text = Attempt::default().command(&sandbox, &["doctor"]).output().unwrap();
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("note: the managed setting `approval` is \"ask\"\n  at:  managed.yaml:2"), "{text}");
    assert!(text.contains("note: the managed setting `services` is [\"developer\"]\n  at:  managed.yaml:3"), "{text}");
    assert!(text.contains("warning: you can change the managed settings"), "{text}");
    let flag = flags(&["--approval", "auto"]).run("approval: ask", &["doctor"]);
    assert!(flag.contains("warning: the approval level is `ask`, not `auto`"), "{flag}");
}
