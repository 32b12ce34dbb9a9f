//! Stores the tokens of principals: their limits, and the SHA-256 of their secrets. Their consents are in the same file.
//!
//! Invariant: a secret leaves this module once, when its token is created, and is never stored.

mod file_rows;
mod logins;
mod rows;
mod shared_rows;

pub use logins::BrowserLogin;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::{Schema, StoreAddress, StoreError};
use crate::principal::{Principal, TokenGrant, TokenLimits};
use file_rows::FileRows;
use rows::{TokenColumns, TokenRows};
use shared_rows::SharedRows;

/// The bytes `skto` in ASCII. A file with a different `application_id` is not Skein's.
const MARK: i32 = 0x736b_746f;

pub(super) const SCHEMA: Schema = Schema {
    mark: MARK,
    migrations: &[
        "
    CREATE TABLE token (
        id TEXT PRIMARY KEY,
        principal TEXT NOT NULL,
        -- SHA-256 of the secret.
        hash BLOB NOT NULL,
        -- JSON.
        limits TEXT NOT NULL,
        -- Milliseconds since 1970, like all times here.
        created_at INTEGER NOT NULL,
        expires_at INTEGER,
        revoked_at INTEGER
    ) STRICT;
",
        "
    -- Browsers that are logged in to the console.
    CREATE TABLE login (
        -- SHA-256 of the cookie.
        hash BLOB PRIMARY KEY,
        token TEXT NOT NULL,
        csrf TEXT NOT NULL,
        used_at INTEGER NOT NULL
    ) STRICT;
",
        "
    -- Rules that principals keep with an answer.
    CREATE TABLE consent (
        -- Never used again after the rule was removed: an administrator may still hold an old one.
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        principal TEXT NOT NULL,
        -- JSON.
        rule TEXT NOT NULL,
        created TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')),
        UNIQUE (principal, rule)
    ) STRICT;
",
    ],
};

/// What every token starts with.
const PREFIX: &str = "skein";
/// Random bytes of an id, and of a secret. Both are written in hexadecimal.
const ID_BYTES: usize = 6;
const SECRET_BYTES: usize = 32;

/// A token to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToken {
    pub principal: Principal,
    pub limits: TokenLimits,
    /// `None`: never.
    pub expires: Option<Timestamp>,
}

/// A new token. `token` is the only copy of its secret.
#[derive(Clone)]
pub struct CreatedToken {
    pub id: String,
    /// `skein_ID_SECRET`.
    pub token: String,
}

/// The secret stays out of logs.
impl std::fmt::Debug for CreatedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedToken").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A stored token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredToken {
    pub grant: TokenGrant,
    pub created: Timestamp,
    pub state: TokenState,
}

/// Whether a token is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenState {
    Active,
    Expired,
    Revoked,
}

impl TokenState {
    pub fn as_str(self) -> &'static str {
        match self {
            TokenState::Active => "active",
            TokenState::Expired => "expired",
            TokenState::Revoked => "revoked",
        }
    }
}

/// The tokens of all principals. Clones share one connection.
#[derive(Debug, Clone)]
pub struct TokenStore {
    /// The file or the address.
    name: String,
    rows: Arc<Mutex<Box<dyn TokenRows>>>,
}

impl TokenStore {
    /// Opens the store in the data folder, creating it if it does not exist.
    pub fn open(data: &Path) -> Result<Self, StoreError> {
        let file = data.join("tokens.db");
        let rows = FileRows::open(&file)?;
        Ok(Self::new(file.display().to_string(), Box::new(rows)))
    }

    /// Opens the store in a PostgreSQL database, creating its tables if they do not exist. It may wait for the network.
    pub fn connect(address: &Arc<StoreAddress>) -> Result<Self, StoreError> {
        let rows = SharedRows::open(address)?;
        Ok(Self::new(address.to_string(), Box::new(rows)))
    }

