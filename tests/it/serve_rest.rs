//! The REST API of `skein serve`, as a client of the Agent Communication Protocol meets it.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
use std::io::Write as _;

use serde_json::{Value, json};

use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::serve::{HttpAnswer, Server, bearer, eventually, token};
use crate::support::{Sandbox, full_tests, installed};

const AGENT: &str = "goose-assistant";
const UNKNOWN: &str = "00000000-0000-4000-8000-000000000000";

fn root(sandbox: &Sandbox) -> String {
    sandbox.path("project").to_string_lossy().into_owned()
}

fn start(sandbox: &Sandbox, model: &ScriptedModel) -> Server {
    Server::launch(model.offered_to(sandbox.command(&["serve", "--listen", "127.0.0.1:0"])))
}

/// Answers each prompt with its own text, in two pieces.
fn echo() -> ScriptedModel {
    ScriptedModel::new(|request| Answer::Says(vec!["You said ".to_owned(), asked(request)]))
}

/// Writes a file, and then says so.
fn writer() -> ScriptedModel {
    ScriptedModel::new(|request| match has_result(request) {
        true => Answer::Says(vec!["done".to_owned()]),
        false => {
            let arguments = json!({"path": "new.txt", "content": "new\n"});
            Answer::Calls { id: "c1", tool: "developer__write_file", arguments }
        }
    })
}

/// Posts a body like the Python client, which names no content type.
fn post(server: &Server, token: &str, path: &str, body: &Value) -> HttpAnswer {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    server.request("POST", path, &[("authorization", &bearer(token))], &text)
}

fn new_run(text: &str, mode: &str) -> Value {
    json!({"agent_name": AGENT, "mode": mode, "input": [{"role": "user", "parts": [{"content": text}]}]})
}

fn answer_with(text: &str, mode: &str) -> Value {
    json!({"mode": mode, "await_resume": {"type": "message", "message": {"parts": [{"content": text}]}}})
}

/// The text of the last message of a run.
fn said(run: &Value) -> String {
    let message = run["output"].as_array().and_then(|output| output.last()).cloned().unwrap_or_default();
    let parts = message["parts"].as_array().cloned().unwrap_or_default();
    parts.iter().filter_map(|part| part["content"].as_str()).collect()
}

/// The events of a stream.
fn streamed(answer: &HttpAnswer) -> Vec<Value> {
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/event-stream")), "{answer:?}");
    let data = answer.body.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap_or_default()).collect()
}

fn is_uuid(value: &Value) -> bool {
    let groups: Vec<_> = value.as_str().unwrap_or_default().split('-').map(str::len).collect();
    groups == [8, 4, 4, 4, 12]
}

/// Waits until a run has this status.
fn wait_for(server: &Server, token: &str, id: &str, status: &str) -> Value {
    let read = || server.get(&format!("/runs/{id}"), token).json();
    eventually(&format!("the run is {status}"), || read()["status"] == status);
    read()
}

#[test]
fn agents_are_read_by_their_names() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "ci", &["--modes", "goose/*"]);
    assert_eq!(server.get("/ping", &token).json(), json!({}));
    let listed = server.get("/agents", &token).json();
    for agent in listed["agents"].as_array().unwrap() {
        let path = format!("/agents/{}", agent["name"].as_str().unwrap());
        assert_eq!(server.get(&path, &token).json(), *agent);
    }
    let unknown = server.get("/agents/no-such", &token).timeless();
    assert_eq!((unknown.status, &unknown.json()["code"]), (404, &json!("not_found")));
    assert_eq!(server.get("/agents/coding", &token).timeless(), unknown, "the token does not reach it");
    let described = server.get("/openapi.json", &token).json();
    assert!(described["paths"]["/runs/{run_id}/events"].is_object());
}

