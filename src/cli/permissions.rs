//! `skein permissions`: which rules there are, and what would happen to a call.

use std::sync::Arc;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::folders::Folders;
use super::output::{BOLD, Failure, Output, QUIET, shown};
use super::started::{self, Started};
use super::{Global, agents, workspace};
use crate::broker::{Because, Nobody, Terms, Verdict, unreadable};
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::manifest::{PermissionRule, Settings, Then};
use crate::permissions::{self, HostPattern, HostPatternError, Origin, PartRule, Rule};

#[derive(Debug, Args)]
pub(super) struct PermissionsArgs {
    #[command(subcommand)]
    command: PermissionsCommand,
}

#[derive(Debug, Subcommand)]
enum PermissionsCommand {
    /// The rules of your config and of this project's, with their places
    List {
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// What would happen to a call, and what decides; nothing is called
    Test(TestArgs),
}

#[derive(Debug, Args)]
struct TestArgs {
    /// The tool as the model sees it, and its arguments: developer__shell {"command": "git status"}
    call: String,
    /// The agent; that of the profile, or else `goose`
    #[arg(long, short)]
    agent: Option<String>,
    /// Its mode; the default one if left out
    #[arg(long, short)]
    mode: Option<String>,
    #[command(flatten)]
    flags: RuleFlags,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Rules for one launch.
#[derive(Debug, Default, Args)]
pub(super) struct RuleFlags {
    /// Allow such calls instead of asking
    ///
    /// For example 'developer__shell: {command: "git status*"}' or 'host: docs.rs'.
    #[arg(long, value_name = "RULE", value_parser = allowing)]
    allow: Vec<PermissionRule>,
    /// Refuse such calls; counts more than any --allow
    #[arg(long, value_name = "RULE", value_parser = denying)]
    deny: Vec<PermissionRule>,
}

fn allowing(text: &str) -> Result<PermissionRule, String> {
    let rule = PermissionRule::from_text(text, Then::Allow)?;
    check_host(&rule).map_err(|problem| problem.to_string()).map(|()| rule)
}

fn denying(text: &str) -> Result<PermissionRule, String> {
    let rule = PermissionRule::from_text(text, Then::Deny)?;
    check_host(&rule).map_err(|problem| problem.to_string()).map(|()| rule)
}

/// Fails if the host of a host rule cannot be read.
fn check_host(rule: &PermissionRule) -> Result<(), HostPatternError> {
    rule.host.as_deref().map_or(Ok(()), |host| HostPattern::parse(host).map(drop))
}

impl RuleFlags {
    pub(super) fn rules(&self) -> Vec<Rule> {
        let given = self.allow.iter().chain(&self.deny);
        given.map(|rule| Rule { rule: rule.clone(), origin: Origin::Flag }).collect()
    }
}

pub(super) fn run(
    args: &PermissionsArgs,
    global: &Global,
    folders: &Folders,
    output: &mut Output,
) -> Result<(), Failure> {
    let plan = workspace::plan(global, folders, output)?;
    match &args.command {
        PermissionsCommand::List { json } => {
            list(&permissions::configured(plan.manifests()), *json, output);
            Ok(())
        }
        PermissionsCommand::Test(args) => test(args, plan, global, folders, output),
    }
}

fn list(rules: &[Rule], json: bool, output: &mut Output) {
    if json {
        return output.json(&rules.iter().map(rule_json).collect());
    }
    if rules.is_empty() {
        output.line("no rules: the approval level decides about every call");
    }
    for rule in rules {
        let only = rule.rule.project.as_ref().map(|folder| format!(", only in {folder}")).unwrap_or_default();
        let about = format!("{}{only}", rule.origin);
        let then = rule.rule.then.as_str();
        output.line(&format!("{then:<5}  {}  {QUIET}{}{QUIET:#}", shown(&rule.rule.to_string()), shown(&about)));
    }
}

fn rule_json(rule: &Rule) -> Value {
    let mut value = json!({
        "tool": rule.rule.tool, "host": rule.rule.host, "arguments": rule.rule.arguments, "then": rule.rule.then, "project": rule.rule.project,
        "layer": null, "file": null, "line": null,
    });
    if let Origin::Config { layer, place } = &rule.origin {
        value["layer"] = json!(layer);
        value["file"] = json!(place.file);
        value["line"] = json!(place.span.as_ref().map(|span| span.line));
    }
    value
}

/// A call as it is typed: `TOOL {JSON}`, or the tool alone.
fn call_of(text: &str) -> Result<(&str, Map<String, Value>), Failure> {
    let (tool, arguments) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), "{}"));
    match serde_json::from_str(arguments) {
        Ok(Value::Object(arguments)) => Ok((tool, arguments)),
        Ok(_) | Err(_) => Err(Failure::usage(
            format!("the arguments of `{}` are not a JSON object", shown(tool)),
            "write them as in 'developer__shell {\"command\": \"git status\"}'",
        )),
    }
}

