//! `orchestrator/auto` over real ACP with a scripted model: work handed to other agents in sessions of their own, each with
//! exactly the tools of its mode, under the consent of the session that asked.

use std::cell::RefCell;
use std::io::Write as _;
use std::process::Stdio;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::support::acp::{Acp, of_kind, selected, spoken};
use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::{Sandbox, servers};

fn with_model(sandbox: &Sandbox, model: &ScriptedModel, capabilities: &Value) -> Acp {
    let mut client = Acp::launch(sandbox, model.offered_to(sandbox.command(&["acp", "-a", "orchestrator"])));
    client.introduce(capabilities);
    client
}

/// The names of the tools in a request.
fn offered(request: &Value) -> Vec<String> {
    let tools = request["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
    tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap_or_default().to_owned()).collect()
}

fn system(request: &Value) -> String {
    request["messages"][0]["content"].to_string()
}

fn is_orchestrator(request: &Value) -> bool {
    system(request).contains("You are orchestrator in mode auto")
}

/// Whose request it is, by the beginning of the mode's prompt.
fn of<'a>(requests: &'a [Value], role: &str) -> &'a Value {
    let found = requests.iter().find(|request| system(request).contains(role));
    found.unwrap_or_else(|| panic!("a request of the {role}"))
}

fn delegate(task: &str, mode: &str) -> Value {
    json!({"task": task, "agent": "coding", "mode": mode})
}

/// Two tasks side by side: each child has its mode's tools and nothing else, its calls are seen in the parent, and the
/// parent answers with what they report.
#[test]
fn child_has_its_modes_tools_and_reports_calls_to_the_parent() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "the letter a\n");
    let model = ScriptedModel::new(|request| match (is_orchestrator(request), has_result(request)) {
        (true, false) => Answer::CallsMany(vec![
            ("d1", "summon__delegate", delegate("look at a.txt", "security")),
            ("d2", "summon__delegate", delegate("say hello", "pm")),
        ]),
        (true, true) => Answer::Says(vec!["Both are done.".to_owned()]),
        (false, false) if asked(request).contains("a.txt") => {
            Answer::Calls { id: "r1", tool: "developer__read_file", arguments: json!({"path": "a.txt"}) }
        }
        (false, _) => Answer::Says(vec![format!("Report on {}.", if has_result(request) { "a.txt" } else { "hello" })]),
    });
    let mut client = with_model(&sandbox, &model, &json!({}));
    let session = client.session();
    let (reason, updates) = client.prompt(&session, "@orchestrator have two look at it");
    assert_eq!(reason, "end_turn");
    assert!(spoken(&updates).ends_with("Both are done."), "{updates:#?}");
    let calls = of_kind(&updates, "tool_call");
    let titles: Vec<_> = calls.iter().map(|call| call["title"].as_str().unwrap()).collect();
    assert!(titles.contains(&"coding/security: a.txt"), "{titles:?}");
    let requests = model.requests();
    let security = offered(of(&requests, "application security reviewer"));
    assert!(security.contains(&"developer__read_file".to_owned()), "{security:?}");
    assert!(!security.iter().any(|tool| tool.contains("shell") || tool.contains("edit") || tool.contains("summon")));
    let own = offered(requests.iter().find(|request| is_orchestrator(request)).unwrap());
    assert!(own.contains(&"summon__delegate".to_owned()) && !own.iter().any(|tool| tool.starts_with("developer")));
    // What the children said is what the parent was told.
    let last = requests.iter().rfind(|request| is_orchestrator(request)).unwrap()["messages"].to_string();
    assert!(last.contains("Report on a.txt.") && last.contains("Report on hello."), "{last}");
    // A child has not seen the talk of its parent.
    assert!(!of(&requests, "product manager")["messages"].to_string().contains("have two look at it"));
    let listed = client.ask("session/list", json!({}));
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1, "children are not among the user's sessions: {listed}");
}

/// A model for the orchestrator that hands over these tasks and then says `Joined.`, and one for the others.
fn handing_over(
    calls: impl Fn() -> Vec<(&'static str, &'static str, Value)> + Send + Sync + 'static,
    others: impl Fn(&Value) -> Answer + Send + Sync + 'static,
) -> ScriptedModel {
    ScriptedModel::new(move |request| match (is_orchestrator(request), has_result(request)) {
        (true, false) => Answer::CallsMany(calls()),
        (true, true) => Answer::Says(vec!["Joined.".to_owned()]),
        (false, _) => others(request),
    })
}

fn shell(command: &str) -> Answer {
    Answer::Calls { id: "s1", tool: "developer__shell", arguments: json!({"command": command}) }
}

/// What the orchestrator's model was told of its calls, as text.
fn told(model: &ScriptedModel) -> String {
    let requests = model.requests();
    requests.iter().rfind(|request| is_orchestrator(request)).unwrap()["messages"].to_string()
}

