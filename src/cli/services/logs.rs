//! `skein services logs`: prints what the processes of a service wrote to stderr, from Skein's log.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::super::folders::Folders;
use super::super::output::{CommandError, CommandOutput, QUIET, display_line};
use super::super::{Global, workspace};
use super::name_error;
use crate::manifest::Transport;

/// The logs from the oldest to the current one.
const LOG_FILES: [&str; 3] = ["skein.log.2", "skein.log.1", "skein.log"];
/// Time between two looks at a log that is followed.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug, Args)]
pub(super) struct LogsArgs {
    name: String,
    /// Print this many lines
    #[arg(long, short = 'n', value_name = "LINES", default_value_t = 50)]
    lines: usize,
    /// Print new lines too, until interrupted
    #[arg(long, short)]
    follow: bool,
}

pub(super) fn run(
    args: &LogsArgs,
    json: bool,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let folder = folders.state.join("log");
    let unreadable = |error: std::io::Error| {
        let problem = format!("the log in {} cannot be read: {error}", folder.display());
        CommandError::work(problem, "check the permissions of the folder")
    };
    let (last, mut position) = last_lines(&folder, &args.name, args.lines).map_err(unreadable)?;
    if last.is_empty() {
        check_known(&args.name, global, folders)?;
        output.note(&format!("`{}` has written nothing to stderr that the log still has", display_line(&args.name)));
    }
    last.iter().for_each(|line| line.print(json, output));
    while args.follow && !output.has_ended() {
        std::thread::sleep(POLL_INTERVAL);
        for line in position.read_new(&args.name).map_err(unreadable)? {
            line.print(json, output);
        }
    }
    Ok(())
}

/// Fails if no manifest defines the service, or if the service has no process.
fn check_known(name: &str, global: &Global, folders: &Folders) -> Result<(), CommandError> {
    let manifests = workspace::manifests_quietly(global, folders)?;
    let entry = manifests.services.get(name).ok_or_else(|| name_error(name, &manifests))?;
    let reason = match &entry.manifest.transport {
        Transport::Stdio(_) => return Ok(()),
        Transport::Builtin(_) => "it runs inside Skein",
        Transport::Http(_) => "it runs elsewhere, behind an address",
    };
    let help = format!("the log of Skein itself is {}", folders.state.join("log/skein.log").display());
    Err(CommandError::usage(format!("the service `{name}` has no separate process: {reason}"), help))
}

/// A line that the process of a service wrote.
pub(in crate::cli) struct StderrLine {
    pub(in crate::cli) time: String,
    pub(in crate::cli) text: String,
}

impl StderrLine {
    /// Returns the line of the service. `None` if the entry of the log is about something else.
    fn of(entry: &str, service: &str) -> Option<Self> {
        // Most entries are about other things, and parsing is slower than searching.
        if !entry.contains(service) {
            return None;
        }
        let entry: Value = serde_json::from_str(entry).ok()?;
        let fields = entry.get("fields").filter(|fields| fields["service"] == service)?;
        let dropped = || fields["message"].as_str().and_then(|text| text.strip_prefix("service stderr: "));
        let text = fields["stderr"].as_str().or_else(dropped)?;
        Some(Self { time: entry["timestamp"].as_str().unwrap_or_default().to_owned(), text: text.to_owned() })
    }

    fn print(&self, json: bool, output: &mut CommandOutput) {
        match json {
            // One line for each entry, so that a reader of a followed log gets whole values.
            true => output.line(&crate::text::escape_json(&json!({"time": self.time, "text": self.text}).to_string())),
            false => output.line(&format!("{QUIET}{}{QUIET:#} {}", display_line(&self.time), display_line(&self.text))),
        }
    }
}

/// Returns the last lines of the service, and the end of the current log.
pub(in crate::cli) fn last_lines(
    folder: &Path,
    service: &str,
    count: usize,
) -> std::io::Result<(VecDeque<StderrLine>, LogPosition)> {
    let [mut oldest, mut older, mut current] =
        LOG_FILES.map(|name| LogPosition { file: folder.join(name), inode: 0, offset: 0 });
    let mut last = VecDeque::new();
    for log in [&mut oldest, &mut older, &mut current] {
        for line in log.read_new(service)? {
            last.push_back(line);
            if last.len() > count {
                last.pop_front();
            }
        }
    }
    Ok((last, current))
}

/// How far a log has been read.
pub(in crate::cli) struct LogPosition {
    file: PathBuf,
    inode: u64,
    offset: u64,
}

impl LogPosition {
    /// Returns the lines of the service since the last read. A log that was rotated is read from its start.
    fn read_new(&mut self, service: &str) -> std::io::Result<Vec<StderrLine>> {
        let mut log = match File::open(&self.file) {
            Ok(log) => log,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let metadata = log.metadata()?;
        if self.inode != metadata.ino() || metadata.len() < self.offset {
            self.inode = metadata.ino();
            self.offset = 0;
        }
        log.seek(SeekFrom::Start(self.offset))?;
        let mut reader = BufReader::new(log);
        let mut found = Vec::new();
        let mut line = Vec::new();
        // A line without an end is still being written.
        while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            self.offset += line.len() as u64;
            found.extend(StderrLine::of(&String::from_utf8_lossy(&line), service));
            line.clear();
        }
        Ok(found)
    }
}
