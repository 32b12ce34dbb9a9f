//! Keeps what applies to an open session, and applies what has changed in its folder.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Project, ProjectError};
use crate::session::Session;
use crate::tool::Notice;

/// The project of an open session, as it was when its files last changed.
#[derive(Debug)]
pub struct SessionProject {
    project: Mutex<Project>,
    /// The last problem with changed files, which is shown once.
    problem: Mutex<Option<String>>,
}

impl SessionProject {
    /// Keeps the project that the session was opened with. The session has the notices about it.
    pub fn new(project: Project) -> Self {
        let problem = project.reload_notice();
        Self { project: Mutex::new(project), problem: Mutex::new(problem) }
    }

    pub fn current(&self) -> Project {
        lock(&self.project).clone()
    }

    /// Applies the manifests and settings of the session's folder if they have changed. Returns true if other ones apply
    /// from the next turn on. If the changed files have errors, the old ones stay and the session gets a notice.
    pub async fn reload(&self, session: &Session, loaded: Result<Project, ProjectError>) -> bool {
        let (project, mut problem) = match loaded {
            Ok(project) => {
                let problem = project.reload_notice();
                (Some(project), problem)
            }
            Err(error) => (None, Some(error.reload_notice())),
        };
        let before = self.current();
        let changed = project.filter(|project| !project.broker.plan().is_same(before.broker.plan()));
        let mut is_new = false;
        if let Some(project) = changed {
            match project.apply_to(session).await {
                Ok(()) => {
                    let notes = project.notes.iter().filter(|note| !before.notes.contains(note));
                    notes.for_each(|note| session.queue_notice(Notice::new(note)));
                    *lock(&self.project) = project;
                    is_new = true;
                }
                Err(error) => problem = Some(reload_notice_of(&error.to_string())),
            }
        }
        let mut shown = lock(&self.problem);
        if *shown != problem {
            if let Some(problem) = &problem {
                session.queue_notice(Notice::new(problem));
            }
            *shown = problem;
        }
        is_new
    }
}

/// Returns the notice about changed files with this problem.
pub(super) fn reload_notice_of(problem: &str) -> String {
    format!("the changed files are not used, and what applied before still applies: {problem}")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