#[test]
fn a_run_answers_when_it_has_ended() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &echo());
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox)]);
    let answer = post(&server, &token, "/runs", &new_run("good morning", "sync"));
    let run = answer.json();
    assert_eq!((answer.status, &run["status"], &run["agent_name"]), (200, &json!("completed"), &json!(AGENT)), "{run}");
    assert!(said(&run).contains("good morning"), "{run}");
    assert_eq!(run["output"][0]["role"], format!("agent/{AGENT}"));
    assert!(is_uuid(&run["run_id"]) && is_uuid(&run["session_id"]) && run["finished_at"].is_string(), "{run}");
    assert_eq!(answer.header("run-id"), run["run_id"].as_str());
    let path = format!("/runs/{}", run["run_id"].as_str().unwrap());
    assert_eq!(server.get(&path, &token).json(), run);
    assert_eq!(post(&server, &token, &format!("{path}/cancel"), &Value::Null).status, 403, "it has ended");
    assert_eq!(post(&server, &token, &path, &answer_with("allow", "sync")).status, 403, "nothing was asked");
}

#[test]
fn a_run_can_go_on_while_the_client_looks() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &echo());
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox)]);
    let begun = post(&server, &token, "/runs", &new_run("good morning", "async"));
    assert_eq!(begun.status, 202, "{begun:?}");
    let id = begun.json()["run_id"].as_str().unwrap().to_owned();
    let run = wait_for(&server, &token, &id, "completed");
    assert!(said(&run).contains("good morning"), "{run}");
}

/// The events, with parts of text that follow each other as one.
fn joined(events: &[Value]) -> Vec<Value> {
    let mut joined: Vec<Value> = Vec::new();
    for event in events {
        let text = event["part"]["content"].as_str();
        match (joined.last_mut(), text) {
            (Some(last), Some(text)) if last["type"] == "message.part" => {
                let before = last["part"]["content"].as_str().expect("text").to_owned();
                last["part"]["content"] = json!(before + text);
            }
            _ => joined.push(event.clone()),
        }
    }
    joined
}

#[test]
fn a_stream_has_each_event_of_a_run() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &echo());
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox)]);
    let answer = post(&server, &token, "/runs", &new_run("good morning", "stream"));
    let events = streamed(&answer);
    let texts: Vec<_> = kinds(&events).into_iter().filter(|kind| *kind != "generic").collect();
    assert_eq!(texts[..3], ["run.created", "run.in-progress", "message.created"], "{texts:?}");
    assert_eq!(texts[texts.len() - 2..], ["message.completed", "run.completed"], "{texts:?}");
    let parts = events.iter().filter(|event| event["type"] == "message.part");
    let text: String = parts.filter_map(|event| event["part"]["content"].as_str()).collect();
    let run = &events.last().unwrap()["run"];
    assert_eq!(text, said(run), "the parts are the whole message");
    let path = format!("/runs/{}/events", run["run_id"].as_str().unwrap());
    // A client that comes later gets text that was streamed in pieces as one part.
    let later = server.get(&path, &token).json()["events"].as_array().expect("events").clone();
    assert_eq!(joined(&later), joined(&events));
}

/// A call that needs consent makes the run wait. The client answers with one of the options.
#[test]
fn a_question_makes_a_run_wait_until_it_is_resumed() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &writer());
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox), "--approval", "ask"]);
    let run = post(&server, &token, "/runs", &new_run("write it", "sync")).json();
    assert_eq!(run["status"], "awaiting", "{run}");
    let question = &run["await_request"]["message"]["parts"];
    assert!(question[0]["content"].as_str().unwrap().contains("developer__write_file"), "{question}");
    let details: Value = serde_json::from_str(question[1]["content"].as_str().unwrap()).unwrap();
    assert_eq!(details["options"], json!(["allow", "allow always", "reject", "reject always"]));
    let path = format!("/runs/{}", run["run_id"].as_str().unwrap());
    let wrong = post(&server, &token, &path, &answer_with("perhaps", "sync"));
    assert_eq!((wrong.status, &wrong.json()["code"]), (422, &json!("invalid_input")));
    assert!(!sandbox.path("project/new.txt").exists());
    let events = streamed(&post(&server, &token, &path, &answer_with("allow", "stream")));
    assert_eq!((kinds(&events)[0], *kinds(&events).last().unwrap()), ("run.in-progress", "run.completed"));
    assert_eq!(std::fs::read_to_string(sandbox.path("project/new.txt")).unwrap(), "new\n");
    let run = server.get(&path, &token).json();
    assert_eq!((said(&run), &run["await_request"]), ("done".to_owned(), &Value::Null));
    let calls = run["output"].as_array().unwrap().iter().flat_map(|message| message["parts"].as_array().unwrap());
    let mut tools = calls.filter(|part| part["metadata"]["kind"] == "trajectory");
    assert!(tools.any(|part| part["metadata"]["tool_name"] == "developer__write_file"), "{run}");
}

