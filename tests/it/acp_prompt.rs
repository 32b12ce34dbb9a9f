//! Turns of `skein acp`: what is said while one runs, consent, cancelling, failures, many at once. The numbers in the
//! comments are those of the assertions for a conformant agent.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde_json::{Value, json};

use crate::support::Sandbox;
use crate::support::acp::{Acp, of_kind, said, selected, spoken};
use crate::support::model::{Answer, ScriptedModel, asked, has_result};

fn with_model(sandbox: &Sandbox, model: &ScriptedModel) -> Acp {
    let mut client = Acp::launch(sandbox, model.offered_to(sandbox.command(&["acp", "-a", "goose"])));
    client.introduce(&json!({}));
    client
}

/// 19, 20, 23, 38: a turn is told in order, and its end comes last.
#[test]
pub(crate) fn a_turn_is_told_before_it_is_answered() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "the letter a\n");
    let mut client = Acp::start(&sandbox);
    let session = client.session();
    let mark = client.mark();
    let prompt = client.begin(&session, "read a.txt");
    assert_eq!(client.ended(&prompt), "end_turn");
    let turn = &client.heard()[mark..];
    assert_eq!(turn.last().unwrap()["id"], prompt);
    assert!(turn[..turn.len() - 1].iter().all(|message| message["params"]["sessionId"] == json!(session)), "{turn:#?}");
    let updates = client.updates(mark, &session);
    let call = &of_kind(&updates, "tool_call")[0];
    assert_eq!(call["name"], "developer__read_file");
    assert_eq!((&call["kind"], &call["title"]), (&json!("read"), &json!("a.txt")));
    assert_eq!(call["rawInput"], json!({"path": "a.txt"}));
    let path = sandbox.path("project/a.txt").to_string_lossy().into_owned();
    assert_eq!(call["locations"], json!([{"path": path}]));
    let changes = of_kind(&updates, "tool_call_update");
    assert_eq!(changes.last().unwrap()["status"], "completed");
    assert!(changes.last().unwrap()["rawOutput"].to_string().contains("the letter a"), "{changes:#?}");
    forward(&updates);
    assert!(spoken(&updates).contains("the letter a"));
    client.settle();
    assert_eq!(client.updates(mark, &session), updates, "nothing is said after the turn");
}

/// Holds the tool calls in updates to their order: begun once, then forward to one end.
fn forward(updates: &[Value]) {
    let rank =
        |status: &str| ["pending", "in_progress", "completed", "failed"].iter().position(|known| *known == status);
    let mut reached: BTreeMap<String, usize> = BTreeMap::new();
    for update in updates {
        let id = update["toolCallId"].to_string();
        let status = update["status"].as_str().map(|status| rank(status).expect("a status"));
        match update["sessionUpdate"].as_str() {
            Some("tool_call") => {
                assert!(reached.insert(id, status.unwrap_or(0)).is_none(), "begun twice: {update}");
            }
            Some("tool_call_update") => {
                let now = reached.get_mut(&id).unwrap_or_else(|| panic!("not begun: {update}"));
                assert!(*now < 2, "it had ended: {update}");
                let next = status.unwrap_or(*now);
                assert!(next >= *now, "backwards: {update}");
                *now = next;
            }
            _ => {}
        }
    }
    assert!(reached.values().all(|status| *status >= 2), "every call ends: {updates:#?}");
}

