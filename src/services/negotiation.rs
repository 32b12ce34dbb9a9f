//! Chooses the era of MCP in which Skein speaks to a server. Skein asks for the versions of the server first, and falls
//! back to the older handshake if the server does not understand the question.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::Inner;
use super::connection::ServiceConnection as _;
use super::eras::{Era, EraChoice, Server, ServerEra};
use super::remote::{ConnectError, McpConnection};
use super::service::Service;

impl Inner {
    /// Connects to a server outside this process, in the era that fits the server.
    ///
    /// If a server speaks both eras and the connection belongs to one session, Skein uses the older era. The tools of
    /// such servers often send requests to ask the user, which only the older era has. On a shared connection the
    /// session of such a request is unknown, so Skein uses the newer era there.
    pub(super) async fn negotiate(&self, service: &Service) -> Result<McpConnection, ConnectError> {
        let server = self.server(service);
        let known = self.eras.get(&server);
        let era = match known {
            Some(ServerEra::Older | ServerEra::Both) => Era::Handshake,
            Some(ServerEra::Newer) => Era::Slow,
            None => return self.explore(service, server).await,
        };
        let connected = Box::pin(self.reach(service, era)).await;
        if connected.is_err() {
            // It may be another version of the server now, so the next start asks.
            self.eras.remove(&server);
        }
        Ok(self.with_choice(connected?, known, server))
    }

    fn server(&self, service: &Service) -> Server {
        let transport = serde_json::to_string(&service.manifest.transport).unwrap_or_default();
        // A missing variable is reported when the service starts.
        let transport = self.options.environment.fill_in(&transport).unwrap_or(transport);
        (Sha256::digest(transport).into(), service.owner.is_some())
    }

    /// Asks an unknown server for its versions, and connects accordingly.
    async fn explore(&self, service: &Service, server: Server) -> Result<McpConnection, ConnectError> {
        let (era, may_be_newer) = match Box::pin(self.reach(service, Era::Unknown)).await {
            Ok(connection) if service.owner.is_some() && connection.accepts_handshake().await => {
                connection.stop().await;
                (ServerEra::Both, true)
            }
            Err(ConnectError::Mute) => (ServerEra::Older, true),
            Err(ConnectError::OlderEra) => (ServerEra::Older, false),
            connected => return connected,
        };
        match Box::pin(self.reach(service, Era::Handshake)).await {
            Ok(connection) => {
                self.eras.insert(server, era);
                Ok(self.with_choice(connection, Some(era), server))
            }
            Err(ConnectError::Handshake { .. }) if may_be_newer => Box::pin(self.reach(service, Era::Slow)).await,
            Err(error) => Err(error),
        }
    }

    fn with_choice(&self, connection: McpConnection, era: Option<ServerEra>, server: Server) -> McpConnection {
        match era {
            Some(ServerEra::Both) => connection.with_choice(EraChoice::new(Arc::clone(&self.eras), server)),
            Some(ServerEra::Older | ServerEra::Newer) | None => connection,
        }
    }
}
