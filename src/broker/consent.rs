//! Stores the user's "always" answers about calls. They are kept in the session, so they survive a mode switch and end
//! with the session.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value};

use crate::diagnostic::printable;
use crate::manifest::{PermissionRule, RuleEffect};
use crate::network::RemoteHost;
use crate::permissions;
use crate::tool::{FileTarget, SessionContext, path_line};

/// The scope of an "always" answer: the narrowest one that is still useful.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsentSubject {
    tool: String,
    what: ConsentTarget,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum ConsentTarget {
    /// This exact command line, in the background or not.
    Command { line: String, background: bool },
    /// Any call of the tool on this file, with links resolved.
    File { shown: String, real: PathBuf },
    /// Any call of the tool that reads from this host.
    Host(String),
    /// The call with exactly these arguments, as JSON.
    Exactly(String),
}

impl ConsentSubject {
    /// Covers every URL at this host.
    pub(super) fn of_host(tool: &str, host: &RemoteHost) -> Self {
        Self { tool: tool.to_owned(), what: ConsentTarget::Host(host.to_string()) }
    }

    /// Returns the host that the consent covers. `None` if it covers something else.
    pub fn host(&self) -> Option<&str> {
        match &self.what {
            ConsentTarget::Host(host) => Some(host),
            ConsentTarget::Command { .. } | ConsentTarget::File { .. } | ConsentTarget::Exactly(_) => None,
        }
    }

    /// Derives the subject of a call. `command` has a known meaning only if `builtin`; `target` is the file of a
    /// built-in tool.
    pub(crate) fn of(tool: &str, arguments: &Map<String, Value>, builtin: bool, target: Option<&FileTarget>) -> Self {
        let text = |key: &str| arguments.get(key).and_then(Value::as_str).map(str::to_owned).filter(|_| builtin);
        let what = match (text("command"), target) {
            (Some(line), _) => {
                ConsentTarget::Command { line, background: arguments.get("background") == Some(&Value::Bool(true)) }
            }
            (None, Some(target)) => ConsentTarget::File { shown: target.shown.clone(), real: target.real.clone() },
            (None, None) => ConsentTarget::Exactly(Value::Object(arguments.clone()).to_string()),
        };
        Self { tool: tool.to_owned(), what }
    }

    /// Returns the consent as a rule for the session's folder, covering one command or one file. `None` for other
    /// calls, compound or background commands, and anything that contains a `*`.
    pub(super) fn rule(&self, session: &SessionContext) -> Option<PermissionRule> {
        let (argument, pattern) = match &self.what {
            ConsentTarget::Command { line, background: false } => ("command", permissions::narrowest(line)?),
            ConsentTarget::File { real, .. } => ("path", real.to_str()?.to_owned()),
            ConsentTarget::Command { background: true, .. } | ConsentTarget::Host(_) | ConsentTarget::Exactly(_) => {
                return None;
            }
        };
        let project = std::fs::canonicalize(&session.cwd).ok()?.to_str()?.to_owned();
        let arguments = [(argument.to_owned(), pattern)].into();
        let tool = Some(self.tool.clone());
        let rule = PermissionRule { tool, host: None, arguments, project: Some(project), then: RuleEffect::Allow };
        (!rule.arguments.values().any(|pattern| pattern.contains('*'))).then_some(rule)
    }
}

impl std::fmt::Display for ConsentSubject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = |text: &str| {
            let line: String = printable(&text.replace('\n', "⏎")).chars().take(60).collect();
            if line.chars().count() < text.chars().count() { format!("{line}…") } else { line }
        };
        match &self.what {
            ConsentTarget::Command { line, background: false } => write!(f, "`{}`", short(line)),
            ConsentTarget::Command { line, background: true } => write!(f, "`{}` in the background", short(line)),
            ConsentTarget::File { shown, .. } => write!(f, "{} of {}", self.tool, path_line(shown)),
            ConsentTarget::Host(host) => f.write_str(&short(host)),
            ConsentTarget::Exactly(_) => write!(f, "this very call of {}", self.tool),
        }
    }
}

