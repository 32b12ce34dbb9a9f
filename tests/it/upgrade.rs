//! Files of earlier versions, in `tests/fixtures/upgrade/VERSION`, open in this version. Files of newer versions are
//! refused and stay as they are. `scripts/upgrade-fixtures` writes a folder for each release.

use std::fs;
use std::path::{Path, PathBuf};

use postgres::{Client, NoTls};
use serde_json::{Value, json};

use crate::support::postgres::Postgres;
use crate::support::{Sandbox, files_below, full_tests, read, repository};

/// The folder in which `scripts/upgrade-fixtures` runs the program.
const RECORDED_HOME: &str = "/tmp/skein-upgrade";
const DATABASES: [&str; 4] = ["memory.db", "sessions.db", "routes.db", "tokens.db"];

fn versions() -> Vec<PathBuf> {
    let entries = fs::read_dir(repository("tests/fixtures/upgrade")).expect("a folder");
    let mut folders: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    folders.sort();
    assert!(folders.iter().any(|folder| folder.ends_with("0.1.0")), "{folders:?}");
    folders
}

/// A machine with the files that an earlier version wrote.
fn machine(version: &Path) -> Sandbox {
    let sandbox = Sandbox::new();
    for file in files_below(version) {
        let target = sandbox.path(&file.strip_prefix(version).expect("below").to_string_lossy());
        fs::create_dir_all(target.parent().expect("a folder")).expect("a folder");
        fs::copy(&file, &target).expect("copied");
    }
    // The file names the projects by their path.
    let here = fs::canonicalize(sandbox.path("project")).expect("the project");
    let trust = read(sandbox.path("data/trust.json"));
    let recorded = format!("{RECORDED_HOME}/project");
    sandbox.write("data/trust.json", &trust.replace(&recorded, &here.to_string_lossy()));
    sandbox
}

/// Runs the newest folder of fixtures as a machine.
fn newest_machine() -> Sandbox {
    machine(versions().last().expect("a version"))
}

#[test]
fn databases_of_every_earlier_version_open() {
    for version in versions() {
        let sandbox = machine(&version);
        let sessions = sandbox.skein(&["sessions", "list", "--all", "--json"]).json();
        let titles: Vec<_> = sessions.as_array().expect("a list").iter().map(|session| &session["title"]).collect();
        assert_eq!(titles.len(), 2, "{}: {titles:?}", version.display());
        assert_eq!(titles[1], &json!("when does the harbour open?"));
        let id = sessions[1]["id"].as_str().expect("text");
        let shown = sandbox.skein(&["sessions", "show", id]);
        assert!(shown.stdout.contains("It opens at nine."), "{}", shown.whole());
        let found = sandbox.skein(&["sessions", "search", "--all", "harbour"]);
        assert!(found.stdout.contains(id), "{}", found.whole());
        let recalled =
            sandbox.skein(&["run", "-a", "goose", "-m", "assistant", "/memory.recall {\"query\":\"harbour\"}"]);
        assert!(recalled.stdout.contains("1. The harbour opens at nine. [harbour] (user)"), "{}", recalled.whole());
        let tokens = sandbox.skein(&["token", "list"]);
        assert!(tokens.stdout.contains("  ann  ") && tokens.stdout.contains("coding/*"), "{}", tokens.whole());
        // A correction belongs to the folder of its project, which is another one here.
        assert_eq!(sandbox.skein(&["route", "make the login nicer"]).code, 0);
        let routes = rusqlite::Connection::open(sandbox.path("data/routes.db")).expect("opens");
        let kept: i64 = routes.query_row("SELECT count(*) FROM route", [], |row| row.get(0)).expect("a number");
        assert_eq!(kept, 1, "the correction is still there");
    }
}

