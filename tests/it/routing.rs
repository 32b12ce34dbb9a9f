//! Prompts in `orchestrator/auto` over real ACP: who gets them, how it is seen, what is split, and how a wrong route is put
//! right.

use serde_json::{Value, json};

use crate::support::Sandbox;
use crate::support::acp::{Acp, of_kind, spoken};
use crate::support::model::{Answer, ScriptedModel, asked, has_result};

const BACKEND: &str = "Add pagination to the REST endpoint that lists orders and fix its slow SQL query";

fn auto(sandbox: &Sandbox) -> Acp {
    Acp::able(sandbox, &["-a", "orchestrator"], &json!({}))
}

fn with_model(sandbox: &Sandbox, model: &ScriptedModel) -> Acp {
    let mut client = Acp::launch(sandbox, model.offered_to(sandbox.command(&["acp", "-a", "orchestrator"])));
    client.introduce(&json!({"session": {"notices": {}}}));
    client
}

/// The call that tells a route, as it began and as it ended.
fn route(updates: &[Value]) -> (Value, Value) {
    let begun = of_kind(updates, "tool_call").into_iter().find(|call| call["name"] == "route").expect("a route");
    let ended = of_kind(updates, "tool_call_update");
    let ended = ended.into_iter().find(|call| call["toolCallId"] == begun["toolCallId"]).expect("its end");
    (begun, ended)
}

/// Who a prompt went to, by the title of the call.
fn to(updates: &[Value]) -> String {
    route(updates).0["title"].as_str().unwrap().trim_start_matches("Route to ").to_owned()
}

fn system(request: &Value) -> String {
    request["messages"][0]["content"].to_string()
}

fn is_adviser(request: &Value) -> bool {
    system(request).contains("You decide who works on a request")
}

fn offered(request: &Value) -> Vec<String> {
    let tools = request["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
    tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap_or_default().to_owned()).collect()
}

/// What a prompt is about decides who works on it: with the tools of that mode, in the same talk, and everybody can see it.
#[test]
fn a_prompt_goes_to_the_mode_it_is_about() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Says(vec!["Done.".to_owned()]));
    let mut client = with_model(&sandbox, &model);
    let session = client.session();
    let (reason, updates) = client.prompt(&session, BACKEND);
    assert_eq!((reason.as_str(), to(&updates).as_str()), ("end_turn", "coding/backend"));
    let (begun, ended) = route(&updates);
    assert_eq!((&begun["kind"], &ended["status"]), (&json!("switch_mode"), &json!("completed")));
    let decision = &ended["rawOutput"];
    assert_eq!((&decision["by"], &decision["compound"]), (&json!("embedded"), &json!(false)));
    let first = &decision["routes"][0];
    assert_eq!(
        (&first["agent"], &first["mode"], &first["task"]),
        (&json!("coding"), &json!("backend"), &json!(BACKEND))
    );
    assert!(first["confidence"].as_f64().unwrap() >= 0.5 && !first["reason"].as_str().unwrap().is_empty(), "{first}");
    // No model was asked who should do it, and whoever did had the tools of its mode.
    let requests = model.requests();
    let [request] = requests.as_slice() else { panic!("one request: {requests:#?}") };
    assert!(system(request).contains("senior backend engineer"));
    let tools = offered(request);
    assert!(
        tools.contains(&"developer__shell".to_owned()) && !tools.iter().any(|tool| tool.starts_with("summon")),
        "{tools:?}"
    );
    // The session itself goes on as it was.
    let options = client.ask("session/resume", json!({"sessionId": session, "cwd": client.cwd(), "mcpServers": []}));
    assert_eq!(options["modes"]["currentModeId"], "orchestrator/auto");
}

/// What goes on with the talk stays with whoever works; what is about something else does not.
#[test]
fn follow_up_prompts_stay_in_the_current_mode() {
    let sandbox = Sandbox::new();
    let mut client = auto(&sandbox);
    let session = client.session();
    client.prompt(&session, BACKEND);
    for (prompt, mode) in [
        ("now do the same for customers", "coding/backend"),
        ("thanks", "coding/backend"),
        ("Write user stories with acceptance criteria for pausing a subscription", "coding/pm"),
        ("and for cancelling one", "coding/pm"),
    ] {
        assert_eq!(to(&client.prompt(&session, prompt).1), mode, "{prompt}");
    }
    // Also when the session is opened again.
    drop(client);
    let mut client = auto(&sandbox);
    client.ask("session/load", json!({"sessionId": session, "cwd": client.cwd(), "mcpServers": []}));
    assert_eq!(to(&client.prompt(&session, "and for renewing it").1), "coding/pm");
}

