//! What is recalled for a prompt, over a real store.

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;
use crate::agents::Event;
use crate::conversation::{Content, Message, MessagePart, Role};
use crate::store::{NewEvent, NewSession, SessionStore};

struct Past {
    store: SessionStore,
    cwd: PathBuf,
    _folder: tempfile::TempDir,
}

fn past() -> Past {
    let folder = tempfile::tempdir().unwrap();
    let cwd = folder.path().join("project");
    std::fs::create_dir_all(cwd.join(".git")).unwrap();
    let cwd = cwd.canonicalize().unwrap();
    Past { store: SessionStore::open(&folder.path().join("data")).unwrap(), cwd, _folder: folder }
}

/// As a session records it.
fn said(role: Role, text: &str) -> NewEvent {
    let message = Message { role, parts: vec![MessagePart::Content(Content::text(text))] };
    let event = Event::Message { message: std::sync::Arc::new(message) };
    NewEvent { kind: "message".into(), body: serde_json::to_string(&event).unwrap(), text: Some(text.to_owned()) }
}

fn taken_back(events: usize) -> NewEvent {
    let body = serde_json::to_string(&Event::Undone { events }).unwrap();
    NewEvent { kind: "undone".into(), body, text: None }
}

impl Past {
    async fn session_in(&self, cwd: &Path, events: Vec<NewEvent>) -> String {
        let new = NewSession {
            cwd: cwd.to_owned(),
            roots: Vec::new(),
            agent: "goose".to_owned(),
            mode: "assistant".to_owned(),
            model: "offline".to_owned(),
            approval: None,
            parent: None,
            files: crate::principal::SessionFiles::Server,
        };
        let id = self.store.create(new).await.unwrap();
        events.into_iter().for_each(|event| self.store.append(&id, event));
        // As at the end of a turn.
        self.store.flush(&id).await.unwrap();
        id
    }

    async fn session(&self, asked: &str, answered: &str) -> String {
        self.session_in(&self.cwd, vec![said(Role::User, asked), said(Role::Assistant, answered)]).await
    }

    fn project(&self) -> impl FnOnce() -> FolderFilter + Send + 'static {
        let folder = self.cwd.clone();
        move || store::sessions_of_project(&folder)
    }

    async fn about(&self, prompt: &str) -> Vec<RecallExcerpt> {
        extract(&self.store, prompt, self.project(), &[]).await
    }
}

#[tokio::test]
async fn a_piece_says_what_was_asked_and_answered_and_where() {
    let past = past();
    let id =
        past.session("Why does the zebra importer fail at night?", "Its index is stale until the cron job ran.").await;
    past.session("What is the capital of France?", "Paris.").await;
    let pieces = past.about("The zebra importer fails again, please fix it").await;
    let [piece] = pieces.as_slice() else { panic!("one piece: {pieces:?}") };
    let day = clock::date(clock::now());
    assert_eq!(piece.citation, format!("[session {}, {day}, message 1]", &id[..10]));
    let expected =
        "asked: Why does the zebra importer fail at night? — answered: Its index is stale until the cron job ran.";
    assert_eq!(piece.text, expected);
    assert_eq!(past.store.resolve(&id[..10]).await.unwrap(), Some(id), "the id that is cited can be read");
}

#[tokio::test]
async fn nothing_is_better_than_noise() {
    let past = past();
    past.session("Why does the zebra importer fail at night?", "Its index is stale.").await;
    for prompt in [
        "",
        "hello",
        "please make it work",
        "what about the importer",
        "Write a haiku about autumn leaves, wind, rain, clouds, mountains and the night",
        "Warum schläft der Hund so lange?",
        "\"' OR NEAR( * ^ -- ;",
    ] {
        assert_eq!(past.about(prompt).await, [], "{prompt}");
    }
}

#[tokio::test]
async fn words_that_everyone_uses_are_not_enough_and_a_rare_one_is() {
    let past = past();
    for number in 0..150 {
        past.session_in(&past.cwd, vec![said(Role::User, &format!("update the server module number{number}"))]).await;
    }
    let id = past.session("update the server module for kubernetes", "Use the chart in deploy/.").await;
    for number in 150..300 {
        past.session_in(&past.cwd, vec![said(Role::User, &format!("update the server module number{number}"))]).await;
    }
    assert_eq!(past.about("update the server module").await, [], "they say nothing");
    let pieces = past.about("where is the kubernetes setup").await;
    assert!(pieces[0].citation.contains(&id[..10]), "{pieces:?}");
}

