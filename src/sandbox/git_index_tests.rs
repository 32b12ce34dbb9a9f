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

/// Makes a repository with two submodules in its index.
fn repository(root: &Path, format: &str) {
    git(root, &["init", "-q", &format!("--object-format={format}")]);
    for name in ["a", "b/very/long/name/of/a/file", "z"] {
        fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
        fs::write(root.join(name), name).unwrap();
    }
    git(root, &["add", "."]);
    for path in ["b/sub", "deep/er/module"] {
        add_submodule(root, format, '1', path);
    }
}

fn add_submodule(root: &Path, format: &str, digit: char, path: &str) {
    let hash = digit.to_string().repeat(if format == "sha1" { 40 } else { 64 });
    git(root, &["update-index", "--add", "--cacheinfo", &format!("160000,{hash},{path}")]);
}

fn listing(paths: &[&str], is_complete: bool) -> IndexListing {
    IndexListing { paths: paths.iter().map(PathBuf::from).collect(), is_complete }
}

#[test]
fn every_form_of_an_index_tells_its_submodules() {
    let submodules = |format: &str, changes: &[&[&str]]| {
        let folder = tempfile::tempdir().unwrap();
        repository(folder.path(), format);
        changes.iter().for_each(|change| git(folder.path(), change));
        list_submodules(&folder.path().join(".git"))
    };
    let both = listing(&["b/sub", "deep/er/module"], true);
    for format in ["sha1", "sha256"] {
        for version in ["2", "3", "4"] {
            let of_version = ["update-index", "--index-version", version];
            assert_eq!(submodules(format, &[&of_version]), both, "{format} {version}");
            let extended: [&[&str]; 2] = [&of_version, &["update-index", "--skip-worktree", "a"]];
            assert_eq!(submodules(format, &extended), both, "{format} {version}, extended");
            let threads = ["-c", "index.threads=2", "update-index", "--force-write-index"];
            assert_eq!(submodules(format, &[&of_version, &threads]), both, "{format} {version}, blocks");
        }
        assert_eq!(submodules(format, &[&["update-index", "--split-index"]]), both, "{format}, shared");
    }
}

#[test]
fn an_entry_of_a_split_index_has_the_name_of_the_shared_one() {
    let folder = tempfile::tempdir().unwrap();
    repository(folder.path(), "sha1");
    git(folder.path(), &["config", "splitIndex.maxPercentChange", "100"]);
    git(folder.path(), &["update-index", "--split-index"]);
    add_submodule(folder.path(), "sha1", '2', "b/sub");
    let found = list_submodules(&folder.path().join(".git"));
    assert!(found.is_complete, "{found:?}");
    assert!(found.paths.contains(&PathBuf::from("b/sub")), "{found:?}");
    // The names of files are there too, so the index has an entry without a name.
    assert!(found.paths.contains(&PathBuf::from("a")), "{found:?}");
}

/// Returns an index of version 2 with one submodule.
fn index_of(name: &str, more_flags: bool, length: u16) -> Vec<u8> {
    let mut index = [&SIGNATURE[..], &2_u32.to_be_bytes(), &1_u32.to_be_bytes()].concat();
    let mut entry = vec![0; FIELDS + USUAL_HASH];
    entry[MODE].copy_from_slice(&SUBMODULE.to_be_bytes());
    let flags = length | if more_flags { HAS_MORE_FLAGS } else { 0 };
    entry.extend(flags.to_be_bytes());
    if more_flags {
        entry.extend([0; 2]);
    }
    entry.extend(name.as_bytes());
    entry.resize((entry.len() + 8) & !7, 0);
    index.extend(entry);
    index.extend([0; USUAL_HASH]);
    index
}

#[test]
fn an_index_is_read_as_git_reads_it() {
    let read = |index: &[u8]| {
        let mut names = Vec::new();
        let read = read_entries(index, USUAL_HASH, |_, name| names.push(String::from_utf8(name.to_vec()).unwrap()));
        read.map(|()| names)
    };
    assert_eq!(read(&index_of("a/b", false, 3)).unwrap(), ["a/b"]);
    assert_eq!(read(&index_of("a/b", true, 3)).unwrap(), ["a/b"], "more flags in version 2");
    assert_eq!(read(&index_of("a/b", false, 1)), None, "git takes the length from the flags");
    let long = "a/".repeat(3000) + "b";
    assert_eq!(read(&index_of(&long, false, NAME_LENGTH)).unwrap(), [long.as_str()]);
    let mut blocks = index_of("a/b", false, 3);
    blocks.truncate(blocks.len() - USUAL_HASH);
    let place = blocks.len();
    blocks.extend(BLOCKS);
    blocks.extend([0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 12, 0, 0, 0, 1]);
    blocks.extend([0; USUAL_HASH]);
    assert_eq!(read(&blocks).unwrap(), ["a/b"]);
    blocks[place + 15] = 20;
    assert_eq!(read(&blocks), None, "a thread would begin elsewhere");
    let mut end = index_of("a/b", false, 3);
    end.truncate(end.len() - USUAL_HASH);
    end.extend(END_OF_ENTRIES);
    end.extend([0, 0, 0, 24, 0, 0, 0, 12]);
    end.extend([0; 2 * USUAL_HASH]);
    assert_eq!(read(&end), None, "the extensions would begin elsewhere");
}

#[test]
fn an_index_that_is_not_understood_leads_to_a_search() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let index = root.join(".git/index");
    git(&root, &["init", "-q"]);
    git(&root, &["init", "-q", "a/b/c/inner"]);
    assert_eq!(list_submodules(&root.join(".git")), listing(&[], true), "no index");
    assert_eq!(find_submodules(&root), [""; 0].map(PathBuf::from));
    fs::write(&index, "no index").unwrap();
    assert_eq!(find_submodules(&root), [root.join("a/b/c/inner/.git")]);
    fs::remove_file(&index).unwrap();
    fs::create_dir(&index).unwrap();
    let roots = [root.clone()];
    assert!(
        !ProtectedSnapshot::default()
            .find_created(&ProtectedSnapshot::take(&roots))
            .iter()
            .any(|(path, _)| *path == index)
    );
    assert_eq!(find_submodules(&root), [root.join("a/b/c/inner/.git")]);
}

#[test]
fn a_root_in_a_work_tree_has_its_submodules() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    git(&root, &["init", "-q"]);
    fs::create_dir(root.join("src")).unwrap();
    let roots = [root.join(".git"), root.join("src")];
    let before = ProtectedSnapshot::take(&roots);
    for name in ["src/deep/er/sub", "other/sub"] {
        git(&root, &["init", "-q", name]);
        git(&root.join(name), &["config", "core.fsmonitor", "./run"]);
        add_submodule(&root, "sha1", '1', name);
    }
    let created = before.find_created(&ProtectedSnapshot::take(&roots));
    let paths: Vec<&Path> = created.iter().map(|(path, _)| path.as_path()).collect();
    assert_eq!(paths, [root.join("src/deep/er/sub/.git/config")], "commands cannot write the other one");
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
