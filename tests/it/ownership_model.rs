//! A model of how a replica loses a session to another one, explored in all its states. The replica may be paused, lose
//! messages in both directions, and see its messages arrive late. `tests/it/ownership.rs` drives the real store.

use std::collections::HashSet;

/// All times are ticks.
const EXPIRY: u8 = 3;
const MARGIN: u8 = 1;
/// How far the clock of the database may jump, once.
const JUMP: u8 = 4;
const MAX_TIME: u8 = 4;
const MAX_EPOCH: u8 = 3;
const MAX_WRITES: u8 = 2;
const MAX_PLACES: u8 = 2;

/// The rules that the real store keeps. Without one of them, the exploration must find a fault.
#[derive(Debug, Clone, Copy)]
struct Rules {
    /// A write needs the epoch of the last claim.
    has_epochs: bool,
    /// A write has a number, and none is written twice.
    has_numbers: bool,
    /// The store remembers the result of a write, also a refusal.
    keeps_results: bool,
    /// The deadline counts from when a heartbeat was sent, and not from its answer.
    counts_from_sending: bool,
}

const ALL_RULES: Rules = Rules { has_epochs: true, has_numbers: true, keeps_results: true, counts_from_sending: true };

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Owner {
    Nobody,
    /// The replica under test, in this place.
    Tested(u8),
    Other,
}

/// What the database answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Reply {
    Done,
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Write {
    epoch: u8,
    number: u8,
}

/// The replica under test, and the messages between it and the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Tested {
    is_paused: bool,
    /// Which place it believes to have; a new one after each loss.
    place: u8,
    /// The epoch of its claim.
    claim: Option<u8>,
    /// It starts no work from this time on.
    deadline: u8,
    /// When the heartbeat that it waits for was sent.
    beat_sent: Option<u8>,
    beats_on_way: bool,
    beat_reply: Option<Reply>,
    write: Option<Write>,
    writes_on_way: u8,
    /// It waits on a connection for the answer to its write.
    is_waiting: bool,
    write_reply: Option<Reply>,
    writes: u8,
    /// Writes that it was told are stored.
    acknowledged: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Database {
    owner: Owner,
    epoch: u8,
    /// The place of the tested replica that has a row, whether it is dead, and when it expires.
    place: u8,
    is_dead: bool,
    expires: u8,
    /// The number of the last write.
    written: u8,
    /// Which writes were refused.
    refused: [bool; MAX_WRITES as usize + 1],
    /// How often each write of the tested replica is stored.
    stored: [u8; MAX_WRITES as usize + 1],
    /// A write was stored while another replica had the session.
    has_stale_write: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    now: u8,
    /// How far the clock of the database is ahead.
    shift: u8,
    tested: Tested,
    database: Database,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Tick,
    JumpClock,
    Pause,
    Continue,
    SendBeat,
    DeliverBeat,
    TakeBeatReply,
    LoseBeatReply,
    JoinAgain,
    Claim,
    OtherClaims,
    OtherReleases,
    SendWrite,
    DeliverWrite,
    LoseWrite,
    TakeWriteReply,
    LoseConnection,
    RetryWrite,
}

const STEPS: [Step; 18] = [
    Step::Tick,
    Step::JumpClock,
    Step::Pause,
    Step::Continue,
    Step::SendBeat,
    Step::DeliverBeat,
    Step::TakeBeatReply,
    Step::LoseBeatReply,
    Step::JoinAgain,
    Step::Claim,
    Step::OtherClaims,
    Step::OtherReleases,
    Step::SendWrite,
    Step::DeliverWrite,
    Step::LoseWrite,
    Step::TakeWriteReply,
    Step::LoseConnection,
    Step::RetryWrite,
];

impl World {
    /// The tested replica has joined and owns nothing.
    fn new() -> Self {
        let tested = Tested {
            is_paused: false,
            place: 0,
            claim: None,
            deadline: EXPIRY - MARGIN,
            beat_sent: None,
            beats_on_way: false,
            beat_reply: None,
            write: None,
            writes_on_way: 0,
            is_waiting: false,
            write_reply: None,
            writes: 0,
            acknowledged: 0,
        };
        let database = Database {
            owner: Owner::Nobody,
            epoch: 0,
            place: 0,
            is_dead: false,
            expires: EXPIRY,
            written: 0,
            refused: [false; MAX_WRITES as usize + 1],
            stored: [0; MAX_WRITES as usize + 1],
            has_stale_write: false,
        };
        Self { now: 0, shift: 0, tested, database }
    }

