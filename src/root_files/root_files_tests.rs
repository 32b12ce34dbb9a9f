//! Links that are put in the way, before and while a path is used.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

struct Tree {
    _folder: tempfile::TempDir,
    root: PathBuf,
    outside: PathBuf,
}

impl Tree {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().canonicalize().unwrap();
        let (root, outside) = (base.join("root"), base.join("outside"));
        std::fs::create_dir_all(root.join("real")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        Self { _folder: folder, root, outside }
    }

    fn at(&self, path: &str) -> RootedPath {
        RootedPath::open(std::slice::from_ref(&self.root), &self.root.join(path)).unwrap()
    }
}

fn usual() -> Permissions {
    Permissions::from_mode(0o644)
}

#[test]
fn files_are_created_replaced_read_and_removed() {
    let tree = Tree::new();
    let file = tree.at("a/b/c.txt");
    assert_eq!(file.create_folders().unwrap(), 2);
    file.create(b"one").unwrap();
    assert_eq!(file.create(b"two").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    file.replace(b"three", &Permissions::from_mode(0o640)).unwrap();
    assert_eq!(io::read_to_string(file.read().unwrap()).unwrap(), "three");
    let path = tree.root.join("a/b/c.txt");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(std::fs::read_dir(tree.root.join("a/b")).unwrap().count(), 1, "no temporary file is left");
    file.remove_file().unwrap();
    tree.at("a/b").remove_folder().unwrap();
    assert!(!tree.root.join("a/b").exists());
    assert!(RootedPath::open(std::slice::from_ref(&tree.root), &tree.outside).is_err());
}

#[test]
fn a_root_that_does_not_exist_yet_is_created_with_its_files() {
    let tree = Tree::new();
    let scratch = tree.root.join("scratch/s1");
    let file = RootedPath::open(std::slice::from_ref(&scratch), &scratch.join("log")).unwrap();
    assert_eq!(file.create_folders().unwrap(), 2);
    file.create(b"x").unwrap();
    assert!(scratch.join("log").is_file());
}

#[test]
fn no_operation_follows_a_link() {
    let tree = Tree::new();
    std::fs::write(tree.outside.join("file"), "secret").unwrap();
    symlink(&tree.outside, tree.root.join("folder")).unwrap();
    symlink(tree.outside.join("file"), tree.root.join("link")).unwrap();
    symlink("real", tree.root.join("inner")).unwrap();
    for path in ["folder/file", "link", "inner/file"] {
        assert!(tree.at(path).read().is_err(), "{path}");
    }
    for path in ["folder/new", "inner/new"] {
        assert!(tree.at(path).create(b"x").is_err(), "{path}");
        assert!(tree.at(path).replace(b"x", &usual()).is_err(), "{path}");
        assert!(tree.at(path).remove_file().is_err(), "{path}");
    }
    assert!(tree.at("folder/deep/new").create_folders().is_err());
    // A link is replaced and not what it leads to.
    tree.at("link").replace(b"mine", &usual()).unwrap();
    assert_eq!(std::fs::read_to_string(tree.outside.join("file")).unwrap(), "secret");
    assert_eq!(std::fs::read_dir(&tree.outside).unwrap().count(), 1);
}

#[test]
fn without_openat2_the_same_holds() {
    let tree = Tree::new();
    std::fs::write(tree.outside.join("file"), "secret").unwrap();
    std::fs::write(tree.root.join("real/file"), "mine").unwrap();
    symlink(&tree.outside, tree.root.join("folder")).unwrap();
    symlink(tree.outside.join("file"), tree.root.join("link")).unwrap();
    let root = File::open(&tree.root).unwrap();
    let open = |path: &str, bounds| open_by_parts(root.as_fd(), Path::new(path), READ, Mode::empty(), bounds);
    assert!(open("real/file", PathBounds::Beneath).is_ok());
    assert!(open(tree.root.join("real/file").to_str().unwrap(), PathBounds::None).is_ok());
    for path in ["folder/file", "link", "../outside/file", "real/../../outside/file", "/etc/passwd"] {
        assert!(open(path, PathBounds::Beneath).is_err(), "{path}");
    }
}

#[test]
fn no_write_escapes_while_a_link_is_swapped_in() {
    let tree = Tree::new();
    let (root, outside) = (tree.root.clone(), tree.outside.clone());
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    // The folder is a folder and a link in turns.
    let swapping = std::thread::spawn(move || {
        symlink(&outside, root.join("other")).unwrap();
        let folder = File::open(&root).unwrap();
        while !stopped.load(Ordering::Relaxed) {
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            rustix::fs::renameat_with(&folder, "real", &folder, "other", flags).unwrap();
        }
    });
    let mut written = 0;
    for number in 0..300 {
        let file = tree.at(&format!("real/sub{number}/file"));
        if file.create_folders().is_ok() && file.create(b"x").is_ok() {
            written += usize::from(file.replace(b"y", &usual()).is_ok());
        }
    }
    stop.store(true, Ordering::Relaxed);
    swapping.join().unwrap();
    assert_eq!(std::fs::read_dir(&tree.outside).unwrap().count(), 0, "{written} writes succeeded");
}

#[test]
fn a_path_is_resolved_as_the_system_does_or_not_at_all() {
    let tree = Tree::new();
    std::fs::write(tree.root.join("file"), "").unwrap();
    symlink("real", tree.root.join("link")).unwrap();
    symlink("missing", tree.root.join("dangling")).unwrap();
    let resolved = |path: &str| resolve(&tree.root.join(path));
    assert_eq!(resolved("link/../file").unwrap().path, tree.root.join("file"));
    assert_eq!(resolved("link/new/er").unwrap(), ResolvedPath { path: tree.root.join("real/new/er"), dangling: false });
    assert!(resolved("dangling").unwrap().dangling);
    assert!(matches!(resolved("missing/../file"), Err(ResolveError::ParentOfMissing(_))));
    assert!(matches!(resolved("dangling/../file"), Err(ResolveError::ParentOfMissing(_))));
    assert!(matches!(resolved("file/../real"), Err(ResolveError::ParentOfFile(_))));
}
