//! The user's `config.yaml` as a file to write to: made if it is not there, and otherwise edited so that nothing
//! that a person wrote is lost.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::folders::Folders;
use super::output::Failure;
use crate::manifest::edited;

/// What the file says, or would say.
pub(super) struct SettingsFile {
    file: PathBuf,
    /// As it was read; nothing if there is none.
    old: Option<String>,
    text: String,
}

/// A path in the config, and the value to set there.
pub(super) type Change<'a> = (Vec<&'a str>, Value);

impl SettingsFile {
    pub(super) fn of(folders: &Folders) -> Result<Self, Failure> {
        // The other names that a config may have.
        let names = ["config.yaml", "config.yml", "config.json"].map(|name| folders.config.join(name));
        let file = names.iter().find(|file| file.exists()).unwrap_or(&names[0]).clone();
        match fs::read_to_string(&file) {
            Ok(text) => Ok(Self { file, old: Some(text.clone()), text }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Ok(Self { file, old: None, text: "version: 1\n".to_owned() })
            }
            Err(error) => {
                let problem = format!("{} cannot be read: {error}", file.display());
                Err(Failure::work(problem, "make it readable, or move it away"))
            }
        }
    }

    pub(super) fn is_there(&self) -> bool {
        self.old.is_some()
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// The same with these values; if that is not safe, what a person should write into it.
    pub(super) fn with(mut self, changes: &[Change<'_>]) -> Result<Self, String> {
        match edited(&self.text, changes) {
            Some(text) if self.file.extension().is_none_or(|extension| extension != "json") => {
                self.text = text;
                Ok(self)
            }
            _ => {
                let add = edited("version: 1\n", changes).unwrap_or_default();
                Err(add.replace("version: 1\n", ""))
            }
        }
    }

    pub(super) fn write(&self) -> Result<(), Failure> {
        let written = match &self.old {
            None => write_new(&self.file, &self.text),
            Some(old) if *old == self.text => Ok(()),
            Some(_) => self.file.metadata().and_then(|old| replace(&self.file, &self.text, old.permissions())),
        };
        written.map_err(|error| {
            let problem = format!("{} cannot be written: {error}", self.file.display());
            Failure::work(problem, "check the folder's permissions")
        })
    }
}

/// Somebody else's file that came in between is not overwritten.
pub(super) fn write_new(file: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::File::create_new(file)?.write_all(text.as_bytes())
}

/// Written beside, to the disk, and renamed: nobody ever reads half a file. A link stays one: what it leads to is
/// exchanged.
pub(super) fn replace(file: &Path, text: &str, permissions: fs::Permissions) -> std::io::Result<()> {
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut new = tempfile::Builder::new().prefix(".skein").tempfile_in(folder)?;
    new.as_file().set_permissions(permissions)?;
    new.write_all(text.as_bytes())?;
    new.as_file().sync_all()?;
    new.persist(&file)?;
    Ok(())
}
