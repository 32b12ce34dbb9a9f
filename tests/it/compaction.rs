//! What the model is shown when the talk outgrows its window.

use std::sync::Arc;

use serde_json::json;
use skein::agents::{Event, Exchange, History, RecoveryPolicy, StopReason, TurnLimits};
use skein::conversation::{Content, Message, MessagePart, Role, Usage};
use skein::llm::{EarlierThoughts, LlmError, ModelRequest, Provider, StreamEvent};
use skein::manifest::Moderator;
use tokio_util::sync::CancellationToken;

use crate::exchange::{Said, Script, Stage, calls, done, says, upkeep};

fn overflow() -> Said {
    vec![Err(LlmError::Overflow { model: "script".into(), reason: "prompt is too long".into() })]
}

/// A talk of `turns` prompts and answers of about 1,000 tokens each.
fn talk(turns: usize) -> History {
    let mut history = History::default();
    for number in 0..turns {
        let filler = "word ".repeat(800);
        history.push(Arc::new(Message::user(vec![Content::text(format!("question {number} {filler}"))])));
        let answer = MessagePart::Content(Content::text(format!("answer {number} {filler}")));
        history.push(Arc::new(Message { role: Role::Assistant, parts: vec![answer] }));
    }
    history
}

fn moderated(moderator: Moderator, accelerator: &Arc<Script>) -> RecoveryPolicy {
    let accelerator: Arc<dyn Provider> = Arc::clone(accelerator) as _;
    RecoveryPolicy { accelerator: Some(accelerator), moderator, ..upkeep() }
}

fn shown(request: &ModelRequest) -> String {
    request.messages.iter().map(|message| message.text()).collect::<Vec<_>>().join("\n")
}

/// Providers refuse a talk in which a use and its result are apart.
fn assert_whole(request: &ModelRequest) {
    let mut open: Vec<&str> = Vec::new();
    for message in &request.messages {
        for part in &message.parts {
            match part {
                MessagePart::ToolUse(call) => open.push(&call.id),
                MessagePart::ToolResult(result) => {
                    let at = open.iter().position(|id| *id == result.id).expect("a result follows its use");
                    open.remove(at);
                }
                MessagePart::Content(_) | MessagePart::Thought(_) => {}
            }
        }
    }
    assert!(open.is_empty(), "uses without a result: {open:?}");
}

async fn ask(exchange: &Exchange, history: &mut History, prompt: &str) -> StopReason {
    exchange.turn(history, vec![Content::text(prompt)], &CancellationToken::new()).await.ending
}

#[tokio::test]
async fn the_older_part_is_summed_up_before_the_window_is_full() {
    let stage = Stage::new();
    let model = Script::with_window(vec![says("yes")], 10_000);
    let fast = Script::new(vec![says("They spoke of nine things.")]);
    let exchange = stage.exchange("goose/planner", &model, TurnLimits::default()).await;
    let exchange = exchange.with_recovery(moderated(Moderator::Summarize, &fast));
    let mut history = talk(5);
    assert_eq!(ask(&exchange, &mut history, "and now?").await, StopReason::EndTurn);
    assert_eq!(history.messages().len(), 12, "the history stays whole");
    let transcript = shown(&fast.asked()[0]);
    assert!(transcript.contains("question 0") && !transcript.contains("answer 4"), "the older part alone is summed up");
    let request = &model.asked()[0];
    let text = shown(request);
    assert!(text.contains("They spoke of nine things.") && text.contains("answer 4") && text.ends_with("and now?"));
    assert!(!text.contains("question 0"));
    let events = stage.ear.events.lock().unwrap().clone();
    let Some(Event::Compacted { messages, .. }) = events.iter().find(|event| matches!(event, Event::Compacted { .. }))
    else {
        panic!("it is told")
    };
    assert_eq!(*messages, history.messages_in_summary());
    // Whoever reads the record shows the same.
    let before =
        talk(5).messages().iter().map(|message| Event::Message { message: Arc::clone(message) }).collect::<Vec<_>>();
    let replayed = History::from_events(before.iter().chain(&events));
    assert_eq!(replayed.visible_messages(), history.visible_messages());
    stage.runtime.stop().await;
}

