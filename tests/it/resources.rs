//! Resources and prompts of services: rules, level and consent count for them as for tools.

use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use skein::broker::{BindRequest, Requester};
use skein::manifest::ApprovalLevel;
use skein::tool::ask::{Asker, PermissionRequest, PermissionResponse};

use crate::client::Client;
use crate::support::acp::Acp;
use crate::support::{Sandbox, Wired, agent, echo, mode, servers, service};

const PAGE: &str = "echo://page";

/// The test server, installed by the user for a mode that has all of it.
fn installed() -> Sandbox {
    let sandbox = Sandbox::new();
    let command = json!({"command": servers::mcp_echo(), "args": ["--resources", "--prompts"]});
    sandbox.write("config/services/parrot.yaml", &service("parrot", json!({"stdio": command})).to_string());
    let talk = json!({"version": 1, "kind": "agent", "name": "talk", "description": "Talks.",
        "metadata": {"dependencies": ["parrot", "memory"]}, "modes": [{"slug": "all", "description": "All of it.",
        "prompt": "talk.md", "tool_groups": ["parrot", "memory"], "dependencies": ["parrot", "memory"]}]});
    sandbox.write("config/agents/talk.yaml", &talk.to_string());
    sandbox.write("config/agents/talk.md", "You talk.\n");
    sandbox
}

fn problem(answer: &Value) -> String {
    answer["error"]["message"].as_str().unwrap_or_default().to_owned()
}

/// Both ran at `deny` and at `read-only`, and no rule held them.
#[test]
fn an_mcp_client_reads_only_what_level_and_rules_allow() {
    let sandbox = installed();
    let prompt = json!({"name": "parrot__show", "arguments": {"file": "a"}});
    for (flags, resource, prompts, memory) in [
        (&[][..], "", "", ""),
        (&["--approval", "read-only"], "read-only", "read-only", ""),
        (&["--approval", "deny"], "no tool calls", "no tool calls", "no tool calls"),
        (&["--deny", "parrot__resources/read"], "required by a rule", "", ""),
        (&["--deny", "parrot__prompts/get"], "", "required by a rule", ""),
        (&["--deny", "parrot__*"], "required by a rule", "required by a rule", ""),
        (&["--deny", "parrot__resources/read: {uri: \"echo://pa*\"}"], "required by a rule", "", ""),
        (&["--deny", "parrot__resources/read: {uri: \"echo://other\"}"], "", "", ""),
    ] {
        let command = sandbox.command(&[&["mcp", "-a", "talk", "-m", "all"], flags].concat());
        let (mut client, _) = Client::connect(command);
        for (method, params, expected) in [
            ("resources/read", json!({"uri": PAGE}), resource),
            ("prompts/get", prompt.clone(), prompts),
            ("resources/read", json!({"uri": "memory://session-start?about=x"}), memory),
        ] {
            let answer = client.request(method, params.clone());
            let said = problem(&answer);
            assert_eq!(said.is_empty(), expected.is_empty(), "{flags:?} {params}: {answer}");
            assert!(said.contains(expected), "{flags:?} {params}: {said}");
        }
        client.hang_up();
    }
}

#[test]
fn a_template_makes_whole_addresses_only() {
    let sandbox = installed();
    let (mut client, _) = Client::connect(sandbox.command(&["mcp", "-a", "talk", "-m", "all"]));
    let read = client.result("resources/read", json!({"uri": "echo://pages/7"}));
    assert!(read["contents"][0]["text"].as_str().unwrap().contains("echo://pages/7"), "{read}");
    for uri in [
        "echo://pages/7/../../secret",
        "echo://pages/",
        "echo://pages/7/more",
        "echo://pages/7?all=1",
        "echo://pages/..",
    ] {
        let answer = client.request("resources/read", json!({"uri": uri}));
        assert!(problem(&answer).contains("there is no resource"), "{uri}: {answer}");
    }
}

#[derive(Default)]
struct Recording {
    asked: Mutex<Vec<(String, Map<String, Value>)>>,
    refuses: bool,
}

impl Asker for Recording {
    fn ask(&self, question: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        self.asked.lock().unwrap().push((question.tool, question.arguments));
        Box::pin(async { if self.refuses { PermissionResponse::Refuse } else { PermissionResponse::Allow } })
    }
}

#[tokio::test]
async fn only_what_a_model_requests_is_asked_about() {
    let wired = Wired::with_manifests(&[
        echo("echo", &["--resources"]),
        agent(&[mode("all", json!(["echo"]), json!(["echo"]))]),
    ]);
    for (approval, requester, refuses, reads, asks) in [
        (ApprovalLevel::Ask, Requester::Model, false, true, 1),
        (ApprovalLevel::Ask, Requester::Model, true, false, 1),
        (ApprovalLevel::Ask, Requester::User, true, true, 0),
        (ApprovalLevel::Smart, Requester::Model, true, false, 1),
        (ApprovalLevel::ReadOnly, Requester::Model, false, false, 0),
        (ApprovalLevel::ReadOnly, Requester::User, false, true, 0),
        (ApprovalLevel::Deny, Requester::User, false, false, 0),
        (ApprovalLevel::Auto, Requester::Model, true, true, 0),
    ] {
        let asker = Arc::new(Recording { refuses, ..Recording::default() });
        let terms = BindRequest {
            session: wired.session("session"),
            approval: Some(approval),
            asker: Arc::clone(&asker) as Arc<dyn Asker>,
            client_services: Vec::new(),
        };
        let binding = wired.bind_terms("all", terms).await.unwrap();
        let read = binding.read_resource(PAGE, requester, wired.context()).await;
        let case = format!("{approval:?} {requester:?} {refuses}: {read:?}");
        assert_eq!(read.is_ok(), reads, "{case}");
        let expected = vec![("echo__resources/read".to_owned(), crate::support::arguments(json!({"uri": PAGE})))];
        assert_eq!(*asker.asked.lock().unwrap(), if asks == 1 { expected } else { Vec::new() }, "{case}");
    }
    wired.stop().await;
}

#[test]
fn a_session_that_denies_calls_attaches_nothing() {
    let sandbox = installed();
    let mut client = Acp::able(&sandbox, &["--approval", "deny"], &json!({}));
    let session = client.session();
    client.set_mode(&session, "talk/all");
    let prompt =
        json!([{"type": "text", "text": "what is this?"}, {"type": "resource_link", "uri": PAGE, "name": "x"}]);
    let refused = client.refused("session/prompt", json!({"sessionId": session, "prompt": prompt}));
    assert!(refused.to_string().contains("the session allows no tool calls"), "{refused}");
}
