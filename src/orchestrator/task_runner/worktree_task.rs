//! Runs a task in its own git worktree if a manifest or config requires it, and merges its changes after consent.
//!
//! Invariant: the changes of a task reach the user's files only after consent, and all at once. Else they stay on the
//! task's branch, and the report names it.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{ChildTurnError, DelegatedTask, TaskRunner, waiting};
use crate::manifest::{ApprovalLevel, TaskWorkspace};
use crate::orchestrator::child::ChildAsker;
use crate::principal::{SessionFiles, SessionGrant};
use crate::session::{SessionError, SessionRoots};
use crate::tool::ask::{Asker, ConsentSubject, PermissionRequest, PermissionResponse, TASK_MERGE};
use crate::tool::delegate::TaskState;
use crate::tool::{AuditKind, AuditRecord, AuditSource, AuditVerdict};
use crate::worktree::{MergeResult, Repository, TaskChanges, TaskResult, TaskWorktree};

/// Files that a report or a title names.
const MAX_NAMED: usize = 10;

/// Why the changes of a task are not in the user's files.
#[derive(Debug, thiserror::Error)]
enum MergeRefusal {
    #[error("the user refused the merge")]
    Refused,
    #[error("the merge needs consent and no user can be asked")]
    NoUser,
    #[error("the approval level of the session is `{}`", .0.as_str())]
    Level(ApprovalLevel),
    #[error("the task was cancelled")]
    Cancelled,
    #[error("there are conflicts, because the user's files have changed too: {}", names(.0))]
    Conflict(Vec<String>),
    #[error("they are not all in the folders of the session, and Skein merges all or none: {}", names(.0))]
    Outside(Vec<String>),
    /// Another error, as text.
    #[error("{0}")]
    Other(String),
}

impl MergeRefusal {
    fn other(error: impl std::fmt::Display) -> Self {
        Self::Other(error.to_string())
    }

    /// Fails if a merge was not, or cannot be, made.
    fn check(merged: MergeResult) -> Result<(), Self> {
        match merged {
            MergeResult::Clean => Ok(()),
            MergeResult::Conflict(files) => Err(Self::Conflict(files)),
            MergeResult::Outside(files) => Err(Self::Outside(files)),
        }
    }

    /// Returns the state of the task. Without a user, the branch is the result. Else tasks that wait for this one must
    /// not start without its changes.
    fn state(&self) -> TaskState {
        match self {
            Self::NoUser => TaskState::Done,
            Self::Cancelled => TaskState::Cancelled,
            Self::Refused | Self::Level(_) | Self::Conflict(_) | Self::Outside(_) | Self::Other(_) => TaskState::Failed,
        }
    }
}

impl TaskRunner {
    /// Runs one turn of another agent in a child session, in a worktree if a manifest or config requires it.
    pub(super) async fn child_turn(
        &self,
        delegated: &DelegatedTask,
        mut prompt: String,
    ) -> Result<(TaskState, String), ChildTurnError> {
        let Some(worktree) = self.make_worktree(delegated).await? else {
            return self.run_child(delegated, prompt, None).await;
        };
        prompt.push_str(&format!(
            "\n\nYou work in your own git worktree, with a copy of the user's files. When you are done, Skein \
             commits your changes to the branch `{}`. Do not commit, and do not switch branches.",
            worktree.branch()
        ));
        let place = SessionRoots {
            cwd: worktree.cwd(),
            roots: Vec::new(),
            files: SessionFiles::Own,
            scratch: Some(worktree.scratch()),
        };
        let ended = self.run_child(delegated, prompt, Some(place)).await;
        let (state, said) = ended.unwrap_or_else(|error| (TaskState::Failed, error.to_string()));
        Ok(self.bring_back(delegated, worktree, state, said).await)
    }

