//! Verifies tokens, and ends the connections of a token that is revoked or expires.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use tokio_util::sync::CancellationToken;

use crate::principal::{GrantRegistry, SessionGrant};
use crate::store::{StoreError, TokenStore};

/// How often the tokens of open connections are verified. A revoked token must end them within five seconds.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);

/// A verified token with an open request or connection.
#[derive(Debug)]
pub(super) struct ActiveToken {
    pub(super) id: String,
    pub(super) grant: SessionGrant,
    /// Cancelled when the token is revoked or expires.
    pub(super) ended: CancellationToken,
}

/// Verifies the tokens of requests.
pub(super) struct Authenticator {
    tokens: TokenStore,
    grants: GrantRegistry,
    /// The tokens in use, by their ids.
    active: Mutex<HashMap<String, Weak<ActiveToken>>>,
}

impl Authenticator {
    pub(super) fn new(tokens: TokenStore) -> Self {
        Self { tokens, grants: GrantRegistry::default(), active: Mutex::default() }
    }

    /// Returns the token of a request. `None` if it has none, or one that is unknown, expired or revoked. Fails if the
    /// store cannot be read.
    pub(super) async fn authenticate(&self, headers: &HeaderMap) -> Result<Option<Arc<ActiveToken>>, StoreError> {
        let Some(secret) = bearer_token(headers) else { return Ok(None) };
        let Some(token) = self.tokens.verify(secret).await? else { return Ok(None) };
        let mut active = self.active();
        let known = active.get(&token.id).and_then(Weak::upgrade).filter(|known| !known.ended.is_cancelled());
        if let Some(known) = known {
            return Ok(Some(known));
        }
        let grant = self.grants.grant(&token);
        let new = Arc::new(ActiveToken { id: token.id, grant, ended: CancellationToken::new() });
        active.insert(new.id.clone(), Arc::downgrade(&new));
        Ok(Some(new))
    }

    /// Looks for tokens in use that have ended, until `stop` is cancelled.
    pub(super) async fn watch(&self, stop: &CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(WATCH_INTERVAL) => {}
            }
            let tokens: Vec<_> = {
                let mut active = self.active();
                active.retain(|_, token| token.strong_count() > 0);
                active.values().filter_map(Weak::upgrade).collect()
            };
            for token in tokens {
                match self.tokens.is_active(&token.id).await {
                    Ok(true) => {}
                    Ok(false) => {
                        tracing::info!(token = %token.id, "the token has ended, and so do its connections");
                        token.ended.cancel();
                    }
                    // The connections stay open: the next check decides.
                    Err(error) => tracing::warn!(%error, "tokens cannot be verified"),
                }
            }
        }
    }

    fn active(&self) -> MutexGuard<'_, HashMap<String, Weak<ActiveToken>>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the token of `Authorization: Bearer TOKEN`. `None` if there is no such header, or several.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next()?.to_str().ok()?;
    if values.next().is_some() {
        return None;
    }
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_in_one_bearer_header() {
        let headers = |values: &[&str]| {
            let pairs = values.iter().map(|value| (header::AUTHORIZATION, value.parse().unwrap()));
            pairs.collect::<HeaderMap>()
        };
        assert_eq!(bearer_token(&headers(&["Bearer abc"])), Some("abc"));
        assert_eq!(bearer_token(&headers(&["bearer  abc "])), Some("abc"));
        for values in [&[][..], &["abc"], &["Basic abc"], &["Bearer "], &["Bearer a", "Bearer b"]] {
            assert_eq!(bearer_token(&headers(values)), None, "{values:?}");
        }
    }
}
