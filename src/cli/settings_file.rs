//! Edits the user's `config.yaml`: creates it if it is missing, and otherwise keeps everything that the user wrote.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::output::CommandError;
use super::whole_file::{create, replace};
use crate::manifest::{SourceFile, apply_edits, parse, with_first, without_item};

/// The current or planned contents of the file.
pub(super) struct SettingsFile {
    file: PathBuf,
    /// The text as read; `None` if the file does not exist.
    old: Option<String>,
    text: String,
}

/// A config that cannot be edited without risk for the rest of the file. The user adds `text` instead.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be added to safely; write into it:\n{text}", .file.display())]
pub(super) struct UnsafeEditError {
    pub(super) file: PathBuf,
    pub(super) text: String,
}

/// A path in the config, and the value to set there.
pub(super) type ConfigEdit<'a> = (Vec<&'a str>, Value);

impl SettingsFile {
    /// Reads the config in the user's configuration folder.
    pub(super) fn of(folder: &Path) -> Result<Self, CommandError> {
        // A config may also have one of the other names.
        let names = ["config.yaml", "config.yml", "config.json"].map(|name| folder.join(name));
        let file = names.iter().find(|file| file.exists()).unwrap_or(&names[0]).clone();
        let old = read(&file).map_err(|error| {
            let problem = format!("{} cannot be read: {error}", file.display());
            CommandError::work(problem, "make it readable, or move it away")
        })?;
        let text = old.clone().unwrap_or_else(|| "version: 1\n".to_owned());
        Ok(Self { file, old, text })
    }

    pub(super) fn is_there(&self) -> bool {
        self.old.is_some()
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the file with these values set. Fails if it cannot be edited safely.
    pub(super) fn with(self, changes: &[ConfigEdit<'_>]) -> Result<Self, UnsafeEditError> {
        // A JSON file, which is not edited, needs no advice either if nothing changes.
        if changes.is_empty() {
            return Ok(self);
        }
        self.apply(|text| apply_edits(text, changes))
    }

    /// Returns the file with an item inserted at the start of a list. Fails if it cannot be edited safely.
    pub(super) fn with_first(self, path: &[&str], item: &Value) -> Result<Self, UnsafeEditError> {
        self.apply(|text| with_first(text, path, item))
    }

    /// Returns the file without an item of a list. Fails if it cannot be edited safely.
    pub(super) fn without_item(self, path: &[&str], item: &str) -> Result<Self, UnsafeEditError> {
        let advice = format!("(remove `{item}` from `{}`)\n", path.join("."));
        self.apply(|text| without_item(text, path, item)).map_err(|error| UnsafeEditError { text: advice, ..error })
    }

    fn apply(mut self, edit: impl Fn(&str) -> Option<String>) -> Result<Self, UnsafeEditError> {
        let is_json = self.file.extension().is_some_and(|extension| extension == "json");
        match edit(&self.text).filter(|_| !is_json) {
            Some(text) => {
                self.text = text;
                Ok(self)
            }
            None => {
                let advice = edit("version: 1\n").unwrap_or_default();
                let text = if is_json { json_text(&advice) } else { None };
                Err(UnsafeEditError { file: self.file, text: text.unwrap_or(advice).replace("version: 1\n", "") })
            }
        }
    }

    pub(super) fn write(&self) -> Result<(), CommandError> {
        let problem = match self.try_write() {
            Ok(true) => return Ok(()),
            Ok(false) => "another program has changed it meanwhile".to_owned(),
            Err(error) => error.to_string(),
        };
        let problem = format!("{} cannot be written: {problem}", self.file.display());
        Err(CommandError::work(problem, "look at the file and its folder, and run it again"))
    }

    /// Writes the file. Returns false and writes nothing if the file has changed since it was read.
    pub(super) fn try_write(&self) -> std::io::Result<bool> {
        let folder = self.file.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        // Held from the comparison until the new file is in place. The system releases it if the process dies.
        let lock = fs::File::open(folder)?;
        lock.lock()?;
        if read(&self.file)? != self.old {
            return Ok(false);
        }
        match &self.old {
            None => create(&self.file, &self.text, 0o666)?,
            Some(old) if *old == self.text => {}
            Some(_) => replace(&self.file, &self.text, self.file.metadata()?.permissions())?,
        }
        Ok(true)
    }
}

/// Converts advice for a YAML file to advice for a JSON file. `None` if it is no mapping.
fn json_text(advice: &str) -> Option<String> {
    let mut advice = parse(&SourceFile::new("config.yaml", advice)).ok()?;
    advice.as_object_mut()?.remove("version");
    Some(format!("{advice:#}\n"))
}

/// Returns `None` if the file does not exist.
fn read(file: &Path) -> std::io::Result<Option<String>> {
    // Reading a pipe or a device could block forever.
    if fs::metadata(file).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(std::io::Error::other("it is no regular file"));
    }
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_that_is_a_pipe_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("config.yaml");
        crate::test_fifo::make_fifo(&pipe);
        let Err(error) = SettingsFile::of(folder.path()) else { panic!("it is read") };
        assert!(error.problem().contains("it is no regular file"), "{}", error.problem());
    }
}