    fn database_time(&self) -> u8 {
        self.now + self.shift
    }

    /// Whether the tested replica may start a model request or a call.
    fn can_work(&self) -> bool {
        let Tested { is_paused, claim, deadline, .. } = self.tested;
        !is_paused && claim.is_some() && self.now < deadline
    }

    /// The world after a step. `None` if the step is impossible.
    fn after(&self, step: Step, rules: Rules) -> Option<Self> {
        let mut world = *self;
        let (now, time) = (world.now, world.database_time());
        let World { tested, database, .. } = &mut world;
        let runs = !tested.is_paused;
        let possible = match step {
            Step::Tick => {
                world.now += 1;
                now < MAX_TIME
            }
            Step::JumpClock => {
                world.shift = JUMP;
                self.shift == 0
            }
            Step::Pause => {
                tested.is_paused = true;
                runs
            }
            Step::Continue => {
                tested.is_paused = false;
                !runs
            }
            Step::SendBeat => {
                let is_free = tested.beat_sent.is_none() && !tested.beats_on_way;
                (tested.beat_sent, tested.beats_on_way, tested.beat_reply) = (Some(now), true, None);
                runs && is_free
            }
            Step::DeliverBeat => {
                let is_on_way = std::mem::take(&mut tested.beats_on_way);
                let is_alive = database.place == tested.place && !database.is_dead;
                if is_alive {
                    database.expires = time + EXPIRY;
                }
                if tested.beat_sent.is_some() {
                    tested.beat_reply = Some(if is_alive { Reply::Done } else { Reply::Refused });
                }
                is_on_way
            }
            Step::TakeBeatReply => {
                let (reply, sent) = (tested.beat_reply.take(), tested.beat_sent.take());
                match (reply, sent) {
                    (Some(Reply::Done), Some(sent)) => {
                        let from = if rules.counts_from_sending { sent } else { now };
                        tested.deadline = tested.deadline.max(from + EXPIRY - MARGIN);
                    }
                    // It is dead: it has no claim any more.
                    (Some(Reply::Refused), _) => (tested.claim, tested.deadline) = (None, 0),
                    _ => return None,
                }
                runs
            }
            Step::LoseBeatReply => {
                let was_sent = tested.beat_sent.take().is_some();
                tested.beat_reply = None;
                runs && was_sent
            }
            Step::JoinAgain => {
                let must_join = now >= tested.deadline + MARGIN || (tested.deadline == 0 && tested.claim.is_none());
                tested.place += 1;
                (tested.claim, tested.deadline) = (None, now + EXPIRY - MARGIN);
                (tested.beat_sent, tested.beats_on_way, tested.beat_reply) = (None, false, None);
                (database.place, database.is_dead, database.expires) = (tested.place, false, time + EXPIRY);
                runs && must_join && self.tested.place < MAX_PLACES
            }
            Step::Claim => {
                let is_free = match database.owner {
                    Owner::Nobody => true,
                    // Only claims of an earlier place, which the new one may bury.
                    Owner::Tested(place) => place < tested.place,
                    Owner::Other => false,
                };
                let is_alive = database.place == tested.place && !database.is_dead;
                database.owner = Owner::Tested(tested.place);
                database.epoch += 1;
                tested.claim = Some(database.epoch);
                runs && is_free && is_alive && self.tested.claim.is_none() && self.database.epoch < MAX_EPOCH
            }
            Step::OtherClaims => {
                let is_free = match database.owner {
                    Owner::Nobody => true,
                    Owner::Tested(place) => {
                        let is_over = place < database.place || database.is_dead || time >= database.expires;
                        if place == database.place {
                            database.is_dead = true;
                        }
                        is_over
                    }
                    Owner::Other => false,
                };
                database.owner = Owner::Other;
                database.epoch += 1;
                is_free && self.database.epoch < MAX_EPOCH
            }
            Step::OtherReleases => {
                database.owner = Owner::Nobody;
                self.database.owner == Owner::Other
            }
            Step::SendWrite => {
                let epoch = tested.claim?;
                tested.writes += 1;
                tested.write = Some(Write { epoch, number: tested.writes });
                tested.writes_on_way += 1;
                tested.is_waiting = true;
                runs && self.tested.write.is_none() && self.tested.writes_on_way == 0 && self.tested.writes < MAX_WRITES
            }
            Step::DeliverWrite => {
                let write = tested.write?;
                tested.writes_on_way = tested.writes_on_way.checked_sub(1)?;
                let is_known = rules.has_numbers && write.number <= database.written;
                let is_owner = matches!(database.owner, Owner::Tested(_)) && database.epoch == write.epoch;
                let number = usize::from(write.number);
                let reply = if is_known {
                    if rules.keeps_results && database.refused[number] { Reply::Refused } else { Reply::Done }
                } else if is_owner || !rules.has_epochs {
                    database.written = database.written.max(write.number);
                    database.stored[number] += 1;
                    database.has_stale_write |= !is_owner;
                    Reply::Done
                } else {
                    database.written = database.written.max(write.number);
                    database.refused[number] = true;
                    Reply::Refused
                };
                if tested.is_waiting {
                    tested.write_reply = Some(reply);
                }
                true
            }
            Step::LoseWrite => {
                tested.writes_on_way = tested.writes_on_way.checked_sub(1)?;
                true
            }
            Step::TakeWriteReply => {
                match tested.write_reply.take()? {
                    Reply::Done => tested.acknowledged = tested.write?.number,
                    Reply::Refused => {
                        tested.claim = tested.claim.filter(|claim| Some(*claim) != tested.write.map(|it| it.epoch))
                    }
                }
                // A copy on a lost connection may still arrive; the model has one write at a time.
                (tested.write, tested.is_waiting) = (None, false);
                runs && tested.writes_on_way == 0
            }
            Step::LoseConnection => {
                tested.write_reply = None;
                std::mem::take(&mut tested.is_waiting)
            }
            Step::RetryWrite => {
                let is_open = tested.write.is_some() && !tested.is_waiting && tested.writes_on_way < 2;
                tested.writes_on_way += 1;
                tested.is_waiting = true;
                runs && is_open
            }
        };
        possible.then_some(world)
    }

