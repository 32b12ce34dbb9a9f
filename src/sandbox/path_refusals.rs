//! Finds the paths that a sandbox probably refused, in the error output of a command.
//!
//! Invariant: the kernel reports no path, so a path is named only if it appears next to an error text and the profile
//! explains that error.

use std::path::{Component, Path, PathBuf};

use super::paths::{PROTECTED, find_protected};

/// Refusals of one command that are reported.
const MAX_REFUSALS: usize = 5;
/// Output is read from the end, because programs report why they fail last.
const MAX_LINES: usize = 400;
/// The kernel refuses changes here with the same error, with or without a sandbox.
const KERNEL_FOLDERS: [&str; 3] = ["/proc", "/sys", "/dev"];

/// A path that a sandbox probably refused to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathRefusal {
    /// The path as people write it: below the home with `~`.
    pub path: String,
    pub remedy: RefusalRemedy,
}

/// What would allow a refused path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusalRemedy {
    /// An entry of `write`.
    Write(String),
    /// An entry of `read`.
    Read(String),
    /// The path is protected, so no profile allows it.
    Protected,
}

impl std::fmt::Display for PathRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "probably refused by the sandbox: {}; ", self.path)?;
        match &self.remedy {
            RefusalRemedy::Write(entry) => write!(f, "allowed by `sandbox: {{write: [\"{entry}\"]}}` in your config"),
            RefusalRemedy::Read(entry) => write!(f, "allowed by `sandbox: {{read: [\"{entry}\"]}}` in your config"),
            RefusalRemedy::Protected => f.write_str("it is a protected path, allowed only with `unsandboxed`"),
        }
    }
}

/// What a sandbox shows and lets a command write. All paths are resolved.
#[derive(Debug)]
pub(super) struct PathRules {
    pub(super) home: PathBuf,
    /// `None`: everything.
    pub(super) writable: Option<Vec<PathBuf>>,
    pub(super) hidden: Vec<PathBuf>,
    /// `None`: everything but hidden paths.
    pub(super) shown: Option<Vec<PathBuf>>,
    /// Mount points below writable folders, which cannot be moved.
    pub(super) mounted: Vec<PathBuf>,
    /// Mounts enforce the profile. They report other errors than Landlock.
    pub(super) has_mounts: bool,
}

/// The errors of system calls that a sandbox causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ErrorKind {
    ReadOnly,
    Denied,
    Busy,
    Missing,
}

/// The texts of the errors, in lower case.
const ERROR_TEXTS: [(&str, ErrorKind); 8] = [
    ("read-only file system", ErrorKind::ReadOnly),
    ("erofs", ErrorKind::ReadOnly),
    ("permission denied", ErrorKind::Denied),
    ("eacces", ErrorKind::Denied),
    ("device or resource busy", ErrorKind::Busy),
    ("ebusy", ErrorKind::Busy),
    ("no such file or directory", ErrorKind::Missing),
    ("enoent", ErrorKind::Missing),
];

impl PathRules {
    /// Returns the paths in the error output that the sandbox probably refused. `cwd` is the folder of the command.
    pub(super) fn find(&self, errors: &str, cwd: &Path) -> Vec<PathRefusal> {
        let mut found: Vec<PathRefusal> = Vec::new();
        let lines: Vec<&str> = errors.lines().rev().take(MAX_LINES).collect();
        for line in lines.into_iter().rev() {
            let lower = line.to_lowercase();
            let Some((_, kind)) = ERROR_TEXTS.iter().find(|(text, _)| lower.contains(text)) else { continue };
            let refusals = find_paths(line).filter_map(|name| self.explain(*kind, &self.resolve(name, cwd)?));
            for refusal in refusals {
                if found.len() < MAX_REFUSALS && !found.contains(&refusal) {
                    found.push(refusal);
                }
            }
        }
        found
    }