fn mode_of(args: &TestArgs, plan: &Plan) -> Result<ModeId, Failure> {
    let settings = Settings::of(plan.manifests());
    let (agent, mode) = match (&args.agent, &args.mode, &settings.agent) {
        (None, None, Some(agent)) => (agent.as_str(), settings.mode.as_ref().map(|mode| mode.as_str())),
        (agent, mode, _) => (agent.as_deref().unwrap_or("goose"), mode.as_deref()),
    };
    agents::mode_of(agents::find(plan, agent)?, mode)
}

fn test(args: &TestArgs, plan: Plan, global: &Global, folders: &Folders, output: &mut Output) -> Result<(), Failure> {
    let (tool, arguments) = call_of(&args.call)?;
    let id = mode_of(args, &plan)?;
    let approval = global.approval.map(Into::into);
    started::block_on(plan, global, folders, output, async |started: &Started, output: &mut Output| {
        let broker = started.runtime.broker().with_rules(args.flags.rules());
        let session = Arc::clone(&started.session);
        let terms = Terms { session, approval, asker: Arc::new(Nobody), brought: Vec::new() };
        let binding = broker.bind(&id, terms).await.map_err(|error| started::bind_failure(&error))?;
        let verdict = binding.would(tool, &arguments).map_err(|problem| {
            Failure::usage(shown(&problem), format!("`skein tools -a {} -m {}` lists the tools", id.agent, id.mode))
        })?;
        let command = CommandLine { parts: binding.allowing(tool, &arguments), unreadable: unreadable(&arguments) };
        let idle = binding.idle_rules();
        if args.json {
            let mut told = told_json(tool, &id, &verdict, &command);
            told["idle_rules"] = json!(idle);
            output.json(&told);
        } else {
            idle.iter().for_each(|problem| output.note(&shown(problem)));
            tell(&verdict, &command, output);
        }
        Ok(())
    })
}

fn outcome(verdict: &Verdict) -> (&'static str, &Because) {
    match verdict {
        Verdict::Run(because) => ("run", because),
        Verdict::Ask(because) => ("ask", because),
        Verdict::Refuse(because) => ("refuse", because),
    }
}

/// What there is to say about the command line of a call.
struct CommandLine<'a> {
    parts: Vec<PartRule<'a>>,
    unreadable: Option<&'static str>,
}

fn tell(verdict: &Verdict, command: &CommandLine<'_>, output: &mut Output) {
    let (outcome, because) = outcome(verdict);
    output.line(&format!("{BOLD}{outcome}{BOLD:#}: {}", shown(&because.to_string())));
    for part in &command.parts {
        let by = part.allowed_by.map_or_else(|| "no rule allows it".to_owned(), ToString::to_string);
        output.line(&format!("  {}  {QUIET}{}{QUIET:#}", shown(&part.command), shown(&by)));
    }
    if let Some(why) = command.unreadable {
        output.line(&format!("  {QUIET}no rule can allow it as a whole: {why}{QUIET:#}"));
    }
}

fn told_json(tool: &str, id: &ModeId, verdict: &Verdict, command: &CommandLine<'_>) -> Value {
    let (outcome, because) = outcome(verdict);
    let deciding: Vec<_> = match because {
        Because::Rules(rules) => rules.iter().map(rule_json).collect(),
        Because::Unsure(rule) => vec![rule_json(rule)],
        Because::Level(_)
        | Because::ReadOnly(_)
        | Because::Host { .. }
        | Because::UserNamed(_)
        | Because::Protected { .. } => Vec::new(),
    };
    let part = |part: &PartRule<'_>| {
        let by = part.allowed_by.map(rule_json);
        json!({"argument": part.argument, "command": part.command, "allowed_by": by})
    };
    json!({
        "tool": tool, "mode": id.to_string(), "outcome": outcome, "because": because.to_string(), "rules": deciding,
        "parts": command.parts.iter().map(part).collect::<Vec<_>>(), "unreadable": command.unreadable,
    })
}
