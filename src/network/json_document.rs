//! Downloads small JSON documents, such as the keys of an issuer.
//!
//! Invariant: the URL of a document is https or on this machine, so that no network in between can change it. Redirects
//! are not followed.

use std::time::Duration;

use serde_json::Value;
use url::{Host, Url};

use super::http_client::client_builder;

/// Maximum size of a document, in bytes.
const MAX_DOCUMENT: usize = 1 << 20;
/// How long a download may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Downloads JSON documents.
#[derive(Debug, Clone)]
pub struct DocumentClient(reqwest::Client);

/// Why there is no document.
#[derive(Debug, thiserror::Error)]
pub enum JsonDocumentError {
    #[error("the HTTP client cannot be created: {0}")]
    Client(#[source] reqwest::Error),
    #[error("`{url}` is neither an https URL nor on this machine")]
    Insecure { url: String },
    #[error("`{url}` cannot be read: {source}")]
    Unreachable {
        url: String,
        #[source]
        source: reqwest::Error,
    },
    #[error("`{url}` answers with the status {status}")]
    Status { url: String, status: u16 },
    #[error("`{url}` answers with more than {} KiB", MAX_DOCUMENT >> 10)]
    TooLarge { url: String },
    #[error("`{url}` answers with a text that is not JSON: {source}")]
    NotJson {
        url: String,
        #[source]
        source: serde_json::Error,
    },
}

impl DocumentClient {
    /// Creates a client. Fails if the TLS library cannot be used.
    pub fn new() -> Result<Self, JsonDocumentError> {
        let builder = client_builder().timeout(TIMEOUT).redirect(reqwest::redirect::Policy::none());
        builder.build().map(Self).map_err(JsonDocumentError::Client)
    }

    /// Downloads a document. Fails if its URL is insecure, or the server does not answer with JSON.
    pub async fn get(&self, url: &str) -> Result<Value, JsonDocumentError> {
        if !is_private_url(url) {
            return Err(JsonDocumentError::Insecure { url: url.to_owned() });
        }
        let unreachable = |error: reqwest::Error| {
            let source = error.without_url();
            JsonDocumentError::Unreachable { url: url.to_owned(), source }
        };
        let mut response = self.0.get(url).header("accept", "application/json").send().await.map_err(unreachable)?;
        let status = response.status();
        if !status.is_success() {
            return Err(JsonDocumentError::Status { url: url.to_owned(), status: status.as_u16() });
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            if bytes.len() + chunk.len() > MAX_DOCUMENT {
                return Err(JsonDocumentError::TooLarge { url: url.to_owned() });
            }
            bytes.extend_from_slice(&chunk);
        }
        serde_json::from_slice(&bytes).map_err(|source| JsonDocumentError::NotJson { url: url.to_owned(), source })
    }
}

/// Returns whether the URL is https, or http to this machine.
///
/// ```
/// use skein::network::is_private_url;
/// assert!(is_private_url("https://login.example.com") && is_private_url("http://127.0.0.1:8080/x"));
/// assert!(!is_private_url("http://login.example.com") && !is_private_url("login.example.com"));
/// ```
pub fn is_private_url(text: &str) -> bool {
    let Ok(url) = Url::parse(text) else { return false };
    match (url.scheme(), url.host()) {
        ("https", Some(_)) => true,
        ("http", Some(Host::Ipv4(address))) => address.is_loopback(),
        ("http", Some(Host::Ipv6(address))) => address.is_loopback(),
        ("http", Some(Host::Domain(name))) => name == "localhost",
        _ => false,
    }
}
