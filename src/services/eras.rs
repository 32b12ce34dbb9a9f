//! The eras of MCP: how a connection begins, and what Skein remembers about servers until it ends. A later start of a
//! known server does not ask for versions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How the connection to a server is initialised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Era {
    /// Asks the server for its versions and chooses accordingly. Gives up after a short time.
    Unknown,
    /// The same without that limit, for a server that is slow to start and refuses the handshake.
    Slow,
    /// Uses the older `initialize` handshake.
    Handshake,
}

/// Hash of a server program or address, and whether the connection belongs to one session.
pub(super) type Server = ([u8; 32], bool);

/// What an earlier start has shown about a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerEra {
    /// It needs the handshake.
    Older,
    /// It speaks both eras, and Skein chose the older one.
    Both,
    /// It speaks both eras, and its tools need the newer one.
    Newer,
}

#[derive(Debug, Default)]
pub(super) struct EraCache(Mutex<HashMap<Server, ServerEra>>);

impl EraCache {
    pub(super) fn get(&self, server: &Server) -> Option<ServerEra> {
        self.entries().get(server).copied()
    }

    pub(super) fn insert(&self, server: Server, era: ServerEra) {
        self.entries().insert(server, era);
    }

    pub(super) fn remove(&self, server: &Server) {
        self.entries().remove(server);
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Server, ServerEra>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The choice of the older era for a server that speaks both.
pub(super) struct EraChoice {
    eras: Arc<EraCache>,
    server: Server,
}

impl EraChoice {
    pub(super) fn new(eras: Arc<EraCache>, server: Server) -> Self {
        Self { eras, server }
    }

    /// Uses the newer era from the next start on.
    pub(super) fn revise(&self) {
        self.eras.insert(self.server, ServerEra::Newer);
    }
}
