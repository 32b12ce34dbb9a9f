//! The life of an agent outside: start, cancel, death, restart, and the end of Skein itself.

use serde_json::{Value, json};

use crate::support::Sandbox;
use crate::support::acp::{Acp, of_kind, said, spoken};
use crate::support::model::{Answer, ScriptedModel};
use crate::support::outside::{manifest, mode};
use crate::support::peers::{Peer, echo};

fn echoing(sandbox: &Sandbox, peer: &Peer, more: Value) {
    let mut whole = manifest("echo", peer, &[mode("default", json!([]), json!([]))]);
    for (key, value) in more.as_object().into_iter().flatten() {
        whole["runtime"]["acp"][key] = value.clone();
    }
    sandbox.install(&whole);
}

fn in_echo(sandbox: &Sandbox) -> (Acp, String) {
    let mut client = Acp::start(sandbox);
    let session = client.session();
    client.set_mode(&session, "echo/default");
    (client, session)
}

/// Why a session could not be put into the agent's mode.
fn refusal(flags: &[&str], more: Value) -> String {
    let sandbox = Sandbox::new();
    echoing(&sandbox, &echo(flags), more);
    let mut client = Acp::start(&sandbox);
    let session = client.session();
    let error = client.refused("session/set_mode", json!({"sessionId": session, "modeId": "echo/default"}));
    let (_, updates) = client.prompt(&session, "hello");
    assert!(!updates.is_empty(), "the session goes on in its old mode");
    error["message"].as_str().unwrap().to_owned()
}

#[test]
fn what_does_not_start_is_told_with_the_reason() {
    let silent = refusal(&["--deaf"], json!({"timeouts": {"start": "300ms"}}));
    assert!(silent.contains("did not answer the handshake within"), "{silent}");
    let newer = refusal(&["--version", "7"], json!({}));
    assert!(newer.contains("it speaks version 7 of ACP, and skein speaks 1"), "{newer}");
    let closed = refusal(&["--auth"], json!({}));
    assert!(
        closed.contains("wants you to log in first") && closed.contains("Log in with a browser (Opens a page.)"),
        "{closed}"
    );
    let missing = refusal(&[], json!({"command": "no-such-agent", "args": []}));
    assert!(missing.contains("there is no program `no-such-agent` on the PATH; install"), "{missing}");
    let wrong = refusal(&["--nonsense"], json!({}));
    assert!(wrong.contains("unknown flag --nonsense"), "its last words: {wrong}");
}

#[test]
fn noise_and_early_words_do_no_harm() {
    let sandbox = Sandbox::new();
    echoing(&sandbox, &echo(&["--garbage", "--early", "--commands"]), json!({}));
    let (mut client, session) = in_echo(&sandbox);
    let (_, updates) = client.prompt(&session, "say all is well");
    assert_eq!(spoken(&updates), "all is well");
    let commands = client.heard().iter().any(|message| message.to_string().contains("shout"));
    assert!(commands, "what it told before its session was known to us is not lost");
}

#[test]
fn a_cancel_reaches_it_and_what_follows_is_not_told() {
    let sandbox = Sandbox::new();
    echoing(&sandbox, &echo(&[]), json!({}));
    let (mut client, session) = in_echo(&sandbox);
    let mark = client.mark();
    let prompt = client.begin(&session, "hang");
    client.wait_update(mark, &session, "agent_message_chunk");
    client.cancel(&session);
    assert_eq!(client.ended(&prompt), "cancelled");
    let (_, updates) = client.prompt(&session, "say and on");
    assert_eq!(spoken(&updates), "and on");
    // A question that stands is taken back.
    client.on("session/request_permission", |_| None);
    let mark = client.mark();
    let prompt = client.begin(&session, "permit Wait");
    client.wait(mark, "the question", |message| message["method"] == "session/request_permission");
    client.cancel(&session);
    assert_eq!(client.ended(&prompt), "cancelled");
}

/// One that goes on after it was told to stop is ended, and started again when it is needed.
#[test]
fn who_does_not_stop_is_stopped() {
    let sandbox = Sandbox::new();
    echoing(&sandbox, &echo(&[]), json!({}));
    let (mut client, session) = in_echo(&sandbox);
    let (_, updates) = client.prompt(&session, "pid");
    let pid = spoken(&updates);
    let mark = client.mark();
    let prompt = client.begin(&session, "ignore-cancel");
    client.wait_update(mark, &session, "agent_message_chunk");
    client.cancel(&session);
    assert_eq!(client.ended(&prompt), "cancelled");
    client.until("it is gone", |_| !std::path::Path::new(&format!("/proc/{pid}")).exists());
    let (_, updates) = client.prompt(&session, "say back");
    assert!(spoken(&updates).ends_with("back"), "{updates:#?}");
}

