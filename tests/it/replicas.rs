//! Several servers share one store: a client uses a session on any of them, and a server that ends leaves no session
//! behind. `scripts/replicas` has the longer cases, behind haproxy.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::console::{Browser, echo};
use crate::reattach::shown;
use crate::serve_acp::{Socket, initialize, open, post};
use crate::support::forwarder::Forwarder;
use crate::support::model::{Answer, ScriptedModel, has_result};
use crate::support::postgres::{PASSWORD, Postgres, USER};
use crate::support::serve::{HttpAnswer, PATIENCE, Server, bearer, eventually, token_with};
use crate::support::websocket_server::ScriptedServer;
use crate::support::{Sandbox, full_tests};

/// Short, so that tests need not wait long for a take-over, but longer than a busy machine pauses a process.
const EXPIRY: Duration = Duration::from_secs(8);

/// Servers that share a store and a folder.
struct Replicas {
    postgres: Postgres,
    sandboxes: Vec<Sandbox>,
    servers: Vec<Server>,
    token: String,
    url: String,
}

impl Replicas {
    fn start(count: usize, model: &ScriptedModel) -> Self {
        let postgres = Postgres::start();
        let url = postgres.database("own");
        let sandboxes: Vec<_> = (0..count).map(|_| Sandbox::new()).collect();
        std::fs::create_dir(sandboxes[0].path("shared")).expect("a folder");
        let mut replicas = Self { postgres, sandboxes, servers: Vec::new(), token: String::new(), url };
        let root = replicas.root();
        let mut create = replicas.sandboxes[0].command(&["token", "create", "--name", "ann", "--root", &root]);
        create.env("SKEIN_STORE", &replicas.url);
        replicas.token = token_with(create);
        for index in 0..count {
            let server = replicas.launch(index, model);
            replicas.servers.push(server);
        }
        replicas
    }

    fn root(&self) -> String {
        self.sandboxes[0].path("project").display().to_string()
    }

    fn launch(&self, index: usize, model: &ScriptedModel) -> Server {
        let sandbox = &self.sandboxes[index];
        sandbox.write("config/config.yaml", &format!("version: 1\nstore: {{expiry: {}s}}\n", EXPIRY.as_secs()));
        let shared = self.sandboxes[0].path("shared").display().to_string();
        let args = ["serve", "-a", "coding", "--listen", "127.0.0.1:0", "--internal-listen", "127.0.0.1:0"];
        let mut command = sandbox.command(&[&args[..], &["--shared-dir", &shared]].concat());
        command.env("SKEIN_STORE", &self.url);
        Server::launch(model.offered_to(command))
    }

    /// Connects a client to a replica.
    async fn client(&self, index: usize) -> Socket {
        let mut socket = Socket::connect(&self.servers[index], &self.token).await;
        socket.say(&initialize()).await;
        assert!(socket.answer(0).await["result"].is_object());
        socket
    }

    async fn new_session(&self, socket: &mut Socket) -> String {
        let opened = socket.ask(1, "session/new", json!({"cwd": self.root(), "mcpServers": []})).await;
        opened["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("a session, not {opened}")).to_owned()
    }

    /// Loads a session; all messages up to the response, which is the last one.
    async fn load(&self, socket: &mut Socket, id: u64, session: &str) -> Vec<Value> {
        let params = json!({"sessionId": session, "cwd": self.root(), "mcpServers": []});
        socket.ask_and_collect(id, "session/load", params).await
    }

    fn sql(&self, sql: &str) -> String {
        self.postgres.sql("own", sql)
    }

    /// Adds a replica that the test plays at this address. It does not expire.
    fn add_played(&self, id: &str, address: SocketAddr) {
        self.sql(&format!(
            "INSERT INTO replica (id, address, secret, files, is_shared, program, expires_at)
             SELECT '{id}', '{address}', 'secret of {id}', files, is_shared, program,
                 clock_timestamp() + interval '1 day'
             FROM replica LIMIT 1"
        ));
    }
}

fn prompt(session: &str, text: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": 9, "method": "session/prompt",
        "params": {"sessionId": session, "prompt": [{"type": "text", "text": text}]}})
}

fn updates(messages: &[Value]) -> Vec<Value> {
    messages.iter().map(|message| message["params"]["update"].clone()).filter(|update| !update.is_null()).collect()
}

