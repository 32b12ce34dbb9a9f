//! Answers from a recording (`replay:FILE`), and records answers with `ModelRecorder`.
//!
//! A recording has one line of JSON for each request, in order. `answer` is the recorded answer; `asked` is the
//! beginning of the message it answered. A recording that is replayed for other questions causes an error, not a wrong
//! answer.
//!
//! Invariant: a recording contains no key, header or address, only the conversation.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use serde::{Deserialize, Serialize};

use super::{EarlierThoughts, LlmError, ModelRequest, ModelStop, Price, Provider, RequestOrigin, StreamEvent};
use crate::conversation::{MessagePart, ToolUse, Usage};
use crate::ids::ModelRef;
use crate::recording_file::RecordingFile;

/// Characters of a message that identify it in a recording.
const ASKED: usize = 200;

/// The newest known form of a recording. A recording whose first line has no `version` has this form.
const VERSION: u64 = 1;

/// The part of a line that says which form the recording has.
#[derive(Debug, Deserialize)]
struct ReplayVersion {
    version: Option<u64>,
}

/// The answer to one request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplayLine {
    /// Text that the gist of the request must contain. `None` accepts any request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asked: Option<String>,
    answer: Vec<ReplayPart>,
    #[serde(default)]
    stop: ReplayStop,
    #[serde(default)]
    usage: Usage,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReplayPart {
    Text(String),
    Thought(String),
    ToolUse(ToolUse),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReplayStop {
    #[default]
    Finished,
    Length,
    Refused,
    /// The connection was lost.
    Cut,
}

/// Replays a recording. Each request gets the next line.
#[derive(Debug)]
pub struct ReplayProvider {
    name: ModelRef,
    lines: Vec<(usize, ReplayLine)>,
    next: AtomicUsize,
}

impl ReplayProvider {
    pub fn new(file: &Path) -> Result<Self, LlmError> {
        let name = ModelRef::Replay(file.to_owned());
        let unusable = |reason: String| LlmError::UnusableRecording { model: name.to_string(), reason };
        let text = fs::read_to_string(file).map_err(|error| unusable(error.to_string()))?;
        let mut lines = Vec::new();
        for (index, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
            if lines.is_empty()
                && let Ok(ReplayVersion { version: Some(found) }) = serde_json::from_str(text)
                && found > VERSION
            {
                return Err(unusable(format!(
                    "a newer skein wrote it (version {found}, this one reads {VERSION}); \
                     use that skein, or record it again"
                )));
            }
            let line = serde_json::from_str(text).map_err(|error| {
                let problem = error.to_string().replace(" at line 1 column ", " at column ");
                unusable(format!("line {} is not an answer of a model: {problem}", index + 1))
            })?;
            lines.push((index + 1, line));
        }
        Ok(Self { name, lines, next: AtomicUsize::new(0) })
    }

    fn answer(&self, request: &ModelRequest) -> Result<ReplayLine, LlmError> {
        let failed = |reason: String| LlmError::Failed { model: self.name.to_string(), reason };
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        let Some((number, line)) = self.lines.get(at) else {
            return Err(failed(format!("it holds {} answers, and one more was asked for", self.lines.len())));
        };
        let asked = gist(request);
        match &line.asked {
            Some(expected) if !asked.contains(expected.as_str()) => {
                let asked: String = asked.chars().take(ASKED).collect();
                Err(failed(format!("line {number} answers {expected:?}, and what was asked is {asked:?}")))
            }
            _ => Ok(line.clone()),
        }
    }
}

impl Provider for ReplayProvider {
    fn name(&self) -> &ModelRef {
        &self.name
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'_, Result<StreamEvent, LlmError>> {
        let line = match self.answer(&request) {
            Ok(line) => line,
            Err(error) => return stream::iter([Err(error)]).boxed(),
        };
        let said = line.answer.into_iter().map(|said| match said {
            ReplayPart::Text(text) => StreamEvent::Text(text),
            ReplayPart::Thought(text) => StreamEvent::Thought(text),
            ReplayPart::ToolUse(call) => StreamEvent::ToolUse(call),
        });
        let usage = line.usage;
        let end = match line.stop {
            ReplayStop::Finished => Some(StreamEvent::Done { stop: ModelStop::Finished, usage }),
            ReplayStop::Length => Some(StreamEvent::Done { stop: ModelStop::Length, usage }),
            ReplayStop::Refused => Some(StreamEvent::Done { stop: ModelStop::Refused, usage }),
            ReplayStop::Cut => None,
        };
        stream::iter(said.chain(end).map(Ok).collect::<Vec<_>>()).boxed()
    }
}

/// Returns the text that identifies a request: its last message, or the names of the tools whose results it contains.
/// The results themselves contain times and paths, which differ between runs.
fn gist(request: &ModelRequest) -> String {
    let Some(last) = request.messages.last() else { return String::new() };
    let results = last.parts.iter().filter_map(|part| match part {
        MessagePart::ToolResult(result) => Some(result.name.as_str()),
        MessagePart::Content(_) | MessagePart::Thought(_) | MessagePart::ToolUse(_) => None,
    });
    let results: Vec<_> = results.collect();
    if results.is_empty() { last.text() } else { format!("results of {}", results.join(", ")) }
}

/// Forwards requests to a model and records its answers.
#[derive(Clone)]
pub struct ModelRecorder {
    inner: Arc<dyn Provider>,
    file: Arc<RecordingFile>,
    path: PathBuf,
}

impl ModelRecorder {
    /// Records to a file. Fails if it has content that is no recording. An earlier recording stays until the first
    /// answer.
    pub fn new(inner: Arc<dyn Provider>, path: &Path) -> Result<Self, LlmError> {
        let is_line = |line: &str| serde_json::from_str::<ReplayLine>(line).is_ok();
        let file = RecordingFile::open(path, is_line).map_err(|error| LlmError::UnusableRecording {
            model: inner.name().to_string(),
            reason: format!("it cannot be recorded to {}: {error}", path.display()),
        })?;
        Ok(Self { inner, file: Arc::new(file), path: path.to_owned() })
    }

    /// Returns a recorder of another model that writes to the same recording.
    pub fn with_model(&self, inner: Arc<dyn Provider>) -> Self {
        Self { inner, ..self.clone() }
    }

    fn write(&self, line: &ReplayLine) -> Result<(), LlmError> {
        let text = serde_json::to_string(line).map_err(std::io::Error::from);
        let written = text.and_then(|text| self.file.write_line(&text));
        written.map_err(|error| LlmError::Failed {
            model: self.inner.name().to_string(),
            reason: format!("its answer cannot be written to {}: {error}", self.path.display()),
        })
    }
}

impl Provider for ModelRecorder {
    fn name(&self) -> &ModelRef {
        self.inner.name()
    }

    fn window(&self) -> Option<u64> {
        self.inner.window()
    }

    fn price(&self) -> Option<Price> {
        self.inner.price()
    }

    fn earlier_thoughts(&self) -> EarlierThoughts {
        self.inner.earlier_thoughts()
    }

    fn for_origin(&self, origin: &RequestOrigin) -> Option<Arc<dyn Provider>> {
        let inner = self.inner.for_origin(origin)?;
        Some(Arc::new(self.with_model(inner)))
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'_, Result<StreamEvent, LlmError>> {
        let asked = gist(&request).chars().take(ASKED).collect();
        let begun =
            ReplayLine { asked: Some(asked), answer: Vec::new(), stop: ReplayStop::Cut, usage: Usage::default() };
        let events = self.inner.stream(request);
        let recorded = stream::unfold((events, begun, false), async move |(mut events, mut line, over)| {
            if over {
                return None;
            }
            let event = events.next().await;
            let over = match &event {
                Some(Ok(event)) => line.push_event(event),
                Some(Err(_)) | None => true,
            };
            // An answer that failed before its first event is requested again with the same messages, so it gets no
            // line.
            let worth = line.stop != ReplayStop::Cut || !line.answer.is_empty();
            let event = match if over && worth { self.write(&line) } else { Ok(()) } {
                Ok(()) => event?,
                Err(error) => Err(error),
            };
            Some((event, (events, line, over)))
        });
        recorded.boxed()
    }
}

impl std::fmt::Debug for ModelRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recorder({}, {})", self.inner.name(), self.path.display())
    }
}

impl ReplayLine {
    /// Adds an event to the line. Returns true if it ends the answer.
    fn push_event(&mut self, event: &StreamEvent) -> bool {
        match (event, self.answer.last_mut()) {
            (StreamEvent::Text(more), Some(ReplayPart::Text(text)))
            | (StreamEvent::Thought(more), Some(ReplayPart::Thought(text))) => text.push_str(more),
            (StreamEvent::Text(text), _) => self.answer.push(ReplayPart::Text(text.clone())),
            (StreamEvent::Thought(text), _) => self.answer.push(ReplayPart::Thought(text.clone())),
            (StreamEvent::Queued { .. } | StreamEvent::Progress { .. }, _) => {}
            (StreamEvent::ToolUse(call), _) => self.answer.push(ReplayPart::ToolUse(call.clone())),
            (StreamEvent::Done { stop, usage }, _) => {
                self.usage = *usage;
                self.stop = match stop {
                    ModelStop::Finished => ReplayStop::Finished,
                    ModelStop::Length => ReplayStop::Length,
                    ModelStop::Refused => ReplayStop::Refused,
                };
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
