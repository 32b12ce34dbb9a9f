//! `skein mcp --agents`: agents that an MCP client asks, with a scripted model behind them.

#![expect(clippy::expect_used, reason = "what a test cannot go on without ends it")]

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};

use rmcp::model::{
    CallToolRequestParams, CallToolResult, ElicitRequestParams, ElicitResult, ElicitationAction, ProtocolVersion,
};
use rmcp::service::RunningService;
use rmcp::{ClientServiceExt as _, RoleClient};
use serde_json::{Value, json};

use crate::client::Client;
use crate::support::mcp_client::{AnswerClient, ERAS, HeardQuestions, accepts};
use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::{Sandbox, arguments, full_tests, inspector, read};

fn agents(sandbox: &Sandbox, model: &ScriptedModel, args: &[&str]) -> Command {
    model.offered_to(sandbox.command(&[&["mcp", "--agents"], args].concat()))
}

fn says(text: &str) -> Answer {
    Answer::Says(vec![text.to_owned()])
}

/// Says back what it was asked, and how many messages it was shown.
fn parrot() -> ScriptedModel {
    ScriptedModel::new(|request| {
        let count = request["messages"].as_array().map(Vec::len).unwrap_or_default();
        says(&format!("{} of {count}", asked(request)))
    })
}

/// Wants to write a file, and says what came of it.
fn writer() -> ScriptedModel {
    ScriptedModel::new(|request| {
        if has_result(request) {
            let result = &request["messages"].as_array().expect("messages").last().expect("one")["content"];
            return says(&format!("it came out as: {result}"));
        }
        let arguments = json!({"path": "made.txt", "content": "made\n"});
        Answer::Calls { id: "c1", tool: "developer__write_file", arguments }
    })
}

