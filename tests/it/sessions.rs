//! `skein sessions` as a user runs it, over a store that was filled before.

use std::path::Path;
use std::sync::Arc;

use expect_test::expect;
use serde_json::{Value, json};
use skein::agents::{Event, StopReason, TurnEnd};
use skein::conversation::{Content, Message, MessagePart, Role, ToolUse, Usage};
use skein::store::{NewEvent, NewSession, SessionChange, SessionStore, UsageTotals};
use skein::tool::ToolOutcome;

use crate::support::Sandbox;

fn stored(event: &Event, text: Option<&str>) -> NewEvent {
    let kind = if matches!(event, Event::Message { .. }) { "message" } else { "event" };
    NewEvent { kind: kind.into(), body: serde_json::to_string(event).unwrap(), text: text.map(str::to_owned) }
}

fn message(role: Role, text: &str) -> NewEvent {
    let parts = vec![MessagePart::Content(Content::text(text))];
    stored(&Event::Message { message: Arc::new(Message { role, parts }) }, Some(text))
}

/// A prompt, a call that fails, an answer, and the end of the turn.
fn turn(prompt: &str, answer: &str) -> Vec<NewEvent> {
    let (id, name) = ("1".to_owned(), "developer__read".to_owned());
    let call = ToolUse::new(id.clone(), name.clone(), json!({"path": "notes.md"}));
    let outcome = ToolOutcome::error("there is no file ```notes.md```\nlook elsewhere");
    let end = TurnEnd { ending: StopReason::failure("the line was cut"), usage: Usage::default() };
    vec![
        message(Role::User, prompt),
        stored(&Event::ToolStarted { call, by: None }, None),
        stored(&Event::ToolEnded { id, name, outcome, activity: Vec::new() }, None),
        message(Role::Assistant, answer),
        stored(&Event::TurnEnded { end }, None),
    ]
}

/// The id of a session that this sandbox has stored.
fn store(sandbox: &Sandbox, cwd: &Path, title: &str, events: Vec<NewEvent>) -> String {
    store_child(sandbox, cwd, title, events, None)
}

/// The same for a session that worked for `parent`.
fn store_child(sandbox: &Sandbox, cwd: &Path, title: &str, events: Vec<NewEvent>, parent: Option<&str>) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let sessions = SessionStore::open(&sandbox.path("data")).unwrap();
        let new = NewSession {
            cwd: std::fs::canonicalize(cwd).unwrap(),
            roots: Vec::new(),
            agent: "goose".to_owned(),
            mode: "assistant".to_owned(),
            model: "offline".to_owned(),
            approval: None,
            parent: parent.map(str::to_owned),
            files: skein::principal::SessionFiles::Server,
        };
        let id = sessions.create(new).await.unwrap();
        events.into_iter().for_each(|event| sessions.append(&id, event));
        let spent = Some(UsageTotals { input: 120, output: 30, cached: 100, cost: Some(0.0123) });
        sessions.change(&id, SessionChange { title: Some(title.to_owned()), spent, ..SessionChange::default() });
        sessions.flush(&id).await.unwrap();
        id
    })
}

fn stored_here(sandbox: &Sandbox, events: Vec<NewEvent>) -> String {
    store(sandbox, &sandbox.path("project"), "Notes", events)
}

