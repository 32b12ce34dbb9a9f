//! Verifies tokens, and ends the connections and the turns of a token that is revoked or expires.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::oidc::{OidcError, OidcVerifier};
use crate::principal::{GrantRegistry, SessionGrant, TokenGrant};
use crate::store::{StoreError, TokenStore};

/// How often the tokens in use are verified. A revoked token must end within five seconds.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// The number of dots in a JWT. Tokens of Skein have none.
const JWT_DOTS: usize = 2;

/// A verified token with an open request or connection.
#[derive(Debug)]
pub(super) struct ActiveToken {
    pub(super) id: String,
    pub(super) grant: SessionGrant,
    /// Cancelled when the token is revoked or expires.
    pub(super) ended: CancellationToken,
}

impl ActiveToken {
    /// Returns the user of this machine, who has no token and no limits.
    pub(super) fn local() -> Self {
        let grant = SessionGrant::local();
        Self { id: "local".to_owned(), ended: grant.end_signal().clone(), grant }
    }
}

/// Why tokens cannot be verified at the moment.
#[derive(Debug, thiserror::Error)]
pub(super) enum AuthenticationError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The issuer of JWTs cannot be reached.
    #[error("{0}")]
    Issuer(OidcError),
}

impl AuthenticationError {
    /// Returns the text for the client.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Store(_) => "tokens cannot be verified at the moment\n".to_owned(),
            Self::Issuer(error) => format!("JWTs cannot be verified at the moment: {error}\n"),
        }
    }
}

/// Verifies the tokens of requests.
pub(super) struct Authenticator {
    tokens: TokenStore,
    /// `None`: JWTs are not accepted.
    oidc: Option<OidcVerifier>,
    grants: GrantRegistry,
    active: Mutex<ActiveTokens>,
}

/// The tokens in use, by their ids.
#[derive(Default)]
struct ActiveTokens {
    tokens: HashMap<String, Weak<ActiveToken>>,
    /// When the subjects of JWTs end, unless they show a newer JWT.
    issued: HashMap<String, Timestamp>,
}

impl Authenticator {
    pub(super) fn new(tokens: TokenStore, oidc: Option<OidcVerifier>) -> Self {
        Self { tokens, oidc, grants: GrantRegistry::default(), active: Mutex::default() }
    }

    /// Returns the issuer whose JWTs are accepted. `None` if there is none.
    pub(super) fn issuer(&self) -> Option<&str> {
        self.oidc.as_ref().map(OidcVerifier::issuer)
    }

    /// Returns the token of a request for the address `resource`. `None` if it has none, or one that is unknown,
    /// expired, revoked or without a principal. Fails if the store or the keys of the issuer cannot be read.
    pub(super) async fn authenticate(
        &self,
        headers: &HeaderMap,
        resource: Option<&str>,
    ) -> Result<Option<Arc<ActiveToken>>, AuthenticationError> {
        match bearer_token(headers) {
            Some(secret) => self.verify_for(secret, resource).await,
            None => Ok(None),
        }
    }

    /// Returns the token or the JWT with this text for the whole server, as [`Self::authenticate`] does.
    pub(super) async fn verify(&self, secret: &str) -> Result<Option<Arc<ActiveToken>>, AuthenticationError> {
        self.verify_for(secret, None).await
    }

    async fn verify_for(
        &self,
        secret: &str,
        resource: Option<&str>,
    ) -> Result<Option<Arc<ActiveToken>>, AuthenticationError> {
        match &self.oidc {
            Some(oidc) if secret.matches('.').count() == JWT_DOTS => {
                let verified = oidc.verify_for(secret, resource, Timestamp::now(), Instant::now()).await;
                match verified {
                    Ok(token) => Ok(Some(self.activate(&token, token.expires))),
                    Err(OidcError::Refused(reason)) => {
                        tracing::info!(%reason, "a JWT is refused");
                        Ok(None)
                    }
                    Err(error @ (OidcError::NoKeys | OidcError::OldKeys)) => Err(AuthenticationError::Issuer(error)),
                }
            }
            _ => Ok(self.tokens.verify(secret).await?.map(|token| self.activate_stored(&token))),
        }
    }

    /// Returns a token that the store has verified.
    pub(super) fn activate_stored(&self, token: &TokenGrant) -> Arc<ActiveToken> {
        self.activate(token, None)
    }

    /// Returns a verified token. The requests and connections of one token share it. A JWT ends at the time `issued`.
    fn activate(&self, token: &TokenGrant, issued: Option<Timestamp>) -> Arc<ActiveToken> {
        let mut active = self.active();
        if let Some(end) = issued {
            let latest = active.issued.entry(token.id.clone()).or_insert(end);
            *latest = end.max(*latest);
        }
        let known = active.tokens.get(&token.id).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| !known.ended.is_cancelled()) {
            return known;
        }
        let grant = self.grants.grant(token);
        let new = Arc::new(ActiveToken { id: token.id.clone(), ended: grant.end_signal().clone(), grant });
        active.tokens.insert(new.id.clone(), Arc::downgrade(&new));
        new
    }

    /// Looks for tokens in use that have ended, until `stop` is cancelled.
    pub(super) async fn watch(&self, stop: &CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(WATCH_INTERVAL) => {}
            }
            for (id, issued) in self.tokens_in_use() {
                let is_active = match issued {
                    Some(end) => Ok(end > Timestamp::now()),
                    None => self.tokens.is_active(&id).await,
                };
                match is_active {
                    Ok(true) => {}
                    Ok(false) => {
                        if self.grants.end(&id) {
                            tracing::info!(token = %id, "the token has ended, and so do its connections and turns");
                        }
                    }
                    // The connections stay open: the next check decides.
                    Err(error) => tracing::warn!(%error, "tokens cannot be verified"),
                }
            }
        }
    }

    /// Returns the ids of the tokens that a request, a connection or a session uses, and the end of those that are
    /// JWTs. A session without a connection counts too.
    fn tokens_in_use(&self) -> Vec<(String, Option<Timestamp>)> {
        let mut active = self.active();
        active.tokens.retain(|_, token| token.strong_count() > 0);
        let used = self.grants.ids_in_use(Instant::now());
        let ends: Vec<_> = used.iter().map(|id| active.issued.get(id).copied()).collect();
        active.issued = used.iter().zip(&ends).filter_map(|(id, end)| Some((id.clone(), (*end)?))).collect();
        used.into_iter().zip(ends).collect()
    }

    fn active(&self) -> MutexGuard<'_, ActiveTokens> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the token of `Authorization: Bearer TOKEN`. `None` if there is no such header, or several.
pub(super) fn bearer_token(headers: &HeaderMap) -> Option<&str> {
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
