//! The submodules in real indexes of git.

use std::process::Command;

use super::*;
use crate::sandbox::ProtectedSnapshot;

#[expect(clippy::disallowed_methods, reason = "a process that ends by itself")]
fn git(folder: &Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    command.current_dir(folder).args(arguments).env("GIT_CONFIG_GLOBAL", "/dev/null");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns what the index of a repository tells after these changes.
fn submodules(format: &str, changes: &[&[&str]]) -> Option<Vec<PathBuf>> {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    git(root, &["init", "-q", &format!("--object-format={format}")]);
    for name in ["a", "b/very/long/name/of/a/file", "z"] {
        fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
        fs::write(root.join(name), name).unwrap();
    }
    git(root, &["add", "."]);
    let hash = "1".repeat(if format == "sha1" { 40 } else { 64 });
    for path in ["b/sub", "deep/er/module"] {
        git(root, &["update-index", "--add", "--cacheinfo", &format!("160000,{hash},{path}")]);
    }
    for change in changes {
        git(root, change);
    }
    list_submodules(&root.join(".git"))
}

#[test]
fn every_form_of_an_index_tells_its_submodules() {
    let has_both = |format: &str, changes: &[&[&str]]| {
        let found = submodules(format, changes);
        // Read with the wrong size of a hash, an index may tell other names, or none.
        let has_both = |found: &Vec<PathBuf>| {
            found.contains(&PathBuf::from("b/sub")) && found.contains(&PathBuf::from("deep/er/module"))
        };
        found.map_or(format == "sha256", |found| has_both(&found))
    };
    for format in ["sha1", "sha256"] {
        for version in ["2", "3", "4"] {
            let of_version = ["update-index", "--index-version", version];
            assert!(has_both(format, &[&of_version]), "{format} {version}");
            let extended: [&[&str]; 2] = [&of_version, &["update-index", "--skip-worktree", "a"]];
            assert!(has_both(format, &extended), "{format} {version}, extended");
        }
        assert!(has_both(format, &[&["update-index", "--split-index"]]), "{format}, shared");
    }
}

#[test]
fn an_index_that_is_no_file_tells_nothing() {
    let folder = tempfile::tempdir().unwrap();
    assert!(list_submodules(folder.path()).unwrap().is_empty(), "no index");
    fs::write(folder.path().join("index"), "no index").unwrap();
    assert!(list_submodules(folder.path()).unwrap().is_empty(), "git refuses it too");
    fs::remove_file(folder.path().join("index")).unwrap();
    fs::create_dir(folder.path().join("index")).unwrap();
    assert_eq!(list_submodules(folder.path()), None);
}

#[test]
fn git_folders_of_submodules_are_found_at_any_depth() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    git(&root, &["init", "-q"]);
    let roots = [root.clone()];
    let before = ProtectedSnapshot::take(&roots);
    for name in ["a/b/c/sub", "a/b/c/other"] {
        git(&root, &["init", "-q", name]);
        git(&root.join(name), &["config", "core.fsmonitor", "./run"]);
    }
    let entry = format!("160000,{},a/b/c/sub", "1".repeat(40));
    git(&root, &["update-index", "--add", "--cacheinfo", &entry]);
    let created = before.find_created(&ProtectedSnapshot::take(&roots));
    let shown: Vec<&str> = created.iter().map(|(_, path)| path.shown.as_str()).collect();
    assert_eq!(shown, ["a/b/c/sub/.git/config"], "git does not enter the other one");
}
