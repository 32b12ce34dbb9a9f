//! Everything an MCP service can say, as an editor hears it: content of every kind, progress, questions, logs, lists that
//! change, prompts and resources; and each of it only in the session it belongs to.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::support::acp::{Acp, of_kind, said, selected, spoken};
use crate::support::tmux::Terminal;
use crate::support::{Sandbox, full_tests, npm, read, servers, service, with};

/// The test server as an editor brings it: it belongs to one session.
fn talker(name: &str, args: &[&str]) -> Value {
    let args: Vec<_> = ["--talks"].iter().chain(args).collect();
    json!({"name": name, "command": servers::mcp_echo(), "args": args, "env": []})
}

/// The same installed by the user, for a mode that has them all: name, scope, arguments.
fn install(sandbox: &Sandbox, services: &[(&str, &str, &[&str])]) {
    for (name, scope, args) in services {
        let args: Vec<_> = ["--talks"].iter().chain(*args).collect();
        let command = json!({"command": servers::mcp_echo(), "args": args});
        let manifest = with(service(name, json!({"stdio": command})), json!({"scope": scope}));
        sandbox.write(&format!("config/services/{name}.yaml"), &manifest.to_string());
    }
    let names: Vec<_> = services.iter().map(|(name, ..)| json!(name)).collect();
    let talk = json!({"version": 1, "kind": "agent", "name": "talk", "description": "Talks.",
        "metadata": {"dependencies": names}, "modes": [{"slug": "all", "description": "All of it.",
        "prompt": "talk.md", "tool_groups": names, "dependencies": names}]});
    sandbox.write("config/agents/talk.yaml", &talk.to_string());
    sandbox.write("config/agents/talk.md", "You talk.\n");
}

/// A session in that mode.
fn talking(client: &mut Acp) -> String {
    let session = client.session();
    client.set_mode(&session, "talk/all");
    session
}

fn client(sandbox: &Sandbox, capabilities: &Value) -> Acp {
    let mut client = Acp::able(sandbox, &["--approval", "auto"], capabilities);
    client.on_permission("allow_once");
    client
}

/// What a user says who is asked, and what they were asked.
fn on_elicitation(client: &mut Acp, answer: Value) -> Rc<RefCell<Vec<Value>>> {
    let asked: Rc<RefCell<Vec<Value>>> = Rc::default();
    let heard = Rc::clone(&asked);
    client.on("elicitation/create", move |params| {
        heard.borrow_mut().push(params.clone());
        Some(json!({"result": answer}))
    });
    asked
}

fn able() -> Value {
    json!({"session": {"notices": {}}, "elicitation": {"form": {}, "url": {}}})
}

/// The text of an offline answer without its fence.
fn unfenced(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("```")).collect::<Vec<_>>().join("\n")
}

/// The last word about the one call of a turn.
fn ended(updates: &[Value]) -> Value {
    of_kind(updates, "tool_call_update").last().expect("the call ended").clone()
}