/// A child asks for consent as the session itself would; one task that gets none fails and leaves the others alone.
#[test]
fn child_asks_in_the_parent_and_a_refusal_fails_only_its_task() {
    let sandbox = Sandbox::new();
    let model = handing_over(
        || {
            vec![
                ("d1", "summon__delegate", delegate("touch a file", "backend")),
                ("d2", "summon__delegate", delegate("say hello", "pm")),
            ]
        },
        |request| match (asked(request).contains("touch"), has_result(request)) {
            (true, false) => shell("touch made"),
            (_, true) => Answer::Says(vec!["It was not allowed.".to_owned()]),
            (false, false) => Answer::Says(vec!["Hello.".to_owned()]),
        },
    );
    let mut client = with_model(&sandbox, &model, &json!({}));
    let asked_for: Rc<RefCell<Vec<Value>>> = Rc::default();
    let seen = Rc::clone(&asked_for);
    client.on("session/request_permission", move |request| {
        seen.borrow_mut().push(request.clone());
        Some(selected("reject_once"))
    });
    let session = client.session();
    assert_eq!(client.prompt(&session, "@orchestrator do both").0, "end_turn");
    let asked_for = asked_for.borrow();
    let [question] = asked_for.as_slice() else { panic!("one question: {asked_for:#?}") };
    assert_eq!(question["sessionId"], json!(session));
    assert_eq!(question["toolCall"]["title"], "coding/backend: touch made");
    assert_eq!(question["toolCall"]["toolCallId"], "d1.s1");
    assert!(!sandbox.path("project/made").exists());
    let told = told(&model);
    assert!(told.contains("`developer__shell` was not consented to") && told.contains("Hello."), "{told}");
}

/// A session at `read-only` hands over work that can only read, whatever the child's mode would do.
#[test]
fn a_child_is_never_looser_than_its_parent() {
    let sandbox = Sandbox::new();
    let free = "version: 1\nkind: agent\nname: free\ndescription: Runs what it likes.\nmetadata: {dependencies: [developer]}\n\
                modes: [{slug: all, description: All., prompt: all.md, tool_groups: [developer], dependencies: [developer], approval: auto}]\n";
    sandbox.write("config/agents/free.yaml", free);
    sandbox.write("config/agents/all.md", "You are free.");
    let model = handing_over(
        || vec![("d1", "summon__delegate", json!({"task": "touch a file", "agent": "free"}))],
        |request| match has_result(request) {
            false => shell("touch made"),
            true => Answer::Says(vec!["Done.".to_owned()]),
        },
    );
    let launch = |args: &[&str]| {
        let mut client =
            Acp::launch(&sandbox, model.offered_to(sandbox.command(&[&["acp", "-a", "orchestrator"], args].concat())));
        client.introduce(&json!({}));
        client
    };
    let mut client = launch(&["--approval", "read-only"]);
    let session = client.session();
    client.prompt(&session, "@orchestrator go");
    assert!(!sandbox.path("project/made").exists());
    assert!(told(&model).contains("`developer__shell` was not consented to"), "{}", told(&model));
    // The mode by itself runs what it likes; under a parent that asks, it is asked about.
    let mut client = launch(&[]);
    client.on_permission("reject_once");
    let session = client.session();
    client.prompt(&session, "@orchestrator go");
    assert!(!sandbox.path("project/made").exists());
    let mut client = launch(&["--approval", "auto"]);
    let session = client.session();
    client.prompt(&session, "@orchestrator go");
    assert!(sandbox.path("project/made").exists());
}

/// Only what the manifest grants, one level deep, and only the orchestrator.
#[test]
fn work_goes_only_to_whom_the_manifest_grants_it_and_no_further() {
    let sandbox = Sandbox::new();
    let to = |agent: &str, mode: &str| json!({"task": "do", "agent": agent, "mode": mode});
    let model = handing_over(
        move || {
            vec![
                ("d1", "summon__delegate", to("goose", "judge")),
                ("d2", "summon__delegate", to("orchestrator", "auto")),
                ("d3", "summon__delegate", to("coding", "backand")),
                ("d4", "summon__delegate", to("goose", "assistant")),
            ]
        },
        |request| match has_result(request) {
            false => Answer::Calls { id: "n1", tool: "summon__delegate", arguments: json!({"task": "deeper"}) },
            true => Answer::Says(vec![request["messages"].as_array().unwrap().last().unwrap().to_string()]),
        },
    );
    let mut client = with_model(&sandbox, &model, &json!({}));
    let session = client.session();
    client.prompt(&session, "@orchestrator go");
    let told = told(&model);
    for said in [
        "cannot hand work to `goose/judge`",
        "cannot hand work to `orchestrator/auto`",
        "cannot hand work to `coding/backand`; did you mean `coding/backend`?",
        "there is no tool `summon__delegate` in goose/assistant",
    ] {
        assert!(told.contains(said), "{said}\n{told}");
    }
}

