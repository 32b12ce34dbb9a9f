//! Keys of the config, and of servers that clients bring, searched for in every place of `skein serve`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::console::Browser;
use crate::secret_canaries::{files_with, sandbox_with_keys};
use crate::secret_places::{
    ARGUMENT, ASSIGNMENT, HEADER, QUERY, VARIABLE, assert_clean, assert_clean_files, console_texts, logged,
    loud_server, observed, remote_server, traces,
};
use crate::support::acp::Acp;
use crate::support::http::{HttpServer, Reply, Request, good_server};
use crate::support::model::{asked, has_result};
use crate::support::serve::{Server, token};
use crate::support::{read, servers};

const PROVIDER_QUERY: &str = "canary-provider-query-91be4d";
const PROVIDER_KEY: &str = "canary-provider-key-7c05fa";
/// In hexadecimal, as Skein requires it.
const STORE_KEY: &str = "c0ffee5ec2e7b1a5c0ffee5ec2e7b1a5c0ffee5ec2e7b1a5c0ffee5ec2e7b1a5";
const PROXY_PASSWORD: &str = "canary-proxy-password-30d8f1";
/// The user `ann` and the password, as a proxy gets them.
const PROXY_LOGIN: &str = "YW5uOmNhbmFyeS1wcm94eS1wYXNzd29yZC0zMGQ4ZjE=";
const KEYS: [&str; 10] = [
    ARGUMENT,
    ASSIGNMENT,
    VARIABLE,
    HEADER,
    QUERY,
    PROVIDER_QUERY,
    PROVIDER_KEY,
    STORE_KEY,
    PROXY_PASSWORD,
    PROXY_LOGIN,
];

/// A hook that shows its environment.
const HOOK: &str = "\
hooks:
  UserPromptSubmit:
    - hooks:
        - command: env > hook.txt
";

/// An error with the request in it.
fn refusal(request: &Request) -> Value {
    json!({"code": -32000, "message": format!("refused: {}", request.head.replace("\r\n", " "))})
}

/// An answer in the dialect of OpenAI.
fn completion(delta: &Value, reason: &str) -> Reply {
    let event = |delta: &Value, reason: Option<&str>| {
        json!({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}).to_string()
    };
    Reply::Events(vec![event(delta, None), event(&json!({}), Some(reason)), "[DONE]".to_owned()])
}

/// Refuses one prompt. In all others it calls a tool that fails, and those that show the environment of a process.
fn provider(request: &Request) -> Reply {
    if request.body.is_null() {
        return Reply::Json(json!({"object": "list", "data": [{"id": "scripted", "object": "model"}]}));
    }
    if asked(&request.body).contains("refuse") {
        return Reply::Full(401, String::new(), json!({"error": refusal(request)}));
    }
    let tools = request.body["tools"].to_string();
    let shows = [
        ("host__greet", json!({})),
        ("spy__env", json!({})),
        ("good__env", json!({})),
        ("developer__shell", json!({"command": "env"})),
    ];
    let offered = shows.iter().enumerate().filter(|(_, (tool, _))| tools.contains(&format!("\"{tool}\"")));
    let calls = offered.map(|(at, (tool, arguments))| {
        let function = json!({"name": tool, "arguments": arguments.to_string()});
        json!({"index": at, "id": format!("call-{at}"), "type": "function", "function": function})
    });
    let calls: Vec<_> = calls.collect();
    if calls.is_empty() || has_result(&request.body) {
        return completion(&json!({"content": "goodbye"}), "stop");
    }
    completion(&json!({"role": "assistant", "tool_calls": calls}), "tool_calls")
}

/// A proxy that refuses all requests and keeps them.
struct RefusingProxy {
    url: String,
    heads: Arc<Mutex<String>>,
}

