//! What a remote transport relies on: order, and clients that stop reading.

use std::path::Path;
use std::sync::Mutex;

use futures::FutureExt as _;
use tokio::time::{Instant, timeout};

use super::*;
use crate::acp::SharedSessions;
use crate::acp::output_item::{ChunkKind, MessageChunk};
use crate::acp::wire::BATCH_INTERVAL;
use crate::acp::{EDITOR_STALL, serve_lines};
use crate::lesson::CheckVariables;
use crate::orchestrator::Orchestrator;
use crate::orchestrator::tom::TopOfMind;
use crate::principal::{Principal, SessionGrant};
use crate::project::{Project, ProjectError, ProjectLoader};

/// The projects of a client that opens no session.
struct NoProjects;

impl ProjectLoader for NoProjects {
    fn open(&self, _: &Path, _: &Principal) -> Result<Project, ProjectError> {
        panic!("the client opens no session")
    }

    fn open_without_folder(&self, _: &Principal) -> Result<Project, ProjectError> {
        panic!("the client opens no session")
    }
}

fn server(folder: &Path) -> AcpServer {
    AcpServer {
        sessions: Box::new(|| panic!("the client opens no session")),
        grant: SessionGrant::local(),
        projects: Arc::new(NoProjects),
        orchestrator: Orchestrator::new(folder.to_owned(), TopOfMind::default()),
        version: "0.0.0",
        notices: Mutex::default(),
        program: folder.join("skein"),
        cwd: folder.to_owned(),
        approval: None,
        checks: CheckVariables::default(),
        open_sessions: Arc::new(SharedSessions::of_one_client()),
        fork: false,
        draining: CancellationToken::new(),
    }
}

fn chunk(session: &str, text: &str) -> MessageChunk {
    MessageChunk { session: session.into(), message: "m".into(), kind: ChunkKind::Agent, text: text.to_owned() }
}

fn pair() -> (ClientWriter, ClientOutput) {
    let (wire, output) = ClientWriter::with_reader(None);
    (wire, ClientOutput(output))
}

