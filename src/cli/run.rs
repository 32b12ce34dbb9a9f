//! `skein run`: one prompt, one session; the answer on stdout, progress on stderr.

use std::io::{BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anstyle::AnsiColor;
use clap::Args;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::folders::Folders;
use super::output::{Failure, Output, QUIET, shown};
use super::started::{self, Started};
use super::{Global, agents, models, workspace};
use crate::agents::{
    Ending, Event, Exchange, History, Limits, Notifier, Setting, Status, TurnEnd, memories, system_prompt,
};
use crate::broker::{Answer, Asker, Nobody, Question, Terms};
use crate::conversation::{Content, Role};

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The agent
    #[arg(long, short, default_value = "goose")]
    agent: String,
    /// Its mode; the default one if left out
    #[arg(long, short)]
    mode: Option<String>,
    /// The model, as provider:model, or replay:FILE; the profile's if left out, or else `offline`, which calls
    /// tools by name
    #[arg(long, env = "SKEIN_MODEL")]
    model: Option<String>,
    /// Write what the model says to a file that `--model replay:FILE` plays
    #[arg(long, value_name = "FILE")]
    record_model: Option<PathBuf>,
    /// How to print the answer
    #[arg(long, value_enum, default_value_t = RunOutput::Text)]
    output: RunOutput,
    /// The same as --output json
    #[arg(long, conflicts_with = "output")]
    json: bool,
    /// How often the model may be asked in one turn
    #[arg(long, value_name = "N", default_value_t = Limits::default().requests)]
    max_turns: usize,
    /// What to do; read from stdin if left out
    prompt: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, clap::ValueEnum)]
enum RunOutput {
    /// The answer alone
    Text,
    /// One object: session, agent, mode, stop_reason, text, usage, error
    Json,
    /// One event a line, as they happen
    StreamJson,
}

pub(super) fn run(args: &RunArgs, global: &Global, folders: &Folders, output: &mut Output) -> Result<(), Failure> {
    let plan = workspace::plan(global, folders, output)?;
    let agent = agents::find(&plan, &args.agent)?;
    let id = agents::mode_of(agent, args.mode.as_deref())?;
    agents::offered(&plan, &id)?;
    if agent.manifest.runtime.is_some() {
        let problem = format!("`{}` is an external agent, which this skein cannot run yet", args.agent);
        return Err(Failure::usage(problem, "choose another agent"));
    }
    let model = args.model.as_deref().filter(|model| !model.is_empty());
    let (provider, upkeep) = models::chosen(&plan, model, args.record_model.as_deref())?;
    let prompt = prompt_text(args)?;
    let format = if args.json { RunOutput::Json } else { args.output };
    let approval = global.approval.map(Into::into);
    let limits = Limits { requests: args.max_turns.max(1), ..Limits::default() };
    started::block_on(plan, global, folders, output, async move |started: &Started, output: &mut Output| {
        let session = Arc::clone(&started.session);
        let interactive = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        let asker: Arc<dyn Asker> = if interactive { Arc::new(Terminal) } else { Arc::new(Nobody) };
        let terms = Terms { session: Arc::clone(&session), approval, asker };
        let binding = started.runtime.broker().bind(&id, terms).await.map_err(|error| started::bind_failure(&error))?;
        for absent in binding.absent().iter().filter(|absent| absent.is_missed()) {
            output.note(&format!("the service {} is not there: {}", absent.service, absent.reason));
        }
        let plan = started.runtime.broker().plan();
        let mode_prompt = plan.mode(&id).and_then(|(entry, _)| entry.prompt.as_ref());
        let memories = memories(&binding, &session, &prompt).await;
        let setting = Setting { date: &today(), os: std::env::consts::OS, memories: &memories };
        let system = system_prompt(mode_prompt, &binding, &session, setting)
            .map_err(|problem| Failure::work(problem, "correct the mode's prompt; `skein check` tells more"))?;
        let progress = Arc::new(Progress { format, streamed: Mutex::new(false) });
        let exchange = Exchange::new(
            provider,
            Arc::new(binding),
            Arc::clone(&session),
            Arc::clone(&progress) as Arc<dyn Notifier>,
            limits,
            system,
        )
        .with_upkeep(upkeep);
        let mut history = History::default();
        let end = exchange.turn(&mut history, vec![Content::text(prompt)], &CancellationToken::new()).await;
        // A model that said nothing leaves the prompt as the last message.
        let answer = history.messages().last().filter(|message| message.role == Role::Assistant);
        let text = answer.map(|message| message.text()).unwrap_or_default();
        finish(format, &session.id, &id, &end, &text, output)
    })
}

fn prompt_text(args: &RunArgs) -> Result<String, Failure> {
    let text = match &args.prompt {
        Some(prompt) => prompt.clone(),
        None => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map_err(|error| {
                Failure::usage(format!("stdin cannot be read: {error}"), "give the prompt as an argument")
            })?;
            text
        }
    };
    if text.trim().is_empty() {
        return Err(Failure::usage("the prompt is empty", "say what to do: skein run \"list the files\""));
    }
    Ok(text)
}

