//! `skein check`: reports all problems of the manifests, or of a recipe, at once, and proves assertions about them.

mod reports;

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value, json};

use super::Global;
use super::folders::Folders;
use super::output::{CommandError, CommandOutput, display_line};
use super::sandbox::machine::{SandboxMachine, needs_machine};
use super::workspace::{self, UntrustedPolicy};
use crate::diagnostic::{self, Diagnostic, Severity};
use crate::graph::{AssertionReport, Plan, check_assertions, check_machine, profile_groups, profile_json};
use crate::ids::ModeId;
use crate::manifest::{self, AssertionFile, DocumentKind, SourceFile, Transport};
use crate::recipe;

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Check these files or folders too
    ///
    /// Manifests are checked as if given with --manifests. A file that is a recipe is checked as a recipe.
    paths: Vec<PathBuf>,
    /// Prove the assertions in this file; may be repeated
    #[arg(long = "assert", value_name = "FILE")]
    assertions: Vec<PathBuf>,
    /// Print the result as JSON
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Print the result in this format
    #[arg(long, value_enum, default_value_t = CheckFormat::Text)]
    format: CheckFormat,
    /// Omit notes
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CheckFormat {
    Text,
    Json,
    /// For code scanning
    Sarif,
    /// For test reports
    Junit,
}

pub(super) fn run(
    args: &CheckArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let (recipes, manifests): (Vec<_>, Vec<_>) = args.paths.iter().cloned().partition(|path| is_recipe(path));
    let resolved = workspace::resolve(global, &manifests, UntrustedPolicy::Check, folders, output)?;
    let mut diagnostics = resolved.diagnostics;
    if let Some(plan) = resolved.plan.as_ref().filter(|plan| needs_machine(plan)) {
        let machine = SandboxMachine::probe(folders)?;
        diagnostics.extend(check_machine(plan, |profile| machine.problem(profile)));
    }
    diagnostics.extend(recipes.iter().flat_map(|path| recipe::read(path, &folders.display_path(path)).1));
    diagnostic::sort(&mut diagnostics);
    let mut proofs = Vec::new();
    for path in &args.assertions {
        let shown = folders.display_path(path);
        let (reports, mistakes) = prove(path, &shown, resolved.plan.as_ref());
        diagnostics.extend(mistakes);
        proofs.extend(reports);
    }
    let of_manifests = diagnostics.clone();
    diagnostics.extend(proofs.iter().flat_map(|proof: &AssertionReport| proof.diagnostics.clone()));
    let count = |severity| diagnostics.iter().filter(|found: &&Diagnostic| found.severity == severity).count();
    let (errors, warnings, notes) = (count(Severity::Error), count(Severity::Warning), count(Severity::Note));
    if args.quiet {
        diagnostics.retain(|found| found.severity != Severity::Note);
    }
    let format = if args.json { CheckFormat::Json } else { args.format };
    match format {
        CheckFormat::Json => {
            let diagnostics: Vec<_> = diagnostics.iter().map(Diagnostic::to_json).collect();
            let mut report = json!({
                "errors": errors, "warnings": warnings, "notes": notes, "diagnostics": diagnostics,
                "sandbox": resolved.plan.as_ref().map(sandbox_json),
            });
            if !args.assertions.is_empty() {
                report["assertions"] = proofs.iter().map(proof_json).collect();
            }
            if folders.store.key().is_some() {
                report["store"] = json!({"encrypted": true, "search": false, "recall": false});
            }
            output.json(&report);
        }
        CheckFormat::Sarif => output.json(&reports::sarif(&diagnostics.iter().collect::<Vec<_>>())),
        CheckFormat::Junit => output.text(&reports::junit(&of_manifests.iter().collect::<Vec<_>>(), &proofs)),
        CheckFormat::Text => {
            output.diagnostics(&diagnostics);
            if folders.store.key().is_some() && !args.quiet {
                output.note("SKEIN_STORE_KEY encrypts stored texts, so search and recall of sessions are off");
            }
            if let Some(plan) = resolved.plan.as_ref().filter(|_| errors == 0) {
                let recipes = match recipes.len() {
                    0 => String::new(),
                    count => format!("{}, ", count_label(count, "recipe")),
                };
                let agents = plan.agents().count();
                let modes: usize = plan.agents().map(|agent| agent.modes.len()).sum();
                let services = plan.services().count();
                output.line(&format!(
                    "{recipes}{agents} agents, {modes} modes, {services} services: no errors, {}, {}",
                    count_label(warnings, "warning"),
                    count_label(notes, "note")
                ));
                if !args.assertions.is_empty() {
                    output.line(&format!("{}: all hold", count_label(proofs.len(), "assertion")));
                }
                if !args.quiet {
                    print_sandboxes(plan, output);
                }
            }
        }
    }
    if errors > 0 { Err(CommandError::Manifests { errors }) } else { Ok(()) }
}

