//! Checks whether a call is in scope and its arguments are valid, and resolves the files it names. Determines which of
//! them are hidden or protected.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::super::bound_tool::SandboxChoice;
use super::super::files::{CallPaths, PathError, RelativeBase};
use super::super::{files, rule_arguments};
use super::{Binding, BoundTool};
use crate::ids::nearest;
use crate::manifest::{SchemaValidator, VALIDATION_TIME, ValidationFailure};
use crate::sandbox::{self, ProtectedPath};
use crate::services::Service;
use crate::tool::{CallContext, FileTarget, ServiceError, is_hidden};

/// The reason why a call is not admitted, as text for the model.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    #[error("{0}")]
    Call(String),
    #[error(transparent)]
    Path(#[from] PathError),
}

impl AdmissionError {
    pub(super) fn from_failure(name: &str, failure: ValidationFailure) -> Self {
        Self::Call(format!("`{name}` was not called: {failure}; give it smaller arguments, or use another tool"))
    }
}

/// A call in scope with valid arguments.
pub(super) struct AdmittedCall<'a> {
    pub(super) tool: &'a BoundTool,
    pub(super) service: &'a Arc<Service>,
    /// Resolved paths; every decision about the call uses these.
    pub(super) paths: CallPaths<'a>,
    /// The file that a built-in tool works on.
    pub(super) target: Option<FileTarget>,
    /// The call's command runs in a sandbox that changes nothing, and this machine enforces it.
    pub(super) confined: bool,
    /// The user was asked about exactly this call and agreed.
    pub(super) consented: bool,
    /// What the hooks before the call say to the model.
    pub(super) hook_context: Vec<String>,
}

impl Binding {
    /// Finds a tool and checks its scope again, with the predicate that built the list.
    fn find(&self, name: &str) -> Result<(&BoundTool, &Arc<Service>), AdmissionError> {
        let unknown = || {
            let near = nearest(name, self.tools.keys().map(String::as_str));
            let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            AdmissionError::Call(format!("there is no tool `{name}` in {}{near}", self.mode))
        };
        let tool: &BoundTool = self.tools.get(name).ok_or_else(unknown)?;
        let service = self.services.get(&tool.service).ok_or_else(unknown)?;
        let entry = self.request.service(&self.plan, tool.service.as_str()).ok_or_else(unknown)?;
        self.scope.admits(entry, tool.spec.name.as_str()).map_err(|_| unknown())?;
        Ok((tool, service))
    }

