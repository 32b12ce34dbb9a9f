//! Provides files, shell and plan: the tools for work on a code base.
//!
//! Invariant: the handler keeps no state except a cache of parsed files. The session stores what it has read, edited
//! or started.

mod analyze;
mod ask;
mod background;
mod buffers;
mod client_commands;
mod client_shell;
mod command;
mod command_report;
mod diff;
mod disk;
pub(super) mod edit;
mod files;
mod find;
mod list;
mod nearest;
mod notebook;
mod output;
pub(super) mod paths;
mod plan;
mod preview;
mod progress;
mod pump;
mod read;
mod report;
mod sandbox_remarks;
mod search;
mod session_state;
mod shell;
mod terminal;
mod text;
mod undo;
mod walk;
mod write;

#[cfg(test)]
mod fake_editor;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod testing;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;

use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler, tool, tool_handler, tool_router};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::code_index::SymbolCache;
use crate::process::Reaper;
use crate::sandbox::SandboxLauncher;
use crate::tool::{CallContext, SessionStates};

use super::answer::{ToolRefusal, ToolReply};
use super::schema;
pub(super) use command_report::MAX_TIMEOUT;
pub use preview::preview;
pub(super) use session_state::{DeveloperState, SessionServers};
pub(super) use shell::{DEFAULT_TIMEOUT, ProgramLine, Shell, check_folder, run_program};

/// Settings and ports from the host.
#[derive(Debug, Default)]
pub struct DeveloperOptions {
    /// Ends commands if Skein is killed.
    pub reaper: Option<Reaper>,
    /// Environment of commands. The shell adds a few variables that silence programs.
    pub environment: BTreeMap<OsString, OsString>,
    /// Starts the sandboxes of commands. `None`: a call whose sandbox is required is refused.
    pub sandbox: Option<SandboxLauncher>,
}

/// The `developer` service. Clones share all state.
#[derive(Clone)]
pub struct Developer {
    tool_router: Arc<ToolRouter<Self>>,
    shell: Arc<Shell>,
    states: Arc<SessionStates<DeveloperState>>,
    symbols: Arc<SymbolCache>,
}

impl std::fmt::Debug for Developer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Developer").finish_non_exhaustive()
    }
}

#[tool_router]
impl Developer {
    pub fn new(options: DeveloperOptions) -> Self {
        Self {
            tool_router: Arc::new(schema::slim(Self::tool_router())),
            shell: Arc::new(Shell::new(options)),
            states: Arc::default(),
            symbols: Arc::default(),
        }
    }

    /// Shares the state of the sessions with other instances, so that it outlives this one.
    #[must_use]
    pub(super) fn with_states(mut self, states: Arc<SessionStates<DeveloperState>>) -> Self {
        self.states = states;
        self
    }

    /// Shares the parsed source files with other instances, so that a service which starts again need not parse them.
    #[must_use]
    pub(super) fn with_symbols(mut self, symbols: Arc<SymbolCache>) -> Self {
        self.symbols = symbols;
        self
    }

