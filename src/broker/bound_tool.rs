//! Defines a tool of a binding, and the facts about its calls that the gate needs.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use regex::Regex;
use serde_json::{Map, Value, json};

use super::files::{self, RelativeBase};
use super::sanitize;
use crate::ids::{GroupName, ServiceName};
use crate::manifest::{SchemaError, SchemaValidator};
use crate::network::RemoteHost;
use crate::tool::ask::{ConsentSubject, ConsentTarget};
use crate::tool::{Catalog, ToolSpec};

/// Metadata key under which a built-in tool lists its far-reaching arguments; see [`BoundTool::reaching`].
const REACHING: &str = "skein/asks_with";

/// Metadata key of a built-in tool that changes nothing and still needs consent, because it sees beyond the session.
const ALWAYS_ASKS: &str = "skein/always_asks";

/// Metadata key under which a built-in tool names its argument that is a URL to read.
const URL_ARGUMENT: &str = "skein/url_argument";

/// Metadata key under which a built-in tool names its arguments `service` and `uri`, if it reads resources of services.
const RESOURCE_ARGUMENTS: &str = "skein/resource_arguments";

/// Metadata key of a built-in tool that asks the user at every level before it changes something.
const ASKS_ITSELF: &str = "skein/asks_itself";

/// Metadata key under which a built-in tool names its arguments `script` and `language`, and the program of each language.
const SCRIPT: &str = "skein/script";

/// The built-in shell, whose rules also hold for scripts.
pub(super) const SHELL: &str = "developer__shell";

/// Arguments of the built-in shell.
const READ_ONLY: &str = "read_only";
const UNSANDBOXED: &str = "unsandboxed";

/// The sandbox that a call chooses for its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SandboxChoice<'a> {
    /// That of the mode.
    Mode,
    /// One that changes nothing.
    ReadOnly,
    /// None, for this reason.
    Unsandboxed(&'a str),
}

/// The script of a call, as a command line of the built-in shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallScript {
    /// The argument with the script.
    pub(super) argument: String,
    /// The argument with its language.
    pub(super) language: String,
    /// The command line with the same effect, such as `python3 -c 'print(1)'`.
    pub(super) line: String,
    /// True if the script itself is a command line.
    pub(super) is_shell: bool,
}

impl CallScript {
    /// Returns the subject of a consent for the same command line in the built-in shell.
    pub(super) fn shell_subject(&self) -> ConsentSubject {
        let target = ConsentTarget::Command { line: self.line.clone(), background: false };
        ConsentSubject { tool: SHELL.to_owned(), target, chain: Vec::new() }
    }
}

/// A tool in scope.
#[derive(Debug)]
pub struct BoundTool {
    pub service: ServiceName,
    pub spec: ToolSpec,
    /// The group that admits the tool.
    pub group: GroupName,
    /// Every path of a call must match one of these patterns. Empty if paths are unrestricted.
    pub files: Vec<Regex>,
    /// Trusted for built-in services only.
    pub read_only: bool,
    /// Arguments that make a call count as not read-only although it changes nothing. They reach beyond the session, so
    /// the user decides.
    pub reaching: Vec<String>,
    /// The argument with the URL that the tool reads. Trusted for built-in services only.
    pub(super) url_argument: Option<String>,
    /// True for a built-in tool, whose arguments have a known meaning.
    pub(super) builtin: bool,
    /// True for a tool of a service from the project or the client.
    pub(super) brought: bool,
    pub(super) relative: RelativeBase,
    /// The service's catalog at freeze time.
    pub(super) seen: Arc<Catalog>,
    pub(super) validator: OnceLock<Result<SchemaValidator, SchemaError>>,
    /// The result of [`BoundTool::request_bytes`] for a tool without a name.
    pub(super) nameless_bytes: OnceLock<usize>,
}

