//! Accepts the JWTs of an OpenID Connect issuer: fetches its keys, and maps claims to principals and their limits.
//!
//! Invariant: Skein asks the issuer for its keys at most once a minute. Clients cannot make it ask more often. No key
//! works longer than a day after the issuer last published it.

mod jwt;
mod key_set;

pub use jwt::JwtError;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;

use crate::manifest::{PrincipalRule, find_claim};
use crate::network::{DocumentClient, JsonDocumentError};
use crate::principal::{Principal, TokenGrant, TokenLimits};
use jwt::{UnverifiedJwt, check_claims};
use key_set::KeySet;

/// The shortest time between two requests for the keys.
const REFETCH_INTERVAL: Duration = Duration::from_secs(60);
/// The time after which known keys are fetched again, so that a withdrawn key stops working.
const KEY_LIFETIME: Duration = Duration::from_secs(15 * 60);
/// How long known keys work while the issuer cannot be reached. It may have withdrawn a key meanwhile.
const MAX_KEY_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// An issuer, and who its JWTs act for.
#[derive(Debug, Clone)]
pub struct OidcSettings {
    /// The URL of the issuer, exactly as its JWTs name it.
    pub issuer: String,
    /// The audience that its JWTs must have. If it is the address of the server, the requested address also counts.
    pub audience: String,
    /// The first match counts.
    pub principals: Vec<PrincipalMapping>,
}

/// An entry of `serve.principals` with its limits, whose folders are resolved.
#[derive(Debug, Clone)]
pub struct PrincipalMapping {
    pub rule: PrincipalRule,
    pub limits: TokenLimits,
}

/// Why the keys of an issuer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IssuerError {
    #[error(transparent)]
    Document(#[from] JsonDocumentError),
    #[error("the issuer calls itself `{named}`, and not `{issuer}`")]
    OtherIssuer { issuer: String, named: String },
    #[error("the issuer `{issuer}` names no `jwks_uri`")]
    NoKeyAddress { issuer: String },
    #[error("`{url}` is no JSON Web Key Set")]
    NoKeySet { url: String },
}

/// Why a JWT cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OidcError {
    #[error(transparent)]
    Refused(#[from] JwtError),
    /// The keys were never read.
    #[error("the keys of the issuer cannot be read at the moment")]
    NoKeys,
    /// The keys are older than `MAX_KEY_AGE`.
    #[error("the keys of the issuer are older than 24 hours, and the issuer cannot be reached")]
    OldKeys,
}

/// Verifies the JWTs of one issuer.
pub struct OidcVerifier {
    settings: OidcSettings,
    documents: DocumentClient,
    keys: Mutex<Option<CachedKeys>>,
    /// The time of the last request for the keys. Locked while they are fetched.
    last_fetch: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Clone)]
struct CachedKeys {
    keys: Arc<KeySet>,
    fetched: Instant,
}

impl OidcVerifier {
    /// Returns a verifier, which fetches keys when it needs them. Fails if the TLS library cannot be used.
    pub fn new(settings: OidcSettings) -> Result<Self, JsonDocumentError> {
        let documents = DocumentClient::new()?;
        Ok(Self { settings, documents, keys: Mutex::default(), last_fetch: tokio::sync::Mutex::default() })
    }

    /// Returns the URL of the issuer.
    pub fn issuer(&self) -> &str {
        &self.settings.issuer
    }

    /// Fetches the keys. Returns their number. Fails if the issuer cannot be used.
    pub async fn load_keys(&self, now: Instant) -> Result<usize, IssuerError> {
        let mut last_fetch = self.last_fetch.lock().await;
        *last_fetch = Some(now);
        self.fetch(now).await
    }

    /// Returns the grant of a JWT for the whole server at this time; `at` is the same moment on the clock that never
    /// jumps. Fails if the JWT is not accepted.
    pub async fn verify(&self, text: &str, now: Timestamp, at: Instant) -> Result<TokenGrant, OidcError> {
        self.verify_for(text, None, now, at).await
    }

    /// Returns the grant of a JWT for a request of the address `resource`, as [`Self::verify`] does. Issuers that know
    /// RFC 8707 make this address the audience, because the client names it.
    pub async fn verify_for(
        &self,
        text: &str,
        resource: Option<&str>,
        now: Timestamp,
        at: Instant,
    ) -> Result<TokenGrant, OidcError> {
        let jwt = UnverifiedJwt::parse(text)?;
        let keys = self.keys_for(&jwt, at).await?;
        let key = keys.find(jwt.algorithm, jwt.key.as_deref()).ok_or(JwtError::UnknownKey)?;
        let claims = jwt.verify(key)?;
        let end = check_claims(&claims, &self.settings.issuer, &self.audiences(resource), now)?;
        Ok(self.grant(&claims, end)?)
    }

