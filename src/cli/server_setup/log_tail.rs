//! Reads the last errors and warnings from the end of Skein's log.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use serde_json::Value;

use crate::serve::LogEntry;

/// The bytes that are read from the end of a log.
const TAIL: u64 = 512 * 1024;
/// Maximum number of entries.
const MAX_ENTRIES: usize = 50;

/// Returns the last errors and warnings, the newest first. Fails if a log cannot be read.
pub(super) fn recent_errors(folder: &Path) -> io::Result<Vec<LogEntry>> {
    let mut entries = Vec::new();
    for name in ["skein.log", "skein.log.1"] {
        let text = read_tail(&folder.join(name))?;
        entries.extend(text.lines().rev().filter_map(problem_of).take(MAX_ENTRIES - entries.len()));
    }
    Ok(entries)
}

/// Returns the end of a file; empty if the file does not exist. The first line may be incomplete.
fn read_tail(file: &Path) -> io::Result<String> {
    let mut file = match File::open(file) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(error),
    };
    let start = file.metadata()?.len().saturating_sub(TAIL);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(2 * TAIL).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the entry of a line. `None` if it is neither an error nor a warning.
fn problem_of(line: &str) -> Option<LogEntry> {
    let entry: Value = serde_json::from_str(line).ok()?;
    let level = entry["level"].as_str().filter(|level| ["ERROR", "WARN"].contains(level))?;
    let fields = entry["fields"].as_object()?;
    let mut text = fields.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
    for (name, value) in fields.iter().filter(|(name, _)| *name != "message") {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text.push_str(&format!("; {name}: {value}"));
    }
    let level = if level == "ERROR" { "error" } else { "warning" };
    Some(LogEntry { time: entry["timestamp"].as_str().unwrap_or_default().to_owned(), level: level.to_owned(), text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_warnings_are_found_newest_first() {
        let folder = tempfile::tempdir().unwrap();
        let line = |time: &str, level: &str, message: &str| {
            let fields = serde_json::json!({"message": message, "count": 2});
            format!("{}\n", serde_json::json!({"timestamp": time, "level": level, "fields": fields}))
        };
        let old = line("1", "ERROR", "old");
        let new = line("2", "INFO", "usual") + "not JSON\n" + &line("3", "WARN", "odd");
        std::fs::write(folder.path().join("skein.log.1"), old).unwrap();
        std::fs::write(folder.path().join("skein.log"), new).unwrap();
        let found = recent_errors(folder.path()).unwrap();
        let found: Vec<_> = found.iter().map(|entry| (entry.level.as_str(), entry.text.as_str())).collect();
        assert_eq!(found, [("warning", "odd; count: 2"), ("error", "old; count: 2")]);
        assert!(recent_errors(&folder.path().join("none")).unwrap().is_empty());
    }
}
