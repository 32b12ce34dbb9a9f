//! Compiles the JSON Schemas of services and recipes under limits, and validates values on a separate thread.
//!
//! Invariant: no schema causes a download, and none is compiled that is too large with its references followed. Neither
//! an async thread nor the end of the process waits for a validation, and one that nothing waits for ends.

mod size;

use std::cell::RefCell;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use jsonschema::{Keyword, PatternOptions, ValidationError, Validator};
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
/// The maximum number of abandoned threads in the process. Each ends when it has checked a part of the value against a
/// schema, but that part may be large.
const MAX_OVERDUE: usize = 4;
/// The keyword that [`SchemaValidator::new`] adds to each schema.
const END_IF_ABANDONED: &str = "x-skein-end-if-abandoned";
/// The stack size of a validation thread. A recursive schema needs stack in proportion to the depth of the value.
const STACK: usize = 32 << 20;

static OVERDUE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// True if nothing waits for the validation on this thread. `None` outside of a validation thread.
    static ABANDONED: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// A keyword that accepts every value. It ends a validation that nothing waits for, because the crate cannot stop one:
/// with a recursive schema, a value may take longer than the process runs.
struct EndIfAbandoned;

impl EndIfAbandoned {
    fn check() {
        if ABANDONED.with_borrow(|flag| flag.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed))) {
            // Ends the thread as a panic does, but is no error and prints nothing.
            resume_unwind(Box::new("the validation was abandoned"));
        }
    }
}

