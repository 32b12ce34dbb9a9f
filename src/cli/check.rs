//! `skein check`: everything that is wrong with the manifests, at once.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::Global;
use super::folders::Folders;
use super::output::{Failure, Output};
use super::workspace::{self, Untrusted};
use crate::diagnostic::{Diagnostic, Severity};

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Files or folders to check as if they were given with --manifests
    paths: Vec<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Leave notes out
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: &CheckArgs, global: &Global, folders: &Folders, output: &mut Output) -> Result<(), Failure> {
    let resolved = workspace::resolve(global, &args.paths, Untrusted::Check, folders, output)?;
    let mut diagnostics = resolved.diagnostics;
    let count = |severity| diagnostics.iter().filter(|found: &&Diagnostic| found.severity == severity).count();
    let (errors, warnings, notes) = (count(Severity::Error), count(Severity::Warning), count(Severity::Note));
    if args.quiet {
        diagnostics.retain(|found| found.severity != Severity::Note);
    }
    if args.json {
        let diagnostics: Vec<_> = diagnostics.iter().map(Diagnostic::to_json).collect();
        output.json(&json!({
            "errors": errors, "warnings": warnings, "notes": notes, "diagnostics": diagnostics,
        }));
    } else {
        output.diagnostics(&diagnostics);
        if let Some(plan) = &resolved.plan {
            let agents = plan.agents().count();
            let modes: usize = plan.agents().map(|agent| agent.modes.len()).sum();
            let services = plan.services().count();
            output.line(&format!(
                "{agents} agents, {modes} modes, {services} services: no errors, {}, {}",
                counted(warnings, "warning"),
                counted(notes, "note")
            ));
        }
    }
    if errors > 0 { Err(Failure::Manifests { errors }) } else { Ok(()) }
}

fn counted(count: usize, thing: &str) -> String {
    match count {
        0 => format!("no {thing}s"),
        1 => format!("1 {thing}"),
        _ => format!("{count} {thing}s"),
    }
}
