//! Answers the client methods that an external agent calls: files, terminals, permission requests and elicitations.
//!
//! Invariant: every request passes the binding of the agent's mode. A method that the mode does not admit does not
//! exist. Only a person approves a permission request; Skein by itself can only reject it.

use std::path::PathBuf;
use std::sync::Arc;

use agent_client_protocol::v1::schema as acp;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::client_context::{ClientContext, MAX_PAGE_ID, SessionBinding};
use super::rpc::RpcError;
use super::terminal_command::{command_line, is_variable, with_shell};
use super::{lock, valid};
use crate::agents::{Event, StatusUpdate};
use crate::broker::{self, Binding, GateDecision};
use crate::conversation::ToolUse;
use crate::manifest::ApprovalLevel;
use crate::tool::ask::{ExternalPermissionRequest, PermissionOption};
use crate::tool::editor::{Editor, EditorError, Terminal, TerminalCommand, TerminalExit};
use crate::tool::elicit::{Elicitation, ElicitationKind, ElicitationResponse};
use crate::tool::{CallContext, ToolOutcome, strip_invisible, truncate};

/// Built-in tools that correspond to client methods. Scope, rules and consent treat a request like a call of its tool.
const READ: &str = "read_file";
const WRITE: &str = "write_file";
const SHELL: &str = "shell";
const DEVELOPER: &str = "developer";

/// Maximum number of output bytes kept for a command, also if the agent sets no limit.
const OUTPUT_LIMIT: u64 = 1 << 20;
const MAX_TERMINALS: usize = 32;
/// Maximum number of bytes shown of an elicitation message, or of the title of a permission request.
const MAX_MESSAGE: usize = 4096;
/// Maximum bytes of the input of a refused call in the history.
const MAX_REFUSED_INPUT: usize = 8 << 10;

/// The client capabilities that a mode grants to the agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct GrantedCapabilities {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) terminal: bool,
}

impl GrantedCapabilities {
    pub(super) fn of(binding: &Binding) -> Self {
        let has = |tool| tool_name(binding, tool).is_some();
        Self { read: has(READ), write: has(WRITE), terminal: has(SHELL) }
    }
}

/// Returns the mode's name for a built-in tool. `None` if the mode does not have the tool.
fn tool_name(binding: &Binding, tool: &str) -> Option<String> {
    let ours = |of: &broker::BoundTool| of.service.as_str() == DEVELOPER && of.spec.name.as_str() == tool;
    binding.tools().iter().find(|(_, of)| ours(of)).map(|(name, _)| name.clone())
}

/// Answers a request of the agent. `withdrawn` is cancelled if the agent withdraws it. Fails if the method is unknown,
/// its parameters are invalid or the request is refused.
pub(super) async fn answer(
    client: &ClientContext,
    method: &str,
    params: Value,
    withdrawn: &CancellationToken,
) -> Result<Value, RpcError> {
    let unknown = || RpcError::new(-32601, format!("there is no method `{method}` here"));
    let Some(bound) = client.binding() else {
        // An agent that is used as a model has no client methods and no user to ask.
        return if method == "session/request_permission" { Ok(cancelled()) } else { Err(unknown()) };
    };
    // A request is cancelled with its turn.
    let cancel = client.turn_cancel().child_token();
    let request = ClientRequest { client, binding: &bound, cancel: &cancel };
    let work = async {
        match method {
            "fs/read_text_file" => request.read(read(params)?).await,
            "fs/write_text_file" => request.write(read(params)?).await,
            "terminal/create" => request.create(read(params)?).await,
            "terminal/output" => request.output(read(params)?).await,
            "terminal/wait_for_exit" => request.wait(read(params)?).await,
            "terminal/kill" => request.kill(read(params)?).await,
            "terminal/release" => request.release(read(params)?).await,
            "session/request_permission" => request.permission(params).await,
            "elicitation/create" => request.elicit(read(params)?).await,
            _ => Err(unknown()),
        }
    };
    tokio::select! {
        biased;
        () = withdrawn.cancelled() => {
            cancel.cancel();
            if method == "session/request_permission" { Ok(cancelled()) } else { Err(RpcError::new(-32800, "cancelled")) }
        }
        answer = work => answer,
    }
}

fn read<T: DeserializeOwned>(params: Value) -> Result<T, RpcError> {
    serde_json::from_value(params).map_err(|error| RpcError::new(-32602, error.to_string()))
}

