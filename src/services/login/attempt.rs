//! One login in a browser: discovery, registration, PKCE, and the exchange of the code that the browser brings back.

use std::fmt::{Debug, Formatter};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use url::Url;

use super::discovery::{Discovery, client_for, discover, is_same_issuer};
use super::redirect::{RedirectAnswer, RedirectListener};
use super::requests::{LoginClient, error_code};
use super::tokens::{self, CodeGrant};
use super::{ClientAuthentication, ClientRegistration, LoginError, StoredLogin, join_scopes};
use crate::clock;

/// The name that the authorization server shows to the user.
const CLIENT_NAME: &str = "Skein";
const REGISTRATION: &str = "the registration endpoint";

/// The service to log in to.
#[derive(Debug, Clone)]
pub struct LoginOptions {
    /// The address of the service, with its variables filled in.
    pub service_url: String,
    /// The id of a client that the user has registered. `None` registers Skein.
    pub client_id: Option<String>,
    /// Rights to ask for in addition to those that the service names.
    pub scope: Option<String>,
}

/// A login that waits for the user in the browser.
pub struct LoginAttempt {
    service_url: String,
    http: LoginClient,
    discovery: Discovery,
    client: ClientRegistration,
    /// Receives the answer of the browser.
    listener: RedirectListener,
    state: String,
    verifier: String,
    authorization_url: String,
}

/// Does not print the secrets of the login.
impl Debug for LoginAttempt {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoginAttempt").field("service_url", &self.service_url).finish_non_exhaustive()
    }
}

impl LoginAttempt {
    /// Finds the authorization server, registers Skein there, and listens for the answer of the browser. Fails with
    /// [`LoginError::NotRequired`] if the service wants no login.
    pub async fn begin(options: &LoginOptions) -> Result<Self, LoginError> {
        let (http, service) = client_for(&options.service_url)?;
        let mut discovery = discover(&http, &service).await?;
        if let Some(scope) = &options.scope {
            discovery.scope = Some(join_scopes(discovery.scope.as_deref().unwrap_or_default(), scope));
        }
        let listener = RedirectListener::open().await?;
        let client = match &options.client_id {
            Some(id) => ClientRegistration {
                client_id: id.clone(),
                client_secret: None,
                authentication: ClientAuthentication::None,
            },
            None => register(&http, &discovery, listener.uri()).await?,
        };
        let (state, verifier) = (random_text()?, random_text()?);
        let authorization_url = authorization_url(&http, &discovery, &client, listener.uri(), &state, &verifier)?;
        let service_url = options.service_url.clone();
        Ok(Self { service_url, http, discovery, client, listener, state, verifier, authorization_url })
    }

    /// Returns the page that the user must open.
    pub fn authorization_url(&self) -> &str {
        &self.authorization_url
    }

    pub fn issuer(&self) -> &str {
        &self.discovery.server.issuer
    }

    /// Waits for the user, and exchanges the code of the browser for tokens. Fails after `limit`.
    pub async fn finish(self, limit: Duration) -> Result<StoredLogin, LoginError> {
        let waiting = tokio::time::timeout(limit, self.listener.wait(&self.state)).await;
        let answer = waiting.map_err(|_| LoginError::Unanswered { seconds: limit.as_secs() })?;
        let code = self.code(answer)?;
        let Discovery { resource, scope, server } = self.discovery;
        let redirect_uri = self.listener.uri();
        let grant = CodeGrant { code: &code, redirect_uri, verifier: &self.verifier, resource: &resource };
        let tokens = tokens::exchange(&self.http, &server.token_endpoint, &self.client, &grant).await?;
        Ok(StoredLogin {
            service_url: self.service_url,
            resource,
            issuer: server.issuer,
            token_endpoint: server.token_endpoint,
            revocation_endpoint: server.revocation_endpoint,
            client: self.client,
            scope: tokens.scope.or(scope),
            wanted_scope: None,
            access_token: tokens.access_token,
            refresh_token: tokens.refresh_token,
            expires_at: tokens.expires_at,
            issued_at: clock::now(),
        })
    }

