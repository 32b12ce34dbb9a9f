//! Turns, limits and pauses of the queue of a provider key.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use proptest::prelude::*;
use tokio::time::Instant;

use super::{QueueTicket, RequestLimits, RequestOrigin, RequestPlace, RequestQueue, RequestQueues};

fn queue(limits: RequestLimits) -> RequestQueue {
    RequestQueues::default().queue("http://model.test/v1/", Some("key"), limits)
}

fn at_most(concurrency: u32) -> RequestQueue {
    queue(RequestLimits { concurrency: Some(concurrency), ..RequestLimits::default() })
}

fn origin(principal: &str, session: usize) -> RequestOrigin {
    RequestOrigin { principal: principal.into(), session: session.to_string().into() }
}

/// Returns the place of the ticket if it is the request's turn already.
fn turn(ticket: &mut QueueTicket) -> Option<RequestPlace> {
    ticket.place().now_or_never()
}

/// Moves the requests whose turn it is from `waiting` to `running`.
fn start(waiting: &mut Vec<QueueTicket>, running: &mut Vec<RequestPlace>) {
    waiting.retain_mut(|ticket| turn(ticket).map(|place| running.push(place)).is_none());
}

#[tokio::test]
async fn a_second_principal_waits_at_most_for_the_limit() {
    let queue = at_most(4);
    let mut crowd: Vec<_> = (0..100).map(|session| queue.enter(&origin("many", session))).collect();
    let mut running = Vec::new();
    start(&mut crowd, &mut running);
    assert_eq!(running.len(), 4);
    let mut single = queue.enter(&origin("single", 0));
    let mut waited = 0;
    let place = loop {
        if let Some(place) = turn(&mut single) {
            break place;
        }
        drop(running.pop().expect("a request that ends"));
        waited += 1;
        start(&mut crowd, &mut running);
    };
    assert!(waited <= 4, "it waited for {waited} requests");
    drop(place);
}

#[tokio::test]
async fn sessions_of_one_principal_take_turns() {
    let queue = at_most(1);
    let first = turn(&mut queue.enter(&origin("one", 0))).expect("a free place");
    let mut busy: Vec<_> = (0..3).map(|_| queue.enter(&origin("one", 1))).collect();
    let mut other = queue.enter(&origin("one", 2));
    drop(first);
    drop(turn(&mut busy[0]).expect("the session that came first"));
    drop(turn(&mut other).expect("then the other session, before the rest of the first"));
    drop(turn(&mut busy[1]).expect("then the first again"));
}

