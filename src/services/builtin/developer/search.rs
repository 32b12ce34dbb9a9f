//! Implements `search`: finds matching lines with ripgrep's libraries and groups them by file.

use std::io;
use std::path::{Path, PathBuf};

use grep_matcher::LineTerminator;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::tool::{CallContext, SessionContext};

use super::{output, paths, report, walk};
use crate::services::builtin::answer::{ToolRefusal, ToolReply, count, text};

const DEFAULT_MAX: usize = 100;
/// Maximum characters of a line; longer lines are cut.
const MAX_LINE: usize = 400;
/// Maximum memory for one line; the search of a file with a longer line fails.
const MAX_HEAP: usize = 16 << 20;
/// Maximum number of files that are reported as locations.
const MAX_PLACES: usize = 50;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchFiles {
    /// Rust regex, line by line
    #[schemars(length(min = 1))]
    pattern: String,
    /// Folder or file
    path: Option<String>,
    /// Only these files, e.g. `*.rs`
    glob: Option<String>,
    /// Pattern is plain text
    #[serde(default)]
    literal: bool,
    /// Lines around matches
    #[schemars(range(max = 20))]
    context: Option<usize>,
    /// Matches, default 100
    #[schemars(range(min = 1, max = 1000))]
    max: Option<usize>,
}

pub(super) fn search(call: &CallContext, request: &SearchFiles) -> ToolReply {
    let matcher = matcher(request)?;
    let glob = request.glob.as_deref().map(walk::glob).transpose()?;
    let place = paths::target(call, request.path.as_deref().unwrap_or("."))?;
    let shown = paths::display_path(&call.session, &place);
    let metadata = place.symlink_metadata().map_err(|error| ToolRefusal::io("search", &shown, &error))?;
    if metadata.is_dir() {
        walk::check_folder(&place, "search", &shown)?;
    }
    let context = request.context.unwrap_or(0).min(20);
    let mut searcher = SearcherBuilder::new()
        // Must equal the matcher's line terminator, or the searcher finds nothing.
        .line_terminator(LineTerminator::crlf())
        .before_context(context)
        .after_context(context)
        .binary_detection(BinaryDetection::quit(0))
        .heap_limit(Some(MAX_HEAP))
        .build();
    let mut found = SearchReport::new(&call.session, request.max.unwrap_or(DEFAULT_MAX).clamp(1, 1000));
    let roots = paths::roots(&call.session);
    for entry in walk::walk_folder(&call.session, &place).build() {
        if call.cancel.is_cancelled() {
            return Err(ToolRefusal::new("the call was cancelled"));
        }
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                found.unreadable.add(&error);
                continue;
            }
        };
        if !entry.file_type().is_some_and(|kind| kind.is_file()) {
            continue;
        }
        let relative = entry.path().strip_prefix(&place).unwrap_or(entry.path());
        // A path that is itself a file is matched by its name.
        let relative = if relative.as_os_str().is_empty() { Path::new(entry.file_name()) } else { relative };
        if glob.as_ref().is_some_and(|glob| !glob.is_match(relative)) {
            continue;
        }
        let file = match paths::open(&roots, entry.path()) {
            Ok(file) => file,
            Err(error) if entry.depth() == 0 => return Err(ToolRefusal::io("search", &shown, &error)),
            Err(error) => {
                found.unreadable.add_file(&error);
                continue;
            }
        };
        found.files += 1;
        found.heading = Some(entry.path().to_owned());
        found.file = entry.path().to_owned();
        if let Err(error) = searcher.search_file(&matcher, &file, &mut found) {
            found.faults.push(format!("{}: {error}", paths::display_path(&call.session, entry.path())));
        }
        if found.left == 0 || found.text.len() > output::MAX_BYTES {
            break;
        }
    }
    for (file, line) in &found.places {
        report::place(call, file, Some(*line));
    }
    if found.places.is_empty() {
        report::place(call, &place, None);
    }
    Ok(text(found.report(&shown)))
}