/// 21, 22: links, images and embedded resources are taken; sound was not advertised.
#[test]
pub(crate) fn what_was_advertised_can_be_prompted() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let session = client.session();
    let text = json!({"type": "text", "text": "hello"});
    let blocks = [
        json!({"type": "resource_link", "uri": "file:///a.rs", "name": "a.rs"}),
        json!({"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}),
        json!({"type": "resource", "resource": {"uri": "file:///a.rs", "text": "fn a() {}", "mimeType": "text/x-rust"}}),
        json!({"type": "resource", "resource": {"uri": "file:///a.bin", "blob": "aGk="}}),
    ];
    for block in &blocks {
        let params = json!({"sessionId": session, "prompt": [text, block]});
        assert_eq!(client.ask("session/prompt", params)["stopReason"], "end_turn", "{block}");
    }
    for prompt in [
        json!([text, {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}]),
        json!([{"type": "smell", "data": "rose"}]),
        json!([]),
    ] {
        let params = json!({"sessionId": session, "prompt": prompt});
        assert_eq!(client.refused("session/prompt", params)["code"], -32602);
    }
    assert_eq!(client.prompt(&session, "hello").0, "end_turn");
    // All of it is told again as it was.
    let mark = client.mark();
    let params = json!({"sessionId": session, "cwd": client.cwd(), "mcpServers": []});
    client.ask("session/load", params);
    let told: Vec<_> = of_kind(&client.updates(mark, &session), "user_message_chunk");
    let contents: Vec<_> = told.iter().map(|chunk| &chunk["content"]).filter(|content| **content != text).collect();
    assert_eq!(contents, blocks.iter().collect::<Vec<_>>());
}

/// What the user shows is what the model is shown.
#[test]
pub(crate) fn a_model_is_shown_what_was_prompted() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Says(vec!["seen".to_owned()]));
    let mut client = with_model(&sandbox, &model);
    let session = client.session();
    let prompt = json!([
        {"type": "text", "text": "what is this?"},
        {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "file:///src/a.rs", "text": "fn embedded() {}"}},
        {"type": "resource_link", "uri": "file:///src/linked.rs", "name": "linked.rs"},
    ]);
    client.ask("session/prompt", json!({"sessionId": session, "prompt": prompt}));
    let shown = asked(&model.requests()[0]);
    for part in ["what is this?", "iVBORw0KGgo=", "fn embedded() {}", "linked.rs"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

/// 39: a question has options that differ, in words, and shows what is asked for.
#[test]
pub(crate) fn a_question_says_what_it_is_about() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    client.on_permission("allow_once");
    let session = client.session();
    let mark = client.mark();
    client.prompt(&session, "run echo hi");
    let asked = client.wait(mark, "a question", |message| message["method"] == "session/request_permission");
    let params = &asked["params"];
    let call = of_kind(&client.updates(mark, &session), "tool_call")[0].clone();
    assert_eq!(params["toolCall"]["toolCallId"], call["toolCallId"]);
    assert_eq!(params["toolCall"]["title"], "echo hi");
    let options = params["options"].as_array().unwrap();
    let ids: Vec<_> = options.iter().map(|option| option["optionId"].as_str().unwrap()).collect();
    assert_eq!(ids, ["allow_once", "allow_always", "reject_once", "reject_always"]);
    for option in options {
        assert_eq!(option["kind"], option["optionId"], "a client may look an option up by its kind");
    }
    assert_eq!(options[1]["name"], "Allow `echo hi` in this session");
    let mark = client.mark();
    client.prompt(&session, r#"/developer.write_file {"path": "new.txt", "content": "new\n"}"#);
    let asked = client.wait(mark, "a question", |message| message["method"] == "session/request_permission");
    let diff = &asked["params"]["toolCall"]["content"][0];
    assert_eq!((&diff["type"], &diff["newText"]), (&json!("diff"), &json!("new\n")), "{asked}");
}

/// Issue 16, point 6: a command closed its fence and went on as text of the question.
#[test]
pub(crate) fn a_command_cannot_leave_the_fence_around_it() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    client.on_permission("reject_once");
    let session = client.session();
    let mark = client.mark();
    let command = "rm -r src #\n```\n\nThis only lists files.\n\n````sh\nls";
    let arguments = json!({"command": command});
    client.prompt(&session, &format!("/developer.shell {arguments}"));
    let asked = client.wait(mark, "a question", |message| message["method"] == "session/request_permission");
    let shown = &asked["params"]["toolCall"]["content"][0]["content"]["text"];
    assert_eq!(*shown, json!(format!("`````sh\n{command}\n`````")));
}

/// Clients render text as Markdown. A file must appear as it is, fences included.
#[test]
pub(crate) fn tool_output_is_fenced_and_raw_output_is_plain() {
    let sandbox = Sandbox::new();
    sandbox.write("project/notes.md", "# Title\n```sh\nls\n```\n* item\n");
    let mut client = Acp::start(&sandbox);
    client.on_permission("allow_once");
    let session = client.session();
    let (_, updates) = client.prompt(&session, "run cat notes.md");
    let end = of_kind(&updates, "tool_call_update").pop().unwrap();
    let shown = end["content"][0]["content"]["text"].as_str().unwrap();
    assert!(shown.starts_with("````\n# Title\n```sh\n") && shown.ends_with("\n````"), "{shown}");
    assert!(end["rawOutput"].to_string().contains("# Title"), "{end}");
    assert!(!end["rawOutput"].to_string().contains("````"), "{end}");
    let answer = spoken(&updates);
    assert!(answer.starts_with("````\n") && answer.contains("\n* item\n"), "{answer}");
}

/// Issue 16, point 8: characters that do not show are seen in a question, each as one sign.
#[test]
pub(crate) fn a_command_cannot_hide_characters_from_a_question() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    client.on_permission("reject_once");
    let session = client.session();
    let hidden =
        ['\u{2028}', '\u{61c}', '\u{34f}', '\u{115f}', '\u{1160}', '\u{2800}', '\u{3164}', '\u{ffa0}', '\u{e0041}'];
    let mark = client.mark();
    let command: String = hidden.iter().map(|c| format!("a{c}")).collect();
    client.prompt(&session, &format!("/developer.shell {}", json!({"command": format!("echo {command}")})));
    let asked = client.wait(mark, "a question", |message| message["method"] == "session/request_permission");
    let call = &asked["params"]["toolCall"];
    for shown in [&call["title"], &call["content"][0]["content"]["text"], &asked["params"]["options"][1]["name"]] {
        let shown = shown.as_str().unwrap();
        assert!(!shown.contains(hidden), "{shown:?}");
        assert!(shown.contains(&"a\u{fffd}".repeat(hidden.len())), "{shown:?}");
    }
}

