//! A2A endpoints of `skein serve`, as other agents meet them.

use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::serve::{HttpAnswer, Server, bearer, eventually, token};
use crate::support::{Sandbox, full_tests, installed};

const AGENT: &str = "goose-assistant";
const UNKNOWN: &str = "00000000-0000-4000-8000-000000000000";
const CARD: &str = "/.well-known/agent-card.json";

fn root(sandbox: &Sandbox) -> String {
    sandbox.path("project").to_string_lossy().into_owned()
}

fn start(sandbox: &Sandbox, model: &ScriptedModel) -> Server {
    Server::launch(model.offered_to(sandbox.command(&["serve", "--listen", "127.0.0.1:0"])))
}

/// Writes a file, never ends, or answers with what it is asked, as the prompt says.
fn model() -> ScriptedModel {
    ScriptedModel::new(|request| match asked(request) {
        _ if has_result(request) => Answer::Says(vec!["done".to_owned()]),
        words if words.contains("hang") => Answer::Hangs("I begin"),
        words if words.contains("write") => {
            let arguments = json!({"path": "new.txt", "content": "new\n"});
            Answer::Calls { id: "c1", tool: "developer__write_file", arguments }
        }
        words => Answer::Says(vec!["You said ".to_owned(), words]),
    })
}

fn post(server: &Server, token: &str, agent: &str, version: &str, body: &str) -> HttpAnswer {
    let authorization = bearer(token);
    let headers = [("authorization", &*authorization), ("content-type", "application/json"), ("a2a-version", version)];
    server.request("POST", &format!("/a2a/{agent}"), &headers, body)
}

/// Sends a request and returns the whole answer.
fn request(server: &Server, token: &str, method: &str, params: &Value) -> HttpAnswer {
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    post(server, token, AGENT, "1.0", &body.to_string())
}

/// Sends a request that succeeds, and returns its result.
fn call(server: &Server, token: &str, method: &str, params: &Value) -> Value {
    let answer = request(server, token, method, params);
    let reply = answer.json();
    assert_eq!((answer.status, &reply["id"], &reply["jsonrpc"]), (200, &json!(7), &json!("2.0")), "{reply}");
    reply.get("result").unwrap_or_else(|| panic!("a result, not {reply}")).clone()
}

/// The code of the error that answers a request.
fn code(answer: &HttpAnswer) -> i64 {
    answer.json()["error"]["code"].as_i64().unwrap_or_else(|| panic!("an error, not {answer:?}"))
}

fn message(text: &str) -> Value {
    json!({"message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": text}]}})
}

/// A message about a task.
fn answer_to(task: &Value, text: &str) -> Value {
    let mut params = message(text);
    params["message"]["taskId"] = task["id"].clone();
    params
}

/// A message that does not wait for the end of its task.
fn at_once(text: &str) -> Value {
    let mut params = message(text);
    params["configuration"] = json!({"returnImmediately": true});
    params
}

fn state(task: &Value) -> &str {
    task["status"]["state"].as_str().unwrap_or_default()
}

/// The text of all artifacts.
fn said(task: &Value) -> String {
    let artifacts = task["artifacts"].as_array().cloned().unwrap_or_default();
    let parts = artifacts.iter().flat_map(|artifact| artifact["parts"].as_array().cloned().unwrap_or_default());
    parts.filter_map(|part| part["text"].as_str().map(str::to_owned)).collect()
}

/// The results of a stream.
fn streamed(answer: &HttpAnswer) -> Vec<Value> {
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/event-stream")), "{answer:?}");
    let data = answer.body.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = data.map(|data| serde_json::from_str::<Value>(data).unwrap_or_else(|error| panic!("{error}: {data}")));
    events.map(|event| event["result"].clone()).collect()
}

/// The results in the lines of a stream.
fn events(stream: impl BufRead) -> impl Iterator<Item = Value> {
    let lines = stream.lines().map(|line| line.expect("a line"));
    lines.filter_map(|line| {
        let event: Value = serde_json::from_str(line.strip_prefix("data: ")?).expect("JSON");
        Some(event["result"].clone())
    })
}

