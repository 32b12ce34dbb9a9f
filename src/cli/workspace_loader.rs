//! Loads what applies in a folder, and loads it again when a file has changed. An invalid change is reported, and what
//! was valid before still applies.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use super::agent_flags::AgentFlags;
use super::folders::Folders;
use super::keys::Keys;
use super::models::KnownModels;
use super::output::CommandError;
use super::principal_rules::PrincipalRules;
use super::runtime::CommandRuntime;
use super::{Global, managed_files, standalone, workspace};
use crate::agents::ExternalAgents;
use crate::broker::Broker;
use crate::diagnostic::mask_keys;
use crate::graph::{self, Plan};
use crate::ids::ModeId;
use crate::llm::RequestQueues;
use crate::manifest::{ServiceEntry, Settings};
use crate::permissions::SourcedRule;
use crate::principal::Principal;
use crate::project::{Project, ProjectError, ProjectLoader, ProjectUse};
use crate::session::ModelSource;
use crate::store::StoredConsent;
use crate::trust::ProjectFiles;

/// Maximum number of projects without a session that stay loaded.
const MAX_UNUSED: usize = 16;

/// Loads the manifests that apply in a folder, and reloads them when a file has changed.
pub(super) struct WorkspaceLoader {
    global: Global,
    folders: Folders,
    broker: Broker,
    outside: Arc<dyn ExternalAgents>,
    /// Agent, mode and model from the command line, for all sessions of this process.
    pub(super) flags: AgentFlags,
    pub(super) rules: Vec<SourcedRule>,
    /// Models that stay the same for the whole process, because their answers are recorded.
    pub(super) models: Option<Arc<dyn ModelSource>>,
    known: Mutex<HashMap<ProjectKey, KnownProject>>,
    /// Shared by all projects, so that Skein waits only once for a keyring that does not answer.
    keys: Keys,
    /// Shared by all projects, because they share the providers' keys.
    queues: Arc<RequestQueues>,
    principal_rules: Arc<PrincipalRules>,
}

/// The note about managed settings that apply before other changed files do.
const MANAGED_APPLY: &str = "the managed settings have changed and apply, although other changed files have errors";

/// Identifies a project whose plans replace each other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ProjectKey {
    principal: Principal,
    /// `None` for all folders outside of projects.
    root: Option<PathBuf>,
}

/// The last valid state of a project.
struct KnownProject {
    /// A folder in it.
    folder: PathBuf,
    /// The files when they were last read, valid or not.
    files: FileTraces,
    project: Project,
    /// When a turn or a new session last requested it.
    used: Instant,
}

impl KnownProject {
    fn new(folder: &Path, files: FileTraces, project: Project) -> Self {
        Self { folder: folder.to_owned(), files, project, used: Instant::now() }
    }

    /// Replaces the project. A session with an earlier one keeps this one loaded.
    fn replace(&mut self, project: Project) {
        self.project = Project { usage: self.project.usage.clone(), ..project };
    }
}

/// The files that a plan was made from: those of the project by their hash, the others by time and size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileTraces {
    project: Option<(PathBuf, String)>,
    files: Vec<(PathBuf, Option<SystemTime>, u64)>,
    /// The rules that the principal keeps in the store.
    consents: Option<Vec<StoredConsent>>,
}

impl FileTraces {
    /// Notes the files that apply in the working directory.
    pub(super) fn of(global: &Global, folders: &Folders) -> Self {
        let project = ProjectFiles::find(&folders.cwd).ok().flatten().map(|project| (project.root, project.hash));
        let mut traces = Self::common(global, folders);
        traces.project = project;
        // The trust store is one file in the principal's data folder.
        note(&folders.own_data().join("trust.json"), 0, &mut traces.files);
        if !folders.principal.is_local() {
            note(&folders.rule_config(), 0, &mut traces.files);
        }
        traces
    }

    /// Notes the files that apply in every folder.
    fn common(global: &Global, folders: &Folders) -> Self {
        let mut files = Vec::new();
        let named = global.manifests.iter().map(PathBuf::as_path).chain(global.profile_file());
        let managed = managed_files::paths(global);
        for place in std::iter::once(folders.config.as_path()).chain(named).chain(managed.iter().map(PathBuf::as_path))
        {
            note(place, 0, &mut files);
        }
        Self { project: None, files, consents: None }
    }

    fn key(&self, principal: &Principal) -> ProjectKey {
        ProjectKey { principal: principal.clone(), root: self.project.as_ref().map(|(root, _)| root.clone()) }
    }
}

