//! Makes the checkpoints of a session: before the first call of a turn that may change files, and after the turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures::future::BoxFuture;

use super::{PromptError, Session};
use crate::checkpoint::{
    CheckpointError, CheckpointStep, CheckpointStore, CoverageGap, SessionHold, Snapshot, SnapshotLimits, StepKind,
    Workspace,
};
use crate::sandbox::HiddenPaths;
use crate::tool::{CheckpointKeeper, Notice, NoticeSink, SessionContext, strip_to_line};

/// Maximum number of files that a notice names.
const MAX_NAMED: usize = 5;

/// The checkpoints of an open session.
pub(super) struct SessionCheckpoints {
    store: CheckpointStore,
    session: String,
    workspace: Workspace,
    /// Number of events in the session's event log.
    events: Arc<AtomicU64>,
    notices: Arc<dyn NoticeSink>,
    state: tokio::sync::Mutex<KeeperState>,
    /// The user knows which files are not covered.
    has_told: AtomicBool,
}

#[derive(Default)]
struct KeeperState {
    turn: KeeperTurn,
    /// The newest snapshot of this process.
    last: Option<Arc<Snapshot>>,
}

#[derive(Default)]
enum KeeperTurn {
    /// No call of the turn may have changed a file.
    #[default]
    Unchanged,
    Step(Box<CheckpointStep>),
    /// The checkpoint could not be made, and the user knows.
    Failed,
}

impl SessionCheckpoints {
    /// Makes the checkpoints of a session from now on.
    pub(super) fn attach(
        store: CheckpointStore,
        hidden: HiddenPaths,
        context: &SessionContext,
        events: &Arc<AtomicU64>,
    ) -> Arc<Self> {
        let roots = context.roots.iter().filter(|root| **root != context.scratch).cloned().collect();
        let workspace = Workspace { roots, hidden, limits: SnapshotLimits::default() };
        let checkpoints = Arc::new(Self {
            store,
            session: context.id.clone(),
            workspace,
            events: Arc::clone(events),
            notices: Arc::clone(&context.notices),
            state: tokio::sync::Mutex::default(),
            has_told: AtomicBool::new(false),
        });
        context.keeper.get_or_init(|| Arc::clone(&checkpoints) as Arc<dyn CheckpointKeeper>);
        checkpoints
    }

    /// Keeps the state after the turn, if a call may have changed it.
    pub(super) async fn finish(&self) {
        let mut state = self.state.lock().await;
        let KeeperTurn::Step(step) = std::mem::take(&mut state.turn) else { return };
        let (store, session, workspace) = (self.store.clone(), self.session.clone(), self.workspace.clone());
        let finished = run_blocking(move || {
            let mut step = *step;
            store.finish(&session, &mut step, &workspace)?;
            Ok(step.after)
        });
        match finished.await {
            Ok(after) => state.last = after.map(Arc::new),
            Err(error) => self.warn(&error),
        }
    }

    /// Forgets the step of a turn that was dropped. The next state stands for the one after it.
    pub(super) fn abandon(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            state.turn = KeeperTurn::Unchanged;
        }
    }

    async fn begin(&self) {
        let mut state = self.state.lock().await;
        if !matches!(state.turn, KeeperTurn::Unchanged) {
            return;
        }
        let (store, session, workspace) = (self.store.clone(), self.session.clone(), self.workspace.clone());
        let (known, events) = (state.last.clone(), self.events.load(Ordering::Relaxed));
        let begun = run_blocking(move || {
            // A snapshot of an earlier process only saves time.
            let known = known.or_else(|| store.last_snapshot(&session).ok().flatten().map(Arc::new));
            store.begin(&session, (events, StepKind::Turn), &workspace, known.as_deref())
        });
        state.turn = match begun.await {
            Ok(step) => {
                self.tell_gaps(&step.before);
                KeeperTurn::Step(Box::new(step))
            }
            Err(error) => {
                self.warn(&error);
                KeeperTurn::Failed
            }
        };
    }

    fn warn(&self, error: &CheckpointError) {
        let text = format!("this turn has no checkpoint, so it cannot be undone: {error}");
        self.notices.send(Notice::new(strip_to_line(&text)));
    }

    /// Names the files that are not covered, once per opening of the session.
    fn tell_gaps(&self, snapshot: &Snapshot) {
        if let Some(text) = gap_text(snapshot, &self.workspace.limits)
            && !self.has_told.swap(true, Ordering::Relaxed)
        {
            self.notices.send(Notice::new(strip_to_line(&text)));
        }
    }
}

/// Returns a sentence about the files that a checkpoint does not cover, other than ignored ones. `None` if there are
/// none.
fn gap_text(snapshot: &Snapshot, limits: &SnapshotLimits) -> Option<String> {
    if snapshot.is_partial() {
        let limit = limits.entries;
        return Some(format!("checkpoints cover only the first {limit} files and folders of this workspace"));
    }
    let gaps: Vec<_> = snapshot.gaps().filter(|(_, gap)| *gap != CoverageGap::Special).collect();
    let named: Vec<_> = gaps.iter().take(MAX_NAMED).map(|(path, gap)| format!("{path} ({gap})")).collect();
    let more = gaps.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!gaps.is_empty()).then(|| format!("checkpoints do not cover {}{more}", named.join(", ")))
}

impl Session {
    /// Keeps other processes from working on the session while a turn runs. Fails if one does. `None` if the session has
    /// no checkpoints, or the lock cannot be used; the log has the reason.
    pub(super) async fn hold_turn(&self) -> Result<Option<SessionHold>, PromptError> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(None) };
        let (store, session) = (checkpoints.store.clone(), checkpoints.session.clone());
        let held = if self.sessions.store.ownership().is_some() {
            // The database decides which replica has the session. A replica that lost it may still hold the lock.
            run_blocking(move || store.share_turn(&session)).await
        } else {
            // On this thread: opening and locking a file takes less time than a change of threads.
            store.hold_alone(&session)
        };
        match held {
            Ok(hold) => Ok(Some(hold)),
            Err(CheckpointError::Running) => Err(PromptError::BusyElsewhere),
            Err(error) => {
                tracing::warn!(%error, session = self.id(), "another process may disturb this turn");
                Ok(None)
            }
        }
    }

    /// Keeps the state of the files after a turn.
    pub(super) async fn finish_checkpoint(&self) {
        if let Some(checkpoints) = &self.checkpoints {
            checkpoints.finish().await;
        }
    }
}

impl CheckpointKeeper for SessionCheckpoints {
    fn before_change(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.begin())
    }
}

/// Runs work on files outside the async threads.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CheckpointError> + Send + 'static,
) -> Result<T, CheckpointError> {
    match crate::task::run_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(CheckpointError::Interrupted(error.to_string())),
    }
}
