//! Merges the two pipes of a child process into one sequence of pieces, in order of arrival.
//!
//! Pieces are whole lines, so that the streams do not mix within a line. The order of output written to both
//! streams at the same moment is unknown.

use std::mem::take;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{ChildStderr, ChildStdout};
use tokio::time::sleep;

use crate::process::Pipes;

const CHUNK: usize = 32 << 10;
/// Maximum length of an unfinished line that is held back.
const MAX_PARTIAL: usize = 8 << 10;
/// An unfinished line is a prompt, and is no longer held back, if nothing follows for this long.
const PROMPT: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

#[derive(Debug)]
pub(super) struct Pump {
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    out_partial: Vec<u8>,
    err_partial: Vec<u8>,
    out_chunk: Vec<u8>,
    err_chunk: Vec<u8>,
}

impl Pump {
    pub(super) fn new(pipes: Pipes) -> Self {
        Self {
            stdout: Some(pipes.stdout),
            stderr: Some(pipes.stderr),
            out_partial: Vec::new(),
            err_partial: Vec::new(),
            out_chunk: Vec::with_capacity(CHUNK),
            err_chunk: Vec::with_capacity(CHUNK),
        }
    }

    /// Waits for the next piece; `None` when both pipes are closed. Cancel-safe: dropping the future loses no
    /// output.
    pub(super) async fn next(&mut self) -> Option<(Stream, Vec<u8>)> {
        loop {
            let (stream, open) = tokio::select! {
                open = read(&mut self.stdout, &mut self.out_chunk), if self.stdout.is_some() => (Stream::Out, open),
                open = read(&mut self.stderr, &mut self.err_chunk), if self.stderr.is_some() => (Stream::Err, open),
                () = sleep(PROMPT), if !self.out_partial.is_empty() => {
                    return Some((Stream::Out, take(&mut self.out_partial)));
                }
                () = sleep(PROMPT), if !self.err_partial.is_empty() => {
                    return Some((Stream::Err, take(&mut self.err_partial)));
                }
                else => return None,
            };
            let (chunk, partial) = match stream {
                Stream::Out => (&mut self.out_chunk, &mut self.out_partial),
                Stream::Err => (&mut self.err_chunk, &mut self.err_partial),
            };
            partial.append(chunk);
            let end = match partial.iter().rposition(|byte| *byte == b'\n') {
                _ if !open => partial.len(),
                Some(last) => last + 1,
                None if partial.len() > MAX_PARTIAL => partial.len(),
                None => 0,
            };
            if end > 0 {
                return Some((stream, partial.drain(..end).collect()));
            }
        }
    }

    /// Returns the unfinished lines.
    pub(super) fn rest(&mut self) -> [(Stream, Vec<u8>); 2] {
        [(Stream::Out, take(&mut self.out_partial)), (Stream::Err, take(&mut self.err_partial))]
    }
}

/// Reads once. Returns `false` if the pipe is closed, and drops the pipe.
async fn read(pipe: &mut Option<impl AsyncRead + Unpin>, chunk: &mut Vec<u8>) -> bool {
    let Some(open) = pipe else { return false };
    // A read error counts as the end of the pipe.
    let more = matches!(open.read_buf(chunk).await, Ok(length) if length > 0);
    if !more {
        *pipe = None;
    }
    more
}
