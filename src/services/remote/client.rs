//! Skein as the client of an MCP server: receives progress and logs, tracks list changes, and forwards questions to
//! the session they belong to.
//!
//! Invariant: on a connection that several sessions share, unsolicited messages of the server reach none of them,
//! because their addressee is unknown.
#![expect(deprecated, reason = "servers of both eras still log, ask for roots and for samples")]

pub(in crate::services::remote) mod questions;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::model::{
    ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult, CustomNotification,
    ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationCapability, ErrorCode, ErrorData,
    FormElicitationCapability, Implementation, ListRootsResult, LoggingLevel, LoggingMessageNotificationParam,
    ProgressNotificationParam, ProgressToken, RequestId, Root, RootsCapabilities, UrlElicitationCapability,
};
use rmcp::service::{InboundStreamOrigin, NotificationContext, RequestContext};
use rmcp::{ClientHandler, RoleClient};
use serde_json::Value;
use tokio::sync::{Notify, watch};

use crate::ids::ServiceName;
use crate::process::{OutputLimit, OutputVerdict};
use crate::sandbox::ProtectedWatches;
use crate::services::environment::SecretValues;
use crate::tool::ask::Asker;
use crate::tool::{
    Activity, CallContext, CallProgress, Notice, NoticeSink, SessionContext, SessionLifetime, strip_to_line, truncate,
};

/// Time to wait for the call that a question belongs to: a fast server asks before the call is registered.
const CALL_APPEARS: Duration = Duration::from_secs(1);
/// Maximum bytes of a log message.
const MAX_SAID: usize = 2_000;
/// Maximum number of open questions per call.
const MAX_ASKING: usize = 5;
/// Maximum number of opened pages whose completion the server may still report.
const MAX_PAGES_OPEN: usize = 100;

/// The session that a connection belongs to.
pub(in crate::services) struct Owner {
    /// The connection ends with it.
    pub(in crate::services) lifetime: SessionLifetime,
    pub(in crate::services) cwd: PathBuf,
    pub(in crate::services) roots: Vec<PathBuf>,
    pub(in crate::services) scratch: PathBuf,
    pub(in crate::services) protected: ProtectedWatches,
    /// Receives notices for the session's user. A child session may be the first to use the connection; its sink is
    /// replaced when its parent does.
    pub(in crate::services) notices: Mutex<Arc<dyn NoticeSink>>,
}

impl Owner {
    pub(in crate::services) fn of(session: &SessionContext, lifetime: SessionLifetime) -> Self {
        Self {
            lifetime,
            cwd: session.cwd.clone(),
            roots: session.roots.iter().filter(|root| **root != session.scratch).cloned().collect(),
            protected: session.path_watches().clone(),
            scratch: session.scratch.clone(),
            notices: Mutex::new(Arc::clone(&session.notices)),
        }
    }
}

#[derive(Clone)]
pub(in crate::services) struct McpClient {
    pub(super) service: ServiceName,
    secrets: SecretValues,
    /// `None` if several sessions share the connection.
    owner: Option<Arc<Owner>>,
    flights: Arc<Mutex<Vec<PendingRequest>>>,
    /// Notified when a request is registered; `flight_soon` waits for it.
    registered: Arc<Notify>,
    generation: Arc<watch::Sender<u64>>,
    /// Pages that users opened, with the asker to notify when they are done.
    pages: Arc<Mutex<HashMap<String, Arc<dyn Asker>>>>,
    /// Rate limit of the server's log messages.
    log_limit: Arc<Mutex<OutputLimit>>,
}

/// A request to the server that is not answered yet.
#[derive(Clone)]
struct PendingRequest {
    token: ProgressToken,
    id: RequestId,
    context: CallContext,
    /// Notified on activity; the task that waits for the answer listens.
    heard: Arc<Notify>,
    /// Number of questions that the user has not answered yet.
    asking: Arc<AtomicUsize>,
}