/// 39: what is rejected is not run; always means this very command and no other.
#[test]
pub(crate) fn always_covers_one_command_and_no_is_no() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let answers: Rc<RefCell<Vec<&str>>> = Rc::default();
    let left = Rc::clone(&answers);
    client.on("session/request_permission", move |_| {
        Some(match left.borrow_mut().pop().expect("a question that nobody expects") {
            "cancelled" => json!({"result": {"outcome": {"outcome": "cancelled"}}}),
            "error" => json!({"error": {"code": -32603, "message": "the window was closed"}}),
            option => selected(option),
        })
    });
    let session = client.session();
    let mut run = |file: &str, answer: Option<&'static str>| {
        answers.borrow_mut().extend(answer);
        let (reason, updates) = client.prompt(&session, &format!("run echo x >> {file}"));
        assert!(answers.borrow().is_empty(), "it was not asked: {file}");
        assert_eq!(reason, "end_turn");
        forward(&updates);
        let status = of_kind(&updates, "tool_call_update").last().unwrap()["status"].clone();
        let lines = std::fs::read_to_string(sandbox.path("project").join(file)).unwrap_or_default().lines().count();
        (status.as_str().unwrap().to_owned(), lines)
    };
    for refusal in ["reject_once", "cancelled", "error", "no such option"] {
        assert_eq!(run("refused", Some(refusal)), ("failed".to_owned(), 0), "{refusal}");
    }
    assert_eq!(run("once", Some("allow_once")), ("completed".to_owned(), 1));
    assert_eq!(run("once", Some("reject_once")), ("failed".to_owned(), 1), "once is once");
    assert_eq!(run("often", Some("allow_always")), ("completed".to_owned(), 1));
    assert_eq!(run("often", None), ("completed".to_owned(), 2));
    assert_eq!(run("oftener", Some("reject_once")), ("failed".to_owned(), 0), "another command is asked for");
    assert_eq!(run("never", Some("reject_always")), ("failed".to_owned(), 0));
    assert_eq!(run("never", None), ("failed".to_owned(), 0));
    // What was said holds for the session it was said in.
    answers.borrow_mut().push("reject_once");
    let other = client.session();
    client.prompt(&other, "run echo x >> often");
    assert!(answers.borrow().is_empty());
}

/// 24, 25, 26, 27: a turn that waits for consent can be cancelled, and the next one works.
#[test]
pub(crate) fn a_question_is_taken_back_when_the_turn_is_cancelled() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    client.on("session/request_permission", |_| None);
    let session = client.session();
    let mark = client.mark();
    let prompt = client.begin(&session, "run touch made");
    let question = client.wait(mark, "a question", |message| message["method"] == "session/request_permission");
    client.cancel(&session);
    client.reply(&question["id"], json!({"result": {"outcome": {"outcome": "cancelled"}}}));
    assert_eq!(client.ended(&prompt), "cancelled");
    let updates = client.updates(mark, &session);
    forward(&updates);
    assert_eq!(of_kind(&updates, "tool_call_update").last().unwrap()["status"], "failed");
    client.settle();
    assert_eq!(client.updates(mark, &session), updates, "nothing is said after the turn");
    assert!(!sandbox.path("project/made").exists());
    client.on_permission("allow_once");
    assert_eq!(client.prompt(&session, "run touch made").0, "end_turn");
    assert!(sandbox.path("project/made").exists());
}

/// The same if the client answers too late, or never: the agent does not wait for it.
#[test]
pub(crate) fn a_client_that_does_not_answer_does_not_hold_the_turn() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    client.on("session/request_permission", |_| None);
    let session = client.session();
    let mark = client.mark();
    let prompt = client.begin(&session, "run touch made");
    let question = client.wait(mark, "a question", |message| message["method"] == "session/request_permission");
    client.cancel(&session);
    assert_eq!(client.ended(&prompt), "cancelled");
    let taken_back = client.wait(mark, "it is taken back", |message| message["method"] == "$/cancel_request");
    assert_eq!(taken_back["params"]["requestId"], question["id"]);
    client.reply(&question["id"], selected("allow_once"));
    assert_eq!(client.prompt(&session, "list .").0, "end_turn");
    assert!(!sandbox.path("project/made").exists());
}

/// 24, 25, 38: a running command is stopped, and its process is gone.
#[test]
pub(crate) fn a_running_command_is_stopped() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    client.on_permission("allow_once");
    let session = client.session();
    let mark = client.mark();
    let prompt = client.begin(&session, "run sleep 63");
    client.wait_update(mark, &session, "tool_call_update");
    client.until("it runs", |client| !client.running("sleep 63").is_empty());
    client.cancel(&session);
    assert_eq!(client.ended(&prompt), "cancelled");
    let updates = client.updates(mark, &session);
    forward(&updates);
    client.until("it is gone", |client| client.running("sleep 63").is_empty());
    client.settle();
    assert_eq!(client.updates(mark, &session), updates, "nothing is said after the turn");
    assert_eq!(client.prompt(&session, "list .").0, "end_turn");
}

