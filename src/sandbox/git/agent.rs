//! An ssh-agent with two operations: list the user's keys, and sign after consent.
//!
//! Invariant: requests reach the user's agent only after they were parsed and encoded again. All others fail here.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::{GitCredential, GitServerInner};

const FAILURE: u8 = 5;
const REQUEST_IDENTITIES: u8 = 11;
const IDENTITIES: u8 = 12;
const SIGN_REQUEST: u8 = 13;
const SIGNATURE: u8 = 14;
/// `SSH_MSG_USERAUTH_REQUEST`, which is part of the data that a login signs.
const USERAUTH_REQUEST: u8 = 50;
const SIGNATURE_MAGIC: &[u8] = b"SSHSIG";
/// The namespace of signatures under commits and tags.
const GIT_NAMESPACE: &[u8] = b"git";

const MAX_MESSAGE: usize = 256 * 1024;
const MAX_KEYS: usize = 64;
/// How long the user's agent may take. It may ask for a confirmation or a touch.
const AGENT_LIMIT: Duration = Duration::from_secs(120);

/// What a signature is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignPurpose {
    /// A login to an ssh server as this user.
    Login { user: String },
    /// A signature under a commit or a tag.
    Commit,
}

impl std::fmt::Display for SignPurpose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SignPurpose::Login { user } => write!(f, "ssh login as `{}`", user.escape_debug()),
            SignPurpose::Commit => f.write_str("signature under a commit or tag"),
        }
    }
}

/// A request that passes the filter.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AgentRequest {
    List,
    Sign { key: Vec<u8>, data: Vec<u8>, flags: u32, purpose: SignPurpose },
}

/// Serves one client until it disconnects.
pub(super) async fn serve(server: &GitServerInner, mut client: UnixStream) -> io::Result<()> {
    while let Some(message) = read_message(&mut client).await? {
        let answer = match parse_request(&message) {
            Some(request) => answer(server, request).await.unwrap_or_else(|| vec![FAILURE]),
            None => vec![FAILURE],
        };
        client.write_all(&encode_string(&answer)).await?;
    }
    Ok(())
}

/// Answers a request. `None` if the user declines or the agent fails.
async fn answer(server: &GitServerInner, request: AgentRequest) -> Option<Vec<u8>> {
    let Some(agent) = &server.agent else {
        // Without an agent there are no keys.
        return (request == AgentRequest::List).then(|| vec![IDENTITIES, 0, 0, 0, 0]);
    };
    let list = ask_agent(agent, &[REQUEST_IDENTITIES], IDENTITIES).await?;
    let keys = parse_keys(&list)?;
    match request {
        AgentRequest::List => Some(encode_keys(&keys)),
        AgentRequest::Sign { key, data, flags, purpose } => {
            let known = keys.iter().find(|known| known.blob == key)?;
            let credential = GitCredential::Signature { purpose, key: known.label() };
            server.ask(credential).await.ok()?;
            let request =
                [&[SIGN_REQUEST][..], &encode_string(&key), &encode_string(&data), &flags.to_be_bytes()].concat();
            ask_agent(agent, &request, SIGNATURE).await
        }
    }
}

/// Sends a request to the user's agent. `None` if it fails or answers with another message.
async fn ask_agent(path: &Path, request: &[u8], expected: u8) -> Option<Vec<u8>> {
    let exchange = async {
        let mut agent = UnixStream::connect(path).await?;
        agent.write_all(&encode_string(request)).await?;
        read_message(&mut agent).await
    };
    let answer = tokio::time::timeout(AGENT_LIMIT, exchange).await.ok()?.ok()??;
    (answer.first() == Some(&expected)).then_some(answer)
}

/// Reads a message without its length. `None` at the end of the connection.
async fn read_message(stream: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    };
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length == 0 || length > MAX_MESSAGE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message of the agent protocol has a wrong length"));
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(Some(message))
}

