//! Keeps the states of a workspace, so that a session can bring earlier files back.
//!
//! A *snapshot* lists the files below some folders. Their contents are copies in one store, named by their hash, so
//! that equal contents take space once. A *step* is a change of the workspace by a session, with the snapshots before
//! and after it.
//!
//! Invariant: starts no program, follows no link, and writes nothing into a repository. Only `CheckpointStore::apply`
//! writes to a workspace.

mod ignore_rules;
mod objects;
mod plan;
mod session_hold;
mod snapshot;
mod unused_contents;

pub use plan::{FileDifference, KeepReason, KeptFile, MAX_SHOWN_BYTES, RestorePlan};
pub use session_hold::SessionHold;
pub use snapshot::{CoverageGap, Snapshot, SnapshotLimits, Workspace};

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use objects::ObjectStore;

/// Maximum number of steps of a session. When there are more, the oldest are removed.
pub const MAX_STEPS: usize = 50;

/// The store of all checkpoints of a user. Several processes may use it at once. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CheckpointStore {
    folder: PathBuf,
    objects: ObjectStore,
}

/// A change of the workspace by a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointStep {
    /// Starts at 1 in each session.
    pub number: u64,
    /// The number of events in the session's event log when the step began.
    pub events: u64,
    pub kind: StepKind,
    pub before: Snapshot,
    /// `None` while the step runs, and if Skein was killed meanwhile.
    pub after: Option<Snapshot>,
}

/// What made a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    Turn,
    /// A restore of an earlier state.
    Restore,
    /// The reversal of the restore with this number.
    Forward(u64),
}

/// Why a checkpoint could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("{} cannot be used for checkpoints: {source}", path.display())]
    Store {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the checkpoint {} cannot be read: {source}", path.display())]
    Format {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("the copy of a file, {}, is damaged", path.display())]
    Damaged { path: PathBuf },
    #[error("there is no turn {turn} in this session; it has {turns}")]
    NoTurn { turn: usize, turns: usize },
    #[error("the checkpoint of turn {turn} is gone, because only the newest {} are kept", MAX_STEPS)]
    Removed { turn: usize },
    #[error("there is nothing to go forward to: no restore was made, or the session has continued since")]
    NoWayForward,
    #[error("the work on a checkpoint was interrupted: {0}")]
    Interrupted(String),
    #[error("the session has changed since the difference was shown; look at it again")]
    Outdated,
    #[error("a turn or another restore of this session runs, maybe in another process")]
    Running,
}

impl CheckpointError {
    fn store(path: &Path, source: io::Error) -> Self {
        Self::Store { path: path.to_owned(), source }
    }
}

impl CheckpointStore {
    pub fn new(folder: PathBuf) -> Self {
        let objects = ObjectStore::new(folder.join("objects"));
        Self { folder, objects }
    }

    /// Takes a snapshot of the workspace, and saves it as the beginning of a step. `previous` saves reading files that
    /// are unchanged since.
    pub fn begin(
        &self,
        session: &str,
        (events, kind): (u64, StepKind),
        workspace: &Workspace,
        previous: Option<&Snapshot>,
    ) -> Result<CheckpointStep, CheckpointError> {
        let _held = self.hold(LockKind::Shared)?;
        let before = snapshot::take(workspace, &self.folder, &self.objects, previous)?;
        let numbers = self.numbers(session)?;
        let number = numbers.last().map_or(1, |last| last + 1);
        let step = CheckpointStep { number, events, kind, before, after: None };
        self.save(session, &step)?;
        Ok(step)
    }

    /// Takes the snapshot after a step, and saves it. A turn that changed no file leaves no step. Removes the oldest steps
    /// if there are too many: only now, because the step may be a restore that needs them. Returns true if the step is
    /// kept.
    pub fn finish(
        &self,
        session: &str,
        step: &mut CheckpointStep,
        workspace: &Workspace,
    ) -> Result<bool, CheckpointError> {
        let held = self.hold(LockKind::Shared)?;
        let after = snapshot::take(workspace, &self.folder, &self.objects, Some(&step.before))?;
        let is_kept = step.kind != StepKind::Turn || plan::differs(&step.before, &after);
        step.after = Some(after);
        let dropped = if is_kept {
            self.save(session, step)?;
            self.drop_oldest(session)?
        } else {
            self.remove_step(session, step.number)?;
            1
        };
        drop(held);
        self.count_dropped(dropped);
        Ok(is_kept)
    }

    /// Removes the oldest steps of a session if there are too many. Returns their number.
    fn drop_oldest(&self, session: &str) -> Result<usize, CheckpointError> {
        let numbers = self.numbers(session)?;
        let excess = numbers.len().saturating_sub(MAX_STEPS);
        numbers.iter().take(excess).try_for_each(|old| self.remove_step(session, *old))?;
        Ok(excess)
    }

