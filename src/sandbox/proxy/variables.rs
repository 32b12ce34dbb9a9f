//! The environment variables that lead the tools inside a sandbox to the proxy.

use std::net::SocketAddr;

use super::CommandId;

/// Hosts that tools inside reach without the proxy: the loopback interface of the sandbox.
const NO_PROXY: &str = "localhost,127.0.0.1,::1";
/// The password if the proxy needs none. Some tools drop a user name without a password.
const NO_TOKEN: &str = "x";
/// The user name of a process whose command is not known.
const NO_COMMAND: &str = "skein";

/// Returns the user name and password for the proxy, as `USER:PASSWORD`. The user name identifies the command.
pub fn proxy_credentials(command: Option<CommandId>, token: Option<&str>) -> String {
    let user = command.map_or_else(|| NO_COMMAND.to_owned(), |command| command.to_string());
    format!("{user}:{}", token.unwrap_or(NO_TOKEN))
}

/// Returns the variables for one command. All contain the http address: a SOCKS address in `ALL_PROXY` breaks some
/// tools, and curl ignores `HTTP_PROXY`, so both cases are set.
pub fn proxy_variables(listener: SocketAddr, credentials: &str) -> Vec<(String, String)> {
    let address = format!("http://{credentials}@{listener}");
    let proxies = ["http_proxy", "https_proxy", "all_proxy"].map(|name| (name, address.as_str()));
    let mut variables: Vec<(String, String)> = Vec::new();
    for (name, value) in proxies.into_iter().chain([("no_proxy", NO_PROXY)]) {
        variables.push((name.to_owned(), value.to_owned()));
        variables.push((name.to_ascii_uppercase(), value.to_owned()));
    }
    variables.push(("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned()));
    variables
}

/// Returns the value of `JAVA_TOOL_OPTIONS`, for commands whose program is java: it prints a line for each start.
pub fn java_options(listener: SocketAddr) -> String {
    let (ip, port) = (listener.ip(), listener.port());
    let scheme = |scheme: &str| format!("-D{scheme}.proxyHost={ip} -D{scheme}.proxyPort={port}");
    format!("{} {} -Dhttp.nonProxyHosts=localhost|127.*|[::1]", scheme("http"), scheme("https"))
}
