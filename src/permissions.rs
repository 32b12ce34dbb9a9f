//! Decides by permission rules which calls are allowed, asked about or denied, from the tool and its arguments.
//!
//! Invariant: `deny` beats `ask`, and `ask` beats `allow`, independent of order. A command line is allowed only if each
//! of its parts is. An unreadable part is never allowed; it is asked about if a rule could deny it. The same holds for
//! calls that take too long to evaluate.

mod budget;
mod command;
mod glob;
mod host;
mod shell;

use std::collections::BTreeMap;
use std::path::Path as FilePath;

use serde_json::Value;

use budget::Budget;
use command::covers;
pub use command::narrowest;
use glob::UNKNOWN;
pub use host::judge_host;
pub use shell::{Script, SimpleCommand, read};

use crate::diagnostic::SourceLocation;
use crate::manifest::{DocumentPath, Layer, ManagedSetting, Manifests, PermissionRule, RuleEffect};

/// A rule and its origin.
#[derive(Debug, Clone, PartialEq)]
pub struct SourcedRule {
    pub rule: PermissionRule,
    pub origin: RuleOrigin,
}

#[derive(Debug, Clone, PartialEq)]
pub enum RuleOrigin {
    Config {
        layer: Layer,
        place: SourceLocation,
    },
    /// A command-line flag, valid for this launch.
    Flag,
    /// A managed setting. The rule does not match the hosts in `except`.
    Managed {
        setting: ManagedSetting,
        except: Vec<String>,
    },
}

impl std::fmt::Display for RuleOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RuleOrigin::Config { place, .. } => match &place.span {
                Some(span) => write!(f, "{}:{}", place.file, span.line),
                None => f.write_str(&place.file),
            },
            RuleOrigin::Flag => f.write_str("command line"),
            RuleOrigin::Managed { setting, .. } => write!(f, "{setting}"),
        }
    }
}

/// `developer__shell: {command: "rm *"} → deny (config.yaml:3)`
impl std::fmt::Display for SourcedRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} → {} ({})", self.rule, self.rule.then.as_str(), self.origin)
    }
}

/// An argument of a call, as the rules see it.
#[derive(Debug, Clone, PartialEq)]
pub enum Argument {
    /// A command line for a shell.
    Command(String),
    /// A path with links and `..` resolved: relative to the session's root, absolute, and as given.
    Path { shown: String, absolute: String, given: String },
    /// A path whose target is unknown.
    Unresolved(String),
    /// A folder. The call may reach everything below it.
    Folder { shown: String, absolute: String, given: String },
    /// Text, a number, a boolean or null.
    Text(String),
    /// A list or mapping with everything in it, including the keys. Only the tool knows how it uses them, so no `allow`
    /// rule matches them, and a `deny` or `ask` rule always may.
    Other(Vec<Argument>),
}

impl Argument {
    /// Converts a value that contains neither commands nor paths.
    pub fn plain(value: &Value) -> Self {
        Self::of(value, &|text| Self::Text(text.to_owned()))
    }

    /// Converts a value. `text` converts the strings, also those within lists and mappings.
    pub fn of(value: &Value, text: &dyn Fn(&str) -> Self) -> Self {
        match value {
            Value::String(it) => text(it),
            Value::Null | Value::Bool(_) => Self::Text(value.to_string()),
            Value::Number(number) => Self::Text(plain_number(number)),
            Value::Array(items) => {
                let mut inner: Vec<_> = items.iter().map(|item| Self::of(item, text)).collect();
                // Some tools run `["rm", "x"]` as one command.
                let words: Vec<_> = items.iter().filter_map(Value::as_str).collect();
                inner.push(text(&words.join(" ")));
                Self::Other(inner)
            }
            Value::Object(object) => Self::Other(
                object.iter().flat_map(|(key, value)| [Self::Text(key.clone()), Self::of(value, text)]).collect(),
            ),
        }
    }

    /// Matches the pattern of a `deny` or `ask` rule. Returns at least `Maybe` if the budget is spent.
    fn match_restricting(&self, pattern: &str, budget: &Budget) -> ArgumentMatch {
        let found = self.compare(pattern, budget);
        if budget.is_spent() { found.max(ArgumentMatch::Maybe) } else { found }
    }