/// A piece of the answer that begins with a word. Pieces may be joined.
fn is_word(word: &'static str) -> impl Fn(&Value) -> bool {
    move |message| {
        let text = message["params"]["update"]["content"]["text"].as_str();
        text.is_some_and(|text| text.starts_with(word))
    }
}

/// A model that calls a tool that needs consent, and then says three words, one at a time.
fn paced_model() -> (ScriptedModel, mpsc::Sender<()>) {
    let (go, gate) = mpsc::channel();
    let gate = Arc::new(Mutex::new(gate));
    let model = ScriptedModel::new(move |request| match has_result(request) {
        false => Answer::SaysAndCalls {
            text: "I write. ",
            tool: "developer__shell",
            arguments: json!({"command": "printf x >> made.txt"}),
        },
        true => {
            let pieces = ["one ", "two ", "three"].map(str::to_owned).into();
            Answer::Paced { pieces, go: Arc::clone(&gate) }
        }
    });
    (model, go)
}

fn allow(question: &Value) -> Value {
    let outcome = json!({"outcome": "selected", "optionId": "allow_once"});
    json!({"jsonrpc": "2.0", "id": question["id"], "result": {"outcome": outcome}})
}

fn is_question(message: &Value) -> bool {
    message["method"] == "session/request_permission"
}

/// The client answers the question on another replica, and sees the rest of the turn there.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_continues_on_another_replica() {
    if !full_tests() {
        return;
    }
    let (model, go) = paced_model();
    let replicas = Replicas::start(3, &model);
    let mut first = replicas.client(0).await;
    let session = replicas.new_session(&mut first).await;
    first.say(&prompt(&session, "write it")).await;
    let asked = first.wait(is_question).await;
    let (mut second, mut third) = (replicas.client(1).await, replicas.client(2).await);
    let loaded = replicas.load(&mut second, 2, &session).await;
    assert_eq!(loaded.last().unwrap()["result"]["_meta"]["_skein/turn"]["running"], true, "{loaded:?}");
    let question = second.wait(is_question).await;
    assert_eq!(question["params"]["toolCall"]["toolCallId"], asked["params"]["toolCall"]["toolCallId"]);
    second.say(&allow(&question)).await;
    // The first answer counts: the other client's request is withdrawn, and an answer to it does nothing.
    first.wait(|message| message["method"] == "$/cancel_request").await;
    first.say(&allow(&asked)).await;
    second.wait(is_word("one ")).await;
    let late = replicas.load(&mut third, 3, &session).await;
    let lines = shown(&updates(&late));
    assert_eq!(
        lines.last().map(String::as_str),
        Some("agent_message_chunk: one "),
        "text that is not stored: {lines:?}"
    );
    // The first client is gone; the turn is not.
    drop(first);
    go.send(()).unwrap();
    go.send(()).unwrap();
    for socket in [&mut second, &mut third] {
        socket.wait(is_word("two ")).await;
        let ended = socket.wait(|message| message["method"] == "_skein/turn_ended").await;
        assert_eq!(ended["params"]["stopReason"], "end_turn");
    }
    let made = std::fs::read_to_string(replicas.sandboxes[0].path("project/made.txt")).unwrap();
    assert_eq!(made, "x", "the call ran once");
    // A prompt on another replica than the owner's is answered there.
    second.say(&prompt(&session, "again")).await;
    let question = second.wait(is_question).await;
    second.say(&allow(&question)).await;
    second.wait(is_word("one ")).await;
    go.send(()).unwrap();
    go.send(()).unwrap();
    assert_eq!(second.answer(9).await["result"]["stopReason"], "end_turn");
}

/// The console of any replica shows a request, and answers it.
#[tokio::test(flavor = "multi_thread")]
async fn the_console_of_another_replica_answers_a_request() {
    if !full_tests() {
        return;
    }
    let (model, go) = paced_model();
    let replicas = Replicas::start(2, &model);
    let mut client = replicas.client(0).await;
    let session = replicas.new_session(&mut client).await;
    client.say(&prompt(&session, "write it")).await;
    client.wait(is_question).await;
    let browser = Browser::log_in(&replicas.servers[1], &replicas.token);
    let rows = || browser.get("/console/approvals/rows").body;
    eventually("the request is shown", || rows().contains("data-state=\"open\""));
    let shown = rows();
    let number = shown.split("data-request=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a number");
    let answer = || browser.post(&format!("/console/approvals/{number}"), &[("answer", "allow")]);
    assert_eq!(answer().status, 204);
    assert_eq!(answer().status, 409, "the first answer counts");
    assert_eq!(browser.post("/console/approvals/1", &[("answer", "allow")]).status, 404);
    client.wait(is_word("one ")).await;
    go.send(()).unwrap();
    go.send(()).unwrap();
    assert_eq!(client.answer(9).await["result"]["stopReason"], "end_turn");
}

