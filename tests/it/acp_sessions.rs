//! Sessions of `skein acp`: new, load, resume, list, delete, close, fork, and the MCP servers a client brings. The
//! numbers in the comments are those of the assertions for a conformant agent.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use skein::agents::Event;
use skein::conversation::{Content, Message};

use crate::support::acp::{Acp, of_kind, said, selected, spoken};
use crate::support::http::{HttpServer, Reply, good_server};
use crate::support::{Sandbox, servers};

fn echo(name: &str, args: &[&str], env: &[(&str, &str)]) -> Value {
    let env: Vec<_> = env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    json!({"name": name, "command": servers::mcp_echo(), "args": args, "env": env})
}

/// 15, 16: a session has an id, and no other has it.
#[test]
pub(crate) fn every_session_has_an_id_of_its_own() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let ids: BTreeSet<_> = (0..5).map(|_| client.session()).collect();
    assert_eq!(ids.len(), 5);
    assert!(ids.iter().all(|id| !id.is_empty()));
}

/// The answer to `session/new` comes before any word about the session, which the client does not know yet.
#[test]
pub(crate) fn a_session_is_spoken_of_after_it_was_answered() {
    let sandbox = Sandbox::new();
    let mut client = Acp::able(&sandbox, &[], &json!({"session": {"notices": {}}}));
    for _ in 0..20 {
        let mark = client.mark();
        let server = json!([{"name": "gone", "command": "/no/such/program", "args": [], "env": []}]);
        let session = client.session_with(server);
        client.wait_update(mark, &session, "notice");
        let first = &client.heard()[mark];
        assert_eq!(first["result"]["sessionId"], json!(session), "{first}");
    }
}

/// 17: what is wrong in the request makes no session.
#[test]
pub(crate) fn a_request_that_is_wrong_makes_no_session() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let cwd = client.cwd();
    for params in [
        json!({"cwd": "project", "mcpServers": []}),
        json!({"cwd": format!("{cwd}/missing"), "mcpServers": []}),
        json!({"mcpServers": []}),
        json!({"cwd": cwd}),
        json!({"cwd": cwd, "mcpServers": [], "additionalDirectories": ["../elsewhere"]}),
        json!({"cwd": cwd, "mcpServers": [{"name": "x"}]}),
    ] {
        assert_eq!(client.refused("session/new", params.clone())["code"], -32602, "{params}");
    }
    sandbox.write("project/file", "");
    let file = client.refused("session/new", json!({"cwd": format!("{cwd}/file"), "mcpServers": []}));
    assert!(file["code"] == -32602 && file.to_string().contains("is no folder"), "{file}");
    assert_eq!(client.ask("session/list", json!({}))["sessions"], json!([]));
}

