//! `skein services`: lists services, the modes that depend on them, and their state in every running skein. Adds,
//! removes, enables and disables services, logs in to them, and prints their logs.

mod add;
mod change;
mod login;
pub(super) mod logs;

use std::collections::BTreeMap;
use std::time::SystemTime;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::folders::Folders;
use super::output::{BOLD, CommandError, CommandOutput, QUIET, display_line};
use super::runtime::{self, CommandRuntime};
use super::{Global, workspace};
use crate::graph::{EdgeKind, Node, Plan, ProcessKind, profile_json, profile_text};
use crate::ids::{ServiceName, nearest};
use crate::manifest::{DisableSource, Manifests, Readiness, ServiceEntry, Transport};
use crate::runtime::StatusReport;
use crate::services::literal_secrets;
use crate::tool::ServiceError;
use change::ServiceSwitch;
use login::LoginStates;

#[derive(Debug, Args)]
pub(super) struct ServicesArgs {
    #[command(subcommand)]
    command: Option<ServicesCommand>,
    /// Start this service, and show its state and tools
    #[arg(long, value_name = "NAME")]
    probe: Option<String>,
    /// Print the result as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum ServicesCommand {
    /// Add an MCP server: a program after --, or a --url
    ///
    /// Shows what will run and asks. Then starts the service once, lists its tools, suggests tool groups and a sandbox,
    /// and writes a manifest. Writes nothing if the service does not start.
    Add(add::AddArgs),
    /// Delete the manifest of a service that you added
    Remove(change::RemoveArgs),
    /// Turn on a service that your config turned off
    Enable(change::ChangeArgs),
    /// Turn off a service in all sessions, in your config
    Disable(change::ChangeArgs),
    /// Log in to an HTTP service with your browser
    ///
    /// Finds the authorization server of the service, registers Skein there, and opens its page. Stores the tokens in
    /// your keyring, or else in a file that only you can read.
    Login(login::LoginArgs),
    /// Forget the login at an HTTP service, and revoke it
    Logout(login::LogoutArgs),
    /// Show what the process of a service wrote to stderr
    Logs(logs::LogsArgs),
}

pub(super) fn run(
    args: &ServicesArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    match &args.command {
        Some(ServicesCommand::Add(add)) => return add::run(add, args.json, global, folders, output),
        Some(ServicesCommand::Remove(remove)) => return change::remove(remove, args.json, global, folders, output),
        Some(ServicesCommand::Enable(change)) => {
            return change::switch(change, ServiceSwitch::Enable, args.json, global, folders, output);
        }
        Some(ServicesCommand::Disable(change)) => {
            return change::switch(change, ServiceSwitch::Disable, args.json, global, folders, output);
        }
        Some(ServicesCommand::Login(login)) => return login::login(login, args.json, global, folders, output),
        Some(ServicesCommand::Logout(logout)) => return login::logout(logout, args.json, folders, output),
        Some(ServicesCommand::Logs(logs)) => return logs::run(logs, args.json, global, folders, output),
        None => {}
    }
    let plan = workspace::plan(global, folders, output)?;
    if let Some(name) = &args.probe {
        return probe(plan, name, args.json, global, folders, output);
    }
    let reports = crate::runtime::reports(&runtime::sockets(folders));
    let logins = LoginStates::new(folders);
    if args.json {
        let mut services: Vec<_> = Vec::new();
        for service in plan.services() {
            let mut value = service_json(&plan, service, &reports);
            if let Transport::Http(_) = service.manifest.transport {
                value["login"] = logins.json(service);
            }
            services.push(value);
        }
        services.extend(
            elsewhere(&plan, &reports)
                .into_iter()
                .map(|(name, running)| json!({"name": name, "status": "elsewhere", "running": running})),
        );
        output.json(&Value::Array(services));
        return Ok(());
    }
    for service in plan.services() {
        let manifest = &service.manifest;
        let planned = if manifest.status == Readiness::Planned { " (planned)" } else { "" };
        let off = if service.enabled { "" } else { " (off)" };
        output.line(&format!("{BOLD}{}{BOLD:#}{planned}{off}  {}", manifest.name, display_line(&manifest.description)));
        if let Some(reason) = &service.disabled_by {
            output.line(&format!("  {QUIET}{}{QUIET:#}", display_line(&reason.to_string())));
        }
        for (group, tools) in &manifest.groups {
            let tools: Vec<_> = tools.iter().map(|tool| display_line(tool.as_str())).collect();
            output.line(&format!("  {:<12} {}", group.as_str(), tools.join(", ")));
        }
        let asked = dependents(&plan, service);
        let asked = if asked.is_empty() { "nobody".to_owned() } else { asked.join(", ") };
        output.line(&format!("  {QUIET}asked for by: {asked}{QUIET:#}"));
        output.line(&format!(
            "  {QUIET}from: {} ({}), {}{QUIET:#}",
            display_line(&service.source.file),
            service.layer,
            display_line(&transport(manifest))
        ));
        if let Transport::Stdio(_) = manifest.transport {
            let sandbox = profile_text(ProcessKind::Service, plan.service_sandbox(&manifest.name));
            output.line(&format!("  {QUIET}sandbox: {}{QUIET:#}", display_line(&sandbox)));
        }
        if let Some(login) = logins.text(service) {
            output.line(&format!("  {QUIET}login: {}{QUIET:#}", display_line(&login)));
        }
        for running in running(manifest.name.as_str(), &reports) {
            output.line(&format!("  {}", state(&running)));
        }
    }
    for (name, running) in elsewhere(&plan, &reports) {
        output.line(&format!("{BOLD}{}{BOLD:#}  {QUIET}of another project{QUIET:#}", display_line(&name)));
        for running in running {
            output.line(&format!("  {}", state(&running)));
        }
    }
    Ok(())
}

