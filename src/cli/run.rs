//! `skein run`: one prompt, one answer; the answer on stdout, progress on stderr. The session is kept.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures::future::BoxFuture;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::consent::{AtTerminal, Floor};
use super::folders::Folders;
use super::keyboard::Keyboard;
use super::opening::{Opening, TalkArgs, Which, help, missed, prompt_failure, welcome};
use super::output::{Failure, Output, shown, shown_lines};
use super::progress::{Progress, Shows};
use super::recipe::{Done, Given, Prepared, RecipeArgs, Stage};
use super::started::{self, Started};
use super::{Global, attach, trust};
use crate::agents::{Ending, Limits, Notifier, Status, TurnEnd};
use crate::broker::{Asker, Nobody};
use crate::conversation::Content;
use crate::manifest::Span;
use crate::orchestrator::{Finding, Verdict, Wish};
use crate::session::Live;

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    talk: TalkArgs,
    /// Continue this session; the start of its id is enough
    #[arg(long, value_name = "ID")]
    resume: Option<String>,
    /// How to print the answer
    #[arg(long, value_enum, default_value_t = RunOutput::Text)]
    output: RunOutput,
    /// The same as --output json
    #[arg(long, conflicts_with = "output")]
    json: bool,
    /// How often the model may be asked in one turn; 100 if left out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_turns: Option<u64>,
    /// End the turn after this time, as 90s or 10m; exit 3
    #[arg(long, value_name = "TIME", value_parser = span)]
    time_limit: Option<Duration>,
    #[command(flatten)]
    recipe: RecipeArgs,
    /// Only show who would do what; with the agent orchestrator
    #[arg(long, conflicts_with = "recipe")]
    plan_only: bool,
    /// Have goose/judge check the answer against the request; exit 1 if something is missing
    #[arg(long, conflicts_with = "plan_only")]
    verify: bool,
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
    let given = Given::of(&args.recipe, folders, output)?;
    let requests = args.max_turns.or_else(|| given.as_ref()?.max_turns());
    let requests = requests.and_then(|requests| usize::try_from(requests).ok());
    let limits = Limits { requests: requests.unwrap_or(Limits::default().requests), ..Limits::default() };
    let suggested = given.as_ref().map(Given::suggested).unwrap_or_default();
    let (mut opening, plan) = Opening::prepare(&args.talk, limits, &suggested, global, folders, output)?;
    let recipe = given.map(|given| given.prepare(&mut opening, &plan, folders, output)).transpose()?;
    let typed = match &recipe {
        Some(recipe) if recipe.has_prompt() && args.prompt.is_none() => Vec::new(),
        _ => typed(args, opening.is_first(), folders, output)?,
    };
    let prompt = match &recipe {
        Some(recipe) => recipe.prompt(typed),
        None => typed,
    };
    if args.plan_only && opening.choice.mode.agent.as_str() != "orchestrator" {
        let problem = format!("--plan-only is for the orchestrator, and this is {}", opening.choice.mode);
        return Err(Failure::usage(problem, "add -a orchestrator"));
    }
    let global = recipe.as_ref().map_or_else(|| global.clone(), |recipe| recipe.at_hand(global));
    let first = format == RunOutput::Text && std::io::stderr().is_terminal() && opening.is_first();
    let floor: Arc<Floor> = Arc::default();
    let asker = asker(&floor, folders);
    // Of a recipe that may begin anew only the last answer is the answer.
    let late = recipe.as_ref().is_some_and(Prepared::answers_late);
    let shows = match format {
        RunOutput::Text if !late => Shows::Text,
        RunOutput::Text | RunOutput::Json => Shows::Nothing,
        RunOutput::StreamJson => Shows::Events,
    };
    started::block_on(plan, &global, folders, output, async |started: &Started, output: &mut Output| {
        let (live, _) = opening.open(&which(args), Arc::clone(&asker), started).await?;
        missed(&live, output).await?;
        // Scripts are told nothing they did not ask for.
        if first {
            welcome(&live, r#""list", "read FILE", "search TEXT", "run COMMAND""#, output).await?;
        }
        let progress = Progress::new(shows, floor);
        let deadline = args.time_limit.map(|limit| Instant::now() + limit);
        let wish = Wish { plan_only: args.plan_only, typed: args.prompt.is_some() && recipe.is_none() };
        let turns = Turns { opening: &opening, started, asker, progress: Arc::clone(&progress), deadline, wish };
        let done = match &recipe {
            Some(recipe) => {
                recipe.settle(Arc::clone(&progress), opening.orchestrator.clone());
                recipe.run(live, prompt, &turns).await
            }
            None => turns.turn(&live, prompt).await.map(|ended| Done::new(live, ended)),
        };
        progress.finish(done.as_ref().ok().and_then(|done| done.live.cost_of(&done.end.usage)));
        let done = done?;
        let verdict = match done.end.ending {
            Ending::EndTurn if args.verify => Some(opening.orchestrator.verify(&done.live).await),
            _ => None,
        };
        finish(format, late, &done, verdict.as_ref(), output);
        if !progress.is_heard() {
            return Err(Failure::work(
                "what was said could not be printed",
                "check where stdout leads; the session has it",
            ));
        }
        match (done.in_time, done.failed) {
            (false, _) => Err(Failure::TimeLimit),
            (true, Some(failure)) => Err(failure),
            (true, None) => {
                outcome(&done.end, output)?;
                verdict.map_or(Ok(()), |verdict| verified(verdict, output))
            }
        }
    })
}

