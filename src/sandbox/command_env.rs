//! Variables that lead the programs of a sandbox to its proxy.

use std::ffi::OsString;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::Path;

use super::error::SandboxError;

/// Java ignores the usual variables. Other programs would print a line about this one.
pub(super) fn is_java(program: &OsString) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == "java")
}

pub(super) fn java_options(address: SocketAddr) -> String {
    let (ip, port) = (address.ip(), address.port());
    format!("-Dhttp.proxyHost={ip} -Dhttp.proxyPort={port} -Dhttps.proxyHost={ip} -Dhttps.proxyPort={port}")
}

pub(super) fn random_token() -> Result<String, SandboxError> {
    let mut bytes = [0; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|source| SandboxError::Process { source })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the variables that lead programs to the proxy.
pub(super) fn proxy_variables(address: SocketAddr, token: Option<&str>) -> Vec<(OsString, OsString)> {
    let user = token.map_or_else(String::new, |token| format!("skein:{token}@"));
    let proxy = OsString::from(format!("http://{user}{address}"));
    let mut variables: Vec<(OsString, OsString)> = vec![("NODE_USE_ENV_PROXY".into(), "1".into())];
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        variables.push((name.into(), proxy.clone()));
        variables.push((name.to_ascii_lowercase().into(), proxy.clone()));
    }
    for name in ["NO_PROXY", "no_proxy"] {
        variables.push((name.into(), "localhost,127.0.0.1,::1".into()));
    }
    variables
}
