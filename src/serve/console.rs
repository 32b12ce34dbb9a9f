//! Serves the console: pages for people who see and control agents in a browser.
//!
//! Invariant: every page but the login needs a cookie. A POST changes nothing without the CSRF token of its login and
//! `Sec-Fetch-Site: same-origin`. Only this module reads the cookie, so it opens no other path.

mod approvals_page;
mod apps_page;
mod assets;
mod elicitation_form;
mod evaluation_page;
mod event_stream;
mod feeds;
mod field_schema;
mod findings;
mod form;
mod graph_page;
mod health_page;
mod hub;
mod layout;
mod login_page;
mod logins;
mod manifest_form;
mod manifest_form_markup;
mod manifests_page;
mod metric_history;
mod open_session;
mod page_updates;
mod remote_changes;
mod requests;
mod routing_page;
mod rules_page;
mod schema_field;
mod service_page;
mod session_actions;
mod session_list;
mod session_page;
mod setup;
mod transcript;

pub use apps_page::{AppGallery, GalleryApp, GalleryError};
pub use hub::ConsoleHub;
pub(super) use login_page::lead_to_console;
pub(super) use logins::LoginTable;
pub(super) use metric_history::{MetricHistory, sample};
pub use setup::{
    LogEntry, ManifestCheck, ManifestListing, ManifestPath, OtherManifest, SaveOutcome, ServerSetup, ServerSetupError,
    SetupFinding, StoredManifest,
};

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::checks::{MAX_BODY, Refusal, read_within};
use super::replica_headers::NotHere;
use super::{ServerState, peers};
use crate::store::StoreError;
use form::FormFields;
use layout::ConsoleProblem;
use logins::{CHECK_INTERVAL, IDLE_TIME, Login, LoginUse};

/// The name of the cookie.
const COOKIE: &str = "skein_console";
/// The first page.
const HOME: &str = "/console/sessions";
/// The paths of the event stream, over HTTP and over WebSocket.
const EVENTS: [&str; 2] = ["/console/events", "/console/socket"];
/// Marks requests that a script of an open page makes by itself. They do not keep the login alive.
const PASSIVE: &str = "x-console-passive";
/// Marks requests of a script, which shows problems itself.
const SCRIPT: &str = "x-console-script";
/// How often logins that are over are removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// Returns the routes of the console.
pub(super) fn routes(state: &Arc<ServerState>) -> Router<Arc<ServerState>> {
    let pages = Router::new()
        .route("/console", get(login_page::lead_home))
        .route("/console/logout", post(login_page::log_out))
        .route("/console/alive", get(event_stream::alive))
        .route("/console/events", get(event_stream::open))
        .route("/console/socket", get(event_stream::open_socket))
        .route("/console/sessions", get(session_list::show).post(session_actions::create))
        .route("/console/sessions/{id}", get(session_page::show))
        .route("/console/sessions/{id}/entries", get(session_page::news))
        .route("/console/sessions/{id}/export", get(session_page::export))
        .route("/console/sessions/{id}/prompt", post(session_actions::prompt))
        .route("/console/sessions/{id}/cancel", post(session_actions::cancel))
        .route("/console/sessions/{id}/settings", post(session_actions::switch))
        .route("/console/approvals", get(approvals_page::show))
        .route("/console/approvals/rows", get(approvals_page::list))
        .route("/console/graph", get(graph_page::show))
        .route("/console/graph/states", get(graph_page::states))
        .route("/console/graph.svg", get(graph_page::drawing))
        .route("/console/modes/{agent}/{mode}", get(graph_page::mode))
        .route("/console/services/{name}", get(service_page::show))
        .route("/console/routing", get(routing_page::show).post(routing_page::correct))
        .route("/console/routing/evaluation", get(evaluation_page::show).post(evaluation_page::run))
        .route("/console/manifests", get(manifests_page::list))
        .route("/console/manifests/edit", get(manifests_page::edit))
        // A login leads back to the page of a form, which a browser reads with GET.
        .route("/console/manifests/preview", get(manifests_page::edit).post(manifests_page::preview))
        .route("/console/manifests/form", get(manifests_page::edit).post(manifests_page::fill_in))
        .route("/console/manifests/save", get(manifests_page::edit).post(manifests_page::save))
        .route("/console/rules", get(rules_page::show))
        .route("/console/apps", get(apps_page::list))
        .route("/console/apps/{name}", get(apps_page::show))
        .route("/console/apps/{name}/page", get(apps_page::frame))
        .route("/console/health", get(health_page::show))
        .route_layer(middleware::from_fn_with_state(Arc::clone(state), guard));
    let answers = answer_routes(state).layer(middleware::from_fn_with_state(Arc::clone(state), ask_other_replicas));
    Router::new()
        .route("/console/login", get(login_page::show).post(login_page::log_in))
        .route("/console/login/code", post(login_page::exchange))
        .route("/console/assets/{name}", get(assets::serve))
        .merge(pages)
        .merge(answers)
        .route_layer(middleware::map_response(layout::restrict))
}

