//! Records all requests to services and their answers in a cassette, one JSON object per line, or replays a
//! cassette without services.
//!
//! Invariant: no value that a manifest passes to a service in a variable or a header is written.

mod redact;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Environment;
use super::connection::{CallError, ServiceConnection};
use crate::ids::{ServiceName, ToolName};
use crate::manifest::ServiceManifest;
use crate::recording_file::RecordingFile;
use crate::tool::{CallContext, Catalog, ToolCall, ToolOutcome};
use redact::Redaction;

/// The newest known form of a cassette. A cassette whose first line has no `version` has this form.
const VERSION: u64 = 1;

/// The part of a line that says which form the cassette has.
#[derive(Debug, Deserialize)]
struct CassetteVersion {
    version: Option<u64>,
}

/// Returns the form that a first line names, if this Skein does not know it.
fn newer_version(line: &str) -> Option<u64> {
    let CassetteVersion { version } = serde_json::from_str(line).ok()?;
    version.filter(|found| *found > VERSION)
}

/// One line of a cassette.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct CassetteLine {
    service: ServiceName,
    #[serde(flatten)]
    interaction: Interaction,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Interaction {
    Catalog { instructions: Option<String>, catalog: Catalog },
    Call { tool: ToolName, arguments: Map<String, Value>, answer: RecordedAnswer<ToolOutcome> },
    Resource { uri: String, answer: RecordedAnswer<Value> },
    Prompt { name: String, arguments: Map<String, Value>, answer: RecordedAnswer<Value> },
}

impl Interaction {
    /// Redacts everything but the names of tools and prompts, which a request must match.
    fn redact(self, redaction: &Redaction) -> Self {
        let redact_json = |value| redaction.redact_entry(value);
        match self {
            Interaction::Catalog { instructions, catalog } => Interaction::Catalog {
                instructions: instructions.map(|text| redaction.redact_text(text)),
                catalog: redaction.redact_catalog(catalog),
            },
            Interaction::Call { tool, arguments, answer } => Interaction::Call {
                tool,
                arguments: redaction.redact_fields(arguments),
                answer: answer.redact(redaction, |outcome| redaction.redact_outcome(outcome)),
            },
            Interaction::Resource { uri, answer } => {
                Interaction::Resource { uri: redaction.redact_text(uri), answer: answer.redact(redaction, redact_json) }
            }
            Interaction::Prompt { name, arguments, answer } => Interaction::Prompt {
                name,
                arguments: redaction.redact_fields(arguments),
                answer: answer.redact(redaction, redact_json),
            },
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RecordedAnswer<T> {
    Ok(T),
    Died(String),
    TimedOut,
    Cancelled,
    Refused(String),
}

impl<T: Clone> RecordedAnswer<T> {
    fn of(result: &Result<T, CallError>) -> Self {
        match result {
            Ok(value) => RecordedAnswer::Ok(value.clone()),
            Err(CallError::Died(reason)) => RecordedAnswer::Died(reason.clone()),
            Err(CallError::TimedOut) => RecordedAnswer::TimedOut,
            Err(CallError::Cancelled) => RecordedAnswer::Cancelled,
            Err(CallError::Refused(reason)) => RecordedAnswer::Refused(reason.clone()),
        }
    }

    fn redact(self, redaction: &Redaction, redact_value: impl FnOnce(T) -> T) -> Self {
        match self {
            RecordedAnswer::Ok(value) => RecordedAnswer::Ok(redact_value(value)),
            RecordedAnswer::Died(reason) => RecordedAnswer::Died(redaction.redact_text(reason)),
            RecordedAnswer::Refused(reason) => RecordedAnswer::Refused(redaction.redact_text(reason)),
            RecordedAnswer::TimedOut | RecordedAnswer::Cancelled => self,
        }
    }

    fn result(self) -> Result<T, CallError> {
        match self {
            RecordedAnswer::Ok(value) => Ok(value),
            RecordedAnswer::Died(reason) => Err(CallError::Died(reason)),
            RecordedAnswer::TimedOut => Err(CallError::TimedOut),
            RecordedAnswer::Cancelled => Err(CallError::Cancelled),
            RecordedAnswer::Refused(reason) => Err(CallError::Refused(reason)),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("cannot use {file}: {problem}")]
    File { file: String, problem: String },
    #[error("{file}:{line}: not a line of a recording: {problem}")]
    Line { file: String, line: usize, problem: String },
    #[error(
        "the recording {file} was written by a newer skein (version {found}, this one reads {VERSION}); \
         use that skein, or record it again"
    )]
    Newer { file: String, found: u64 },
}

/// Why a service cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplayError {
    #[error("the cassette is being recorded")]
    Recording,
    #[error(
        "the recording does not hold it; it holds: {}",
        if .recorded.is_empty() { "nothing".to_owned() } else { .recorded.join(", ") }
    )]
    NotRecorded { recorded: Vec<String> },
}