/// The "always" answers of a session, kept in its state.
#[derive(Debug, Default)]
pub(super) struct SessionConsents {
    said: Mutex<HashMap<(String, ConsentTarget), bool>>,
}

impl SessionConsents {
    /// Returns the remembered answer: true if allowed, false if refused, `None` if there is none.
    pub(super) fn about(&self, subject: &ConsentSubject) -> Option<bool> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.get(&(subject.tool.clone(), subject.what.clone())).copied()
    }

    pub(super) fn remember(&self, subject: ConsentSubject, allowed: bool) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.insert((subject.tool, subject.what), allowed);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use std::path::Path;

    fn subject(tool: &str, arguments: Value, builtin: bool) -> ConsentSubject {
        let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
        let given = arguments.get("path").and_then(Value::as_str).filter(|_| builtin);
        let target = given.map(|given| FileTarget::resolve(given, Path::new("/nowhere"), &[]).expect("resolved"));
        ConsentSubject::of(tool, &arguments, builtin, target.as_ref())
    }

    #[test]
    fn always_covers_one_command_one_file_or_one_call() {
        let consents = SessionConsents::default();
        consents.remember(subject("developer__shell", json!({"command": "ls"}), true), true);
        consents.remember(subject("developer__edit_file", json!({"path": "a.rs", "old": "1", "new": "2"}), true), true);
        consents.remember(subject("notes__add", json!({"path": "a", "n": 1}), false), false);
        for (tool, arguments, builtin, expected) in [
            ("developer__shell", json!({"command": "ls", "timeout": 5}), true, Some(true)),
            ("developer__shell", json!({"command": "ls && rm -rf x"}), true, None),
            ("developer__shell", json!({"command": "ls", "background": true}), true, None),
            ("developer__edit_file", json!({"path": "a.rs", "old": "3", "new": "4"}), true, Some(true)),
            ("developer__write_file", json!({"path": "a.rs"}), true, None),
            ("developer__edit_file", json!({"path": "b.rs"}), true, None),
            ("notes__add", json!({"path": "a", "n": 1}), false, Some(false)),
            ("notes__add", json!({"path": "a", "n": 2}), false, None),
        ] {
            assert_eq!(consents.about(&subject(tool, arguments.clone(), builtin)), expected, "{tool} {arguments}");
        }
    }

    #[test]
    fn what_can_be_kept_is_one_command_or_one_file_of_one_project() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a folder");
        let session = SessionContext::new("s", root.clone(), Vec::new(), root.join("scratch"));
        let kept = |tool: &str, arguments: Value, builtin| subject(tool, arguments, builtin).rule(&session);
        let rule = kept("developer__shell", json!({"command": "git  'status'"}), true).expect("a rule");
        assert_eq!(rule.to_string(), r#"developer__shell: {command: "git status"}"#);
        assert_eq!(rule.project.as_deref(), root.to_str());
        let rule = kept("developer__edit_file", json!({"path": "./a.rs"}), true).expect("a rule");
        assert_eq!(rule.arguments["path"], "/nowhere/a.rs");
        for (tool, arguments, builtin) in [
            ("developer__shell", json!({"command": "ls && rm x"}), true),
            ("developer__shell", json!({"command": "ls *"}), true),
            ("developer__shell", json!({"command": "ls > x"}), true),
            ("developer__edit_file", json!({"path": "a*"}), true),
            ("notes__add", json!({"path": "a"}), false),
        ] {
            assert_eq!(kept(tool, arguments.clone(), builtin), None, "{arguments}");
        }
    }

    #[test]
    fn it_is_told_in_words() {
        assert_eq!(subject("developer__shell", json!({"command": "cargo\ntest"}), true).to_string(), "`cargo⏎test`");
        let edit = subject("developer__edit_file", json!({"path": "a.rs"}), true);
        assert_eq!(edit.to_string(), "developer__edit_file of a.rs");
        assert_eq!(subject("notes__add", json!({"path": "a"}), false).to_string(), "this very call of notes__add");
    }
}
