//! What a model may ask of the desk, and what it is told.

use std::sync::Mutex;

use futures::future::BoxFuture;
use proptest::prelude::*;

use super::super::harness::{Harness, runtime};
use super::*;
use crate::tool::delegate::DelegateError;

/// A desk that does every task at once, and keeps what it was asked for.
#[derive(Default)]
struct Quick {
    asked: Mutex<Vec<TaskRequest>>,
}

fn report(state: TaskState) -> TaskReport {
    let text = |text: &str| text.to_owned();
    let (id, mode, task, result) = (text("api"), text("coding/backend"), text("do"), text("It is done."));
    TaskReport { id, mode, state, task, session: Some(text("s1")), result }
}

impl Delegator for Quick {
    fn delegate(&self, task: TaskRequest, _: CallContext) -> BoxFuture<'_, Result<TaskReport, DelegateError>> {
        let state = if task.text == "fail" { TaskState::Failed } else { TaskState::Done };
        self.asked.lock().unwrap().push(task);
        Box::pin(async move { Ok(report(state)) })
    }

    fn begin(&self, task: TaskRequest, _: CallContext) -> BoxFuture<'_, Result<TaskReport, DelegateError>> {
        self.asked.lock().unwrap().push(task);
        Box::pin(async { Ok(report(TaskState::Waiting)) })
    }

    fn tasks(&self, id: Option<&str>) -> Result<Vec<TaskReport>, DelegateError> {
        match id {
            Some("api") => Ok(vec![report(TaskState::Done)]),
            Some(id) => Err(DelegateError::UnknownTask { id: id.to_owned(), known: Vec::new() }),
            None => Ok(vec![report(TaskState::Done), report(TaskState::Working)]),
        }
    }

    fn cancel<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<TaskReport, DelegateError>> {
        Box::pin(async { Ok(report(TaskState::Cancelled)) })
    }

    fn stop(&self) {}
}

fn harness() -> (Harness, Arc<Quick>) {
    let (harness, quick) = (Harness::new(SummonService::new()), Arc::new(Quick::default()));
    assert!(harness.session.delegator.set(Arc::clone(&quick) as Arc<dyn Delegator>).is_ok());
    (harness, quick)
}

#[tokio::test]
async fn a_task_is_handed_over_whole_and_its_report_comes_back() {
    let (summon, quick) = harness();
    let all = json!({"task": "fix it", "agent": "coding", "mode": "backend", "context": "why", "name": "api",
                     "after": ["plan"]});
    let outcome = summon.call("delegate", all).await;
    assert_eq!(outcome.all_text(), "Task `api` (coding/backend, session s1) is done.\n\nIt is done.");
    assert_eq!(outcome.structured.unwrap()["state"], "done");
    let text = |text: &str| Some(text.to_owned());
    let (to, name, context) = (text("coding/backend"), text("api"), text("why"));
    let expected = TaskRequest { text: "fix it".to_owned(), to, name, context, after: vec!["plan".to_owned()] };
    assert_eq!(*quick.asked.lock().unwrap(), [expected]);
}

#[tokio::test]
async fn failed_task_is_an_error_and_background_task_has_an_id() {
    let (summon, _) = harness();
    assert!(summon.call("delegate", json!({"task": "fail"})).await.is_error);
    let begun = summon.call("delegate", json!({"task": "long", "background": true})).await;
    assert_eq!(begun.all_text(), "coding/backend works on it in the background as task `api`");
    let all = summon.call("task_status", json!({})).await.all_text();
    assert_eq!(all.lines().count(), 2, "{all}");
    assert!(summon.call("task_status", json!({"id": "api"})).await.all_text().ends_with("It is done."));
    assert!(summon.refusal("task_status", json!({"id": "x"})).await.contains("there is no task `x`"));
    assert!(summon.call("task_cancel", json!({"id": "api"})).await.all_text().contains("was cancelled"));
}

#[tokio::test]
async fn a_task_that_says_nothing_or_too_much_is_refused() {
    let (summon, quick) = harness();
    for (arguments, problem) in [
        (json!({"task": " "}), "`task` is empty"),
        (json!({"task": "do", "mode": "backend"}), "`mode` needs its `agent`"),
        (json!({"task": "x".repeat(MAX_TEXT + 1)}), "are the limit"),
    ] {
        let refusal = summon.refusal("delegate", arguments).await;
        assert!(refusal.contains(problem), "{refusal}");
    }
    assert!(quick.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_session_without_a_desk_hands_nothing_over() {
    let summon = Harness::new(SummonService::new());
    for (tool, arguments) in
        [("delegate", json!({"task": "do"})), ("task_status", json!({})), ("task_cancel", json!({"id": "1"}))]
    {
        assert_eq!(summon.refusal(tool, arguments).await, "this session cannot hand work to others");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// A task is handed over unchanged, or it is refused and nothing is.
    #[test]
    fn a_task_is_handed_over_unchanged_or_refused(
        text in "\\PC{0,60}",
        task in 0usize..MAX_TEXT + 1_000,
        context in prop::option::of(0usize..MAX_TEXT + 1_000),
    ) {
        runtime().block_on(async {
            let (summon, quick) = harness();
            let task = format!("{text}{}", "x".repeat(task));
            let context = context.map(|length| "y".repeat(length));
            let size = task.len() + context.as_ref().map_or(0, String::len);
            let outcome = summon.call("delegate", json!({"task": task, "context": context})).await;
            let asked = quick.asked.lock().unwrap();
            if task.trim().is_empty() || size > MAX_TEXT {
                assert!(outcome.is_error && asked.is_empty(), "{}", outcome.all_text());
            } else {
                assert_eq!((asked[0].text.as_str(), &asked[0].context), (task.as_str(), &context));
            }
        });
    }

    /// The desk gets the id as the model wrote it, and an unknown one is named in the refusal.
    #[test]
    fn any_task_id_is_known_or_refused(id in prop_oneof![Just("api".to_owned()), "[ -~]{1,30}"]) {
        runtime().block_on(async {
            let (summon, _) = harness();
            let status = summon.call("task_status", json!({"id": id})).await;
            assert_eq!(status.is_error, id != "api", "{}", status.all_text());
            assert!(!status.is_error || status.all_text().contains(&format!("`{id}`")), "{}", status.all_text());
            assert!(!summon.call("task_cancel", json!({"id": id})).await.is_error);
        });
    }
}