fn which(args: &RunArgs) -> Which {
    match (&args.resume, args.talk.continues) {
        (Some(id), _) => Which::Id(id.clone()),
        (None, true) => Which::Newest,
        (None, false) => Which::New,
    }
}

fn asker(floor: &Arc<Floor>, folders: &Folders) -> Arc<dyn Asker> {
    match Keyboard::of_stdin() {
        Some(keyboard) if std::io::stderr().is_terminal() => {
            Arc::new(AtTerminal::new(keyboard, Arc::clone(floor), folders))
        }
        _ => Arc::new(Nobody),
    }
}

/// The turns of this launch.
struct Turns<'a> {
    opening: &'a Opening<'a>,
    started: &'a Started,
    asker: Arc<dyn Asker>,
    progress: Arc<Progress>,
    deadline: Option<Instant>,
    wish: Wish,
}

impl Stage for Turns<'_> {
    fn open(&self) -> BoxFuture<'_, Result<Arc<Live>, Failure>> {
        Box::pin(async {
            let (live, _) = self.opening.open(&Which::New, Arc::clone(&self.asker), self.started).await?;
            Ok(live)
        })
    }

    fn turn<'a>(
        &'a self,
        live: &'a Arc<Live>,
        prompt: Vec<Content>,
    ) -> BoxFuture<'a, Result<(TurnEnd, bool), Failure>> {
        Box::pin(async move {
            let cancel = self.cancel();
            let front = Arc::clone(&self.progress) as Arc<dyn Notifier>;
            let begun = live.begin().map_err(|error| prompt_failure(&error))?;
            let turn = self.opening.orchestrator.prompt(begun, prompt, self.wish, front, &cancel);
            tokio::pin!(turn);
            let limit = async {
                match self.deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
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
            Ok((ended.map_err(|error| prompt_failure(&error))?, in_time))
        })
    }

    fn tell(&self, text: &str) {
        self.progress.status(Status::Notice(text.to_owned()));
    }

    fn cancel(&self) -> CancellationToken {
        self.started.interrupt()
    }
}

/// What was typed, with the files it names.
fn typed(args: &RunArgs, first: bool, folders: &Folders, output: &mut Output) -> Result<Vec<Content>, Failure> {
    let text = prompt_text(args, first, output)?;
    // Files are for whoever types: what comes through a pipe may be somebody else's words.
    let (prompt, notes) = match &args.prompt {
        Some(_) => attach::prompt(&text, &folders.cwd)?,
        None => (vec![Content::text(text)], Vec::new()),
    };
    notes.iter().for_each(|note| output.note(note));
    Ok(prompt)
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
            attach::from_stdin()?
        }
    };
    if text.trim().is_empty() {
        return Err(Failure::usage("the prompt is empty", "say what to do: skein run \"list the files\""));
    }
    Ok(text)
}

/// The end of what is printed.
fn finish(format: RunOutput, late: bool, done: &Done, verdict: Option<&Result<Verdict, String>>, output: &mut Output) {
    let Done { live, end, in_time, structured, failed } = done;
    match format {
        RunOutput::Text if late => match (structured, failed) {
            (Some(value), None) => output.json(value),
            (None, None) => output.line(&shown_lines(&live.last_answer())),
            // What does not fit or does not hold is no answer.
            (_, Some(_)) => {}
        },
        RunOutput::Text => output.text("\n"),
        RunOutput::StreamJson => {}
        RunOutput::Json => {
            let (reason, error) = match &end.ending {
                Ending::EndTurn => ("end_turn", failed.as_ref().map(Failure::problem)),
                Ending::MaxTokens => ("max_tokens", None),
                Ending::Exhausted { why } => ("max_turn_requests", Some(why.clone())),
                Ending::Refusal => ("refusal", None),
                Ending::Cancelled if !in_time => ("cancelled", Some("the time limit was reached".to_owned())),
                Ending::Cancelled => ("cancelled", None),
                Ending::CallRefused { tool } => ("end_turn", Some(format!("{tool} was refused"))),
                Ending::Failed { why } => ("error", Some(why.clone())),
            };
            let mode = live.choice().mode;
            let mut answer = json!({
                "session": live.id(), "agent": mode.agent, "mode": mode.mode, "stop_reason": reason,
                "text": live.last_answer(), "usage": end.usage, "error": error,
            });
            if let Some(value) = structured {
                answer["structured"] = value.clone();
            }
            if let Some(verdict) = verdict {
                answer["verdict"] =
                    verdict.as_ref().map_or_else(|problem| json!({"error": problem}), |said| json!(said));
            }
            output.json(&answer);
        }
    }
}

/// What the judge says, and what follows from it.
fn verified(verdict: Result<Verdict, String>, output: &mut Output) -> Result<(), Failure> {
    let unchecked = |problem| Failure::work(format!("the answer was not checked: {problem}"), "look at it yourself");
    let Verdict { verdict, reason, missing } = verdict.map_err(unchecked)?;
    let reason = shown(&reason);
    let missing: Vec<_> = missing.iter().map(|missing| shown(missing)).collect();
    match verdict {
        Finding::Complete => {
            output.note(&format!("checked: {reason}"));
            Ok(())
        }
        Finding::Incomplete | Finding::Conflict => {
            let what = if verdict == Finding::Conflict { "results disagree" } else { "something is missing" };
            let missing = if missing.is_empty() { String::new() } else { format!(" ({})", missing.join("; ")) };
            Err(Failure::work(format!("{what}: {reason}{missing}"), "ask for it with -c"))
        }
        Finding::Unsure => Err(unchecked(format!("the judge is unsure: {reason}"))),
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
