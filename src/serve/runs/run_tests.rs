//! Tests of runs: their status, events and questions.

use std::path::PathBuf;

use serde_json::Value;

use super::super::questions::{QuestionMessage, QuestionOptions};
use super::*;
use crate::conversation::{Content, Message, MessagePart, Role, Usage};
use crate::ids::{AgentName, ModeSlug};
use crate::principal::TokenLimits;
use crate::tool::ask::PermissionResponse;

fn run() -> AgentRun {
    let owner = RunOwner {
        principal: Principal::new("ana").unwrap(),
        token: "000000000000".to_owned(),
        agent: "coding-backend".to_owned(),
        mode: ModeId::new(AgentName::new("coding"), ModeSlug::new("backend")),
        session: "s".to_owned(),
        roots: SessionRoots::here(PathBuf::from("/srv/shop"), Vec::new()),
    };
    AgentRun::new(owner, CancellationToken::new())
}

fn kinds(run: &AgentRun) -> Vec<&'static str> {
    let kind = |event: &RunEvent| match event {
        RunEvent::Status(state) => state.status.as_str(),
        RunEvent::MessageCreated { .. } => "message",
        RunEvent::Part { .. } => "part",
        RunEvent::MessageCompleted(_) => "completed message",
        RunEvent::Notice(_) => "notice",
    };
    run.events().iter().map(kind).collect()
}

fn status(run: &AgentRun) -> &'static str {
    run.snapshot().status.as_str()
}

fn end(ending: StopReason) -> TurnEnd {
    TurnEnd { ending, usage: Usage::default() }
}

fn permission(run: &AgentRun) -> (u64, oneshot::Receiver<QuestionAnswer>) {
    run.ask(|number, answer| RunQuestion {
        message: Arc::new(QuestionMessage { text: "May I?".to_owned(), details: Value::Null, number }),
        options: QuestionOptions::new(vec![(
            "allow".to_owned(),
            QuestionAnswer::Permission(PermissionResponse::Allow),
        )]),
        answer,
    })
}

#[test]
fn streamed_text_is_part_of_the_output_once() {
    let run = run();
    run.start();
    run.status(StatusUpdate::Text("Hel".to_owned()));
    run.status(StatusUpdate::Text("lo".to_owned()));
    let parts = vec![MessagePart::Content(Content::text("Hello"))];
    run.log(Event::Message { message: Arc::new(Message { role: Role::Assistant, parts }) });
    run.finish(Ok(&end(StopReason::EndTurn)));
    let expected = ["created", "in-progress", "message", "part", "completed message", "completed"];
    assert_eq!(kinds(&run), expected);
    let state = run.snapshot();
    assert_eq!((state.output[0].parts.as_slice(), state.draft), ([RunPart::Text("Hello".to_owned())].as_slice(), None));
}

#[tokio::test]
async fn text_is_one_event_and_each_client_gets_what_is_new() {
    let run = run();
    run.start();
    let text = async |position| match run.next_event(position, StreamEnd::Stop).await {
        Some((RunEvent::Part { part: RunPart::Text(text), .. }, next)) => (text, next),
        other => panic!("no text: {other:?}"),
    };
    let start = run.event_end();
    run.status(StatusUpdate::Text("Hé".to_owned()));
    let (_, first) = run.next_event(start, StreamEnd::Stop).await.unwrap();
    let (new, early) = text(first).await;
    assert_eq!((new.as_str(), early), ("Hé", run.event_end()));
    (0..100_000).for_each(|_| run.status(StatusUpdate::Text("lo".to_owned())));
    let (new, early) = text(early).await;
    assert_eq!(new, "lo".repeat(100_000));
    assert_eq!(text(first).await.0, format!("Hé{new}"), "a late client gets all at once");
    assert_eq!(kinds(&run), ["created", "in-progress", "message", "part"]);
    run.status(StatusUpdate::Notice(crate::tool::Notice::new("a remark")));
    run.status(StatusUpdate::Text("end".to_owned()));
    let (notice, after) = run.next_event(early, StreamEnd::Stop).await.unwrap();
    assert!(matches!(notice, RunEvent::Notice(_)), "{notice:?}");
    assert_eq!(text(after).await.0, "end");
    run.finish(Ok(&end(StopReason::EndTurn)));
    assert_eq!(kinds(&run)[2..], ["message", "part", "notice", "part", "completed message", "completed"]);
}

#[test]
fn a_question_is_answered_once_with_one_of_its_options() {
    let run = run();
    run.start();
    let (_, mut first) = permission(&run);
    let (second, _) = permission(&run);
    assert_eq!((status(&run), run.snapshot().question.map(|question| question.number)), ("awaiting", Some(0)));
    assert!(run.resume("perhaps").is_err());
    assert!(run.resume(" Allow\n").is_ok());
    assert!(matches!(first.try_recv(), Ok(QuestionAnswer::Permission(PermissionResponse::Allow))));
    assert_eq!(status(&run), "awaiting", "the second question is open");
    run.withdraw(second);
    assert_eq!((status(&run), run.snapshot().question), ("in-progress", None));
    assert!(run.resume("allow").is_err());
}

#[test]
fn a_run_that_has_ended_stays_as_it_is() {
    let run = run();
    run.start();
    run.status(StatusUpdate::Text("Hel".to_owned()));
    assert!(run.cancel().is_ok() && run.cancel.is_cancelled());
    assert_eq!((status(&run), run.snapshot().draft.as_deref()), ("cancelling", Some("Hel")));
    run.finish(Ok(&end(StopReason::Cancelled)));
    run.finish(Err(&TurnFailure("late".to_owned())));
    assert_eq!(status(&run), "cancelled");
    assert_eq!(run.snapshot().output[0].parts, [RunPart::Text("Hel".to_owned())]);
    assert!(run.cancel().is_err());
}

#[test]
fn a_run_exists_for_its_principal_within_its_limits() {
    let grant = |name: &str, modes: &[&str], root: &str| {
        let modes = modes.iter().map(|&glob| glob.to_owned()).collect();
        let limits = TokenLimits { modes, roots: vec![PathBuf::from(root)], ..TokenLimits::default() };
        SessionGrant::new(Principal::new(name).unwrap(), limits)
    };
    let run = run();
    assert!(run.is_visible(&grant("ana", &[], "/srv")));
    assert!(!run.is_visible(&grant("bob", &[], "/srv")));
    assert!(!run.is_visible(&grant("ana", &["coding/qa"], "/srv")));
    assert!(!run.is_visible(&grant("ana", &[], "/other")));
}