#[test]
fn its_death_is_told_and_the_next_prompt_starts_it_again() {
    let sandbox = Sandbox::new();
    let state = sandbox.path("home/echo");
    std::fs::create_dir_all(&state).unwrap();
    let env = vec![("SKEIN_ACP_ECHO_STATE".to_owned(), state.to_string_lossy().into_owned())];
    for (flags, remembers) in [(&["--load"][..], true), (&["--resume"], true), (&[], false)] {
        let sandbox = Sandbox::new();
        echoing(&sandbox, &Peer { env: env.clone(), ..echo(flags) }, json!({}));
        let (mut client, session) = in_echo(&sandbox);
        client.prompt(&session, "say something to remember");
        let id = client.begin(&session, "crash");
        let error = client.answer(&id)["error"].clone();
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("`echo` ended in the middle of the turn") && message.contains("exit status: 3"),
            "{message}"
        );
        assert!(message.contains("crashes as it was told"), "its last words: {message}");
        let (_, updates) = client.prompt(&session, "recall");
        if remembers {
            assert!(spoken(&updates).contains("say something to remember"), "{flags:?} {updates:#?}");
            assert!(of_kind(&updates, "user_message_chunk").is_empty(), "what it replays is known: {updates:#?}");
        } else {
            assert!(spoken(&updates).contains("The conversation of this session so far"), "{updates:#?}");
            let told = said(&updates, "agent_thought_chunk");
            assert!(told.contains("was restarted and lost this session"), "{updates:#?}");
        }
    }
}

#[test]
fn one_that_dies_again_and_again_is_left_alone_for_a_while() {
    let sandbox = Sandbox::new();
    echoing(&sandbox, &echo(&[]), json!({"restart": {"max": 1, "within": "60s"}}));
    let mut client = Acp::start(&sandbox);
    for _ in 0..2 {
        let session = client.session();
        client.set_mode(&session, "echo/default");
        let id = client.begin(&session, "crash");
        client.answer(&id);
    }
    let session = client.session();
    let error = client.refused("session/set_mode", json!({"sessionId": session, "modeId": "echo/default"}));
    assert!(error["message"].as_str().unwrap().contains("failed too often and is left alone for"), "{error}");
}

/// A call that it had begun and never ended is told as failed.
#[test]
fn what_it_left_open_is_told_to_have_failed() {
    let sandbox = Sandbox::new();
    echoing(&sandbox, &echo(&[]), json!({}));
    let (mut client, session) = in_echo(&sandbox);
    let open = r#"rawupdate {"sessionUpdate": "tool_call", "toolCallId": "left", "title": "Long work", "status": "in_progress"}"#;
    let (_, updates) = client.prompt(&session, open);
    let end = of_kind(&updates, "tool_call_update").pop().expect("an end");
    assert_eq!(end["toolCallId"], of_kind(&updates, "tool_call")[0]["toolCallId"]);
    assert_eq!(end["status"], "failed");
    assert!(end["toolCallId"].as_str().unwrap().ends_with("/left"), "{end}");
}

/// An agent `echo` that keeps its sessions from one opening to the next.
fn remembering(sandbox: &Sandbox) -> (Acp, String) {
    let state = sandbox.path("home/echo");
    std::fs::create_dir_all(&state).unwrap();
    let env = vec![("SKEIN_ACP_ECHO_STATE".to_owned(), state.to_string_lossy().into_owned())];
    echoing(sandbox, &Peer { env, ..echo(&["--resume"]) }, json!({}));
    in_echo(sandbox)
}

/// What it tells after its turn is stored, and a call that it began then is told as failed.
#[test]
fn what_it_tells_after_its_turn_is_kept_and_ended() {
    let sandbox = Sandbox::new();
    let (mut client, session) = remembering(&sandbox);
    let call = |id: &str| {
        let call = json!({"sessionUpdate": "tool_call", "toolCallId": id, "title": "Late", "status": "in_progress"});
        format!("late-update {call}")
    };
    let mark = client.mark();
    client.prompt(&session, &call("first"));
    client.wait_update(mark, &session, "tool_call");
    // The next turn ends it.
    let (_, updates) = client.prompt(&session, "say on");
    assert_eq!(of_kind(&updates, "tool_call_update").pop().expect("an end")["status"], "failed");
    let mark = client.mark();
    client.prompt(&session, &call("second"));
    client.wait_update(mark, &session, "tool_call");
    // And so does the end of the session.
    client.ask("session/close", json!({"sessionId": session}));
    assert_eq!(of_kind(&client.updates(mark, &session), "tool_call_update").pop().expect("an end")["status"], "failed");
    let (cwd, mark) = (client.cwd(), client.mark());
    let load = json!({"sessionId": session, "cwd": cwd, "mcpServers": []});
    client.ask("session/load", load.clone());
    assert_eq!(of_kind(&client.updates(mark, &session), "tool_call_update").len(), 2);
    let words = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "farewell"}});
    let mark = client.mark();
    client.prompt(&session, &format!("late-update {words}"));
    client.wait_update(mark, &session, "agent_message_chunk");
    client.ask("session/close", json!({"sessionId": session}));
    let mark = client.mark();
    client.ask("session/load", load);
    assert_eq!(spoken(&client.updates(mark, &session)), "onfarewell");
}

