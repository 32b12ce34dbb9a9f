//! Lets every attached client answer the questions of a session, and lends the files and terminals of the latest one.
//!
//! Invariant: the first answer counts; the other clients' requests are withdrawn.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::watch;

use super::session_viewers::ViewerId;
use crate::tool::ask::{Asker, ExternalPermissionRequest, PermissionRequest, PermissionResponse};
use crate::tool::editor::{Editor, EditorCapabilities, EditorError, Terminal, TerminalCommand};
use crate::tool::elicit::{Elicitation, ElicitationResponse};

/// How long it takes at most to notice that a connection is lost.
const DETACH_TIME: Duration = Duration::from_secs(1);

/// The clients that are attached to a session.
type AttachedAskers = Vec<(ViewerId, Arc<dyn Asker>)>;

/// An asker that sends each question to all attached clients, also to those that attach while it is open.
pub struct SharedAsker {
    askers: watch::Sender<AttachedAskers>,
    /// How long a question waits while no client can answer. Zero if the session has one client at most.
    patience: Duration,
    /// Also shown each question, and may answer it. It is no client: questions do not wait for it.
    observer: OnceLock<Arc<dyn Asker>>,
}

impl SharedAsker {
    pub fn new(patience: Duration) -> Self {
        Self { askers: watch::Sender::default(), patience, observer: OnceLock::new() }
    }

    /// Shows all further questions to an observer too. A session has one at most; a second one is ignored.
    pub fn set_observer(&self, observer: Arc<dyn Asker>) {
        self.observer.get_or_init(|| observer);
    }

    /// Adds the asker of a client, or replaces the earlier one of the same connection.
    pub fn attach(&self, id: ViewerId, asker: Arc<dyn Asker>) {
        self.askers.send_modify(|askers| {
            askers.retain(|(known, _)| *known != id);
            askers.push((id, asker));
        });
    }

    pub fn detach(&self, id: ViewerId) {
        self.askers.send_modify(|askers| askers.retain(|(known, _)| *known != id));
    }

    /// Returns the first answer of an attached client. `ask` returns `None` if a client cannot answer. Returns `None`
    /// if no client can.
    async fn first_answer<T>(&self, ask: impl Fn(Arc<dyn Asker>) -> BoxFuture<'static, Option<T>>) -> Option<T> {
        let mut attached = self.askers.subscribe();
        let mut asked: Vec<(ViewerId, Arc<dyn Asker>)> = Vec::new();
        let mut answers = FuturesUnordered::new();
        let mut observed: FuturesUnordered<_> =
            self.observer.get().map(|observer| ask(Arc::clone(observer))).into_iter().collect();
        loop {
            let now = attached.borrow_and_update().clone();
            let is_asked = |asker: &Arc<dyn Asker>| asked.iter().any(|(_, known)| Arc::ptr_eq(known, asker));
            let new: Vec<_> = now.iter().filter(|(_, asker)| !is_asked(asker)).cloned().collect();
            for (_, asker) in &new {
                let answer = ask(Arc::clone(asker));
                let grace = DETACH_TIME.min(self.patience);
                answers.push(async move {
                    let answer = answer.await;
                    // A client whose connection is lost gives no answer, and is detached soon.
                    if answer.is_none() {
                        tokio::time::sleep(grace).await;
                    }
                    answer
                });
            }
            asked.extend(new);
            let nobody = answers.is_empty();
            tokio::select! {
                biased;
                Some(answer) = answers.next() => match answer {
                    Some(answer) => return Some(answer),
                    None if answers.is_empty() && self.is_attached(&asked) => return None,
                    // Another client may still answer, or this one may come back on a new connection.
                    None => {}
                },
                // If the observer cannot answer, the clients still can.
                Some(answer) = observed.next() => if answer.is_some() {
                    return answer;
                },
                changed = attached.changed() => changed.ok()?,
                () = tokio::time::sleep(self.patience), if nobody => return None,
            }
        }
    }
}