/// Follows a task. Returns its first event and the rest of the stream.
fn subscribe(server: &Server, token: &str, named: &Value) -> (Value, BufReader<TcpStream>) {
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": "SubscribeToTask", "params": named}).to_string();
    let (host, authorization, length) = (server.address, bearer(token), body.len());
    let head = format!(
        "POST /a2a/{AGENT} HTTP/1.1\r\nhost: {host}\r\nauthorization: {authorization}\r\na2a-version: 1.0\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n"
    );
    let mut stream = server.connect();
    stream.write_all(format!("{head}{body}").as_bytes()).expect("the server reads");
    let mut stream = BufReader::new(stream);
    let first = events(&mut stream).next().expect("an event");
    (first, stream)
}

/// The text of a stream and its last state.
fn followed(events: &[Value]) -> (String, String) {
    let (mut text, mut last) = (String::new(), String::new());
    for event in events {
        if let Some(task) = event.get("task") {
            (text, last) = (said(task), state(task).to_owned());
        } else if let Some(update) = event.get("artifactUpdate") {
            text.push_str(&said(&json!({"artifacts": [update["artifact"]]})));
        } else if let Some(update) = event.get("statusUpdate") {
            last = state(update).to_owned();
        }
    }
    (text, last)
}

#[test]
fn cards_say_where_agents_are_and_who_may_ask() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let public = server.request("GET", CARD, &[], "");
    let card = public.json();
    let base = format!("http://{}/a2a", server.address);
    assert_eq!((public.status, &card["name"]), (200, &json!("Skein")), "{card}");
    assert_eq!(card["supportedInterfaces"][0]["url"], format!("{base}/orchestrator"));
    assert!(!public.body.contains("goose") && !public.body.contains("coding"), "it names no other agent: {card}");
    let path = format!("/a2a/{AGENT}{CARD}");
    assert_eq!(server.request("GET", &path, &[], "").status, 401);
    let token = token(&sandbox, "ci", &["--modes", "goose/*"]);
    let card = server.get(&path, &token).json();
    let interface = json!({"url": format!("{base}/{AGENT}"), "protocolBinding": "JSONRPC", "protocolVersion": "1.0"});
    assert_eq!((&card["name"], &card["supportedInterfaces"]), (&json!(AGENT), &json!([interface])), "{card}");
    assert_eq!(card["skills"].as_array().map(Vec::len), Some(1), "a mode is one skill: {card}");
    let whole = server.get(&format!("/a2a/goose{CARD}"), &token).json();
    assert!(
        whole["skills"].as_array().is_some_and(|skills| skills.len() > 1),
        "an agent has all of its modes: {whole}"
    );
    let unknown = server.get(&format!("/a2a/no-such{CARD}"), &token).timeless();
    assert_eq!(unknown.status, 404);
    assert_eq!(server.get(&format!("/a2a/coding{CARD}"), &token).timeless(), unknown, "the token does not reach it");
    let refused = post(&server, &token, "coding", "1.0", "{}");
    assert_eq!(refused.status, 404, "{refused:?}");
}

#[test]
fn the_public_url_is_in_the_cards() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--public-url", "https://skein.example.com"]);
    let card = server.request("GET", CARD, &[("host", "skein.example.com")], "").json();
    assert_eq!(card["supportedInterfaces"][0]["url"], "https://skein.example.com/a2a/orchestrator");
}

#[test]
fn a_message_becomes_a_task_in_a_context() {
    let sandbox = Sandbox::new();
    let model = model();
    let server = start(&sandbox, &model);
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox)]);
    let task = call(&server, &token, "SendMessage", &message("good morning"))["task"].clone();
    assert_eq!(state(&task), "TASK_STATE_COMPLETED", "{task}");
    assert!(said(&task).contains("good morning"), "{task}");
    assert_eq!(call(&server, &token, "GetTask", &json!({"id": task["id"]})), task);
    let run = server.get(&format!("/runs/{}", task["id"].as_str().unwrap()), &token).json();
    assert_eq!((&run["session_id"], &run["status"]), (&task["contextId"], &json!("completed")), "REST shows it, too");
    let mut next = message("and good night");
    next["message"]["contextId"] = task["contextId"].clone();
    let second = call(&server, &token, "SendMessage", &next)["task"].clone();
    assert_eq!((&second["contextId"], second["id"] == task["id"]), (&task["contextId"], false), "{second}");
    let last = model.requests().last().unwrap().to_string();
    assert!(last.contains("good morning") && last.contains("and good night"), "{last}");
    let ended = request(&server, &token, "SendMessage", &answer_to(&task, "more"));
    assert_eq!(code(&ended), -32004, "the task has ended");
}

