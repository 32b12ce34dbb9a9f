//! Real commands that go on by themselves.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::MAX_ENDED;
use crate::services::builtin::developer::testing::{Said, Workshop, is_gone};

async fn start(workshop: &Workshop, command: &str) -> u64 {
    let said = workshop.call("shell", json!({"command": command, "background": true})).await.ok();
    let id = said.data["id"].as_u64().unwrap();
    assert!(said.text.contains(&format!("with id {id};")));
    id
}

async fn output(workshop: &Workshop, id: u64, wait: u64) -> Said {
    workshop.call("shell_output", json!({"id": id, "wait_seconds": wait})).await.ok()
}

/// Everything until it has ended.
async fn to_the_end(workshop: &Workshop, id: u64) -> (String, Value) {
    let mut text = String::new();
    loop {
        let said = output(workshop, id, 60).await;
        text.push_str(said.data["output"].as_str().unwrap());
        if said.data["running"] == false {
            return (text, said.data);
        }
    }
}

async fn ends(pid: &str) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !is_gone(pid) {
        assert!(Instant::now() < deadline, "{pid} still runs");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn output_is_given_once_and_the_end_is_told() {
    let workshop = Workshop::new();
    let id = start(&workshop, "echo one; until [ -e go ]; do sleep 0.01; done; echo two >&2; exit 4").await;
    let said = output(&workshop, id, 60).await;
    assert_eq!((&said.data["output"], &said.data["running"]), (&json!("one\n"), &json!(true)));
    assert!(said.text.starts_with(&format!("one\n[command {id} runs since ")), "{}", said.text);
    let said = output(&workshop, id, 0).await;
    assert!(said.text.starts_with("(no new output)\n["), "{}", said.text);
    workshop.put("go", "");
    let (text, data) = to_the_end(&workshop, id).await;
    assert_eq!((text.as_str(), &data["exit_code"]), ("two\n", &json!(4)));
    assert_eq!(std::fs::read_to_string(data["log_path"].as_str().unwrap()).unwrap(), "one\ntwo\n");
    assert!(output(&workshop, id, 60).await.text.contains(&format!("[command {id}: exit 4]")));
}

#[tokio::test]
async fn stopping_ends_the_whole_group_after_asking() {
    let workshop = Workshop::new();
    let command = "trap 'echo bye; exit' TERM; sleep 300 & echo $!; echo ready; wait";
    let id = start(&workshop, command).await;
    let said = output(&workshop, id, 60).await;
    let pid = said.data["output"].as_str().unwrap().lines().next().unwrap().to_owned();
    let said = workshop.call("shell_stop", json!({"id": id})).await.ok();
    assert_eq!(said.text, format!("bye\n[command {id} was stopped]"));
    ends(&pid).await;
    let again = workshop.call("shell_stop", json!({"id": id})).await.ok();
    assert_eq!(again.data["running"], false);
}

#[tokio::test]
async fn a_background_command_can_have_a_time_limit() {
    let workshop = Workshop::new();
    let arguments = json!({"command": "echo $$; exec sleep 300", "background": true, "timeout": 1});
    let id = workshop.call("shell", arguments).await.ok().data["id"].as_u64().unwrap();
    let (pid, _) = to_the_end(&workshop, id).await;
    ends(&pid).await;
    assert!(output(&workshop, id, 0).await.text.contains("timed out and was ended"));
}

#[tokio::test]
async fn the_end_of_the_session_is_the_end_of_its_commands() {
    let mut workshop = Workshop::new();
    let id = start(&workshop, "sleep 300 & echo $!; wait").await;
    let said = output(&workshop, id, 60).await;
    let pid = said.data["output"].as_str().unwrap().trim().to_owned();
    assert!(!is_gone(&pid));
    // The last handle on the session goes.
    workshop.session = crate::tool::SessionContext::new("s2", workshop.path(""), Vec::new(), workshop.outside());
    ends(&pid).await;
    workshop.call("shell_output", json!({"id": id})).await.refused("there are: none");
}

#[tokio::test]
async fn unknown_ids_and_too_many_commands_are_refused() {
    let workshop = Workshop::new();
    workshop
        .call("shell_stop", json!({"id": 7}))
        .await
        .refused("no background command 7 in this session; there are: none");
    for _ in 0..16 {
        start(&workshop, "exec sleep 300").await;
    }
    let said = workshop.call("shell", json!({"command": "touch ran", "background": true})).await;
    said.refused("end one with `shell_stop`");
    assert!(!workshop.path("ran").exists());
    workshop.call("shell_stop", json!({"id": 3})).await.ok();
    start(&workshop, "true").await;
}

#[tokio::test]
async fn a_cancelled_wait_loses_no_output() {
    let workshop = Workshop::new();
    let id = start(&workshop, "until [ -e go ]; do sleep 0.01; done; echo kept").await;
    let call = crate::tool::CallContext::new(std::sync::Arc::clone(&workshop.session));
    call.cancel.cancel();
    workshop.call_with(call, "shell_output", json!({"id": id, "wait_seconds": 60})).await.refused("cancelled");
    workshop.put("go", "");
    assert_eq!(to_the_end(&workshop, id).await.0, "kept\n");
}

#[tokio::test]
async fn leftover_background_processes_run_until_stopped() {
    let workshop = Workshop::new();
    let id = start(&workshop, "sleep 300 > /dev/null 2>&1 & echo $!").await;
    let said = output(&workshop, id, 60).await;
    let pid = said.data["output"].as_str().unwrap().trim().to_owned();
    let said = output(&workshop, id, 0).await;
    assert!(said.text.contains("exit 0, but what it started still runs"), "{}", said.text);
    assert!(said.data["running"] == true && !is_gone(&pid));
    workshop.call("shell_stop", json!({"id": id})).await.ok();
    ends(&pid).await;
}

#[tokio::test]
async fn a_prompt_without_a_line_end_is_seen() {
    let workshop = Workshop::new();
    let id = start(&workshop, "printf 'name: '; exec sleep 300").await;
    assert_eq!(output(&workshop, id, 60).await.data["output"], "name: ");
}

#[tokio::test]
async fn the_oldest_ended_command_makes_room() {
    let workshop = Workshop::new();
    for _ in 0..=MAX_ENDED {
        let id = start(&workshop, "true").await;
        to_the_end(&workshop, id).await;
    }
    output(&workshop, 1, 0).await;
    start(&workshop, "true").await;
    let said = workshop.call("shell_output", json!({"id": 1})).await;
    said.refused("no background command 1 in this session");
    output(&workshop, 2, 0).await;
}
