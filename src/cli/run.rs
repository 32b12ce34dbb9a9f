//! `skein run`: runs one prompt, prints the answer to stdout and progress to stderr. The session is stored.

mod report;

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures::future::BoxFuture;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::consent::{ScreenLock, TerminalAsker};
use super::folders::Folders;
use super::keyboard::Keyboard;
use super::output::{CommandError, CommandOutput};
use super::progress::{LastCall, ProgressStyle, TerminalNotifier};
use super::recipe::{PreparedRecipe, RecipeArgs, RecipeInput, RecipeOutcome, Stage};
use super::runtime::{self, CommandRuntime};
use super::session_flags::{LaunchSettings, SessionFlags, SessionSelector, print_notices, prompt_failure, welcome};
use super::upgrade::{self, Reader};
use super::{Global, attach, trust};
use crate::agents::{Notifier, StatusUpdate, StopReason, TurnEnd, TurnLimits};
use crate::conversation::Content;
use crate::manifest::{DurationError, ManifestDuration};
use crate::orchestrator::PromptOptions;
use crate::session::Session;
use crate::tool::ask::{Asker, NoAsker};
use report::{TurnReport, command_failure};

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    talk: SessionFlags,
    /// Continue this session; a prefix of its id is enough
    #[arg(long, value_name = "ID")]
    resume: Option<String>,
    /// Set the output format
    #[arg(long, value_enum, default_value_t = RunOutput::Text)]
    output: RunOutput,
    /// Same as --output json
    #[arg(long, conflicts_with = "output")]
    json: bool,
    /// Limit model requests per turn; default: 100
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_turns: Option<u64>,
    /// End the turn after this time, as 90s or 10m; exit 3
    #[arg(long, value_name = "TIME", value_parser = span)]
    time_limit: Option<Duration>,
    #[command(flatten)]
    recipe: RecipeArgs,
    /// Only show the routes; needs the agent orchestrator
    #[arg(long, conflicts_with = "recipe")]
    plan_only: bool,
    /// Let goose/judge check the answer; exit 1 if incomplete
    #[arg(long, conflicts_with = "plan_only")]
    verify: bool,
    /// Run this prompt, with files as @path; default: stdin
    prompt: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, clap::ValueEnum)]
enum RunOutput {
    /// Print only the answer
    Text,
    /// Print one JSON object at the end
    ///
    /// Its keys are session, agent, mode, stop_reason, text, usage, error, refused_calls, parts.
    Json,
    /// Print each event as a line of JSON when it happens
    StreamJson,
}

pub(super) fn span(text: &str) -> Result<Duration, DurationError> {
    ManifestDuration::try_from(text.to_owned()).map(ManifestDuration::duration)
}

