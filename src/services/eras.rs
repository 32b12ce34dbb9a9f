//! The eras of MCP: how a connection begins, and what Skein remembers about servers until it ends. A later start of a
//! known server does not ask for versions.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of remembered servers. Clients can bring any number of different ones.
const MAX_SERVERS: usize = 1_000;

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

/// The servers that are known, the one learned last at the end.
#[derive(Debug, Default)]
pub(super) struct EraCache(Mutex<VecDeque<(Server, ServerEra)>>);

impl EraCache {
    pub(super) fn get(&self, server: &Server) -> Option<ServerEra> {
        self.entries().iter().find(|(known, _)| known == server).map(|(_, era)| *era)
    }

    /// Remembers a server. The oldest one makes room.
    pub(super) fn insert(&self, server: Server, era: ServerEra) {
        let mut entries = self.entries();
        entries.retain(|(known, _)| *known != server);
        if entries.len() >= MAX_SERVERS {
            entries.pop_front();
        }
        entries.push_back((server, era));
    }

    pub(super) fn remove(&self, server: &Server) {
        self.entries().retain(|(known, _)| known != server);
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<(Server, ServerEra)>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_known_server_makes_room() {
        let server = |number: usize| {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&number.to_be_bytes());
            (hash, true)
        };
        let eras = EraCache::default();
        for number in 0..MAX_SERVERS {
            eras.insert(server(number), ServerEra::Older);
        }
        eras.insert(server(0), ServerEra::Both);
        eras.insert(server(MAX_SERVERS), ServerEra::Older);
        assert_eq!((eras.get(&server(0)), eras.get(&server(1))), (Some(ServerEra::Both), None));
        assert_eq!(eras.get(&server(MAX_SERVERS)), Some(ServerEra::Older));
        assert_eq!(eras.entries().len(), MAX_SERVERS);
        eras.remove(&server(0));
        assert_eq!(eras.get(&server(0)), None);
    }
}