    fn compare(&self, pattern: &str, budget: &Budget) -> ArgumentMatch {
        let any =
            |texts: &[&String]| ArgumentMatch::from(texts.iter().any(|text| glob::matches(pattern, text, budget)));
        match self {
            Self::Command(command) => command::match_restricting(pattern, command, budget),
            Self::Path { shown, absolute, given } => any(&[shown, absolute, given]),
            Self::Folder { shown, absolute, given } => {
                let below = |folder: &str| match folder {
                    "" => !pattern.starts_with('/') && glob::may_match(pattern, &UNKNOWN.to_string(), budget),
                    folder => glob::may_match(pattern, &format!("{}/{UNKNOWN}", folder.trim_end_matches('/')), budget),
                };
                let reached = if below(shown) || below(absolute) { ArgumentMatch::Maybe } else { ArgumentMatch::No };
                any(&[shown, absolute, given]).max(reached)
            }
            Self::Unresolved(given) => any(&[given]).max(ArgumentMatch::Maybe),
            Self::Text(text) => any(&[text]),
            Self::Other(inner) => {
                let inner = inner.iter().map(|inner| inner.match_restricting(pattern, budget)).max();
                inner.unwrap_or(ArgumentMatch::No).max(ArgumentMatch::Maybe)
            }
        }
    }

    /// Returns true if the pattern of an `allow` rule matches. Always false for command lines, which `covers` checks
    /// part by part.
    fn match_allowing(&self, pattern: &str, budget: &Budget) -> bool {
        match self {
            Self::Path { shown, absolute, .. } | Self::Folder { shown, absolute, .. } => {
                glob::matches(pattern, shown, budget) || glob::matches(pattern, absolute, budget)
            }
            Self::Text(text) => !text.contains(UNKNOWN) && glob::matches(pattern, text, budget),
            Self::Command(_) | Self::Unresolved(_) | Self::Other(_) => false,
        }
    }

    /// Returns true if a nested mapping may have an argument of this name.
    fn holds(&self, name: &str) -> bool {
        let Self::Other(inner) = self else { return false };
        inner.iter().any(|inner| inner.holds(name) || matches!(inner, Self::Text(text) if text == name))
    }
}

/// Formats a number so that `5.0` and `5` are equal.
fn plain_number(number: &serde_json::Number) -> String {
    let whole = number.as_f64().filter(|it| it.fract() == 0.0 && it.abs() < 1e15);
    match whole {
        Some(whole) if number.is_f64() => format!("{whole:.0}"),
        _ => number.to_string(),
    }
}

/// Ordered from "certainly not" to "certainly".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ArgumentMatch {
    No,
    Maybe,
    Yes,
}

impl From<bool> for ArgumentMatch {
    fn from(yes: bool) -> Self {
        if yes { ArgumentMatch::Yes } else { ArgumentMatch::No }
    }
}

/// A call, as the rules see it.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The name that the model sees.
    pub tool: &'a str,
    pub arguments: &'a BTreeMap<String, Argument>,
    /// True if the tool's service comes from the project or the client.
    pub brought: bool,
}