#[test]
fn a_refused_call_does_not_run() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &writer());
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox), "--approval", "ask"]);
    let run = post(&server, &token, "/runs", &new_run("write it", "sync")).json();
    let path = format!("/runs/{}", run["run_id"].as_str().unwrap());
    let run = post(&server, &token, &path, &answer_with("reject", "sync")).json();
    assert_eq!(run["status"], "completed", "{run}");
    assert!(!sandbox.path("project/new.txt").exists());
}

#[test]
fn a_cancelled_run_keeps_what_it_said() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Hangs("I begin"));
    let server = start(&sandbox, &model);
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox)]);
    let begun = post(&server, &token, "/runs", &new_run("go", "async")).json();
    let id = begun["run_id"].as_str().unwrap();
    let events = || server.get(&format!("/runs/{id}/events"), &token).body;
    eventually("the model has begun", || events().contains("I begin"));
    let cancelled = post(&server, &token, &format!("/runs/{id}/cancel"), &Value::Null);
    assert_eq!(cancelled.status, 202, "{cancelled:?}");
    assert!(["cancelling", "cancelled"].contains(&cancelled.json()["status"].as_str().unwrap()));
    let run = wait_for(&server, &token, id, "cancelled");
    assert_eq!(said(&run), "I begin");
}

#[test]
fn a_run_that_waits_can_be_cancelled() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &writer());
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox), "--approval", "ask"]);
    let run = post(&server, &token, "/runs", &new_run("write it", "sync")).json();
    let id = run["run_id"].as_str().unwrap();
    assert_eq!(post(&server, &token, &format!("/runs/{id}/cancel"), &Value::Null).status, 202);
    wait_for(&server, &token, id, "cancelled");
    assert_eq!(post(&server, &token, &format!("/runs/{id}"), &answer_with("allow", "sync")).status, 403);
    assert!(!sandbox.path("project/new.txt").exists());
}

/// The client chooses the UUID of a new session, as the Python client does. It outlasts the server.
#[test]
fn a_session_goes_on_also_after_a_restart() {
    let sandbox = Sandbox::new();
    let model = echo();
    let session = "6f1f3c5e-8a64-4b7e-9d2c-1c2b3a4d5e6f";
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox)]);
    let in_session = |text: &str, brought: bool| {
        let mut body = new_run(text, "sync");
        match brought {
            true => body["session"] = json!({"id": session, "history": [], "state": null}),
            false => body["session_id"] = json!(session),
        }
        body
    };
    let server = start(&sandbox, &model);
    assert_eq!(server.get(&format!("/sessions/{session}"), &token).status, 404);
    let run = post(&server, &token, "/runs", &in_session("the first words", true)).json();
    assert_eq!((&run["status"], &run["session_id"]), (&json!("completed"), &json!(session)), "{run}");
    let run = post(&server, &token, "/runs", &in_session("the second words", false)).json();
    assert_eq!(run["status"], "completed", "{run}");
    let old = run["run_id"].as_str().unwrap().to_owned();
    drop(server);
    let server = start(&sandbox, &model);
    assert_eq!(server.get(&format!("/runs/{old}"), &token).status, 404, "runs are in memory");
    let expected = json!({"id": session, "history": [], "state": null});
    assert_eq!(server.get(&format!("/sessions/{session}"), &token).json(), expected);
    let run = post(&server, &token, "/runs", &in_session("the third words", true)).json();
    assert_eq!(run["status"], "completed", "{run}");
    let last = model.requests().last().unwrap().to_string();
    for words in ["the first words", "the second words", "the third words"] {
        assert!(last.contains(words), "{words} in {last}");
    }
}

