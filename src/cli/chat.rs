//! `skein chat`: an interactive session in the terminal. Reads a line, runs a turn, and repeats.
//!
//! Invariant: Ctrl-C ends a turn, never the program. However the program ends, the turn so far is stored and the
//! terminal is restored.

mod calls;
mod commands;
mod inline;
mod input;
mod library;
mod markdown;
mod resume;
mod screen;
mod table;
mod undo;

use std::collections::HashSet;
use std::io::{IsTerminal as _, stderr, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anstyle::{AnsiColor, Style};
use clap::Args;
use futures::FutureExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::consent::{ScreenLock, TerminalAsker};
use super::folders::Folders;
use super::keyboard::{Key, Keyboard};
use super::output::{BOLD, CommandError, CommandOutput, QUIET, display_lines};
use super::reload::{self, ReloadTriggers};
use super::runtime::{self, CommandRuntime, StopSignals, WorkerThreads, session_failure};
use super::session_flags::{
    LaunchSettings, SessionDefaults, SessionFlags, SessionSelector, print_notices, prompt_failure, rejection_help,
    welcome,
};
use super::upgrade::{self, Reader};
use super::workspace_loader::FileTraces;
use super::wrap::{Margin, Wrap, screen_width};
use super::{Global, attach, trust};
use crate::agents::{Event, Notifier, StopReason, TurnEnd, TurnLimits};
use crate::conversation::Content;
use crate::orchestrator::PromptOptions;
use crate::principal::SessionFiles;
use crate::project::{LaunchedSession, ProjectLoader, SessionProject, load_project};
use crate::session::{PromptError, Session, name_session};
use crate::task::TaskScope;
use crate::tool::ask::Asker;
use input::{Input, LineInput};
use screen::Screen;

const PROMPT: &str = "› ";

#[derive(Debug, Args)]
pub(super) struct ChatArgs {
    #[command(flatten)]
    talk: SessionFlags,
    /// Continue a session of this folder; without an id, choose one
    #[arg(long, value_name = "ID", num_args = 0..=1)]
    resume: Option<Option<String>>,
    /// Set the first prompt, with files as @path
    prompt: Option<String>,
}

pub(super) fn run(
    args: &ChatArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let streams =
        [("stdin", stdin().is_terminal()), ("stdout", stdout().is_terminal()), ("stderr", stderr().is_terminal())];
    // Questions go to stderr, and a key must not answer one that is not visible.
    let missing = streams.into_iter().find(|(_, is_terminal)| !is_terminal);
    let (None, Some(keyboard)) = (missing, Keyboard::from_stdin()) else {
        let which = missing.map_or("stdin", |(name, _)| name);
        return Err(CommandError::usage(format!("{which} is no terminal"), "`skein run` is for scripts and pipes"));
    };
    trust::offer(global, folders, output)?;
    let changes = upgrade::changes_once(folders, Reader::User);
    let files = FileTraces::of(global, folders);
    let (opening, plan) = LaunchSettings::prepare(
        &args.talk,
        TurnLimits::default(),
        &SessionDefaults::default(),
        global,
        folders,
        output,
    )?;
    let input = Input::new(&folders.data, Arc::clone(&keyboard))?;
    let _as_found = keyboard.guard_terminal();
    runtime::block_on_until(
        StopSignals::TerminalOnly,
        WorkerThreads::One,
        plan,
        global,
        folders,
        output,
        async |started: &CommandRuntime, output: &mut CommandOutput| {
            let mut interrupts = signal(SignalKind::interrupt())
                .map_err(|error| CommandError::work(format!("Ctrl-C cannot be handled: {error}"), "use `skein run`"))?;
            let loader = Arc::new(opening.loader(files, global, started));
            let background = TaskScope::new();
            reload::watch(&loader, ReloadTriggers::Signal, &background);
            let floor: Arc<ScreenLock> = Arc::default();
            let asker = Arc::new(TerminalAsker::new(Arc::clone(&keyboard), Arc::clone(&floor), folders));
            let which = match (&args.resume, args.talk.continues) {
                (Some(Some(id)), _) => SessionSelector::Id(id.clone()),
                (Some(None), _) => match resume::pick(&opening, &input, output).await? {
                    Some(which) => which,
                    None => return Ok(()),
                },
                (None, true) => SessionSelector::Newest,
                (None, false) => SessionSelector::New,
            };
            if let Some(changes) = &changes {
                output.aside(&format!("{changes}\n"));
            }
            let screen = Screen::new(floor, folders.cwd.clone());
            let open = async {
                let launched = opening.open(&which, Arc::clone(&asker) as Arc<dyn Asker>, started).await?;
                let LaunchedSession { session, events } = launched;
                print_notices(&session, output).await?;
                if which == SessionSelector::New && opening.is_first() {
                    welcome(&session, "list, read FILE, search TEXT, run COMMAND; /help", output).await?;
                } else {
                    let choice = session.choice();
                    screen.remark(&format!("{} · {} · /help shows the commands", choice.mode, choice.model));
                }
                Ok::<_, CommandError>((session, events))
            };
            // Services may take long to start, so Ctrl-C ends the program here.
            let (session, events) = tokio::select! {
                biased;
                _ = interrupts.recv() => return Err(CommandError::Interrupted),
                opened = open => opened?,
            };
            resume::recall(&events, &screen);
            let (opening, reading) = (&opening, HashSet::new());
            let naming = TaskScope::new();
            let project = SessionProject::new(opening.project(started));
            let mut chat = Chat {
                opening,
                projects: loader,
                project,
                started,
                folders,
                keyboard,
                asker,
                screen,
                input,
                interrupts,
                session,
                reading,
                naming,
            };
            let talked = chat.talk(args.prompt.clone()).await;
            background.stop().await;
            talked.and(chat.close().await)
        },
    )
}

/// State of an interactive session.
struct Chat<'a> {
    opening: &'a LaunchSettings<'a>,
    projects: Arc<dyn ProjectLoader>,
    /// What applies to the session and to those that follow it.
    project: SessionProject,
    started: &'a CommandRuntime,
    folders: &'a Folders,
    keyboard: Arc<Keyboard>,
    asker: Arc<TerminalAsker>,
    screen: Arc<Screen>,
    input: Input,
    interrupts: Signal,
    session: Arc<Session>,
    /// The read-only tools of all modes that this session has used.
    reading: HashSet<String>,
    /// Names sessions; each task ends with its session.
    naming: TaskScope,
}

