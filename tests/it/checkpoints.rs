//! Checkpoints: what a turn changes comes back, also what a command changed, and goes forward again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::acp::{Acp, spoken};
use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::outside::{manifest, mode};
use crate::support::peers::echo;
use crate::support::{Run, Sandbox, files_below, read};

/// A model that runs the command of the first word that occurs in the prompt.
fn runs(script: &'static [(&'static str, &'static str)]) -> ScriptedModel {
    ScriptedModel::new(move |request| {
        let prompt = asked(request);
        match script.iter().find(|(word, _)| prompt.contains(word)) {
            Some((_, command)) if !has_result(request) => {
                Answer::Calls { id: "c1", tool: "developer__shell", arguments: json!({"command": command}) }
            }
            _ => Answer::Says(vec!["Done.".to_owned()]),
        }
    })
}

/// Runs a turn, in a new session or in this one. Returns the id of the session.
fn turn(sandbox: &Sandbox, model: &ScriptedModel, session: Option<&str>, prompt: &str) -> String {
    let mut args = vec!["run", "--json", "--approval", "auto"];
    match session {
        Some(id) => args.extend(["--resume", id]),
        None => args.extend(["-a", "coding", "-m", "backend"]),
    }
    args.push(prompt);
    let output = model.offered_to(sandbox.command(&args)).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"));
    report["session"].as_str().unwrap().to_owned()
}

fn restore(sandbox: &Sandbox, args: &[&str]) -> Run {
    sandbox.skein(&[&["sessions", "restore"], args].concat())
}

fn restored(sandbox: &Sandbox, args: &[&str]) -> Run {
    let run = restore(sandbox, args);
    assert_eq!(run.code, 0, "{}", run.whole());
    run
}

#[expect(clippy::disallowed_methods, reason = "git prepares the repository of a test")]
fn git(sandbox: &Sandbox, args: &[&str]) {
    let mut command = std::process::Command::new("git");
    command.args(["-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"]).args(args);
    command.current_dir(sandbox.path("project")).env("HOME", sandbox.path("home")).env("GIT_CONFIG_NOSYSTEM", "1");
    let output = command.output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Every file of a folder with its bytes.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    files_below(folder).into_iter().map(|file| (file.clone(), std::fs::read(file).unwrap())).collect()
}

/// The copies that the store has.
fn copies(sandbox: &Sandbox) -> usize {
    let folder = sandbox.path("data/checkpoints/objects");
    if folder.exists() { files_below(&folder).len() } else { 0 }
}

