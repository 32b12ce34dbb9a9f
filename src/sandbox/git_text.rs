//! Reads the small text files of a git folder: its config, files that lead to other folders, and lists of steps.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Larger files are not read.
const MAX_CONFIG_BYTES: u64 = 256 << 10;
/// A `.git` file begins with this. Everything after it is the path, spaces included.
pub(super) const GIT_FILE_LABEL: &str = "gitdir: ";
/// What git takes for spaces in a config.
const SPACES: [char; 3] = [' ', '\t', '\r'];
const BYTE_ORDER_MARK: char = '\u{feff}';
/// Longer keys are not shown to the user.
const MAX_SHOWN_KEY: usize = 64;

/// Opens a regular file. Opening a pipe, which a command may have put there, would wait for its other end.
pub(super) fn open_regular(path: &Path) -> Option<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}

/// Reads a regular file. `None` if it is too large for a config.
pub(super) fn read_small(path: &Path) -> Option<String> {
    let mut text = String::new();
    open_regular(path)?.take(MAX_CONFIG_BYTES + 1).read_to_string(&mut text).ok()?;
    (text.len() as u64 <= MAX_CONFIG_BYTES).then_some(text)
}

/// Returns the folder that a file of git names after `label`. As git does, removes only the end of the line: a folder's
/// name may begin with spaces.
pub(super) fn leads_to(path: &Path, label: &str) -> Option<PathBuf> {
    let text = read_small(path)?;
    let named = text.strip_prefix(label)?.trim_end_matches(['\r', '\n']);
    path.parent()?.join(named).canonicalize().ok()
}

/// Returns the keys of a git config as `section.key` in lower case, with their values. Fails if a line is not
/// understood, with its key if that is known.
pub(super) fn parse_config(text: &str) -> Result<Vec<(String, &str)>, Option<String>> {
    // Git skips it. Here it would hide the first section.
    if text.starts_with(BYTE_ORDER_MARK) {
        return Err(None);
    }
    let mut found = Vec::new();
    let mut section = String::new();
    for line in text.lines().map(|line| line.trim_matches(SPACES)) {
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            let (name, rest) = header.split_once(']').ok_or(None)?;
            if !rest.is_empty() {
                return Err(None);
            }
            section = name.split([' ', '"', '.']).next().unwrap_or_default().to_ascii_lowercase();
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let key = format!("{section}.{}", key.trim_matches(SPACES).to_ascii_lowercase());
        // Git removes quotes, and a value that continues on the next line would hide a key.
        if value.contains(|c: char| c == '"' || c == '\\' || (c.is_ascii_control() && c != '\t')) {
            return Err(displayable_key(key));
        }
        found.push((key, value.trim_matches(SPACES)));
    }
    Ok(found)
}

/// Returns a key if it can be shown to the user.
pub(super) fn displayable_key(key: String) -> Option<String> {
    let is_plain = |key: &str| key.chars().all(|c| c.is_ascii_alphanumeric() || c == '.' || c == '-');
    Some(key).filter(|key| key.len() <= MAX_SHOWN_KEY && is_plain(key))
}