#[test]
fn a_session_has_one_run_at_a_time() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Hangs("…"));
    let server = start(&sandbox, &model);
    let folder = root(&sandbox);
    let one_turn = token(&sandbox, "ci", &["--root", &folder, "--turns", "1"]);
    let unlimited = token(&sandbox, "ci", &["--root", &folder]);
    let first = post(&server, &one_turn, "/runs", &new_run("go", "async")).json();
    let mut second = new_run("go", "async");
    let limited = post(&server, &one_turn, "/runs", &second);
    assert_eq!((limited.status, limited.header("retry-after").is_some()), (429, true), "{limited:?}");
    second["session_id"] = first["session_id"].clone();
    let busy = post(&server, &unlimited, "/runs", &second);
    assert_eq!(busy.status, 409, "{busy:?}");
}

#[test]
fn requests_that_cannot_be_used_say_why() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &echo());
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox)]);
    let refused = |body: &Value| post(&server, &token, "/runs", body);
    let changed = |field: &str, value: Value| {
        let mut body = new_run("hello", "sync");
        body[field] = value;
        body
    };
    for (body, status) in [
        (json!("text"), 422),
        (json!({"agent_name": AGENT}), 422),
        (changed("input", json!([])), 422),
        (changed("mode", json!("later")), 422),
        (changed("session_id", json!("one")), 422),
        (changed("session", json!({"id": UNKNOWN, "history": ["https://example.org/1"]})), 400),
        (changed("agent_name", json!("no-such")), 404),
    ] {
        let answer = refused(&body);
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        assert!(answer.json()["message"].is_string());
    }
    let mut differing = changed("session_id", json!(UNKNOWN));
    differing["session"] = json!({"id": "00000000-0000-4000-8000-000000000001"});
    assert_eq!(refused(&differing).status, 400);
    let plain = [("authorization", &*bearer(&token)), ("content-type", "text/plain")];
    assert_eq!(server.request("POST", "/runs", &plain, "{}").status, 415);
}

/// Runs and sessions of another principal get the answer of an unknown id, byte for byte.
#[test]
fn runs_and_sessions_of_others_do_not_exist() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &writer());
    let flags = ["--root", &root(&sandbox), "--approval", "ask"];
    let (one, two) = (token(&sandbox, "one", &flags), token(&sandbox, "two", &flags));
    let run = post(&server, &one, "/runs", &new_run("write it", "sync")).json();
    let (id, session) = (run["run_id"].as_str().unwrap(), run["session_id"].as_str().unwrap());
    for rest in ["", "/events"] {
        let at = |id: &str| server.get(&format!("/runs/{id}{rest}"), &two).timeless();
        assert_eq!((at(id).status, at(id)), (404, at(UNKNOWN)), "{rest}");
    }
    let resumed = |id: &str| post(&server, &two, &format!("/runs/{id}"), &answer_with("allow", "sync")).timeless();
    assert_eq!((resumed(id).status, resumed(id)), (404, resumed(UNKNOWN)));
    let cancelled = |id: &str| post(&server, &two, &format!("/runs/{id}/cancel"), &Value::Null).timeless();
    assert_eq!((cancelled(id).status, cancelled(id)), (404, cancelled(UNKNOWN)));
    let found = |id: &str| server.get(&format!("/sessions/{id}"), &two).timeless();
    assert_eq!((found(session).status, found(session)), (404, found(UNKNOWN)));
    // The same UUID is another session for another principal.
    let mut same = new_run("write it", "sync");
    same["session_id"] = json!(session);
    let own = post(&server, &two, "/runs", &same).json();
    assert_eq!((&own["status"], &own["session_id"]), (&json!("awaiting"), &json!(session)), "{own}");
    assert_eq!(server.get(&format!("/runs/{id}"), &one).json(), run, "the first run still waits");
}