impl BoundTool {
    /// Returns whether the other tool is equal, so that two bindings can share one. What is computed later
    /// follows from the spec.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let Self {
            service,
            spec,
            group,
            files,
            read_only,
            reaching,
            url_argument,
            builtin,
            brought,
            relative,
            seen,
            validator: _,
            nameless_bytes: _,
        } = self;
        let patterns = |files: &[Regex]| files.iter().map(|file| file.as_str().to_owned()).collect::<Vec<_>>();
        Arc::ptr_eq(seen, &other.seen)
            && (service, group, spec) == (&other.service, &other.group, &other.spec)
            && (read_only, builtin, brought) == (&other.read_only, &other.builtin, &other.brought)
            && (reaching, url_argument, relative) == (&other.reaching, &other.url_argument, &other.relative)
            && patterns(files) == patterns(&other.files)
    }

    /// Returns the bytes that the tool adds to a model request: its name, description and input schema as JSON.
    pub fn request_bytes(&self, name: &str) -> usize {
        // Each prompt asks for it, and the schema is long.
        let nameless = self.nameless_bytes.get_or_init(|| {
            let (description, schema) = (&self.spec.description, &self.spec.input_schema);
            json!({"name": "", "description": description, "input_schema": schema}).to_string().len()
        });
        // No character of the name is escaped: see `names`.
        nameless + name.len()
    }

    /// Returns the validator of the arguments. Fails if the input schema cannot be used.
    pub(super) fn validator(&self) -> Result<&SchemaValidator, &SchemaError> {
        self.validator.get_or_init(|| sanitize::validator(&self.spec)).as_ref()
    }

    /// Returns the host that the call reads from. `None` if the tool reads no URLs or the URL has no host; the tool
    /// rejects the latter.
    pub(super) fn host(&self, arguments: &Map<String, Value>) -> Option<RemoteHost> {
        RemoteHost::of_url(arguments.get(self.url_argument.as_ref()?)?.as_str()?)
    }

    /// Returns the service and URI of the resource that the call reads. `None` if the tool does not read resources of
    /// other services.
    pub(super) fn resource<'a>(&self, arguments: &'a Map<String, Value>) -> Option<(ServiceName, &'a str)> {
        let names = self.spec.meta.as_ref()?.get(RESOURCE_ARGUMENTS).filter(|_| self.builtin)?;
        let text = |key: &str| arguments.get(names.get(key)?.as_str()?)?.as_str();
        Some((ServiceName::new(text("service")?), text("uri")?))
    }

    /// Returns true if the tool itself asks the user before it changes something, so that a second question would be
    /// about the same. Trusted for built-in services only.
    pub(super) fn asks_itself(&self) -> bool {
        self.builtin && self.spec.meta.as_ref().is_some_and(|meta| meta[ASKS_ITSELF] == true)
    }

    /// Returns the script that the call runs. `None` if the tool runs none.
    pub(super) fn script(&self, arguments: &Map<String, Value>) -> Option<CallScript> {
        let names = self.spec.meta.as_ref()?.get(SCRIPT).filter(|_| self.builtin)?;
        let argument = names.get("script")?.as_str()?;
        let language = names.get("language")?.as_str()?;
        let script = arguments.get(argument)?.as_str()?;
        let spoken = arguments.get(language).and_then(Value::as_str).unwrap_or_default();
        let program = names.get("programs").and_then(|programs| programs.get(spoken)?.as_str());
        let line = program.map_or_else(|| script.to_owned(), |program| quote_script(program, script));
        let (argument, language) = (argument.to_owned(), language.to_owned());
        Some(CallScript { argument, language, line, is_shell: program.is_none() })
    }

    /// Returns the command line that the call runs, also for a script. Empty if it runs none.
    pub(super) fn command_line<'a>(&self, arguments: &'a Map<String, Value>) -> Cow<'a, str> {
        match self.script(arguments) {
            Some(script) => Cow::Owned(script.line),
            None => Cow::Borrowed(arguments.get("command").and_then(Value::as_str).unwrap_or_default()),
        }
    }

    /// Returns the sandbox that the call chooses. Only the built-in shell has these arguments.
    pub(super) fn sandbox_choice<'a>(&self, arguments: &'a Map<String, Value>) -> SandboxChoice<'a> {
        let properties = self.spec.input_schema.get("properties").filter(|_| self.builtin);
        if properties.is_none_or(|properties| properties.get(UNSANDBOXED).is_none()) {
            return SandboxChoice::Mode;
        }
        match (arguments.get(UNSANDBOXED), arguments.get(READ_ONLY)) {
            (Some(Value::String(reason)), _) => SandboxChoice::Unsandboxed(reason),
            (_, Some(Value::Bool(true))) => SandboxChoice::ReadOnly,
            _ => SandboxChoice::Mode,
        }
    }

    /// Returns whether a call may change files of the session. A built-in tool that takes no path and runs nothing does
    /// not.
    pub(super) fn may_change_files(&self) -> bool {
        let properties = self.spec.input_schema.get("properties").and_then(Value::as_object);
        let names_files = |name: &String| files::names_path(name) || files::names_command(name);
        let takes_files = properties.is_some_and(|properties| properties.keys().any(names_files));
        let runs_scripts = self.spec.meta.as_ref().is_some_and(|meta| meta.get(SCRIPT).is_some());
        !self.read_only && (!self.builtin || takes_files || runs_scripts)
    }

    /// Returns whether the tool lets this call run without consent.
    pub fn reads_only(&self, arguments: &Map<String, Value>) -> bool {
        let given = |name: &String| arguments.get(name).is_some_and(|value| !value.is_null());
        self.read_only && !self.reaching.iter().any(given)
    }
}

/// Returns the command line that runs a program with the script as its last argument.
fn quote_script(program: &str, script: &str) -> String {
    format!("{program} '{}'", script.replace('\'', r"'\''"))
}

/// Returns the far-reaching arguments that a tool declares in `_meta`.
pub(super) fn reaching(spec: &ToolSpec) -> Vec<String> {
    let names = spec.meta.as_ref().and_then(|meta| meta.get(REACHING)).and_then(Value::as_array);
    names.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Returns whether the tool needs consent although it changes nothing.
pub(super) fn always_asks(spec: &ToolSpec) -> bool {
    spec.meta.as_ref().and_then(|meta| meta.get(ALWAYS_ASKS)) == Some(&Value::Bool(true))
}

pub(super) fn url_argument(spec: &ToolSpec) -> Option<String> {
    spec.meta.as_ref()?.get(URL_ARGUMENT)?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::permissions;

    #[test]
    fn a_script_is_the_last_word_of_its_command_line() {
        assert_eq!(quote_script("python3 -c", "print('a')"), r"python3 -c 'print('\''a'\'')'");
    }

    proptest! {
        /// Nothing in a script ends its quotes, so it cannot pose as another part of the command line.
        #[test]
        fn any_script_is_one_readable_part(script in "[ -~\n\t]{0,80}") {
            let read = permissions::read(&quote_script("python3 -c", &script));
            prop_assert_eq!(read.unreadable, None);
            prop_assert_eq!(read.parts.len(), 1);
            prop_assert!(read.parts[0].to_string().starts_with("python3 -c "));
        }
    }
}
