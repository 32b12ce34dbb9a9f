//! `skein doctor`: finds problems of a set-up and gives a fix for each, and shows what the sandbox enforces. It changes
//! nothing, starts only itself, and connects only to this machine.

mod files;
mod hooks;
mod reach;
mod sandbox;

use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::environment::{find_in_path, variable};
use super::folders::Folders;
use super::keys::{KeyLocation, KeyringError, Keys};
use super::models::KnownModels;
use super::output::{CommandError, CommandOutput, display_line};
use super::{Global, managed_files, top_of_mind, upgrade, workspace};
use crate::agents::models;
use crate::diagnostic::{Diagnostic, Severity};
use crate::graph::Plan;
use crate::ids::ModelRef;
use crate::manifest::{ManagedConfig, Manifests, Settings};
use crate::services::builtin::knowledge::problems;
use crate::session::ModelSource as _;
use crate::trust::{ProjectFiles, TrustState, TrustStore};
use hooks::HookLine;
use sandbox::SandboxReport;

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A problem, or a fact worth knowing.
#[derive(Debug, Serialize)]
pub(super) struct DoctorFinding {
    pub(super) severity: Severity,
    pub(super) what: String,
    /// A file, a variable, an address.
    pub(super) place: String,
    pub(super) fix: String,
}

/// The findings so far.
#[derive(Default)]
struct Findings(Vec<DoctorFinding>);

impl Findings {
    fn add(&mut self, severity: Severity, what: impl Into<String>, place: impl Into<String>, fix: impl Into<String>) {
        let (what, place, fix) = (display_line(&what.into()), display_line(&place.into()), display_line(&fix.into()));
        self.0.push(DoctorFinding { severity, what, place, fix });
    }

    fn error(&mut self, what: impl Into<String>, place: impl Into<String>, fix: impl Into<String>) {
        self.add(Severity::Error, what, place, fix);
    }

    fn warning(&mut self, what: impl Into<String>, place: impl Into<String>, fix: impl Into<String>) {
        self.add(Severity::Warning, what, place, fix);
    }

    fn count(&self, severity: Severity) -> usize {
        self.0.iter().filter(|found| found.severity == severity).count()
    }
}

/// A set-up that was examined.
struct Examination {
    found: Findings,
    sandbox: SandboxReport,
    /// `None` if the manifests have errors.
    plan: Option<Plan>,
}

/// Returns the findings alone, the worst first. Fails if this program cannot be started again.
pub(super) fn findings(global: &Global, folders: &Folders) -> Result<Vec<DoctorFinding>, CommandError> {
    Ok(examine(global, folders)?.found.0)
}

fn examine(global: &Global, folders: &Folders) -> Result<Examination, CommandError> {
    let mut found = Findings::default();
    files::check(folders, &mut found);
    trust(folders, &mut found);
    let plan = manifests(global, folders, &mut found);
    let sandbox = sandbox::probe(plan.as_ref(), folders)?;
    sandbox.add_findings(&mut found);
    knowledge(folders, &mut found);
    if let Some(problem) = top_of_mind::from_environment(folders).read().problem {
        found.warning(problem, "SKEIN_TOM_FILE or GOOSE_MOIM_MESSAGE_FILE", "name a text file, or unset the variable");
    }
    if find_in_path("bash").is_none() {
        let fix = "install bash, or put it on the PATH: the service developer runs commands with it";
        found.error("there is no program `bash` on the PATH", "PATH", fix);
    }
    found.0.sort_by_key(|found| found.severity);
    Ok(Examination { found, sandbox, plan })
}

pub(super) fn run(
    args: &DoctorArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let Examination { found, sandbox, plan } = examine(global, folders)?;
    if !args.json && upgrade::is_upgraded(folders) {
        upgrade::CHANGES.iter().for_each(|line| output.line(line));
    }
    let hooks = plan.as_ref().map(|plan| hooks::list(plan.manifests())).unwrap_or_default();
    print_findings(&found, &sandbox, &hooks, args.json, output);
    match found.count(Severity::Error) {
        0 => Ok(()),
        1 => Err(CommandError::work("the set-up has 1 error", "it says its fix")),
        errors => Err(CommandError::work(format!("the set-up has {errors} errors"), "each says its fix")),
    }
}

