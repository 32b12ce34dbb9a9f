//! Real interpreters of shell scripts; small programs stand for the others, so that the text that reaches them is seen.

use std::os::unix::fs::PermissionsExt as _;

use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::process::minimal_environment;
use crate::services::builtin::computercontroller::ComputerControllerService;
use crate::services::builtin::harness::{Harness, runtime};

const SYSTEM: &str = "/usr/local/bin:/usr/bin:/bin";

/// A service whose commands find their programs in these folders.
fn harness(path: &str) -> Harness {
    let environment = minimal_environment([("PATH".into(), path.into())]);
    let shell = Shell::new(DeveloperOptions { environment, ..DeveloperOptions::default() });
    let scripts = ScriptRunner::new(shell, Arc::default(), Arc::default());
    Harness::new(ComputerControllerService::new(None).with_scripts(scripts))
}

/// A folder with a program of this name, which prints its arguments, each followed by `|`.
fn program(name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    std::fs::write(&file, "#!/bin/sh\nprintf '%s|' \"$@\"\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn shell(script: &str) -> Value {
    json!({"language": "shell", "script": script})
}

#[tokio::test]
async fn a_script_runs_as_a_command_of_the_shell_does() {
    let harness = harness(SYSTEM);
    let outcome = harness.call("run_script", shell("for i in 1 2; do\n  echo \"$i\"\ndone\nread line || pwd")).await;
    let cwd = harness.session.cwd.canonicalize().unwrap();
    let data = outcome.structured.clone().unwrap();
    assert_eq!(data["stdout"], json!(format!("1\n2\n{}\n", cwd.display())));
    assert_eq!((&data["exit_code"], &data["timed_out"], &data["truncated"]), (&json!(0), &json!(false), &json!(false)));
    let failed = harness.call("run_script", shell("echo oops >&2; exit 3")).await;
    assert!(failed.is_error && failed.all_text().contains("oops\n[exit 3 in "), "{}", failed.all_text());
    let long = harness.data("run_script", shell("for i in $(seq 5000); do echo line $i; done")).await;
    assert_eq!(long["truncated"], json!(true));
    let log = std::fs::read_to_string(long["log_path"].as_str().unwrap()).unwrap();
    assert!(log.ends_with("line 5000\n"), "the log has everything");
}

#[tokio::test]
async fn a_script_ends_with_its_process_group_at_its_time() {
    let harness = harness(SYSTEM);
    let script = "sleep 60 & echo $! > child; wait";
    let arguments = json!({"language": "shell", "script": script, "timeout": 1});
    let refusal = harness.refusal("run_script", arguments).await;
    assert!(
        refusal.contains("timed out after 1 s") && refusal.contains("`shell` with `background: true`"),
        "{refusal}"
    );
    let child = std::fs::read_to_string(harness.session.cwd.join("child")).unwrap();
    let stat = || std::fs::read_to_string(format!("/proc/{}/stat", child.trim()));
    let is_gone = || stat().map_or(true, |stat| stat.contains(") Z "));
    // The kernel ends the rest of a killed group a moment later.
    for _ in 0..100 {
        if is_gone() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{child} still runs");
}

#[tokio::test]
async fn other_languages_get_the_text_of_the_script() {
    let script = "-1\nprint(\"a 'b' $HOME `c`\")";
    for (language, name, expected) in [
        ("python", "python3", format!("-c|{script}|")),
        ("python", "python", format!("-c|{script}|")),
        ("javascript", "node", format!("--eval={script}|")),
        ("javascript", "nodejs", format!("--eval={script}|")),
    ] {
        let folder = program(name);
        let harness = harness(folder.path().to_str().unwrap());
        let data = harness.data("run_script", json!({"language": language, "script": script})).await;
        assert_eq!(data["stdout"], json!(expected), "{name}");
    }
}

#[tokio::test]
async fn a_missing_interpreter_is_named() {
    let empty = tempfile::tempdir().unwrap();
    let harness = harness(empty.path().to_str().unwrap());
    for (language, name) in [("shell", "bash"), ("python", "python3"), ("javascript", "node")] {
        let refusal = harness.refusal("run_script", json!({"language": language, "script": "1"})).await;
        assert!(refusal.starts_with(&format!("`{name}` is not installed here")), "{refusal}");
        assert!(refusal.ends_with(&format!("ask the user to install `{name}`")), "{refusal}");
    }
}

#[tokio::test]
async fn scripts_that_cannot_run_are_refused() {
    let harness = harness(SYSTEM);
    for (arguments, problem) in [
        (shell(" \n"), "the script is empty"),
        (shell("echo a\0b"), "a script cannot contain a NUL character"),
        (shell(&"#".repeat(MAX_SCRIPT + 1)), "the script is longer than 16.0 kB"),
        (json!({"language": "shell", "script": "true", "timeout": 601}), "`timeout` is between 1 and 600"),
        (json!({"language": "shell", "script": "touch ran", "save": "/etc/x"}), "is outside of what this session may"),
        (json!({"language": "shell", "script": "touch ran", "save": "a\0"}), "a path cannot contain a NUL"),
        (json!({"language": "shell", "script": "touch ran", "save": "."}), "could not read `.`"),
    ] {
        let refusal = harness.refusal("run_script", arguments.clone()).await;
        assert!(refusal.contains(problem), "{arguments}: {refusal}");
    }
    assert!(!harness.session.cwd.join("ran").exists());
}

#[tokio::test]
async fn a_kept_script_replaces_only_what_the_session_wrote() {
    let harness = harness(SYSTEM);
    let keep = |script: &str| json!({"language": "shell", "script": script, "save": "tools/go.sh"});
    let file = harness.session.cwd.join("tools/go.sh");
    let outcome = harness.call("run_script", keep("echo 'one'")).await;
    assert!(outcome.all_text().ends_with("[the script is in `tools/go.sh`]"), "{}", outcome.all_text());
    assert_eq!(outcome.structured.unwrap()["saved"], json!("tools/go.sh"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "echo 'one'");
    harness.data("run_script", keep("echo two\n")).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "echo two\n");
    std::fs::write(&file, "mine").unwrap();
    let refusal = harness.refusal("run_script", keep("touch ran")).await;
    assert!(refusal.contains("`tools/go.sh` exists and is not a script of this session"), "{refusal}");
    let other = harness.other_session("second").refusal("run_script", keep("touch ran")).await;
    assert!(other.contains("The script did not run"), "{other}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    assert!(!harness.session.cwd.join("ran").exists());
    let files: Vec<_> = std::fs::read_dir(file.parent().unwrap()).unwrap().collect();
    assert_eq!(files.len(), 1, "nothing else is left: {files:?}");
}

#[tokio::test]
async fn a_script_that_cannot_be_kept_does_not_run() {
    let harness = harness(SYSTEM);
    std::fs::write(harness.session.cwd.join("file"), "").unwrap();
    let arguments = json!({"language": "shell", "script": "touch ran", "save": "file/below.sh"});
    let refusal = harness.refusal("run_script", arguments).await;
    assert!(refusal.contains("below.sh"), "{refusal}");
    assert!(!harness.session.cwd.join("ran").exists());
}

#[tokio::test]
async fn the_gate_knows_what_the_tool_runs() {
    let tools = harness(SYSTEM).tools().await;
    let tool = tools.iter().find(|tool| tool.name.as_str() == "run_script").unwrap();
    let expected = json!({
        "script": "script", "language": "language",
        "programs": {"python": "python3 -c", "javascript": "node --eval"},
    });
    assert_eq!(tool.meta.as_ref().unwrap()["skein/script"], expected);
    assert_eq!(tool.input_schema["properties"]["language"]["enum"], json!(["shell", "python", "javascript"]));
    let hints = tool.hints;
    assert_eq!(
        [hints.read_only, hints.destructive, hints.idempotent, hints.open_world],
        [Some(false), Some(true), Some(false), Some(true)]
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever a script contains, its interpreter gets exactly this text, and so does the file that keeps it.
    #[test]
    fn any_script_arrives_unchanged(script in "[^\\x00]{1,200}") {
        prop_assume!(!script.trim().is_empty());
        let folder = program("python3");
        let path = format!("{}:{SYSTEM}", folder.path().display());
        runtime().block_on(async {
            let harness = harness(&path);
            let arguments = json!({"language": "python", "script": script, "save": "kept.py"});
            let outcome = harness.call("run_script", arguments).await;
            assert!(!outcome.is_error, "{}", outcome.all_text());
            assert_eq!(std::fs::read_to_string(harness.session.cwd.join("kept.py")).unwrap(), script);
            let data = outcome.structured.unwrap();
            // Terminal sequences and lone carriage returns are cleaned from output that is shown.
            if script.chars().all(|letter| !letter.is_control()) {
                assert_eq!(data["stdout"], json!(format!("-c|{script}|")));
            }
        });
    }
}