    /// Returns the path that a word of an error names. `None` if the word cannot be a path.
    fn resolve(&self, name: &str, cwd: &Path) -> Option<PathBuf> {
        let path = match name.strip_prefix("~/") {
            Some(below) => self.home.join(below),
            None => cwd.join(name),
        };
        let mut plain = PathBuf::new();
        for part in path.components() {
            match part {
                Component::ParentDir => _ = plain.pop(),
                Component::CurDir => {}
                Component::Prefix(_) | Component::RootDir | Component::Normal(_) => plain.push(part),
            }
        }
        // The file may be missing; its folder shows where it would be.
        let (parent, name) = (plain.parent()?, plain.file_name()?);
        let resolved = plain.canonicalize().or_else(|_| parent.canonicalize().map(|parent| parent.join(name)));
        Some(resolved.unwrap_or(plain))
    }

    /// Returns why the sandbox would cause this error for this path. `None` if it would not.
    fn explain(&self, kind: ErrorKind, path: &Path) -> Option<PathRefusal> {
        if KERNEL_FOLDERS.iter().any(|folder| path.starts_with(folder)) {
            return None;
        }
        let is_hidden = self.hidden.iter().any(|hidden| path.starts_with(hidden));
        let is_shown = self.shown.as_ref().is_none_or(|shown| shown.iter().any(|folder| path.starts_with(folder)));
        let read = || self.refusal(path, RefusalRemedy::Read(self.text(path)));
        match kind {
            ErrorKind::Missing if is_hidden || !is_shown => path.symlink_metadata().is_ok().then(read),
            ErrorKind::Missing => None,
            ErrorKind::Denied if is_hidden => path.symlink_metadata().is_ok().then(read),
            // With mounts, a refused change reports a read-only file system, so this error has another reason.
            ErrorKind::Denied if self.has_mounts => None,
            ErrorKind::Denied | ErrorKind::ReadOnly if self.is_protected(path) => {
                Some(self.refusal(path, RefusalRemedy::Protected))
            }
            ErrorKind::Denied | ErrorKind::ReadOnly if !self.is_writable(path) => {
                let folder = if path.is_dir() { path } else { path.parent()? };
                Some(self.refusal(path, RefusalRemedy::Write(self.text(folder))))
            }
            ErrorKind::Denied | ErrorKind::ReadOnly => None,
            ErrorKind::Busy => {
                let is_mounted = self.mounted.iter().any(|mounted| mounted.starts_with(path));
                (self.is_writable(path) && is_mounted).then(|| self.refusal(path, RefusalRemedy::Protected))
            }
        }
    }

    fn is_writable(&self, path: &Path) -> bool {
        self.writable.as_ref().is_none_or(|folders| folders.iter().any(|folder| path.starts_with(folder)))
    }

    /// Returns whether the sandbox protects the path. File tools protect some more.
    fn is_protected(&self, path: &Path) -> bool {
        let root = self.writable.iter().flatten().find(|folder| path.starts_with(folder));
        let Some(root) = root else { return false };
        find_protected(path, Some(root)).is_some_and(|(name, _)| PROTECTED.iter().any(|(listed, _)| *listed == name))
    }

    fn refusal(&self, path: &Path, remedy: RefusalRemedy) -> PathRefusal {
        PathRefusal { path: self.text(path), remedy }
    }

    fn text(&self, path: &Path) -> String {
        match path.strip_prefix(&self.home) {
            Ok(below) if !below.as_os_str().is_empty() => format!("~/{}", below.display()),
            _ => path.display().to_string(),
        }
    }
}