fn text(result: &Value) -> String {
    let content = result["content"].as_array().expect("content").iter();
    content.map(|block| block["text"].as_str().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_selectable_mode_is_a_tool_and_no_internal_mode_is() {
    let sandbox = Sandbox::new();
    let model = parrot();
    let listed = sandbox.skein(&["agents", "--json"]).json();
    let expected: BTreeSet<_> = listed
        .as_array()
        .expect("agents")
        .iter()
        .flat_map(|agent| {
            let modes = agent["modes"].as_array().expect("modes").iter().filter(|mode| mode["internal"] != json!(true));
            modes.map(|mode| format!("ask_{}_{}", agent["name"].as_str().unwrap(), mode["slug"].as_str().unwrap()))
        })
        .collect();
    let (mut client, greeting) = Client::connect(agents(&sandbox, &model, &[]));
    assert!(greeting["instructions"].as_str().expect("text").starts_with("The agents of Skein."), "{greeting}");
    assert_eq!(client.tools().into_iter().collect::<BTreeSet<_>>(), expected);
    assert!(expected.contains("ask_orchestrator_auto") && !expected.contains("ask_goose_judge"), "{expected:?}");
    let tools = client.result("tools/list", json!({}));
    let backend = tools["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == "ask_coding_backend").unwrap();
    assert!(backend["description"].as_str().unwrap().contains("When to use it: "), "{backend}");
    assert_eq!(backend["inputSchema"]["required"], json!(["prompt"]));
    assert_eq!(backend["annotations"]["readOnlyHint"], json!(false));

    let (mut narrow, _) = Client::connect(agents(&sandbox, &model, &["-a", "coding", "-m", "security"]));
    assert_eq!(narrow.tools(), ["ask_coding_security"]);
    let other = narrow.request("tools/call", json!({"name": "ask_coding_backend", "arguments": {"prompt": "x"}}));
    assert!(other["error"]["message"].as_str().unwrap().contains("there is no tool"), "{other}");
    for (args, problem) in [
        (&["-a", "goose", "-m", "judge"][..], "internal mode"),
        (&["-a", "codin"], "did you mean `coding`?"),
        (&["-a", "coding", "-m", "secrity"], "did you mean `security`?"),
    ] {
        let run = sandbox.skein(&[&["mcp", "--agents"], args].concat());
        assert!(run.code == 2 && run.stderr.contains(problem), "{run:?}");
    }
}

#[test]
fn the_inspector_asks_an_agent_and_goes_on_with_its_session() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = parrot();
    let server = agents(&sandbox, &model, &[]);
    let (code, _, said) = inspector(&sandbox, &server, &["tools/list", "--strict"]);
    assert_eq!(code, 0, "{said}");
    let call = ["tools/call", "--tool-name", "ask_goose_planner", "--tool-arg"];
    let (code, first, said) = inspector(&sandbox, &server, &[&call[..], &["prompt=the first question"]].concat());
    assert_eq!(code, 0, "{said}");
    let structured = &first["structuredContent"];
    assert_eq!(
        (&structured["agent"], &structured["mode"], &structured["stop_reason"]),
        (&json!("goose"), &json!("planner"), &json!("end_turn"))
    );
    assert!(text(&first).contains("the first question") && first["isError"] != json!(true), "{first}");
    let id = structured["session"].as_str().expect("a session");
    assert!(text(&first).contains(id), "a model that sees only text can go on: {first}");

    // Another process, and the same talk.
    let session = format!("session={id}");
    let again = [&call[..], &["prompt=the second question", "--tool-arg", &session]].concat();
    let (code, second, said) = inspector(&sandbox, &server, &again);
    assert_eq!(code, 0, "{said}");
    assert_eq!(second["structuredContent"]["session"], json!(id));
    let history = model.requests().last().expect("a request")["messages"].to_string();
    assert!(history.contains("the first question") && history.contains("the second question"), "{history}");
    let listed = sandbox.skein(&["sessions", "list", "--json"]).json();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
}

#[test]
fn what_does_not_fit_is_told_with_what_to_do() {
    let sandbox = Sandbox::new();
    let model = parrot();
    let (mut client, _) = Client::connect(agents(&sandbox, &model, &[]));
    let begun = client.call("ask_goose_planner", json!({"prompt": "hello"}));
    let id = begun["structuredContent"]["session"].clone();
    let elsewhere = sandbox.path("home").display().to_string();
    for (tool, with, problem) in [
        ("ask_goose_planner", json!({}), "missing field `prompt`"),
        ("ask_goose_planner", json!({"prompt": 1}), "do not fit the tool's schema"),
        ("ask_goose_planner", json!({"prompt": "x", "mode": "auto"}), "unknown field `mode`"),
        ("ask_goose_planner", json!({"prompt": " "}), "the prompt is empty"),
        ("ask_goose_planner", json!({"prompt": "x", "cwd": "project"}), "must be the absolute path of a folder"),
        ("ask_goose_planner", json!({"prompt": "x", "cwd": "/not/there"}), "must be the absolute path of a folder"),
        ("ask_goose_planner", json!({"prompt": "x", "session": "nobody"}), "there is no session `nobody`"),
        ("ask_coding_pm", json!({"prompt": "x", "session": id}), "is one of goose/planner, and this is coding/pm"),
        ("ask_goose_planner", json!({"prompt": "x", "session": id, "cwd": elsewhere}), "leave `cwd` out"),
    ] {
        let result = client.call(tool, with);
        assert_eq!(result["isError"], json!(true), "{result}");
        assert!(text(&result).contains(problem), "{problem}: {result}");
    }
    // None of this has harmed the session.
    let on = client.call("ask_goose_planner", json!({"prompt": "still there?", "session": id}));
    assert!(text(&on).contains("still there?"), "{on}");
}

/// Its manifests and their trust, and its files.
#[test]
fn the_folder_that_is_named_is_the_one_that_counts() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| {
        if has_result(request) {
            return says(
                &request["messages"].as_array().expect("messages").last().expect("one")["content"].to_string(),
            );
        }
        Answer::Calls { id: "c1", tool: "developer__read_file", arguments: json!({"path": "where.txt"}) }
    });
    sandbox.write("project/where.txt", "in the project\n");
    sandbox.write("other/where.txt", "in the other folder\n");
    sandbox.write(
        "other/.skein/agents/own.yaml",
        "version: 1\nkind: agent\nname: own\ndescription: Own.\nmodes: [{slug: one, description: One., prompt: one.md}]\n",
    );
    sandbox.write("other/.skein/agents/one.md", "You are one.\n");
    let root = sandbox.path("other").display().to_string();
    let (mut client, _) = Client::connect(agents(&sandbox, &model, &["--root", &root]));
    assert!(!client.tools().iter().any(|tool| tool.starts_with("ask_own")));
    let here = client.call("ask_coding_security", json!({"prompt": "read it"}));
    assert!(text(&here).contains("in the project"), "{here}");
    let other = sandbox.path("other").canonicalize().expect("a folder").display().to_string();
    let there = client.call("ask_coding_security", json!({"prompt": "read it", "cwd": other}));
    assert!(text(&there).contains("in the other folder"), "{there}");
    assert!(text(&there).contains("skein trust"), "what is not trusted there is told: {there}");
    // A session stays where it began.
    let session = there["structuredContent"]["session"].clone();
    let on = client.call("ask_coding_security", json!({"prompt": "read it", "session": session}));
    assert!(text(&on).contains("in the other folder"), "{on}");
}

