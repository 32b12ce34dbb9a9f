//! Rules about calls: which are allowed, asked about or denied, by the tool and by what its arguments look like.
//!
//! Invariant: `deny` counts more than `ask` and `ask` more than `allow`, wherever they are written. A command line is
//! allowed only if each of its parts is; what cannot be read is never allowed, and is asked about where a rule could
//! deny it.

mod command;
mod glob;
mod shell;

use std::collections::BTreeMap;
use std::path::Path as FilePath;

use serde_json::Value;

use command::allowed_by;
pub use command::narrowest;
pub use shell::{Part, Script, read};

use crate::diagnostic::Place;
use crate::manifest::{Layer, Manifests, Path, PermissionRule, Then};

/// A rule, and where it is written.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    pub rule: PermissionRule,
    pub origin: Origin,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Origin {
    Config {
        layer: Layer,
        place: Place,
    },
    /// A flag of the command line, for this launch.
    Flag,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Config { place, .. } => match &place.span {
                Some(span) => write!(f, "{}:{}", place.file, span.line),
                None => f.write_str(&place.file),
            },
            Origin::Flag => f.write_str("command line"),
        }
    }
}

/// `developer__shell: {command: "rm *"} → deny (config.yaml:3)`
impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} → {} ({})", self.rule, self.rule.then.as_str(), self.origin)
    }
}

/// An argument of a call, as far as a rule looks at it.
#[derive(Debug, Clone, PartialEq)]
pub enum Argument {
    /// A command line for a shell.
    Command(String),
    /// A path with links and `..` resolved: as it is seen from the session's root, absolute, and as it was given.
    Path { shown: String, absolute: String, given: String },
    /// A path of which nobody can tell where it leads.
    Unresolved(String),
    /// Text, numbers and the like.
    Text(String),
    /// Lists and mappings; no rule that allows matches them.
    Other(Vec<String>),
}

impl Argument {
    /// What is neither a command nor a path.
    pub fn plain(value: &Value) -> Self {
        match value {
            Value::String(text) => Self::Text(text.clone()),
            Value::Null | Value::Bool(_) | Value::Number(_) => Self::Text(value.to_string()),
            Value::Array(_) | Value::Object(_) => {
                let mut leaves = vec![value.to_string()];
                collect(value, &mut leaves);
                Self::Other(leaves)
            }
        }
    }

    /// Whether a rule that denies or asks speaks of it.
    fn concerned(&self, pattern: &str) -> Match {
        let any = |texts: &[&String]| Match::from(texts.iter().any(|text| glob::matches(pattern, text)));
        match self {
            Self::Command(command) => command::concerned(pattern, command),
            Self::Path { shown, absolute, given } => any(&[shown, absolute, given]),
            Self::Unresolved(given) => any(&[given]).max(Match::Maybe),
            Self::Text(text) => any(&[text]),
            Self::Other(leaves) => any(&leaves.iter().collect::<Vec<_>>()),
        }
    }

    /// Whether a rule that allows speaks of it. Command lines are looked at part by part, elsewhere.
    fn allowed(&self, pattern: &str) -> bool {
        match self {
            Self::Path { shown, absolute, .. } => glob::matches(pattern, shown) || glob::matches(pattern, absolute),
            Self::Text(text) => !text.contains(glob::UNKNOWN) && glob::matches(pattern, text),
            Self::Command(_) | Self::Unresolved(_) | Self::Other(_) => false,
        }
    }
}

fn collect(value: &Value, leaves: &mut Vec<String>) {
    match value {
        Value::String(text) => leaves.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, leaves)),
        Value::Object(object) => object.iter().for_each(|(key, value)| {
            leaves.push(key.clone());
            collect(value, leaves);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// From "certainly not" to "certainly".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    No,
    Maybe,
    Yes,
}

impl From<bool> for Match {
    fn from(yes: bool) -> Self {
        if yes { Match::Yes } else { Match::No }
    }
}

/// A call as rules see it.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// As the model sees it.
    pub tool: &'a str,
    pub arguments: &'a BTreeMap<String, Argument>,
}