/// Returns the state of the service in every skein process that runs it.
fn running(name: &str, reports: &[StatusReport]) -> Vec<Value> {
    let mut found = Vec::new();
    for report in reports {
        for status in report.services.iter().filter(|status| status["name"] == name) {
            let mut status = status.clone();
            status["skein"] = json!(report.pid);
            found.push(status);
        }
    }
    found
}

/// Returns services that run in a skein process but have no manifest here.
fn elsewhere(plan: &Plan, reports: &[StatusReport]) -> BTreeMap<String, Vec<Value>> {
    let names = reports.iter().flat_map(|report| &report.services).filter_map(|status| status["name"].as_str());
    let unknown = names.filter(|name| plan.service(name).is_none());
    unknown.map(|name| (name.to_owned(), running(name, reports))).collect()
}

pub(super) fn state(status: &Value) -> String {
    let mut text = display_line(status["health"].as_str().unwrap_or_default());
    if !status["skein"].is_null() {
        text.push_str(&format!(" in skein {}", status["skein"]));
    }
    let mut add = |key: &str, label: &str| {
        if !status[key].is_null() {
            text.push_str(&format!(", {label} {}", status[key]));
        }
    };
    add("leases", "leases");
    add("restarts", "restarts");
    add("tools", "tools");
    add("pid", "process");
    if let Some(bytes) = status["memory_bytes"].as_u64() {
        text.push_str(&format!(", {} MiB", bytes / (1024 * 1024)));
    }
    if let Some(since) = status["started_at"].as_u64() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(since, |now| now.as_secs());
        text.push_str(&format!(", up {} s", now.saturating_sub(since)));
    }
    if let Some(error) = status["last_error"].as_str() {
        text.push_str(&format!(", last error: {}", display_line(error)));
    }
    text
}