/// The client's model named any folder, and the agent read it.
#[test]
fn a_folder_outside_of_the_roots_is_refused_without_elicitation() {
    let sandbox = Sandbox::new();
    let model = parrot();
    sandbox.write("home/.ssh/id_test", "a private key\n");
    sandbox.write("project/inner/a.txt", "a\n");
    std::os::unix::fs::symlink(sandbox.path("home/.ssh"), sandbox.path("project/link")).expect("linked");
    let path = |name: &str| sandbox.path(name).display().to_string();
    let (mut client, _) = Client::connect(agents(&sandbox, &model, &[]));
    for cwd in ["home/.ssh", "home", "project/link", "project/../home", "project/inner/../../home/.ssh"] {
        let refused = client.call("ask_goose_planner", json!({"prompt": "read it", "cwd": path(cwd)}));
        assert_eq!(refused["isError"], json!(true), "{cwd}: {refused}");
        assert!(text(&refused).contains("--root "), "{cwd}: {refused}");
    }
    assert_eq!(model.answered(), 0);
    for cwd in ["project", "project/inner", "project/link/../project"] {
        let done = client.call("ask_goose_planner", json!({"prompt": "hello", "cwd": path(cwd)}));
        assert_eq!(done["isError"] == json!(true), cwd.contains("link"), "{cwd}: {done}");
    }

    // A session of another program stays where it is, and out of reach.
    let (mut wide, _) = Client::connect(agents(&sandbox, &model, &["--root", &path("home")]));
    let there = wide.call("ask_goose_planner", json!({"prompt": "hello", "cwd": path("home/.ssh")}));
    assert_ne!(there["isError"], json!(true), "{there}");
    let session = there["structuredContent"]["session"].clone();
    let refused = client.call("ask_goose_planner", json!({"prompt": "and now?", "session": session}));
    assert!(refused["isError"] == json!(true) && text(&refused).contains("--root "), "{refused}");

    let missing = sandbox.skein(&["mcp", "--agents", "--root", "/not/there"]);
    assert!(missing.code == 2 && missing.stderr.contains("is not a folder that exists"), "{}", missing.whole());
}

#[test]
fn a_client_without_elicitation_is_refused_and_told_the_flag() {
    let sandbox = Sandbox::new();
    let model = writer();
    let (mut client, _) = Client::connect(agents(&sandbox, &model, &["-a", "coding"]));
    let refused = client.call("ask_coding_backend", json!({"prompt": "write it"}));
    assert_eq!(refused["isError"], json!(true), "{refused}");
    assert!(text(&refused).contains("--approval auto"), "{refused}");
    assert_eq!(refused["structuredContent"]["stop_reason"], "end_turn");
    assert!(!sandbox.path("project/made.txt").exists());

    for flags in [&["--approval", "auto"][..], &["--allow", "developer__write_file"]] {
        let (mut client, _) = Client::connect(agents(&sandbox, &model, flags));
        let done = client.call("ask_coding_backend", json!({"prompt": "write it"}));
        assert_ne!(done["isError"], json!(true), "{done}");
        assert_eq!(read(sandbox.path("project/made.txt")), "made\n");
        std::fs::remove_file(sandbox.path("project/made.txt")).expect("removed");
    }
}