/// Returns the routes to the open requests of this replica, for other replicas.
pub(super) fn replica_routes(state: &Arc<ServerState>) -> Router<Arc<ServerState>> {
    let rows = Router::new()
        .route("/console/approvals/rows", get(approvals_page::list_own))
        .route_layer(middleware::from_fn_with_state(Arc::clone(state), guard));
    rows.merge(answer_routes(state))
}

fn answer_routes(state: &Arc<ServerState>) -> Router<Arc<ServerState>> {
    Router::new()
        .route("/console/approvals/{number}", post(approvals_page::answer))
        .route_layer(middleware::from_fn_with_state(Arc::clone(state), guard))
}

/// Asks other replicas about an open request, but only for a login: a body is read only then.
async fn ask_other_replicas(State(state): State<Arc<ServerState>>, request: Request, next: Next) -> Response {
    let cookie = cookie_of(request.headers()).map(str::to_owned);
    let login = match cookie {
        Some(cookie) => find_login(&state, &cookie, LoginUse::Passive).await,
        None => None,
    };
    match login {
        Some(_) => peers::ask_others(State(state), request, next).await,
        // The guard refuses it.
        None => next.run(request).await,
    }
}

/// Ends logins that were unused for too long, until `stop` is cancelled.
pub(super) async fn sweep(state: &ServerState, stop: &CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(SWEEP_INTERVAL) => {}
        }
        let now = Instant::now();
        for cookie in state.logins.idle_cookies(now) {
            end_stored(state, &cookie).await;
        }
        state.logins.sweep(now);
        let swept = state.parts.tokens.remove_logins(None, oldest_use()).await;
        drop(swept.inspect_err(|error| tracing::warn!(%error, "old logins of the console stay in the store")));
    }
}

/// Ends the event streams of logins that ended on another replica, until `stop` is cancelled.
pub(super) async fn watch_logins(state: &ServerState, stop: &CancellationToken) {
    if state.parts.replica.is_none() {
        return;
    }
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
        }
        for cookie in state.logins.cookies_in_use() {
            check_stored(state, &cookie, Instant::now()).await;
        }
    }
}

/// The middleware around all pages but the login: checks cookie, limits, origin and CSRF token, and shows problems.
async fn guard(State(state): State<Arc<ServerState>>, request: Request, next: Next) -> Response {
    let is_script = request.headers().contains_key(SCRIPT);
    let mut response = match admit(&state, request).await {
        Ok(request) => next.run(request).await,
        Err(response) => response,
    };
    let elsewhere = response.extensions_mut().remove::<NotHere>();
    let mut response = match response.extensions_mut().remove::<ConsoleProblem>() {
        Some(problem) if is_script => problem.to_text(),
        Some(problem) => problem.to_page(),
        None => response,
    };
    if let Some(elsewhere) = elsewhere {
        response.extensions_mut().insert(elsewhere);
    }
    response
}

/// Adds the login and the form of a request to it. Fails with the answer if the request may not pass.
async fn admit(state: &ServerState, mut request: Request) -> Result<Request, Response> {
    // A browser adds no header of Skein to a stream.
    let is_passive = request.headers().contains_key(PASSIVE) || EVENTS.contains(&request.uri().path());
    let login_use = if is_passive { LoginUse::Passive } else { LoginUse::Active };
    let cookie = cookie_of(request.headers()).map(str::to_owned);
    let login = match cookie {
        Some(cookie) => find_login(state, &cookie, login_use).await,
        None => None,
    };
    let login = login.ok_or_else(|| lead_to_login(&request))?;
    if let Err(wait) = login.token.grant.count_request(Instant::now()) {
        let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, "the token has made too many requests\n");
        return Err(refusal.retry_after(wait.as_secs() + 1).into_response());
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        request = check_form(&login, request).await?;
    }
    request.extensions_mut().insert(login);
    Ok(request)
}

/// Returns the login of a cookie: of this process, or of the server before its restart.
async fn find_login(state: &ServerState, cookie: &str, login_use: LoginUse) -> Option<Arc<Login>> {
    let now = Instant::now();
    let tokens = &state.parts.tokens;
    if state.logins.is_idle(cookie, now) && end_stored(state, cookie).await {
        return None;
    }
    let login = match state.logins.find(cookie, login_use, now) {
        Some(login) => login,
        None => {
            let stored = tokens.find_login(cookie, oldest_use()).await.inspect_err(log_problem).ok().flatten()?;
            let token = state.authenticator.activate_stored(&stored.grant);
            // The clock of the replica that stored the use may be ahead.
            let age = Duration::try_from(Timestamp::now().duration_since(stored.used)).unwrap_or_default();
            state.logins.restore(cookie, token, stored.csrf, now.checked_sub(age).unwrap_or(now), now);
            state.logins.find(cookie, login_use, now)?
        }
    };
    if login.token.grant.principal().is_local() {
        return Some(login);
    }
    if state.logins.take_unstored_use(cookie, now) {
        drop(tokens.touch_login(cookie).await.inspect_err(log_problem));
    }
    check_stored(state, cookie, now).await.then_some(login)
}