/// Answers every request with this page. It ends with the test's process.
fn serve_page(page: String) -> SocketAddr {
    use std::io::{BufRead as _, BufReader, Write as _};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let head = BufReader::new(&stream).lines().map_while(Result::ok);
            head.take_while(|line| !line.is_empty()).for_each(drop);
            let length = page.len();
            let answer = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{page}");
            // A page that is too large is not read to its end.
            drop((&stream).write_all(answer.as_bytes()));
        }
    });
    address
}

/// The console shows the rows of each replica, except those of one that sends too much.
#[test]
fn a_fragment_that_is_too_large_is_left_out() {
    const MAX_FRAGMENT: usize = 4 << 20;
    if !full_tests() {
        return;
    }
    let replicas = Replicas::start(1, &echo());
    for (id, size) in [("largest", MAX_FRAGMENT), ("larger", MAX_FRAGMENT + 1)] {
        let rows = format!("rows of the {id} replica");
        let rest = "-".repeat(size - rows.len());
        replicas.add_played(id, serve_page(rows + &rest));
    }
    let browser = Browser::log_in(&replicas.servers[0], &replicas.token);
    eventually("the rows of a replica are shown", || {
        let rows = browser.get("/console/approvals/rows").body;
        assert!(!rows.contains("rows of the larger replica"), "{} bytes", rows.len());
        rows.contains("rows of the largest replica")
    });
}

/// A browser that logs out on one replica is logged out on all, and its open streams end.
#[test]
fn a_log_out_ends_the_login_on_all_replicas() {
    use std::io::{Read as _, Write as _};
    if !full_tests() {
        return;
    }
    let replicas = Replicas::start(2, &echo());
    let [quiet, streaming] = [0, 1].map(|_| Browser::log_in(&replicas.servers[0], &replicas.token));
    let other = &replicas.servers[1];
    let status =
        |browser: &Browser<'_>| other.request("GET", "/console/sessions", &[("cookie", &browser.cookie)], "").status;
    assert_eq!((status(&quiet), status(&streaming)), (200, 200));
    let mut stream = other.connect();
    let head = format!("GET /console/events HTTP/1.1\r\nhost: {}\r\n", other.address);
    write!(stream, "{head}cookie: {}\r\nconnection: close\r\n\r\n", streaming.cookie).unwrap();
    let mut beginning = [0; 12];
    stream.read_exact(&mut beginning).unwrap();
    assert_eq!(&beginning, b"HTTP/1.1 200");
    for browser in [&quiet, &streaming] {
        assert_eq!(browser.post("/console/logout", &[]).status, 303);
    }
    eventually("the other replica notices the log-out", || status(&quiet) == 303);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the stream ends");
    assert_eq!(status(&streaming), 303);
}

/// Prompts a new session and disconnects. Returns the session, which no replica owns any more.
async fn leave_session(replicas: &Replicas) -> String {
    let mut client = replicas.client(0).await;
    let session = replicas.new_session(&mut client).await;
    client.say(&prompt(&session, "hello")).await;
    assert_eq!(client.answer(9).await["result"]["stopReason"], "end_turn");
    drop(client);
    let owner = format!("SELECT replica IS NULL FROM ownership WHERE session = '{session}'");
    eventually("the session is given back", || replicas.sql(&owner) == "t");
    session
}

/// A session whose last connection is gone moves to the replica that loads it.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_session_moves_to_the_replica_that_loads_it() {
    if !full_tests() {
        return;
    }
    let model = ScriptedModel::new(|_| Answer::Says(vec!["done".to_owned()]));
    let replicas = Replicas::start(2, &model);
    let session = leave_session(&replicas).await;
    let mut second = replicas.client(1).await;
    let loaded = replicas.load(&mut second, 2, &session).await;
    assert!(loaded.last().unwrap()["result"].is_object(), "{loaded:?}");
    let lines = shown(&updates(&loaded));
    assert_eq!(lines, ["user_message_chunk: hello", "agent_message_chunk: done"]);
    second.say(&prompt(&session, "more")).await;
    assert_eq!(second.answer(9).await["result"]["stopReason"], "end_turn");
    assert_eq!(replicas.sql(&format!("SELECT epoch FROM ownership WHERE session = '{session}'")), "2");
}