/// Starts one service, prints its state, and stops it.
fn probe(
    plan: Plan,
    name: &str,
    json: bool,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let entry = find(&plan, name)?.clone();
    if entry.manifest.status == Readiness::Planned {
        return Err(CommandError::usage(
            format!("the service `{name}` is planned: there is nothing to start"),
            "see `skein services`",
        ));
    }
    runtime::block_on(
        plan,
        global,
        folders,
        output,
        async move |started: &CommandRuntime, output: &mut CommandOutput| {
            let lease = started.runtime.broker().lease_service(&entry, &started.session);
            let manifest = &entry.manifest;
            let catalog = lease.service().catalog().await;
            let catalog = catalog.map_err(|error| probe_failure(&entry, &error, folders))?;
            let mut status = json!(lease.service().status());
            status["name"] = json!(manifest.name);
            let tools: Vec<_> = catalog.tools.iter().map(|tool| tool.name.as_str()).collect();
            if json {
                status["tool_names"] = json!(tools);
                output.json(&status);
            } else {
                // Leases and start time carry no information here.
                status["leases"] = Value::Null;
                status["started_at"] = Value::Null;
                output.line(&format!("{BOLD}{}{BOLD:#}  {}", manifest.name, state(&status)));
                output.line(&format!("  tools: {}", display_line(&tools.join(", "))));
            }
            Ok(())
        },
    )
}

/// Returns the error of a service that does not start, with the next step.
fn probe_failure(entry: &ServiceEntry, error: &ServiceError, folders: &Folders) -> CommandError {
    let log = folders.state.join("log/skein.log");
    let manifest_file = display_line(&entry.source.file);
    let help = match &entry.manifest.transport {
        Transport::Stdio(_) => {
            format!("correct `transport` in {manifest_file}; what it wrote to stderr is in {}", log.display())
        }
        Transport::Http(http) => {
            let url = literal_secrets(&entry.manifest.transport).hide(&http.url);
            format!("check that a server answers at {}, or correct {manifest_file}", display_line(&url))
        }
        Transport::Builtin(_) => format!("see {}", log.display()),
    };
    CommandError::work(display_line(&error.to_string()), help)
}

/// Returns the service `name`. The error suggests the nearest name.
pub(super) fn find<'a>(plan: &'a Plan, name: &str) -> Result<&'a ServiceEntry, CommandError> {
    plan.service(name).ok_or_else(|| name_error(name, plan.manifests()))
}

/// Returns the error for a name that no manifest defines. It suggests the nearest name.
fn name_error(name: &str, manifests: &Manifests) -> CommandError {
    let names = || manifests.services.keys().map(ServiceName::as_str);
    let help = match nearest(name, names()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are: {}", names().collect::<Vec<_>>().join(", ")),
    };
    CommandError::usage(format!("there is no service `{name}`"), help)
}

/// Returns the modes that list the service, the modes that get it through `mcp`, and the services that require it.
fn dependents(plan: &Plan, service: &ServiceEntry) -> Vec<String> {
    let mut names: Vec<_> = plan
        .graph()
        .to(&Node::Service(service.manifest.name.clone()))
        .map(|(edge, node)| match edge.kind {
            EdgeKind::Needs { optional: true } => format!("{node} (optional)"),
            _ => node.to_string(),
        })
        .collect();
    if service.user_installed() && service.enabled {
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

/// Returns how the service is reached, without the secrets that are written in its manifest.
fn transport(manifest: &crate::manifest::ServiceManifest) -> String {
    let text = match &manifest.transport {
        Transport::Builtin(_) => "in process".to_owned(),
        Transport::Stdio(stdio) => format!("runs {} {}", stdio.command, stdio.args.join(" ")).trim_end().to_owned(),
        Transport::Http(http) => format!("at {}", http.url),
    };
    literal_secrets(&manifest.transport).hide(&text)
}

fn service_json(plan: &Plan, service: &ServiceEntry, reports: &[StatusReport]) -> Value {
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
        "enabled": service.enabled,
        "left_out_by": plan.manifests().leaving_profile(service),
        "disabled_by": match &service.disabled_by {
            Some(DisableSource::Config(file)) => Some(file.clone()),
            Some(DisableSource::Managed(exclusion)) => Some(exclusion.setting.location()),
            Some(DisableSource::Profile(_)) | None => None,
        },
        "scope": manifest.sharing(),
        "transport": kind,
        "sandbox": profile_json(plan.service_sandbox(&manifest.name)),
        "owner": manifest.owner,
        "groups": manifest.groups,
        "requires": requires,
        "asked_by": dependents(plan, service),
        "timeouts": manifest.timeouts,
        "restart": manifest.restart,
        "layer": service.layer,
        "file": service.source.file,
        "overrides": service.overrides,
        "running": running(manifest.name.as_str(), reports),
    })
}
