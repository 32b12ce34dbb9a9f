//! What was acknowledged is there, whenever the process was killed: a real child that stores turns and says after
//! each that it is on disk, `kill -9` at fifty points of its run, and the file compared with what it said.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use skein::store::{NewEvent, NewSession, SessionStore};

use crate::support::Sandbox;
use crate::support::acp::Acp;
use crate::support::serve::eventually;

/// Set for the child alone: its data folder, and how many turns it stores.
const DATA: &str = "SKEIN_TEST_KILL_DATA";
const TURNS: &str = "SKEIN_TEST_KILL_TURNS";
const EVENTS: usize = 5;
const KILLS: u64 = 50;

/// The event at this place of every child's session. Some are long: they spill over pages and fill the log, so that
/// it is written back into the file while the child runs.
fn event(place: usize) -> NewEvent {
    let long = if place.is_multiple_of(9) { 20_000 } else { 50 };
    let text = format!("event {place} {}", "word ".repeat(long / 5));
    NewEvent {
        kind: "message".into(),
        body: serde_json::json!({"place": place, "text": text}).to_string(),
        text: Some(text),
    }
}

/// Not a test of its own: the program that is killed. It says `session ID`, then `turn N` for each turn that is on
/// disk.
#[tokio::test]
async fn child() {
    let Some(data) = std::env::var_os(DATA) else { return };
    let turns: usize = std::env::var(TURNS).unwrap().parse().unwrap();
    let sessions = SessionStore::open(Path::new(&data)).unwrap();
    let new = NewSession {
        cwd: "/here".into(),
        roots: Vec::new(),
        agent: "goose".to_owned(),
        mode: "assistant".to_owned(),
        model: "offline".to_owned(),
        approval: None,
        parent: None,
        files: skein::principal::SessionFiles::Server,
    };
    let id = sessions.create(new).await.unwrap();
    say(&format!("session {id}"));
    for turn in 0..turns {
        (turn * EVENTS..(turn + 1) * EVENTS).for_each(|place| sessions.append(&id, event(place)));
        sessions.flush(&id).await.unwrap();
        say(&format!("turn {turn}"));
    }
}

/// The name of the test that runs stands before the first line.
fn say(line: &str) {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "\n{line}").and_then(|()| stdout.flush()).unwrap();
}

#[expect(clippy::disallowed_methods, reason = "the program under test is started from outside")]
fn start(data: &Path, turns: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["kill::child", "--exact", "--nocapture"])
        .env(DATA, data)
        .env(TURNS, turns.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// What a child has acknowledged.
#[derive(Debug, Default)]
struct Said {
    session: Option<String>,
    turns: usize,
}

impl Said {
    fn hear(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("session", id)) => self.session = Some(id.to_owned()),
            Some(("turn", turn)) => {
                assert_eq!(turn, self.turns.to_string());
                self.turns += 1;
            }
            _ => {}
        }
    }
}

/// Kills the child a moment after so many lines; what it had said by then counts, heard or not.
fn killed_after(data: &Path, lines: usize, moment: Duration) -> Said {
    let mut child = start(data, 1_000);
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = Said::default();
    while said.session.iter().count() + said.turns < lines {
        said.hear(&output.next().unwrap().unwrap());
    }
    // Not a wait for anything: the point at which it dies.
    std::thread::sleep(moment);
    child.kill().unwrap();
    child.wait().unwrap();
    output.for_each(|line| said.hear(&line.unwrap()));
    said
}

/// The file is sound, and every acknowledged turn is there once and in order; of a turn that was not, a beginning.
fn check(data: &Path, all: &[Said], checked: usize) {
    let sessions = SessionStore::open(data).unwrap();
    let connection = rusqlite::Connection::open(data.join("sessions.db")).unwrap();
    let sound: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
    connection.execute_batch("INSERT INTO event_words (event_words) VALUES ('integrity-check')").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for said in &all[checked..] {
        let Some(id) = &said.session else { continue };
        let events = runtime.block_on(sessions.events(id)).unwrap();
        assert!(events.len() >= said.turns * EVENTS, "{} events after {said:?}", events.len());
        for (place, stored) in events.iter().enumerate() {
            assert_eq!((stored.seq, &stored.body), (place as u64 + 1, &event(place).body), "{said:?}");
        }
        // A session is stored with its first event.
        let stored = runtime.block_on(sessions.find(id)).unwrap().map_or(0, |session| session.events);
        assert_eq!(stored, events.len() as u64);
    }
}