/// A cassette that is being recorded or replayed.
#[derive(Debug, Clone)]
pub struct Cassette(Arc<CassetteMode>);

#[derive(Debug)]
enum CassetteMode {
    Recording {
        file: RecordingFile,
        /// The error of the first line that is missing.
        failure: OnceLock<String>,
    },
    Playing(HashMap<ServiceName, Vec<Interaction>>),
}

impl Cassette {
    /// Records to a file. Fails if it has content that is no recording. An earlier recording stays until the first line.
    pub fn to_file(path: &Path) -> Result<Self, RecordError> {
        // Lines of a newer Skein may have more fields. That Skein still needs them.
        let is_line = |line: &str| newer_version(line).is_none() && serde_json::from_str::<CassetteLine>(line).is_ok();
        let file = RecordingFile::open(path, is_line).map_err(|error| unusable(path, &error))?;
        Ok(Self(Arc::new(CassetteMode::Recording { file, failure: OnceLock::new() })))
    }

    pub fn from_file(path: &Path) -> Result<Self, RecordError> {
        let file = File::open(path).map_err(|error| unusable(path, &error))?;
        let mut interactions: HashMap<_, Vec<_>> = HashMap::new();
        for (index, text) in BufReader::new(file).lines().enumerate() {
            let broken =
                |problem: String| RecordError::Line { file: path.display().to_string(), line: index + 1, problem };
            let text = text.map_err(|error| broken(error.to_string()))?;
            if text.trim().is_empty() {
                continue;
            }
            if interactions.is_empty()
                && let Some(found) = newer_version(&text)
            {
                return Err(RecordError::Newer { file: path.display().to_string(), found });
            }
            // The parser sees one line at a time, so its line number is always 1.
            let line: CassetteLine = serde_json::from_str(&text)
                .map_err(|error| broken(error.to_string().replace(" at line 1 column ", " at column ")))?;
            interactions.entry(line.service).or_default().push(line.interaction);
        }
        Ok(Self(Arc::new(CassetteMode::Playing(interactions))))
    }

    /// Returns why a line could not be written. `None` if the recording is complete, or none is made.
    pub fn failure(&self) -> Option<&str> {
        match &*self.0 {
            CassetteMode::Recording { failure, .. } => failure.get().map(String::as_str),
            CassetteMode::Playing(_) => None,
        }
    }

    pub(super) fn replays(&self) -> bool {
        matches!(*self.0, CassetteMode::Playing(_))
    }

    /// Returns a connection that replays the recorded service. Fails if the cassette does not contain it.
    pub(super) fn play(
        &self,
        manifest: &ServiceManifest,
        environment: &Environment,
    ) -> Result<Arc<dyn ServiceConnection>, ReplayError> {
        let CassetteMode::Playing(interactions) = &*self.0 else {
            return Err(ReplayError::Recording);
        };
        let lines = interactions.get(&manifest.name).ok_or_else(|| {
            let mut recorded: Vec<_> = interactions.keys().map(ToString::to_string).collect();
            recorded.sort_unstable();
            ReplayError::NotRecorded { recorded }
        })?;
        let redaction = Redaction::of(&manifest.transport, environment);
        Ok(Arc::new(CassettePlayer { lines: lines.clone(), redaction, played: Mutex::default() }))
    }

