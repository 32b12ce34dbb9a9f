//! Finds the managed files, and says where they override flags.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::Global;
use super::folders::Folders;
use super::output::{CommandError, display_line};
use crate::diagnostic::{Severity, has_errors};
use crate::graph::{self, Plan, Resolution};
use crate::manifest::{ManagedFile, ManagedLayer, ManagedSetting, Manifests, load_managed, read_named};
use crate::sandbox::{Enforcement, StatedEnforcement};

/// Help for a refusal by a managed setting.
pub(super) const ADMINISTRATOR: &str =
    "ask the administrator of this machine; `skein doctor` lists the managed settings";

/// The file of the administrator. It applies to every user of this machine.
const SYSTEM_FILE: &str = "/etc/skein/config.yaml";

/// Returns the managed files that apply: that of the machine, if there is one, and that of `--managed`.
pub(super) fn paths(global: &Global) -> Vec<PathBuf> {
    let system = PathBuf::from(SYSTEM_FILE);
    // A file that cannot be examined counts as present, so that reading it fails.
    let is_absent = system.metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    (!is_absent).then_some(system).into_iter().chain(global.managed.clone()).collect()
}

/// Reads the managed files. Fails if one cannot be read: without it, nothing may start.
pub(super) fn files(global: &Global, folders: &Folders) -> Result<Vec<ManagedFile>, CommandError> {
    let read = |path: &PathBuf| -> Result<ManagedFile, CommandError> {
        let file = folders.display_path(path);
        let text = read_named(path, &file).map_err(|error| {
            let problem = format!("the managed settings {} cannot be read: {}", display_line(&file), error.problem);
            CommandError::usage(problem, "make the file readable, or ask the administrator of this machine")
        })?;
        Ok(ManagedFile { file, text })
    };
    paths(global).iter().map(read).collect()
}

/// Returns the managed settings alone. `None` if they cannot be read or have an error.
pub(super) fn layer(global: &Global, folders: &Folders) -> Option<ManagedLayer> {
    let (manifests, found) = load_managed(&[], None, &files(global, folders).ok()?);
    (!has_errors(&found)).then_some(manifests.managed)
}

/// Returns a plan without agents and services, within the managed settings. Fails if these cannot be read or have an
/// error.
pub(super) fn empty_plan(global: &Global, folders: &Folders) -> Result<Plan, CommandError> {
    let (manifests, found) = load_managed(&[], None, &files(global, folders)?);
    let Resolution { plan, diagnostics } = graph::resolve_without_notes(manifests, found);
    plan.ok_or_else(|| {
        let first = diagnostics.iter().find(|found| found.severity == Severity::Error);
        let first = first.map(|found| format!("{}: {}", found.at, found.problem)).unwrap_or_default();
        CommandError::usage(format!("the managed settings have an error: {}", display_line(&first)), ADMINISTRATOR)
    })
}

/// A flag or variable that a managed setting overrides.
pub(super) struct FlagRefusal {
    /// The flag with its value. A variable counts as its flag.
    pub(super) flag: String,
    pub(super) setting: ManagedSetting,
    /// The text for the user.
    note: String,
}

/// Returns a note for each flag or variable that a managed setting overrides.
pub(super) fn notes(global: &Global, manifests: &Manifests) -> Vec<String> {
    flag_refusals(global, manifests).into_iter().map(|refusal| refusal.note).collect()
}

/// Returns the flags and variables that a managed setting overrides.
pub(super) fn flag_refusals(global: &Global, manifests: &Manifests) -> Vec<FlagRefusal> {
    let managed = &manifests.managed;
    let mut refusals = Vec::new();
    if let Some((loosest, setting)) = managed.approval()
        && let Some(level) = global.approval.filter(|level| managed.tighten(*level) != *level)
    {
        let (level, loosest) = (level.as_str(), loosest.as_str());
        let note = format!("the approval level is `{loosest}`, not `{level}`: {setting} allows no looser level");
        refusals.push(FlagRefusal { flag: format!("--approval {level}"), setting, note });
    }
    for entry in managed.entries() {
        let sandbox = entry.config.sandbox.as_ref();
        // Limits without `enforce` keep the sandbox on, too.
        let stated = sandbox.map(|sandbox| sandbox.all.enforce.unwrap_or(StatedEnforcement::Preferred));
        let flag = global.sandbox.map(Enforcement::from);
        if let (Some(stated), Some(flag)) = (stated, flag)
            && flag > Enforcement::from(stated)
        {
            let stated = match stated {
                StatedEnforcement::Required => "required",
                StatedEnforcement::Preferred => "preferred",
            };
            let setting = entry.setting("sandbox");
            let note = format!("the sandbox is {stated} in spite of --sandbox: {setting} requires it");
            refusals.push(FlagRefusal { flag: "--sandbox".to_owned(), setting, note });
        }
    }
    refusals
}

/// Returns true if this user can change the file, and so its settings.
pub(super) fn is_writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}