    fn new(name: String, rows: Box<dyn TokenRows>) -> Self {
        Self { name, rows: Arc::new(Mutex::new(rows)) }
    }

    /// Creates a token. Its secret has 256 random bits.
    pub async fn create(&self, new: NewToken) -> Result<CreatedToken, StoreError> {
        let id = hex(&self.random::<ID_BYTES>()?);
        let secret = hex(&self.random::<SECRET_BYTES>()?);
        let token = format!("{PREFIX}_{id}_{secret}");
        let columns = TokenColumns {
            id: id.clone(),
            principal: new.principal.name().to_owned(),
            hash: hash(&secret).to_vec(),
            limits: serde_json::to_string(&new.limits).unwrap_or_default(),
            created_at: Timestamp::now().as_millisecond(),
            expires_at: new.expires.map(Timestamp::as_millisecond),
            revoked_at: None,
        };
        self.work(move |rows| rows.insert(&columns)).await?;
        Ok(CreatedToken { id, token })
    }

    /// Returns the grant of a token. `None` if the token is unknown, expired or revoked.
    pub async fn verify(&self, token: &str) -> Result<Option<TokenGrant>, StoreError> {
        let Some((id, secret)) = split(token) else { return Ok(None) };
        let (id, given) = (id.to_owned(), hash(secret));
        let found = self.work(move |rows| rows.find(&id)).await?;
        let (stored, kept) = found.map(|columns| (columns.to_token(), columns.hash)).unzip();
        // An unknown id takes the same comparison.
        let is_equal: bool = kept.unwrap_or_else(|| vec![0; 32]).as_slice().ct_eq(given.as_slice()).into();
        Ok(stored.flatten().filter(|stored| is_equal && stored.state == TokenState::Active).map(|stored| stored.grant))
    }

    /// Returns whether the token is still accepted, for connections that it opened.
    pub async fn is_active(&self, id: &str) -> Result<bool, StoreError> {
        let id = id.to_owned();
        let found = self.work(move |rows| rows.find(&id)).await?;
        Ok(found.and_then(|columns| columns.to_token()).is_some_and(|stored| stored.state == TokenState::Active))
    }

    /// Lists all tokens, oldest first.
    pub async fn list(&self) -> Result<Vec<StoredToken>, StoreError> {
        let rows = self.work(|rows| rows.list()).await?;
        Ok(rows.iter().filter_map(TokenColumns::to_token).collect())
    }

    /// Revokes a token. Returns false if there is no such token. A second call changes nothing.
    pub async fn revoke(&self, id: &str) -> Result<bool, StoreError> {
        let id = id.to_owned();
        self.work(move |rows| rows.revoke(&id, Timestamp::now().as_millisecond())).await
    }

    /// Runs `work` on a blocking thread, because it may wait for another process.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn TokenRows) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let rows = Arc::clone(&self.rows);
        let work = move || work(&mut **rows.lock().unwrap_or_else(PoisonError::into_inner));
        match crate::task::run_blocking(work).await {
            Ok(result) => result,
            Err(error) => Err(self.unusable(error.to_string())),
        }
    }

    fn random<const N: usize>(&self) -> Result<[u8; N], StoreError> {
        let mut bytes = [0_u8; N];
        let filled = getrandom::fill(&mut bytes);
        filled.map_err(|error| self.unusable(format!("the system gives no random numbers: {error}")))?;
        Ok(bytes)
    }

    fn unusable(&self, problem: String) -> StoreError {
        StoreError::Unusable { file: self.name.clone(), problem }
    }
}

/// Splits `skein_ID_SECRET`. `None` if the text has another form.
fn split(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.strip_prefix(PREFIX)?.strip_prefix('_')?.split_once('_')?;
    let is_hex =
        |text: &str, bytes: usize| text.len() == 2 * bytes && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hex(id, ID_BYTES) && is_hex(secret, SECRET_BYTES)).then_some((id, secret))
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[path = "tokens_tests.rs"]
mod tests;
