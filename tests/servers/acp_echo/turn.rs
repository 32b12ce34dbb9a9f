//! One prompt, which is a command: what it does is in `Turn::obey`.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::mcp::Mcp;
use crate::{Agent, answer, chunk, complain, held, kept, program, text_of, update, write_line};

/// One prompt.
pub(super) struct Turn {
    pub(super) agent: Arc<Agent>,
    pub(super) session: String,
    pub(super) heard: String,
}

impl Turn {
    pub(super) fn run(mut self, id: &Value, prompt: &Value) {
        let cancelled = held(&self.agent.sessions).get(&self.session).map(|kept| Arc::clone(&kept.cancelled));
        let cancelled = cancelled.unwrap_or_default();
        cancelled.store(false, Ordering::SeqCst);
        let blocks = prompt.as_array().map(Vec::as_slice).unwrap_or_default();
        let prompt = blocks.iter().map(|block| match text_of(block, "type") {
            "text" => text_of(block, "text").to_owned(),
            other => format!("[{other} {}{}]", text_of(block, "mimeType"), text_of(block, "uri")),
        });
        let prompt = prompt.collect::<Vec<_>>().join(" ");
        if let Err(problem) = self.obey(prompt.trim(), &cancelled) {
            self.say(&problem);
        }
        let heard = std::mem::take(&mut self.heard);
        self.agent.change(&self.session, |kept| kept.said.push((prompt.clone(), heard)));
        if let Some(file) = kept(&self.session) {
            let said = held(&self.agent.sessions).get(&self.session).map(|kept| json!(kept.said));
            drop(std::fs::write(file, said.unwrap_or_default().to_string()));
        }
        let reason = if cancelled.load(Ordering::SeqCst) { "cancelled" } else { "end_turn" };
        match prompt.trim().strip_prefix("answer ").and_then(|text| serde_json::from_str::<Value>(text).ok()) {
            Some(mut whole) => {
                (whole["jsonrpc"], whole["id"]) = (json!("2.0"), id.clone());
                write_line(&whole.to_string());
            }
            None => answer(id, json!({"stopReason": reason})),
        }
        if let Some(words) = prompt.trim().strip_prefix("late ") {
            self.say(words);
        }
        if let Some(text) = prompt.trim().strip_prefix("late-update ") {
            // Skein must have ended the turn by then.
            std::thread::sleep(Duration::from_millis(300));
            update(&self.session, serde_json::from_str(text).unwrap_or_default());
        }
    }