    /// Creates the worktree of a task. `None` if it works in the folders of the session.
    async fn make_worktree(&self, delegated: &DelegatedTask) -> Result<Option<TaskWorktree>, ChildTurnError> {
        let session = self.session()?;
        let agent = session.choice().mode.agent;
        match session.turn_plan().manifests().task_workspace(&agent, &delegated.mode) {
            TaskWorkspace::Shared => return Ok(None),
            TaskWorkspace::Worktree => {}
        }
        let context = session.context();
        if context.client_folders().is_some() {
            return Err(ChildTurnError::ClientFiles);
        }
        let worktrees = self.orchestrator.worktrees().ok_or(ChildTurnError::NoWorktrees)?;
        let mut repository = worktrees.locate(&context.cwd).await?;
        check_repository(session.sessions().grant(), &mut repository).map_err(|error| *error)?;
        let place = (context.cwd.as_path(), context.roots.as_slice());
        Ok(Some(worktrees.create(repository, place, &delegated.id, &delegated.task.text).await?))
    }

    /// Saves the changes of a task on its branch, merges them after consent, and removes the worktree. Returns the state
    /// of the task and its report.
    async fn bring_back(
        &self,
        delegated: &DelegatedTask,
        worktree: TaskWorktree,
        state: TaskState,
        said: String,
    ) -> (TaskState, String) {
        let TaskResult { changes, left_out } = match worktree.capture(&said).await {
            Ok(result) => result,
            Err(error) => {
                // The worktree stays, and the next start tries again.
                let place = worktree.cwd();
                let note = format!("The changes are not on a branch: {error}. They are in `{}`.", place.display());
                return (TaskState::Failed, with_note(&said, &note));
            }
        };
        let (state, mut said) = match changes {
            Some(changes) => {
                let (state, note) = self.hand_over(delegated, &worktree, &changes, state).await;
                (state, with_note(&said, &note))
            }
            None => (state, said),
        };
        if left_out.is_empty() {
            worktree.remove();
        } else {
            let (files, place) = (names(&left_out), worktree.tree());
            let note = format!(
                "Not on a branch and not merged, because a filter converts them or they are repositories: {files}. \
                 They stay in `{0}`. `git worktree remove --force {0}` deletes them.",
                place.display()
            );
            said = with_note(&said, &note);
        }
        (state, said)
    }

    /// Merges the changes of a task that is done. Returns its state and a remark.
    async fn hand_over(
        &self,
        delegated: &DelegatedTask,
        worktree: &TaskWorktree,
        changes: &TaskChanges,
        state: TaskState,
    ) -> (TaskState, String) {
        let (branch, files) = (&changes.branch, names_of(changes));
        if state != TaskState::Done {
            return (state, format!("What it has changed in {files} is only on the branch `{branch}`."));
        }
        match self.merge(delegated, worktree, changes).await {
            Ok(()) => {
                let note = format!(
                    "The changes of {files} are merged into the user's files, not committed. They are also on the \
                     branch `{branch}`."
                );
                (state, note)
            }
            Err(refusal) => {
                let note = format!("The changes of {files} are only on the branch `{branch}`: {refusal}.");
                (refusal.state(), note)
            }
        }
    }

    async fn merge(
        &self,
        delegated: &DelegatedTask,
        worktree: &TaskWorktree,
        changes: &TaskChanges,
    ) -> Result<(), MergeRefusal> {
        MergeRefusal::check(worktree.check_merge(changes).await.map_err(MergeRefusal::other)?)?;
        self.ask_for_merge(delegated, changes).await?;
        let (keeper, parent) = {
            let session = self.session().map_err(MergeRefusal::other)?;
            let parent = session.notifier().map(|notifier| Arc::downgrade(&notifier));
            (session.context().keeper.get().cloned(), parent)
        };
        // A task in the folders of the session may write to the same files.
        let lock = self.file_locks.of(&delegated.id, waiting(delegated.mode.to_string(), parent));
        let files = changes.files.iter().map(|file| worktree.top().join(&file.path)).collect();
        tokio::select! {
            biased;
            () = delegated.cancel.cancelled() => return Err(MergeRefusal::Cancelled),
            locked = lock.acquire(files) => locked.map_err(MergeRefusal::other)?,
        }
        if let Some(keeper) = keeper {
            keeper.before_change().await;
        }
        MergeRefusal::check(worktree.merge(changes).await.map_err(MergeRefusal::other)?)
    }

