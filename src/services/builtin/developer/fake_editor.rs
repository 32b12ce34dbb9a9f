//! An editor for tests: buffers in memory above the files on disk, terminals with real processes, and faults on
//! demand.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::io::AsyncReadExt as _;
use tokio::sync::watch;

use crate::process::{Launch, ProcessGroup, Stdin, minimal_environment};
use crate::task::TaskScope;
use crate::tool::editor::{
    Editor, EditorCapabilities, EditorError, Terminal, TerminalCommand, TerminalExit, TerminalOutput,
};

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) enum Fault {
    #[default]
    Never,
    Fails,
    Hangs,
}

#[derive(Debug, Default)]
pub(super) struct FakeEditor {
    pub(super) abilities: EditorCapabilities,
    /// Text that was not saved.
    pub(super) unsaved: Mutex<HashMap<PathBuf, String>>,
    /// What it was asked for, in order.
    pub(super) asked: Mutex<Vec<String>>,
    pub(super) faults: Mutex<Faults>,
    /// What saving makes of a text.
    pub(super) on_save: Option<fn(&str) -> String>,
    /// Lines end in LF to whoever asks, as in editors that keep line ends apart.
    pub(super) without_cr: bool,
    pub(super) terminals: Arc<Terminals>,
    /// A moment if it is not said; what is answered at all is answered at once, so no test depends on it.
    pub(super) patience: Option<Duration>,
    /// Told of every question.
    pub(super) heard: tokio::sync::Notify,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) read: Fault,
    pub(super) write: Fault,
    pub(super) run: Fault,
    pub(super) output: Fault,
}

#[derive(Debug, Default)]
pub(super) struct Terminals {
    pub(super) created: AtomicUsize,
    pub(super) killed: AtomicUsize,
    pub(super) released: AtomicUsize,
    pub(super) commands: Mutex<Vec<TerminalCommand>>,
}

impl Terminals {
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let count = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
        (count(&self.created), count(&self.killed), count(&self.released))
    }
}

impl FakeEditor {
    pub(super) fn lending_files() -> Self {
        Self {
            abilities: EditorCapabilities { read: true, write: true, ..EditorCapabilities::default() },
            ..Self::default()
        }
    }

    pub(super) fn lending_terminals() -> Self {
        Self { abilities: EditorCapabilities { terminal: true, ..EditorCapabilities::default() }, ..Self::default() }
    }

    pub(super) fn type_into(&self, path: &Path, text: &str) {
        self.unsaved.lock().unwrap().insert(path.to_owned(), text.to_owned());
    }

    pub(super) fn buffer(&self, path: &Path) -> Option<String> {
        self.unsaved.lock().unwrap().get(path).cloned()
    }

    pub(super) fn fault(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults.lock().unwrap());
    }

    /// What it was asked for since the last time.
    pub(super) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    fn hear(&self, question: &str, path: &Path) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.asked.lock().unwrap().push(format!("{question} {name}"));
        self.heard.notify_one();
    }

    fn answer<T: Send + 'static>(
        &self,
        fault: fn(&Faults) -> Fault,
        answer: impl FnOnce() -> Result<T, EditorError>,
    ) -> BoxFuture<'static, Result<T, EditorError>> {
        let fault = fault(&self.faults.lock().unwrap());
        faulty(fault, answer)
    }
}

fn faulty<T: Send + 'static>(
    fault: Fault,
    answer: impl FnOnce() -> Result<T, EditorError>,
) -> BoxFuture<'static, Result<T, EditorError>> {
    match fault {
        Fault::Never => futures::future::ready(answer()).boxed(),
        Fault::Fails => futures::future::ready(Err(EditorError::Failed("it is out of order".to_owned()))).boxed(),
        Fault::Hangs => futures::future::pending().boxed(),
    }
}

impl Editor for FakeEditor {
    fn abilities(&self) -> EditorCapabilities {
        self.abilities
    }

    fn patience(&self) -> Duration {
        self.patience.unwrap_or(Duration::from_millis(20))
    }