#[tokio::test]
async fn what_the_model_counted_is_believed_more_than_a_guess() {
    let stage = Stage::new();
    let counted = vec![
        Ok(StreamEvent::Text("short".into())),
        Ok(StreamEvent::Done {
            stop: skein::llm::ModelStop::Finished,
            usage: Usage { input: 9_000, output: 10, cached: 0 },
        }),
    ];
    let model = Script::with_window(vec![counted, says("yes")], 10_000);
    let fast = Script::new(vec![says("summary")]);
    let exchange = stage.exchange("goose/planner", &model, TurnLimits::default()).await;
    let exchange = exchange.with_recovery(moderated(Moderator::Summarize, &fast));
    let mut history = History::default();
    ask(&exchange, &mut history, "one").await;
    assert_eq!(fast.asked().len(), 0);
    ask(&exchange, &mut history, "two").await;
    assert_eq!(fast.asked().len(), 1);
    stage.runtime.stop().await;
}

#[tokio::test]
async fn thoughts_fill_the_window_of_a_model_that_gets_them() {
    let stage = Stage::new();
    for (thoughts, is_compacted) in [(EarlierThoughts::LeftOut, false), (EarlierThoughts::Repeated, true)] {
        let model = Script::with_thoughts(vec![says("yes")], 10_000, thoughts);
        let fast = Script::new(vec![says("summary")]);
        let exchange = stage.exchange("goose/planner", &model, TurnLimits::default()).await;
        let exchange = exchange.with_recovery(moderated(Moderator::Summarize, &fast));
        let mut history = History::default();
        for number in 0..10 {
            history.push(Arc::new(Message::user(vec![Content::text(format!("question {number}"))])));
            // About 1,000 tokens.
            let thought = MessagePart::Thought("word ".repeat(800));
            let answer = MessagePart::Content(Content::text(format!("answer {number}")));
            history.push(Arc::new(Message { role: Role::Assistant, parts: vec![thought, answer] }));
        }
        assert_eq!(ask(&exchange, &mut history, "and now?").await, StopReason::EndTurn);
        assert_eq!(fast.asked().len(), usize::from(is_compacted), "{thoughts:?}");
        assert_eq!(shown(&model.asked()[0]).contains("question 0"), !is_compacted, "{thoughts:?}");
    }
    stage.runtime.stop().await;
}

#[tokio::test]
async fn a_summary_can_be_summed_up_again() {
    let stage = Stage::new();
    let model = Script::with_window(vec![], 10_000);
    let fast = Script::new(vec![says("first summary"), says("second summary")]);
    let exchange = stage.exchange("goose/planner", &model, TurnLimits::default()).await;
    let exchange = exchange.with_recovery(moderated(Moderator::Passive, &fast));
    let mut history = talk(3);
    let mut usage = Usage::default();
    let cancel = CancellationToken::new();
    let first = exchange.compact(&mut history, &mut usage, &cancel).await.unwrap();
    for message in talk(3).messages() {
        history.push(Arc::clone(message));
    }
    let second = exchange.compact(&mut history, &mut usage, &cancel).await.unwrap();
    assert!(second > first && history.messages().len() == 12);
    assert!(shown(&fast.asked()[1]).contains("first summary"));
    assert!(history.visible_messages()[0].text().contains("second summary"));
    assert_eq!(usage, Usage { input: 20, output: 10, cached: 0 }, "what it took is counted");
    stage.runtime.stop().await;
}