#[test]
fn it_tells_of_its_progress() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "a\n");
    let model = ScriptedModel::new(|request| {
        if has_result(request) {
            return Answer::Says(vec!["all ".to_owned(), "done".to_owned()]);
        }
        Answer::Calls { id: "c1", tool: "developer__read_file", arguments: json!({"path": "a.txt"}) }
    });
    let (mut client, _) = Client::connect(agents(&sandbox, &model, &[]));
    let call = |meta: Value| json!({"name": "ask_coding_security", "arguments": {"prompt": "read"}, "_meta": meta});
    let result = client.result("tools/call", call(json!({"progressToken": "mine"})));
    assert_eq!(result["structuredContent"]["text"], "all done");
    let progress: Vec<_> = std::mem::take(&mut client.notifications);
    let progress: Vec<_> = progress.iter().filter(|one| one["method"] == "notifications/progress").collect();
    assert!(progress.iter().all(|one| one["params"]["progressToken"] == "mine"), "{progress:?}");
    let messages: Vec<_> = progress.iter().filter_map(|one| one["params"]["message"].as_str()).collect();
    assert!(messages.contains(&r#"developer__read_file {"path":"a.txt"}"#), "{messages:?}");
    assert!(messages.iter().any(|message| message.starts_with("all")), "{messages:?}");
    let counts: Vec<_> = progress.iter().filter_map(|one| one["params"]["progress"].as_f64()).collect();
    assert!(counts.is_sorted_by(|a, b| a < b), "{counts:?}");

    client.result("tools/call", call(json!({})));
    assert!(client.notifications.is_empty(), "who does not ask for progress gets none: {:?}", client.notifications);
}

#[test]
fn cancelling_the_request_cancels_only_the_turn() {
    let sandbox = Sandbox::new();
    let model =
        ScriptedModel::new(
            |request| {
                if asked(request).contains("slowly") { Answer::Hangs("I begin") } else { says("quick") }
            },
        );
    let (mut client, _) = Client::connect(agents(&sandbox, &model, &[]));
    let session = client.call("ask_goose_planner", json!({"prompt": "hello"}))["structuredContent"]["session"].clone();
    let arguments = json!({"prompt": "slowly", "session": session});
    let call = json!({"name": "ask_goose_planner", "arguments": arguments, "_meta": {"progressToken": 1}});
    let id = client.ask("tools/call", call);
    let told = client.notified("notifications/progress");
    assert_eq!(told["params"]["message"], "I begin");
    // The session is busy, and another one is not.
    let busy = client.call("ask_goose_planner", json!({"prompt": "now", "session": session}));
    assert!(busy["isError"] == json!(true) && text(&busy).contains("still busy"), "{busy}");
    let other = client.call("ask_goose_planner", json!({"prompt": "now"}));
    assert_eq!(other["structuredContent"]["text"], "quick");
    client.notify("notifications/cancelled", json!({"requestId": id, "reason": "enough"}));
    // Its end is in the store when the session takes the next prompt.
    let on = loop {
        let on = client.call("ask_goose_planner", json!({"prompt": "now", "session": session}));
        if !text(&on).contains("still busy") {
            break on;
        }
    };
    assert_eq!(on["structuredContent"]["text"], "quick");
    let shown = sandbox.skein(&["sessions", "export", session.as_str().expect("an id")]);
    assert!(shown.stdout.contains("cancelled"), "{}", shown.stdout);
}

/// The question about a folder ends with the request.
#[test]
fn cancelling_the_request_ends_a_question_about_a_folder() {
    let sandbox = Sandbox::new();
    let model = parrot();
    sandbox.write("other/a.txt", "a\n");
    let mut client = Client::start(agents(&sandbox, &model, &[]));
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "test", "version": "1"}});
    client.result("initialize", hello);
    client.notify("notifications/initialized", json!({}));
    let arguments = json!({"prompt": "work elsewhere", "cwd": sandbox.path("other")});
    let id = client.ask("tools/call", json!({"name": "ask_goose_planner", "arguments": arguments}));
    let question = client.next();
    assert_eq!(question["method"], "elicitation/create", "{question}");
    client.notify("notifications/cancelled", json!({"requestId": id, "reason": "enough"}));
    let ended = client.notified("notifications/cancelled");
    assert_eq!(ended["params"]["requestId"], question["id"], "{ended}");
    // An answer that comes too late changes nothing.
    let late = json!({"action": "accept", "content": {"answer": "allow"}});
    client.send_line(&json!({"jsonrpc": "2.0", "id": question["id"], "result": late}).to_string());
    let on = client.call("ask_goose_planner", json!({"prompt": "hello"}));
    assert_ne!(on["isError"], json!(true), "the client goes on: {on}");
    let elsewhere = model.requests().iter().any(|request| asked(request).contains("elsewhere"));
    assert!(!elsewhere, "the cancelled request began no turn");
}

