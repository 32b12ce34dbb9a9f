//! Events as markup: what a page shows of them, and that none of their text becomes markup.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::conversation::{ToolUse, Usage};

fn rendered(event: &Event) -> String {
    let stored = StoredEvent { seq: 7, at: 0, kind: "message".to_owned(), body: serde_json::to_string(event).unwrap() };
    entries(&[stored], &DiffBudget::default()).into_string()
}

fn message(role: Role, parts: Vec<MessagePart>) -> Event {
    Event::Message { message: Arc::new(Message { role, parts }) }
}

/// Every event with `text` in each field that a user, a model or a tool fills.
fn events_with(text: &str) -> Vec<Event> {
    let text = || text.to_owned();
    let content = vec![
        Content::Text(text()),
        Content::Image { mime: text(), data: text() },
        Content::Image { mime: "image/png".to_owned(), data: text() },
        Content::Audio { mime: text(), data: text() },
        Content::Resource(json!({"uri": text(), "text": text(), "mimeType": text()})),
        Content::Link(json!({"uri": text(), "name": text()})),
    ];
    let mut parts: Vec<_> = content.iter().cloned().map(MessagePart::Content).collect();
    parts.push(MessagePart::Content(Content::Injected(text())));
    parts.push(MessagePart::Thought(text()));
    let outcome = |is_error, refused| ToolOutcome {
        content: content.clone(),
        structured: None,
        is_error,
        refused,
        annotations: std::collections::BTreeMap::new(),
        meta: None,
    };
    let activity = vec![
        Activity::Changed { path: text().into(), before: Some(text()), after: format!("{}\nmore", text()) },
        Activity::Changed { path: text().into(), before: None, after: text() },
        Activity::TodoList(vec![TodoStep { text: text(), status: StepStatus::Pending, priority: None }]),
        Activity::Terminal { id: text() },
    ];
    let ended = |ending| Event::TurnEnded { end: TurnEnd { ending, usage: Usage::default() } };
    let call = ToolUse::new(text(), text(), json!({ text(): text() }));
    vec![
        message(Role::User, parts.clone()),
        message(Role::Assistant, parts),
        Event::ToolStarted { call: call.clone(), by: Some(text()) },
        Event::ToolStarted { call, by: None },
        Event::ToolEnded { id: text(), name: text(), outcome: outcome(false, false), activity: activity.clone() },
        Event::ToolEnded { id: text(), name: text(), outcome: outcome(true, true), activity },
        Event::ExternalSessionOpened { mode: text(), agent: text(), id: text(), of: text() },
        ended(StopReason::Exhausted { why: text() }),
        ended(StopReason::CallRefused { tool: text() }),
        ended(StopReason::failure(text())),
    ]
}

/// The elements and attributes of markup, without their text. Text that became markup would add some.
fn structure(markup: &str) -> Vec<String> {
    let tags = markup.split('<').skip(1).map(|part| part.split('>').next().unwrap_or_default());
    let names = tags.map(|tag| {
        let attributes = tag.split('"').step_by(2).map(str::trim).collect::<Vec<_>>();
        attributes.join(" ")
    });
    names.collect()
}

#[test]
fn no_injection_becomes_markup() {
    let corpus: Vec<String> =
        serde_json::from_str(include_str!("../../../tests/fixtures/console/injections.json")).unwrap();
    assert!(corpus.len() >= 60, "{}", corpus.len());
    for injection in &corpus {
        for (event, plain) in events_with(injection).iter().zip(events_with(&plain_of(injection))) {
            let (found, expected) = (structure(&rendered(event)), structure(&rendered(&plain)));
            let strange = found.iter().find(|tag| !expected.contains(tag));
            assert_eq!(strange, None, "{injection}");
        }
    }
}

/// Text of the same shape without any special character.
fn plain_of(text: &str) -> String {
    text.chars().map(|c| if c.is_whitespace() { c } else { 'x' }).collect()
}

#[test]
fn calls_diffs_and_lists_are_shown() {
    let call = ToolUse::new("c".to_owned(), "developer__shell".to_owned(), json!({"command": "ls"}));
    let started = rendered(&Event::ToolStarted { call, by: Some("coding/qa".to_owned()) });
    assert!(started.contains("developer__shell") && started.contains("Call of coding/qa"), "{started}");
    let changed = diff("a.txt", "one\ntwo\n", "one\nthree\n", &DiffBudget::default()).into_string();
    assert!(changed.contains("<span class=\"del\">-two</span>") && changed.contains(">+three</span>"), "{changed}");
    let steps = [TodoStep { text: "Test".to_owned(), status: StepStatus::Completed, priority: None }];
    assert!(todo_list(&steps).into_string().contains("<li>done: Test</li>"));
}

/// Two texts that take long to compare.
fn different_texts() -> [String; 2] {
    [7, 11].map(|step: u64| (0..30_000_u64).map(|line| format!("{}\n", line * step % 307)).collect())
}

#[test]
fn the_diffs_of_an_answer_share_their_time() {
    let budget = DiffBudget { left: Cell::new(Duration::from_millis(1)) };
    let [before, after] = different_texts();
    assert!(diff("long.txt", &before, &after, &budget).into_string().contains("class=\"diff\""));
    let next = diff("next.txt", "one\n", "two\n", &budget).into_string();
    assert!(next.contains("<code>next.txt</code>. The changes on this page are too long"), "{next}");
}

/// Whoever waits for a diff must not stop the tasks of others.
#[tokio::test]
async fn diffs_are_made_outside_the_async_runtime() {
    let [before, after] = different_texts();
    let mut rendering = std::pin::pin!(render(move |budget| diff("long.txt", &before, &after, budget)));
    assert!(futures::poll!(rendering.as_mut()).is_pending());
    assert!(rendering.await.unwrap().into_string().contains("class=\"diff\""));
}

#[test]
fn long_text_is_cut_and_says_so() {
    let text = display_text(&"é".repeat(MAX_TEXT));
    assert!(text.len() < MAX_TEXT + 100 && text.ends_with("the export has them"));
    assert_eq!(display_text("a\u{202e}b\u{7}"), "ab");
}