/// 18: the client's server runs with the arguments and variables it gave, in the session's folder.
#[test]
pub(crate) fn a_server_of_the_client_runs_as_it_was_given() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("elsewhere")).unwrap();
    let mut client = Acp::start(&sandbox);
    client.on_permission("allow_once");
    let cwd = sandbox.path("elsewhere").to_string_lossy().into_owned();
    let started = sandbox.path("started").to_string_lossy().into_owned();
    let server = echo("parrot", &["--log-start", &started], &[("SPOKEN", "yes it is")]);
    let params = json!({"cwd": cwd, "mcpServers": [server]});
    let session = client.ask("session/new", params)["sessionId"].as_str().unwrap().to_owned();
    let (_, updates) = client.prompt(&session, "/parrot.env {}");
    assert!(spoken(&updates).contains(r#""SPOKEN":"yes it is""#), "{updates:#?}");
    assert!(std::fs::read_to_string(&started).unwrap().contains("ready"));
    client.prompt(&session, r#"/parrot.append {"file": "here", "text": "x"}"#);
    assert!(sandbox.path("elsewhere/here").exists(), "its folder is the session's");
}

/// A server of the client is there for modes that ask for MCP servers, and for no other.
#[test]
pub(crate) fn a_server_of_the_client_is_bound_where_the_mode_asks_for_it() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let session = client.session_with(json!([echo("parrot", &[], &[])]));
    let (_, updates) = client.prompt(&session, "/tools");
    assert!(spoken(&updates).contains("`parrot__echo`"), "{}", spoken(&updates));
    client.set_mode(&session, "coding/security");
    let (_, updates) = client.prompt(&session, "/tools");
    assert!(spoken(&updates).contains("developer__read_file") && !spoken(&updates).contains("parrot"), "{updates:#?}");
    client.set_mode(&session, "coding/backend");
    let (_, updates) = client.prompt(&session, "/tools");
    assert!(spoken(&updates).contains("`parrot__echo`"), "{}", spoken(&updates));
}

/// A server that cannot start is told, and the session works.
#[test]
pub(crate) fn a_server_that_cannot_start_is_told_and_the_session_works() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "the letter a\n");
    let gone = json!([{"name": "gone", "command": "/no/such/program", "args": [], "env": []},
        {"type": "sse", "name": "old", "url": "http://127.0.0.1:9/sse", "headers": []}, echo("parrot", &[], &[])]);
    let mut plain = Acp::start(&sandbox);
    let session = plain.session_with(gone.clone());
    let (reason, updates) = plain.prompt(&session, "read a.txt");
    assert_eq!(reason, "end_turn");
    // Many clients fold thoughts away, so this is a message.
    let notices = spoken(&updates);
    assert!(notices.contains("> ") && notices.contains("gone") && notices.contains("old"), "{updates:#?}");
    assert!(spoken(&updates).contains("the letter a"));
    let (_, updates) = plain.prompt(&session, "/tools");
    assert!(spoken(&updates).contains("`parrot__echo`"));
    assert!(said(&updates, "agent_thought_chunk").is_empty(), "it is told once");
    let mut able = Acp::able(&sandbox, &[], &json!({"session": {"notices": {}}}));
    let mark = able.mark();
    let session = able.session_with(gone);
    let named = |name: &'static str| {
        move |message: &Value| {
            let update = &message["params"]["update"];
            update["sessionUpdate"] == "notice" && update["title"].as_str().is_some_and(|title| title.contains(name))
        }
    };
    able.wait(mark, "a notice of gone", named("gone"));
    able.wait(mark, "a notice of old", named("old"));
    assert_eq!(able.prompt(&session, "read a.txt").0, "end_turn");
}

/// A server behind HTTP is used with the headers it was given.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_behind_http_is_used() {
    let server = HttpServer::start(|request| {
        let id = request.body["id"].clone();
        let result = json!({"content": [{"type": "text", "text": "good day"}]});
        good_server(request, move || Reply::Json(json!({"jsonrpc": "2.0", "id": id, "result": result})))
    })
    .await;
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    client.on_permission("allow_once");
    let headers = json!([{"name": "X-Greeting", "value": "polite"}]);
    let session = client.session_with(json!([{"type": "http", "name": "host", "url": server.url, "headers": headers}]));
    let (_, updates) = client.prompt(&session, "/host.greet {}");
    assert!(spoken(&updates).contains("good day"), "{updates:#?}");
    let polite = |head: &str| head.to_lowercase().contains("x-greeting: polite");
    assert!(server.requests().iter().all(|request| polite(&request.head)));
}

/// A server that does not answer holds up neither other sessions nor a cancel of its own.
#[test]
pub(crate) fn a_server_that_is_slow_to_start_holds_up_nobody_else() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let params = json!({"cwd": client.cwd(), "mcpServers": [echo("mute", &["--silent"], &[])]});
    let slow = client.ask("session/new", params)["sessionId"].as_str().unwrap().to_owned();
    let waiting = client.begin(&slow, "hello");
    let other = client.session();
    assert_eq!(client.prompt(&other, "list .").0, "end_turn");
    client.cancel(&slow);
    assert_eq!(client.ended(&waiting), "cancelled");
    client.ask("session/close", json!({"sessionId": slow}));
    let (_, code) = client.finish();
    assert_eq!(code, 0);
    client.until("nothing is left", |client| client.processes().is_empty());
}

/// What a mode does without is told when it is entered, whenever that is.
#[test]
pub(crate) fn what_a_mode_does_without_is_told_when_it_is_entered() {
    let sandbox = Sandbox::new();
    let mut client =
        Acp::able(&sandbox, &["--agent", "coding", "--mode", "security"], &json!({"session": {"notices": {}}}));
    let gone = json!([{"name": "gone", "command": "/no/such/program", "args": [], "env": []}]);
    let session = client.session_with(gone);
    client.prompt(&session, "/tools");
    assert_eq!(of_kind(&client.updates(0, &session), "notice"), Vec::<Value>::new());
    let mark = client.mark();
    client.set_mode(&session, "goose/assistant");
    let notice = client.wait_update(mark, &session, "notice");
    assert!(notice["title"].as_str().unwrap().contains("gone"), "{notice}");
    client.set_mode(&session, "coding/security");
    client.set_mode(&session, "goose/assistant");
    client.prompt(&session, "/tools");
    assert_eq!(of_kind(&client.updates(mark, &session), "notice").len(), 1, "once is enough");
}

