//! `skein route`: which mode a prompt would go to, and why; how well the router does on cases of one's own.

mod eval;

use std::cell::OnceCell;
use std::io::{IsTerminal as _, Read as _};
use std::path::PathBuf;

use clap::Args;

use super::folders::Folders;
use super::opening::mode_named;
use super::output::{BOLD, Failure, Output, QUIET, shown};
use super::started::store_failure;
use super::{Global, workspace};
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::manifest::Settings;
use crate::orchestrator::route::{By, Decision, NoSuchMode, Route, decide, named};
use crate::router::{self, Ranked, Router};
use crate::secrets;
use crate::store::{self, Routes};

#[derive(Debug, Args)]
pub(super) struct RouteArgs {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Remember for this project that the prompt belongs to this mode
    #[arg(long, value_name = "AGENT/MODE")]
    remember: Option<String>,
    /// Measure the router on cases: a line `agent/mode<TAB>prompt` each, with - for what belongs nowhere. The modes of
    /// the agents that are named take part
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "remember"])]
    eval: Option<PathBuf>,
    /// Let all agents take part in --eval, whichever the cases name
    #[arg(long, requires = "eval")]
    all: bool,
    /// The prompt, as it would be given to `run`; @agent/mode at its beginning decides. Read from stdin if left out
    prompt: Option<String>,
}

pub(super) fn run(args: &RouteArgs, global: &Global, folders: &Folders, output: &mut Output) -> Result<(), Failure> {
    let plan = workspace::plan(global, folders, output)?;
    if let Some(file) = &args.eval {
        return eval::run(file, args.all, args.json, &plan, output);
    }
    let prompt = prompt_text(args, output)?;
    if let Some(mode) = &args.remember {
        remember(&prompt, mode, &plan, folders)?;
    }
    let settings = Settings::of(plan.manifests());
    let agent = settings.agent.as_ref().map_or("goose", |agent| agent.as_str());
    let default = mode_named(&plan, agent, settings.mode.as_ref().map(|mode| mode.as_str()))?;
    let corrections = corrections(folders)?;
    // Learned only if the prompt does not say it.
    let router = OnceCell::new();
    let learned = || router.get_or_init(|| learned(&plan, folders, &corrections));
    let decision = decide(&prompt, &plan, learned, &default).map_err(no_such_mode)?;
    if args.json {
        output.json(&decision.to_json());
    } else {
        print(&decision, output);
    }
    Ok(())
}

fn prompt_text(args: &RouteArgs, output: &mut Output) -> Result<String, Failure> {
    let text = match &args.prompt {
        Some(prompt) => prompt.clone(),
        None => {
            if std::io::stdin().is_terminal() {
                output.note("type the prompt; Ctrl-D on a line of its own ends it");
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
        return Err(Failure::usage("the prompt is empty", "say what is to be done: skein route \"fix the login\""));
    }
    Ok(text)
}

/// The router of everything that may be chosen here, with what the user has corrected.
fn learned(plan: &Plan, folders: &Folders, corrections: &[(String, ModeId)]) -> Router {
    let candidates = router::candidates(plan.manifests());
    let router = Router::learned_in(&folders.data.join("router"), &candidates);
    router.with_corrections(corrections.iter().map(|(prompt, mode)| (prompt.as_str(), mode)))
}

fn corrections(folders: &Folders) -> Result<Vec<(String, ModeId)>, Failure> {
    let file = folders.data.join("routes.db");
    if !file.exists() {
        return Ok(Vec::new());
    }
    let project = store::project_root(&folders.cwd);
    let kept = Routes::open(&file).and_then(|routes| routes.corrections(&project));
    let kept = kept.map_err(|error| store_failure(&error))?;
    Ok(kept.into_iter().filter_map(|kept| Some((kept.prompt, kept.mode.parse().ok()?))).collect())
}

fn remember(prompt: &str, mode: &str, plan: &Plan, folders: &Folders) -> Result<(), Failure> {
    let mode = named(mode, plan).map_err(no_such_mode)?;
    if prompt.trim_start().starts_with('@') {
        return Err(Failure::usage(
            "a prompt that begins with @ says itself where it goes",
            "leave out the @agent/mode",
        ));
    }
    if let Some(secret) = secrets::found_in(prompt) {
        return Err(Failure::usage(
            format!("the prompt is not remembered: it holds what looks like {secret}"),
            "say it without the secret",
        ));
    }
    let project = store::project_root(&folders.cwd);
    let kept = Routes::open(&folders.data.join("routes.db"))
        .and_then(|routes| routes.remember(&project, prompt.trim(), &mode.to_string()));
    kept.map_err(|error| store_failure(&error))
}

fn no_such_mode(error: NoSuchMode) -> Failure {
    Failure::usage(shown(&error.problem), shown(&error.help))
}

fn print(decision: &Decision, output: &mut Output) {
    let several = decision.is_compound();
    for (place, route) in decision.routes.iter().enumerate() {
        let number = if several { format!("{}  ", place + 1) } else { String::new() };
        let sure = match decision.by {
            By::Default => String::new(),
            _ => format!("  {}", percent(route.confidence)),
        };
        output.line(&format!("{number}{BOLD}{}{BOLD:#}{sure}  {QUIET}{}{QUIET:#}", route.mode, shown(&route.reason)));
        if several {
            output.line(&format!("   {}{}", shown(&route.task), waits(route)));
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

fn alternative(ranked: &Ranked) -> String {
    format!("{} {}", ranked.mode, percent(ranked.confidence))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