/// What the rules say about a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Ruling<'a> {
    /// No rule speaks of it: the approval level decides.
    Silent,
    /// What would be asked is allowed; more than one rule if a command line has several parts.
    Allow(Vec<&'a Rule>),
    /// `certain`: the rule speaks of the call. Otherwise nobody can tell.
    Ask {
        rule: &'a Rule,
        certain: bool,
    },
    Deny(&'a Rule),
}

/// The rules of the user's config, of a trusted project's, and of a `--manifests` folder.
pub fn configured(manifests: &Manifests) -> Vec<Rule> {
    let mut rules = Vec::new();
    for entry in &manifests.configs {
        for (index, rule) in entry.config.permissions.iter().enumerate() {
            // An error reports it, so there is no plan with such a rule; this is the second lock.
            if entry.layer == Layer::Project && rule.then == Then::Allow {
                continue;
            }
            let place = entry.source.place(&Path::root().key("permissions").index(index));
            let origin = Origin::Config { layer: entry.layer, place };
            rules.push(Rule { rule: rule.clone(), origin });
        }
    }
    rules
}

impl Rule {
    /// True unless it is for sessions in another folder; both paths with links resolved.
    pub fn is_for(&self, folder: &FilePath) -> bool {
        self.rule.project.as_ref().is_none_or(|project| folder.starts_with(project))
    }

    /// For a rule that denies or asks.
    fn concerned(&self, call: Call<'_>) -> Match {
        if !glob::matches(&self.rule.tool, call.tool) {
            return Match::No;
        }
        let matched = self.rule.arguments.iter().map(|(name, pattern)| match call.arguments.get(name) {
            Some(argument) => argument.concerned(pattern),
            None => Match::No,
        });
        matched.min().unwrap_or(Match::Yes)
    }

    /// For a rule that allows: everything it names fits, but for command lines, which are looked at later.
    fn fits_but_for_commands(&self, call: Call<'_>) -> bool {
        glob::matches(&self.rule.tool, call.tool)
            && self.rule.arguments.iter().all(|(name, pattern)| match call.arguments.get(name) {
                Some(Argument::Command(_)) => true,
                Some(argument) => argument.allowed(pattern),
                None => false,
            })
    }
}

/// The rule that allows a part of the command line in the argument `name`, if the call's other arguments fit.
pub fn allowing<'a>(rules: &'a [Rule], tool: &str, name: &str, part: &Part) -> Option<&'a Rule> {
    rules
        .iter()
        .filter(|rule| rule.rule.then == Then::Allow && glob::matches(&rule.rule.tool, tool))
        .find(|rule| rule.rule.arguments.get(name).is_none_or(|pattern| allowed_by(part, pattern, true)))
}

/// What the rules say together, in whatever order they stand.
pub fn judge<'a>(rules: &'a [Rule], call: Call<'_>) -> Ruling<'a> {
    let concerned = |then: Then, least: Match| {
        rules.iter().find(move |rule| rule.rule.then == then && rule.concerned(call) >= least)
    };
    if let Some(rule) = concerned(Then::Deny, Match::Yes) {
        return Ruling::Deny(rule);
    }
    if let Some(rule) = concerned(Then::Ask, Match::Yes) {
        return Ruling::Ask { rule, certain: true };
    }
    if let Some(rule) = concerned(Then::Deny, Match::Maybe).or_else(|| concerned(Then::Ask, Match::Maybe)) {
        return Ruling::Ask { rule, certain: false };
    }
    let allowing = rules.iter().filter(|rule| rule.rule.then == Then::Allow && rule.fits_but_for_commands(call));
    let fitting: Vec<&Rule> = allowing.collect();
    allow(&fitting, call).map_or(Ruling::Silent, Ruling::Allow)
}

/// The rules that together allow a call, one for each part of its command line.
fn allow<'a>(fitting: &[&'a Rule], call: Call<'_>) -> Option<Vec<&'a Rule>> {
    let is_command = |name: &String| matches!(call.arguments.get(name), Some(Argument::Command(_)));
    if let Some(whole) = fitting.iter().find(|rule| !rule.rule.arguments.keys().any(is_command)) {
        return Some(vec![*whole]);
    }
    let mut commands = call.arguments.iter().filter_map(|(name, argument)| match argument {
        Argument::Command(command) => Some((name, command)),
        _ => None,
    });
    // Which of several command lines runs which program only the tool knows.
    let ((name, command), None) = (commands.next()?, commands.next()) else { return None };
    let script = shell::read(command);
    if script.unreadable.is_some() || script.parts.is_empty() {
        return None;
    }
    let alone = script.parts.len() == 1;
    let by = |part: &Part| fitting.iter().find(|rule| allowed_by(part, &rule.rule.arguments[name], alone)).copied();
    let mut deciding: Vec<&Rule> = Vec::new();
    for part in &script.parts {
        let rule = by(part)?;
        if !deciding.contains(&rule) {
            deciding.push(rule);
        }
    }
    Some(deciding)
}

#[cfg(test)]
#[path = "permissions/permissions_tests.rs"]
mod tests;
