//! Stores the user's "always" answers about calls. They are kept in the session, so they survive a mode switch and end
//! with the session.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::manifest::{PermissionRule, RuleEffect};
use crate::permissions;
use crate::tool::SessionContext;
use crate::tool::ask::{ConsentSubject, ConsentTarget};

/// Returns the consent as a rule for the session's folder, covering one command or one file. `None` for other
/// calls, compound or background commands, anything that contains a `*`, and calls of services: a rule would cover the
/// model's calls too.
pub(super) fn rule_for(subject: &ConsentSubject, session: &SessionContext) -> Option<PermissionRule> {
    if !subject.chain.is_empty() {
        return None;
    }
    let (argument, pattern) = match &subject.target {
        ConsentTarget::Command { line, background: false } | ConsentTarget::Unsandboxed { line } => {
            ("command", permissions::narrowest(line)?)
        }
        ConsentTarget::File { real, .. } => ("path", real.to_str()?.to_owned()),
        ConsentTarget::Command { background: true, .. } | ConsentTarget::Host(_) | ConsentTarget::Exactly(_) => {
            return None;
        }
    };
    let project = match session.client_folders() {
        Some(client) => client.cwd.clone(),
        None => std::fs::canonicalize(&session.cwd).ok()?,
    };
    let project = project.to_str()?.to_owned();
    let arguments = [(argument.to_owned(), pattern)].into();
    let tool = Some(subject.tool.clone());
    let rule = PermissionRule { tool, host: None, arguments, project: Some(project), then: RuleEffect::Allow };
    (!rule.arguments.values().any(|pattern| pattern.contains('*'))).then_some(rule)
}

/// The "always" answers of a session.
#[derive(Debug, Default)]
pub(super) struct SessionConsents {
    said: Mutex<HashMap<ConsentSubject, bool>>,
}

impl SessionConsents {
    /// Returns the remembered answer: true if allowed, false if refused, `None` if there is none. A refusal of the
    /// model's call also refuses the same call of a service.
    pub(super) fn about(&self, subject: &ConsentSubject) -> Option<bool> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let of_model = said.get(&subject.by_services(Vec::new())).copied();
        if of_model == Some(false) { of_model } else { said.get(subject).copied() }
    }

    pub(super) fn remember(&self, subject: ConsentSubject, allowed: bool) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.insert(subject, allowed);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;
    use crate::ids::ServiceName;
    use crate::tool::FileTarget;

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
            ("developer__shell", json!({"command": "ls", "unsandboxed": "why"}), true, None),
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
    fn consent_covers_no_service_and_a_refusal_covers_all() {
        let consents = SessionConsents::default();
        let of = |text: &str| subject("notes__add", json!({"text": text}), false);
        let by = |subject: ConsentSubject, services: &[&str]| {
            subject.by_services(services.iter().map(|name| ServiceName::new(*name)).collect())
        };
        consents.remember(of("allowed"), true);
        consents.remember(of("refused"), false);
        consents.remember(by(of("by plans"), &["plans"]), true);
        for (subject, expected) in [
            (of("allowed"), Some(true)),
            (by(of("allowed"), &["plans"]), None),
            (by(of("refused"), &["plans"]), Some(false)),
            (by(of("by plans"), &["plans"]), Some(true)),
            (by(of("by plans"), &["other", "plans"]), None),
            (of("by plans"), None),
        ] {
            assert_eq!(consents.about(&subject), expected, "{subject:?}");
        }
        let shown = by(of("x"), &["plans", "todo"]).to_string();
        assert_eq!(shown, "exactly this call of notes: add by plans → todo");
        let session = SessionContext::new("s", "/".into(), Vec::new(), "/scratch".into());
        let command = by(subject("developer__shell", json!({"command": "ls"}), true), &["plans"]);
        assert_eq!(rule_for(&command, &session), None, "a rule would cover the model too");
    }

    #[test]
    fn what_can_be_kept_is_one_command_or_one_file_of_one_project() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a folder");
        let session = SessionContext::new("s", root.clone(), Vec::new(), root.join("scratch"));
        let kept = |tool: &str, arguments: Value, builtin| rule_for(&subject(tool, arguments, builtin), &session);
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
        assert_eq!(edit.to_string(), "edits of a.rs");
        let add = subject("notes__add_item", json!({"path": "a"}), false);
        assert_eq!(add.to_string(), "exactly this call of notes: add item");
    }
}
