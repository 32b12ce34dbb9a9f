//! Recordings: what was recorded is what is played, without the server; what was not is refused with the nearest
//! that was. `scripts/record-fixtures` made the files, from the real servers.

#![expect(clippy::expect_used, reason = "what a test cannot go on without ends it")]

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::{Value, json};

use crate::client::Client;
use crate::support::{Sandbox, full_tests, plain_server, read, repository, servers};

/// The modes of tests/fixtures/real, each with a recording of its name.
pub(crate) const RECORDED: [&str; 3] = ["everything", "filesystem", "memory"];

/// What was recorded, line by line.
pub(crate) fn recording(mode: &str) -> Vec<Value> {
    let text = read(repository(&format!("tests/fixtures/recordings/{mode}.jsonl")));
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// The request that a line answers, as a client of Skein makes it.
pub(crate) fn request(line: &Value) -> Option<(&'static str, Value)> {
    let outside = |key: &str| Some(format!("{}__{}", line["service"].as_str()?, line[key].as_str()?));
    match line["kind"].as_str()? {
        "call" => Some(("tools/call", json!({"name": outside("tool")?, "arguments": line["arguments"]}))),
        "resource" => Some(("resources/read", json!({"uri": line["uri"]}))),
        "prompt" => Some(("prompts/get", json!({"name": outside("name")?, "arguments": line["arguments"]}))),
        _ => None,
    }
}

/// What a client of Skein gets for a recorded answer.
pub(crate) fn answer(line: &Value) -> Value {
    let mut said = line["answer"]["ok"].clone();
    if line["kind"] != "call" {
        return said;
    }
    let blocks = said["content"].as_array().expect("content").iter().enumerate().map(|(index, block)| {
        let (kind, value) = block.as_object().and_then(|block| block.iter().next()).expect("one kind");
        let mut block = match kind.as_str() {
            "text" => json!({"type": "text", "text": value}),
            "image" => json!({"type": "image", "mimeType": value["mime"], "data": value["data"]}),
            "link" => {
                let mut link = value.clone();
                link["type"] = json!("resource_link");
                link
            }
            other => panic!("the fixtures hold no {other}"),
        };
        if let Some(annotations) = said["annotations"].get(index.to_string()) {
            block["annotations"] = annotations.clone();
        }
        block
    });
    let mut result = json!({"content": blocks.collect::<Vec<_>>(), "isError": said["is_error"]});
    if !said["structured"].is_null() {
        result["structuredContent"] = said["structured"].take();
    }
    result
}

fn replayed(sandbox: &Sandbox, mode: &str, file: &str) -> Command {
    let manifests = repository("tests/fixtures/real");
    let manifests = manifests.to_str().expect("a path");
    sandbox.command(&["--manifests", manifests, "--replay", file, "mcp", "-a", "real", "-m", mode])
}

fn fixture(mode: &str) -> String {
    repository(&format!("tests/fixtures/recordings/{mode}.jsonl")).display().to_string()
}

#[test]
fn a_recording_is_played_without_the_server() {
    for mode in RECORDED {
        let sandbox = Sandbox::new();
        let mut command = replayed(&sandbox, mode, &fixture(mode));
        // Nothing can be started from here.
        command.env("PATH", "/nowhere");
        let (mut client, _) = Client::connect(command);
        for line in recording(mode) {
            if let Some((method, params)) = request(&line) {
                assert_eq!(client.result(method, params.clone()), answer(&line), "{mode}: {method} {params}");
            }
        }
    }
}

#[test]
fn repeated_request_replays_answers_in_order_then_the_last() {
    let sandbox = Sandbox::new();
    let (mut client, _) = Client::connect(replayed(&sandbox, "memory", &fixture("memory")));
    let mut entities = || {
        let graph = client.call("graphmemory__read_graph", json!({}));
        graph["structuredContent"]["entities"].as_array().map(Vec::len)
    };
    assert_eq!([entities(), entities(), entities(), entities()], [Some(0), Some(2), Some(1), Some(1)]);
}

#[test]
fn the_mode_decides_over_a_recording_too() {
    let sandbox = Sandbox::new();
    let (mut client, _) = Client::connect(replayed(&sandbox, "demo", &fixture("everything")));
    assert_eq!(client.tools(), ["everything__echo", "everything__get-sum"]);
    let refused = client.request("tools/call", json!({"name": "everything__get-tiny-image", "arguments": {}}));
    assert_eq!(refused["error"]["code"], -32602);
}

#[test]
fn what_was_not_recorded_is_refused_with_the_nearest_that_was() {
    let sandbox = Sandbox::new();
    let (mut client, _) = Client::connect(replayed(&sandbox, "everything", &fixture("everything")));
    let result = client.call("everything__get-sum", json!({"a": 2, "b": 41}));
    assert_eq!(result["isError"], true);
    assert_eq!(
        result["content"][0]["text"],
        "the service `everything` refused the request: the recording has no answer to get-sum {\"a\":2,\"b\":41}; \
         the nearest it has is get-sum {\"a\":2,\"b\":40}"
    );
    let missing =
        client.request("prompts/get", json!({"name": "everything__args-prompt", "arguments": {"city": "Bonn"}}));
    let said = missing["error"]["message"].as_str().expect("a message");
    assert!(said.contains("nearest it has is args-prompt {\"city\":\"Ulm\",\"state\":\"BW\"}"), "{said}");
}

#[test]
fn unrecorded_service_error_lists_recorded_services() {
    let sandbox = Sandbox::new();
    let output = replayed(&sandbox, "filesystem", &fixture("memory")).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains(
            "the service `filesystem` could not be started: the recording does not hold it; it holds: graphmemory"
        ),
        "{said}"
    );
}

