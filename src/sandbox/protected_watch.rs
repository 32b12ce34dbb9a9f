//! Remembers the protected paths that a session found or accepted, so that each later one needs consent.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::inactive_parts::InactiveParts;
use super::new_protected::ProtectedSnapshot;
use super::paths::{ProtectedPath, find_protected, same_name};
use super::sandbox_process::WeakSandbox;

/// A process that has ended may be counted until PID 1 has noticed its end.
const IDLE_CHECKS: u32 = 10;
const IDLE_PAUSE: Duration = Duration::from_millis(10);

/// The protected paths near the folders that some sandboxes of a session may write.
#[derive(Debug)]
pub struct ProtectedWatch {
    folders: Vec<PathBuf>,
    /// The protected paths at the start of the first sandbox, and those that the user accepted later.
    known: Mutex<ProtectedSnapshot>,
    /// Paths without consent are moved here.
    pub quarantine: PathBuf,
    /// Held during a check: two at the same time must not ask about the same path.
    pub check: tokio::sync::Mutex<()>,
}

impl ProtectedWatch {
    /// Returns the protected paths that are there now.
    pub(super) fn snapshot(&self) -> ProtectedSnapshot {
        ProtectedSnapshot::take(&self.folders)
    }

    /// Returns the new protected paths that need consent.
    pub fn find_created(&self) -> Vec<(PathBuf, ProtectedPath)> {
        let now = self.snapshot();
        let mut known = self.lock();
        known.forget_missing(&now);
        known.find_created(&now)
    }

    /// Forgets the known paths that are missing in this snapshot. A command that creates one again needs consent.
    pub(super) fn forget_missing(&self, now: &ProtectedSnapshot) {
        self.lock().forget_missing(now);
    }

    fn lock(&self) -> MutexGuard<'_, ProtectedSnapshot> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The watches of one session. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ProtectedWatches(Arc<Mutex<WatchTable>>);

#[derive(Debug, Default)]
struct WatchTable {
    watches: Vec<Arc<ProtectedWatch>>,
    /// The sandboxes whose processes may create protected paths.
    sandboxes: Vec<WeakSandbox>,
    /// The number of sandboxes so far.
    started: u64,
}

/// What is known before a command without a sandbox.
#[derive(Debug)]
pub struct UnsandboxedStart {
    /// The new protected paths that need consent already.
    pending: Vec<PathBuf>,
    /// What git uses if the command makes the folder around it a git folder.
    inactive: InactiveParts,
    activity: SandboxActivity,
}

/// How many sandboxes were started so far, and how many commands in each.
#[derive(Debug, PartialEq, Eq)]
struct SandboxActivity {
    started: u64,
    commands: Vec<u64>,
}

impl ProtectedWatches {
    /// Returns the watch of these folders. Sandboxes with the same folders share one.
    pub(super) fn of(&self, folders: &[PathBuf], quarantine: &Path) -> Arc<ProtectedWatch> {
        let mut table = self.lock();
        if let Some(known) = table.watches.iter().find(|watch| watch.folders == folders) {
            return Arc::clone(known);
        }
        let watch = Arc::new(ProtectedWatch {
            folders: folders.to_vec(),
            known: Mutex::new(ProtectedSnapshot::take(folders)),
            quarantine: quarantine.to_owned(),
            check: tokio::sync::Mutex::default(),
        });
        table.watches.push(Arc::clone(&watch));
        watch
    }

    /// Adds a sandbox whose processes may create protected paths.
    pub(super) fn add_sandbox(&self, sandbox: WeakSandbox) {
        let mut table = self.lock();
        table.sandboxes.retain(|known| !known.is_gone());
        table.sandboxes.push(sandbox);
        table.started += 1;
    }

    /// Returns all watches of the session.
    pub fn all(&self) -> Vec<Arc<ProtectedWatch>> {
        self.lock().watches.clone()
    }

    /// Adds a path that the user consented to, with all its contents.
    pub fn accept(&self, path: &Path) {
        for watch in &self.lock().watches {
            watch.lock().accept(path);
        }
    }

    /// Notes what is there before a command that the user lets run without a sandbox. `None` if nothing is watched, or
    /// if a process in a sandbox runs, which may create paths meanwhile.
    pub fn begin_unsandboxed(&self) -> Option<UnsandboxedStart> {
        let folders: Vec<PathBuf> = self.all().iter().flat_map(|watch| watch.folders.clone()).collect();
        if folders.is_empty() {
            return None;
        }
        let activity = self.find_activity()?;
        Some(UnsandboxedStart { pending: self.find_pending(), inactive: InactiveParts::find(&folders), activity })
    }

