//! Logins at HTTP services with OAuth 2.1: finds the authorization server, registers Skein, receives the answer of the
//! browser, and renews tokens.
//!
//! Invariant: a token goes only to the origin of the service that it is for and to the endpoints of its issuer, never
//! after a redirect. No error and no log contains a token.

mod attempt;
mod bearer;
mod discovery;
mod redirect;
mod requests;
mod tokens;

use std::any::Any;
use std::fmt::{Debug, Formatter};

use serde::{Deserialize, Serialize};

use crate::clock;
use crate::ids::ServiceName;

pub use attempt::{LoginAttempt, LoginOptions};
pub(super) use bearer::ServiceLogin;
pub use discovery::asks_for_login;
pub(super) use discovery::{RightsRefusal, rights_refusal};
pub use tokens::revoke;

/// A token is renewed this many milliseconds before it expires, or in the second half of its life if that is short.
const RENEWAL_MARGIN: u64 = 60_000;

/// The port to the place where logins are stored. The front end implements it.
pub trait LoginStore: Send + Sync + Debug {
    /// Returns the login of a service as it is now, because another process may have changed it. `None` if there is
    /// none.
    fn load(&self, service: &ServiceName) -> Result<Option<StoredLogin>, LoginStoreError>;

    fn save(&self, service: &ServiceName, login: &StoredLogin) -> Result<(), LoginStoreError>;

    /// Waits until no other process renews the login of the service. The lock ends when its guard is dropped.
    fn lock(&self, service: &ServiceName) -> Result<LoginLock, LoginStoreError>;
}

/// The guard of a lock on one login.
pub type LoginLock = Box<dyn Any + Send>;

/// The place where logins are stored cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the stored login cannot be used: {problem}")]
pub struct LoginStoreError {
    pub problem: String,
}

/// The tokens for one service, with everything that their renewal needs.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredLogin {
    /// The address of the service at the time of the login. The tokens go to its origin only.
    pub service_url: String,
    /// The name of the service at the authorization server.
    pub resource: String,
    pub issuer: String,
    pub token_endpoint: String,
    pub revocation_endpoint: Option<String>,
    pub client: ClientRegistration,
    pub scope: Option<String>,
    /// The rights that the service wants in addition. The next login asks for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_scope: Option<String>,
    pub access_token: String,
    pub refresh_token: Option<String>,
    /// When the access token expires, in milliseconds since 1970. `None` if the server did not say.
    pub expires_at: Option<u64>,
    /// When the server issued the access token, in milliseconds since 1970.
    pub issued_at: u64,
}

impl StoredLogin {
    /// Returns whether the access token has expired or is about to.
    pub fn is_due(&self) -> bool {
        self.expires_at.is_some_and(|at| {
            let margin = RENEWAL_MARGIN.min(at.saturating_sub(self.issued_at) / 2);
            at <= clock::now() + margin
        })
    }

    /// Returns the rights for a login that has those of this one and those that the service wants. `None` if it wants no
    /// more.
    pub fn wider_scope(&self) -> Option<String> {
        let wanted = self.wanted_scope.as_deref()?;
        Some(join_scopes(self.scope.as_deref().unwrap_or_default(), wanted))
    }

    /// Returns whether the tokens may be sent to this address: it has the origin of the service at the login.
    pub fn is_for(&self, service_url: &str) -> bool {
        let origin = |text: &str| url::Url::parse(text).ok().map(|url| url.origin());
        origin(&self.service_url).is_some_and(|own| own.is_tuple() && origin(service_url) == Some(own))
    }
}

/// Returns the rights of both, each once.
fn join_scopes(one: &str, other: &str) -> String {
    let mut joined: Vec<&str> = Vec::new();
    for right in one.split_whitespace().chain(other.split_whitespace()) {
        if !joined.contains(&right) {
            joined.push(right);
        }
    }
    joined.join(" ")
}

/// Does not print tokens.
impl Debug for StoredLogin {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredLogin")
            .field("service_url", &self.service_url)
            .field("issuer", &self.issuer)
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

/// Skein as an authorization server knows it.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientRegistration {
    pub client_id: String,
    pub client_secret: Option<String>,
    pub authentication: ClientAuthentication,
}

/// Does not print the secret.
impl Debug for ClientRegistration {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientRegistration").field("client_id", &self.client_id).finish_non_exhaustive()
    }
}

/// How Skein identifies itself at the token endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuthentication {
    None,
    ClientSecretBasic,
    ClientSecretPost,
}