/// Parses a request. `None` if it is neither a list nor a signature for a login or a commit.
fn parse_request(message: &[u8]) -> Option<AgentRequest> {
    match message {
        [REQUEST_IDENTITIES] => Some(AgentRequest::List),
        [SIGN_REQUEST, rest @ ..] => {
            let mut fields = SshFields(rest);
            let key = fields.take_string()?.to_vec();
            let data = fields.take_string()?.to_vec();
            let flags = fields.take_u32()?;
            let purpose = read_purpose(&data, &key).filter(|_| fields.0.is_empty())?;
            Some(AgentRequest::Sign { key, data, flags, purpose })
        }
        _ => None,
    }
}

/// Recognises the data of a login and of a commit signature. The agent signs nothing else.
fn read_purpose(data: &[u8], key: &[u8]) -> Option<SignPurpose> {
    read_commit(data).or_else(|| read_login(data, key))
}

fn read_commit(data: &[u8]) -> Option<SignPurpose> {
    let mut fields = SshFields(data.strip_prefix(SIGNATURE_MAGIC)?);
    let namespace = fields.take_string()?;
    let reserved = fields.take_string()?;
    let algorithm = fields.take_string()?;
    let hash = fields.take_string()?;
    let whole = fields.0.is_empty() && reserved.is_empty() && !hash.is_empty();
    let known = algorithm == b"sha256" || algorithm == b"sha512";
    (whole && known && namespace == GIT_NAMESPACE).then_some(SignPurpose::Commit)
}

fn read_login(data: &[u8], key: &[u8]) -> Option<SignPurpose> {
    let mut fields = SshFields(data);
    let session = fields.take_string()?;
    let kind = fields.take(1)?;
    let user = std::str::from_utf8(fields.take_string()?).ok()?;
    let service = fields.take_string()?;
    let method = fields.take_string()?;
    let signed = fields.take(1)?;
    fields.take_string()?;
    let named_key = fields.take_string()?;
    // The second method ends with the key of the host.
    let whole = match method {
        b"publickey" => fields.0.is_empty(),
        b"publickey-hostbound-v00@openssh.com" => fields.take_string().is_some() && fields.0.is_empty(),
        _ => false,
    };
    let fits = !session.is_empty() && kind == [USERAUTH_REQUEST] && service == b"ssh-connection" && signed == [1];
    (whole && fits && named_key == key).then(|| SignPurpose::Login { user: user.to_owned() })
}

/// A key of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AgentKey {
    blob: Vec<u8>,
    comment: Vec<u8>,
}

impl AgentKey {
    /// Returns the comment, or the type of the key.
    fn label(&self) -> String {
        let comment = String::from_utf8_lossy(&self.comment);
        if comment.trim().is_empty() {
            String::from_utf8_lossy(SshFields(&self.blob).take_string().unwrap_or_default()).into_owned()
        } else {
            comment.chars().take(100).collect()
        }
    }
}

/// Parses the list of keys. `None` if it is malformed.
fn parse_keys(message: &[u8]) -> Option<Vec<AgentKey>> {
    let mut fields = SshFields(message.strip_prefix(&[IDENTITIES])?);
    let count = usize::try_from(fields.take_u32()?).ok()?;
    let mut keys = Vec::new();
    for _ in 0..count {
        keys.push(AgentKey { blob: fields.take_string()?.to_vec(), comment: fields.take_string()?.to_vec() });
    }
    keys.truncate(MAX_KEYS);
    fields.0.is_empty().then_some(keys)
}

fn encode_keys(keys: &[AgentKey]) -> Vec<u8> {
    let count = u32::try_from(keys.len()).unwrap_or(0);
    let keys = keys.iter().flat_map(|key| [encode_string(&key.blob), encode_string(&key.comment)].concat());
    [IDENTITIES].into_iter().chain(count.to_be_bytes()).chain(keys).collect()
}

/// Encodes bytes with their length. Messages have the same form.
fn encode_string(bytes: &[u8]) -> Vec<u8> {
    // Every string is part of a message with a smaller limit.
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], bytes].concat()
}

/// The unread rest of a message.
struct SshFields<'a>(&'a [u8]);

impl<'a> SshFields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn take_u32(&mut self) -> Option<u32> {
        self.take(4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes)
    }

    fn take_string(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.take_u32()?).ok()?;
        self.take(length)
    }
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
