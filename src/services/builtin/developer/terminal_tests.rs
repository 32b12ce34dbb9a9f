//! Real commands in the terminals of a fake editor. Each test ends with the count of those made and released.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::services::builtin::developer::fake_editor::{FakeEditor, Fault};
use crate::services::builtin::developer::testing::{Workshop, is_gone};
use crate::tool::{Activity, CallContext};

fn workshop(editor: FakeEditor) -> (Workshop, Arc<FakeEditor>) {
    let editor = Arc::new(editor);
    (Workshop::shown_in(Some(editor.clone())), editor)
}

fn terminal(id: &str) -> Activity {
    Activity::Terminal { id: id.to_owned() }
}

/// Says that it runs, and then does for long.
const LONG: &str = "echo $$ > pid; echo begun; exec sleep 300";

async fn pid(workshop: &Workshop) -> String {
    loop {
        match std::fs::read_to_string(workshop.path("pid")) {
            Ok(pid) if pid.ends_with('\n') => return pid,
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

async fn ends(pid: &str) {
    let ended = async {
        while !is_gone(pid) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), ended).await.expect("it is ended");
}

#[tokio::test]
async fn command_runs_in_the_editors_terminal_with_the_usual_result() {
    let (workshop, editor) = workshop(FakeEditor::lending_terminals());
    let command = "echo out; pwd; echo $PAGER; echo $TERM";
    let (said, told) = workshop.call_told("shell", json!({"command": command})).await;
    let said = said.ok();
    let output = format!("out\n{}\ncat\ndumb\n", workshop.path("").canonicalize().unwrap().display());
    let (text, verdict) = said.text.rsplit_once("[exit 0 in ").unwrap();
    assert_eq!((text, verdict.ends_with(" s]")), (output.as_str(), true));
    let expected = json!({
        "stdout": output, "stderr": "", "exit_code": 0, "timed_out": false, "truncated": false, "log_path": null
    });
    assert_eq!(said.data, expected);
    assert_eq!(told, [terminal("terminal-1")]);
    let said = workshop.call("shell", json!({"command": "printf oops; exit 3"})).await.refused("oops\n[exit 3 in ");
    assert_eq!(said.data["exit_code"], 3);
    let said = workshop.call("shell", json!({"command": "kill -9 $$"})).await.refused("ended by signal 9");
    assert_eq!(said.data["exit_code"], 137);
    assert_eq!(editor.terminals.counts(), (3, 0, 3));
    let commands = editor.terminals.commands.lock().unwrap();
    assert_eq!(
        (commands[0].program.as_str(), &commands[0].args[..]),
        ("bash", &["-c".to_owned(), command.to_owned()][..])
    );
    assert_eq!(commands[0].cwd, workshop.session.cwd);
}

#[tokio::test]
async fn the_terminal_is_told_while_the_command_runs() {
    let (workshop, editor) = workshop(FakeEditor::lending_terminals());
    let go_on = workshop.path("heard");
    let listener = move |activity| {
        assert_eq!(activity, terminal("terminal-1"));
        std::fs::write(&go_on, "").unwrap();
    };
    let call = CallContext::new(Arc::clone(&workshop.session)).with_activity(listener);
    let command = json!({"command": "until [ -e heard ]; do sleep 0.01; done; echo seen"});
    assert!(workshop.call_with(call, "shell", command).await.ok().text.starts_with("seen\n"));
    assert_eq!(editor.terminals.counts(), (1, 0, 1));
}

#[tokio::test]
async fn long_output_is_kept_in_scratch_as_far_as_the_editor_kept_it() {
    let (workshop, editor) = workshop(FakeEditor::lending_terminals());
    let log = |said: &Value| std::fs::read_to_string(said["log_path"].as_str().unwrap()).unwrap();
    let said = workshop.call("shell", json!({"command": "seq 100000"})).await.ok();
    assert!(said.text.starts_with("1\n2\n") && said.text.contains("\n100000\n[exit 0"), "{}", said.text);
    assert!(said.text.len() < 51_000 && said.data["truncated"] == true);
    assert_eq!(log(&said.data).lines().count(), 100_000);
    let said = workshop.call("shell", json!({"command": "seq 300000"})).await.ok();
    assert!(said.text.starts_with("[the beginning is lost: 1.0 MB are kept]\n"), "{}", &said.text[..100]);
    assert!(log(&said.data).ends_with("\n300000\n"));
    assert_eq!(editor.terminals.counts(), (2, 0, 2));
}

#[tokio::test]
async fn a_timeout_kills_reads_and_releases() {
    let (workshop, editor) = workshop(FakeEditor::lending_terminals());
    let said = workshop.call("shell", json!({"command": LONG, "timeout": 1})).await;
    let said = said.refused("begun\n[timed out after 1 s and was ended; give a longer `timeout`");
    assert_eq!((&said.data["timed_out"], &said.data["exit_code"]), (&json!(true), &Value::Null));
    ends(&pid(&workshop).await).await;
    assert_eq!(editor.terminals.counts(), (1, 1, 1));
}

#[tokio::test]
async fn cancelling_kills_reads_and_releases() {
    let (workshop, editor) = workshop(FakeEditor::lending_terminals());
    let call = CallContext::new(Arc::clone(&workshop.session));
    let cancel = call.cancel.clone();
    let (said, pid) = tokio::join!(workshop.call_with(call, "shell", json!({"command": LONG})), async {
        let pid = pid(&workshop).await;
        cancel.cancel();
        pid
    });
    assert!(said.refused("[cancelled, and ended]").text.starts_with("begun\n"));
    ends(&pid).await;
    assert_eq!(editor.terminals.counts(), (1, 1, 1));
}

#[tokio::test]
async fn a_request_that_is_dropped_releases_too() {
    let (workshop, editor) = workshop(FakeEditor::lending_terminals());
    let pid = tokio::select! {
        _ = workshop.call("shell", json!({"command": LONG})) => panic!("it waits"),
        pid = pid(&workshop) => pid,
    };
    ends(&pid).await;
    assert_eq!(editor.terminals.counts(), (1, 0, 1));
}

#[tokio::test]
async fn an_editor_that_cannot_make_a_terminal_is_done_without() {
    let (workshop, editor) = workshop(FakeEditor::lending_terminals());
    editor.fault(|faults| faults.run = Fault::Fails);
    let (said, told) = workshop.call_told("shell", json!({"command": "echo ours; echo err >&2"})).await;
    let said = said.ok();
    assert_eq!((&said.data["stdout"], &said.data["stderr"]), (&json!("ours\n"), &json!("err\n")));
    assert!(!told.iter().any(|activity| matches!(activity, Activity::Terminal { .. })));
    assert_eq!(editor.terminals.counts(), (0, 0, 0));
}

#[tokio::test]
async fn a_command_that_may_have_been_started_is_not_started_again() {
    let (workshop, editor) = workshop(FakeEditor::lending_terminals());
    editor.fault(|faults| faults.run = Fault::Hangs);
    let command = || json!({"command": "echo x >> made"});
    workshop.call("shell", command()).await.refused("check before you repeat it");
    assert!(!workshop.path("made").exists());
    editor.fault(|faults| faults.run = Fault::Never);
    workshop.call("shell", command()).await.ok();
    assert_eq!(workshop.get("made"), b"x\n");
    assert_eq!(editor.terminals.counts(), (0, 0, 0), "it is not asked a second time");
}

#[tokio::test]
async fn output_that_cannot_be_read_is_said_and_the_terminal_released() {
    for fault in [Fault::Fails, Fault::Hangs] {
        let (workshop, editor) = workshop(FakeEditor::lending_terminals());
        editor.fault(|faults| faults.output = fault);
        let said = workshop.call("shell", json!({"command": "exit 4"})).await;
        assert!(said.refused("[exit 4 in ").text.starts_with("[the output could not be read: "));
        assert_eq!(editor.terminals.counts(), (1, 0, 1));
    }
}

#[tokio::test]
async fn background_and_refused_commands_never_reach_the_editor() {
    let (workshop, editor) = workshop(FakeEditor::lending_terminals());
    workshop.call("shell", json!({"command": "sleep 300", "background": true})).await.ok();
    workshop.call("shell_stop", json!({"id": 1})).await.ok();
    workshop.call("shell", json!({"command": " "})).await.refused("empty");
    workshop.call("shell", json!({"command": "true", "timeout": 601})).await.refused("between 1 and 600");
    let call = CallContext::new(Arc::clone(&workshop.session));
    call.cancel.cancel();
    workshop.call_with(call, "shell", json!({"command": "true"})).await.refused("cancelled");
    assert_eq!(editor.terminals.counts(), (0, 0, 0));
}