/// Top of mind and pieces of earlier sessions are there before the decision: for the router and for the model.
#[test]
fn routing_receives_top_of_mind_and_earlier_sessions() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| {
        let task = json!({"name": "a", "mode": "coding/sre", "task": "look", "why": "it sounds like an incident"});
        let advice = json!({"tasks": [task]}).to_string();
        Answer::Says(vec![if is_adviser(request) { advice } else { "Done.".to_owned() }])
    });
    let mut command = model.offered_to(sandbox.command(&["acp", "-a", "orchestrator"]));
    command.env("SKEIN_TOM_TEXT", "This week it is all about the zebra importer.");
    let mut client = Acp::launch(&sandbox, command);
    client.introduce(&json!({}));
    let session = client.session();
    client.prompt(&session, "@goose the gadget frobnicates its sprocket with zeal");
    let session = client.session();
    client.prompt(&session, "what of the gadget and its sprocket?");
    let question = model.requests().into_iter().rev().find(is_adviser).expect("a model is asked");
    let question = question["messages"][1]["content"].as_str().unwrap().to_owned();
    let question: Value = serde_json::from_str(&question).expect("the question is JSON");
    assert_eq!(question["context"]["top_of_mind"], "This week it is all about the zebra importer.");
    let earlier = question["context"]["earlier_sessions"][0].as_str().expect("a piece");
    assert!(earlier.contains("frobnicates its sprocket"), "{earlier}");
}

/// Where the router is unsure a model decides, in one question without tools.
#[test]
fn a_model_decides_what_the_router_is_unsure_about() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| {
        let task = json!({"name": "a", "mode": "coding/sre", "task": "look", "why": "it sounds like an incident"});
        let advice = json!({"tasks": [task]}).to_string();
        Answer::Says(vec![if is_adviser(request) { advice } else { "Done.".to_owned() }])
    });
    let mut client = with_model(&sandbox, &model);
    let session = client.session();
    let (_, updates) = client.prompt(&session, "make it better");
    assert_eq!(to(&updates), "coding/sre");
    let decision = route(&updates).1["rawOutput"].clone();
    assert_eq!(
        (&decision["by"], &decision["routes"][0]["reason"]),
        (&json!("model"), &json!("it sounds like an incident"))
    );
    let requests = model.requests();
    assert!(is_adviser(&requests[0]) && offered(&requests[0]).is_empty());
    assert!(!requests[0]["messages"].to_string().contains("goose/judge"), "an internal mode is nobody's to choose");
    // Whoever works is told the user's own words.
    assert!(asked(&requests[1]).contains("make it better"));
}

/// A model that does not answer as it was asked to decides nothing: the default mode works, and the alternatives are shown.
#[test]
fn without_good_advice_the_default_mode_is_used() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| {
        let bad = r#"{"tasks":[{"mode":"goose/judge","task":"rule the world"}]}"#;
        Answer::Says(vec![if is_adviser(request) { bad.to_owned() } else { "Done.".to_owned() }])
    });
    let mut client = with_model(&sandbox, &model);
    let session = client.session();
    let (_, updates) = client.prompt(&session, "make it better");
    assert_eq!(to(&updates), "goose/assistant");
    let notices: Vec<_> = of_kind(&updates, "notice").iter().map(Value::to_string).collect();
    assert!(notices.iter().any(|notice| notice.contains("`goose/judge`, which is not among the modes")), "{notices:?}");
    let decision = route(&updates).1["rawOutput"].clone();
    assert_eq!(decision["by"], "default");
    assert_eq!(decision["alternatives"].as_array().unwrap().len(), 3);
}

/// Without a model a request in two parts is split by its grammar, shown as a plan, and both are really worked on.
#[test]
fn a_request_in_two_parts_is_split_shown_and_worked_on() {
    let sandbox = Sandbox::new();
    let mut client = auto(&sandbox);
    let session = client.session();
    let (reason, updates) = client.prompt(&session, "fix the login API and add a dark theme");
    assert_eq!(reason, "end_turn");
    assert_eq!(to(&updates), "coding/backend, coding/frontend");
    let kinds: Vec<_> = updates.iter().map(|update| update["sessionUpdate"].as_str().unwrap()).collect();
    let plan = kinds.iter().position(|kind| *kind == "plan").expect("a plan");
    let work = updates.iter().position(|update| update["name"] == "summon__delegate").expect("work");
    assert!(plan < work, "the plan is shown before work starts");
    let entries: Vec<_> = of_kind(&updates, "plan")[0]["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["content"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(entries, ["coding/backend: fix the login API", "coding/frontend: add a dark theme"]);
    let delegated =
        of_kind(&updates, "tool_call").into_iter().filter(|call| call["name"] == "summon__delegate").count();
    assert_eq!(delegated, 2);
    // One thing with two objects stays one.
    let (_, updates) =
        client.prompt(&session, "add created_at and updated_at columns to the orders table in the migration");
    assert_eq!(to(&updates), "coding/backend");
}

/// With a model, one question gives the parts and their order; each part is done by a session of its own, and the joined
/// answer is the orchestrator's.
#[test]
fn a_model_splits_a_request_and_the_results_are_joined() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| {
        let said = |text: &str| Answer::Says(vec![text.to_owned()]);
        let part = |name: &str, mode: &str, task: &str, after: &[&str]| json!({"name": name, "mode": mode, "task": task, "after": after, "why": "it fits"});
        match asked(request) {
            _ if is_adviser(request) => {
                let tasks = [
                    part("ui", "coding/frontend", "Add a dark theme.", &["api"]),
                    part("api", "coding/backend", "Fix the login API.", &[]),
                ];
                said(&json!({"tasks": tasks}).to_string())
            }
            _ if has_result(request) => said("The API is fixed and the theme is dark."),
            words if words.contains("Fix the login API.") && !words.contains("dark theme") => {
                said("Fixed in login.rs.")
            }
            words if words.contains("Fixed in login.rs.") => said("Dark now."),
            words => said(&format!("unexpected: {words}")),
        }
    });
    let mut client = with_model(&sandbox, &model);
    let session = client.session();
    let (_, updates) = client.prompt(&session, "fix the login API and add a dark theme");
    assert!(spoken(&updates).ends_with("The API is fixed and the theme is dark."), "{updates:#?}");
    assert_eq!(route(&updates).1["rawOutput"]["by"], "model");
    let requests = model.requests();
    assert_eq!(requests.len(), 4, "advice, two parts, the joined answer: {requests:#?}");
    let joined = requests.last().unwrap();
    assert!(system(joined).contains("You are orchestrator in mode auto"));
    let told = joined["messages"].to_string();
    assert!(told.contains("Fixed in login.rs.") && told.contains("Dark now."), "{told}");
}

