//! Restores an earlier state of a session: its history, and the files that its turns changed.
//!
//! A restore keeps the present state first, and is itself a step that can be reversed. The event log keeps all events.

use std::collections::HashSet;
use std::fs::Permissions;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::checkpoints::run_blocking;
use super::recorder::row;
use super::sessions::Sessions;
use super::undo::{ChangedFile, TurnSummary, find_undone, list_turns};
use super::{PromptError, Session, SessionError};
use crate::agents::{Event, History};
use crate::checkpoint::{
    CheckpointError, CheckpointStep, FileDifference, KeepReason, KeptFile, MAX_SHOWN_BYTES, RestorePlan, Snapshot,
    SnapshotLimits, StepKind, Workspace,
};
use crate::conversation::ToolUse;
use crate::principal::SessionFiles;
use crate::root_files::RootedPath;

/// The state to restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreTarget {
    /// The state before the last turn that was not undone.
    BeforeLastTurn,
    /// The state before the turn with this number, also one that was undone. The first turn is 1.
    BeforeTurn(usize),
    /// The state before the last restore.
    Forward,
}

/// A restore that the user can look at and then make.
#[derive(Debug)]
pub struct PlannedRestore {
    session: String,
    /// Number of stored events when the restore was planned.
    events: usize,
    /// Number of events that count afterwards.
    place: usize,
    kind: StepKind,
    plan: RestorePlan,
    present: Snapshot,
    workspace: Workspace,
    /// Changes that the checkpoints do not cover and the event log has.
    edits: Vec<LoggedEdit>,
    /// The prompt of the turn to go back to. Empty if the restore goes forward.
    pub prompt: String,
    /// The calls that are undone in the history. Their effects outside the covered files remain.
    pub calls: Vec<ToolUse>,
    /// The files that would change, and those that stay although a turn changed them.
    pub differences: Vec<FileDifference>,
}

/// A change that only the event log has.
#[derive(Debug)]
struct LoggedEdit {
    file: ChangedFile,
    /// The text when the restore was planned. `None` if there was no file, or if it could not be read.
    now: Option<String>,
    kept: Option<KeepReason>,
}

/// What to restore besides the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreFiles {
    /// No file.
    Keep,
    /// The files that are as the session left them.
    Unchanged,
    /// Also files that have changed since.
    All,
}

/// What a restore did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreReport {
    /// The number of files that were restored.
    pub restored: usize,
    /// The files that stay as they are.
    pub kept: Vec<KeptFile>,
}

/// The part of the steps that a restore reverses.
struct StepRange {
    place: usize,
    /// Index of the first step.
    from: usize,
    kind: StepKind,
    /// Empty if the restore goes forward.
    prompt: String,
}

impl PlannedRestore {
    /// Returns true if the restore changes files that are as the session left them.
    pub fn changes_files(&self) -> bool {
        self.differences.iter().any(|difference| difference.kept.is_none())
    }

    /// Returns the number of files that the checkpoints leave out now, apart from ignored ones.
    pub fn gaps(&self) -> usize {
        self.plan.gaps().len()
    }
}

impl Sessions {
    /// Returns all turns of a session, also those that were undone.
    pub async fn turns(&self, id: &str) -> Result<Vec<TurnSummary>, SessionError> {
        Ok(list_turns(&self.events(id).await?))
    }