/// Another mode's model sees what it said after its turn, before the next prompt.
#[test]
fn a_model_sees_what_it_told_after_its_turn() {
    let sandbox = Sandbox::new();
    echoing(&sandbox, &echo(&[]), json!({}));
    let model = ScriptedModel::new(|_| Answer::Says(vec!["seen".to_owned()]));
    let mut client = Acp::launch(&sandbox, model.offered_to(sandbox.command(&["acp", "-a", "goose"])));
    client.introduce(&json!({}));
    let session = client.session();
    client.set_mode(&session, "echo/default");
    let words = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "farewell"}});
    let mark = client.mark();
    client.prompt(&session, &format!("late-update {words}"));
    client.wait_update(mark, &session, "agent_message_chunk");
    client.set_mode(&session, "goose/assistant");
    let (_, updates) = client.prompt(&session, "what did it say?");
    assert_eq!(spoken(&updates), "seen");
    let request = model.requests().last().expect("a request").clone();
    let at = |role: &str, text: &str| {
        let messages = request["messages"].as_array().expect("messages");
        messages.iter().position(|it| it["role"] == role && it["content"].to_string().contains(text))
    };
    let (late, prompt) = (at("assistant", "farewell"), at("user", "what did it say?"));
    assert!(late.is_some() && late < prompt, "{request:#}");
}

/// A close ends its calls as a cancel does.
#[test]
fn a_close_in_its_turn_ends_its_calls() {
    let sandbox = Sandbox::new();
    echoing(&sandbox, &echo(&[]), json!({}));
    let (mut client, session) = in_echo(&sandbox);
    client.on("session/request_permission", |_| None);
    let mark = client.mark();
    let prompt = client.begin(&session, "permit Wait");
    client.wait(mark, "the question", |message| message["method"] == "session/request_permission");
    client.ask("session/close", json!({"sessionId": session}));
    assert_eq!(client.ended(&prompt), "cancelled");
    let end = of_kind(&client.updates(mark, &session), "tool_call_update").pop().expect("an end");
    assert_eq!(end["status"], "failed");
}

#[test]
fn how_its_turn_failed_is_told_in_plain_words() {
    let sandbox = Sandbox::new();
    echoing(&sandbox, &echo(&[]), json!({}));
    let (mut client, session) = in_echo(&sandbox);
    for (answer, expected) in [
        (json!({"error": {"code": -32000, "message": "expired"}}), "wants you to log in first: expired; do that with"),
        (json!({"result": {"stopReason": "bored"}}), "with the stop reason `bored`, which ACP does not know"),
        (json!({"result": {}}), "ended the turn without a stop reason"),
    ] {
        let prompt = client.begin(&session, &format!("answer {answer}"));
        let error = client.answer(&prompt)["error"].clone();
        assert!(error["message"].as_str().unwrap().contains(expected), "{error}");
    }
}

#[test]
fn it_ends_with_skein_however_skein_ends() {
    for killed in [false, true] {
        let sandbox = Sandbox::new();
        echoing(&sandbox, &echo(&["--stay"]), json!({}));
        let (mut client, session) = in_echo(&sandbox);
        client.prompt(&session, "fork");
        client.until("its child runs", |client| !client.running("sleep 600").is_empty());
        if killed {
            client.kill();
        } else {
            client.finish();
        }
        client.until("nothing is left", |client| client.processes().is_empty());
    }
}

/// Sessions share the program; each has its own session there, and closing one ends it there.
#[test]
fn sessions_share_the_program_and_nothing_else() {
    let sandbox = Sandbox::new();
    echoing(&sandbox, &echo(&[]), json!({}));
    let (mut client, first) = in_echo(&sandbox);
    let second = client.session();
    client.set_mode(&second, "echo/default");
    let (_, one) = client.prompt(&first, "pid");
    let (_, two) = client.prompt(&second, "pid");
    assert_eq!(spoken(&one), spoken(&two));
    let (_, heard) = client.prompt(&second, "recall");
    assert_eq!(spoken(&heard), "pid", "what the other session said is not there");
    let hanging = client.begin(&first, "hang");
    client.ask("session/close", json!({"sessionId": first}));
    assert_eq!(client.ended(&hanging), "cancelled");
    let (_, heard) = client.prompt(&second, "say still here");
    assert_eq!(spoken(&heard), "still here");
}