    /// Takes a snapshot that no step needs.
    pub fn look(&self, workspace: &Workspace, previous: Option<&Snapshot>) -> Result<Snapshot, CheckpointError> {
        let _held = self.hold(LockKind::Shared)?;
        snapshot::take(workspace, &self.folder, &self.objects, previous)
    }

    /// Returns the steps of a session, oldest first.
    pub fn steps(&self, session: &str) -> Result<Vec<CheckpointStep>, CheckpointError> {
        self.numbers(session)?.into_iter().map(|number| self.read_step(session, number)).collect()
    }

    /// Returns the newest snapshot of a session. `None` if it has none.
    pub fn last_snapshot(&self, session: &str) -> Result<Option<Snapshot>, CheckpointError> {
        let Some(number) = self.numbers(session)?.pop() else { return Ok(None) };
        let step = self.read_step(session, number)?;
        Ok(Some(step.after.unwrap_or(step.before)))
    }

    /// Brings the files of `plan` back. With `force`, also those that have changed since. Returns the files that stay as
    /// they are.
    pub fn apply(&self, plan: &RestorePlan, force: bool) -> Vec<KeptFile> {
        plan.apply(&self.objects, force)
    }

    /// Returns what `plan` would change, for people.
    pub fn differences(&self, plan: &RestorePlan) -> Vec<FileDifference> {
        plan.differences(&self.objects)
    }

    /// Removes the steps of a session, and the contents that no other step needs.
    pub fn delete(&self, session: &str) -> Result<(), CheckpointError> {
        self.remove_lock(session)?;
        let folder = self.session_folder(session);
        if !folder.exists() {
            return Ok(());
        }
        let _held = self.hold(LockKind::Exclusive)?;
        fs::remove_dir_all(&folder).map_err(|error| CheckpointError::store(&folder, error))?;
        self.remove_unused()
    }

    /// Locks the store until the file is dropped. Only the removal of contents needs it alone.
    fn hold(&self, kind: LockKind) -> Result<File, CheckpointError> {
        let file = self.open_store_lock()?;
        let locked = match kind {
            LockKind::Shared => file.lock_shared(),
            LockKind::Exclusive => file.lock(),
        };
        locked.map_err(|error| CheckpointError::store(&self.folder, error))?;
        Ok(file)
    }

    fn open_store_lock(&self) -> Result<File, CheckpointError> {
        let failed = |error| CheckpointError::store(&self.folder, error);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(failed)?;
        let mut options = fs::OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        options.open(self.folder.join("lock")).map_err(failed)
    }

    fn session_folder(&self, session: &str) -> PathBuf {
        self.folder.join("sessions").join(session)
    }

    fn step_path(&self, session: &str, number: u64) -> PathBuf {
        self.session_folder(session).join(format!("{number}.json"))
    }

    /// Returns the ids of the sessions with steps.
    fn sessions(&self) -> Result<Vec<String>, CheckpointError> {
        names_in(&self.folder.join("sessions"))
    }

    /// Returns the numbers of a session's steps, in order.
    fn numbers(&self, session: &str) -> Result<Vec<u64>, CheckpointError> {
        let names = names_in(&self.session_folder(session))?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok()).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn save(&self, session: &str, step: &CheckpointStep) -> Result<(), CheckpointError> {
        let path = self.step_path(session, step.number);
        let bytes =
            serde_json::to_vec(step).map_err(|source| CheckpointError::Format { path: path.clone(), source })?;
        objects::write_whole(&path, &bytes).map_err(|error| CheckpointError::store(&path, error))
    }

    fn read_step(&self, session: &str, number: u64) -> Result<CheckpointStep, CheckpointError> {
        let path = self.step_path(session, number);
        let bytes = fs::read(&path).map_err(|error| CheckpointError::store(&path, error))?;
        serde_json::from_slice(&bytes).map_err(|source| CheckpointError::Format { path, source })
    }

    fn remove_step(&self, session: &str, number: u64) -> Result<(), CheckpointError> {
        let path = self.step_path(session, number);
        fs::remove_file(&path).map_err(|error| CheckpointError::store(&path, error))
    }
}

/// Whether others may use the store meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockKind {
    Shared,
    Exclusive,
}

/// Returns the names in a folder. Empty if it does not exist.
fn names_in(folder: &Path) -> Result<Vec<String>, CheckpointError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| CheckpointError::store(folder, error))?,
    };
    Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

#[cfg(test)]
#[path = "checkpoint/checkpoint_tests.rs"]
mod tests;
