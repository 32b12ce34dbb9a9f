//! MCP has two eras: servers that want a handshake, and servers that want none. Skein speaks both, to children
//! and over HTTP.

use std::borrow::Cow;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::ProtocolVersion;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler, tool, tool_handler, tool_router};
use serde_json::{Value, json};
use skein::task::TaskScope;
use skein::tool::ToolOutcome;

use crate::support::{Wired, agent, echo, mode, read, serve_over_http, service, with};

/// A server that notes in which version it was spoken to.
#[derive(Clone)]
struct Echo {
    tool_router: ToolRouter<Self>,
    versions: &'static [ProtocolVersion],
    spoken: Arc<Mutex<Vec<String>>>,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct EchoArgs {
    text: String,
}

#[tool_router]
impl Echo {
    fn new(versions: &'static [ProtocolVersion], spoken: Arc<Mutex<Vec<String>>>) -> Self {
        Self { tool_router: Self::tool_router(), versions, spoken }
    }

    #[tool(description = "Gives the text back")]
    async fn echo(&self, Parameters(args): Parameters<EchoArgs>, context: RequestContext<RoleServer>) -> String {
        let version = context.protocol_version().map(|version| version.to_string()).unwrap_or_default();
        self.spoken.lock().unwrap().push(version);
        args.text
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Echo {
    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(self.versions)
    }
}

#[tokio::test]
async fn servers_of_both_eras_are_reached_over_http() {
    static OLD: [ProtocolVersion; 1] = [ProtocolVersion::V_2025_06_18];
    static NEW: [ProtocolVersion; 1] = [ProtocolVersion::V_2026_07_28];
    for (versions, expected) in [(&OLD, "2025-06-18"), (&NEW, "2026-07-28")] {
        let spoken: Arc<Mutex<Vec<String>>> = Arc::default();
        let scope = TaskScope::new();
        let heard = Arc::clone(&spoken);
        let url = serve_over_http(&scope, move || Echo::new(versions, Arc::clone(&heard))).await;
        let web = service("web", json!({"http": {"url": url}}));
        let wired = Wired::with_manifests(&[web, agent(&[mode("only", json!(["web"]), json!(["web"]))])]);
        let binding = wired.bind("only").await.unwrap();
        let outcome = wired.call(&binding, "web__echo", json!({"text": "hello"})).await;
        assert_eq!(outcome, ToolOutcome::text("hello"), "{expected}");
        assert_eq!(*spoken.lock().unwrap(), [expected]);
        drop(binding);
        wired.stop().await;
        scope.cancelled().cancel();
    }
}

#[tokio::test]
async fn a_second_skein_is_a_service_like_any_other() {
    let command = json!({"command": env!("CARGO_BIN_EXE_skein"), "args": ["mcp", "--service", "todo"]});
    let inner = service("inner", json!({"stdio": command}));
    let wired = Wired::with_manifests(&[inner, agent(&[mode("only", json!(["inner"]), json!(["inner"]))])]);
    let binding = wired.bind("only").await.unwrap();
    assert!(binding.tools().contains_key("inner__set_todos"), "{:?}", binding.tools().keys());
    let items = json!({"items": [{"text": "reach through two of them", "status": "pending"}]});
    let outcome = wired.call(&binding, "inner__set_todos", items).await;
    assert!(!outcome.is_error && outcome.all_text().contains("reach through two of them"), "{outcome:?}");
    drop(binding);
    wired.stop().await;
}

// children that do not understand the question for their versions

/// The requests that a test server received for its greeting and for calls, in order.
fn heard(log: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let messages = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let methods = messages.filter_map(|message| message["method"].as_str().map(str::to_owned));
    methods.filter(|method| ["server/discover", "initialize", "tools/call"].contains(&method.as_str())).collect()
}

/// Calls a tool of a test server that answers `server/discover` in this way. Returns what the server received.
async fn heard_by(how: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("messages");
    let server = echo("echo", &["--discover", how, "--log-messages", &log.display().to_string()]);
    let wired = Wired::with_manifests(&[server, agent(&[mode("only", json!(["echo"]), json!(["echo"]))])]);
    let binding = wired.bind("only").await.unwrap();
    assert_eq!(wired.said(&binding, "echo__echo", json!({"text": "hello"})).await, "hello", "{how}");
    drop(binding);
    wired.stop().await;
    heard(&log)
}

#[tokio::test]
async fn an_odd_answer_to_discover_leads_to_the_handshake() {
    for odd in [
        "{}",
        "null",
        "\"hello\"",
        r#"{"tools": []}"#,
        r#"{"supportedVersions": "all"}"#,
        r#"{"supportedVersions": ["2025-11-25"], "capabilities": {}, "ttlMs": 0, "cacheScope": "private"}"#,
    ] {
        assert_eq!(heard_by(odd).await, ["server/discover", "initialize", "tools/call"], "{odd}");
    }
}

/// Servers made with older SDKs end if the first message is not the handshake.
#[tokio::test]
async fn a_server_that_exits_at_discover_gets_the_handshake() {
    assert_eq!(heard_by("exit").await, ["server/discover", "initialize", "tools/call"]);
}

/// The library waits 10 seconds. The bound is generous, because the machine may be busy.
#[tokio::test]
async fn a_mute_server_costs_two_seconds_and_only_once() {
    let folder = tempfile::tempdir().unwrap();
    let [messages, starts] = ["messages", "starts"].map(|name| folder.path().join(name));
    let [to_messages, to_starts] = [&messages, &starts].map(|path| path.display().to_string());
    let flags = ["--discover", "mute", "--log-messages", &to_messages, "--log-start", &to_starts];
    let server = with(echo("echo", &flags), json!({"scope": "session"}));
    let wired = Wired::with_manifests(&[server, agent(&[mode("only", json!(["echo"]), json!(["echo"]))])]);
    let binding = wired.bind_session("one", "only").await.unwrap();
    assert_eq!(wired.said(&binding, "echo__echo", json!({"text": "hello"})).await, "hello");
    assert_eq!(heard(&messages), ["server/discover", "initialize", "tools/call"]);
    let started: Vec<u64> =
        read(&starts).lines().filter_map(|line| line.strip_prefix("start ")?.parse().ok()).collect();
    let waited = Duration::from_nanos(started[1] - started[0]);
    assert!(waited < Duration::from_secs(8), "{waited:?}");
    // Another session of the same server: it is known now.
    let other = wired.bind_session("two", "only").await.unwrap();
    assert_eq!(heard(&messages), ["server/discover", "initialize", "tools/call", "initialize"]);
    drop((binding, other));
    wired.stop().await;
}
