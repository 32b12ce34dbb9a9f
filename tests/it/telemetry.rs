//! Spans as a receiver of OpenTelemetry gets them, and the figures of `skein sessions stats`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};

use crate::support::model::{Answer, ScriptedModel, has_result};
use crate::support::outside::{manifest, mode};
use crate::support::peers::echo;
use crate::support::{Sandbox, full_tests, installed};

const PROMPT: &str = "a prompt with the word gooseberry";

/// A receiver that decodes with the messages that OpenTelemetry publishes: `tests/python/otlp_receiver.py`.
pub(crate) struct OtlpReceiver {
    child: Child,
    lines: Receiver<String>,
    pub(crate) url: String,
}

impl OtlpReceiver {
    #[expect(clippy::disallowed_methods, reason = "another program, which the one under test sends to")]
    pub(crate) fn start(flags: &[&str]) -> Self {
        let mut child = Command::new(installed("tests/python/venv/bin/python"))
            .arg("-B")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/otlp_receiver.py"))
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("its stdout")).lines().map_while(Result::ok);
        let scheme = if flags.contains(&"--tls") { "https" } else { "http" };
        let url = format!("{scheme}://127.0.0.1:{}", stdout.next().expect("a port"));
        let (sender, lines) = channel();
        std::thread::spawn(move || stdout.try_for_each(|line| sender.send(line)));
        Self { child, lines, url }
    }

    /// All spans that have arrived when none has come for a second.
    pub(crate) fn spans(&self) -> Vec<Value> {
        let next = || self.lines.recv_timeout(Duration::from_secs(1)).ok();
        std::iter::from_fn(next).map(|line| serde_json::from_str(&line).expect("JSON")).collect()
    }
}

impl Drop for OtlpReceiver {
    fn drop(&mut self) {
        self.child.kill().expect("it is killed");
        self.child.wait().expect("it ends");
    }
}

/// Calls a tool, and then says goodbye.
fn model() -> ScriptedModel {
    ScriptedModel::new(|request| {
        if has_result(request) {
            return Answer::Says(vec!["goodbye".to_owned()]);
        }
        let arguments = json!({"command": "echo strawberry"});
        Answer::Calls { id: "call of a blueberry", tool: "developer__shell", arguments }
    })
}

/// Runs a turn that sends its spans to the receiver, with more variables. Returns its stderr.
fn run_turn(sandbox: &Sandbox, receiver: &OtlpReceiver, variables: &[(&str, &str)]) -> String {
    run_turn_with(&model(), sandbox, receiver, variables)
}

fn run_turn_with(
    model: &ScriptedModel,
    sandbox: &Sandbox,
    receiver: &OtlpReceiver,
    variables: &[(&str, &str)],
) -> String {
    let args = ["run", "--agent", "goose", "--mode", "assistant", "--approval", "auto", PROMPT];
    let mut command = model.offered_to(sandbox.command(&args));
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.url).envs(variables.iter().copied());
    let output = command.output().expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn named<'a>(spans: &'a [Value], name: &str) -> &'a Value {
    let found = spans.iter().find(|span| span["name"] == name);
    found.unwrap_or_else(|| panic!("no span `{name}` in {spans:#?}"))
}