    fn read(&self, path: &Path) -> BoxFuture<'_, Result<String, EditorError>> {
        self.hear("read", path);
        self.answer(
            |faults| faults.read,
            || {
                let text = match self.buffer(path) {
                    Some(text) => text,
                    None => std::fs::read_to_string(path).map_err(|_| EditorError::NotFound)?,
                };
                Ok(if self.without_cr { text.replace("\r\n", "\n") } else { text })
            },
        )
    }

    fn write(&self, path: &Path, text: String) -> BoxFuture<'_, Result<(), EditorError>> {
        self.hear("write", path);
        self.answer(
            |faults| faults.write,
            || {
                let crlf = std::fs::read_to_string(path).is_ok_and(|text| text.contains("\r\n"));
                let text = if self.without_cr && crlf { text.replace('\n', "\r\n") } else { text };
                let text = self.on_save.map_or(text.clone(), |on_save| on_save(&text));
                self.unsaved.lock().unwrap().remove(path);
                std::fs::write(path, text).map_err(|error| EditorError::Failed(error.to_string()))
            },
        )
    }

    fn run(&self, command: TerminalCommand) -> BoxFuture<'_, Result<Box<dyn Terminal>, EditorError>> {
        let output = self.faults.lock().unwrap().output;
        self.answer(
            |faults| faults.run,
            || {
                let number = self.terminals.created.fetch_add(1, Ordering::SeqCst) + 1;
                let terminal = FakeTerminal::start(number, &command, output, Arc::clone(&self.terminals));
                self.terminals.commands.lock().unwrap().push(command);
                Ok(Box::new(terminal) as Box<dyn Terminal>)
            },
        )
    }
}

struct FakeTerminal {
    id: String,
    output: Fault,
    state: Arc<watch::Sender<TerminalOutput>>,
    scope: TaskScope,
    terminals: Arc<Terminals>,
}

impl FakeTerminal {
    fn start(number: usize, command: &TerminalCommand, output: Fault, terminals: Arc<Terminals>) -> Self {
        let path = ("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into());
        let given = command.env.iter().map(|(name, value)| (name.into(), value.into()));
        let launch = Launch {
            program: (&command.program).into(),
            args: command.args.iter().map(Into::into).collect(),
            env: minimal_environment([path]).into_iter().chain(given).collect(),
            cwd: Some(command.cwd.clone()),
            stdin: Stdin::Closed,
            launcher: None,
        };
        let (mut group, mut pipes) = ProcessGroup::spawn(&launch, None).unwrap();
        let state = Arc::new(watch::Sender::new(TerminalOutput { text: String::new(), truncated: false, exit: None }));
        let (scope, shared) = (TaskScope::new(), Arc::clone(&state));
        let (cancelled, limit) = (scope.cancelled().clone(), usize::try_from(command.output_limit).unwrap());
        scope.spawn(async move {
            let (mut chunk, mut killed) = ([0; 4096], false);
            loop {
                tokio::select! {
                    read = pipes.stdout.read(&mut chunk) => match read {
                        Ok(0) | Err(_) => break,
                        Ok(length) => shared.send_modify(|state| keep(state, &chunk[..length], limit)),
                    },
                    () = cancelled.cancelled(), if !killed => {
                        group.kill();
                        killed = true;
                    }
                }
            }
            let status = group.status().await.unwrap();
            use std::os::unix::process::ExitStatusExt as _;
            let signal = status.signal().map(|signal| signal.to_string());
            let exit = TerminalExit { code: status.code().map(i32::cast_unsigned), signal };
            shared.send_modify(|state| state.exit = Some(exit));
        });
        Self { id: format!("terminal-{number}"), output, state, scope, terminals }
    }
}

fn keep(state: &mut TerminalOutput, bytes: &[u8], limit: usize) {
    state.text.push_str(&String::from_utf8_lossy(bytes));
    if state.text.len() > limit {
        state.text.drain(..state.text.len() - limit);
        state.truncated = true;
    }
}

impl Terminal for FakeTerminal {
    fn id(&self) -> &str {
        &self.id
    }

    fn output(&self) -> BoxFuture<'_, Result<TerminalOutput, EditorError>> {
        faulty(self.output, || Ok(self.state.borrow().clone()))
    }

    fn wait(&self) -> BoxFuture<'_, Result<TerminalExit, EditorError>> {
        let mut state = self.state.subscribe();
        async move {
            let ended = state.wait_for(|state| state.exit.is_some()).await.unwrap();
            Ok(ended.exit.clone().unwrap())
        }
        .boxed()
    }

    fn kill(&self) -> BoxFuture<'_, Result<(), EditorError>> {
        self.terminals.killed.fetch_add(1, Ordering::SeqCst);
        self.scope.cancel();
        futures::future::ready(Ok(())).boxed()
    }

    fn release(self: Box<Self>) -> BoxFuture<'static, ()> {
        drop(self);
        futures::future::ready(()).boxed()
    }
}

impl Drop for FakeTerminal {
    fn drop(&mut self) {
        self.terminals.released.fetch_add(1, Ordering::SeqCst);
        self.scope.cancel();
    }
}
