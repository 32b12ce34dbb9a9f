//! Real commands.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::services::builtin::developer::testing::{Workshop, is_gone};
use crate::tool::{CallContext, CallProgress};

#[tokio::test]
async fn output_and_exit_code_come_as_text_and_data() {
    let workshop = Workshop::new();
    let said = workshop.call("shell", json!({"command": "echo out; pwd; read line || echo no stdin"})).await.ok();
    let cwd = workshop.path("").canonicalize().unwrap();
    let stdout = format!("out\n{}\nno stdin\n", cwd.display());
    let (text, verdict) = said.text.rsplit_once("[exit 0 in ").unwrap();
    assert_eq!((text, verdict.ends_with(" s]")), (stdout.as_str(), true));
    let expected = json!({
        "stdout": stdout, "stderr": "", "exit_code": 0, "timed_out": false, "truncated": false, "log_path": null
    });
    assert_eq!(said.data, expected);
    let said = workshop.call("shell", json!({"command": "printf oops >&2; exit 3"})).await.refused("oops\n[exit 3 in ");
    assert_eq!((&said.data["stderr"], &said.data["exit_code"]), (&json!("oops"), &json!(3)));
    let said = workshop.call("shell", json!({"command": "kill -9 $$"})).await.refused("ended by signal 9");
    assert_eq!(said.data["exit_code"], 137);
    assert!(workshop.call("shell", json!({"command": "true"})).await.ok().text.starts_with("(no output)\n[exit 0"));
    workshop.call("shell", json!({"command": " "})).await.refused("empty");
    workshop.call("shell", json!({"command": "a\0"})).await.refused("NUL");
    workshop.call("shell", json!({"command": "true", "timeout": 601})).await.refused("between 1 and 600");
}

#[tokio::test]
async fn commands_see_no_more_of_the_environment_than_they_need() {
    let workshop = Workshop::new();
    let said = workshop.call("shell", json!({"command": "env"})).await.ok();
    let names: Vec<&str> = said.data["stdout"]
        .as_str()
        .unwrap()
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name)
        .collect();
    for name in ["PATH", "TERM", "PAGER", "GIT_PAGER"] {
        assert!(names.contains(&name), "{name} not in {names:?}");
    }
    assert!(!names.iter().any(|name| name.starts_with("CARGO")), "{names:?}");
    assert!(said.text.contains("TERM=dumb\n") && said.text.contains("PAGER=cat\n"));
}

#[tokio::test]
async fn both_streams_are_shown_in_the_order_of_arrival_and_live() {
    let workshop = Workshop::new();
    let heard: Arc<Mutex<Vec<CallProgress>>> = Arc::default();
    let folder = workshop.path("");
    let listener = {
        let heard = Arc::clone(&heard);
        move |progress: CallProgress| {
            // The command goes on when its last line has been heard.
            let message = progress.message.clone().unwrap();
            heard.lock().unwrap().push(progress);
            if let Some(word) = message.lines().last() {
                std::fs::write(folder.join(word), "").unwrap();
            }
        }
    };
    let call = CallContext::new(Arc::clone(&workshop.session)).with_progress(listener);
    let command = "wait_for() { until [ -e $1 ]; do sleep 0.01; done; }; echo one; wait_for one; echo two >&2; wait_for two; echo three";
    let said = workshop.call_with(call, "shell", json!({"command": command})).await.ok();
    assert!(said.text.starts_with("one\ntwo\nthree\n"), "{}", said.text);
    assert_eq!((&said.data["stdout"], &said.data["stderr"]), (&json!("one\nthree\n"), &json!("two\n")));
    let heard = heard.lock().unwrap();
    assert_eq!(heard[0], CallProgress { progress: 4.0, total: None, message: Some("one\n".to_owned()) });
    assert!(heard.is_sorted_by(|left, right| left.progress < right.progress));
}

#[tokio::test]
async fn progress_comes_at_most_a_few_times_a_second() {
    let workshop = Workshop::new();
    let heard: Arc<Mutex<usize>> = Arc::default();
    let counter = Arc::clone(&heard);
    let call = CallContext::new(Arc::clone(&workshop.session)).with_progress(move |_| *counter.lock().unwrap() += 1);
    let started = Instant::now();
    let command = "for i in $(seq 3000); do echo $i; done";
    workshop.call_with(call, "shell", json!({"command": command})).await.ok();
    let most = 2 + started.elapsed().as_millis() / 100;
    assert!((1..=most as usize).contains(&heard.lock().unwrap()), "{heard:?}");
}

