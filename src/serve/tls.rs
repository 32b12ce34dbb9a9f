//! Loads the server's certificate and its key, and loads them again when their files change.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_util::sync::CancellationToken;

/// How often the files are checked for changes.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// The protocols that the server offers, in its order of preference.
pub(super) const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// The PEM files of the server's certificate chain and its private key.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Why the server cannot use its certificate.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the file {} cannot be read: {problem}", .file.display())]
    File { file: PathBuf, problem: String },
    #[error("the file {} has no certificate", .file.display())]
    NoCertificate { file: PathBuf },
    #[error("the certificate and the key do not work: {0}")]
    Unusable(#[from] rustls::Error),
}

/// When each file changed last, and its size.
type FileVersions = [Option<(SystemTime, u64)>; 2];

/// The TLS settings of new connections.
#[derive(Clone)]
pub(super) struct TlsSettings {
    files: TlsFiles,
    /// The versions of the files that were loaded first.
    loaded: FileVersions,
    current: Arc<RwLock<Arc<ServerConfig>>>,
}

impl TlsSettings {
    /// Loads the files. Fails if one cannot be read, or they do not belong together.
    pub(super) fn load(files: TlsFiles) -> Result<Self, TlsError> {
        // Before the files are read: a change between reading and watching is noticed.
        let loaded = versions(&files);
        let current = Arc::new(RwLock::new(Arc::new(load(&files)?)));
        Ok(Self { files, loaded, current })
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Loads the files again whenever they change, until `stop` is cancelled. Files that do not work are reported, and
    /// the server keeps what it has.
    pub(super) async fn watch(&self, stop: &CancellationToken) {
        let mut known = self.loaded;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RELOAD_INTERVAL) => {}
            }
            let now = versions(&self.files);
            if now == known {
                continue;
            }
            match load(&self.files) {
                Ok(settings) => {
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
                    tracing::info!("the certificate was loaded again");
                }
                Err(error) => tracing::error!(%error, "the old certificate stays in use"),
            }
            known = now;
        }
    }
}

fn versions(files: &TlsFiles) -> FileVersions {
    [&files.certificate, &files.key].map(|file| version(file).ok())
}

fn version(file: &Path) -> io::Result<(SystemTime, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.modified()?, metadata.len()))
}

fn load(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
    let unreadable = |file: &Path, problem: String| TlsError::File { file: file.to_owned(), problem };
    let file = &files.certificate;
    let chain = CertificateDer::pem_file_iter(file).map_err(|error| unreadable(file, error.to_string()))?;
    let chain: Vec<_> = chain.collect::<Result<_, _>>().map_err(|error| unreadable(file, error.to_string()))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate { file: file.clone() });
    }
    let key = PrivateKeyDer::from_pem_file(&files.key);
    let key = key.map_err(|error| unreadable(&files.key, error.to_string()))?;
    let provider = Arc::new(crate::network::tls_provider());
    let settings = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut settings = settings.with_no_client_auth().with_single_cert(chain, key)?;
    settings.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
    Ok(settings)
}

impl std::fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsSettings").field("files", &self.files).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedKey, generate_simple_self_signed};

    use super::*;

    fn certify(files: &TlsFiles, modified: SystemTime) {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        for (file, text) in [(&files.key, signing_key.serialize_pem()), (&files.certificate, cert.pem())] {
            std::fs::write(file, text).unwrap();
            std::fs::File::options().write(true).open(file).unwrap().set_modified(modified).unwrap();
        }
    }

    /// A busy server may begin to watch the files long after it has loaded them.
    #[tokio::test(start_paused = true)]
    async fn a_change_before_the_watch_begins_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let files = TlsFiles { certificate: folder.path().join("cert.pem"), key: folder.path().join("key.pem") };
        certify(&files, SystemTime::UNIX_EPOCH);
        let settings = TlsSettings::load(files.clone()).unwrap();
        let before = Arc::clone(&settings.current.read().unwrap());
        certify(&files, SystemTime::UNIX_EPOCH + Duration::from_secs(1));
        let stop = CancellationToken::new();
        tokio::time::timeout(RELOAD_INTERVAL * 2, settings.watch(&stop)).await.expect_err("it watches until `stop`");
        assert!(!Arc::ptr_eq(&before, &settings.current.read().unwrap()), "the new certificate is not used");
    }
}
