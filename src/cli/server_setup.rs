//! Reads and changes the set-up of a server for the console: the user's manifests, the findings of `doctor`, and the
//! log.
//!
//! Invariant: a manifest is written only if `check` accepts it and if it is still the version that was read.

mod log_tail;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::folders::Folders;
use super::output::CommandError;
use super::sandbox::machine::{SandboxMachine, needs_machine};
use super::services::logs;
use super::{Global, doctor, whole_file, workspace};
use crate::diagnostic::{self, Diagnostic, Severity};
use crate::graph::{Resolution, check_machine};
use crate::manifest::{Layer, Manifests};
use crate::serve::{
    LogEntry, ManifestCheck, ManifestListing, ManifestPath, OtherManifest, SaveOutcome, ServerSetup, ServerSetupError,
    SetupFinding, StoredManifest,
};
use crate::trust::hash_content;

/// The size limit of a file in the editor, as of a manifest.
const MAX_FILE: u64 = 1024 * 1024;
/// Folders below `agents` and `services`.
const MAX_DEPTH: usize = 8;
/// Lines of a service's log.
const LOG_LINES: usize = 100;

/// The set-up of the server that this process runs.
pub(super) struct LocalSetup {
    pub(super) global: Global,
    pub(super) folders: Folders,
}

impl ServerSetup for LocalSetup {
    fn list_manifests(&self) -> Result<ManifestListing, ServerSetupError> {
        let mut files = Vec::new();
        collect_files(&self.folders.config, Path::new(""), 0, &mut files);
        files.sort();
        let files = files.into_iter().map(|path| {
            let shown = self.display_name(&path);
            (path, shown)
        });
        let (resolution, _) = workspace::resolve_quietly(&self.global, &self.folders).map_err(settings)?;
        let manifests = workspace::manifests_quietly(&self.global, &self.folders).map_err(settings)?;
        Ok(ManifestListing {
            folder: self.folders.config.display().to_string(),
            files: files.collect(),
            others: others(&manifests),
            diagnostics: resolution.diagnostics,
        })
    }

    fn read_manifest(&self, path: &ManifestPath) -> Result<Option<StoredManifest>, ServerSetupError> {
        let failed = |source: std::io::Error| ServerSetupError::File { file: path.as_str().to_owned(), source };
        let file = self.place(path);
        let metadata = match fs::metadata(&file) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        // Reading a pipe or a device could block forever.
        if !metadata.is_file() || metadata.len() > MAX_FILE {
            return Err(failed(std::io::Error::other("it is no regular file of at most 1 MiB")));
        }
        let bytes = fs::read(&file).map_err(failed)?;
        let version = hash_content(&bytes);
        let text =
            String::from_utf8(bytes).map_err(|_| ServerSetupError::NotText { file: path.as_str().to_owned() })?;
        Ok(Some(StoredManifest { text, version }))
    }

    fn check_manifest(&self, path: &ManifestPath, text: &str) -> Result<ManifestCheck, ServerSetupError> {
        let mut machine = None;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let draft = workspace::resolve_draft(&self.global, &self.folders, path.as_path(), text).map_err(settings)?;
        let diagnostics = self.findings(draft, &mut machine)?;
        let (current, _) = workspace::resolve_quietly(&self.global, &self.folders).map_err(settings)?;
        let current = self.findings(current, &mut machine)?;
        let file = self.display_name(path);
        // An error that another file has already must not keep the user from correcting this one.
        let is_new = |found: &Diagnostic| {
            let is_known = |known: &Diagnostic| {
                (known.code, &known.at.file, &known.problem) == (found.code, &found.at.file, &found.problem)
            };
            found.severity == Severity::Error && (found.at.file == file || !current.iter().any(is_known))
        };
        let is_accepted = !diagnostics.iter().any(is_new);
        Ok(ManifestCheck { file, diagnostics, is_accepted })
    }

    fn save_manifest(
        &self,
        path: &ManifestPath,
        text: &str,
        version: Option<&str>,
    ) -> Result<SaveOutcome, ServerSetupError> {
        if !self.is_version(path, version)? {
            return Ok(SaveOutcome::Changed);
        }
        let check = self.check_manifest(path, text)?;
        if !check.is_accepted {
            return Ok(SaveOutcome::Rejected(check));
        }
        let failed = |source: std::io::Error| ServerSetupError::File { file: path.as_str().to_owned(), source };
        fs::create_dir_all(&self.folders.config).map_err(failed)?;
        // Held from the comparison until the new file is in place. Other commands that change settings take it too.
        let lock = fs::File::open(&self.folders.config).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let stored = self.read_manifest(path)?;
        if stored.as_ref().map(|stored| stored.version.as_str()) != version {
            return Ok(SaveOutcome::Changed);
        }
        let file = self.place(path);
        let written = match &stored {
            None => whole_file::create(&file, text, 0o666),
            Some(stored) => {
                let text = with_line_ends(text, &stored.text);
                fs::metadata(&file).and_then(|metadata| whole_file::replace(&file, &text, metadata.permissions()))
            }
        };
        match written {
            Ok(()) => Ok(SaveOutcome::Saved),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(SaveOutcome::Changed),
            Err(error) => Err(failed(error)),
        }
    }