#[tokio::test]
async fn other_projects_this_session_and_what_was_taken_back_stay_out() {
    let past = past();
    let question = "why does the zebra importer fail";
    let elsewhere = tempfile::tempdir().unwrap();
    past.session_in(elsewhere.path(), vec![said(Role::User, question)]).await;
    past.session_in(&past.cwd, vec![said(Role::User, question), taken_back(0)]).await;
    let own = past.session_in(&past.cwd, vec![said(Role::User, question)]).await;
    let pieces = extract(&past.store, question, past.project(), std::slice::from_ref(&own)).await;
    assert_eq!(pieces, []);
    assert_eq!(past.about(question).await.len(), 1);
    let below = past.session_in(&past.cwd.join("inner"), vec![said(Role::User, &format!("{question} below"))]).await;
    assert_eq!(extract(&past.store, question, past.project(), &[own]).await[0].citation[9..19], below[..10]);
}

/// The number of an undo is the number of events whose state it restores.
#[tokio::test]
async fn an_undo_that_was_reversed_hides_nothing() {
    let question = "why does the zebra importer fail";
    for (undos, expected) in [(vec![0], 0), (vec![0, 1], 1), (vec![0, 1, 0], 0), (vec![0, 1, 2], 0), (vec![0, 0, 2], 0)]
    {
        let past = past();
        let mut events = vec![said(Role::User, question)];
        events.extend(undos.iter().copied().map(taken_back));
        past.session_in(&past.cwd, events).await;
        assert_eq!(past.about(question).await.len(), expected, "{undos:?}");
    }
}

#[tokio::test]
async fn secrets_are_not_told_again() {
    let past = past();
    let key = concat!("Zx8Qp2Lm9Rt4", "Vw7Yb1Nc6Kd3");
    past.session("how do I reach the zebra importer", &format!("Use {key} as the token.")).await;
    past.session(&format!("the zebra importer wants password: {key}"), "Noted.").await;
    let far = format!("the zebra importer {} {key}", "is slow and ".repeat(60));
    past.session("how do I reach the zebra importer today", &far).await;
    let pieces = past.about("how to reach the zebra importer").await;
    assert!(pieces.iter().all(|piece| !piece.text.contains("Zx8Q")), "{pieces:?}");
    assert_eq!(pieces.len(), 1, "what is far from a secret is told: {pieces:?}");
}

#[tokio::test]
async fn recall_returns_at_most_three_excerpts_and_1500_bytes() {
    let past = past();
    for number in 0..6 {
        let long = format!("zebra importer {number} {}", "wörter und wörter ".repeat(100));
        past.session(&format!("{} the zebra importer {number}", "before ".repeat(60)), &long).await;
    }
    past.store.copy(&past.session("the zebra importer once", "said").await).await.unwrap();
    let pieces = past.about("zebra importer").await;
    assert_eq!(pieces.len(), MAX_EXCERPTS);
    let bytes: usize = pieces.iter().map(|piece| piece.line().len() + 1).sum();
    assert!(bytes <= MAX_BYTES, "{bytes}");
    for piece in &pieces {
        assert!(piece.text.contains("zebra importer") && !piece.text.contains('\n'), "{piece:?}");
    }
    let sessions: HashSet<_> = pieces.iter().map(|piece| &piece.text).collect();
    assert_eq!(sessions.len(), MAX_EXCERPTS, "a copy says nothing new");
    assert_eq!(pieces, past.about("zebra importer").await, "the same again");
}

#[test]
fn a_rare_word_alone_weighs_enough_and_rarer_ones_more() {
    assert!(weight(MAX_RARE_COUNT) >= MIN_WEIGHT);
    assert!((1..COUNTED).all(|messages| weight(messages) > weight(messages + 1)));
}

#[test]
fn an_excerpt_of_a_long_message_is_around_the_word() {
    let filler = "nothing to see here ".repeat(1_000);
    let quoted = excerpt(&format!("{filler}the Zebras drink\n\ntea {filler}"), &["zebra"], 40);
    assert_eq!(quoted.as_deref(), Some("…here the Zebras drink tea nothing to…"));
    // Characters that are not shown could hide that a secret is cut.
    let hidden = "\u{200B}".repeat(5_000);
    assert_eq!(excerpt(&format!("{filler}{hidden}zebra{hidden}{filler}"), &["zebra"], 40), None);
}

proptest! {
    #[test]
    fn excerpt_is_bounded_and_has_no_control_characters(text in "(?s).{0,400}", length in 1_usize..200) {
        if let Some(excerpt) = excerpt(&text, &["zebra"], length) {
            prop_assert!(excerpt.chars().count() <= length + 2, "{excerpt:?}");
            prop_assert!(!excerpt.contains(char::is_control));
        }
    }
}
