//! Keeps the open permission requests and elicitations of all sessions, also of other clients, so that the console can answer.
//!
//! Invariant: the first answer counts. A request is answered at most once, and a second answer changes nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use serde_json::Map;
use tokio::sync::{oneshot, watch};

use super::elicitation_form;
use super::form::FormFields;
use crate::clock;
use crate::graph::{ProcessKind, profile_text};
use crate::ids::{ModeId, random_id};
use crate::principal::{ApprovalLevel, SessionFiles, SessionGrant};
use crate::session::{Session, SessionRoots};
use crate::tool::ask::{Asker, ExternalPermissionRequest, PermissionRequest, PermissionResponse};
use crate::tool::elicit::{Elicitation, ElicitationKind, ElicitationResponse};

/// How long an answered request is shown, in milliseconds.
const KEEP_TIME: u64 = 5 * 60 * 1_000;
/// Answered requests that are kept.
const MAX_CLOSED: usize = 200;

/// The number of the first request of this process. It is random, so that replicas have different numbers.
static FIRST_NUMBER: LazyLock<u64> = LazyLock::new(|| {
    let random: String = random_id("").chars().filter(char::is_ascii_hexdigit).take(8).collect();
    u64::from_str_radix(&random, 16).unwrap_or_default() << 20
});

/// What a session asks.
#[derive(Debug, Clone)]
pub(super) enum RequestKind {
    Permission(Box<PermissionRequest>),
    /// A request of an external agent, with its own options.
    Choice(Box<ExternalPermissionRequest>),
    /// A form or a page of a service.
    Elicitation(Box<Elicitation>),
}

/// An answer of the console.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RequestAnswer {
    Permission(PermissionResponse),
    /// The id of an option.
    Choice(String),
    Elicitation(ElicitationResponse),
}

/// The session that asks.
#[derive(Debug, Clone)]
pub(super) struct RequestSource {
    /// The grant of the token that opened the session.
    opener: SessionGrant,
    pub(super) session: String,
    pub(super) title: Option<String>,
    pub(super) mode: ModeId,
    pub(super) folder: PathBuf,
    files: SessionFiles,
    /// The sandbox of the mode's commands, in words.
    pub(super) sandbox: String,
}

impl RequestSource {
    fn is_visible(&self, grant: &SessionGrant) -> bool {
        let limits = grant.limits();
        self.opener.principal() == grant.principal()
            && grant.check_session_of(&self.opener).is_ok()
            && limits.admits_mode(&self.mode)
            && (grant.principal().is_local()
                || self.files != SessionFiles::Server
                || limits.admits_folder(&self.folder))
    }

    /// Returns whether a login may answer a request of this kind. A token that cannot consent to calls of a session
    /// that it opened cannot do so for another token of its principal.
    fn admits_answer(&self, kind: &RequestKind, grant: &SessionGrant) -> bool {
        matches!(kind, RequestKind::Elicitation(_))
            || grant.is_same_token(&self.opener)
            || grant.limits().admits_approval(ApprovalLevel::Ask)
    }
}

/// A request as a page shows it.
#[derive(Debug, Clone)]
pub(super) struct ShownRequest {
    pub(super) number: u64,
    pub(super) source: RequestSource,
    pub(super) kind: RequestKind,
    pub(super) asked_at: u64,
    /// The answer that counted. `None` while the request is open.
    pub(super) answer: Option<String>,
}

/// Why an answer does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestAnswerError {
    #[error("There is no such request.")]
    Unknown,
    #[error("Your token must not answer for the session of another token.")]
    Forbidden,
    #[error("This request is closed: {0}.")]
    Closed(String),
    #[error("This request does not accept that answer.")]
    Unfit,
}

/// The requests of all principals.
#[derive(Debug, Default)]
pub(super) struct OpenRequests {
    state: Mutex<RequestState>,
    /// Counts changes. Event streams subscribe to it.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct RequestState {
    next: u64,
    requests: BTreeMap<u64, KnownRequest>,
}

#[derive(Debug)]
struct KnownRequest {
    source: RequestSource,
    kind: RequestKind,
    asked_at: u64,
    outcome: RequestOutcome,
}

#[derive(Debug)]
enum RequestOutcome {
    /// The asker of the session waits for the answer.
    Open(oneshot::Sender<RequestAnswer>),
    Closed {
        answer: String,
        at: u64,
    },
}