impl Chat<'_> {
    /// Reads and runs lines until the user leaves.
    async fn talk(&mut self, first: Option<String>) -> Result<(), CommandError> {
        let ended = self.started.interrupt();
        let mut given = first;
        // Initial text of the next line.
        let mut initial = String::new();
        loop {
            let line = match given.take() {
                Some(line) => {
                    self.screen.print_text(&format!("\n{PROMPT}{}\n", display_lines(&line)));
                    line
                }
                None => {
                    self.screen.print_text("\n");
                    let words = self.words().await;
                    initial.push_str(&self.keyboard.take_typed_ahead());
                    let typed = tokio::select! {
                        biased;
                        () = ended.cancelled() => return Err(CommandError::Interrupted),
                        typed = self.input.line(PROMPT, &initial, words) => typed,
                    };
                    initial.clear();
                    match typed {
                        LineInput::Line(line) => line,
                        LineInput::Interrupted { empty: true } => {
                            self.screen.remark("Ctrl-D or /quit leaves");
                            continue;
                        }
                        LineInput::Interrupted { empty: false } => continue,
                        LineInput::Ended => break,
                        LineInput::Broken(why) => return Err(input::editor_failure(&why)),
                    }
                }
            };
            if line.trim().is_empty() {
                continue;
            }
            self.input.remember(&line);
            self.reload(&line).await;
            match self.understand(&line).await {
                Ok(commands::LineAction::Prompt(prompt)) => self.turn(prompt, true).await,
                Ok(commands::LineAction::Said(prompt)) => self.turn(prompt, false).await,
                Ok(commands::LineAction::Done) => {}
                Ok(commands::LineAction::Begin(text)) => initial = text,
                Ok(commands::LineAction::Leave) => break,
                Err(failure) => self.report_error(&failure),
            }
            if ended.is_cancelled() {
                return Err(CommandError::Interrupted);
            }
        }
        Ok(())
    }

    /// Applies changed manifests and settings before a line is run. A turn shows the notices about them; before a command
    /// they are printed.
    async fn reload(&self, line: &str) {
        let grant = self.session.sessions().grant();
        let loaded = load_project(&self.projects, &self.folders.cwd, SessionFiles::Server, grant).await;
        self.project.reload(&self.session, loaded).await;
        if line.starts_with('/') {
            self.session.take_notices().iter().for_each(|notice| self.screen.remark(&notice.text));
        }
    }

    /// Prints the command that resumes the session, unless the session is empty.
    async fn close(&self) -> Result<(), CommandError> {
        if self.is_kept(&self.session).await? {
            self.screen.remark(&format!("skein chat --resume {} continues this session", self.session.id()));
        }
        Ok(())
    }

    /// Returns false and deletes the session if it has no messages.
    async fn is_kept(&self, session: &Session) -> Result<bool, CommandError> {
        let (sessions, id) = (&self.opening.sessions, session.id());
        let events = sessions.events(id).await.map_err(|error| session_failure(&error))?;
        let kept = events.iter().any(|event| matches!(event, Event::Message { .. }));
        if !kept {
            sessions.delete(id).await.map_err(|error| session_failure(&error))?;
        }
        Ok(kept)
    }

    /// Converts the line to a prompt with the files and resources it names.
    async fn prompt(&self, line: &str) -> Result<Vec<Content>, CommandError> {
        let (prompt, notes) = attach::prompt(line, &self.opening.work_folders())?;
        notes.iter().for_each(|note| self.screen.remark(note));
        self.attach_named_resources(line, prompt).await
    }

    /// Runs one turn and prints its usage. Ctrl-C cancels it.
    async fn turn(&mut self, prompt: Vec<Content>, typed: bool) {
        let (session, orchestrator) = (Arc::clone(&self.session), self.opening.orchestrator.clone());
        self.screen.print_text("\n");
        let options = PromptOptions { from_user: typed, plan_only: false };
        let ended =
            async |front, cancel: &_| orchestrator.prompt(session.begin()?, prompt, options, front, cancel).await;
        let ended = self.interruptible(ended).await;
        if let Ok(TurnEnd { ending: StopReason::EndTurn, .. }) = &ended
            && let Some(naming) = name_session(&self.session)
        {
            self.naming.spawn(async move { drop(naming.await) });
        }
        match ended {
            Ok(TurnEnd { ending, .. }) => match ending {
                // The call itself is shown as refused.
                StopReason::EndTurn | StopReason::Cancelled | StopReason::CallRefused { .. } => {}
                StopReason::MaxTokens => {
                    self.screen.remark("the answer was cut at the longest that the model may say; ask it to continue");
                }
                StopReason::Refusal => self.screen.remark("the model declined to answer, or its provider did"),
                StopReason::Exhausted { why } => self.screen.remark(&format!("the turn ended: {why}")),
                StopReason::Failed { why, status } => {
                    let help = rejection_help(status).unwrap_or("ask again when it works again; see the log");
                    self.report_error(&CommandError::work(why, help))
                }
            },
            Err(error) => self.report_error(&prompt_failure(&error)),
        }
    }

    /// Runs `work` of the session, shows its progress, and prints its usage below. Ctrl-C cancels it.
    async fn interruptible<T>(
        &mut self,
        work: impl AsyncFnOnce(Arc<dyn Notifier>, &tokio_util::sync::CancellationToken) -> Result<T, PromptError>,
    ) -> Result<T, PromptError> {
        // Discard a Ctrl-C that came too late for the previous work.
        while self.interrupts.recv().now_or_never().is_some() {}
        let quiet = self.keyboard.quiet();
        let cancel = self.started.interrupt().child_token();
        self.screen.begin();
        let work = work(Arc::clone(&self.screen) as Arc<dyn Notifier>, &cancel);
        tokio::pin!(work);
        let result = loop {
            tokio::select! {
                biased;
                result = &mut work => break result,
                _ = self.interrupts.recv() => cancel.cancel(),
            }
        };
        // A cancelled question must first leave the screen and release the keyboard.
        self.screen.settle();
        let taken = self.screen.end();
        drop(quiet);
        self.took(&taken, cancel.is_cancelled());
        result
    }

    /// Prints the time, tokens and cost of a turn, and how full the context window is.
    fn took(&self, taken: &screen::TurnUsage, cancelled: bool) {
        let mut parts = vec![format!("{:.1} s", taken.time.as_secs_f64())];
        if cancelled {
            parts.insert(0, "cancelled".to_owned());
        }
        let usage = &taken.usage;
        if usage.input + usage.output > 0 {
            let cached = if usage.cached > 0 { format!(" ({} cached)", usage.cached) } else { String::new() };
            parts.push(format!("{} tokens in{cached}, {} out", usage.input, usage.output));
        }
        parts.extend(self.session.cost_of(usage).map(|cost| format!("${cost:.4}")));
        if let Some(window) = self.session.window().filter(|_| taken.context > 0) {
            parts.push(format!("{} % of the window", taken.context * 100 / window.max(1)));
        }
        parts.push(self.session.choice().model.to_string());
        self.screen.print_text("\n");
        self.screen.remark(&parts.join(" · "));
    }

    /// Prints an error; the session continues. The audit log has what a managed setting refuses.
    fn report_error(&self, failure: &CommandError) {
        if let CommandError::Managed { subject, setting, .. } = failure {
            self.session.record_managed(subject, setting);
        }
        let (problem, help) = match failure {
            CommandError::Work { problem, help }
            | CommandError::Usage { problem, help }
            | CommandError::Managed { problem, help, .. }
            | CommandError::NoSession { problem, help } => (problem, help),
            _ => return self.screen.print_text(&failure.render()),
        };
        let red = AnsiColor::Red.on_default().bold();
        self.screen.print_text(&format!(
            "{}{}",
            render_labelled("", "error", red, problem),
            render_labelled("  ", "help", QUIET, help)
        ));
    }

    /// Reads the answer to a yes-or-no question. `None` if Ctrl-C cancels it or the terminal cannot be used.
    async fn yes(&mut self) -> Option<bool> {
        // Discard a Ctrl-C that came before.
        while self.interrupts.recv().now_or_never().is_some() {}
        let given_up: Arc<AtomicBool> = Arc::default();
        let (keyboard, screen, seen) = (Arc::clone(&self.keyboard), Arc::clone(&self.screen), Arc::clone(&given_up));
        let mut gap = "";
        let offer = move || {
            screen
                .print_text(&format!("{}{BOLD}y{BOLD:#} yes · {BOLD}n{BOLD:#} no ", std::mem::replace(&mut gap, "\n")));
            Ok(())
        };
        let meaning = |key| {
            Ok(match key {
                Key::Letter('y' | 'Y') => Some(true),
                Key::Letter('n' | 'N') | Key::Escape => Some(false),
                Key::Letter(_) | Key::Enter => None,
            })
        };
        let mut said = tokio::task::spawn_blocking(move || keyboard.ask(&seen, offer, meaning));
        let said = tokio::select! {
            said = &mut said => said,
            _ = self.interrupts.recv() => {
                given_up.store(true, Ordering::Relaxed);
                // The reader must first release the keyboard.
                said.await.map(|_| Ok(None))
            }
        };
        said.ok().and_then(Result::ok).flatten()
    }
}

/// Renders `text` after its label, with a hanging indent. Keeps its line breaks.
fn render_labelled(indent: &str, label: &str, style: Style, text: &str) -> String {
    let width = screen_width();
    let mut wrap = Wrap::default();
    let columns = indent.len() + label.len() + 2;
    let mut first = format!("{indent}{style}{label}{style:#}: ");
    for line in display_lines(text).lines() {
        let next = " ".repeat(columns);
        wrap.begin(Margin { first: std::mem::replace(&mut first, next.clone()), next, width: columns });
        wrap.push(line, Style::new(), width);
        wrap.end(width);
    }
    wrap.take()
}