#[tokio::test]
async fn long_output_is_cut_and_kept_whole_in_the_scratch_folder() {
    let workshop = Workshop::new();
    let said = workshop.call("shell", json!({"command": "seq 100000"})).await.ok();
    assert!(said.text.starts_with("1\n2\n") && said.text.contains("\n100000\n[exit 0"));
    assert!(said.text.len() < 51_000 && said.data["truncated"] == true);
    let log = said.data["log_path"].as_str().unwrap();
    assert!(said.text.contains(log));
    let whole: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(std::fs::read_to_string(log).unwrap(), whole);
    let said = workshop.call("read_file", json!({"path": log, "line": 50000, "limit": 1})).await.ok();
    assert!(said.text.starts_with("50000\t50000\n"));
}

async fn pid_in(workshop: &Workshop, name: &str) -> String {
    loop {
        match std::fs::read_to_string(workshop.path(name)) {
            Ok(pid) if pid.ends_with('\n') => return pid,
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// The kernel takes a moment to end a process that has been killed.
async fn ends(pid: &str) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !is_gone(pid) {
        assert!(Instant::now() < deadline, "{pid} still runs");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A shell that waits for a child with a child.
const FAMILY: &str = "echo begun; bash -c 'sleep 300 & echo $! > grandchild; wait' & wait";

#[tokio::test]
async fn a_timeout_ends_grandchildren_too() {
    let workshop = Workshop::new();
    let started = Instant::now();
    let said = workshop.call("shell", json!({"command": FAMILY, "timeout": 1})).await.refused("timed out after 1 s");
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(said.data["timed_out"], true);
    assert_eq!((&said.data["stdout"], &said.data["exit_code"]), (&json!("begun\n"), &Value::Null));
    ends(&pid_in(&workshop, "grandchild").await).await;
}

#[tokio::test]
async fn cancelling_ends_grandchildren_too() {
    let workshop = Workshop::new();
    let call = CallContext::new(Arc::clone(&workshop.session));
    let cancel = call.cancel.clone();
    let (said, pid) = tokio::join!(workshop.call_with(call, "shell", json!({"command": FAMILY})), async {
        let pid = pid_in(&workshop, "grandchild").await;
        cancel.cancel();
        pid
    });
    said.refused("begun\n[cancelled");
    ends(&pid).await;
}

#[tokio::test]
async fn a_client_that_cancels_its_request_ends_grandchildren_too() {
    let workshop = Workshop::new();
    let mut context = workshop.context();
    context.extensions.insert(CallContext::new(Arc::clone(&workshop.session)));
    let request = context.ct.clone();
    let (said, pid) = tokio::join!(workshop.call_in(context, "shell", json!({"command": FAMILY})), async {
        let pid = pid_in(&workshop, "grandchild").await;
        request.cancel();
        pid
    });
    said.refused("begun\n[cancelled");
    ends(&pid).await;
}

#[tokio::test]
async fn a_request_that_is_dropped_ends_its_command() {
    let workshop = Workshop::new();
    let pid = tokio::select! {
        _ = workshop.call("shell", json!({"command": FAMILY})) => panic!("it waits"),
        pid = pid_in(&workshop, "grandchild") => pid,
    };
    ends(&pid).await;
}

#[tokio::test]
async fn a_process_left_behind_does_not_hold_the_call_up() {
    let workshop = Workshop::new();
    let started = Instant::now();
    let said = workshop.call("shell", json!({"command": "sleep 300 & echo $! > left; echo done"})).await.ok();
    assert!(started.elapsed() < Duration::from_secs(10));
    assert!(
        said.text.starts_with("done\n[exit 0 in ") && said.text.contains("left running in its process group was ended"),
        "{}",
        said.text
    );
    ends(&pid_in(&workshop, "left").await).await;
    // One that closed its pipes is not heard of, and is ended all the same.
    let said = workshop.call("shell", json!({"command": "sleep 300 >/dev/null 2>&1 & echo $! > quiet"})).await.ok();
    assert!(said.text.contains("exit 0"));
    ends(&pid_in(&workshop, "quiet").await).await;
}
