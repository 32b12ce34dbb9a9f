//! Questions to several clients.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use super::SharedAsker;
use crate::tool::ask::{Asker, ConsentSubject, PermissionRequest, PermissionResponse};

/// A client that answers when the test tells it to, and reports whether its request was withdrawn.
struct Client {
    asked: mpsc::UnboundedSender<oneshot::Sender<PermissionResponse>>,
}

fn client() -> (Arc<Client>, mpsc::UnboundedReceiver<oneshot::Sender<PermissionResponse>>) {
    let (asked, requests) = mpsc::unbounded_channel();
    (Arc::new(Client { asked }), requests)
}

impl Asker for Client {
    fn ask(&self, _: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        let (answer, answered) = oneshot::channel();
        self.asked.send(answer).expect("the test listens");
        Box::pin(async move { answered.await.unwrap_or(PermissionResponse::Unavailable) })
    }
}

fn question() -> PermissionRequest {
    PermissionRequest {
        call: None,
        by: None,
        apart: None,
        chain: Vec::new(),
        tool: "developer__shell".to_owned(),
        title: None,
        arguments: serde_json::Map::new(),
        target: None,
        change: None,
        protected: None,
        always: ConsentSubject::of_host("developer__shell", "host"),
        rule: None,
    }
}

#[tokio::test]
async fn the_first_answer_counts_and_the_other_request_is_withdrawn() {
    let shared = SharedAsker::new(Duration::ZERO);
    let ((first, mut first_requests), (second, mut second_requests)) = (client(), client());
    shared.attach(1, first);
    shared.attach(2, second);
    let mut asking = shared.ask(question());
    assert!((&mut asking).now_or_never().is_none());
    let (open, answer) = (first_requests.try_recv().unwrap(), second_requests.try_recv().unwrap());
    answer.send(PermissionResponse::Allow).unwrap();
    assert_eq!(asking.await, PermissionResponse::Allow);
    assert!(open.is_closed(), "the first client is no longer asked");
}

#[tokio::test]
async fn a_client_that_attaches_later_is_asked_too() {
    let shared = SharedAsker::new(Duration::from_secs(60));
    let (first, mut first_requests) = client();
    shared.attach(1, first);
    let mut asking = shared.ask(question());
    assert!((&mut asking).now_or_never().is_none());
    // The connection is lost, and the client comes back on a new one.
    drop(first_requests.try_recv().unwrap());
    shared.detach(1);
    assert!((&mut asking).now_or_never().is_none());
    let (second, mut second_requests) = client();
    shared.attach(2, second);
    assert!((&mut asking).now_or_never().is_none());
    second_requests.try_recv().unwrap().send(PermissionResponse::Refuse).unwrap();
    assert_eq!(asking.await, PermissionResponse::Refuse);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stays_and_does_not_answer_ends_the_question() {
    let shared = SharedAsker::new(Duration::from_secs(1800));
    let (client, mut requests) = client();
    shared.attach(1, client);
    let mut asking = shared.ask(question());
    assert!((&mut asking).now_or_never().is_none());
    drop(requests.try_recv().unwrap());
    let start = tokio::time::Instant::now();
    assert_eq!(asking.await, PermissionResponse::Unavailable);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn without_a_client_a_question_waits_and_is_then_unanswered() {
    for (patience, waited) in [(0, 0), (1800, 1800)] {
        let shared = SharedAsker::new(Duration::from_secs(patience));
        let start = tokio::time::Instant::now();
        assert_eq!(shared.ask(question()).await, PermissionResponse::Unavailable);
        assert_eq!(start.elapsed().as_secs(), waited);
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_may_answer_and_is_not_waited_for() {
    let shared = SharedAsker::new(Duration::from_secs(1800));
    let (observer, mut seen) = client();
    shared.set_observer(observer);
    let mut asking = shared.ask(question());
    assert!((&mut asking).now_or_never().is_none());
    seen.try_recv().unwrap().send(PermissionResponse::Allow).unwrap();
    assert_eq!(asking.await, PermissionResponse::Allow, "it answers although no client is there");
    // A client that cannot answer ends the question, although the observer still could.
    let (client, mut requests) = client();
    shared.attach(1, client);
    let mut asking = shared.ask(question());
    assert!((&mut asking).now_or_never().is_none());
    drop(requests.try_recv().unwrap());
    assert_eq!(asking.await, PermissionResponse::Unavailable);
    assert!(seen.try_recv().unwrap().is_closed(), "the observer's request is withdrawn");
}