fn matcher(request: &SearchFiles) -> Result<RegexMatcher, ToolRefusal> {
    let mut builder = RegexMatcherBuilder::new();
    // `^` and `$` match at line ends.
    builder.multi_line(true).crlf(true).fixed_strings(request.literal);
    builder.build(&request.pattern).map_err(|error| {
        ToolRefusal::new(format!(
            "the pattern is not a regular expression that can be used: {error}\nEscape literal characters \
             (`\\(`), or set `literal: true`. There are no look-arounds or back-references, and a match is within one line"
        ))
    })
}

/// Collects the matches as text.
#[derive(Debug)]
struct SearchReport<'a> {
    session: &'a SessionContext,
    text: String,
    /// The file being searched; `None` once its heading is written before the first match.
    heading: Option<PathBuf>,
    /// The file being searched.
    file: PathBuf,
    /// The first match of each file, at most [`MAX_PLACES`].
    places: Vec<(PathBuf, usize)>,
    left: usize,
    matches: usize,
    files: usize,
    files_with_matches: usize,
    /// Files that could not be read to their end.
    faults: Vec<String>,
    /// Folders and files that could not be opened.
    unreadable: walk::UnreadableEntries,
}

impl<'a> SearchReport<'a> {
    fn new(session: &'a SessionContext, max: usize) -> Self {
        Self {
            session,
            text: String::new(),
            heading: None,
            file: PathBuf::new(),
            places: Vec::new(),
            left: max,
            matches: 0,
            files: 0,
            files_with_matches: 0,
            faults: Vec::new(),
            unreadable: walk::UnreadableEntries::default(),
        }
    }

    fn line(&mut self, number: Option<u64>, mark: char, bytes: &[u8]) {
        if let Some(heading) = self.heading.take() {
            if !self.text.is_empty() {
                self.text.push('\n');
            }
            self.text.push_str(&paths::display_path(self.session, &heading));
            self.text.push('\n');
            self.files_with_matches += 1;
        }
        let line = String::from_utf8_lossy(bytes);
        let line = line.trim_end_matches(['\n', '\r']);
        let end = line.char_indices().nth(MAX_LINE).map_or(line.len(), |(end, _)| end);
        let cut = if end < line.len() { " [...]" } else { "" };
        self.text.push_str(&format!("{}{mark} {}{cut}\n", number.unwrap_or_default(), &line[..end]));
    }

    fn report(mut self, shown: &str) -> String {
        let stopped = self.left == 0 || self.text.len() > output::MAX_BYTES;
        if self.matches == 0 {
            let files = count(self.files, "file");
            self.text =
                format!("no match in the {files} searched in `{shown}` (ignored and binary files are left out)");
        } else {
            let matches = if self.matches == 1 { "1 match".to_owned() } else { format!("{} matches", self.matches) };
            let files = count(self.files_with_matches, "file");
            let more = "; there may be more: narrow `path`, `glob` or `pattern`, or raise `max`";
            self.text.push_str(&format!("\n[{matches} in {files}{}]\n", if stopped { more } else { "" }));
        }
        if let Some(fault) = self.faults.first() {
            let files = count(self.faults.len(), "file");
            self.text.push_str(&format!("\n[{files} could not be searched to the end; {fault}]\n"));
        }
        let ends_line = self.text.ends_with('\n');
        self.text.push_str(&if ends_line { self.unreadable.line() } else { self.unreadable.after_line() });
        output::excerpt(&self.text)
    }
}

impl Sink for &mut SearchReport<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        self.line(found.line_number(), ':', found.bytes());
        let is_known = self.places.last().is_some_and(|(file, _)| *file == self.file);
        if !is_known && self.places.len() < MAX_PLACES {
            let line = found.line_number().and_then(|line| usize::try_from(line).ok()).unwrap_or(1);
            self.places.push((self.file.clone(), line));
        }
        self.matches += 1;
        self.left -= 1;
        Ok(self.left > 0 && self.text.len() <= output::MAX_BYTES)
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> Result<bool, io::Error> {
        self.line(context.line_number(), '-', context.bytes());
        Ok(true)
    }

    fn context_break(&mut self, _: &Searcher) -> Result<bool, io::Error> {
        self.text.push_str("--\n");
        Ok(true)
    }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