/// A server that came with a session belongs to it: what it asks and warns of is for nobody else.
#[test]
pub(crate) fn every_session_has_the_servers_it_came_with_for_itself() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    client.on_permission("allow_once");
    let sessions = [0, 1].map(|_| client.session_with(json!([echo("parrot", &[], &[])])));
    let mut pid_in = |session: &str| {
        let (_, updates) = client.prompt(session, "/parrot.pid {}");
        spoken(&updates).trim_matches(['`', '\n']).parse::<u32>().unwrap()
    };
    let (first, second) = (pid_in(&sessions[0]), pid_in(&sessions[1]));
    assert_ne!(first, second);
    assert_eq!(pid_in(&sessions[0]), first, "it stays the same while the session lasts");
}

/// The prompts of a bound server are commands; what stands behind one fills it in.
#[test]
pub(crate) fn a_prompt_of_a_server_is_a_command() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "the letter a\n");
    let mut client = Acp::start(&sandbox);
    let mark = client.mark();
    let session = client.session_with(json!([echo("parrot", &["--prompts"], &[])]));
    let told = client.wait_update(mark, &session, "available_commands_update");
    let commands = told["availableCommands"].as_array().unwrap();
    let command = commands.iter().find(|command| command["name"] == "parrot__show").unwrap_or_else(|| panic!("{told}"));
    assert_eq!(command["input"]["hint"], "file");
    let (reason, updates) = client.prompt(&session, "/parrot__show a.txt");
    assert_eq!((reason.as_str(), spoken(&updates).contains("the letter a")), ("end_turn", true), "{updates:#?}");
    let missing = client.begin(&session, "/parrot__show");
    assert_eq!(client.answer(&missing)["error"]["code"], -32602);
    // 37: each list is whole, and the mode that has no such server has no such command.
    let mark = client.mark();
    client.set_mode(&session, "coding/security");
    let told = client.wait_update(mark, &session, "available_commands_update");
    let names: Vec<_> = told["availableCommands"].as_array().unwrap().iter().map(|command| &command["name"]).collect();
    assert_eq!(names, [&json!("tools"), &json!("compact"), &json!("undo"), &json!("redo"), &json!("tutorial")]);
}

/// A turn with an edit, a command, a refusal and a plan, as it was shown.
fn eventful(client: &mut Acp, session: &str) -> Vec<Value> {
    let mark = client.mark();
    for prompt in [
        "hello there",
        r#"/developer.write_file {"path": "b.txt", "content": "one\n"}"#,
        r#"/developer.edit_file {"path": "b.txt", "edits": [{"before": "one", "after": "two"}]}"#,
        "run echo from the shell",
        "read nowhere.txt",
        "plan think; act",
    ] {
        assert_eq!(client.prompt(session, prompt).0, "end_turn");
    }
    client.updates(mark, session)
}

/// The last state of every tool call, as a client puts it together.
fn calls(updates: &[Value]) -> Vec<Value> {
    let mut calls: Vec<Value> = Vec::new();
    for update in updates {
        match update["sessionUpdate"].as_str() {
            Some("tool_call") => calls.push(update.clone()),
            Some("tool_call_update") => {
                let call = calls.iter_mut().find(|call| call["toolCallId"] == update["toolCallId"]).expect("a call");
                for (key, value) in update.as_object().expect("an object") {
                    call[key] = value.clone();
                }
            }
            _ => {}
        }
    }
    calls.iter_mut().for_each(|call| call["sessionUpdate"] = Value::Null);
    calls
}

