//! Answers of models over HTTP, in three dialects. The first byte chooses the dialect. Each answer ends with its end or
//! with an error, and Skein reads the same answer as genai.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use futures::StreamExt as _;
use serde_json::Value;
use skein::conversation::{Content, Message, ToolUse, Usage};
use skein::ids::ModelRef;
use skein::llm::remote::HttpProvider;
use skein::llm::{LlmError, ModelRegistry, ModelRequest, ModelStop, Provider as _, ProviderEndpoint, StreamEvent};
use tokio::runtime::Runtime;

/// The provider of each dialect, and one of its models.
const DIALECTS: [(&str, &str); 3] =
    [("openai", "gpt-4o"), ("anthropic", "claude-sonnet-4-5"), ("google", "gemini-2.5-flash")];

type AnswerEvent = Result<StreamEvent, LlmError>;

/// A server that gives each request the same answer.
struct ModelServer {
    address: String,
    answer: Arc<Mutex<Vec<u8>>>,
}

/// Both clients of each dialect.
struct Clients {
    own: [HttpProvider; 3],
    genai: [HttpProvider; 3],
}

static SERVER: LazyLock<ModelServer> = LazyLock::new(start_server);
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"));
static CLIENTS: LazyLock<Mutex<Clients>> = LazyLock::new(|| Mutex::new(Clients::new()));

pub(super) fn run(data: &[u8]) {
    let Some((first, body)) = data.split_first() else { return };
    *lock(&SERVER.answer) = body.to_vec();
    let mut clients = lock(&CLIENTS);
    let dialect = usize::from(*first) % DIALECTS.len();
    let (by_own, by_genai) = (ask(&clients.own[dialect]), ask(&clients.genai[dialect]));
    check(&by_own);
    check(&by_genai);
    let is_limited = is_rate_limited(&by_own) || is_rate_limited(&by_genai);
    // genai drops the text before bytes that are no text, if they came in one piece.
    if let Ok(body) = std::str::from_utf8(body) {
        let (own, mut genai) = (Summary::of(&by_own), Summary::of(&by_genai));
        // genai takes an answer with a reason such as `error` as complete.
        if is_broken_off(&by_own) {
            (genai.end, genai.calls) = (None, Vec::new());
        }
        compare(dialect, body, own, genai);
    }
    // The next request would wait until the provider admits more.
    if is_limited {
        *clients = Clients::new();
    }
}

/// Both clients read the same, but for the faults of genai.
fn compare(dialect: usize, body: &str, mut by_own: Summary, mut by_genai: Summary) {
    if dialect == 0 {
        // genai ignores refusals and takes an empty reason as one.
        if body.contains("refusal") || body.contains("\"finish_reason\":\"\"") {
            return;
        }
        // genai fails without `[DONE]`, and at an error that is null.
        let has_done = events(body).any(|data| data == "[DONE]");
        if by_genai.end.is_none() && (!has_done || body.contains("\"error\"")) {
            assert!(by_own.text.starts_with(&by_genai.text), "{by_own:?}, genai {by_genai:?}");
            return;
        }
        // For each number of a call that the answer skips, genai copies the next call. Later arguments may go to the
        // copy. It also ignores calls without a number, and merges those with the same one.
        if !has_plain_calls(body) {
            by_own.calls.clear();
            by_genai.calls.clear();
        }
    } else {
        // genai fails where Skein ignores a field of the wrong type, and ignores arguments at the start of a block.
        if by_genai.end.is_none() || body.contains("\"input\"") {
            return;
        }
    }
    // genai loses a call that has no end when the next block starts.
    if dialect == 1 && (by_own.calls.len() > by_genai.calls.len() || has_open_blocks(body)) {
        by_own.calls.clear();
        by_genai.calls.clear();
    }
    // Skein also reads the text at the start of a block, and counts tokens in more places.
    if dialect == 1 && by_own.text.len() > by_genai.text.len() {
        (by_own.text, by_genai.text) = (String::new(), String::new());
    }
    for summary in [&mut by_own, &mut by_genai] {
        summary.end = summary.end.map(|(stop, _)| (stop, Usage::default()));
    }
    // Of several thoughts in one chunk of Gemini, genai keeps the last. It gives each first call of a chunk the same
    // id, and signatures of other parts to calls. It reads nothing after the first reason to end.
    if dialect == 2 {
        // Skein may find a fault in what follows.
        let reads_on = body.split_once("finishReason").is_some_and(|(_, rest)| rest.contains("data:"));
        if body.contains("blockReason") || (by_own.end.is_none() && reads_on) {
            return;
        }
        for summary in [&mut by_own, &mut by_genai] {
            summary.thoughts.clear();
            summary.calls.iter_mut().for_each(|call| (call.id, call.signature) = (String::new(), None));
        }
        assert!(by_own.text.starts_with(&by_genai.text), "{by_own:?}, genai {by_genai:?}");
        assert!(by_own.calls.starts_with(&by_genai.calls), "{by_own:?}, genai {by_genai:?}");
        return;
    }
    assert_eq!(by_own, by_genai, "left Skein's client, right genai");
}

