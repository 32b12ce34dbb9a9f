//! Apps as people get them: made and changed by a model over ACP and `skein run`, and served to MCP clients.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::client::Client;
use crate::support::acp::{Acp, of_kind, selected, spoken};
use crate::support::model::{Answer, ScriptedModel};
use crate::support::{Sandbox, read, repository};

const TOOLS: [&str; 7] = [
    "apps__create_app",
    "apps__delete_app",
    "apps__list_apps",
    "apps__open_app",
    "apps__read_app",
    "apps__restore_app",
    "apps__update_app",
];

fn timer() -> String {
    read(repository("tests/fixtures/apps/timer.html"))
}

/// A model that makes these calls one after the other, each when it has the answer to the one before, and then
/// says that it is done.
fn model(calls: Vec<(&'static str, Value)>) -> ScriptedModel {
    ScriptedModel::new(move |request| {
        let messages = request["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
        let answered = messages.iter().filter(|message| message["role"] == "tool").count();
        match calls.get(answered) {
            Some((tool, arguments)) => {
                // An id for each, of which a wish needs one that lasts.
                const IDS: [&str; 8] = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"];
                Answer::Calls { id: IDS[answered], tool, arguments: arguments.clone() }
            }
            None => Answer::Says(vec!["It is done.".to_owned()]),
        }
    })
}

/// A session in a mode, whoever is asked says this; the questions that were asked.
fn session(
    sandbox: &Sandbox,
    model: &ScriptedModel,
    mode: &str,
    says: &'static str,
) -> (Acp, String, Rc<RefCell<Vec<Value>>>) {
    let mut client = Acp::launch(sandbox, model.offered_to(sandbox.command(&["acp", "-a", "goose"])));
    client.introduce(&json!({}));
    let asked: Rc<RefCell<Vec<Value>>> = Rc::default();
    let kept = Rc::clone(&asked);
    client.on("session/request_permission", move |params| {
        kept.borrow_mut().push(params["toolCall"]["title"].clone());
        Some(selected(says))
    });
    let session = client.session();
    client.set_mode(&session, mode);
    (client, session, asked)
}

/// The model was never shown anything but the tools of the service apps.
fn only_apps(model: &ScriptedModel) {
    let requests = model.requests();
    assert!(!requests.is_empty());
    for request in requests {
        let tools = request["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut names: Vec<_> = tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, TOOLS);
    }
}

/// What the calls of a turn came to.
fn outcomes(updates: &[Value]) -> Vec<String> {
    let ended = of_kind(updates, "tool_call_update");
    let ended = ended.iter().filter(|update| ["completed", "failed"].iter().any(|end| update["status"] == *end));
    ended.map(|update| update["status"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn app_maker_makes_an_app_with_only_the_app_tools() {
    let sandbox = Sandbox::new();
    let remote = timer().replace("<script>", "<script src=\"https://cdn.example.com/timer.js\"></script><script>");
    let model = model(vec![
        ("apps__list_apps", json!({})),
        ("apps__create_app", json!({"name": "timer", "prd": "Counts down.", "html": remote})),
        ("apps__create_app", json!({"name": "timer", "prd": "Counts down.", "html": timer(), "width": 360})),
        ("apps__open_app", json!({"name": "timer"})),
    ]);
    let (mut client, session, asked) = session(&sandbox, &model, "goose/app_maker", "allow_once");
    let (reason, updates) = client.prompt(&session, "make me a countdown timer");
    assert_eq!((reason.as_str(), spoken(&updates).as_str()), ("end_turn", "It is done."));
    assert_eq!(outcomes(&updates), ["completed", "failed", "completed", "completed"], "{updates:#?}");
    assert_eq!(*asked.borrow(), [json!("Create app: timer"), json!("Create app: timer")], "looking asks nobody");
    only_apps(&model);
    let told = model.requests().last().unwrap()["messages"].to_string();
    assert!(told.contains("`<script src>` is not allowed"), "the model was told what to correct: {told}");
    let file = read(sandbox.path("data/apps/timer.html"));
    assert!(file.contains("<title>Timer</title>") && file.contains("Counts down."), "{file}");
    let shown = updates.iter().map(Value::to_string).collect::<String>();
    assert!(shown.contains("ui://apps/timer") && shown.contains("apps/timer.html"), "the client gets both ways to it");
}

#[test]
fn an_app_iterator_changes_an_app_and_takes_a_change_back() {
    let sandbox = Sandbox::new();
    let (mut maker, _) = Client::connect(sandbox.command(&["mcp", "--service", "apps"]));
    maker.call("create_app", json!({"name": "timer", "prd": "Counts down.", "html": timer()}));
    let update = |before: &str, after: &str| json!({"name": "timer", "note": "Tea is the timer", "edits": [{"before": before, "after": after, "all": true}]});
    let model = model(vec![
        ("apps__read_app", json!({"name": "timer"})),
        ("apps__update_app", update(">Timers<", ">Tea<")),
        ("apps__update_app", update(">Timer<", ">Tea<")),
        ("apps__restore_app", json!({"name": "timer", "version": 1})),
        ("apps__delete_app", json!({"name": "timer"})),
        ("developer__shell", json!({"command": "rm -rf ."})),
    ]);
    let (mut client, session, asked) = session(&sandbox, &model, "goose/app_iterator", "allow_once");
    let (reason, updates) = client.prompt(&session, "call it Tea; no, leave it; no, away with it");
    assert_eq!(reason, "end_turn");
    assert_eq!(outcomes(&updates), ["completed", "failed", "completed", "completed", "completed", "failed"]);
    let expected = ["Update app: timer", "Update app: timer", "Restore app: timer", "Delete app: timer"];
    assert_eq!(*asked.borrow(), expected.map(|title| json!(title)));
    only_apps(&model);
    let told = model.requests().last().unwrap()["messages"].to_string();
    assert!(told.contains("`before` was not found") && told.contains("there is no tool `developer__shell`"), "{told}");
    let listed = maker.call("list_apps", json!({}));
    assert_eq!(listed["content"][0]["text"], "timer (deleted, last version 3)");
    let page = |version: u32, client: &mut Client| {
        let read = client.call("read_app", json!({"name": "timer", "version": version}));
        read["content"][1]["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(page(3, &mut maker), timer());
    assert!(page(2, &mut maker).contains("<title>Tea</title>"));
}

#[test]
fn what_the_user_refuses_is_not_made() {
    let sandbox = Sandbox::new();
    let model = model(vec![("apps__create_app", json!({"name": "timer", "prd": "Counts.", "html": timer()}))]);
    let (mut client, session, asked) = session(&sandbox, &model, "goose/app_maker", "reject_once");
    let (_, updates) = client.prompt(&session, "make me a timer");
    assert_eq!((outcomes(&updates), asked.borrow().len()), (vec!["failed".to_owned()], 1));
    assert!(!sandbox.path("data/apps/timer.html").exists());
}

#[test]
fn skein_run_makes_an_app_where_it_is_allowed_to() {
    let sandbox = Sandbox::new();
    let script = || {
        model(vec![
            ("apps__create_app", json!({"name": "timer", "prd": "Counts.", "html": timer()})),
            ("apps__open_app", json!({"name": "timer"})),
        ])
    };
    let args = ["run", "-a", "goose", "-m", "app_maker", "--approval", "auto", "make me a timer"];
    let (allowed, unheard) = (script(), script());
    let output = allowed.offered_to(sandbox.command(&args)).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "It is done.");
    assert!(sandbox.path("data/apps/timer.html").exists());
    only_apps(&allowed);
    let sandbox = Sandbox::new();
    let args = ["run", "-a", "goose", "-m", "app_maker", "make me a timer"];
    let output = unheard.offered_to(sandbox.command(&args)).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("this call needs consent and no user can be asked"), "{told}");
    assert!(!sandbox.path("data/apps/timer.html").exists());
}

#[test]
fn a_client_reads_apps_as_resources_also_those_made_since() {
    let sandbox = Sandbox::new();
    let connect = |args: &[&str]| Client::connect(sandbox.command(&[&["mcp"], args].concat()));
    let uris = |client: &mut Client| {
        let resources = client.result("resources/list", json!({}))["resources"].clone();
        resources.as_array().unwrap().iter().map(|resource| resource["uri"].clone()).collect::<Vec<_>>()
    };
    let (mut maker, greeting) = connect(&["-a", "goose", "-m", "app_maker"]);
    assert!(greeting["capabilities"]["resources"].is_object(), "{greeting}");
    assert_eq!(uris(&mut maker), [json!("ui://apps/_view")]);
    let templates = maker.result("resources/templates/list", json!({}));
    assert_eq!(templates["resourceTemplates"][0]["uriTemplate"], "ui://apps/{name}");
    let made = maker.call("apps__create_app", json!({"name": "timer", "prd": "Counts.", "html": timer()}));
    assert_eq!(made["_meta"]["ui"]["resourceUri"], "ui://apps/timer");
    assert_eq!(made["content"][1]["type"], "resource_link");
    let read = maker.result("resources/read", json!({"uri": "ui://apps/timer"}));
    assert_eq!(read["contents"][0]["mimeType"], "text/html;profile=mcp-app");

    let (mut alone, _) = connect(&["--service", "apps"]);
    assert_eq!(uris(&mut alone), [json!("ui://apps/_view"), json!("ui://apps/timer")]);
    let (mut other, greeting) = connect(&["-a", "coding", "-m", "security"]);
    assert!(greeting["capabilities"]["resources"].is_object(), "memory has one");
    assert!(!uris(&mut other).contains(&json!("ui://apps/timer")));
    let refused = other.request("resources/read", json!({"uri": "ui://apps/timer"}));
    assert!(
        refused["error"]["message"].as_str().unwrap().contains("there is no resource `ui://apps/timer`"),
        "{refused}"
    );
}

/// What a client sees, past the schema: words to act on, and never the page that it sent.
#[test]
fn what_is_refused_is_said_in_few_words() {
    let sandbox = Sandbox::new();
    let (mut client, _) = Client::connect(sandbox.command(&["mcp", "--service", "apps"]));
    let app = |key: &str, value: Value| {
        let mut app = json!({"name": "timer", "prd": "Counts.", "html": timer()});
        app[key] = value;
        app
    };
    let long = "x".repeat(300_000);
    for (arguments, expected) in [
        (app("name", json!("My Timer")), "like `my-timer`"),
        (app("name", json!(long)), "at most 60 characters"),
        (app("html", json!(long)), "the page has 300000 bytes"),
        (app("prd", json!(long)), "/prd: value is longer than 20000 characters"),
        (app("width", json!(5)), "/width: 5 is less than the minimum of 100"),
        (app("network", json!(vec!["https://a.example"; 9])), "has more than 8 items"),
        (app("network", json!({"a": long})), "/network: value is not of type"),
    ] {
        let refused = client.request("tools/call", json!({"name": "create_app", "arguments": arguments})).to_string();
        assert!(refused.contains(expected), "{expected}: {}", refused.chars().take(1_000).collect::<String>());
        assert!(refused.len() < 1_000, "{expected}: {} bytes", refused.len());
    }
}

/// The processes share a folder; each change is a version of its own, and none is lost.
#[test]
fn two_processes_change_an_app_without_losing_a_version() {
    let sandbox = Sandbox::new();
    let (mut maker, _) = Client::connect(sandbox.command(&["mcp", "--service", "apps"]));
    maker.call("create_app", json!({"name": "timer", "prd": "0", "html": timer()}));
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let command = sandbox.command(&["mcp", "--service", "apps"]);
            scope.spawn(move || {
                let (mut client, _) = Client::connect(command);
                for number in 0..5 {
                    let change = json!({"name": "timer", "note": format!("{writer}.{number}"), "prd": format!("{writer}.{number}")});
                    let changed = client.call("update_app", change);
                    assert_eq!(changed["isError"], json!(false), "{changed}");
                }
            });
        }
    });
    let read = maker.call("read_app", json!({"name": "timer"}));
    let versions = read["structuredContent"]["versions"].as_array().unwrap();
    let numbers: Vec<_> = versions.iter().map(|version| version["version"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=16).collect::<Vec<_>>());
    for version in versions.iter().skip(1) {
        let earlier = maker.call("read_app", json!({"name": "timer", "version": version["version"]}));
        let said = earlier["content"][0]["text"].as_str().unwrap();
        assert!(said.contains(&format!("\n> {}\n", version["note"].as_str().unwrap())), "its own description: {said}");
    }
}

/// A machine with the app `timer` in two versions, and the deleted app `gone`.
fn machine_with_apps() -> Sandbox {
    let sandbox = Sandbox::new();
    let (mut maker, _) = Client::connect(sandbox.command(&["mcp", "--service", "apps"]));
    for name in ["timer", "gone"] {
        maker.call("create_app", json!({"name": name, "prd": "Counts down.", "html": timer()}));
    }
    maker.call("update_app", json!({"name": "timer", "note": "Wider", "width": 400}));
    maker.call("delete_app", json!({"name": "gone"}));
    maker.hang_up();
    assert!(maker.ended().success());
    sandbox
}

#[test]
fn the_command_line_lists_apps() {
    let empty = Sandbox::new().skein(&["apps", "list"]);
    assert_eq!((empty.code, empty.stdout.as_str()), (0, ""));
    assert!(empty.stderr.contains("there are no apps; `skein run -a goose/app_maker PROMPT` makes one"));

    let sandbox = machine_with_apps();
    sandbox.write("data/apps/broken.html", "<p>no app</p>");
    let listed = sandbox.skein(&["apps", "list"]);
    assert_eq!(listed.code, 0, "{}", listed.whole());
    let lines: Vec<_> = listed.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].starts_with("timer  Timer, version 2 of 20") && lines[0].ends_with(": Wider"), "{}", lines[0]);
    assert_eq!(lines[1..], ["gone  deleted; the last version is 1", "broken  cannot be read: it holds no app"]);

    let listed = sandbox.skein(&["apps", "list", "--json"]).json();
    assert_eq!((&listed["apps"][0]["name"], &listed["apps"][0]["version"]), (&json!("timer"), &json!(2)));
    assert_eq!(listed["apps"][0]["network"], json!([]));
    assert_eq!(listed["deleted"], json!([{"name": "gone", "version": 1}]));
    assert_eq!(listed["unreadable"][0]["reason"], "it holds no app");
}

#[test]
fn an_exported_app_is_the_whole_app() {
    let sandbox = machine_with_apps();
    let exported = sandbox.skein(&["apps", "export", "timer", "out/timer.html"]);
    assert_eq!(exported.code, 0, "{}", exported.whole());
    let stored = read(sandbox.path("data/apps/timer.html"));
    assert_eq!(read(sandbox.path("project/out/timer.html")), stored);

    sandbox.write("project/mine.html", "my own page");
    let refused = sandbox.skein(&["apps", "export", "timer", "mine.html"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("mine.html exists already") && refused.stderr.contains("--force"));
    assert_eq!(read(sandbox.path("project/mine.html")), "my own page");
    let forced = sandbox.skein(&["apps", "export", "timer", "mine.html", "--force", "--json"]).json();
    assert_eq!((&forced["name"], &forced["version"]), (&json!("timer"), &json!(2)));
    assert_eq!(read(sandbox.path("project/mine.html")), stored);

    for (name, file, problem, help) in [
        ("timr", "a.html", "there is no app `timr`", "did you mean `timer`?"),
        ("../timer", "a.html", "there is no app `../timer`", "`skein apps list` shows all"),
        ("gone", "a.html", "the app `gone` was deleted; version 1 is its last", "restore version 1"),
        ("timer", "out", "out is a folder", "name a file in it"),
    ] {
        let refused = sandbox.skein(&["apps", "export", name, file, "--force"]);
        assert_eq!(refused.code, 2, "{}", refused.whole());
        assert!(refused.stderr.contains(problem) && refused.stderr.contains(help), "{}", refused.stderr);
    }
    assert!(!sandbox.path("project/a.html").exists());
}

#[test]
fn an_app_is_opened_in_the_users_browser() {
    let sandbox = machine_with_apps();
    let file = sandbox.path("data/apps/timer.html").display().to_string();
    let shown = sandbox.skein(&["apps", "open", "timer"]);
    assert_eq!((shown.code, shown.stdout.as_str()), (0, "[TMP]/data/apps/timer.html\n"));
    assert!(shown.stderr.contains("there is no display and BROWSER is not set"), "{}", shown.stderr);
    assert!(shown.stderr.contains("`skein apps export timer FILE`"), "{}", shown.stderr);

    let open = |script: &str| {
        sandbox.write("browser.sh", script);
        let mut command = sandbox.command(&["apps", "open", "timer"]);
        let browser = format!("nowhere-to-be-found:sh {} %s", sandbox.path("browser.sh").display());
        let output = command.env("BROWSER", browser).env("SECRET_KEY", "s3cret").output().expect("the program starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let opened = sandbox.path("opened");
    let script = format!("printf '%s %s' \"$1\" \"$SECRET_KEY\" > '{}'\n", opened.display());
    let (code, said) = open(&script);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("opened with sh"), "{said}");
    assert_eq!(read(&opened), format!("{file} "), "the browser gets the file and no secret");
    let (code, said) = open("exit 3\n");
    assert_eq!(code, Some(1));
    assert!(said.contains("`sh` could not open the file (exit status: 3)") && said.contains(&file), "{said}");
}