    /// What a prompt does. Whatever is not known is said back.
    fn obey(&mut self, prompt: &str, cancelled: &AtomicBool) -> Result<(), String> {
        let (command, rest) = prompt.split_once(' ').unwrap_or((prompt, ""));
        let (first, more) = rest.split_once(' ').unwrap_or((rest, ""));
        let session = self.session.clone();
        match command {
            "say" => rest.split_inclusive(' ').for_each(|word| self.say(word)),
            "burst" => (0..first.parse().unwrap_or(1)).for_each(|n: u64| {
                update(&session, chunk("agent_message_chunk", &format!("d{n} ")));
            }),
            "flood" => self.flood(first, more, cancelled),
            "think" => update(&session, chunk("agent_thought_chunk", rest)),
            "recall" => {
                let said = held(&self.agent.sessions).get(&session).map(|kept| kept.said.clone()).unwrap_or_default();
                self.say(&said.into_iter().map(|(prompt, _)| prompt).collect::<Vec<_>>().join(" | "));
            }
            "env" if rest.is_empty() => {
                let mut names: Vec<_> = std::env::vars().map(|(name, _)| name).collect();
                names.sort();
                self.say(&names.join(" "));
            }
            "env" => self.say(&std::env::var(first).unwrap_or("not set".to_owned())),
            "cwd" => {
                let own = std::env::current_dir().unwrap_or_default();
                let kept = held(&self.agent.sessions).get(&session).map(|kept| kept.cwd.clone()).unwrap_or_default();
                self.say(&format!("process {} session {kept}", own.display()));
            }
            "pid" => self.say(&std::process::id().to_string()),
            "read" => {
                let mut lines = more.split(' ').map(|number| number.parse::<u64>().ok());
                let (line, limit) = (lines.next().flatten(), lines.next().flatten());
                let params = json!({"sessionId": session, "path": first, "line": line, "limit": limit});
                let read = self.agent.ask("fs/read_text_file", params)?;
                self.say(text_of(&read, "content"));
            }
            "write" => {
                let params = json!({"sessionId": session, "path": first, "content": more});
                self.agent.ask("fs/write_text_file", params)?;
                self.say("written");
            }
            "forge" => self.forge(first, more)?,
            "run" => self.terminal(first, more)?,
            "terminals" => {
                let params = json!({"sessionId": session, "command": "sleep", "args": ["613"]});
                let count: usize = first.parse().unwrap_or(1);
                for _ in 0..count {
                    self.agent.ask("terminal/create", params.clone())?;
                }
                self.say("created");
            }
            "permit" => self.permit(rest, json!({"title": rest}))?,
            "permit-untitled" => self.permit(rest, json!({}))?,
            "elicit" => {
                let schema = json!({"type": "object", "required": ["colour"],
                    "properties": {"colour": {"type": "string", "description": "Which one?"}}});
                let params = json!({"sessionId": session, "mode": "form", "message": "Choose a colour.",
                    "requestedSchema": schema});
                let answered = self.agent.ask("elicitation/create", params)?;
                self.say(&format!("{} {}", text_of(&answered, "action"), answered["content"]));
            }
            "pages" => self.pages(rest)?,
            "edit" => self.edit(rest),
            "raw" => write_line(&rest.replace("$SESSION", &session)),
            "rawupdate" => update(&session, serde_json::from_str(rest).map_err(|error| error.to_string())?),
            "tools" => {
                let listed = self.service("tools/list", json!({}))?;
                let tools = listed["tools"].as_array().cloned().unwrap_or_default();
                self.say(&tools.iter().map(|tool| text_of(tool, "name")).collect::<Vec<_>>().join(" "));
            }
            "tool" => {
                let arguments = serde_json::from_str::<Value>(more).unwrap_or(json!({}));
                let result = self.service("tools/call", json!({"name": first, "arguments": arguments}))?;
                self.say(&result.to_string());
            }
            "servers" => self.servers(),
            "plan" => {
                let entry =
                    |content: &str, status: &str| json!({"content": content, "priority": "medium", "status": status});
                let entries = json!([entry("look", "completed"), entry("leap", "pending")]);
                update(&session, json!({"sessionUpdate": "plan", "entries": entries}));
            }
            "mode" => update(&session, json!({"sessionUpdate": "current_mode_update", "currentModeId": first})),
            "title" => update(&session, json!({"sessionUpdate": "session_info_update", "title": rest})),
            "hang" => {
                self.say("hanging");
                while !cancelled.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            "ignore-cancel" => {
                self.say("ignoring");
                loop {
                    std::thread::park();
                }
            }
            "crash" => {
                self.say("crashing");
                complain("crashes as it was told");
                exit();
            }
            "stderr" => drop(complain(rest)),
            // The child keeps its output open: whoever waits for the end of that waits for the child.
            "fork" => {
                let child = program("sleep").arg("600").spawn().map_err(|error| error.to_string())?;
                self.say(&child.id().to_string());
            }
            // By itself, without asking the client.
            "shell" => {
                let output = program("sh").args(["-c", rest]).output().map_err(|error| error.to_string())?;
                let both = [output.stdout, output.stderr].concat();
                self.say(&String::from_utf8_lossy(&both));
            }
            // What they do follows the turn, or is its end.
            "late" | "late-update" | "answer" => {}
            "after" => {
                let (words, next) = rest.split_once(": ").unwrap_or((rest, ""));
                self.say(words);
                self.obey(next, cancelled)?;
            }
            "extra" => {
                let mut extra = chunk("agent_message_chunk", "extra");
                extra["_meta"] = json!({"skein.test/mark": {"deep": [1, 2, 3]}});
                extra["tint"] = json!("blue");
                extra["content"]["_meta"] = json!({"skein.test/inner": true});
                update(&session, extra);
            }
            _ => self.say(&format!("heard: {prompt}")),
        }
        Ok(())
    }

    fn say(&mut self, text: &str) {
        self.agent.noise();
        self.heard.push_str(text);
        update(&self.session, chunk("agent_message_chunk", text));
    }

    /// The id of a new tool call, which is told with what stands in `fields`.
    fn call(&self, title: &str, kind: &str, status: &str, content: Value) -> String {
        let id = format!("call-{}", self.agent.next.fetch_add(1, Ordering::SeqCst));
        let call = json!({"sessionUpdate": "tool_call", "toolCallId": id, "title": title, "kind": kind,
            "status": status, "content": content});
        update(&self.session, call);
        id
    }

    fn finish(&self, call: &str, status: &str) {
        update(&self.session, json!({"sessionUpdate": "tool_call_update", "toolCallId": call, "status": status}));
    }

    /// Sends so many MiB of updates, of requests or of stderr without a line end. Writes to a file how many it got rid
    /// of.
    fn flood(&self, megabytes: &str, rest: &str, cancelled: &AtomicBool) {
        let (what, file) = rest.split_once(' ').unwrap_or((rest, ""));
        let text = "x".repeat(32 << 10);
        let each = |n: u64| match what {
            "stderr" => drop(std::io::stderr().write_all(text.as_bytes())),
            "text" => update(&self.session, chunk("agent_message_chunk", &text)),
            "requests" => {
                let call = json!({"toolCallId": format!("flood-{n}"), "title": "Flood", "rawInput": {"text": text}});
                let options = json!([{"optionId": "no", "name": "No", "kind": "reject_once"}]);
                let params = json!({"sessionId": self.session, "toolCall": call, "options": options});
                // It goes on after a refusal.
                drop(self.agent.ask("session/request_permission", params));
            }
            _ => update(
                &self.session,
                json!({"sessionUpdate": "tool_call", "toolCallId": format!("flood-{n}"), "title": "Flood",
                    "status": "completed", "rawOutput": text}),
            ),
        };
        for megabyte in 0..megabytes.parse().unwrap_or(1) {
            if cancelled.load(Ordering::SeqCst) {
                return;
            }
            (0..32).for_each(|n| each(megabyte * 32 + n));
            drop(std::fs::write(file, format!("{}", megabyte + 1)));
        }
    }

    /// Asks to write a file, and renames meanwhile every call that may be the one the user is asked about.
    fn forge(&mut self, path: &str, content: &str) -> Result<(), String> {
        let params = json!({"sessionId": self.session, "path": path, "content": content});
        let agent = Arc::clone(&self.agent);
        let asking = std::thread::spawn(move || agent.ask("fs/write_text_file", params));
        loop {
            for id in ["echo-asks-1", "asked-0", "question-0", "call", "call-1", "route-1"] {
                let forged = json!({"sessionUpdate": "tool_call_update", "toolCallId": id, "title": "Harmless",
                    "content": [], "rawInput": {}});
                update(&self.session, forged);
            }
            if asking.is_finished() {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        asking.join().map_err(|_| "the request failed")??;
        self.say("written");
        Ok(())
    }

    fn terminal(&mut self, command: &str, args: &str) -> Result<(), String> {
        let args: Vec<_> = args.split_whitespace().collect();
        let params = json!({"sessionId": self.session, "command": command, "args": args});
        let created = self.agent.ask("terminal/create", params)?;
        let terminal = json!({"sessionId": self.session, "terminalId": created["terminalId"]});
        let content = json!([{"type": "terminal", "terminalId": created["terminalId"]}]);
        let call = self.call(command, "execute", "in_progress", content);
        let exit = self.agent.ask("terminal/wait_for_exit", terminal.clone())?;
        let output = self.agent.ask("terminal/output", terminal.clone())?;
        self.agent.ask("terminal/release", terminal)?;
        self.finish(&call, "completed");
        self.say(&format!("exit {}: {}", exit["exitCode"], text_of(&output, "output")));
        Ok(())
    }

    /// Reports a call, and asks about it with these fields of the call.
    fn permit(&mut self, title: &str, mut asked: Value) -> Result<(), String> {
        let call = self.call(title, "execute", "pending", json!([]));
        asked["toolCallId"] = json!(call);
        let option = |id: &str, name: &str, kind: &str| json!({"optionId": id, "name": name, "kind": kind});
        let options = json!([
            option("my-once", "Just this once", "allow_once"),
            option("my-always", "From now on", "allow_always"),
            option("my-no", "Rather not", "reject_once")
        ]);
        let params = json!({"sessionId": self.session, "toolCall": asked, "options": options});
        let answered = self.agent.ask("session/request_permission", params);
        let chosen = match &answered {
            Ok(result) => result["outcome"]["optionId"].as_str().unwrap_or(text_of(&result["outcome"], "outcome")),
            Err(_) => "nothing",
        };
        self.finish(&call, if ["my-once", "my-always"].contains(&chosen) { "completed" } else { "failed" });
        self.say(&format!("chosen {chosen}"));
        answered.map(drop)
    }

    /// Asks to open pages: so many that no client may open, then so many that it may. Reports so many of the latter as
    /// done. The last number is the least length of their ids.
    fn pages(&mut self, numbers: &str) -> Result<(), String> {
        let numbers: Vec<usize> = numbers.split(' ').map_while(|number| number.parse().ok()).collect();
        let [unsafe_pages, safe_pages, done, width] = numbers[..] else { return Err("four numbers".to_owned()) };
        let urls = [("http://example.org/", unsafe_pages), ("https://example.org/", safe_pages)];
        let mut accepted = Vec::new();
        for (url, count) in urls {
            for _ in 0..count {
                let id = format!("page-{}-", self.agent.next.fetch_add(1, Ordering::SeqCst));
                let id = format!("{id:x<width$}");
                let params = json!({"sessionId": self.session, "mode": "url", "message": "Log in.",
                    "elicitationId": id, "url": url});
                let answered = self.agent.ask("elicitation/create", params)?;
                if text_of(&answered, "action") == "accept" {
                    accepted.push(id);
                }
            }
        }
        for id in accepted.iter().take(done) {
            let params = json!({"elicitationId": id});
            write_line(&json!({"jsonrpc": "2.0", "method": "elicitation/complete", "params": params}).to_string());
        }
        self.say(&format!("accepted {}", accepted.len()));
        Ok(())
    }

    fn edit(&mut self, path: &str) {
        let diff = json!([{"type": "diff", "path": path, "oldText": "old\n", "newText": "new\n"}]);
        let call = self.call("Edit a file", "edit", "in_progress", diff);
        update(
            &self.session,
            json!({"sessionUpdate": "tool_call_update", "toolCallId": call, "status": "completed",
                "locations": [{"path": path, "line": 1}], "rawOutput": {"changed": 1}}),
        );
        self.say("edited");
    }

    /// What it was given to reach, without the values of variables and headers.
    fn servers(&mut self) {
        let servers =
            held(&self.agent.sessions).get(&self.session).map(|kept| kept.servers.clone()).unwrap_or_default();
        let shown = servers.into_iter().map(|mut server| {
            for secret in ["env", "headers"] {
                for entry in server.get_mut(secret).and_then(Value::as_array_mut).into_iter().flatten() {
                    entry["value"] = json!("…");
                }
            }
            server
        });
        self.say(&Value::Array(shown.collect()).to_string());
    }

    /// Asks the first MCP server of the session, to which it connects once.
    fn service(&self, method: &str, params: Value) -> Result<Value, String> {
        let (server, service) = held(&self.agent.sessions)
            .get(&self.session)
            .and_then(|kept| Some((kept.servers.first()?.clone(), Arc::clone(&kept.service))))
            .ok_or("no MCP server was given")?;
        let mut service = held(&service);
        if service.is_none() {
            *service = Some(Mcp::connect(&server)?);
        }
        service.as_mut().ok_or("not connected")?.ask(method, params)
    }
}

#[expect(clippy::disallowed_methods, reason = "it is there to end in the middle of a turn")]
fn exit() {
    std::process::exit(3)
}
