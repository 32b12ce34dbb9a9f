//! Lends the client's files and terminals to tools.
//!
//! Invariant: Skein sends only requests that the client advertised.

use std::path::Path;

use agent_client_protocol::Client;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema as acp;
use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use crate::task::TaskScope;
use crate::tool::editor::{
    Editor, EditorCapabilities, EditorError, Terminal, TerminalCommand, TerminalExit, TerminalOutput,
};

/// Key in `_meta` of the client's capabilities: its terminals run commands in a sandbox with the profile that they
/// receive.
pub(super) const SANDBOX_TERMINAL: &str = "_skein/sandbox_terminal";
/// Key in `_meta` of a terminal request: the sandbox of its command.
pub(super) const SANDBOX: &str = "_skein/sandbox";

/// One session's view of its client.
pub(super) struct ClientEditor {
    pub(super) client: ConnectionTo<Client>,
    pub(super) session: acp::SessionId,
    pub(super) abilities: EditorCapabilities,
    /// Runs requests that must finish even if the caller stops waiting.
    pub(super) tasks: TaskScope,
}

/// Returns the editor capabilities of a client. `None` if it has none.
pub(super) fn abilities(client: &acp::ClientCapabilities) -> Option<EditorCapabilities> {
    let runs_sandbox = client.meta.as_ref().is_some_and(|meta| meta.get(SANDBOX_TERMINAL) == Some(&Value::Bool(true)));
    let abilities = EditorCapabilities {
        read: client.fs.read_text_file,
        write: client.fs.write_text_file,
        terminal: client.terminal,
        sandbox: client.terminal && runs_sandbox,
    };
    (abilities != EditorCapabilities::default()).then_some(abilities)
}

impl Editor for ClientEditor {
    fn abilities(&self) -> EditorCapabilities {
        self.abilities
    }

    fn read(&self, path: &Path) -> BoxFuture<'_, Result<String, EditorError>> {
        let request = acp::ReadTextFileRequest::new(self.session.clone(), path);
        Box::pin(async move { Ok(self.client.send_request(request).block_task().await.map_err(editor_error)?.content) })
    }

    fn write(&self, path: &Path, text: String) -> BoxFuture<'_, Result<(), EditorError>> {
        let request = acp::WriteTextFileRequest::new(self.session.clone(), path, text);
        Box::pin(async move {
            self.client.send_request(request).block_task().await.map_err(editor_error)?;
            Ok(())
        })
    }

    fn run(&self, command: TerminalCommand) -> BoxFuture<'_, Result<Box<dyn Terminal>, EditorError>> {
        let env = command.env.into_iter().map(|(name, value)| acp::EnvVariable::new(name, value)).collect::<Vec<_>>();
        let mut request = acp::CreateTerminalRequest::new(self.session.clone(), command.program)
            .args(command.args)
            .env(env)
            .cwd(command.cwd)
            .output_byte_limit(command.output_limit);
        if let Some(sandbox) = &command.sandbox {
            request = request.meta(Map::from_iter([(SANDBOX.to_owned(), json!(**sandbox))]));
        }
        let (client, session, tasks) = (self.client.clone(), self.session.clone(), self.tasks.clone());
        let (tell, told_later) = oneshot::channel();
        // If the caller has stopped waiting when the terminal arrives, it is dropped and thereby released.
        self.tasks.spawn(async move {
            let created = client.send_request(request).block_task().await.map_err(editor_error);
            let terminal =
                created.map(|created| ClientTerminal { client, session, tasks, id: Some(created.terminal_id) });
            drop(tell.send(terminal));
        });
        Box::pin(async move {
            let terminal = told_later.await.map_err(|_| EditorError::Failed("the connection ended".to_owned()))??;
            Ok(Box::new(terminal) as _)
        })
    }
}

struct ClientTerminal {
    client: ConnectionTo<Client>,
    session: acp::SessionId,
    tasks: TaskScope,
    /// `None` once the terminal is released.
    id: Option<acp::TerminalId>,
}

impl ClientTerminal {
    fn name(&self) -> acp::TerminalId {
        self.id.clone().unwrap_or_else(|| acp::TerminalId::new(""))
    }

    /// Releases the terminal, whether or not the caller awaits the future.
    fn give_back(&mut self) -> BoxFuture<'static, ()> {
        let Some(id) = self.id.take() else { return Box::pin(std::future::ready(())) };
        let request = acp::ReleaseTerminalRequest::new(self.session.clone(), id);
        let client = self.client.clone();
        let (done, returned) = oneshot::channel::<()>();
        self.tasks.spawn(async move {
            if let Err(error) = client.send_request(request).block_task().await {
                tracing::warn!(%error, "the client did not take its terminal back");
            }
            drop(done);
        });
        Box::pin(async move { drop(returned.await) })
    }
}

impl Terminal for ClientTerminal {
    fn id(&self) -> &str {
        self.id.as_ref().map_or("", |id| &id.0)
    }

    fn output(&self) -> BoxFuture<'_, Result<TerminalOutput, EditorError>> {
        let request = acp::TerminalOutputRequest::new(self.session.clone(), self.name());
        Box::pin(async move {
            let said = self.client.send_request(request).block_task().await.map_err(editor_error)?;
            Ok(TerminalOutput { text: said.output, truncated: said.truncated, exit: said.exit_status.map(exit) })
        })
    }

    fn wait(&self) -> BoxFuture<'_, Result<TerminalExit, EditorError>> {
        let request = acp::WaitForTerminalExitRequest::new(self.session.clone(), self.name());
        Box::pin(async move {
            Ok(exit(self.client.send_request(request).block_task().await.map_err(editor_error)?.exit_status))
        })
    }

    fn kill(&self) -> BoxFuture<'_, Result<(), EditorError>> {
        let request = acp::KillTerminalRequest::new(self.session.clone(), self.name());
        Box::pin(async move {
            self.client.send_request(request).block_task().await.map_err(editor_error)?;
            Ok(())
        })
    }

    fn release(mut self: Box<Self>) -> BoxFuture<'static, ()> {
        self.give_back()
    }
}

impl Drop for ClientTerminal {
    fn drop(&mut self) {
        drop(self.give_back());
    }
}

fn exit(status: acp::TerminalExitStatus) -> TerminalExit {
    TerminalExit { code: status.exit_code, signal: status.signal }
}

fn editor_error(error: agent_client_protocol::Error) -> EditorError {
    if error.code == acp::ErrorCode::ResourceNotFound {
        return EditorError::NotFound;
    }
    EditorError::Failed(error.message)
}