    fn examine(&self) -> Result<Vec<SetupFinding>, ServerSetupError> {
        let found = doctor::findings(&self.global, &self.folders).map_err(settings)?;
        let finding = |found: doctor::DoctorFinding| SetupFinding {
            severity: found.severity,
            what: found.what,
            place: found.place,
            fix: found.fix,
        };
        Ok(found.into_iter().map(finding).collect())
    }

    fn recent_errors(&self) -> Result<Vec<LogEntry>, ServerSetupError> {
        log_tail::recent_errors(&self.log_folder()).map_err(unreadable_log)
    }

    fn service_log(&self, service: &str) -> Result<Vec<LogEntry>, ServerSetupError> {
        let lines = logs::last_lines(&self.log_folder(), service, LOG_LINES).map_err(unreadable_log)?.0;
        Ok(lines.into_iter().map(|line| LogEntry { time: line.time, level: String::new(), text: line.text }).collect())
    }
}

impl LocalSetup {
    fn place(&self, path: &ManifestPath) -> PathBuf {
        self.folders.config.join(path.as_path())
    }

    /// Returns the name of a file in diagnostics.
    fn display_name(&self, path: &ManifestPath) -> String {
        self.folders.display_path(&self.place(path))
    }

    fn log_folder(&self) -> PathBuf {
        self.folders.state.join("log")
    }

    fn is_version(&self, path: &ManifestPath, version: Option<&str>) -> Result<bool, ServerSetupError> {
        Ok(self.read_manifest(path)?.as_ref().map(|stored| stored.version.as_str()) == version)
    }

    /// Returns the errors and warnings of `check`: those of the manifests, and those of this machine.
    fn findings(
        &self,
        resolution: Resolution,
        machine: &mut Option<SandboxMachine>,
    ) -> Result<Vec<Diagnostic>, ServerSetupError> {
        let mut diagnostics = resolution.diagnostics;
        if let Some(plan) = resolution.plan.as_ref().filter(|plan| needs_machine(plan)) {
            let known = match machine.take() {
                Some(known) => known,
                None => SandboxMachine::probe(&self.folders).map_err(settings)?,
            };
            diagnostics.extend(check_machine(plan, |profile| known.problem(profile)));
            *machine = Some(known);
        }
        diagnostic::sort(&mut diagnostics);
        Ok(without_notes(diagnostics))
    }
}

fn without_notes(mut diagnostics: Vec<Diagnostic>) -> Vec<Diagnostic> {
    diagnostics.retain(|found| found.severity != Severity::Note);
    diagnostics
}

/// Collects the configs, manifests, prompts and examples below a folder. Leaves out what cannot be read.
fn collect_files(root: &Path, below: &Path, depth: usize, files: &mut Vec<ManifestPath>) {
    for entry in fs::read_dir(root.join(below)).into_iter().flatten().filter_map(Result::ok) {
        let path = below.join(entry.file_name());
        let Ok(metadata) = fs::metadata(root.join(&path)) else { continue };
        let is_of_manifests = depth > 0 || ["agents", "services"].iter().any(|name| path == Path::new(name));
        if metadata.is_dir() && is_of_manifests && depth < MAX_DEPTH {
            collect_files(root, &path, depth + 1, files);
        } else if metadata.is_file() {
            files.extend(path.to_str().and_then(ManifestPath::parse));
        }
    }
}

/// Returns the agents and services that are not in the user's folder.
fn others(manifests: &Manifests) -> Vec<OtherManifest> {
    let agents = manifests.agents.values().map(|entry| OtherManifest {
        name: entry.manifest.name.to_string(),
        kind: "agent",
        layer: entry.layer,
        file: entry.source.file.clone(),
    });
    let services = manifests.services.values().map(|entry| OtherManifest {
        name: entry.manifest.name.to_string(),
        kind: "service",
        layer: entry.layer,
        file: entry.source.file.clone(),
    });
    agents.chain(services).filter(|other| other.layer != Layer::User).collect()
}

/// Returns a text with the line ends of the file that it replaces.
fn with_line_ends(text: &str, stored: &str) -> String {
    if stored.contains("\r\n") { text.replace('\n', "\r\n") } else { text.to_owned() }
}

fn settings(error: CommandError) -> ServerSetupError {
    ServerSetupError::Settings(error.problem())
}