/// A task that waits for another is given its result, and the plan is shown before and while they work.
#[test]
fn a_task_that_waits_is_given_the_result_it_waits_for() {
    let sandbox = Sandbox::new();
    let task = |name: &str, task: &str, after: Value| json!({"task": task, "agent": "coding", "mode": "pm", "name": name, "after": after});
    let model = handing_over(
        move || {
            vec![
                ("d2", "summon__delegate", task("second", "say it again", json!(["first"]))),
                ("d1", "summon__delegate", task("first", "find the number", json!([]))),
                ("d3", "summon__delegate", task("third", "never done", json!(["gone"]))),
            ]
        },
        |request| {
            let number = asked(request).contains("find the number");
            Answer::Says(vec![if number { "The number is 41.".to_owned() } else { "Said again.".to_owned() }])
        },
    );
    let mut client = with_model(&sandbox, &model, &json!({}));
    let session = client.session();
    let (_, updates) = client.prompt(&session, "@orchestrator go");
    let requests = model.requests();
    let second = requests.iter().find(|request| asked(request).contains("say it again")).unwrap();
    assert!(asked(second).contains("The number is 41."), "{}", asked(second));
    let plans = of_kind(&updates, "plan");
    let states = |plan: &Value| {
        let entries = plan["entries"].as_array().unwrap().iter();
        entries
            .map(|entry| (entry["content"].as_str().unwrap().to_owned(), entry["status"].as_str().unwrap().to_owned()))
            .collect::<Vec<_>>()
    };
    let last = states(plans.last().unwrap());
    assert_eq!(
        last,
        [
            ("coding/pm: say it again".to_owned(), "completed".to_owned()),
            ("coding/pm: find the number".to_owned(), "completed".to_owned()),
            ("coding/pm: never done (failed)".to_owned(), "completed".to_owned()),
        ]
    );
    assert!(plans.iter().any(|plan| states(plan).iter().any(|(_, status)| status == "in_progress")), "{plans:#?}");
    assert!(told(&model).contains("there is no task `gone` to wait for"));
}

/// Cancelling the parent ends its children and what they run.
#[test]
fn cancelling_the_parent_ends_what_its_children_run() {
    let sandbox = Sandbox::new();
    let model = handing_over(|| vec![("d1", "summon__delegate", delegate("wait", "backend"))], |_| shell("sleep 4444"));
    let mut client = with_model(&sandbox, &model, &json!({}));
    client.on_permission("allow_once");
    let session = client.session();
    let (mark, prompt) = (client.mark(), client.begin(&session, "@orchestrator go"));
    client.wait(mark, "the question", |message| message["method"] == "session/request_permission");
    client.until("the command runs", |client| !client.running("sleep 4444").is_empty());
    client.cancel(&session);
    assert_eq!(client.ended(&prompt), "cancelled");
    client.until("the command is gone", |client| client.running("sleep 4444").is_empty());
}