/// 41: everything that happened is told again before the answer, in a new process, and the calls are the same.
#[test]
pub(crate) fn a_loaded_session_is_told_before_it_is_answered() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    client.on_permission("allow_once");
    let session = client.session();
    let lived = eventful(&mut client, &session);
    assert_eq!(client.finish().1, 0);
    let mut again = Acp::start(&sandbox);
    let mark = again.mark();
    let params = json!({"sessionId": session, "cwd": again.cwd(), "mcpServers": []});
    let answer = again.ask("session/load", params);
    assert!(answer["modes"].is_object() && answer["configOptions"].is_array(), "{answer}");
    let replayed = again.updates(mark, &session);
    assert_eq!(calls(&replayed), calls(&lived));
    assert!(calls(&lived).len() >= 5, "{lived:#?}");
    assert_eq!(spoken(&replayed), spoken(&lived));
    assert!(said(&replayed, "user_message_chunk").starts_with("hello there/developer.write_file"), "{replayed:#?}");
    assert_eq!(of_kind(&replayed, "plan"), of_kind(&lived, "plan"));
    let before = again.mark();
    again.wait_update(mark, &session, "available_commands_update");
    let later: Vec<_> = again.updates(before, &session);
    assert!(later.iter().all(|update| update["sessionUpdate"] == "available_commands_update"), "{later:#?}");
    // It goes on where it was.
    assert_eq!(again.prompt(&session, "read b.txt").0, "end_turn");
    let ids: Vec<_> = calls(&again.updates(mark, &session)).iter().map(|call| call["toolCallId"].to_string()).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");
}

/// What Skein told the model beside a prompt is not the user's, and is not told again as if it were.
#[test]
pub(crate) fn what_was_said_beside_a_prompt_is_not_replayed() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let session = client.session();
    client.prompt(&session, "first");
    client.finish();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = skein::store::SessionStore::open(&sandbox.path("data")).unwrap();
        let prompt = vec![Content::Injected("remember the zebra".to_owned()), Content::text("hello there")];
        let event = Event::Message { message: Message::user(prompt).into() };
        let body = serde_json::to_string(&event).unwrap();
        store.append(&session, skein::store::NewEvent { kind: "message".into(), body, text: None });
        store.flush(&session).await.unwrap();
    });
    let mut again = Acp::start(&sandbox);
    let mark = again.mark();
    again.ask("session/load", json!({"sessionId": session, "cwd": again.cwd(), "mcpServers": []}));
    assert_eq!(said(&again.updates(mark, &session), "user_message_chunk"), "firsthello there");
}

/// 42: a resumed session is not told again, needs no servers, and remembers.
#[test]
pub(crate) fn a_resumed_session_is_not_told_again() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "the letter a\n");
    let mut client = Acp::start(&sandbox);
    let session = client.session();
    client.set_mode(&session, "coding/pm");
    let (_, lived) = client.prompt(&session, "read a.txt");
    client.finish();
    let mut again = Acp::start(&sandbox);
    let mark = again.mark();
    let params = json!({"sessionId": session, "cwd": again.cwd()});
    let answer = again.ask("session/resume", params);
    assert_eq!(again.updates(mark, &session), Vec::<Value>::new());
    assert_eq!(answer["modes"]["currentModeId"], "coding/pm");
    let (_, more) = again.prompt(&session, "read a.txt");
    let ids = |updates: &[Value], key: &str| -> BTreeSet<String> {
        updates.iter().filter_map(|update| update[key].as_str().map(str::to_owned)).collect()
    };
    for key in ["toolCallId", "messageId"] {
        assert!(!ids(&lived, key).is_empty(), "{lived:#?}");
        assert!(ids(&lived, key).is_disjoint(&ids(&more, key)), "{key} is new: {more:#?}");
    }
}

/// 30: an unknown session has a code of its own, and the id is said.
#[test]
pub(crate) fn an_unknown_session_is_named() {
    let sandbox = Sandbox::new();
    let mut client = Acp::able(&sandbox, &["--unstable-fork"], &json!({}));
    let cwd = client.cwd();
    for (method, more) in [
        ("session/prompt", json!({"prompt": [{"type": "text", "text": "x"}]})),
        ("session/set_mode", json!({"modeId": "goose/assistant"})),
        ("session/set_config_option", json!({"configId": "mode", "value": "goose/assistant"})),
        ("session/close", json!({})),
        ("session/load", json!({"cwd": cwd, "mcpServers": []})),
        ("session/resume", json!({"cwd": cwd})),
        ("session/fork", json!({"cwd": cwd, "mcpServers": []})),
    ] {
        let mut params = more;
        params["sessionId"] = json!("nobody");
        let error = client.refused(method, params);
        assert_eq!((&error["code"], &error["data"]["sessionId"]), (&json!(-32002), &json!("nobody")), "{method}");
    }
}

