//! `skein run`: one prompt, one answer; the answer on stdout, progress on stderr. The session is kept.

use std::io::{IsTerminal as _, Read as _};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::consent::{AtTerminal, Floor};
use super::folders::Folders;
use super::keyboard::Keyboard;
use super::opening::{Opening, TalkArgs, Which, help, missed, prompt_failure, welcome};
use super::output::{Failure, Output};
use super::progress::{Progress, Shows};
use super::started::{self, Started};
use super::{Global, attach, trust};
use crate::agents::{Ending, Limits, Notifier, TurnEnd};
use crate::broker::{Asker, Nobody};
use crate::conversation::Content;
use crate::manifest::Span;
use crate::session::Live;

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    talk: TalkArgs,
    /// Go on with this session; the beginning of its id is enough
    #[arg(long, value_name = "ID")]
    resume: Option<String>,
    /// How to print the answer
    #[arg(long, value_enum, default_value_t = RunOutput::Text)]
    output: RunOutput,
    /// The same as --output json
    #[arg(long, conflicts_with = "output")]
    json: bool,
    /// How often the model may be asked in one turn
    #[arg(long, value_name = "N", default_value_t = Limits::default().requests as u64, value_parser = clap::value_parser!(u64).range(1..))]
    max_turns: u64,
    /// End the turn after this time, as 90s or 10m; exit 3
    #[arg(long, value_name = "TIME", value_parser = span)]
    time_limit: Option<Duration>,
    /// What to do, with files as @path; read from stdin if left out
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

fn span(text: &str) -> Result<Duration, String> {
    Span::try_from(text.to_owned()).map(Span::duration)
}

pub(super) fn run(args: &RunArgs, global: &Global, folders: &Folders, output: &mut Output) -> Result<(), Failure> {
    let format = if args.json { RunOutput::Json } else { args.output };
    if format == RunOutput::Text {
        trust::offer(folders, output)?;
    }
    let requests = usize::try_from(args.max_turns).unwrap_or(usize::MAX);
    let limits = Limits { requests, ..Limits::default() };
    let (opening, plan) = Opening::prepare(&args.talk, limits, global, folders, output)?;
    let text = prompt_text(args, opening.is_first(), output)?;
    // Files are for whoever types: what comes through a pipe may be somebody else's words.
    let (prompt, notes) = match &args.prompt {
        Some(_) => attach::prompt(&text, &folders.cwd)?,
        None => (vec![Content::text(text)], Vec::new()),
    };
    notes.iter().for_each(|note| output.note(note));
    let first = format == RunOutput::Text && std::io::stderr().is_terminal() && opening.is_first();
    let which = match (&args.resume, args.talk.continues) {
        (Some(id), _) => Which::Id(id.clone()),
        (None, true) => Which::Newest,
        (None, false) => Which::New,
    };
    let floor: Arc<Floor> = Arc::default();
    let asker: Arc<dyn Asker> = match Keyboard::of_stdin() {
        Some(keyboard) if std::io::stderr().is_terminal() => {
            Arc::new(AtTerminal::new(keyboard, Arc::clone(&floor), folders))
        }
        _ => Arc::new(Nobody),
    };
    started::block_on(plan, global, folders, output, async |started: &Started, output: &mut Output| {
        let (live, _) = opening.open(&which, asker, started).await?;
        missed(&live, output).await?;
        // Scripts are told nothing they did not ask for.
        if first {
            welcome(&live, r#""list", "read FILE", "search TEXT", "run COMMAND""#, output).await?;
        }
        let shows = match format {
            RunOutput::Text => Shows::Text,
            RunOutput::Json => Shows::Nothing,
            RunOutput::StreamJson => Shows::Events,
        };
        let progress = Progress::new(shows, floor);
        let cancel = started.interrupt();
        let front = Arc::clone(&progress) as Arc<dyn Notifier>;
        let turn = live.prompt(prompt, front, &cancel);
        tokio::pin!(turn);
        let limit = async {
            match args.time_limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        let (ended, in_time) = tokio::select! {
            biased;
            ended = &mut turn => (ended, true),
            () = limit => {
                cancel.cancel();
                (turn.await, false)
            }
        };
        progress.finish(ended.as_ref().ok().and_then(|end| live.cost_of(&end.usage)));
        let end = ended.map_err(|error| prompt_failure(&error))?;
        finish(format, &live, &end, in_time, output);
        if !progress.is_heard() {
            return Err(Failure::work(
                "what was said could not be printed",
                "check where stdout leads; the session has it",
            ));
        }
        if in_time { outcome(&end, output) } else { Err(Failure::TimeLimit) }
    })
}

fn prompt_text(args: &RunArgs, first: bool, output: &mut Output) -> Result<String, Failure> {
    let text = match &args.prompt {
        Some(prompt) => prompt.clone(),
        None => {
            if std::io::stdin().is_terminal() {
                output.note("type what to do; Ctrl-D on a line of its own ends it (`skein chat` is a conversation)");
                if first {
                    output.note(
                        "no model is configured: `skein configure` chooses one; until then tools are called by name, \
                         as in `list`",
                    );
                }
            }
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

/// The end of what is printed.
fn finish(format: RunOutput, live: &Live, end: &TurnEnd, in_time: bool, output: &mut Output) {
    match format {
        RunOutput::Text => output.text("\n"),
        RunOutput::StreamJson => {}
        RunOutput::Json => {
            let (reason, error) = match &end.ending {
                Ending::EndTurn => ("end_turn", None),
                Ending::MaxTokens => ("max_tokens", None),
                Ending::Exhausted { why } => ("max_turn_requests", Some(why.clone())),
                Ending::Refusal => ("refusal", None),
                Ending::Cancelled if !in_time => ("cancelled", Some("the time limit was reached".to_owned())),
                Ending::Cancelled => ("cancelled", None),
                Ending::CallRefused { tool } => ("end_turn", Some(format!("{tool} was refused"))),
                Ending::Failed { why } => ("error", Some(why.clone())),
            };
            let mode = live.choice().mode;
            output.json(&json!({
                "session": live.id(), "agent": mode.agent, "mode": mode.mode, "stop_reason": reason,
                "text": live.last_answer(), "usage": end.usage, "error": error,
            }));
        }
    }
}

fn outcome(end: &TurnEnd, output: &mut Output) -> Result<(), Failure> {
    match &end.ending {
        Ending::EndTurn => Ok(()),
        Ending::MaxTokens => {
            output.note("the answer was cut at the longest that the model may say; ask it to go on with -c");
            Ok(())
        }
        Ending::Refusal => {
            output.note("the model declined to answer, or its provider did");
            Ok(())
        }
        Ending::Cancelled => Err(Failure::Interrupted),
        Ending::CallRefused { tool } => Err(Failure::Refused { tool: tool.clone() }),
        Ending::Exhausted { why } => Err(Failure::work(why.clone(), "ask for less at once, or go on with -c")),
        Ending::Failed { why } => Err(Failure::work(why.clone(), help(why))),
    }
}
