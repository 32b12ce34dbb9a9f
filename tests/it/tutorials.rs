//! Every tutorial, performed: its files are written and its commands run exactly as they stand there, and the check of
//! each step fails before the step and passes after it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Value, json};
use skein::broker::BindRequest;
use skein::manifest::ApprovalLevel;
use skein::services::builtin::tutorial::{Lesson, LessonStep, lessons};
use skein::tool::ask::NoAsker;

use crate::cli::code_blocks;
use crate::client::Client;
use crate::support::acp::{Acp, spoken};
use crate::support::{Sandbox, Wired, agent, files_below, full_tests, mode, read, repository};

/// A command as a user types it, in the folder of a sandbox, with the built program on the `PATH`.
#[expect(clippy::disallowed_methods, reason = "a user's shell is started from outside")]
fn typed(sandbox: &Sandbox, command: &str) -> Output {
    let skein = std::path::Path::new(env!("CARGO_BIN_EXE_skein")).parent().expect("its folder").to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([skein].into_iter().chain(std::env::split_paths(&path))).expect("a PATH");
    // Where cargo has its crates: the home of a sandbox is empty.
    let real = std::env::var_os("HOME").map(std::path::PathBuf::from).unwrap_or_default();
    let tool = |name: &str, folder: &str| std::env::var_os(name).unwrap_or_else(|| real.join(folder).into());
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .current_dir(sandbox.path("project"))
        .env_clear()
        .env("PATH", path)
        .env("HOME", sandbox.path("home"))
        .env("SKEIN_CONFIG_DIR", sandbox.path("config"))
        .env("SKEIN_DATA_DIR", sandbox.path("data"))
        .env("SKEIN_CLONE", repository(""))
        .env("CARGO_HOME", tool("CARGO_HOME", ".cargo"))
        .env("RUSTUP_HOME", tool("RUSTUP_HOME", ".rustup"))
        .env("CARGO_NET_OFFLINE", "true")
        .stdin(std::process::Stdio::null());
    shell.output().expect("a shell")
}

/// Everything that a command said.
fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What is wrong after a step, if something is.
fn checked(sandbox: &Sandbox, step: &LessonStep) -> Result<(), String> {
    let (command, expected) = step.check.as_ref().expect("a step has a check");
    let output = typed(sandbox, command);
    let said = said(&output);
    let missing: Vec<_> = expected.iter().filter(|line| !said.contains(line.as_str())).collect();
    if output.status.success() && missing.is_empty() {
        return Ok(());
    }
    Err(format!("{command}\nexits with {:?} and does not say {missing:?}:\n{said}", output.status.code()))
}

fn perform(lesson: &Lesson) -> Sandbox {
    let sandbox = Sandbox::new();
    for (at, step) in lesson.steps.iter().enumerate() {
        let place = format!("{}, step {}: {}", lesson.name, at + 1, step.title);
        assert!(checked(&sandbox, step).is_err(), "{place}: the check passes although nothing was done");
        for (path, text) in &step.files {
            sandbox.write(&format!("project/{path}"), text);
        }
        for command in &step.commands {
            let output = typed(&sandbox, command);
            assert!(output.status.success(), "{place}: {command}\n{}", said(&output));
        }
        checked(&sandbox, step).unwrap_or_else(|problem| panic!("{place}: {problem}"));
    }
    sandbox
}

fn lesson(name: &str) -> Lesson {
    lessons().into_iter().find(|lesson| lesson.name == name).expect("a tutorial of that name")
}

#[test]
fn the_first_manifest_works_as_written() {
    perform(&lesson("first-manifest"));
}

#[test]
fn the_first_service_works_as_written() {
    if !full_tests() {
        return;
    }
    perform(&lesson("first-service"));
}

#[test]
fn the_way_from_goose_works_as_written() {
    let sandbox = perform(&lesson("from-goose"));
    // A lesson leaves nothing in the user's own configuration.
    for left in ["config/config.yaml", "config/services"] {
        assert!(!sandbox.path(left).exists(), "{left}");
    }
}

#[test]
fn the_settings_of_editors_work_as_written() {
    perform(&lesson("editors"));
}

#[test]
fn every_page_is_a_tutorial() {
    let pages = files_below(&repository("docs/tutorials"));
    let pages: BTreeSet<_> = pages.iter().map(|page| page.file_stem().expect("a name").to_string_lossy()).collect();
    assert_eq!(pages, lessons().iter().map(|lesson| lesson.name.as_str().into()).collect());
}

