//! Remote agents behind `runtime: {a2a: …}`: another Skein, and an agent of the Python SDK that does what its prompts
//! say.

use std::cell::RefCell;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::support::acp::{Acp, of_kind, spoken};
use crate::support::http::{HttpServer, Reply};
use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::outside::mode;
use crate::support::serve::{Server, eventually, token};
use crate::support::{Sandbox, full_tests, installed};
use crate::telemetry::{OtlpReceiver, named};

const TOKEN: &str = "mellon-mellon-mellon";

/// A manifest of a remote agent with these modes.
fn manifest(url: &str, modes: &[Value]) -> Value {
    let mut needed: Vec<Value> =
        modes.iter().flat_map(|mode| mode["dependencies"].as_array().cloned().unwrap_or_default()).collect();
    needed.dedup();
    json!({
        "version": 1, "kind": "agent", "name": "there", "description": "Works elsewhere.",
        "runtime": {"a2a": {"url": url, "headers": {"Authorization": "Bearer ${env:THERE_TOKEN}"}}},
        "metadata": {"dependencies": needed}, "modes": modes,
    })
}

fn plain_mode() -> Vec<Value> {
    vec![mode("default", json!([]), json!([]))]
}

/// A client in a session of this mode, which can show forms.
fn in_mode(sandbox: &Sandbox, mode: &str) -> (Acp, String) {
    let capabilities = json!({"session": {"notices": {}}, "elicitation": {"form": {}, "url": {}}});
    let mut client = Acp::able(sandbox, &[], &capabilities);
    let session = client.session();
    client.set_mode(&session, mode);
    (client, session)
}

fn set_approval(client: &mut Acp, session: &str, level: &str) {
    let params = json!({"sessionId": session, "configId": "approval", "value": level});
    client.ask("session/set_config_option", params);
}

/// Another Skein, whose model writes a file, never ends or repeats the prompt.
struct OtherSkein {
    sandbox: Sandbox,
    model: ScriptedModel,
    server: Server,
}

impl OtherSkein {
    fn start() -> Self {
        let sandbox = Sandbox::new();
        let model = ScriptedModel::new(|request| match asked(request) {
            _ if has_result(request) => Answer::Says(vec!["done".to_owned()]),
            words if words.contains("hang") => Answer::Hangs("I begin"),
            words if words.contains("write") => {
                let arguments = json!({"path": "new.txt", "content": "new\n"});
                Answer::Calls { id: "c1", tool: "developer__write_file", arguments }
            }
            words => Answer::Says(vec!["You said ".to_owned(), words]),
        });
        let server = Server::launch(model.offered_to(sandbox.command(&["serve", "--listen", "127.0.0.1:0"])));
        Self { sandbox, model, server }
    }

    /// A sandbox with this Skein as the remote agent `there`.
    fn here(&self) -> Sandbox {
        let root = self.sandbox.path("project").to_string_lossy().into_owned();
        let token = token(&self.sandbox, "ci", &["--root", &root, "--approval", "ask"]);
        let here = Sandbox::new().with("THERE_TOKEN", Box::leak(token.into_boxed_str()));
        let url = format!("http://{}/a2a/goose-assistant", self.server.address);
        here.install(&manifest(&url, &plain_mode()));
        here
    }
}

#[test]
fn a_remote_agent_is_a_mode_that_keeps_its_context() {
    let there = OtherSkein::start();
    let here = there.here();
    let (mut client, session) = in_mode(&here, "there/default");
    let (reason, updates) = client.prompt(&session, "good morning");
    assert_eq!(reason, "end_turn");
    assert!(spoken(&updates).contains("good morning"), "{updates:#?}");
    client.prompt(&session, "and good night");
    let last = there.model.requests().last().unwrap()["messages"].to_string();
    assert!(last.contains("good morning") && last.contains("and good night"), "one context for one session: {last}");
}