fn json_of(value: &impl serde::Serialize) -> Result<Value, RpcError> {
    serde_json::to_value(value).map_err(|error| RpcError::new(-32603, error.to_string()))
}

struct ClientRequest<'a> {
    client: &'a ClientContext,
    binding: &'a SessionBinding,
    cancel: &'a CancellationToken,
}

impl ClientRequest<'_> {
    /// Returns the editor, if it has the files of the agent's session. An agent of a session with client files works in
    /// a folder of this machine.
    fn lender(&self) -> Option<&Arc<dyn Editor>> {
        let session = &self.binding.session;
        session.editor.as_ref().filter(|_| session.client_folders().is_none())
    }

    async fn read(&self, request: acp::ReadTextFileRequest) -> Result<Value, RpcError> {
        let (path, real) = self.path(&request.path)?;
        self.permit(READ, "fs/read_text_file", arguments(json!({"path": path}))).await?;
        self.ensure_unchanged(&request.path, &real)?;
        let lends = self.lender().filter(|editor| editor.abilities().read);
        let text = match lends {
            Some(editor) => editor.read(&path).await,
            None => self.client.local.read_below(self.roots(), real.clone()).await,
        };
        let text = text.map_err(|error| rpc_error(&error, &path.to_string_lossy()))?;
        let text = part_of(&text, request.line, request.limit);
        Ok(json!({"content": text}))
    }

    async fn write(&self, request: acp::WriteTextFileRequest) -> Result<Value, RpcError> {
        let (path, real) = self.path(&request.path)?;
        let shown = arguments(json!({"path": path, "content": request.content}));
        self.permit(WRITE, "fs/write_text_file", shown).await?;
        self.ensure_unchanged(&request.path, &real)?;
        let lends = self.lender().filter(|editor| editor.abilities().write);
        let written = match lends {
            Some(editor) => editor.write(&path, request.content).await,
            None => self.client.local.write_below(self.roots(), real.clone(), request.content).await,
        };
        written.map_err(|error| rpc_error(&error, &path.to_string_lossy()))?;
        Ok(json!({}))
    }

    async fn create(&self, request: acp::CreateTerminalRequest) -> Result<Value, RpcError> {
        self.check_terminal_limit()?;
        // Rules and consent apply to a shell command line, so a shell must not read any part of it differently.
        if let Some(odd) = request.env.iter().find(|variable| !is_variable(&variable.name)) {
            return Err(RpcError::new(
                -32602,
                format!("`{}` is no name of an environment variable", odd.name.escape_debug()),
            ));
        }
        let request = with_shell(request);
        let session = &self.binding.session;
        let wanted = request.cwd.clone().unwrap_or_else(|| session.cwd.clone());
        let (cwd, real) = self.path(&wanted)?;
        let elsewhere = (cwd != session.cwd).then_some(cwd.as_path());
        let line = command_line(&request, elsewhere);
        self.permit(SHELL, "terminal/create", arguments(json!({"command": line}))).await?;
        self.ensure_unchanged(&wanted, &real)?;
        self.check_terminal_limit()?;
        let command = TerminalCommand {
            program: request.command,
            args: request.args,
            env: request.env.into_iter().map(|variable| (variable.name, variable.value)).collect(),
            cwd,
            output_limit: request.output_byte_limit.unwrap_or(OUTPUT_LIMIT).min(OUTPUT_LIMIT),
            sandbox: None,
        };
        // The editor starts the processes of its terminals, so the command of a sandboxed agent runs here.
        let lends = self.lender().filter(|editor| editor.abilities().terminal);
        let lends = lends.filter(|_| self.client.local.sandbox.is_none());
        let program = command.program.clone();
        let terminal = match lends {
            Some(editor) => editor.run(command).await,
            None => self.client.local.run(command).await,
        };
        let terminal: Arc<dyn Terminal> = Arc::from(terminal.map_err(|error| rpc_error(&error, &program))?);
        let id = terminal.id().to_owned();
        lock(&self.client.terminals).insert(id.clone(), terminal);
        Ok(json!({"terminalId": id}))
    }

    async fn output(&self, request: acp::TerminalOutputRequest) -> Result<Value, RpcError> {
        let terminal = self.terminal(&request.terminal_id)?;
        let output = terminal.output().await.map_err(|error| rpc_error(&error, "the terminal"))?;
        let answer = acp::TerminalOutputResponse::new(output.text, output.truncated);
        json_of(&answer.exit_status(output.exit.map(exit)))
    }

    async fn wait(&self, request: acp::WaitForTerminalExitRequest) -> Result<Value, RpcError> {
        let terminal = self.terminal(&request.terminal_id)?;
        let ended = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return Err(RpcError::new(-32800, "the turn was cancelled")),
            ended = terminal.wait() => ended.map_err(|error| rpc_error(&error, "the terminal"))?,
        };
        json_of(&acp::WaitForTerminalExitResponse::new(exit(ended)))
    }

    async fn kill(&self, request: acp::KillTerminalRequest) -> Result<Value, RpcError> {
        let terminal = self.terminal(&request.terminal_id)?;
        terminal.kill().await.map_err(|error| rpc_error(&error, "the terminal"))?;
        Ok(json!({}))
    }

    async fn release(&self, request: acp::ReleaseTerminalRequest) -> Result<Value, RpcError> {
        let terminal = self.terminal(&request.terminal_id)?;
        lock(&self.client.terminals).remove(&*request.terminal_id.0);
        // A pending `wait` may hold the terminal, so dropping it might not end the command.
        drop(terminal.kill().await);
        Ok(json!({}))
    }

    fn terminal(&self, id: &acp::TerminalId) -> Result<Arc<dyn Terminal>, RpcError> {
        let found = lock(&self.client.terminals).get(&*id.0).cloned();
        found.ok_or_else(|| RpcError::new(-32002, format!("there is no terminal `{}`", id.0)))
    }

    fn check_terminal_limit(&self) -> Result<(), RpcError> {
        if lock(&self.client.terminals).len() < MAX_TERMINALS {
            return Ok(());
        }
        Err(RpcError::new(-32603, format!("there are {MAX_TERMINALS} terminals already; release some")))
    }

    /// Resolves `path`, and returns it as the session names it and as a canonical path. All later steps use one of the
    /// two, so that a link or a `/proc` folder means the same file to each. Fails if the path is relative or outside
    /// the session's roots.
    fn path(&self, path: &std::path::Path) -> Result<(PathBuf, PathBuf), RpcError> {
        if !path.is_absolute() {
            return Err(RpcError::new(-32602, format!("`{}` is not an absolute path", path.display())));
        }
        let real =
            broker::within(path, &self.binding.session).map_err(|error| RpcError::new(-32603, error.to_string()))?;
        let named = self.binding.session.roots.iter().find_map(|root| {
            let below = real.strip_prefix(std::fs::canonicalize(root).ok()?).ok()?;
            Some(if below.as_os_str().is_empty() { root.clone() } else { root.join(below) })
        });
        Ok((named.unwrap_or_else(|| real.clone()), real))
    }

    /// Returns the session's roots as canonical paths.
    fn roots(&self) -> Vec<PathBuf> {
        self.binding.session.roots.iter().filter_map(|root| std::fs::canonicalize(root).ok()).collect()
    }

    /// Fails if `path` no longer resolves to `real`. A link can change while the user decides, and the consent does not
    /// cover its new target.
    fn ensure_unchanged(&self, path: &std::path::Path, real: &std::path::Path) -> Result<(), RpcError> {
        let (_, now) = self.path(path)?;
        if now == real {
            return Ok(());
        }
        Err(RpcError::new(-32603, format!("`{}` leads elsewhere now; nothing was done", path.display())))
    }

    /// Checks that the mode, its rules and, if necessary, the user allow the request. Fails with the reason for a
    /// refusal.
    async fn permit(&self, tool: &str, method: &str, arguments: Map<String, Value>) -> Result<(), RpcError> {
        let binding = &self.binding.binding;
        let unknown = || {
            let reason = format!(
                "`{}` has no tool for {method}: its mode lists no group with `{DEVELOPER}.{tool}`",
                binding.mode()
            );
            RpcError::new(-32601, reason)
        };
        let name = tool_name(binding, tool).ok_or_else(unknown)?;
        let id = self.client.calls.issue();
        let context = CallContext::new(Arc::clone(&self.binding.session)).with_cancel(self.cancel.clone()).with_id(&id);
        // A request that the user must confirm is shown as a call; the agent itself reports the others.
        let asks = matches!(binding.simulate_call(&name, &arguments), Ok(GateDecision::Ask(_)));
        let notifier = self.client.notifier().filter(|_| asks);
        if let Some(notifier) = &notifier {
            let call = ToolUse::new(id.clone(), name.clone(), Value::Object(arguments.clone()));
            lock(&self.client.relay).log_own(notifier.as_ref(), Event::ToolStarted { call, by: None });
        }
        let permitted = binding.permit(&name, &arguments, &context).await;
        if let Some(notifier) = notifier {
            let outcome = match &permitted {
                Ok(()) => ToolOutcome::text("allowed"),
                Err(error) => ToolOutcome { refused: true, ..ToolOutcome::error(error.to_string()) },
            };
            let ended = Event::ToolEnded { id, name, outcome, activity: Vec::new() };
            lock(&self.client.relay).log_own(notifier.as_ref(), ended);
        }
        permitted.map_err(|error| RpcError::new(-32603, error.to_string()))
    }

    /// Forwards the agent's own permission request to a person, who alone can approve it.
    async fn permission(&self, params: Value) -> Result<Value, RpcError> {
        let fit = valid::validate::<acp::RequestPermissionRequest>(params);
        let (request, passed) = fit.ok_or_else(|| RpcError::new(-32602, "this is no question of consent"))?;
        let mut ids = std::collections::HashSet::new();
        if request.options.is_empty() || !request.options.iter().all(|option| ids.insert(&option.option_id)) {
            return Err(RpcError::new(
                -32602,
                "the options of a question need unique ids, and there must be at least one",
            ));
        }
        let Value::Object(mut whole) = passed else { return Err(RpcError::new(-32602, "this is no object")) };
        whole.remove("sessionId");
        let call = match whole.get_mut("toolCall") {
            Some(call) => self.client.calls.rewrite(call).then(|| call.clone()),
            None => None,
        };
        let call = call.ok_or_else(|| RpcError::new(-32602, "this tool call is not one of yours"))?;
        let id = call.get("toolCallId").and_then(Value::as_str).unwrap_or_default().to_owned();
        let input = call.get("rawInput").filter(|input| !input.is_null()).cloned();
        let title = request.tool_call.fields.title.clone().or_else(|| lock(&self.client.relay).call_name(&id));
        let title = title.unwrap_or_else(|| "something it does not name".to_owned());
        let title = truncate(&title, MAX_MESSAGE).to_owned();
        let refuse = || {
            let arguments = input_of_refusal(input.as_ref());
            let shown = ToolUse::new(self.client.calls.issue(), title.clone(), arguments);
            lock(&self.client.relay).refuse(&id, shown);
        };
        let level = self.binding.binding.approval();
        if matches!(level, ApprovalLevel::ReadOnly | ApprovalLevel::Deny) {
            self.tell_refused(&title, &format!("the approval level is `{}`", level.as_str()));
            refuse();
            return Ok(rejection(&request.options));
        }
        let option = |option: &acp::PermissionOption| PermissionOption {
            id: option.option_id.0.to_string(),
            name: option.name.clone(),
            allows: allows(option.kind),
        };
        let choosing = ExternalPermissionRequest {
            by: self.binding.binding.mode().to_string(),
            apart: None,
            title: title.clone(),
            call: id.clone(),
            parent_call: None,
            input: input.clone(),
            options: request.options.iter().map(option).collect(),
            request: whole,
        };
        let chosen = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return Ok(cancelled()),
            chosen = self.binding.asker.choose(choosing) => chosen,
        };
        let chosen = chosen.and_then(|id| request.options.iter().find(|option| *option.option_id.0 == *id));
        Ok(match chosen {
            Some(option) => {
                if !allows(option.kind) {
                    refuse();
                }
                json!({"outcome": {"outcome": "selected", "optionId": option.option_id}})
            }
            None if self.cancel.is_cancelled() => cancelled(),
            None => {
                self.tell_refused(&title, "no user allowed it");
                refuse();
                rejection(&request.options)
            }
        })
    }

    fn tell_refused(&self, title: &str, why: &str) {
        if let Some(notifier) = self.client.notifier() {
            let text = format!("{} asked about `{title}`; it was refused: {why}", self.binding.binding.mode());
            notifier.status(StatusUpdate::notice(text));
        }
    }

    async fn elicit(&self, request: acp::CreateElicitationRequest) -> Result<Value, RpcError> {
        let unreadable = || RpcError::new(-32602, "this is no question with fields or a page");
        let whole = json_of(&request)?;
        let text = |key: &str| whole[key].as_str().map(str::to_owned);
        let wanted = match whole["mode"].as_str() {
            Some("url") => ElicitationKind::Page {
                id: text("elicitationId").filter(|id| id.len() <= MAX_PAGE_ID).ok_or_else(unreadable)?,
                url: text("url").ok_or_else(unreadable)?,
            },
            Some("form") => {
                ElicitationKind::Fields(whole["requestedSchema"].as_object().cloned().ok_or_else(unreadable)?)
            }
            _ => return Err(unreadable()),
        };
        let question = Elicitation {
            by: self.client.agent.title.clone(),
            call: text("toolCallId").and_then(|id| self.client.calls.admit(&id)).map(Into::into),
            message: truncate(&strip_invisible(&text("message").unwrap_or_default()), MAX_MESSAGE).to_owned(),
            kind: wanted,
        };
        if let Some(reason) = question.refusal() {
            self.tell_refused("its own question", &reason);
            return Ok(json!({"action": "decline"}));
        }
        if let ElicitationKind::Page { id, .. } = &question.kind {
            self.client.add_page(id);
        }
        let said = tokio::select! {
            biased;
            () = self.cancel.cancelled() => ElicitationResponse::Dismissed,
            said = self.binding.asker.elicit(question) => said,
        };
        Ok(match said {
            ElicitationResponse::Accepted(content) if content.is_empty() => json!({"action": "accept"}),
            ElicitationResponse::Accepted(content) => json!({"action": "accept", "content": content}),
            ElicitationResponse::Declined => json!({"action": "decline"}),
            ElicitationResponse::Dismissed | ElicitationResponse::Unavailable => json!({"action": "cancel"}),
        })
    }
}