pub(super) fn run(
    args: &RunArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let format = if args.json { RunOutput::Json } else { args.output };
    if format == RunOutput::Text {
        trust::offer(global, folders, output)?;
    }
    let reader = if std::io::stderr().is_terminal() { Reader::User } else { Reader::Script };
    if let Some(changes) = upgrade::changes_once(folders, reader) {
        output.aside(&format!("{changes}\n"));
    }
    let given = RecipeInput::of(&args.recipe, folders, output)?;
    let requests = args.max_turns.or_else(|| given.as_ref()?.max_turns());
    let requests = requests.and_then(|requests| usize::try_from(requests).ok());
    let limits = TurnLimits { requests: requests.unwrap_or(TurnLimits::default().requests), ..TurnLimits::default() };
    let suggested = given.as_ref().map(RecipeInput::session_defaults).unwrap_or_default();
    let (mut opening, plan) = LaunchSettings::prepare(&args.talk, limits, &suggested, global, folders, output)?;
    let recipe = given.map(|given| given.prepare(&mut opening, &plan, folders, output)).transpose()?;
    let typed = match &recipe {
        Some(recipe) if recipe.has_prompt() && args.prompt.is_none() => Vec::new(),
        _ => read_prompt(args, &opening, output)?,
    };
    let is_slash_command =
        typed.first().and_then(Content::as_text).is_some_and(|text| text.trim_start().starts_with('/'));
    let prompt = match &recipe {
        Some(recipe) => recipe.prompt(typed),
        None => typed,
    };
    if args.plan_only && opening.choice.mode.agent.as_str() != "orchestrator" {
        let problem = format!("--plan-only is for the orchestrator, and this is {}", opening.choice.mode);
        return Err(CommandError::usage(problem, "add -a orchestrator"));
    }
    let global = recipe.as_ref().map_or_else(|| global.clone(), |recipe| recipe.with_sub_recipes(global));
    let first = format == RunOutput::Text && std::io::stderr().is_terminal() && opening.is_first();
    let floor: Arc<ScreenLock> = Arc::default();
    let asker = asker(&floor, folders);
    // A recipe may retry, so only its final answer is printed.
    let late = recipe.as_ref().is_some_and(PreparedRecipe::answers_late);
    let shows = match format {
        RunOutput::Text if !late => ProgressStyle::Text,
        RunOutput::Text | RunOutput::Json => ProgressStyle::Nothing,
        RunOutput::StreamJson => ProgressStyle::Events,
    };
    runtime::block_on(plan, &global, folders, output, async |started: &CommandRuntime, output: &mut CommandOutput| {
        let session = opening.open(&which(args), Arc::clone(&asker), started).await?.session;
        print_notices(&session, output).await?;
        // Scripts get no text that they did not ask for.
        if first {
            welcome(&session, r#""list", "read FILE", "search TEXT", "run COMMAND""#, output).await?;
        }
        let progress = TerminalNotifier::new(shows, floor);
        let deadline = args.time_limit.map(|limit| Instant::now() + limit);
        let options = PromptOptions { plan_only: args.plan_only, from_user: args.prompt.is_some() && recipe.is_none() };
        let turns = Turns { opening: &opening, started, asker, progress: Arc::clone(&progress), deadline, options };
        let done = match &recipe {
            Some(recipe) => {
                recipe.settle(Arc::clone(&progress), opening.orchestrator.clone());
                recipe.run(session, prompt, &turns).await
            }
            None => turns.turn(&session, prompt).await.map(|ended| RecipeOutcome::new(session, ended)),
        };
        let usage = done.as_ref().ok().map(|done| done.end.usage);
        progress.finish(usage, done.as_ref().ok().and_then(|done| done.session.cost_of(&done.end.usage)));
        let done = done?;
        let verdict = match done.end.ending {
            StopReason::EndTurn if args.verify && done.is_complete() => {
                Some(opening.orchestrator.verify(&done.session).await)
            }
            _ => None,
        };
        // The checks of a recipe decide about its work.
        let command = match (&recipe, progress.last_call()) {
            (Some(_), _) => None,
            (None, LastCall::Missing) if !is_slash_command => None,
            (None, call) => command_failure(&done.session, &call),
        };
        let report = TurnReport::new(done, progress.take_refusals(), verdict, command);
        report.print(format, late, progress.is_message_ended(), output);
        if !progress.is_heard() {
            return Err(CommandError::work(
                "the answer could not be printed",
                "check where stdout leads; the session has it",
            ));
        }
        report.into_result(output)
    })
}

fn which(args: &RunArgs) -> SessionSelector {
    match (&args.resume, args.talk.continues) {
        (Some(id), _) => SessionSelector::Id(id.clone()),
        (None, true) => SessionSelector::Newest,
        (None, false) => SessionSelector::New,
    }
}

fn asker(floor: &Arc<ScreenLock>, folders: &Folders) -> Arc<dyn Asker> {
    match Keyboard::from_stdin() {
        Some(keyboard) if std::io::stderr().is_terminal() => {
            Arc::new(TerminalAsker::new(keyboard, Arc::clone(floor), folders))
        }
        _ => Arc::new(NoAsker),
    }
}

/// Runs the turns of this command.
struct Turns<'a> {
    opening: &'a LaunchSettings<'a>,
    started: &'a CommandRuntime,
    asker: Arc<dyn Asker>,
    progress: Arc<TerminalNotifier>,
    deadline: Option<Instant>,
    options: PromptOptions,
}

impl Stage for Turns<'_> {
    fn open(&self) -> BoxFuture<'_, Result<Arc<Session>, CommandError>> {
        Box::pin(async {
            let launched = self.opening.open(&SessionSelector::New, Arc::clone(&self.asker), self.started).await?;
            Ok(launched.session)
        })
    }

    fn turn<'a>(
        &'a self,
        session: &'a Arc<Session>,
        prompt: Vec<Content>,
    ) -> BoxFuture<'a, Result<(TurnEnd, bool), CommandError>> {
        Box::pin(async move {
            let cancel = self.cancel();
            let front = Arc::clone(&self.progress) as Arc<dyn Notifier>;
            let pending = session.begin().map_err(|error| prompt_failure(&error))?;
            let turn = self.opening.orchestrator.prompt(pending, prompt, self.options, front, &cancel);
            tokio::pin!(turn);
            let (ended, in_time) = tokio::select! {
                biased;
                ended = &mut turn => (ended, true),
                () = self.wait_for_limit() => {
                    session.cancel_at_time_limit(&cancel);
                    (turn.await, false)
                }
            };
            Ok((ended.map_err(|error| prompt_failure(&error))?, in_time))
        })
    }

    fn notify(&self, text: &str) {
        self.progress.status(StatusUpdate::notice(text.to_owned()));
    }

    fn cancel(&self) -> CancellationToken {
        self.started.interrupt()
    }

    fn wait_for_limit(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            match self.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        })
    }
}

/// Reads the prompt, with the files it names.
fn read_prompt(
    args: &RunArgs,
    opening: &LaunchSettings<'_>,
    output: &mut CommandOutput,
) -> Result<Vec<Content>, CommandError> {
    let text = prompt_text(args, opening.is_first(), output)?;
    // Only a prompt typed as an argument may attach files: piped text may come from another source.
    let (prompt, notes) = match &args.prompt {
        Some(_) => attach::prompt(&text, &opening.work_folders())?,
        None => (vec![Content::text(text)], Vec::new()),
    };
    notes.iter().for_each(|note| output.note(note));
    Ok(prompt)
}

fn prompt_text(args: &RunArgs, first: bool, output: &mut CommandOutput) -> Result<String, CommandError> {
    let text = match &args.prompt {
        Some(prompt) => prompt.clone(),
        None => {
            if std::io::stdin().is_terminal() {
                output.note("type what to do; Ctrl-D on an empty line ends it (`skein chat` is a conversation)");
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
        return Err(CommandError::usage("the prompt is empty", "say what to do: skein run \"list the files\""));
    }
    Ok(text)
}
