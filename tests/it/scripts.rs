//! `run_script` through the program: the rules, the approval and the sandbox of `shell` hold for it.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::support::acp::{Acp, selected};
use crate::support::{Run, Sandbox, full_tests};

/// Runs one call of the tool in a mode of `coding`.
fn run_script(sandbox: &Sandbox, mode: &str, flags: &[&str], arguments: &Value) -> Run {
    let prompt = format!("/computercontroller.run_script {arguments}");
    sandbox.skein(&[&["run", "-a", "coding", "-m", mode], flags, &[&prompt]].concat())
}

fn touch(script: &str) -> Value {
    json!({"language": "shell", "script": script})
}

#[test]
fn rules_for_command_lines_hold_for_scripts() {
    let python = json!({"language": "python", "script": "import os\nos.system(\"rm made\")"});
    for (flags, arguments, runs) in [
        (&["--approval", "auto"][..], touch("touch made"), true),
        // Without an answer, a question is a refusal.
        (&["--approval", "ask"], touch("touch made"), false),
        (&["--approval", "read-only"], touch("touch made"), false),
        (&["--approval", "auto", "--deny", "developer__shell"], touch("touch made"), false),
        (&["--approval", "auto", "--deny", "developer__shell: {command: \"touch *\"}"], touch("touch made"), false),
        (
            &["--approval", "auto", "--deny", "developer__shell: {command: \"touch *\"}"],
            touch("cd . &&\n  touch made"),
            false,
        ),
        (&["--approval", "auto", "--deny", "developer__shell: {command: \"rm *\"}"], python.clone(), false),
        (&["--approval", "auto", "--deny", "computercontroller__run_script: {script: \"x *\"}"], python, false),
        (&["--approval", "ask", "--allow", "developer__shell: {command: \"touch *\"}"], touch("touch made"), true),
        (
            &["--approval", "ask", "--allow", "computercontroller__run_script: {script: \"touch *\"}"],
            touch("touch made"),
            true,
        ),
        (&["--approval", "ask", "--allow", "developer__shell: {command: \"touch *\"}"], touch("touch made; id"), false),
        // A rule about a command does not allow a file.
        (
            &["--approval", "ask", "--allow", "developer__shell: {command: \"touch *\"}"],
            json!({"language": "shell", "script": "touch made", "save": "kept.sh"}),
            false,
        ),
        // The rule is about a command line, and Python is none.
        (
            &["--approval", "ask", "--allow", "computercontroller__run_script: {script: \"touch *\"}"],
            json!({"language": "python", "script": "touch made"}),
            false,
        ),
    ] {
        let sandbox = Sandbox::new();
        let run = run_script(&sandbox, "frontend", flags, &arguments);
        let case = format!("{flags:?} {arguments}: {}", run.whole());
        assert_eq!(run.code == 0, runs, "{case}");
        assert_eq!(run.code == 5, !runs, "{case}");
        assert_eq!(sandbox.path("project/made").exists(), runs, "{case}");
        assert!(!sandbox.path("project/kept.sh").exists(), "{case}");
    }
}

#[test]
fn the_question_shows_the_whole_script() {
    let sandbox = Sandbox::new();
    let mut client = Acp::able(&sandbox, &["--approval", "ask", "-a", "coding", "-m", "frontend"], &json!({}));
    let requests: Rc<RefCell<Vec<Value>>> = Rc::default();
    let asked = Rc::clone(&requests);
    client.on("session/request_permission", move |params| {
        asked.borrow_mut().push(params.clone());
        Some(selected("reject_once"))
    });
    let session = client.session();
    let lines: Vec<String> = (1..=300).map(|line| format!("echo {line} > made")).collect();
    let arguments = touch(&lines.join("\n"));
    client.prompt(&session, &format!("/computercontroller.run_script {arguments}"));
    let requests = requests.borrow();
    assert_eq!(requests.len(), 1);
    let call = &requests[0]["toolCall"];
    assert_eq!(call["kind"], json!("execute"));
    let shown = call["content"][0]["content"]["text"].as_str().unwrap();
    assert_eq!(shown, format!("```sh\n{}\n```", lines.join("\n")));
    assert!(!sandbox.path("project/made").exists());
}

#[test]
fn a_script_asks_before_it_writes_a_protected_path() {
    let sandbox = Sandbox::new();
    let arguments = json!({"language": "shell", "script": "touch made", "save": ".vscode/tasks.sh"});
    let run = run_script(&sandbox, "frontend", &["--approval", "auto"], &arguments);
    assert_eq!(run.code, 5, "{}", run.whole());
    assert!(run.whole().contains("computercontroller__run_script: {save: \".vscode/tasks.sh\"}"), "{}", run.whole());
    assert!(!sandbox.path("project/.vscode").exists() && !sandbox.path("project/made").exists());
}

/// The mode `qa` may edit tests only, and its sandbox writes nothing else.
#[test]
fn the_sandbox_decides_where_a_script_can_be_kept() {
    let sandbox = Sandbox::new();
    let layers = &sandbox.skein(&["sandbox", "--explain", "--json"]).json()["layers"];
    if ["namespaces", "landlock"].iter().any(|layer| layers[*layer] != "available") {
        return;
    }
    sandbox.write("project/src/main.py", "");
    sandbox.write("project/tests/a.py", "");
    for (save, writes) in [("tests/kept.sh", true), ("src/kept.sh", false)] {
        let arguments = json!({"language": "shell", "script": "echo ran", "save": save});
        let run = run_script(&sandbox, "qa", &["--approval", "auto"], &arguments);
        assert_eq!(sandbox.path("project").join(save).exists(), writes, "{save}: {}", run.whole());
        let refused = run.whole().contains("`src/kept.sh` was not written, so the script did not run");
        assert_eq!(refused, !writes, "{save}: {}", run.whole());
    }
}

#[test]
fn python_and_javascript_run_in_the_sandbox() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.write("home/.ssh/id", "SECRET");
    let secret = sandbox.path("home/.ssh/id");
    let secret = secret.display();
    for (language, script) in [
        ("python", format!("print(6 * 7)\nprint(open('{secret}').read())")),
        ("javascript", format!("console.log(6 * 7)\nconsole.log(require('fs').readFileSync('{secret}', 'utf8'))")),
    ] {
        let arguments = json!({"language": language, "script": script});
        let run = run_script(&sandbox, "frontend", &["--approval", "auto"], &arguments);
        assert!(run.stdout.contains("42") && !run.stdout.contains("SECRET"), "{language}: {}", run.whole());
    }
}