    /// Plans a restore and changes nothing. `None` if there is no turn left to undo. Fails if there is no such turn, or
    /// nothing to go forward to.
    pub async fn plan_restore(&self, id: &str, target: RestoreTarget) -> Result<Option<PlannedRestore>, SessionError> {
        // Sessions of other principals are unknown, and so are their checkpoints.
        let stored = self.store.find(id).await?.ok_or_else(|| SessionError::Unknown(id.to_owned()))?;
        let events = self.events(id).await?;
        let store = self.checkpoint_store();
        let mut steps = match store.clone() {
            Some(store) => {
                let session = id.to_owned();
                run_blocking(move || store.steps(&session)).await?
            }
            None => Vec::new(),
        };
        let range = find_range(&events, &steps, target)?;
        let Some(StepRange { place, from, kind, prompt }) = range else { return Ok(None) };
        let steps: Vec<CheckpointStep> = steps.drain(from..).collect();
        let mut roots: Vec<_> = steps.iter().flat_map(|step| step.before.roots.clone()).collect();
        roots.sort();
        roots.dedup();
        let workspace = Workspace { roots, hidden: self.paths_to_hide(), limits: SnapshotLimits::default() };
        let (plan, present, mut differences) = match store.filter(|_| !steps.is_empty()) {
            Some(store) => {
                let workspace = workspace.clone();
                run_blocking(move || {
                    let known = steps.last().map(|step| step.after.as_ref().unwrap_or(&step.before));
                    let present = store.look(&workspace, known)?;
                    let plan = RestorePlan::new(&steps, &present, &workspace);
                    let differences = store.differences(&plan);
                    Ok((plan, present, differences))
                })
                .await?
            }
            None => Default::default(),
        };
        let mut undone = find_undone(&events, place);
        // Files at the client are out of reach.
        let is_here = stored.files != SessionFiles::Client;
        undone.files.retain(|_| is_here);
        undone.files.iter_mut().for_each(|file| file.path = below_real_folder(&file.path, &stored.cwd));
        undone.files.retain(|file| !plan.covers(&file.path));
        let edits: Vec<_> = undone.files.into_iter().map(LoggedEdit::plan).collect();
        differences.extend(edits.iter().map(LoggedEdit::difference));
        Ok(Some(PlannedRestore {
            session: id.to_owned(),
            events: events.len(),
            place,
            kind,
            plan,
            present,
            workspace,
            edits,
            prompt,
            calls: undone.calls,
            differences,
        }))
    }

    /// Makes a planned restore: keeps the present state, restores files, and then the history. Fails if the session has
    /// changed since, or a turn of it runs in another process.
    pub async fn restore(&self, planned: PlannedRestore, files: RestoreFiles) -> Result<RestoreReport, SessionError> {
        let PlannedRestore { session, events, place, kind, plan, present, workspace, edits, differences, .. } = planned;
        let _hold = match self.checkpoint_store() {
            Some(store) => {
                let session = session.clone();
                Some(run_blocking(move || store.hold_alone(&session)).await?)
            }
            None => None,
        };
        let sessions = self.own(&session).await?;
        if sessions.events(&session).await?.len() != events {
            return Err(CheckpointError::Outdated.into());
        }
        let force = files == RestoreFiles::All;
        let mut kept = match self.checkpoint_store() {
            Some(store) => {
                let session = session.clone();
                run_blocking(move || {
                    let begun = (events as u64, kind);
                    let mut step = store.begin(&session, begun, &workspace, Some(&present))?;
                    let kept = if files == RestoreFiles::Keep { Vec::new() } else { store.apply(&plan, force) };
                    store.finish(&session, &mut step, &workspace)?;
                    Ok(kept)
                })
                .await?
            }
            None => Vec::new(),
        };
        for edit in edits.iter().filter(|_| files != RestoreFiles::Keep) {
            if let Err(reason) = edit.put_back(force) {
                kept.push(KeptFile { path: edit.file.path.clone(), reason });
            }
        }
        let event = Event::Undone { events: place };
        sessions.store.append(&session, row(&event));
        sessions.store.flush(&session).await?;
        let restored = if files == RestoreFiles::Keep { 0 } else { differences.len().saturating_sub(kept.len()) };
        Ok(RestoreReport { restored, kept })
    }
}

impl Session {
    /// Plans a restore of this session. See [`Sessions::plan_restore`]. Fails if a turn runs.
    pub async fn plan_restore(&self, target: RestoreTarget) -> Result<Option<PlannedRestore>, PromptError> {
        let _history = self.history.try_lock().map_err(|_| PromptError::Busy)?;
        Ok(self.sessions.plan_restore(self.id(), target).await?)
    }

    /// Makes a planned restore of this session. See [`Sessions::restore`]. Fails if a turn runs.
    pub async fn restore(&self, planned: PlannedRestore, files: RestoreFiles) -> Result<RestoreReport, PromptError> {
        let mut history = self.history.try_lock().map_err(|_| PromptError::Busy)?;
        let report = self.sessions.restore(planned, files).await?;
        let events = self.sessions.events(self.id()).await?;
        *history = History::from_events(&events);
        self.events.store(events.len() as u64, Ordering::Relaxed);
        self.setup().external_sessions().forget();
        Ok(report)
    }
}