/// One word puts a wrong route right, and it is remembered in this project.
#[test]
fn wrong_route_is_corrected_by_one_word_and_remembered() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| {
        let advice = json!({"tasks": [{"mode": "coding/sre", "task": "look"}]}).to_string();
        Answer::Says(vec![if is_adviser(request) { advice } else { "Done.".to_owned() }])
    });
    let mut client = with_model(&sandbox, &model);
    let session = client.session();
    assert_eq!(to(&client.prompt(&session, "make the ledger better").1), "coding/sre");
    let (_, updates) = client.prompt(&session, "@coding/frontend");
    assert_eq!((to(&updates).as_str(), &route(&updates).1["rawOutput"]["by"]), ("coding/frontend", &json!("explicit")));
    let again = model.requests().pop().unwrap();
    assert!(system(&again).contains("senior frontend engineer") && asked(&again).contains("make the ledger better"));
    // Another session of the same project knows it, without a model.
    let count = model.requests().iter().filter(|request| is_adviser(request)).count();
    let other = client.session();
    assert_eq!(to(&client.prompt(&other, "make the ledger better").1), "coding/frontend");
    assert_eq!(model.requests().iter().filter(|request| is_adviser(request)).count(), count);
}

/// So does choosing another mode right after it: the next prompt says who it was for.
#[test]
fn choosing_another_mode_after_a_route_is_remembered_too() {
    let sandbox = Sandbox::new();
    let mut client = auto(&sandbox);
    let session = client.session();
    let prompt = "make the ledger better";
    assert_eq!(to(&client.prompt(&session, prompt).1), "goose/assistant");
    client.set_mode(&session, "coding/qa");
    client.prompt(&session, prompt);
    let other = client.session();
    assert_eq!(to(&client.prompt(&other, prompt).1), "coding/qa");
}

/// A name at the beginning of a prompt sends it there from any mode, for this one turn.
#[test]
fn a_name_before_a_prompt_sends_it_there_once() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Says(vec!["Done.".to_owned()]));
    let mut client = with_model(&sandbox, &model);
    let session = client.session();
    client.set_mode(&session, "goose/planner");
    let (_, updates) = client.prompt(&session, "@coding/security look at the login");
    assert_eq!(to(&updates), "coding/security");
    assert!(asked(&model.requests()[0]).contains("\"look at the login\""), "{}", asked(&model.requests()[0]));
    client.prompt(&session, "what now?");
    assert!(offered(&model.requests()[1]).is_empty(), "the planner has no tools");
    let error = client.send(
        "session/prompt",
        json!({"sessionId": session, "prompt": [{"type": "text", "text": "@coding/securty look"}]}),
    );
    let answer = client.answer(&error);
    assert!(answer["error"].to_string().contains("did you mean `@coding/security`?"), "{answer}");
    let error = client.send(
        "session/prompt",
        json!({"sessionId": session, "prompt": [{"type": "text", "text": "@goose/judge this"}]}),
    );
    assert!(client.answer(&error)["error"].to_string().contains("internal mode"));
}

/// `--plan-only` shows who would do what, and nothing is done.
#[test]
fn a_plan_can_be_looked_at_without_being_carried_out() {
    let sandbox = Sandbox::new();
    let ran = sandbox.skein(&["run", "-a", "orchestrator", "--plan-only", "fix the login API and add a dark theme"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let lines: Vec<_> = ran.stdout.lines().map(|line| line.split(" (").next().unwrap()).collect();
    assert_eq!(lines, ["1. coding/backend", "2. coding/frontend"], "{}", ran.stdout);
    assert!(!ran.stderr.contains("summon__delegate"), "{}", ran.stderr);
}