#[test]
fn a_stream_has_the_task_and_then_its_changes() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &model());
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox)]);
    let events = streamed(&request(&server, &token, "SendStreamingMessage", &message("good morning")));
    let task = &events[0]["task"];
    let (text, last) = followed(&events);
    assert_eq!(last, "TASK_STATE_COMPLETED", "{events:#?}");
    let read = call(&server, &token, "GetTask", &json!({"id": task["id"]}));
    assert_eq!(text, said(&read), "the pieces are the whole answer");
    let pieces: Vec<_> = events.iter().filter_map(|event| event.get("artifactUpdate")).collect();
    let appends: Vec<_> = pieces.iter().map(|piece| piece["append"] == true).collect();
    assert!(!appends.is_empty() && !appends[0] && appends[1..].iter().all(|appends| *appends), "{pieces:#?}");
}

/// A call that needs consent makes the task wait. The next message answers.
#[test]
fn a_question_is_answered_by_the_next_message() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &model());
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox), "--approval", "ask"]);
    let task = call(&server, &token, "SendMessage", &message("write it"))["task"].clone();
    assert_eq!(state(&task), "TASK_STATE_INPUT_REQUIRED", "{task}");
    let question = &task["status"]["message"];
    assert_eq!((&question["role"], &question["taskId"]), (&json!("ROLE_AGENT"), &task["id"]));
    assert!(question["parts"][0]["text"].as_str().unwrap().contains("developer__write_file"), "{question}");
    let options = json!(["allow", "allow always", "reject", "reject always"]);
    assert_eq!(question["parts"][1]["data"]["options"], options);
    assert_eq!(code(&request(&server, &token, "SendMessage", &answer_to(&task, "perhaps"))), -32602);
    let mut elsewhere = answer_to(&task, "allow");
    elsewhere["message"]["contextId"] = json!(UNKNOWN);
    assert_eq!(code(&request(&server, &token, "SendMessage", &elsewhere)), -32602, "another context");
    assert!(!sandbox.path("project/new.txt").exists());
    let events = streamed(&request(&server, &token, "SendStreamingMessage", &answer_to(&task, "allow")));
    assert_eq!(followed(&events), ("done".to_owned(), "TASK_STATE_COMPLETED".to_owned()), "{events:#?}");
    assert_eq!(std::fs::read_to_string(sandbox.path("project/new.txt")).unwrap(), "new\n");
}

#[test]
fn a_refused_call_of_a_task_does_not_run() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &model());
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox), "--approval", "ask"]);
    let task = call(&server, &token, "SendMessage", &message("write it"))["task"].clone();
    let task = call(&server, &token, "SendMessage", &answer_to(&task, "reject"))["task"].clone();
    assert_eq!(state(&task), "TASK_STATE_COMPLETED", "{task}");
    assert!(!sandbox.path("project/new.txt").exists());
}

