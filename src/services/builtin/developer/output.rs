//! Reduces output of any length to text of bounded length: shows the head and the tail, and writes all of it to a
//! log file. Memory use is bounded.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::services::builtin::answer::{count, size};

pub(super) const MAX_LINES: usize = 2_000;
pub(super) const MAX_BYTES: usize = 50_000;
const HEAD_LINES: usize = 800;
const HEAD_BYTES: usize = 20_000;
const TAIL_LINES: usize = MAX_LINES - HEAD_LINES;
const TAIL_BYTES: usize = MAX_BYTES - HEAD_BYTES;
/// Maximum size of a log.
const MAX_LOG: u64 = 256 << 20;

/// The output so far.
#[derive(Debug, Default)]
pub(super) struct Capture {
    head: Vec<u8>,
    head_lines: usize,
    /// The last bytes after the head, at least [`MAX_BYTES`] and at most twice as many.
    tail: VecDeque<u8>,
    bytes: u64,
    lines: usize,
    log: Option<Log>,
}

/// The visible part of a [`Capture`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OutputExcerpt {
    pub(super) text: String,
    pub(super) truncated: bool,
}

impl Capture {
    pub(super) fn with_log(log: Log) -> Self {
        Self { log: Some(log), ..Self::default() }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        let bytes = self.bytes + chunk.len() as u64;
        let lines = self.lines + newlines(chunk);
        if let Some(log) = &mut self.log
            && (log.is_open() || log.keeps == Keeps::Everything || bytes > MAX_BYTES as u64 || lines >= MAX_LINES)
        {
            if !log.is_open() {
                // Nothing has been dropped so far.
                log.write(&self.head);
                log.write(self.tail.make_contiguous());
            }
            log.write(chunk);
        }
        (self.bytes, self.lines) = (bytes, lines);
        let rest = self.fill_head(chunk);
        let rest = &rest[rest.len().saturating_sub(MAX_BYTES)..];
        self.tail.extend(rest);
        if self.tail.len() > 2 * MAX_BYTES {
            self.tail.drain(..self.tail.len() - MAX_BYTES);
        }
    }

    fn fill_head<'a>(&mut self, chunk: &'a [u8]) -> &'a [u8] {
        // Once the tail has bytes, the head is complete; otherwise the order would be lost.
        if !self.tail.is_empty() {
            return chunk;
        }
        let mut taken = 0;
        while taken < chunk.len() && self.head.len() < HEAD_BYTES && self.head_lines < HEAD_LINES {
            self.head.push(chunk[taken]);
            self.head_lines += usize::from(chunk[taken] == b'\n');
            taken += 1;
        }
        &chunk[taken..]
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the path of the log with the whole output; `None` if there is no log.
    pub(super) fn log_path(&self) -> Option<&Path> {
        self.log.as_ref().and_then(Log::path)
    }

    pub(super) fn render(&self) -> OutputExcerpt {
        let (front, back) = self.tail.as_slices();
        let tail = [front, back].concat();
        if self.bytes <= MAX_BYTES as u64 && line_count(self.lines, &self.head, &tail) <= MAX_LINES {
            let text = String::from_utf8_lossy(&[&self.head[..], &tail].concat()).into_owned();
            return OutputExcerpt { text, truncated: false };
        }
        let head = whole_lines(&self.head);
        let tail = last_part(&tail);
        let bytes = self.bytes - head.len() as u64 - tail.len() as u64;
        let lines = self.lines.saturating_sub(newlines(head) + newlines(tail));
        let place = match &self.log {
            Some(log) => log.note(),
            None => String::new(),
        };
        let mut text = String::from_utf8_lossy(head).into_owned();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format!("[... {} ({}) left out{place} ...]\n", count(lines, "line"), size(bytes)));
        text.push_str(&String::from_utf8_lossy(tail));
        OutputExcerpt { text, truncated: true }
    }

    /// Returns the visible part of the output since the last call. The log continues.
    pub(super) fn take(&mut self) -> OutputExcerpt {
        let shown = self.render();
        *self = Self { log: self.log.take(), ..Self::default() };
        shown
    }
}