impl OpenRequests {
    /// Returns the requests that a login may see, oldest first: the open ones, and those answered in the last minutes.
    pub(super) fn list(&self, grant: &SessionGrant) -> Vec<ShownRequest> {
        let now = clock::now();
        let state = self.state();
        let shown = state.requests.iter().filter(|(_, request)| request.source.is_visible(grant));
        let recent = shown.filter(|(_, request)| match &request.outcome {
            RequestOutcome::Open(_) => true,
            RequestOutcome::Closed { at, .. } => now.saturating_sub(*at) < KEEP_TIME,
        });
        recent.map(|(number, request)| request.view(*number)).collect()
    }

    /// Returns the number of open requests that a login may see.
    pub(super) fn count(&self, grant: &SessionGrant) -> usize {
        let state = self.state();
        state.requests.values().filter(|request| request.is_open() && request.source.is_visible(grant)).count()
    }

    /// Returns whether a session waits for an answer.
    pub(super) fn is_waiting(&self, session: &str) -> bool {
        self.state().requests.values().any(|request| request.is_open() && request.source.session == session)
    }

    /// Answers a request with its form. Fails if the request is closed, not of this login, or its token must not
    /// consent.
    pub(super) fn answer(
        &self,
        number: u64,
        form: &FormFields,
        grant: &SessionGrant,
    ) -> Result<(), RequestAnswerError> {
        {
            let mut state = self.state();
            let request = state.requests.get_mut(&number).filter(|request| request.source.is_visible(grant));
            let request = request.ok_or(RequestAnswerError::Unknown)?;
            if let RequestOutcome::Closed { answer, .. } = &request.outcome {
                return Err(RequestAnswerError::Closed(answer.clone()));
            }
            if !request.source.admits_answer(&request.kind, grant) {
                return Err(RequestAnswerError::Forbidden);
            }
            let (answer, text) = read_answer(&request.kind, form).ok_or(RequestAnswerError::Unfit)?;
            let closed = RequestOutcome::Closed { answer: format!("{text} in the console"), at: clock::now() };
            if let RequestOutcome::Open(sender) = std::mem::replace(&mut request.outcome, closed)
                && sender.send(answer).is_err()
            {
                let text = "the session no longer waits for an answer".to_owned();
                request.outcome = RequestOutcome::Closed { answer: text.clone(), at: clock::now() };
                return Err(RequestAnswerError::Closed(text));
            }
        }
        self.note_change();
        Ok(())
    }

    /// Returns a receiver that learns of each change.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns an asker that adds the questions of a session.
    pub(super) fn asker(self: &Arc<Self>, session: &Arc<Session>) -> Arc<dyn Asker> {
        Arc::new(ConsoleAsker { requests: Arc::clone(self), session: Arc::downgrade(session) })
    }

    fn open(&self, source: RequestSource, kind: RequestKind) -> (u64, oneshot::Receiver<RequestAnswer>) {
        let (sender, receiver) = oneshot::channel();
        let number = {
            let mut state = self.state();
            let number = *FIRST_NUMBER + state.next;
            state.next += 1;
            state.remove_old();
            let request = KnownRequest { source, kind, asked_at: clock::now(), outcome: RequestOutcome::Open(sender) };
            state.requests.insert(number, request);
            number
        };
        self.note_change();
        (number, receiver)
    }

    /// Closes a request that another client answered, or that the turn withdrew.
    fn withdraw(&self, number: u64) {
        {
            let mut state = self.state();
            let request = state.requests.get_mut(&number).filter(|request| request.is_open());
            let Some(request) = request else { return };
            let answer = "answered by another client, or withdrawn".to_owned();
            request.outcome = RequestOutcome::Closed { answer, at: clock::now() };
        }
        self.note_change();
    }

    fn note_change(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn state(&self) -> MutexGuard<'_, RequestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestState {
    fn remove_old(&mut self) {
        let closed: Vec<u64> =
            self.requests.iter().filter(|(_, request)| !request.is_open()).map(|(number, _)| *number).collect();
        let surplus = closed.len().saturating_sub(MAX_CLOSED);
        closed[..surplus].iter().for_each(|number| drop(self.requests.remove(number)));
    }
}

impl KnownRequest {
    fn is_open(&self) -> bool {
        matches!(self.outcome, RequestOutcome::Open(_))
    }