/// Two children that write to one file at once do so one after the other, and the user is told.
#[test]
fn two_writers_of_one_file_come_one_after_the_other() {
    let sandbox = Sandbox::new();
    let model = handing_over(
        || {
            vec![
                ("d1", "summon__delegate", delegate("write one", "backend")),
                ("d2", "summon__delegate", delegate("write two", "backend")),
            ]
        },
        |request| {
            let words = asked(request);
            let results =
                request["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "tool").count();
            match (words.contains("write one"), results) {
                (true, 0) => Answer::Calls {
                    id: "w1",
                    tool: "developer__write_file",
                    arguments: json!({"path": "shared.txt", "content": "one\n"}),
                },
                // The first one works on with other things until the second waits for the file.
                (true, 1) => shell("until [ -e second_waits ]; do sleep 0.05; done"),
                (true, _) => Answer::Says(vec!["One.".to_owned()]),
                (false, 0) => shell("until [ -s shared.txt ]; do sleep 0.05; done"),
                (false, 1) => Answer::Calls {
                    id: "w2",
                    tool: "developer__write_file",
                    arguments: json!({"path": "./shared.txt", "content": "two\n"}),
                },
                (false, 2) => {
                    Answer::Calls { id: "r2", tool: "developer__read_file", arguments: json!({"path": "shared.txt"}) }
                }
                (false, _) => Answer::Says(vec!["Two.".to_owned()]),
            }
        },
    );
    let mut client = with_model(&sandbox, &model, &json!({"session": {"notices": {}}}));
    client.on_permission("allow_once");
    let session = client.session();
    let (mark, prompt) = (client.mark(), client.begin(&session, "@orchestrator go"));
    let notice = client.wait_update(mark, &session, "notice").to_string();
    assert!(notice.contains("coding/backend waits for task `1`, which writes to"), "{notice}");
    sandbox.write("project/second_waits", "");
    assert_eq!(client.ended(&prompt), "end_turn");
    let updates = client.updates(mark, &session);
    let ended: Vec<_> = updates
        .iter()
        .filter(|update| update["status"] == "completed")
        .map(|update| update["toolCallId"].as_str().unwrap())
        .collect();
    let place = |id: &str| ended.iter().position(|ended| *ended == id);
    // `two` was written only after the whole first task had ended, so it saw what the first one left and had to look first.
    assert!(told(&model).contains("Two."), "{}", told(&model));
    assert!(place("d2.r2") > place("d1"), "{ended:?}");
}

/// A task in the background goes on while the talk does, can be looked at and ended, and ends with the session.
#[test]
fn a_task_in_the_background_can_be_looked_at_and_ended() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| {
        let words = asked(request);
        match (is_orchestrator(request), has_result(request)) {
            (true, true) => {
                Answer::Says(vec![request["messages"].as_array().unwrap().last().unwrap()["content"].to_string()])
            }
            (true, false) if words.contains("begin") => Answer::Calls {
                id: "d1",
                tool: "summon__delegate",
                arguments: json!({"task": "wait", "agent": "coding", "mode": "backend", "background": true, "name": "long"}),
            },
            (true, false) if words.contains("how far") => {
                Answer::Calls { id: "d2", tool: "summon__task_status", arguments: json!({}) }
            }
            (true, false) => Answer::Calls { id: "d3", tool: "summon__task_cancel", arguments: json!({"id": "long"}) },
            (false, _) => shell("sleep 5555"),
        }
    });
    let mut client = with_model(&sandbox, &model, &json!({}));
    client.on_permission("allow_once");
    let session = client.session();
    let mark = client.mark();
    assert!(
        spoken(&client.prompt(&session, "@orchestrator begin").1)
            .contains("works on it in the background as task `long`")
    );
    client.wait(mark, "the question", |message| message["method"] == "session/request_permission");
    client.until("the command runs", |client| !client.running("sleep 5555").is_empty());
    assert!(spoken(&client.prompt(&session, "@orchestrator how far is it?").1).contains("Task `long` (coding/backend"));
    assert!(spoken(&client.prompt(&session, "@orchestrator end it").1).contains("was cancelled"));
    client.until("the command is gone", |client| client.running("sleep 5555").is_empty());
    let mark = client.mark();
    client.prompt(&session, "@orchestrator begin");
    client.wait(mark, "the question", |message| message["method"] == "session/request_permission");
    client.until("the command runs", |client| !client.running("sleep 5555").is_empty());
    client.ask("session/close", json!({"sessionId": session}));
    client.until("it ended with the session", |client| client.running("sleep 5555").is_empty());
}

/// A client that knows subagents is told of each child apart: announced, then under its own id, then at rest.
#[test]
fn a_client_that_knows_subagents_sees_each_child_apart() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "the letter a\n");
    let model = handing_over(
        || vec![("d1", "summon__delegate", delegate("look at a.txt", "security"))],
        |request| match has_result(request) {
            false => Answer::CallsMany(vec![
                ("r1", "developer__read_file", json!({"path": "a.txt"})),
                ("w1", "memory__remember", json!({"text": "a.txt holds a letter", "scope": "project"})),
            ]),
            true => Answer::Says(vec!["It is a letter.".to_owned()]),
        },
    );
    let mut client = with_model(&sandbox, &model, &json!({"subagents": {}}));
    let asked_for: Rc<RefCell<Vec<(Value, Value)>>> = Rc::default();
    let heard = Rc::clone(&asked_for);
    client.on("session/request_permission", move |request| {
        heard.borrow_mut().push((request["sessionId"].clone(), request["toolCall"]["toolCallId"].clone()));
        Some(selected("allow_once"))
    });
    let session = client.session();
    let mark = client.mark();
    let (_, updates) = client.prompt(&session, "@orchestrator go");
    let told = of_kind(&updates, "subagent_update");
    let [begun, ended] = told.as_slice() else { panic!("a beginning and an end: {told:#?}") };
    assert_eq!((&begun["title"], &begun["description"]), (&json!("coding/security"), &json!("look at a.txt")));
    assert_eq!((&begun["state"]["state"], &ended["state"]["state"]), (&json!("running"), &json!("idle")));
    assert_eq!(ended["state"]["stopReason"], "end_turn");
    let child = begun["sessionId"].as_str().unwrap();
    let of_child = client.updates(mark, child);
    assert_eq!(of_kind(&of_child, "tool_call")[0]["toolCallId"], "r1");
    assert_eq!(spoken(&of_child), "It is a letter.");
    assert_eq!(*asked_for.borrow(), [(json!(child), json!("w1"))], "a question names the call where it was seen");
    let first = client.heard()[mark..].iter().position(|message| message["params"]["sessionId"] == json!(child));
    let announced = client.heard()[mark..]
        .iter()
        .position(|message| message["params"]["update"]["sessionUpdate"] == "subagent_update");
    assert!(announced < first, "it is announced before anything is heard of it");
    assert!(
        !of_kind(&updates, "tool_call").iter().any(|call| call["name"] == "developer__read_file"),
        "and not told twice"
    );
}