/// Returns the steps to reverse. `None` if there is no turn left to undo.
fn find_range(
    events: &[Event],
    steps: &[CheckpointStep],
    target: RestoreTarget,
) -> Result<Option<StepRange>, CheckpointError> {
    let turns = list_turns(events);
    let turn = match target {
        RestoreTarget::Forward => return find_forward(&turns, steps).map(Some),
        RestoreTarget::BeforeLastTurn => match turns.iter().rfind(|turn| turn.is_active) {
            Some(turn) => turn,
            None => return Ok(None),
        },
        RestoreTarget::BeforeTurn(number) => {
            let turn = number.checked_sub(1).and_then(|index| turns.get(index));
            turn.ok_or(CheckpointError::NoTurn { turn: number, turns: turns.len() })?
        }
    };
    let place = turn.place;
    let is_since = |step: &CheckpointStep| step.events >= place as u64;
    let from = steps.iter().position(is_since).unwrap_or(steps.len());
    // If older steps were removed, the first one left must be of this turn.
    let next = turns.get(turn.number).map(|turn| turn.place as u64);
    let is_of_turn = steps.first().is_none_or(|first| next.is_none_or(|next| first.events < next));
    if from == 0 && steps.first().is_some_and(|first| first.number > 1) && !is_of_turn {
        return Err(CheckpointError::Removed { turn: turn.number });
    }
    Ok(Some(StepRange { place, from, kind: StepKind::Restore, prompt: turn.prompt.clone() }))
}

/// Returns the last restore that was not reversed. Fails if there is none, or if a turn followed it.
fn find_forward(turns: &[TurnSummary], steps: &[CheckpointStep]) -> Result<StepRange, CheckpointError> {
    let mut reversed = HashSet::new();
    for (from, step) in steps.iter().enumerate().rev() {
        match step.kind {
            StepKind::Turn => break,
            StepKind::Forward(of) => {
                reversed.insert(of);
            }
            StepKind::Restore if reversed.contains(&step.number) => {}
            StepKind::Restore => {
                let place = usize::try_from(step.events).unwrap_or(usize::MAX);
                if turns.iter().any(|turn| turn.place > place) {
                    break;
                }
                let kind = StepKind::Forward(step.number);
                return Ok(StepRange { place, from, kind, prompt: String::new() });
            }
        }
    }
    Err(CheckpointError::NoWayForward)
}

/// Returns the path with the links to the session's folder resolved. Links inside the folder stay, and are not followed.
fn below_real_folder(path: &Path, cwd: &Path) -> PathBuf {
    match (path.strip_prefix(cwd), cwd.canonicalize()) {
        (Ok(rest), Ok(real)) => real.join(rest),
        _ => path.to_owned(),
    }
}

impl LoggedEdit {
    /// Compares the file with the recorded change.
    fn plan(file: ChangedFile) -> Self {
        let now = read_text(&file.path).ok().flatten().map(|(text, _)| text);
        // A name that is not UTF-8 is stored with U+FFFD, so the path may not be that of the file.
        let is_other_name = file.path.to_string_lossy().contains('\u{fffd}');
        let kept = if file.is_partial || is_other_name {
            Some(KeepReason::NotCovered)
        } else {
            (now.as_deref() != Some(file.after.as_str())).then_some(KeepReason::ChangedSince)
        };
        Self { file, now, kept }
    }

    fn difference(&self) -> FileDifference {
        let is_short = |text: &&String| text.len() <= MAX_SHOWN_BYTES;
        FileDifference {
            path: self.file.path.clone(),
            now: self.now.as_ref().filter(is_short).cloned(),
            then: self.file.before.clone(),
            is_removal: self.file.before.is_none(),
            kept: self.kept.clone(),
        }
    }

    /// Restores the file. Without `force`, fails if it was changed after the turn. Fails in any case if it was changed
    /// while the user was asked.
    fn put_back(&self, force: bool) -> Result<(), KeepReason> {
        match &self.kept {
            Some(KeepReason::ChangedSince) if force => {}
            Some(reason) => return Err(reason.clone()),
            None => {}
        }
        let failed = |error: io::Error| KeepReason::Failed(error.to_string());
        let present = read_text(&self.file.path).map_err(failed)?;
        if present.as_ref().map(|(text, _)| text) != self.now.as_ref() {
            return Err(KeepReason::ChangedSince);
        }
        let path = open_path(&self.file.path).map_err(failed)?;
        let done = match (&self.file.before, present) {
            (Some(before), Some((_, permissions))) => path.replace(before.as_bytes(), &permissions),
            // The event log has no permissions, and ignored files may be secret.
            (Some(before), None) => {
                path.create_folders().and_then(|_| path.create_with(before.as_bytes(), &Permissions::from_mode(0o600)))
            }
            (None, Some(_)) => path.remove_file(),
            (None, None) => Ok(()),
        };
        done.map_err(failed)
    }
}

