//! `skein run`: one prompt, one answer; the answer on stdout, progress on stderr. The session is kept.

use std::io::{BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::folders::Folders;
use super::kept_rules::UserConfig;
use super::keys::Keys;
use super::models::KnownModels;
use super::output::{Failure, Output, shown};
use super::permissions::RuleFlags;
use super::progress::{Progress, Shows};
use super::settings_file::SettingsFile;
use super::started::{self, LISTED, Started, session_failure, store_failure};
use super::{Global, agents, attach, trust, workspace};
use crate::agents::{Ending, Limits, Notifier, TurnEnd};
use crate::broker::{Answer, Asker, Nobody, Question, RuleStore as _};
use crate::conversation::Content;
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::manifest::{PermissionRule, Settings, Span};
use crate::session::{Choice, Host, Live, Place, PromptError, Sessions};
use crate::store::{self, ListFilter, Within};

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The agent; `goose` if left out
    #[arg(long, short)]
    agent: Option<String>,
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
    /// Go on with the newest session of this folder
    #[arg(long = "continue", short, conflicts_with = "resume")]
    continues: bool,
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
    #[command(flatten)]
    rules: RuleFlags,
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
    let plan = workspace::plan(global, folders, output)?;
    let settings = Settings::of(plan.manifests());
    let mode = chosen_mode(args, &settings, &plan)?;
    let models = KnownModels::of(&settings, args.record_model.clone(), Keys::of(folders));
    let model = args
        .model
        .clone()
        .filter(|model| !model.is_empty())
        .or(settings.processor)
        .unwrap_or_else(|| "offline".to_owned());
    models.check(&model)?;
    let text = prompt_text(args)?;
    // Files are for whoever types: what comes through a pipe may be somebody else's words.
    let (prompt, notes) = match &args.prompt {
        Some(_) => attach::prompt(&text, &folders.cwd)?,
        None => (vec![Content::text(text)], Vec::new()),
    };
    notes.iter().for_each(|note| output.note(note));
    let store = store::Sessions::open(&folders.data).map_err(|error| store_failure(&error))?;
    let requests = usize::try_from(args.max_turns).unwrap_or(usize::MAX);
    let limits = Limits { requests, ..Limits::default() };
    let sessions = started::sessions(store, limits, folders);
    let first = format == RunOutput::Text && is_first(args, folders);
    started::block_on(plan, global, folders, output, async |started: &Started, output: &mut Output| {
        let fallback = Choice { mode, model, approval: global.approval.map(Into::into) };
        let live = session(args, &sessions, fallback, models, folders, started).await?;
        missed(&live, output).await?;
        if first {
            welcome(&live, output).await?;
        }
        let progress = Progress::new(match format {
            RunOutput::Text => Shows::Text,
            RunOutput::Json => Shows::Nothing,
            RunOutput::StreamJson => Shows::Events,
        });
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

/// The mode that the command line names, or else the profile, or else goose's own.
fn chosen_mode(args: &RunArgs, settings: &Settings, plan: &Plan) -> Result<ModeId, Failure> {
    let (agent, mode) = if args.agent.is_some() || args.mode.is_some() {
        (args.agent.as_deref(), args.mode.as_deref())
    } else {
        (settings.agent.as_ref().map(|agent| agent.as_str()), settings.mode.as_ref().map(|mode| mode.as_str()))
    };
    let agent = agents::find(plan, agent.unwrap_or("goose"))?;
    let id = agents::mode_of(agent, mode)?;
    agents::offered(plan, &id)?;
    if agent.manifest.runtime.is_some() {
        let problem = format!("`{}` is an external agent, which this skein cannot run yet", agent.manifest.name);
        return Err(Failure::usage(problem, "choose another agent"));
    }
    Ok(id)
}

/// A new session, or the one to go on with. What the command line names counts more than what the session had.
async fn session(
    args: &RunArgs,
    sessions: &Sessions,
    fallback: Choice,
    models: Arc<KnownModels>,
    folders: &Folders,
    started: &Started,
) -> Result<Arc<Live>, Failure> {
    let interactive = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    let asker: Arc<dyn Asker> = if interactive {
        Arc::new(Terminal { rules: UserConfig { folder: folders.config.clone() } })
    } else {
        Arc::new(Nobody)
    };
    let broker = started.runtime.broker().with_rules(args.rules.rules());
    let host = Host { broker, models, asker, editor: None, brought: Vec::new() };
    let known = match (&args.resume, args.continues) {
        (Some(prefix), _) => {
            let found = sessions.store().resolve(prefix).await.map_err(|error| store_failure(&error))?;
            Some(found.ok_or_else(|| Failure::no_session(prefix, LISTED))?)
        }
        (None, true) => {
            let filter = ListFilter { within: Within::Folder(folders.cwd.clone()), limit: Some(1), after: None };
            let newest = sessions.store().list(filter).await.map_err(|error| store_failure(&error))?;
            Some(newest.into_iter().next().ok_or_else(none_here)?.id)
        }
        (None, false) => None,
    };
    let Some(id) = known else {
        let place = Place { cwd: folders.cwd.clone(), roots: Vec::new() };
        return sessions.create(place, fallback, |_| host).await.map_err(|error| session_failure(&error));
    };
    let stored = sessions.store().find(&id).await.map_err(|error| store_failure(&error))?;
    if let Some(stored) = stored.filter(|stored| stored.cwd != folders.cwd) {
        // The manifests and the trust of this folder are not those of that one.
        let cwd = stored.cwd.display();
        return Err(Failure::usage(format!("the session works in {cwd}"), format!("go on with it there: cd {cwd}")));
    }
    let opened = sessions.open(&id, Vec::new(), fallback.clone(), |_| host).await;
    let live = opened.map_err(|error| session_failure(&error))?.live;
    if args.agent.is_some() || args.mode.is_some() {
        live.set_mode(fallback.mode).await.map_err(|error| session_failure(&error))?;
    }
    if args.model.as_ref().is_some_and(|model| !model.is_empty()) {
        live.set_model(fallback.model).await.map_err(|error| session_failure(&error))?;
    }
    Ok(live)
}

/// Tells which services the mode does without.
async fn missed(live: &Live, output: &mut Output) -> Result<(), Failure> {
    let binding = live.binding().await.map_err(|error| started::bind_failure(&error))?;
    for absent in binding.absent().iter().filter(|absent| absent.is_missed()) {
        output.note(&format!("the service {} is not there: {}", absent.service, absent.reason));
    }
    Ok(())
}

/// Nobody has chosen anything yet, and somebody reads along. Scripts are told nothing they did not ask for.
fn is_first(args: &RunArgs, folders: &Folders) -> bool {
    let chosen = args.model.as_ref().is_some_and(|model| !model.is_empty());
    let configured = SettingsFile::of(&folders.config).is_ok_and(|file| file.is_there());
    !chosen && !configured && std::io::stderr().is_terminal()
}

/// What is active, and what to type next.
async fn welcome(live: &Live, output: &mut Output) -> Result<(), Failure> {
    let binding = live.binding().await.map_err(|error| started::bind_failure(&error))?;
    let mut services: Vec<_> = binding.tools().values().map(|tool| tool.service.to_string()).collect();
    services.dedup();
    let choice = live.choice();
    let services = if services.is_empty() { "no services".to_owned() } else { services.join(", ") };
    output.aside(&format!("{} with {services}; model: {}\n", choice.mode, choice.model));
    output.aside(
        "Without a language model, name a tool: skein run \"list\", \"read FILE\", \"search TEXT\", \"run COMMAND\".\n",
    );
    output.aside("Next: `skein configure` for a model, `skein import FILE` for what you have, `skein agents` for what there is.\n");
    Ok(())
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

fn none_here() -> Failure {
    Failure::NoSession {
        problem: "no session was held in this folder yet".to_owned(),
        help: "leave out --continue".to_owned(),
    }
}

/// What to do about a model that failed.
fn help(why: &str) -> &'static str {
    if why.contains("it answered 401") || why.contains("it answered 403") {
        return "the provider refused the key: check the variable it is in (docs/models.md)";
    }
    if why.contains("it answered 4") {
        return "check the model's name and its address (docs/models.md)";
    }
    "go on with -c when it works again; the log may tell more"
}

fn prompt_failure(error: &PromptError) -> Failure {
    match error {
        PromptError::Bind(error) => started::bind_failure(error),
        PromptError::Store(error) => store_failure(error),
        PromptError::Record(error) => session_failure(error),
        PromptError::Model(_) => Failure::usage(error.to_string(), "choose another --model or SKEIN_MODEL"),
        PromptError::Prompt(_) => {
            Failure::work(error.to_string(), "correct the mode's prompt; `skein check` tells more")
        }
        PromptError::Busy | PromptError::NotCompacted(_) => Failure::work(error.to_string(), "wait for its end"),
    }
}

/// The person at the terminal.
struct Terminal {
    rules: UserConfig,
}

impl Asker for Terminal {
    fn ask(&self, question: Question) -> BoxFuture<'_, Answer> {
        Box::pin(async move {
            let asked = tokio::task::spawn_blocking(move || {
                let arguments = shown(&Value::Object(question.arguments).to_string());
                let mut stderr = anstream::stderr();
                let keep = if question.rule.is_some() { "always in this [p]roject, " } else { "" };
                let choice = format!("[y]es, [a]lways in this session, {keep}[N]o");
                write!(stderr, "\r\x1b[2KRun {} {arguments}? {choice} ", question.tool)?;
                stderr.flush()?;
                let mut line = String::new();
                std::io::stdin().lock().read_line(&mut line)?;
                Ok::<_, std::io::Error>((line, question.rule))
            });
            match asked.await {
                Ok(Ok((line, rule))) => match (line.trim(), rule) {
                    ("y" | "Y" | "yes", _) => Answer::Allow,
                    ("a" | "A" | "always", _) => Answer::AllowAlways,
                    ("p" | "P" | "project", Some(rule)) => self.keep(&rule),
                    _ => Answer::Refuse,
                },
                Ok(Err(_)) | Err(_) => Answer::Unheard,
            }
        })
    }
}

impl Terminal {
    /// The call was consented to, whether or not the rule can be kept.
    fn keep(&self, rule: &PermissionRule) -> Answer {
        let told = match self.rules.keep(rule) {
            Ok(()) => format!("kept in your config: {}", shown(&rule.to_string())),
            Err(problem) => format!("not kept, but allowed in this session: {}", shown(&problem)),
        };
        if let Err(error) = writeln!(anstream::stderr(), "{told}") {
            tracing::warn!(%error, "the terminal cannot be written to");
        }
        Answer::AllowAlways
    }
}