/// 43: the list is paged, newest first, and can be narrowed to a folder.
#[test]
pub(crate) fn sessions_are_listed_page_by_page() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("other")).unwrap();
    let mut client = Acp::start(&sandbox);
    let asked: Vec<_> = (0..60)
        .map(|_| {
            let cwd = client.cwd();
            client.send("session/new", json!({"cwd": cwd, "mcpServers": []}))
        })
        .collect();
    let made: BTreeSet<_> =
        asked.iter().map(|id| client.result(id)["sessionId"].as_str().unwrap().to_owned()).collect();
    let other = sandbox.path("other").to_string_lossy().into_owned();
    let elsewhere = client.ask("session/new", json!({"cwd": other, "mcpServers": []}));
    let unused = client.session();
    for id in made.iter().map(String::as_str).chain(elsewhere["sessionId"].as_str()) {
        client.prompt(id, "hello");
    }
    let mut listed = Vec::new();
    let mut cursor = Value::Null;
    let mut pages = 0;
    loop {
        let params = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
        let page = client.ask("session/list", params);
        pages += 1;
        listed.extend(page["sessions"].as_array().unwrap().iter().cloned());
        cursor = page.get("nextCursor").cloned().unwrap_or_default();
        if cursor.is_null() {
            break;
        }
    }
    let ids: BTreeSet<_> = listed.iter().map(|info| info["sessionId"].as_str().unwrap().to_owned()).collect();
    assert_eq!((listed.len(), ids.len(), pages), (61, 61, 2));
    assert!(made.is_subset(&ids) && !ids.contains(&unused));
    let times: Vec<_> = listed.iter().map(|info| info["updatedAt"].as_str().unwrap().to_owned()).collect();
    assert!(times.is_sorted_by(|a, b| a >= b), "{times:?}");
    let narrowed = client.ask("session/list", json!({"cwd": other}));
    assert_eq!(narrowed["sessions"].as_array().unwrap().len(), 1);
    assert_eq!(client.ask("session/list", json!({"cwd": "/no/such/folder"}))["sessions"], json!([]));
    assert_eq!(client.refused("session/list", json!({"cursor": "made up"}))["code"], -32602);
}

/// A session without a prompt is not kept. Its settings are, once it has a prompt.
#[test]
pub(crate) fn a_session_is_stored_with_its_first_prompt() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let (unused, used) = (client.session(), client.session());
    client.set_mode(&unused, "coding/pm");
    client.set_mode(&used, "coding/qa");
    let params = |client: &Acp, id: &str| json!({"sessionId": id, "cwd": client.cwd(), "mcpServers": []});
    client.ask("session/load", params(&client, &unused));
    assert_eq!(client.ask("session/list", json!({}))["sessions"], json!([]));
    client.prompt(&used, "hello");
    client.finish();
    let mut client = Acp::start(&sandbox);
    let listed = client.ask("session/list", json!({}));
    let ids: Vec<_> = listed["sessions"].as_array().unwrap().iter().map(|info| &info["sessionId"]).collect();
    assert_eq!(ids, [&json!(used)]);
    assert_eq!(client.refused("session/load", params(&client, &unused))["code"], -32002);
    assert_eq!(client.ask("session/load", params(&client, &used))["modes"]["currentModeId"], "coding/qa");
}

/// Editors put files and tags around what the user writes. The title is what the user wrote.
#[test]
pub(crate) fn a_title_is_what_the_user_wrote() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let session = client.session();
    let mark = client.mark();
    let prompt = json!([
        {"type": "resource_link", "uri": "file:///home/user/proj/src/app.py", "name": "app.py"},
        {"type": "text", "text": "<system_context>Continuing from before</system_context>"},
        {"type": "text", "text": "src/app.py:1-3\n\nRename the greeting\n"},
    ]);
    client.ask("session/prompt", json!({"sessionId": session, "prompt": prompt}));
    assert_eq!(client.wait_update(mark, &session, "session_info_update")["title"], "Rename the greeting");
    let listed = client.ask("session/list", json!({}));
    assert_eq!(listed["sessions"][0]["title"], "Rename the greeting");
}

