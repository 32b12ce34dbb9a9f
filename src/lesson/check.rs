//! Runs the check of a step and compares its output with the page.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::page::LessonStep;
use crate::process::{Launch, ProcessGroup, Reaper, Stdin};

/// All variables of the environment in which a check runs.
pub type CheckVariables = BTreeMap<OsString, OsString>;

/// Longest time that a check may take. The longest one starts a service.
const PATIENCE: Duration = Duration::from_secs(120);
/// Maximum bytes of output that are compared.
const MAX_OUTPUT: u64 = 1024 * 1024;
/// Maximum lines of output that a report on a failure contains.
const MAX_LINES: usize = 20;

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckOutcome {
    Passed,
    Failed(MissingLines),
    /// The check did not end in time.
    TimedOut,
}

/// What a failed check lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingLines {
    /// Expected lines that the command did not print.
    pub missing: Vec<String>,
    /// How the command ended, if it failed.
    pub status: Option<String>,
    /// Everything that the command printed.
    pub output: String,
}

impl CheckOutcome {
    pub fn is_passed(&self) -> bool {
        *self == Self::Passed
    }

    /// Describes the outcome to people, as Markdown without a heading.
    pub fn render(&self) -> String {
        let failed = match self {
            Self::Passed => return "The check passes.\n".to_owned(),
            Self::TimedOut => {
                return format!("The check did not end within {} s, and was stopped.\n", PATIENCE.as_secs());
            }
            Self::Failed(failed) => failed,
        };
        let mut text = String::new();
        if let Some(status) = &failed.status {
            text.push_str(&format!("The command of the check failed ({status}).\n"));
        }
        if !failed.missing.is_empty() {
            text.push_str("The check does not print:\n\n");
            failed.missing.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
        }
        let lines: Vec<_> = failed.output.lines().collect();
        if lines.is_empty() {
            text.push_str("\nIt prints nothing.\n");
            return text;
        }
        text.push_str("\nIt prints:\n\n");
        let first = lines.len().saturating_sub(MAX_LINES);
        if first > 0 {
            text.push_str("    …\n");
        }
        lines[first..].iter().for_each(|line| text.push_str(&format!("    {line}\n")));
        text
    }
}

/// Runs the check of a step in `cwd`. A step without a check passes. Dropping the future ends the check, and with a
/// reaper, so does any end of Skein. Fails if the shell cannot start.
pub async fn run_check(
    step: &LessonStep,
    cwd: &Path,
    variables: &CheckVariables,
    reaper: Option<&Reaper>,
) -> std::io::Result<CheckOutcome> {
    let Some((command, expected)) = &step.check else { return Ok(CheckOutcome::Passed) };
    let launch = Launch {
        program: "sh".into(),
        args: vec!["-c".into(), command.into()],
        env: variables.clone(),
        cwd: Some(cwd.to_owned()),
        stdin: Stdin::Closed,
        launcher: None,
    };
    let (mut group, pipes) = ProcessGroup::spawn(&launch, reaper)?;
    let run = async {
        let (stdout, stderr, status) = tokio::join!(read_all(pipes.stdout), read_all(pipes.stderr), group.status());
        Ok::<_, std::io::Error>((stdout? + &stderr?, status?))
    };
    let Ok(ended) = tokio::time::timeout(PATIENCE, run).await else { return Ok(CheckOutcome::TimedOut) };
    let (output, status) = ended?;
    let missing: Vec<_> = expected.iter().filter(|line| !output.contains(line.as_str())).cloned().collect();
    if status.success() && missing.is_empty() {
        return Ok(CheckOutcome::Passed);
    }
    let status = (!status.success()).then(|| status.to_string());
    Ok(CheckOutcome::Failed(MissingLines { missing, status, output }))
}

async fn read_all(pipe: impl AsyncRead + Unpin) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    pipe.take(MAX_OUTPUT).read_to_end(&mut bytes).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(command: &str, expected: &[&str]) -> LessonStep {
        let expected = expected.iter().map(|line| (*line).to_owned()).collect();
        LessonStep { check: Some((command.to_owned(), expected)), ..LessonStep::default() }
    }

    async fn outcome(command: &str, expected: &[&str]) -> CheckOutcome {
        let folder = tempfile::tempdir().unwrap();
        let path = CheckVariables::from([("PATH".into(), "/usr/bin:/bin".into())]);
        run_check(&step(command, expected), folder.path(), &path, None).await.unwrap()
    }

    #[tokio::test]
    async fn a_check_passes_if_it_succeeds_and_prints_its_lines() {
        assert_eq!(outcome("echo one; echo two >&2", &["one", "two"]).await, CheckOutcome::Passed);
        let path = CheckVariables::new();
        let nothing = run_check(&LessonStep::default(), Path::new("/"), &path, None).await.unwrap();
        assert!(nothing.is_passed(), "a step without a check");
    }

    #[tokio::test]
    async fn a_failure_names_what_is_missing() {
        let failed = outcome("echo one", &["one", "two"]).await;
        assert_eq!(failed.render(), "The check does not print:\n\n    two\n\nIt prints:\n\n    one\n");
        let failed = outcome("exit 3", &[]).await;
        assert_eq!(failed.render(), "The command of the check failed (exit status: 3).\n\nIt prints nothing.\n");
    }

    #[tokio::test]
    async fn a_check_sees_only_the_given_variables_and_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("here.txt"), "found\n").unwrap();
        let variables =
            CheckVariables::from([("PATH".into(), "/usr/bin:/bin".into()), ("SHOWN".into(), "a value".into())]);
        let step = step("cat here.txt; echo \"$SHOWN ${HOME-no home}\"", &["found", "a value no home"]);
        assert!(run_check(&step, folder.path(), &variables, None).await.unwrap().is_passed());
    }
}
