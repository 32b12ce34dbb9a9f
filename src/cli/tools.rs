//! `skein tools`: lists the tools of a mode with their groups, and why the others are excluded.

use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};

use super::folders::Folders;
use super::output::{BOLD, CommandError, CommandOutput, QUIET, display_line};
use super::runtime::{self, CommandRuntime};
use super::{Global, agents, workspace};
use crate::agents::Code;
use crate::broker::{BindRequest, Binding, MissingService};
use crate::graph::{Plan, ProcessKind, ToolScope, profile_json, profile_text};
use crate::manifest::ServiceEntry;
use crate::project::ModeRequest;
use crate::tool::ask::NoAsker;

#[derive(Debug, Args)]
pub(super) struct ToolsArgs {
    /// Choose an agent, as agent or agent/mode
    #[arg(long, short, required_unless_present = "mode")]
    agent: Option<String>,
    /// Choose a mode; default: the agent's default mode
    #[arg(long, short)]
    mode: Option<String>,
    /// Show the bytes each tool adds to a model request
    #[arg(long)]
    bytes: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(
    args: &ToolsArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let plan = workspace::plan(global, folders, output)?;
    let id = ModeRequest::new(args.agent.as_deref(), args.mode.as_deref()).find(&plan)?;
    let terms = |started: &CommandRuntime| BindRequest {
        session: Arc::clone(&started.session),
        approval: None,
        asker: Arc::new(NoAsker),
        client_services: Vec::new(),
    };
    let (json, bytes) = (args.json, args.bytes);
    runtime::block_on(
        plan,
        global,
        folders,
        output,
        async move |started: &CommandRuntime, output: &mut CommandOutput| {
            let broker = started.runtime.broker();
            let binding = broker.bind(&id, terms(started)).await.map_err(|error| runtime::bind_failure(&error))?;
            let Some((entry, scope)) = broker.plan().mode(&id) else { return Ok(()) };
            let (within, without) = sort_tools(broker.plan(), scope, &binding);
            let code = Code::of(&binding);
            let unfenced = broker.plan().agent(id.agent.as_str()).is_some_and(|agent| broker.plan().is_unfenced(agent));
            if json {
                output.json(&json!({
                    "agent": id.agent,
                    "mode": id.mode,
                    "tool_groups": entry.mode.tool_groups,
                    "tools": within,
                    "out_of_scope": without,
                    "bytes": total(&within),
                    "code_execution": code_json(&binding, code.as_ref()),
                    "absent_services": binding.missing_services().iter().map(absent_json).collect::<Vec<_>>(),
                    "mcp": scope.lists_mcp(),
                    "unfenced": unfenced,
                    "sandbox": profile_json(broker.plan().mode_sandbox(&id)),
                }));
                return Ok(());
            }
            let absent = within.iter().filter(|tool| !tool["absent"].is_null()).count();
            let further = if absent == 0 { String::new() } else { format!("; {} absent", are(absent)) };
            let cost = if bytes { format!(", {} bytes in every request", total(&within)) } else { String::new() };
            output.line(&format!("{BOLD}{id}{BOLD:#} sees {}{cost}{further}", count_label(within.len() - absent)));
            if unfenced {
                output.line(&format!("  {QUIET}{}{QUIET:#}", agents::UNFENCED));
            }
            if let Some(profile) = broker.plan().mode_sandbox(&id) {
                let sandbox = profile_text(ProcessKind::Command, Some(profile));
                output.line(&format!("  {QUIET}sandbox: {}{QUIET:#}", display_line(&sandbox)));
            }
            if let Some(code) = &code {
                let cost = code.request_bytes();
                let instead =
                    format!("a model calls them from code: 3 functions, {cost} bytes in every request instead");
                output.line(&format!("  {QUIET}{instead}{QUIET:#}"));
            }
            for tool in &within {
                print_admitted(tool, bytes, output);
            }
            binding.missing_service_notices().for_each(|notice| output.note(&display_line(&notice)));
            if scope.lists_mcp() {
                output.line(&format!("  {QUIET}and every tool of servers that an editor brings (mcp){QUIET:#}"));
            }
            if !without.is_empty() {
                output.line(&format!("{BOLD}not in scope{BOLD:#}"));
            }
            for (name, reason) in summary_rows(broker.plan(), scope, &without) {
                print_row(&name, &reason, output);
            }
            Ok(())
        },
    )
}

/// Returns one row per tool of a bound service, and one row for all tools of an unbound service.
fn summary_rows(plan: &Plan, scope: &ToolScope, without: &[Value]) -> Vec<(String, String)> {
    let bound = |tool: &Value| plan.service(text(tool, "service")).is_some_and(|service| scope.binds(service));
    let mut rows = Vec::new();
    for of_one in without.chunk_by(|a, b| a["service"] == b["service"]) {
        let (single, together): (Vec<_>, Vec<_>) = of_one.iter().partition(|tool| bound(tool));
        rows.extend(single.into_iter().map(|tool| (text(tool, "name").to_owned(), text(tool, "reason").to_owned())));
        if let Some(first) = together.first() {
            let name = format!("{} ({})", text(first, "service"), count_label(together.len()));
            rows.push((name, text(first, "reason").to_owned()));
        }
    }
    rows
}

/// Prints a name and its description in columns, with at least two spaces between them.
fn print_row(name: &str, about: &str, output: &mut CommandOutput) {
    output.line(&format!("  {:<35}  {QUIET}{}{QUIET:#}", display_line(name), display_line(about)));
}

fn absent_json(absent: &MissingService) -> Value {
    json!({"service": absent.service, "optional": absent.optional, "reason": absent.reason})
}

fn code_json(binding: &Binding, code: Option<&Code>) -> Value {
    json!({
        "setting": binding.code_execution(),
        "active": code.is_some(),
        "functions": code.map(|code| code.names().collect::<Vec<_>>()),
        "bytes": code.map(Code::request_bytes),
    })
}

/// Returns the bytes that all tools add to a request.
fn total(tools: &[Value]) -> u64 {
    tools.iter().filter_map(|tool| tool["bytes"].as_u64()).sum()
}

fn print_admitted(tool: &Value, bytes: bool, output: &mut CommandOutput) {
    let files = tool["files"].as_array().map(|files| {
        let files: Vec<_> = files.iter().filter_map(Value::as_str).collect();
        format!(", only files matching {}", files.join(" or "))
    });
    let absent = tool["absent"].as_str().map(|reason| format!(", absent: {reason}")).unwrap_or_default();
    let cost = tool["bytes"].as_u64().filter(|_| bytes).map(|bytes| format!("{bytes:>5} bytes, ")).unwrap_or_default();
    let about = format!("{cost}group {}{}{absent}", text(tool, "group"), files.unwrap_or_default());
    print_row(text(tool, "name"), &about, output);
}

fn count_label(count: usize) -> String {
    match count {
        0 => "no tools".to_owned(),
        1 => "1 tool".to_owned(),
        _ => format!("{count} tools"),
    }
}

fn are(count: usize) -> String {
    if count == 1 { "1 is".to_owned() } else { format!("{count} are") }
}

fn text<'a>(tool: &'a Value, key: &str) -> &'a str {
    tool[key].as_str().unwrap_or_default()
}