    /// Decides about the merge and records the decision. Asks the user, at the level `auto` only if the merge writes a
    /// protected path.
    async fn ask_for_merge(&self, delegated: &DelegatedTask, changes: &TaskChanges) -> Result<(), MergeRefusal> {
        let (asker, audit, level, actor) = {
            let session = self.session().map_err(MergeRefusal::other)?;
            let binding = session.turn_binding().await.map_err(MergeRefusal::other)?;
            let audit = Arc::clone(&session.context().audit);
            (Arc::clone(binding.asker()), audit, binding.approval(), binding.mode().to_string())
        };
        let files: Vec<String> = changes.files.iter().map(ToString::to_string).collect();
        let arguments: Map<String, Value> = Map::from_iter([
            ("task".to_owned(), json!(delegated.task.text)),
            ("branch".to_owned(), json!(changes.branch)),
            ("files".to_owned(), json!(files)),
        ]);
        let (source, decided) = match level {
            ApprovalLevel::Auto if changes.protected.is_none() => (AuditSource::Level, Ok(())),
            ApprovalLevel::Auto | ApprovalLevel::Ask | ApprovalLevel::Smart => {
                ask_user(asker, delegated, changes, arguments.clone()).await
            }
            ApprovalLevel::ReadOnly | ApprovalLevel::Deny => (AuditSource::Level, Err(MergeRefusal::Level(level))),
        };
        let rule = changes.protected.as_ref().map_or(level.as_str(), |path| path.name);
        audit.record(AuditRecord {
            kind: AuditKind::Call,
            actor,
            subject: TASK_MERGE.to_owned(),
            call: delegated.context.id.as_deref().map(str::to_owned),
            decision: if decided.is_ok() { AuditVerdict::Allow } else { AuditVerdict::Refuse },
            source,
            rule: Some(rule.to_owned()),
            arguments: Some(arguments),
        });
        decided
    }
}

/// Asks the user to consent to a merge. Also returns who decided.
async fn ask_user(
    asker: Arc<dyn Asker>,
    delegated: &DelegatedTask,
    changes: &TaskChanges,
    arguments: Map<String, Value>,
) -> (AuditSource, Result<(), MergeRefusal>) {
    let request = PermissionRequest {
        call: None,
        by: None,
        apart: None,
        chain: Vec::new(),
        tool: TASK_MERGE.to_owned(),
        title: Some(format!("Merge {} from the branch {}", names_of(changes), changes.branch)),
        target: None,
        change: None,
        protected: changes.protected.clone(),
        always: ConsentSubject::of(TASK_MERGE, &arguments, false, None),
        arguments,
        rule: None,
    };
    let (who, call) = (delegated.mode.to_string(), delegated.context.clone());
    let asker = ChildAsker { asker, call, who, session: Arc::default() };
    let response = tokio::select! {
        biased;
        () = delegated.cancel.cancelled() => return (AuditSource::Cancel, Err(MergeRefusal::Cancelled)),
        response = asker.ask(request) => response,
    };
    tracing::info!(branch = changes.branch, ?response, "the user was asked about a merge");
    match response {
        PermissionResponse::Allow | PermissionResponse::AllowAlways => (AuditSource::User, Ok(())),
        PermissionResponse::Refuse | PermissionResponse::RefuseAlways => {
            (AuditSource::User, Err(MergeRefusal::Refused))
        }
        PermissionResponse::Unavailable => (AuditSource::NoUser, Err(MergeRefusal::NoUser)),
    }
}

