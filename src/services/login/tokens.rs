//! Exchanges a code for tokens, renews them, and revokes them.

use serde::Deserialize;
use serde_json::Value;

use super::discovery::client_for;
use super::requests::{LoginAnswer, LoginClient};
use super::{ClientRegistration, LoginError, StoredLogin};
use crate::clock;

const ENDPOINT: &str = "the token endpoint";
/// Maximum length of a token.
const MAX_TOKEN: usize = 32 * 1024;

/// Tokens that a server has issued.
pub(super) struct TokenSet {
    pub(super) access_token: String,
    pub(super) refresh_token: Option<String>,
    pub(super) scope: Option<String>,
    pub(super) expires_at: Option<u64>,
}

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    token_type: String,
    refresh_token: Option<String>,
    scope: Option<String>,
    /// Some servers send the number as text.
    expires_in: Option<Value>,
}

/// The proof that the answer of the browser belongs to this login.
pub(super) struct CodeGrant<'a> {
    pub(super) code: &'a str,
    pub(super) redirect_uri: &'a str,
    pub(super) verifier: &'a str,
    pub(super) resource: &'a str,
}

/// Exchanges the code of the browser for tokens.
pub(super) async fn exchange(
    http: &LoginClient,
    endpoint: &str,
    client: &ClientRegistration,
    grant: &CodeGrant<'_>,
) -> Result<TokenSet, LoginError> {
    let fields = [
        ("grant_type", "authorization_code"),
        ("code", grant.code),
        ("redirect_uri", grant.redirect_uri),
        ("code_verifier", grant.verifier),
        ("resource", grant.resource),
    ];
    token_set(&http.post_form(ENDPOINT, &http.check(endpoint)?, client, &fields).await?)
}

/// Renews the tokens of a login. Fails with [`LoginError::Refused`] if only a new login helps.
pub(super) async fn refresh(http: &LoginClient, login: &StoredLogin) -> Result<StoredLogin, LoginError> {
    let Some(token) = &login.refresh_token else {
        return Err(LoginError::Refused { reason: "it has expired and cannot be renewed".to_owned() });
    };
    let fields =
        [("grant_type", "refresh_token"), ("refresh_token", token.as_str()), ("resource", login.resource.as_str())];
    let endpoint = http.check(&login.token_endpoint)?;
    let tokens = token_set(&http.post_form(ENDPOINT, &endpoint, &login.client, &fields).await?)?;
    Ok(StoredLogin {
        access_token: tokens.access_token,
        // A server that does not rotate refresh tokens sends none.
        refresh_token: tokens.refresh_token.or_else(|| login.refresh_token.clone()),
        scope: tokens.scope.or_else(|| login.scope.clone()),
        expires_at: tokens.expires_at,
        issued_at: clock::now(),
        ..login.clone()
    })
}

/// Revokes the tokens at the authorization server. Returns false if the server does not offer this.
pub async fn revoke(login: &StoredLogin) -> Result<bool, LoginError> {
    const REVOCATION: &str = "the revocation endpoint";
    let Some(endpoint) = &login.revocation_endpoint else { return Ok(false) };
    let (http, _) = client_for(&login.service_url)?;
    let endpoint = http.check(endpoint)?;
    let refresh = login.refresh_token.as_deref().map(|token| (token, "refresh_token"));
    for (token, kind) in refresh.into_iter().chain([(login.access_token.as_str(), "access_token")]) {
        let fields = [("token", token), ("token_type_hint", kind)];
        let LoginAnswer { status, .. } = http.post_form(REVOCATION, &endpoint, &login.client, &fields).await?;
        if !status.is_success() {
            let answer = format!("HTTP {}", status.as_u16());
            return Err(LoginError::Unexpected { part: REVOCATION, answer });
        }
    }
    Ok(true)
}

fn token_set(answer: &LoginAnswer) -> Result<TokenSet, LoginError> {
    let answer: TokenAnswer = answer.json(ENDPOINT)?;
    let invalid = |problem: &str| LoginError::Invalid { part: ENDPOINT, problem: problem.to_owned() };
    if !answer.token_type.eq_ignore_ascii_case("bearer") {
        return Err(invalid("it does not issue bearer tokens"));
    }
    // Also keeps line breaks out of the header.
    let is_token =
        |token: &str| !token.is_empty() && token.len() <= MAX_TOKEN && token.chars().all(|c| c.is_ascii_graphic());
    if !is_token(&answer.access_token) || answer.refresh_token.as_deref().is_some_and(|token| !is_token(token)) {
        return Err(invalid("its token has characters that no token has"));
    }
    let lifetime = answer.expires_in.as_ref().and_then(seconds);
    Ok(TokenSet {
        access_token: answer.access_token,
        refresh_token: answer.refresh_token,
        scope: answer.scope,
        expires_at: lifetime.map(|lifetime| clock::now().saturating_add(lifetime.saturating_mul(1000))),
    })
}

fn seconds(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use reqwest::StatusCode;
    use serde_json::json;

    use super::*;

    fn tokens(body: &Value) -> Result<TokenSet, LoginError> {
        token_set(&LoginAnswer { status: StatusCode::OK, body: body.to_string().into_bytes() })
    }

    #[test]
    fn only_usable_tokens_are_taken() {
        let good = tokens(&json!({"access_token": "a.b-c", "token_type": "bearer", "expires_in": "90"})).unwrap();
        assert_eq!(good.access_token, "a.b-c");
        assert!(good.expires_at.is_some_and(|at| at > clock::now() + 60_000));
        for wrong in [
            json!({"access_token": "a\r\nX-Other: b", "token_type": "Bearer"}),
            json!({"access_token": "", "token_type": "Bearer"}),
            json!({"access_token": "a", "refresh_token": "b c", "token_type": "Bearer"}),
            json!({"access_token": "a", "token_type": "mac"}),
            json!({"token_type": "Bearer"}),
        ] {
            assert!(tokens(&wrong).is_err(), "{wrong}");
        }
    }
}