    /// What is wrong in this state. `None` if nothing is.
    fn fault(&self) -> Option<&'static str> {
        let World { tested, database, .. } = self;
        if database.stored.iter().any(|count| *count > 1) {
            return Some("a write is stored twice");
        }
        if database.has_stale_write {
            return Some("a write is stored without the session");
        }
        let acknowledged = usize::from(tested.acknowledged);
        if acknowledged > 0 && database.stored[acknowledged] == 0 {
            return Some("an acknowledged write is lost");
        }
        // A clock that jumps ahead lets another replica take over early. Then only writes are safe.
        let owns = matches!(database.owner, Owner::Tested(place) if place == tested.place);
        if self.shift == 0 && self.can_work() && !(owns && tested.claim == Some(database.epoch)) {
            return Some("two replicas work on the session");
        }
        None
    }
}

/// Visits all states. Returns their number, or the first fault with the steps that lead to it.
fn explore(rules: Rules) -> Result<usize, (&'static str, Vec<Step>)> {
    let mut seen = HashSet::from([World::new()]);
    let mut waiting = vec![(World::new(), usize::MAX)];
    let mut steps: Vec<(Step, usize)> = Vec::new();
    while let Some((world, last)) = waiting.pop() {
        for step in STEPS {
            let Some(next) = world.after(step, rules) else { continue };
            if !seen.insert(next) {
                continue;
            }
            steps.push((step, last));
            let place = steps.len() - 1;
            if let Some(fault) = next.fault() {
                let path =
                    std::iter::successors(Some(place), |place| Some(steps[*place].1).filter(|it| *it != usize::MAX));
                let mut path: Vec<Step> = path.map(|place| steps[place].0).collect();
                path.reverse();
                return Err((fault, path));
            }
            waiting.push((next, place));
        }
    }
    Ok(seen.len())
}

#[test]
fn no_schedule_lets_two_replicas_use_a_session() {
    let states = explore(ALL_RULES).unwrap_or_else(|(fault, path)| panic!("{fault}: {path:?}"));
    assert!(states > 10_000, "only {states} states: the model has lost its steps");
}

#[test]
fn the_model_finds_what_each_rule_prevents() {
    for (rules, expected) in [
        (Rules { has_epochs: false, ..ALL_RULES }, "a write is stored without the session"),
        (Rules { has_numbers: false, ..ALL_RULES }, "a write is stored twice"),
        (Rules { keeps_results: false, ..ALL_RULES }, "an acknowledged write is lost"),
        (Rules { counts_from_sending: false, ..ALL_RULES }, "two replicas work on the session"),
    ] {
        let (fault, path) = explore(rules).expect_err(expected);
        assert_eq!(fault, expected, "{rules:?}: {path:?}");
    }
}