/// The client posts its messages, so it sees which of them the server has taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_waits_while_another_replica_reads_nothing() {
    const MAX_WAITING: usize = 64;
    if !full_tests() {
        return;
    }
    let model = ScriptedModel::new(|_| Answer::Says(vec!["done".to_owned()]));
    let replicas = Replicas::start(1, &model);
    let session = leave_session(&replicas).await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    replicas.add_played("quiet", listener.local_addr().unwrap());
    replicas.sql(&format!("UPDATE ownership SET replica = 'quiet' WHERE session = '{session}'"));
    let (go, gate) = mpsc::channel();
    let quiet = std::thread::spawn(move || {
        let mut quiet = ScriptedServer::accept(&listener);
        gate.recv().unwrap();
        // Before this answer, a replica gets no other message.
        quiet.answer("initialize", json!({}));
        (0..=MAX_WAITING).map(|_| quiet.read()["method"].clone()).collect::<Vec<_>>()
    });
    let (server, token) = (&replicas.servers[0], &replicas.token);
    let connection = open(server, token);
    let send = |message: &Value| post(server, token, Some(&connection), &message.to_string()).status;
    let params = json!({"sessionId": session, "cwd": replicas.root(), "mcpServers": []});
    assert_eq!(send(&json!({"jsonrpc": "2.0", "id": 1, "method": "session/load", "params": params})), 202);
    let cancel = json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}});
    for number in 1..MAX_WAITING {
        assert_eq!(send(&cancel), 202, "message {number} after the first");
    }
    let (done, taken) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| done.send(send(&cancel)).unwrap());
        let early = taken.recv_timeout(Duration::from_secs(1));
        // The last message must not wait forever if this test fails.
        go.send(()).unwrap();
        assert_eq!(early, Err(RecvTimeoutError::Timeout), "the client waits");
        assert_eq!(taken.recv_timeout(PATIENCE), Ok(202));
    });
    let methods = quiet.join().expect("all messages arrive");
    assert_eq!(methods[0], "session/load");
    assert!(methods[1..].iter().all(|method| method == "session/cancel"), "{methods:?}");
}

/// A call that runs when its replica is killed may have run. The next owner says so, and does not repeat it.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_replica_leaves_an_interrupted_turn() {
    if !full_tests() {
        return;
    }
    let model = ScriptedModel::new(|request| match has_result(request) {
        false => Answer::Calls {
            id: "1",
            tool: "developer__shell",
            arguments: json!({"command": "printf x >> made.txt; sleep 60"}),
        },
        true => Answer::Says(vec!["done".to_owned()]),
    });
    let replicas = Replicas::start(2, &model);
    let mut first = replicas.client(0).await;
    let session = replicas.new_session(&mut first).await;
    first.say(&prompt(&session, "write it")).await;
    let question = first.wait(is_question).await;
    first.say(&allow(&question)).await;
    let made = replicas.sandboxes[0].path("project/made.txt");
    // The shell makes the file before `printf` writes to it.
    eventually("the call has written", || std::fs::read_to_string(&made).is_ok_and(|text| !text.is_empty()));
    replicas.servers[0].signal(Signal::SIGKILL);
    let mut second = replicas.client(1).await;
    let loaded = replicas.load(&mut second, 2, &session).await;
    let last = loaded.last().unwrap();
    assert!(last["result"].is_object(), "{last}");
    let state = &last["result"]["_meta"]["_skein/turn"];
    assert!(state["error"]["message"].to_string().contains("turn interrupted"), "{state}");
    assert!(updates(&loaded).iter().any(|update| update.to_string().contains("may have run")), "{loaded:?}");
    assert_eq!(std::fs::read_to_string(&made).unwrap(), "x", "the call is not repeated");
    second.say(&prompt(&session, "go on")).await;
    let question = second.wait(is_question).await;
    assert!(question["params"]["toolCall"].is_object());
}