#[test]
fn a_running_task_is_followed_listed_and_cancelled() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &model());
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox)]);
    let done = call(&server, &token, "SendMessage", &message("good morning"))["task"].clone();
    let task = call(&server, &token, "SendMessage", &at_once("hang"))["task"].clone();
    let named = json!({"id": task["id"]});
    eventually("the model has begun", || said(&call(&server, &token, "GetTask", &named)) == "I begin");
    let (first, stream) = subscribe(&server, &token, &named);
    let cancelled = call(&server, &token, "CancelTask", &named);
    assert_eq!((state(&cancelled), said(&cancelled)), ("TASK_STATE_CANCELED", "I begin".to_owned()), "{cancelled}");
    assert_eq!((&first["task"]["id"], said(&first["task"])), (&task["id"], "I begin".to_owned()), "{first}");
    let events: Vec<_> = events(stream).collect();
    assert_eq!(followed(&events).1, "TASK_STATE_CANCELED", "{events:#?}");
    assert_eq!(code(&request(&server, &token, "CancelTask", &named)), -32002, "it has ended");
    assert_eq!(code(&request(&server, &token, "SubscribeToTask", &named)), -32004, "it has no further events");
    let listed = |params: Value| call(&server, &token, "ListTasks", &params);
    let all = listed(json!({}));
    assert_eq!((&all["totalSize"], &all["nextPageToken"]), (&json!(2), &json!("")), "{all}");
    assert!(all["tasks"][0].get("artifacts").is_none(), "artifacts are left out: {all}");
    let canceled = listed(json!({"status": "TASK_STATE_CANCELED", "includeArtifacts": true}));
    assert_eq!((&canceled["totalSize"], said(&canceled["tasks"][0])), (&json!(1), "I begin".to_owned()), "{canceled}");
    let of_context = listed(json!({"contextId": done["contextId"]}));
    assert_eq!(of_context["tasks"][0]["id"], done["id"], "{of_context}");
    let first = listed(json!({"pageSize": 1}));
    let second = listed(json!({"pageSize": 1, "pageToken": first["nextPageToken"]}));
    assert_ne!(first["tasks"][0]["id"], second["tasks"][0]["id"]);
    assert_eq!(second["nextPageToken"], "");
    for wrong in [json!({"pageSize": 0}), json!({"pageSize": 101}), json!({"pageToken": "x"})] {
        assert_eq!(code(&request(&server, &token, "ListTasks", &wrong)), -32602, "{wrong}");
    }
}

#[test]
fn requests_that_a2a_does_not_know_say_why() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &model());
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox)]);
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "ListTasks"}).to_string();
    for version in ["", "0.3", "2.0"] {
        assert_eq!(code(&post(&server, &token, AGENT, version, &list)), -32009, "{version:?}");
    }
    for (body, expected) in [
        ("{", -32700),
        ("[]", -32600),
        (r#"{"jsonrpc": "2.0", "id": 1}"#, -32600),
        (r#"{"jsonrpc": "1.0", "id": 1, "method": "ListTasks"}"#, -32600),
        (r#"{"jsonrpc": "2.0", "id": 1, "method": "message/send"}"#, -32601),
        (r#"{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": []}"#, -32602),
    ] {
        let answer = post(&server, &token, AGENT, "1.0", body);
        assert_eq!((answer.status, code(&answer)), (200, expected), "{body}");
    }
    let changed = |field: &str, value: Value| {
        let mut params = message("hello");
        params["message"][field] = value;
        params
    };
    for (params, expected) in [
        (changed("messageId", json!("")), -32602),
        (changed("role", json!("ROLE_AGENT")), -32602),
        (changed("parts", json!([])), -32602),
        (changed("parts", json!([{"raw": "AAAA", "mediaType": "application/zip"}])), -32005),
        (changed("contextId", json!("one")), -32602),
        (changed("taskId", json!(UNKNOWN)), -32001),
    ] {
        assert_eq!(code(&request(&server, &token, "SendMessage", &params)), expected, "{params}");
    }
    let mut pushed = message("hello");
    pushed["configuration"] = json!({"taskPushNotificationConfig": {"url": "https://example.org"}});
    assert_eq!(code(&request(&server, &token, "SendMessage", &pushed)), -32003);
    assert_eq!(code(&request(&server, &token, "CreateTaskPushNotificationConfig", &json!({}))), -32003);
}

#[test]
fn a_limit_is_an_answer_with_the_time_to_wait() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &model());
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox), "--turns", "1"]);
    call(&server, &token, "SendMessage", &at_once("hang"));
    let limited = request(&server, &token, "SendMessage", &message("more"));
    assert_eq!((limited.status, limited.header("retry-after").is_some()), (429, true), "{limited:?}");
    assert_eq!(code(&limited), -32603);
}

