//! Git folders that look harmless, and are not.

use super::*;

struct Project(tempfile::TempDir);

impl Project {
    fn new() -> Self {
        let project = Self(tempfile::tempdir().unwrap());
        project.repository(".git");
        project
    }

    fn root(&self) -> PathBuf {
        self.0.path().canonicalize().unwrap()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn repository(&self, path: &str) {
        self.write(&format!("{path}/HEAD"), "ref: refs/heads/main\n");
        self.write(&format!("{path}/objects/x"), "");
        self.write(&format!("{path}/config"), "[core]\n\tbare = false\n");
    }

    /// Returns why an entry is not harmless: paths, and the keys of configs.
    fn problems(&self, entry: &str) -> Vec<String> {
        let check = GitCheck { roots: &[self.root()], known: &BTreeSet::new() };
        let shown = |GitProblem { path, key }: GitProblem| {
            let path = path.strip_prefix(self.root()).unwrap().display().to_string();
            key.map_or(path.clone(), |key| format!("{path}: {key}"))
        };
        check.find_in_entry(&self.root().join(entry)).into_iter().map(shown).collect()
    }

    fn problems_of_config(&self, config: &str) -> Vec<String> {
        self.write(".git/config", config);
        self.problems(".git/config")
    }
}

#[test]
fn a_common_folder_is_the_one_around_the_worktree() {
    let project = Project::new();
    project.write(".git/worktrees/w/HEAD", "ref: refs/heads/w\n");
    project.write(".git/worktrees/w/commondir", "../..\n");
    assert_eq!(project.problems(".git/worktrees/w/commondir"), [""; 0]);
    for text in ["..", "../../..", "../../../other", " ../..", ""] {
        project.repository("other");
        project.write(".git/worktrees/w/commondir", text);
        assert_eq!(project.problems(".git/worktrees/w/commondir"), [".git/worktrees/w/commondir"], "{text}");
    }
    project.write("clone/.git/commondir", "..");
    assert_eq!(project.problems("clone/.git/commondir"), ["clone/.git/commondir"]);
    // Git needs no `HEAD` in a common folder, so no search finds this one.
    project.write(".git/modules/x/config", "[core]\n\tfsmonitor = ./run\n");
    project.write(".git/modules/x/objects/x", "");
    project.write(".git/modules/x/worktrees/w/HEAD", "ref: refs/heads/w\n");
    project.write(".git/modules/x/worktrees/w/commondir", "../..\n");
    project.write("sub/.git", "gitdir: ../.git/modules/x/worktrees/w\n");
    assert_eq!(project.problems("sub/.git"), [".git/modules/x/worktrees/w/commondir"]);
    project.write(".git/modules/x/HEAD", "ref: refs/heads/w\n");
    assert_eq!(project.problems("sub/.git"), [".git/modules/x/config: core.fsmonitor"]);
}

#[test]
fn a_work_tree_belongs_to_its_git_folder() {
    let project = Project::new();
    let outside = tempfile::tempdir().unwrap();
    project.repository(".git/modules/sub");
    project.write("sub/.git", "gitdir: ../.git/modules/sub\n");
    fs::create_dir(project.root().join("plain")).unwrap();
    assert_eq!(project.problems_of_config("[core]\n\tworktree = ..\n"), [""; 0]);
    for place in [&outside.path().display().to_string(), "../plain", "../sub", "", ".. ;", "../missing"] {
        let config = format!("[core]\n\tworktree = {place}\n");
        assert_eq!(project.problems_of_config(&config), [".git/config: core.worktree"], "{place}");
    }
    project.write(".git/config", "");
    for (place, is_own) in [("../../../sub", true), ("../../..", false), ("../../../plain", false)] {
        project.write(".git/modules/sub/config", &format!("[core]\n\tworktree = {place}\n"));
        assert_eq!(project.problems("sub/.git").is_empty(), is_own, "{place}");
    }
}

#[test]
fn spaces_belong_to_the_name_of_a_git_folder() {
    let project = Project::new();
    project.repository(".git/modules/sub");
    project.repository(" ../.git/modules/sub");
    project.write("sub/.git", "gitdir: ../.git/modules/sub\r\n");
    assert_eq!(project.problems("sub/.git"), [""; 0]);
    for text in ["gitdir:  ../.git/modules/sub\n", "gitdir:../.git/modules/sub\n", "gitdir: ../.git/modules/sub \n"] {
        project.write("sub/.git", text);
        assert_eq!(project.problems("sub/.git"), ["sub/.git"], "{text}");
    }
}

#[test]
fn a_value_of_a_config_cannot_hide_a_helper() {
    let project = Project::new();
    for (config, key) in [
        ("[remote \"a\"]\n\turl = ext:\":\"sh -c run\n", "remote.url"),
        ("[remote \"a\"]\n\turl = ext::sh -c run\n", "remote.url"),
        ("[branch \"a\"]\n\tremote = ext::sh -c run\n", "branch.remote"),
        ("[branch \"a\"]\n\tremote = ext:\\:sh -c run\n", "branch.remote"),
        ("[gc]\n\trecentObjectsHook = run\n", "gc.recentobjectshook"),
        ("[diff \"a\"]\n\tcommand = run\n", "diff.command"),
        ("[merge \"a\"]\n\tdriver = run\n", "merge.driver"),
        ("[protocol \"ext\"]\n\tallow = always\n", "protocol.allow"),
        ("[submodule \"a\"]\n\tupdate = !run\n", "submodule.update"),
    ] {
        assert_eq!(project.problems_of_config(config), [format!(".git/config: {key}")], "{config}");
    }
    let harmless = "[commit]\n\tgpgSign = true\n[gc]\n\tauto = 0\n[color \"diff\"]\n\tmeta = yellow\n[branch \
                    \"main\"]\n\tvscode-merge-base = origin/main\n[submodule]\n\talternateLocation = superproject\n\
                    [core]\n\tuntrackedCache = true\n[pull]\n\tff = only\n[merge]\n\tconflictStyle = zdiff3\n";
    assert_eq!(project.problems_of_config(harmless), [""; 0]);
}