/// A replica that was paused for longer than the expiry finds its session elsewhere, and writes nothing more.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_replica_loses_its_session() {
    if !full_tests() {
        return;
    }
    let (go, gate) = mpsc::channel();
    let gate = Arc::new(Mutex::new(gate));
    let model = ScriptedModel::new(move |request| match request.to_string().contains("slowly") {
        true if !request.to_string().contains("quickly") => {
            let pieces = ["one ", "two"].map(str::to_owned).into();
            Answer::Paced { pieces, go: Arc::clone(&gate) }
        }
        _ => Answer::Says(vec!["done".to_owned()]),
    });
    let replicas = Replicas::start(2, &model);
    let mut first = replicas.client(0).await;
    let session = replicas.new_session(&mut first).await;
    first.say(&prompt(&session, "slowly")).await;
    first.wait(is_word("one ")).await;
    replicas.servers[0].signal(Signal::SIGSTOP);
    let mut second = replicas.client(1).await;
    let loaded = replicas.load(&mut second, 2, &session).await;
    assert!(loaded.last().unwrap()["result"].is_object(), "{loaded:?}");
    second.say(&prompt(&session, "quickly")).await;
    assert_eq!(second.answer(9).await["result"]["stopReason"], "end_turn");
    let stored = format!("SELECT count(*) FROM event e JOIN session s ON s.key = e.session WHERE s.id = '{session}'");
    let before = replicas.sql(&stored);
    replicas.servers[0].signal(Signal::SIGCONT);
    // The client of the paused replica gets an error for its prompt, or a new connection to make.
    let answer = tokio::time::timeout(PATIENCE, first.end()).await.expect("an end");
    assert!(answer.is_none_or(|answer| answer.to_string().contains("turn interrupted")));
    go.send(()).unwrap_or_default();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(replicas.sql(&stored), before, "the paused replica has stored nothing");
    eventually("it joins again", || replicas.servers[0].get("/readyz", &replicas.token).status == 200);
    let owners = "SELECT count(DISTINCT replica) FROM ownership WHERE replica IS NOT NULL";
    assert_eq!(replicas.sql(owners), "1");
}

/// The clients of a server that shuts down find their session elsewhere at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_shuts_down_gives_its_sessions_away() {
    if !full_tests() {
        return;
    }
    let model = ScriptedModel::new(|_| Answer::Says(vec!["done".to_owned()]));
    let mut replicas = Replicas::start(2, &model);
    let mut first = replicas.client(0).await;
    let session = replicas.new_session(&mut first).await;
    first.say(&prompt(&session, "hello")).await;
    first.answer(9).await;
    replicas.servers[0].interrupt();
    assert_eq!(replicas.servers[0].wait(), 0);
    let ended = Instant::now();
    let mut second = replicas.client(1).await;
    let loaded = replicas.load(&mut second, 2, &session).await;
    assert!(loaded.last().unwrap()["result"].is_object(), "{loaded:?}");
    assert!(ended.elapsed() < EXPIRY, "{:?}", ended.elapsed());
}

/// A run is in the memory of one replica; every replica answers about it.
#[test]
fn any_replica_answers_about_a_run() {
    if !full_tests() {
        return;
    }
    let (model, go) = paced_model();
    let replicas = Replicas::start(2, &model);
    let bearer = bearer(&replicas.token);
    let send = |index: usize, method: &str, path: &str, body: &str| -> HttpAnswer {
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        replicas.servers[index].request(method, path, &headers, body)
    };
    let input = json!([{"role": "user", "parts": [{"content": "write it"}]}]);
    let new = json!({"agent_name": "coding", "mode": "async", "input": input}).to_string();
    let created = send(0, "POST", "/runs", &new);
    assert_eq!(created.status, 202, "{created:?}");
    let path = format!("/runs/{}", created.json()["run_id"].as_str().unwrap());
    eventually("the run asks", || send(1, "GET", &path, "").json()["status"] == "awaiting");
    let answer = json!({"type": "message", "message": {"parts": [{"content": "allow"}]}});
    let resume = json!({"mode": "async", "await_resume": answer});
    let resumed = send(1, "POST", &path, &resume.to_string());
    assert!(resumed.status < 300, "{resumed:?}");
    go.send(()).unwrap();
    go.send(()).unwrap();
    eventually("the run ends", || send(1, "GET", &path, "").json()["status"] == "completed");
    assert_eq!(send(1, "GET", "/runs/00000000-0000-4000-8000-000000000000", "").status, 404);
}