/// The story of `tests/python/rest_client.py`: what a program with the protocol's own client gets.
#[expect(clippy::disallowed_methods, reason = "another program, which talks to the one under test")]
#[test]
fn the_python_client_plays_the_story() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| match asked(request) {
        _ if has_result(request) => Answer::Says(vec!["done".to_owned()]),
        words if words.contains("hang") => Answer::Hangs("…"),
        words if words.contains("write") => {
            let arguments = json!({"path": "new.txt", "content": "new\n"});
            Answer::Calls { id: "c1", tool: "developer__write_file", arguments }
        }
        words => Answer::Says(vec!["You said ".to_owned(), words]),
    });
    let server = start(&sandbox, &model);
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox), "--approval", "ask"]);
    let played = std::process::Command::new(installed("tests/python/venv/bin/python"))
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/rest_client.py"))
        .args([&format!("http://{}", server.address), &token])
        .output()
        .expect("Python starts");
    let printed = String::from_utf8_lossy(&played.stdout).into_owned();
    assert!(played.status.success(), "{printed}{}", String::from_utf8_lossy(&played.stderr));
    let steps: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let step = |name: &str| {
        steps.iter().find(|step| step["step"] == name).unwrap_or_else(|| panic!("{name} in {printed}")).clone()
    };
    let has = |step: &Value, words: &str| step["text"].as_str().unwrap_or_default().contains(words);
    assert_eq!(step("agents"), json!({"step": "agents", "listed": true, "read": AGENT}));
    for (name, words) in [("sync", "one"), ("async", "two")] {
        assert!(step(name)["status"] == "completed" && has(&step(name), words), "{}", step(name));
    }
    assert_eq!(step("events"), json!({"step": "events", "first": "run.created", "last": "run.completed"}));
    assert!(step("stream")["last"] == "run.completed" && has(&step("stream"), "three"), "{}", step("stream"));
    let resumed = json!({"step": "resume", "before": "awaiting", "after": "completed", "text": "done"});
    assert_eq!(step("resume"), resumed);
    assert_eq!(std::fs::read_to_string(sandbox.path("project/new.txt")).unwrap(), "new\n");
    assert_eq!(step("cancel")["status"], "cancelled");
    assert!(step("session")["same"] == true && has(&step("session"), "five"), "{}", step("session"));
    assert_eq!(step("error"), json!({"step": "error", "code": "not_found"}));
}

/// Returns how many arenas of glibc's allocator the maps of a process show, apart from the main one. Each starts a block
/// of 64 MiB, of which the last part is reserved only.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn further_arenas(maps: &str) -> usize {
    const BLOCK: u64 = 64 << 20;
    let areas: Vec<_> = maps
        .lines()
        .map(|line| {
            let (range, rest) = line.split_once(' ').expect("a range");
            let (start, end) = range.split_once('-').expect("two addresses");
            let number = |text| u64::from_str_radix(text, 16).expect("an address");
            (number(start), number(end), rest.split(' ').next().unwrap_or_default())
        })
        .collect();
    let is_arena = |pair: &&[(u64, u64, &str)]| {
        let (used, reserved) = (pair[0], pair[1]);
        let is_block = used.0 % BLOCK == 0 && used.1 == reserved.0 && reserved.1 == used.0 + BLOCK;
        is_block && (used.2, reserved.2) == ("rw-p", "---p")
    };
    areas.windows(2).filter(is_arena).count()
}

/// Free memory in the arena of one thread is of no use to another thread.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn the_threads_of_a_server_share_a_few_arenas_of_memory() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &echo());
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox)]);
    std::thread::scope(|scope| {
        for number in 0..16 {
            let (server, token) = (&server, &token);
            scope.spawn(move || {
                let ran = post(server, token, "/runs", &new_run(&format!("run {number}"), "sync")).json();
                assert_eq!(ran["status"], "completed", "{ran}");
            });
        }
    });
    let processors = std::thread::available_parallelism().expect("a number").get();
    // Other users cannot read the maps of a process that protects its memory.
    let Ok(maps) = std::fs::read_to_string(format!("/proc/{}/maps", server.pid())) else {
        assert!(!rustix::process::geteuid().is_root(), "root reads the maps of each process");
        drop(writeln!(std::io::stderr(), "left out: only root reads the maps of skein"));
        return;
    };
    let arenas = further_arenas(&maps);
    assert!((1..processors.max(2)).contains(&arenas), "{arenas} arenas for {processors} processors");
}