/// Children work where the parent works, and are its own in the store: found with it, deleted with it, and no sessions of the user's.
#[test]
fn children_are_stored_with_their_parent_and_go_with_it() {
    let sandbox = Sandbox::new();
    let model = handing_over(
        || vec![("d1", "summon__delegate", delegate("say hello", "pm"))],
        |_| Answer::Says(vec!["Hello.".to_owned()]),
    );
    let command = |args: &[&str]| model.offered_to(sandbox.command(args)).output().unwrap();
    let ran = command(&["run", "-a", "orchestrator", "--json", "@orchestrator go"]);
    let ran: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(ran["text"], "Joined.");
    let listed: Value = serde_json::from_slice(&command(&["sessions", "list", "--json"]).stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    let parent = ran["session"].as_str().unwrap();
    let children: Value =
        serde_json::from_slice(&command(&["sessions", "list", "--of", parent, "--json"]).stdout).unwrap();
    let [child] = children.as_array().unwrap().as_slice() else { panic!("one child: {children}") };
    assert_eq!((&child["parent"], &child["agent"], &child["mode"]), (&json!(parent), &json!("coding"), &json!("pm")));
    assert_eq!(child["cwd"], listed[0]["cwd"]);
    assert!(command(&["sessions", "delete", parent]).status.success());
    let gone = command(&["sessions", "show", child["id"].as_str().unwrap()]);
    assert_eq!(gone.status.code(), Some(4));
}

/// `--verify` has the judge read request, results and answer; what is missing is exit code 1.
#[test]
fn the_judge_checks_the_joined_answer_when_it_is_asked_to() {
    let sandbox = Sandbox::new();
    for (verdict, code, said) in [
        (json!({"verdict": "complete", "reason": "Both are there.", "missing": []}), 0, "checked: Both are there."),
        (
            json!({"verdict": "incomplete", "reason": "The theme is not.", "missing": ["dark theme"]}),
            1,
            "The theme is not. (dark theme)",
        ),
        (json!("fine"), 1, "the answer was not checked"),
    ] {
        let verdict = verdict.to_string();
        let model = ScriptedModel::new(move |request| match (is_orchestrator(request), has_result(request)) {
            _ if system(request).contains("an internal check") => Answer::Says(vec![verdict.clone()]),
            (true, false) => Answer::CallsMany(vec![("d1", "summon__delegate", delegate("say hello", "pm"))]),
            (true, true) => Answer::Says(vec!["Joined.".to_owned()]),
            (false, _) => Answer::Says(vec!["Hello.".to_owned()]),
        });
        let ran = model
            .offered_to(sandbox.command(&["run", "-a", "orchestrator", "--verify", "@orchestrator greet me"]))
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(code), "{told}");
        assert!(told.contains(said), "{told}");
        let judged =
            model.requests().into_iter().find(|request| system(request).contains("an internal check")).unwrap();
        assert!(offered(&judged).is_empty());
        let shown = asked(&judged);
        assert!(shown.contains("greet me") && shown.contains("Hello.") && shown.contains("Joined."), "{shown}");
    }
}

/// What is on top of the user's mind stands before the prompt of every mode, is said once as long as it stays the same, and leaves
/// what was said before byte for byte as it was.
#[test]
fn top_of_mind_and_recall_precede_a_prompt_with_stable_prefix() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Says(vec!["Noted.".to_owned()]));
    let mind = sandbox.path("mind.md");
    std::fs::write(&mind, "Write in British English.").unwrap();
    let mut command = model.offered_to(sandbox.command(&["acp", "-a", "goose"]));
    command.env("SKEIN_TOM_FILE", &mind);
    let mut client = Acp::launch(&sandbox, command);
    client.introduce(&json!({}));
    let session = client.session();
    for prompt in ["the retry policy of the billing webhook is exponential", "what now?", "and now?"] {
        client.prompt(&session, prompt);
    }
    let requests = model.requests();
    let messages = |at: usize| requests[at]["messages"].as_array().unwrap().clone();
    assert!(messages(0)[1]["content"].to_string().contains("Write in British English."), "{}", messages(0)[1]);
    assert_eq!(
        messages(2)[..messages(1).len()],
        messages(1)[..],
        "what was said is the beginning of what is said next"
    );
    assert_eq!(messages(2).iter().filter(|message| message.to_string().contains("British English")).count(), 1);
    std::fs::write(&mind, "Write in Welsh.").unwrap();
    client.prompt(&session, "and then?");
    assert!(
        model.requests()[3]["messages"].as_array().unwrap().last().unwrap().to_string().contains("Write in Welsh.")
    );
    // Another session of the project is told what the first one said on the matter.
    let other = client.session();
    client.prompt(&other, "which retry policy does the billing webhook have?");
    let last = model.requests().pop().unwrap()["messages"].to_string();
    assert!(last.contains("earlier-sessions") && last.contains("exponential"), "{last}");
    // What Skein says is not shown as the user's words.
    let mark = client.mark();
    client.ask("session/load", json!({"sessionId": other, "cwd": client.cwd(), "mcpServers": []}));
    let replayed = client.updates(mark, &other);
    let user: Vec<_> = of_kind(&replayed, "user_message_chunk").iter().map(Value::to_string).collect();
    assert!(!user.join("").contains("British") && user.join("").contains("which retry policy"), "{user:?}");
}