#[test]
fn a_broken_recording_is_named_with_its_line() {
    let sandbox = Sandbox::new();
    let whole = read(fixture("memory"));
    let (first, _) = whole.split_once('\n').expect("lines");
    for (broken, problem) in [
        ("{\"service\":\"x\"", "EOF while parsing an object at column 14"),
        ("{\"service\":\"x\",\"kind\":\"dance\"}", "unknown variant `dance`"),
        ("not JSON", "expected ident at column 2"),
    ] {
        sandbox.write("project/broken.jsonl", &format!("{first}\n\n{broken}\n"));
        let output = replayed(&sandbox, "memory", "broken.jsonl").output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with(&format!("error: broken.jsonl:3: not a line of a recording: {problem}")), "{said}");
    }
    let output = replayed(&sandbox, "memory", "nowhere.jsonl").output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.starts_with("error: cannot use nowhere.jsonl: No such file"), "{said}");
}

#[test]
fn a_failed_run_keeps_an_earlier_recording() {
    let sandbox = Sandbox::new();
    let services = read(fixture("memory"));
    let model = "{\"answer\":[{\"text\":\"hello\"}]}\n";
    sandbox.write("project/services.jsonl", &services);
    sandbox.write("project/model.jsonl", model);
    sandbox.write("project/keep.txt", "notes\n");
    let run = sandbox.skein(&["--record", "services.jsonl", "run", "--resume", "nope", "x"]);
    assert_eq!(run.code, 4, "{}", run.whole());
    let run = sandbox.skein(&["run", "--record-model", "model.jsonl", "--resume", "nope", "x"]);
    assert_eq!(run.code, 4, "{}", run.whole());
    let run = sandbox.skein(&["--record", "keep.txt", "run", "x"]);
    let refusal = "cannot use keep.txt: the file is not empty, and its first line is no line of a recording that this version of Skein reads";
    assert!(run.code == 2 && run.stderr.contains(refusal), "{}", run.whole());
    let kept = ["services.jsonl", "model.jsonl", "keep.txt"].map(|file| read(sandbox.path("project").join(file)));
    assert_eq!(kept, [services.as_str(), model, "notes\n"]);
}