/// How it is, for people.
#[test]
fn its_health_is_told() {
    let sandbox = Sandbox::new();
    echoing(&sandbox, &echo(&[]), json!({}));
    let (mut client, session) = in_echo(&sandbox);
    client.prompt(&session, "say hello");
    let shown = sandbox.skein(&["agents", "--json"]).json();
    let of = |shown: &Value| shown.as_array().unwrap().iter().find(|agent| agent["name"] == "echo").cloned().unwrap();
    assert_eq!(of(&shown)["running"][0]["health"], "healthy", "{shown}");
    let id = client.begin(&session, "crash");
    client.answer(&id);
    let shown = sandbox.skein(&["agents", "--json"]).json();
    assert_eq!(of(&shown)["running"][0]["health"], "dead", "{shown}");
    assert!(of(&shown)["running"][0]["last_error"].as_str().unwrap().contains("exit status: 3"), "{shown}");
}

/// A number of kilobytes that the kernel has about a process.
pub(crate) fn kilobytes(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn database_bytes(sandbox: &Sandbox) -> u64 {
    let files = crate::support::files_below(&sandbox.path("data"));
    files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|file| file.len()).sum()
}

/// Issue 16, point 17: a flood of an agent took as much memory and disk as the agent sent.
#[test]
fn a_flood_takes_a_bounded_amount_of_memory_and_disk() {
    // Kilobytes, of a debug build. The store has two turns of 16 MiB, their search index and its write-ahead log. Of
    // refused requests, it has only a part.
    const MEMORY: u64 = 300 << 10;
    const DISK: u64 = 176 << 20;
    let sandbox = Sandbox::new();
    echoing(&sandbox, &echo(&[]), json!({}));
    let (mut client, session) = in_echo(&sandbox);
    let skein = client.pid();
    let count = sandbox.path("count");
    let name = count.display().to_string();
    // Skein refuses the permission requests by itself.
    client.ask("session/set_config_option", json!({"sessionId": session, "configId": "approval", "value": "deny"}));
    for what in ["stderr", "text", "calls", "requests"] {
        let (reason, updates) = client.prompt(&session, &format!("flood 200 {what} {name}"));
        assert_eq!(reason, "end_turn");
        let heard = spoken(&updates).len() + said(&updates, "agent_thought_chunk").len();
        assert!(heard < 20 << 20, "{what}: {heard}");
        let dropped = |update: &&Value| update.to_string().contains("the rest of it is dropped");
        let notices = updates.iter().filter(dropped).count();
        assert_eq!(notices, usize::from(["text", "calls"].contains(&what)), "{what}");
        if what == "requests" {
            let sizes: Vec<_> = of_kind(&updates, "tool_call").iter().map(|call| call.to_string().len()).collect();
            assert!((1..=2048).contains(&sizes.len()), "{} refused calls are shown", sizes.len());
            assert!(sizes.iter().all(|size| *size < 24 << 10), "{sizes:?}");
        }
        let peak = kilobytes(skein, "VmHWM");
        assert!(peak < MEMORY, "{what}: {peak} kB");
    }
    assert!(database_bytes(&sandbox) < DISK, "{}", database_bytes(&sandbox));
    // A client that does not read stops the agent, not Skein.
    for what in ["text", "calls"] {
        std::fs::write(&count, "0").unwrap();
        let ears = client.ears();
        let deaf = ears.lock().unwrap();
        let id = client.begin(&session, &format!("flood 200 {what} {name}"));
        let sent = || std::fs::read_to_string(&count).unwrap().parse::<u64>().unwrap_or_default();
        let last = std::cell::Cell::new((0, std::time::Instant::now()));
        client.until("the agent waits", |_| {
            let (before, since) = last.get();
            if sent() != before || before == 0 {
                last.set((sent(), std::time::Instant::now()));
            }
            before > 0 && since.elapsed().as_millis() > 1_000
        });
        assert!(sent() < 32, "{what}: it has sent {} MiB", sent());
        client.cancel(&session);
        drop(deaf);
        assert_eq!(client.ended(&id), "cancelled", "{what}");
        let peak = kilobytes(skein, "VmHWM");
        assert!(peak < MEMORY, "{what}: {peak} kB");
    }
    let (_, updates) = client.prompt(&session, "say all is well");
    assert_eq!(spoken(&updates), "all is well");
}
