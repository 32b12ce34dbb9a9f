//! `skein serve` behind nginx, which speaks TLS. The configuration is the one in docs/serve.md.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use futures::{SinkExt as _, StreamExt as _};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use crate::support::model::{Answer, ScriptedModel, asked};
use crate::support::serve::{PATIENCE, Server, bearer, eventually, token, trust};
use crate::support::{Sandbox, free_address, full_tests, installed, read, repository};

const NAME: &str = "skein.example.com";

/// Skein behind nginx. Clients reach it under [`NAME`].
struct Proxied {
    nginx: Child,
    address: SocketAddr,
    certificate: CertificateDer<'static>,
    token: String,
    _server: Server,
    _model: ScriptedModel,
    sandbox: Sandbox,
}

impl Drop for Proxied {
    fn drop(&mut self) {
        // It has ended already, or it must: the test is over.
        drop(self.nginx.kill());
        drop(self.nginx.wait());
    }
}

/// Returns the configuration of docs/serve.md with these changes, as a whole file.
fn configuration(changes: &[(&str, String)], folder: &str) -> String {
    let docs = read(repository("docs/serve.md"));
    let block = docs.split("```nginx\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an nginx block");
    let mut block = block.to_owned();
    for (documented, tested) in changes {
        assert!(block.contains(documented), "{documented} in {block}");
        block = block.replace(documented, tested);
    }
    let places = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let places: String = places.iter().map(|kind| format!("{kind}_temp_path {folder}/{kind};\n")).collect();
    let process = format!("daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\n");
    format!("{process}http {{\naccess_log off;\n{places}{block}}}\n")
}

impl Proxied {
    #[expect(clippy::disallowed_methods, reason = "another program, in front of the one under test")]
    fn start() -> Self {
        let (sandbox, model) = (Sandbox::new(), echo());
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(vec![NAME.to_owned()]).expect("a key");
        sandbox.write("nginx/skein.pem", &cert.pem());
        sandbox.write("nginx/skein.key", &signing_key.serialize_pem());
        let address = free_address();
        let public = format!("https://{NAME}:{}", address.port());
        let args = ["serve", "--listen", "127.0.0.1:0", "--behind-proxy", "--public-url", &public];
        let server = Server::launch(model.offered_to(sandbox.command(&args)));
        let folder = sandbox.path("nginx").display().to_string();
        let changes = [
            ("listen 443 ssl;", format!("listen {address} ssl;")),
            ("/etc/ssl/skein.pem", format!("{folder}/skein.pem")),
            ("/etc/ssl/skein.key", format!("{folder}/skein.key")),
            ("127.0.0.1:4780", server.address.to_string()),
        ];
        sandbox.write("nginx/nginx.conf", &configuration(&changes, &folder));
        let mut command = Command::new(installed("tests/debian/usr/sbin/nginx"));
        command.args(["-p", &folder, "-e", "stderr", "-c", &format!("{folder}/nginx.conf")]).stdin(Stdio::null());
        let nginx = command.spawn().expect("nginx starts");
        eventually("nginx listens", || std::net::TcpStream::connect(address).is_ok());
        let root = sandbox.path("project").display().to_string();
        let token = token(&sandbox, "ana", &["--root", &root]);
        let certificate = cert.der().clone();
        Self { nginx, address, certificate, token, _server: server, _model: model, sandbox }
    }

    /// A client that trusts the certificate and nothing else.
    fn client(&self) -> reqwest::Client {
        let builder = skein::network::client_builder().resolve(NAME, self.address).timeout(2 * PATIENCE);
        let trusting = trust(&self.certificate, &[b"h2", b"http/1.1"]);
        builder.tls_backend_preconfigured(trusting).build().expect("a client")
    }

    fn url(&self, path: &str) -> String {
        format!("https://{NAME}:{}{path}", self.address.port())
    }

    /// A request with the token.
    fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        self.client().request(method, self.url(path)).header("authorization", bearer(&self.token))
    }

    fn post(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        let request = self.request(reqwest::Method::POST, path).header("content-type", "application/json");
        request.header("accept", "application/json, text/event-stream").body(body.to_string())
    }

    fn get(&self, path: &str) -> reqwest::RequestBuilder {
        self.request(reqwest::Method::GET, path)
    }
}

/// Repeats the prompt, or begins and never ends.
fn echo() -> ScriptedModel {
    ScriptedModel::new(|request| match asked(request) {
        words if words.contains("hang") => Answer::Hangs("I begin"),
        words => Answer::Says(vec!["You said ".to_owned(), words]),
    })
}

fn new_run(text: &str, mode: &str) -> Value {
    json!({"agent_name": "goose-assistant", "mode": mode, "input": [{"parts": [{"content": text}]}]})
}

fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": {"protocolVersion": 1, "clientCapabilities": {}}})
}

/// Reads a stream until it contains these words. Fails if it ends before.
async fn read_until(mut answer: reqwest::Response, words: &str) -> String {
    let mut text = String::new();
    while !text.contains(words) {
        let chunk = answer.chunk().await.expect("a stream");
        let chunk = chunk.unwrap_or_else(|| panic!("the stream ended without `{words}`: {text}"));
        text.push_str(&String::from_utf8_lossy(&chunk));
    }
    text
}