/// What `first-service` shows are the examples, and what `editors` shows stands in the page on editors.
#[test]
fn what_a_tutorial_shows_is_what_there_is() {
    let shown: Vec<_> = lesson("first-service").steps.into_iter().flat_map(|step| step.files).collect();
    for (path, example) in [
        ("server.py", "examples/words_python/server.py"),
        (".skein/services/words.yaml", "examples/words_python/words.yaml"),
        ("main.rs", "examples/words_builtin/main.rs"),
        ("words.yaml", "examples/words_builtin/words.yaml"),
    ] {
        let (_, text) = shown.iter().find(|(known, _)| known == path).unwrap_or_else(|| panic!("{path} is shown"));
        assert_eq!(*text, read(repository(example)), "{example}");
    }
    let settings = lesson("editors").steps.into_iter().flat_map(|step| step.files);
    let (_, settings) = settings.into_iter().find(|(path, _)| path == "settings.json").expect("settings");
    let page = code_blocks(&read(repository("docs/editors.md")));
    assert!(page.iter().any(|(info, block)| info == "json" && *block == settings), "docs/editors.md has the same");
}

#[test]
fn they_can_be_served_alone() {
    let sandbox = Sandbox::new();
    let (mut client, _) = Client::connect(sandbox.command(&["mcp", "--service", "tutorial"]));
    let listed = client.result("tools/call", json!({"name": "list_tutorials", "arguments": {}}));
    assert_eq!(listed["structuredContent"]["tutorials"].as_array().expect("a list").len(), lessons().len());
    let asked = json!({"name": "load_tutorial", "arguments": {"name": "editors", "step": 2}});
    let step = client.result("tools/call", asked);
    assert_eq!(step["structuredContent"]["check"]["command"], "skein acp < hello.json");
    client.hang_up();
    assert!(client.ended().success());
}

/// As docs/knowledge.md says: without a manifest, in a mode that is built in.
#[test]
fn a_built_in_mode_can_teach_what_was_imported() {
    let sandbox = Sandbox::new();
    let page = code_blocks(&read(repository("docs/knowledge.md")));
    let (_, servers) = page.iter().find(|(info, _)| info == "json").expect("the servers");
    sandbox.write("project/lessons.json", servers);
    let asked = "skein run --model offline -a goose -m assistant --approval auto '/lessons.list_tutorials'";
    let output = typed(&sandbox, &format!("skein import lessons.json && {asked}"));
    assert!(output.status.success() && said(&output).contains("first-manifest"), "{}", said(&output));
}

/// They only read, so the group `read` brings them to a mode that depends on the service, and nobody is asked.
#[tokio::test]
async fn a_mode_that_asks_for_them_can_teach() {
    let teacher = mode("teacher", json!(["read"]), json!(["tutorial"]));
    let other = mode("other", json!(["read"]), json!(["developer"]));
    let wired = Wired::with_manifests(&[agent(&[teacher, other])]);
    let terms = BindRequest {
        session: wired.session("session"),
        approval: Some(ApprovalLevel::ReadOnly),
        asker: Arc::new(NoAsker),
        client_services: Vec::new(),
    };
    let binding = wired.bind_terms("teacher", terms).await.expect("bound");
    assert_eq!(binding.tools().keys().collect::<Vec<_>>(), ["tutorial__list_tutorials", "tutorial__load_tutorial"]);
    let text = wired.said(&binding, "tutorial__load_tutorial", json!({"name": "first-service", "step": 1})).await;
    assert!(text.starts_with("first-service, step 1 of 4: Write a server\n"), "{text}");
    let binding = wired.bind("other").await.expect("bound");
    assert!(binding.tools().keys().all(|name| !name.starts_with("tutorial")));
    drop(binding);
    wired.stop().await;
}

