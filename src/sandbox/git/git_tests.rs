//! The server of git credentials over real sockets, with a user's agent and a user's helper of the tests.

use std::collections::BTreeMap;
use std::path::Path;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

const KEY: &[u8] = b"\0\0\0\x0bssh-ed25519\0\0\0\x02kk";

struct Gate {
    answer: Result<(), ConsentRefusal>,
    asked: std::sync::Mutex<Vec<String>>,
}

impl Gate {
    fn new(answer: Result<(), &str>) -> Arc<Self> {
        Arc::new(Self {
            answer: answer.map_err(|reason| ConsentRefusal { reason: reason.to_owned() }),
            asked: std::sync::Mutex::default(),
        })
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl GitGate for Gate {
    fn ask(&self, request: GitRequest) -> BoxFuture<'_, Result<(), ConsentRefusal>> {
        self.asked.lock().unwrap().push(request.to_string());
        Box::pin(async { self.answer.clone() })
    }
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}

fn commit_request() -> Vec<u8> {
    let data = [&b"SSHSIG"[..], &string(b"git"), &string(b""), &string(b"sha512"), &string(&[1; 64])].concat();
    [&[13][..], &string(KEY), &string(&data), &[0; 4]].concat()
}

/// An agent with one key. It keeps the types of the messages that it receives.
fn user_agent(path: &Path) -> Arc<std::sync::Mutex<Vec<u8>>> {
    let listener = UnixListener::bind(path).unwrap();
    let received: Arc<std::sync::Mutex<Vec<u8>>> = Arc::default();
    let kept = Arc::clone(&received);
    TaskScope::new().spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let length = stream.read_u32().await.unwrap();
            let mut message = vec![0; length as usize];
            stream.read_exact(&mut message).await.unwrap();
            kept.lock().unwrap().push(message[0]);
            let answer = match message[0] {
                11 => [&[12, 0, 0, 0, 1][..], &string(KEY), &string(b"me@host")].concat(),
                13 => [&[14][..], &string(b"signed")].concat(),
                _ => vec![6],
            };
            stream.write_all(&string(&answer)).await.unwrap();
        }
    });
    received
}

fn server(
    gate: &Arc<Gate>,
    agent: Option<&Path>,
    environment: BTreeMap<std::ffi::OsString, std::ffi::OsString>,
) -> GitServer {
    let gate = Arc::clone(gate) as Arc<dyn GitGate>;
    GitServer::new(GitServerParts { gate, agent: agent.map(Path::to_owned), helper_environment: environment })
}