/// The user of an older Skein is told once what has changed; `doctor` repeats it.
#[test]
pub(crate) fn changes_of_a_new_version_are_told_once() {
    let sandbox = Sandbox::new();
    std::fs::create_dir_all(sandbox.path("data")).unwrap();
    drop(skein::store::SessionStore::open(&sandbox.path("data")).unwrap());
    let told = || {
        let mut client = Acp::able(&sandbox, &[], &json!({"session": {"notices": {}}}));
        let (first, second) = (client.session(), client.session());
        client.settle();
        [first, second].map(|session| {
            client.updates(0, &session).iter().any(|update| update["title"].to_string().contains("orchestrator/auto"))
        })
    };
    assert_eq!(told(), [true, false]);
    assert_eq!(told(), [false, false]);
    assert!(sandbox.skein(&["doctor"]).stdout.contains("allow_once"));
    let fresh = Sandbox::new();
    assert!(!fresh.skein(&["doctor"]).stdout.contains("allow_once"), "a new user is told nothing");
}

/// 44: what is deleted is gone, and deleting it again is no error.
#[test]
pub(crate) fn a_deleted_session_is_gone() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let (kept, deleted) = (client.session(), client.session());
    client.prompt(&kept, "hello");
    client.prompt(&deleted, "hello");
    for id in [&deleted, &deleted, &"nobody".to_owned()] {
        client.ask("session/delete", json!({"sessionId": id}));
    }
    let listed = client.ask("session/list", json!({}));
    let ids: Vec<_> = listed["sessions"].as_array().unwrap().iter().map(|info| &info["sessionId"]).collect();
    assert_eq!(ids, [&json!(kept)]);
    let params = json!({"sessionId": deleted, "cwd": client.cwd(), "mcpServers": []});
    assert_eq!(client.refused("session/load", params)["code"], -32002);
    let prompt = client.begin(&deleted, "hello");
    assert_eq!(client.answer(&prompt)["error"]["code"], -32002);
}

/// 45: closing ends the turn first; a closed session takes no prompts and can be resumed.
#[test]
pub(crate) fn a_session_is_closed_after_its_turn() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    client.on_permission("allow_once");
    let idle = client.session();
    assert_eq!(client.ask("session/close", json!({"sessionId": idle})), json!({}));
    for _ in 0..10 {
        let session = client.session();
        let mark = client.mark();
        let prompt = client.begin(&session, "run sleep 62");
        client.wait_update(mark, &session, "tool_call");
        let close = client.send("session/close", json!({"sessionId": session}));
        assert_eq!(client.result(&close), json!({}));
        let order: Vec<_> = client.heard()[mark..].iter().filter(|message| message.get("method").is_none()).collect();
        assert_eq!(order.iter().map(|message| &message["id"]).collect::<Vec<_>>(), [&prompt, &close]);
        assert_eq!(client.ended(&prompt), "cancelled");
        let late = client.begin(&session, "hello");
        assert_eq!(client.answer(&late)["error"]["code"], -32002);
        let params = json!({"sessionId": session, "cwd": client.cwd()});
        client.ask("session/resume", params);
        assert_eq!(client.prompt(&session, "hello").0, "end_turn");
    }
    client.until("no command runs", |client| client.running("sleep 62").is_empty());
}

/// Close and delete end the calls of the turn as a cancel does, also one that waits for consent.
#[test]
pub(crate) fn a_close_ends_the_calls_of_the_turn() {
    for (method, is_asked) in [("session/close", false), ("session/delete", false), ("session/close", true)] {
        let sandbox = Sandbox::new();
        let mut client = Acp::start(&sandbox);
        client.on("session/request_permission", move |_| (!is_asked).then(|| selected("allow_once")));
        let session = client.session();
        let mark = client.mark();
        let prompt = client.begin(&session, "run sleep 64");
        if is_asked {
            client.wait(mark, "a question", |message| message["method"] == "session/request_permission");
        } else {
            client.wait_update(mark, &session, "tool_call_update");
            client.until("it runs", |client| !client.running("sleep 64").is_empty());
        }
        client.ask(method, json!({"sessionId": session}));
        assert_eq!(client.ended(&prompt), "cancelled");
        let end = of_kind(&client.updates(mark, &session), "tool_call_update").pop().expect("an end");
        assert_eq!(end["status"], "failed", "{method} {is_asked}");
    }
}