fn print_findings(
    found: &Findings,
    sandbox: &SandboxReport,
    hooks: &[HookLine],
    as_json: bool,
    output: &mut CommandOutput,
) {
    let counts = [Severity::Error, Severity::Warning, Severity::Note].map(|severity| found.count(severity));
    let [errors, warnings, notes] = counts;
    if as_json {
        output.json(&json!({
            "errors": errors, "warnings": warnings, "notes": notes, "findings": found.0, "sandbox": sandbox.json(),
            "hooks": hooks,
        }));
        return;
    }
    for DoctorFinding { severity, what, place, fix } in &found.0 {
        output.line(&format!("{severity}: {what}\n  at:  {place}\n  fix: {fix}"));
    }
    sandbox.lines().iter().for_each(|line| output.line(&display_line(line)));
    hooks.iter().for_each(|hook| output.line(&display_line(&hook.to_string())));
    let plural = |count: usize, thing: &str| format!("{count} {thing}{}", if count == 1 { "" } else { "s" });
    let counted = [plural(errors, "error"), plural(warnings, "warning"), plural(notes, "note")].join(", ");
    output.line(&format!("{counted}; nothing but this machine was asked"));
}

fn trust(folders: &Folders, found: &mut Findings) {
    let project = match ProjectFiles::find(&folders.cwd) {
        Ok(Some(project)) => project,
        Ok(None) => return,
        Err(error) => {
            return found.warning(
                error.to_string(),
                folders.cwd.display().to_string(),
                "correct it, then `skein trust`",
            );
        }
    };
    let place = project.root.display().to_string();
    match TrustStore::open(&folders.data).map(|store| store.trust_of(&project)) {
        Ok(TrustState::Trusted) => {}
        Ok(TrustState::Unknown) => {
            found.warning("the project's .skein/ or .mcp.json is not trusted and not used", place, LOOK);
        }
        Ok(TrustState::Changed) => {
            found.warning("the project has changed since it was trusted, and is not used", place, LOOK);
        }
        // The manifests cannot be read in this case, and that error is reported.
        Err(_) => {}
    }
}

const LOOK: &str = "look at it with `skein trust`, which asks";

/// Lists the managed settings, the flags that they override, and managed files that this user can change.
fn list_managed_settings(global: &Global, manifests: &Manifests, folders: &Folders, found: &mut Findings) {
    let fix = "nothing need be done; only the administrator of this machine changes it";
    for entry in manifests.managed.entries() {
        let stated = serde_json::to_value(&entry.config).unwrap_or_default();
        for key in ManagedConfig::KEYS {
            if let Some(value) = stated.get(key) {
                let what = format!("the managed setting `{key}` is {value}");
                found.add(Severity::Note, what, entry.setting(key).location(), fix);
            }
        }
    }
    for note in managed_files::notes(global, manifests) {
        found.warning(note, "the flags and variables of this command", "leave out the flag, or unset the variable");
    }
    for path in managed_files::paths(global).iter().filter(|path| managed_files::is_writable(path)) {
        let what = "you can change the managed settings, so they bind only those who cannot";
        found.warning(what, folders.display_path(path), "let only the administrator write the file");
    }
}