#[test]
fn a_remote_turn_is_a_request_of_a_client() {
    if !full_tests() {
        return;
    }
    let (there, receiver) = (OtherSkein::start(), OtlpReceiver::start(&[]));
    let here = there.here();
    let mut command = here.command(&["run", "-a", "there", "good morning"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.url);
    let output = command.output().expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    let spans = receiver.spans();
    let turn = named(&spans, "invoke_agent there");
    assert_eq!(
        (&turn["kind"], &turn["attributes"]["gen_ai.provider.name"]),
        (&json!("SPAN_KIND_CLIENT"), &json!("a2a"))
    );
}

/// The question of the remote agent reaches the user here, and the answer reaches the agent.
#[test]
fn a_remote_permission_request_is_for_the_user() {
    let there = OtherSkein::start();
    let here = there.here();
    let (mut client, session) = in_mode(&here, "there/default");
    client.on_permission("reject");
    let mark = client.mark();
    client.prompt(&session, "write it");
    let asked = client.wait(mark, "the question", |message| message["method"] == "session/request_permission");
    assert!(asked["params"]["toolCall"]["title"].as_str().unwrap().contains("developer__write_file"), "{asked}");
    let kinds: Vec<_> = asked["params"]["options"].as_array().unwrap().iter().map(|option| &option["kind"]).collect();
    assert_eq!(kinds, ["allow_once", "allow_always", "reject_once", "reject_always"]);
    assert!(!there.sandbox.path("project/new.txt").exists());
    client.on_permission("allow");
    let (_, updates) = client.prompt(&session, "write it");
    assert_eq!(spoken(&updates), "done");
    assert_eq!(std::fs::read_to_string(there.sandbox.path("project/new.txt")).unwrap(), "new\n");
}

#[test]
fn no_remote_permission_without_a_person_or_a_level_for_it() {
    let there = OtherSkein::start();
    let here = there.here();
    let (mut client, session) = in_mode(&here, "there/default");
    client.on_permission("allow");
    set_approval(&mut client, &session, "read-only");
    let mark = client.mark();
    client.prompt(&session, "write it");
    let was_asked = client.heard()[mark..].iter().any(|message| message["method"] == "session/request_permission");
    assert!(!was_asked, "read-only refuses without a question");
    let run = here.skein(&["run", "-a", "there", "write it"]);
    assert!(run.stdout.contains("done"), "the agent goes on without it: {}", run.whole());
    assert!(run.code == 5 && run.stderr.contains("no user allowed it"), "{}", run.whole());
    assert!(!there.sandbox.path("project/new.txt").exists());
}

#[test]
fn a_cancelled_turn_cancels_the_remote_task() {
    let there = OtherSkein::start();
    let here = there.here();
    let (mut client, session) = in_mode(&here, "there/default");
    let mark = client.mark();
    let prompt = client.begin(&session, "hang");
    client.wait_update(mark, &session, "agent_message_chunk");
    client.cancel(&session);
    assert_eq!(client.ended(&prompt), "cancelled");
    let root = there.sandbox.path("project").to_string_lossy().into_owned();
    let token = token(&there.sandbox, "ci", &["--root", &root]);
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "ListTasks"}).to_string();
    let authorization = format!("Bearer {token}");
    let headers = [("authorization", authorization.as_str()), ("a2a-version", "1.0")];
    eventually("the task is cancelled", || {
        let listed = there.server.request("POST", "/a2a/goose-assistant", &headers, &body).json();
        listed["result"]["tasks"][0]["status"]["state"] == "TASK_STATE_CANCELED"
    });
}