/// Imports an export into an empty data folder, and compares it with what `scripts/upgrade-fixtures` stored.
fn check_export(file: &Path) {
    let sandbox = Sandbox::new();
    let imported = sandbox.skein(&["store", "import", &file.display().to_string()]);
    assert_eq!(imported.code, 0, "{}", imported.whole());
    let sessions = sandbox.skein(&["sessions", "list", "--all", "--json"]).json();
    assert_eq!(sessions[1]["title"], json!("when does the harbour open?"), "{sessions}");
    let shown = sandbox.skein(&["sessions", "show", sessions[1]["id"].as_str().expect("text")]);
    assert!(shown.stdout.contains("It opens at nine."), "{}", shown.whole());
    let tokens = sandbox.skein(&["token", "list"]);
    assert!(tokens.stdout.contains("  ann  ") && tokens.stdout.contains("coding/*"), "{}", tokens.whole());
}

#[test]
fn exports_of_every_earlier_version_are_imported() {
    versions().iter().for_each(|version| check_export(&version.join("export.jsonl")));
}

#[test]
fn postgres_stores_of_every_earlier_version_open() {
    if !full_tests() {
        return;
    }
    let (postgres, sandbox) = (Postgres::start(), Sandbox::new());
    for (number, version) in versions().iter().enumerate() {
        let url = postgres.database(&format!("version_{number}"));
        let mut client = Client::connect(&url, NoTls).expect("a connection");
        client.batch_execute(&read(version.join("store.sql"))).expect("valid SQL");
        let tokens = sandbox.skein(&["token", "list", "--store", &url]);
        assert!(tokens.stdout.contains("  ann  "), "{}", tokens.whole());
        let file = sandbox.path(&format!("{number}.jsonl"));
        let exported = sandbox.skein(&["store", "export", &file.display().to_string(), "--store", &url]);
        assert_eq!(exported.code, 0, "{}", exported.whole());
        check_export(&file);
    }
}

/// A command that creates the store must not look like an older version to the next one.
#[test]
fn only_users_of_an_older_version_read_the_changes() {
    const CHANGES: &str = "This version of Skein behaves differently:";
    for first in [&["sessions", "list"][..], &["report"], &["run", "list"]] {
        let sandbox = Sandbox::new();
        let run = sandbox.skein(first);
        assert!(run.code == 0 && sandbox.path("data/sessions.db").exists(), "{}", run.whole());
        let doctor = sandbox.skein(&["doctor"]);
        assert!(!doctor.stdout.contains(CHANGES), "{first:?}: {}", doctor.whole());
    }
    for version in versions() {
        let sandbox = machine(&version);
        assert_eq!(sandbox.skein(&["sessions", "list"]).code, 0);
        let doctor = sandbox.skein(&["doctor"]);
        assert_eq!(doctor.stdout.contains(CHANGES), version.ends_with("0.1.0"), "{}", doctor.whole());
    }
}

#[test]
fn manifests_config_and_trust_of_earlier_versions_are_used() {
    for version in versions() {
        let sandbox = machine(&version);
        let checked = sandbox.skein(&["check", "--quiet"]);
        assert_eq!(checked.code, 0, "{}", checked.whole());
        assert!(!checked.stderr.contains("not trusted"), "{}", checked.whole());
        let agent = sandbox.skein(&["agents", "show", "notes", "--json"]).json();
        assert_eq!((&agent["name"], &agent["layer"]), (&json!("notes"), &json!("project")));
        let arguments = ["run", "-a", "coding", "-m", "backend", "--approval", "auto"];
        let denied = sandbox.skein(&[&arguments[..], &["/developer.shell {\"command\":\"rm harbour.txt\"}"]].concat());
        assert_eq!(denied.code, 5, "the config denies it: {}", denied.whole());
        assert!(sandbox.path("project/harbour.txt").exists());
    }
}

