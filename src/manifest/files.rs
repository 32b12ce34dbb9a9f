//! Finds and reads manifest files under size limits: compiled in, in a folder, or in the snapshot of a project. Also
//! reads the prompts and examples that they name.
//!
//! Invariant: a project is read once, as a snapshot; the files that were hashed for its trust are the files that are
//! used.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Component, Path, PathBuf};

use super::builtin;
use crate::diagnostic::{Diagnostic, SourceLocation};

/// The size limit of a manifest, which usually has a few kilobytes.
const MAX_FILE: u64 = 1024 * 1024;
/// The size limit of a file that a manifest names. A prompt is part of every request.
const MAX_LINKED: u64 = 256 * 1024;
/// The maximum depth of folders, enough for any real folder.
const MAX_DEPTH: usize = 16;

/// The files of one layer.
#[derive(Debug, Clone)]
pub enum Root {
    Builtin,
    /// A folder or a single file on disk. `shown` is the prefix of its file names in messages.
    Disk {
        path: PathBuf,
        shown: String,
    },
    /// A folder on disk in which one file has another text, which is not saved. `file` is relative to the folder.
    Draft {
        path: PathBuf,
        shown: String,
        file: PathBuf,
        text: String,
    },
    /// A project's `.skein/` and `.mcp.json` at the time they were hashed.
    Snapshot {
        files: BTreeMap<PathBuf, Vec<u8>>,
        shown: String,
    },
}

/// A manifest file with its text, or the error from reading it.
#[derive(Debug)]
pub struct ManifestFile {
    /// The name shown to users.
    pub file: String,
    /// Relative to the root.
    pub path: PathBuf,
    pub text: Result<String, Box<Diagnostic>>,
}

impl Root {
    /// Returns every manifest and config file below the root, sorted by path.
    pub fn manifests(&self) -> Vec<ManifestFile> {
        match self {
            Root::Builtin => builtin::FILES
                .iter()
                .filter(|(path, _)| is_manifest(Path::new(path)))
                .map(|(path, text)| ManifestFile {
                    file: format!("builtin:{path}"),
                    path: PathBuf::from(path),
                    text: Ok((*text).to_owned()),
                })
                .collect(),
            Root::Snapshot { files, shown } => files
                .iter()
                .filter(|(path, _)| is_manifest(path))
                .map(|(path, bytes)| {
                    let file = show(shown, path);
                    let text = if bytes.len() as u64 > MAX_FILE {
                        Err(too_large(&file, bytes.len() as u64))
                    } else {
                        text_of(bytes.clone()).ok_or_else(|| not_text(&file))
                    };
                    ManifestFile { file, path: path.clone(), text }
                })
                .collect(),
            Root::Draft { path, shown, file, text } => {
                let disk = Root::Disk { path: path.clone(), shown: shown.clone() };
                let mut found = if path.is_dir() { disk.manifests() } else { Vec::new() };
                found.retain(|found| found.path != *file);
                if is_manifest(file) {
                    let name = show(shown, file);
                    let size = text.len() as u64;
                    let text = if size > MAX_FILE { Err(too_large(&name, size)) } else { Ok(text.clone()) };
                    found.push(ManifestFile { file: name, path: file.clone(), text });
                }
                found.sort_by(|a, b| a.path.cmp(&b.path));
                found
            }
            Root::Disk { path, shown } => {
                let mut found = Vec::new();
                walk(path, &mut |entry| match entry {
                    // A file that is the root itself is read regardless of its extension.
                    Ok(file) if is_manifest(&file) || file == *path => {
                        let below = file.strip_prefix(path).unwrap_or(&file).to_owned();
                        let name = show(shown, &below);
                        let relative = if below == Path::new("") { file_name(&file) } else { below };
                        let text = read_text(&file, &name);
                        found.push(ManifestFile { file: name, path: relative, text });
                    }
                    Ok(_) => {}
                    Err(WalkError { path: file, problem, help }) => {
                        let relative = file.strip_prefix(path).unwrap_or(&file).to_owned();
                        let name = show(shown, &relative);
                        let text = Err(Box::new(Diagnostic::error("E001", SourceLocation::file(&name), problem, help)));
                        found.push(ManifestFile { file: name, path: relative, text });
                    }
                });
                found.sort_by(|a, b| a.path.cmp(&b.path));
                found
            }
        }
    }

