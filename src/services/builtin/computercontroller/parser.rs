//! Starts the parser of documents: the `skein` program in a sandbox without files, network and environment. It gets the
//! job and the bytes of the file through a pipe.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::parser_process::{DOCUMENT_PARSER_ARGUMENT, MAX_MEMORY, MAX_SECONDS, ParserJob, ParserReply};
use crate::document::DocumentError;
use crate::process::{Launch, Pipes, ProcessGroup, ProcessScope, Stdin};
use crate::sandbox::{CacheAccess, ProfileOwner, SandboxFolders, SandboxLauncher, SandboxProfile};
use crate::services::builtin::answer::ToolRefusal;
use crate::tool::CallContext;

/// The largest reply. It may hold a new file: the one before, its new images and texts.
const MAX_REPLY: u64 = 128 << 20;
/// Processes of the sandbox: its first process, the parser, and some room.
const MAX_PROCESSES: u32 = 8;
/// The parser limits its processor time; it may also wait.
const TIMEOUT: Duration = Duration::from_secs(MAX_SECONDS + 15);

/// Starts one process per job.
#[derive(Debug)]
pub(in crate::services::builtin) struct DocumentParser {
    launcher: Option<SandboxLauncher>,
}

impl DocumentParser {
    pub(in crate::services::builtin) fn new(launcher: Option<SandboxLauncher>) -> Self {
        Self { launcher }
    }

    /// Runs a job on the bytes of a file. The error of a file that cannot be read is worded for the model.
    pub(in crate::services::builtin) async fn run(
        &self,
        call: &CallContext,
        job: &ParserJob,
        bytes: Vec<u8>,
    ) -> Result<ParserReply, ToolRefusal> {
        let mut message =
            job.to_message().map_err(|_| ToolRefusal::new("the request is too long; write less at once"))?;
        message.extend(bytes);
        let scope = ProcessScope::default();
        let (mut group, pipes) = self.start(&scope).await?;
        let exchange = tokio::time::timeout(TIMEOUT, exchange(pipes, message));
        let output = tokio::select! {
            biased;
            () = call.cancel.cancelled() => return Err(ToolRefusal::new("the call was cancelled; nothing was done")),
            output = exchange => output.map_err(|_| too_slow())?,
        };
        if output.is_err() {
            group.kill();
        }
        let status = group.wait().await;
        match output.and_then(|output| ParserReply::parse(&output)) {
            Ok(ParserReply::Refused(error)) => Err(refuse(&error)),
            Ok(ParserReply::Panicked) => Err(ToolRefusal::new(
                "the parser failed on this file, which is a fault of Skein; read it another way, and tell the user",
            )),
            Ok(reply @ (ParserReply::Content(_) | ParserReply::Table(_) | ParserReply::File { .. })) => Ok(reply),
            Err(error) => {
                tracing::info!(%error, status, "the parser of documents gave no answer");
                Err(ToolRefusal::new(format!(
                    "the parser was stopped ({status}): the file is damaged or hostile, or needs more than {} MiB of \
                     memory or {MAX_SECONDS} s; read fewer pages or a smaller range, or ask the user for another copy",
                    MAX_MEMORY >> 20
                )))
            }
        }
    }

    async fn start(&self, scope: &ProcessScope) -> Result<(ProcessGroup, Pipes), ToolRefusal> {
        let refuse = |problem: String| ToolRefusal::new(format!("the parser does not start: {problem}; tell the user"));
        let launcher =
            self.launcher.as_ref().ok_or_else(|| refuse("this program has no sandbox launcher".to_owned()))?;
        let sandbox = launcher.start(profile(), SandboxFolders::default()).await;
        let sandbox = sandbox.map_err(|error| refuse(error.to_string()))?;
        let launch = Launch {
            program: launcher.program.clone().into_os_string(),
            args: vec![DOCUMENT_PARSER_ARGUMENT.into()],
            env: BTreeMap::new(),
            cwd: Some("/".into()),
            stdin: Stdin::Piped,
            launcher: Some(Arc::new(sandbox)),
        };
        let scope = scope.clone();
        // The sandbox process answers when the program runs, which takes a moment.
        let started = tokio::task::spawn_blocking(move || ProcessGroup::spawn_in(&scope, &launch, None)).await;
        started.map_err(|error| refuse(error.to_string()))?.map_err(|error| refuse(error.to_string()))
    }
}

/// Returns the profile of the parser: no files, no network. A machine without a layer runs it with the others; it still
/// has no environment and limits itself.
fn profile() -> SandboxProfile {
    let mut profile = SandboxProfile::narrowest(ProfileOwner::Program);
    profile.caches = CacheAccess::Off;
    profile.limits.processes = Some(MAX_PROCESSES);
    profile
}

fn too_slow() -> ToolRefusal {
    ToolRefusal::new(format!(
        "the document takes longer than {} s; read fewer pages or a smaller range",
        TIMEOUT.as_secs()
    ))
}

fn refuse(error: &DocumentError) -> ToolRefusal {
    ToolRefusal::of(error.clone())
}

/// Writes the job and reads the reply at the same time, because either pipe may be full. Fails if the reply is too long.
async fn exchange(pipes: Pipes, message: Vec<u8>) -> std::io::Result<Vec<u8>> {
    let Pipes { stdin, stdout, mut stderr } = pipes;
    let mut sink = tokio::io::sink();
    let write = async {
        if let Some(mut stdin) = stdin {
            // A parser that has ended does not read. Its exit status shows the reason.
            drop(stdin.write_all(&message).await);
            drop(stdin.shutdown().await);
        }
        Ok(())
    };
    let read = async {
        let mut output = Vec::new();
        stdout.take(MAX_REPLY + 1).read_to_end(&mut output).await?;
        if output.len() as u64 > MAX_REPLY { Err(std::io::ErrorKind::FileTooLarge.into()) } else { Ok(output) }
    };
    let drain = tokio::io::copy(&mut stderr, &mut sink);
    let ((), output, _) = tokio::try_join!(write, read, drain)?;
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reply_of_the_parser_without_end_is_refused() {
        let launch = Launch {
            program: "/bin/cat".into(),
            args: vec!["/dev/zero".into()],
            env: BTreeMap::new(),
            cwd: Some("/".into()),
            stdin: Stdin::Piped,
            launcher: None,
        };
        let (_group, pipes) = ProcessGroup::spawn(&launch, None).unwrap();
        let output = tokio::time::timeout(TIMEOUT, exchange(pipes, vec![0; 1 << 20])).await.unwrap();
        assert_eq!(output.unwrap_err().kind(), std::io::ErrorKind::FileTooLarge);
    }
}
