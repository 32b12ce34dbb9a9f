//! `skein permissions`: lists the permission rules, and shows the decision for a call.

use std::sync::Arc;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::folders::Folders;
use super::output::{BOLD, CommandError, CommandOutput, QUIET, display_line};
use super::runtime::{self, CommandRuntime};
use super::{Global, workspace};
use crate::broker::{BindRequest, DecisionReason, GateDecision, unreadable};
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::manifest::{PermissionRule, RuleEffect, Settings};
use crate::network::{HostPattern, HostPatternError};
use crate::permissions::{self, CommandRule, RuleOrigin, SourcedRule};
use crate::project::ModeRequest;
use crate::tool::ask::NoAsker;

#[derive(Debug, Args)]
pub(super) struct PermissionsArgs {
    #[command(subcommand)]
    command: PermissionsCommand,
}

#[derive(Debug, Subcommand)]
enum PermissionsCommand {
    /// List the rules of your config and this project's
    List {
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the decision for a call and its reason
    ///
    /// The tool is not called.
    Test(TestArgs),
}

#[derive(Debug, Args)]
struct TestArgs {
    /// Name the tool as the model sees it, and its arguments
    ///
    /// For example 'developer__shell {"command": "git status"}'.
    call: String,
    /// Choose an agent; default: the profile's, or goose
    ///
    /// Give it as agent or agent/mode.
    #[arg(long, short)]
    agent: Option<String>,
    /// Choose a mode; default: the agent's default mode
    #[arg(long, short)]
    mode: Option<String>,
    #[command(flatten)]
    flags: RuleFlags,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Permission rules for this run.
#[derive(Debug, Default, Args)]
pub(super) struct RuleFlags {
    /// Allow matching calls without asking
    ///
    /// For example 'developer__shell: {command: "git status*"}' or 'host: docs.rs'.
    #[arg(long, value_name = "RULE", value_parser = allowing)]
    allow: Vec<PermissionRule>,
    /// Refuse matching calls; overrides any --allow
    #[arg(long, value_name = "RULE", value_parser = denying)]
    deny: Vec<PermissionRule>,
}

fn allowing(text: &str) -> anyhow::Result<PermissionRule> {
    parse_rule(text, RuleEffect::Allow)
}

fn denying(text: &str) -> anyhow::Result<PermissionRule> {
    parse_rule(text, RuleEffect::Deny)
}

fn parse_rule(text: &str, then: RuleEffect) -> anyhow::Result<PermissionRule> {
    let rule = PermissionRule::from_text(text, then)?;
    check_host(&rule)?;
    Ok(rule)
}

/// Fails if the rule's host pattern is invalid.
fn check_host(rule: &PermissionRule) -> Result<(), HostPatternError> {
    rule.host.as_deref().map_or(Ok(()), |host| HostPattern::parse(host).map(drop))
}

impl RuleFlags {
    pub(super) fn rules(&self) -> Vec<SourcedRule> {
        let given = self.allow.iter().chain(&self.deny);
        given.map(|rule| SourcedRule { rule: rule.clone(), origin: RuleOrigin::Flag }).collect()
    }
}

pub(super) fn run(
    args: &PermissionsArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let plan = workspace::plan(global, folders, output)?;
    match &args.command {
        PermissionsCommand::List { json } => {
            list(&permissions::config_rules(plan.manifests()), *json, output);
            Ok(())
        }
        PermissionsCommand::Test(args) => test(args, plan, global, folders, output),
    }
}

fn list(rules: &[SourcedRule], json: bool, output: &mut CommandOutput) {
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
        output.line(&format!(
            "{then:<5}  {}  {QUIET}{}{QUIET:#}",
            display_line(&rule.rule.to_string()),
            display_line(&about)
        ));
    }
}

fn rule_json(rule: &SourcedRule) -> Value {
    let mut value = json!({
        "tool": rule.rule.tool, "host": rule.rule.host, "arguments": rule.rule.arguments, "then": rule.rule.then, "project": rule.rule.project,
        "layer": null, "file": null, "line": null,
    });
    let (layer, place) = match &rule.origin {
        RuleOrigin::Config { layer, place } => (json!(layer), place),
        RuleOrigin::Managed { setting, except } => {
            value["except"] = json!(except);
            (json!("managed"), &setting.place)
        }
        RuleOrigin::Flag => return value,
    };
    value["layer"] = layer;
    value["file"] = json!(place.file);
    value["line"] = json!(place.span.as_ref().map(|span| span.line));
    value
}

/// Parses a call: `TOOL {JSON}`, or the tool alone. Fails if the arguments are not a JSON object.
fn call_of(text: &str) -> Result<(&str, Map<String, Value>), CommandError> {
    let (tool, arguments) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), "{}"));
    match serde_json::from_str(arguments) {
        Ok(Value::Object(arguments)) => Ok((tool, arguments)),
        Ok(_) | Err(_) => Err(CommandError::usage(
            format!("the arguments of `{}` are not a JSON object", display_line(tool)),
            "write them as in 'developer__shell {\"command\": \"git status\"}'",
        )),
    }
}

