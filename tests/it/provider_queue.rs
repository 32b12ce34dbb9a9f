//! Many sessions of one process share the limits of a provider: requests wait, nobody is refused, nobody starves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::support::Sandbox;
use crate::support::acp::Acp;
use crate::support::model::{Answer, ScriptedModel};

/// A provider that refuses what exceeds five requests at once. Returns how many it had at once at most, and refused.
fn narrow_provider() -> (ScriptedModel, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (running, most, refused) = (AtomicUsize::new(0), Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (peak, count) = (Arc::clone(&most), Arc::clone(&refused));
    let model = ScriptedModel::new(move |_| {
        let now = running.fetch_add(1, Ordering::SeqCst) + 1;
        let answer = if now > 5 {
            count.fetch_add(1, Ordering::SeqCst);
            Answer::Status(429)
        } else {
            peak.fetch_max(now, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(30));
            Answer::Says(vec!["answered".to_owned()])
        };
        running.fetch_sub(1, Ordering::SeqCst);
        answer
    });
    (model, most, refused)
}

fn prompt_all(sandbox: &Sandbox, model: &ScriptedModel, sessions: usize) {
    let mut client = Acp::launch(sandbox, model.offered_to(sandbox.command(&["acp", "-a", "goose"])));
    client.introduce(&json!({}));
    let sessions: Vec<_> = (0..sessions).map(|_| client.session()).collect();
    let prompts: Vec<_> = sessions.iter().map(|session| client.begin(session, "hello")).collect();
    for prompt in &prompts {
        assert_eq!(client.ended(prompt), "end_turn");
    }
}

#[test]
fn two_hundred_sessions_share_five_requests() {
    let sandbox = Sandbox::new();
    let (model, most, _) = narrow_provider();
    prompt_all(&sandbox, &model, 200);
    assert!(most.load(Ordering::SeqCst) > 1, "the sessions take turns, and not one after the other");
}

#[test]
fn with_a_limit_in_the_config_the_provider_refuses_nothing() {
    let sandbox = Sandbox::new();
    sandbox.write("config/config.yaml", "version: 1\nproviders: {openai: {limits: {concurrency: 5}}}\n");
    let (model, most, refused) = narrow_provider();
    prompt_all(&sandbox, &model, 60);
    assert_eq!(refused.load(Ordering::SeqCst), 0);
    // A busy machine may not have all five at the same moment.
    let most = most.load(Ordering::SeqCst);
    assert!((2..=5).contains(&most), "{most} requests at once");
}

#[test]
fn a_waiting_session_says_so_and_can_be_cancelled() {
    let sandbox = Sandbox::new();
    sandbox.write("config/config.yaml", "version: 1\nproviders: {openai: {limits: {concurrency: 1}}}\n");
    let model = ScriptedModel::new(|_| Answer::Hangs("thinking"));
    let mut client = Acp::launch(&sandbox, model.offered_to(sandbox.command(&["acp", "-a", "goose"])));
    client.introduce(&json!({}));
    let (first, second) = (client.session(), client.session());
    let mark = client.mark();
    let running = client.begin(&first, "hello");
    client.wait_update(mark, &first, "agent_message_chunk");
    let waiting = client.begin(&second, "hello");
    client.wait(mark, "a notice about the queue", |message| {
        let is_second = message["params"]["sessionId"] == json!(second);
        is_second
            && message.to_string().contains("waiting for the model `openai:scripted`: 1 requests are in the queue")
    });
    for (session, prompt) in [(&second, &waiting), (&first, &running)] {
        client.cancel(session);
        assert_eq!(client.ended(prompt), "cancelled");
    }
    assert_eq!(model.requests().len(), 1, "the request that was cancelled in the queue was never sent");
}