impl SharedAsker {
    /// Returns true if a client that was asked is still there: it has chosen not to answer.
    fn is_attached(&self, asked: &[(ViewerId, Arc<dyn Asker>)]) -> bool {
        let now = self.askers.borrow();
        asked.iter().any(|(_, asker)| now.iter().any(|(_, known)| Arc::ptr_eq(known, asker)))
    }
}

impl Asker for SharedAsker {
    fn ask(&self, question: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        Box::pin(async move {
            let ask = |asker: Arc<dyn Asker>| -> BoxFuture<'static, _> {
                let question = question.clone();
                Box::pin(async move {
                    let answer = asker.ask(question).await;
                    (answer != PermissionResponse::Unavailable).then_some(answer)
                })
            };
            self.first_answer(ask).await.unwrap_or(PermissionResponse::Unavailable)
        })
    }

    fn choose(&self, request: ExternalPermissionRequest) -> BoxFuture<'_, Option<String>> {
        Box::pin(self.first_answer(move |asker| -> BoxFuture<'static, _> {
            let request = request.clone();
            Box::pin(async move { asker.choose(request).await })
        }))
    }

    fn elicit(&self, question: Elicitation) -> BoxFuture<'_, ElicitationResponse> {
        Box::pin(async move {
            let ask = |asker: Arc<dyn Asker>| -> BoxFuture<'static, _> {
                let question = question.clone();
                Box::pin(async move {
                    let answer = asker.elicit(question).await;
                    (answer != ElicitationResponse::Unavailable).then_some(answer)
                })
            };
            self.first_answer(ask).await.unwrap_or(ElicitationResponse::Unavailable)
        })
    }

    fn page_done(&self, by: &str, id: &str) {
        let askers = self.askers.borrow().clone();
        askers.iter().for_each(|(_, asker)| asker.page_done(by, id));
    }
}

/// The editors of the attached clients. Tools use the one that attached last.
#[derive(Default)]
pub struct SharedEditor {
    editors: Mutex<Vec<(ViewerId, Arc<dyn Editor>)>>,
}

impl SharedEditor {
    fn editors(&self) -> MutexGuard<'_, Vec<(ViewerId, Arc<dyn Editor>)>> {
        self.editors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the editor of a client, or replaces the earlier one of the same connection.
    pub fn attach(&self, id: ViewerId, editor: Option<Arc<dyn Editor>>) {
        let mut editors = self.editors();
        editors.retain(|(known, _)| *known != id);
        editors.extend(editor.map(|editor| (id, editor)));
    }

    pub fn detach(&self, id: ViewerId) {
        self.attach(id, None);
    }

    fn latest(&self) -> Option<Arc<dyn Editor>> {
        self.editors().last().map(|(_, editor)| Arc::clone(editor))
    }

    fn current(&self) -> Result<Arc<dyn Editor>, EditorError> {
        self.latest().ok_or_else(|| EditorError::Failed("no client is attached to the session".to_owned()))
    }
}

impl Editor for SharedEditor {
    fn abilities(&self) -> EditorCapabilities {
        self.latest().map(|editor| editor.abilities()).unwrap_or_default()
    }

    fn patience(&self) -> Duration {
        self.latest().map_or(Duration::from_secs(5), |editor| editor.patience())
    }

    fn read(&self, path: &Path) -> BoxFuture<'_, Result<String, EditorError>> {
        let path = path.to_owned();
        Box::pin(async move { self.current()?.read(&path).await })
    }

    fn write(&self, path: &Path, text: String) -> BoxFuture<'_, Result<(), EditorError>> {
        let path = path.to_owned();
        Box::pin(async move { self.current()?.write(&path, text).await })
    }

    fn run(&self, command: TerminalCommand) -> BoxFuture<'_, Result<Box<dyn Terminal>, EditorError>> {
        Box::pin(async move { self.current()?.run(command).await })
    }
}

impl std::fmt::Debug for SharedAsker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedAsker").field("clients", &self.askers.borrow().len()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for SharedEditor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedEditor").field("editors", &self.editors().len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "shared_ports_tests.rs"]
mod tests;
