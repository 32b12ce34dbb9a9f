//! Reads the manifests of a command: the layers that apply here, with the project's only if trusted.

use std::path::{Path, PathBuf};

use super::folders::Folders;
use super::output::{CommandError, CommandOutput, display_line};
use super::{Global, managed_files};
use crate::diagnostic::{Diagnostic, Severity};
use crate::graph::{self, Plan, Resolution};
use crate::ids::nearest;
use crate::manifest::{self, Layer, Manifests, ProfileSelection, Root};
use crate::permissions::{self, SourcedRule};
use crate::trust::{ProjectFiles, TrustError, TrustState, TrustStore};

/// How to treat the files of an untrusted project.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum UntrustedPolicy {
    /// Leave them out, for every command that may start a process.
    Leave,
    /// Read them: checking a file starts nothing.
    Check,
}

/// Loads and resolves all layers, with `extra` as the last one.
pub(super) fn resolve(
    global: &Global,
    extra: &[PathBuf],
    untrusted: UntrustedPolicy,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<Resolution, CommandError> {
    let Layers { roots, notes } = layers(global, extra, untrusted, folders)?;
    notes.iter().for_each(|note| output.note(note));
    let (manifests, found) = load(global, &roots, folders)?;
    managed_files::notes(global, &manifests).iter().for_each(|note| output.note(note));
    tracing::debug!(agents = manifests.agents.len(), services = manifests.services.len(), "manifests loaded");
    Ok(graph::resolve(manifests, found))
}

/// Loads the layers within the managed settings, with the values of `--profile` and `--sandbox`. Fails if there is no
/// such profile, or if managed settings cannot be read.
fn load(
    global: &Global,
    roots: &[(Layer, Root)],
    folders: &Folders,
) -> Result<(Manifests, Vec<Diagnostic>), CommandError> {
    let selection = profile_selection(global, folders)?;
    let managed = managed_files::files(global, folders)?;
    let (mut manifests, found) = manifest::load_managed(roots, selection.as_ref(), &managed);
    if let Some(ProfileSelection::Named(name)) = &selection
        && !manifests.profile_names().any(|known| known == name)
    {
        let help = match nearest(name, manifests.profile_names()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "add it under `profiles` in your config.yaml, or name a file".to_owned(),
        };
        return Err(CommandError::usage(format!("there is no profile `{}`", display_line(name)), help));
    }
    manifests.sandbox_flag = global.sandbox.map(Into::into);
    Ok((manifests, found))
}

/// Returns the rules in the config of the principal's folder. Those of `local` are in the user's config, so they are part
/// of the manifests. Fails if the file cannot be used.
pub(super) fn principal_rules(folders: &Folders) -> Result<Vec<SourcedRule>, CommandError> {
    let folder = folders.rule_config();
    if folders.principal.is_local() || manifest::is_missing(&folder) {
        return Ok(Vec::new());
    }
    let (manifests, found) = manifest::load(&[(Layer::User, disk(&folder, folders))]);
    match found.iter().find(|found| found.severity == Severity::Error) {
        Some(error) => {
            let problem = format!("the rules of `{}` cannot be used: {}", folders.principal, error.problem);
            Err(CommandError::work(problem, "correct or remove the file in the principal's folder"))
        }
        None => Ok(permissions::config_rules(&manifests)),
    }
}

/// Returns the profile of `--profile`. An empty value counts as unset. Fails if its file cannot be read.
fn profile_selection(global: &Global, folders: &Folders) -> Result<Option<ProfileSelection>, CommandError> {
    let Some(value) = global.profile.as_deref().filter(|value| !value.is_empty()) else { return Ok(None) };
    let Some(path) = global.profile_file() else { return Ok(Some(ProfileSelection::Named(value.to_owned()))) };
    let file = folders.display_path(path);
    let text = manifest::read_named(path, &file).map_err(|error| {
        let problem = format!("the profile {} cannot be used: {}", display_line(value), error.problem);
        CommandError::usage(problem, "name a file with a profile, or a profile of your config")
    })?;
    Ok(Some(ProfileSelection::File { file, text }))
}

/// Like [`resolve`], but returns what there is to tell the user instead of printing it. Leaves out an untrusted
/// project, and the notes about manifests.
pub(super) fn resolve_quietly(global: &Global, folders: &Folders) -> Result<(Resolution, Vec<String>), CommandError> {
    let Layers { roots, mut notes } = layers(global, &[], UntrustedPolicy::Leave, folders)?;
    let (manifests, found) = load(global, &roots, folders)?;
    notes.extend(managed_files::notes(global, &manifests));
    Ok((graph::resolve_without_notes(manifests, found), notes))
}

/// Like [`resolve_quietly`], as if a file of the user's folder had another text. `file` is relative to that folder.
pub(super) fn resolve_draft(
    global: &Global,
    folders: &Folders,
    file: &Path,
    text: &str,
) -> Result<Resolution, CommandError> {
    let Layers { mut roots, .. } = layers(global, &[], UntrustedPolicy::Leave, folders)?;
    roots.retain(|(layer, _)| *layer != Layer::User);
    let draft = Root::Draft {
        path: folders.config.clone(),
        shown: folders.display_path(&folders.config),
        file: file.to_owned(),
        text: text.to_owned(),
    };
    let place = roots.iter().take_while(|(layer, _)| *layer == Layer::Builtin).count();
    roots.insert(place, (Layer::User, draft));
    let (manifests, found) = load(global, &roots, folders)?;
    Ok(graph::resolve_without_notes(manifests, found))
}

/// Returns all manifests of the same layers that can be read, for `skein doctor`, which reports every problem.
pub(super) fn manifests_quietly(global: &Global, folders: &Folders) -> Result<Manifests, CommandError> {
    let Layers { roots, .. } = layers(global, &[], UntrustedPolicy::Leave, folders)?;
    Ok(load(global, &roots, folders)?.0)
}

/// Like [`manifests_quietly`], for a command that changes the user's config. Fails if that file has an error, which is
/// printed: the change may have no effect, or another form of the file may need another change.
pub(super) fn manifests_for_change(
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<Manifests, CommandError> {
    let Layers { roots, .. } = layers(global, &[], UntrustedPolicy::Leave, folders)?;
    let (manifests, mut found) = load(global, &roots, folders)?;
    let folder = PathBuf::from(folders.display_path(&folders.config));
    found.retain(|found| {
        let file = Path::new(&found.at.file);
        let is_config = file.parent() == Some(&folder) && file.file_stem().is_some_and(|stem| stem == "config");
        found.severity == Severity::Error && (is_config || file == folder)
    });
    if found.is_empty() {
        return Ok(manifests);
    }
    output.diagnostics(&found);
    Err(wrong_config())
}

fn wrong_config() -> CommandError {
    CommandError::usage("the config file is wrong", "correct it as said above")
}

/// Returns whether the files of this project would add errors to those of the other layers. Fails if there is no file
/// or folder that `--manifests` names.
pub(super) fn project_adds_errors(
    project: &ProjectFiles,
    global: &Global,
    folders: &Folders,
) -> Result<bool, CommandError> {
    let Layers { roots: mut without, .. } = layers(global, &[], UntrustedPolicy::Leave, folders)?;
    without.retain(|(layer, _)| *layer != Layer::Project);
    let mut with = without.clone();
    let place = with.iter().take_while(|(layer, _)| *layer != Layer::Extra).count();
    with.insert(place, (Layer::Project, Root::Snapshot { files: project.files.clone(), shown: String::new() }));
    let count = |roots: &[(Layer, Root)]| {
        let (manifests, found) = manifest::load(roots);
        let found = graph::resolve_without_notes(manifests, found).diagnostics;
        found.iter().filter(|found| found.severity == Severity::Error).count()
    };
    Ok(count(&with) > count(&without))
}

/// The layers that apply here, in order, and notes about them for the user.
struct Layers {
    roots: Vec<(Layer, Root)>,
    notes: Vec<String>,
}

fn layers(
    global: &Global,
    extra: &[PathBuf],
    untrusted: UntrustedPolicy,
    folders: &Folders,
) -> Result<Layers, CommandError> {
    let mut notes = Vec::new();
    let mut roots = vec![(Layer::Builtin, Root::Builtin)];
    if !global.built_in.manifests.is_empty() {
        let files = global.built_in.manifests.clone();
        roots.push((Layer::Builtin, Root::Snapshot { files, shown: "builtin".to_owned() }));
    }
    if !manifest::is_missing(&folders.config) {
        roots.push((Layer::User, disk(&folders.config, folders)));
    }
    let project = match ProjectFiles::find(&folders.cwd) {
        Err(error) if untrusted == UntrustedPolicy::Leave => {
            // A broken project must not keep users from working in its folder.
            notes.push(format!("this project's .skein/ or .mcp.json is not used: {error}"));
            None
        }
        found => found.map_err(|error| trust_failure(&error))?,
    };
    if let Some(project) = project {
        let trust = TrustStore::open(&folders.own_data()).map_err(|error| trust_failure(&error))?.trust_of(&project);
        let why = match trust {
            TrustState::Trusted => None,
            TrustState::Changed => Some("has changed since it was trusted"),
            TrustState::Unknown => Some("is not trusted"),
        };
        if let Some(why) = why {
            let what = if untrusted == UntrustedPolicy::Check { "is checked here but not used" } else { "is not used" };
            let command = match folders.principal.is_local() {
                true => "run `skein trust`".to_owned(),
                false => format!("run `skein trust --principal {}` on the server", folders.principal),
            };
            notes.push(format!("this project's .skein/ or .mcp.json {why} and {what}; look at it, then {command}"));
        }
        if why.is_none() || untrusted == UntrustedPolicy::Check {
            let shown = folders.display_path(&project.root);
            roots.push((Layer::Project, Root::Snapshot { files: project.files, shown }));
        }
    }
    for path in global.manifests.iter().chain(extra) {
        if !path.exists() {
            let problem = format!("there is no file or folder {}", path.display());
            return Err(CommandError::usage(problem, "name a folder with manifests, or a manifest file"));
        }
        roots.push((Layer::Extra, disk(path, folders)));
    }
    Ok(Layers { roots, notes })
}

/// Returns the plan of all layers, and prints warnings and errors. Fails if there is an error.
pub(super) fn plan(global: &Global, folders: &Folders, output: &mut CommandOutput) -> Result<Plan, CommandError> {
    sound(resolve(global, &[], UntrustedPolicy::Leave, folders, output)?, output)
}

/// Like [`plan`], with an additional manifest that is not in a file.
pub(super) fn plan_with(
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
    manifest: (&str, String),
) -> Result<Plan, CommandError> {
    let (resolution, notes) = resolve_with(global, folders, manifest)?;
    notes.iter().for_each(|note| output.note(note));
    sound(resolution, output)
}

/// Like [`resolve_quietly`], with an additional manifest that is not in a file.
pub(super) fn resolve_with(
    global: &Global,
    folders: &Folders,
    (name, text): (&str, String),
) -> Result<(Resolution, Vec<String>), CommandError> {
    let Layers { mut roots, mut notes } = layers(global, &[], UntrustedPolicy::Leave, folders)?;
    let files = [(PathBuf::from(name), text.into_bytes())].into();
    roots.push((Layer::Extra, Root::Snapshot { files, shown: String::new() }));
    let (manifests, found) = load(global, &roots, folders)?;
    notes.extend(managed_files::notes(global, &manifests));
    Ok((graph::resolve_without_notes(manifests, found), notes))
}

fn sound(Resolution { plan, diagnostics }: Resolution, output: &mut CommandOutput) -> Result<Plan, CommandError> {
    match plan {
        Some(plan) => {
            let warnings: Vec<_> =
                diagnostics.into_iter().filter(|found| found.severity == Severity::Warning).collect();
            output.diagnostics(&warnings);
            Ok(plan)
        }
        None => {
            // Omit notes, which would hide the errors; `check` shows them.
            let told: Vec<_> = diagnostics.into_iter().filter(|found| found.severity != Severity::Note).collect();
            output.diagnostics(&told);
            let mut errors = told.iter().filter(|found| found.severity == Severity::Error);
            let in_config =
                |found: &Diagnostic| Path::new(&found.at.file).file_stem().is_some_and(|stem| stem == "config");
            if errors.all(in_config) {
                return Err(wrong_config());
            }
            Err(CommandError::manifests(&told))
        }
    }
}

fn disk(path: &Path, folders: &Folders) -> Root {
    Root::Disk { path: path.to_owned(), shown: folders.display_path(path) }
}

pub(super) fn trust_failure(error: &TrustError) -> CommandError {
    let help = match error {
        TrustError::Unreadable { .. } => "make the files readable, or remove them",
        TrustError::TooLarge { .. } => "keep only manifests, prompts and settings in .skein/",
        TrustError::Store { .. } => "check the folder that SKEIN_DATA_DIR or XDG_DATA_HOME names",
        TrustError::Newer { .. } => "use the newer skein, or name another folder in SKEIN_DATA_DIR",
    };
    CommandError::work(error.to_string(), help)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use clap::Parser as _;

    use super::*;
    use crate::broker::{Broker, RuleStore as _};
    use crate::cli::Cli;
    use crate::cli::rule_store::UserConfig;
    use crate::manifest::{PermissionRule, RuleEffect};
    use crate::principal::{Principal, SessionGrant, TokenLimits};
    use crate::services::{BuiltinRegistry, Pool, PoolOptions};

    struct Machine {
        folders: Folders,
        _folder: tempfile::TempDir,
    }

    fn machine() -> Machine {
        let folder = tempfile::tempdir().unwrap();
        let below = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(below("project/.skein")).unwrap();
        let folders = Folders {
            cwd: below("project"),
            home: below("home"),
            config_home: below("home/.config"),
            config: below("config"),
            data: below("data"),
            store: crate::store::StorePlace::files(below("data")),
            shared: None,
            state: below("state"),
            principal: Principal::local(),
        };
        Machine { folders, _folder: folder }
    }

    impl Machine {
        fn of(&self, name: &str) -> Folders {
            self.folders.of_principal(&Principal::new(name).unwrap(), &self.folders.cwd)
        }
    }

    fn global() -> Global {
        Cli::try_parse_from(["skein", "agents"]).unwrap().global
    }

    /// The rules that apply to sessions of these folders, and the notes about the project.
    fn rules_and_notes(folders: &Folders) -> (Vec<String>, Vec<String>) {
        let (resolved, notes) = resolve_quietly(&global(), folders).unwrap();
        let pool = Pool::new(BuiltinRegistry::empty(), PoolOptions::default());
        let broker = Broker::new(resolved.plan.unwrap().into(), pool).with_rules(principal_rules(folders).unwrap());
        let grant = match folders.principal.is_local() {
            true => SessionGrant::local(),
            false => SessionGrant::new(folders.principal.clone(), TokenLimits::default()),
        };
        let rules = broker.with_grant(&grant).rules(&folders.cwd);
        (rules.iter().map(|rule| rule.rule.to_string()).collect(), notes)
    }

    #[test]
    fn a_principal_has_its_own_consents() {
        let machine = machine();
        let (ann, bob) = (machine.of("ann"), machine.of("bob"));
        let root = machine.folders.cwd.canonicalize().unwrap();
        let rule = |command: &str, project: bool| {
            let text = format!("developer__shell: {{command: {command}}}");
            let rule = PermissionRule::from_text(&text, RuleEffect::Allow).unwrap();
            PermissionRule { project: project.then(|| root.to_string_lossy().into_owned()), ..rule }
        };
        let keep = |folders: &Folders, rule: &PermissionRule| {
            UserConfig { folder: folders.rule_config() }.keep(rule).unwrap();
        };
        keep(&machine.folders, &rule("everywhere", false));
        keep(&machine.folders, &rule("mine", true));
        keep(&ann, &rule("hers", true));
        let commands = |folders: &Folders| {
            let known = ["everywhere", "mine", "hers"];
            let rules = rules_and_notes(folders).0.join(" ");
            known.into_iter().filter(|name| rules.contains(name)).collect::<Vec<_>>()
        };
        assert_eq!(commands(&machine.folders), ["everywhere", "mine"]);
        assert_eq!(commands(&ann), ["everywhere", "hers"]);
        assert_eq!(commands(&bob), ["everywhere"]);
    }

    #[test]
    fn a_user_config_that_cannot_be_read_is_an_error() {
        let machine = machine();
        let config = &machine.folders.config;
        let errors = || {
            let (resolution, _) = resolve_quietly(&global(), &machine.folders).unwrap();
            let errors = resolution.diagnostics.iter().filter(|found| found.severity == Severity::Error);
            let shown: Vec<_> = errors.map(|found| format!("{} {}", found.code, found.problem)).collect();
            assert_eq!(resolution.plan.is_none(), !shown.is_empty());
            shown
        };
        assert_eq!(errors(), Vec::<String>::new());
        symlink("gone", config).unwrap();
        assert_eq!(errors(), ["E001 the link leads to nothing"]);
        std::fs::remove_file(config).unwrap();
        std::fs::write(config, "permissions: []\n").unwrap();
        assert_eq!(errors(), ["E001 is a file, not a folder with settings"]);
        std::fs::remove_file(config).unwrap();
        std::fs::create_dir_all(config.join("config.yaml")).unwrap();
        assert_eq!(errors(), ["E001 is a folder, not a file with settings"]);
    }

    #[test]
    fn a_profile_that_is_a_pipe_is_refused() {
        let machine = machine();
        let pipe = machine.folders.cwd.join("profile.yaml");
        crate::test_fifo::make_fifo(&pipe);
        let global = Global { profile: Some(pipe.to_string_lossy().into_owned()), ..global() };
        let Err(error) = resolve_quietly(&global, &machine.folders) else { panic!("it is used") };
        assert!(error.problem().contains("cannot be used: it is no regular file"), "{}", error.problem());
    }

    #[test]
    fn a_folder_below_a_broken_link_is_not_missing() {
        let place = tempfile::tempdir().unwrap();
        let below = |name: &str| place.path().join(name);
        std::fs::create_dir(below("real")).unwrap();
        std::fs::write(below("file"), "").unwrap();
        symlink("real", below("link")).unwrap();
        symlink("gone", below("broken")).unwrap();
        for folder in ["new", "new/skein", "real/skein", "link/skein"] {
            assert!(manifest::is_missing(&below(folder)), "{folder}");
        }
        for folder in ["real", "link", "broken", "broken/skein", "file", "file/skein"] {
            assert!(!manifest::is_missing(&below(folder)), "{folder}");
        }
    }

    #[test]
    fn a_principal_has_its_own_trust() {
        let machine = machine();
        let (ann, bob) = (machine.of("ann"), machine.of("bob"));
        let project = ProjectFiles::find(&machine.folders.cwd).unwrap().unwrap();
        TrustStore::open(&ann.own_data()).unwrap().trust(&project).unwrap();
        assert_eq!(rules_and_notes(&ann).1, Vec::<String>::new());
        for (folders, command) in [(&bob, "`skein trust --principal bob`"), (&machine.folders, "`skein trust`")] {
            let notes = rules_and_notes(folders).1;
            assert!(notes.len() == 1 && notes[0].contains(command), "{notes:?}");
        }
    }
}