/// Delivers the server's messages to a request until dropped.
pub(super) struct FlightListener {
    flights: Arc<Mutex<Vec<PendingRequest>>>,
    flight: PendingRequest,
}

impl FlightListener {
    pub(super) async fn wait_for_activity(&self) {
        self.flight.heard.notified().await;
    }

    /// Returns whether the server waits for the user. The time limit does not run then.
    pub(super) fn is_asking(&self) -> bool {
        self.flight.asking.load(Ordering::Relaxed) > 0
    }
}

impl Drop for FlightListener {
    fn drop(&mut self) {
        lock(&self.flights).retain(|flight| flight.token != self.flight.token);
    }
}

/// Counts a question as open until dropped.
struct QuestionGuard(PendingRequest);

impl QuestionGuard {
    fn of(flight: &PendingRequest) -> Self {
        flight.asking.fetch_add(1, Ordering::Relaxed);
        Self(flight.clone())
    }
}

impl Drop for QuestionGuard {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::Relaxed);
        // The server's time limit restarts now.
        self.0.heard.notify_one();
    }
}

impl McpClient {
    pub(in crate::services) fn new(service: ServiceName, secrets: SecretValues, owner: Option<Arc<Owner>>) -> Self {
        Self {
            service,
            secrets,
            owner,
            flights: Arc::default(),
            registered: Arc::default(),
            generation: Arc::new(watch::Sender::new(0)),
            pages: Arc::default(),
            log_limit: Arc::default(),
        }
    }

    /// Returns a text of the server without the secrets that the server was given.
    pub(super) fn hide_secrets(&self, text: &str) -> String {
        self.secrets.hide(text)
    }

    pub(super) fn listen(&self, token: &ProgressToken, id: &RequestId, context: &CallContext) -> FlightListener {
        let flight = PendingRequest {
            token: token.clone(),
            id: id.clone(),
            context: context.clone(),
            heard: Arc::default(),
            asking: Arc::default(),
        };
        lock(&self.flights).push(flight.clone());
        self.registered.notify_waiters();
        FlightListener { flights: Arc::clone(&self.flights), flight }
    }

    pub(super) fn mark_changed(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }

    pub(super) fn generation(&self) -> u64 {
        *self.generation.borrow()
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Returns the requests that a server may send to Skein. In the newer era each request carries them (`tied`),
    /// and questions arrive as its answer. In the older era questions arrive unsolicited, so only a server of one
    /// session gets them.
    pub(super) fn capabilities(&self, tied: bool) -> ClientCapabilities {
        let mut capabilities = ClientCapabilities::default();
        if tied || self.owner.is_some() {
            let elicitation = ElicitationCapability::new()
                .with_form(FormElicitationCapability::default())
                .with_url(UrlElicitationCapability::default());
            capabilities.elicitation = Some(elicitation);
        }
        if self.owner.is_some() {
            capabilities.roots = Some(RootsCapabilities::default());
        }
        capabilities
    }

    /// Returns the folders of the session; `None` if several sessions share the connection.
    pub(super) fn roots(&self) -> Option<ListRootsResult> {
        let owner = self.owner.as_ref()?;
        let root = |path: &PathBuf| url::Url::from_directory_path(path).ok().map(|url| Root::new(url.as_str()));
        Some(ListRootsResult::new(owner.roots.iter().filter_map(root).collect()))
    }

    /// Returns whether the connection belongs to one session.
    pub(super) fn is_owned(&self) -> bool {
        self.owner.is_some()
    }

    /// Registers an opened page. `asker` is notified when the server reports that the page is done.
    pub(super) fn register_page(&self, page: String, asker: Arc<dyn Asker>) {
        let mut pages = lock(&self.pages);
        if self.is_owned() && pages.len() < MAX_PAGES_OPEN {
            pages.insert(page, asker);
        }
    }

    pub(super) fn finish_page(&self, page: &str) {
        if let Some(asker) = lock(&self.pages).remove(page) {
            asker.page_done(self.service.as_str(), page);
        }
    }

    /// Returns the pending request that a message of the server belongs to. The transport may know which. Otherwise
    /// any request will do, because all belong to the same session; `None` on a shared connection.
    fn flight(&self, origin: Option<&InboundStreamOrigin>) -> Option<PendingRequest> {
        self.owner.as_ref()?;
        let flights = lock(&self.flights);
        let named = |flight: &&PendingRequest| matches!(origin, Some(InboundStreamOrigin::OutboundRequest(id)) if *id == flight.id);
        flights.iter().find(named).or_else(|| flights.last()).cloned()
    }

    async fn flight_soon(&self, origin: Option<&InboundStreamOrigin>) -> Option<PendingRequest> {
        let appears = async {
            loop {
                let registered = self.registered.notified();
                if let Some(flight) = self.flight(origin) {
                    return flight;
                }
                registered.await;
            }
        };
        self.owner.as_ref()?;
        tokio::time::timeout(CALL_APPEARS, appears).await.ok()
    }

    /// Returns whether the log has room for a line of this size. Dropped lines are counted and reported with a
    /// later one.
    fn has_log_room(&self, bytes: usize) -> bool {
        let mut limit = lock(&self.log_limit);
        if let Some(dropped) = limit.take_dropped() {
            tracing::warn!(service = %self.service, "log messages of the service: {dropped}");
        }
        limit.admit(bytes) == OutputVerdict::Keep
    }

    fn log(&self, level: LoggingLevel, text: &str, told: bool) {
        if !self.has_log_room(text.len()) {
            return;
        }
        match level {
            LoggingLevel::Debug => tracing::debug!(service = %self.service, told, "it says: {text}"),
            LoggingLevel::Info | LoggingLevel::Notice => {
                tracing::info!(service = %self.service, told, "it says: {text}")
            }
            LoggingLevel::Warning => tracing::warn!(service = %self.service, told, "it says: {text}"),
            LoggingLevel::Error | LoggingLevel::Critical | LoggingLevel::Alert | LoggingLevel::Emergency => {
                tracing::error!(service = %self.service, told, "it says: {text}");
            }
        }
    }
}

impl ClientHandler for McpClient {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(self.capabilities(false), Implementation::new("skein", env!("CARGO_PKG_VERSION")))
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let origin = context.extensions.get::<InboundStreamOrigin>();
        let Some(flight) = self.flight_soon(origin).await else {
            if self.has_log_room(0) {
                tracing::warn!(service = %self.service, "it asked a question that belongs to no call, and was cancelled");
            }
            return Ok(ElicitResult::new(ElicitationAction::Cancel));
        };
        if flight.asking.load(Ordering::Relaxed) >= MAX_ASKING {
            if self.has_log_room(0) {
                tracing::warn!(service = %self.service, "it asks too much at once");
            }
            return Ok(ElicitResult::new(ElicitationAction::Cancel));
        }
        let asking = QuestionGuard::of(&flight);
        let answer = tokio::select! {
            biased;
            // The server cancels its question.
            () = context.ct.cancelled() => ElicitResult::new(ElicitationAction::Cancel),
            answer = questions::elicit(self, params, &flight.context) => answer,
        };
        drop(asking);
        Ok(answer)
    }