/// Opens a path without following links: a command may have replaced a folder on the way.
fn open_path(path: &Path) -> io::Result<RootedPath> {
    RootedPath::open(&[PathBuf::from("/")], path)
}

/// Returns the text of a file, and its permissions. `None` if there is no file. Fails if it is large or no text, or if
/// a link leads to it.
fn read_text(path: &Path) -> io::Result<Option<(String, Permissions)>> {
    let file = match open_path(path).and_then(|path| path.read()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let permissions = file.metadata()?.permissions();
    let limit = SnapshotLimits::default().file_bytes;
    let mut text = String::new();
    file.take(limit + 1).read_to_string(&mut text)?;
    if text.len() as u64 > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(Some((text, permissions)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn edit(path: &Path, before: Option<&str>, after: &str) -> LoggedEdit {
        let before = before.map(str::to_owned);
        let is_partial = before.as_deref().is_some_and(crate::tool::Activity::is_part);
        LoggedEdit::plan(ChangedFile { path: path.to_owned(), before, after: after.to_owned(), is_partial })
    }

    #[test]
    fn a_link_in_place_of_a_folder_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let path = |path: &str| folder.path().canonicalize().unwrap().join(path);
        fs::create_dir_all(path("project/build")).unwrap();
        fs::create_dir(path("outside")).unwrap();
        fs::write(path("project/build/x"), "after").unwrap();
        fs::write(path("outside/x"), "after").unwrap();
        let edit = || edit(&path("project/build/x"), Some("before"), "after");
        assert_eq!(edit().put_back(false), Ok(()));
        assert_eq!(fs::read_to_string(path("project/build/x")).unwrap(), "before");
        fs::remove_dir_all(path("project/build")).unwrap();
        symlink(path("outside"), path("project/build")).unwrap();
        assert_eq!(edit().put_back(false), Err(KeepReason::ChangedSince));
        assert!(matches!(edit().put_back(true), Err(KeepReason::Failed(_))));
        assert_eq!(fs::read_to_string(path("outside/x")).unwrap(), "after");
    }

    #[test]
    fn force_replaces_what_was_changed_since() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("x");
        fs::write(&path, "of the user").unwrap();
        let planned = edit(&path, Some("before"), "after");
        assert_eq!(planned.difference().now.as_deref(), Some("of the user"), "the present text is shown");
        assert_eq!(planned.put_back(false), Err(KeepReason::ChangedSince));
        assert_eq!(planned.put_back(true), Ok(()));
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        assert_eq!(planned.put_back(true), Err(KeepReason::ChangedSince), "it is not what was shown");
        fs::remove_file(&path).unwrap();
        assert_eq!(edit(&path, Some("before"), "after").put_back(true), Ok(()));
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        fs::write(&path, "of the user").unwrap();
        assert_eq!(edit(&path, None, "after").put_back(true), Ok(()));
        assert!(!path.exists());
    }

    #[test]
    fn a_part_of_a_file_is_never_restored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("x");
        fs::write(&path, "after").unwrap();
        let planned = edit(&path, Some("first\n[... 66.7 kB left out]\n"), "after");
        assert_eq!(planned.put_back(false), Err(KeepReason::NotCovered));
        assert_eq!(planned.put_back(true), Err(KeepReason::NotCovered));
        assert_eq!(fs::read_to_string(&path).unwrap(), "after");
    }

    #[test]
    fn a_session_may_be_in_a_folder_behind_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let path = |path: &str| folder.path().canonicalize().unwrap().join(path);
        fs::create_dir(path("real")).unwrap();
        symlink(path("real"), path("link")).unwrap();
        assert_eq!(below_real_folder(&path("link/a/x"), &path("link")), path("real/a/x"));
        assert_eq!(below_real_folder(&path("other/x"), &path("link")), path("other/x"));
    }
}
