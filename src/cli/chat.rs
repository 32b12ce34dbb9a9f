//! `skein chat`: a session in the terminal. A line is read, a turn is shown, and again.
//!
//! Invariant: Ctrl-C ends a turn, never the program; whatever ends the program, the turn so far is stored and the
//! terminal is as it was found.

mod calls;
mod commands;
mod inline;
mod input;
mod markdown;
mod resume;
mod screen;
mod table;
mod undo;

use std::collections::HashSet;
use std::io::{IsTerminal as _, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anstyle::{AnsiColor, Style};
use clap::Args;
use futures::FutureExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::consent::{AtTerminal, Floor};
use super::folders::Folders;
use super::keyboard::{Key, Keyboard};
use super::opening::{Opening, Suggested, TalkArgs, Which, help, missed, prompt_failure, welcome};
use super::output::{BOLD, Failure, Output, QUIET, shown_lines};
use super::started::{self, EndedBy, Started, session_failure};
use super::wrap::{Margin, Wrap, screen_width};
use super::{Global, attach, trust};
use crate::agents::{Ending, Event, Limits, Notifier, TurnEnd};
use crate::broker::Asker;
use crate::conversation::Content;
use crate::orchestrator::Wish;
use crate::session::{Live, PromptError};
use input::{Input, Typed};
use screen::Screen;

const PROMPT: &str = "› ";

#[derive(Debug, Args)]
pub(super) struct ChatArgs {
    #[command(flatten)]
    talk: TalkArgs,
    /// Continue a session of this folder; without an id, choose one
    #[arg(long, value_name = "ID", num_args = 0..=1)]
    resume: Option<Option<String>>,
    /// What to begin with, with files as @path
    prompt: Option<String>,
}

pub(super) fn run(args: &ChatArgs, global: &Global, folders: &Folders, output: &mut Output) -> Result<(), Failure> {
    let Some(keyboard) = Keyboard::of_stdin().filter(|_| stdout().is_terminal()) else {
        let which = if stdin().is_terminal() { "stdout" } else { "stdin" };
        return Err(Failure::usage(format!("{which} is no terminal"), "`skein run` is for scripts and pipes"));
    };
    trust::offer(folders, output)?;
    let (opening, plan) =
        Opening::prepare(&args.talk, Limits::default(), &Suggested::default(), global, folders, output)?;
    let input = Input::new(&folders.data, Arc::clone(&keyboard))?;
    let _as_found = keyboard.as_found();
    started::block_on_until(
        EndedBy::Hangup,
        plan,
        global,
        folders,
        output,
        async |started: &Started, output: &mut Output| {
            let mut interrupts = signal(SignalKind::interrupt())
                .map_err(|error| Failure::work(format!("Ctrl-C cannot be heard: {error}"), "use `skein run`"))?;
            let floor: Arc<Floor> = Arc::default();
            let asker = Arc::new(AtTerminal::new(Arc::clone(&keyboard), Arc::clone(&floor), folders));
            let which = match (&args.resume, args.talk.continues) {
                (Some(Some(id)), _) => Which::Id(id.clone()),
                (Some(None), _) => match resume::pick(&opening, &input, output).await? {
                    Some(which) => which,
                    None => return Ok(()),
                },
                (None, true) => Which::Newest,
                (None, false) => Which::New,
            };
            let screen = Screen::new(floor, folders.cwd.clone());
            let open = async {
                let (live, events) = opening.open(&which, Arc::clone(&asker) as Arc<dyn Asker>, started).await?;
                missed(&live, output).await?;
                if which == Which::New && opening.is_first() {
                    welcome(&live, "list, read FILE, search TEXT, run COMMAND; /help", output).await?;
                } else {
                    let choice = live.choice();
                    screen.remark(&format!("{} · {} · /help shows the commands", choice.mode, choice.model));
                }
                Ok((live, events))
            };
            // Services may take long to start.
            let (live, events) = tokio::select! {
                biased;
                _ = interrupts.recv() => return Err(Failure::Interrupted),
                opened = open => opened?,
            };
            resume::recall(&events, &screen);
            let (opening, reading) = (&opening, HashSet::new());
            let mut chat =
                Chat { opening, started, folders, keyboard, asker, screen, input, interrupts, live, reading };
            let talked = chat.talk(args.prompt.clone()).await;
            talked.and(chat.close().await)
        },
    )
}

/// Everything that a talk needs.
struct Chat<'a> {
    opening: &'a Opening<'a>,
    started: &'a Started,
    folders: &'a Folders,
    keyboard: Arc<Keyboard>,
    asker: Arc<AtTerminal>,
    screen: Arc<Screen>,
    input: Input,
    interrupts: Signal,
    live: Arc<Live>,
    /// The tools that only look, of all modes that the talk was in.
    reading: HashSet<String>,
}