/// 24, 27: a model that speaks is cut off; what it had said is remembered.
#[test]
pub(crate) fn a_speaking_model_is_cut_off() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| match asked(request).contains("speak") {
        true => Answer::Hangs("I was about to"),
        false => Answer::Says(vec!["well".to_owned()]),
    });
    let mut client = with_model(&sandbox, &model);
    let session = client.session();
    let mark = client.mark();
    let prompt = client.begin(&session, "speak");
    let chunk = client.wait_update(mark, &session, "agent_message_chunk");
    assert_eq!(chunk["content"]["text"], "I was about to");
    client.cancel(&session);
    assert_eq!(client.ended(&prompt), "cancelled");
    assert_eq!(client.prompt(&session, "go on").0, "end_turn");
    let shown = model.requests()[1]["messages"].to_string();
    assert!(shown.contains("speak") && shown.contains("I was about to"), "{shown}");
}

/// A cancel right behind its prompt is not lost.
#[test]
pub(crate) fn a_cancel_right_behind_its_prompt_is_not_lost() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Hangs("…"));
    let mut client = with_model(&sandbox, &model);
    let session = client.session();
    for _ in 0..10 {
        let prompt = client.begin(&session, "hello");
        client.cancel(&session);
        assert_eq!(client.ended(&prompt), "cancelled");
    }
    // One for a session that does nothing is not kept for later.
    client.cancel(&session);
    let mark = client.mark();
    let prompt = client.begin(&session, "hello");
    client.wait_update(mark, &session, "agent_message_chunk");
    client.cancel(&session);
    assert_eq!(client.ended(&prompt), "cancelled");
}

/// 28: a request can be cancelled by its id; it is answered once.
#[test]
pub(crate) fn a_prompt_can_be_cancelled_by_its_id() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Hangs("…"));
    let mut client = with_model(&sandbox, &model);
    let session = client.session();
    let mark = client.mark();
    let prompt = client.begin(&session, "hello");
    client.wait_update(mark, &session, "agent_message_chunk");
    client.notify("$/cancel_request", json!({"requestId": 4711}));
    client.notify("$/cancel_request", json!({"requestId": prompt}));
    assert_eq!(client.ended(&prompt), "cancelled");
    client.settle();
}

/// A second prompt in a session that is busy is refused, and the first goes on.
#[test]
pub(crate) fn a_busy_session_takes_no_second_prompt() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    client.on("session/request_permission", |_| None);
    let session = client.session();
    let mark = client.mark();
    let first = client.begin(&session, "run echo the first");
    let question = client.wait(mark, "a question", |message| message["method"] == "session/request_permission");
    let second = client.begin(&session, "list .");
    assert_eq!(client.answer(&second)["error"]["code"], -32600);
    client.reply(&question["id"], selected("allow_once"));
    assert_eq!(client.ended(&first), "end_turn");
    assert!(spoken(&client.updates(mark, &session)).contains("the first"));
}

/// 29: sessions speak beside each other; cancelling one leaves the other alone.
#[test]
pub(crate) fn sessions_do_not_wait_for_each_other() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| match asked(request).contains("hang") {
        true => Answer::Hangs("…"),
        false => Answer::Says(vec!["done".to_owned()]),
    });
    let mut client = with_model(&sandbox, &model);
    let (one, two) = (client.session(), client.session());
    let mark = client.mark();
    let (first, second) = (client.begin(&one, "hang"), client.begin(&two, "hang"));
    client.wait_update(mark, &one, "agent_message_chunk");
    client.wait_update(mark, &two, "agent_message_chunk");
    client.cancel(&one);
    assert_eq!(client.ended(&first), "cancelled");
    assert_eq!(client.prompt(&one, "go on").0, "end_turn");
    assert!(client.heard().iter().all(|message| message["id"] != second), "the other one still runs");
    client.cancel(&two);
    assert_eq!(client.ended(&second), "cancelled");
}

/// 29: a hundred sessions at once all end, and none waits for another to end.
#[test]
pub(crate) fn a_hundred_sessions_interleave() {
    const COUNT: usize = 100;
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "the letter a\n");
    let mut client = Acp::start(&sandbox);
    // Every one of them is asked before any is answered.
    client.on("session/request_permission", |_| None);
    let cwd = client.cwd();
    let asked: Vec<_> = (0..COUNT).map(|_| client.send("session/new", json!({"cwd": cwd, "mcpServers": []}))).collect();
    let sessions: Vec<_> = asked.iter().map(|id| client.result(id)["sessionId"].as_str().unwrap().to_owned()).collect();
    let mark = client.mark();
    let prompts: Vec<_> = sessions.iter().map(|session| client.begin(session, "run cat a.txt")).collect();
    let mut questions = Vec::new();
    for session in &sessions {
        let of_this = |message: &Value| {
            message["method"] == "session/request_permission" && message["params"]["sessionId"] == json!(session)
        };
        questions.push(client.wait(mark, "a question", of_this)["id"].clone());
    }
    for question in &questions {
        client.reply(question, selected("allow_once"));
    }
    for (prompt, session) in prompts.iter().zip(&sessions) {
        assert_eq!(client.ended(prompt), "end_turn");
        let updates = client.updates(mark, session);
        assert!(spoken(&updates).contains("the letter a"), "{updates:#?}");
        forward(&updates);
    }
}

