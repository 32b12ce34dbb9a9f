//! Configures every HTTP client of Skein, so that all of them use the same TLS library, and the system's certificates
//! unless a file names others.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustls_platform_verifier::Verifier;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// Why the certificates of a file cannot be trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrustedRootsError {
    #[error("`{file}` cannot be read: {reason}")]
    Unreadable { file: String, reason: String },
    #[error("`{file}` has no certificate in PEM format")]
    NoCertificate { file: String },
    #[error("a certificate in `{file}` is not valid: {reason}")]
    Invalid { file: String, reason: String },
}

/// The certificates that a client trusts instead of those of the system.
#[derive(Debug, Clone)]
pub struct TrustedRoots(Arc<WebPkiServerVerifier>);

impl TrustedRoots {
    /// Reads a PEM file. Fails if it has no certificate, or one that is not valid.
    pub fn read(path: &Path) -> Result<Self, TrustedRootsError> {
        let file = path.display().to_string();
        let text = std::fs::read(path)
            .map_err(|error| TrustedRootsError::Unreadable { file: file.clone(), reason: error.to_string() })?;
        let invalid = |reason: String| TrustedRootsError::Invalid { file: file.clone(), reason };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&text) {
            let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
            roots.add(certificate).map_err(|error| invalid(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(TrustedRootsError::NoCertificate { file: file.clone() });
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(tls_provider()));
        Ok(Self(verifier.build().map_err(|error| invalid(error.to_string()))?))
    }
}

/// Returns the builder of an HTTP client that trusts the system's certificates. The options of reqwest for certificates
/// and for the versions of TLS and HTTP have no effect on it.
pub fn client_builder() -> reqwest::ClientBuilder {
    let provider = Arc::new(tls_provider());
    builder_with(Arc::new(SystemVerifier { provider, verifier: OnceLock::new() }))
}

/// Returns the builder of an HTTP client that trusts only these certificates.
pub(super) fn client_builder_with_roots(roots: &TrustedRoots) -> reqwest::ClientBuilder {
    builder_with(Arc::clone(&roots.0) as Arc<dyn ServerCertVerifier>)
}

fn builder_with(verifier: Arc<dyn ServerCertVerifier>) -> reqwest::ClientBuilder {
    // reqwest panics if no TLS library is installed. The call fails only if an earlier one has installed it.
    if tls_provider().install_default().is_err() {
        tracing::trace!("TLS library is installed already");
    }
    reqwest::Client::builder().tls_backend_preconfigured(tls_config(verifier))
}

/// Returns the cryptography of all TLS connections.
pub fn tls_provider() -> CryptoProvider {
    ring::default_provider()
}

/// Returns whether an error, which may be a cause of another one, says that a server or the system's certificates cannot
/// be trusted.
pub fn is_trust_failure(mut error: &(dyn std::error::Error + 'static)) -> bool {
    // An I/O error does not name the error inside it as its cause.
    while let Some(inner) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
        error = inner;
    }
    matches!(error.downcast_ref(), Some(Error::InvalidCertificate(_) | Error::General(_)))
}

#[expect(clippy::expect_used, reason = "ring has cipher suites for both versions of TLS")]
fn tls_config(verifier: Arc<dyn ServerCertVerifier>) -> ClientConfig {
    let mut config = ClientConfig::builder_with_provider(Arc::new(tls_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports TLS 1.2 and 1.3")
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    // In the order of preference. reqwest adds none to a given configuration.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

/// Verifies servers by the system's certificates. Reads them at the first TLS handshake: that takes milliseconds, and a
/// client of plain HTTP, as for a local model, never needs them.
#[derive(Debug)]
struct SystemVerifier {
    provider: Arc<CryptoProvider>,
    verifier: OnceLock<Verifier>,
}

impl ServerCertVerifier for SystemVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verifier = match self.verifier.get() {
            Some(verifier) => verifier,
            None => {
                let read = Verifier::new(Arc::clone(&self.provider))?;
                self.verifier.get_or_init(|| read)
            }
        };
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
