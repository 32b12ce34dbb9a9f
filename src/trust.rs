//! Decides whether a project's `.skein/` and `.mcp.json` may be used. A file in a cloned repository must not start
//! programs unasked. The user approves it once, and the approval is bound to a hash of the content.
//!
//! Invariant: the snapshot that is hashed is the snapshot that is used; nothing is read twice.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Limits for all settings of a project; anything larger is not configuration.
const MAX_BYTES: usize = 16 * 1024 * 1024;
const MAX_FILES: usize = 2_000;
/// The newest known form of the trust file. A file without `version` has this form.
const VERSION: u64 = 1;

/// The settings files of a project.
#[derive(Debug, Clone)]
pub struct ProjectFiles {
    /// The folder that contains `.skein/` or `.mcp.json`, with links resolved.
    pub root: PathBuf,
    /// Contents, keyed by path relative to the root.
    pub files: BTreeMap<PathBuf, Vec<u8>>,
    pub hash: String,
}

#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("cannot read {path}: {problem}")]
    Unreadable { path: String, problem: String },
    #[error("{path} holds more than a project's settings may: {MAX_FILES} files, {MAX_BYTES} bytes")]
    TooLarge { path: String },
    #[error("cannot use the trust file {path}: {problem}")]
    Store { path: String, problem: String },
    #[error("the trust file {path} was written by a newer skein (version {found}, this one knows {VERSION})")]
    Newer { path: String, found: u64 },
}

impl ProjectFiles {
    /// Finds the project of `folder`: the nearest ancestor with `.skein/` or `.mcp.json`, within its repository. `None`
    /// if there is none. Fails if the files cannot be read, contain a link or are too large.
    pub fn find(folder: &Path) -> Result<Option<Self>, TrustError> {
        for candidate in folder.ancestors() {
            if candidate.join(".skein").is_dir() || candidate.join(".mcp.json").is_file() {
                return Self::read(candidate).map(Some);
            }
            if candidate.join(".git").exists() {
                return Ok(None);
            }
        }
        Ok(None)
    }

    fn read(root: &Path) -> Result<Self, TrustError> {
        let unreadable = |path: &Path, problem: &dyn std::fmt::Display| TrustError::Unreadable {
            path: path.display().to_string(),
            problem: problem.to_string(),
        };
        let root = fs::canonicalize(root).map_err(|error| unreadable(root, &error))?;
        let mut files = BTreeMap::new();
        let mut size = 0;
        let mut pending = vec![(root.join(".skein"), 0_usize), (root.join(".mcp.json"), 0)];
        while let Some((path, depth)) = pending.pop() {
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            // The target of a link could change without changing the hash.
            if metadata.is_symlink() {
                return Err(unreadable(
                    &path,
                    &"a link in a project's settings is not followed; put the file itself there",
                ));
            }
            if metadata.is_dir() {
                // The rules of a config in this folder would have no effect.
                if is_settings_file(path.strip_prefix(&root).unwrap_or(&path)) {
                    let problem = "it is a folder, not a file with settings; write the settings to a file of this \
                                   name, or rename the folder";
                    return Err(unreadable(&path, &problem));
                }
                if depth > 16 {
                    return Err(unreadable(&path, &"the folders are nested too deep"));
                }
                for entry in fs::read_dir(&path).map_err(|error| unreadable(&path, &error))? {
                    pending.push((entry.map_err(|error| unreadable(&path, &error))?.path(), depth + 1));
                }
            } else if metadata.is_file() {
                if size + usize::try_from(metadata.len()).unwrap_or(usize::MAX) > MAX_BYTES || files.len() == MAX_FILES
                {
                    return Err(TrustError::TooLarge { path: root.display().to_string() });
                }
                let content = fs::read(&path).map_err(|error| unreadable(&path, &error))?;
                size += content.len();
                let relative = path.strip_prefix(&root).unwrap_or(&path).to_owned();
                files.insert(relative, content);
            } else {
                // Reading a pipe or a device could block forever.
                let problem = "it is neither a file nor a folder; put the file itself there, or remove it";
                return Err(unreadable(&path, &problem));
            }
        }
        let hash = hash(&files);
        Ok(Self { root, files, hash })
    }
}

/// Returns whether this path in a project is the place of a file with settings.
fn is_settings_file(path: &Path) -> bool {
    let names = ["config.yaml", "config.yml", "config.json"].map(|name| Path::new(".skein").join(name));
    path == Path::new(".mcp.json") || names.iter().any(|name| name == path)
}

fn hash(files: &BTreeMap<PathBuf, Vec<u8>>) -> String {
    let mut hasher = Sha256::new();
    // Length prefixes ensure that different sets of files never hash alike.
    for (path, content) in files {
        let path = path.as_os_str().as_encoded_bytes();
        hasher.update((path.len() as u64).to_le_bytes());
        hasher.update(path);
        hasher.update((content.len() as u64).to_le_bytes());
        hasher.update(content);
    }
    hex(hasher)
}

