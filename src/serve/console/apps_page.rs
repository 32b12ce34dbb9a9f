//! The apps of a principal: a gallery, and each app in a frame at its own URL.
//!
//! Invariant: the policy of a frame gives an app its own origin without rights. It reaches no cookie, no page around
//! it and no network, also if its file allows more.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use maud::html;

use super::super::ServerState;
use super::layout::{ConsoleProblem, Section, page};
use super::logins::Login;
use super::transcript::display_text;
use crate::principal::Principal;

/// Apps have inline code. Only this server may show the frame.
const APP_POLICY: &str = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; \
    style-src 'unsafe-inline'; img-src data: blob:; media-src data: blob:; font-src data:; connect-src 'none'; \
    form-action 'none'; base-uri 'none'; frame-ancestors 'self'";

/// An app of the gallery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GalleryApp {
    pub name: String,
    pub title: String,
    pub version: u32,
    /// When the version was saved, in ISO 8601.
    pub saved: String,
    /// The change of the version.
    pub note: String,
}

/// The apps of a principal cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct GalleryError(pub Box<dyn std::error::Error + Send + Sync>);

/// Reads stored apps. The module that knows their files implements it.
pub trait AppGallery: Send + Sync {
    /// Returns the apps of a principal, sorted by name. Fails if they cannot be read.
    fn list(&self, principal: &Principal) -> Result<Vec<GalleryApp>, GalleryError>;

    /// Returns an app and its HTML file. `None` if there is no such app. Fails if its file cannot be read.
    fn read(&self, principal: &Principal, name: &str) -> Result<Option<(GalleryApp, String)>, GalleryError>;
}

/// Shows all apps.
pub(super) async fn list(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
) -> Result<Response, ConsoleProblem> {
    let apps = state.parts.apps.list(login.token.grant.principal()).map_err(|error| unreadable(&error))?;
    let body = html! {
        h1 { "Apps" }
        @if apps.is_empty() { p class="empty" { "No app yet. A session in a mode with the service apps makes some." } }
        ul class="rows" {
            @for app in &apps {
                li {
                    a href={ "/console/apps/" (app.name) } { (display_text(&app.title)) }
                    div class="meta" { "version " (app.version) " · " (app.saved) " · " (display_text(&app.note)) }
                }
            }
        }
    };
    Ok(page(&login, Section::Apps, "Apps", &body))
}

/// Shows one app in its frame.
pub(super) async fn show(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    Path(name): Path<String>,
) -> Result<Response, ConsoleProblem> {
    let (app, _) = find(&state, &login, &name)?;
    let title = display_text(&app.title);
    let body = html! {
        h1 { (title) }
        p class="meta" { "version " (app.version) " · " (app.saved) " · " (display_text(&app.note)) }
        iframe class="app" src={ "/console/apps/" (app.name) "/page" } sandbox="allow-scripts" title=(title) {}
    };
    Ok(page(&login, Section::Apps, &title, &body))
}

/// Returns the file of an app, for its frame.
pub(super) async fn frame(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    Path(name): Path<String>,
) -> Result<Response, ConsoleProblem> {
    let (_, text) = find(&state, &login, &name)?;
    let mut response = ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], text).into_response();
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(APP_POLICY));
    response.headers_mut().insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("SAMEORIGIN"));
    Ok(response)
}

fn find(state: &ServerState, login: &Login, name: &str) -> Result<(GalleryApp, String), ConsoleProblem> {
    let found = state.parts.apps.read(login.token.grant.principal(), name).map_err(|error| unreadable(&error))?;
    found.ok_or_else(|| ConsoleProblem::new(StatusCode::NOT_FOUND, "There is no such app."))
}

fn unreadable(error: &GalleryError) -> ConsoleProblem {
    tracing::warn!(%error, "apps cannot be read");
    ConsoleProblem::new(StatusCode::CONFLICT, format!("The app cannot be read: {error}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_scripts_and_nothing_else() {
        assert!(APP_POLICY.starts_with("sandbox allow-scripts;"));
        for word in ["allow-same-origin", "allow-top-navigation", "allow-popups", "http"] {
            assert!(!APP_POLICY.contains(word), "{word}");
        }
        assert!(APP_POLICY.contains("connect-src 'none'"));
    }
}