async fn agent_exchange(socket: &Path, message: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(&string(message)).await.unwrap();
    let length = stream.read_u32().await.unwrap();
    let mut answer = vec![0; length as usize];
    stream.read_exact(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn the_agent_lists_and_signs_after_one_question() {
    let folder = tempfile::tempdir().unwrap();
    let (outside, inside) = (folder.path().join("user"), folder.path().join("inside"));
    let received = user_agent(&outside);
    let gate = Gate::new(Ok(()));
    let server = server(&gate, Some(&outside), BTreeMap::new());
    server.serve_agent(UnixListener::bind(&inside).unwrap());
    server.set_command("git push origin main");
    let list = agent_exchange(&inside, &[11]).await;
    assert_eq!(list, [&[12, 0, 0, 0, 1][..], &string(KEY), &string(b"me@host")].concat());
    assert!(gate.asked().is_empty(), "a list needs no consent");
    assert_eq!(agent_exchange(&inside, &commit_request()).await, [&[14][..], &string(b"signed")].concat());
    let text = "push main to origin: signature under a commit or tag with the ssh key `me@host`";
    assert_eq!(gate.asked(), [text]);
    // Remove all keys, lock, add, and a signature for another purpose.
    let other = [&[13][..], &string(KEY), &string(b"anything"), &[0; 4]].concat();
    for message in [&[19][..], &[22, 0, 0, 0, 0], &[17], &[27], &other] {
        assert_eq!(agent_exchange(&inside, message).await, [5], "{message:?}");
    }
    assert_eq!(*received.lock().unwrap(), [11, 11, 13], "the filtered messages did not reach the agent");
    server.stop().await;
}

#[tokio::test]
async fn a_declined_signature_fails() {
    let folder = tempfile::tempdir().unwrap();
    let (outside, inside) = (folder.path().join("user"), folder.path().join("inside"));
    let received = user_agent(&outside);
    let gate = Gate::new(Err("no"));
    let server = server(&gate, Some(&outside), BTreeMap::new());
    server.serve_agent(UnixListener::bind(&inside).unwrap());
    assert_eq!(agent_exchange(&inside, &commit_request()).await, [5]);
    // A key that the agent does not have is not asked about.
    let unknown = [&[13][..], &string(b"other"), &commit_request()[1 + 4 + KEY.len()..]].concat();
    assert_eq!(agent_exchange(&inside, &unknown).await, [5]);
    assert_eq!((gate.asked().len(), received.lock().unwrap().contains(&13)), (1, false));
}

#[tokio::test]
async fn without_an_agent_there_are_no_keys() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("inside");
    let server = server(&Gate::new(Ok(())), None, BTreeMap::new());
    server.serve_agent(UnixListener::bind(&inside).unwrap());
    assert_eq!(agent_exchange(&inside, &[11]).await, [12, 0, 0, 0, 0]);
    assert_eq!(agent_exchange(&inside, &commit_request()).await, [5]);
    // A message that is too long ends the connection.
    let mut stream = UnixStream::connect(&inside).await.unwrap();
    stream.write_all(&[0x7f, 0xff, 0xff, 0xff, 11]).await.unwrap();
    assert_eq!(stream.read(&mut [0; 4]).await.unwrap_or(0), 0);
}

async fn credential(socket: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Runs the real git, if this machine has it.
#[tokio::test]
async fn the_users_helper_answers_after_one_question() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[credential]\n\thelper = \"!f() { cat >/dev/null; echo username=me; echo password=secret; }; f\"\n";
    std::fs::write(folder.path().join(".gitconfig"), config).unwrap();
    let folders = ["/usr/bin", "/usr/local/bin"];
    if !folders.iter().any(|folder| Path::new(folder).join("git").exists()) {
        return;
    }
    let environment =
        BTreeMap::from([("HOME".into(), folder.path().into()), ("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())]);
    let gate = Gate::new(Ok(()));
    let server = server(&gate, None, environment);
    let inside = folder.path().join("inside");
    server.serve_credentials(UnixListener::bind(&inside).unwrap());
    server.set_command("git push origin main");
    let request = "protocol=https\nhost=example.com\n\n";
    assert_eq!(credential(&inside, request).await, "username=me\npassword=secret\n");
    assert_eq!(gate.asked(), ["push main to origin: password for https://example.com"]);
    assert_eq!(credential(&inside, "protocol=http\nhost=example.com\n\n").await, "");
    assert_eq!(gate.asked().len(), 1, "other protocols are refused without a question");
}

#[tokio::test]
async fn a_declined_password_gives_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("inside");
    let server = server(&Gate::new(Err("no")), None, BTreeMap::new());
    server.serve_credentials(UnixListener::bind(&inside).unwrap());
    assert_eq!(credential(&inside, "protocol=https\nhost=example.com\n\n").await, "refusal=no\n");
}

/// Connects to an agent and reads its list of keys. Returns the open connection.
async fn list_keys(socket: &Path) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(&string(&[11])).await?;
    let length = stream.read_u32().await?;
    let mut answer = vec![0; length as usize];
    stream.read_exact(&mut answer).await?;
    Ok(stream)
}

#[tokio::test]
async fn a_client_of_git_over_the_limit_gets_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("inside");
    let server = server(&Gate::new(Ok(())), None, BTreeMap::new());
    server.serve_agent(UnixListener::bind(&inside).unwrap());
    let mut clients = Vec::new();
    for _ in 0..MAX_CLIENTS {
        clients.push(list_keys(&inside).await.unwrap());
    }
    assert!(list_keys(&inside).await.is_err());
    drop(clients);
}
