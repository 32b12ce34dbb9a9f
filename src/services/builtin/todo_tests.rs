//! The todo list as a session sees it: ids stay, refusals change nothing, what is stored comes back.

use expect_test::expect;
use proptest::prelude::*;

use super::super::harness::{Harness, runtime};
use super::*;

fn items(data: &Value) -> Vec<(u64, String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let items = data["items"].as_array().unwrap().iter();
    items.map(|item| (item["id"].as_u64().unwrap(), text(&item["text"]), text(&item["status"]))).collect()
}

fn item(id: u64, text: &str, status: &str) -> (u64, String, String) {
    (id, text.to_owned(), status.to_owned())
}

#[tokio::test]
async fn a_list_is_set_changed_and_shown() {
    let todo = Harness::new(TodoService::new());
    assert_eq!(todo.call("list_todos", json!({})).await.all_text(), "the todo list is empty");
    let set = json!({"items": [{"text": "read"}, {"text": " write ", "status": "in_progress"}]});
    let set = todo.data("set_todos", set).await;
    assert_eq!(items(&set), [item(1, "read", "pending"), item(2, "write", "in_progress")]);
    todo.data("update_todo", json!({"id": 1, "status": "completed"})).await;
    todo.data("update_todo", json!({"id": 2, "text": "write it\ndown"})).await;
    let shown = todo.call("list_todos", json!({})).await.all_text();
    expect![[r"
        2 todos, 1 completed
        1. [x] read
        2. [>] write it down"]]
    .assert_eq(&shown);
}

#[tokio::test]
async fn kept_item_keeps_its_id_and_old_ids_are_not_reused() {
    let todo = Harness::new(TodoService::new());
    todo.data("set_todos", json!({"items": [{"text": "a"}, {"text": "b"}, {"text": "b"}]})).await;
    let set = todo.data("set_todos", json!({"items": [{"text": "new"}, {"text": "b", "status": "completed"}]})).await;
    assert_eq!(items(&set), [item(4, "new", "pending"), item(2, "b", "completed")]);
    let refusal = todo.refusal("update_todo", json!({"id": 1, "status": "completed"})).await;
    assert_eq!(refusal, "there is no todo 1; there are 4, 2");
}

#[tokio::test]
async fn sessions_do_not_see_each_others_lists() {
    let one = Harness::new(TodoService::new());
    let two = one.other_session("second");
    one.data("set_todos", json!({"items": [{"text": "mine"}]})).await;
    assert_eq!(items(&two.data("list_todos", json!({})).await), []);
}

#[tokio::test]
async fn a_failed_call_changes_nothing() {
    let service = TodoService::new();
    let todo = Harness::new(service.clone());
    todo.data("set_todos", json!({"items": [{"text": "a"}]})).await;
    let before = service.list_of(&todo.session).snapshot();
    let many: Vec<_> = (0..=MAX_ITEMS).map(|n| json!({"text": n.to_string()})).collect();
    for (tool, arguments) in [
        ("set_todos", json!({"items": many})),
        ("set_todos", json!({"items": [{"text": "b"}, {"text": "  "}]})),
        ("set_todos", json!({"items": [{"text": "b"}, {"text": "x".repeat(MAX_TEXT + 1)}]})),
        ("set_todos", json!({"items": [{"text": "b", "status": "done"}]})),
        ("set_todos", json!({"items": [{"text": "b", "state": "completed"}]})),
        ("set_todos", json!({})),
        ("update_todo", json!({"id": 1})),
        ("update_todo", json!({"id": 9, "status": "completed"})),
        ("update_todo", json!({"id": 1, "text": "", "status": "completed"})),
        ("update_todo", json!({"id": -1, "status": "completed"})),
    ] {
        todo.refusal(tool, arguments).await;
        assert_eq!(service.list_of(&todo.session).snapshot(), before);
    }
}

#[tokio::test]
async fn an_answer_stays_short_however_long_the_items() {
    let todo = Harness::new(TodoService::new());
    let long: Vec<_> = (0..MAX_ITEMS).map(|_| json!({"text": "ä".repeat(MAX_TEXT / 2)})).collect();
    let set = todo.call("set_todos", json!({"items": long})).await;
    assert!(set.all_text().len() < 15_000);
    let listed = todo.call("list_todos", json!({})).await;
    assert!(listed.all_text().len() < MAX_SHOWN + 3_000);
    assert_eq!(items(&listed.structured.unwrap())[99].1.len(), MAX_TEXT);
}

#[test]
fn what_is_no_todo_list_is_not_restored() {
    let todos = Todos::default();
    todos.restore(&json!({"items": [{"id": 1, "text": "a", "status": "pending"}], "last_id": 3})).unwrap();
    let before = todos.snapshot();
    for wrong in [
        json!(null),
        json!([]),
        json!({"items": []}),
        json!({"items": [{"id": 1, "text": "", "status": "pending"}], "last_id": 3}),
        json!({"items": [{"id": 4, "text": "a", "status": "pending"}], "last_id": 3}),
        json!({"items": [{"id": 1, "text": "a", "status": "pending"}, {"id": 1, "text": "b", "status": "pending"}], "last_id": 3}),
        json!({"items": [{"id": 1, "text": "a", "status": "?"}], "last_id": 3}),
    ] {
        assert!(todos.restore(&wrong).is_err(), "{wrong}");
        assert_eq!(todos.snapshot(), before);
    }
}

#[tokio::test]
async fn the_list_is_told_as_the_plan_whenever_it_changes() {
    let todo = Harness::new(TodoService::new());
    let plan = async |tool: &str, arguments: Value| {
        let (outcome, told) = todo.told(tool, arguments).await;
        (outcome.is_error, serde_json::to_value(told).unwrap())
    };
    let step = |text: &str, status: &str| json!({"text": text, "status": status});
    let items = json!([{"text": "look", "status": "in_progress"}, {"text": "write"}]);
    let steps = json!([step("look", "in_progress"), step("write", "pending")]);
    assert_eq!(plan("set_todos", json!({"items": items})).await, (false, json!([{"plan": steps}])));
    let steps = json!([step("look", "completed"), step("write", "pending")]);
    let update = json!({"id": 1, "status": "completed"});
    assert_eq!(plan("update_todo", update).await, (false, json!([{"plan": steps}])));
    assert_eq!(plan("update_todo", json!({"id": 9, "status": "pending"})).await, (true, json!([])));
    assert_eq!(plan("list_todos", json!({})).await, (false, json!([])));
    assert_eq!(plan("set_todos", json!({"items": []})).await, (false, json!([{"plan": []}])));
}

#[derive(Debug, Clone)]
enum Step {
    Set(Vec<(String, Option<&'static str>)>),
    Update(u64, Option<String>, Option<&'static str>),
}

fn status() -> impl Strategy<Value = &'static str> {
    // The last one is no status.
    prop_oneof![3 => Just("pending"), 3 => Just("in_progress"), 3 => Just("completed"), 1 => Just("done")]
}

fn step() -> impl Strategy<Value = Step> {
    let text = prop_oneof!["[a-c]{0,2}", "\\PC{0,12}"];
    prop_oneof![
        proptest::collection::vec((text.clone(), proptest::option::of(status())), 0..5).prop_map(Step::Set),
        (0_u64..8, proptest::option::of(text), proptest::option::of(status()))
            .prop_map(|(id, text, status)| Step::Update(id, text, status)),
    ]
}

fn arguments(step: &Step) -> (&'static str, Value) {
    match step {
        Step::Set(items) => {
            let item = |(text, status): &(String, Option<&str>)| match status {
                Some(status) => json!({"text": text, "status": status}),
                None => json!({"text": text}),
            };
            ("set_todos", json!({"items": items.iter().map(item).collect::<Vec<_>>()}))
        }
        Step::Update(id, text, status) => {
            let mut arguments = json!({"id": id});
            if let Some(text) = text {
                arguments["text"] = json!(text);
            }
            if let Some(status) = status {
                arguments["status"] = json!(status);
            }
            ("update_todo", arguments)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// After any calls: a refused one changed nothing, an accepted one shows the list as it is, an id never
    /// came back with another item, and what was stored is the same list to every later call.
    #[test]
    fn any_calls_leave_a_sound_list(steps in proptest::collection::vec(step(), 1..12)) {
        let service = TodoService::new();
        let (todo, copy) = runtime().block_on(async {
            let todo = Harness::new(service.clone());
            let copy = todo.other_session("loaded");
            let mut highest = 0;
            for step in &steps {
                let before = service.list_of(&todo.session).snapshot();
                service.list_of(&copy.session).restore(&before).unwrap();
                let (tool, arguments) = arguments(step);
                let outcome = todo.call(tool, arguments.clone()).await;
                let again = copy.call(tool, arguments).await;
                assert_eq!(&outcome, &again);
                let (after, known) = (service.list_of(&todo.session).snapshot(), items(&before));
                if outcome.is_error {
                    assert_eq!(&before, &after);
                    continue;
                }
                let shown = items(&outcome.structured.unwrap());
                assert_eq!(&shown, &items(&after));
                for (id, text, _) in &shown {
                    let kept = known.iter().any(|(known, was, _)| known == id && (was == text || tool == "update_todo"));
                    assert!(kept || *id > highest, "{id} is neither old nor new");
                }
                highest = shown.iter().map(|(id, ..)| *id).max().unwrap_or(0).max(highest);
            }
            (todo, copy)
        });
        let stored = service.list_of(&todo.session).snapshot();
        service.list_of(&copy.session).restore(&stored).unwrap();
        prop_assert_eq!(service.list_of(&copy.session).items(), service.list_of(&todo.session).items());
    }
}
