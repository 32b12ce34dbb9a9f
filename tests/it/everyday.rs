//! Memory, todo and fetch as an MCP client meets them: through the program, its binding and its manifests.
#![allow(clippy::expect_used, reason = "helpers of tests fail the test")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::support::{Sandbox, read, repository};

/// `skein mcp` with a client that has said hello.
struct Client {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    id: u64,
}

impl Client {
    fn new(sandbox: &Sandbox, args: &[&str]) -> Self {
        let args: Vec<_> = ["mcp"].iter().chain(args).copied().collect();
        let mut command = sandbox.command(&args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut client = Self { child, input, output, id: 0 };
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}});
        client.request("initialize", hello);
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input, "{message}").expect("it listens");
    }

    fn request(&mut self, method: &str, params: Value) -> Value {
        self.id += 1;
        let id = self.id;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).expect("readable") > 0, "it ended before it answered {method}");
            let message: Value = serde_json::from_str(&line).expect("a message");
            if message["id"] == json!(id) {
                assert_eq!(message.get("error"), None, "{method}");
                return message["result"].clone();
            }
        }
    }

    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.request("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    fn tools(&mut self) -> Vec<String> {
        let tools = self.request("tools/list", json!({}));
        let tools = tools["tools"].as_array().expect("tools").iter();
        tools.map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// Ends as clients end it: nothing more is said.
    fn end(self) {
        let Self { mut child, input, .. } = self;
        drop(input);
        assert!(child.wait().expect("it ends").success());
    }
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().expect("text")
}

#[test]
fn each_can_be_started_alone() {
    let sandbox = Sandbox::new();
    for (service, mut tools) in [
        ("memory", vec!["remember", "recall", "list_memories", "forget"]),
        ("todo", vec!["set_todos", "update_todo", "list_todos"]),
        ("fetch", vec!["fetch_url"]),
    ] {
        let mut client = Client::new(&sandbox, &["--service", service]);
        tools.sort_unstable();
        assert_eq!(client.tools(), tools);
        client.end();
    }
}

#[test]
fn two_processes_remember_without_losing_anything() {
    let sandbox = Sandbox::new();
    let remember = |writer: usize| {
        let mut client = Client::new(&sandbox, &["--service", "memory"]);
        for number in 0..20 {
            let text = format!("writer {writer} number {number}");
            let kept = client.call("remember", json!({"text": text, "tags": ["both"], "scope": "project"}));
            assert_ne!(kept["isError"], json!(true), "{kept}");
        }
        client.end();
    };
    std::thread::scope(|scope| {
        for writer in 0..3 {
            scope.spawn(move || remember(writer));
        }
    });
    let mut client = Client::new(&sandbox, &["--service", "memory"]);
    let listed = client.call("list_memories", json!({"scope": "project"}));
    assert_eq!(listed["structuredContent"]["total"], json!(60));
    client.end();
}

#[test]
fn a_todo_list_lasts_as_long_as_its_session() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox, &["--service", "todo"]);
    client.call("set_todos", json!({"items": [{"text": "one"}, {"text": "two", "status": "in_progress"}]}));
    client.call("update_todo", json!({"id": 1, "status": "completed"}));
    let listed = client.call("list_todos", json!({}));
    assert_eq!(text(&listed), "2 todos, 1 completed\n1. [x] one\n2. [>] two");
    client.end();
    let mut client = Client::new(&sandbox, &["--service", "todo"]);
    assert_eq!(text(&client.call("list_todos", json!({}))), "the todo list is empty");
    client.end();
}

#[test]
fn a_loopback_server_is_reached_only_if_the_manifest_lists_it() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let host = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 2048];
            assert!(stream.read(&mut request).expect("a request") > 0);
            let page = "<h1>Inside</h1>";
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{page}",
                page.len()
            )
            .expect("it listens");
        }
    });
    let sandbox = Sandbox::new();
    let url = json!({"url": format!("http://{host}/")});
    let mut client = Client::new(&sandbox, &["--service", "fetch"]);
    let refused = client.call("fetch_url", url.clone());
    assert_eq!(refused["isError"], json!(true));
    assert!(text(&refused).contains("is this machine"), "{refused}");
    client.end();

    let manifest = read(repository("manifests/services/fetch.yaml"));
    sandbox.write("config/services/fetch.yaml", &format!("{manifest}\nsettings: {{allow_hosts: [\"{host}\"]}}\n"));
    let mut client = Client::new(&sandbox, &["--service", "fetch"]);
    let page = client.call("fetch_url", url);
    assert!(text(&page).contains("\n# Inside\n"), "{page}");
    client.end();

    sandbox.write("config/services/fetch.yaml", &format!("{manifest}\nsettings: {{hosts: [\"{host}\"]}}\n"));
    let run = sandbox.skein(&["mcp", "--service", "fetch"]);
    assert!(run.code != 0 && run.stderr.contains("its `settings` are wrong: unknown field `hosts`"), "{}", run.whole());
}
