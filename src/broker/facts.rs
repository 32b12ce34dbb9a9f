//! The arguments of a call as rules look at them: which are command lines, and where paths lead.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::files::{self, Relative};
use crate::permissions::{self, Argument, Script};
use crate::tool::Session;

pub(super) fn of(arguments: &Map<String, Value>, session: &Session, relative: Relative) -> BTreeMap<String, Argument> {
    let seen = |(name, value): (&String, &Value)| {
        let argument = match value {
            Value::String(text) if files::names_command(name) => Argument::Command(text.clone()),
            Value::String(text) if files::names_path(name) => path(text, session, relative),
            _ => Argument::plain(value),
        };
        (name.clone(), argument)
    };
    arguments.iter().map(seen).collect()
}

/// The command lines among a call's arguments, split.
pub fn command_lines(arguments: &Map<String, Value>) -> Vec<(String, Script)> {
    let named = arguments.iter().filter(|(name, _)| files::names_command(name));
    named.filter_map(|(name, value)| Some((name.clone(), permissions::read(value.as_str()?)))).collect()
}

fn path(given: &str, session: &Session, relative: Relative) -> Argument {
    let elsewhere = relative == Relative::Elsewhere && !Path::new(given).is_absolute();
    match files::resolve(given, &session.cwd) {
        Ok(real) if !elsewhere => Argument::Path {
            shown: files::below(&real, session),
            absolute: real.to_string_lossy().into_owned(),
            given: given.to_owned(),
        },
        Ok(_) | Err(_) => Argument::Unresolved(given.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_are_seen_where_they_lead_and_commands_as_commands() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a folder");
        std::fs::create_dir(root.join("src")).expect("created");
        std::os::unix::fs::symlink("/etc", root.join("src/link")).expect("linked");
        let session = Session::new("s", root.clone(), Vec::new(), root.join("scratch"));
        let seen = |relative, name: &str, value: Value| {
            let arguments = json!({name: value});
            of(arguments.as_object().expect("an object"), &session, relative).remove(name).expect("seen")
        };
        let shown = |given: &str| match seen(Relative::ToSession, "path", given.into()) {
            Argument::Path { shown, .. } => shown,
            other => format!("{other:?}"),
        };
        assert_eq!(shown("src/a"), "src/a");
        assert_eq!(shown("src/../b"), "b");
        assert_eq!(shown("src/link/passwd"), "/etc/passwd");
        assert_eq!(shown(&root.join("src/a").to_string_lossy()), "src/a");
        assert_eq!(seen(Relative::ToSession, "path", "~/a".into()), Argument::Unresolved("~/a".to_owned()));
        assert_eq!(seen(Relative::Elsewhere, "file_path", "a".into()), Argument::Unresolved("a".to_owned()));
        assert_eq!(seen(Relative::ToSession, "command", "ls".into()), Argument::Command("ls".to_owned()));
        assert_eq!(seen(Relative::ToSession, "timeout", 5.into()), Argument::Text("5".to_owned()));
    }
}