/// Returns the data of each line that has some.
fn events(body: &str) -> impl Iterator<Item = &str> {
    body.split(['\n', '\r']).filter_map(|line| line.trim().strip_prefix("data:").map(str::trim))
}

/// Returns true if the calls begin in the order of their numbers, and each number has one id. Returns false for pieces in
/// several lines, which are not looked at.
fn has_plain_calls(body: &str) -> bool {
    let mut ids = BTreeMap::new();
    let mut is_plain = |call: &Value| {
        let Some(index) = call["index"].as_u64().filter(|index| u32::try_from(*index).is_ok()) else { return false };
        let (id, name) = (call["id"].as_str().unwrap_or_default(), call["function"]["name"].as_str());
        let is_next = index == ids.len() as u64;
        let known = match ids.entry(index) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) if is_next => new.insert(id.to_owned()),
            Entry::Vacant(_) => return false,
        };
        !known.is_empty() && (name.is_none_or(str::is_empty) || known == id)
    };
    events(body).filter(|data| data.contains("function")).all(|data| {
        let Ok(piece) = serde_json::from_str::<Value>(data) else { return false };
        piece["choices"][0]["delta"]["tool_calls"].as_array().is_none_or(|calls| calls.iter().all(&mut is_plain))
    })
}

/// Returns true if more blocks start than end.
fn has_open_blocks(body: &str) -> bool {
    body.matches("content_block_start").count() > body.matches("content_block_stop").count()
}

/// Returns true if the provider did not complete its answer.
fn is_broken_off(answer: &[AnswerEvent]) -> bool {
    matches!(answer.last(), Some(Err(LlmError::Transient { reason, .. })) if reason.starts_with("it broke off"))
}

/// The end or an error is the last event, and the only one of its kind.
fn check(answer: &[AnswerEvent]) {
    let is_last = |event: &AnswerEvent| matches!(event, Err(_) | Ok(StreamEvent::Done { .. }));
    assert_eq!(answer.iter().position(is_last).map(|at| at + 1), Some(answer.len()), "{answer:?}");
}

fn is_rate_limited(answer: &[AnswerEvent]) -> bool {
    answer.iter().any(|event| matches!(event, Err(LlmError::RateLimited { .. })))
}

/// What a user sees of an answer.
#[derive(Debug, Default, PartialEq)]
struct Summary {
    text: String,
    thoughts: String,
    calls: Vec<ToolUse>,
    /// `None` after an error. The words of errors are not compared.
    end: Option<(ModelStop, Usage)>,
}

impl Summary {
    fn of(answer: &[AnswerEvent]) -> Self {
        let mut summary = Self::default();
        for event in answer {
            match event {
                Ok(StreamEvent::Text(text)) => summary.text.push_str(text),
                Ok(StreamEvent::Thought(text)) => summary.thoughts.push_str(text),
                Ok(StreamEvent::ToolUse(call)) => summary.calls.push(call.clone()),
                Ok(StreamEvent::Done { stop, usage }) => summary.end = Some((*stop, *usage)),
                Ok(StreamEvent::Queued { .. } | StreamEvent::Progress { .. }) | Err(_) => {}
            }
        }
        summary
    }
}

fn ask(provider: &HttpProvider) -> Vec<AnswerEvent> {
    let messages = vec![Arc::new(Message::user(vec![Content::text("hello")]))];
    let request = ModelRequest { system: "".into(), tools: Arc::from([]), messages };
    RUNTIME.block_on(provider.stream(request).collect())
}

impl Clients {
    fn new() -> Self {
        Self { own: DIALECTS.map(provider), genai: DIALECTS.map(|dialect| provider(dialect).through_genai()) }
    }
}

fn provider((name, model): (&str, &str)) -> HttpProvider {
    let address = ProviderEndpoint { base_url: Some(SERVER.address.clone()), ..ProviderEndpoint::default() };
    let models = ModelRegistry { providers: BTreeMap::from([(name.to_owned(), address)]), ..ModelRegistry::default() };
    let variable = |name: &str| name.ends_with("_KEY").then(|| "a-key".to_owned());
    HttpProvider::new(&ModelRef::from(format!("{name}:{model}")), &models, variable).expect("a provider")
}

fn start_server() -> ModelServer {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}/v1", listener.local_addr().expect("an address"));
    let answer = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = Arc::clone(&shared);
            // A client that has read the end may be gone.
            std::thread::spawn(move || drop(serve(&stream, &answer)));
        }
    });
    ModelServer { address, answer }
}

/// Answers requests until the client closes the connection.
fn serve(mut stream: &TcpStream, answer: &Mutex<Vec<u8>>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or_default();
            }
        }
        std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink())?;
        let body = lock(answer).clone();
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(&[head.as_bytes(), &body].concat())?;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