/// Removes a login from the store that was not used for too long by the time of this process. By the clock it may be
/// younger, if someone has set that back. Returns false if another replica may know of a later use.
async fn end_stored(state: &ServerState, cookie: &str) -> bool {
    if state.parts.replica.is_some() {
        return false;
    }
    drop(state.parts.tokens.remove_logins(Some(cookie), oldest_use()).await.inspect_err(log_problem));
    true
}

/// Returns whether a stored login is still valid, and ends it here if another replica has removed it. It stays valid
/// while the store cannot be read.
async fn check_stored(state: &ServerState, cookie: &str, now: Instant) -> bool {
    if state.parts.replica.is_none() || !state.logins.take_check(cookie, now) {
        return true;
    }
    let is_stored = state.parts.tokens.has_login(cookie).await.inspect_err(log_problem).unwrap_or(true);
    if !is_stored {
        state.logins.remove(cookie);
    }
    is_stored
}

fn log_problem(error: &StoreError) {
    tracing::warn!(%error, "logins of the console cannot be stored or read");
}

/// Returns the time before which a login that was not used has ended.
fn oldest_use() -> Timestamp {
    Timestamp::now().checked_sub(IDLE_TIME).unwrap_or(Timestamp::MIN)
}

/// Reads the form of a request that changes something. Fails if another site may have sent it.
async fn check_form(login: &Login, request: Request) -> Result<Request, Response> {
    let refused = |text: &str| ConsoleProblem::new(StatusCode::FORBIDDEN, text).into_response();
    if !is_same_origin(request.headers()) {
        return Err(refused("This request came from another site, so nothing was changed."));
    }
    let (parts, body) = request.into_parts();
    let limit = if parts.uri.path() == evaluation_page::PATH { evaluation_page::MAX_FORM } else { MAX_BODY };
    let body = read_within(body, limit).await.map_err(axum::response::IntoResponse::into_response)?;
    let form = FormFields::parse(&body);
    if form.get("csrf") != Some(login.csrf.as_str()) {
        return Err(refused("This form is of another login, so nothing was changed. Load the page again."));
    }
    let mut request = Request::from_parts(parts, axum::body::Body::empty());
    request.extensions_mut().insert(form);
    Ok(request)
}

/// Answers a request without a login: leads a person to the login page and back, and answers a script with 401. From a
/// form it leads back to the page of the form, where the browser has what was typed.
fn lead_to_login(request: &Request) -> Response {
    let is_page = request.method() == Method::GET;
    if request.headers().contains_key(SCRIPT) || !(is_page || is_same_origin(request.headers())) {
        return ConsoleProblem::new(StatusCode::UNAUTHORIZED, "You are no longer logged in.").into_response();
    }
    let next = match is_page {
        true => request.uri().path_and_query().map(|path| path.as_str().to_owned()),
        false => page_of_form(request.headers()),
    };
    let next = next.unwrap_or_else(|| HOME.to_owned());
    login_page::see_other(&format!("/console/login?{}", form::query(&[("next", &next)])))
}

/// Returns the path of the page that a form was sent from. The login page accepts only paths of the console.
fn page_of_form(headers: &HeaderMap) -> Option<String> {
    let page = url::Url::parse(headers.get(header::REFERER)?.to_str().ok()?).ok()?;
    Some(page[url::Position::BeforePath..url::Position::AfterQuery].to_owned())
}

/// Returns whether a page of this server sent the request. Browsers send this header, and scripts cannot set it.
fn is_same_origin(headers: &HeaderMap) -> bool {
    headers.get("sec-fetch-site").is_some_and(|site| site == "same-origin")
}

/// Returns the cookie of the login. `None` if there is none, or several.
fn cookie_of(headers: &HeaderMap) -> Option<&str> {
    let values = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = values.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let mut cookies = pairs.filter(|(name, _)| *name == COOKIE).map(|(_, value)| value);
    cookies.next().filter(|_| cookies.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cookie_is_found_among_others_and_never_guessed() {
        let cookie = |text: &str| {
            let headers: HeaderMap = [(header::COOKIE, text.parse().unwrap())].into_iter().collect();
            cookie_of(&headers).map(str::to_owned)
        };
        assert_eq!(cookie("a=1; skein_console=abc; b=2").as_deref(), Some("abc"));
        assert_eq!(cookie("skein_console=a; skein_console=b"), None);
        assert_eq!(cookie("xskein_console=a"), None);
    }
}
