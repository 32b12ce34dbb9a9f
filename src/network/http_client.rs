//! Configures every HTTP client of Skein, so that all of them use the same TLS library.

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

/// Returns the builder of an HTTP client that trusts the system's certificates.
pub fn client_builder() -> reqwest::ClientBuilder {
    // reqwest panics if no TLS library is installed. The call fails only if an earlier one has installed it.
    if tls_provider().install_default().is_err() {
        tracing::trace!("TLS library is installed already");
    }
    reqwest::Client::builder()
}

/// Returns the cryptography of all TLS connections.
pub fn tls_provider() -> CryptoProvider {
    ring::default_provider()
}