/// The reason why a login failed or cannot be renewed.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    #[error("`{url}` is not a safe address: it must begin with https://")]
    InsecureAddress { url: String },
    #[error("the service does not ask for a login")]
    NotRequired,
    #[error("{part} cannot be reached: {reason}")]
    Unreachable { part: &'static str, reason: String },
    #[error("{part} answered with {answer}")]
    Unexpected { part: &'static str, answer: String },
    #[error("{part} is not valid: {problem}")]
    Invalid { part: &'static str, problem: String },
    #[error("the issuer is `{found}`, but Skein asked `{expected}`")]
    WrongIssuer { expected: String, found: String },
    #[error("the authorization server `{issuer}` does not register clients")]
    NoRegistration { issuer: String },
    /// The authorization server or the user has decided: only a new login helps.
    #[error("the login was refused: {reason}")]
    Refused { reason: String },
    #[error("there was no answer from the browser within {seconds} s")]
    Unanswered { seconds: u64 },
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
    #[error("Skein cannot listen for the answer of the browser: {0}")]
    Listen(#[source] std::io::Error),
    #[error("skein has stopped its services")]
    Stopped,
    #[error(transparent)]
    Store(#[from] LoginStoreError),
}

impl LoginError {
    /// Returns the error for an address to which no token is sent. Shows only the scheme and the host: the rest may be
    /// secret, because manifests fill in variables there.
    fn insecure_address(url: &str) -> Self {
        let url = url.split(['?', '#']).next().unwrap_or_default();
        let (scheme, rest) = url.split_at(url.find("://").map_or(0, |at| at + 3));
        let authority = rest.split('/').next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        Self::InsecureAddress { url: format!("{scheme}{host}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_insecure_address_is_shown_without_secrets() {
        let shown = |url: &str| match LoginError::insecure_address(url) {
            LoginError::InsecureAddress { url } => url,
            other => panic!("{other}"),
        };
        assert_eq!(shown("http://me:secret@host:80/mcp/@secret?key=secret#secret"), "http://host:80");
        assert_eq!(shown("host/secret?key=secret"), "host");
    }

    fn login(url: &str) -> StoredLogin {
        StoredLogin {
            service_url: url.to_owned(),
            resource: url.to_owned(),
            issuer: "https://login.example".to_owned(),
            token_endpoint: "https://login.example/token".to_owned(),
            revocation_endpoint: None,
            client: ClientRegistration {
                client_id: "skein".to_owned(),
                client_secret: Some("hush-1".to_owned()),
                authentication: ClientAuthentication::ClientSecretPost,
            },
            scope: None,
            wanted_scope: None,
            access_token: "hush-2".to_owned(),
            refresh_token: Some("hush-3".to_owned()),
            expires_at: None,
            issued_at: 0,
        }
    }

    #[test]
    fn tokens_belong_to_one_origin() {
        let login = login("https://api.example/mcp");
        assert!(login.is_for("https://api.example/other?x=1") && login.is_for("https://api.example:443/mcp"));
        for other in ["http://api.example/mcp", "https://api.example:444/mcp", "https://api.example.evil/mcp", "x", ""]
        {
            assert!(!login.is_for(other), "{other}");
        }
        assert!(!self::login("data:x").is_for("data:x"));
    }

    #[test]
    fn a_wider_login_keeps_its_rights() {
        let of = |scope: Option<&str>, wanted: Option<&str>| {
            let (scope, wanted_scope) = (scope.map(str::to_owned), wanted.map(str::to_owned));
            StoredLogin { scope, wanted_scope, ..login("https://api.example") }.wider_scope()
        };
        assert_eq!(of(Some("read offline_access"), Some("write read")).as_deref(), Some("read offline_access write"));
        assert_eq!(of(None, Some("write")).as_deref(), Some("write"));
        assert_eq!(of(Some("read"), None), None);
    }

    #[test]
    fn debug_output_has_no_secret() {
        let login = login("https://api.example/mcp");
        let shown = format!("{login:?} {:?}", login.client);
        assert!(!shown.contains("hush") && shown.contains("login.example"), "{shown}");
    }

    #[test]
    fn token_is_due_before_it_expires() {
        let expiring = |at: Option<u64>| StoredLogin { expires_at: at, ..login("https://api.example") }.is_due();
        assert!(!expiring(None) && !expiring(Some(clock::now() + 2 * RENEWAL_MARGIN)));
        assert!(expiring(Some(clock::now() + RENEWAL_MARGIN / 2)) && expiring(Some(0)));
        let short = StoredLogin {
            issued_at: clock::now(),
            expires_at: Some(clock::now() + RENEWAL_MARGIN / 2),
            ..login("https://api.example")
        };
        assert!(!short.is_due(), "a new token is not renewed at once");
    }
}