/// A provider that fails is an error, not the end of a turn, and the session goes on.
#[test]
pub(crate) fn a_failure_of_the_model_is_an_error() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| match asked(request).contains("hello") {
        true => Answer::Says(vec!["fine".to_owned()]),
        false => Answer::Status(401),
    });
    let mut client = with_model(&sandbox, &model);
    let session = client.session();
    let mark = client.mark();
    let prompt = client.begin(&session, "fail");
    let error = client.answer(&prompt)["error"].clone();
    assert_eq!(error["code"], -32603);
    assert!(error["message"].as_str().unwrap().contains("401"), "{error}");
    assert_eq!(spoken(&client.updates(mark, &session)), "", "the error is not said as if by the model");
    assert_eq!(client.prompt(&session, "hello").0, "end_turn");
    // A model that cannot even be reached is one, too.
    let mut command = sandbox.command(&["acp"]);
    command.env("SKEIN_MODEL", "openai:gpt");
    let mut keyless = Acp::launch(&sandbox, command);
    keyless.introduce(&json!({}));
    let session = keyless.session();
    let prompt = keyless.begin(&session, "hello");
    let error = keyless.answer(&prompt)["error"].clone();
    assert!(error["message"].as_str().unwrap().contains("OPENAI_API_KEY"), "{error}");
}

/// 38: a model that repeats the ids of its calls does not make two calls one.
#[test]
pub(crate) fn calls_have_ids_of_their_own_whatever_the_model_says() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| match has_result(request) {
        false => Answer::Calls { id: "call_1", tool: "developer__list_dir", arguments: json!({"path": "."}) },
        true => Answer::Says(vec!["done".to_owned()]),
    });
    let mut client = with_model(&sandbox, &model);
    let session = client.session();
    let mark = client.mark();
    for _ in 0..3 {
        assert_eq!(client.prompt(&session, "look").0, "end_turn");
    }
    let updates = client.updates(mark, &session);
    forward(&updates);
    assert_eq!(of_kind(&updates, "tool_call").len(), 3);
}

/// The first prompt names the session, in an update and in the list.
#[test]
pub(crate) fn the_first_prompt_names_the_session() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let session = client.session();
    let (_, updates) = client.prompt(&session, "What is in this folder?\nTell me.");
    assert_eq!(of_kind(&updates, "session_info_update")[0]["title"], "What is in this folder?");
    let (_, updates) = client.prompt(&session, "And now?");
    assert_eq!(of_kind(&updates, "session_info_update"), Vec::<Value>::new());
    let listed = client.ask("session/list", json!({}));
    assert_eq!(listed["sessions"][0]["title"], "What is in this folder?");
}

/// 37: a plan is told whole each time.
#[test]
pub(crate) fn a_plan_is_told_whole() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    client.on_permission("allow_once");
    let session = client.session();
    for (prompt, steps) in
        [("plan look; leap", vec!["look", "leap"]), ("plan look; think; leap", vec!["look", "think", "leap"])]
    {
        let (_, updates) = client.prompt(&session, prompt);
        let plan = of_kind(&updates, "plan").pop().unwrap_or_else(|| panic!("{updates:#?}"));
        let entries = plan["entries"].as_array().unwrap();
        let texts: Vec<_> = entries.iter().map(|entry| entry["content"].as_str().unwrap()).collect();
        assert_eq!(texts, steps);
        assert!(entries.iter().all(|entry| entry["status"] == "pending"));
    }
}

/// An edit is shown as a diff with both texts.
#[test]
pub(crate) fn an_edit_is_shown_as_a_diff() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "one\ntwo\n");
    let mut client = Acp::start(&sandbox);
    client.on_permission("allow_once");
    let session = client.session();
    let diff_of = |updates: &[Value]| {
        let end = of_kind(updates, "tool_call_update").pop().expect("a call");
        assert_eq!(end["status"], "completed", "{end}");
        end["content"].as_array().unwrap().iter().find(|content| content["type"] == "diff").cloned()
    };
    client.prompt(&session, "read a.txt");
    let edit = r#"/developer.edit_file {"path": "a.txt", "edits": [{"before": "two", "after": "three"}]}"#;
    let (_, updates) = client.prompt(&session, edit);
    let path = sandbox.path("project/a.txt").to_string_lossy().into_owned();
    let expected = json!({"type": "diff", "path": path, "oldText": "one\ntwo\n", "newText": "one\nthree\n"});
    assert_eq!(diff_of(&updates), Some(expected));
    assert_eq!(of_kind(&updates, "tool_call")[0]["kind"], "edit");
    let write = r#"/developer.write_file {"path": "new.txt", "content": "new\n"}"#;
    let (_, updates) = client.prompt(&session, write);
    let diff = diff_of(&updates).unwrap();
    assert!(diff.get("oldText").is_none_or(Value::is_null), "a new file: {diff}");
    assert_eq!(diff["newText"], "new\n");
}