impl ProjectLoader for WorkspaceLoader {
    fn open(&self, cwd: &Path, principal: &Principal) -> Result<Project, ProjectError> {
        let folders = self.folders.of_principal(principal, cwd);
        let files = self.traces(&folders);
        // Held while manifests are read, so that concurrent callers wait and then find the cached project.
        let mut known = self.lock_known();
        if let Some(known) = known.get_mut(&files.key(principal)).filter(|known| known.files == files) {
            known.used = Instant::now();
            return Ok(known.project.clone());
        }
        self.load(&mut known, &folders, files)
    }

    fn open_without_folder(&self, principal: &Principal) -> Result<Project, ProjectError> {
        self.open(&self.folders.empty_folder(), principal)
    }
}

impl WorkspaceLoader {
    pub(super) fn new(global: &Global, folders: &Folders, started: &CommandRuntime) -> Self {
        Self {
            global: global.clone(),
            folders: folders.clone(),
            broker: started.runtime.broker().clone(),
            outside: started.runtime.external_agents(),
            flags: AgentFlags::default(),
            rules: Vec::new(),
            models: None,
            known: Mutex::default(),
            keys: Keys::of(folders),
            queues: Arc::default(),
            principal_rules: PrincipalRules::new(&folders.store),
        }
    }

    /// Adds the project of the working directory, which the caller has made from these files.
    pub(super) fn add(&self, files: FileTraces, project: Project) {
        let key = files.key(&self.folders.principal);
        self.lock_known().insert(key, KnownProject::new(&self.folders.cwd, files, project));
    }

    /// Reads the files of all projects again, whether or not they look as before.
    pub(super) fn reload(&self) {
        let mut known = self.lock_known();
        for (principal, folder) in folders_by_use(&known) {
            let folders = self.folders.of_principal(&principal, &folder);
            let files = self.traces(&folders);
            // The error is reported there.
            drop(self.load(&mut known, &folders, files));
        }
    }

    /// Reads the files of all projects again that do not look as before.
    pub(super) fn reload_changed(&self) {
        let known = folders_by_use(&self.lock_known());
        for (principal, folder) in known {
            drop(self.open(&folder, &principal));
        }
    }

    /// Notes what applies in a folder.
    fn traces(&self, folders: &Folders) -> FileTraces {
        let consents = self.principal_rules.trace(&folders.principal);
        FileTraces { consents, ..FileTraces::of(&self.global, folders) }
    }

    /// Notes the files that apply to all projects, to find out whether they change.
    pub(super) fn common_files(&self) -> FileTraces {
        FileTraces::common(&self.global, &self.folders)
    }

    /// Returns the project of a folder with the whole service as its own mode. `None` if there is no such service, or it
    /// cannot stand alone. Fails if the manifests or settings have errors.
    pub(super) fn open_service(
        &self,
        cwd: &Path,
        principal: &Principal,
        service: &str,
    ) -> Result<Option<(Project, ModeId)>, ProjectError> {
        let project = self.open(cwd, principal)?;
        let usable = |entry: &&ServiceEntry| entry.enabled && standalone::check(entry).is_ok();
        let Some(entry) = project.broker.plan().service(service).filter(usable) else { return Ok(None) };
        let folders = self.folders.of_principal(principal, cwd);
        let broken = |problem: String| ProjectError { problem, diagnostics: Vec::new() };
        let manifest = standalone::manifest(&entry.manifest.name);
        let (resolved, _) =
            workspace::resolve_with(&self.global, &folders, manifest).map_err(|error| broken(error.problem()))?;
        let plan = resolved.plan.ok_or_else(|| broken("the manifests have errors; run `skein check`".to_owned()))?;
        let broker = project.broker.with_plan(Arc::new(plan));
        Ok(Some((Project { broker, ..project }, standalone::mode())))
    }

    /// Reads the files and keeps the result. If they have errors, returns the last valid project with them. Fails if
    /// there is none.
    fn load(
        &self,
        known: &mut HashMap<ProjectKey, KnownProject>,
        folders: &Folders,
        files: FileTraces,
    ) -> Result<Project, ProjectError> {
        let loaded = self.read(folders);
        let mut key = files.key(&folders.principal);
        if loaded.is_err() && !known.contains_key(&key) {
            // With other files, the folder may belong to another root, or to none. Its last valid project counts as before.
            let is_before = |(key, project): &(&ProjectKey, &KnownProject)| {
                key.principal == folders.principal && project.folder == folders.cwd
            };
            key = known.iter().find(is_before).map_or(key, |(before, _)| before.clone());
        }
        let Some(last) = known.get_mut(&key) else {
            let project = loaded?;
            make_room(known);
            known.insert(key, KnownProject::new(&folders.cwd, files, project.clone()));
            return Ok(project);
        };
        last.files = files;
        last.used = Instant::now();
        match loaded {
            Ok(project) => {
                tracing::info!(principal = %key.principal, root = ?key.root, "changed files apply from the next turn on");
                last.replace(project);
            }
            Err(error) => {
                report(&error);
                if let Some(project) = self.read_managed(&last.project, folders) {
                    tracing::info!(principal = %key.principal, root = ?key.root, "changed managed settings apply");
                    last.replace(project);
                }
                last.project.reload_error = Some(Arc::new(error));
            }
        }
        Ok(last.project.clone())
    }