/// A prompt that is cancelled while a service starts is stored like any other. A command is not.
#[test]
pub(crate) fn a_prompt_cancelled_before_its_turn_is_stored() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let params = json!({"cwd": client.cwd(), "mcpServers": [echo("mute", &["--silent"], &[])]});
    let [command, session] = ["/tools", "remember me"].map(|text| {
        let session = client.ask("session/new", params.clone())["sessionId"].as_str().unwrap().to_owned();
        let prompt = client.begin(&session, text);
        client.cancel(&session);
        assert_eq!(client.ended(&prompt), "cancelled");
        session
    });
    let listed = client.ask("session/list", json!({}));
    let shown: Vec<_> =
        listed["sessions"].as_array().unwrap().iter().map(|it| [&it["sessionId"], &it["title"]]).collect();
    assert_eq!(shown, [[&json!(session), &json!("remember me")]], "{command} is not stored");
    client.ask("session/close", json!({"sessionId": session}));
    let mark = client.mark();
    let load = json!({"sessionId": session, "cwd": client.cwd(), "mcpServers": []});
    let loaded = client.ask("session/load", load);
    assert_eq!(said(&client.updates(mark, &session), "user_message_chunk"), "remember me");
    assert!(loaded["_meta"].to_string().contains(r#""stopReason":"cancelled""#), "{loaded}");
}

/// A session that is closed while its services start is not spoken of again.
#[test]
pub(crate) fn a_session_closed_while_it_starts_is_silent() {
    let sandbox = Sandbox::new();
    let mut client = Acp::able(&sandbox, &[], &json!({"session": {"notices": {}}}));
    let mute = echo("mute", &["--silent"], &[]);
    let line = format!("{} --silent", mute["command"].as_str().unwrap());
    let params = json!({"cwd": client.cwd(), "mcpServers": [mute]});
    let session = client.ask("session/new", params)["sessionId"].as_str().unwrap().to_owned();
    client.until("the server runs", |client| !client.running(&line).is_empty());
    client.ask("session/close", json!({"sessionId": session}));
    let mark = client.mark();
    client.until("the server is gone", |client| client.running(&line).is_empty());
    client.settle();
    assert_eq!(client.updates(mark, &session), Vec::<Value>::new());
}

/// 46: folders beside the working directory can be reached, and nothing else can.
#[test]
pub(crate) fn additional_directories_can_be_reached() {
    let sandbox = Sandbox::new();
    sandbox.write("beside/b.txt", "the letter b\n");
    sandbox.write("hidden/c.txt", "the letter c\n");
    let mut client = Acp::start(&sandbox);
    client.on_permission("allow_once");
    let (cwd, beside) = (client.cwd(), sandbox.path("beside").to_string_lossy().into_owned());
    let params = json!({"cwd": cwd, "mcpServers": [], "additionalDirectories": [beside]});
    let session = client.ask("session/new", params)["sessionId"].as_str().unwrap().to_owned();
    let (_, updates) = client.prompt(&session, &format!("read {beside}/b.txt"));
    assert!(spoken(&updates).contains("the letter b"), "{updates:#?}");
    let (_, updates) = client.prompt(&session, &format!("read {}", sandbox.path("hidden/c.txt").display()));
    assert!(!spoken(&updates).contains("the letter c"), "{updates:#?}");
    let listed = client.ask("session/list", json!({}));
    assert_eq!(listed["sessions"][0]["additionalDirectories"], json!([beside]));
}

/// Behind a flag, a session can be forked: the fork remembers, and goes its own way.
#[test]
pub(crate) fn a_fork_goes_its_own_way() {
    let sandbox = Sandbox::new();
    let mut client = Acp::able(&sandbox, &["--unstable-fork"], &json!({}));
    client.on_permission("allow_once");
    let session = client.session();
    client.prompt(&session, "hello");
    let params = json!({"sessionId": session, "cwd": client.cwd(), "mcpServers": []});
    let fork = client.ask("session/fork", params)["sessionId"].as_str().unwrap().to_owned();
    assert_ne!(fork, session);
    client.prompt(&fork, "only in the fork");
    let mut told = |id: &str| {
        let mark = client.mark();
        let params = json!({"sessionId": id, "cwd": client.cwd(), "mcpServers": []});
        client.ask("session/load", params);
        said(&client.updates(mark, id), "user_message_chunk")
    };
    assert_eq!((told(&session), told(&fork)), ("hello".to_owned(), "helloonly in the fork".to_owned()));
    let info = client.ask("session/list", json!({}));
    assert_eq!(info["sessions"].as_array().unwrap().len(), 2);
}