/// 23, 52: five thousand deltas of two sessions at once: nothing is lost, nothing changes its place, and the end of
/// each turn comes last.
#[test]
pub(crate) fn a_fast_stream_keeps_its_order() {
    let sandbox = Sandbox::new();
    let pieces: Vec<_> = (0..5_000).map(|number| format!("{number} ")).collect();
    let (whole, of_model) = (pieces.concat(), pieces.clone());
    let model = ScriptedModel::new(move |_| Answer::Says(of_model.clone()));
    let mut client = with_model(&sandbox, &model);
    let sessions = [client.session(), client.session()];
    let mark = client.mark();
    let prompts = sessions.each_ref().map(|session| client.begin(session, "count"));
    for (session, prompt) in sessions.iter().zip(&prompts) {
        assert_eq!(client.ended(prompt), "end_turn");
        let updates = client.updates(mark, session);
        assert_eq!(spoken(&updates), whole);
        let ids: BTreeSet<_> =
            of_kind(&updates, "agent_message_chunk").iter().map(|chunk| chunk["messageId"].to_string()).collect();
        assert_eq!(ids.len(), 1, "one message, one id");
        for usage in of_kind(&updates, "usage_update") {
            assert!(usage["used"].is_u64() && usage["size"].is_u64(), "{usage}");
        }
        let end = client.heard().iter().position(|message| message["id"] == *prompt && message.get("method").is_none());
        let of_session = |message: &Value| message["params"]["sessionId"] == json!(session);
        assert!(!client.heard()[end.unwrap()..].iter().any(of_session), "nothing is said after the turn");
    }
    // What was stored is what was said.
    let mark = client.mark();
    let params = json!({"sessionId": sessions[0], "cwd": client.cwd(), "mcpServers": []});
    client.ask("session/load", params);
    let replayed = client.updates(mark, &sessions[0]);
    assert_eq!((spoken(&replayed), said(&replayed, "user_message_chunk")), (whole, "count".to_owned()));
}

#[test]
fn each_answer_to_a_command_has_its_own_message_id() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let session = client.session();
    let ids = [(); 2].map(|()| {
        let (_, updates) = client.prompt(&session, "/tools");
        of_kind(&updates, "agent_message_chunk")[0]["messageId"].to_string()
    });
    assert_ne!(ids[0], ids[1]);
}

/// 52: how full the window is, and what the session has cost, where both are known.
#[test]
pub(crate) fn usage_is_told_with_its_cost() {
    let sandbox = Sandbox::new();
    let facts = "version: 1\nmodels:\n  openai:scripted: {window: 100000, input: 10.0, output: 20.0}\n";
    sandbox.write("config/config.yaml", facts);
    let model = ScriptedModel::new(|_| Answer::Says(vec!["fine".to_owned()]));
    let mut client = with_model(&sandbox, &model);
    let session = client.session();
    let usage = |updates: &[Value]| of_kind(updates, "usage_update").pop().unwrap_or_else(|| panic!("{updates:#?}"));
    let (_, updates) = client.prompt(&session, "hello");
    let first = usage(&updates);
    assert_eq!((&first["used"], &first["size"]), (&json!(107), &json!(100_000)));
    // 100 tokens in at 10 a million, 7 out at 20.
    let cost = |usage: &Value| usage["cost"]["amount"].as_f64().expect("an amount");
    assert!((cost(&first) - 0.001_14).abs() < 1e-9, "{first}");
    assert_eq!(first["cost"]["currency"], "USD");
    let (_, updates) = client.prompt(&session, "hello");
    assert!((cost(&usage(&updates)) - 0.002_28).abs() < 1e-9, "it is that of the whole session: {updates:#?}");
}

/// The protocol requires the size of the window. Where it is unknown, a common size is told.
#[test]
pub(crate) fn usage_is_told_without_a_known_window() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Says(vec!["fine".to_owned()]));
    let mut client = with_model(&sandbox, &model);
    let session = client.session();
    let (_, updates) = client.prompt(&session, "hello");
    let usage = of_kind(&updates, "usage_update").pop().unwrap_or_else(|| panic!("{updates:#?}"));
    assert_eq!((&usage["used"], &usage["size"], usage.get("cost")), (&json!(107), &json!(128_000), None));
}

/// A model without a key is an error that clients show with their set-up, and it names the command.
#[test]
pub(crate) fn a_missing_key_is_an_authentication_error() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["acp", "--model", "offline"]);
    command.env_remove("ANTHROPIC_API_KEY");
    let mut client = Acp::launch(&sandbox, command);
    let greeting = client.introduce(&json!({"auth": {"terminal": true}, "_meta": {"terminal-auth": true}}));
    let setup = greeting["authMethods"].as_array().unwrap().iter().find(|method| method["id"] == "setup").unwrap();
    let run = &setup["_meta"]["terminal-auth"];
    assert!(run["command"].as_str().unwrap().ends_with("skein") && run["args"] == json!(["configure"]), "{setup}");
    // A client that does not announce it gets the method of the protocol alone.
    let plain = Acp::launch(&sandbox, sandbox.command(&["acp"])).introduce(&json!({"auth": {"terminal": true}}));
    let setup = plain["authMethods"].as_array().unwrap().iter().find(|method| method["id"] == "setup").unwrap();
    assert_eq!((&setup["type"], setup.get("_meta")), (&json!("terminal"), None), "{setup}");
    sandbox.write("config/config.yaml", "version: 1\nmodels:\n  anthropic:claude-sonnet-4-5: {}\n");
    let session = client.session();
    let params = json!({"sessionId": session, "configId": "model", "value": "anthropic:claude-sonnet-4-5"});
    let error = client.refused("session/set_config_option", params);
    assert_eq!(error["code"], -32000, "{error}");
    assert!(error["message"].as_str().unwrap().contains("skein configure"), "{error}");
}

