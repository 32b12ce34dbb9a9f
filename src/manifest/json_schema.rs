//! Compiles the JSON Schemas of services and recipes under limits, and validates values on a separate thread.
//!
//! Invariant: no schema causes a download, and none is compiled that is too large with its references followed. Neither
//! an async thread nor the end of the process waits for a validation.

mod size;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::{Map, Value};

pub use size::SchemaError;

/// The maximum size of a compiled pattern, in bytes.
const MAX_REGEX: usize = 256 * 1024;
/// The maximum number of errors reported for a value.
const MAX_ERRORS: usize = 5;
/// The maximum length of one error, in bytes.
const MAX_COMPLAINT: usize = 300;
/// The maximum time of a validation. Only a hostile value takes longer.
pub const VALIDATION_TIME: Duration = Duration::from_secs(2);
/// The maximum number of abandoned threads in the process. They cannot be stopped, and each keeps a CPU busy.
const MAX_OVERDUE: usize = 4;
/// The stack size of a validation thread. A recursive schema needs stack in proportion to the depth of the value.
const STACK: usize = 32 << 20;

static OVERDUE: AtomicUsize = AtomicUsize::new(0);

/// Fails if a schema is too large with its references followed, or refers to something outside itself.
pub fn check_schema(schema: &Map<String, Value>) -> Result<(), SchemaError> {
    size::check(&Value::Object(schema.clone()))
}

/// Validates values against one schema.
#[derive(Debug, Clone)]
pub struct SchemaValidator {
    validator: Arc<Validator>,
    /// True if a validation took too long; it may still run.
    stuck: Arc<AtomicBool>,
}

/// The reason why a validation has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ValidationFailure {
    #[error("a check against its schema takes longer than {} s", VALIDATION_TIME.as_secs())]
    TimedOut,
    #[error("too many checks against schemas are still running; start skein again")]
    Busy,
    #[error("there is no thread for a check against its schema")]
    NoThread,
}

/// A running validation. A caller that stops waiting must call `abandon`.
#[derive(Debug)]
pub struct RunningValidation {
    overdue: Arc<AtomicBool>,
    stuck: Arc<AtomicBool>,
}

impl RunningValidation {
    /// Counts the thread as abandoned until it ends.
    pub fn abandon(self) -> ValidationFailure {
        self.stuck.store(true, Ordering::Relaxed);
        if !self.overdue.swap(true, Ordering::AcqRel) {
            OVERDUE.fetch_add(1, Ordering::AcqRel);
        }
        ValidationFailure::TimedOut
    }
}

impl SchemaValidator {
    /// Compiles a schema. Fails if it is too large, refers to something outside itself, or is invalid.
    pub fn new(schema: &Map<String, Value>) -> Result<Self, SchemaError> {
        let schema = Value::Object(schema.clone());
        size::check(&schema)?;
        let validator = jsonschema::options()
            // This engine runs in linear time, also for hostile patterns.
            .with_pattern_options(PatternOptions::regex().size_limit(MAX_REGEX).dfa_size_limit(MAX_REGEX))
            .build(&schema)
            .map_err(|error| SchemaError::Invalid(head(&error.to_string())))?;
        Ok(Self { validator: Arc::new(validator), stuck: Arc::default() })
    }

    /// Starts a validation on a new thread, which calls `done` with the errors; empty if the value is valid.
    pub fn start(
        &self,
        value: Value,
        done: impl FnOnce(Vec<String>) + Send + 'static,
    ) -> Result<RunningValidation, ValidationFailure> {
        if self.stuck.load(Ordering::Relaxed) {
            return Err(ValidationFailure::TimedOut);
        }
        if OVERDUE.load(Ordering::Acquire) >= MAX_OVERDUE {
            return Err(ValidationFailure::Busy);
        }
        let running = RunningValidation { overdue: Arc::default(), stuck: Arc::clone(&self.stuck) };
        let (validator, overdue) = (Arc::clone(&self.validator), Arc::clone(&running.overdue));
        let work = move || {
            done(complaints(&validator, &value));
            if overdue.swap(true, Ordering::AcqRel) {
                OVERDUE.fetch_sub(1, Ordering::AcqRel);
            }
        };
        let thread = thread::Builder::new().name("schema".to_owned()).stack_size(STACK);
        // Detached: the end of the process does not wait for it.
        thread.spawn(work).map(drop).map_err(|_| ValidationFailure::NoThread)?;
        Ok(running)
    }

    /// Validates on this thread and without a time limit, for a trusted schema.
    pub fn validate_here(&self, value: &Value) -> Vec<String> {
        complaints(&self.validator, value)
    }

    /// Returns the errors of a value; empty if it is valid. Blocks for at most [`VALIDATION_TIME`].
    pub fn validate(&self, value: Value) -> Result<Vec<String>, ValidationFailure> {
        let (done, wait) = mpsc::channel();
        let running = self.start(value, move |complaints| drop(done.send(complaints)))?;
        match wait.recv_timeout(VALIDATION_TIME) {
            Ok(complaints) => Ok(complaints),
            Err(RecvTimeoutError::Timeout) => Err(running.abandon()),
            // The thread ended without a result.
            Err(RecvTimeoutError::Disconnected) => Err(ValidationFailure::NoThread),
        }
    }
}

/// Returns the errors in a form that a model can act on.
fn complaints(validator: &Validator, value: &Value) -> Vec<String> {
    let errors = validator.iter_errors(value).take(MAX_ERRORS);
    let complaint = |error: ValidationError<'_>| match error.instance_path().as_str() {
        "" => in_words(&error),
        path => format!("{}: {}", head(path), in_words(&error)),
    };
    errors.map(complaint).collect()
}

/// Formats an error; omits the value if it is long, because the caller has it.
fn in_words(error: &ValidationError<'_>) -> String {
    let whole = error.to_string();
    if whole.len() <= MAX_COMPLAINT { whole } else { head(&error.masked().to_string()) }
}

fn head(text: &str) -> String {
    if text.len() <= MAX_COMPLAINT {
        return text.to_owned();
    }
    let end = (0..=MAX_COMPLAINT).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Every level of a value is validated twice for each time the one above it is.
    fn doubling() -> SchemaValidator {
        let schema = json!({
            "$defs": {"node": {"allOf": [
                {"properties": {"x": {"$ref": "#/$defs/node"}}},
                {"properties": {"x": {"$ref": "#/$defs/node"}}},
            ]}},
            "$ref": "#/$defs/node",
        });
        SchemaValidator::new(schema.as_object().unwrap()).expect("recursion is allowed")
    }

    #[test]
    fn a_validation_that_takes_too_long_fails_and_is_not_repeated() {
        let validator = doubling();
        let deep = |levels| (0..levels).fold(json!({}), |inner, _| json!({"x": inner}));
        assert_eq!(validator.validate(deep(5)), Ok(Vec::new()));
        let running = validator.start(deep(60), |_| {}).expect("started");
        assert_eq!(running.abandon(), ValidationFailure::TimedOut, "nothing waits for it");
        assert_eq!(validator.validate(deep(5)), Err(ValidationFailure::TimedOut), "at once");
        assert_eq!(doubling().validate(deep(5)), Ok(Vec::new()), "other schemas are still used");
    }
}
