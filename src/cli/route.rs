//! `skein route`: shows which mode a prompt is routed to and why, or evaluates the router on given cases.

mod eval;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::folders::Folders;
use super::keys::Keys;
use super::models::{KnownModels, check_model};
use super::output::{BOLD, CommandError, CommandOutput, QUIET, display_line};
use super::store_failure::store_failure;
use super::{Global, attach, top_of_mind, workspace};
use crate::graph::Plan;
use crate::ids::ModelRef;
use crate::llm::{LlmError, Provider};
use crate::manifest::Settings;
use crate::orchestrator::Orchestrator;
use crate::orchestrator::route::{DecisionSource, Route, RoutingDecision, UnknownModeError, parse_mode};
use crate::principal::Principal;
use crate::router::RankedMode;
use crate::secrets;
use crate::session::ModelSource as _;
use crate::store::SessionStore;

#[derive(Debug, Args)]
pub(super) struct RouteArgs {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Choose the model to ask when the router is unsure
    ///
    /// Give it as provider:model. The default is the profile's model.
    #[arg(long, env = "SKEIN_MODEL")]
    model: Option<String>,
    /// Remember for this project that the prompt belongs here
    #[arg(long, value_name = "AGENT/MODE")]
    remember: Option<String>,
    /// Evaluate the router on the cases of this file
    ///
    /// Each line is `agent/mode<TAB>prompt`, with - as the mode of prompts that belong nowhere. Only modes of agents in
    /// the file take part.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "remember"])]
    eval: Option<PathBuf>,
    /// Include the modes of all agents in --eval
    #[arg(long, requires = "eval")]
    all: bool,
    /// Route this prompt; read from stdin if omitted
    ///
    /// Give it as for `run`. A leading @agent/mode decides.
    prompt: Option<String>,
}

pub(super) fn run(
    args: &RouteArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let plan = workspace::plan(global, folders, output)?;
    if let Some(file) = &args.eval {
        return eval::run(file, args.all, args.json, &plan, output);
    }
    let prompt = prompt_text(args, output)?;
    let orchestrator = Orchestrator::new(folders.store.clone(), top_of_mind::from_environment(folders));
    let plan = Arc::new(plan);
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let tokio = tokio
        .map_err(|error| CommandError::work(format!("no async runtime: {error}"), "check the limits on threads"))?;
    let adviser = adviser(args, &plan, folders)?;
    if let Some(mode) = &args.remember {
        tokio.block_on(remember(&orchestrator, &prompt, mode, &plan, folders))?;
    }
    let sessions = earlier_sessions(folders)?;
    let local = Principal::local();
    let routed = orchestrator.would_route(&local, &plan, &folders.cwd, &prompt, sessions.as_ref(), adviser.as_deref());
    let (decision, problems) = tokio.block_on(routed).map_err(no_such_mode)?;
    problems.iter().for_each(|problem| output.note(&display_line(problem)));
    if args.json {
        output.json(&decision.to_json());
    } else {
        print(&decision, output);
    }
    Ok(())
}

/// Returns the store of earlier sessions. `None` if there is none yet; this command does not create it.
fn earlier_sessions(folders: &Folders) -> Result<Option<SessionStore>, CommandError> {
    if !folders.data.join("sessions.db").exists() {
        return Ok(None);
    }
    folders.store.sessions().map(Some).map_err(|error| store_failure(&error))
}

/// Returns the model to ask when the router is unsure: the same one that a session would ask. `None` if there is none.
fn adviser(args: &RouteArgs, plan: &Plan, folders: &Folders) -> Result<Option<Arc<dyn Provider>>, CommandError> {
    let settings = Settings::of(plan.manifests());
    let named = args.model.as_deref().filter(|model| !model.is_empty()).map(ModelRef::from);
    let models = KnownModels::of(&settings, named.as_ref(), None, Keys::of(folders), Arc::default());
    let model = named.or(settings.processor).unwrap_or(ModelRef::Offline);
    check_model(&*models, &model, plan)?;
    let usable = |error: LlmError| CommandError::usage(error.to_string(), "choose another --model or SKEIN_MODEL");
    let accelerator = models.recovery_policy().map_err(usable)?.accelerator;
    accelerator
        .map_or_else(|| model.can_advise().then(|| models.provider(&model)).transpose(), |model| Ok(Some(model)))
        .map_err(usable)
}

fn prompt_text(args: &RouteArgs, output: &mut CommandOutput) -> Result<String, CommandError> {
    let text = match &args.prompt {
        Some(prompt) => prompt.clone(),
        None => {
            if std::io::stdin().is_terminal() {
                output.note("type the prompt; Ctrl-D on an empty line ends it");
            }
            attach::from_stdin()?
        }
    };
    if text.trim().is_empty() {
        return Err(CommandError::usage(
            "the prompt is empty",
            "say what is to be done: skein route \"fix the login\"",
        ));
    }
    Ok(text)
}

async fn remember(
    orchestrator: &Orchestrator,
    prompt: &str,
    mode: &str,
    plan: &Plan,
    folders: &Folders,
) -> Result<(), CommandError> {
    let mode = parse_mode(mode, plan).map_err(no_such_mode)?;
    if prompt.trim_start().starts_with('@') {
        return Err(CommandError::usage(
            "a prompt that begins with @ says itself where it goes",
            "leave out the @agent/mode",
        ));
    }
    if let Some(secret) = secrets::find_secret(prompt) {
        return Err(CommandError::usage(
            format!("the prompt is not remembered: it holds what looks like {secret}"),
            "say it without the secret",
        ));
    }
    let kept = orchestrator.remember(&Principal::local(), &folders.cwd, prompt.trim(), &mode).await;
    kept.map_err(|error| CommandError::work(error.to_string(), "check the data folder"))
}

fn no_such_mode(error: UnknownModeError) -> CommandError {
    let (problem, help) = (display_line(&error.problem), display_line(&error.help));
    match error.refusal {
        Some(refusal) => {
            CommandError::Managed { problem, help, subject: refusal.name, setting: refusal.setting.to_string() }
        }
        None => CommandError::usage(problem, help),
    }
}

fn print(decision: &RoutingDecision, output: &mut CommandOutput) {
    let several = decision.is_compound();
    for (place, route) in decision.routes.iter().enumerate() {
        let number = if several { format!("{}  ", place + 1) } else { String::new() };
        let sure = match decision.by {
            DecisionSource::Default => String::new(),
            _ => format!("  {}", percent(route.confidence)),
        };
        output.line(&format!(
            "{number}{BOLD}{}{BOLD:#}{sure}  {QUIET}{}{QUIET:#}",
            route.mode,
            display_line(&route.reason)
        ));
        if several {
            output.line(&format!("   {}{}", display_line(&route.task), waits(route)));
        }
    }
    let others: Vec<_> = decision.alternatives.iter().map(alternative).collect();
    if !others.is_empty() {
        output.line(&format!("{QUIET}or: {}{QUIET:#}", others.join(", ")));
    }
}

fn waits(route: &Route) -> String {
    let before: Vec<_> = route.after.iter().map(|place| (place + 1).to_string()).collect();
    if before.is_empty() { String::new() } else { format!(" {QUIET}(after {}){QUIET:#}", before.join(" and ")) }
}

fn alternative(ranked: &RankedMode) -> String {
    format!("{} {}", ranked.mode, percent(ranked.confidence))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