#[tokio::test]
async fn nginx_passes_rest_on_and_does_not_delay_events() {
    if !full_tests() {
        return;
    }
    let proxied = Proxied::start();
    let run = proxied.post("/runs", &new_run("good morning", "sync")).send().await.expect("an answer");
    assert_eq!(run.status(), 200);
    assert!(run.text().await.expect("a run").contains("good morning"));
    // The run does not end, so its first words arrive only if nginx passes on each event at once.
    let stream = proxied.post("/runs", &new_run("hang", "stream")).send().await.expect("a stream");
    let events = read_until(stream, "I begin").await;
    assert!(events.starts_with("data: {") && !events.contains("run.completed"), "{events}");
}

#[tokio::test]
async fn nginx_passes_the_checks_of_the_server_on() {
    if !full_tests() {
        return;
    }
    let proxied = Proxied::start();
    let anonymous = proxied.client().get(proxied.url("/agents")).send().await.expect("an answer");
    assert_eq!(anonymous.status(), 401);
    assert_eq!(proxied.get("/agents").send().await.expect("an answer").status(), 200);
    let own = proxied.get("/agents").header("origin", proxied.url(""));
    assert_eq!(own.send().await.expect("an answer").status(), 200);
    for (name, value) in [("host", "evil.example"), ("origin", "https://evil.example")] {
        let foreign = proxied.get("/agents").header(name, value).send().await.expect("an answer");
        assert_eq!(foreign.status(), 403, "{name}");
    }
    let large = proxied.request(reqwest::Method::POST, "/runs").body(vec![b' '; (16 << 20) + 1]);
    assert_eq!(large.send().await.expect("an answer").status(), 413);
}

#[tokio::test]
async fn nginx_passes_mcp_on() {
    if !full_tests() {
        return;
    }
    let proxied = Proxied::start();
    let path = "/mcp/coding/security";
    let mut hello = initialize();
    hello["params"] = json!({"protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"}});
    let begun = proxied.post(path, &hello).send().await.expect("an answer");
    assert_eq!(begun.status(), 200);
    let session = begun.headers()["mcp-session-id"].to_str().expect("an id").to_owned();
    let send = |message: Value| proxied.post(path, &message).header("mcp-session-id", &session).send();
    let ready = send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await.expect("an answer");
    assert_eq!(ready.status(), 202);
    let listed = send(json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})).await.expect("an answer");
    assert!(listed.text().await.expect("tools").contains("developer__read_file"));
}

/// ACP over HTTP: the answer to a posted message arrives on the event stream of the connection.
#[tokio::test]
async fn nginx_passes_acp_over_http_on() {
    if !full_tests() {
        return;
    }
    let proxied = Proxied::start();
    let begun = proxied.post("/acp", &initialize()).send().await.expect("an answer");
    assert_eq!(begun.status(), 200);
    let connection = begun.headers()["acp-connection-id"].to_str().expect("an id").to_owned();
    let stream = proxied.get("/acp").header("accept", "text/event-stream").header("acp-connection-id", &connection);
    let stream = stream.send().await.expect("a stream");
    let params = json!({"cwd": proxied.sandbox.path("project"), "mcpServers": []});
    let opening = json!({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": params});
    let opened = proxied.post("/acp", &opening).header("acp-connection-id", &connection).send().await;
    assert_eq!(opened.expect("an answer").status(), 202);
    read_until(stream, "\"sessionId\"").await;
}

#[tokio::test]
async fn nginx_passes_acp_over_websocket_on() {
    if !full_tests() {
        return;
    }
    let proxied = Proxied::start();
    let config = trust(&proxied.certificate, &[]);
    let stream = TcpStream::connect(proxied.address).await.expect("nginx listens");
    let name = ServerName::try_from(NAME).expect("a name");
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("TLS");
    let mut request = proxied.url("/acp").replace("https:", "wss:").into_client_request().expect("a request");
    request.headers_mut().insert("authorization", bearer(&proxied.token).parse().expect("a header"));
    let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.expect("a WebSocket");

    let mut session = String::new();
    let messages = [
        ("initialize", initialize()["params"].clone()),
        ("session/new", json!({"cwd": proxied.sandbox.path("project"), "mcpServers": []})),
        ("session/prompt", json!({"prompt": [{"type": "text", "text": "good morning"}]})),
    ];
    let mut received = String::new();
    for (id, (method, mut params)) in messages.into_iter().enumerate() {
        if method == "session/prompt" {
            params["sessionId"] = json!(session);
        }
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        socket.send(Message::text(message.to_string())).await.expect("the server reads");
        let answer = loop {
            let next = tokio::time::timeout(PATIENCE, socket.next()).await.expect("a message in time");
            let text = match next {
                Some(Ok(Message::Text(text))) => text,
                // A ping, which the library answers.
                Some(Ok(_)) => continue,
                ended => panic!("a message, not {ended:?}"),
            };
            received.push_str(&text);
            let message: Value = serde_json::from_str(&text).expect("JSON");
            if message["id"] == id && message.get("method").is_none() {
                break message;
            }
        };
        assert!(answer["result"].is_object(), "{method}: {answer}");
        if let Some(id) = answer["result"]["sessionId"].as_str() {
            session = id.to_owned();
        }
    }
    assert!(received.contains("good morning"), "{received}");
}