    #[tool(
        description = "Run a command in the working directory; no stdin",
        annotations(read_only_hint = false, destructive_hint = true, idempotent_hint = false, open_world_hint = true)
    )]
    async fn shell(
        &self,
        Parameters(request): Parameters<shell::ShellCommand>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        let attended = CancellableCall::new(&context)?;
        let state = DeveloperState::of(&self.states, &attended.call.session);
        attended.until_done(shell::shell(&self.shell, &attended.call, &state, &request)).await
    }

    #[tool(
        description = "New output of a background command",
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = false, open_world_hint = false)
    )]
    async fn shell_output(
        &self,
        Parameters(request): Parameters<background::ShellOutput>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        let attended = CancellableCall::new(&context)?;
        let state = DeveloperState::of(&self.states, &attended.call.session);
        if attended.call.session.client_folders().is_some() {
            let work = client_shell::output(&attended.call, &state.client_commands, request.id, request.wait());
            return attended.until_done(work).await;
        }
        attended.until_done(background::shell_output(&attended.call, &state.commands, &request)).await
    }

    #[tool(
        description = "End a background command",
        annotations(read_only_hint = false, destructive_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn shell_stop(
        &self,
        Parameters(request): Parameters<background::ShellStop>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        let attended = CancellableCall::new(&context)?;
        let state = DeveloperState::of(&self.states, &attended.call.session);
        if attended.call.session.client_folders().is_some() {
            return attended.until_done(client_shell::stop(&attended.call, &state.client_commands, request.id)).await;
        }
        attended.until_done(background::shell_stop(&attended.call, &state.commands, &request)).await
    }

    #[tool(
        description = "Read a file: numbered lines, image, or notebook cells",
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn read_file(
        &self,
        Parameters(request): Parameters<read::ReadFile>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        let states = Arc::clone(&self.states);
        blocking(&context, move |call| {
            read::read_file(call, &DeveloperState::of(&states, &call.session).files, &request)
        })
        .await
    }

    #[tool(
        description = "Tree of a folder with line counts, without ignored files",
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn list_dir(
        &self,
        Parameters(request): Parameters<list::ListDir>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        blocking(&context, move |call| list::list_dir(call, &request)).await
    }

    #[tool(
        description = "Find files by glob, newest first",
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn find_files(
        &self,
        Parameters(request): Parameters<find::FindFiles>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        blocking(&context, move |call| find::find_files(call, &request)).await
    }

    #[tool(
        description = "Search file contents; ignored files are left out",
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn search(
        &self,
        Parameters(request): Parameters<search::SearchFiles>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        blocking(&context, move |call| search::search(call, &request)).await
    }

    #[tool(
        description = "Outline of a source file, overview of a folder, or callers and callees of a symbol",
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn analyze(
        &self,
        Parameters(request): Parameters<analyze::AnalyzeCode>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        let symbols = Arc::clone(&self.symbols);
        blocking(&context, move |call| analyze::analyze(call, &symbols, &request)).await
    }

    #[tool(
        description = "Create or replace a whole file. Read an existing one first; prefer edit_file",
        annotations(read_only_hint = false, destructive_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn write_file(
        &self,
        Parameters(request): Parameters<write::WriteFile>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        let states = Arc::clone(&self.states);
        blocking(&context, move |call| {
            write::write_file(call, &DeveloperState::of(&states, &call.session).files, &request)
        })
        .await
    }

    #[tool(
        description = "Replace exact text in a file: all edits in order, or none. Returns a diff",
        annotations(read_only_hint = false, destructive_hint = true, idempotent_hint = false, open_world_hint = false)
    )]
    async fn edit_file(
        &self,
        Parameters(request): Parameters<edit::EditFile>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        let states = Arc::clone(&self.states);
        blocking(&context, move |call| {
            edit::edit_file(call, &DeveloperState::of(&states, &call.session).files, &request)
        })
        .await
    }

    #[tool(
        description = "Undo this session's last edit of a file",
        annotations(read_only_hint = false, destructive_hint = true, idempotent_hint = false, open_world_hint = false)
    )]
    async fn undo_edit(
        &self,
        Parameters(request): Parameters<undo::UndoEdit>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        let states = Arc::clone(&self.states);
        blocking(&context, move |call| {
            undo::undo_edit(call, &DeveloperState::of(&states, &call.session).files, &request)
        })
        .await
    }

    #[tool(
        description = "Show the user the plan; send all steps each time",
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn update_plan(
        &self,
        Parameters(request): Parameters<plan::UpdatePlan>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        plan::update_plan(&CancellableCall::new(&context)?.call, request)
    }
}

#[tool_handler(
    router = self.tool_router,
    name = "developer",
    instructions = "Find your way with list_dir, find_files, search and analyze; read a file before you change it.\n\
        In edit_file, copy `before` exactly, with enough lines to be unique.\n\
        Give long-running commands of shell `background: true` and read them with shell_output.\n\
        Give shell commands that change nothing `read_only: true`; they need no approval."
)]
impl ServerHandler for Developer {}

/// A call that either side can cancel: the host by the call's token, a client by the request's token.
struct CancellableCall {
    call: CallContext,
    request: CancellationToken,
    /// Cancels work in another thread when its caller no longer waits.
    _abandoned: DropGuard,
}

impl CancellableCall {
    fn new(context: &RequestContext<RoleServer>) -> Result<Self, ToolRefusal> {
        let call = context.extensions.get::<CallContext>().cloned().ok_or_else(|| {
            ToolRefusal::new("the call came without a session; this is a fault of the host, tell the user")
        })?;
        if call.cancel.is_cancelled() || context.ct.is_cancelled() {
            return Err(ToolRefusal::new("the call was cancelled before it began; nothing was done"));
        }
        let cancel = call.cancel.child_token();
        let call = call.with_cancel(cancel.clone());
        Ok(Self { call, request: context.ct.clone(), _abandoned: cancel.drop_guard() })
    }

    /// Runs `work` to its end. If the client cancels, cancels the work and returns its answer.
    async fn until_done(&self, work: impl Future<Output = ToolReply>) -> ToolReply {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            () = self.request.cancelled() => {
                self.call.cancel.cancel();
                work.await
            }
            answer = &mut work => answer,
        }
    }
}

/// Runs file operations on a blocking thread, so that they do not block other tasks. A panic becomes a refusal.
async fn blocking(
    context: &RequestContext<RoleServer>,
    work: impl FnOnce(&CallContext) -> ToolReply + Send + 'static,
) -> ToolReply {
    let attended = CancellableCall::new(context)?;
    let call = attended.call.clone();
    let done = async {
        crate::task::run_blocking(move || work(&call)).await.unwrap_or_else(|error| {
            Err(ToolRefusal::new(format!("the tool failed in a way it should not: {error}; try another way")))
        })
    };
    attended.until_done(done).await
}

#[cfg(test)]
#[path = "developer/developer_tests.rs"]
mod tests;