    /// Adds what a command without a sandbox created, unless a process in a sandbox ran meanwhile. Does not add a new
    /// git folder with parts that were there before: a command in a sandbox may have left them.
    pub fn accept_unsandboxed(&self, start: &UnsandboxedStart) {
        let created = self.find_pending();
        let is_alone = self.find_activity().is_some_and(|activity| activity == start.activity);
        // Consent to a folder would cover its contents too.
        let is_pending =
            |path: &PathBuf| start.pending.iter().any(|pending| path.starts_with(pending) || pending.starts_with(path));
        for path in created.iter().filter(|path| is_alone && !is_pending(path) && !start.inactive.may_be_used_by(path))
        {
            self.accept(path);
        }
    }

    /// Returns the new protected paths of all watches that need consent.
    fn find_pending(&self) -> Vec<PathBuf> {
        self.all().iter().flat_map(|watch| watch.find_created()).map(|(path, _)| path).collect()
    }

    /// Returns what was started so far. `None` if a process runs in a sandbox.
    fn find_activity(&self) -> Option<SandboxActivity> {
        for _ in 1..IDLE_CHECKS {
            if let Some(activity) = self.lock().find_activity() {
                return Some(activity);
            }
            std::thread::sleep(IDLE_PAUSE);
        }
        self.lock().find_activity()
    }

    /// Returns whether a file needs consent, or is in a folder that does.
    pub fn is_pending(&self, file: &Path) -> bool {
        find_protected(file, None).is_some() && self.find_pending().iter().any(|path| file.starts_with(path))
    }

    /// Adds a file that a file tool wrote with consent. A new folder around it is added if it contains nothing else.
    pub fn accept_file(&self, file: &Path) {
        if find_protected(file, None).is_none() {
            return;
        }
        for watch in self.all() {
            let created = watch.find_created().into_iter().map(|(path, _)| path);
            for path in created.filter(|path| file.starts_with(path) && contains_only(path, file)) {
                self.accept(&path);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, WatchTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchTable {
    fn find_activity(&self) -> Option<SandboxActivity> {
        let commands: Option<Vec<u64>> = self.sandboxes.iter().map(WeakSandbox::count_if_idle).collect();
        Some(SandboxActivity { started: self.started, commands: commands? })
    }
}

/// Returns whether `path` is the file, or a folder that contains no other file. Samples of hooks do not count, because
/// git does not run them.
fn contains_only(path: &Path, file: &Path) -> bool {
    let is_hooks = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| same_name("hooks", name));
    let is_sample = |entry: &Path| {
        is_hooks && entry.parent() == Some(path) && entry.extension().is_some_and(|extension| extension == "sample")
    };
    let mut pending = vec![path.to_owned()];
    while let Some(entry) = pending.pop() {
        if is_sample(&entry) {
            continue;
        }
        if entry.is_dir() && !entry.is_symlink() {
            let Ok(entries) = fs::read_dir(&entry) else { return false };
            pending.extend(entries.flatten().map(|entry| entry.path()));
        } else if entry != file {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn a_file_with_consent_does_not_cover_its_neighbours() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let watches = ProtectedWatches::default();
        let watch = watches.of(std::slice::from_ref(&root), Path::new("/nowhere"));
        let created = || watch.find_created().into_iter().map(|(_, path)| path.shown).collect::<Vec<_>>();
        write(&root.join(".vscode/settings.json"));
        watches.accept_file(&root.join(".vscode/settings.json"));
        assert_eq!(created(), [""; 0]);
        write(&root.join(".zed/tasks.json"));
        write(&root.join(".zed/settings.json"));
        watches.accept_file(&root.join(".zed/settings.json"));
        assert_eq!(created(), [".zed"], "a command created `tasks.json`");
        watches.accept(&root.join(".zed"));
        assert_eq!(created(), [""; 0]);
        fs::remove_dir_all(root.join(".zed")).unwrap();
        assert_eq!(created(), [""; 0]);
        write(&root.join(".zed/tasks.json"));
        assert_eq!(created(), [".zed"], "what is removed and comes back is new");
    }

    #[test]
    fn samples_beside_a_hook_with_consent_need_none() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let watches = ProtectedWatches::default();
        let watch = watches.of(std::slice::from_ref(&root), Path::new("/nowhere"));
        let created = || watch.find_created().into_iter().map(|(_, path)| path.shown).collect::<Vec<_>>();
        for path in [".git/HEAD", ".git/objects/x", ".git/hooks/pre-commit.sample"] {
            write(&root.join(path));
        }
        assert_eq!(created(), [""; 0]);
        write(&root.join(".git/hooks/pre-commit"));
        write(&root.join(".git/hooks/post-commit"));
        watches.accept_file(&root.join(".git/hooks/pre-commit"));
        assert_eq!(created(), [".git/hooks"], "a command created `post-commit`");
        fs::remove_file(root.join(".git/hooks/post-commit")).unwrap();
        watches.accept_file(&root.join(".git/hooks/pre-commit"));
        assert_eq!(created(), [""; 0]);
    }

    #[test]
    fn an_unsandboxed_command_accepts_what_it_creates() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let watches = ProtectedWatches::default();
        assert!(watches.begin_unsandboxed().is_none(), "nothing is watched");
        let watch = watches.of(std::slice::from_ref(&root), Path::new("/nowhere"));
        let created = || watch.find_created().into_iter().map(|(_, path)| path.shown).collect::<Vec<_>>();
        write(&root.join(".envrc"));
        let start = watches.begin_unsandboxed().unwrap();
        write(&root.join(".vscode/tasks.json"));
        watches.accept_unsandboxed(&start);
        assert_eq!(created(), [".envrc"], "another command created it before");
        let start = watches.begin_unsandboxed().unwrap();
        write(&root.join(".zed/tasks.json"));
        watches.lock().started += 1;
        watches.accept_unsandboxed(&start);
        assert_eq!(created(), [".envrc", ".zed"], "a sandbox was started meanwhile");
    }

    #[test]
    fn an_unsandboxed_command_does_not_accept_a_folder_with_others() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let watches = ProtectedWatches::default();
        let watch = watches.of(std::slice::from_ref(&root), Path::new("/nowhere"));
        let created = || watch.find_created().into_iter().map(|(_, path)| path.shown).collect::<Vec<_>>();
        for path in ["new/.git/HEAD", "new/.git/objects/x", "new/.git/hooks/pre-commit"] {
            write(&root.join(path));
        }
        assert_eq!(created(), ["new/.git/hooks"], "a command in a sandbox created it");
        let start = watches.begin_unsandboxed().unwrap();
        write(&root.join("new/.git/commondir"));
        watches.accept_unsandboxed(&start);
        assert_eq!(created(), ["new/.git"]);
        fs::remove_file(root.join("new/.git/commondir")).unwrap();
        assert_eq!(created(), ["new/.git/hooks"]);
    }

    #[test]
    fn consent_to_a_repository_covers_no_earlier_hook() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        [".git/HEAD", ".git/objects/x"].iter().for_each(|path| write(&root.join(path)));
        let watches = ProtectedWatches::default();
        let watch = watches.of(std::slice::from_ref(&root), Path::new("/nowhere"));
        let created = || watch.find_created().into_iter().map(|(_, path)| path.shown).collect::<Vec<_>>();
        for git in ["bare", ".git/modules/sub"] {
            write(&root.join(git).join("hooks/pre-commit"));
        }
        assert_eq!(created(), [""; 0], "without `HEAD`, these are no git folders");
        let start = watches.begin_unsandboxed().unwrap();
        for git in ["bare", ".git/modules/sub", "bare2", "clone/.git"] {
            write(&root.join(git).join("HEAD"));
            write(&root.join(git).join("objects/x"));
        }
        for git in ["bare2", "clone/.git"] {
            write(&root.join(git).join("hooks/pre-commit"));
        }
        assert_eq!(created(), [".git/modules/sub/hooks", "bare/HEAD", "bare2/HEAD", "clone/.git/hooks"]);
        watches.accept_unsandboxed(&start);
        assert_eq!(created(), [".git/modules/sub/hooks", "bare/HEAD"], "a command in a sandbox left these hooks");
    }

