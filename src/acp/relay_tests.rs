//! The relay against a server that is played by the test: whatever is cut, the editor gets the same.

use std::collections::VecDeque;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{EditorRelay, RelayOutput, TerminalCall};

/// What the turn of the test does, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The number of the message, and its next text.
    Text(usize, &'static str),
    Call,
    Question,
    CallEnd,
}

const TURN: [Step; 7] = [
    Step::Text(0, "I write. "),
    Step::Call,
    Step::Question,
    Step::CallEnd,
    Step::Text(1, "one "),
    Step::Text(1, "two "),
    Step::Text(1, "three"),
];

/// A server with one session and one turn.
#[derive(Default)]
struct PlayedServer {
    connection: u64,
    is_attached: bool,
    /// The id of the prompt, if it came on this connection.
    prompt: Option<Value>,
    is_prompted: bool,
    done: usize,
    is_asked: bool,
    is_answered: bool,
    has_ended: bool,
    question: Option<Value>,
    next_question: u64,
    out: VecDeque<Value>,
}

impl PlayedServer {
    fn update(&self, update: &Value) -> Value {
        json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}})
    }

    fn chunk(&self, message: usize, text: &str) -> Value {
        let id = format!("m{}.{message}", self.connection);
        let content = json!({"type": "text", "text": text});
        self.update(&json!({"sessionUpdate": "agent_message_chunk", "messageId": id, "content": content}))
    }

    fn shown(&self, step: Step) -> Option<Value> {
        Some(match step {
            Step::Text(message, text) => self.chunk(message, text),
            Step::Call => self.update(&json!({"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "write"})),
            Step::CallEnd => {
                self.update(&json!({"sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "completed"}))
            }
            Step::Question => return None,
        })
    }

    fn ask(&mut self) {
        self.next_question += 1;
        let id = json!(format!("q{}", self.next_question));
        self.question = Some(id.clone());
        let params = json!({"sessionId": "s", "toolCall": {"toolCallId": "c1"}, "options": []});
        self.out
            .push_back(json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params}));
    }

    /// Goes on with the turn. Returns false if there is nothing to do.
    fn go_on(&mut self) -> bool {
        if !self.is_prompted || self.has_ended {
            return false;
        }
        let Some(step) = TURN.get(self.done).copied() else {
            self.has_ended = true;
            match self.prompt.take() {
                Some(id) => {
                    self.out.push_back(json!({"jsonrpc": "2.0", "id": id, "result": {"stopReason": "end_turn"}}))
                }
                None if self.is_attached => {
                    let params = json!({"sessionId": "s", "stopReason": "end_turn"});
                    self.out.push_back(json!({"jsonrpc": "2.0", "method": "_skein/turn_ended", "params": params}));
                    let info = json!({"sessionUpdate": "session_info_update", "updatedAt": "now"});
                    self.out.push_back(self.update(&info));
                }
                None => {}
            }
            return true;
        };
        if step == Step::Question && !self.is_answered {
            let is_new = !self.is_asked;
            self.is_asked = true;
            if is_new && self.is_attached {
                self.ask();
            }
            return is_new;
        }
        self.done += 1;
        if let Some(message) = self.shown(step).filter(|_| self.is_attached) {
            self.out.push_back(message);
        }
        true
    }

    fn load(&mut self, id: &Value) {
        self.is_attached = true;
        if self.is_prompted {
            let content = json!({"type": "text", "text": "write it"});
            let id = format!("m{}.user", self.connection);
            let user = json!({"sessionUpdate": "user_message_chunk", "messageId": id, "content": content});
            self.out.push_back(self.update(&user));
        }
        let mut texts: Vec<(usize, String)> = Vec::new();
        let mut replay = Vec::new();
        for step in &TURN[..self.done] {
            match step {
                Step::Text(message, text) => match texts.last_mut().filter(|(known, _)| known == message) {
                    Some((_, joined)) => {
                        joined.push_str(text);
                        replay.pop();
                        replay.push(self.chunk(*message, joined));
                    }
                    None => {
                        texts.push((*message, (*text).to_owned()));
                        replay.push(self.chunk(*message, text));
                    }
                },
                other => replay.extend(self.shown(*other)),
            }
        }
        self.out.extend(replay);
        let is_running = self.is_prompted && !self.has_ended;
        let mut turn = json!({"running": is_running});
        if self.has_ended {
            turn["stopReason"] = json!("end_turn");
        }
        self.out.push_back(json!({"jsonrpc": "2.0", "id": id, "result": {"_meta": {"_skein/turn": turn}}}));
        if self.is_asked && !self.is_answered {
            self.ask();
        }
    }

    fn receive(&mut self, line: &str) {
        let message: Value = serde_json::from_str(line).unwrap();
        let id = message["id"].clone();
        let mut answer = |result: Value| self.out.push_back(json!({"jsonrpc": "2.0", "id": id, "result": result}));
        match message["method"].as_str() {
            Some("initialize") => answer(json!({"protocolVersion": message["params"]["protocolVersion"]})),
            Some("session/new") => {
                answer(json!({"sessionId": "s"}));
                self.is_attached = true;
            }
            Some("session/list") => answer(json!({"sessions": []})),
            Some("session/load") => self.load(&id),
            Some("session/prompt") if self.is_prompted => {
                let error = json!({"code": -32600, "message": "still busy", "data": {"reason": "busy"}});
                self.out.push_back(json!({"jsonrpc": "2.0", "id": id, "error": error}));
            }
            Some("session/prompt") => {
                self.is_prompted = true;
                self.prompt = Some(id);
            }
            None if Some(&id) == self.question.as_ref() => self.is_answered = true,
            _ => {}
        }
    }

    fn cut(&mut self) {
        self.connection += 1;
        self.is_attached = false;
        self.prompt = None;
        self.question = None;
        self.out.clear();
    }
}

/// An editor that opens a session, prompts and allows everything. Keeps what it was shown.
#[derive(Default)]
struct PlayedEditor {
    log: Vec<String>,
    /// The id of the message that is shown last.
    message: Option<Value>,
}

impl PlayedEditor {
    fn receive(&mut self, line: &str) -> Option<Value> {
        let message: Value = serde_json::from_str(line).unwrap();
        let request = |id: u64, method: &str, params: Value| {
            Some(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
        };
        let update = &message["params"]["update"];
        match (message["method"].as_str(), message["id"].as_u64()) {
            (Some("session/update"), _) => {
                let (kind, text) = (update["sessionUpdate"].as_str().unwrap(), update["content"]["text"].as_str());
                match (text, self.log.last_mut()) {
                    // A message goes on under its id, also on another connection.
                    (Some(text), Some(last)) if self.message.as_ref() == Some(&update["messageId"]) => {
                        last.push_str(text)
                    }
                    (Some(text), _) => self.log.push(format!("{kind}: {text}")),
                    (None, _) => self.log.push(format!("{kind} {}", update["toolCallId"])),
                }
                self.message = text.map(|_| update["messageId"].clone());
                None
            }
            (Some("session/request_permission"), Some(id)) => {
                self.log.push(format!("question {}", message["params"]["toolCall"]["toolCallId"]));
                Some(json!({"jsonrpc": "2.0", "id": id, "result": {"outcome": {"outcome": "selected"}}}))
            }
            (None, Some(0)) => request(1, "session/new", json!({"cwd": "/p", "mcpServers": []})),
            (None, Some(1)) => {
                assert_eq!(message["result"]["sessionId"], "s", "{message}");
                let prompt = json!([{"type": "text", "text": "write it"}]);
                request(2, "session/prompt", json!({"sessionId": "s", "prompt": prompt}))
            }
            (None, Some(2)) => {
                self.log.push(format!("end {}", message["result"]["stopReason"]));
                None
            }
            _ => panic!("unexpected: {message}"),
        }
    }
}

/// Plays a turn. Each cut loses the message after so many others, and the turn goes on by so many steps meanwhile.
fn play(cuts: &[(usize, usize)]) -> Vec<String> {
    let (mut relay, mut server, mut editor) =
        (EditorRelay::default(), PlayedServer::default(), PlayedEditor::default());
    let mut cuts = cuts.iter().copied();
    let mut next_cut = cuts.next();
    let mut output: VecDeque<RelayOutput> = relay.connect().into();
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}});
    output.extend(relay.receive_from_editor(&hello.to_string()));
    for _ in 0..10_000 {
        // A message between relay and server, in one of the two directions.
        let to_server = match output.pop_front() {
            Some(RelayOutput::Editor(line)) => {
                if let Some(reply) = editor.receive(&line) {
                    output.extend(relay.receive_from_editor(&reply.to_string()));
                }
                continue;
            }
            Some(RelayOutput::Server(line)) => Some(line),
            Some(RelayOutput::Refused(problem)) => panic!("{problem}"),
            Some(RelayOutput::Terminal(call)) => panic!("{call:?}"),
            None => None,
        };
        let to_relay = if to_server.is_none() { server.out.pop_front() } else { None };
        if to_server.is_none() && to_relay.is_none() {
            match server.go_on() {
                true => continue,
                false => return editor.log,
            }
        }
        // What becomes of `session/new` is unknown after a cut, so the cuts begin after it.
        let is_opened = server.connection > 0 || relay.sessions.contains_key("s");
        if let (Some((count, progress)), true) = (&mut next_cut, is_opened) {
            if *count == 0 {
                let progress = *progress;
                next_cut = cuts.next();
                server.cut();
                relay.disconnect();
                output.retain(|message| matches!(message, RelayOutput::Editor(_)));
                for _ in 0..progress {
                    server.go_on();
                }
                output.extend(relay.connect());
                continue;
            }
            *count -= 1;
        }
        match (to_server, to_relay) {
            (Some(line), _) => server.receive(&line),
            (None, Some(message)) => output.extend(relay.receive_from_server(&message.to_string())),
            (None, None) => {}
        }
    }
    panic!("the turn does not end: {:?}", editor.log);
}

const WHOLE: [&str; 6] = [
    "agent_message_chunk: I write. ",
    "tool_call \"c1\"",
    "question \"c1\"",
    "tool_call_update \"c1\"",
    "agent_message_chunk: one two three",
    "end \"end_turn\"",
];

#[test]
fn without_a_cut_the_editor_gets_everything() {
    assert_eq!(play(&[]), WHOLE);
}

#[test]
fn a_cut_at_any_message_changes_nothing() {
    for at in 0..24 {
        for progress in 0..=TURN.len() + 1 {
            assert_eq!(play(&[(at, progress)]), WHOLE, "cut at {at}, {progress} steps meanwhile");
        }
    }
}

proptest! {
    #[test]
    fn many_cuts_change_nothing(cuts in proptest::collection::vec((0usize..14, 0usize..5), 0..6)) {
        prop_assert_eq!(play(&cuts), WHOLE);
    }
}

fn request(id: u64, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

/// A relay that has initialized, with the session `s`.
fn opened() -> (EditorRelay, PlayedServer) {
    let (mut relay, mut server) = (EditorRelay::default(), PlayedServer::default());
    relay.connect();
    for line in [request(0, "initialize", &json!({})), request(1, "session/new", &json!({"cwd": "/p"}))] {
        exchange(&mut relay, &mut server, &line);
    }
    (relay, server)
}

/// Passes a line on, and all that follows. Returns what the editor gets.
fn exchange(relay: &mut EditorRelay, server: &mut PlayedServer, line: &str) -> Vec<Value> {
    let output = relay.receive_from_editor(line);
    settle(relay, server, output)
}

fn reconnect(relay: &mut EditorRelay, server: &mut PlayedServer) -> Vec<Value> {
    let output = relay.connect();
    settle(relay, server, output)
}

fn settle(relay: &mut EditorRelay, server: &mut PlayedServer, output: Vec<RelayOutput>) -> Vec<Value> {
    let (mut output, mut shown) = (VecDeque::from(output), Vec::new());
    loop {
        match output.pop_front() {
            Some(RelayOutput::Editor(line)) => shown.push(serde_json::from_str(&line).unwrap()),
            Some(RelayOutput::Server(line)) => server.receive(&line),
            Some(RelayOutput::Refused(problem)) => panic!("{problem}"),
            Some(RelayOutput::Terminal(call)) => panic!("{call:?}"),
            None => match server.out.pop_front() {
                Some(message) => output.extend(relay.receive_from_server(&message.to_string())),
                None => return shown,
            },
        }
    }
}

fn cut(relay: &mut EditorRelay, server: &mut PlayedServer) {
    server.cut();
    relay.disconnect();
}

#[test]
fn a_request_without_an_effect_is_repeated() {
    let (mut relay, mut server) = opened();
    // The server does not get it.
    relay.receive_from_editor(&request(5, "session/list", &json!({})));
    cut(&mut relay, &mut server);
    let shown = reconnect(&mut relay, &mut server);
    assert_eq!(shown, [json!({"jsonrpc": "2.0", "id": 5, "result": {"sessions": []}})]);
    assert!(relay.is_idle());
}

#[test]
fn a_request_with_an_effect_fails_and_says_why() {
    let (mut relay, mut server) = opened();
    relay.receive_from_editor(&request(5, "session/new", &json!({"cwd": "/p"})));
    cut(&mut relay, &mut server);
    let shown = reconnect(&mut relay, &mut server);
    assert_eq!(shown[0]["id"], 5);
    let problem = shown[0]["error"]["message"].as_str().unwrap();
    assert!(problem.contains("connection to the server was lost") && problem.contains("session/new"), "{problem}");
}

#[test]
fn lines_wait_for_the_connection_in_order() {
    let (mut relay, mut server) = opened();
    cut(&mut relay, &mut server);
    for id in [5, 6] {
        assert!(relay.receive_from_editor(&request(id, "session/list", &json!({}))).is_empty());
    }
    let ids: Vec<_> = reconnect(&mut relay, &mut server).iter().map(|message| message["id"].clone()).collect();
    assert_eq!(ids, [json!(5), json!(6)]);
}

#[test]
fn a_command_is_not_repeated() {
    let (mut relay, mut server) = opened();
    let params = json!({"sessionId": "s", "prompt": [{"type": "text", "text": "/undo"}]});
    relay.receive_from_editor(&request(5, "session/prompt", &params));
    cut(&mut relay, &mut server);
    let shown = reconnect(&mut relay, &mut server);
    assert_eq!(shown[0]["id"], 5);
    assert!(shown[0]["error"]["message"].as_str().unwrap().contains("outcome is unknown"));
    assert!(!server.is_prompted);
}

#[test]
fn a_resumed_session_shows_no_past_also_after_a_cut() {
    let (mut relay, mut server) = (EditorRelay::default(), PlayedServer::default());
    (server.is_prompted, server.done, server.is_asked, server.is_answered) = (true, 4, true, true);
    relay.connect();
    exchange(&mut relay, &mut server, &request(0, "initialize", &json!({})));
    let resume = request(1, "session/resume", &json!({"sessionId": "s", "cwd": "/p", "mcpServers": []}));
    let shown = exchange(&mut relay, &mut server, &resume);
    assert_eq!(shown.len(), 1, "only the response: {shown:?}");
    assert_eq!(shown[0]["id"], 1);
    cut(&mut relay, &mut server);
    server.go_on();
    let shown = reconnect(&mut relay, &mut server);
    let texts: Vec<_> = shown.iter().map(|message| message["params"]["update"]["content"]["text"].clone()).collect();
    assert_eq!(texts, [json!("one ")]);
}

#[test]
fn a_line_that_is_too_large_is_refused_here() {
    let (mut relay, _) = opened();
    let output = relay.receive_from_editor(&request(5, "session/list", &json!({"cwd": "x".repeat(17 << 20)})));
    let [RelayOutput::Editor(line)] = output.as_slice() else { panic!("an error") };
    assert!(line.contains("\"error\"") && line.contains("\"id\":5"));
}

#[test]
fn messages_that_wait_for_a_server_are_limited() {
    let (mut relay, mut server) = opened();
    cut(&mut relay, &mut server);
    let params = json!({"cwd": "x".repeat(10 << 20)});
    for id in 5..8 {
        assert_eq!(relay.receive_from_editor(&request(id, "session/list", &params)), []);
    }
    let output = relay.receive_from_editor(&request(8, "session/list", &params));
    let [RelayOutput::Editor(line)] = output.as_slice() else { panic!("an error") };
    assert!(line.contains("32 MiB of messages wait") && line.contains("\"id\":8"), "{line}");
    assert_eq!(relay.receive_from_editor(&request(9, "session/list", &json!({}))), [], "a small one has room");
}

#[test]
fn without_a_server_every_request_gets_an_error() {
    let (mut relay, mut server) = opened();
    relay.receive_from_editor(&request(5, "session/list", &json!({})));
    cut(&mut relay, &mut server);
    relay.receive_from_editor(&request(6, "session/list", &json!({})));
    let output = relay.give_up("the server is gone");
    assert_eq!(output.len(), 2);
    assert!(relay.is_idle());
}

/// The caller runs the commands of the server: the server is told so, and the editor gets none of the requests.
#[test]
fn commands_of_the_server_are_for_the_caller() {
    let mut relay = EditorRelay::with_terminals();
    relay.connect();
    let hello =
        request(0, "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {"fs": {"readTextFile": true}}}));
    let sent = relay.receive_from_editor(&hello);
    let [RelayOutput::Server(line)] = sent.as_slice() else { panic!("one message, not {sent:?}") };
    let announced: Value = serde_json::from_str(line).unwrap();
    let expected = json!({"fs": {"readTextFile": true}, "terminal": true, "_meta": {"_skein/sandbox_terminal": true}});
    assert_eq!(announced["params"]["clientCapabilities"], expected);
    relay.receive_from_server(&json!({"jsonrpc": "2.0", "id": 0, "result": {}}).to_string());
    relay.receive_from_editor(&request(1, "session/new", &json!({"cwd": "/p", "additionalDirectories": ["/q"]})));
    relay.receive_from_server(&json!({"jsonrpc": "2.0", "id": 1, "result": {"sessionId": "s"}}).to_string());
    let params = json!({"sessionId": "s", "command": "bash"});
    let asked = json!({"jsonrpc": "2.0", "id": 7, "method": "terminal/create", "params": params});
    let folders = vec!["/p".into(), "/q".into()];
    let call = TerminalCall { id: json!(7), method: "terminal/create".to_owned(), params, folders };
    assert_eq!(relay.receive_from_server(&asked.to_string()), [RelayOutput::Terminal(call)]);
}
