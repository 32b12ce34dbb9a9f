//! Lists protected paths, which need consent to be written, and hidden paths, which are neither read nor written.
//!
//! Names are compared case-insensitively, because some file systems do the same.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub(super) const RUNS_PROGRAMS_OF_GIT: &str = "git runs programs that it names";
pub(super) const MAKES_GIT_FOLDER: &str = "it makes its folder a git folder, whose config names programs that git runs";
const READ_BY_SKEIN: &str = "it sets which agents, services and rules Skein uses in this project";
const READ_BY_AGENTS: &str = "coding agents take settings, tools and commands from it";
const READ_BY_EDITORS: &str = "editors run tasks and programs that it names";
const READ_BY_SHELLS: &str = "the shell runs it when the folder is entered";
const STARTS_SERVERS: &str = "it names programs that are started as MCP servers";
const INSTRUCTS_AGENTS: &str = "agents follow the instructions in it";
const RUNS_IN_CI: &str = "it runs programs when the project is pushed";

/// Returns whether the path is below one of the folders.
pub(super) fn is_below(path: &Path, folders: &[PathBuf]) -> bool {
    folders.iter().any(|folder| path.starts_with(folder))
}

/// Names that are protected anywhere below a root, with all their contents, and the reason.
pub const PROTECTED: [(&str, &str); 12] = [
    (".skein", READ_BY_SKEIN),
    (".mcp.json", STARTS_SERVERS),
    (".agents", READ_BY_AGENTS),
    (".claude", READ_BY_AGENTS),
    (".codex", READ_BY_AGENTS),
    (".gemini", READ_BY_AGENTS),
    (".vscode", READ_BY_EDITORS),
    (".zed", READ_BY_EDITORS),
    (".idea", READ_BY_EDITORS),
    (".husky", RUNS_PROGRAMS_OF_GIT),
    (".envrc", READ_BY_SHELLS),
    (GIT, RUNS_PROGRAMS_OF_GIT),
];

/// Examples of protected paths, the most powerful first, for checking patterns.
pub const PROTECTED_EXAMPLES: [&str; 16] = [
    ".git/config",
    ".git/hooks/pre-commit",
    ".skein/config.yaml",
    ".mcp.json",
    ".envrc",
    ".husky/pre-commit",
    ".vscode/tasks.json",
    ".zed/tasks.json",
    ".idea/workspace.xml",
    ".claude/settings.json",
    ".codex/config.toml",
    ".gemini/settings.json",
    ".github/workflows/ci.yml",
    ".agents/skills/example/SKILL.md",
    "AGENTS.md",
    "CLAUDE.md",
];

/// Names that are protected from file tools only.
const ASKED_BY_FILE_TOOLS: [(&str, &str); 2] = [("AGENTS.md", INSTRUCTS_AGENTS), ("CLAUDE.md", INSTRUCTS_AGENTS)];

const GIT: &str = ".git";
/// The parts of a git folder that make git run programs. The rest changes with every commit.
pub(super) const OF_GIT: [&str; 4] = ["hooks", "config", "config.worktree", "commondir"];
/// Folders in a git folder with work to be continued. Their files may name programs to run then.
pub(super) const RESUMED_BY_GIT: [&str; 3] = ["rebase-merge", "rebase-apply", "sequencer"];
/// Folders in a git folder that contain further git folders.
pub(super) const INNER_GIT: [&str; 2] = ["modules", "worktrees"];
const GITHUB: &str = ".github";
const WORKFLOWS: &str = "workflows";

/// A path that needs consent to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtectedPath {
    /// The path as shown to the user.
    pub shown: String,
    /// The listed name that the path contains.
    pub name: &'static str,
    pub reason: Cow<'static, str>,
}

