//! Variables and secrets of the commands in a sandbox.

use std::ffi::OsStr;
use std::io::Read as _;
use std::path::Path;

use super::error::SandboxError;

/// Variables that name certificates. They pass into every sandbox, because the servers of a company need them.
pub const CERTIFICATE_VARIABLES: [&str; 8] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
];

/// Returns true for programs that run java. Java ignores the usual proxy variables, and other programs would print a
/// line about its own.
pub fn is_java(program: &OsStr) -> bool {
    let names = ["java", "mvn", "mvnw", "gradle", "gradlew"];
    Path::new(program).file_name().is_some_and(|name| names.iter().any(|java| name == *java))
}

pub(super) fn random_token() -> Result<String, SandboxError> {
    let mut bytes = [0; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|source| SandboxError::Process { source })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