#[test]
fn sessions_work_side_by_side() {
    let sandbox = Sandbox::new();
    let (go, wait) = mpsc::channel();
    let wait = Arc::new(Mutex::new(wait));
    let model = ScriptedModel::new(move |request| {
        if asked(request).contains("first") {
            return Answer::Paced { pieces: vec!["a".to_owned(), "b".to_owned()], go: Arc::clone(&wait) };
        }
        says("second")
    });
    let (mut client, _) = Client::connect(agents(&sandbox, &model, &[]));
    let call =
        json!({"name": "ask_goose_planner", "arguments": {"prompt": "the first"}, "_meta": {"progressToken": 1}});
    let id = client.ask("tools/call", call);
    client.notified("notifications/progress");
    let second = client.call("ask_goose_planner", json!({"prompt": "the other"}));
    assert_eq!(second["structuredContent"]["text"], "second");
    go.send(()).expect("it waits");
    let first = std::iter::repeat_with(|| client.next()).find(|message| message["id"] == id).expect("an answer");
    assert_eq!(first["result"]["structuredContent"]["text"], "ab");
}

#[test]
fn a_model_that_fails_is_an_error_that_says_so() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Status(401));
    let (mut client, _) = Client::connect(agents(&sandbox, &model, &[]));
    let failed = client.call("ask_goose_planner", json!({"prompt": "hello"}));
    assert_eq!((&failed["isError"], &failed["structuredContent"]["stop_reason"]), (&json!(true), &json!("error")));
    assert!(text(&failed).contains("401"), "{failed}");
}

#[test]
fn a_client_that_goes_ends_everything() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Hangs("I begin"));
    let (mut client, _) = Client::connect(agents(&sandbox, &model, &[]));
    let call = json!({"name": "ask_goose_planner", "arguments": {"prompt": "x"}, "_meta": {"progressToken": 1}});
    client.ask("tools/call", call);
    client.notified("notifications/progress");
    client.hang_up();
    assert!(client.ended().success());
    let listed = sandbox.skein(&["sessions", "list", "--json"]).json();
    let id = listed[0]["id"].as_str().expect("a session").to_owned();
    let shown = sandbox.skein(&["sessions", "export", &id]);
    assert!(shown.stdout.contains("cancelled"), "{}", shown.stdout);
}