/// The same every time: a plain generator with a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn a_kill_at_any_point_loses_nothing_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut chance = Chance(5);
    let mut all = Vec::new();
    for kill in 0..KILLS {
        // Before the first word, among the first turns, and later, when the log has been written back.
        let lines = usize::try_from(kill.min(1) * chance.below(3 + kill)).unwrap();
        all.push(killed_after(folder.path(), lines, Duration::from_micros(chance.below(6_000))));
        check(folder.path(), &all, all.len() - 1);
    }
    check(folder.path(), &all, 0);
    let turns: usize = all.iter().map(|said| said.turns).sum();
    assert!(turns > 200, "only {turns} turns were stored: the kills do not reach into the run");
}

/// The same with the whole program: a turn whose prompt was answered is in the record, its end included.
#[test]
fn turn_reported_as_ended_survives_a_kill() {
    let sandbox = Sandbox::new();
    let mut chance = Chance(7);
    for _ in 0..KILLS {
        let mut client = Acp::start(&sandbox);
        let session = client.session();
        let answered = chance.below(4);
        for turn in 0..answered {
            client.prompt(&session, &format!("hello {turn}"));
        }
        client.begin(&session, "one more");
        // Not a wait for anything: the point at which it dies.
        std::thread::sleep(Duration::from_micros(chance.below(6_000)));
        client.kill();
        let exported = sandbox.skein(&["sessions", "export", &session]);
        // A session is stored with its first event.
        if answered == 0 && exported.code == 4 {
            continue;
        }
        let whole = exported.json();
        let events: Vec<_> = whole["events"].as_array().unwrap().iter().map(|event| &event["event"]).collect();
        let ended = events.iter().filter(|event| event["event"] == "turn_ended").count();
        assert!(ended as u64 >= answered, "{answered} were answered: {whole:#}");
        let prompts = events.iter().filter(|event| event["message"]["role"] == "user");
        let prompts: Vec<_> = prompts.map(|event| event["message"]["parts"][0]["content"]["text"].clone()).collect();
        for (turn, prompt) in prompts.iter().take(usize::try_from(answered).unwrap()).enumerate() {
            assert_eq!(prompt, &serde_json::json!(format!("hello {turn}")));
        }
        assert!(prompts.len() as u64 >= answered);
    }
}

/// A client that loads the session does not take the end of an earlier turn for that of the last one.
#[test]
fn turn_that_a_kill_cut_off_is_reported_as_interrupted() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    client.on_permission("allow_once");
    let session = client.session();
    let load = |client: &mut Acp| {
        let params = serde_json::json!({"sessionId": session, "cwd": client.cwd(), "mcpServers": []});
        client.ask("session/load", params)["_meta"]["_skein/turn"].clone()
    };
    client.prompt(&session, "hello");
    let mark = client.mark();
    client.begin(&session, "run sleep 60");
    client.wait_update(mark, &session, "tool_call_update");
    // The store collects events for a moment, so that the other process may not see the turn at once.
    eventually("the turn has not ended", || load(&mut Acp::start(&sandbox))["stopReason"].is_null());
    client.kill();
    let turn = load(&mut Acp::start(&sandbox));
    assert!(turn["error"]["message"].as_str().is_some_and(|text| text.contains("turn interrupted")), "{turn}");
    assert_eq!((&turn["running"], &turn["stopReason"]), (&serde_json::json!(false), &serde_json::Value::Null));
}

#[test]
fn processes_at_the_same_time_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut children: Vec<_> = (0..4).map(|_| start(folder.path(), 20)).collect();
    let all: Vec<_> = children
        .iter_mut()
        .map(|child| {
            let mut said = Said::default();
            let output = BufReader::new(child.stdout.take().unwrap());
            output.lines().for_each(|line| said.hear(&line.unwrap()));
            assert!(child.wait().unwrap().success());
            assert_eq!(said.turns, 20);
            said
        })
        .collect();
    check(folder.path(), &all, 0);
}