impl RefusingProxy {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://ann:{PROXY_PASSWORD}@{}", listener.local_addr().unwrap());
        let heads: Arc<Mutex<String>> = Arc::default();
        let kept = Arc::clone(&heads);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let lines = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
                lines.for_each(|line| kept.lock().unwrap().push_str(&line));
                (&stream).write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").unwrap_or_default();
            }
        });
        Self { url, heads }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_of_a_client_or_of_the_config_leaves_the_server() {
    let receiver = HttpServer::start(|_| Reply::Status(200)).await;
    let provider = HttpServer::start(provider).await;
    // It refuses a call, and repeats the request.
    let host = HttpServer::start(|request| {
        let (id, error) = (request.body["id"].clone(), refusal(request));
        good_server(request, move || Reply::Json(json!({"jsonrpc": "2.0", "id": id, "error": error})))
    })
    .await;
    let proxy = RefusingProxy::start();
    let sandbox = sandbox_with_keys().with("OWN_KEY", PROVIDER_KEY).with("SKEIN_MODEL", "own:scripted");
    let sandbox = sandbox.with("SKEIN_STORE_KEY", STORE_KEY);
    let address = provider.url.replace("/mcp", "/v1/");
    let own = format!("providers:\n  own:\n    base_url: '{address}?key={PROVIDER_QUERY}'\n    key: OWN_KEY\n");
    sandbox.write("config/config.yaml", &format!("version: 1\n{own}{HOOK}"));
    let flags = ["--manifests", "wiring", "--record", "recording.jsonl", "serve", "--listen", "127.0.0.1:0"];
    let mut command = observed(&sandbox, sandbox.command(&flags), &receiver);
    command.env("HTTPS_PROXY", &proxy.url);
    let mut server = Server::launch(command);
    let root = sandbox.path("project").display().to_string();
    let token = token(&sandbox, "ci", &["--root", &root, "--client-services", "--admin"]);
    let keys = || KEYS.into_iter().chain([token.as_str()]);

    let mut command = sandbox.command(&["acp", "--connect", &format!("http://{}", server.address)]);
    command.env("SKEIN_TOKEN", &token).env("HTTPS_PROXY", &proxy.url);
    let mut client = Acp::launch(&sandbox, command);
    client.introduce(&json!({"session": {"notices": {}}}));
    client.on_permission("allow_once");
    let mark = client.mark();
    let spy = json!({"name": "spy", "command": servers::mcp_echo(), "args": [], "env": []});
    // Nobody listens on the discard port.
    let gone = remote_server("gone", "http://127.0.0.1:9/mcp");
    let far = remote_server("far", "https://far.test/mcp");
    let session = client.session_with(json!([loud_server(), remote_server("host", &host.url), gone, far, spy]));
    // They have no code execution, and so show the tools to the model.
    for mode in ["coding/backend", "test/good"] {
        client.set_mode(&session, mode);
        client.prompt(&session, "show");
    }
    for name in ["loud", "gone", "far"] {
        client.wait(mark, &format!("a notice of {name}"), |message| {
            let update = &message["params"]["update"];
            update["sessionUpdate"] == "notice" && update.to_string().contains(name)
        });
    }
    let refused = client.begin(&session, "refuse");
    client.answer(&refused);

    let metrics = server.get("/metrics", &token).body;
    let pages = console_texts(&Browser::log_in(&server, &token), &session);
    assert_eq!(client.finish().1, 0);
    server.interrupt();
    assert_eq!(server.wait(), 0);

    // The test can fail: the keys were used, and each place shows what happened.
    assert_eq!(files_with(&sandbox.path("data"), "goodbye", ""), [""; 0], "the store is encrypted");
    let heads = |server: &HttpServer| server.requests().iter().map(|request| request.head.clone()).collect::<String>();
    for (peer, keys) in [(&host, [HEADER, QUERY]), (&provider, [PROVIDER_QUERY, PROVIDER_KEY])] {
        assert!(keys.iter().all(|key| heads(peer).contains(key)), "{}", heads(peer));
    }
    assert!(proxy.heads.lock().unwrap().contains(PROXY_LOGIN), "the login of the proxy was used");
    let told: String = client.heard().iter().map(Value::to_string).collect();
    let (log, hook) = (logged(&sandbox), read(sandbox.path("project/hook.txt")));
    let recording = read(sandbox.path("project/recording.jsonl"));
    let traces = traces(&receiver);
    let shown: String = pages.iter().map(|(_, text)| text.as_str()).collect();
    // The session belongs to the principal of the token; its export is a page.
    let places = [("what the client is told", &told), ("the pages", &shown)];
    for (place, text) in places {
        // Two servers, the provider, and three environments.
        for part in ["refused: POST /mcp", "refused: POST /v1", "PATH"] {
            assert!(text.contains(part), "{part} is not in {place}: {text}");
        }
    }
    let environments = told.matches("PATH").count();
    assert!(environments >= 3, "{environments} environments: {told}");
    for (place, text, part) in [
        ("the log", &log, "refused: --api-key ${env:api-key}"),
        ("the hook", &hook, "PATH"),
        ("the recording", &recording, "\"service\":\"spy\""),
        ("the recording", &recording, "refused: POST /mcp"),
        ("metrics", &metrics, "skein_calls_total"),
        ("traces", &traces, "execute_tool"),
        ("traces", &traces, "start_service"),
    ] {
        assert!(text.contains(part), "{part} is not in {place}: {text}");
        assert_clean(place, text, keys());
    }
    for (place, text) in places {
        assert_clean(place, text, keys());
    }
    assert_clean_files(&sandbox, keys());
    for key in keys() {
        assert_eq!(files_with(&sandbox.path("project"), key, ""), [""; 0], "{key}");
    }
}