    /// Fails if the schema, a `files` rule or a hidden path does not admit the arguments.
    fn check_arguments<'a>(
        &'a self,
        name: &str,
        (tool, service): (&'a BoundTool, &'a Arc<Service>),
        arguments: &Map<String, Value>,
        complaints: &[String],
    ) -> Result<AdmittedCall<'a>, AdmissionError> {
        if !complaints.is_empty() {
            let complaints = complaints.join("; ");
            let reason = format!("the arguments of `{name}` do not fit its schema: {complaints}");
            return Err(AdmissionError::Call(reason));
        }
        let is_remote = self.request.session.grant.is_remote();
        if is_remote && matches!(tool.sandbox_choice(arguments), SandboxChoice::Unsandboxed(_)) {
            let reason = "commands of a remote session always run in their sandbox; leave `unsandboxed` out";
            return Err(AdmissionError::Call(format!("`{name}` was not called: {reason}")));
        }
        let paths = CallPaths::new(&self.request.session, tool.relative);
        if !tool.files.is_empty() {
            files::check(arguments, &tool.files, &paths)?;
        }
        let target = self.target(tool, arguments, &paths)?;
        Ok(AdmittedCall { tool, service, paths, target, confined: false, consented: false, hook_context: Vec::new() })
    }

    /// Checks scope and arguments. Validates arguments of third-party tools on another thread, with a deadline.
    pub(super) async fn admit(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
        context: &CallContext,
    ) -> Result<Result<AdmittedCall<'_>, AdmissionError>, ServiceError> {
        let admit = async {
            let found = self.find(name)?;
            let validator = validator_of(found.0, name)?;
            let value = Value::Object(arguments.clone());
            let complaints = match found.0.builtin {
                true => validator.validate_here(&value),
                false => {
                    validate(validator, value).await.map_err(|failure| AdmissionError::from_failure(name, failure))?
                }
            };
            let mut admitted = self.check_arguments(name, found, arguments, &complaints)?;
            admitted.confined = self.is_confined(found.0, arguments).await;
            Ok(admitted)
        };
        tokio::select! {
            biased;
            () = context.cancel.cancelled() => Err(ServiceError::Cancelled),
            admitted = admit => Ok(admitted),
        }
    }

    /// Like `admit`, but synchronous and not cancellable, for a preview of the decision.
    pub(super) fn admit_here(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<AdmittedCall<'_>, AdmissionError> {
        let found = self.find(name)?;
        let validator = validator_of(found.0, name)?;
        let value = Value::Object(arguments.clone());
        let complaints = match found.0.builtin {
            true => validator.validate_here(&value),
            false => validator.validate(value).map_err(|failure| AdmissionError::from_failure(name, failure))?,
        };
        let mut admitted = self.check_arguments(name, found, arguments, &complaints)?;
        admitted.confined = self.is_confined_here(found.0, arguments);
        Ok(admitted)
    }

    /// Returns the protected paths that a call may write, each with the argument that names it.
    pub(super) fn list_protected<'a>(
        &self,
        admitted: &AdmittedCall<'_>,
        arguments: &'a Map<String, Value>,
    ) -> Vec<(&'a str, ProtectedPath)> {
        if admitted.tool.read_only {
            return Vec::new();
        }
        let session = &self.request.session;
        let one = |given: &str| {
            let (listed, shown) = match admitted.paths.resolve(given) {
                Ok(real) => {
                    let roots = files::all_roots(session);
                    let root = roots.iter().find(|root| real.starts_with(root)).map(PathBuf::as_path);
                    let listed = sandbox::find_protected(&real, root)
                        .or_else(|| sandbox::find_protected_name(below_root(given, &roots)))
                        .or_else(|| root.and_then(|root| sandbox::find_protected_link(&real, root)));
                    (listed?, files::below(&real, session))
                }
                // Only the service can resolve this path, so check its name alone.
                Err(_) => (sandbox::find_protected_name(given)?, given.to_owned()),
            };
            let argument = arguments.iter().find(|(_, value)| value.as_str() == Some(given));
            let argument = argument.map_or("path", |(argument, _)| argument.as_str());
            Some((argument, ProtectedPath { shown, name: listed.0, reason: listed.1.into() }))
        };
        files::all_named(arguments).into_iter().filter_map(one).collect()
    }

    /// Returns the file that a call of a built-in tool works on. Fails if its path cannot be resolved or is hidden.
    pub(super) fn target(
        &self,
        tool: &BoundTool,
        arguments: &Map<String, Value>,
        paths: &CallPaths<'_>,
    ) -> Result<Option<FileTarget>, PathError> {
        if !rule_arguments::takes_path(tool) {
            return Ok(None);
        }
        let given = arguments.get("path").and_then(Value::as_str).unwrap_or(".");
        let odd = |c: char| c.is_control() || is_hidden(c);
        let visible = |c: char| if odd(c) { c.escape_unicode().to_string() } else { c.to_string() };
        if !tool.read_only && given.contains(odd) {
            return Err(PathError::Invisible(given.chars().map(visible).collect()));
        }
        let real = paths.resolve(given)?;
        let session = &self.request.session;
        let target = match session.client_folders().filter(|_| tool.relative == RelativeBase::AtClient) {
            Some(client) => FileTarget::at_client(given, client),
            None => FileTarget::of_resolved(given, real, &session.cwd, &session.roots),
        };
        match session.find_hidden(&target.real) {
            Some(hidden) => {
                Err(PathError::Hidden { shown: target.shown, hidden: hidden.to_string_lossy().into_owned() })
            }
            None => Ok(Some(target)),
        }
    }
}

/// Returns the validator of a tool's arguments.
fn validator_of<'a>(tool: &'a BoundTool, name: &str) -> Result<&'a SchemaValidator, AdmissionError> {
    tool.validator().map_err(|error| {
        AdmissionError::Call(format!("`{name}` cannot be called: its input schema cannot be used: {error}"))
    })
}

/// Waits for a validation on its own thread, at most [`VALIDATION_TIME`].
async fn validate(validator: &SchemaValidator, value: Value) -> Result<Vec<String>, ValidationFailure> {
    let (done, wait) = tokio::sync::oneshot::channel();
    let running = validator.start(value, move |complaints| drop(done.send(complaints)))?;
    match tokio::time::timeout(VALIDATION_TIME, wait).await {
        Ok(complaints) => complaints.map_err(|_| ValidationFailure::NoThread),
        Err(_) => Err(running.abandon()),
    }
}

/// Returns a path as it is given, without the root in front of it. Empty if it is absolute and in no root.
fn below_root<'a>(given: &'a str, roots: &[PathBuf]) -> &'a str {
    let path = Path::new(given);
    if path.is_relative() {
        return given;
    }
    roots.iter().find_map(|root| path.strip_prefix(root).ok()).and_then(Path::to_str).unwrap_or_default()
}