#[test]
fn content_of_every_kind_reaches_the_editor() {
    let sandbox = Sandbox::new();
    let mut client = client(&sandbox, &json!({}));
    let session = client.session_with(json!([talker("parrot", &[])]));
    let (_, updates) = client.prompt(&session, "/parrot.kinds {}");
    let end = ended(&updates);
    let blocks: Vec<_> = end["content"].as_array().unwrap().iter().map(|piece| piece["content"].clone()).collect();
    let for_user = json!({"audience": ["user"], "priority": 0.5});
    assert_eq!(
        json!(blocks),
        json!([
            {"type": "text", "text": "```\nwords\n```", "annotations": for_user},
            {"type": "image", "data": "aGk=", "mimeType": "image/png", "annotations": for_user},
            {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
            {"type": "resource_link", "uri": "echo://page", "name": "page", "annotations": for_user},
            {"type": "resource", "resource": {"uri": "echo://text", "text": "inside", "mimeType": "text/plain"}},
            {"type": "resource", "resource": {"uri": "echo://blob", "blob": "aGk="}, "annotations": for_user},
            {"type": "resource_link", "uri": "ui://echo/page", "name": "parrot__kinds", "mimeType": "text/html;profile=mcp-app"},
        ]),
    );
    assert_eq!(end["rawOutput"], json!({"answer": 42}));
}

#[test]
fn tool_hints_are_shown_and_never_relax_consent() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let asked: Rc<RefCell<Vec<Value>>> = Rc::default();
    let heard = Rc::clone(&asked);
    client.on("session/request_permission", move |params| {
        heard.borrow_mut().push(params["toolCall"].clone());
        Some(selected("allow_once"))
    });
    let session = client.session_with(json!([talker("parrot", &[])]));
    for (tool, kind, title) in [
        ("show_app", "fetch", "parrot: Show the page"),
        ("wipe", "edit", "parrot: Wipe it all"),
        ("peek", "read", "parrot: peek"),
    ] {
        let (_, updates) = client.prompt(&session, &format!("/parrot.{tool} {{}}"));
        let call = &of_kind(&updates, "tool_call")[0];
        assert_eq!((&call["kind"], &call["title"]), (&json!(kind), &json!(title)), "{call}");
        let question = asked.borrow_mut().pop().expect("it was asked about, whatever it says");
        assert_eq!(question["kind"], "other", "a question says only what the manifests say");
        assert_eq!(question["title"], title);
        assert!(of_kind(&updates, "tool_call_update").iter().any(|update| update["kind"] == kind), "{updates:#?}");
    }
    let (_, updates) = client.prompt(&session, "/parrot.show_app {}");
    let link = &of_kind(&updates, "tool_call")[0]["content"][0]["content"];
    assert_eq!((&link["type"], &link["uri"]), (&json!("resource_link"), &json!("ui://echo/page")));
}

#[test]
fn progress_is_told_in_lines_with_its_share() {
    let sandbox = Sandbox::new();
    let mut client = client(&sandbox, &json!({}));
    let session = client.session_with(json!([talker("parrot", &[])]));
    let (_, updates) = client.prompt(&session, "/parrot.steps {}");
    let live: Vec<_> = of_kind(&updates, "tool_call_update")
        .iter()
        .filter_map(|update| update["content"][0]["content"]["text"].as_str().map(str::to_owned))
        .collect();
    // rmcp hands notifications on side by side, so their order is not ours to promise.
    let lines = ["25 % · step 1\n", "50 % · step 2\n", "no end in sight\n"];
    assert!(live.iter().any(|text| lines.iter().all(|line| text.contains(line))), "{live:#?}");
}

#[test]
fn files_that_an_answer_names_are_places_and_changes_are_diffs() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "b\n");
    let mut client = client(&sandbox, &json!({}));
    let session = client.session_with(json!([talker("parrot", &[])]));
    let path = sandbox.path("project/a.txt").to_string_lossy().into_owned();
    let (_, updates) = client.prompt(&session, &format!("/parrot.touched {{\"path\": \"{path}\"}}"));
    let end = ended(&updates);
    assert_eq!(end["locations"], json!([{"path": path, "line": 3}]));
    assert_eq!(end["content"][0], json!({"type": "diff", "path": path, "oldText": "a\n", "newText": "b\n"}));
    assert_eq!(end["content"][1]["content"]["text"], "```\nchanged\n```");
    let (_, updates) = client.prompt(&session, r#"/parrot.touched {"path": "/etc/passwd"}"#);
    let end = ended(&updates);
    assert!(end["locations"].is_null() && end["content"][0]["type"] == "content", "nothing outside: {end}");
}