/// A search names the files that match, and has the kind that clients have an icon for.
#[test]
pub(crate) fn a_search_lists_the_matching_files() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "one\ntwo greet\n");
    sandbox.write("project/b.txt", "greet\n");
    let mut client = Acp::start(&sandbox);
    let session = client.session();
    let (_, updates) = client.prompt(&session, "search greet");
    let call = of_kind(&updates, "tool_call").pop().unwrap();
    assert_eq!((&call["kind"], &call["title"]), (&json!("search"), &json!("greet")));
    let end = of_kind(&updates, "tool_call_update").pop().unwrap();
    let mut places: Vec<_> = end["locations"].as_array().unwrap().iter().map(ToString::to_string).collect();
    places.sort();
    let place = |file: &str, line: u32| json!({"path": format!("{}/{file}", client.cwd()), "line": line}).to_string();
    assert_eq!(places, [place("a.txt", 2), place("b.txt", 1)]);
}

/// 52: a talk that was shortened is told to clients that understand it; the model is shown the summary.
#[test]
pub(crate) fn a_shortened_talk_is_told_to_who_understands_it() {
    let sandbox = Sandbox::new();
    for capabilities in [json!({}), json!({"session": {"compaction": {}}})] {
        let model = ScriptedModel::new(|_| Answer::Says(vec!["word ".repeat(3_000)]));
        let mut client = Acp::launch(&sandbox, model.offered_to(sandbox.command(&["acp", "-a", "goose"])));
        client.introduce(&capabilities);
        let session = client.session();
        for _ in 0..8 {
            client.prompt(&session, "tell me a long story");
        }
        let (reason, updates) = client.prompt(&session, "/compact");
        assert_eq!(reason, "end_turn");
        assert!(spoken(&updates).contains("in short from now on"), "{updates:#?}");
        let told = of_kind(&updates, "compaction_update");
        let expected = usize::from(capabilities["session"].is_object());
        assert_eq!(told.len().min(1), expected, "{told:#?}");
        assert!(told.last().is_none_or(|last| last["status"] == "completed"), "{told:#?}");
        assert_eq!(client.prompt(&session, "and then?").0, "end_turn");
    }
}

/// A client that reads late gets fewer chunks and the same words, and the first of them came at once.
#[test]
pub(crate) fn a_client_that_reads_late_gets_the_same_words() {
    let sandbox = Sandbox::new();
    let pieces: Vec<_> = (0..20_000).map(|number| format!("{number} ")).collect();
    let (whole, of_model) = (pieces.concat(), pieces.clone());
    let model = ScriptedModel::new(move |_| Answer::Says(of_model.clone()));
    let mut client = with_model(&sandbox, &model);
    let session = client.session();
    let (ears, mark) = (client.ears(), client.mark());
    let deaf = ears.lock().unwrap();
    let prompt = client.begin(&session, "count");
    client.until("the model has said it all", |_| model.answered() == 1);
    drop(deaf);
    assert_eq!(client.ended(&prompt), "end_turn");
    let updates = client.updates(mark, &session);
    assert_eq!(spoken(&updates), whole);
    let chunks = of_kind(&updates, "agent_message_chunk");
    assert!(chunks.len() < pieces.len() / 2, "{} chunks", chunks.len());
    assert!(chunks[0]["content"]["text"].as_str().unwrap().len() < 1_000, "{}", chunks[0]);
    assert!(chunks.iter().all(|chunk| chunk["content"]["text"].as_str().unwrap().len() < 32 << 10));
}

/// 39: what is kept for the project is kept in the user's config, and counts in the next session.
#[test]
pub(crate) fn always_in_this_project_is_kept_in_the_users_config() {
    let sandbox = Sandbox::new();
    sandbox.write("config/config.yaml", "# mine\nversion: 1\n");
    let mut client = Acp::able(&sandbox, &[], &json!({"_meta": {"skein/option-names": true}}));
    let questions: Rc<RefCell<usize>> = Rc::default();
    let asked = Rc::clone(&questions);
    client.on("session/request_permission", move |params| {
        *asked.borrow_mut() += 1;
        let names: Vec<_> = params["options"].as_array().unwrap().iter().map(|option| &option["name"]).collect();
        assert_eq!(
            names.last().unwrap().as_str().unwrap(),
            "Allow `touch made` in this project from now on (saves a rule)"
        );
        Some(selected("allow_in_project"))
    });
    for _ in 0..2 {
        let session = client.session();
        client.prompt(&session, "run touch made");
    }
    assert_eq!(*questions.borrow(), 1, "the second session knows the rule");
    let config = std::fs::read_to_string(sandbox.path("config/config.yaml")).unwrap();
    assert!(config.starts_with("# mine\nversion: 1\npermissions:\n  - {\"tool\":\"developer__shell\""), "{config}");
    assert!(!sandbox.path("project/.skein").exists());
}