    /// Returns the audiences of JWTs for a request of the address `resource`.
    fn audiences<'a>(&'a self, resource: Option<&'a str>) -> Vec<&'a str> {
        let audience = self.settings.audience.as_str();
        let below = resource.filter(|resource| {
            resource.strip_prefix(audience.trim_end_matches('/')).is_some_and(|rest| rest.starts_with('/'))
        });
        [audience].into_iter().chain(below).collect()
    }

    /// Returns keys that contain the one of the JWT, if the issuer has it.
    async fn keys_for(&self, jwt: &UnverifiedJwt<'_>, at: Instant) -> Result<Arc<KeySet>, OidcError> {
        let usable = || {
            let cached = self.current_keys()?;
            let is_fresh = at.saturating_duration_since(cached.fetched) < KEY_LIFETIME;
            let has_key = cached.keys.find(jwt.algorithm, jwt.key.as_deref()).is_some();
            (is_fresh && has_key).then_some(cached.keys)
        };
        if let Some(keys) = usable() {
            return Ok(keys);
        }
        let mut last_fetch = self.last_fetch.lock().await;
        // Another request may have fetched them meanwhile.
        if let Some(keys) = usable() {
            return Ok(keys);
        }
        if last_fetch.is_none_or(|last| at.saturating_duration_since(last) >= REFETCH_INTERVAL) {
            *last_fetch = Some(at);
            if let Err(error) = self.fetch(at).await {
                tracing::warn!(%error, "the keys of the issuer cannot be fetched");
            }
        }
        // If the issuer cannot be reached, the known keys stay valid for a while.
        let cached = self.current_keys().ok_or(OidcError::NoKeys)?;
        match at.saturating_duration_since(cached.fetched) < MAX_KEY_AGE {
            true => Ok(cached.keys),
            false => Err(OidcError::OldKeys),
        }
    }

    /// Fetches the keys and replaces the known ones. Returns their number.
    async fn fetch(&self, at: Instant) -> Result<usize, IssuerError> {
        let issuer = &self.settings.issuer;
        let url = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let discovery = self.documents.get(&url).await?;
        let named = discovery["issuer"].as_str().unwrap_or_default();
        if named != issuer {
            return Err(IssuerError::OtherIssuer { issuer: issuer.clone(), named: named.to_owned() });
        }
        let url = discovery["jwks_uri"].as_str();
        let url = url.ok_or_else(|| IssuerError::NoKeyAddress { issuer: issuer.clone() })?;
        let document = self.documents.get(url).await?;
        let keys = KeySet::parse(&document).ok_or_else(|| IssuerError::NoKeySet { url: url.to_owned() })?;
        let count = keys.len();
        tracing::info!(keys = count, "the keys of the issuer are fetched");
        let cached = CachedKeys { keys: Arc::new(keys), fetched: at };
        *self.keys.lock().unwrap_or_else(PoisonError::into_inner) = Some(cached);
        Ok(count)
    }

    /// Returns the principal and the limits of verified claims. JWTs of one subject count together.
    fn grant(&self, claims: &Value, end: Timestamp) -> Result<TokenGrant, JwtError> {
        let subject = claims["sub"].as_str().filter(|subject| !subject.is_empty()).ok_or(JwtError::NoSubject)?;
        let mut principals = self.settings.principals.iter().enumerate();
        let found = principals.find(|(_, mapping)| mapping.rule.matches(claims));
        let (index, PrincipalMapping { rule, limits }) = found.ok_or(JwtError::NoPrincipal)?;
        let name = match (&rule.name, &rule.name_claim) {
            (Some(name), _) => Some(name.as_str()),
            (None, Some(claim)) => find_claim(claims, claim).and_then(Value::as_str),
            (None, None) => None,
        };
        let principal = name.and_then(|name| Principal::new(name).ok()).ok_or(JwtError::NoName)?;
        // The entry and the principal are part of the id, because they decide about the limits.
        let id = format!("oidc:{index}:{principal}:{subject}");
        Ok(TokenGrant { id, principal, limits: limits.clone(), expires: Some(end) })
    }

    fn current_keys(&self) -> Option<CachedKeys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl std::fmt::Debug for OidcVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OidcVerifier").field("issuer", &self.settings.issuer).finish_non_exhaustive()
    }
}
