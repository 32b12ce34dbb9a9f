//! The sessions of an MCP endpoint, which rmcp creates and uses. They are only in memory.
//!
//! Invariant: after [`EndpointSessions::close`] no session begins, also if the request for it came before.

use futures::Stream;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError, SessionError,
};
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId, SessionManager};
use tokio::sync::RwLock;

/// rmcp's sessions in memory, and whether further ones may begin.
#[derive(Debug)]
pub(super) struct EndpointSessions {
    pub(super) local: LocalSessionManager,
    /// Locked while a session is created, so that [`Self::close`] finds it.
    is_closed: RwLock<bool>,
}

impl EndpointSessions {
    pub(super) fn new() -> Self {
        let mut local = LocalSessionManager::default();
        // A call may be silent for long, so the endpoint itself decides which session is idle.
        local.session_config.keep_alive = None;
        Self { local, is_closed: RwLock::new(false) }
    }

    /// Refuses further sessions. Returns the ids of those that are open, which the caller ends.
    pub(super) async fn close(&self) -> Vec<String> {
        *self.is_closed.write().await = true;
        self.local.sessions.read().await.keys().map(ToString::to_string).collect()
    }
}

impl SessionManager for EndpointSessions {
    type Error = LocalSessionManagerError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let is_closed = self.is_closed.read().await;
        if *is_closed {
            return Err(SessionError::SessionServiceTerminated.into());
        }
        self.local.create_session().await
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.local.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        self.local.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.local.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.local.create_stream(id, message).await
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Self::Error> {
        self.local.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.local.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.local.resume(id, last_event_id).await
    }
}