    #[test]
    fn consent_covers_no_git_folder_that_is_found_later() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        [".git/HEAD", ".git/objects/x"].iter().for_each(|path| write(&root.join(path)));
        let watches = ProtectedWatches::default();
        let watch = watches.of(std::slice::from_ref(&root), Path::new("/nowhere"));
        let created = || watch.find_created().into_iter().map(|(_, path)| path.shown).collect::<Vec<_>>();
        for git in ["a/b/sub/.git", "a/store"] {
            for part in ["HEAD", "objects/x", "hooks/pre-commit"] {
                write(&root.join(git).join(part));
            }
        }
        assert_eq!(created(), [""; 0], "the search does not go that far");
        let start = watches.begin_unsandboxed().unwrap();
        // Every `.git` may be that of a submodule if the index is not understood.
        write(&root.join(".git/index"));
        for (folder, git) in [("x", Path::new("../a/store")), ("y", outside.path())] {
            fs::create_dir(root.join(folder)).unwrap();
            fs::write(root.join(folder).join(".git"), format!("gitdir: {}\n", git.display())).unwrap();
        }
        assert_eq!(created(), ["a/b/sub/.git/hooks", "x/.git", "y/.git"]);
        watches.accept_unsandboxed(&start);
        assert_eq!(created(), ["a/b/sub/.git/hooks", "x/.git"], "a sandbox cannot write the folder outside");
    }

    #[test]
    fn sandboxes_with_the_same_folders_share_a_watch() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let watches = ProtectedWatches::default();
        let first = watches.of(std::slice::from_ref(&root), Path::new("/nowhere"));
        write(&root.join(".envrc"));
        let second = watches.of(std::slice::from_ref(&root), Path::new("/nowhere"));
        assert_eq!(second.find_created().len(), 1, "a later sandbox does not accept what an earlier one created");
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(watches.of(&[root.join("other")], Path::new("/nowhere")).find_created(), []);
        assert_eq!(watches.all().len(), 2);
    }
}
