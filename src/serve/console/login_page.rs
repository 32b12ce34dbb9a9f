//! Logs browsers in and out: with the one-time code of `skein console`, or with a token.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use maud::{Markup, html};

use super::super::ServerState;
use super::super::authenticator::ActiveToken;
use super::super::checks::{Arrival, Refusal, read_within};
use super::form::FormFields;
use super::layout::{ConsoleProblem, public_page};
use super::{COOKIE, HOME, cookie_of, is_same_origin, oldest_use};

/// Maximum bytes of a login. Clients without a token send it, and no token is longer.
const MAX_FORM: usize = 64 << 10;
/// How long all of a login may take to arrive.
const FORM_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a login failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoginFailure {
    WrongToken,
    WrongCode,
    /// The address made too many attempts.
    TooMany(Duration),
    /// The store or the system's random numbers cannot be used.
    Unavailable,
    OtherSite,
    TooLarge,
    TooSlow,
}

impl LoginFailure {
    fn status(self) -> StatusCode {
        match self {
            Self::WrongToken | Self::WrongCode => StatusCode::UNAUTHORIZED,
            Self::TooMany(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::OtherSite => StatusCode::FORBIDDEN,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
        }
    }

    fn text(self) -> String {
        match self {
            Self::WrongToken => {
                "This token is unknown, revoked or expired. Create one with `skein token create`.".to_owned()
            }
            Self::WrongCode => {
                "This code was used already or is older than 60 seconds. Run `skein console` again.".to_owned()
            }
            Self::TooMany(wait) => format!("Too many attempts. Wait {} seconds, then try again.", wait.as_secs() + 1),
            Self::Unavailable => "Logins do not work at the moment. Try again in a few seconds.".to_owned(),
            Self::OtherSite => "The login was sent from another site. Log in on this page.".to_owned(),
            Self::TooLarge => "This is too long for a token. Copy the token alone.".to_owned(),
            Self::TooSlow => "The login took too long to arrive. Try again.".to_owned(),
        }
    }
}

/// Shows the login page.
pub(super) async fn show(RawQuery(query): RawQuery) -> Response {
    let query = FormFields::of_query(query.as_deref());
    login_page(StatusCode::OK, None, &safe_path(query.get("next")))
}

/// Logs in with the token of the form.
pub(super) async fn log_in(State(state): State<Arc<ServerState>>, request: Request) -> Response {
    let (next, attempt) = match read_attempt(&state, request).await {
        Ok((form, peer)) => {
            let attempt = with_token(&state, form.get("token").unwrap_or_default().trim(), peer).await;
            (safe_path(form.get("next")), attempt)
        }
        Err(failure) => (HOME.to_owned(), Err(failure)),
    };
    match attempt {
        Ok(cookie) => {
            let mut response = see_other(&next);
            response.headers_mut().insert(header::SET_COOKIE, cookie);
            response
        }
        Err(failure) => {
            let response = login_page(failure.status(), Some(&failure.text()), &next);
            with_wait(response, failure)
        }
    }
}

/// Logs in with a one-time code. The script of the login page sends it.
pub(super) async fn exchange(State(state): State<Arc<ServerState>>, request: Request) -> Response {
    let attempt = match read_attempt(&state, request).await {
        Ok((form, peer)) => with_code(&state, form.get("code").unwrap_or_default(), peer).await,
        Err(failure) => Err(failure),
    };
    match attempt {
        Ok(cookie) => (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response(),
        Err(failure) => with_wait((failure.status(), failure.text()).into_response(), failure),
    }
}

/// Logs out. The guard has checked the request.
pub(super) async fn log_out(State(state): State<Arc<ServerState>>, headers: HeaderMap) -> Response {
    if let Some(cookie) = cookie_of(&headers) {
        state.logins.remove(cookie);
        let removed = state.parts.tokens.remove_logins(Some(cookie), oldest_use()).await;
        if let Err(error) = removed {
            tracing::error!(%error, "a login of the console cannot be removed");
            let text = "You are logged out until the server restarts. The store cannot be changed at the moment.";
            return ConsoleProblem::new(StatusCode::SERVICE_UNAVAILABLE, text).into_response();
        }
    }
    let mut response = see_other("/console/login");
    let ended = format!("{COOKIE}=; Path=/console; HttpOnly; SameSite=Strict; Max-Age=0");
    if let Ok(ended) = HeaderValue::from_str(&ended) {
        response.headers_mut().insert(header::SET_COOKIE, ended);
    }
    response
}

/// Reads the form of an attempt and the address of the client. Fails if another site sent it, or it is too large or
/// too slow.
async fn read_attempt(state: &ServerState, request: Request) -> Result<(FormFields, IpAddr), LoginFailure> {
    if !is_same_origin(request.headers()) {
        return Err(LoginFailure::OtherSite);
    }
    let arrival = request.extensions().get::<Arrival>().ok_or(LoginFailure::Unavailable)?;
    let peer = state.client_addresses.address(request.headers(), arrival.peer);
    let body = read_form(request.into_body()).await.map_err(|refusal| match refusal.status() {
        StatusCode::REQUEST_TIMEOUT => LoginFailure::TooSlow,
        // A client that disconnects reads no answer.
        _ => LoginFailure::TooLarge,
    })?;
    Ok((FormFields::parse(&body), peer))
}

/// Reads the form of a client that has shown no token. It must not keep its connection by sending a byte now and then.
async fn read_form(body: Body) -> Result<Vec<u8>, Refusal> {
    let read = tokio::time::timeout(FORM_TIMEOUT, read_within(body, MAX_FORM)).await;
    read.unwrap_or_else(|_| Err(Refusal::too_slow()))
}

/// Returns the cookie of a new login with a token.
async fn with_token(state: &ServerState, token: &str, peer: IpAddr) -> Result<HeaderValue, LoginFailure> {
    let now = Instant::now();
    if let Some(wait) = state.logins.wait_time(peer, now) {
        return Err(LoginFailure::TooMany(wait));
    }
    let verified = state.authenticator.verify(token).await.map_err(|error| {
        tracing::error!(%error, "tokens cannot be verified");
        LoginFailure::Unavailable
    })?;
    let Some(verified) = verified else {
        state.logins.count_failure(peer, now);
        return Err(LoginFailure::WrongToken);
    };
    new_cookie(state, verified, now).await
}

/// Returns the cookie of a new login of `local`.
async fn with_code(state: &ServerState, code: &str, peer: IpAddr) -> Result<HeaderValue, LoginFailure> {
    let now = Instant::now();
    if let Some(wait) = state.logins.wait_time(peer, now) {
        return Err(LoginFailure::TooMany(wait));
    }
    if !state.logins.take_code(code, now) {
        state.logins.count_failure(peer, now);
        return Err(LoginFailure::WrongCode);
    }
    new_cookie(state, Arc::new(ActiveToken::local()), now).await
}

async fn new_cookie(state: &ServerState, token: Arc<ActiveToken>, now: Instant) -> Result<HeaderValue, LoginFailure> {
    let (cookie, login) = state.logins.add(token, now).map_err(|error| {
        tracing::error!(%error, "the system gives no random numbers");
        LoginFailure::Unavailable
    })?;
    // The user of this machine logs in again with `skein console`.
    if !login.token.grant.principal().is_local() {
        let stored = state.parts.tokens.put_login(&cookie, &login.token.id, &login.csrf).await;
        stored.map_err(|error| {
            tracing::error!(%error, "a login of the console cannot be stored");
            LoginFailure::Unavailable
        })?;
    }
    let secure = if state.has_tls { "; Secure" } else { "" };
    let value = format!("{COOKIE}={cookie}; Path=/console; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::from_str(&value).map_err(|_| LoginFailure::Unavailable)
}

/// Returns the path to go to after the login: one of the console, otherwise its first page.
fn safe_path(next: Option<&str>) -> String {
    let is_plain = |path: &str| path.chars().all(|c| c.is_ascii_graphic() && c != '\\') && !path.contains("//");
    let is_console = |path: &str| path == "/console" || path.starts_with("/console/") || path.starts_with("/console?");
    let is_login = |path: &str| path.starts_with("/console/log");
    next.filter(|path| is_plain(path) && is_console(path) && !is_login(path)).unwrap_or(HOME).to_owned()
}

fn with_wait(mut response: Response, failure: LoginFailure) -> Response {
    if let LoginFailure::TooMany(wait) = failure {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(wait.as_secs() + 1));
    }
    response
}

/// Leads the browser to another page with a GET.
pub(super) fn see_other(path: &str) -> Response {
    match HeaderValue::from_str(path) {
        Ok(path) => (StatusCode::SEE_OTHER, [(header::LOCATION, path)]).into_response(),
        Err(_) => ConsoleProblem::new(StatusCode::INTERNAL_SERVER_ERROR, "This page has no valid address.").to_page(),
    }
}

fn login_page(status: StatusCode, problem: Option<&str>, next: &str) -> Response {
    let body: Markup = html! {
        h1 { "Log in to Skein" }
        p id="login-problem" class="problem" role="alert" hidden[problem.is_none()] { (problem.unwrap_or_default()) }
        form method="post" action="/console/login" class="stack" {
            input type="hidden" name="next" value=(next);
            label for="token" { "Token" }
            input id="token" name="token" type="password" autocomplete="current-password" required spellcheck="false";
            button type="submit" { "Log in" }
        }
        p class="hint" {
            "On this machine, " code { "skein console" } " opens the console without a token. An administrator creates "
            "tokens with " code { "skein token create" } "."
        }
    };
    public_page(status, "Log in", &["login.js"], &body)
}

/// Leads from `/` to the console.
pub(in crate::serve) async fn lead_to_console() -> Response {
    see_other("/console")
}

/// Leads from `/console` to its first page.
pub(super) async fn lead_home() -> Response {
    see_other(HOME)
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_login_that_arrives_byte_by_byte_is_refused() {
        let bytes = futures::stream::repeat_with(|| ()).then(async |()| {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, std::convert::Infallible>("x")
        });
        let begun = tokio::time::Instant::now();
        let refusal = read_form(Body::from_stream(bytes)).await.unwrap_err();
        assert_eq!(refusal.status(), StatusCode::REQUEST_TIMEOUT);
        assert!(begun.elapsed() < FORM_TIMEOUT + Duration::from_secs(1), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_login_leads_only_to_pages_of_the_console() {
        for path in ["/console/sessions/abc?before=3", "/console", "/console?x=1"] {
            assert_eq!(safe_path(Some(path)), path);
        }
        let elsewhere = ["https://evil.example", "//evil.example", "/console//evil", "/consoles", "/agents", "/\\evil"];
        for path in elsewhere.into_iter().chain(["/console/login", "/console/logout", "javascript:1", ""]) {
            assert_eq!(safe_path(Some(path)), HOME, "{path}");
        }
        assert_eq!(safe_path(None), HOME);
    }
}
