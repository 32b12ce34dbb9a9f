//! Names the OpenID Connect issuer that gives clients JWTs for this server (RFC 9728), in a public document. Every 401
//! names the document.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::json;

use super::ServerState;

/// The path of the document.
pub(super) const PATH: &str = "/.well-known/oauth-protected-resource";

/// Returns the address of the document for the client of a request. `None` if the server accepts no JWTs.
pub(super) fn metadata_url(state: &ServerState, request: &Request) -> Option<String> {
    state.authenticator.issuer()?;
    Some(format!("{}{PATH}", state.hosts.base_url(request, state.scheme)))
}

/// Shows the document. Answers 404 if the server accepts no JWTs.
pub(super) async fn show(State(state): State<Arc<ServerState>>, request: Request) -> Response {
    let Some(issuer) = state.authenticator.issuer() else {
        return (StatusCode::NOT_FOUND, "this server accepts no JWTs; see --oidc-issuer\n").into_response();
    };
    let document = json!({
        // All paths are one resource, because JWTs for all of them have one audience.
        "resource": state.hosts.base_url(&request, state.scheme),
        "authorization_servers": [issuer],
        "bearer_methods_supported": ["header"],
        "resource_name": "Skein",
    });
    ([(header::CONTENT_TYPE, "application/json")], document.to_string()).into_response()
}
