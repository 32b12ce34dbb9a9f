//! Lists the sessions that a process has open, in a file that it keeps locked. Other processes of the machine then know
//! them without a clock.
//!
//! Invariant: the file of a list is locked from before it has its name until after it has lost it.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::ids::random_uuid;

/// The folder of the lists, in the data folder.
const FOLDER: &str = "open-sessions";
/// The beginning of the name of a list that is not complete yet.
const INCOMPLETE: &str = "new-";
/// How often a step is tried that another process may disturb.
const ATTEMPTS: usize = 20;

/// The list of this process.
#[derive(Debug)]
pub(super) struct OpenList {
    folder: PathBuf,
    /// `None` while no session is open.
    file: Option<ListFile>,
    /// The number of sessions in the list. `None` after one could not be added.
    lines: Option<usize>,
}

#[derive(Debug)]
struct ListFile {
    file: File,
    path: PathBuf,
}

/// The fields are dropped afterwards, so the lock ends last.
impl Drop for ListFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, "a list of open sessions is left behind");
        }
    }
}

impl OpenList {
    pub(super) fn new(data: &Path) -> Self {
        Self { folder: data.join(FOLDER), file: None, lines: Some(0) }
    }

    /// Adds a session that was just opened.
    pub(super) fn add(&mut self, id: &str) -> io::Result<()> {
        let lines = self.lines.take();
        match &mut self.file {
            Some(list) => {
                // The last line may be a part of one.
                let line = if lines.is_none() { format!("\n{id}\n") } else { format!("{id}\n") };
                list.file.write_all(line.as_bytes())?;
            }
            None => self.file = Some(self.create(&[id.to_owned()])?),
        }
        self.lines = lines.map(|lines| lines + 1);
        Ok(())
    }

    /// Makes the list that of these sessions.
    pub(super) fn set(&mut self, open: &[String]) -> io::Result<()> {
        // A list to which all could be added has at least the open sessions.
        if self.lines == Some(open.len()) {
            return Ok(());
        }
        self.file = match open {
            [] => None,
            open => Some(self.create(open)?),
        };
        self.lines = Some(open.len());
        Ok(())
    }

    fn create(&self, open: &[String]) -> io::Result<ListFile> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let text: String = open.iter().map(|id| format!("{id}\n")).collect();
        let mut attempts = 1;
        loop {
            let name = random_uuid();
            let (new, path) = (self.folder.join(format!("{INCOMPLETE}{name}")), self.folder.join(&name));
            let mut file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(&new)?;
            file.lock()?;
            file.write_all(text.as_bytes())?;
            match fs::rename(&new, &path) {
                Ok(()) => return Ok(ListFile { file, path }),
                // A reader took it for one that was left behind, because it was not locked yet.
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempts < ATTEMPTS => attempts += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns the sessions that are open in any process that uses the data folder. Removes lists of processes that were
/// killed.
pub(in crate::store) fn list_open(data: &Path) -> io::Result<BTreeSet<String>> {
    for _ in 0..ATTEMPTS {
        if let Some(open) = read_lists(&data.join(FOLDER))? {
            return Ok(open);
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "the lists of open sessions change all the time"))
}

/// Returns `None` if a list was replaced meanwhile: then the new one may be missing.
fn read_lists(folder: &Path) -> io::Result<Option<BTreeSet<String>>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(BTreeSet::new())),
        entries => entries?,
    };
    let mut open = BTreeSet::new();
    for entry in entries {
        let path = entry?.path();
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        match file.try_lock_shared() {
            Ok(()) if file.metadata()?.nlink() == 0 => return Ok(None),
            // Its process was killed.
            Ok(()) => match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            },
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                file.read_to_string(&mut text)?;
                open.extend(text.lines().map(str::to_owned));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(Some(open))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(open: &[&str]) -> Vec<String> {
        open.iter().map(|id| (*id).to_owned()).collect()
    }

    fn found(data: &Path) -> Vec<String> {
        list_open(data).unwrap().into_iter().collect()
    }

    #[test]
    fn the_lists_of_all_processes_count_until_they_end() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(found(data.path()), [""; 0]);
        let (mut one, mut two) = (OpenList::new(data.path()), OpenList::new(data.path()));
        one.add("a").unwrap();
        one.add("b").unwrap();
        two.add("c").unwrap();
        assert_eq!(found(data.path()), ["a", "b", "c"]);
        one.set(&ids(&["b"])).unwrap();
        assert_eq!(found(data.path()), ["b", "c"]);
        two.set(&[]).unwrap();
        drop(one);
        assert_eq!(found(data.path()), [""; 0]);
        assert_eq!(fs::read_dir(data.path().join(FOLDER)).unwrap().count(), 0, "no file is left");
    }

    #[test]
    fn a_session_that_could_not_be_added_is_listed_later() {
        let data = tempfile::tempdir().unwrap();
        let mut list = OpenList::new(data.path());
        for id in ["a", "b"] {
            list.add(id).unwrap();
        }
        let file = list.file.as_mut().unwrap();
        // Without the right to write, as on a full disk.
        let read_only = File::open(&file.path).unwrap();
        let writable = std::mem::replace(&mut file.file, read_only);
        list.add("c").unwrap_err();
        list.file.as_mut().unwrap().file = writable;
        list.add("d").unwrap();
        assert_eq!(found(data.path()), ["", "a", "b", "d"]);
        // As many sessions as lines were written, because one was closed meanwhile.
        list.set(&ids(&["b", "c", "d"])).unwrap();
        assert_eq!(found(data.path()), ["b", "c", "d"]);
    }

    #[test]
    fn the_first_session_that_could_not_be_added_is_listed_later() {
        let data = tempfile::tempdir().unwrap();
        let mut list = OpenList::new(data.path());
        // Without a list yet, and without room for one.
        let folder = data.path().join(FOLDER);
        fs::write(&folder, "no folder").unwrap();
        list.add("c").unwrap_err();
        fs::remove_file(&folder).unwrap();
        list.add("d").unwrap();
        list.set(&ids(&["c"])).unwrap();
        assert_eq!(found(data.path()), ["c"]);
    }

    #[test]
    fn the_list_of_a_killed_process_is_removed() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join(FOLDER);
        fs::create_dir(&folder).unwrap();
        for name in ["left", "new-left"] {
            fs::write(folder.join(name), "a\n").unwrap();
        }
        assert_eq!(found(data.path()), [""; 0]);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }
}