impl Chat<'_> {
    /// Until somebody leaves.
    async fn talk(&mut self, first: Option<String>) -> Result<(), Failure> {
        let ended = self.started.interrupt();
        let mut given = first;
        // What the next line begins with.
        let mut begun = String::new();
        loop {
            let line = match given.take() {
                Some(line) => {
                    self.screen.say(&format!("\n{PROMPT}{}\n", shown_lines(&line)));
                    line
                }
                None => {
                    self.screen.say("\n");
                    let words = self.words().await;
                    begun.push_str(&self.keyboard.typed_ahead());
                    let typed = tokio::select! {
                        biased;
                        () = ended.cancelled() => return Err(Failure::Interrupted),
                        typed = self.input.line(PROMPT, std::mem::take(&mut begun), words) => typed,
                    };
                    match typed {
                        Typed::Line(line) => line,
                        Typed::Interrupted { empty: true } => {
                            self.screen.remark("Ctrl-D or /quit leaves");
                            continue;
                        }
                        Typed::Interrupted { empty: false } => continue,
                        Typed::Ended => break,
                        Typed::Broken(why) => return Err(input::broken(&why)),
                    }
                }
            };
            if line.trim().is_empty() {
                continue;
            }
            self.input.remember(&line);
            match self.understand(&line).await {
                Ok(commands::Meant::Prompt(prompt)) => self.turn(prompt, true).await,
                Ok(commands::Meant::Said(prompt)) => self.turn(prompt, false).await,
                Ok(commands::Meant::Done) => {}
                Ok(commands::Meant::Begin(text)) => begun = text,
                Ok(commands::Meant::Leave) => break,
                Err(failure) => self.tell(&failure),
            }
            if ended.is_cancelled() {
                return Err(Failure::Interrupted);
            }
        }
        Ok(())
    }

    /// Says how to go on, if there is something to go on with.
    async fn close(&self) -> Result<(), Failure> {
        if self.is_kept(&self.live).await? {
            self.screen.remark(&format!("skein chat --resume {} goes on with this session", self.live.id()));
        }
        Ok(())
    }

    /// False if nothing was said in the session; it is gone then.
    async fn is_kept(&self, live: &Live) -> Result<bool, Failure> {
        let (sessions, id) = (&self.opening.sessions, live.id());
        let events = sessions.events(id).await.map_err(|error| session_failure(&error))?;
        let kept = events.iter().any(|event| matches!(event, Event::Message { .. }));
        if !kept {
            sessions.delete(id).await.map_err(|error| session_failure(&error))?;
        }
        Ok(kept)
    }

    /// The line as a prompt, with the files it names.
    fn prompt(&self, line: &str) -> Result<Vec<Content>, Failure> {
        let (prompt, notes) = attach::prompt(line, &self.folders.cwd)?;
        notes.iter().for_each(|note| self.screen.remark(note));
        Ok(prompt)
    }

    /// One turn, from the prompt to what it took. Ctrl-C cancels it.
    async fn turn(&mut self, prompt: Vec<Content>, typed: bool) {
        let (live, orchestrator) = (Arc::clone(&self.live), self.opening.orchestrator.clone());
        self.screen.say("\n");
        let wish = Wish { typed, plan_only: false };
        let ended = async |front, cancel: &_| orchestrator.prompt(live.begin()?, prompt, wish, front, cancel).await;
        let ended = self.interruptible(ended).await;
        match ended {
            Ok(TurnEnd { ending, .. }) => match ending {
                // A call that was refused stands there as such.
                Ending::EndTurn | Ending::Cancelled | Ending::CallRefused { .. } => {}
                Ending::MaxTokens => {
                    self.screen.remark("the answer was cut at the longest that the model may say; ask it to go on");
                }
                Ending::Refusal => self.screen.remark("the model declined to answer, or its provider did"),
                Ending::Exhausted { why } => self.screen.remark(&format!("the turn ended: {why}")),
                Ending::Failed { why } => self.tell(&Failure::work(why.clone(), in_chat(help(&why)))),
            },
            Err(error) => self.tell(&prompt_failure(&error)),
        }
    }

    /// Work of the session that is shown while it is done, with what it took below it.
    async fn interruptible<T>(
        &mut self,
        work: impl AsyncFnOnce(Arc<dyn Notifier>, &tokio_util::sync::CancellationToken) -> Result<T, PromptError>,
    ) -> Result<T, PromptError> {
        // A Ctrl-C that came too late for the work before is not meant for this one.
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
        // A question that was taken back is over first, on the screen and at the keyboard.
        self.screen.settle();
        let taken = self.screen.end();
        drop(quiet);
        self.took(&taken, cancel.is_cancelled());
        result
    }

    /// Below each turn: how long, how many tokens, what they cost, how full the window is.
    fn took(&self, taken: &screen::Taken, cancelled: bool) {
        let mut parts = vec![format!("{:.1} s", taken.time.as_secs_f64())];
        if cancelled {
            parts.insert(0, "cancelled".to_owned());
        }
        let usage = &taken.usage;
        if usage.input + usage.output > 0 {
            let cached = if usage.cached > 0 { format!(" ({} cached)", usage.cached) } else { String::new() };
            parts.push(format!("{} tokens in{cached}, {} out", usage.input, usage.output));
        }
        parts.extend(self.live.cost_of(usage).map(|cost| format!("${cost:.4}")));
        if let Some(window) = self.live.window().filter(|_| taken.context > 0) {
            parts.push(format!("{} % of the window", taken.context * 100 / window.max(1)));
        }
        parts.push(self.live.choice().model);
        self.screen.say("\n");
        self.screen.remark(&parts.join(" · "));
    }

    /// Says what went wrong; the talk goes on.
    fn tell(&self, failure: &Failure) {
        let (problem, help) = match failure {
            Failure::Work { problem, help }
            | Failure::Usage { problem, help }
            | Failure::NoSession { problem, help } => (problem, help),
            _ => return self.screen.say(&failure.rendered()),
        };
        let red = AnsiColor::Red.on_default().bold();
        self.screen.say(&format!("{}{}", labelled("", "error", red, problem), labelled("  ", "help", QUIET, help)));
    }

    /// Whether a question of ours is answered with yes; Ctrl-C says no.
    async fn yes(&mut self) -> bool {
        let given_up: Arc<AtomicBool> = Arc::default();
        let (keyboard, screen, seen) = (Arc::clone(&self.keyboard), Arc::clone(&self.screen), Arc::clone(&given_up));
        let mut gap = "";
        let offer = move || {
            screen.say(&format!("{}{BOLD}y{BOLD:#} yes · {BOLD}n{BOLD:#} no ", std::mem::replace(&mut gap, "\n")));
            Ok(())
        };
        let meaning = |key| {
            Ok(match key {
                Key::Letter('y' | 'Y') => Some(true),
                Key::Letter('n' | 'N') | Key::Escape => Some(false),
                Key::Letter(_) | Key::Enter => None,
            })
        };
        let said = tokio::task::spawn_blocking(move || keyboard.ask(&seen, offer, meaning));
        tokio::select! {
            said = said => matches!(said, Ok(Ok(Some(true)))),
            _ = self.interrupts.recv() => {
                given_up.store(true, Ordering::Relaxed);
                false
            }
        }
    }
}

/// Somebody's words behind what they are, wrapped beside it. A line of theirs stays a line.
fn labelled(indent: &str, label: &str, style: Style, text: &str) -> String {
    let width = screen_width();
    let mut wrap = Wrap::default();
    let columns = indent.len() + label.len() + 2;
    let mut first = format!("{indent}{style}{label}{style:#}: ");
    for line in shown_lines(text).lines() {
        let next = " ".repeat(columns);
        wrap.begin(Margin { first: std::mem::replace(&mut first, next.clone()), next, width: columns });
        wrap.push(line, Style::new(), width);
        wrap.end(width);
    }
    wrap.take()
}

/// Advice for the command line, said inside of it.
fn in_chat(help: &'static str) -> String {
    help.replace("go on with -c when", "ask again when")
}
