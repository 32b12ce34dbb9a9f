//! Classifies the arguments of a call for rules: command lines, resolved paths and other text.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::bound_tool::{BoundTool, CallScript};
use super::files::{self, CallPaths};
use crate::permissions::{self, Argument};

/// Classifies the arguments of a call. A built-in tool uses the session's folder if `path` is omitted.
pub(super) fn of_call(
    arguments: &Map<String, Value>,
    tool: &BoundTool,
    paths: &CallPaths<'_>,
) -> BTreeMap<String, Argument> {
    let mut facts = of(arguments, paths);
    if takes_path(tool) && !facts.contains_key("path") {
        facts.insert("path".to_owned(), path(".", paths));
    }
    // The rules read command lines. They must not take other code for one and allow it.
    if let Some(script) = tool.script(arguments).filter(|script| !script.is_shell)
        && let Some(code) = facts.remove(&script.argument)
    {
        facts.insert(script.argument, Argument::Other(vec![code]));
    }
    facts
}

/// Classifies a call that runs a script as the call of the built-in shell with the same effect. `facts` are its own.
pub(super) fn of_script(facts: &BTreeMap<String, Argument>, script: &CallScript) -> BTreeMap<String, Argument> {
    let is_other = |(name, _): &(&String, &Argument)| **name != script.argument && **name != script.language;
    let mut facts: BTreeMap<_, _> =
        facts.iter().filter(is_other).map(|(name, argument)| (name.clone(), argument.clone())).collect();
    facts.insert("command".to_owned(), Argument::Command(script.line.clone()));
    facts
}

/// Returns whether this is a built-in tool that works on a file or folder.
pub(super) fn takes_path(tool: &BoundTool) -> bool {
    let properties = tool.spec.input_schema.get("properties").filter(|_| tool.builtin);
    properties.is_some_and(|properties| properties.get("path").is_some())
}

fn of(arguments: &Map<String, Value>, paths: &CallPaths<'_>) -> BTreeMap<String, Argument> {
    let seen = |(name, value): (&String, &Value)| {
        let (is_command, is_path) = (files::names_command(name), files::names_path(name));
        let text = |text: &str| match (is_command, is_path) {
            (true, _) => Argument::Command(text.to_owned()),
            (false, true) => path(text, paths),
            (false, false) => Argument::Text(text.to_owned()),
        };
        let argument = match Argument::of(value, &text) {
            // A number is neither a command nor a path, however the tool interprets it.
            number @ Argument::Text(_) if is_command || is_path => Argument::Other(vec![number]),
            argument => argument,
        };
        (name.clone(), argument)
    };
    arguments.iter().map(seen).collect()
}

/// Returns why a command line among the arguments cannot be parsed. `None` if all can.
pub fn unreadable(arguments: &Map<String, Value>) -> Option<&'static str> {
    let mut commands = arguments.iter().filter(|(name, _)| files::names_command(name));
    commands.find_map(|(_, value)| permissions::read(value.as_str()?).unreadable)
}

fn path(given: &str, paths: &CallPaths<'_>) -> Argument {
    match paths.resolve(given) {
        Ok(real) => {
            let (shown, absolute) = (files::below(&real, paths.session), real.to_string_lossy().into_owned());
            let given = given.to_owned();
            if paths.is_folder(&real) {
                Argument::Folder { shown, absolute, given }
            } else {
                Argument::Path { shown, absolute, given }
            }
        }
        Err(_) => Argument::Unresolved(given.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::files::RelativeBase;
    use super::*;
    use crate::tool::SessionContext;

    #[test]
    fn paths_are_seen_where_they_lead_and_commands_as_commands() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a folder");
        std::fs::create_dir(root.join("src")).expect("created");
        std::os::unix::fs::symlink("/etc", root.join("src/link")).expect("linked");
        let session = SessionContext::new("s", root.clone(), Vec::new(), root.join("scratch"));
        let seen = |relative, name: &str, value: Value| {
            let arguments = json!({name: value});
            of(arguments.as_object().expect("an object"), &CallPaths::new(&session, relative))
                .remove(name)
                .expect("seen")
        };
        let shown = |given: &str| match seen(RelativeBase::ToSession, "path", given.into()) {
            Argument::Path { shown, .. } => shown,
            other => format!("{other:?}"),
        };
        assert_eq!(shown("src/a"), "src/a");
        assert_eq!(shown("src/../b"), "b");
        assert_eq!(shown("src/link/passwd"), "/etc/passwd");
        assert_eq!(shown(&root.join("src/a").to_string_lossy()), "src/a");
        assert_eq!(seen(RelativeBase::ToSession, "path", "~/a".into()), Argument::Unresolved("~/a".to_owned()));
        assert_eq!(seen(RelativeBase::Elsewhere, "file_path", "a".into()), Argument::Unresolved("a".to_owned()));
        assert_eq!(seen(RelativeBase::ToSession, "command", "ls".into()), Argument::Command("ls".to_owned()));
        assert_eq!(seen(RelativeBase::ToSession, "timeout", 5.into()), Argument::Text("5".to_owned()));
        assert!(
            matches!(seen(RelativeBase::ToSession, "path", "src".into()), Argument::Folder { shown, .. } if shown == "src")
        );
        for own in ["/proc/self/cwd/src/a", "/proc/../proc/self/root", "/dev/fd/3", "/proc/thread-self/x"] {
            assert_eq!(seen(RelativeBase::Elsewhere, "path", own.into()), Argument::Unresolved(own.to_owned()));
        }
        let five = || Argument::Other(vec![Argument::Text("5".to_owned())]);
        assert_eq!(seen(RelativeBase::ToSession, "path", 5.into()), five());
        assert_eq!(seen(RelativeBase::ToSession, "command", 5.into()), five());
        let listed = seen(RelativeBase::ToSession, "commands", json!(["rm", "x"]));
        let command = |text: &str| Argument::Command(text.to_owned());
        assert_eq!(listed, Argument::Other(vec![command("rm"), command("x"), command("rm x")]));
    }
}