/// `2026-11-15`.
fn today() -> String {
    let seconds = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    let days = seconds.map_or(0, |seconds| seconds.as_secs() / 86_400).cast_signed();
    // Howard Hinnant's days-to-civil: exact for the proleptic Gregorian calendar.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

fn finish(
    format: RunOutput,
    session: &str,
    id: &crate::ids::ModeId,
    end: &TurnEnd,
    text: &str,
    output: &mut Output,
) -> Result<(), Failure> {
    let (reason, error) = match &end.ending {
        Ending::EndTurn => ("end_turn", None),
        Ending::MaxTokens => ("max_tokens", None),
        Ending::Exhausted { why } => ("max_turn_requests", Some(why.clone())),
        Ending::Refusal => ("refusal", None),
        Ending::Cancelled => ("cancelled", None),
        Ending::CallRefused { tool } => ("end_turn", Some(format!("{tool} was refused"))),
        Ending::Failed { why } => ("error", Some(why.clone())),
    };
    match format {
        RunOutput::Text => output.text("\n"),
        RunOutput::Json => output.json(&json!({
            "session": session, "agent": id.agent, "mode": id.mode, "stop_reason": reason, "text": text,
            "usage": end.usage, "error": error,
        })),
        RunOutput::StreamJson => {}
    }
    match &end.ending {
        Ending::EndTurn | Ending::MaxTokens | Ending::Refusal => Ok(()),
        Ending::Cancelled => Err(Failure::Interrupted),
        Ending::CallRefused { tool } => Err(Failure::Refused { tool: tool.clone() }),
        Ending::Exhausted { why } => {
            Err(Failure::work(why.clone(), "ask for less at once, or raise --max-turns if it was asked too often"))
        }
        Ending::Failed { why } => Err(Failure::work(why.clone(), "try again; the log may tell more")),
    }
}

/// Tells of a turn while it runs.
struct Progress {
    format: RunOutput,
    /// Whether text has been printed, so that tool lines begin on a line of their own.
    streamed: Mutex<bool>,
}

impl Progress {
    fn aside(&self, line: &str) {
        let mut streamed = self.streamed.lock().unwrap_or_else(PoisonError::into_inner);
        let gap = if std::mem::take(&mut *streamed) { "\n" } else { "" };
        // Progress that cannot be shown must not end the work.
        drop(writeln!(anstream::stderr(), "{gap}{line}"));
    }
}

impl Notifier for Progress {
    fn log(&self, event: Event) {
        if self.format == RunOutput::StreamJson {
            // A reader that went away is told nothing more; the turn still ends in order.
            drop(writeln!(anstream::stdout(), "{}", json!(event)));
            return;
        }
        match event {
            Event::ToolStarted { call } => {
                self.aside(&format!("{QUIET}→ {} {}{QUIET:#}", call.name, shown(&brief(&call.arguments))));
            }
            Event::ToolEnded { name, outcome, .. } if outcome.is_error => {
                let red = AnsiColor::Red.on_default();
                let text: String = outcome.all_text().lines().next().unwrap_or_default().chars().take(160).collect();
                self.aside(&format!("{red}✗ {name}{red:#} {}", shown(&text)));
            }
            Event::ToolEnded { name, outcome, .. } if shows_plan(&name) => {
                for line in outcome.all_text().lines() {
                    self.aside(&format!("  {}", shown(line)));
                }
            }
            Event::ToolEnded { .. } | Event::Message { .. } | Event::Compacted { .. } | Event::TurnEnded { .. } => {}
        }
    }

    fn status(&self, status: Status) {
        if let (RunOutput::Text | RunOutput::Json, Status::Notice(text)) = (self.format, &status) {
            let yellow = AnsiColor::Yellow.on_default();
            self.aside(&format!("{yellow}! {}{yellow:#}", shown(text)));
        }
        if let (RunOutput::Text, Status::Text(text)) = (self.format, status) {
            *self.streamed.lock().unwrap_or_else(PoisonError::into_inner) = true;
            // What files and pages hold must not steer the terminal.
            let text: String = text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
            let mut stdout = anstream::stdout();
            drop(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()));
        }
    }
}

/// Tools whose answer is the plan that a user wants to see.
fn shows_plan(tool: &str) -> bool {
    matches!(tool, "developer__update_plan" | "todo__set_todos" | "todo__update_todo")
}

fn brief(arguments: &Value) -> String {
    let text = arguments.to_string();
    if text.chars().count() > 120 { format!("{}…", text.chars().take(120).collect::<String>()) } else { text }
}

/// The person at the terminal.
struct Terminal;

impl Asker for Terminal {
    fn ask(&self, question: Question) -> BoxFuture<'_, Answer> {
        Box::pin(async move {
            let asked = tokio::task::spawn_blocking(move || {
                let arguments = shown(&Value::Object(question.arguments).to_string());
                let mut stderr = anstream::stderr();
                write!(stderr, "Run {} {arguments}? [y/N] ", question.tool)?;
                stderr.flush()?;
                let mut line = String::new();
                std::io::stdin().lock().read_line(&mut line)?;
                Ok::<_, std::io::Error>(line)
            });
            match asked.await {
                Ok(Ok(line)) if matches!(line.trim(), "y" | "Y" | "yes") => Answer::Allow,
                Ok(Ok(_)) => Answer::Refuse,
                Ok(Err(_)) | Err(_) => Answer::Unheard,
            }
        })
    }
}
