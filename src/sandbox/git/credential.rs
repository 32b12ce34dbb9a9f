//! Answers the credential helper inside a sandbox with the user's own helper, after consent.
//!
//! Invariant: the user's helper runs outside of every repository, so that no config of the project chooses a program.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::clients::REFUSAL_KEY;
use super::{GitCredential, GitServerInner};
use crate::network::RemoteHost;
use crate::process::{Launch, ProcessGroup, Stdin};

/// Maximum size of a request and of the helper's answer.
const MAX_MESSAGE: u64 = 64 * 1024;
/// How long the user's helper may take. It may open a window or ask for a touch.
const HELPER_LIMIT: Duration = Duration::from_secs(120);
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Attributes that go back to git. Others could tell it to use another server.
const ANSWERED: [&str; 5] = ["username", "password", "password_expiry_utc", "authtype", "credential"];

/// The server that a password is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialTarget {
    pub host: RemoteHost,
    pub path: Option<String>,
    pub username: Option<String>,
}

/// `https://user@example.com/x.git`
impl std::fmt::Display for CredentialTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("https://")?;
        if let Some(username) = &self.username {
            write!(f, "{}@", username.escape_debug())?;
        }
        write!(f, "{}", self.host)?;
        match &self.path {
            Some(path) => write!(f, "/{}", path.escape_debug()),
            None => Ok(()),
        }
    }
}

/// Serves one client: one request, one answer. An empty answer means that there is no credential; a refusal is for the
/// client inside, which shows it.
pub(super) async fn serve(server: &GitServerInner, mut client: UnixStream) -> io::Result<()> {
    let request = match tokio::time::timeout(REQUEST_LIMIT, read_request(&mut client)).await {
        Ok(request) => request?,
        Err(_) => return Err(io::ErrorKind::TimedOut.into()),
    };
    let answer = match CredentialTarget::parse(&request) {
        Some(target) => match server.ask(GitCredential::Password(target.clone())).await {
            Ok(()) => server.helper.fill(&target).await?,
            Err(refusal) => format!("{REFUSAL_KEY}={}\n", refusal.reason.replace('\n', " ")),
        },
        None => String::new(),
    };
    client.write_all(answer.as_bytes()).await?;
    client.shutdown().await
}

/// Reads up to the empty line that ends a request, or to the end of the connection.
async fn read_request(client: &mut (impl AsyncRead + Unpin)) -> io::Result<String> {
    let mut bytes = Vec::new();
    let mut limited = client.take(MAX_MESSAGE);
    while !bytes.ends_with(b"\n\n") {
        if limited.read_buf(&mut bytes).await? == 0 {
            break;
        }
    }
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

impl CredentialTarget {
    /// Parses the attributes that git sends. `None` without a host, or for another protocol than https.
    fn parse(request: &str) -> Option<Self> {
        let mut attributes = BTreeMap::new();
        for line in request.lines().take_while(|line| !line.is_empty()) {
            let (name, value) = line.split_once('=')?;
            // The lists `wwwauth[]` and `capability[]` choose no server.
            if !name.ends_with("[]") && attributes.insert(name, value).is_some() {
                return None;
            }
        }
        let plain = |text: &&&str| !text.is_empty() && !text.contains(|c: char| c.is_control());
        let value = |name: &str| attributes.get(name).filter(plain).map(|value| (*value).to_owned());
        // `url` would replace the attributes that the user is asked about.
        if attributes.get("protocol") != Some(&"https") || attributes.contains_key("url") {
            return None;
        }
        let host = value("host")?;
        let host = RemoteHost::of_authority(&host).or_else(|| RemoteHost::new(&host, 443))?;
        Some(Self { host, path: value("path"), username: value("username") })
    }

    /// Encodes the attributes for the user's helper.
    fn encode(&self) -> String {
        let host = if self.host.port() == 443 { self.host.name().to_owned() } else { self.host.authority() };
        let mut text = format!("protocol=https\nhost={host}\n");
        for (name, value) in [("path", &self.path), ("username", &self.username)] {
            if let Some(value) = value {
                text.extend([name, "=", value, "\n"]);
            }
        }
        text.push('\n');
        text
    }
}

/// The credential helpers of the user's git config.
#[derive(Debug)]
pub(super) struct UserHelper {
    environment: BTreeMap<OsString, OsString>,
}

impl UserHelper {
    /// `environment` needs `HOME` and `PATH`.
    pub(super) fn new(mut environment: BTreeMap<OsString, OsString>) -> Self {
        environment.retain(|name, _| !name.to_string_lossy().starts_with("GIT_"));
        // A helper may answer, but git must not wait for a terminal.
        environment.insert("GIT_TERMINAL_PROMPT".into(), "0".into());
        environment.insert("GIT_ASKPASS".into(), "true".into());
        Self { environment }
    }

    /// Returns the attributes of the credential. Empty if no helper has one.
    async fn fill(&self, target: &CredentialTarget) -> io::Result<String> {
        let launch = Launch {
            program: "git".into(),
            args: vec!["credential".into(), "fill".into()],
            env: self.environment.clone(),
            cwd: Some(PathBuf::from("/")),
            stdin: Stdin::Piped,
            launcher: None,
        };
        let (mut group, pipes) = ProcessGroup::spawn(&launch, None)?;
        let exchange = async {
            let mut stdin = pipes.stdin.ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
            stdin.write_all(target.encode().as_bytes()).await?;
            drop(stdin);
            let mut answer = String::new();
            pipes.stdout.take(MAX_MESSAGE).read_to_string(&mut answer).await?;
            Ok::<_, io::Error>((answer, group.status().await?))
        };
        let (answer, status) = match tokio::time::timeout(HELPER_LIMIT, exchange).await {
            Ok(result) => result?,
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        };
        Ok(if status.success() { credential_attributes(&answer) } else { String::new() })
    }
}

/// Keeps the attributes of a credential.
fn credential_attributes(answer: &str) -> String {
    let kept = answer
        .lines()
        .filter(|line| line.split_once('=').is_some_and(|(name, value)| ANSWERED.contains(&name) && !value.is_empty()));
    kept.map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_name_one_https_server() {
        let parse = |text: &str| CredentialTarget::parse(text).map(|target| target.to_string());
        let full =
            "capability[]=authtype\nprotocol=https\nhost=Example.com\npath=a/b.git\nusername=me\nwwwauth[]=Basic\n\n";
        assert_eq!(parse(full).as_deref(), Some("https://me@example.com/a/b.git"));
        assert_eq!(parse("protocol=https\nhost=example.com:8443\n").as_deref(), Some("https://example.com:8443"));
        for text in [
            "",
            "host=example.com\n\n",
            "protocol=http\nhost=example.com\n\n",
            "protocol=https\n\n",
            "protocol=https\nhost=\n\n",
            "protocol=https\nhost=a.test\nhost=b.test\n\n",
            "protocol=https\nhost=a.test\nurl=https://b.test\n\n",
            "protocol=https\nhost=a.test/x\n\n",
            "protocol=https\nhost=a.test\rb\n\n",
            "protocol=https\nhost\n\n",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_attributes_of_the_credential_go_back() {
        let answer = "protocol=https\nhost=evil.test\nurl=x\nusername=me\npassword=secret\nquit=1\nbroken\n";
        assert_eq!(credential_attributes(answer), "username=me\npassword=secret\n");
    }
}