/// A client that shows one button per kind cannot save a rule by accident. One that lists the options by name can.
#[test]
pub(crate) fn only_clients_that_list_options_are_offered_a_lasting_rule() {
    let sandbox = Sandbox::new();
    for (client_info, lasting) in [
        (json!({"name": "CodeCompanion.nvim", "version": "1.0.0"}), false),
        (json!({"name": "agent-shell", "version": "0.74.3"}), false),
        (json!({"name": "zed", "version": "1.9.0"}), true),
    ] {
        let mut client = Acp::launch(&sandbox, sandbox.command(&["acp"]));
        client.ask("initialize", json!({"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": client_info}));
        client.on_permission("allow_always");
        let session = client.session();
        let mark = client.mark();
        client.prompt(&session, "run touch made");
        let asked = client.wait(mark, "a question", |message| message["method"] == "session/request_permission");
        let ids: Vec<_> = asked["params"]["options"].as_array().unwrap().iter().map(|one| &one["optionId"]).collect();
        assert_eq!(ids.contains(&&json!("allow_in_project")), lasting, "{client_info}: {ids:?}");
        let always = asked["params"]["options"].as_array().unwrap().iter().find(|one| one["kind"] == "allow_always");
        assert_eq!(always.unwrap()["optionId"], "allow_always", "the first of its kind is for the session");
    }
    assert!(!sandbox.path("config/config.yaml").exists(), "no rule was saved");
}

/// CodeCompanion shows only the first diff of a question. The user must not consent to edits that it hides.
#[test]
pub(crate) fn an_edit_question_has_one_diff_of_the_whole_file() {
    let sandbox = Sandbox::new();
    let before = "import sys\n\nprint('Hello, ' + sys.argv[1])\n# the world\n";
    sandbox.write("project/src/app.py", before);
    let mut client = Acp::start(&sandbox);
    client.on_permission("allow_once");
    let session = client.session();
    let mark = client.mark();
    let edits = json!([{"before": "Hello, ", "after": "Hi, "}, {"before": "world", "after": "planet"}]);
    client.prompt(&session, &format!("/developer.edit_file {}", json!({"path": "src/app.py", "edits": edits})));
    let asked = client.wait(mark, "a question", |message| message["method"] == "session/request_permission");
    let path = format!("{}/src/app.py", client.cwd());
    let after = before.replace("Hello, ", "Hi, ").replace("world", "planet");
    let call = &asked["params"]["toolCall"];
    assert_eq!(call["content"], json!([{"type": "diff", "path": path, "oldText": before, "newText": after}]));
    assert_eq!(call["locations"], json!([{"path": path, "line": 3}]));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), after, "what was shown is what was written");
}

/// The names of options are for people: they name the action and the file, not the tool.
#[test]
pub(crate) fn options_name_the_action_and_the_file() {
    let sandbox = Sandbox::new();
    sandbox.write("project/src/app.py", "one\n");
    let mut client = Acp::start(&sandbox);
    client.on_permission("reject_once");
    let session = client.session();
    let mut name = |prompt: &str| {
        let mark = client.mark();
        client.prompt(&session, prompt);
        let asked = client.wait(mark, "a question", |message| message["method"] == "session/request_permission");
        asked["params"]["options"][1]["name"].as_str().unwrap().to_owned()
    };
    let edit = r#"/developer.edit_file {"path": "src/app.py", "edits": [{"before": "one", "after": "two"}]}"#;
    assert_eq!(name(edit), "Allow edits of src/app.py in this session");
    let write = r#"/developer.write_file {"path": "src/app.py", "content": "x", "overwrite": true}"#;
    assert_eq!(name(write), "Allow writing of src/app.py in this session");
}

/// 39: a rule that cannot be kept is told; the call runs all the same.
#[test]
pub(crate) fn a_rule_that_is_not_kept_is_told_in_the_turn() {
    for (capabilities, kind, text) in
        [(json!({}), "agent_thought_chunk", "/content/text"), (json!({"session": {"notices": {}}}), "notice", "/title")]
    {
        let mut capabilities = capabilities;
        capabilities["_meta"] = json!({"skein/option-names": true});
        let sandbox = Sandbox::new();
        // There is a config, but it is written in a way that nothing can be added to.
        sandbox.write("config/config.json", "{\"version\": 1}");
        let mut client = Acp::able(&sandbox, &[], &capabilities);
        client.on("session/request_permission", |_| Some(selected("allow_in_project")));
        let session = client.session();
        let (reason, updates) = client.prompt(&session, "run touch made");
        assert_eq!(reason, "end_turn");
        let told: String = of_kind(&updates, kind).iter().filter_map(|one| one.pointer(text)?.as_str()).collect();
        assert!(told.contains("not kept for this project") && told.contains("config.json"), "{kind}: {updates:?}");
        assert!(sandbox.path("project/made").exists());
    }
}
