//! Restores an earlier state of a session: its history, and the files that its turns changed.
//!
//! A restore keeps the present state first, and is itself a step that can be reversed. The event log keeps all events.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::checkpoints::run_blocking;
use super::recorder::row;
use super::sessions::Sessions;
use super::undo::{ChangedFile, TurnSummary, find_undone, list_turns};
use super::{PromptError, Session, SessionError};
use crate::agents::{Event, History};
use crate::checkpoint::{
    CheckpointError, CheckpointStep, FileDifference, KeepReason, KeptFile, RestorePlan, Snapshot, SnapshotLimits,
    StepKind, Workspace,
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
    edits: Vec<ChangedFile>,
    /// The prompt of the turn to go back to. Empty if the restore goes forward.
    pub prompt: String,
    /// The calls that are undone in the history. Their effects outside the covered files remain.
    pub calls: Vec<ToolUse>,
    /// The files that would change, and those that stay although a turn changed them.
    pub differences: Vec<FileDifference>,
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
        undone.files.retain(|file| is_here && !plan.covers(&file.path));
        differences.extend(undone.files.iter().map(edit_difference));
        Ok(Some(PlannedRestore {
            session: id.to_owned(),
            events: events.len(),
            place,
            kind,
            plan,
            present,
            workspace,
            edits: undone.files,
            prompt,
            calls: undone.calls,
            differences,
        }))
    }

    /// Makes a planned restore: keeps the present state, restores files, and then the history. Fails if the session has
    /// changed since.
    pub async fn restore(&self, planned: PlannedRestore, files: RestoreFiles) -> Result<RestoreReport, SessionError> {
        let PlannedRestore { session, events, place, kind, plan, present, workspace, edits, differences, .. } = planned;
        if self.events(&session).await?.len() != events {
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
            if let Err(reason) = put_back(edit) {
                kept.push(KeptFile { path: edit.path.clone(), reason });
            }
        }
        let event = Event::Undone { events: place };
        self.store.append(&session, row(&event));
        self.store.flush(&session).await?;
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

fn edit_difference(edit: &ChangedFile) -> FileDifference {
    FileDifference {
        path: edit.path.clone(),
        now: Some(edit.after.clone()),
        then: edit.before.clone(),
        is_removal: edit.before.is_none(),
        kept: (!is_as_left(edit)).then_some(KeepReason::ChangedSince),
    }
}

/// Restores a file that only the event log has. Fails if it was changed since, which may have happened while the user
/// was asked.
fn put_back(edit: &ChangedFile) -> Result<(), KeepReason> {
    if !is_as_left(edit) {
        return Err(KeepReason::ChangedSince);
    }
    let write = || -> io::Result<()> {
        let folder = edit.path.parent().unwrap_or(Path::new("/")).canonicalize()?;
        let path = folder.join(edit.path.file_name().unwrap_or_default());
        let rooted = RootedPath::open(&[folder], &path)?;
        match &edit.before {
            Some(before) => rooted.replace(before.as_bytes(), &path.symlink_metadata()?.permissions()),
            None => rooted.remove_file(),
        }
    };
    write().map_err(|error| KeepReason::Failed(error.to_string()))
}

/// Returns true if the file has not changed since the turn. Large files are recorded only in part, so this is always
/// false for them.
fn is_as_left(edit: &ChangedFile) -> bool {
    fs::read(&edit.path).is_ok_and(|now| now == edit.after.as_bytes())
}
