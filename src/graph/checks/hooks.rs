//! Checks the hooks of a config: their matchers, and what a project may add.

use super::Checks;
use crate::diagnostic::Diagnostic;
use crate::ids::nearest;
use crate::manifest::{ConfigEntry, DocumentPath, HookEvent, HookGroup, HookMatcher, Layer};

/// The kinds that the matcher of `SessionStart` and `SessionEnd` selects.
const STARTS: [&str; 2] = ["startup", "resume"];
const ENDS: [&str; 1] = ["other"];

/// Tools of Claude Code whose arguments have other names in Skein.
const FOREIGN_TOOLS: [(&str, &str); 7] = [
    ("Read", "developer__read_file"),
    ("Write", "developer__write_file"),
    ("Edit", "developer__edit_file"),
    ("MultiEdit", "developer__edit_file"),
    ("Grep", "developer__search"),
    ("LS", "developer__list_dir"),
    ("WebFetch", "fetch__fetch_url"),
];
/// A tool of Claude Code that means the same in Skein.
const FOREIGN_SHELL: &str = "Bash";

impl Checks<'_> {
    /// Checks the hooks of a config. The author of a project must not run programs that do more than refuse.
    pub(super) fn hooks(&mut self, entry: &ConfigEntry) {
        for (event, groups) in entry.config.hooks.groups() {
            let at = DocumentPath::root().key("hooks").key(event.as_str());
            if entry.layer == Layer::Project && !event.is_refusable() && !groups.is_empty() {
                self.error(
                    "E134",
                    entry.source.key_place(&at),
                    format!("a project's config cannot have `{}` hooks", event.as_str()),
                    "move them to your own config.yaml; a project's hooks are `PreToolUse` and `UserPromptSubmit`, and \
                     only refuse",
                );
            }
            for (index, group) in groups.iter().enumerate() {
                self.hook_matcher(entry, event, group, &at.index(index).key("matcher"));
            }
        }
    }

    fn hook_matcher(&mut self, entry: &ConfigEntry, event: HookEvent, group: &HookGroup, at: &DocumentPath) {
        let Some(text) = &group.matcher else { return };
        let place = || entry.source.place(at);
        let matcher = match HookMatcher::parse(Some(text)) {
            Ok(matcher) => matcher,
            Err(error) => {
                let problem =
                    format!("the matcher `{text}` is not a regular expression: {}", super::agents::reason(&error));
                let help = "for example `developer__shell`, `developer__shell|fetch__fetch_url` or `developer__.*`";
                return self.error("E134", place(), problem, help);
            }
        };
        if !event.has_matcher() {
            if !matches!(matcher, HookMatcher::All) {
                let problem = format!("`{}` has no matcher, so `{text}` has no effect", event.as_str());
                self.found.push(Diagnostic::warning("W212", place(), problem, "remove it"));
            }
            return;
        }
        let HookMatcher::Names(names) = matcher else { return };
        for name in names {
            let help = if event.concerns_tools() { self.tool_help(&name) } else { kind_help(event, &name) };
            if let Some(help) = help {
                let problem = format!("no `{}` has the name `{name}`, so the hook never runs", event.as_str());
                self.found.push(Diagnostic::warning("W212", place(), problem, help));
            }
        }
    }

    /// Returns help for a name that no tool has. `None` if such a tool may exist.
    fn tool_help(&self, name: &str) -> Option<String> {
        if name == FOREIGN_SHELL {
            return None;
        }
        let name = name.strip_prefix("mcp__").unwrap_or(name);
        if name.contains("__") {
            return self.misspelt_tool(name);
        }
        if let Some((_, own)) = FOREIGN_TOOLS.iter().find(|(foreign, _)| *foreign == name) {
            return Some(format!("write `{own}`, and read its own arguments: `skein tools` shows them"));
        }
        let service = self.manifests.services.keys().any(|service| service.as_str() == name);
        Some(match service {
            true => format!("write `{name}__.*` for all tools of the service"),
            false => "write `SERVICE__TOOL`, such as `developer__shell`; `skein tools` lists them".to_owned(),
        })
    }
}

/// Returns help for a kind that an event does not have. `None` if it has it.
fn kind_help(event: HookEvent, name: &str) -> Option<String> {
    let kinds: &[&str] = if event == HookEvent::SessionStart { &STARTS } else { &ENDS };
    if kinds.contains(&name) {
        return None;
    }
    Some(match nearest(name, kinds.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are: {}", kinds.join(", ")),
    })
}