fn unreadable_log(source: std::io::Error) -> ServerSetupError {
    ServerSetupError::File { file: "skein.log".to_owned(), source }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;
    use crate::principal::Principal;

    const SERVICE: &str = "version: 1\nkind: service\nname: web\ndescription: Reads pages.\ntransport:\n  http:\n    url: http://127.0.0.1:9/\n";

    struct TestSetup {
        setup: LocalSetup,
        _folder: tempfile::TempDir,
    }

    fn test_setup() -> TestSetup {
        let folder = tempfile::tempdir().unwrap();
        let below = |name: &str| folder.path().join(name);
        fs::create_dir_all(below("project")).unwrap();
        let folders = Folders {
            cwd: below("project"),
            home: below("home"),
            config_home: below("home/.config"),
            config: below("config"),
            data: below("data"),
            state: below("state"),
            principal: Principal::local(),
            store: crate::store::StorePlace::files(below("data")),
            shared: None,
        };
        let global = Cli::try_parse_from(["skein", "agents"]).unwrap().global;
        TestSetup { setup: LocalSetup { global, folders }, _folder: folder }
    }

    fn path(text: &str) -> ManifestPath {
        ManifestPath::parse(text).unwrap()
    }

    #[test]
    fn a_file_is_created_listed_and_replaced() {
        let TestSetup { setup, _folder } = test_setup();
        let web = path("services/web.yaml");
        assert!(setup.read_manifest(&web).unwrap().is_none());
        assert!(matches!(setup.save_manifest(&web, SERVICE, None).unwrap(), SaveOutcome::Saved));
        let stored = setup.read_manifest(&web).unwrap().unwrap();
        assert_eq!(stored.text, SERVICE);
        let listing = setup.list_manifests().unwrap();
        assert_eq!(listing.files.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(), ["services/web.yaml"]);
        assert!(listing.others.iter().any(|other| other.name == "developer" && other.layer == Layer::Builtin));
        let new = SERVICE.replace("pages", "more");
        assert!(matches!(setup.save_manifest(&web, &new, Some(&stored.version)).unwrap(), SaveOutcome::Saved));
        assert!(matches!(setup.save_manifest(&web, SERVICE, Some(&stored.version)).unwrap(), SaveOutcome::Changed));
        assert!(matches!(setup.save_manifest(&web, SERVICE, None).unwrap(), SaveOutcome::Changed));
        assert_eq!(setup.read_manifest(&web).unwrap().unwrap().text, new);
    }

    #[test]
    fn a_text_that_check_rejects_is_not_saved() {
        let TestSetup { setup, _folder } = test_setup();
        let web = path("services/web.yaml");
        let wrong = SERVICE.replace("transport", "transprt");
        let SaveOutcome::Rejected(check) = setup.save_manifest(&web, &wrong, None).unwrap() else { panic!("saved") };
        let found = check.diagnostics.iter().find(|found| found.problem.contains("transprt")).unwrap();
        assert_eq!((found.at.file.as_str(), found.at.span.as_ref().unwrap().line), (check.file.as_str(), 5));
        assert!(setup.read_manifest(&web).unwrap().is_none());
    }

    #[test]
    fn an_error_in_another_file_does_not_block_this_one() {
        let TestSetup { setup, _folder } = test_setup();
        let folder = setup.folders.config.join("services");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("old.yaml"), "version: 1\nkind: service\nnam: x\n").unwrap();
        let web = path("services/web.yaml");
        assert!(setup.check_manifest(&web, SERVICE).unwrap().is_accepted);
        assert!(!setup.check_manifest(&path("services/old.yaml"), "version: 1\nkind: service\n").unwrap().is_accepted);
    }

    #[test]
    fn a_prompt_is_checked_with_the_text_that_is_not_saved() {
        let TestSetup { setup, _folder } = test_setup();
        let agent = "version: 1\nkind: agent\nname: helper\ndescription: Helps.\nmodes:\n  - slug: main\n    \
                     description: Helps.\n    prompt: helper.md\n    tool_groups: []\n";
        let (manifest, prompt) = (path("agents/helper.yaml"), path("agents/helper.md"));
        assert!(!setup.check_manifest(&manifest, agent).unwrap().is_accepted, "there is no prompt yet");
        assert!(matches!(setup.save_manifest(&prompt, "Help.\n", None).unwrap(), SaveOutcome::Saved));
        assert!(matches!(setup.save_manifest(&manifest, agent, None).unwrap(), SaveOutcome::Saved));
        assert!(setup.check_manifest(&prompt, "Help {{ cwd }}.\n").unwrap().is_accepted);
        let broken = setup.check_manifest(&prompt, "Help {{ cwd.\n").unwrap();
        assert!(!broken.is_accepted && broken.diagnostics.iter().any(|found| found.at.file == broken.file));
    }

    #[test]
    fn line_ends_stay_as_they_are() {
        assert_eq!(with_line_ends("a\nb\n", "x\r\ny\r\n"), "a\r\nb\r\n");
        assert_eq!(with_line_ends("a\nb\n", "x\n"), "a\nb\n");
    }
}
