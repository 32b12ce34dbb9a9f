//! Notifies the user of a permission request that stays open.
//!
//! Invariant: a request causes one notification at most, however many clients show it.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;

use crate::manifest::NotificationSettings;
use crate::principal::Principal;
use crate::tool::ask::{Asker, ExternalPermissionRequest, PermissionRequest, PermissionResponse};
use crate::tool::elicit::{Elicitation, ElicitationResponse};

/// A permission request that waits for its user. It has no arguments of the call, because they may be confidential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenRequest {
    pub session: String,
    pub principal: Principal,
    pub cwd: PathBuf,
    /// The tool as the model sees it, or the external agent as `agent/mode`.
    pub asked_by: String,
}

/// The port through which a session reaches a user who does not look at it.
pub trait AttentionSink: Send + Sync + std::fmt::Debug {
    /// Notifies the user. Logs what fails, because the request itself is not affected.
    fn alert<'a>(&'a self, settings: &'a NotificationSettings, request: OpenRequest) -> BoxFuture<'a, ()>;
}

/// How the user of an open session is notified. Changed settings replace it.
pub(super) type AlertSettings = Arc<Mutex<NotificationSettings>>;

/// An asker that notifies the user if a permission request stays open.
pub(super) struct AlertAsker {
    pub(super) asker: Arc<dyn Asker>,
    pub(super) sink: Arc<dyn AttentionSink>,
    pub(super) settings: AlertSettings,
    pub(super) session: String,
    pub(super) principal: Principal,
    pub(super) cwd: PathBuf,
}

impl AlertAsker {
    /// Waits for the answer, and notifies the user once if it takes too long.
    async fn wait<T>(&self, asked_by: String, answer: impl Future<Output = T>) -> T {
        let mut answer = pin!(answer);
        let alert = async {
            let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone();
            tokio::time::sleep(settings.after).await;
            let (session, principal, cwd) = (self.session.clone(), self.principal.clone(), self.cwd.clone());
            self.sink.alert(&settings, OpenRequest { session, principal, cwd, asked_by }).await;
        };
        tokio::select! {
            biased;
            answer = &mut answer => answer,
            () = alert => answer.await,
        }
    }
}

impl Asker for AlertAsker {
    fn ask(&self, question: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        let tool = question.tool.clone();
        Box::pin(self.wait(tool, self.asker.ask(question)))
    }

    fn choose(&self, request: ExternalPermissionRequest) -> BoxFuture<'_, Option<String>> {
        let agent = request.by.clone();
        Box::pin(self.wait(agent, self.asker.choose(request)))
    }

    fn elicit(&self, question: Elicitation) -> BoxFuture<'_, ElicitationResponse> {
        self.asker.elicit(question)
    }

    fn page_done(&self, by: &str, id: &str) {
        self.asker.page_done(by, id);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Map;

    use super::*;
    use crate::tool::ask::{ConsentSubject, NoAsker};

    /// A user who answers after this time.
    struct SlowUser(Duration);

    impl Asker for SlowUser {
        fn ask(&self, _: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
            Box::pin(async {
                tokio::time::sleep(self.0).await;
                PermissionResponse::Allow
            })
        }
    }

    #[derive(Debug, Default)]
    struct Alerts(Mutex<Vec<String>>);

    impl AttentionSink for Alerts {
        fn alert<'a>(&'a self, _: &'a NotificationSettings, request: OpenRequest) -> BoxFuture<'a, ()> {
            Box::pin(async move { self.0.lock().unwrap().push(request.asked_by) })
        }
    }

    /// Asks once, and returns the answer and the notifications.
    async fn ask(asker: Arc<dyn Asker>) -> (PermissionResponse, Vec<String>) {
        let alerts = Arc::new(Alerts::default());
        let asker = AlertAsker {
            asker,
            sink: Arc::clone(&alerts) as Arc<dyn AttentionSink>,
            settings: AlertSettings::default(),
            session: "s".to_owned(),
            principal: Principal::local(),
            cwd: PathBuf::from("/"),
        };
        let question = PermissionRequest {
            call: None,
            by: None,
            apart: None,
            chain: Vec::new(),
            tool: "developer__shell".to_owned(),
            title: None,
            arguments: Map::new(),
            target: None,
            change: None,
            protected: None,
            always: ConsentSubject::of("developer__shell", &Map::new(), true, None),
            rule: None,
        };
        let answer = asker.ask(question).await;
        let shown = alerts.0.lock().unwrap().clone();
        (answer, shown)
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_request_that_stays_open_notifies_and_only_once() {
        let quick = ask(Arc::new(SlowUser(Duration::from_secs(29)))).await;
        assert_eq!(quick, (PermissionResponse::Allow, Vec::new()));
        let slow = ask(Arc::new(SlowUser(Duration::from_secs(600)))).await;
        assert_eq!(slow, (PermissionResponse::Allow, vec!["developer__shell".to_owned()]));
        assert_eq!(ask(Arc::new(NoAsker)).await, (PermissionResponse::Unavailable, Vec::new()));
    }
}