#[test]
fn the_command_lists_lessons_and_shows_a_step() {
    let sandbox = Sandbox::new();
    let listed = sandbox.skein(&["tutorial", "--json"]).json();
    let names: Vec<_> = listed.as_array().expect("a list").iter().map(|of| of["name"].as_str()).collect();
    assert_eq!(names, lessons().iter().map(|lesson| Some(lesson.name.as_str())).collect::<Vec<_>>());
    assert_eq!(listed[3]["steps"], json!(["Find the program", "Send the first message", "Write the settings"]));
    assert!(sandbox.skein(&["tutorial"]).stdout.contains("first-manifest  Write a first manifest (4 steps)"));
    // Without a terminal, a step is printed with the commands that check it and continue.
    let shown = sandbox.skein(&["tutorial", "editors", "--step", "2"]).stdout;
    for part in [
        "## Step 2 of 3: Send the first message\n",
        "Write the file `hello.json`:\n\n```json\n",
        "Check it with `skein tutorial editors --step 2 --check`.\n",
        "Continue with `skein tutorial editors --step 3`.\n",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    for (args, told) in [
        (&["tutorial", "editor"][..], "did you mean `editors`?"),
        (&["tutorial", "editors", "--step", "4"], "`editors` has the steps 1 to 3; there is no step 4"),
    ] {
        let refused = sandbox.skein(args);
        assert!(refused.code == 2 && refused.stderr.contains(told), "{}: {}", refused.code, refused.stderr);
    }
}

#[test]
fn the_command_checks_what_was_done() {
    let (sandbox, lesson) = (Sandbox::new(), lesson("first-manifest"));
    let check = |more: &[&str]| sandbox.skein(&[&["tutorial", "first-manifest", "--check"], more].concat());
    let before = check(&["--step", "1"]);
    assert_eq!(before.code, 1, "{}", before.stderr);
    assert!(before.stdout.starts_with("step 1, Create an agent: not done\n"), "{}", before.stdout);
    assert!(before.stdout.contains("    notes/reader (default)\n"), "what is missing: {}", before.stdout);
    assert!(before.stderr.contains("`skein tutorial first-manifest --step 1` shows what to do"), "{}", before.stderr);
    for command in &lesson.steps[0].commands {
        assert!(typed(&sandbox, command).status.success(), "{command}");
    }
    let after = check(&["--step", "1"]);
    assert_eq!((after.code, after.stdout.as_str()), (0, "step 1, Create an agent: done\n"), "{}", after.stderr);
    let all = check(&[]);
    assert_eq!(all.code, 1);
    assert!(
        all.stdout.contains("step 1, Create an agent: done\nstep 2, Send it a prompt: not done\n"),
        "{}",
        all.stdout
    );
    assert!(all.stderr.contains("3 steps of `first-manifest` are not done"), "{}", all.stderr);
}

/// A client that accepts each question, and what it was asked.
fn agreeable(sandbox: &Sandbox, args: &[&str]) -> (Acp, Rc<RefCell<Vec<Value>>>) {
    let mut client = Acp::able(sandbox, args, &json!({"elicitation": {"form": {}}}));
    let asked: Rc<RefCell<Vec<Value>>> = Rc::default();
    let heard = Rc::clone(&asked);
    client.on("elicitation/create", move |params| {
        heard.borrow_mut().push(params.clone());
        Some(json!({"result": {"action": "accept", "content": {}}}))
    });
    (client, asked)
}

#[test]
fn the_slash_command_teaches_and_checks_with_consent() {
    let sandbox = Sandbox::new();
    let (mut client, asked) = agreeable(&sandbox, &[]);
    let session = client.session();
    let mut answer = |typed: &str| spoken(&client.prompt(&session, typed).1);
    assert!(answer("/tutorial").contains("`/tutorial first-manifest` (4 steps)"));
    let first = answer("/tutorial editors");
    assert!(first.contains("Step 1 of 3: Find the program"), "{first}");
    assert!(first.contains("`/tutorial editors 2` checks it and continues"), "{first}");
    assert!(asked.borrow().is_empty(), "the first step has nothing to check");

    let second = answer("/tutorial editors 2");
    assert!(second.contains("Step 1, \"Find the program\", is not done yet."), "{second}");
    assert!(second.contains("Step 2 of 3: Send the first message"), "it goes on all the same: {second}");
    let question = asked.borrow()[0]["message"].to_string();
    assert!(question.contains("skein-path.txt") && question.contains("--version"), "{question}");
    assert!(typed(&sandbox, "command -v skein > skein-path.txt").status.success());
    let second = answer("/tutorial editors 2");
    assert!(second.contains("Step 1, \"Find the program\", is done. The check passes."), "{second}");
    assert!(answer("/tutorial editors done").contains("This was the last step."));
    let questions = asked.borrow().len();
    for (command, told) in
        [("/tutorial editor", "did you mean `editors`?"), ("/tutorial editors 9", "there is no step 9")]
    {
        let refused = client.begin(&session, command);
        let error = client.answer(&refused)["error"].clone();
        assert_eq!(error["code"], -32602, "{error}");
        assert!(error["message"].as_str().is_some_and(|message| message.contains(told)), "{error}");
    }
    assert_eq!(asked.borrow().len(), questions, "what is wrong runs nothing");
}

#[test]
fn the_approval_level_holds_for_checks() {
    for (level, told) in
        [("read-only", "At the approval level `read-only`, Skein does not run checks."), ("auto", "is not done yet.")]
    {
        let sandbox = Sandbox::new();
        let (mut client, asked) = agreeable(&sandbox, &["--approval", level]);
        let session = client.session();
        let answer = spoken(&client.prompt(&session, "/tutorial editors 2").1);
        assert!(answer.contains(told), "{level}: {answer}");
        assert!(asked.borrow().is_empty(), "{level}");
    }
}

/// The promise to those who write their own.
#[test]
fn a_built_in_service_takes_less_than_sixty_lines() {
    let lines = read(repository("examples/words_builtin/main.rs")).lines().count();
    assert!(lines < 60, "{lines}");
}