/// Tasks and contexts of another principal get the answer of an unknown id, byte for byte.
#[test]
fn tasks_and_contexts_of_others_do_not_exist() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &model());
    let flags = ["--root", &root(&sandbox), "--approval", "ask"];
    let (one, two) = (token(&sandbox, "one", &flags), token(&sandbox, "two", &flags));
    let task = call(&server, &one, "SendMessage", &message("write it"))["task"].clone();
    for method in ["GetTask", "CancelTask", "SubscribeToTask"] {
        let at = |id: &Value| request(&server, &two, method, &json!({"id": id})).timeless();
        assert_eq!((code(&at(&task["id"])), at(&task["id"])), (-32001, at(&json!(UNKNOWN))), "{method}");
    }
    let answered =
        |id: &Value| request(&server, &two, "SendMessage", &answer_to(&json!({"id": id}), "allow")).timeless();
    assert_eq!((code(&answered(&task["id"])), answered(&task["id"])), (-32001, answered(&json!(UNKNOWN))));
    let listed = call(&server, &two, "ListTasks", &json!({"contextId": task["contextId"]}));
    assert_eq!(listed["totalSize"], 0, "{listed}");
    // The same UUID is another context for another principal.
    let mut same = message("good morning");
    same["message"]["contextId"] = task["contextId"].clone();
    let own = call(&server, &two, "SendMessage", &same)["task"].clone();
    assert_eq!((state(&own), &own["contextId"]), ("TASK_STATE_COMPLETED", &task["contextId"]), "{own}");
    assert_eq!(call(&server, &one, "GetTask", &json!({"id": task["id"]})), task, "the first task still waits");
}

/// The story of `tests/python/a2a_client.py`: what a program with the protocol's own client gets.
#[expect(clippy::disallowed_methods, reason = "another program, which talks to the one under test")]
#[test]
fn the_python_client_of_a2a_plays_the_story() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &model());
    let token = token(&sandbox, "ci", &["--root", &root(&sandbox), "--approval", "ask"]);
    let played = std::process::Command::new(installed("tests/python/venv/bin/python"))
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/a2a_client.py"))
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
    let url = format!("http://{}/a2a/orchestrator", server.address);
    assert_eq!(step("public card"), json!({"step": "public card", "name": "Skein", "url": url, "skills": 1}));
    assert_eq!(step("card"), json!({"step": "card", "name": AGENT, "skills": [AGENT], "extended": AGENT}));
    let sent = step("send");
    assert!(sent["state"] == "TASK_STATE_COMPLETED" && sent["same"] == true && has(&sent, "one"), "{sent}");
    let stream = step("stream");
    assert_eq!((&stream["first"], &stream["last"]), (&json!("task"), &json!("TASK_STATE_COMPLETED")), "{stream}");
    assert!(has(&stream, "two") && stream["kinds"].to_string().contains("artifact_update"), "{stream}");
    assert_eq!(step("context"), json!({"step": "context", "same": true, "other": true}));
    let input = step("input");
    assert_eq!(
        (&input["before"], &input["after"]),
        (&json!("TASK_STATE_INPUT_REQUIRED"), &json!("TASK_STATE_COMPLETED"))
    );
    assert_eq!((&input["options"][0], &input["text"]), (&json!("allow"), &json!("done")), "{input}");
    assert_eq!(std::fs::read_to_string(sandbox.path("project/new.txt")).unwrap(), "new\n");
    let followed = json!({"step": "resubscribe", "first": "task", "same": true, "last": "TASK_STATE_CANCELED"});
    assert_eq!(step("resubscribe"), followed);
    assert_eq!(step("list"), json!({"step": "list", "only": true, "total": 1}));
    assert_eq!(step("cancel")["after"], "TASK_STATE_CANCELED");
    for (name, error) in [
        ("unknown", "TaskNotFoundError"),
        ("ended", "TaskNotCancelableError"),
        ("terminal", "UnsupportedOperationError"),
    ] {
        assert_eq!(step(name)["error"], error);
    }
}