    /// Reads a text file that `manifest` names: a prompt or a list of examples. `name` is relative to the manifest.
    ///
    /// Returns an error if the file is missing, unreadable, too large or outside the files of this root.
    pub fn read_linked_file(&self, manifest: &Path, name: &str) -> Result<LinkedFile, LinkedFileError> {
        let from = manifest.parent().unwrap_or(Path::new(""));
        match self {
            Root::Builtin => {
                let path = normalise(&from.join(name)).ok_or(LinkedFileError::NotBuiltin)?;
                let file = builtin::FILES.iter().find(|(known, _)| Path::new(known) == path);
                let (name, text) = file.ok_or(LinkedFileError::NotBuiltin)?;
                Ok(LinkedFile { file: format!("builtin:{name}"), text: (*text).to_owned() })
            }
            Root::Snapshot { files, shown } => {
                let path = normalise(&from.join(name))
                    .filter(|path| files.contains_key(path) || path.starts_with(".skein"))
                    .ok_or(LinkedFileError::OutsideProject)?;
                let file = show(shown, &path);
                let bytes = files.get(&path).ok_or_else(|| LinkedFileError::Missing(file.clone()))?;
                if bytes.len() as u64 > MAX_LINKED {
                    return Err(LinkedFileError::TooLarge(bytes.len() as u64));
                }
                let text = text_of(bytes.clone()).ok_or(LinkedFileError::NotText)?;
                Ok(LinkedFile { file, text })
            }
            Root::Draft { path, shown, file, text } => {
                if normalise(&from.join(name)).is_none_or(|linked| linked != *file) {
                    return Root::Disk { path: path.clone(), shown: shown.clone() }.read_linked_file(manifest, name);
                }
                if text.len() as u64 > MAX_LINKED {
                    return Err(LinkedFileError::TooLarge(text.len() as u64));
                }
                Ok(LinkedFile { file: show(shown, file), text: text.clone() })
            }
            Root::Disk { path, shown } => {
                let folder = |root: &Path| {
                    if path.is_file() { root.parent().unwrap_or(root).to_owned() } else { root.to_owned() }
                };
                let path = folder(path).join(from).join(name);
                let file = normalise(&folder(Path::new(shown)).join(from).join(name))
                    .map_or_else(|| path.display().to_string(), |path| path.display().to_string());
                let text = read_capped(&path, MAX_LINKED).map_err(|error| match error {
                    ReadError::TooLarge(size) => LinkedFileError::TooLarge(size),
                    ReadError::NotText => LinkedFileError::NotText,
                    ReadError::Io(error) if error.kind() == ErrorKind::NotFound => {
                        LinkedFileError::Missing(file.clone())
                    }
                    ReadError::Io(error) => LinkedFileError::Io(error),
                })?;
                Ok(LinkedFile { file, text })
            }
        }
    }
}

/// A text file that a manifest names, with its path as people see it.
#[derive(Debug)]
pub struct LinkedFile {
    pub file: String,
    pub text: String,
}

/// The reason why a file that a manifest names cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LinkedFileError {
    #[error("there is no such built-in file")]
    NotBuiltin,
    #[error("a file that a project names must be inside its .skein folder, which its trust covers")]
    OutsideProject,
    #[error("there is no file {0}")]
    Missing(String),
    #[error("it has {0} bytes; the limit is {MAX_LINKED}")]
    TooLarge(u64),
    #[error("it is not UTF-8 text")]
    NotText,
    #[error("{0}")]
    Io(#[source] std::io::Error),
}

/// Returns true if a folder of settings does not exist. False if that is unknown, or if it or one of its parents is a
/// link that leads to nothing: its settings may deny calls, so reading it must fail.
pub fn is_missing(folder: &Path) -> bool {
    for path in folder.ancestors() {
        match path.symlink_metadata() {
            Ok(_) => return path != folder && path.exists(),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(_) => return false,
        }
    }
    true
}

/// A path that [`walk`] cannot read.
struct WalkError {
    path: PathBuf,
    problem: String,
    help: &'static str,
}

impl WalkError {
    fn new(path: &Path, problem: impl Into<String>) -> Self {
        Self { path: path.to_owned(), problem: problem.into(), help: "remove the link or make the file readable" }
    }
}

/// Visits the regular files below a folder, or the file itself. Follows links and reports cycles.
fn walk(root: &Path, visit: &mut dyn FnMut(Result<PathBuf, WalkError>)) {
    walk_into(root, 0, &mut HashSet::new(), visit);
}

fn walk_into(
    path: &Path,
    depth: usize,
    above: &mut HashSet<PathBuf>,
    visit: &mut dyn FnMut(Result<PathBuf, WalkError>),
) {
    let kind = match fs::metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return visit(Err(WalkError::new(path, "the link leads to nothing")));
        }
        Err(error) => return visit(Err(WalkError::new(path, format!("cannot be read: {error}")))),
    };
    if kind.is_file() {
        return visit(Ok(path.to_owned()));
    }
    if !kind.is_dir() {
        // Reading a pipe or a device could block forever.
        return visit(Err(WalkError::new(path, "is neither a file nor a folder")));
    }
    // The rules of a config in this folder would have no effect.
    if depth == 1 && is_manifest(path) && path.file_stem().is_some_and(|stem| stem == "config") {
        let help = "write the settings to a file of this name, or rename the folder";
        return visit(Err(WalkError { help, ..WalkError::new(path, "is a folder, not a file with settings") }));
    }
    let real = match fs::canonicalize(path) {
        Ok(real) => real,
        Err(error) => return visit(Err(WalkError::new(path, format!("cannot be read: {error}")))),
    };
    if depth > MAX_DEPTH || !above.insert(real.clone()) {
        return visit(Err(WalkError::new(path, "the folder links back to one of its parents")));
    }
    match fs::read_dir(path) {
        Ok(entries) => {
            let mut entries: Vec<_> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
            entries.sort();
            for entry in entries {
                let name = entry.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
                // The folder also contains skills and recipes, which may include any YAML.
                let knowledge = depth == 0 && ["skills", "recipes"].contains(&&*name);
                if !name.starts_with('.') && !knowledge {
                    walk_into(&entry, depth + 1, above, visit);
                }
            }
        }
        Err(error) => visit(Err(WalkError::new(path, format!("cannot be read: {error}")))),
    }
    above.remove(&real);
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|known| extension == *known))
        && !path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(".schema.json"))
}