    async fn create_message(
        &self,
        _: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, questions::NO_SAMPLING, None))
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        self.roots().ok_or_else(|| ErrorData::new(ErrorCode::METHOD_NOT_FOUND, questions::NO_ROOTS, None))
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let flight = lock(&self.flights).iter().find(|flight| flight.token == params.progress_token).cloned();
        if let Some(flight) = flight {
            flight.heard.notify_one();
            flight.context.report(Activity::Progress(CallProgress {
                progress: params.progress,
                total: params.total,
                message: params.message,
            }));
        }
    }

    async fn on_logging_message(&self, params: LoggingMessageNotificationParam, _: NotificationContext<RoleClient>) {
        let text = match &params.data {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        // Truncates after hiding the secrets, because a truncated secret would not be recognized.
        let text = self.secrets.hide(&strip_to_line(&text));
        let text = truncate(&text, MAX_SAID);
        let grave = !matches!(params.level, LoggingLevel::Debug | LoggingLevel::Info | LoggingLevel::Notice);
        let owner = self.owner.as_ref().filter(|_| grave);
        if let Some(owner) = owner {
            let notices = Arc::clone(&lock(&owner.notices));
            notices.send(Notice::new(format!("{}: {text}", self.service)));
        }
        self.log(params.level, text, owner.is_some());
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.mark_changed();
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.mark_changed();
    }

    async fn on_resource_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.mark_changed();
    }

    async fn on_custom_notification(&self, notification: CustomNotification, _: NotificationContext<RoleClient>) {
        if notification.method == "notifications/elicitation/complete" {
            let page = notification.params.as_ref().and_then(|params| params["elicitationId"].as_str());
            if let Some(page) = page {
                self.finish_page(page);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::future::BoxFuture;
    use rmcp::model::NumberOrString;
    use rmcp::service::{RunningService, serve_directly};

    use super::*;
    use crate::tool::ask::{PermissionRequest, PermissionResponse};
    use crate::tool::elicit::{Elicitation, ElicitationResponse};

    /// A user who answers nothing. Counts the pages that are done.
    #[derive(Default)]
    struct SilentUser(AtomicUsize);

    impl Asker for SilentUser {
        fn ask(&self, _: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
            Box::pin(std::future::pending())
        }

        fn elicit(&self, _: Elicitation) -> BoxFuture<'_, ElicitationResponse> {
            Box::pin(std::future::pending())
        }

        fn page_done(&self, _: &str, _: &str) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A client of a service that belongs to one session.
    fn owned_client() -> (McpClient, Arc<SessionContext>) {
        let session = SessionContext::new("s", "/nowhere".into(), Vec::new(), "/nowhere/scratch".into());
        let owner = Owner::of(&session, session.lifetime().clone());
        let client = McpClient::new(ServiceName::new("asks"), SecretValues::default(), Some(Arc::new(owner)));
        (client, session)
    }

    #[test]
    fn pages_over_the_limit_are_not_remembered() {
        let (client, _session) = owned_client();
        let user = Arc::new(SilentUser::default());
        for page in 0..=MAX_PAGES_OPEN {
            client.register_page(page.to_string(), Arc::clone(&user) as Arc<dyn Asker>);
        }
        for page in 0..=MAX_PAGES_OPEN {
            client.finish_page(&page.to_string());
        }
        assert_eq!(user.0.load(Ordering::Relaxed), MAX_PAGES_OPEN);
    }

    #[tokio::test]
    async fn a_further_question_of_a_call_is_cancelled() {
        let (client, session) = owned_client();
        // rmcp hands out a `Peer` only for a running service.
        let (outgoing, _incoming) = futures::channel::mpsc::channel(1);
        let service: RunningService<RoleClient, McpClient> =
            serve_directly(client.clone(), (outgoing, futures::stream::pending()), None);
        let id = NumberOrString::Number(1);
        let call = CallContext::new(session).with_asker(Arc::new(SilentUser::default()));
        let _flight = client.listen(&ProgressToken(id.clone()), &id, &call);
        let ask = || {
            let question = ElicitRequestParams::UrlElicitationParams {
                meta: None,
                message: "Log in".to_owned(),
                url: "https://example.com/".to_owned(),
                elicitation_id: "login".to_owned(),
            };
            Box::pin(client.create_elicitation(question, RequestContext::new(id.clone(), service.peer().clone())))
        };
        let mut open: Vec<_> = (0..MAX_ASKING).map(|_| ask()).collect();
        for question in &mut open {
            assert!(question.as_mut().now_or_never().is_none(), "the user has not answered");
        }
        let further = ask().now_or_never();
        assert_eq!(further, Some(Ok(ElicitResult::new(ElicitationAction::Cancel))));
    }
}