/// Splits the tools into those in scope and those excluded. Bound services list their tools; for others, the manifest
/// declares them.
fn sort_tools(plan: &Plan, scope: &ToolScope, binding: &Binding) -> (Vec<Value>, Vec<Value>) {
    let row = |name: &str, service: &dyn std::fmt::Display, tool: &str| json!({"name": name, "service": service.to_string(), "tool": tool});
    let patterns = |files: Vec<&str>| if files.is_empty() { Value::Null } else { json!(files) };
    let mut within = Vec::new();
    let mut without = Vec::new();
    for (name, tool) in binding.tools() {
        let mut value = row(name, &tool.service, tool.spec.name.as_str());
        value["group"] = json!(tool.group);
        value["files"] = patterns(tool.files.iter().map(|files| files.as_str()).collect());
        value["read_only"] = json!(tool.read_only);
        value["bytes"] = json!(tool.request_bytes(name));
        value["absent"] = Value::Null;
        within.push(value);
    }
    for unoffered in binding.exclusions() {
        let tool = unoffered.tool.as_str();
        let mut value = row(&format!("{}__{tool}", unoffered.service), &unoffered.service, tool);
        value["reason"] = json!(unoffered.reason);
        without.push(value);
    }
    for service in plan.services() {
        let absent = binding.missing_services().iter().find(|absent| absent.service == service.manifest.name);
        let running = scope.binds(service) && absent.is_none();
        let listed = |tool: &str| {
            let same = |row: &Value| row["service"] == json!(service.manifest.name) && row["tool"] == tool;
            within.iter().chain(&without).any(same)
        };
        let unlisted: Vec<_> = tool_names(service).into_iter().filter(|tool| !running || !listed(tool)).collect();
        for tool in unlisted {
            let mut value = row(&format!("{}__{tool}", service.manifest.name), &service.manifest.name, tool);
            match scope.admits(service, tool) {
                Ok(admission) => {
                    value["group"] = json!(admission.rules.first().map(|rule| &rule.group));
                    value["files"] = patterns(admission.files().iter().map(|files| files.as_str()).collect());
                    value["read_only"] = Value::Null;
                    value["bytes"] = Value::Null;
                    let reason = absent.map_or("the service does not offer it", |absent| absent.reason.as_str());
                    value["absent"] = json!(reason);
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

/// Returns the tools that a service's manifest names, without duplicates, in the order of its groups.
fn tool_names(service: &ServiceEntry) -> Vec<&str> {
    let mut tools: Vec<&str> = Vec::new();
    for tool in service.manifest.groups.values().flatten() {
        if !tools.contains(&tool.as_str()) {
            tools.push(tool.as_str());
        }
    }
    tools
}