#[test]
fn a_repository_comes_back_and_goes_forward_again() {
    let sandbox = Sandbox::outside_tmp();
    sandbox.write("project/a.txt", "one\n");
    sandbox.write("project/gone.txt", "keep me\n");
    sandbox.write("project/.gitignore", "*.log\n");
    git(&sandbox, &["init", "-q"]);
    git(&sandbox, &["add", "."]);
    git(&sandbox, &["commit", "-qm", "first"]);
    // Something is in the index only, and something in neither.
    sandbox.write("project/staged.txt", "in the index\n");
    git(&sandbox, &["add", "staged.txt"]);
    sandbox.write("project/staged.txt", "not in the index\n");
    let repository = contents(&sandbox.path("project/.git"));
    let model = runs(&[
        ("alpha", "echo two > a.txt; rm gone.txt staged.txt; mkdir new; echo n > new/n.txt; echo l > x.log"),
        ("beta", "echo three > a.txt"),
    ]);
    let id = turn(&sandbox, &model, None, "alpha please");
    turn(&sandbox, &model, Some(&id), "beta please");
    let project = |path: &str| sandbox.path("project").join(path);
    assert_eq!((read(project("a.txt")).as_str(), project("gone.txt").exists()), ("three\n", false));
    let turns = restored(&sandbox, &[&id, "--list"]).stdout;
    assert!(turns.contains("1  alpha please") && turns.contains("2  beta please"), "{turns}");

    // Without a terminal, the difference is shown and nothing happens.
    let shown = restore(&sandbox, &[&id, "--turn", "1"]);
    assert_eq!(shown.code, 2, "{}", shown.whole());
    assert!(shown.stdout.contains("- three") && shown.stdout.contains("+ one"), "{}", shown.whole());
    assert!(shown.stdout.contains("new/n.txt removed"), "{}", shown.whole());
    assert_eq!(read(project("a.txt")), "three\n");

    let report = restored(&sandbox, &[&id, "--turn", "1", "--yes"]);
    assert!(report.stdout.contains("restored the history and 4 files"), "{}", report.whole());
    assert_eq!(read(project("a.txt")), "one\n");
    assert_eq!(read(project("gone.txt")), "keep me\n");
    assert_eq!(read(project("staged.txt")), "not in the index\n");
    assert!(!project("new").exists() && project("x.log").exists(), "ignored files are not covered");
    assert_eq!(contents(&sandbox.path("project/.git")), repository, "HEAD, index, refs and objects are untouched");

    restored(&sandbox, &[&id, "--forward", "--yes"]);
    assert_eq!(read(project("a.txt")), "three\n");
    assert!(!project("gone.txt").exists() && project("new/n.txt").exists());
    let again = restore(&sandbox, &[&id, "--forward", "--yes"]);
    assert_eq!(again.code, 2, "{}", again.whole());
    assert!(again.stderr.contains("nothing to go forward to"), "{}", again.whole());

    // Both turns are in the history again; then only the first.
    turn(&sandbox, &model, Some(&id), "gamma");
    let asked = model.requests().pop().unwrap().to_string();
    assert!(asked.contains("alpha please") && asked.contains("beta please"), "{asked}");
    restored(&sandbox, &[&id, "--turn", "2", "--yes"]);
    assert_eq!(read(project("a.txt")), "two\n");
    turn(&sandbox, &model, Some(&id), "delta");
    let asked = model.requests().pop().unwrap().to_string();
    assert!(asked.contains("alpha please") && !asked.contains("beta please"), "{asked}");
    // A turn that was undone can be reached by its number.
    restored(&sandbox, &[&id, "--turn", "3", "--yes"]);
    assert_eq!(read(project("a.txt")), "three\n");
}

/// Filters, hooks and a monitor of the repository would leave a mark.
#[test]
fn a_hostile_repository_runs_nothing() {
    let sandbox = Sandbox::outside_tmp();
    git(&sandbox, &["init", "-q"]);
    let mark = sandbox.path("mark");
    let evil = format!("touch {}", mark.display());
    for key in ["filter.evil.clean", "filter.evil.smudge", "core.fsmonitor", "core.sshCommand"] {
        git(&sandbox, &["config", key, &evil]);
    }
    sandbox.write("project/.gitattributes", "* filter=evil text eol=crlf\n");
    sandbox.write("project/a.txt", "one\n");
    let model = runs(&[("alpha", "echo two > a.txt")]);
    let id = turn(&sandbox, &model, None, "alpha");
    restored(&sandbox, &[&id, "--yes"]);
    assert_eq!(read(sandbox.path("project/a.txt")), "one\n", "the bytes are as before");
    assert!(!mark.exists());
}

#[test]
fn turns_that_change_nothing_leave_no_checkpoint() {
    let sandbox = Sandbox::outside_tmp();
    sandbox.write("project/a.txt", "one\n");
    let reads = sandbox.skein(&["run", "-a", "coding", "-m", "security", "read a.txt"]);
    assert_eq!(reads.code, 0, "{}", reads.whole());
    assert!(!sandbox.path("data/checkpoints").exists(), "a mode that cannot change files costs nothing");
    let id = turn(&sandbox, &runs(&[("alpha", "cat a.txt")]), None, "alpha");
    assert_eq!(files_below(&sandbox.path("data/checkpoints/sessions")), Vec::<PathBuf>::new());
    let report = restored(&sandbox, &[&id, "--yes", "--json"]).json();
    assert_eq!((&report["restored"], &report["kept"]), (&json!(0), &json!([])));
    let none = restore(&sandbox, &[&id, "--yes"]);
    assert!(none.code == 2 && none.stderr.contains("there is no turn left to undo"), "{}", none.whole());
    let unknown = restore(&sandbox, &[&id, "--turn", "7", "--yes"]);
    assert!(unknown.code == 2 && unknown.stderr.contains("there is no turn 7"), "{}", unknown.whole());
}