#[tokio::test]
async fn a_dropped_request_gives_its_place_back() {
    let queue = at_most(1);
    let running = queue.enter(&origin("one", 0));
    let waiting = queue.enter(&origin("one", 1));
    let mut last = queue.enter(&origin("one", 2));
    assert_eq!(last.waiting(), 2);
    drop(waiting);
    assert_eq!(last.waiting(), 1);
    // The first ticket has its place, and nobody took it.
    drop(running);
    assert!(turn(&mut last).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_pauses_only_its_own_key() {
    let queues = RequestQueues::default();
    let (limited, other) = (("http://a/", "key 1"), ("http://a/", "key 2"));
    let make = |(address, key): (&str, &str)| queues.queue(address, Some(key), RequestLimits::default());
    turn(&mut make(limited).enter(&origin("one", 0))).expect("a place").note_refusal(Some(Duration::from_secs(7)));
    assert!(turn(&mut make(other).enter(&origin("one", 0))).is_some(), "another key goes on");
    let start = Instant::now();
    let mut ticket = make(limited).enter(&origin("one", 0));
    drop(ticket.place().await);
    assert_eq!(start.elapsed().as_secs(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_pauses_its_key_for_a_minute_at_most() {
    let queue = at_most(1);
    for (retry_after, expected) in [(Duration::ZERO, 0), (Duration::ZERO, 1), (Duration::MAX, 60)] {
        turn(&mut queue.enter(&origin("one", 0))).expect("a place").note_refusal(Some(retry_after));
        let start = Instant::now();
        drop(queue.enter(&origin("one", 0)).place().await);
        assert_eq!(start.elapsed().as_secs(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn requests_and_tokens_of_a_minute_are_limited() {
    let limits = RequestLimits { requests_per_minute: Some(2), ..RequestLimits::default() };
    let by_requests = queue(limits);
    let start = Instant::now();
    for expected in [0, 0, 60, 60, 120] {
        drop(by_requests.enter(&origin("one", 0)).place().await);
        assert_eq!(start.elapsed().as_secs(), expected);
    }
    let by_tokens = queue(RequestLimits { tokens_per_minute: Some(1000), ..RequestLimits::default() });
    let start = Instant::now();
    for expected in [0, 0, 60] {
        let mut place = by_tokens.enter(&origin("one", 0)).place().await;
        assert_eq!(start.elapsed().as_secs(), expected);
        place.note_answer(600);
    }
}

/// Plays 200 sessions of a provider that admits five requests at a time. `begins`: it begins to answer before it refuses.
async fn learns_the_limit_of_a_provider(begins: bool) {
    let queue = queue(RequestLimits::default());
    let free = Arc::new(tokio::sync::Semaphore::new(5));
    let sessions = (0..200).map(|session| {
        let (queue, free) = (queue.clone(), Arc::clone(&free));
        async move {
            let mut refusals = 0;
            loop {
                let mut place = queue.enter(&origin("one", session)).place().await;
                tokio::time::sleep(Duration::from_millis(20)).await;
                match free.try_acquire() {
                    Ok(_admitted) => {
                        place.note_start();
                        tokio::time::sleep(Duration::from_millis(200)).await;
                        place.note_answer(10);
                        return refusals;
                    }
                    Err(_) => {
                        if begins {
                            place.note_start();
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                        place.note_refusal(None);
                        refusals += 1;
                    }
                }
            }
        }
    });
    let refusals: Vec<u32> = futures::future::join_all(sessions).await;
    let worst = refusals.iter().max().expect("sessions");
    assert!(*worst <= 4, "a session was refused {worst} times");
    assert!(queue.lock().learnt.is_some_and(|limit| limit <= 6), "{:?}", queue.lock().learnt);
}

#[tokio::test(start_paused = true)]
async fn the_queue_learns_how_many_requests_a_provider_admits() {
    learns_the_limit_of_a_provider(false).await;
}

#[tokio::test(start_paused = true)]
async fn refusals_in_the_middle_of_an_answer_teach_the_queue_too() {
    learns_the_limit_of_a_provider(true).await;
}

proptest! {
    /// Whatever order requests come, end and are dropped in: the limit holds, and nobody is forgotten.
    #[test]
    fn the_limit_holds_and_every_request_gets_its_turn(
        limit in 1_u32..5,
        steps in prop::collection::vec((0_u8..3, 0_usize..4, 0_usize..4), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _entered = runtime.enter();
        let queue = at_most(limit);
        let (mut tickets, mut places) = (Vec::new(), Vec::new());
        for (step, principal, session) in steps {
            match step {
                0 => tickets.push(queue.enter(&origin(&principal.to_string(), session))),
                1 if !places.is_empty() => drop(places.swap_remove(session % places.len())),
                2 if !tickets.is_empty() => drop(tickets.swap_remove(session % tickets.len())),
                _ => {}
            }
            start(&mut tickets, &mut places);
            prop_assert!(places.len() <= limit as usize);
            prop_assert!(tickets.is_empty() || places.len() == limit as usize, "a free place and somebody waits");
        }
        while !tickets.is_empty() {
            places.pop();
            let before = tickets.len();
            start(&mut tickets, &mut places);
            prop_assert!(tickets.len() < before, "a request never gets its turn");
        }
    }
}