impl std::fmt::Display for ProtectedPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` is a protected path: {}", self.shown, self.reason)
    }
}

/// Returns the listed name that protects `path`, and the reason. `path` must be resolved; `root` is the root that
/// contains it. Ignores folders above the root, except the root's own name and git folders.
pub fn find_protected(path: &Path, root: Option<&Path>) -> Option<(&'static str, &'static str)> {
    let from = root.and_then(Path::parent).unwrap_or(Path::new("/"));
    let below: Vec<_> = names(path.strip_prefix(from).unwrap_or(path)).collect();
    let all: Vec<_> = names(path).collect();
    match_protected(&below).or_else(|| match_protected(&all).filter(|(name, _)| *name == GIT))
}

/// Returns the listed name in `root` that is a link to `path` or to a folder above it, and the reason. `path` must be
/// resolved.
pub fn find_protected_link(path: &Path, root: &Path) -> Option<(&'static str, &'static str)> {
    let names = PROTECTED.iter().map(|(name, reason)| (root.join(name), *name, *reason));
    let parts = OF_GIT.iter().map(|part| (root.join(GIT).join(part), GIT, RUNS_PROGRAMS_OF_GIT));
    let leads_here = |link: &Path| {
        link.is_symlink() && link.canonicalize().is_ok_and(|real| path.starts_with(&real) && !root.starts_with(&real))
    };
    names.chain(parts).find(|(link, ..)| leads_here(link)).map(|(_, name, reason)| (name, reason))
}

/// Does the same for a path that cannot be resolved, such as one relative to an unknown folder.
pub fn find_protected_name(path: &str) -> Option<(&'static str, &'static str)> {
    match_protected(&names(Path::new(path)).collect::<Vec<_>>())
}

fn names(path: &Path) -> impl Iterator<Item = &str> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_str().unwrap_or("\u{fffd}")),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => None,
    })
}

fn match_protected(names: &[&str]) -> Option<(&'static str, &'static str)> {
    (0..names.len()).find_map(|at| {
        let (name, rest) = (names[at], &names[at + 1..]);
        let listed = PROTECTED.iter().chain(&ASKED_BY_FILE_TOOLS).find(|(listed, _)| same(listed, name));
        match listed {
            Some((listed, _)) if *listed == GIT && !runs_programs(rest) => None,
            Some(listed) => Some(*listed),
            // The folder itself can be moved or replaced with all its contents.
            None if same(GITHUB, name) && rest.first().is_none_or(|inner| same(WORKFLOWS, inner)) => {
                Some((GITHUB, RUNS_IN_CI))
            }
            None => None,
        }
    })
}

/// Returns whether git runs programs from this path. `rest` has the names below `.git`. `.git` itself counts, because a
/// file of this name points to another git folder.
fn runs_programs(rest: &[&str]) -> bool {
    let is_listed = |name: &&str| OF_GIT.iter().chain(&RESUMED_BY_GIT).any(|listed| same(listed, name));
    match rest {
        [] => true,
        [first, inner @ ..] if INNER_GIT.iter().any(|listed| same(listed, first)) => inner.iter().any(is_listed),
        [first, ..] => is_listed(first),
    }
}

fn same(listed: &str, name: &str) -> bool {
    listed.eq_ignore_ascii_case(name)
}

/// Compares names as the lists do.
pub(super) fn same_name(listed: &str, name: &str) -> bool {
    same(listed, name)
}

/// Hidden paths below the user's home. A `*` at the end matches any characters.
const HIDDEN: [&str; 58] = [
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".netrc",
    ".authinfo*",
    ".pypirc",
    ".git-credentials",
    ".vault-token",
    ".terraform.d",
    ".pgpass",
    ".my.cnf",
    ".password-store",
    ".claude*",
    ".codex",
    ".gemini",
    ".thunderbird",
    ".config/gcloud",
    ".config/gh",
    ".config/glab-cli",
    ".config/hub",
    ".config/op",
    ".config/rclone",
    ".config/doctl",
    ".config/containers",
    ".config/goose",
    ".cargo/credentials*",
    ".local/share/keyrings",
    ".local/share/opencode",
    ".m2/settings.xml",
    ".gradle/gradle.properties",
    // These contain credentials among other settings.
    ".npmrc",
    ".docker/config.json",
    // Browser profiles.
    ".mozilla",
    ".librewolf",
    ".config/google-chrome*",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge*",
    ".config/vivaldi*",
    ".config/opera*",
    ".var/app/org.mozilla.firefox",
    "snap/firefox",
    "snap/chromium",
    "Library/Keychains",
    "Library/Cookies",
    "Library/Application Support/Google",
    "Library/Application Support/Firefox",
    // Shell histories.
    ".bash_history",
    ".zsh_history",
    ".zsh_sessions",
    ".histfile",
    ".history",
    ".python_history",
    ".psql_history",
    ".mysql_history",
    ".local/share/fish",
];

const HIDDEN_OF_SYSTEM: [&str; 4] = ["/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-"];

/// Lists the servers that were contacted, but contains no secret.
const SHOWN: &str = ".ssh/known_hosts";

/// Paths that file tools neither read nor write. The default hides nothing. Links are resolved at the first use: a
/// program that only starts needs about a hundred system calls less.
#[derive(Debug, Clone, Default)]
pub struct HiddenPaths(Arc<LazyPaths>);

#[derive(Debug, Default)]
struct LazyPaths {
    /// The user's home, and the folders that hold Skein's own files.
    named: Option<(PathBuf, Vec<PathBuf>)>,
    resolved: OnceLock<ResolvedPaths>,
}

#[derive(Debug, Default)]
struct ResolvedPaths {
    /// The home folder as named and as resolved.
    homes: Vec<PathBuf>,
    /// Hidden folders and files, as named and as resolved.
    paths: Vec<PathBuf>,
}

impl ResolvedPaths {
    fn find(home: &Path, folders: &[PathBuf]) -> Self {
        let mut hidden = Self::default();
        if home.is_absolute() {
            hidden.homes.push(home.to_owned());
            hidden.homes.extend(home.canonicalize().ok().filter(|real| real != home));
        }
        // A hidden folder may be a link to its real location.
        let listed = HIDDEN.iter().filter(|name| !name.ends_with('*')).map(|name| home.join(name));
        hidden.paths.extend(listed.filter(|path| path.is_symlink()).filter_map(|path| path.canonicalize().ok()));
        for folder in folders.iter().cloned().chain(HIDDEN_OF_SYSTEM.map(PathBuf::from)) {
            hidden.paths.extend(folder.canonicalize().ok().filter(|real| *real != folder));
            hidden.paths.extend(Some(folder).filter(|folder| folder.is_absolute()));
        }
        hidden
    }
}

impl HiddenPaths {
    /// `home` is the user's home; Skein keeps its config, data, state and cache in `folders`.
    pub fn new(home: &Path, folders: impl IntoIterator<Item = PathBuf>) -> Self {
        let named = Some((home.to_owned(), folders.into_iter().collect()));
        Self(Arc::new(LazyPaths { named, resolved: OnceLock::new() }))
    }

    fn resolve(&self) -> &ResolvedPaths {
        let LazyPaths { named, resolved } = &*self.0;
        resolved.get_or_init(|| {
            named.as_ref().map_or_else(ResolvedPaths::default, |(home, folders)| ResolvedPaths::find(home, folders))
        })
    }

    /// Returns all hidden folders and files that exist, resolved.
    pub(super) fn existing(&self) -> Vec<PathBuf> {
        let ResolvedPaths { homes, paths } = self.resolve();
        let in_homes = homes.iter().flat_map(|home| list_hidden(home));
        let found = paths.iter().cloned().chain(in_homes);
        let mut resolved: Vec<PathBuf> = found.filter_map(|path| path.canonicalize().ok()).collect();
        resolved.sort();
        resolved.dedup();
        resolved
    }

    /// Returns the hidden folders and files of another user's home that exist, resolved.
    pub(super) fn existing_in(home: &Path) -> Vec<PathBuf> {
        list_hidden(home).into_iter().filter_map(|path| path.canonicalize().ok()).collect()
    }

    /// Returns the hidden folder or file that equals or contains `path`, which must be resolved. `None` if it is not
    /// hidden.
    pub fn covering(&self, path: &Path) -> Option<PathBuf> {
        let ResolvedPaths { homes, paths } = self.resolve();
        let in_home = homes.iter().find_map(|home| {
            let below = path.strip_prefix(home).ok()?;
            if below == Path::new(SHOWN) {
                return None;
            }
            let below: Vec<_> = names(below).collect();
            let listed = HIDDEN.iter().find(|listed| begins_with(&below, listed))?;
            Some(home.join(below[..listed.split('/').count()].join("/")))
        });
        in_home.or_else(|| paths.iter().find(|hidden| path.starts_with(hidden)).cloned())
    }
}

/// Returns the hidden folders and files in a home that exist, as they are named.
fn list_hidden(home: &Path) -> Vec<PathBuf> {
    let parents: BTreeSet<&str> = HIDDEN.iter().map(|listed| split_name(listed).0).collect();
    let mut found = Vec::new();
    for parent in parents {
        let Ok(entries) = std::fs::read_dir(home.join(parent)) else { continue };
        // A home may have hundreds of entries.
        let listed: Vec<&str> = HIDDEN
            .iter()
            .map(|listed| split_name(listed))
            .filter(|(of, _)| *of == parent)
            .map(|(_, name)| name)
            .collect();
        let is_hidden =
            |name: &OsStr| name.to_str().is_some_and(|name| listed.iter().any(|listed| matches_name(listed, name)));
        found.extend(entries.flatten().filter(|entry| is_hidden(&entry.file_name())).map(|entry| entry.path()));
    }
    found
}

/// Returns the folder and the name of a listed path. The folder is empty for a path directly in the home.
fn split_name(listed: &str) -> (&str, &str) {
    listed.rsplit_once('/').unwrap_or(("", listed))
}

/// Returns true if the path with these names below the home is in a hidden path or contains one.
pub(super) fn overlaps_hidden_name(names: &[&str]) -> bool {
    HIDDEN.iter().any(|listed| {
        let contains = |listed: &str| {
            let listed: Vec<_> = listed.split('/').collect();
            listed.len() >= names.len() && names.iter().zip(&listed).all(|(name, listed)| same(listed, name))
        };
        begins_with(names, listed) || contains(listed)
    })
}

/// Returns true for a hidden path outside the home.
pub(super) fn is_hidden_of_system(path: &Path) -> bool {
    HIDDEN_OF_SYSTEM.iter().any(|hidden| path.starts_with(hidden) || Path::new(hidden).starts_with(path))
}

fn begins_with(names: &[&str], listed: &str) -> bool {
    let listed: Vec<_> = listed.split('/').collect();
    names.len() >= listed.len() && listed.iter().zip(names).all(|(listed, name)| matches_name(listed, name))
}

/// Compares one name with a listed one, which may end with `*`.
fn matches_name(listed: &str, name: &str) -> bool {
    match listed.strip_suffix('*') {
        Some(beginning) => name.get(..beginning.len()).is_some_and(|start| same(beginning, start)),
        None => same(listed, name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_protected(path: &str) -> bool {
        find_protected(Path::new(path), Some(Path::new("/srv/project"))).is_some()
    }

    #[test]
    fn protected_paths_are_found_at_any_depth_and_in_any_case() {
        for path in [
            ".git/config",
            ".GIT/Config",
            ".git/hooks/pre-commit",
            ".git/config.worktree",
            ".git/commondir",
            ".git/rebase-merge/git-rebase-todo",
            ".git/sequencer/opts",
            ".git",
            "vendor/lib/.git/hooks/post-checkout",
            ".git/modules/lib/config",
            ".git/modules/deep/lib/hooks/x",
            ".git/worktrees/w/config.worktree",
            ".skein/config.yaml",
            "sub/.mcp.json",
            ".agents/skills/x/SKILL.md",
            ".claude/settings.json",
            ".codex/config.toml",
            ".gemini/settings.json",
            ".vscode/tasks.json",
            ".zed/tasks.json",
            ".idea/workspace.xml",
            ".husky/pre-commit",
            ".envrc",
            "AGENTS.md",
            "docs/claude.md",
            ".github/workflows/ci.yml",
            ".github",
        ] {
            assert!(is_protected(&format!("/srv/project/{path}")), "{path}");
            assert!(find_protected_name(path).is_some(), "{path}");
        }
        for path in ["src/main.rs", ".git/HEAD", ".git/refs/heads/main", ".gitignore", ".github/CODEOWNERS", "agents"] {
            assert!(!is_protected(&format!("/srv/project/{path}")), "{path}");
        }
    }

    #[test]
    fn the_examples_are_protected() {
        for path in PROTECTED_EXAMPLES {
            assert!(find_protected_name(path).is_some(), "{path}");
        }
    }

    #[test]
    fn folders_above_the_root_do_not_count_except_for_git() {
        let below = |path: &str, root: &str| find_protected(Path::new(path), Some(Path::new(root))).is_some();
        assert!(!below("/srv/.claude/worktrees/a/src/x.rs", "/srv/.claude/worktrees/a"));
        assert!(below("/srv/.skein/config.yaml", "/srv/.skein"));
        assert!(below("/srv/.git/hooks/x", "/srv/.git/hooks"));
    }

    #[test]
    fn hidden_paths_are_those_of_the_home_and_of_skein() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path().canonicalize().expect("a folder");
        std::fs::create_dir(home.join("kept")).expect("created");
        std::os::unix::fs::symlink(home.join("kept"), home.join(".gnupg")).expect("linked");
        let hidden = HiddenPaths::new(&home, [home.join("data/skein")]);
        for path in [
            ".ssh/id_ed25519",
            ".ssh",
            ".SSH/id_rsa",
            ".aws/credentials",
            ".authinfo.gpg",
            ".claude.json",
            ".claude/projects/x",
            ".config/gh/hosts.yml",
            ".cargo/credentials.toml",
            ".bash_history",
            "kept/private.key",
            "data/skein/sessions.db",
        ] {
            assert!(hidden.covering(&home.join(path)).is_some(), "{path}");
        }
        for path in [".ssh/known_hosts", ".config/other", ".cargo/config.toml", "data", "project/.ssh/x", "src"] {
            assert_eq!(hidden.covering(&home.join(path)), None, "{path}");
        }
        assert!(hidden.covering(Path::new("/etc/shadow")).is_some());
        assert_eq!(HiddenPaths::default().covering(&home.join(".ssh/id_rsa")), None);
    }
}