/// Fails if a part of the repository is outside the folders of the grant. A `.git` file, a link or a list of alternates
/// can lead there.
fn check_repository(grant: &SessionGrant, repository: &mut Repository) -> Result<(), Box<ChildTurnError>> {
    for folder in [repository.top(), repository.git(), repository.common()] {
        grant.check_folder(folder).map_err(|error| ChildTurnError::from(SessionError::from(error)))?;
    }
    if grant.is_remote() {
        repository.require_plain().map_err(ChildTurnError::from)?;
    }
    Ok(())
}

fn names_of(changes: &TaskChanges) -> String {
    let paths: Vec<String> = changes.files.iter().map(|file| file.path.display().to_string()).collect();
    names(&paths)
}

/// Lists files for people.
fn names(files: &[String]) -> String {
    let shown: Vec<_> = files.iter().take(MAX_NAMED).map(|file| format!("`{}`", file.escape_debug())).collect();
    match files.len().saturating_sub(MAX_NAMED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Adds a remark of Skein to the last answer of an agent.
fn with_note(said: &str, note: &str) -> String {
    format!("{said}\n\n[{note}]").trim_start().to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsString;
    use std::path::Path;

    use super::*;
    use crate::principal::{Principal, TokenLimits};
    use crate::worktree::TaskWorktrees;

    #[test]
    fn a_long_list_of_files_is_cut() {
        let files: Vec<String> = (0..12).map(|number| format!("f{number}")).collect();
        assert_eq!(names(&files[..2]), "`f0`, `f1`");
        assert!(names(&files).ends_with("`f9` and 2 more"));
        assert_eq!(names(&["a\nb".to_owned()]), "`a\\nb`");
    }

    #[test]
    fn a_conflict_names_the_files_and_fails_the_task() {
        let conflict = MergeRefusal::Conflict(vec!["a.txt".to_owned()]);
        let expected = "there are conflicts, because the user's files have changed too: `a.txt`";
        assert_eq!((conflict.to_string().as_str(), conflict.state()), (expected, TaskState::Failed));
        assert_eq!(MergeRefusal::NoUser.state(), TaskState::Done);
    }

    /// A git folder of a remote principal must not lead Skein, which is in no sandbox, to another repository.
    #[tokio::test]
    async fn each_part_of_a_repository_is_inside_the_folders_of_a_token() {
        let machine = tempfile::tempdir().unwrap();
        let base = machine.path().canonicalize().unwrap();
        let (private, ann) = (base.join("private"), base.join("ann"));
        for folder in [".git/objects", ".git/refs"] {
            std::fs::create_dir_all(private.join(folder)).unwrap();
        }
        std::fs::write(private.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        std::fs::create_dir(&ann).unwrap();
        std::fs::write(ann.join(".git"), format!("gitdir: {}\n", private.join(".git").display())).unwrap();
        let path = OsString::from("/usr/local/bin:/usr/bin:/bin");
        let environment = BTreeMap::from([("PATH".into(), path), ("HOME".into(), base.join("home").into())]);
        let worktrees = TaskWorktrees::new(base.join("data"), base.join("home"), Default::default(), environment);
        let check = |grant: SessionGrant, mut repository: Repository| {
            check_repository(&grant, &mut repository).map_err(|error| error.to_string())
        };
        let of = |root: &Path| {
            let limits = TokenLimits { roots: vec![root.to_owned()], ..TokenLimits::default() };
            SessionGrant::new(Principal::new("ann").unwrap(), limits)
        };
        let found = worktrees.locate(&ann).await.unwrap();
        assert_eq!(found.top(), ann);
        let refused = check(of(&ann), found.clone()).unwrap_err();
        assert!(refused.contains("private"), "{refused}");
        assert_eq!(check(of(&base), found.clone()), Ok(()));
        std::os::unix::fs::symlink(base.join("elsewhere"), private.join(".git/worktrees")).unwrap();
        let refused = check(of(&base), found.clone()).unwrap_err();
        assert!(refused.contains("worktrees"), "{refused}");
        assert_eq!(check(SessionGrant::local(), found), Ok(()));
    }
}
