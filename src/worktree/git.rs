//! Starts git for task worktrees.
//!
//! Invariant: git runs no program that a repository names, such as a hook, a filter, a merge driver or a file system
//! monitor. It reaches no server and asks nothing.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::process::{Launch, Pipes, ProcessGroup, Stdin};

/// How long one command may take. A large repository on a slow disk takes minutes.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// Maximum characters of git's own words in an error.
const MAX_REASON: usize = 400;
/// Maximum bytes that a command may print. The list of all files of a large repository takes tens of MiB.
const MAX_OUTPUT: u64 = 64 << 20;
/// Bytes that are kept of what a command prints to stderr.
const MAX_STDERR: u64 = 64 << 10;
/// Maximum number of changed files in an output. A list may name a file twice.
const MAX_NAMES: usize = 100_000;
/// Git prints the names of objects and paths, each with a NUL after it.
pub(super) const NUL: u8 = 0;

/// Settings that override those of every config.
const SETTINGS: [(&str, &str); 10] = [
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.untrackedCache", "false"),
    ("core.splitIndex", "false"),
    ("core.logAllRefUpdates", "false"),
    ("commit.gpgSign", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("protocol.allow", "never"),
    ("submodule.recurse", "false"),
];

/// Variables that every command gets. Commits must not depend on a name in a config.
const VARIABLES: [(&str, &str); 9] = [
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_ALLOW_PROTOCOL", "none"),
    ("GIT_AUTHOR_NAME", "Skein"),
    ("GIT_AUTHOR_EMAIL", "skein@localhost"),
    ("GIT_COMMITTER_NAME", "Skein"),
    ("GIT_COMMITTER_EMAIL", "skein@localhost"),
    ("LC_ALL", "C"),
];

/// Why git did not do what Skein needs.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    #[error("git cannot be started: {0}; install git, or remove `workspace: worktree`")]
    Start(#[source] io::Error),
    #[error("the connection to `git {command}` broke: {source}")]
    Pipe {
        command: String,
        #[source]
        source: io::Error,
    },
    #[error("`git {command}` failed: {reason}")]
    Failed { command: String, reason: String },
    #[error("`git {command}` took longer than {} s", TIME_LIMIT.as_secs())]
    TimedOut { command: String },
    #[error("`git {command}` printed more than {} MiB or {MAX_NAMES} names", MAX_OUTPUT >> 20)]
    TooMuch { command: String },
}

/// One command of git.
#[derive(Debug)]
pub(super) struct GitCommand {
    folder: PathBuf,
    args: Vec<OsString>,
    variables: BTreeMap<OsString, OsString>,
    settings: Vec<(OsString, OsString)>,
    input: Vec<u8>,
}

impl GitCommand {
    /// A command that runs in `folder`.
    pub(super) fn new(folder: &Path, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        Self {
            folder: folder.to_owned(),
            args: args.into_iter().map(|argument| argument.as_ref().to_owned()).collect(),
            variables: BTreeMap::new(),
            settings: Vec::new(),
            input: Vec::new(),
        }
    }

    pub(super) fn with_variable(mut self, name: &str, value: &Path) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    pub(super) fn with_settings(mut self, settings: &[(OsString, OsString)]) -> Self {
        self.settings.extend_from_slice(settings);
        self
    }

    pub(super) fn with_input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self
    }

    /// Runs the command for the files in `folder`, which `index` describes.
    pub(super) fn with_files(self, folder: &Path, index: &Path) -> Self {
        let command = self.with_variable("GIT_WORK_TREE", folder).with_variable("GIT_INDEX_FILE", index);
        Self { folder: folder.to_owned(), ..command }
    }

    /// Returns the name of the command, for people.
    fn name(&self) -> String {
        self.args.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

/// How a command of git ended.
#[derive(Debug)]
pub(super) struct GitOutput {
    /// `None` if a signal ended it.
    pub(super) code: Option<i32>,
    pub(super) stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl GitOutput {
    /// Returns the error that the command reports. `command` names it.
    pub(super) fn failure(&self, command: &str) -> GitError {
        let words = String::from_utf8_lossy(&self.stderr);
        let line: Vec<&str> = words.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let mut reason: String = line.join("; ").chars().take(MAX_REASON).collect();
        if reason.is_empty() {
            reason = self.code.map_or("a signal ended it".to_owned(), |code| format!("it ended with code {code}"));
        }
        GitError::Failed { command: command.to_owned(), reason }
    }
}

/// Returns the entries of a list of changed files, which a command of this name has printed. Fails if there are too
/// many.
pub(super) fn names_of_changes<'a>(output: &'a [u8], command: &str) -> Result<Vec<&'a [u8]>, GitError> {
    let names = output.split(|byte| *byte == NUL).filter(|name| !name.is_empty());
    let names: Vec<_> = names.take(MAX_NAMES + 1).collect();
    if names.len() > MAX_NAMES { Err(GitError::TooMuch { command: command.to_owned() }) } else { Ok(names) }
}

/// Starts git in the environment of the user.
#[derive(Debug)]
pub(super) struct GitRunner {
    environment: BTreeMap<OsString, OsString>,
}

impl GitRunner {
    /// `environment` needs `HOME` and `PATH`.
    pub(super) fn new(mut environment: BTreeMap<OsString, OsString>) -> Self {
        environment.retain(|name, _| !name.to_string_lossy().starts_with("GIT_"));
        environment.extend(VARIABLES.map(|(name, value)| (OsString::from(name), OsString::from(value))));
        Self { environment }
    }

    /// Runs a command to its end. A failure of the command is not an error.
    pub(super) async fn run(&self, command: GitCommand) -> Result<GitOutput, GitError> {
        let name = command.name();
        let GitCommand { folder, args, variables, settings, input } = command;
        let launch = Launch {
            program: "git".into(),
            args,
            env: self.environment_with(variables, settings),
            cwd: Some(folder),
            stdin: Stdin::Piped,
            launcher: None,
        };
        let (mut group, pipes) = ProcessGroup::spawn(&launch, None).map_err(GitError::Start)?;
        let Pipes { stdin, mut stdout, mut stderr } = pipes;
        let broken = |source| GitError::Pipe { command: name.clone(), source };
        let exchange = async {
            let write = async {
                if let Some(mut stdin) = stdin {
                    // Git may end before it has read everything; its exit code gives the reason.
                    drop(stdin.write_all(&input).await);
                }
                Ok::<_, GitError>(())
            };
            let read_stdout = async {
                let mut bytes = Vec::new();
                (&mut stdout).take(MAX_OUTPUT + 1).read_to_end(&mut bytes).await.map_err(broken)?;
                let is_whole = bytes.len() as u64 <= MAX_OUTPUT;
                if is_whole { Ok(bytes) } else { Err(GitError::TooMuch { command: name.clone() }) }
            };
            let read_stderr = async {
                let mut bytes = Vec::new();
                (&mut stderr).take(MAX_STDERR).read_to_end(&mut bytes).await.map_err(broken)?;
                // A full pipe would stop git.
                tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await.map_err(broken)?;
                Ok::<_, GitError>(bytes)
            };
            let ((), stdout, stderr) = tokio::try_join!(write, read_stdout, read_stderr)?;
            let status = group.status().await.map_err(broken)?;
            Ok::<_, GitError>(GitOutput { code: status.code(), stdout, stderr })
        };
        match tokio::time::timeout(TIME_LIMIT, exchange).await {
            Ok(output) => output,
            Err(_) => Err(GitError::TimedOut { command: name }),
        }
    }

    /// Runs a command and returns its output. Fails if its exit code is not 0.
    pub(super) async fn output(&self, command: GitCommand) -> Result<Vec<u8>, GitError> {
        let name = command.name();
        let output = self.run(command).await?;
        if output.code == Some(0) { Ok(output.stdout) } else { Err(output.failure(&name)) }
    }

    /// Runs a command that prints an object id.
    pub(super) async fn id(&self, command: GitCommand) -> Result<String, GitError> {
        let name = command.name();
        let output = self.output(command).await?;
        let text = String::from_utf8_lossy(&output).trim().to_owned();
        let is_id = text.len() >= 40 && text.chars().all(|digit| digit.is_ascii_hexdigit());
        if is_id { Ok(text) } else { Err(GitError::Failed { command: name, reason: format!("it printed `{text}`") }) }
    }

    /// Returns the whole environment of a command. Settings in variables override those of every file.
    fn environment_with(
        &self,
        variables: BTreeMap<OsString, OsString>,
        settings: Vec<(OsString, OsString)>,
    ) -> BTreeMap<OsString, OsString> {
        let mut environment = self.environment.clone();
        environment.extend(variables);
        let fixed = SETTINGS.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let all: Vec<_> = settings.into_iter().chain(fixed).collect();
        environment.insert("GIT_CONFIG_COUNT".into(), all.len().to_string().into());
        for (index, (name, value)) in all.into_iter().enumerate() {
            environment.insert(format!("GIT_CONFIG_KEY_{index}").into(), name);
            environment.insert(format!("GIT_CONFIG_VALUE_{index}").into(), value);
        }
        environment
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Returns a runner for a shell script in the place of git.
    pub(in crate::worktree) fn fake_git(folder: &Path, script: &str) -> GitRunner {
        let program = folder.join("git");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:/usr/bin:/bin", folder.display());
        GitRunner::new(BTreeMap::from([("PATH".into(), path.into())]))
    }

    #[tokio::test]
    async fn git_that_prints_without_end_is_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let runner = fake_git(folder.path(), "exec cat /dev/zero");
        let run = runner.run(GitCommand::new(folder.path(), ["ls-files"]));
        let error = tokio::time::timeout(Duration::from_secs(60), run).await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "`git ls-files` printed more than 64 MiB or 100000 names");
    }

    #[tokio::test]
    async fn only_the_beginning_of_what_git_complains_about_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let runner = fake_git(folder.path(), "echo no >&2; head -c 1000000 /dev/zero >&2; exit 3");
        let output = runner.run(GitCommand::new(folder.path(), ["status"])).await.unwrap();
        assert_eq!((output.code, output.stderr.len() as u64), (Some(3), MAX_STDERR));
        assert!(output.failure("status").to_string().starts_with("`git status` failed: no"));
    }
}