fn mode_of(args: &TestArgs, plan: &Plan) -> Result<ModeId, CommandError> {
    let request = ModeRequest::new(args.agent.as_deref(), args.mode.as_deref());
    Ok(request.or_profile(&Settings::of(plan.manifests())).find(plan)?)
}

fn test(
    args: &TestArgs,
    plan: Plan,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let (tool, arguments) = call_of(&args.call)?;
    let id = mode_of(args, &plan)?;
    let approval = global.approval;
    runtime::block_on(plan, global, folders, output, async |started: &CommandRuntime, output: &mut CommandOutput| {
        let broker = started.runtime.broker().with_rules(args.flags.rules());
        let session = Arc::clone(&started.session);
        let terms = BindRequest { session, approval, asker: Arc::new(NoAsker), client_services: Vec::new() };
        let binding = broker.bind(&id, terms).await.map_err(|error| runtime::bind_failure(&error))?;
        let verdict = binding.simulate_call(tool, &arguments).map_err(|problem| {
            CommandError::usage(
                display_line(&problem.to_string()),
                format!("`skein tools -a {} -m {}` lists the tools", id.agent, id.mode),
            )
        })?;
        let command = CommandLine { parts: binding.allow_rules(tool, &arguments), unreadable: unreadable(&arguments) };
        let reason = binding.explain(outcome(&verdict).1);
        let idle = binding.rules_without_match();
        if args.json {
            let mut told = decision_json(tool, &id, &verdict, &command);
            told["because"] = json!(reason);
            told["idle_rules"] = json!(idle);
            output.json(&told);
        } else {
            idle.iter().for_each(|problem| output.note(&display_line(problem)));
            print_decision(&verdict, &reason, &command, output);
        }
        Ok(())
    })
}

fn outcome(verdict: &GateDecision) -> (&'static str, &DecisionReason) {
    match verdict {
        GateDecision::Run(because) => ("run", because),
        GateDecision::Ask(because) => ("ask", because),
        GateDecision::Refuse(because) => ("refuse", because),
    }
}

/// The commands in the command line of a call, each with the rule that allows it, and why it cannot be parsed.
struct CommandLine<'a> {
    parts: Vec<CommandRule<'a>>,
    unreadable: Option<&'static str>,
}

fn print_decision(verdict: &GateDecision, reason: &str, command: &CommandLine<'_>, output: &mut CommandOutput) {
    let (outcome, _) = outcome(verdict);
    output.line(&format!("{BOLD}{outcome}{BOLD:#}: {}", display_line(reason)));
    for part in &command.parts {
        let by = part.allowed_by.map_or_else(|| "no rule allows it".to_owned(), ToString::to_string);
        output.line(&format!("  {}  {QUIET}{}{QUIET:#}", display_line(&part.command), display_line(&by)));
    }
    if let Some(why) = command.unreadable {
        output.line(&format!("  {QUIET}no rule can allow it as a whole: {why}{QUIET:#}"));
    }
}

fn decision_json(tool: &str, id: &ModeId, verdict: &GateDecision, command: &CommandLine<'_>) -> Value {
    let (outcome, because) = outcome(verdict);
    let deciding: Vec<_> = match because {
        DecisionReason::Rules(rules) => rules.iter().map(rule_json).collect(),
        DecisionReason::Unsure(rule) => vec![rule_json(rule)],
        DecisionReason::Level(_)
        | DecisionReason::ReadOnly(_)
        | DecisionReason::Host { .. }
        | DecisionReason::UserNamed(_)
        | DecisionReason::Unsandboxed { .. }
        | DecisionReason::ManagedSandbox(_)
        | DecisionReason::Hook { .. }
        | DecisionReason::Protected { .. } => Vec::new(),
    };
    let part = |part: &CommandRule<'_>| {
        let by = part.allowed_by.map(rule_json);
        json!({"argument": part.argument, "command": part.command, "allowed_by": by})
    };
    json!({
        "tool": tool, "mode": id.to_string(), "outcome": outcome, "because": because.to_string(), "rules": deciding,
        "parts": command.parts.iter().map(part).collect::<Vec<_>>(), "unreadable": command.unreadable,
    })
}