#[test]
fn the_internal_address_needs_the_secret_of_the_replica() {
    if !full_tests() {
        return;
    }
    let model = ScriptedModel::new(|_| Answer::Says(vec!["done".to_owned()]));
    let replicas = Replicas::start(1, &model);
    let row = replicas.sql("SELECT address || ' ' || secret FROM replica");
    let (address, secret) = row.split_once(' ').unwrap();
    let address: SocketAddr = address.parse().unwrap();
    let ask = |secret: Option<&str>| {
        let secret = secret.map(|secret| format!("skein-replica-secret: {secret}\r\n")).unwrap_or_default();
        let head = format!("GET /acp HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\n", replicas.token);
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!("{head}{secret}connection: close\r\n\r\n");
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        HttpAnswer::read(&mut stream).status
    };
    for wrong in [None, Some(""), Some("wrong"), Some(&secret[1..])] {
        assert_eq!(ask(wrong), 401, "{wrong:?}");
    }
    assert_eq!(ask(Some(secret)), 406, "the request itself is then checked as elsewhere");
    let log = || std::fs::read_to_string(replicas.sandboxes[0].path("data/state/log/skein.log")).unwrap_or_default();
    eventually("the refusal is logged with the address", || {
        log().lines().any(|line| line.contains("wrong secret") && line.contains("127.0.0.1"))
    });
    assert!(!log().contains(secret));
}

#[test]
fn a_replica_with_another_folder_is_not_ready() {
    if !full_tests() {
        return;
    }
    let model = ScriptedModel::new(|_| Answer::Says(vec!["done".to_owned()]));
    let replicas = Replicas::start(1, &model);
    let other = Sandbox::new();
    std::fs::create_dir(other.path("shared")).unwrap();
    other.write("config/config.yaml", &format!("version: 1\nstore: {{expiry: {}s}}\n", EXPIRY.as_secs()));
    for flags in [vec!["--shared-dir", &*other.path("shared").display().to_string()], vec![]] {
        let mut command = other.command(&[&["serve", "--listen", "127.0.0.1:0"], &flags[..]].concat());
        command.env("SKEIN_STORE", &replicas.url);
        let server = Server::launch(command);
        eventually("it is not ready", || {
            let answer = server.get("/readyz", "");
            answer.status == 503 && answer.body.contains("another folder") && answer.body.contains("--shared-dir")
        });
    }
    assert_eq!(replicas.servers[0].get("/readyz", "").status, 200, "the first one serves");
}

#[test]
fn wrong_settings_of_a_replica_are_explained() {
    if !full_tests() {
        return;
    }
    let (postgres, sandbox) = (Postgres::start(), Sandbox::new());
    let url = postgres.database("own");
    let pool = Forwarder::to(postgres.address);
    pool.drop_notifications();
    let through_pool = format!("postgres://{USER}:{PASSWORD}@{}/own?sslmode=disable", pool.address);
    let missing = sandbox.path("missing").display().to_string();
    for (config, flags, store, problem) in [
        (String::new(), vec!["--internal-listen", "127.0.0.1:0"], None, "--store"),
        (String::new(), vec!["--internal-listen", "nowhere"], Some(&url), "--internal-listen"),
        (String::new(), vec!["--internal-listen", "0.0.0.0:0"], Some(&url), "no address that other replicas can use"),
        (String::new(), vec!["--internal-listen", "192.0.2.1:0"], Some(&url), "outside private networks"),
        (String::new(), vec!["--shared-dir", &missing], Some(&url), "does not exist"),
        (String::new(), vec!["--shared-dir", "shared"], Some(&url), "not an absolute path"),
        (String::new(), vec![], Some(&through_pool), "store.listen_url"),
        (format!("store: {{listen_url: '{through_pool}'}}"), vec![], Some(&url), "store.listen_url"),
    ] {
        sandbox.write("config/config.yaml", &format!("version: 1\n{config}\n"));
        let mut command = sandbox.command(&[&["serve", "--listen", "127.0.0.1:0"], &flags[..]].concat());
        command.envs(store.map(|store| ("SKEIN_STORE", store)));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{problem}: {said}");
        assert!(said.contains(problem) && !said.contains(PASSWORD), "{problem}: {said}");
    }
    // The store itself may be behind the pool, if notifications come from PostgreSQL.
    sandbox.write("config/config.yaml", &format!("version: 1\nstore: {{listen_url: '{url}'}}\n"));
    let mut command = sandbox.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("SKEIN_STORE", &through_pool);
    assert_eq!(Server::launch(command).get("/readyz", "").status, 200);
}