    /// Returns the code of an answer. Fails if another authorization server has given it, or the user declined.
    fn code(&self, answer: RedirectAnswer) -> Result<String, LoginError> {
        let server = &self.discovery.server;
        match answer.issuer {
            Some(found) if !is_same_issuer(&found, &server.issuer) => {
                return Err(LoginError::WrongIssuer { expected: server.issuer.clone(), found });
            }
            None if server.authorization_response_iss_parameter_supported => {
                return Err(LoginError::WrongIssuer { expected: server.issuer.clone(), found: "(none)".to_owned() });
            }
            Some(_) | None => {}
        }
        let unknown = || "the browser brought no code".to_owned();
        answer.code.ok_or_else(|| LoginError::Refused {
            reason: answer.error.as_deref().and_then(error_code).unwrap_or_else(unknown),
        })
    }
}

/// The part of RFC 7591 that Skein uses.
#[derive(Deserialize)]
struct RegistrationAnswer {
    client_id: String,
    client_secret: Option<String>,
    token_endpoint_auth_method: Option<String>,
}

/// Registers Skein as a client without a secret. Accepts a secret from servers that insist on one.
async fn register(
    http: &LoginClient,
    discovery: &Discovery,
    redirect_uri: &str,
) -> Result<ClientRegistration, LoginError> {
    let Some(endpoint) = &discovery.server.registration_endpoint else {
        return Err(LoginError::NoRegistration { issuer: discovery.server.issuer.clone() });
    };
    let mut request = json!({
        "client_name": CLIENT_NAME,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    });
    if let Some(scope) = &discovery.scope {
        request["scope"] = Value::from(scope.as_str());
    }
    let answer = http.post_json(REGISTRATION, &http.check(endpoint)?, &request).await?;
    let answer: RegistrationAnswer = answer.json(REGISTRATION)?;
    let authentication = match (answer.client_secret.is_some(), answer.token_endpoint_auth_method.as_deref()) {
        (false, _) | (true, Some("none")) => ClientAuthentication::None,
        (true, Some("client_secret_post")) => ClientAuthentication::ClientSecretPost,
        (true, Some("client_secret_basic") | None) => ClientAuthentication::ClientSecretBasic,
        (true, Some(_)) => {
            let problem = "it wants a kind of client authentication that Skein does not have".to_owned();
            return Err(LoginError::Invalid { part: REGISTRATION, problem });
        }
    };
    Ok(ClientRegistration { client_id: answer.client_id, client_secret: answer.client_secret, authentication })
}

fn authorization_url(
    http: &LoginClient,
    discovery: &Discovery,
    client: &ClientRegistration,
    redirect_uri: &str,
    state: &str,
    verifier: &str,
) -> Result<String, LoginError> {
    let mut url: Url = http.check(&discovery.server.authorization_endpoint)?;
    url.set_fragment(None);
    url.query_pairs_mut()
        .append_pair("response_type", "code")
        .append_pair("client_id", &client.client_id)
        .append_pair("redirect_uri", redirect_uri)
        .append_pair("state", state)
        .append_pair("code_challenge", &challenge(verifier))
        .append_pair("code_challenge_method", "S256")
        .append_pair("resource", &discovery.resource);
    if let Some(scope) = &discovery.scope {
        url.query_pairs_mut().append_pair("scope", scope);
    }
    Ok(url.into())
}

/// Returns the challenge of PKCE for a verifier.
fn challenge(verifier: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(verifier))
}

/// Returns 256 random bits as text.
fn random_text() -> Result<String, LoginError> {
    let mut chance = [0; 32];
    getrandom::fill(&mut chance).map_err(LoginError::Random)?;
    Ok(URL_SAFE_NO_PAD.encode(chance))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7636, appendix B.
    #[test]
    fn challenge_is_the_hash_of_the_verifier() {
        let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        assert_eq!(challenge(verifier), "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
        let (one, other) = (random_text().unwrap(), random_text().unwrap());
        assert!(one != other && one.len() == 43);
    }
}