/// Everything but what is different each time.
fn tidied(text: &str, id: &str) -> String {
    let times = regex::Regex::new(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC").unwrap();
    times.replace_all(&text.replace(id, "ID"), "TIME").into_owned()
}

#[test]
fn list_shows_this_projects_sessions_and_all_of_them_on_demand() {
    let sandbox = Sandbox::new();
    let here = stored_here(&sandbox, turn("hello", "hi"));
    let elsewhere = store(&sandbox, &sandbox.path("home"), "Other", turn("hello", "hi"));
    let run = sandbox.skein(&["sessions", "list"]);
    assert_eq!(tidied(&run.stdout, &here), "ID  Notes\n  goose/assistant, just now\n");
    let ids = |args: &[&str]| -> Vec<String> {
        let found = sandbox.skein(args).json();
        found.as_array().unwrap().iter().map(|session| session["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&["sessions", "list", "--json"]), std::slice::from_ref(&here));
    assert_eq!(ids(&["sessions", "list", "--all", "--json"]), [elsewhere.clone(), here]);
    assert_eq!(ids(&["sessions", "list", "--all", "--limit", "1", "--json"]), [elsewhere]);
    let session = &sandbox.skein(&["sessions", "list", "--json"]).json()[0];
    assert_eq!((&session["title"], &session["events"], &session["input"]), (&json!("Notes"), &json!(5), &json!(120)));
}

#[test]
fn without_sessions_the_list_is_empty_and_says_so() {
    let sandbox = Sandbox::new();
    expect![[r"
        exit 0
        --- stdout
        --- stderr
        note: no sessions in this project; --all lists every folder's
    "]]
    .assert_eq(&sandbox.skein(&["sessions", "list"]).whole());
    assert_eq!(sandbox.skein(&["sessions", "list", "--json"]).json(), json!([]));
}

#[test]
fn show_is_the_talk_by_the_beginning_of_its_id() {
    let sandbox = Sandbox::new();
    let mut events = turn("read my notes\nplease", "There are none.\n\nShall I start some?");
    events.push(NewEvent { kind: "from the future".into(), body: r#"{"event":"dreamt"}"#.to_owned(), text: None });
    let id = stored_here(&sandbox, events);
    let run = sandbox.skein(&["sessions", "show", &id[..12]]);
    expect![[r#"
        exit 0
        --- stdout
        ID  Notes
          agent   goose/assistant
          model   offline
          folder  [TMP]/project
          begun   TIME
          last    TIME
          tokens  120 in (100 cached), 30 out, 0.0123 USD

        › read my notes
          please
        → developer__read {"path":"notes.md"}
        ✗ developer__read there is no file ```notes.md``` look elsewhere

        There are none.

        Shall I start some?
        (the turn failed: the line was cut)
        (event 6 (from the future) cannot be read by this skein)
        --- stderr
    "#]]
    .assert_eq(&tidied(&run.whole(), &id));
}

#[test]
fn undone_turns_are_marked() {
    let sandbox = Sandbox::new();
    let mut events = [turn("first", "one"), turn("second", "two")].concat();
    events.push(NewEvent { kind: "from the future".into(), body: r#"{"event":"dreamt"}"#.to_owned(), text: None });
    events.push(stored(&Event::Undone { events: 5 }, None));
    events.extend(turn("third", "three"));
    let id = stored_here(&sandbox, events);
    let shown = sandbox.skein(&["sessions", "show", &id]).stdout;
    let prompts: Vec<_> = shown.lines().filter(|line| line.starts_with('›')).collect();
    assert_eq!(prompts, ["› first", "› second (undone)", "› third"]);
    let markdown = sandbox.skein(&["sessions", "export", &id, "--format", "markdown"]).stdout;
    let headings: Vec<_> = markdown.lines().filter(|line| line.starts_with("## You")).collect();
    assert_eq!(headings, ["## You", "## You (undone)", "## You"], "{markdown}");
}

#[test]
fn markdown_export_is_complete_and_blocks_stay_closed() {
    let sandbox = Sandbox::new();
    let id = stored_here(&sandbox, turn("read my notes", "There are none."));
    let run = sandbox.skein(&["sessions", "export", &id, "--format", "markdown"]);
    expect![[r#"
        # Notes

        - session: ID
        - agent: goose/assistant
        - model: offline
        - folder: [TMP]/project
        - begun: TIME
        - last: TIME
        - tokens: 120 in (100 cached), 30 out, 0.0123 USD

        ## You

        read my notes

        **developer__read**

        ```json
        {"path":"notes.md"}
        ```

        developer__read failed:

        ````text
        there is no file ```notes.md```
        look elsewhere
        ````

        ## goose

        There are none.

        *the turn failed: the line was cut*
    "#]]
    .assert_eq(&tidied(&run.stdout, &id));
}

#[test]
fn an_export_as_json_loses_nothing() {
    let sandbox = Sandbox::new();
    let odd = "{\"n\": 0.1000000000000000055511151231257827, \"big\": 123456789012345678901234567890, \"c\": \"a\u{9b}b\u{202e}\\u0000\"}";
    let raw = |body: &str| NewEvent { kind: "od\u{9b}d".into(), body: body.to_owned(), text: None };
    let id = stored_here(&sandbox, vec![message(Role::User, "hello"), raw(odd), raw("not JSON \u{1b}[2J")]);
    let run = sandbox.skein(&["sessions", "export", &id]);
    let whole = run.json();
    assert_eq!((&whole["session"]["id"], &whole["session"]["cost"]), (&json!(id), &json!(0.0123)));
    let events = whole["events"].as_array().unwrap();
    let first: Event = serde_json::from_value(events[0]["event"].clone()).unwrap();
    assert!(matches!(first, Event::Message { message } if message.text() == "hello"));
    assert_eq!((&events[1]["kind"], &events[1]["event"]["c"]), (&json!("od\u{9b}d"), &json!("a\u{9b}b\u{202e}\0")));
    assert_eq!((&events[2]["seq"], &events[2]["unreadable"]), (&json!(3), &json!("not JSON \u{1b}[2J")));
    // Numbers as they were written, though few programs can read them so.
    for number in ["0.1000000000000000055511151231257827", "123456789012345678901234567890"] {
        assert!(run.stdout.contains(number), "{}", run.stdout);
    }
    assert_eq!(sandbox.skein(&["sessions", "show", &id, "--json"]).stdout, run.stdout);
    let written = sandbox.skein(&["sessions", "export", &id, "-o", "out.json"]);
    assert_eq!((written.stdout.as_str(), written.stderr.as_str()), ("", "note: wrote out.json\n"));
    let file = std::fs::read_to_string(sandbox.path("project/out.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&file).unwrap()["events"], whole["events"]);
}

#[test]
fn json_and_markdown_exclude_each_other_in_any_order() {
    let sandbox = Sandbox::new();
    let id = stored_here(&sandbox, turn("hello", "hi"));
    for args in [
        ["sessions", "--json", "export", &id, "--format", "markdown"],
        ["sessions", "export", &id, "--format", "markdown", "--json"],
    ] {
        let run = sandbox.skein(&args);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.whole());
    }
    let json = sandbox.skein(&["sessions", "--json", "export", &id]);
    assert_eq!(json.json()["session"]["id"], json!(id));
}

#[test]
fn an_export_replaces_a_file_only_if_forced() {
    let sandbox = Sandbox::new();
    let id = stored_here(&sandbox, turn("hello", "hi"));
    sandbox.write("project/mine.txt", "mine");
    let export = ["sessions", "export", &id, "-o", "mine.txt"];
    let chart = ["sessions", "stats", "--all", "--chart", "mine.txt"];
    let report = ["report", "--all", "-o", "mine.txt"];
    let audit = ["audit", "export", "-o", "mine.txt"];
    for command in [&export[..], &chart, &report, &audit] {
        let refused = sandbox.skein(command);
        assert!(refused.code == 2 && refused.stderr.contains("mine.txt exists already"), "{}", refused.whole());
        assert_eq!(std::fs::read_to_string(sandbox.path("project/mine.txt")).unwrap(), "mine");
        let forced = sandbox.skein(&[command, &["--force"]].concat());
        assert!(forced.code == 0 && forced.stderr.contains("mine.txt"), "{}", forced.whole());
        assert_ne!(std::fs::read_to_string(sandbox.path("project/mine.txt")).unwrap(), "mine");
        sandbox.write("project/mine.txt", "mine");
    }
}

#[test]
fn injected_context_is_not_shown_as_the_users_text() {
    let sandbox = Sandbox::new();
    let aside = Content::Injected("<top-of-mind>\nremember the zebra\n</top-of-mind>".to_owned());
    let prompt = Message::user(vec![aside, Content::text("hello there")]);
    let text = prompt.text();
    let events = vec![stored(&Event::Message { message: Arc::new(prompt) }, Some(&text))];
    let id = stored_here(&sandbox, events);
    for args in [["sessions", "show", &id].as_slice(), &["sessions", "export", &id, "--format", "markdown"]] {
        let run = sandbox.skein(args);
        assert!(run.stdout.contains("hello there") && !run.stdout.contains("zebra"), "{}", run.stdout);
        assert!(run.stdout.contains("with this prompt skein sent the model 47 bytes"), "{}", run.stdout);
    }
    assert!(sandbox.skein(&["sessions", "export", &id]).stdout.contains("remember the zebra"));
    assert_eq!(sandbox.skein(&["sessions", "search", "zebra", "--json"]).json(), json!([]));
}

#[test]
fn nothing_that_was_said_steers_the_terminal() {
    let sandbox = Sandbox::new();
    let hidden =
        "\u{202e}\u{61c}\u{34f}\u{115f}\u{1160}\u{2800}\u{3164}\u{ffa0}\u{e0041}\u{e0100}\u{2060}\u{ad}\u{2029}";
    let hostile = format!("a\u{1b}]0;owned\u{7}\u{9b}2J{hidden}\0\r b needle");
    let mut events = turn(&hostile, &hostile);
    events.push(NewEvent { kind: hostile.clone().into(), body: hostile.clone(), text: None });
    let id = store(&sandbox, &sandbox.path("project"), &hostile, events);
    for args in [
        &["sessions", "list"][..],
        &["sessions", "list", "--json"],
        &["sessions", "show", &id],
        &["sessions", "show", &id, "--json"],
        &["sessions", "export", &id, "--format", "markdown"],
        &["sessions", "search", "needle"],
        &["sessions", "search", "needle", "--json"],
        &["sessions", "show", "\u{1b}[2J"],
        &["sessions", "delete", &id],
    ] {
        let run = sandbox.skein(args);
        let steering = |c: char| (c.is_control() && c != '\n') || hidden.contains(c);
        assert!(!run.whole().contains(steering), "{args:?}: {:?}", run.whole());
    }
}

#[test]
fn search_finds_words_here_or_everywhere() {
    let sandbox = Sandbox::new();
    let here = stored_here(&sandbox, turn("where is the retry budget?", "In the circuit."));
    let elsewhere = store(&sandbox, &sandbox.path("home"), "Other", turn("a retry", "no"));
    let run = sandbox.skein(&["sessions", "search", "retry"]);
    assert_eq!(tidied(&run.stdout, &here), "ID  Notes, just now\n  where is the retry budget?\n");
    let hits = sandbox.skein(&["sessions", "search", "--all", "--json", "retry"]).json();
    let mut found: Vec<_> = hits.as_array().unwrap().iter().map(|hit| hit["session"].as_str().unwrap()).collect();
    found.sort_unstable();
    let mut expected = [here.as_str(), elsewhere.as_str()];
    expected.sort_unstable();
    assert_eq!(found, expected);
    let nothing = sandbox.skein(&["sessions", "search", "\"AND (", "nowhere"]);
    assert_eq!((nothing.code, nothing.stdout.as_str()), (0, ""));
    assert_eq!(nothing.stderr, "note: nothing was found in this project; --all looks in every folder\n");
}

#[test]
fn delete_says_what_it_deleted_and_a_mistake_deletes_nothing() {
    let sandbox = Sandbox::new();
    let (one, two) = (stored_here(&sandbox, turn("a", "b")), stored_here(&sandbox, turn("c", "d")));
    let mistaken = sandbox.skein(&["sessions", "delete", &one, "nobody"]);
    assert_eq!((mistaken.code, mistaken.stdout.as_str()), (4, ""));
    assert_eq!(sandbox.skein(&["sessions", "list", "--json"]).json().as_array().unwrap().len(), 2);
    let run = sandbox.skein(&["sessions", "delete", &one, &one]);
    assert_eq!((run.code, run.stdout), (0, format!("deleted {one}  Notes\n")));
    assert_eq!(sandbox.skein(&["sessions", "delete", &two, "--json"]).json(), json!({"deleted": [two]}));
    assert_eq!(sandbox.skein(&["sessions", "show", &one]).code, 4);
}

#[test]
fn delete_names_a_file_that_stays() {
    let sandbox = Sandbox::new();
    let id = stored_here(&sandbox, turn("a", "b"));
    // A file where the folder of the session should be cannot be removed as a folder.
    let file = sandbox.path(&format!("data/state/scratch/{id}"));
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "no folder").unwrap();
    let run = sandbox.skein(&["sessions", "delete", &id]);
    assert_eq!((run.code, run.stdout), (1, format!("deleted {id}  Notes\n")), "{}", run.stderr);
    let problem = format!("1 files or folders of sessions are left, such as [TMP]/data/state/scratch/{id}");
    assert!(run.stderr.contains(&problem), "{}", run.stderr);
    std::fs::remove_file(&file).unwrap();
    let prune = sandbox.skein(&["store", "prune"]);
    assert!(prune.stderr.contains("removed the files of 1 sessions"), "{}{}", prune.stdout, prune.stderr);
}

#[test]
fn an_unknown_id_exits_4_with_the_nearest_one() {
    let sandbox = Sandbox::new();
    let id = stored_here(&sandbox, turn("a", "b"));
    expect![[r"
        exit 4
        --- stdout
        --- stderr
        error: there is no session `nobody`
          help: `skein sessions list --all` shows those that there are
    "]]
    .assert_eq(&sandbox.skein(&["sessions", "show", "nobody"]).whole());
    let near = format!("{}u", &id[..19]);
    let run = sandbox.skein(&["sessions", "export", &near]);
    assert_eq!(run.code, 4);
    assert_eq!(run.stderr, format!("error: there is no session `{near}`\n  help: did you mean `{id}`?\n"));
}

#[test]
fn a_beginning_of_several_names_them_and_exits_2() {
    let sandbox = Sandbox::new();
    let ids = [stored_here(&sandbox, turn("a", "b")), stored_here(&sandbox, turn("c", "d"))];
    let run = sandbox.skein(&["sessions", "show", &ids[0][..1]]);
    assert_eq!(run.code, 2);
    assert!(ids.iter().all(|id| run.stderr.contains(id.as_str())), "{}", run.stderr);
}

#[test]
fn a_file_that_is_no_store_is_named_and_left_as_it_is() {
    let sandbox = Sandbox::new();
    sandbox.write("data/sessions.db", "somebody's notes, and long enough to be looked at");
    let run = sandbox.skein(&["sessions", "list"]);
    assert_eq!(run.code, 1);
    assert!(
        run.stderr.contains("data/sessions.db cannot be used") && run.stderr.contains("move it away"),
        "{}",
        run.stderr
    );
    let left = std::fs::read_to_string(sandbox.path("data/sessions.db")).unwrap();
    assert_eq!(left, "somebody's notes, and long enough to be looked at");
}

#[test]
fn stats_count_turns_tokens_cost_and_tools() {
    let sandbox = Sandbox::new();
    let id = stored_here(&sandbox, [turn("hello", "hi"), turn("again", "hi")].concat());
    store(&sandbox, &sandbox.path("home"), "Other", turn("hello", "hi"));
    let here = sandbox.skein(&["sessions", "stats", "--json"]).json();
    assert_eq!((&here["sessions"], &here["turns"], &here["ends"]), (&json!(1), &json!(2), &json!({"failed": 2})));
    assert_eq!(
        (&here["input"], &here["output"], &here["cached"], &here["cost"]),
        (&json!(120), &json!(30), &json!(100), &json!(0.0123))
    );
    let tool = &here["tools"]["developer__read"];
    assert_eq!((&tool["calls"], &tool["errors"]), (&json!(2), &json!(2)));
    assert_eq!(sandbox.skein(&["sessions", "stats", &id, "--json"]).json(), here);
    assert_eq!(sandbox.skein(&["sessions", "stats", "--all", "--json"]).json()["turns"], 3);
    let text = sandbox.skein(&["sessions", "stats"]).stdout;
    for line in [
        "turns     2 (2 failed)",
        "tokens    120 in (100 cached), 30 out",
        "cost      0.0123 USD",
        "developer__read  2 calls, 2 failed",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}

#[test]
fn stats_draw_a_chart_or_say_that_there_is_nothing() {
    let sandbox = Sandbox::new();
    let nothing = sandbox.skein(&["sessions", "stats", "--chart", "tokens.svg"]);
    assert!(nothing.code != 0 && nothing.stderr.contains("there is no turn to draw"), "{}", nothing.whole());
    stored_here(&sandbox, turn("hello", "hi"));
    let drawn = sandbox.skein(&["sessions", "stats", "--chart", "tokens.svg"]);
    assert_eq!(drawn.code, 0, "{}", drawn.whole());
    let svg = std::fs::read_to_string(sandbox.path("project/tokens.svg")).unwrap();
    assert!(svg.starts_with("<svg"), "{svg}");
    for title in
        ["Turns per day", "Tokens per day", "Cost per day in USD", "Tool calls per day", "Minutes in turns per day"]
    {
        assert!(svg.contains(&format!("<title>{title}</title>")), "{title} is not in {svg}");
    }
    let nested: Vec<_> = svg.match_indices("<svg x=").collect();
    assert_eq!((nested.len(), svg.matches("</svg>").count()), (5, 6), "{svg}");
}

/// Tokens and cost of a session have those of its child sessions, so the calls have them too.
#[test]
fn stats_count_the_calls_of_child_sessions() {
    let sandbox = Sandbox::new();
    let id = stored_here(&sandbox, turn("hello", "hi"));
    store_child(&sandbox, &sandbox.path("project"), "Task", turn("work", "done"), Some(&id));
    let stats = sandbox.skein(&["sessions", "stats", "--json"]).json();
    assert_eq!((&stats["sessions"], &stats["turns"], &stats["input"]), (&json!(1), &json!(1), &json!(120)));
    let tool = &stats["tools"]["developer__read"];
    assert_eq!((&tool["calls"], &tool["errors"]), (&json!(2), &json!(2)));
    let days = stats["days"].as_object().unwrap();
    let sum = |key: &str| days.values().filter_map(|day| day[key].as_f64()).sum::<f64>();
    assert_eq!((sum("turns"), sum("calls"), sum("errors"), sum("cost")), (1.0, 2.0, 2.0, 0.0123));
}