/// Reads an assertion file and checks it on the plan. Without a plan only the file itself is checked.
fn prove(path: &Path, shown: &str, plan: Option<&Plan>) -> (Vec<AssertionReport>, Vec<Diagnostic>) {
    let read = manifest::read_named(path, shown)
        .map(|text| SourceFile::new(shown, text))
        .and_then(|source| Ok((manifest::parse(&source)?, source)));
    let (value, source) = match read {
        Ok(read) => read,
        Err(diagnostic) => return (Vec::new(), vec![*diagnostic]),
    };
    let mut mistakes = Vec::new();
    let file = manifest::read_as::<AssertionFile>(DocumentKind::Assertions, value, &source, &mut mistakes);
    let reports = match (file, plan) {
        (Some(file), Some(plan)) => check_assertions(plan, &file, &source),
        _ => Vec::new(),
    };
    (reports, mistakes)
}

fn proof_json(proof: &AssertionReport) -> Value {
    json!({
        "name": proof.title,
        "file": proof.at.file,
        "line": proof.at.span.as_ref().map(|span| span.line),
        "holds": proof.diagnostics.is_empty(),
        "counter_examples": proof.diagnostics.iter().map(|found| &found.problem).collect::<Vec<_>>(),
    })
}

/// Prints what limits the processes of modes, services and external agents.
fn print_sandboxes(plan: &Plan, output: &mut CommandOutput) {
    for (names, sandbox) in profile_groups(plan) {
        output.line(&format!("sandbox of {}:", display_line(&names.join(", "))));
        output.line(&format!("  {}", display_line(&sandbox)));
    }
}

fn sandbox_json(plan: &Plan) -> Value {
    let mut modes = Map::new();
    let mut agents = Map::new();
    for agent in plan.agents() {
        let name = &agent.manifest.name;
        if agent.is_external() {
            let profile = plan.agent_sandbox(name);
            agents.insert(name.to_string(), profile_json(profile));
        }
        for entry in &agent.modes {
            let id = ModeId::new(name.clone(), entry.mode.slug.clone());
            modes.insert(id.to_string(), profile_json(plan.mode_sandbox(&id)));
        }
    }
    let stdio = plan.services().filter(|service| matches!(service.manifest.transport, Transport::Stdio(_)));
    let services: Map<_, _> = stdio
        .map(|service| &service.manifest.name)
        .map(|name| (name.to_string(), profile_json(plan.service_sandbox(name))))
        .collect();
    json!({"modes": modes, "agents": agents, "services": services})
}

/// Decides by content: a recipe has no `kind`.
fn is_recipe(path: &Path) -> bool {
    if !path.is_file() {
        return false;
    }
    let name = path.display().to_string();
    // The manifest loader reports files that cannot be read.
    let value = manifest::read_named(path, &name).and_then(|text| manifest::parse(&SourceFile::new(name, text)));
    value.is_ok_and(|value| recipe::is_recipe(&value))
}

fn count_label(count: usize, thing: &str) -> String {
    match count {
        0 => format!("no {thing}s"),
        1 => format!("1 {thing}"),
        _ => format!("{count} {thing}s"),
    }
}
