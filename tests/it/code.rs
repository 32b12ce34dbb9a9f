//! `code_execution` of a mode, over real ACP with a scripted model: what the model is offered, what its code reaches,
//! who is asked, what the client and the record see.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::support::Sandbox;
use crate::support::acp::{Acp, of_kind, selected};
use crate::support::model::{Answer, ScriptedModel};

const CODER: &str = "version: 1
kind: agent
name: coder
description: Works with code.
metadata: {dependencies: [developer]}
modes:
  - slug: on
    description: Everything from code.
    prompt: coder.md
    tool_groups: [read, edit, command]
    dependencies: [developer]
    code_execution: on
  - slug: reader
    description: Reads from code.
    prompt: coder.md
    tool_groups: [read]
    dependencies: [developer]
    code_execution: on
  - slug: small
    description: Few tools, so none of that.
    prompt: coder.md
    tool_groups: [read]
    dependencies: [developer]
    code_execution: auto
";

const THREE: [&str; 3] =
    ["code_execution__list_functions", "code_execution__get_function_details", "code_execution__execute"];

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("config/agents/coder.yaml", CODER);
    sandbox.write("config/agents/coder.md", "You write code.\n");
    sandbox
}

/// A model that wishes for these calls, one in each answer, and then says that it is done.
fn calling(calls: Vec<(&'static str, Value)>) -> ScriptedModel {
    const IDS: [&str; 8] = ["c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"];
    let left = Mutex::new(IDS.into_iter().zip(calls));
    ScriptedModel::new(move |_| match left.lock().unwrap().next() {
        Some((id, (tool, arguments))) => Answer::Calls { id, tool, arguments },
        None => Answer::Says(vec!["done".to_owned()]),
    })
}

fn executing(code: &str) -> ScriptedModel {
    calling(vec![("code_execution__execute", json!({"code": code}))])
}

fn client(sandbox: &Sandbox, model: &ScriptedModel, mode: &str) -> Acp {
    let mut client = Acp::launch(sandbox, model.offered_to(sandbox.command(&["acp", "-a", "coder", "-m", mode])));
    client.introduce(&json!({}));
    client
}

fn offered(request: &Value) -> Vec<String> {
    let tools = request["tools"].as_array().unwrap();
    tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap().to_owned()).collect()
}

