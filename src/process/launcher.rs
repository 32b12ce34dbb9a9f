//! The port to places where a program can run other than as a child of this process.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::process::ExitStatus;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};

use super::{Launch, Pipes, Stdin};

/// Starts programs elsewhere. It inverts the arrow to the module that limits processes.
pub trait ProcessLauncher: std::fmt::Debug + Send + Sync {
    /// Starts the program in its own process group. `stdio` is its stdin, stdout and stderr. Returns when it runs.
    fn launch(&self, launch: &Launch, stdio: [OwnedFd; 3]) -> std::io::Result<Box<dyn LaunchedProcess>>;
}

/// A program that a launcher has started.
pub trait LaunchedProcess: std::fmt::Debug + Send + Sync {
    /// Returns its process id as this process sees it. `None` if it is unknown.
    fn id(&self) -> Option<u32>;

    /// Waits until it has ended.
    fn wait(&mut self) -> Pin<Box<dyn Future<Output = std::io::Result<ExitStatus>> + Send + '_>>;

    fn has_ended(&self) -> bool;

    /// Sends a signal to its process group.
    fn signal(&self, signal: Signal);
}

/// The first process of a group.
#[derive(Debug)]
pub(super) enum GroupLeader {
    Child { child: Child, pid: Pid },
    Launched(Box<dyn LaunchedProcess>),
}

impl GroupLeader {
    pub(super) async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        match self {
            GroupLeader::Child { child, .. } => child.wait().await,
            GroupLeader::Launched(process) => process.wait().await,
        }
    }
}

/// Starts a program with pipes to this process.
pub(super) fn launch(
    launcher: &dyn ProcessLauncher,
    launch: &Launch,
) -> std::io::Result<(Box<dyn LaunchedProcess>, Pipes)> {
    let (stdin, our_stdin) = match launch.stdin {
        Stdin::Piped => {
            let (theirs, ours) = private_pipe()?;
            (theirs, Some(ours))
        }
        Stdin::Closed => (rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?, None),
    };
    let (our_stdout, stdout) = private_pipe()?;
    let (our_stderr, stderr) = private_pipe()?;
    let process = launcher.launch(launch, [stdin, stdout, stderr])?;
    let pipes = Pipes {
        stdin: our_stdin.map(|fd| ChildStdin::from_std(fd.into())).transpose()?,
        stdout: ChildStdout::from_std(our_stdout.into())?,
        stderr: ChildStderr::from_std(our_stderr.into())?,
    };
    Ok((process, pipes))
}

/// Makes a pipe whose ends no other program inherits: the reader, then the writer.
fn private_pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = std::io::pipe()?;
    Ok((reader.into(), writer.into()))
}