    /// Returns the last valid project within the managed files as they are now: an error of a user must not delay them.
    /// `None` if they are the same or have errors themselves.
    fn read_managed(&self, last: &Project, folders: &Folders) -> Option<Project> {
        let files = managed_files::files(&self.global, folders).ok()?;
        let before = last.broker.plan().manifests();
        let (manifests, found) = before.within(&files);
        if manifests.managed.has_files_of(&before.managed) {
            return None;
        }
        let mut notes = last.notes.clone();
        let more = managed_files::notes(&self.global, &manifests).into_iter().chain([MANAGED_APPLY.to_owned()]);
        notes.extend(more.filter(|note| !last.notes.contains(note)));
        let plan = graph::resolve_without_notes(manifests, found).plan?;
        let project = self.project(plan, Vec::new(), notes, folders);
        // The rules that come from no file stay.
        let broker = last.broker.with_plan(Arc::clone(project.broker.plan()));
        Some(Project { broker, ..project })
    }

    /// Reads the files of a folder. Fails if the manifests or settings have errors.
    fn read(&self, folders: &Folders) -> Result<Project, ProjectError> {
        let broken = |failure: CommandError| ProjectError { problem: failure.problem(), diagnostics: Vec::new() };
        let (resolved, notes) = workspace::resolve_quietly(&self.global, folders).map_err(broken)?;
        let mut rules = self.principal_rules.rules(folders).map_err(broken)?;
        rules.extend(self.rules.iter().cloned());
        let Some(plan) = resolved.plan else {
            let mut error = ProjectError { problem: String::new(), diagnostics: resolved.diagnostics };
            let first = error.errors().next().map(|found| format!("{}: {}", found.at, found.problem));
            let first = first.unwrap_or_default();
            error.problem = match error.errors().count() {
                1 => format!("the manifests have an error: {first}; run `skein check`"),
                count => format!("the manifests have {count} errors, the first: {first}; run `skein check`"),
            };
            return Err(error);
        };
        Ok(self.project(plan, rules, notes, folders))
    }

    fn project(&self, plan: Plan, rules: Vec<SourcedRule>, notes: Vec<String>, folders: &Folders) -> Project {
        let settings = Settings::of(plan.manifests());
        let others =
            settings.processor.iter().chain(&settings.fallbacks).chain(settings.models.keys()).cloned().collect();
        let models = self.models.clone().unwrap_or_else(|| {
            let named = self.flags.model();
            KnownModels::of(&settings, named.as_ref(), None, self.keys.clone(), Arc::clone(&self.queues))
        });
        Project {
            models,
            mode: self.flags.mode_request(&settings),
            model: self.flags.model_or_default(&settings),
            others,
            broker: self.broker.with_plan(Arc::new(plan)).with_rules(rules),
            external_agents: Arc::clone(&self.outside),
            rules: self.principal_rules.store(folders),
            notes,
            reload_error: None,
            usage: ProjectUse::default(),
        }
    }