impl<'i> Keyword<'i> for EndIfAbandoned {
    fn validate(&self, _: &'i Value) -> Result<(), ValidationError<'i>> {
        Self::check();
        Ok(())
    }

    fn is_valid(&self, _: &'i Value) -> bool {
        Self::check();
        true
    }

    fn iter_errors(&self, _: &'i Value) -> Box<dyn Iterator<Item = ValidationError<'i>> + 'i> {
        Self::check();
        Box::new(std::iter::empty())
    }
}

/// Marks the end of a thread, and uncounts it if it was abandoned.
struct ThreadEnd(Arc<AtomicBool>);

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        if self.0.swap(true, Ordering::AcqRel) {
            OVERDUE.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Fails if a schema is too large with its references followed, or refers to something outside itself.
pub fn check_schema(schema: &Map<String, Value>) -> Result<(), SchemaError> {
    size::check(&Value::Object(schema.clone())).map(drop)
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

/// A running validation. It ends when this is dropped.
#[derive(Debug)]
pub struct RunningValidation {
    overdue: Arc<AtomicBool>,
    stuck: Arc<AtomicBool>,
}

impl RunningValidation {
    /// Ends the validation, and refuses later ones with the same schema.
    pub fn abandon(self) -> ValidationFailure {
        self.stuck.store(true, Ordering::Relaxed);
        ValidationFailure::TimedOut
    }
}

impl Drop for RunningValidation {
    fn drop(&mut self) {
        if self.overdue.load(Ordering::Acquire) {
            return;
        }
        // Counted first, because the thread may end as soon as the flag is set.
        OVERDUE.fetch_add(1, Ordering::AcqRel);
        if self.overdue.swap(true, Ordering::AcqRel) {
            OVERDUE.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl SchemaValidator {
    /// Compiles a schema. Fails if it is too large, refers to something outside itself, or is invalid.
    pub fn new(schema: &Map<String, Value>) -> Result<Self, SchemaError> {
        let mut schema = Value::Object(schema.clone());
        let all = size::check(&schema)?;
        size::add_keyword(&mut schema, &all, END_IF_ABANDONED);
        let validator = jsonschema::options()
            .with_keyword(END_IF_ABANDONED, |_, _, _| Ok(Box::new(EndIfAbandoned)))
            // This engine runs in linear time, also for hostile patterns.
            .with_pattern_options(PatternOptions::regex().size_limit(MAX_REGEX).dfa_size_limit(MAX_REGEX))
            .build(&schema)
            .map_err(|error| SchemaError::Invalid(head(&without_keyword(error.to_string()))))?;
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
        // Made here, so that a thread that cannot start is not counted either.
        let end = ThreadEnd(Arc::clone(&overdue));
        let work = move || {
            ABANDONED.set(Some(overdue));
            let found = complaints(&validator, &value);
            drop(end);
            done(found);
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
    let whole = without_keyword(error.to_string());
    if whole.len() <= MAX_COMPLAINT { whole } else { head(&without_keyword(error.masked().to_string())) }
}

/// Removes [`END_IF_ABANDONED`] from the schemas in a text. The crate quotes that of `not`, and wrong ones.
fn without_keyword(text: String) -> String {
    let entry = format!("\"{END_IF_ABANDONED}\":true");
    if !text.contains(&entry) {
        return text;
    }
    text.replace(&format!(",{entry}"), "").replace(&format!("{entry},"), "").replace(&entry, "")
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
        let (done, ended) = mpsc::channel::<()>();
        let running = validator.start(deep(60), move |_| drop(done)).expect("started");
        assert_eq!(ended.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout), "it runs");
        assert_eq!(running.abandon(), ValidationFailure::TimedOut, "nothing waits for it");
        assert_eq!(ended.recv_timeout(VALIDATION_TIME), Err(RecvTimeoutError::Disconnected), "it ends");
        assert_eq!(validator.validate(deep(5)), Err(ValidationFailure::TimedOut), "at once");
        assert_eq!(doubling().validate(deep(5)), Ok(Vec::new()), "other schemas are still used");
    }

    #[test]
    fn a_validation_ends_when_its_caller_is_dropped() {
        let twice = |again: Value| json!([{"properties": {"not": again}}, {"properties": {"not": again}}]);
        let recursive = [
            json!({"$ref": "#/$defs/n", "$defs": {"n": {"allOf": twice(json!({"$ref": "#/$defs/n"}))}}}),
            // Data is no schema, even if it looks like one.
            json!({
                "default": {"$id": "n"},
                "$ref": "n",
                "$defs": {"n": {"$id": "n", "allOf": twice(json!({"$ref": "n"}))}},
            }),
            // The meta-schema applies what is called `meta` to the values of `not`.
            json!({
                "$ref": "https://json-schema.org/draft/2020-12/schema",
                "$defs": {"n": {"$dynamicAnchor": "meta", "allOf": twice(json!({"$dynamicRef": "#meta"}))}},
            }),
        ];
        for schema in recursive {
            let validator = SchemaValidator::new(schema.as_object().unwrap()).expect("valid");
            let deep = (0..60).fold(json!({}), |inner, _| json!({"not": inner}));
            let (done, ended) = mpsc::channel::<()>();
            let running = validator.start(deep, move |_| drop(done)).expect("started");
            let early = ended.recv_timeout(Duration::from_millis(50));
            assert_eq!(early, Err(RecvTimeoutError::Timeout), "it runs: {schema}");
            drop(running);
            let late = ended.recv_timeout(VALIDATION_TIME);
            assert_eq!(late, Err(RecvTimeoutError::Disconnected), "it ends: {schema}");
            assert_eq!(validator.validate(json!({})), Ok(Vec::new()), "the schema is still used: {schema}");
        }
    }

    #[test]
    fn complaints_quote_schemas_as_they_were_given() {
        let not = |schema: Value| {
            let schema = json!({"properties": {"x": {"not": schema}}});
            let validator = SchemaValidator::new(schema.as_object().unwrap()).expect("valid");
            validator.validate(json!({"x": "text"})).expect("in time")
        };
        assert_eq!(not(json!({})), [r#"/x: {} is not allowed for "text""#]);
        assert_eq!(not(json!({"type": "string"})), [r#"/x: {"type":"string"} is not allowed for "text""#]);
        let wrong = json!({"anyOf": {"type": "string"}});
        let wrong = SchemaValidator::new(wrong.as_object().unwrap()).expect_err("`anyOf` is a list");
        assert_eq!(wrong.to_string(), r#"{"type":"string"} is not of type "array""#);
        assert_eq!(not(json!({"anyOf": [{"z": 1}]})), [r#"/x: {"anyOf":[{"z":1}]} is not allowed for "text""#]);
    }
}
