//! `skein tools`: which tools a mode sees, through which group, and why not the others.

use clap::Args;
use serde_json::{Value, json};

use super::folders::Folders;
use super::output::{BOLD, Failure, Output, QUIET, shown};
use super::{Global, agents, workspace};
use crate::graph::{Plan, RuleKind, ToolScope};
use crate::ids::{ModeId, ModeSlug, ServiceName, nearest};
use crate::manifest::{AgentEntry, ServiceEntry};

#[derive(Debug, Args)]
pub(super) struct ToolsArgs {
    /// The agent
    #[arg(long, short)]
    agent: String,
    /// Its mode; the default one if left out
    #[arg(long, short)]
    mode: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ToolsArgs, global: &Global, folders: &Folders, output: &mut Output) -> Result<(), Failure> {
    let plan = workspace::plan(global, folders, output)?;
    let agent = agents::find(&plan, &args.agent)?;
    let id = mode_of(agent, args.mode.as_deref())?;
    let Some((entry, scope)) = plan.mode(&id) else {
        return Err(Failure::usage(format!("there is no mode `{id}`"), "see `skein agents`"));
    };
    let (within, without) = sort_tools(&plan, scope);
    let undeclared = undeclared(&plan, scope);
    if args.json {
        output.json(&json!({
            "agent": id.agent,
            "mode": id.mode,
            "tool_groups": entry.mode.tool_groups,
            "tools": within,
            "out_of_scope": without,
            "undeclared": undeclared,
            "mcp": scope.lists_mcp(),
        }));
        return Ok(());
    }
    let sees = if within.is_empty() && !undeclared.is_empty() { "tools".to_owned() } else { counted(within.len()) };
    output.line(&format!("{BOLD}{id}{BOLD:#} sees {sees}"));
    for tool in &within {
        let files = tool["files"].as_array().map(|files| {
            let files: Vec<_> = files.iter().filter_map(Value::as_str).collect();
            format!(", only files matching {}", shown(&files.join(" or ")))
        });
        let planned = if tool["status"] == "planned" { ", planned" } else { "" };
        let name = shown(text(tool, "name"));
        output.line(&format!(
            "  {name:<36} {QUIET}group {}{}{planned}{QUIET:#}",
            text(tool, "group"),
            files.unwrap_or_default()
        ));
    }
    for service in &undeclared {
        output.line(&format!("  {QUIET}every tool of {service}, whose manifest names none{QUIET:#}"));
    }
    if scope.lists_mcp() {
        output.line(&format!("  {QUIET}and every tool of services that you or your editor bring (mcp){QUIET:#}"));
    }
    if !without.is_empty() {
        output.line(&format!("{BOLD}not in scope{BOLD:#}"));
    }
    for tool in &without {
        let name = shown(text(tool, "name"));
        output.line(&format!("  {name:<36} {QUIET}{}{QUIET:#}", text(tool, "reason")));
    }
    Ok(())
}

fn counted(count: usize) -> String {
    match count {
        0 => "no tools".to_owned(),
        1 => "1 tool".to_owned(),
        _ => format!("{count} tools"),
    }
}

fn text<'a>(tool: &'a Value, key: &str) -> &'a str {
    tool[key].as_str().unwrap_or_default()
}

/// The mode that was asked for, or the agent's default.
fn mode_of(agent: &AgentEntry, mode: Option<&str>) -> Result<ModeId, Failure> {
    let slugs = || agent.modes.iter().map(|entry| entry.mode.slug.as_str());
    let name = &agent.manifest.name;
    let default = agent.manifest.default_mode.as_ref().map(ModeSlug::as_str).or(slugs().next()).unwrap_or_default();
    let slug = mode.unwrap_or(default);
    if slugs().any(|known| known == slug) {
        return Ok(ModeId::new(name.clone(), ModeSlug::new(slug)));
    }
    let help = match nearest(slug, slugs()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("{name} has: {}", slugs().collect::<Vec<_>>().join(", ")),
    };
    Err(Failure::usage(format!("the agent `{name}` has no mode `{slug}`"), help))
}

/// Every declared tool of every service, on the side of the predicate where it falls.
fn sort_tools(plan: &Plan, scope: &ToolScope) -> (Vec<Value>, Vec<Value>) {
    let mut within = Vec::new();
    let mut without = Vec::new();
    for service in plan.services() {
        for tool in declared(service) {
            let name = format!("{}__{tool}", service.manifest.name);
            let mut value = json!({"name": name, "service": service.manifest.name, "tool": tool});
            match scope.admits(service, tool) {
                Ok(admission) => {
                    let files: Vec<_> = admission.files().iter().map(|files| files.as_str()).collect();
                    value["group"] = json!(admission.rules.first().map(|rule| &rule.group));
                    value["files"] = if files.is_empty() { Value::Null } else { json!(files) };
                    value["status"] = json!(service.manifest.status);
                    within.push(value);
                }
                Err(refusal) => {
                    value["reason"] = json!(refusal.to_string());
                    without.push(value);
                }
            }
        }
    }
    (within, without)
}

/// Services that the mode may use as a whole and whose manifest names no tools: what they are is known only
/// when the service runs. What `mcp` brings is told apart.
fn undeclared<'a>(plan: &'a Plan, scope: &ToolScope) -> Vec<&'a ServiceName> {
    let whole = |service: &&ServiceEntry| {
        let name = service.manifest.name.as_str();
        scope.rules().iter().any(|rule| rule.kind == RuleKind::Service && rule.group.as_str() == name)
    };
    let unnamed = plan.services().filter(whole).filter(|service| declared(service).is_empty());
    unnamed.map(|service| &service.manifest.name).collect()
}

/// The tools a service's manifest names, each once, in the order of its groups.
fn declared(service: &ServiceEntry) -> Vec<&str> {
    let mut tools: Vec<&str> = Vec::new();
    for tool in service.manifest.groups.values().flatten() {
        if !tools.contains(&tool.as_str()) {
            tools.push(tool.as_str());
        }
    }
    tools
}