#[test]
fn recordings_of_earlier_versions_play() {
    for version in versions() {
        let sandbox = machine(&version);
        fs::remove_file(sandbox.path("project/harbour.txt")).expect("removed");
        let played = sandbox.skein(&[
            "run",
            "-a",
            "goose",
            "-m",
            "assistant",
            "--replay",
            "../recorded-services.jsonl",
            "--model",
            "replay:../recorded-model.jsonl",
            "when does the harbour open?",
        ]);
        assert_eq!(played.code, 0, "{}", played.whole());
        assert!(played.stdout.contains("It opens at nine."), "{}", played.whole());
    }
}

#[test]
fn newer_databases_are_refused_and_not_changed() {
    let sandbox = newest_machine();
    for name in DATABASES {
        let connection = rusqlite::Connection::open(sandbox.path(&format!("data/{name}"))).expect("opens");
        connection.pragma_update(None, "user_version", 99).expect("written");
    }
    let before = DATABASES.map(|name| fs::read(sandbox.path(&format!("data/{name}"))).expect("a file"));
    for (arguments, name) in [
        (&["sessions", "list"][..], "sessions.db"),
        (&["token", "list"], "tokens.db"),
        (&["route", "--remember", "coding/frontend", "make it nicer"], "routes.db"),
    ] {
        let run = sandbox.skein(arguments);
        assert_eq!(run.code, 1, "{}", run.whole());
        let said = format!("error: the store [TMP]/data/{name} was written by a newer skein (version 99, ");
        assert!(run.stderr.contains(&said), "{}", run.whole());
        assert!(run.stderr.contains("use that skein, or another data folder"), "{}", run.whole());
    }
    let doctor = sandbox.skein(&["doctor"]);
    for name in DATABASES {
        assert!(doctor.stdout.contains(&format!("data/{name} was written by a newer skein")), "{}", doctor.whole());
    }
    assert!(!doctor.stdout.contains("move it away"), "the newer skein needs the files: {}", doctor.whole());
    let after = DATABASES.map(|name| fs::read(sandbox.path(&format!("data/{name}"))).expect("a file"));
    assert!(before == after, "no byte was changed");
}

/// The service opens its store when a tool is called.
#[test]
fn a_tool_call_refuses_a_newer_database() {
    let sandbox = newest_machine();
    let file = sandbox.path("data/memory.db");
    let connection = rusqlite::Connection::open(&file).expect("opens");
    connection.pragma_update(None, "user_version", 99).expect("written");
    drop(connection);
    let before = fs::read(&file).expect("a file");
    let run = sandbox.skein(&["run", "-a", "goose", "-m", "assistant", "/memory.recall {\"query\":\"harbour\"}"]);
    let said = "the store [TMP]/data/memory.db was written by a newer skein (version 99, ";
    assert!(run.whole().contains(said), "{}", run.whole());
    assert!(run.whole().contains("use that skein, or another data folder"), "{}", run.whole());
    assert!(run.code == 1 && run.stderr.contains("error: the command failed: memory__recall: "), "{}", run.whole());
    assert!(!run.stdout.contains("opens at nine"), "{}", run.whole());
    assert_eq!(before, fs::read(&file).expect("a file"), "no byte was changed");
}

#[test]
fn a_newer_trust_file_is_refused_and_not_changed() {
    let sandbox = newest_machine();
    let mut trust: Value = serde_json::from_str(&read(sandbox.path("data/trust.json"))).expect("JSON");
    trust["version"] = json!(2);
    sandbox.write("data/trust.json", &trust.to_string());
    for arguments in [&["agents"][..], &["trust", "--yes"]] {
        let run = sandbox.skein(arguments);
        assert_eq!(run.code, 1, "{}", run.whole());
        let said =
            "error: the trust file [TMP]/data/trust.json was written by a newer skein (version 2, this one knows 1)";
        assert!(run.stderr.contains(said), "{}", run.whole());
        assert!(run.stderr.contains("use the newer skein"), "{}", run.whole());
    }
    assert_eq!(read(sandbox.path("data/trust.json")), trust.to_string());
}