/// A mode or a config turns recall off. The help text of the offline model is never recalled.
#[test]
fn recall_can_be_turned_off_per_mode_and_in_the_config() {
    let sandbox = Sandbox::new();
    let mode = |slug: &str, more: &str| format!("  - {{slug: {slug}, description: Notes., prompt: notes.md{more}}}\n");
    let manifest = "version: 1\nkind: agent\nname: notes\ndescription: Notes.\nmodes:\n";
    let manifest = format!("{manifest}{}{}", mode("open", ""), mode("closed", ", recall: false"));
    sandbox.write("config/agents/notes.yaml", &manifest);
    sandbox.write("config/agents/notes.md", "You take notes.\n");
    let model = ScriptedModel::new(|_| Answer::Says(vec!["Noted.".to_owned()]));
    let run = |model: Option<&ScriptedModel>, mode: &str, prompt: &str| {
        let command = sandbox.command(&["run", "-a", "notes", "-m", mode, prompt]);
        let mut command = match model {
            Some(model) => model.offered_to(command),
            None => command,
        };
        let ended = command.output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    };
    run(None, "open", "the retry policy of the billing webhook is exponential");
    let shown = |mode: &str, prompt: &str| {
        run(Some(&model), mode, prompt);
        model.requests().pop().unwrap()["messages"].to_string()
    };
    let about = "which retry policy does the billing webhook have?";
    let open = shown("open", about);
    assert!(open.contains("earlier-sessions") && open.contains("is exponential"), "{open}");
    assert!(!open.contains("No language model"), "{open}");
    let help = shown("open", "is a language model configured, or the offline stand-in that calls tools by name?");
    assert!(!help.contains("earlier-sessions"), "{help}");
    let closed = shown("closed", about);
    assert!(!closed.contains("earlier-sessions"), "{closed}");
    sandbox.write("config/config.yaml", "version: 1\nrecall: false\n");
    let off = shown("open", about);
    assert!(!off.contains("earlier-sessions"), "{off}");
}

/// Before it hands work over, the orchestrator shortens what it is shown of its own talk when that is due; its children are
/// given their task and nothing of the talk.
#[test]
fn long_history_is_compacted_before_delegation_and_not_shared() {
    let sandbox = Sandbox::new();
    sandbox.write("config/config.yaml", "version: 1\nmodels:\n  openai:scripted: {window: 130}\n");
    let model = ScriptedModel::new(|request| {
        let said = |text: &str| Answer::Says(vec![text.to_owned()]);
        let is = |words: &str| system(request).contains(words);
        if is("You decide who works on a request") {
            let part = |name: &str, mode: &str| json!({"name": name, "mode": mode, "task": format!("Do {name}."), "why": "it fits"});
            return said(&json!({"tasks": [part("one", "coding/pm"), part("two", "coding/architect")]}).to_string());
        }
        if is("You sum up the older part") {
            return said("They talked about zebras.");
        }
        if is_orchestrator(request) && has_result(request) {
            return said("Joined.");
        }
        said(&"zebra ".repeat(900))
    });
    let mut client = with_model(&sandbox, &model, &json!({}));
    let session = client.session();
    for _ in 0..3 {
        client.prompt(&session, "@orchestrator tell me of zebras");
    }
    let before = model.requests().len();
    let (_, updates) = client.prompt(&session, "fix the login API and add a dark theme");
    assert!(spoken(&updates).ends_with("Joined."), "{}", spoken(&updates));
    let requests = model.requests();
    let place =
        |words: &str| requests[before..].iter().position(|request| system(request).contains(words)).expect("a request");
    assert!(place("You sum up the older part") < place("product manager"), "room is made before work begins");
    let children = requests[before..].iter().filter(|request| {
        system(request).contains("product manager") || system(request).contains("software architect")
    });
    for child in children {
        let talk = child["messages"].as_array().unwrap()[1..].iter().map(Value::to_string).collect::<String>();
        assert!(!talk.contains("zebras"), "a child sees its task alone: {talk}");
    }
}