/// Returns the hash of one content, to find out later whether it has changed.
pub fn hash_content(content: &[u8]) -> String {
    let mut hasher = Sha256::new();
    hasher.update(content);
    hex(hasher)
}

fn hex(hasher: Sha256) -> String {
    hasher.finalize().iter().fold(String::from("sha256:"), |mut text, byte| {
        _ = write!(text, "{byte:02x}");
        text
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TrustState {
    Trusted,
    /// Trusted before, but the content has changed.
    Changed,
    Unknown,
}

/// The file that records which content of which project is trusted.
#[derive(Debug)]
pub struct TrustStore {
    path: PathBuf,
    entries: Entries,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Entries {
    projects: BTreeMap<String, String>,
    /// The hash of each file when it was trusted, to report changed files. Missing in older entries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    files: BTreeMap<String, BTreeMap<String, String>>,
}

/// The part of a trust file that every version has.
#[derive(Debug, Deserialize)]
struct FileVersion {
    version: Option<u64>,
}

impl Entries {
    /// Fails if the text is not a trust file, or one of a newer version.
    fn parse(path: &Path, text: &str) -> Result<Self, TrustError> {
        let broken = |error: serde_json::Error| TrustError::Store {
            path: path.display().to_string(),
            problem: format!("{error}; remove it to start again"),
        };
        let FileVersion { version } = serde_json::from_str(text).map_err(broken)?;
        match version {
            Some(found) if found > VERSION => Err(TrustError::Newer { path: path.display().to_string(), found }),
            _ => serde_json::from_str(text).map_err(broken),
        }
    }
}

/// How a file has changed since its project was trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileChange {
    Added,
    Changed,
    Removed,
}

impl TrustStore {
    pub fn open(data_folder: &Path) -> Result<Self, TrustError> {
        let path = data_folder.join("trust.json");
        let entries = match fs::read_to_string(&path) {
            Ok(text) => Entries::parse(&path, &text)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Entries::default(),
            Err(error) => {
                return Err(TrustError::Store { path: path.display().to_string(), problem: error.to_string() });
            }
        };
        Ok(Self { path, entries })
    }

    pub fn trust_of(&self, project: &ProjectFiles) -> TrustState {
        match self.entries.projects.get(&key(project)) {
            Some(hash) if *hash == project.hash => TrustState::Trusted,
            Some(_) => TrustState::Changed,
            None => TrustState::Unknown,
        }
    }

    pub fn trust(&mut self, project: &ProjectFiles) -> Result<(), TrustError> {
        self.change(|entries| {
            entries.projects.insert(key(project), project.hash.clone());
            entries.files.insert(key(project), hashes(project));
            true
        })?;
        Ok(())
    }

    /// Returns the files that changed since the project was trusted. Empty if it never was or the entry is older than
    /// file hashes.
    pub fn changes(&self, project: &ProjectFiles) -> Vec<(String, FileChange)> {
        let Some(before) = self.entries.files.get(&key(project)) else { return Vec::new() };
        let now = hashes(project);
        let mut changes: Vec<_> = now
            .iter()
            .filter_map(|(path, hash)| match before.get(path) {
                None => Some((path.clone(), FileChange::Added)),
                Some(known) if known != hash => Some((path.clone(), FileChange::Changed)),
                Some(_) => None,
            })
            .collect();
        let removed = before.keys().filter(|path| !now.contains_key(*path));
        changes.extend(removed.map(|path| (path.clone(), FileChange::Removed)));
        changes.sort_by(|one, other| one.0.cmp(&other.0));
        changes
    }

    /// Withdraws trust. Returns whether the project had an entry.
    pub fn revoke(&mut self, project: &ProjectFiles) -> Result<bool, TrustError> {
        self.change(|entries| {
            entries.files.remove(&key(project));
            entries.projects.remove(&key(project)).is_some()
        })
    }

    /// Changes the entries as they are now: another process may have changed them since they were read. Saves them if
    /// `change` returns true, and returns the same.
    fn change(&mut self, change: impl FnOnce(&mut Entries) -> bool) -> Result<bool, TrustError> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let failed = |error: std::io::Error| TrustError::Store {
            path: self.path.display().to_string(),
            problem: error.to_string(),
        };
        fs::create_dir_all(folder).map_err(failed)?;
        let lock = fs::File::open(folder).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let mut entries = Self::open(folder)?.entries;
        let has_changed = change(&mut entries);
        let save = || -> std::io::Result<()> {
            // Write to a temporary file and rename it, so that another process never reads a partial file.
            let mut file = tempfile::Builder::new().prefix(".trust").tempfile_in(folder)?;
            file.write_all(&serde_json::to_vec_pretty(&entries)?)?;
            file.as_file().sync_all()?;
            file.persist(&self.path)?;
            Ok(())
        };
        if has_changed {
            save().map_err(failed)?;
        }
        self.entries = entries;
        Ok(has_changed)
    }
}

fn hashes(project: &ProjectFiles) -> BTreeMap<String, String> {
    let of = |(path, content): (&PathBuf, &Vec<u8>)| {
        let one = BTreeMap::from([(PathBuf::new(), content.clone())]);
        (path.to_string_lossy().into_owned(), hash(&one))
    };
    project.files.iter().map(of).collect()
}

fn key(project: &ProjectFiles) -> String {
    project.root.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project(manifest: &str) -> (tempfile::TempDir, ProjectFiles) {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join(".skein/agents")).expect("created");
        fs::write(folder.path().join(".skein/agents/a.yaml"), manifest).expect("written");
        let project = ProjectFiles::find(folder.path()).expect("readable").expect("found");
        (folder, project)
    }

    #[test]
    fn trust_ends_when_the_content_changes() {
        let (folder, before) = project("one");
        let data = tempfile::tempdir().expect("a folder");
        let mut store = TrustStore::open(data.path()).expect("opens");
        assert_eq!(store.trust_of(&before), TrustState::Unknown);
        store.trust(&before).expect("saved");
        let store = TrustStore::open(data.path()).expect("opens again");
        assert_eq!(store.trust_of(&before), TrustState::Trusted);
        fs::write(folder.path().join(".skein/agents/a.yaml"), "two").expect("written");
        let after = ProjectFiles::find(folder.path()).expect("readable").expect("found");
        assert_eq!(store.trust_of(&after), TrustState::Changed);
        fs::write(folder.path().join(".mcp.json"), "{}").expect("written");
        let after = ProjectFiles::find(folder.path()).expect("readable").expect("found");
        let changes =
            [(".mcp.json".to_owned(), FileChange::Added), (".skein/agents/a.yaml".to_owned(), FileChange::Changed)];
        assert_eq!(store.changes(&after), changes);
        fs::remove_file(folder.path().join(".skein/agents/a.yaml")).expect("removed");
        let after = ProjectFiles::find(folder.path()).expect("readable").expect("found");
        assert_eq!(store.changes(&after)[1].1, FileChange::Removed);
    }

    #[test]
    fn a_change_keeps_what_another_process_changed() {
        let ((_one, first), (_two, second)) = (project("one"), project("two"));
        let data = tempfile::tempdir().expect("a folder");
        let open = || TrustStore::open(data.path()).expect("opens");
        open().trust(&first).expect("saved");
        let mut asking = open();
        assert!(open().revoke(&first).expect("saved"));
        asking.trust(&second).expect("saved");
        assert_eq!((open().trust_of(&first), open().trust_of(&second)), (TrustState::Unknown, TrustState::Trusted));
        assert!(!open().revoke(&first).expect("nothing to save"));
    }

    #[test]
    fn moving_bytes_between_name_and_content_changes_the_hash() {
        let one = BTreeMap::from([(PathBuf::from("ab"), b"c".to_vec())]);
        let other = BTreeMap::from([(PathBuf::from("a"), b"bc".to_vec())]);
        assert_ne!(hash(&one), hash(&other));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_in_a_project_is_not_followed() {
        let (folder, _) = project("one");
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join(".skein/agents/b.yaml")).expect("linked");
        assert!(ProjectFiles::find(folder.path()).is_err());
    }

    #[test]
    fn settings_of_a_project_that_are_a_folder_are_an_error() {
        for name in [".skein/config.yaml", ".skein/config.json", ".mcp.json"] {
            let (folder, _) = project("one");
            fs::create_dir_all(folder.path().join(name).join("inner")).expect("created");
            let error = ProjectFiles::find(folder.path()).expect_err("it is refused").to_string();
            assert!(error.contains(name) && error.contains("it is a folder") && error.contains("rename"), "{error}");
        }
        let (folder, _) = project("one");
        fs::create_dir_all(folder.path().join(".skein/agents/config.yaml")).expect("created");
        assert!(ProjectFiles::find(folder.path()).is_ok(), "this name means nothing there");
    }

    #[test]
    fn a_pipe_in_the_settings_of_a_project_is_an_error() {
        let (folder, _) = project("one");
        let pipe = folder.path().join(".skein/config.yaml");
        crate::test_fifo::make_fifo(&pipe);
        let error = ProjectFiles::find(folder.path()).expect_err("it is refused").to_string();
        assert!(error.contains("config.yaml") && error.contains("neither a file nor a folder"), "{error}");
    }
}
