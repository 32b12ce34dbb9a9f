//! Who is sent to an agent outside: by name, by the router, by delegation; with the consent of the session that sends.

use serde_json::{Value, json};

use crate::support::Sandbox;
use crate::support::acp::{Acp, of_kind, spoken};
use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::outside::{manifest, mode};
use crate::support::peers::echo;

/// An agent for a field that nobody else knows.
fn with_gardener() -> Sandbox {
    let sandbox = Sandbox::new();
    let mut default = mode("default", json!(["read"]), json!(["developer"]));
    default["description"] = json!("Knows all about growing roses, pruning hedges and feeding compost heaps.");
    default["when_to_use"] = json!("Gardening: roses, hedges, compost, seeds, soil and greenfly.");
    default["examples"] = json!([
        "when should I prune my roses",
        "my compost heap smells",
        "how do I get rid of greenfly",
        "which soil do hedges like"
    ]);
    sandbox.install(&manifest("gardener", &echo(&[]), &[default]));
    sandbox
}

#[test]
fn the_router_knows_it() {
    let sandbox = with_gardener();
    let routed = sandbox.skein(&["route", "--json", "how should I prune the roses in my garden"]).json();
    assert_eq!(
        (&routed["routes"][0]["agent"], &routed["routes"][0]["mode"]),
        (&json!("gardener"), &json!("default")),
        "{routed}"
    );
    let run = sandbox.skein(&["run", "-a", "orchestrator", "how should I prune the roses in my garden"]);
    assert!(run.stdout.contains("heard:") && run.stdout.contains("prune the roses"), "{run:?}");
}

#[test]
fn it_is_reached_by_its_name_from_any_session() {
    let sandbox = with_gardener();
    let mut client = Acp::start(&sandbox);
    let session = client.session();
    let (_, updates) = client.prompt(&session, "@gardener say by name");
    assert_eq!(spoken(&updates), "by name");
    let route = of_kind(&updates, "tool_call").into_iter().find(|call| call["kind"] == "switch_mode");
    assert_eq!(route.expect("the route is told")["title"], "Route to gardener/default");
}

/// A session that is read-only hands work to an agent outside, and that is read-only, too.
#[test]
fn work_that_is_handed_to_it_is_held_by_who_hands_it_over() {
    let task = "say handed over";
    let model = ScriptedModel::new(move |request| match has_result(request) {
        true => Answer::Says(vec!["all done".to_owned()]),
        false => Answer::Calls {
            id: "call_1",
            tool: "summon__delegate",
            arguments: json!({"task": task, "agent": "gardener", "mode": "default"}),
        },
    });
    let sandbox = with_gardener();
    let mut client = Acp::launch(&sandbox, model.offered_to(sandbox.command(&["acp", "--agent", "orchestrator"])));
    client.introduce(&json!({}));
    let session = client.session();
    let (_, updates) = client.prompt(&session, "/hand this to the gardener please");
    let requests = model.requests();
    assert!(requests.len() >= 2, "{requests:#?}");
    let result = requests.last().unwrap()["messages"]
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .find(|message| message["role"] == "tool")
        .cloned();
    assert!(result.unwrap_or_default().to_string().contains("handed over"), "{updates:#?}");
    let told: Vec<Value> = of_kind(&updates, "tool_call_update");
    assert!(told.iter().any(|update| update.to_string().contains("handed")), "its words are told while it works");
}

/// The agent ignores the cancellation, so that the call of the parent ends before the task does. The task would count
/// against the limit of tasks for ever.
#[test]
fn a_task_has_ended_though_its_call_ended_first() {
    let model = ScriptedModel::new(move |request| match (has_result(request), asked(request).contains("how far")) {
        (true, _) => Answer::Says(vec![request["messages"].as_array().unwrap().last().unwrap()["content"].to_string()]),
        (false, true) => Answer::Calls { id: "call_2", tool: "summon__task_status", arguments: json!({}) },
        (false, false) => Answer::Calls {
            id: "call_1",
            tool: "summon__delegate",
            arguments: json!({"task": "ignore-cancel", "agent": "gardener", "mode": "default"}),
        },
    });
    let sandbox = with_gardener();
    let mut client = Acp::launch(&sandbox, model.offered_to(sandbox.command(&["acp", "-a", "orchestrator"])));
    client.introduce(&json!({}));
    let session = client.session();
    let (mark, prompt) = (client.mark(), client.begin(&session, "@orchestrator go"));
    client.wait(mark, "the agent's first words", |message| message.to_string().contains("ignoring"));
    client.cancel(&session);
    assert_eq!(client.ended(&prompt), "cancelled");
    let status = spoken(&client.prompt(&session, "@orchestrator how far is it?").1);
    assert!(status.contains("was cancelled"), "{status}");
}