fn file_name(path: &Path) -> PathBuf {
    path.file_name().map(PathBuf::from).unwrap_or_default()
}

fn show(shown: &str, path: &Path) -> String {
    Path::new(shown).join(path).display().to_string().trim_end_matches('/').to_owned()
}

/// Resolves `.` and `..` without accessing the disk; `None` if the path would leave the root.
fn normalise(path: &Path) -> Option<PathBuf> {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => clean.push(part),
            Component::CurDir => {}
            Component::ParentDir => {
                if !clean.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => clean.push(component),
        }
    }
    Some(clean)
}

/// Decodes UTF-8 and removes a byte order mark. `None` if the bytes are not UTF-8.
fn text_of(bytes: Vec<u8>) -> Option<String> {
    let text = String::from_utf8(bytes).ok()?;
    Some(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

enum ReadError {
    TooLarge(u64),
    NotText,
    Io(std::io::Error),
}

fn read_capped(path: &Path, cap: u64) -> Result<String, ReadError> {
    let metadata = fs::metadata(path).map_err(ReadError::Io)?;
    if metadata.is_dir() {
        return Err(ReadError::Io(std::io::Error::other("it is a folder")));
    }
    if !metadata.is_file() {
        // Opening a pipe, or reading a device, could block forever.
        return Err(ReadError::Io(std::io::Error::other("it is no regular file")));
    }
    let file = fs::File::open(path).map_err(ReadError::Io)?;
    if metadata.len() > cap {
        return Err(ReadError::TooLarge(metadata.len()));
    }
    let mut bytes = Vec::new();
    file.take(cap + 1).read_to_end(&mut bytes).map_err(ReadError::Io)?;
    if bytes.len() as u64 > cap {
        return Err(ReadError::TooLarge(bytes.len() as u64));
    }
    text_of(bytes).ok_or(ReadError::NotText)
}

/// Reads a file that the user named.
pub fn read_named(path: &Path, shown: &str) -> Result<String, Box<Diagnostic>> {
    let unusable = |problem: String, help: &str| {
        Err(Box::new(Diagnostic::error("E001", SourceLocation::file(shown), problem, help)))
    };
    match fs::metadata(path) {
        // Reading a pipe or a device could block forever.
        Ok(metadata) if !metadata.is_file() => unusable("it is no regular file".to_owned(), "name the file itself"),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            unusable(format!("cannot be read: {error}"), "check the path")
        }
        Ok(_) | Err(_) => read_text(path, shown),
    }
}

fn read_text(path: &Path, shown: &str) -> Result<String, Box<Diagnostic>> {
    read_capped(path, MAX_FILE).map_err(|error| match error {
        ReadError::TooLarge(size) => too_large(shown, size),
        ReadError::NotText => not_text(shown),
        ReadError::Io(error) => Box::new(Diagnostic::error(
            "E001",
            SourceLocation::file(shown),
            format!("cannot be read: {error}"),
            "make the file readable or remove it",
        )),
    })
}

fn too_large(shown: &str, size: u64) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(
        "E002",
        SourceLocation::file(shown),
        format!("the file has {size} bytes; a manifest may have {MAX_FILE}"),
        "keep one manifest per file, and data out of manifest folders",
    ))
}

fn not_text(shown: &str) -> Box<Diagnostic> {
    Box::new(Diagnostic::error("E001", SourceLocation::file(shown), "the file is not UTF-8 text", "save it as UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_that_is_a_pipe_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("prompt.md");
        crate::test_fifo::make_fifo(&pipe);
        fs::create_dir(folder.path().join("folder.md")).unwrap();
        let root = Root::Disk { path: folder.path().to_owned(), shown: "manifests".to_owned() };
        let problem = |name: &str| root.read_linked_file(Path::new("agent.yaml"), name).unwrap_err().to_string();
        assert_eq!(problem("prompt.md"), "it is no regular file");
        assert_eq!(problem("folder.md"), "it is a folder");
        assert_eq!(problem("missing.md"), "there is no file manifests/missing.md");
    }
}