#[tokio::test]
async fn a_summary_that_fails_costs_no_turn() {
    let stage = Stage::new();
    let failures: Vec<Said> = vec![
        vec![Err(LlmError::Failed { model: "fast".into(), reason: "no credit".into() })],
        vec![Ok(StreamEvent::Text("  ".into())), done()],
        overflow(),
    ];
    for failure in failures {
        let model = Script::with_window(vec![says("yes")], 10_000);
        let fast = Script::new(vec![failure]);
        let exchange = stage.exchange("goose/planner", &model, TurnLimits::default()).await;
        let exchange = exchange.with_recovery(moderated(Moderator::Summarize, &fast));
        assert_eq!(ask(&exchange, &mut talk(5), "and now?").await, StopReason::EndTurn);
        let text = shown(&model.asked()[0]);
        assert!(text.contains("is left out") && text.ends_with("and now?") && !text.contains("question 0"), "{text}");
    }
    let notices = stage.ear.notices().join("\n");
    assert!(notices.contains("no credit") && notices.contains("said nothing"), "{notices}");
    stage.runtime.stop().await;
}

#[tokio::test]
async fn a_request_that_is_too_long_is_asked_again_with_less() {
    let stage = Stage::new();
    let model = Script::new(vec![overflow(), overflow(), says("at last")]);
    let exchange = stage.exchange("goose/planner", &model, TurnLimits::default()).await;
    let exchange = exchange.with_recovery(RecoveryPolicy { moderator: Moderator::Truncate, ..upkeep() });
    let mut history = talk(5);
    assert_eq!(ask(&exchange, &mut history, "and now?").await, StopReason::EndTurn);
    let lengths: Vec<_> = model.asked().iter().map(|request| shown(request).len()).collect();
    assert!(lengths[0] > lengths[1] && lengths[1] > lengths[2], "{lengths:?}");
    assert!(shown(&model.asked()[2]).ends_with("and now?"));
    assert_eq!(history.messages().len(), 12);
    stage.runtime.stop().await;
}

#[tokio::test]
async fn what_cannot_be_made_to_fit_ends_clearly() {
    let stage = Stage::new();
    let cases = [
        (Moderator::Passive, talk(5), 1, "the moderator is `passive`"),
        (Moderator::Truncate, History::default(), 1, "does not fit by itself"),
        (Moderator::Truncate, talk(5), 3, "too long even"),
    ];
    for (moderator, mut history, asked, says) in cases {
        let model = Script::new((0..asked).map(|_| overflow()).collect());
        let exchange = stage.exchange("goose/planner", &model, TurnLimits::default()).await;
        let exchange = exchange.with_recovery(RecoveryPolicy { moderator, ..upkeep() });
        let StopReason::Failed { why, .. } = ask(&exchange, &mut history, "and now?").await else { panic!("it fails") };
        assert!(why.contains("prompt is too long") && why.contains(says), "{why}");
        assert_eq!(model.asked().len(), asked);
    }
    stage.runtime.stop().await;
}

#[tokio::test]
async fn compaction_keeps_the_prompt_and_pairs_calls_with_results() {
    let stage = Stage::new();
    for number in 0..12 {
        std::fs::write(stage.session.cwd.join(format!("{number}.txt")), format!("file {number} {}", "x".repeat(4_000)))
            .unwrap();
    }
    let read = |number: usize| calls(&[("developer__read_file", json!({"path": format!("{number}.txt")}))]);
    let mut turns: Vec<_> = (0..12).map(read).collect();
    // The model's own count is so low that only its refusal counts.
    turns.insert(6, overflow());
    turns.insert(10, overflow());
    turns.push(says("done"));
    let model = Script::new(turns);
    let fast = Script::new(vec![says("files 0 and up were read"), says("more files were read")]);
    let exchange = stage.exchange("coding/security", &model, TurnLimits::default()).await;
    let exchange = exchange.with_recovery(moderated(Moderator::Summarize, &fast));
    let mut history = talk(1);
    assert_eq!(ask(&exchange, &mut history, "read every file, mind the ORCHID").await, StopReason::EndTurn);
    for request in model.asked() {
        assert_whole(&request);
        assert!(shown(&request).contains("mind the ORCHID"), "the prompt is always shown");
    }
    assert!(shown(model.asked().last().unwrap()).contains("more files were read"));
    assert_eq!(history.messages().len(), 2 + 1 + 24 + 1, "the history stays whole");
    stage.runtime.stop().await;
}