#[test]
fn work_of_the_user_stays_unless_it_is_forced() {
    let sandbox = Sandbox::outside_tmp();
    sandbox.write("project/a.txt", "one\n");
    sandbox.write("project/mine.txt", "mine\n");
    let id = turn(&sandbox, &runs(&[("alpha", "echo two > a.txt; echo b > b.txt")]), None, "alpha");
    sandbox.write("project/a.txt", "my own work\n");
    sandbox.write("project/mine.txt", "still mine\n");
    let report = restored(&sandbox, &[&id, "--yes"]);
    assert!(report.whole().contains("a.txt has changed since and stays as it is"), "{}", report.whole());
    assert_eq!(read(sandbox.path("project/a.txt")), "my own work\n");
    assert!(!sandbox.path("project/b.txt").exists());
    restored(&sandbox, &[&id, "--turn", "1", "--force", "--yes"]);
    assert_eq!(read(sandbox.path("project/a.txt")), "one\n");
    restored(&sandbox, &[&id, "--forward", "--force", "--yes"]);
    assert_eq!(read(sandbox.path("project/a.txt")), "my own work\n", "what was forced can be reversed");
    assert_eq!(read(sandbox.path("project/mine.txt")), "still mine\n");
}

#[test]
fn large_files_are_named_and_stay() {
    let sandbox = Sandbox::outside_tmp();
    sandbox.write("project/big.bin", &"x".repeat(6 << 20));
    let model = runs(&[("alpha", "echo y >> big.bin; echo a > a.txt")]);
    let args = ["run", "-a", "coding", "-m", "backend", "--approval", "auto", "alpha"];
    let output = model.offered_to(sandbox.command(&args)).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains("checkpoints do not cover") && told.contains("big.bin (too large)"), "{told}");
    let id = sandbox.skein(&["sessions", "list", "--json"]).json()[0]["id"].as_str().unwrap().to_owned();
    let report = restored(&sandbox, &[&id, "--yes"]);
    assert!(report.stderr.contains("1 file not covered"), "{}", report.whole());
    assert!(!sandbox.path("project/a.txt").exists());
    assert!(read(sandbox.path("project/big.bin")).ends_with("xy\n"));
}

/// A model that writes this text to a file in its first answer.
fn writes(path: &'static str, content: &'static str) -> ScriptedModel {
    ScriptedModel::new(move |request| {
        if has_result(request) {
            return Answer::Says(vec!["Done.".to_owned()]);
        }
        let arguments = json!({"path": path, "content": content, "overwrite": true});
        Answer::Calls { id: "c1", tool: "developer__write_file", arguments }
    })
}

/// The session records only a part of such a file.
#[test]
fn a_large_ignored_file_is_not_restored_in_part() {
    let sandbox = Sandbox::outside_tmp();
    sandbox.write("project/.gitignore", "data/\n");
    let rows: String = (0..12_000).map(|row| format!("{row},value\n")).collect();
    sandbox.write("project/data/big.csv", &rows);
    let id = turn(&sandbox, &writes("data/big.csv", "a,b\n"), None, "shorten it");
    let shown = restore(&sandbox, &[&id, "--force"]);
    assert!(shown.stdout.contains("big.csv is not covered"), "{}", shown.whole());
    let told = restored(&sandbox, &[&id, "--yes", "--force"]).whole();
    assert!(told.contains("big.csv is not covered") && told.contains("history and 0 files"), "{told}");
    assert_eq!(read(sandbox.path("project/data/big.csv")), "a,b\n");
}

