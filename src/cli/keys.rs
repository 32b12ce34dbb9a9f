//! Keys of models that the environment does not have: one file in the configuration folder that only its owner can
//! read. They go to their provider alone: into no log, no store and no child process.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::folders::Folders;
use super::models::variable;

/// The file, read anew for each question: a key that was changed counts at once.
#[derive(Clone)]
pub(super) struct Keys {
    file: PathBuf,
}

/// Where a key is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum KeptIn {
    Environment,
    File,
    Nowhere,
}

impl Keys {
    pub(super) fn of(folders: &Folders) -> Self {
        Self { file: folders.config.join("keys.json") }
    }

    pub(super) fn file(&self) -> PathBuf {
        self.file.clone()
    }

    /// What a variable holds, or what was kept under its name.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        variable(name).or_else(|| self.kept().ok()?.remove(name))
    }

    pub(super) fn kept_in(&self, name: &str) -> KeptIn {
        match variable(name) {
            Some(_) => KeptIn::Environment,
            None if self.variable(name).is_some() => KeptIn::File,
            None => KeptIn::Nowhere,
        }
    }

    fn kept(&self) -> Result<BTreeMap<String, String>, String> {
        let metadata = match fs::metadata(&self.file) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(error) => return Err(error.to_string()),
        };
        if metadata.permissions().mode() & 0o077 != 0 {
            // Whoever could read it could have changed where its keys go, too.
            tracing::warn!(file = %self.file.display(), "others can read the keys; they are not used");
            return Err(format!("others can read it: chmod 600 {}", self.file.display()));
        }
        let text = fs::read_to_string(&self.file).map_err(|error| error.to_string())?;
        // What serde says of a wrong file would quote it.
        serde_json::from_str(&text).map_err(|_| "it is not a mapping of names to keys".to_owned())
    }

    /// Keeps a key under the name of its variable.
    pub(super) fn keep(&self, name: &str, key: &str) -> Result<(), String> {
        let mut kept = self.kept()?;
        kept.insert(name.to_owned(), key.to_owned());
        let folder = self.file.parent().unwrap_or(Path::new("."));
        let attempt = || -> std::io::Result<()> {
            fs::create_dir_all(folder)?;
            // Such a file is made for its owner alone, and is whole before it gets its name.
            let mut file = tempfile::Builder::new().prefix(".keys").tempfile_in(folder)?;
            file.as_file().set_permissions(fs::Permissions::from_mode(0o600))?;
            file.write_all(&serde_json::to_vec_pretty(&kept)?)?;
            file.persist(&self.file)?;
            Ok(())
        };
        attempt().map_err(|error| error.to_string())
    }
}