#[test]
fn newer_recordings_are_refused() {
    let sandbox = newest_machine();
    sandbox.write("project/services.jsonl", "{\"version\": 2, \"recording\": \"services\"}\n");
    sandbox.write("project/model.jsonl", "{\"version\": 2, \"recording\": \"model\"}\n");
    let services = sandbox.skein(&["--replay", "services.jsonl", "run", "-a", "goose", "-m", "assistant", "list"]);
    assert_eq!(services.code, 2, "{}", services.whole());
    let said = "the recording services.jsonl was written by a newer skein (version 2, this one reads 1)";
    assert!(services.stderr.contains(said), "{}", services.whole());
    let model = sandbox.skein(&["run", "-a", "goose", "-m", "assistant", "--model", "replay:model.jsonl", "list"]);
    assert_ne!(model.code, 0, "{}", model.whole());
    assert!(model.stderr.contains("a newer skein wrote it (version 2, this one reads 1)"), "{}", model.whole());
}

#[test]
fn newer_recordings_are_not_overwritten() {
    let sandbox = newest_machine();
    for (flag, file) in [("--record", "recorded-services.jsonl"), ("--record-model", "recorded-model.jsonl")] {
        // Lines of the present form, with a number and a field that a newer form may have.
        let newer = read(sandbox.path(file)).replacen('{', "{\"version\":2,\"place\":\"here\",", 1);
        sandbox.write(file, &newer);
        let run = sandbox.skein(&["run", "-a", "goose", "-m", "assistant", flag, &format!("../{file}"), "list"]);
        assert_eq!(run.code, 2, "{flag}: {}", run.whole());
        assert!(run.stderr.contains("is no line of a recording that this version of Skein reads"), "{}", run.whole());
        assert_eq!(read(sandbox.path(file)), newer);
    }
}

#[test]
fn newer_manifests_and_configs_are_refused_with_their_place() {
    let sandbox = newest_machine();
    for file in ["project/.skein/agents/notes.yaml", "project/.skein/services/clock.yaml", "config/config.yaml"] {
        let text = read(sandbox.path(file));
        sandbox.write(file, &text.replace("version: 1", "version: 2"));
    }
    let run = sandbox.skein(&["check", "--quiet"]);
    assert_ne!(run.code, 0, "{}", run.whole());
    for file in [".skein/agents/notes.yaml:1:", ".skein/services/clock.yaml:1:", "config/config.yaml:1:"] {
        let reported = run.whole().lines().any(|line| line.contains(file) && line.contains("error[E008]"));
        assert!(reported, "{file}: {}", run.whole());
    }
    assert!(run.whole().contains("the file is of version 2; this skein reads up to version 1"), "{}", run.whole());
}

#[test]
fn newer_files_that_a_flag_names_are_refused() {
    for (flag, text) in [
        ("--profile", "processor: offline"),
        ("--managed", "approval: ask"),
        ("--assert", "kind: assertions\nassert: [{modes: {group: command}, sandbox: present}]"),
    ] {
        let sandbox = newest_machine();
        let arguments = ["check", "--quiet", flag, "file.yaml"];
        sandbox.write("project/file.yaml", &format!("version: 1\n{text}\n"));
        let run = sandbox.skein(&arguments);
        assert_eq!(run.code, 0, "{flag}: {}", run.whole());
        sandbox.write("project/file.yaml", &format!("version: 2\n{text}\n"));
        let run = sandbox.skein(&arguments);
        assert_ne!(run.code, 0, "{flag}: {}", run.whole());
        let said = "error[E008]: the file is of version 2; this skein reads up to version 1";
        assert!(run.whole().contains(&format!("file.yaml:1:10: {said}")), "{flag}: {}", run.whole());
        assert!(run.whole().contains("use a newer skein"), "{flag}: {}", run.whole());
    }
}