/// A child has what the editor lends and brings: its buffers, and its MCP servers where its mode lists `mcp`. What the
/// orchestrator disables for the session is gone for the next child, and comes back when it is enabled, after the user was asked.
#[test]
fn children_have_what_the_editor_brings_until_it_is_disabled() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "on disk\n");
    let model = ScriptedModel::new(|request| match (is_orchestrator(request), has_result(request)) {
        (true, true) => Answer::Says(vec!["Joined.".to_owned()]),
        (true, false) if asked(request).contains("disable") => {
            Answer::Calls { id: "x1", tool: "extensionmanager__disable_service", arguments: json!({"name": "parrot"}) }
        }
        (true, false) if asked(request).contains("enable") => {
            Answer::Calls { id: "x2", tool: "extensionmanager__enable_service", arguments: json!({"name": "parrot"}) }
        }
        (true, false) => Answer::CallsMany(vec![
            ("d1", "summon__delegate", delegate("read a.txt", "backend")),
            ("d2", "summon__delegate", delegate("say hello", "pm")),
        ]),
        (false, false) if asked(request).contains("a.txt") => {
            Answer::Calls { id: "r1", tool: "developer__read_file", arguments: json!({"path": "a.txt"}) }
        }
        (false, _) => {
            Answer::Says(vec![request["messages"].as_array().unwrap().last().unwrap()["content"].to_string()])
        }
    });
    let mut client = with_model(&sandbox, &model, &json!({"fs": {"readTextFile": true}}));
    client.on("fs/read_text_file", |_| Some(json!({"result": {"content": "in the editor\n"}})));
    let questions: Rc<RefCell<Vec<String>>> = Rc::default();
    let heard = Rc::clone(&questions);
    client.on("session/request_permission", move |request| {
        heard.borrow_mut().push(request["toolCall"]["name"].as_str().unwrap_or_default().to_owned());
        Some(selected("allow_once"))
    });
    let parrot = json!([{"name": "parrot", "command": servers::mcp_echo(), "args": [], "env": []}]);
    let session = client.session_with(parrot);
    let tools_of = |client: &mut Acp, prompt: &str| {
        let before = model.requests().len();
        client.prompt(&session, prompt);
        let requests = model.requests()[before..].to_vec();
        let parrots =
            |role: &str| offered(of(&requests, role)).iter().filter(|tool| tool.starts_with("parrot__")).count();
        (parrots("senior backend engineer") > 0, parrots("product manager") > 0, told(&model))
    };
    let (backend, pm, said) = tools_of(&mut client, "@orchestrator have them look");
    assert!(backend && !pm, "only a mode that lists `mcp` has the editor's server");
    assert!(said.contains("in the editor"), "the child reads what the editor has: {said}");
    client.prompt(&session, "@orchestrator disable the parrot");
    let (backend, _, _) = tools_of(&mut client, "@orchestrator have them look again");
    assert!(!backend, "what is disabled is gone for the next child");
    client.prompt(&session, "@orchestrator enable the parrot");
    let (backend, pm, _) = tools_of(&mut client, "@orchestrator have them look once more");
    assert!(backend && !pm, "and comes back for those who may have it, and for nobody else");
    assert_eq!(*questions.borrow(), ["extensionmanager__disable_service", "extensionmanager__enable_service"]);
}

/// Whoever is handed work is offered exactly the tools that `skein tools` lists for that mode, in all of them.
#[test]
fn every_delegated_mode_has_exactly_its_own_tools() {
    let sandbox = Sandbox::new();
    let agents = sandbox.skein(&["agents", "show", "orchestrator", "--json"]).json();
    let modes: Vec<String> =
        agents["delegates"].as_array().unwrap().iter().map(|mode| mode.as_str().unwrap().to_owned()).collect();
    assert_eq!(modes.len(), 15, "{modes:?}");
    for mode in modes {
        let (agent, slug) = mode.split_once('/').unwrap();
        let task = json!({"task": format!("work as {mode}"), "agent": agent, "mode": slug});
        let model = handing_over(
            move || vec![("d1", "summon__delegate", task.clone())],
            |_| Answer::Says(vec!["Done.".to_owned()]),
        );
        let run =
            model.offered_to(sandbox.command(&["run", "-a", "orchestrator", "@orchestrator go"])).output().unwrap();
        assert!(run.status.success(), "{mode}: {}", String::from_utf8_lossy(&run.stderr));
        let requests = model.requests();
        let child = requests.iter().find(|request| asked(request).contains(&format!("work as {mode}"))).unwrap();
        let listed = sandbox.skein(&["tools", "-a", agent, "-m", slug, "--json"]).json();
        let mut listed: Vec<_> = listed["tools"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|tool| tool["absent"].is_null())
            .map(|tool| tool["name"].as_str().unwrap().to_owned())
            .collect();
        let mut offered = offered(child);
        listed.sort();
        offered.sort();
        assert_eq!(offered, listed, "{mode}");
    }
}