/// An agent whose task asks the same question for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_remote_agent_makes_a_limited_number_of_requests() {
    let there = HttpServer::start(|request| {
        if request.line().0 == "GET" {
            let url = format!("http://{}/mcp", request.header("host").expect("a host"));
            let interface = json!({"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"});
            return Reply::Json(json!({"supportedInterfaces": [interface], "capabilities": {"streaming": false}}));
        }
        let id = &request.body["id"];
        let message = json!({"messageId": id, "role": "ROLE_AGENT", "parts": [{"text": "Which colour?"}]});
        let status = json!({"state": "TASK_STATE_INPUT_REQUIRED", "message": message});
        let task = json!({"id": "t1", "contextId": "c1", "status": status});
        Reply::Json(json!({"jsonrpc": "2.0", "id": id, "result": {"task": task}}))
    })
    .await;
    let here = Sandbox::new().with("THERE_TOKEN", TOKEN);
    here.install(&manifest(&there.url, &plain_mode()));
    let (mut client, session) = in_mode(&here, "there/default");
    let asked = on_elicitation(&mut client, json!({"action": "accept", "content": {"answer": "red"}}));
    let id = client.begin(&session, "paint");
    let failed = client.answer(&id).to_string();
    assert!(failed.contains("it has made more than 200 requests in one turn"), "{failed}");
    assert_eq!((asked.borrow().len(), there.asked("SendMessage")), (201, 201));
}

/// An agent that repeats the request when its task is read for the first time.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_look_at_a_task_is_logged_without_the_key() {
    let looks = AtomicUsize::new(0);
    let there = HttpServer::start(move |request| {
        if request.line().0 == "GET" {
            let url = format!("http://{}/mcp", request.header("host").expect("a host"));
            let interface = json!({"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"});
            return Reply::Json(json!({"supportedInterfaces": [interface], "capabilities": {"streaming": false}}));
        }
        let task = |state: &str| {
            let message = json!({"messageId": "m1", "role": "ROLE_AGENT", "parts": [{"text": "done"}]});
            json!({"id": "t1", "contextId": "c1", "status": {"state": state, "message": message}})
        };
        let result = match request.body["method"].as_str() {
            Some("SendMessage") => {
                json!({"task": {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_WORKING"}}})
            }
            _ if looks.fetch_add(1, Ordering::Relaxed) == 0 => {
                return Reply::Full(503, String::new(), json!({"refused": request.head}));
            }
            _ => task("TASK_STATE_COMPLETED"),
        };
        Reply::Json(json!({"jsonrpc": "2.0", "id": request.body["id"], "result": result}))
    })
    .await;
    let here = Sandbox::new().with("THERE_TOKEN", TOKEN);
    here.install(&manifest(&there.url, &plain_mode()));
    let run = here.skein(&["run", "-a", "there", "hello"]);
    assert!(run.stdout.contains("done"), "{}", run.whole());
    let log: String = here.log().iter().map(Value::to_string).collect();
    assert!(log.contains("the task cannot be read") && log.contains("HTTP 503"), "{log}");
    assert!(!log.contains(TOKEN) && !run.whole().contains(TOKEN), "{log}");
}

#[test]
fn a_remote_agent_that_cannot_be_used_says_why() {
    let there = OtherSkein::start();
    let base = format!("http://{}", there.server.address);
    let problem = |sandbox: &Sandbox, url: &str| {
        sandbox.install(&manifest(url, &plain_mode()));
        let run = sandbox.skein(&["run", "-a", "there", "hello"]);
        assert_ne!(run.code, 0, "{}", run.whole());
        run.stderr
    };
    let stranger = Sandbox::new().with("THERE_TOKEN", TOKEN);
    let refused = problem(&stranger, &format!("{base}/a2a/goose-assistant"));
    assert!(refused.contains("HTTP 401") && refused.contains("`headers` of `runtime.a2a`"), "{refused}");
    assert!(!refused.contains(TOKEN), "{refused}");
    let missing = problem(&Sandbox::new(), &format!("{base}/a2a/goose-assistant"));
    assert!(missing.contains("THERE_TOKEN is not set"), "{missing}");
    let silent = problem(&stranger, "http://127.0.0.1:9");
    assert!(silent.contains("it cannot be reached"), "{silent}");
    let other = problem(&stranger, &format!("{base}/healthz"));
    assert!(other.contains("HTTP 4"), "{other}");
}

#[test]
fn commands_show_a_remote_agent_and_check_its_manifest() {
    let sandbox = Sandbox::new().with("THERE_TOKEN", TOKEN);
    let mut agent = manifest("https://agent.example.com/a2a", &plain_mode());
    sandbox.install(&agent);
    let shown = sandbox.skein(&["agents", "show", "there"]);
    assert!(shown.stdout.contains("connects to: https://agent.example.com/a2a (A2A)"), "{}", shown.whole());
    assert!(shown.stdout.contains("what it does on its own machine is not"), "{}", shown.whole());
    assert_eq!(sandbox.skein(&["check"]).code, 0);
    agent["runtime"]["a2a"]["headers"]["Authorization"] = json!("Bearer written-down");
    sandbox.install(&agent);
    let checked = sandbox.skein(&["check"]);
    assert!(checked.whole().contains("W202"), "{}", checked.whole());
    assert!(!checked.whole().contains("written-down"), "{}", checked.whole());
    agent["runtime"] = json!({"a2a": {"url": "agent.example.com"}});
    sandbox.install(&agent);
    assert_eq!(sandbox.skein(&["check"]).code, 6);
    agent["runtime"] = json!({"a2a": {"url": "https://agent.example.com"}});
    agent["modes"][0]["sandbox"] = json!({"files": "read-only"});
    sandbox.install(&agent);
    let checked = sandbox.skein(&["check"]);
    assert!(checked.whole().contains("remove it; the agent is remote"), "{}", checked.whole());
}

/// An agent behind the Python SDK: `tests/python/a2a_agent.py`.
struct PythonAgent {
    child: Child,
    stdout: BufReader<ChildStdout>,
    url: String,
}

impl PythonAgent {
    #[expect(clippy::disallowed_methods, reason = "another program, which talks to the one under test")]
    fn start(flags: &[&str]) -> Self {
        let mut child = std::process::Command::new(installed("tests/python/venv/bin/python"))
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/a2a_agent.py"))
            .arg(TOKEN)
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("its stdout"));
        let mut port = String::new();
        stdout.read_line(&mut port).expect("a port");
        let url = format!("http://127.0.0.1:{}", port.trim());
        Self { child, stdout, url }
    }

    /// The next line that it prints.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line
    }

    /// A sandbox with this agent as `there`, in a mode for each way to be held.
    fn here(&self) -> Sandbox {
        let here = Sandbox::new().with("THERE_TOKEN", TOKEN);
        let modes = [
            mode("default", json!([]), json!([])),
            mode("reader", json!(["read"]), json!(["developer"])),
            mode("writer", json!(["read", "edit"]), json!(["developer"])),
        ];
        here.install(&manifest(&self.url, &modes));
        here.write("project/a.txt", "one\ntwo\n");
        here
    }
}