#[test]
fn a_form_of_a_service_of_either_era_is_filled_in_by_the_editor() {
    for args in [&[][..], &["--newer"]] {
        let sandbox = Sandbox::new();
        let mut client = client(&sandbox, &able());
        let content = json!({"name": "ann", "age": 7, "smuggled": "x"});
        let asked = on_elicitation(&mut client, json!({"action": "accept", "content": content}));
        let session = client.session_with(json!([talker("parrot", args)]));
        let (_, updates) = client.prompt(&session, r#"/parrot.ask {"what": "form"}"#);
        let question = asked.borrow_mut().pop().expect("a question");
        assert_eq!((&question["mode"], &question["sessionId"]), (&json!("form"), &json!(session)));
        assert_eq!(question["toolCallId"], of_kind(&updates, "tool_call")[0]["toolCallId"]);
        assert_eq!(question["message"], "parrot asks: Who are you?");
        assert_eq!(question["requestedSchema"]["properties"]["age"]["minimum"], 0);
        let answer = spoken(&updates);
        assert!(answer.contains(r#""action":"accept""#) && answer.contains(r#""name":"ann""#), "{answer}");
        assert!(answer.contains(r#""age":7"#) && !answer.contains("smuggled"), "{answer}");
        if !args.is_empty() {
            assert!(answer.contains(r#""state":"s 1""#), "the state came back as it was: {answer}");
        }
    }
}

/// A server of both eras, as today's SDKs make them. Its tools ask with a request, which only the older era has.
#[test]
fn a_server_of_both_eras_asks_in_the_one_its_tools_know() {
    let sandbox = Sandbox::new();
    let log = sandbox.path("messages").display().to_string();
    let args = ["--discover", "both", "--log-messages", &log];
    let mut client = client(&sandbox, &able());
    let asked = on_elicitation(&mut client, json!({"action": "accept", "content": {"sure": true}}));
    for _ in 0..2 {
        let session = client.session_with(json!([talker("parrot", &args)]));
        let (_, updates) = client.prompt(&session, r#"/parrot.ask {"what": "yes"}"#);
        assert_eq!(asked.borrow_mut().pop().expect("a question")["sessionId"], json!(session));
        assert!(spoken(&updates).contains(r#""content":{"sure":true}"#), "{}", spoken(&updates));
    }
    let messages = read(&log);
    let methods: Vec<_> = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect();
    let is_of = |name: &str, message: &&Value| message["method"] == name;
    let first = methods.iter().position(|message| is_of("initialize", &message)).expect("a handshake");
    let discovered = methods.iter().rposition(|message| is_of("server/discover", &message)).expect("the question");
    assert!(discovered < first, "the second session knows the answer: {messages}");
    assert_eq!(methods.iter().filter(|message| is_of("initialize", message)).count(), 2, "{messages}");
}

/// The other kind of server of both eras. The call that failed is not repeated without the user.
#[test]
fn tools_that_need_the_newer_era_get_it_with_the_next_call() {
    let sandbox = Sandbox::new();
    let mut client = client(&sandbox, &able());
    let asked = on_elicitation(&mut client, json!({"action": "accept", "content": {"sure": true}}));
    let session = client.session_with(json!([talker("parrot", &["--discover", "both-newer"])]));
    let call = r#"/parrot.ask {"what": "yes"}"#;
    let (_, updates) = client.prompt(&session, call);
    assert!(
        spoken(&updates).contains("2026-07-28 or newer") && spoken(&updates).contains("repeat the call"),
        "{updates:#?}"
    );
    assert!(asked.borrow().is_empty());
    let (_, updates) = client.prompt(&session, call);
    assert_eq!(asked.borrow().len(), 1);
    assert!(spoken(&updates).contains(r#""sure":true"#), "{}", spoken(&updates));
}

/// On a shared connection a request of the server belongs to nobody, so the newer era is used there.
#[test]
fn a_shared_server_of_both_eras_is_spoken_to_in_the_newer() {
    let sandbox = Sandbox::new();
    install(&sandbox, &[("common", "shared", &["--discover", "both"])]);
    let mut client = client(&sandbox, &able());
    let session = talking(&mut client);
    let (_, updates) = client.prompt(&session, "/common.client {}");
    let told: Value = serde_json::from_str(&unfenced(&spoken(&updates))).expect("JSON");
    assert_eq!((&told["greeted"], &told["told"]["elicitation"]), (&Value::Null, &json!({"form": {}, "url": {}})));
}

#[test]
fn declining_and_closing_a_question_are_told_apart() {
    for args in [&[][..], &["--newer"]] {
        for action in ["decline", "cancel"] {
            let sandbox = Sandbox::new();
            let mut client = client(&sandbox, &able());
            on_elicitation(&mut client, json!({"action": action}));
            let session = client.session_with(json!([talker("parrot", args)]));
            let (reason, updates) = client.prompt(&session, r#"/parrot.ask {"what": "yes"}"#);
            assert_eq!(reason, "end_turn");
            assert!(spoken(&updates).contains(&format!(r#""action":"{action}""#)), "{}", spoken(&updates));
        }
    }
}

#[test]
fn a_page_is_opened_by_the_editor_and_told_to_be_done() {
    for args in [&[][..], &["--newer"]] {
        let sandbox = Sandbox::new();
        let mut client = client(&sandbox, &able());
        let asked = on_elicitation(&mut client, json!({"action": "accept"}));
        let session = client.session_with(json!([talker("parrot", args)]));
        let mark = client.mark();
        let (_, updates) = client.prompt(&session, r#"/parrot.ask {"what": "page"}"#);
        let question = asked.borrow_mut().pop().expect("a question");
        assert_eq!((&question["mode"], &question["url"]), (&json!("url"), &json!("https://example.org/login")));
        assert_eq!(question["message"], "parrot asks you to open a page of example.org: Log in there");
        assert!(spoken(&updates).contains(r#""action":"accept""#), "{}", spoken(&updates));
        let done = client.wait(mark, "the page is done", |message| message["method"] == "elicitation/complete");
        assert_eq!(done["params"]["elicitationId"], question["elicitationId"]);
    }
}

#[test]
fn editor_without_forms_gets_permission_requests_with_options() {
    let sandbox = Sandbox::new();
    let mut client = client(&sandbox, &json!({"session": {"notices": {}}}));
    let asked: Rc<RefCell<Vec<Value>>> = Rc::default();
    let heard = Rc::clone(&asked);
    client.on("session/request_permission", move |params| {
        heard.borrow_mut().push(params.clone());
        Some(selected("answer-0"))
    });
    let session = client.session_with(json!([talker("parrot", &[])]));
    for (what, options, expected) in [
        ("choice", json!(["red", "green", "Decline"]), r#""content":{"colour":"red"}"#),
        ("yes", json!(["Sure: yes", "Sure: no", "Decline"]), r#""content":{"sure":true}"#),
        ("nothing", json!(["Accept", "Decline"]), r#""content":{}"#),
        ("page", json!(["I have done it", "Decline"]), r#""action":"accept""#),
    ] {
        let (_, updates) = client.prompt(&session, &format!("/parrot.ask {{\"what\": \"{what}\"}}"));
        let question = asked.borrow_mut().pop().expect("a question");
        let names: Vec<_> = question["options"].as_array().unwrap().iter().map(|option| &option["name"]).collect();
        assert_eq!(json!(names), options);
        let shown = question["toolCall"]["content"][0]["content"]["text"].as_str().unwrap();
        assert!(shown.starts_with("parrot asks"), "{shown}");
        assert!(spoken(&updates).contains(expected), "{}", spoken(&updates));
        let id = &question["toolCall"]["toolCallId"];
        let own = of_kind(&updates, "tool_call_update").into_iter().find(|update| update["toolCallId"] == *id);
        assert_eq!(own.expect("the question ends on the screen")["status"], "completed");
    }
    let (_, updates) = client.prompt(&session, r#"/parrot.ask {"what": "form"}"#);
    assert!(asked.borrow().is_empty() && spoken(&updates).contains(r#""action":"decline""#), "{updates:#?}");
    let notice = of_kind(&updates, "notice")[0]["title"].as_str().unwrap_or_default().to_owned();
    assert!(notice.contains("A question of parrot was declined") && notice.contains("Who are you?"), "{updates:#?}");
}

#[test]
fn nobody_is_asked_for_secrets_or_sent_to_unsafe_pages() {
    for args in [&[][..], &["--newer"]] {
        let sandbox = Sandbox::new();
        let mut client = client(&sandbox, &able());
        let asked = on_elicitation(&mut client, json!({"action": "accept"}));
        let session = client.session_with(json!([talker("parrot", args)]));
        for what in ["secret", "unsafe_page"] {
            let (_, updates) = client.prompt(&session, &format!("/parrot.ask {{\"what\": \"{what}\"}}"));
            assert!(asked.borrow().is_empty(), "{what}");
            assert!(spoken(&updates).contains(r#""action":"decline""#), "{}", spoken(&updates));
            assert_eq!(of_kind(&updates, "notice").len(), 1, "{updates:#?}");
        }
    }
}

#[test]
fn shared_server_of_the_old_protocol_gets_no_elicitation() {
    let sandbox = Sandbox::new();
    install(&sandbox, &[("common", "shared", &[]), ("private", "session", &[]), ("newer", "shared", &["--newer"])]);
    let mut client = client(&sandbox, &able());
    on_elicitation(&mut client, json!({"action": "accept", "content": {"sure": true}}));
    let session = talking(&mut client);
    let mut told = |name: &str| {
        let (_, updates) = client.prompt(&session, &format!("/{name}.client {{}}"));
        serde_json::from_str::<Value>(&unfenced(&spoken(&updates))).unwrap_or_else(|_| panic!("{updates:#?}"))
    };
    assert_eq!(told("common")["greeted"], json!({}));
    assert_eq!(told("private")["greeted"], json!({"roots": {}, "elicitation": {"form": {}, "url": {}}}));
    assert_eq!(told("newer")["told"], json!({"elicitation": {"form": {}, "url": {}}}));
    // One that asks all the same hears that nobody answers.
    let (_, updates) = client.prompt(&session, r#"/common.ask {"what": "yes"}"#);
    assert!(spoken(&updates).contains(r#""action":"cancel""#), "{}", spoken(&updates));
    let (_, updates) = client.prompt(&session, r#"/newer.ask {"what": "yes"}"#);
    assert!(spoken(&updates).contains(r#""sure":true"#), "{}", spoken(&updates));
}

#[test]
fn questions_of_two_sessions_at_once_do_not_cross() {
    let sandbox = Sandbox::new();
    install(&sandbox, &[("newer", "shared", &["--newer"]), ("private", "session", &[])]);
    let mut client = client(&sandbox, &able());
    // Left open, to be answered when both have asked.
    client.on("elicitation/create", |_| None);
    let sessions = [talking(&mut client), talking(&mut client)];
    for service in ["newer", "private"] {
        let mark = client.mark();
        let text = format!("/{service}.ask {{\"what\": \"form\"}}");
        let prompts: Vec<_> = sessions.iter().map(|session| client.begin(session, &text)).collect();
        let questions: Vec<_> = sessions
            .iter()
            .map(|session| {
                client.wait(mark, "a question", |message| {
                    message["method"] == "elicitation/create" && message["params"]["sessionId"] == json!(session)
                })
            })
            .collect();
        for (question, name) in questions.iter().zip(["ann", "bob"]).rev() {
            let content = json!({"name": name, "age": 1});
            client.reply(&question["id"], json!({"result": {"action": "accept", "content": content}}));
        }
        for ((prompt, session), (own, other)) in prompts.iter().zip(&sessions).zip([("ann", "bob"), ("bob", "ann")]) {
            client.ended(prompt);
            let answer = spoken(&client.updates(mark, session));
            assert!(answer.contains(own) && !answer.contains(other), "{service}: {answer}");
        }
    }
}

#[test]
fn a_cancelled_turn_takes_its_question_back() {
    for args in [&[][..], &["--newer"]] {
        let sandbox = Sandbox::new();
        let mut client = client(&sandbox, &able());
        client.on("elicitation/create", |_| None);
        let session = client.session_with(json!([talker("parrot", args)]));
        let mark = client.mark();
        let prompt = client.begin(&session, r#"/parrot.ask {"what": "form"}"#);
        let question = client.wait(mark, "a question", |message| message["method"] == "elicitation/create");
        client.cancel(&session);
        assert_eq!(client.ended(&prompt), "cancelled");
        let back = client.wait(mark, "it is taken back", |message| message["method"] == "$/cancel_request");
        assert_eq!(back["params"]["requestId"], question["id"]);
    }
}

#[test]
fn a_server_that_asks_for_ever_or_for_a_model_is_refused() {
    let sandbox = Sandbox::new();
    let mut client = client(&sandbox, &able());
    let asked = on_elicitation(&mut client, json!({"action": "accept", "content": {}}));
    let session = client.session_with(json!([talker("parrot", &["--newer"]), talker("old", &[])]));
    let (_, updates) = client.prompt(&session, r#"/parrot.ask {"what": "for_ever"}"#);
    assert!(spoken(&updates).contains("asked for input 10 times"), "{}", spoken(&updates));
    assert_eq!(asked.borrow().len(), 10);
    for call in [r#"/parrot.ask {"what": "sampling"}"#, "/old.sample {}"] {
        let (_, updates) = client.prompt(&session, call);
        assert!(spoken(&updates).contains("skein answers no sampling requests"), "{}", spoken(&updates));
    }
    let (_, updates) = client.prompt(&session, "/old.roots {}");
    let roots: Value = serde_json::from_str(&unfenced(&spoken(&updates))).unwrap();
    assert_eq!(roots["roots"], json!([{"uri": format!("file://{}/", client.cwd())}]));
}

#[test]
fn nobody_at_the_other_end_is_a_question_without_an_answer() {
    let sandbox = Sandbox::new();
    install(&sandbox, &[("newer", "shared", &["--newer"]), ("private", "session", &[])]);
    for service in ["private", "newer"] {
        let prompt = format!("/{service}.ask {{\"what\": \"yes\"}}");
        let run = sandbox.skein(&["run", "-a", "talk", "-m", "all", "--approval", "auto", &prompt]);
        assert!(run.stdout.contains(r#""action":"cancel""#), "{}", run.whole());
    }
}

#[test]
fn service_warnings_become_notices_in_its_session() {
    let sandbox = Sandbox::new();
    install(&sandbox, &[("private", "session", &[]), ("common", "shared", &[])]);
    let mut client = client(&sandbox, &able());
    let (one, other) = (talking(&mut client), talking(&mut client));
    let mark = client.mark();
    let (_, updates) = client.prompt(&one, r#"/private.warn {"text": "it is \u001b[31mhot"}"#);
    let notice = &of_kind(&updates, "notice")[0];
    assert_eq!((&notice["severity"], &notice["title"]), (&json!("warning"), &json!("private: it is [31mhot")));
    // What is no warning, and what a server says that several sessions share, is only logged.
    let (_, updates) = client.prompt(&one, r#"/private.whisper {"text": "quiet as a mouse"}"#);
    assert_eq!(of_kind(&updates, "notice").len(), 0);
    let (_, updates) = client.prompt(&one, r#"/common.warn {"text": "for whom"}"#);
    assert_eq!(of_kind(&updates, "notice").len(), 0);
    assert_eq!(of_kind(&client.updates(mark, &other), "notice").len(), 0);
    client.finish();
    let log = json!(sandbox.log()).to_string();
    assert!(log.contains("quiet as a mouse") && log.contains("for whom"), "all of it is in the log");
}

#[test]
fn tools_and_commands_follow_a_service_that_changes_its_lists() {
    for args in [&["--prompts"][..], &["--prompts", "--resources", "--newer"]] {
        let sandbox = Sandbox::new();
        let mut client = client(&sandbox, &json!({}));
        let session = client.session_with(json!([talker("parrot", args)]));
        let (_, updates) = client.prompt(&session, "/parrot.pid {}");
        let pid = spoken(&updates);
        let (_, updates) = client.prompt(&session, "/parrot.grown {}");
        assert!(spoken(&updates).contains("There is no tool"), "{}", spoken(&updates));
        let mark = client.mark();
        client.prompt(&session, "/parrot.grow {}");
        // Without a prompt, as soon as the service says so.
        let update = client.wait_update(mark, &session, "available_commands_update");
        assert!(update.to_string().contains("parrot__grown"), "{update}");
        let (_, updates) = client.prompt(&session, r#"/parrot.grown {"a": "b"}"#);
        assert!(!spoken(&updates).contains("There is no tool"), "{}", spoken(&updates));
        let (_, updates) = client.prompt(&session, "/parrot.pid {}");
        assert_eq!(spoken(&updates), pid, "nothing was restarted for it");
        let mark = client.mark();
        client.prompt(&session, "/parrot.shrink {}");
        client.wait_update(mark, &session, "available_commands_update");
        let (_, updates) = client.prompt(&session, "/tools");
        assert!(!spoken(&updates).contains("parrot__grown"), "{}", spoken(&updates));
    }
}

#[test]
fn changed_tool_is_not_called_in_a_session_with_the_old_spec() {
    let sandbox = Sandbox::new();
    let mut client = client(&sandbox, &json!({}));
    let session = client.session_with(json!([talker("parrot", &[])]));
    let call = r#"/parrot.turncoat {"text": "a"}"#;
    let (_, updates) = client.prompt(&session, call);
    assert!(spoken(&updates).contains("shown"), "{}", spoken(&updates));
    client.prompt(&session, "/parrot.grow {}");
    for _ in 0..2 {
        // The new tool is there, in a binding of its own, and the old one is what it was.
        let tools = tools_with(&mut client, &session, "parrot__grown");
        assert!(tools.contains("Keeps what it is told."), "{tools}");
        let (_, updates) = client.prompt(&session, call);
        assert!(spoken(&updates).contains("has changed what `turncoat` says about itself"), "{}", spoken(&updates));
        // Another mode is no way around it.
        client.set_mode(&session, "coding/backend");
    }
    let other = client.session_with(json!([talker("parrot", &[])]));
    let (_, updates) = client.prompt(&other, call);
    assert!(spoken(&updates).contains("shown"), "{}", spoken(&updates));
}

/// What `/tools` says when this tool is among them: that a list has changed is told when the server gets round to it.
fn tools_with(client: &mut Acp, session: &str, tool: &str) -> String {
    for _ in 0..200 {
        let (_, updates) = client.prompt(session, "/tools");
        if spoken(&updates).contains(tool) {
            return spoken(&updates);
        }
    }
    panic!("{tool} does not come");
}

#[test]
fn resources_become_links_and_prompt_resources_are_attached() {
    let sandbox = Sandbox::new();
    let mut client = client(&sandbox, &json!({}));
    let session = client.session_with(json!([talker("parrot", &["--resources"])]));
    let (_, updates) = client.prompt(&session, "/resources");
    let links = of_kind(&updates, "agent_message_chunk");
    let link = links.iter().map(|chunk| &chunk["content"]).find(|content| content["uri"] == "echo://page").unwrap();
    assert_eq!((&link["type"], &link["name"]), (&json!("resource_link"), &json!("parrot: page")));
    for uri in ["echo://page", "echo://pages/7"] {
        let prompt =
            json!([{"type": "text", "text": "what is this?"}, {"type": "resource_link", "uri": uri, "name": "x"}]);
        let id = client.send("session/prompt", json!({"sessionId": session, "prompt": prompt}));
        client.ended(&id);
    }
    // What is nobody's resource stays a link.
    let prompt = json!([{"type": "resource_link", "uri": "file:///a/b", "name": "x"}]);
    let id = client.send("session/prompt", json!({"sessionId": session, "prompt": prompt}));
    client.ended(&id);
    client.ask("session/close", json!({"sessionId": session}));
    let mark = client.mark();
    client.ask("session/load", json!({"sessionId": session, "cwd": client.cwd(), "mcpServers": []}));
    let replayed = json!(of_kind(&client.updates(mark, &session), "user_message_chunk")).to_string();
    for text in [r#"the text of \"echo://page\""#, r#"the text of \"echo://pages/7\""#] {
        assert!(replayed.contains(&json!(text.replace("\\\"", "\"")).to_string()), "{replayed}");
    }
    assert!(replayed.contains(r#""type":"resource_link","#) || replayed.contains("file:///a/b"), "{replayed}");
    assert!(said(&client.updates(mark, &session), "user_message_chunk").contains("what is this?"));
}

/// `skein chat`: a field after the other, each held to what it may be.
#[test]
fn at_a_terminal_a_form_is_filled_in_line_by_line() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    install(&sandbox, &[("private", "session", &[])]);
    let args = ["chat", "-a", "talk", "-m", "all", "--approval", "auto"];
    let terminal = Terminal::start(&sandbox, None, (100, 40), &args);
    terminal.shows("›");
    terminal.enter(r#" /private.ask {"what": "form"}"#);
    terminal.shows("private asks:");
    terminal.shows("y answer · n decline");
    terminal.press(&["y"]);
    terminal.shows("name (text, or nothing) ›");
    terminal.type_in("ann lee");
    terminal.press(&["Enter"]);
    terminal.shows("age (a whole number, or nothing) ›");
    terminal.type_in("seven");
    terminal.press(&["Enter"]);
    terminal.shows("write a whole number");
    terminal.shows_times("age (a whole number, or nothing) ›", 2);
    terminal.type_in("7");
    terminal.press(&["Enter"]);
    terminal.shows(r#""name":"ann lee""#);
    terminal.shows(r#""age":7"#);
    terminal.enter(r#" /private.ask {"what": "page"}"#);
    terminal.shows("a page of example.org");
    terminal.shows("y I have done it · n decline");
    terminal.press(&["n"]);
    terminal.shows(r#""action":"decline""#);
}

/// The reference server, as npm has it.
fn everything() -> Value {
    let program = npm("@modelcontextprotocol/server-everything/dist/index.js");
    json!({"name": "everything", "command": "node", "args": [program, "stdio"], "env": []})
}

#[test]
fn the_reference_server_is_heard_in_all_it_says() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let mut client = client(&sandbox, &able());
    let asked = on_elicitation(&mut client, json!({"action": "accept", "content": {"name": "ann", "check": true}}));
    let session = client.session_with(json!([everything()]));
    // It offers its questions when it knows that they will be answered, after its first list.
    loop {
        let (_, updates) = client.prompt(&session, "/tools");
        if spoken(&updates).contains("everything__trigger-url-elicitation") {
            break;
        }
    }
    let mut ended_with = |call: &str| {
        let (_, updates) = client.prompt(&session, call);
        (ended(&updates), updates)
    };
    let (end, updates) =
        ended_with(r#"/everything.get-annotated-message {"messageType": "error", "includeImage": true}"#);
    assert_eq!(
        end["content"][0]["content"]["annotations"],
        json!({"audience": ["user", "assistant"], "priority": 1.0})
    );
    assert_eq!(end["content"][1]["content"]["type"], "image");
    assert!(of_kind(&updates, "tool_call")[0]["title"].as_str().unwrap().starts_with("everything: "), "{updates:#?}");
    let (end, _) = ended_with(r#"/everything.get-resource-links {"count": 2}"#);
    let links = end["content"].as_array().unwrap().iter().filter(|piece| piece["content"]["type"] == "resource_link");
    assert_eq!(links.count(), 2, "{end}");
    let (end, _) = ended_with(r#"/everything.get-resource-reference {"resourceType": "Text", "resourceId": 1}"#);
    assert!(end["content"].as_array().unwrap().iter().any(|piece| piece["content"]["type"] == "resource"), "{end}");
    let (end, _) = ended_with(r#"/everything.get-structured-content {"location": "Chicago"}"#);
    assert!(end["rawOutput"]["temperature"].is_number(), "{end}");
    let (_, updates) = ended_with(r#"/everything.trigger-long-running-operation {"duration": 0.2, "steps": 2}"#);
    assert!(json!(updates).to_string().contains("50 %"), "{updates:#?}");
    let (end, _) = ended_with("/everything.get-roots-list {}");
    assert!(end["rawOutput"].to_string().contains("project"), "{end}");
    let (end, _) = ended_with("/everything.trigger-elicitation-request {}");
    assert_eq!(asked.borrow_mut().pop().expect("a form")["mode"], "form");
    assert!(end["rawOutput"].to_string().contains("ann"), "{end}");
    for path in [false, true] {
        let call = json!({"url": "https://example.org/x", "errorPath": path, "elicitationId": format!("e-{path}")});
        let (end, _) = ended_with(&format!("/everything.trigger-url-elicitation {call}"));
        assert_eq!(asked.borrow_mut().pop().expect("a page")["url"], "https://example.org/x");
        assert_eq!(end["status"], "completed", "{end}");
    }
}
