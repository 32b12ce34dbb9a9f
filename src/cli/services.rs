//! `skein services`: what there is to ask for, and who asks for it.

use clap::Args;
use serde_json::{Value, json};

use super::folders::Folders;
use super::output::{BOLD, Failure, Output, QUIET, shown};
use super::{Global, workspace};
use crate::graph::{EdgeKind, Node, Plan};
use crate::manifest::{ServiceEntry, Status, Transport};

#[derive(Debug, Args)]
pub(super) struct ServicesArgs {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ServicesArgs, global: &Global, folders: &Folders, output: &mut Output) -> Result<(), Failure> {
    let plan = workspace::plan(global, folders, output)?;
    if args.json {
        let services: Vec<_> = plan.services().map(|service| service_json(&plan, service)).collect();
        output.json(&Value::Array(services));
        return Ok(());
    }
    for service in plan.services() {
        let manifest = &service.manifest;
        let planned = if manifest.status == Status::Planned { " (planned)" } else { "" };
        output.line(&format!("{BOLD}{}{BOLD:#}{planned}  {}", manifest.name, shown(&manifest.description)));
        for (group, tools) in &manifest.groups {
            let tools: Vec<_> = tools.iter().map(|tool| shown(tool.as_str())).collect();
            output.line(&format!("  {:<12} {}", group.as_str(), tools.join(", ")));
        }
        let asked = asked_by(&plan, service);
        let asked = if asked.is_empty() { "nobody".to_owned() } else { asked.join(", ") };
        output.line(&format!("  {QUIET}asked for by: {asked}{QUIET:#}"));
        output.line(&format!(
            "  {QUIET}from: {} ({}), {}{QUIET:#}",
            shown(&service.source.file),
            service.layer,
            shown(&transport(manifest))
        ));
    }
    Ok(())
}

/// Modes that list it, modes that get it through `mcp`, and services that require it.
fn asked_by(plan: &Plan, service: &ServiceEntry) -> Vec<String> {
    let mut names: Vec<_> = plan
        .graph()
        .to(&Node::Service(service.manifest.name.clone()))
        .map(|(edge, node)| match edge.kind {
            EdgeKind::Needs { optional: true } => format!("{node} (optional)"),
            _ => node.to_string(),
        })
        .collect();
    if service.user_installed() {
        for agent in plan.agents() {
            for entry in &agent.modes {
                let id = crate::ids::ModeId::new(agent.manifest.name.clone(), entry.mode.slug.clone());
                if plan.mode(&id).is_some_and(|(_, scope)| scope.lists_mcp()) {
                    names.push(format!("{id} (mcp)"));
                }
            }
        }
    }
    names
}

fn transport(manifest: &crate::manifest::ServiceManifest) -> String {
    match &manifest.transport {
        Transport::Builtin(_) => "in process".to_owned(),
        Transport::Stdio(stdio) => format!("runs {} {}", stdio.command, stdio.args.join(" ")).trim_end().to_owned(),
        Transport::Http(http) => format!("at {}", http.url),
    }
}

fn service_json(plan: &Plan, service: &ServiceEntry) -> Value {
    let manifest = &service.manifest;
    let kind = match manifest.transport {
        Transport::Builtin(_) => "builtin",
        Transport::Stdio(_) => "stdio",
        Transport::Http(_) => "http",
    };
    let requires: serde_json::Map<String, Value> =
        manifest.requires.roles().into_iter().map(|(role, service)| (role.to_string(), json!(service))).collect();
    json!({
        "name": manifest.name,
        "title": manifest.title.as_deref().unwrap_or(manifest.name.as_str()),
        "description": manifest.description.trim(),
        "status": manifest.status,
        "scope": manifest.scope,
        "transport": kind,
        "owner": manifest.owner,
        "groups": manifest.groups,
        "requires": requires,
        "asked_by": asked_by(plan, service),
        "timeouts": manifest.timeouts,
        "restart": manifest.restart,
        "layer": service.layer,
        "file": service.source.file,
        "overrides": service.overrides,
    })
}