/// Returns `text` if it is short enough, otherwise its head and tail.
pub(super) fn excerpt(text: &str) -> String {
    let mut capture = Capture::default();
    capture.push(text.as_bytes());
    capture.render().text
}

fn newlines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

/// Counts lines, including a last line without a line end.
fn line_count(newlines: usize, head: &[u8], tail: &[u8]) -> usize {
    let last = tail.last().or(head.last());
    newlines + usize::from(last.is_some_and(|byte| *byte != b'\n'))
}

/// Returns `head` up to its last line end. Without a line end, returns it up to the last complete character.
fn whole_lines(head: &[u8]) -> &[u8] {
    if let Some(end) = head.iter().rposition(|byte| *byte == b'\n') {
        return &head[..=end];
    }
    match std::str::from_utf8(head) {
        Err(error) if error.error_len().is_none() => &head[..error.valid_up_to()],
        _ => head,
    }
}

/// Returns the end of `tail`, from the start of a line if one is near enough.
fn last_part(tail: &[u8]) -> &[u8] {
    let mut start = tail.len().saturating_sub(TAIL_BYTES);
    let body = tail.strip_suffix(b"\n").unwrap_or(tail);
    let line_starts = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    if let Some(start_of_lines) = line_starts.clone().nth(TAIL_LINES - 1) {
        start = start.max(start_of_lines);
    }
    if start > 0 && tail[start - 1] != b'\n' {
        let next_line = tail[start..].iter().position(|byte| *byte == b'\n').map(|at| start + at + 1);
        match next_line {
            Some(next) if next - start < TAIL_BYTES / 2 && next < tail.len() => start = next,
            // One very long line: starts at a complete character.
            _ => start += tail[start..].iter().take(3).take_while(|byte| (0x80..0xc0).contains(*byte)).count(),
        }
    }
    &tail[start..]
}

/// A log file in the session's scratch folder, created on first use.
#[derive(Debug)]
pub(super) struct Log {
    folder: PathBuf,
    keeps: Keeps,
    file: Option<(File, PathBuf)>,
    written: u64,
    fault: Option<String>,
}

/// Which output is written to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeps {
    Everything,
    /// All output, but only if it is too long to show.
    LongOutput,
}

impl Log {
    pub(super) fn new(folder: &Path, keeps: Keeps) -> Self {
        Self { folder: folder.to_owned(), keeps, file: None, written: 0, fault: None }
    }

    fn is_open(&self) -> bool {
        self.file.is_some() || self.fault.is_some()
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.fault.is_some() {
            return;
        }
        if let Err(error) = self.try_write(bytes) {
            let place = self.path().map(|path| format!(" {}", path.display())).unwrap_or_default();
            self.fault = Some(format!("; the log{place} is incomplete: {error}"));
        }
    }

    fn try_write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let room = usize::try_from(MAX_LOG - self.written).unwrap_or(usize::MAX).min(bytes.len());
        self.open_file()?.write_all(&bytes[..room])?;
        self.written += room as u64;
        if room < bytes.len() {
            return Err(std::io::Error::other(format!("it ends after {}", size(MAX_LOG))));
        }
        Ok(())
    }

    /// Creates the log as a temporary file, whose name and permissions keep its contents private to the user.
    fn open_file(&mut self) -> std::io::Result<&mut File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                std::fs::create_dir_all(&self.folder)?;
                tempfile::Builder::new().prefix("shell-").suffix(".log").tempfile_in(&self.folder)?.keep()?
            }
        };
        Ok(&mut self.file.insert(file).0)
    }

    fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|(_, path)| path.as_path())
    }

    fn note(&self) -> String {
        match (&self.fault, self.path()) {
            (Some(fault), _) => fault.clone(),
            (None, Some(path)) => format!("; all of it is in {}", path.display()),
            (None, None) => String::new(),
        }
    }
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