    /// Wraps a connection so that everything is recorded.
    pub(super) fn record(
        &self,
        manifest: &ServiceManifest,
        environment: &Environment,
        connection: Arc<dyn ServiceConnection>,
    ) -> Arc<dyn ServiceConnection> {
        let redaction = Redaction::of(&manifest.transport, environment);
        let (service, offered) = (manifest.name.clone(), Mutex::default());
        Arc::new(CassetteRecorder { service, connection, cassette: self.clone(), redaction, offered })
    }

    fn write(&self, line: &CassetteLine) {
        let CassetteMode::Recording { file, failure } = &*self.0 else { return };
        let text = serde_json::to_string(line);
        let written = text.map_err(std::io::Error::from).and_then(|text| file.write_line(&text));
        if let Err(error) = written {
            tracing::error!(%error, "the recording has a gap");
            failure.get_or_init(|| error.to_string());
        }
    }
}

fn unusable(path: &Path, error: &dyn std::error::Error) -> RecordError {
    RecordError::File { file: path.display().to_string(), problem: error.to_string() }
}

struct CassetteRecorder {
    service: ServiceName,
    connection: Arc<dyn ServiceConnection>,
    cassette: Cassette,
    redaction: Redaction,
    /// The catalog written last; an equal one is not written again.
    offered: Mutex<Option<Catalog>>,
}

impl CassetteRecorder {
    fn write(&self, interaction: Interaction) {
        let interaction = interaction.redact(&self.redaction);
        self.cassette.write(&CassetteLine { service: self.service.clone(), interaction });
    }
}

impl ServiceConnection for CassetteRecorder {
    fn instructions(&self) -> Option<String> {
        self.connection.instructions()
    }

    fn generation(&self) -> u64 {
        self.connection.generation()
    }

    fn changes(&self) -> Option<tokio::sync::watch::Receiver<u64>> {
        self.connection.changes()
    }

