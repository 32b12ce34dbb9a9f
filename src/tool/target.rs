//! Resolves the file that a built-in tool works on, and formats it for the user.

use std::path::{Path, PathBuf};

use super::{ClientFolders, is_hidden};
use crate::root_files::{self, ResolveError};

/// Longer paths are shortened in the middle, because the end identifies the file.
const MAX_SHOWN: usize = 120;

/// A resolved path and its original spelling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileTarget {
    /// Without links and `..`.
    pub real: PathBuf,
    /// The same path below a root as the client names the root, which may contain a link.
    pub path: PathBuf,
    /// Relative to the working directory if it is below it.
    pub shown: String,
    /// The spelling in the call, if it differs.
    pub given: Option<String>,
}

impl FileTarget {
    /// Resolves `given`. Fails if that is not possible.
    pub fn resolve(given: &str, cwd: &Path, roots: &[PathBuf]) -> Result<Self, ResolveError> {
        let real = root_files::resolve(&cwd.join(given))?.path;
        Ok(Self::of_resolved(given, real, cwd, roots))
    }

    /// Returns the file at a client that `given` names.
    pub fn at_client(given: &str, folders: &ClientFolders) -> Self {
        let real = folders.resolve(given);
        Self::with_display(given, real.clone(), real, &folders.cwd)
    }

    /// Builds a target from `real`, the resolved path of `given`.
    pub fn of_resolved(given: &str, real: PathBuf, cwd: &Path, roots: &[PathBuf]) -> Self {
        let below = |root: &Path| {
            let rest = real.strip_prefix(root_files::resolve(root).ok()?.path).ok()?;
            Some(if rest.as_os_str().is_empty() { root.to_owned() } else { root.join(rest) })
        };
        let roots = std::iter::once(cwd).chain(roots.iter().map(PathBuf::as_path));
        let path = roots.into_iter().find_map(below).unwrap_or_else(|| real.clone());
        Self::with_display(given, real, path, cwd)
    }

    fn with_display(given: &str, real: PathBuf, path: PathBuf, cwd: &Path) -> Self {
        let shown = match path.strip_prefix(cwd) {
            Ok(rest) if rest.as_os_str().is_empty() => ".".to_owned(),
            Ok(rest) => rest.to_string_lossy().into_owned(),
            Err(_) => path.to_string_lossy().into_owned(),
        };
        // Ignore differences in `.` and repeated slashes.
        let plain = cwd.join(given);
        let given = (plain != path && plain != real).then(|| given.to_owned());
        Self { real, path, shown, given }
    }
}

/// Formats one line: the resolved path, then the spelling of the call in parentheses if it differs.
impl std::fmt::Display for FileTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&path_line(&self.shown))?;
        match &self.given {
            Some(given) => write!(f, " (given as {})", path_line(given)),
            None => Ok(()),
        }
    }
}

/// Formats a path on one line without hidden parts. Replaces invisible characters, marks runs of spaces, and keeps both
/// ends of a long path.
pub fn path_line(path: &str) -> String {
    let mut line = String::new();
    let mut letters = path.chars().peekable();
    while let Some(letter) = letters.next() {
        let padding = letter.is_whitespace() && (letters.peek().is_none_or(|next| next.is_whitespace()));
        let after_padding = letter.is_whitespace() && line.ends_with('␣');
        line.push(match letter {
            _ if padding || after_padding || (letter.is_whitespace() && letter != ' ') => '␣',
            _ if letter.is_control() || is_hidden(letter) => '\u{fffd}',
            _ => letter,
        });
    }
    let count = line.chars().count();
    if count <= MAX_SHOWN {
        return line;
    }
    let half = MAX_SHOWN / 2;
    let (start, end): (String, String) = (line.chars().take(half).collect(), line.chars().skip(count - half).collect());
    format!("{start}…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_shows_where_the_path_leads_and_how_it_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let cwd = folder.path().canonicalize().expect("a folder");
        std::fs::create_dir_all(cwd.join("docs")).expect("created");
        std::os::unix::fs::symlink(".git", cwd.join("docs/link")).expect("linked");
        let shown = |given: &str| FileTarget::resolve(given, &cwd, &[]).map(|target| target.to_string());
        assert_eq!(shown("docs/a.md").expect("resolved"), "docs/a.md");
        assert_eq!(shown("./docs//a.md").expect("resolved"), "docs/a.md");
        assert_eq!(shown(cwd.join("docs/a.md").to_str().expect("text")).expect("resolved"), "docs/a.md");
        assert_eq!(shown("docs/../a.md").expect("resolved"), "a.md (given as docs/../a.md)");
        assert_eq!(shown("docs/link/config").expect("resolved"), "docs/.git/config (given as docs/link/config)");
        assert!(shown("notes.md   /../.git/config").is_err());
        let target = FileTarget::resolve("../x", &cwd, &[]).expect("resolved");
        assert_eq!(target.shown, cwd.parent().expect("a parent").join("x").to_string_lossy());
    }

    #[test]
    fn padding_and_length_hide_no_part_of_a_path() {
        assert_eq!(path_line("a b"), "a b");
        assert_eq!(path_line("a   b\n"), "a␣␣␣b␣");
        assert_eq!(path_line("a\u{202e}b\u{7}"), "a\u{fffd}b\u{fffd}");
        let long = path_line(&format!("docs/{}/.git/config", "x".repeat(500)));
        assert!(long.starts_with("docs/xx") && long.ends_with("/.git/config"), "{long}");
        assert_eq!(long.chars().count(), MAX_SHOWN + 1);
    }
}
