//! Checks values that a process or server receives. `${env:NAME}` is the only placeholder, and the only way to pass a
//! secret.

use std::collections::BTreeMap;

use super::Checks;
use crate::diagnostic::{Diagnostic, SourceLocation, mask_keys};
use crate::manifest::{DocumentPath, LOADERS, Placeholder, SourceFile};
use crate::secrets::is_secret_name;

/// The owner of the values and their location.
pub(super) struct ValueOrigin<'a> {
    pub(super) who: String,
    pub(super) source: &'a SourceFile,
    pub(super) path: DocumentPath,
}

impl Checks<'_> {
    pub(super) fn process(&mut self, origin: &ValueOrigin<'_>, args: &[String], env: &BTreeMap<String, String>) {
        for (index, argument) in args.iter().enumerate() {
            self.placeholder(origin, &origin.path.key("args").index(index), argument);
        }
        for name in env.keys() {
            self.loader(name, || origin.source.key_place(&origin.path.key("env").key(name)));
        }
        self.secrets(origin, "env", env);
    }

    pub(super) fn working_directory(&mut self, origin: &ValueOrigin<'_>, cwd: Option<&str>) {
        if let Some(cwd) = cwd {
            self.placeholder(origin, &origin.path.key("cwd"), cwd);
        }
    }

    /// Reports a variable that makes a process load code.
    pub(super) fn loader(&mut self, name: &str, at: impl FnOnce() -> SourceLocation) {
        if LOADERS.contains(&name) {
            let problem = format!("`{name}` loads code that the manifest does not show");
            self.error("E121", at(), problem, "remove it; a wrapper script may set it where people can see it");
        }
    }

    pub(super) fn secrets(&mut self, origin: &ValueOrigin<'_>, field: &str, values: &BTreeMap<String, String>) {
        for (name, value) in values {
            let at = origin.path.key(field).key(name);
            self.placeholder(origin, &at, value);
            if is_secret_name(name) && !value.is_empty() && !value.contains("${env:") {
                let mut place = origin.source.key_place(&at);
                if let Some(span) = &mut place.span {
                    // Cut the line after the key, which need not show the rest.
                    span.text = span.text.chars().take(span.column - 1 + span.width).chain(": …".chars()).collect();
                }
                self.found.push(Diagnostic::warning(
                    "W202",
                    place,
                    format!("`{name}` of {} looks like a secret written into the manifest", origin.who),
                    format!("keep it in the environment and write `{name}: ${{env:NAME}}`"),
                ));
            }
        }
    }

    pub(super) fn placeholder(&mut self, origin: &ValueOrigin<'_>, at: &DocumentPath, value: &str) {
        for part in value.split("${").skip(1) {
            let problem = match part.split_once('}') {
                None => format!(
                    "`${{{}` has no closing brace",
                    visible_name(part.split_whitespace().next().unwrap_or_default())
                ),
                Some((inside, _)) if names_a_variable(inside) => continue,
                Some((inside, _)) => format!("`${{{}}}` is not a placeholder", visible_name(inside)),
            };
            let help = "write `${env:NAME}` for an environment variable";
            self.error("E119", origin.source.place(at), problem, help);
        }
    }
}

fn names_a_variable(inside: &str) -> bool {
    let name = Placeholder::of(inside.strip_prefix("env:").unwrap_or_default()).name;
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Returns the name at the start of a placeholder. What follows may be a secret: a default, or the rest of the value.
fn visible_name(text: &str) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | ' ' | '.');
    let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
    let end = end.min(text.find(":-").unwrap_or(end));
    let cut = if end < text.len() { "…" } else { "" };
    mask_keys(&text[..end]) + cut
}