#[test]
fn a_turn_is_a_trace_with_the_names_of_opentelemetry() {
    if !full_tests() {
        return;
    }
    let (sandbox, receiver) = (Sandbox::outside_tmp(), OtlpReceiver::start(&[]));
    let variables = [("OTEL_SERVICE_NAME", "mine"), ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc")];
    run_turn(&sandbox, &receiver, &variables);
    let spans = receiver.spans();
    let session = named(&spans, "session");
    let turn = named(&spans, "invoke_agent goose");
    let request = named(&spans, "chat scripted");
    let call = named(&spans, "execute_tool developer__shell");
    assert_eq!(session["parent"], Value::Null);
    assert_eq!(turn["parent"], session["id"]);
    assert_eq!((&request["parent"], &call["parent"]), (&turn["id"], &turn["id"]));
    for span in [turn, request, call] {
        assert_eq!(span["trace"], session["trace"], "{span:#}");
    }
    // A service may start before the session has its first turn, so it has its own trace.
    let start = named(&spans, "start_service developer");
    let sandbox_start = named(&spans, "start_sandbox");
    for span in [turn, request, call, start, sandbox_start] {
        assert_eq!((&span["failed"], &span["scope"]), (&json!(false), &json!("skein")));
        assert_eq!((&span["resource"]["service.name"], &span["authorization"]), (&json!("mine"), &json!("Bearer abc")));
    }
    assert_eq!(request["kind"], "SPAN_KIND_CLIENT");
    let attributes = &request["attributes"];
    assert_eq!(attributes["gen_ai.operation.name"], "chat");
    assert_eq!(
        (&attributes["gen_ai.provider.name"], &attributes["gen_ai.request.model"]),
        (&json!("openai"), &json!("scripted"))
    );
    assert!(attributes["gen_ai.usage.input_tokens"].is_i64(), "{attributes}");
    assert!(attributes["gen_ai.response.finish_reasons"].is_array(), "{attributes}");
    let attributes = &call["attributes"];
    assert_eq!(
        (&attributes["gen_ai.tool.name"], &attributes["gen_ai.tool.type"]),
        (&json!("developer__shell"), &json!("function"))
    );
    let attributes = &turn["attributes"];
    assert_eq!(
        (&attributes["gen_ai.operation.name"], &attributes["gen_ai.agent.name"]),
        (&json!("invoke_agent"), &json!("goose"))
    );
    for span in [turn, request, call] {
        let conversation = &span["attributes"]["gen_ai.conversation.id"];
        assert!(conversation.is_string(), "{span:#}");
        assert_eq!(*conversation, session["attributes"]["gen_ai.conversation.id"]);
    }
    assert_eq!(attributes["gen_ai.provider.name"], "openai");
    assert_eq!(attributes["gen_ai.response.finish_reasons"], json!(["stop"]));
}

#[test]
fn spans_have_message_content_only_on_request() {
    if !full_tests() {
        return;
    }
    let (sandbox, receiver) = (Sandbox::outside_tmp(), OtlpReceiver::start(&[]));
    run_turn(&sandbox, &receiver, &[]);
    let without = Value::from(receiver.spans()).to_string();
    assert!(without.contains("execute_tool"), "{without}");
    for text in ["gooseberry", "strawberry", "blueberry", "goodbye"] {
        assert!(!without.contains(text), "{text} in {without}");
    }
    // The log never has it, however much it shows.
    let filter = "skein=trace,telemetry::content=info,telemetry=info";
    let asked = [("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true"), ("SKEIN_LOG", filter)];
    let copy = run_turn(&sandbox, &receiver, &asked);
    let spans = receiver.spans();
    let last = spans.iter().rev().find(|span| span["name"] == "chat scripted").expect("a request");
    let text = |key: &str| last["attributes"][key].as_str().unwrap_or_default().to_owned();
    assert!(text("gen_ai.input.messages").contains("gooseberry"), "{last:#}");
    assert!(text("gen_ai.output.messages").contains("goodbye"), "{last:#}");
    let call = named(&spans, "execute_tool developer__shell");
    assert!(call["attributes"]["gen_ai.tool.call.arguments"].to_string().contains("strawberry"), "{call:#}");
    let log = Value::from(sandbox.log()).to_string();
    assert!(!log.contains("gooseberry") && !log.contains("strawberry"), "{log}");
    assert!(!copy.contains("gen_ai."), "{copy}");
}

/// Runs a turn of the external agent `echo`, which does what its prompt says.
fn run_external_turn(prompt: &str, variables: &[(&str, &str)]) -> Vec<Value> {
    let (sandbox, receiver) = (Sandbox::outside_tmp(), OtlpReceiver::start(&[]));
    let modes = [mode("reader", json!(["read"]), json!(["developer"]))];
    sandbox.install(&manifest("echo", &echo(&[]), &modes));
    sandbox.write("project/a.txt", "one\n");
    let mut command = sandbox.command(&["run", "--agent", "echo", "--mode", "reader", prompt]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.url).envs(variables.iter().copied());
    // A turn in which a call is refused has another exit code.
    command.output().expect("the program runs");
    receiver.spans()
}

const CONTENT: [(&str, &str); 1] = [("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")];

#[test]
fn the_turn_of_an_external_agent_has_its_calls() {
    if !full_tests() {
        return;
    }
    // A call over the socket that Skein offers, and one that the agent makes itself.
    for (prompt, name, kind) in [
        (r#"tool developer__read_file {"path": "a.txt"}"#, "execute_tool developer__read_file", "function"),
        ("edit gooseberry.txt", "execute_tool edit", "extension"),
    ] {
        let spans = run_external_turn(prompt, &[]);
        let (turn, call) = (named(&spans, "invoke_agent echo"), named(&spans, name));
        assert_eq!((&call["trace"], &call["parent"]), (&turn["trace"], &turn["id"]), "{spans:#?}");
        let conversation = &turn["attributes"]["gen_ai.conversation.id"];
        assert!(conversation.is_string(), "{turn:#}");
        assert_eq!(call["attributes"]["gen_ai.conversation.id"], *conversation);
        assert_eq!((&call["attributes"]["gen_ai.tool.type"], &call["failed"]), (&json!(kind), &json!(false)));
        assert_eq!(
            (&turn["attributes"]["gen_ai.provider.name"], &turn["kind"]),
            (&json!("acp"), &json!("SPAN_KIND_INTERNAL"))
        );
        // The agent reports no usage.
        assert_eq!(turn["attributes"].get("gen_ai.usage.input_tokens"), None, "{turn:#}");
        let text = Value::from(spans.clone()).to_string();
        assert!(!text.contains("gooseberry") && !text.contains("edited") && !text.contains("Edit a file"), "{text}");
    }
}

#[test]
fn an_external_agent_has_content_only_on_request() {
    if !full_tests() {
        return;
    }
    let spans = run_external_turn("edit gooseberry.txt", &CONTENT);
    let (turn, call) = (named(&spans, "invoke_agent echo"), named(&spans, "execute_tool edit"));
    let text = |span: &Value, key: &str| span["attributes"][key].as_str().unwrap_or_default().to_owned();
    assert!(text(turn, "gen_ai.input.messages").contains("edit gooseberry.txt"), "{turn:#}");
    let answer: Value = serde_json::from_str(&text(turn, "gen_ai.output.messages")).expect("JSON");
    assert_eq!((&answer[0]["role"], &answer[0]["finish_reason"]), (&json!("assistant"), &json!("stop")));
    assert!(answer[0]["parts"].to_string().contains("edited"), "{answer:#}");
    assert_eq!(text(call, "gen_ai.tool.call.result"), r#"{"changed":1}"#);
}

#[test]
fn a_refused_call_of_an_external_agent_has_failed() {
    if !full_tests() {
        return;
    }
    let spans = run_external_turn("permit Strawberry", &[]);
    let call = named(&spans, "execute_tool execute");
    assert_eq!((&call["failed"], &call["attributes"]["error.type"]), (&json!(true), &json!("call_refused")));
    assert!(!Value::from(spans).to_string().contains("Strawberry"));
}

#[test]
fn calls_of_an_mcp_client_share_an_id() {
    if !full_tests() {
        return;
    }
    let (sandbox, receiver) = (Sandbox::outside_tmp(), OtlpReceiver::start(&[]));
    sandbox.write("project/a.txt", "one\n");
    let mut command = sandbox.command(&["mcp", "-a", "coding", "-m", "backend"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.url);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (mut stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let hello =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let call = json!({"name": "developer__read_file", "arguments": {"path": "a.txt"}});
    for (id, method, params) in [(0, "initialize", &hello), (1, "tools/call", &call), (2, "tools/call", &call)] {
        writeln!(stdin, "{}", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).unwrap();
        let is_answer = |line: &String| serde_json::from_str::<Value>(line).is_ok_and(|line| line["id"] == id);
        lines.find(is_answer).expect("an answer");
        if id == 0 {
            writeln!(stdin, "{}", json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).unwrap();
        }
    }
    drop(stdin);
    child.wait().unwrap();
    let spans = receiver.spans();
    let calls: Vec<_> = spans.iter().filter(|span| span["name"] == "execute_tool developer__read_file").collect();
    let [one, other] = calls.as_slice() else { panic!("{spans:#?}") };
    let conversation = |span: &Value| span["attributes"]["gen_ai.conversation.id"].clone();
    assert!(conversation(one).is_string(), "{one:#}");
    assert_eq!(conversation(one), conversation(other));
}

/// The number of spans in the warning of the log with this message.
fn logged_spans(sandbox: &Sandbox, message: &str) -> Option<u64> {
    let log = sandbox.log();
    let line = log.iter().find(|line| line["fields"]["message"] == message);
    line.and_then(|line| line["fields"]["spans"].as_u64())
}

#[test]
fn the_log_has_the_number_of_rejected_spans() {
    if !full_tests() {
        return;
    }
    let (sandbox, receiver) = (Sandbox::outside_tmp(), OtlpReceiver::start(&["--reject", "2"]));
    run_turn(&sandbox, &receiver, &[]);
    assert_eq!(logged_spans(&sandbox, "the receiver of telemetry rejected spans"), Some(2));
    let log = Value::from(sandbox.log()).to_string();
    assert!(!log.contains("secret-of-the-receiver") && !log.contains("before the end"), "{log}");
}

#[test]
fn the_log_has_the_number_of_spans_left_at_the_end() {
    if !full_tests() {
        return;
    }
    let (sandbox, receiver) = (Sandbox::outside_tmp(), OtlpReceiver::start(&["--silent"]));
    run_turn(&sandbox, &receiver, &[]);
    let spans = logged_spans(&sandbox, "the last spans were not exported before the end");
    // The session, the turn, two requests, the call, and the start of a service and a sandbox.
    assert!(spans.is_some_and(|spans| spans >= 7), "{spans:?}");
}

/// The receiver refuses a request that comes before the pause has ended. The work lasts longer than the pause.
#[test]
fn a_receiver_gets_the_pause_that_it_asks_for() {
    if !full_tests() {
        return;
    }
    let (sandbox, receiver) = (Sandbox::outside_tmp(), OtlpReceiver::start(&["--fail", "1", "--retry-after", "2"]));
    let model = ScriptedModel::new(|request| {
        if has_result(request) {
            return Answer::Says(vec!["goodbye".to_owned()]);
        }
        Answer::Calls { id: "c1", tool: "developer__shell", arguments: json!({"command": "sleep 5"}) }
    });
    run_turn_with(&model, &sandbox, &receiver, &[("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")]);
    let spans = receiver.spans();
    named(&spans, "session");
    let log = Value::from(sandbox.log()).to_string();
    assert!(!log.contains("spans could not be exported"), "{log}");
}

#[test]
fn a_receiver_that_fails_once_gets_the_spans_later() {
    if !full_tests() {
        return;
    }
    let (sandbox, receiver) = (Sandbox::outside_tmp(), OtlpReceiver::start(&["--fail", "1"]));
    // The first span is sent at once; that request fails and is repeated.
    run_turn(&sandbox, &receiver, &[("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")]);
    let spans = receiver.spans();
    named(&spans, "session");
    named(&spans, "execute_tool developer__shell");
}

#[test]
fn requests_are_compressed_on_demand() {
    if !full_tests() {
        return;
    }
    let (sandbox, receiver) = (Sandbox::outside_tmp(), OtlpReceiver::start(&[]));
    run_turn(&sandbox, &receiver, &[("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")]);
    let spans = receiver.spans();
    named(&spans, "execute_tool developer__shell");
    assert!(spans.iter().all(|span| span["encoding"] == "gzip"), "{spans:#?}");
    run_turn(&sandbox, &receiver, &[]);
    let spans = receiver.spans();
    assert!(!spans.is_empty() && spans.iter().all(|span| span["encoding"] == Value::Null), "{spans:#?}");
}

#[test]
fn only_the_given_certificate_is_trusted() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::outside_tmp();
    for name in ["its", "another"] {
        let certified = generate_simple_self_signed(vec!["127.0.0.1".to_owned()]);
        let CertifiedKey { cert, signing_key } = certified.expect("a certificate");
        sandbox.write(&format!("{name}.pem"), &cert.pem());
        sandbox.write(&format!("{name}.key"), &signing_key.serialize_pem());
    }
    let [certificate, key, another] = ["its.pem", "its.key", "another.pem"].map(|name| sandbox.path(name));
    let [certificate, key, another] = [&certificate, &key, &another].map(|path| path.to_str().expect("text"));
    let receiver = OtlpReceiver::start(&["--tls", certificate, key]);
    // The form for traces comes before the general one.
    let variables =
        [("OTEL_EXPORTER_OTLP_CERTIFICATE", another), ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", certificate)];
    run_turn(&sandbox, &receiver, &variables);
    named(&receiver.spans(), "execute_tool developer__shell");
    for variables in [&variables[..1], &[("SSL_CERT_FILE", certificate), variables[0]]] {
        run_turn(&sandbox, &receiver, variables);
        assert!(receiver.spans().is_empty(), "{variables:?}");
    }
    let log = Value::from(sandbox.log()).to_string();
    assert!(log.contains("invalid peer certificate"), "{log}");
}

#[test]
fn a_missing_receiver_harms_no_turn() {
    let sandbox = Sandbox::new().with("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1");
    let line = "/developer.shell {\"command\": \"echo hi\"}";
    let run = sandbox.skein(&["run", "-a", "coding", "--approval", "auto", line]);
    assert_eq!((run.code, run.stderr.contains("telemetry")), (0, false), "{}", run.whole());
    let log = Value::from(sandbox.log()).to_string();
    assert!(log.contains("spans could not be exported"), "{log}");
}

#[test]
fn an_invalid_variable_is_named_and_harms_no_command() {
    let sandbox = Sandbox::new()
        .with("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
        .with("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    let run = sandbox.skein(&["sessions", "list"]);
    assert_eq!(run.code, 0, "{}", run.whole());
    assert!(run.stderr.contains("OTEL_EXPORTER_OTLP_PROTOCOL is `grpc`"), "{}", run.whole());
}

#[test]
fn certificates_that_cannot_be_read_are_named() {
    let sandbox = Sandbox::new().with("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:1");
    sandbox.write("project/empty.pem", "no certificate");
    for (file, problem) in [
        ("missing.pem", "`missing.pem` cannot be read: "),
        ("empty.pem", "`empty.pem` has no certificate in PEM format"),
    ] {
        let output = sandbox.command(&["sessions", "list"]).env("OTEL_EXPORTER_OTLP_CERTIFICATE", file).output();
        let output = output.expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert!(said.contains(&format!("OTEL_EXPORTER_OTLP_CERTIFICATE cannot be used: {problem}")), "{said}");
    }
}