/// Returns the parts of a line that may be paths: quoted text, and words that contain a slash.
fn find_paths(line: &str) -> impl Iterator<Item = &str> {
    const QUOTES: [char; 5] = ['\'', '"', '`', '‘', '’'];
    let quoted = line.split(QUOTES).skip(1).step_by(2).filter(|text| !text.is_empty());
    let is_separator = |c: char| c.is_whitespace() || QUOTES.contains(&c) || "()[]{}<>,;:=|".contains(c);
    let words = line.split(is_separator).filter(|word| word.contains('/'));
    quoted.chain(words).map(|name| name.trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place {
        folder: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            let place = Self { folder: tempfile::tempdir().unwrap() };
            for folder in ["home/.ssh", "home/project/.git/hooks", "home/project/src", "data"] {
                std::fs::create_dir_all(place.path(folder)).unwrap();
            }
            for file in ["home/.ssh/id", "home/project/.git/config", "data/file"] {
                std::fs::write(place.path(file), "").unwrap();
            }
            place
        }

        fn path(&self, path: &str) -> PathBuf {
            self.folder.path().canonicalize().unwrap().join(path)
        }

        fn rules(&self) -> PathRules {
            PathRules {
                home: self.path("home"),
                writable: Some(vec![self.path("home/project")]),
                hidden: vec![self.path("home/.ssh")],
                shown: None,
                mounted: vec![self.path("home/project/.git"), self.path("home/project/.git/config")],
                has_mounts: true,
            }
        }

        fn find(&self, rules: &PathRules, errors: &str) -> Vec<String> {
            let found = rules.find(errors, &self.path("home/project"));
            let root = self.folder.path().canonicalize().unwrap().display().to_string();
            found.iter().map(|refusal| refusal.to_string().replace(&root, "")).collect()
        }
    }

    #[test]
    fn errors_of_many_programs_name_a_path_and_a_remedy() {
        let place = Place::new();
        let data = place.path("data").display().to_string();
        let home = place.path("home").display().to_string();
        let write =
            "probably refused by the sandbox: /data/new; allowed by `sandbox: {write: [\"/data\"]}` in your config";
        let read =
            "probably refused by the sandbox: ~/.ssh/id; allowed by `sandbox: {read: [\"~/.ssh/id\"]}` in your config";
        let protected = "probably refused by the sandbox: ~/project/.git/config; it is a protected path, allowed only \
                         with `unsandboxed`";
        for (errors, expected) in [
            (format!("touch: cannot touch '{data}/new': Read-only file system"), write),
            (format!("bash: line 1: {data}/new: Read-only file system"), write),
            (format!("OSError: [Errno 30] Read-only file system: '{data}/new'"), write),
            (format!("open {data}/new: read-only file system"), write),
            (format!("Error: EROFS: read-only file system, open '{data}/new'"), write),
            ("mkdir: cannot create directory ‘../../data/new’: Read-only file system".to_owned(), write),
            (format!("cat: {home}/.ssh/id: No such file or directory"), read),
            (format!("cat: {home}/.ssh/id: Permission denied"), read),
            ("error: could not lock config file .git/config: Read-only file system".to_owned(), protected),
            ("mv: cannot move '.git/config' to 'x': Device or resource busy".to_owned(), protected),
        ] {
            assert_eq!(place.find(&place.rules(), &errors), [expected], "{errors}");
        }
    }

    #[test]
    fn without_a_match_there_is_no_claim() {
        let place = Place::new();
        let home = place.path("home").display().to_string();
        for errors in [
            "ls: cannot access 'missing': No such file or directory".to_owned(),
            "bash: ./src/run: Permission denied".to_owned(),
            "cat: /root/secret: Permission denied".to_owned(),
            "umount: /data: Device or resource busy".to_owned(),
            format!("cat: {home}/.ssh/other: No such file or directory"),
            "bash: /proc/sys/kernel/x: Read-only file system".to_owned(),
            "touch: cannot touch 'src/x': Read-only file system".to_owned(),
            "all is well in /data".to_owned(),
        ] {
            assert_eq!(place.find(&place.rules(), &errors), [""; 0], "{errors}");
        }
    }

    #[test]
    fn landlock_reports_denied_changes() {
        let place = Place::new();
        let rules = PathRules { has_mounts: false, ..place.rules() };
        let errors = format!("touch: cannot touch '{}': Permission denied", place.path("data/file").display());
        let found = place.find(&rules, &errors);
        assert!(found[0].contains("/data/file; allowed by `sandbox: {write: [\"/data\"]}`"), "{found:?}");
    }

    #[test]
    fn what_is_not_shown_is_missing() {
        let place = Place::new();
        let rules = PathRules { shown: Some(vec![place.path("home/project")]), ..place.rules() };
        let errors = format!("cat: {}: No such file or directory", place.path("data/file").display());
        let found = place.find(&rules, &errors);
        assert!(found[0].contains("allowed by `sandbox: {read: [\"/data/file\"]}`"), "{found:?}");
    }
}
