//! The environment variables that give git inside a sandbox its credential helper, its ssh and its agent.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::clients::{GIT_CREDENTIAL_ARGUMENT, PROXY_CONNECT_ARGUMENT};

/// The sockets of a [`super::GitServer`], as paths inside the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitSockets {
    pub credentials: PathBuf,
    pub agent: PathBuf,
}

impl GitSockets {
    /// Returns the paths in every sandbox, below a private folder.
    pub fn inside() -> Self {
        Self { credentials: "/run/skein/git-credentials".into(), agent: "/run/skein/ssh-agent".into() }
    }
}

/// Returns the variables for one command. `skein` is the program inside; `proxy` is the address of the proxy and the
/// credentials `USER:PASSWORD` for it.
pub fn git_variables(skein: &Path, sockets: &GitSockets, proxy: Option<(SocketAddr, &str)>) -> Vec<(String, String)> {
    let program = quote(&skein.to_string_lossy());
    let helper = format!("!{program} {GIT_CREDENTIAL_ARGUMENT} {}", quote(&sockets.credentials.to_string_lossy()));
    // The empty value removes the helpers of the user's config, which cannot work inside.
    let config = [("credential.helper", ""), ("credential.helper", helper.as_str())];
    let mut variables = vec![("GIT_CONFIG_COUNT".to_owned(), config.len().to_string())];
    for (index, (key, value)) in config.into_iter().enumerate() {
        variables.push((format!("GIT_CONFIG_KEY_{index}"), key.to_owned()));
        variables.push((format!("GIT_CONFIG_VALUE_{index}"), value.to_owned()));
    }
    // In a user namespace, files of root have another owner, and ssh refuses such config files.
    let mut ssh = "ssh -F none -o UpdateHostKeys=no -o ForwardAgent=no".to_owned();
    if let Some((address, credentials)) = proxy {
        // ssh expands `%` in the command.
        let program = program.replace('%', "%%");
        let command = format!("{program} {PROXY_CONNECT_ARGUMENT} {address} {} %h %p", quote(credentials));
        ssh.extend([" -o ", &quote(&format!("ProxyCommand={command}"))]);
    }
    variables.push(("GIT_SSH_COMMAND".to_owned(), ssh));
    variables.push(("SSH_AUTH_SOCK".to_owned(), sockets.agent.to_string_lossy().into_owned()));
    variables.push(("GIT_TERMINAL_PROMPT".to_owned(), "0".to_owned()));
    variables
}

/// Quotes a word for a POSIX shell.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_survive_the_shell() {
        let sockets = GitSockets { credentials: "/run/it's/c.sock".into(), agent: "/run/a.sock".into() };
        let proxy = Some(("127.0.0.1:3128".parse().unwrap(), "command-1:t"));
        let variables = git_variables(Path::new("/opt/my skein/skein"), &sockets, proxy);
        let value = |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        assert_eq!((value("GIT_CONFIG_COUNT"), value("GIT_CONFIG_VALUE_0")), (Some("2"), Some("")));
        let helper = r"!'/opt/my skein/skein' sandbox-git-credential '/run/it'\''s/c.sock'";
        assert_eq!((value("GIT_CONFIG_KEY_1"), value("GIT_CONFIG_VALUE_1")), (Some("credential.helper"), Some(helper)));
        let ssh = "ssh -F none -o UpdateHostKeys=no -o ForwardAgent=no -o 'ProxyCommand='\\''/opt/my skein/skein'\\'' \
                   sandbox-proxy-connect 127.0.0.1:3128 '\\''command-1:t'\\'' %h %p'";
        assert_eq!(value("GIT_SSH_COMMAND"), Some(ssh));
        assert_eq!(value("SSH_AUTH_SOCK"), Some("/run/a.sock"));
    }
}
