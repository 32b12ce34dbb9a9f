//! What a kind of store does for tokens and logins: SQLite in `file_rows`, PostgreSQL in `shared_rows`.

use jiff::Timestamp;

use super::{StoredToken, TokenState};
use crate::principal::{Principal, TokenGrant};
use crate::store::StoreError;

/// The columns of a token. Times are milliseconds since 1970.
#[derive(Clone)]
pub(super) struct TokenColumns {
    pub(super) id: String,
    pub(super) principal: String,
    /// SHA-256 of the secret.
    pub(super) hash: Vec<u8>,
    /// JSON.
    pub(super) limits: String,
    pub(super) created_at: i64,
    pub(super) expires_at: Option<i64>,
    pub(super) revoked_at: Option<i64>,
}

impl TokenColumns {
    /// Returns the token. `None` if this version cannot read it.
    pub(super) fn to_token(&self) -> Option<StoredToken> {
        let time = |at: i64| Timestamp::from_millisecond(at).unwrap_or(Timestamp::MIN);
        let expires = self.expires_at.map(time);
        let state = match (self.revoked_at, expires) {
            (Some(_), _) => TokenState::Revoked,
            (None, Some(expires)) if expires <= Timestamp::now() => TokenState::Expired,
            (None, _) => TokenState::Active,
        };
        let principal = Principal::new(&self.principal).ok()?;
        let limits = serde_json::from_str(&self.limits).ok()?;
        let grant = TokenGrant { id: self.id.clone(), principal, limits, expires };
        Some(StoredToken { grant, created: time(self.created_at), state })
    }
}

/// The columns of a login, without its hash.
pub(super) struct LoginColumns {
    /// The id of its token.
    pub(super) token: String,
    pub(super) csrf: String,
    /// Milliseconds since 1970.
    pub(super) used_at: i64,
}

/// Reads and writes rows, on a blocking thread. Times are milliseconds since 1970, hashes are SHA-256.
pub(super) trait TokenRows: Send + std::fmt::Debug {
    fn insert(&mut self, token: &TokenColumns) -> Result<(), StoreError>;

    fn find(&mut self, id: &str) -> Result<Option<TokenColumns>, StoreError>;

    /// Returns all tokens, oldest first.
    fn list(&mut self) -> Result<Vec<TokenColumns>, StoreError>;

    /// Returns false if there is no such token. Keeps the time of an earlier call.
    fn revoke(&mut self, id: &str, at: i64) -> Result<bool, StoreError>;

    /// Stores a login of a cookie; it replaces an earlier one.
    fn put_login(&mut self, cookie: &[u8], token: &str, csrf: &str, at: i64) -> Result<(), StoreError>;

    fn touch_login(&mut self, cookie: &[u8], at: i64) -> Result<(), StoreError>;

    /// Returns a login that was used after `oldest`.
    fn find_login(&mut self, cookie: &[u8], oldest: i64) -> Result<Option<LoginColumns>, StoreError>;

    /// Removes the login of a cookie, and all that were last used at `oldest` or before, or after `latest`.
    fn remove_logins(&mut self, cookie: Option<&[u8]>, oldest: i64, latest: i64) -> Result<(), StoreError>;
}