impl Drop for PythonAgent {
    fn drop(&mut self) {
        // It has ended already, or it must: the test is over.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The elicitations that a client gets, which it answers like this.
fn on_elicitation(client: &mut Acp, answer: Value) -> Rc<RefCell<Vec<Value>>> {
    let asked: Rc<RefCell<Vec<Value>>> = Rc::default();
    let heard = Rc::clone(&asked);
    client.on("elicitation/create", move |params| {
        heard.borrow_mut().push(params.clone());
        Some(json!({"result": answer}))
    });
    asked
}

#[test]
fn a_python_agent_streams_fails_and_remembers() {
    if !full_tests() {
        return;
    }
    for flags in [&[][..], &["poll"]] {
        let agent = PythonAgent::start(flags);
        let here = agent.here();
        let (mut client, session) = in_mode(&here, "there/default");
        let (reason, updates) = client.prompt(&session, "hello");
        assert_eq!((reason.as_str(), spoken(&updates).as_str()), ("end_turn", "message 1: hello"), "{flags:?}");
        let (_, updates) = client.prompt(&session, "again");
        assert_eq!(spoken(&updates), "message 2: again", "{flags:?}: the same context");
        let id = client.begin(&session, "fail");
        let failed = client.answer(&id).to_string();
        assert!(failed.contains("the disk is full"), "{failed}");
    }
}

#[test]
fn a_python_agent_asks_the_user() {
    if !full_tests() {
        return;
    }
    let agent = PythonAgent::start(&[]);
    let here = agent.here();
    let (mut client, session) = in_mode(&here, "there/default");
    let asked = on_elicitation(&mut client, json!({"action": "accept", "content": {"answer": "red"}}));
    let (_, updates) = client.prompt(&session, "ask");
    assert_eq!(spoken(&updates), "colour: red");
    assert!(asked.borrow()[0]["message"].as_str().unwrap().contains("Which colour?"), "{asked:?}");
    on_elicitation(&mut client, json!({"action": "accept", "content": {"size": 3}}));
    let (_, updates) = client.prompt(&session, "form");
    assert!(spoken(&updates).contains("\"size\": 3"), "{updates:#?}");
    on_elicitation(&mut client, json!({"action": "decline"}));
    let id = client.begin(&session, "ask");
    let declined = client.answer(&id).to_string();
    assert!(declined.contains("its question was not answered"), "{declined}");
    client.on_permission("allow");
    let (_, updates) = client.prompt(&session, "permission");
    assert_eq!(spoken(&updates), "permission: allow");
    set_approval(&mut client, &session, "deny");
    let (_, updates) = client.prompt(&session, "permission");
    assert_eq!(spoken(&updates), "permission: reject", "no person may allow it at this level");
    let run = here.skein(&["run", "-a", "there", "ask"]);
    assert!(run.stderr.contains("there is no user to ask"), "{}", run.whole());
}

/// The calls of a remote agent pass scope, rules and approval, like those of any other agent.
#[test]
fn a_python_agent_calls_only_what_its_mode_admits() {
    if !full_tests() {
        return;
    }
    let agent = PythonAgent::start(&[]);
    let here = agent.here();
    let (read, write) = (
        r#"call developer__read_file {"path": "a.txt", "limit": 1}"#,
        r#"call developer__write_file {"path": "new.txt", "content": "new"}"#,
    );
    let (mut client, session) = in_mode(&here, "there/default");
    let (_, updates) = client.prompt(&session, "tools");
    assert_eq!(spoken(&updates), "no tools");
    let (_, updates) = client.prompt(&session, read);
    assert!(spoken(&updates).contains("\"isError\": true"), "{updates:#?}");
    let (mut client, session) = in_mode(&here, "there/reader");
    let (_, updates) = client.prompt(&session, "tools");
    let tools = spoken(&updates);
    assert!(tools.contains("developer__read_file") && !tools.contains("developer__write_file"), "{tools}");
    let (_, updates) = client.prompt(&session, read);
    assert!(spoken(&updates).contains("one") && spoken(&updates).contains("\"isError\": false"), "{updates:#?}");
    assert_eq!(of_kind(&updates, "tool_call").len(), 1, "the user sees the call: {updates:#?}");
    let (_, updates) = client.prompt(&session, write);
    assert!(spoken(&updates).contains("\"isError\": true"), "{updates:#?}");
    assert!(!here.path("project/new.txt").exists());
    let (mut client, session) = in_mode(&here, "there/writer");
    client.on_permission("reject_once");
    let (_, updates) = client.prompt(&session, write);
    assert!(spoken(&updates).contains("\"isError\": true"), "the user refuses: {updates:#?}");
    assert!(!here.path("project/new.txt").exists());
    client.on_permission("allow_once");
    let (_, updates) = client.prompt(&session, write);
    assert!(spoken(&updates).contains("\"isError\": false"), "{updates:#?}");
    assert_eq!(std::fs::read_to_string(here.path("project/new.txt")).unwrap(), "new");
}

#[test]
fn a_python_agent_is_cancelled() {
    if !full_tests() {
        return;
    }
    let mut agent = PythonAgent::start(&[]);
    let here = agent.here();
    let (mut client, session) = in_mode(&here, "there/default");
    let mark = client.mark();
    let prompt = client.begin(&session, "hang");
    client.wait_update(mark, &session, "agent_message_chunk");
    client.cancel(&session);
    assert_eq!(client.ended(&prompt), "cancelled");
    assert!(agent.line().starts_with("cancelled "), "its task is cancelled, too");
}