    fn lock_known(&self) -> MutexGuard<'_, HashMap<ProjectKey, KnownProject>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes projects without a session, those unused for longest first, so that there is room for another one.
fn make_room(known: &mut HashMap<ProjectKey, KnownProject>) {
    let is_unused = |(_, known): &(&ProjectKey, &KnownProject)| !known.project.usage.is_shared();
    let mut unused: Vec<_> = known.iter().filter(is_unused).map(|(key, known)| (known.used, key.clone())).collect();
    unused.sort_by_key(|(used, _)| *used);
    let surplus = (unused.len() + 1).saturating_sub(MAX_UNUSED);
    for (_, key) in unused.into_iter().take(surplus) {
        tracing::debug!(principal = %key.principal, root = ?key.root, "a project without a session is dropped");
        known.remove(&key);
    }
}

/// Returns the principal and a folder of each project, the one unused for longest first. Callers that read them again
/// in this order keep it.
fn folders_by_use(known: &HashMap<ProjectKey, KnownProject>) -> Vec<(Principal, PathBuf)> {
    let mut all: Vec<_> = known.iter().collect();
    all.sort_by_key(|(_, known)| known.used);
    all.into_iter().map(|(key, known)| (key.principal.clone(), known.folder.clone())).collect()
}

/// Writes the errors in changed files to the log.
fn report(error: &ProjectError) {
    tracing::error!(problem = %error.problem, "changed files are not used, and what applied before still applies");
    for found in error.errors() {
        let (problem, help) = (mask_keys(&found.problem), mask_keys(&found.help));
        tracing::error!(at = %found.at, code = found.code, problem, help, "not used");
    }
}

/// Collects every file below `path` with its modification time and size. Stops at a depth that manifests never exceed.
fn note(path: &Path, depth: usize, files: &mut Vec<(PathBuf, Option<SystemTime>, u64)>) {
    let Ok(metadata) = path.metadata() else { return };
    files.push((path.to_owned(), metadata.modified().ok(), metadata.len()));
    if !metadata.is_dir() || depth > 8 {
        return;
    }
    let entries = path.read_dir().into_iter().flatten().filter_map(Result::ok);
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().for_each(|path| note(path, depth + 1, files));
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Weak;

    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;
    use crate::runtime::Runtime;
    use crate::services::{BuiltinRegistry, PoolOptions};
    use crate::store::StorePlace;

    struct Machine {
        folder: tempfile::TempDir,
        loader: WorkspaceLoader,
    }

    impl Machine {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let below = |name: &str| folder.path().join(name);
            let folders = Folders {
                cwd: below("cwd"),
                home: below("home"),
                config_home: below("home/.config"),
                config: below("config"),
                data: below("data"),
                store: StorePlace::files(below("data")),
                shared: None,
                state: below("state"),
                principal: Principal::local(),
            };
            let plan = Arc::new(Plan::empty());
            let runtime = Runtime::start(plan, BuiltinRegistry::empty(), PoolOptions::default(), None);
            let loader = WorkspaceLoader {
                global: Cli::try_parse_from(["skein", "agents"]).unwrap().global,
                broker: runtime.broker().clone(),
                outside: runtime.external_agents(),
                flags: AgentFlags::default(),
                rules: Vec::new(),
                models: None,
                known: Mutex::default(),
                keys: Keys::of(&folders),
                queues: Arc::default(),
                principal_rules: PrincipalRules::new(&folders.store),
                folders,
            };
            Self { folder, loader }
        }

        /// Opens the project with this number, as a session does.
        fn open(&self, number: usize) -> Project {
            let root = self.root(number);
            fs::create_dir_all(root.join(".skein")).unwrap();
            self.loader.open(&root, &Principal::local()).unwrap()
        }

        fn root(&self, number: usize) -> PathBuf {
            self.folder.path().join(format!("project{number}"))
        }

        /// Opens a project for a session that ends at once.
        fn use_once(&self, number: usize) -> Weak<Plan> {
            Arc::downgrade(self.open(number).broker.plan())
        }
    }

    fn is_loaded(plan: &Weak<Plan>) -> bool {
        plan.strong_count() > 0
    }

    #[test]
    fn the_project_unused_for_longest_makes_room() {
        let machine = Machine::new();
        let session = machine.open(0);
        let plans: Vec<_> = (1..=MAX_UNUSED).map(|number| machine.use_once(number)).collect();
        assert!(plans.iter().all(is_loaded), "there is room for them");
        machine.use_once(1);
        // All are read again in the order of their use.
        machine.loader.reload_changed();
        let newest = machine.use_once(MAX_UNUSED + 1);
        assert!(is_loaded(&plans[0]), "it was used again");
        assert!(!is_loaded(&plans[1]), "it was unused for longest");
        assert!(plans[2..].iter().all(is_loaded) && is_loaded(&newest));
        assert!(Arc::ptr_eq(machine.open(0).broker.plan(), session.broker.plan()), "a session keeps its project");
    }

    #[test]
    fn a_session_keeps_its_changed_project_loaded() {
        let machine = Machine::new();
        let session = machine.open(0);
        fs::write(machine.root(0).join(".skein/note.txt"), "text").unwrap();
        let changed = machine.use_once(0);
        let others: Vec<_> = (1..=MAX_UNUSED + 1).map(|number| machine.use_once(number)).collect();
        assert!(is_loaded(&changed), "the next turn of the session uses it");
        assert!(!is_loaded(&others[0]));
        drop(session);
        machine.use_once(MAX_UNUSED + 2);
        assert!(!is_loaded(&changed), "its last session has ended");
    }
}