/// One Skein is a service of another.
#[test]
fn a_second_skein_asks_the_first() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| match (asked(request).contains("inner"), has_result(request)) {
        (true, _) => says("said by the inner agent"),
        (false, true) => {
            let result = &request["messages"].as_array().expect("messages").last().expect("one")["content"];
            says(&format!("the other one: {result}"))
        }
        (false, false) => Answer::Calls {
            id: "c1",
            tool: "crew__ask_goose_planner",
            arguments: json!({"prompt": "to the inner one"}),
        },
    });
    let folder = |name: &str| sandbox.path(name).display().to_string();
    let manifest = json!({
        "version": 1, "kind": "service", "name": "crew", "description": "Agents of another skein.",
        "transport": {"stdio": {
            "command": env!("CARGO_BIN_EXE_skein"),
            "args": ["mcp", "--agents", "-a", "goose"],
            "env": {
                "SKEIN_CONFIG_DIR": folder("inner/config"), "SKEIN_DATA_DIR": folder("inner/data"),
                "SKEIN_MODEL": "openai:scripted", "OPENAI_BASE_URL": model.address(),
                "OPENAI_API_KEY": "${env:OPENAI_API_KEY}",
            },
        }},
    });
    sandbox.write("config/services/crew.yaml", &manifest.to_string());
    let args = ["--approval", "auto", "run", "-a", "coding", "-m", "backend", "ask the other one"];
    let output = model.offered_to(sandbox.command(&args)).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("the other one:") && said.contains("said by the inner agent"), "{said}");
}

// elicitation

struct Asking {
    sandbox: Sandbox,
    client: RunningService<RoleClient, AnswerClient>,
    heard: HeardQuestions,
    _model: ScriptedModel,
}

impl Asking {
    async fn start(version: ProtocolVersion, answer: impl Fn() -> ElicitResult + Send + Sync + 'static) -> Self {
        let (sandbox, model) = (Sandbox::new(), writer());
        let command = agents(&sandbox, &model, &["-a", "coding"]);
        let mut command = tokio::process::Command::from(command);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let streams = (child.stdout.take().expect("a pipe"), child.stdin.take().expect("a pipe"));
        let (answers, heard) = AnswerClient::new(version, answer);
        let lifecycle = answers.lifecycle();
        let client = answers.serve_with_lifecycle(streams, lifecycle).await.expect("served");
        Self { sandbox, client, heard, _model: model }
    }

    async fn ask(&self, with: Value) -> CallToolResult {
        let call = CallToolRequestParams::new("ask_coding_backend").with_arguments(arguments(with));
        self.client.call_tool(call).await.expect("an answer")
    }

    fn made(&self) -> bool {
        let file = self.sandbox.path("project/made.txt");
        let made = file.exists();
        drop(std::fs::remove_file(file));
        made
    }

    fn heard(&self) -> Vec<ElicitRequestParams> {
        std::mem::take(&mut *self.heard.lock().expect("what was heard"))
    }
}

#[tokio::test]
async fn a_question_of_the_agent_reaches_the_user_of_the_client() {
    for version in ERAS {
        let asking = Asking::start(version.clone(), || accepts("allow")).await;
        let done = asking.ask(json!({"prompt": "write it"})).await;
        assert_eq!(done.is_error, Some(false), "{version}: {done:?}");
        assert!(asking.made(), "{version}");
        let [ElicitRequestParams::FormElicitationParams { message, requested_schema, .. }] = &asking.heard()[..] else {
            panic!("one form")
        };
        assert!(message.contains("wants to call developer__write_file") && message.contains("made.txt"), "{message}");
        let schema = json!(requested_schema);
        let options = schema["properties"]["answer"]["enum"].as_array().expect("options");
        assert!(options.contains(&json!("allow")) && options.contains(&json!("reject")), "{schema}");
    }
}

#[tokio::test]
async fn the_user_of_the_client_allows_a_folder_outside_of_the_roots() {
    for version in ERAS {
        for (answer, runs) in [("allow", true), ("reject", false)] {
            let asking = Asking::start(version.clone(), move || accepts(answer)).await;
            asking.sandbox.write("other/a.txt", "a\n");
            let other = asking.sandbox.path("other").canonicalize().expect("a folder");
            let done = asking.ask(json!({"prompt": "write it", "cwd": other})).await;
            assert_eq!(done.is_error, Some(!runs), "{version} {answer}: {done:?}");
            assert_eq!(other.join("made.txt").exists(), runs, "{version} {answer}");
            let heard = asking.heard();
            let ElicitRequestParams::FormElicitationParams { message, .. } = &heard[0] else { panic!("a form") };
            assert!(message.contains(&other.display().to_string()), "{message}");
            assert_eq!(heard.len(), if runs { 2 } else { 1 }, "the folder, and then the call");
            if runs {
                asking.ask(json!({"prompt": "write it", "cwd": other})).await;
                assert_eq!(asking.heard().len(), 1, "a folder is asked about once");
            }
        }
    }
}

