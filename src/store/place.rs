//! The place of all stored data: files in a data folder or a PostgreSQL database, with or without encryption.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::sealing::StoreKey;
use super::{ConsentStore, CorrectionStore, MemoryStore, SessionStore, StoreAddress, StoreError, TokenStore};

/// The file of memories in the data folder.
const MEMORIES: &str = "memory.db";

/// Names the stores of sessions, memories, corrections, consents and tokens. Opening one may wait for the network.
#[derive(Debug, Clone, Default)]
pub struct StorePlace {
    data: PathBuf,
    /// `None`: the stores are files in `data`.
    address: Option<Arc<StoreAddress>>,
    /// Encrypts texts. `None`: they are stored as they are.
    key: Option<StoreKey>,
}

impl StorePlace {
    /// Returns the place of files in a data folder, without encryption.
    pub fn files(data: impl Into<PathBuf>) -> Self {
        Self { data: data.into(), address: None, key: None }
    }

    /// Returns the same place with the stores in a database. Other data stays in the folder.
    #[must_use]
    pub fn with_database(self, address: Arc<StoreAddress>) -> Self {
        Self { address: Some(address), ..self }
    }

    #[must_use]
    pub fn with_key(self, key: Option<StoreKey>) -> Self {
        Self { key, ..self }
    }

    /// Returns the data folder, which has other files than the stores too.
    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn address(&self) -> Option<&Arc<StoreAddress>> {
        self.address.as_ref()
    }

    pub fn key(&self) -> Option<&StoreKey> {
        self.key.as_ref()
    }

    pub fn sessions(&self) -> Result<SessionStore, StoreError> {
        SessionStore::open_in(self)
    }

    pub fn memories(&self) -> Result<MemoryStore, StoreError> {
        match &self.address {
            Some(address) => MemoryStore::connect(address, self.key()),
            None => MemoryStore::open_file(&self.data.join(MEMORIES), self.key()),
        }
    }

    /// Returns false if no memory was stored yet, so that there is no file.
    pub fn has_memories(&self) -> bool {
        self.address.is_some() || self.data.join(MEMORIES).exists()
    }

    pub fn corrections(&self) -> Result<CorrectionStore, StoreError> {
        match &self.address {
            Some(address) => CorrectionStore::connect(address, self.key()),
            None => CorrectionStore::open_file(&self.data.join("routes.db"), self.key()),
        }
    }

    /// Returns the rules that principals keep.
    pub fn consents(&self) -> Result<ConsentStore, StoreError> {
        match &self.address {
            Some(address) => ConsentStore::connect(address),
            None => ConsentStore::open_file(&self.data.join("tokens.db")),
        }
    }

    pub fn tokens(&self) -> Result<TokenStore, StoreError> {
        match &self.address {
            Some(address) => TokenStore::connect(address),
            None => TokenStore::open(&self.data),
        }
    }
}

impl From<PathBuf> for StorePlace {
    fn from(data: PathBuf) -> Self {
        Self::files(data)
    }
}

/// The address without its password, or the folder.
impl fmt::Display for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Some(address) => fmt::Display::fmt(address, f),
            None => fmt::Display::fmt(&self.data.display(), f),
        }
    }
}