#[test]
fn a_recording_that_cannot_be_written_is_an_error() {
    let sandbox = Sandbox::new();
    let run = sandbox.skein(&["--record", "/dev/full", "run", "list"]);
    assert_eq!(run.code, 1, "{}", run.whole());
    let expected = "error: the recording /dev/full is not complete: No space left on device";
    assert!(run.stderr.contains(expected), "{}", run.whole());
    assert!(!run.stdout.is_empty(), "the work was done: {}", run.whole());
}

/// The values are words of the request, of the tool's name, and of the form of a line.
#[test]
fn a_recording_with_redacted_requests_is_played() {
    let recorded =
        Sandbox::new().with("KIND", "call").with("TOOL", "echo").with("PART", "text").with("PLACE", "/srv/a");
    let elsewhere =
        Sandbox::new().with("KIND", "call").with("TOOL", "echo").with("PART", "text").with("PLACE", "/srv/b");
    let manifest = format!(
        "version: 1\nkind: service\nname: parrot\ndescription: Repeats.\ntransport:\n  stdio:\n    command: {}\n    \
         env: {{A: '${{env:KIND}}', B: '${{env:TOOL}}', C: '${{env:PART}}', D: '${{env:PLACE}}'}}\n",
        servers::mcp_echo()
    );
    for sandbox in [&recorded, &elsewhere] {
        sandbox.write("config/services/parrot.yaml", &manifest);
    }
    let asked = |sandbox: &Sandbox, flag: &str, file: &str, place: &str| {
        let (mut client, _) = Client::connect(sandbox.command(&[flag, file, "mcp", "--service", "parrot"]));
        let answer = client.call("echo", json!({"text": format!("{place}/notes.md")}));
        client.hang_up();
        assert_eq!(client.ended().code(), Some(0));
        answer
    };
    let first = asked(&recorded, "--record", "tape.jsonl", "/srv/a");
    assert!(first.to_string().contains("/srv/a/notes.md"), "{first}");
    let tape = recorded.path("project/tape.jsonl");
    let text = read(&tape);
    assert!(!text.contains("/srv/a") && text.contains("[env PLACE]/notes.md"), "{text}");
    for (sandbox, place) in [(&recorded, "/srv/a"), (&elsewhere, "/srv/b")] {
        let played = asked(sandbox, "--replay", &tape.to_string_lossy(), place);
        assert!(played["isError"] != true && played.to_string().contains("/notes.md"), "{played}");
    }
}

#[test]
fn recording_is_private_and_holds_no_variable_values() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new().with("TOKEN", "hunter2-hunter2");
    let server = plain_server();
    sandbox.write(
        "config/services/plain.yaml",
        &format!(
            "version: 1\nkind: service\nname: plain\ndescription: A small server.\ntransport:\n  stdio:\n    \
             command: python3\n    args: ['{}']\n    env: {{KEY: 'x-${{env:TOKEN}}', PHRASE: correct horse battery}}\n",
            server.display()
        ),
    );
    let record = ["--record", "tape.jsonl", "mcp", "--service", "plain"];
    let (mut client, _) = Client::connect(sandbox.command(&record));
    let env = client.call_json("env");
    assert_eq!((&env["KEY"], &env["PHRASE"]), (&json!("x-hunter2-hunter2"), &json!("correct horse battery")));
    client.hang_up();
    assert_eq!(client.ended().code(), Some(0));

    let tape = sandbox.path("project/tape.jsonl");
    let text = read(&tape);
    assert!(!text.contains("hunter2") && !text.contains("correct horse battery"), "{text}");
    assert!(text.contains("[env KEY]") && text.contains("[env PHRASE]"), "{text}");
    assert_eq!(std::fs::metadata(&tape).expect("it is there").permissions().mode() & 0o777, 0o600);

    let replay = ["--replay", "tape.jsonl", "mcp", "--service", "plain"];
    let (mut client, _) = Client::connect(sandbox.command(&replay));
    assert_eq!(client.call_json("env")["KEY"], "[env KEY]");
}