fn arguments(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Returns the input of a refused call for the history. A long one is replaced by its beginning as text.
fn input_of_refusal(input: Option<&Value>) -> Value {
    let Some(input) = input else { return json!({}) };
    let text = input.to_string();
    if text.len() <= MAX_REFUSED_INPUT {
        return input.clone();
    }
    json!({"truncated": truncate(&text, MAX_REFUSED_INPUT)})
}

fn allows(kind: acp::PermissionOptionKind) -> bool {
    matches!(kind, acp::PermissionOptionKind::AllowOnce | acp::PermissionOptionKind::AllowAlways)
}

/// Returns the agent's own reject option, or `cancelled` if it offers none.
fn rejection(options: &[acp::PermissionOption]) -> Value {
    let no = options.iter().find(|option| option.kind == acp::PermissionOptionKind::RejectOnce);
    let no = no.or_else(|| options.iter().find(|option| option.kind == acp::PermissionOptionKind::RejectAlways));
    no.map_or_else(cancelled, |option| json!({"outcome": {"outcome": "selected", "optionId": option.option_id}}))
}

fn cancelled() -> Value {
    json!({"outcome": {"outcome": "cancelled"}})
}

fn rpc_error(error: &EditorError, what: &str) -> RpcError {
    match error {
        EditorError::NotFound => RpcError::new(-32002, format!("`{what}` does not exist")),
        EditorError::Failed(reason) => RpcError::new(-32603, format!("`{what}`: {reason}")),
    }
}

fn exit(exit: TerminalExit) -> acp::TerminalExitStatus {
    acp::TerminalExitStatus::new().exit_code(exit.code).signal(exit.signal)
}

/// Returns up to `limit` lines, from `line` on. Lines count from 1.
fn part_of(text: &str, line: Option<u32>, limit: Option<u32>) -> String {
    if line.is_none() && limit.is_none() {
        return text.to_owned();
    }
    let skip = line.unwrap_or(1).max(1) as usize - 1;
    let limit = limit.map_or(usize::MAX, |limit| limit as usize);
    text.split_inclusive('\n').skip(skip).take(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_from_one() {
        let text = "a\nb\nc\n";
        assert_eq!(part_of(text, None, None), text);
        assert_eq!(part_of(text, Some(2), Some(1)), "b\n");
        assert_eq!(part_of(text, Some(0), Some(1)), "a\n");
        assert_eq!(part_of(text, Some(9), None), "");
    }
}