/// Only what the user typed chooses who works: not what comes through a pipe, nor a recipe, nor a service's prompt.
#[test]
fn words_of_others_do_not_choose_who_works() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "project/recipe.yaml",
        "version: 1.0.0\ntitle: t\ndescription: d\nprompt: '@coding/backend touch a file'\n",
    );
    let model = ScriptedModel::new(|_| Answer::Says(vec!["Done.".to_owned()]));
    let mut piped = model.offered_to(sandbox.command(&["run", "-a", "coding", "-m", "pm"]));
    let mut piped = piped.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    piped.stdin.take().unwrap().write_all(b"@coding/backend touch a file").unwrap();
    assert!(piped.wait().unwrap().success());
    let recipe = ["run", "-a", "coding", "-m", "pm", "--recipe", "recipe.yaml"];
    assert!(model.offered_to(sandbox.command(&recipe)).output().unwrap().status.success());
    let requests = model.requests();
    assert_eq!(requests.len(), 2);
    for request in &requests {
        assert!(
            system(request).contains("product manager") && !offered(request).iter().any(|tool| tool.contains("shell"))
        );
    }
}

/// A stricter level reaches everything that runs for the session, also what began before another mode was chosen.
#[test]
fn a_stricter_level_reaches_a_turn_that_began_before_a_switch() {
    let sandbox = Sandbox::new();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let model = ScriptedModel::new(move |request| match has_result(request) {
        false => {
            wait.lock().unwrap().recv().unwrap();
            shell("touch made")
        }
        true => Answer::Says(vec!["Done.".to_owned()]),
    });
    let command = model.offered_to(sandbox.command(&["acp", "-a", "coding", "-m", "backend", "--approval", "auto"]));
    let mut client = Acp::launch(&sandbox, command);
    client.introduce(&json!({}));
    let session = client.session();
    let prompt = client.begin(&session, "touch it");
    client.until("the model is asked", |_| model.requests().len() == 1);
    client.set_mode(&session, "coding/pm");
    client.ask("session/set_config_option", json!({"sessionId": session, "configId": "approval", "value": "deny"}));
    go.send(()).unwrap();
    assert_eq!(client.ended(&prompt), "end_turn");
    assert!(!sandbox.path("project/made").exists(), "what is denied now does not run");
}

/// What the user says to one of those who work for the session is said for all of them.
#[test]
fn what_is_refused_to_one_child_is_refused_to_the_next() {
    let sandbox = Sandbox::new();
    let model = handing_over(
        || vec![("d1", "summon__delegate", delegate("touch a file", "backend"))],
        |request| if has_result(request) { Answer::Says(vec!["No.".to_owned()]) } else { shell("touch made") },
    );
    let mut client = with_model(&sandbox, &model, &json!({}));
    let asked_for: Rc<RefCell<usize>> = Rc::default();
    let seen = Rc::clone(&asked_for);
    client.on("session/request_permission", move |_| {
        *seen.borrow_mut() += 1;
        Some(selected("reject_always"))
    });
    let session = client.session();
    client.prompt(&session, "@orchestrator go");
    client.prompt(&session, "@orchestrator again");
    assert_eq!(*asked_for.borrow(), 1);
}

/// A name means the task of the same answer, though an earlier answer had one of that name.
#[test]
fn a_name_means_the_task_of_the_same_answer() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| {
        let task = |name: &str, task: &str, after: &[&str]| json!({"task": task, "agent": "coding", "mode": "pm", "name": name, "after": after});
        let words = asked(request);
        match (is_orchestrator(request), has_result(request)) {
            (true, true) => Answer::Says(vec!["Joined.".to_owned()]),
            (true, false) if words.contains("first") => {
                Answer::CallsMany(vec![("d1", "summon__delegate", task("a", "find 41", &[]))])
            }
            (true, false) => Answer::CallsMany(vec![
                ("d2", "summon__delegate", task("b", "say it", &["a"])),
                ("d3", "summon__delegate", task("a", "find 42", &[])),
            ]),
            (false, _) => Answer::Says(vec![format!("Report: {words}")]),
        }
    });
    let mut client = with_model(&sandbox, &model, &json!({}));
    let session = client.session();
    client.prompt(&session, "@orchestrator the first time");
    let (_, updates) = client.prompt(&session, "@orchestrator once more");
    let said = model.requests().into_iter().find(|request| asked(request).contains("say it")).unwrap();
    assert!(asked(&said).contains("find 42") && !asked(&said).contains("find 41"), "{}", asked(&said));
    let plan = of_kind(&updates, "plan").pop().unwrap();
    assert_eq!(plan["entries"].as_array().unwrap().len(), 2, "tasks of earlier turns are not in it: {plan}");
}