    fn view(&self, number: u64) -> ShownRequest {
        let answer = match &self.outcome {
            RequestOutcome::Open(_) => None,
            RequestOutcome::Closed { answer, .. } => Some(answer.clone()),
        };
        ShownRequest { number, source: self.source.clone(), kind: self.kind.clone(), asked_at: self.asked_at, answer }
    }
}

/// Returns what a form means, and how a person says it. `None` if the request does not accept it.
fn read_answer(kind: &RequestKind, form: &FormFields) -> Option<(RequestAnswer, String)> {
    let word = form.get("answer").unwrap_or_default();
    match kind {
        RequestKind::Elicitation(question) => {
            let (response, text) = match (word, &question.kind) {
                ("accept", ElicitationKind::Fields(schema)) => {
                    (ElicitationResponse::Accepted(elicitation_form::read(schema, form)?), "filled in")
                }
                ("accept", ElicitationKind::Page { .. }) => (ElicitationResponse::Accepted(Map::new()), "done"),
                ("decline", _) => (ElicitationResponse::Declined, "declined"),
                _ => return None,
            };
            Some((RequestAnswer::Elicitation(response), text.to_owned()))
        }
        RequestKind::Permission(request) => {
            let (response, text) = match word {
                "allow" => (PermissionResponse::Allow, "allowed once"),
                "allow-always" if request.once_reason().is_none() => {
                    (PermissionResponse::AllowAlways, "always allowed")
                }
                "reject" => (PermissionResponse::Refuse, "rejected"),
                "reject-always" if !request.is_single() => (PermissionResponse::RefuseAlways, "always rejected"),
                _ => return None,
            };
            Some((RequestAnswer::Permission(response), text.to_owned()))
        }
        RequestKind::Choice(request) => {
            let id = word.strip_prefix("option:")?;
            let option = request.options.iter().find(|option| option.id == id)?;
            Some((RequestAnswer::Choice(option.id.clone()), format!("answered with `{}`", option.name)))
        }
    }
}

/// Shows the questions of one session in the console.
struct ConsoleAsker {
    requests: Arc<OpenRequests>,
    session: std::sync::Weak<Session>,
}

/// Withdraws a request when the session no longer waits for it.
struct RequestGuard<'a> {
    requests: &'a OpenRequests,
    number: u64,
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        self.requests.withdraw(self.number);
    }
}

impl ConsoleAsker {
    /// Waits for an answer of the console. `None` if the session is over.
    async fn put(&self, kind: RequestKind) -> Option<RequestAnswer> {
        let source = {
            let session = self.session.upgrade()?;
            let mode = session.choice().mode;
            let roots = SessionRoots::of(session.context());
            RequestSource {
                opener: session.sessions().grant().clone(),
                session: session.id().to_owned(),
                title: session.title(),
                sandbox: profile_text(ProcessKind::Command, session.plan().mode_sandbox(&mode)),
                mode,
                folder: roots.cwd,
                files: roots.files,
            }
        };
        let (number, answer) = self.requests.open(source, kind);
        let _open = RequestGuard { requests: &self.requests, number };
        answer.await.ok()
    }
}

impl Asker for ConsoleAsker {
    fn ask(&self, question: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        Box::pin(async move {
            match self.put(RequestKind::Permission(Box::new(question))).await {
                Some(RequestAnswer::Permission(answer)) => answer,
                _ => PermissionResponse::Unavailable,
            }
        })
    }

    fn elicit(&self, question: Elicitation) -> BoxFuture<'_, ElicitationResponse> {
        Box::pin(async move {
            // No client may show it.
            if question.refusal().is_some() {
                return ElicitationResponse::Declined;
            }
            match self.put(RequestKind::Elicitation(Box::new(question))).await {
                Some(RequestAnswer::Elicitation(answer)) => answer,
                _ => ElicitationResponse::Unavailable,
            }
        })
    }

    fn choose(&self, request: ExternalPermissionRequest) -> BoxFuture<'_, Option<String>> {
        Box::pin(async move {
            match self.put(RequestKind::Choice(Box::new(request))).await {
                Some(RequestAnswer::Choice(id)) => Some(id),
                _ => None,
            }
        })
    }
}

#[cfg(test)]
#[path = "requests_tests.rs"]
mod tests;