#[tokio::test]
async fn output_is_taken_in_order_and_ends_with_its_writer() {
    let (wire, mut output) = pair();
    wire.send_line(r#"{"id":1}"#.to_owned());
    wire.send_chunk(chunk("a", "one "));
    wire.send_chunk(chunk("a", "two"));
    let messages = output.next().await.unwrap();
    assert_eq!(messages.len(), 2);
    assert_eq!(messages[0].text, r#"{"id":1}"#);
    assert!(messages[1].text.contains("one two") && !messages[1].text.contains('\n'), "{}", messages[1].text);
    let sent = output.meter();
    assert!(wire.backlog() > 0);
    messages.iter().for_each(|message| sent.add(message));
    assert_eq!(wire.backlog(), 0);
    drop(wire);
    assert!(output.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn chunks_shortly_after_another_are_collected() {
    let (wire, mut output) = pair();
    let start = Instant::now();
    wire.send_chunk(chunk("a", "one "));
    assert_eq!(output.next().await.unwrap().len(), 1);
    assert_eq!(start.elapsed(), Duration::ZERO, "the first is sent at once");
    wire.send_chunk(chunk("a", "two "));
    // Dropped as by a ping; the chunk is not lost.
    assert!(timeout(Duration::from_millis(1), output.next()).await.is_err());
    wire.send_chunk(chunk("a", "three"));
    let messages = output.next().await.unwrap();
    assert!(start.elapsed() >= BATCH_INTERVAL && messages.len() == 1, "{messages:?}");
    assert!(messages[0].text.contains("two three"), "{messages:?}");
    sleep(10 * BATCH_INTERVAL).await;
    let later = Instant::now();
    wire.send_chunk(chunk("a", "four"));
    assert_eq!(output.next().await.unwrap().len(), 1);
    wire.send_chunk(chunk("a", "five"));
    wire.send_line(r#"{"id":1}"#.to_owned());
    assert_eq!(output.next().await.unwrap().len(), 2);
    assert_eq!(later.elapsed(), Duration::ZERO, "a chunk after a pause, and all but chunks, are sent at once");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_stalls_and_a_reader_does_not() {
    let (wire, mut output) = pair();
    let sent = output.meter();
    wire.send_line("x".repeat(MAX_UNSENT + 1));
    let messages = output.next().await.unwrap();
    assert!(timeout(Duration::from_secs(2), sent.stall()).await.is_err(), "a moment is no stall");
    timeout(Duration::from_secs(6), sent.stall()).await.expect("nothing was read");
    messages.iter().for_each(|message| sent.add(message));
    assert!(timeout(Duration::from_secs(60), sent.stall()).await.is_err(), "all is sent");
    wire.send_line("x".repeat(MAX_UNSENT_OF_READER + 1));
    timeout(Duration::from_secs(1), sent.stall()).await.expect("more than any client may leave unsent");
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_may_leave_a_limited_number_of_bytes() {
    let (wire, mut output) = pair();
    let sent = output.meter();
    (0..20).for_each(|_| wire.send_line("{}".to_owned()));
    wire.send_line("x".repeat(MAX_UNSENT_OF_READER - wire.backlog()));
    let messages = output.next().await.unwrap();
    // The client makes progress before it counts as one that reads nothing.
    let read = async |messages: &[OutgoingMessage]| {
        for message in messages {
            sleep(STALL_LIMIT / 2).await;
            sent.add(message);
        }
    };
    tokio::select! {
        () = sent.stall() => panic!("the client reads, and no more bytes are unsent than it may leave"),
        () = read(&messages[..10]) => {}
    }
    wire.send_line("x".repeat(1024));
    tokio::select! {
        () = sent.stall() => {}
        () = read(&messages[10..20]) => panic!("more bytes are unsent than a client may leave"),
    }
}

/// A client whose requests wait for the session store until the token is cancelled.
fn waiting_server(folder: &Path, opened: &CancellationToken) -> AcpServer {
    let opened = opened.clone();
    let sessions = move || {
        let opened = opened.clone();
        async move {
            opened.cancelled().await;
            Err(crate::acp::SessionsError("there is no store".into()))
        }
        .boxed()
    };
    AcpServer { sessions: Box::new(sessions), ..server(folder) }
}

/// Returns the next messages until there is a response with this id.
async fn response(output: &mut ClientOutput, id: &serde_json::Value) -> serde_json::Value {
    let meter = output.meter();
    loop {
        let messages = output.next().await.expect("the connection goes on");
        messages.iter().for_each(|message| meter.add(message));
        let mut messages = messages.iter().map(|message| serde_json::from_str(&message.text).expect("JSON"));
        if let Some(found) = messages.find(|message: &serde_json::Value| message["id"] == *id) {
            return found;
        }
    }
}

/// Completes the initialization, without which other requests are refused at once.
async fn initialize(input: &ClientInput, output: &mut ClientOutput) {
    let params = serde_json::json!({"protocolVersion": 1});
    let request = serde_json::json!({"jsonrpc": "2.0", "id": "first", "method": "initialize", "params": params});
    assert!(input.send(request.to_string()).await);
    assert!(response(output, &"first".into()).await["result"].is_object());
}

fn list_request(id: impl Into<serde_json::Value>, text: &str) -> String {
    let id = id.into();
    serde_json::json!({"jsonrpc": "2.0", "id": id, "method": "session/list", "params": {"_meta": {"x": text}}})
        .to_string()
}

#[tokio::test]
async fn requests_without_a_response_are_limited() {
    let folder = tempfile::tempdir().unwrap();
    let (stop, opened) = (CancellationToken::new(), CancellationToken::new());
    let (input, mut output, served) = connect(waiting_server(folder.path(), &opened), stop.clone());
    let talk = async {
        initialize(&input, &mut output).await;
        for id in 0..request_limit::MAX_REQUESTS {
            assert!(input.send(list_request(id, "")).await);
        }
        assert!(input.send(list_request("over", "")).await);
        let refused = response(&mut output, &"over".into()).await;
        assert_eq!(refused["error"]["data"]["retryAfter"], 1, "{refused}");
        // A line that gets an error counts too, and other messages pass.
        assert!(input.send("no message".to_owned()).await);
        assert_eq!(response(&mut output, &serde_json::Value::Null).await["error"]["data"]["retryAfter"], 1);
        assert!(
            input.send(r#"{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}"#.to_owned()).await
        );
        assert!(input.send(r#"{"jsonrpc":"2.0","id":"ours","result":{}}"#.to_owned()).await);
        opened.cancel();
        response(&mut output, &(request_limit::MAX_REQUESTS - 1).into()).await;
        // Each response makes room, also that of a line that is no message.
        for _ in 0..2 * request_limit::MAX_REQUESTS {
            assert!(input.send("no message".to_owned()).await);
            assert_eq!(response(&mut output, &serde_json::Value::Null).await["error"]["code"], -32700);
        }
        assert!(input.send(list_request("later", "")).await);
        let answer = response(&mut output, &"later".into()).await;
        assert!(answer["error"]["data"]["retryAfter"].is_null(), "{answer}");
        stop.cancel();
    };
    tokio::join!(talk, served);
}

#[tokio::test]
async fn the_bytes_of_requests_without_a_response_are_limited() {
    let folder = tempfile::tempdir().unwrap();
    let (stop, opened) = (CancellationToken::new(), CancellationToken::new());
    let (input, mut output, served) = connect(waiting_server(folder.path(), &opened), stop.clone());
    let text = "x".repeat(request_limit::MAX_REQUEST_BYTES / 4 - 1024);
    let talk = async {
        initialize(&input, &mut output).await;
        for id in 0..4 {
            assert!(input.send(list_request(id, &text)).await);
        }
        assert!(input.send(list_request("over", &text[..100_000])).await);
        let refused = response(&mut output, &"over".into()).await;
        assert_eq!(refused["error"]["data"]["retryAfter"], 1, "{refused}");
        opened.cancel();
        response(&mut output, &3.into()).await;
        assert!(input.send(list_request("later", &text)).await);
        let answer = response(&mut output, &"later".into()).await;
        assert!(answer["error"]["data"]["retryAfter"].is_null(), "{answer}");
        stop.cancel();
    };
    tokio::join!(talk, served);
}

#[tokio::test]
async fn the_transport_waits_while_too_many_messages_are_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let stop = CancellationToken::new();
    let (input, _output, served) = connect(server(folder.path()), stop.clone());
    let send = || input.send(r#"{"jsonrpc":"2.0","method":"_unknown"}"#.to_owned());
    for _ in 0..MAX_INPUT {
        assert_eq!(send().now_or_never(), Some(true));
    }
    let mut last = Box::pin(send());
    assert!((&mut last).now_or_never().is_none(), "there is no room for another message");
    let sending = async {
        assert!(last.await, "the connection takes messages");
        stop.cancel();
    };
    tokio::join!(sending, served);
}

/// Lines that are no messages. The answer to each repeats it. More lines do not come, and the input stays open.
fn garbage(lines: usize) -> impl futures::Stream<Item = io::Result<String>> + Send + 'static {
    let lines = futures::stream::repeat_with(|| Ok("x".repeat(MAX_UNSENT + 1))).take(lines);
    lines.chain(futures::stream::pending())
}

#[tokio::test(start_paused = true)]
async fn an_editor_that_stops_reading_loses_its_connection() {
    let folder = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let (_reader, output) = tokio::io::duplex(64);
    let served = serve_lines(
        server(folder.path()),
        CancellationToken::new(),
        garbage(1),
        ClientWriter::with_reader(None),
        output,
    );
    let ended = timeout(2 * EDITOR_STALL.time, served).await.expect("the connection ends");
    assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert!(start.elapsed() >= EDITOR_STALL.time, "a pause of {:?} ends no connection", start.elapsed());
}

/// It loads a large session, or a message over a slow line.
#[tokio::test(start_paused = true)]
async fn an_editor_that_reads_slowly_keeps_its_connection() {
    let folder = tempfile::tempdir().unwrap();
    let (mut reader, output) = tokio::io::duplex(1 << 20);
    let served = serve_lines(
        server(folder.path()),
        CancellationToken::new(),
        garbage(20),
        ClientWriter::with_reader(None),
        output,
    );
    let read = async {
        let mut buffer = vec![0; 64 << 10];
        for _ in 0..500 {
            tokio::io::AsyncReadExt::read_exact(&mut reader, &mut buffer).await.unwrap();
            sleep(EDITOR_STALL.time / 10).await;
        }
    };
    tokio::select! {
        ended = served => panic!("the connection ended: {ended:?}"),
        () = read => {}
    }
}
