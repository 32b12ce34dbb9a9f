//! Keeps the background commands of a session that run at its client.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::services::builtin::answer::ToolRefusal;
use crate::tool::editor::Terminal;

/// Background commands that a session keeps.
const MAX_COMMANDS: usize = 16;

/// The background commands of a session at its client.
#[derive(Debug, Default)]
pub(super) struct ClientCommands {
    table: Mutex<ClientCommandTable>,
}

#[derive(Debug, Default)]
struct ClientCommandTable {
    last: u32,
    commands: BTreeMap<u32, Arc<ClientCommand>>,
}

/// A background command. Dropping it releases its terminal, which ends it.
pub(super) struct ClientCommand {
    pub(super) line: String,
    pub(super) terminal: Box<dyn Terminal>,
    pub(super) started: Instant,
    /// Bytes of the output that the model has.
    pub(super) shown: Mutex<usize>,
    pub(super) has_ended: AtomicBool,
}

impl std::fmt::Debug for ClientCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientCommand").field("line", &self.line).finish_non_exhaustive()
    }
}

impl ClientCommands {
    fn lock(&self) -> MutexGuard<'_, ClientCommandTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if no further command may run. Forgets commands that have ended, if there are too many.
    pub(super) fn check_room(&self) -> Result<(), ToolRefusal> {
        let mut table = self.lock();
        if table.commands.len() >= MAX_COMMANDS {
            table.commands.retain(|_, command| !command.has_ended.load(Ordering::Relaxed));
        }
        if table.commands.len() < MAX_COMMANDS {
            return Ok(());
        }
        Err(ToolRefusal::new(format!("{MAX_COMMANDS} background commands run already; end one with `shell_stop`")))
    }

    pub(super) fn add(&self, line: &str, terminal: Box<dyn Terminal>) -> u32 {
        let command = ClientCommand {
            line: line.to_owned(),
            terminal,
            started: Instant::now(),
            shown: Mutex::default(),
            has_ended: AtomicBool::new(false),
        };
        let mut table = self.lock();
        table.last += 1;
        let id = table.last;
        table.commands.insert(id, Arc::new(command));
        id
    }

    pub(super) fn find(&self, id: u32) -> Result<Arc<ClientCommand>, ToolRefusal> {
        let table = self.lock();
        table.commands.get(&id).cloned().ok_or_else(|| {
            let known: Vec<String> = table.commands.keys().map(u32::to_string).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            ToolRefusal::new(format!("there is no background command {id} in this session; there are: {known}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::future::{BoxFuture, pending, ready};

    use super::*;
    use crate::tool::editor::{EditorError, TerminalExit, TerminalOutput};

    /// A terminal whose command never ends.
    struct EndlessTerminal;

    impl Terminal for EndlessTerminal {
        fn id(&self) -> &str {
            "terminal"
        }

        fn output(&self) -> BoxFuture<'_, Result<TerminalOutput, EditorError>> {
            pending().boxed()
        }

        fn wait(&self) -> BoxFuture<'_, Result<TerminalExit, EditorError>> {
            pending().boxed()
        }

        fn kill(&self) -> BoxFuture<'_, Result<(), EditorError>> {
            pending().boxed()
        }

        fn release(self: Box<Self>) -> BoxFuture<'static, ()> {
            ready(()).boxed()
        }
    }

    #[test]
    fn a_further_command_at_a_client_is_refused_until_one_ends() {
        let commands = ClientCommands::default();
        for _ in 0..MAX_COMMANDS {
            assert!(commands.check_room().is_ok());
            commands.add("sleep 300", Box::new(EndlessTerminal));
        }
        assert!(commands.check_room().is_err());
        commands.find(1).unwrap().has_ended.store(true, Ordering::Relaxed);
        assert!(commands.check_room().is_ok());
        assert!(commands.find(1).is_err(), "the ended command made room");
    }
}
