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

/// The folder and the file of the administrator. The file applies to every user of this machine.
const SYSTEM_FOLDER: &str = "/etc/skein";
const SYSTEM_FILE: &str = "config.yaml";

/// Returns the managed files that apply: that of the machine, if there is one, and that of `--managed`.
pub(super) fn paths(global: &Global) -> Vec<PathBuf> {
    system_file(Path::new(SYSTEM_FOLDER)).into_iter().chain(global.managed.clone()).collect()
}

/// Returns the file of the administrator. `None` if the folder or the file does not exist. Anything else counts as
/// present, so that reading it fails: a file that cannot be examined, or a link, even if it leads to nothing.
fn system_file(folder: &Path) -> Option<PathBuf> {
    let is_missing = |error: &std::io::Error| error.kind() == ErrorKind::NotFound;
    let file = folder.join(SYSTEM_FILE);
    let is_absent = match folder.symlink_metadata() {
        Ok(metadata) => metadata.is_dir() && file.symlink_metadata().is_err_and(|error| is_missing(&error)),
        Err(error) => is_missing(&error),
    };
    (!is_absent).then_some(file)
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_dangling_link_to_managed_settings_is_no_absence() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("skein");
        let file = folder.join(SYSTEM_FILE);
        assert_eq!(system_file(&folder), None);
        symlink(place.path().join("gone"), &folder).unwrap();
        assert_eq!(system_file(&folder), Some(file.clone()));
        std::fs::remove_file(&folder).unwrap();
        std::fs::create_dir(&folder).unwrap();
        assert_eq!(system_file(&folder), None);
        symlink(place.path().join("gone"), &file).unwrap();
        assert_eq!(system_file(&folder), Some(file.clone()));
        assert!(read_named(&file, "config.yaml").is_err());
    }
}