#[test]
fn force_restores_an_edit_of_an_ignored_file() {
    let sandbox = Sandbox::outside_tmp();
    sandbox.write("project/.gitignore", ".env\n");
    sandbox.write("project/.env", "A=1\n");
    let id = turn(&sandbox, &writes(".env", "A=2\n"), None, "change it");
    sandbox.write("project/.env", "A=mine\n");
    let shown = restore(&sandbox, &[&id]);
    assert!(shown.stdout.contains(".env has changed since"), "{}", shown.whole());
    let shown = restore(&sandbox, &[&id, "--force"]);
    assert!(shown.stdout.contains("- A=mine") && shown.stdout.contains("+ A=1"), "{}", shown.whole());
    assert_eq!(read(sandbox.path("project/.env")), "A=mine\n");
    restored(&sandbox, &[&id, "--force", "--yes"]);
    assert_eq!(read(sandbox.path("project/.env")), "A=1\n");
}

#[test]
fn a_file_that_is_no_longer_ignored_stays() {
    let sandbox = Sandbox::outside_tmp();
    sandbox.write("project/.gitignore", ".env\n");
    sandbox.write("project/.env", "KEY=mine\n");
    sandbox.write("project/src/a.txt", "one\n");
    let model = runs(&[("alpha", "echo build/ > .gitignore; echo EXTRA=1 >> .env"), ("beta", "mv src lib")]);
    let id = turn(&sandbox, &model, None, "alpha");
    let report = restored(&sandbox, &[&id, "--yes"]);
    assert!(report.whole().contains(".env is not covered"), "{}", report.whole());
    assert_eq!(read(sandbox.path("project/.env")), "KEY=mine\nEXTRA=1\n");
    assert_eq!(read(sandbox.path("project/.gitignore")), ".env\n");
    let id = turn(&sandbox, &model, None, "beta");
    restored(&sandbox, &[&id, "--yes"]);
    assert_eq!(read(sandbox.path("project/src/a.txt")), "one\n");
    assert!(!sandbox.path("project/lib").exists());
}

#[test]
fn a_deleted_session_leaves_no_copies() {
    let sandbox = Sandbox::outside_tmp();
    sandbox.write("project/a.txt", "one\n");
    let model = runs(&[("alpha", "echo two > a.txt"), ("beta", "echo three > a.txt")]);
    let first = turn(&sandbox, &model, None, "alpha");
    let second = turn(&sandbox, &model, None, "beta");
    assert_eq!(copies(&sandbox), 3);
    assert_eq!(sandbox.skein(&["sessions", "delete", &second]).code, 0);
    assert_eq!(copies(&sandbox), 2, "the other session still needs these");
    assert_eq!(sandbox.skein(&["sessions", "delete", &first]).code, 0);
    assert_eq!(copies(&sandbox), 0);
}