#[tokio::test]
async fn whatever_is_not_a_yes_is_a_no() {
    let answers: [fn() -> ElicitResult; 5] = [
        || accepts("reject"),
        || accepts("yes, whatever"),
        || ElicitResult::new(ElicitationAction::Accept),
        || ElicitResult::new(ElicitationAction::Decline),
        || ElicitResult::new(ElicitationAction::Cancel),
    ];
    for (answer, version) in answers.into_iter().zip(ERAS.into_iter().cycle()) {
        let asking = Asking::start(version, answer).await;
        let refused = asking.ask(json!({"prompt": "write it"})).await;
        assert_eq!((refused.is_error, asking.made()), (Some(true), false), "{:?}: {refused:?}", answer());
        assert_eq!(asking.heard().len(), 1);
    }
}

#[tokio::test]
async fn what_is_allowed_in_a_session_is_not_asked_again_in_it() {
    let asking = Asking::start(ProtocolVersion::V_2026_07_28, || accepts("allow in this session")).await;
    let first = asking.ask(json!({"prompt": "write it"})).await;
    assert!(asking.made() && asking.heard().len() == 1);
    let session = first.structured_content.expect("structured")["session"].clone();
    asking.ask(json!({"prompt": "again", "session": session})).await;
    assert!(asking.made() && asking.heard().is_empty());
    asking.ask(json!({"prompt": "again, elsewhere"})).await;
    assert!(asking.made() && asking.heard().len() == 1);
}

/// A consent for a session lasts while the session is open, so the next call asks again if it was closed.
#[tokio::test]
async fn the_idle_session_unused_for_longest_is_closed() {
    const MAX_IDLE_SESSIONS: usize = 16;
    let asking = Asking::start(ProtocolVersion::V_2026_07_28, || accepts("allow in this session")).await;
    let questions = async |arguments: Value| {
        let done = asking.ask(arguments).await;
        assert!(asking.made(), "{done:?}");
        let session = done.structured_content.expect("structured")["session"].clone();
        (session, asking.heard().len())
    };
    let mut sessions = Vec::new();
    for _ in 0..MAX_IDLE_SESSIONS {
        let (session, asked) = questions(json!({"prompt": "write it"})).await;
        assert_eq!(asked, 1);
        sessions.push(session);
    }
    let again = |place: usize| json!({"prompt": "again", "session": sessions[place]});
    assert_eq!(questions(again(0)).await.1, 0, "all are open, and now the second one is unused for longest");
    assert_eq!(questions(json!({"prompt": "write it"})).await.1, 1, "one more");
    for (place, asked) in [(0, 0), (2, 0), (1, 1)] {
        assert_eq!(questions(again(place)).await.1, asked, "session {place}");
    }
}

#[test]
fn an_answer_that_nobody_waits_for_is_refused() {
    let sandbox = Sandbox::new();
    let model = writer();
    let mut client = Client::start(agents(&sandbox, &model, &["-a", "coding"]));
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    });
    let call = |more: Value| {
        let mut params = json!({"name": "ask_coding_backend", "arguments": {"prompt": "write it"}, "_meta": meta});
        params.as_object_mut().expect("an object").extend(arguments(more));
        params
    };
    let question = client.result("tools/call", call(json!({})));
    assert_eq!(question["resultType"], "input_required", "{question}");
    let state = question["requestState"].clone();
    let requests = question["inputRequests"].as_object().expect("requests");
    let key = requests.keys().next().expect("one").clone();
    let said =
        json!({"inputResponses": {key: {"action": "accept", "content": {"answer": "allow"}}}, "requestState": state});
    let done = client.result("tools/call", call(said.clone()));
    assert_ne!(done["isError"], json!(true), "{done}");
    assert_eq!(read(sandbox.path("project/made.txt")), "made\n");
    let again = client.request("tools/call", call(said));
    assert!(again["error"]["message"].as_str().expect("text").contains("nothing waits for these answers"), "{again}");
}
