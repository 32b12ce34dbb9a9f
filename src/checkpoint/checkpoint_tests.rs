//! Tests snapshots and restores on real files.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use tempfile::TempDir;

use super::*;
use crate::sandbox::HiddenPaths;

struct TestWorkspace {
    folder: TempDir,
    limits: SnapshotLimits,
}

impl TestWorkspace {
    fn new() -> Self {
        let test = Self { folder: tempfile::tempdir().unwrap(), limits: SnapshotLimits::default() };
        fs::create_dir(test.path("work")).unwrap();
        test
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    fn store(&self) -> CheckpointStore {
        CheckpointStore::new(self.path("store"))
    }

    fn workspace(&self) -> Workspace {
        let hidden = HiddenPaths::new(&self.path("home"), [self.path("work/hidden")]);
        Workspace { roots: vec![self.path("work")], hidden, limits: self.limits }
    }

    /// A step in which `change` happens.
    fn step(&self, session: &str, change: impl FnOnce()) -> bool {
        let (store, workspace) = (self.store(), self.workspace());
        let mut step = store.begin(session, (0, StepKind::Turn), &workspace, None).unwrap();
        change();
        store.finish(session, &mut step, &workspace).unwrap()
    }

    /// Reverses all steps of the session from this index on. Returns the files that stay.
    fn restore(&self, session: &str, from: usize, force: bool) -> Vec<KeptFile> {
        let (store, workspace) = (self.store(), self.workspace());
        let steps = store.steps(session).unwrap();
        let known = steps.last().and_then(|step| step.after.as_ref());
        let present = store.look(&workspace, known).unwrap();
        store.apply(&RestorePlan::new(&steps[from..], &present, &workspace), force)
    }

    fn contents(&self) -> usize {
        let prefixes = names_in(&self.path("store/objects")).unwrap();
        prefixes.iter().map(|prefix| names_in(&self.path("store/objects").join(prefix)).unwrap().len()).sum()
    }
}

#[test]
fn files_links_folders_and_modes_come_back() {
    let test = TestWorkspace::new();
    test.write("work/a.txt", "one\n");
    test.write("work/tool", "#!/bin/sh\n");
    test.write("work/deep/er/b.txt", "two\n");
    fs::set_permissions(test.path("work/tool"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("a.txt", test.path("work/link")).unwrap();
    fs::create_dir(test.path("work/empty")).unwrap();
    let kept = test.step("s", || {
        test.write("work/a.txt", "changed\n");
        test.write("work/new/c.txt", "new\n");
        fs::remove_file(test.path("work/tool")).unwrap();
        fs::remove_dir_all(test.path("work/deep")).unwrap();
        fs::remove_file(test.path("work/link")).unwrap();
        test.write("work/link", "a file now\n");
        fs::remove_dir(test.path("work/empty")).unwrap();
    });
    assert!(kept);
    assert_eq!(test.restore("s", 0, false), []);
    assert_eq!(test.read("work/a.txt"), "one\n");
    assert_eq!(test.read("work/deep/er/b.txt"), "two\n");
    assert_eq!(fs::metadata(test.path("work/tool")).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(test.path("work/link").read_link().unwrap(), Path::new("a.txt"));
    assert!(test.path("work/empty").is_dir() && !test.path("work/new").exists());
}

#[test]
fn a_turn_without_changes_leaves_no_step() {
    let test = TestWorkspace::new();
    test.write("work/a.txt", "one\n");
    assert!(!test.step("s", || {}));
    assert_eq!(test.store().steps("s").unwrap(), []);
}

#[test]
fn files_of_the_user_stay_as_they_are() {
    let test = TestWorkspace::new();
    test.write("work/a.txt", "one\n");
    test.write("work/mine.txt", "mine\n");
    test.step("s", || test.write("work/a.txt", "two\n"));
    // Between the turns and after them.
    test.write("work/between.txt", "between\n");
    test.step("s", || test.write("work/between.txt", "by the session\n"));
    test.write("work/mine.txt", "still mine\n");
    test.write("work/a.txt", "three\n");
    let kept = test.restore("s", 0, false);
    let expected = KeptFile { path: test.path("work/a.txt"), reason: KeepReason::ChangedSince };
    assert_eq!(kept, [expected]);
    assert_eq!(test.read("work/a.txt"), "three\n");
    assert_eq!(test.read("work/between.txt"), "between\n");
    assert_eq!(test.read("work/mine.txt"), "still mine\n");
    assert_eq!(test.restore("s", 0, true), []);
    assert_eq!(test.read("work/a.txt"), "one\n");
}

#[test]
fn ignored_hidden_and_large_files_are_not_touched() {
    let mut test = TestWorkspace::new();
    test.limits = SnapshotLimits { file_bytes: 100, ..SnapshotLimits::default() };
    test.write("work/.gitignore", "*.log\n");
    for path in ["work/a.log", "work/hidden/key", "work/.git/config", "work/big"] {
        test.write(path, &"x".repeat(if path.ends_with("big") { 101 } else { 1 }));
    }
    let kept = test.step("s", || {
        for path in ["work/a.log", "work/hidden/key", "work/.git/config", "work/big"] {
            fs::write(test.path(path), "y".repeat(if path.ends_with("big") { 102 } else { 1 })).unwrap();
        }
    });
    assert!(!kept, "none of them is covered");
    let gaps = test.store().look(&test.workspace(), None).unwrap();
    let gaps: Vec<_> = gaps.gaps().map(|(path, gap)| (path.to_owned(), gap)).collect();
    assert_eq!(gaps, [(test.path("work/big").display().to_string(), CoverageGap::TooLarge)]);
}

/// A change of `.gitignore` neither hides a change nor makes an old file look new.
#[test]
fn a_turn_may_change_what_is_ignored() {
    let test = TestWorkspace::new();
    test.write("work/.gitignore", "secret.env\n");
    test.write("work/secret.env", "mine\n");
    test.write("work/src/a.txt", "one\n");
    // The file is older than the checkpoint.
    std::thread::sleep(std::time::Duration::from_millis(60));
    test.step("s", || {
        test.write("work/.gitignore", "src/\n");
        test.write("work/src/a.txt", "two\n");
    });
    assert_eq!(test.restore("s", 0, false), []);
    assert_eq!(test.read("work/secret.env"), "mine\n");
    assert_eq!(test.read("work/src/a.txt"), "one\n");
    assert_eq!(test.read("work/.gitignore"), "secret.env\n");
}

/// The old content of such a file is unknown.
#[test]
fn what_was_ignored_and_has_changed_stays() {
    let test = TestWorkspace::new();
    test.write("work/.gitignore", ".env\nout/\n");
    test.write("work/.git/info/exclude", "local.txt\n");
    test.write("work/cache/.gitignore", "*\n");
    let ignored = ["work/.env", "work/cache/x", "work/local.txt", "work/out/deep/y"];
    ignored.iter().for_each(|path| test.write(path, "mine\n"));
    test.step("s", || {
        test.write("work/.gitignore", "build/\n");
        test.write("work/.git/info/exclude", "");
        fs::remove_file(test.path("work/cache/.gitignore")).unwrap();
        ignored.iter().for_each(|path| test.write(path, "mine\nextra\n"));
        test.write("work/new.txt", "new\n");
    });
    let kept: Vec<_> = test.restore("s", 0, true).into_iter().map(|file| (file.path, file.reason)).collect();
    assert_eq!(kept, ignored.map(|path| (test.path(path), KeepReason::NotCovered)));
    assert!(ignored.iter().all(|path| test.read(path) == "mine\nextra\n"));
    assert_eq!(test.read("work/.gitignore"), ".env\nout/\n");
    assert!(!test.path("work/new.txt").exists());
}

#[test]
fn new_ignore_files_do_not_keep_new_files() {
    let test = TestWorkspace::new();
    test.write("work/.gitignore", "*.log\n");
    test.step("s", || {
        test.write("work/.gitignore", "*.log\n!keep.me\ntarget/\n");
        test.write("work/app/.gitignore", "dist/\n!src/\n");
        test.write("work/app/src/main.txt", "new\n");
        test.write("work/keep.me", "new\n");
    });
    assert_eq!(test.restore("s", 0, false), []);
    assert!(!test.path("work/app").exists() && !test.path("work/keep.me").exists());
}

/// What is in a renamed folder has the times that it had before.
#[test]
fn a_renamed_folder_gets_its_name_back() {
    let test = TestWorkspace::new();
    test.write("work/src/deep/a.txt", "one\n");
    test.write("work/src/b.txt", "two\n");
    // The files are older than the checkpoint.
    std::thread::sleep(std::time::Duration::from_millis(60));
    test.step("s", || fs::rename(test.path("work/src"), test.path("work/lib")).unwrap());
    assert_eq!(test.restore("s", 0, false), []);
    assert_eq!((test.read("work/src/deep/a.txt"), test.read("work/src/b.txt")), ("one\n".into(), "two\n".into()));
    assert!(!test.path("work/lib").exists());
}

/// Which changes are those of the user is unknown.
#[test]
fn a_step_without_an_end_is_reversed_only_by_force() {
    let test = TestWorkspace::new();
    test.write("work/a.txt", "one\n");
    test.store().begin("s", (0, StepKind::Turn), &test.workspace(), None).unwrap();
    test.write("work/a.txt", "two\n");
    test.write("work/mine.txt", "later work\n");
    let changed = |path: &str| KeptFile { path: test.path(path), reason: KeepReason::ChangedSince };
    let all = [changed("work/a.txt"), changed("work/mine.txt")];
    assert_eq!(test.restore("s", 0, false), all);
    assert_eq!(test.read("work/a.txt"), "two\n");
    // A later turn does not tell more about them.
    test.step("s", || test.write("work/b.txt", "by the session\n"));
    assert_eq!(test.restore("s", 0, false), all);
    assert!(!test.path("work/b.txt").exists());
    assert_eq!(test.restore("s", 0, true), []);
    assert!(test.read("work/a.txt") == "one\n" && !test.path("work/mine.txt").exists());
}

#[test]
fn private_files_and_folders_come_back_private() {
    let test = TestWorkspace::new();
    test.write("work/private/key", "secret\n");
    let mode = |path: &str| fs::metadata(test.path(path)).unwrap().permissions().mode() & 0o777;
    for (path, mode) in [("work/private/key", 0o600), ("work/private", 0o700)] {
        fs::set_permissions(test.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    test.step("s", || fs::remove_dir_all(test.path("work/private")).unwrap());
    assert_eq!(test.restore("s", 0, false), []);
    assert_eq!((mode("work/private"), mode("work/private/key")), (0o700, 0o600));
    assert_eq!(test.read("work/private/key"), "secret\n");
}

/// What cannot be covered is neither removed nor overwritten.
#[test]
fn too_many_files_make_a_checkpoint_partial() {
    let mut test = TestWorkspace::new();
    test.write("work/a.txt", "one\n");
    test.limits = SnapshotLimits { entries: 3, ..SnapshotLimits::default() };
    test.step("s", || {
        test.write("work/a.txt", "two\n");
        for name in ["b", "c", "d", "e"] {
            test.write(&format!("work/{name}.txt"), "new\n");
        }
    });
    let steps = test.store().steps("s").unwrap();
    assert!(steps[0].after.as_ref().unwrap().is_partial() && !steps[0].before.is_partial());
    test.restore("s", 0, false);
    assert_eq!(test.read("work/a.txt"), "one\n");
    assert!(test.path("work/e.txt").exists(), "the checkpoint does not know it");
}

#[test]
fn a_folder_that_became_a_link_is_not_followed() {
    let test = TestWorkspace::new();
    test.write("work/inner/a.txt", "one\n");
    test.write("outside/a.txt", "outside\n");
    test.step("s", || {
        fs::remove_dir_all(test.path("work/inner")).unwrap();
        symlink(test.path("outside"), test.path("work/inner")).unwrap();
    });
    assert_eq!(test.restore("s", 0, false), []);
    assert_eq!(test.read("outside/a.txt"), "outside\n");
    assert_eq!(test.read("work/inner/a.txt"), "one\n");
    assert!(!test.path("work/inner").is_symlink());
}

#[test]
fn a_root_that_contains_the_store_is_not_covered() {
    let test = TestWorkspace::new();
    test.write("work/a.txt", "one\n");
    let workspace = Workspace { roots: vec![test.path("")], ..test.workspace() };
    let snapshot = test.store().look(&workspace, None).unwrap();
    assert_eq!((snapshot.roots.len(), snapshot.hashes().count()), (0, 0));
}

#[test]
fn deleted_sessions_leave_no_contents() {
    let test = TestWorkspace::new();
    test.write("work/a.txt", "one\n");
    test.step("first", || test.write("work/a.txt", "two\n"));
    test.step("second", || test.write("work/a.txt", "three\n"));
    assert_eq!(test.contents(), 3);
    test.store().delete("second").unwrap();
    assert_eq!(test.contents(), 2);
    test.store().delete("first").unwrap();
    test.store().delete("nobody").unwrap();
    assert_eq!(test.contents(), 0);
}

#[test]
fn only_the_newest_steps_are_kept() {
    let test = TestWorkspace::new();
    for number in 0..MAX_STEPS + 2 {
        test.step("s", || test.write("work/a.txt", &number.to_string()));
    }
    let steps = test.store().steps("s").unwrap();
    assert_eq!((steps.len(), steps[0].number), (MAX_STEPS, 3));
}

#[test]
fn dropped_steps_take_their_contents_with_them() {
    let test = TestWorkspace::new();
    // All that there are.
    let dropped = MAX_STEPS;
    for number in 0..MAX_STEPS + dropped {
        test.step("s", || test.write("work/a.txt", &number.to_string()));
    }
    // The steps have one state before the oldest of them, and one after each.
    assert_eq!((test.store().steps("s").unwrap().len(), test.contents()), (MAX_STEPS, MAX_STEPS + 1));
    assert_eq!(test.restore("s", 0, false), [], "what the steps need is there");
    assert_eq!(test.read("work/a.txt"), (dropped - 1).to_string());
}

/// A turn that changes nothing leaves no step, but copied the files before.
#[test]
fn turns_without_changes_leave_no_contents_for_long() {
    let test = TestWorkspace::new();
    test.write("work/a.txt", "one\n");
    test.step("changed", || test.write("work/a.txt", "two\n"));
    for number in 0..unused_contents::MAX_DROPPED {
        test.write("work/b.txt", &number.to_string());
        test.step("unchanged", || {});
        assert!(test.contents() <= 22, "{}", test.contents());
    }
    assert_eq!(test.contents(), 2, "those of the other session");
}