    fn catalog(&self) -> BoxFuture<'_, Result<Catalog, CallError>> {
        Box::pin(async move {
            let catalog = self.connection.catalog().await?;
            let before = self.offered.lock().unwrap_or_else(PoisonError::into_inner).replace(catalog.clone());
            if before.as_ref() != Some(&catalog) {
                self.write(Interaction::Catalog { instructions: self.instructions(), catalog: catalog.clone() });
            }
            Ok(catalog)
        })
    }

    fn call(&self, call: ToolCall, limit: Duration) -> BoxFuture<'_, Result<ToolOutcome, CallError>> {
        Box::pin(async move {
            let (tool, arguments) = (call.tool.clone(), call.arguments.clone());
            let result = self.connection.call(call, limit).await;
            self.write(Interaction::Call { tool, arguments, answer: RecordedAnswer::of(&result) });
            result
        })
    }

    fn read_resource(
        &self,
        uri: String,
        context: CallContext,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Value, CallError>> {
        Box::pin(async move {
            let result = self.connection.read_resource(uri.clone(), context, limit).await;
            self.write(Interaction::Resource { uri, answer: RecordedAnswer::of(&result) });
            result
        })
    }

    fn get_prompt(
        &self,
        name: String,
        arguments: Map<String, Value>,
        context: CallContext,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Value, CallError>> {
        Box::pin(async move {
            let result = self.connection.get_prompt(name.clone(), arguments.clone(), context, limit).await;
            self.write(Interaction::Prompt { name, arguments, answer: RecordedAnswer::of(&result) });
            result
        })
    }

    fn is_outdated(&self) -> bool {
        self.connection.is_outdated()
    }

    fn closed(&self) -> Option<String> {
        self.connection.closed()
    }

    fn pid(&self) -> Option<u32> {
        self.connection.pid()
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        self.connection.stop()
    }
}

struct CassettePlayer {
    lines: Vec<Interaction>,
    /// The recorded requests are redacted, so a request is compared as it is and redacted.
    redaction: Redaction,
    /// How often each line was replayed. Equal requests may have different answers, in order.
    played: Mutex<HashMap<usize, usize>>,
}

impl CassettePlayer {
    /// Returns the recorded answer to a request: the first that was not replayed yet, or else the last.
    fn find<T: Clone>(
        &self,
        matches: impl Fn(&Interaction) -> Option<&RecordedAnswer<T>>,
    ) -> Option<RecordedAnswer<T>> {
        let mut played = self.played.lock().unwrap_or_else(PoisonError::into_inner);
        let found: Vec<_> = self
            .lines
            .iter()
            .enumerate()
            .filter_map(|(index, line)| matches(line).map(|answer| (index, answer)))
            .collect();
        let (index, answer) = found.iter().find(|(index, _)| !played.contains_key(index)).or(found.last())?;
        *played.entry(*index).or_default() += 1;
        Some((*answer).clone())
    }

    fn no_answer(&self, wanted: &str, recorded: impl Iterator<Item = String>) -> CallError {
        let nearest = recorded.max_by(|a, b| strsim::jaro(a, wanted).total_cmp(&strsim::jaro(b, wanted)));
        CallError::Refused(match nearest {
            Some(nearest) => format!("the recording has no answer to {wanted}; the nearest it has is {nearest}"),
            None => format!("the recording has no answer to {wanted}, nor to anything like it"),
        })
    }
}

fn call_text(name: &str, arguments: &Map<String, Value>) -> String {
    format!("{name} {}", Value::Object(arguments.clone()))
}

impl ServiceConnection for CassettePlayer {
    fn instructions(&self) -> Option<String> {
        self.lines.iter().rev().find_map(|line| match line {
            Interaction::Catalog { instructions, .. } => instructions.clone(),
            _ => None,
        })
    }

    fn catalog(&self) -> BoxFuture<'_, Result<Catalog, CallError>> {
        // The last one: a server may announce more tools after its first list.
        let recorded = self.lines.iter().rev().find_map(|line| match line {
            Interaction::Catalog { catalog, .. } => Some(catalog.clone()),
            _ => None,
        });
        let missing = || CallError::Refused("the recording does not hold what the service offers".to_owned());
        Box::pin(async move { recorded.ok_or_else(missing) })
    }

    fn call(&self, call: ToolCall, _: Duration) -> BoxFuture<'_, Result<ToolOutcome, CallError>> {
        let forms = [self.redaction.redact_fields(call.arguments.clone()), call.arguments];
        let found = self.find(|line| match line {
            Interaction::Call { tool, arguments, answer } if *tool == call.tool && forms.contains(arguments) => {
                Some(answer)
            }
            _ => None,
        });
        let result = found.map(RecordedAnswer::result).unwrap_or_else(|| {
            let recorded = self.lines.iter().filter_map(|line| match line {
                Interaction::Call { tool, arguments, .. } => Some(call_text(tool.as_str(), arguments)),
                _ => None,
            });
            Err(self.no_answer(&call_text(call.tool.as_str(), &forms[1]), recorded))
        });
        Box::pin(async move { result })
    }

    fn read_resource(&self, wanted: String, _: CallContext, _: Duration) -> BoxFuture<'_, Result<Value, CallError>> {
        let redacted = self.redaction.redact_text(wanted.clone());
        let found = self.find(|line| match line {
            Interaction::Resource { uri, answer } if [&wanted, &redacted].contains(&uri) => Some(answer),
            _ => None,
        });
        let result = found.map(RecordedAnswer::result).unwrap_or_else(|| {
            let recorded = self.lines.iter().filter_map(|line| match line {
                Interaction::Resource { uri, .. } => Some(uri.clone()),
                _ => None,
            });
            Err(self.no_answer(&wanted, recorded))
        });
        Box::pin(async move { result })
    }

    fn get_prompt(
        &self,
        wanted: String,
        given: Map<String, Value>,
        _: CallContext,
        _: Duration,
    ) -> BoxFuture<'_, Result<Value, CallError>> {
        let forms = [self.redaction.redact_fields(given.clone()), given];
        let found = self.find(|line| match line {
            Interaction::Prompt { name, arguments, answer } if *name == wanted && forms.contains(arguments) => {
                Some(answer)
            }
            _ => None,
        });
        let result = found.map(RecordedAnswer::result).unwrap_or_else(|| {
            let recorded = self.lines.iter().filter_map(|line| match line {
                Interaction::Prompt { name, arguments, .. } => Some(call_text(name, arguments)),
                _ => None,
            });
            Err(self.no_answer(&call_text(&wanted, &forms[1]), recorded))
        });
        Box::pin(async move { result })
    }
}