/// Reports the errors and warnings of `skein check`, then what the plan needs from this machine. Returns the plan;
/// `None` if the manifests have errors.
fn manifests(global: &Global, folders: &Folders, found: &mut Findings) -> Option<Plan> {
    let (resolved, _) = match workspace::resolve_quietly(global, folders) {
        Ok(resolved) => resolved,
        Err(failure) => {
            let place = folders.data.display().to_string();
            found.error(failure.problem(), place, "correct this first: nothing starts without it");
            return None;
        }
    };
    for Diagnostic { severity, code, at, problem, help, .. } in &resolved.diagnostics {
        found.add(*severity, format!("{problem} ({code})"), at.to_string(), help.as_str());
    }
    if let Some(plan) = resolved.plan {
        list_managed_settings(global, plan.manifests(), folders, found);
        reach::services(plan.manifests(), folders, found);
        model(&Settings::of(plan.manifests()), true, folders, found);
        return Some(plan);
    }
    // Check the readable manifests anyway: one error must not hide the others.
    let manifests = workspace::manifests_quietly(global, folders).ok()?;
    list_managed_settings(global, &manifests, folders, found);
    reach::services(&manifests, folders, found);
    model(&Settings::of(&manifests), false, folders, found);
    let what = "some manifests have errors: what could not be read of them was not looked at";
    found.warning(what, "the manifests with errors", "correct them, then run `skein doctor` again");
    None
}

/// Reports skills, recipes and agent files that cannot be used.
fn knowledge(folders: &Folders, found: &mut Findings) {
    let problems = problems(&folders.cwd, &folders.user());
    for problem in problems.iter().take(MAX_KNOWLEDGE) {
        let what = format!("a skill, recipe or agent file cannot be used: {}", problem.problem);
        found.warning(what, problem.place(), problem.help.as_str());
    }
    if problems.len() > MAX_KNOWLEDGE {
        let more = problems.len() - MAX_KNOWLEDGE;
        let what = format!("{more} more skills, recipes or agent files cannot be used");
        found.warning(what, folders.cwd.display().to_string(), "correct those that are named, then look again");
    }
}

/// Maximum number of unusable files to name.
const MAX_KNOWLEDGE: usize = 20;

/// Checks the model. If `whole` is false, some files could not be read and one of them may name the model.
fn model(settings: &Settings, whole: bool, folders: &Folders, found: &mut Findings) {
    let place = if variable("SKEIN_MODEL").is_some() { "SKEIN_MODEL" } else { "the profile in your config.yaml" };
    let Some(name) = variable("SKEIN_MODEL").map(ModelRef::from).or(settings.processor.clone()) else {
        if !whole {
            return;
        }
        let fix = "choose one with `skein configure`; until then tools are called by name";
        return found.add(Severity::Note, "no model is configured", "config.yaml", fix);
    };
    // `check` verifies the name of an external agent, and its program is checked with the others.
    if name.external_agent().is_some() {
        return;
    }
    let keys = Keys::of(folders);
    match KnownModels::of(settings, None, None, keys.clone(), Arc::default()).provider(&name) {
        Err(error) => {
            let fix = match keys.trouble() {
                Some(KeyringError::Locked) => "unlock your keyring, or run `skein configure`",
                _ => "correct it, or run `skein configure`",
            };
            found.error(error.to_string(), place, fix);
        }
        Ok(provider) => {
            key(&name, settings, &keys, found);
            if let Some(address) = provider.address() {
                reach::address(&format!("the model {name}"), address, place, found);
            }
        }
    }
}

/// Reports where the key of a model is stored.
fn key(model: &ModelRef, settings: &Settings, keys: &Keys, found: &mut Findings) {
    let known = models(settings, Arc::default()).providers();
    let Some(provider) = model.provider() else { return };
    let Some(facts) = known.iter().find(|facts| facts.name == provider) else { return };
    let Some(name) = &facts.key else { return };
    let remove = format!("nothing need be done; `skein configure --forget-key {provider}` removes it");
    match keys.find(name).0 {
        KeyLocation::Environment | KeyLocation::Nowhere => {}
        KeyLocation::Keyring => {
            found.add(Severity::Note, format!("the key {name} is in your keyring"), "keyring", remove)
        }
        KeyLocation::File => {
            let why = keys.trouble().map(|trouble| format!("; your keyring {trouble}")).unwrap_or_default();
            let what = format!("the key {name} is in a file, in plain text{why}");
            found.add(Severity::Note, what, keys.file().display().to_string(), remove);
        }
    }
}
