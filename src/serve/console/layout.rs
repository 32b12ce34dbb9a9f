//! The frame of all pages: head, navigation, messages, and the headers that restrict what a page may do.
//!
//! Invariant: all text passes the escaping of `maud`. No page has an inline script or style, and no page loads anything
//! from another host.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use super::assets::asset_address;
use super::logins::Login;

/// Scripts, styles and connections are this server's own. Pictures of messages are in the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; worker-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; \
    frame-ancestors 'none'";

/// The part of the console that a page belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    Sessions,
    Approvals,
    Graph,
    Routing,
    Apps,
    Manifests,
    Rules,
    Health,
}

impl Section {
    const ALL: [Self; 8] = [
        Self::Sessions,
        Self::Approvals,
        Self::Graph,
        Self::Routing,
        Self::Apps,
        Self::Manifests,
        Self::Rules,
        Self::Health,
    ];

    /// Returns whether only administrators see it.
    fn is_for_admins(self) -> bool {
        matches!(self, Self::Manifests | Self::Rules | Self::Health)
    }

    fn label(self) -> &'static str {
        match self {
            Self::Sessions => "Sessions",
            Self::Approvals => "Approvals",
            Self::Graph => "Graph",
            Self::Routing => "Routing",
            Self::Apps => "Apps",
            Self::Manifests => "Manifests",
            Self::Rules => "Rules",
            Self::Health => "Health",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Sessions => "/console/sessions",
            Self::Approvals => "/console/approvals",
            Self::Graph => "/console/graph",
            Self::Routing => "/console/routing",
            Self::Apps => "/console/apps",
            Self::Manifests => "/console/manifests",
            Self::Rules => "/console/rules",
            Self::Health => "/console/health",
        }
    }
}

/// Returns a page of a login.
pub(super) fn page(login: &Login, section: Section, title: &str, body: &Markup) -> Response {
    let principal = login.token.grant.principal().name();
    let is_admin = login.token.grant.limits().admin;
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            (head(title, principal, &login.csrf))
            body {
                a class="skip" href="#main" { "Skip to the content" }
                header class="top" {
                    a class="brand" href="/console/sessions" { "Skein" }
                    nav aria-label="Console" {
                        @for other in Section::ALL.into_iter().filter(|other| is_admin || !other.is_for_admins()) {
                            a href=(other.path()) aria-current=[(other == section).then_some("page")] {
                                (other.label())
                                @if other == Section::Approvals { " " span class="count" id="approval-count" hidden {} }
                            }
                        }
                    }
                    div class="who" {
                        span class="link-state" id="link-state" role="status" {}
                        span { (principal) }
                        form method="post" action="/console/logout" {
                            (csrf_field(login))
                            button type="submit" class="quiet" { "Log out" }
                        }
                    }
                }
                main id="main" tabindex="-1" { (body) }
            }
        }
    };
    html_response(StatusCode::OK, &markup)
}

/// Returns a page without a login.
pub(super) fn public_page(status: StatusCode, title: &str, scripts: &[&str], body: &Markup) -> Response {
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                (common_head(title))
                @for script in scripts {
                    script src=(asset_address(script)) defer {}
                }
            }
            body class="narrow" {
                main id="main" { (body) }
            }
        }
    };
    html_response(status, &markup)
}

fn head(title: &str, principal: &str, csrf: &str) -> Markup {
    html! {
        head {
            (common_head(title))
            meta name="csrf-token" content=(csrf);
            meta name="principal" content=(principal);
            meta name="events-worker" content=(asset_address("events-worker.js"));
            script src=(asset_address("console.js")) defer {}
        }
    }
}

fn common_head(title: &str) -> Markup {
    html! {
        meta charset="utf-8";
        meta name="viewport" content="width=device-width, initial-scale=1";
        meta name="color-scheme" content="light dark";
        title { (title) " · Skein" }
        link rel="icon" href=(asset_address("icon.svg"));
        link rel="stylesheet" href=(asset_address("console.css"));
    }
}

/// Returns the hidden field that every form needs.
pub(super) fn csrf_field(login: &Login) -> Markup {
    html! { input type="hidden" name="csrf" value=(login.csrf); }
}

/// Returns a fragment of a page, which a script inserts.
pub(super) fn fragment(markup: &Markup) -> Response {
    html_response(StatusCode::OK, markup)
}

fn html_response(status: StatusCode, markup: &Markup) -> Response {
    (status, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], markup.0.clone()).into_response()
}

/// A request of the console that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConsoleProblem {
    pub(super) status: StatusCode,
    pub(super) text: String,
}

impl ConsoleProblem {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// The answer for an unknown session, and for one of another principal.
    pub(super) fn no_session() -> Self {
        Self::new(StatusCode::NOT_FOUND, "There is no such session.")
    }

    /// Returns the problem as text, for a script.
    pub(super) fn to_text(&self) -> Response {
        (self.status, self.text.clone()).into_response()
    }

    /// Returns the problem as a page.
    pub(super) fn to_page(&self) -> Response {
        let body = html! {
            h1 { "This did not work" }
            p role="alert" { (self.text) }
            p { a href="/console/sessions" { "Back to the sessions" } }
        };
        public_page(self.status, "Problem", &[], &body)
    }
}

/// The middleware of the console shows the problem as a page or as text.
impl IntoResponse for ConsoleProblem {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Adds the headers that restrict a page, unless it has its own.
pub(super) async fn restrict(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Not `no-referrer`: browsers would then send the forms of a page with `Origin: null`.
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_allows_no_inline_code_and_no_other_host() {
        assert!(POLICY.starts_with("default-src 'none'"));
        for word in ["unsafe", "http:", "https:", "*", "blob:"] {
            assert!(!POLICY.contains(word), "{word}");
        }
    }
}