#[test]
fn an_editor_shows_the_difference_and_then_restores() {
    let sandbox = Sandbox::outside_tmp();
    sandbox.write("project/a.txt", "one\n");
    let mut client = Acp::able(&sandbox, &["-a", "goose", "--approval", "auto"], &json!({}));
    let session = client.session();
    let mut said = |prompt: &str| spoken(&client.prompt(&session, prompt).1);
    said(r#"/shell {"command": "echo two > a.txt; echo b > b.txt"}"#);
    let shown = said("/undo");
    assert!(shown.contains("-two") && shown.contains("+one") && shown.contains("`/undo yes` does it"), "{shown}");
    assert_eq!(read(sandbox.path("project/a.txt")), "two\n");
    let done = said("/undo yes");
    assert!(done.contains("The history and 2 files are restored. `/redo` reverses this."), "{done}");
    assert_eq!(read(sandbox.path("project/a.txt")), "one\n");
    assert!(!sandbox.path("project/b.txt").exists());
    assert!(said("/undo").contains("nothing left to undo"));
    assert!(said("/redo").contains("`/redo yes` does it"));
    assert!(said("/redo yes").contains("2 files are restored"));
    assert_eq!(read(sandbox.path("project/a.txt")), "two\n");
    let wrong = client.begin(&session, "/undo everything");
    assert_eq!(client.answer(&wrong)["error"]["code"], -32602);
}

/// The turn of one process and the work of another would mix their changes.
#[test]
fn a_turn_that_runs_elsewhere_keeps_other_work_out() {
    let sandbox = Sandbox::outside_tmp();
    sandbox.write("project/a.txt", "one\n");
    let model = ScriptedModel::new(|request| match asked(request) {
        prompt if prompt.contains("hang") => Answer::Hangs("I begin"),
        _ if has_result(request) => Answer::Says(vec!["Done.".to_owned()]),
        _ => {
            let arguments = json!({"command": "echo two > a.txt"});
            Answer::Calls { id: "c1", tool: "developer__shell", arguments }
        }
    });
    let command = model.offered_to(sandbox.command(&["acp", "-a", "goose", "--approval", "auto"]));
    let mut client = Acp::launch(&sandbox, command);
    client.introduce(&json!({}));
    let session = client.session();
    client.prompt(&session, "edit it");
    let mark = client.mark();
    let running = client.begin(&session, "hang");
    client.wait(mark, "the answer begins", |message| message.to_string().contains("I begin"));
    let refused = restore(&sandbox, &[&session, "--turn", "1", "--yes"]);
    let expected = "a turn or another restore of this session runs, maybe in another process";
    assert!(refused.code == 1 && refused.stderr.contains(expected), "{}", refused.whole());
    assert_eq!(read(sandbox.path("project/a.txt")), "two\n");
    let command = sandbox.command(&["run", "--resume", &session, "hello"]);
    let refused = model.offered_to(command).output().unwrap();
    let expected = "a turn or a restore of this session runs in another process; wait for its end";
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && said.contains(expected), "{said}");
    let refused = sandbox.skein(&["sessions", "delete", &session]);
    let expected = format!("nothing was deleted: a turn or a restore of the session `{session}` runs");
    assert!(refused.code == 1 && refused.stderr.contains(&expected), "{}", refused.whole());
    client.cancel(&session);
    assert_eq!(client.ended(&running), "cancelled");
    restored(&sandbox, &[&session, "--turn", "1", "--yes"]);
    assert_eq!(read(sandbox.path("project/a.txt")), "one\n");
    assert_eq!(sandbox.skein(&["sessions", "delete", &session]).code, 0);
}

/// A child session changes the files of its parent's turn.
#[test]
fn changes_of_a_delegated_task_come_back() {
    let sandbox = Sandbox::outside_tmp();
    let mut client = Acp::able(&sandbox, &["-a", "orchestrator", "--approval", "auto"], &json!({}));
    let session = client.session();
    let task = json!({"task": "run touch made.txt", "agent": "coding", "mode": "backend", "background": false, "name": "quick"});
    client.prompt(&session, &format!("/delegate {task}"));
    assert!(sandbox.path("project/made.txt").exists());
    let done = spoken(&client.prompt(&session, "/undo yes").1);
    assert!(done.contains("The history and 1 file are restored."), "{done}");
    assert!(!sandbox.path("project/made.txt").exists());
}

/// An external agent may change files without a call, so its turns begin with a checkpoint.
#[test]
fn changes_of_an_external_agent_come_back() {
    let sandbox = Sandbox::new();
    let runner = mode("runner", json!(["read", "edit", "command"]), json!(["developer"]));
    sandbox.install(&manifest("echo", &echo(&[]), &[runner]));
    sandbox.write("project/a.txt", "one\n");
    let mut client = Acp::start(&sandbox);
    let session = client.session();
    client.set_mode(&session, "echo/runner");
    client.on_permission("allow_once");
    let file = sandbox.path("project/a.txt");
    client.prompt(&session, &format!("write {} two", file.display()));
    assert!(read(&file).contains("two"));
    let done = spoken(&client.prompt(&session, "/undo yes").1);
    assert!(done.contains("The history and 1 file are restored."), "{done}");
    assert_eq!(read(&file), "one\n");
}
