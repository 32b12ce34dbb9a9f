//! What viewers are shown that attach at different moments.

use std::sync::{Arc, Mutex};

use super::{LiveSession, SessionViewer, StaleEventsError, TurnFailure};
use crate::agents::{Event, Notifier, StatusUpdate, StopReason, TurnEnd};
use crate::conversation::{Content, Message, MessagePart, Role, Usage};

/// A viewer that writes down what it shows.
#[derive(Default)]
struct Screen(Mutex<Vec<String>>);

impl Screen {
    fn write(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// All text that was shown, whether it was streamed, replayed or both.
    fn text(&self) -> String {
        let lines = self.lines();
        lines.iter().filter_map(|line| line.split_once(": ").map(|(_, text)| text.to_owned())).collect()
    }
}

impl Notifier for Screen {
    fn log(&self, event: Event) {
        // As in a real client, the text of an answer was streamed before.
        if let Event::Message { message } = event {
            self.write(format!("stored {:?}", message.role));
        }
    }

    fn status(&self, status: StatusUpdate) {
        if let StatusUpdate::Text(text) = status {
            self.write(format!("streamed: {text}"));
        }
    }
}

impl SessionViewer for Screen {
    fn replay(&self, events: &[Event], is_running: bool) {
        for event in events {
            if let Event::Message { message } = event {
                self.write(format!("replayed ({is_running}): {}", message.text()));
            }
        }
    }

    fn follow(&self, events: &[Event]) {
        self.write(format!("follows {} events", events.len()));
    }

    fn end_turn(&self, end: Result<&TurnEnd, &TurnFailure>) {
        self.write(match end {
            Ok(end) => format!("ended {:?}", end.ending),
            Err(reason) => format!("failed {reason}"),
        });
    }
}

fn message(role: Role, text: &str) -> Event {
    Event::Message { message: Arc::new(Message { role, parts: vec![MessagePart::Content(Content::text(text))] }) }
}

fn text(text: &str) -> StatusUpdate {
    StatusUpdate::Text(text.to_owned())
}

fn end() -> TurnEnd {
    TurnEnd { ending: StopReason::EndTurn, usage: Usage::default() }
}

fn attach(live: &LiveSession, id: u64, stored: &[Event], replay: bool) -> Arc<Screen> {
    let screen = Arc::new(Screen::default());
    live.attach(id, Arc::clone(&screen) as Arc<dyn SessionViewer>, stored, replay, live.version()).unwrap();
    screen
}

type TurnStep = Box<dyn Fn(&LiveSession)>;

/// Whenever a viewer attaches, it shows each piece of the turn once and in order.
#[test]
fn a_viewer_that_attaches_at_any_moment_shows_everything_once() {
    let before = [message(Role::User, "earlier. ")];
    let steps: Vec<TurnStep> = vec![
        Box::new(|live| live.log(message(Role::User, "prompt. "))),
        Box::new(|live| live.status(text("one "))),
        Box::new(|live| live.status(text("two. "))),
        Box::new(|live| live.log(message(Role::Assistant, "one two. "))),
        Box::new(|live| live.status(text("three. "))),
        Box::new(|live| live.log(message(Role::Assistant, "three. "))),
    ];
    for moment in 0..=steps.len() {
        let live = LiveSession::default();
        attach(&live, 1, &before, false);
        live.begin(1, before.len());
        steps[..moment].iter().for_each(|step| step(&live));
        let screen = attach(&live, 2, &before, true);
        steps[moment..].iter().for_each(|step| step(&live));
        live.end(Ok(&end()));
        assert_eq!(screen.text(), "earlier. prompt. one two. three. ", "attached after {moment} steps");
        assert_eq!(screen.lines().last().unwrap(), "ended EndTurn");
    }
}

#[test]
fn the_author_of_a_turn_is_not_told_its_prompt_and_its_end() {
    let live = LiveSession::default();
    let author = attach(&live, 1, &[], true);
    live.begin(1, 0);
    live.log(message(Role::User, "prompt"));
    live.end(Err(&TurnFailure("broken".to_owned())));
    assert_eq!(author.lines(), ["stored User"]);
}

#[test]
fn a_viewer_without_replay_gets_what_comes_after() {
    let live = LiveSession::default();
    live.begin(1, 0);
    live.log(message(Role::User, "prompt"));
    live.status(text("lost "));
    let screen = attach(&live, 2, &[], false);
    live.status(text("seen"));
    live.end(Err(&TurnFailure("broken".to_owned())));
    assert_eq!(screen.lines(), ["follows 1 events", "streamed: seen", "failed broken"]);
}

#[test]
fn events_that_were_read_before_a_turn_ended_are_stale() {
    let live = LiveSession::default();
    live.begin(1, 0);
    let version = live.version();
    live.end(Ok(&end()));
    let screen: Arc<dyn SessionViewer> = Arc::new(Screen::default());
    assert_eq!(live.attach(2, screen, &[], true, version), Err(StaleEventsError));
    assert!(live.detach(2), "nobody is attached");
}

#[test]
fn a_connection_that_attaches_again_sees_updates_once() {
    let live = LiveSession::default();
    let first = attach(&live, 1, &[], true);
    let second = attach(&live, 1, &[], true);
    live.status(text("once"));
    assert_eq!((first.lines().len(), second.text()), (0, "once".to_owned()));
    assert!(live.has_others(2) && !live.has_others(1));
}

#[test]
fn a_turn_tells_its_first_answer_or_its_end() {
    let live = LiveSession::default();
    let answered = live.begin(1, 0);
    live.log(message(Role::User, "prompt"));
    live.status(text("half"));
    assert!(!answered.is_cancelled(), "the answer is not complete");
    live.log(message(Role::Assistant, "half an answer"));
    assert!(answered.is_cancelled());
    let failed = live.begin(1, 0);
    live.log(message(Role::User, "prompt"));
    assert!(!failed.is_cancelled());
    live.end(Err(&TurnFailure("broken".to_owned())));
    assert!(failed.is_cancelled());
}