/// The decision of all rules about a call.
#[derive(Debug, Clone, PartialEq)]
pub enum RuleDecision<'a> {
    /// No rule matches; the approval level decides.
    Silent,
    /// Allowed without asking. Names several rules if a command line has several parts.
    Allow(Vec<&'a SourcedRule>),
    /// `certain` is true if the rule matches, and false if it only may match.
    Ask {
        rule: &'a SourcedRule,
        certain: bool,
    },
    Deny(&'a SourcedRule),
}

/// Returns the permission rules of managed settings, the user's config, a trusted project's config and a `--manifests`
/// folder.
pub fn config_rules(manifests: &Manifests) -> Vec<SourcedRule> {
    let mut rules = administrator_rules(manifests);
    for entry in &manifests.configs {
        for (index, rule) in entry.config.permissions.iter().enumerate() {
            // Such a rule is an error that prevents a plan; this is a second safeguard.
            if entry.layer == Layer::Project && rule.then == RuleEffect::Allow {
                continue;
            }
            let place = entry.source.place(&DocumentPath::root().key("permissions").index(index));
            let origin = RuleOrigin::Config { layer: entry.layer, place };
            rules.push(SourcedRule { rule: rule.clone(), origin });
        }
    }
    rules
}

/// Returns the rules of managed settings. A list of the only hosts denies all others.
fn administrator_rules(manifests: &Manifests) -> Vec<SourcedRule> {
    let mut rules = Vec::new();
    for entry in manifests.managed.entries() {
        for (index, rule) in entry.config.permissions.iter().enumerate() {
            // Such a rule is an error that prevents a plan; this is a second safeguard.
            if rule.then == RuleEffect::Allow {
                continue;
            }
            let place = entry.source.place(&DocumentPath::root().key("permissions").index(index));
            let setting = ManagedSetting { key: "permissions", place };
            rules.push(SourcedRule { rule: rule.clone(), origin: RuleOrigin::Managed { setting, except: Vec::new() } });
        }
    }
    for (hosts, setting) in manifests.managed.host_lists() {
        let rule = PermissionRule { host: Some("*".to_owned()), then: RuleEffect::Deny, ..PermissionRule::default() };
        rules.push(SourcedRule { rule, origin: RuleOrigin::Managed { setting, except: hosts.to_vec() } });
    }
    rules
}

impl SourcedRule {
    /// Returns whether the rule is an "always in this project" answer in the user's config, which belongs to `local`.
    pub fn is_kept_consent(&self) -> bool {
        let of_user = matches!(self.origin, RuleOrigin::Config { layer: Layer::User, .. });
        of_user && self.rule.then == RuleEffect::Allow && self.rule.project.is_some()
    }

    /// Returns true unless the rule is for sessions in another folder. An `allow` rule holds only in exactly its
    /// folder, with links resolved, because subfolders may belong to others. Other rules also hold below it and match
    /// the folder as given.
    pub fn is_for(&self, given: &FilePath, real: &FilePath) -> bool {
        let Some(project) = self.rule.project.as_ref().map(FilePath::new) else { return true };
        match self.rule.then {
            RuleEffect::Allow => real == project,
            RuleEffect::Ask | RuleEffect::Deny => real.starts_with(project) || given.starts_with(project),
        }
    }

    /// Returns true if the rule's tool pattern matches this tool.
    pub fn names_tool(&self, tool: &str) -> bool {
        self.rule.tool.as_ref().is_some_and(|pattern| glob::matches(pattern, tool, &Budget::default()))
    }

    /// Returns false for a global `allow` rule if a project or a client provides the service. Such a service may reuse
    /// the name of a user's service, for which the rule was not meant.
    fn counts_for(&self, call: Call<'_>) -> bool {
        let meant = self.rule.project.is_some() || matches!(self.origin, RuleOrigin::Flag);
        self.rule.then != RuleEffect::Allow || !call.brought || meant
    }

    /// Matches a `deny` or `ask` rule.
    fn match_call(&self, call: Call<'_>, budget: &Budget) -> ArgumentMatch {
        if !self.names_tool(call.tool) {
            return ArgumentMatch::No;
        }
        let matched = self.rule.arguments.iter().map(|(name, pattern)| match call.arguments.get(name) {
            Some(argument) => argument.match_restricting(pattern, budget),
            None if call.arguments.values().any(|argument| argument.holds(name)) => ArgumentMatch::Maybe,
            None => ArgumentMatch::No,
        });
        matched.min().unwrap_or(ArgumentMatch::Yes)
    }

    /// Returns true if an `allow` rule matches apart from command lines, which are checked later.
    fn fits_but_for_commands(&self, call: Call<'_>, budget: &Budget) -> bool {
        self.counts_for(call)
            && self.names_tool(call.tool)
            && self.rule.arguments.iter().all(|(name, pattern)| match call.arguments.get(name) {
                Some(Argument::Command(_)) => true,
                Some(argument) => argument.match_allowing(pattern, budget),
                None => false,
            })
    }
}

/// A part of a command line, and the rule that allows it, if any.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandRule<'a> {
    pub argument: String,
    pub command: String,
    pub allowed_by: Option<&'a SourcedRule>,
}

/// Returns, for each part of the call's command line, the rule that allows it.
pub fn allowing<'a>(rules: &'a [SourcedRule], call: Call<'_>) -> Vec<CommandRule<'a>> {
    let budget = &Budget::default();
    let fitting = fitting(rules, call, budget);
    let Some((name, command)) = command_line(call) else { return Vec::new() };
    let script = shell::read(command);
    let told = script.parts.iter().zip(rules_by_command(&fitting, call, name, &script, budget));
    told.map(|(part, allowed_by)| CommandRule { argument: name.clone(), command: part.to_string(), allowed_by })
        .collect()
}

fn fitting<'a>(rules: &'a [SourcedRule], call: Call<'_>, budget: &Budget) -> Vec<&'a SourcedRule> {
    rules
        .iter()
        .filter(|rule| rule.rule.then == RuleEffect::Allow && rule.fits_but_for_commands(call, budget))
        .collect()
}

/// Returns true if a rule allows the call and spells out `name` in one of its path patterns. `.git/*` names `.git`; `*`
/// names nothing.
pub fn allow_by_name(rules: &[SourcedRule], call: Call<'_>, name: &str) -> bool {
    let is_path =
        |argument: &str| matches!(call.arguments.get(argument), Some(Argument::Path { .. } | Argument::Folder { .. }));
    let spells = |pattern: &str| pattern.split('/').any(|part| part.eq_ignore_ascii_case(name));
    fitting(rules, call, &Budget::default())
        .iter()
        .any(|rule| rule.rule.arguments.iter().any(|(argument, pattern)| is_path(argument) && spells(pattern)))
}