/// What the model was told last about its call.
fn answered(model: &ScriptedModel) -> String {
    let requests = model.requests();
    let last = requests.last().unwrap()["messages"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["role"], "tool", "{last}");
    last["content"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn ten_calls_take_one_answer_of_the_model() {
    let sandbox = sandbox();
    for at in 0..10 {
        sandbox.write(&format!("project/{at}.txt"), &"word ".repeat(at));
    }
    let model = executing(
        "const names = Array.from({length: 10}, (_, at) => `${at}.txt`);
         const texts = await Promise.all(names.map(path => developer.read_file({path})));
         console.log('files', texts.length);
         return texts.map(text => (text.match(/word/g) ?? []).length)",
    );
    let mut client = client(&sandbox, &model, "on");
    let session = client.session();
    let (reason, updates) = client.prompt(&session, "count the words");
    assert_eq!(reason, "end_turn");
    assert_eq!(answered(&model), "Printed:\nfiles 10\n\nReturned:\n[0,1,2,3,4,5,6,7,8,9]");
    assert_eq!(model.requests().len(), 2, "one answer with the code, one with the words");
    assert_eq!(offered(&model.requests()[0]), THREE);
    let system = model.requests()[0]["messages"][0]["content"].to_string();
    assert!(system.contains("You write code.") && system.contains("<code-execution>"), "{system}");
    // Each call is shown as what it is, beside the code that made it.
    let calls = of_kind(&updates, "tool_call");
    assert_eq!(calls.len(), 11);
    assert_eq!((&calls[0]["title"], &calls[0]["kind"]), (&json!("Run code"), &json!("execute")));
    assert!(calls[0]["content"][0]["content"]["text"].as_str().unwrap().starts_with("```js\nconst names"));
    let first = calls.iter().find(|call| call["rawInput"] == json!({"path": "0.txt"})).unwrap();
    assert_eq!((&first["title"], &first["kind"]), (&json!("0.txt"), &json!("read")));
    assert_eq!(first["toolCallId"], "c1.1");
    let ends = of_kind(&updates, "tool_call_update");
    let ended = |id: &str| ends.iter().rfind(|update| update["toolCallId"] == id).unwrap().clone();
    assert!(calls.iter().all(|call| ended(call["toolCallId"].as_str().unwrap())["status"] == "completed"));
    let outer = ended("c1")["content"].to_string();
    assert!(outer.contains("const names") && outer.contains("[0,1,2,3,4,5,6,7,8,9]"), "{outer}");
    // Whoever loads the session sees the same calls again, and the model sees its own only.
    let mark = client.mark();
    let params = json!({"sessionId": session, "cwd": client.cwd(), "mcpServers": []});
    client.ask("session/load", params);
    assert_eq!(of_kind(&client.updates(mark, &session), "tool_call"), calls);
    client.prompt(&session, "and now?");
    let messages = model.requests().last().unwrap()["messages"].clone();
    let uses: Vec<_> = messages.as_array().unwrap().iter().filter(|message| !message["tool_calls"].is_null()).collect();
    assert_eq!(uses.len(), 1, "{messages:#}");
}

#[test]
fn a_model_can_find_out_what_there_is() {
    let sandbox = sandbox();
    let model = calling(vec![
        ("code_execution__list_functions", json!({})),
        ("code_execution__list_functions", json!({"query": "search FILE contents"})),
        ("code_execution__list_functions", json!({"query": "no such thing"})),
        ("code_execution__get_function_details", json!({"names": ["developer.read_file", "developer.reed_file"]})),
        ("code_execution__get_function_details", json!({"names": ["nothing.here"]})),
        ("code_execution__execute", json!({"program": "1"})),
    ]);
    let mut client = client(&sandbox, &model, "reader");
    let session = client.session();
    client.prompt(&session, "look around");
    let messages = model.requests().last().unwrap()["messages"].clone();
    let told: Vec<_> = messages.as_array().unwrap().iter().filter(|message| message["role"] == "tool").collect();
    let told: Vec<_> = told.iter().map(|message| message["content"].as_str().unwrap()).collect();
    assert!(told[0].starts_with("developer\n  developer.analyze: "), "{}", told[0]);
    assert!(told[0].contains("developer.read_file") && !told[0].contains("shell"), "{}", told[0]);
    assert!(told[1].contains("developer.search:") && !told[1].contains("read_file"), "{}", told[1]);
    assert!(told[2].starts_with("None of the "), "{}", told[2]);
    assert!(
        told[3].contains("developer.read_file(arguments: {\n") && told[3].contains("  path: string;\n"),
        "{}",
        told[3]
    );
    assert!(told[3].contains("no function `developer.reed_file` (did you mean `developer.read_file`?)"), "{}", told[3]);
    assert!(told[4].contains("There is no function `nothing.here`"), "{}", told[4]);
    assert!(told[5].contains("`code` is missing"), "{}", told[5]);
}

#[test]
fn each_call_asks_with_its_arguments_and_a_refusal_throws() {
    let sandbox = sandbox();
    let model = executing(
        "const said = [];
         for (const file of ['a', 'b', 'c']) {
           try { await developer.shell({command: `touch ${file}`}); said.push('done') }
           catch (error) { said.push(error.refused) }
         }
         return said",
    );
    let mut client = client(&sandbox, &model, "on");
    let asked: Rc<RefCell<Vec<Value>>> = Rc::default();
    let kept = Rc::clone(&asked);
    client.on("session/request_permission", move |params| {
        kept.borrow_mut().push(params["toolCall"].clone());
        let refuse = params["toolCall"]["rawInput"]["command"] == "touch b";
        Some(selected(if refuse { "reject_once" } else { "allow_once" }))
    });
    let session = client.session();
    client.prompt(&session, "make three files");
    let asked = asked.borrow();
    let titles: Vec<_> = asked.iter().map(|call| call["title"].as_str().unwrap()).collect();
    assert_eq!(titles, ["touch a", "touch b", "touch c"], "and nobody is asked about the code itself");
    let ids: Vec<_> = asked.iter().map(|call| call["toolCallId"].as_str().unwrap()).collect();
    assert_eq!(ids, ["c1.1", "c1.2", "c1.3"]);
    assert_eq!(answered(&model), r#"["done",true,"done"]"#);
    let made = ["a", "b", "c"].map(|file| sandbox.path("project").join(file).exists());
    assert_eq!(made, [true, false, true]);
}

#[test]
fn code_reaches_nothing_that_its_mode_does_not_have() {
    let sandbox = sandbox();
    let model = calling(vec![
        (
            "code_execution__execute",
            json!({"code": "return [typeof developer.shell, typeof memory, Object.keys(globalThis)]"}),
        ),
        ("developer__shell", json!({"command": "touch made"})),
        ("developer__list_dir", json!({"path": "."})),
        ("code_execution__execute", json!({"code": "return await developer.read_file({path: '/etc/hostname'})"})),
    ]);
    let mut client = client(&sandbox, &model, "reader");
    let session = client.session();
    client.prompt(&session, "try");
    let messages = model.requests().last().unwrap()["messages"].clone();
    let told: Vec<_> = messages.as_array().unwrap().iter().filter(|message| message["role"] == "tool").collect();
    let told: Vec<_> = told.iter().map(|message| message["content"].as_str().unwrap()).collect();
    assert_eq!(told[0], r#"["undefined","undefined",["console","developer"]]"#);
    assert!(told[1].contains("there is no tool `developer__shell`"), "{}", told[1]);
    assert!(!told[2].contains("there is no tool"), "a tool of the mode can still be called as such: {}", told[2]);
    assert!(told[3].contains("The code failed: developer.read_file: Error:"), "{}", told[3]);
    assert!(!sandbox.path("project/made").exists());
}

#[test]
fn nothing_runs_where_nothing_is_allowed() {
    let sandbox = sandbox();
    let model = executing("try { await developer.list_dir({path: '.'}) } catch (error) { return error.message }");
    let command = sandbox.command(&["run", "-a", "coder", "-m", "on", "--approval", "deny", "go"]);
    let output = model.offered_to(command).output().unwrap();
    assert!(answered(&model).contains("the session allows no tool calls"), "{}", answered(&model));
    // As after any call that was refused.
    assert_eq!(output.status.code(), Some(5), "{output:?}");
}

#[test]
fn a_turn_can_be_cancelled_in_the_middle_of_code() {
    let sandbox = sandbox();
    for (code, (id, status)) in [
        ("await developer.shell({command: 'touch begun'}); for (;;);", ("c1.1", "completed")),
        ("await developer.shell({command: 'sleep 64'})", ("c1.1", "in_progress")),
    ] {
        let model = executing(code);
        let mut client = client(&sandbox, &model, "on");
        client.on_permission("allow_once");
        let session = client.session();
        let mark = client.mark();
        let prompt = client.begin(&session, "go");
        client.wait(mark, "the call", |message| {
            let update = &message["params"]["update"];
            update["toolCallId"] == id && update["status"] == status
        });
        client.cancel(&session);
        assert_eq!(client.ended(&prompt), "cancelled");
        let updates = client.updates(mark, &session);
        let begun = of_kind(&updates, "tool_call").len();
        let is_end = |update: &&Value| ["completed", "failed"].iter().any(|status| update["status"] == *status);
        assert_eq!(of_kind(&updates, "tool_call_update").iter().filter(is_end).count(), begun, "every call ends");
        client.until("nothing runs", |client| client.running("sleep 64").is_empty());
        assert_eq!(client.prompt(&session, "and now?").0, "end_turn");
    }
}

#[test]
fn the_three_functions_describe_and_limit_their_parameters() {
    let sandbox = sandbox();
    let model = calling(Vec::new());
    let mut client = client(&sandbox, &model, "on");
    let session = client.session();
    client.prompt(&session, "hello");
    let request = model.requests().remove(0);
    let tools = request["tools"].as_array().unwrap();
    assert_eq!(tools.len(), THREE.len());
    for function in tools.iter().map(|tool| &tool["function"]) {
        assert!(function["description"].as_str().unwrap().len() > 40, "{function}");
        for (name, schema) in function["parameters"]["properties"].as_object().unwrap() {
            assert!(schema["description"].as_str().is_some_and(|text| text.len() > 15), "{name}: {schema}");
            let has_limit = ["maxLength", "minLength", "minItems"].iter().any(|limit| schema.get(*limit).is_some());
            assert!(has_limit, "{name}: {schema}");
        }
    }
}

/// `auto` is for modes whose tools take much room, and the embedded default writes no code.
#[test]
fn where_it_does_not_pay_the_tools_stay() {
    let sandbox = sandbox();
    let model = calling(Vec::new());
    let mut with_model = client(&sandbox, &model, "small");
    let session = with_model.session();
    with_model.prompt(&session, "hello");
    assert!(offered(&model.requests()[0]).contains(&"developer__read_file".to_owned()));
    sandbox.write("project/a.txt", "the letter a\n");
    let offline = sandbox.skein(&["run", "-a", "coder", "-m", "on", "read a.txt"]);
    assert!(offline.stdout.contains("the letter a"), "{offline:?}");
    let tools = |mode: &str| {
        let shown = sandbox.skein(&["tools", "-a", "coder", "-m", mode, "--json"]);
        serde_json::from_str::<Value>(&shown.stdout).unwrap()["code_execution"].clone()
    };
    assert_eq!(tools("small"), json!({"setting": "auto", "active": false, "functions": null, "bytes": null}));
    assert_eq!((&tools("on")["active"], &tools("on")["functions"]), (&json!(true), &json!(THREE)));
    let shown = sandbox.skein(&["tools", "-a", "coder", "-m", "on"]).stdout;
    assert!(shown.contains("a model calls them from code: 3 functions, "), "{shown}");
}
