//! JSON Schemas of services and recipes: compiled under limits, and validated against on a separate thread.
//!
//! Invariant: nothing is fetched for a schema, no schema is compiled that is too large with its references followed, and
//! neither an async thread nor the end of the process waits for a validation.

mod size;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::{Map, Value};

pub use size::SchemaError;

/// A pattern once it is compiled, in bytes.
const MAX_REGEX: usize = 256 * 1024;
/// Errors that help; more only cost.
const MAX_ERRORS: usize = 5;
/// Of one thing that is wrong with a value, in bytes.
const MAX_COMPLAINT: usize = 300;
/// A value that takes longer was made to.
pub const VALIDATION_TIME: Duration = Duration::from_secs(2);
/// Abandoned threads of the process. They cannot be ended, and each keeps a processor busy.
const MAX_OVERDUE: usize = 4;
/// A recursive schema takes as much of the stack as the value is deep.
const STACK: usize = 32 << 20;

static OVERDUE: AtomicUsize = AtomicUsize::new(0);

/// Fails if a schema is too large when its references are followed, or refers to what it does not hold.
pub fn check_schema(schema: &Map<String, Value>) -> Result<(), SchemaError> {
    size::check(&Value::Object(schema.clone()))
}

/// Validates values against one schema.
#[derive(Debug, Clone)]
pub struct SchemaValidator {
    validator: Arc<Validator>,
    /// A validation took too long, and may still run.
    stuck: Arc<AtomicBool>,
}

/// Why it is not known whether a value fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ValidationFailure {
    #[error("a check against its schema takes longer than {} s", VALIDATION_TIME.as_secs())]
    TimedOut,
    #[error("too many checks against schemas are still running; start skein again")]
    Busy,
    #[error("there is no thread for a check against its schema")]
    NoThread,
}

/// A validation that runs. The caller that stops waiting calls `abandon`.
#[derive(Debug)]
pub struct RunningValidation {
    overdue: Arc<AtomicBool>,
    stuck: Arc<AtomicBool>,
}

impl RunningValidation {
    /// Counts the thread as an abandoned one until it ends.
    pub fn abandon(self) -> ValidationFailure {
        self.stuck.store(true, Ordering::Relaxed);
        if !self.overdue.swap(true, Ordering::AcqRel) {
            OVERDUE.fetch_add(1, Ordering::AcqRel);
        }
        ValidationFailure::TimedOut
    }
}

impl SchemaValidator {
    /// Fails if the schema is too large, refers to what it does not hold, or is none.
    pub fn new(schema: &Map<String, Value>) -> Result<Self, SchemaError> {
        let schema = Value::Object(schema.clone());
        size::check(&schema)?;
        let validator = jsonschema::options()
            // This engine takes time in proportion to its input, also for hostile patterns.
            .with_pattern_options(PatternOptions::regex().size_limit(MAX_REGEX).dfa_size_limit(MAX_REGEX))
            .build(&schema)
            .map_err(|error| SchemaError::Invalid(head(&error.to_string())))?;
        Ok(Self { validator: Arc::new(validator), stuck: Arc::default() })
    }

    /// Starts a validation on its own thread, which calls `done` with what is wrong with the value; empty if it fits.
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

    /// The same on this thread and without a limit, for a schema that is known to be good.
    pub fn validate_here(&self, value: &Value) -> Vec<String> {
        complaints(&self.validator, value)
    }

    /// What is wrong with the value; empty if it fits. Blocks for [`VALIDATION_TIME`] at most.
    pub fn validate(&self, value: Value) -> Result<Vec<String>, ValidationFailure> {
        let (done, wait) = mpsc::channel();
        let running = self.start(value, move |complaints| drop(done.send(complaints)))?;
        match wait.recv_timeout(VALIDATION_TIME) {
            Ok(complaints) => Ok(complaints),
            Err(RecvTimeoutError::Timeout) => Err(running.abandon()),
            // The thread ended without an answer.
            Err(RecvTimeoutError::Disconnected) => Err(ValidationFailure::NoThread),
        }
    }
}

/// Errors in words a model can act on.
fn complaints(validator: &Validator, value: &Value) -> Vec<String> {
    let errors = validator.iter_errors(value).take(MAX_ERRORS);
    let complaint = |error: ValidationError<'_>| match error.instance_path().as_str() {
        "" => in_words(&error),
        path => format!("{}: {}", head(path), in_words(&error)),
    };
    errors.map(complaint).collect()
}

/// An error without the value, if that is long: the caller has it.
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