/// Returns true if rules allow each part of the call's command line and spell out its program. `docker *` names
/// `docker`; `*` names nothing.
pub fn allow_by_program(rules: &[SourcedRule], call: Call<'_>) -> bool {
    let budget = &Budget::default();
    let Some((name, _)) = command_line(call) else { return false };
    let names_program = |pattern: &String| pattern.split_whitespace().next().is_some_and(|word| !word.contains('*'));
    let named: Vec<_> = fitting(rules, call, budget)
        .into_iter()
        .filter(|rule| rule.rule.arguments.get(name).is_some_and(names_program))
        .collect();
    allow(&named, call, budget).is_some()
}

/// Evaluates all rules, independent of their order.
pub fn evaluate<'a>(rules: &'a [SourcedRule], call: Call<'_>) -> RuleDecision<'a> {
    judge_within(&Budget::default(), rules, call)
}

fn judge_within<'a>(budget: &Budget, rules: &'a [SourcedRule], call: Call<'_>) -> RuleDecision<'a> {
    let (denying, denied) = strongest(rules, RuleEffect::Deny, call, budget);
    if let (Some(rule), ArgumentMatch::Yes) = (denying, denied) {
        return RuleDecision::Deny(rule);
    }
    let (asking, asked) = strongest(rules, RuleEffect::Ask, call, budget);
    if let (Some(rule), ArgumentMatch::Yes) = (asking, asked) {
        return RuleDecision::Ask { rule, certain: true };
    }
    if let Some(rule) = denying.or(asking) {
        return RuleDecision::Ask { rule, certain: false };
    }
    allow(&fitting(rules, call, budget), call, budget).map_or(RuleDecision::Silent, RuleDecision::Allow)
}

/// Returns the first rule with this effect that matches the call with the highest certainty. `None` if none matches.
fn strongest<'a>(
    rules: &'a [SourcedRule],
    then: RuleEffect,
    call: Call<'_>,
    budget: &Budget,
) -> (Option<&'a SourcedRule>, ArgumentMatch) {
    let mut strongest = (None, ArgumentMatch::No);
    for rule in rules.iter().filter(|rule| rule.rule.then == then) {
        let concerned = rule.match_call(call, budget);
        if concerned > strongest.1 {
            strongest = (Some(rule), concerned);
        }
        if concerned == ArgumentMatch::Yes {
            break;
        }
    }
    strongest
}

/// Returns the call's command line and its argument name. `None` unless there is exactly one, because only the tool
/// knows which of several it runs.
fn command_line(call: Call<'_>) -> Option<(&String, &String)> {
    let mut commands = call.arguments.iter().filter_map(|(name, argument)| match argument {
        Argument::Command(command) => Some((name, command)),
        _ => None,
    });
    let only = commands.next()?;
    commands.next().is_none().then_some(only)
}

/// Returns the rules that together allow a call, at least one for each part of its command line. `None` if a part is
/// not allowed.
fn allow<'a>(fitting: &[&'a SourcedRule], call: Call<'_>, budget: &Budget) -> Option<Vec<&'a SourcedRule>> {
    let is_command = |name: &String| matches!(call.arguments.get(name), Some(Argument::Command(_)));
    if let Some(whole) = fitting.iter().find(|rule| !rule.rule.arguments.keys().any(is_command)) {
        return Some(vec![*whole]);
    }
    let (name, command) = command_line(call)?;
    let script = shell::read(command);
    if script.unreadable.is_some() || script.parts.is_empty() {
        return None;
    }
    let mut deciding: Vec<&SourcedRule> = Vec::new();
    for rule in rules_by_command(fitting, call, name, &script, budget) {
        let rule = rule?;
        if !deciding.contains(&rule) {
            deciding.push(rule);
        }
    }
    Some(deciding)
}

/// Arguments that change the effect of a command. A rule must name them too; one about the command alone is not enough.
const BESIDE_A_COMMAND: [&str; 9] =
    ["args", "arguments", "parameters", "params", "stdin", "input", "env", "environment", "save"];

fn rules_by_command<'a>(
    fitting: &[&'a SourcedRule],
    call: Call<'_>,
    name: &str,
    script: &Script,
    budget: &Budget,
) -> Vec<Option<&'a SourcedRule>> {
    let matters = |(name, argument): &(&String, &Argument)| match name.as_str() {
        "background" => **argument != Argument::Text("false".to_owned()),
        name => BESIDE_A_COMMAND.contains(&name),
    };
    let beside: Vec<_> = call.arguments.iter().filter(matters).map(|(name, _)| name).collect();
    let alone = script.parts.len() == 1;
    let allows = |rule: &SourcedRule, part: &SimpleCommand| {
        let arguments = &rule.rule.arguments;
        let names_all = beside.iter().all(|name| arguments.contains_key(*name));
        arguments.get(name).is_none_or(|pattern| names_all && covers(part, pattern, alone, budget))
    };
    script.parts.iter().map(|part| fitting.iter().find(|rule| allows(rule, part)).copied()).collect()
}

#[cfg(test)]
#[path = "permissions/permissions_tests.rs"]
mod tests;
