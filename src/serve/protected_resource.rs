//! Names the OpenID Connect issuer that gives clients JWTs for this server (RFC 9728), in public documents. Each path
//! of the server is a resource with its own document, and every 401 names the document of the requested path.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::json;

use super::ServerState;

/// The path of the document for the whole server. With the path of a resource after it, it leads to its document.
const PATH: &str = "/.well-known/oauth-protected-resource";

/// Returns whether a request for this path asks for a document.
pub(super) fn is_document(path: &str) -> bool {
    document_of(path).is_some()
}

/// Returns the address of the document for the path of a request. `None` if the server accepts no JWTs.
pub(super) fn metadata_url(state: &ServerState, request: &Request) -> Option<String> {
    state.authenticator.issuer()?;
    let resource = resource_path(request.uri().path());
    Some(format!("{}{PATH}{resource}", state.hosts.base_url(request, state.scheme)))
}

/// Returns the address that a request asks for, as its document names it. `None` if the server accepts no JWTs.
pub(super) fn resource_url(state: &ServerState, request: &Request) -> Option<String> {
    state.authenticator.issuer()?;
    let resource = resource_path(request.uri().path());
    Some(format!("{}{resource}", state.hosts.base_url(request, state.scheme)))
}

/// Shows a document. Answers 404 if the server accepts no JWTs. The answer does not depend on whether the resource
/// exists, because the client has shown no token.
pub(super) async fn show(State(state): State<Arc<ServerState>>, request: Request) -> Response {
    let Some(issuer) = state.authenticator.issuer() else {
        return (StatusCode::NOT_FOUND, "this server accepts no JWTs; see --oidc-issuer\n").into_response();
    };
    let resource = document_of(request.uri().path()).map(resource_path).unwrap_or_default();
    let document = json!({
        // Clients compare it with the address that they requested.
        "resource": format!("{}{resource}", state.hosts.base_url(&request, state.scheme)),
        "authorization_servers": [issuer],
        "bearer_methods_supported": ["header"],
        "resource_name": "Skein",
    });
    ([(header::CONTENT_TYPE, "application/json")], document.to_string()).into_response()
}

/// Returns the path of the resource that a document describes, empty for the whole server. `None` if the path is not
/// that of a document.
fn document_of(path: &str) -> Option<&str> {
    path.strip_prefix(PATH).filter(|resource| resource.is_empty() || resource.starts_with('/'))
}

/// Returns the path in the identifier of a resource. It is empty for `/`, and for a path with a character that a URL
/// must encode: such a character could end the quoted text of a header.
fn resource_path(path: &str) -> &str {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:@".contains(&byte);
    if path.len() > 1 && path.starts_with('/') && path.bytes().all(is_plain) { path } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_a_url_is_a_resource() {
        for path in ["/mcp/coding/qa", "/mcp/services/my_notes", "/runs/a%20b", "/a/", "/a:b@c,d;e=f"] {
            assert_eq!(resource_path(path), path);
        }
        for path in ["", "/", "*", "mcp", "/a\"b", "/a\\b", "/a b", "/a{b}", "/é"] {
            assert_eq!(resource_path(path), "", "{path}");
        }
    }

    #[test]
    fn a_document_has_the_path_of_its_resource_after_its_own() {
        assert_eq!(document_of("/.well-known/oauth-protected-resource"), Some(""));
        assert_eq!(document_of("/.well-known/oauth-protected-resource/mcp/agents"), Some("/mcp/agents"));
        for path in ["/.well-known/oauth-protected-resources", "/mcp/.well-known/oauth-protected-resource", "/"] {
            assert_eq!(document_of(path), None, "{path}");
        }
    }
}
