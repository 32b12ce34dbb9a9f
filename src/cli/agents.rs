//! `skein agents`: lists agents, the tools and services of their modes, and the files that define them. Adds the example
//! agents.

mod add;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::folders::Folders;
use super::output::{BOLD, CommandError, CommandOutput, QUIET, display_line};
use super::{Global, runtime, workspace};
use crate::graph::{Plan, ProcessKind, profile_json, profile_text};
use crate::ids::{AgentName, ModeId};
use crate::manifest::{
    AgentEntry, AgentProgram, AgentRuntime, Dependency, DependencyKind, GroupEntry, HttpTransport, ModeEntry,
    StdioTransport, TaskWorkspace, Transport,
};
use crate::project::find_agent;
use crate::runtime::reports;
use crate::services::literal_secrets;

#[derive(Debug, Args)]
pub(super) struct AgentsArgs {
    #[command(subcommand)]
    command: Option<AgentsCommand>,
    /// Print the result as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum AgentsCommand {
    /// Show one agent: its modes, services and file
    ///
    /// Lists the services of each mode in start order.
    Show { name: String },
    /// Add an external agent whose manifest ships with Skein
    ///
    /// Checks that its program is installed, writes the manifest to your settings, and shows its sandbox and the first
    /// login.
    Add(add::AddAgentArgs),
}

pub(super) fn run(
    args: &AgentsArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    if let Some(AgentsCommand::Add(add)) = &args.command {
        return add::run(add, args.json, global, folders, output);
    }
    let plan = workspace::plan(global, folders, output)?;
    let running = RunningAgents::query(folders);
    match &args.command {
        None if args.json => {
            let agents: Vec<_> = plan.agents().map(|agent| agent_json(&plan, agent, &running)).collect();
            output.json(&Value::Array(agents));
        }
        None => {
            for agent in plan.agents() {
                list(&plan, agent, output);
            }
        }
        Some(AgentsCommand::Show { name }) => {
            let agent = find_agent(&plan, name)?;
            if args.json {
                let mut value = agent_json(&plan, agent, &running);
                value["manifest"] = json!(agent.manifest);
                output.json(&value);
            } else {
                show(&plan, agent, &running, output);
            }
        }
        Some(AgentsCommand::Add(_)) => {}
    }
    Ok(())
}

/// Processes of external agents that run in any Skein process, or have died there.
struct RunningAgents(Vec<Value>);

impl RunningAgents {
    fn query(folders: &Folders) -> Self {
        Self(reports(&runtime::sockets(folders)).into_iter().flat_map(|report| report.agents).collect())
    }

    fn of<'a>(&'a self, agent: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |program| program["name"] == agent)
    }
}

/// Explains the label `unfenced` of external agents without a sandbox.
pub(super) const UNFENCED: &str =
    "unfenced: what it asks of Skein is held by its mode; what its process does by itself is not";

/// The same about an agent on another machine.
const REMOTE: &str = "unfenced: what it asks of Skein is held by its mode; what it does on its own machine is not";

fn list(plan: &Plan, agent: &AgentEntry, output: &mut CommandOutput) {
    let manifest = &agent.manifest;
    let label = if plan.is_unfenced(agent) { " (unfenced)" } else { "" };
    output.line(&format!("{BOLD}{}{BOLD:#}{label}  {}", manifest.name, display_line(&manifest.description)));
    for entry in plan.modes_of(agent) {
        let internal = if entry.mode.internal { " (internal)" } else { "" };
        output.line(&format!("  {:<14} {}{internal}", entry.mode.slug.as_str(), display_line(&entry.mode.description)));
        output.line(&format!("  {:<14} {QUIET}tools: {}{QUIET:#}", "", groups(entry)));
    }
}

fn show(plan: &Plan, agent: &AgentEntry, running: &RunningAgents, output: &mut CommandOutput) {
    let manifest = &agent.manifest;
    let title = display_line(manifest.title.as_deref().unwrap_or_default());
    output.line(format!("{BOLD}{}{BOLD:#}  {title}", manifest.name).trim_end());
    output.line(&display_line(&manifest.description));
    output.line(&format!("from: {} ({})", display_line(&agent.source.file), agent.layer));
    for file in &agent.overrides {
        output.line(&format!("overrides: {}", display_line(file)));
    }
    if let Some(AgentRuntime::A2a(a2a)) = &manifest.runtime {
        let transport = HttpTransport { url: a2a.url.clone(), headers: a2a.headers.clone() };
        let url = literal_secrets(&Transport::Http(transport)).hide(&a2a.url);
        output.line(&format!("connects to: {} (A2A)", display_line(&url)));
        output.line(REMOTE);
    }
    if let Some(AgentRuntime::Acp(acp)) = &manifest.runtime {
        let AgentProgram { command, args, env } = acp.program();
        let line = [std::slice::from_ref(&command), args.as_slice()].concat().join(" ");
        let transport = StdioTransport { command, args, env, cwd: None };
        let line = literal_secrets(&Transport::Stdio(transport)).hide(&line);
        output.line(&format!("runs: {}", display_line(&line)));
        if plan.is_unfenced(agent) {
            output.line(UNFENCED);
        }
        let sandbox = profile_text(ProcessKind::ExternalAgent, plan.agent_sandbox(&manifest.name));
        output.line(&format!("sandbox: {}", display_line(&sandbox)));
        for program in running.of(manifest.name.as_str()) {
            let text = |key: &str| program[key].as_str().map(display_line).unwrap_or_default();
            let pid = program["pid"].as_u64().map(|pid| format!(", pid {pid}")).unwrap_or_default();
            let last =
                program["last_error"].as_str().map(|last| format!(": {}", display_line(last))).unwrap_or_default();
            output.line(&format!("now: {}{pid}{last}", text("health")));
        }
    }
    let delegates = plan.delegates(&manifest.name);
    if !delegates.is_empty() {
        let name = |mode: &ModeId| match plan.manifests().task_workspace(&manifest.name, mode) {
            TaskWorkspace::Shared => mode.to_string(),
            TaskWorkspace::Worktree => format!("{mode} (worktree)"),
        };
        let names: Vec<_> = delegates.iter().map(name).collect();
        output.line(&format!("delegates to: {}", names.join(", ")));
    }
    for entry in plan.modes_of(agent) {
        let mode = &entry.mode;
        let default = if default_mode(agent) == mode.slug.as_str() { " (default)" } else { "" };
        let internal = if mode.internal { " (internal: never offered to a user)" } else { "" };
        output.line(&format!("\n{BOLD}{}/{}{BOLD:#}{default}{internal}", manifest.name, mode.slug));
        output.line(&format!("  {}", display_line(&mode.description)));
        if let Some(when) = &mode.when_to_use {
            output.line(&format!("  when: {}", display_line(when)));
        }
        output.line(&format!("  tools: {}", groups(entry)));
        let levels = levels(plan, &manifest.name, entry);
        output.line(&format!(
            "  services: {}",
            if levels.is_empty() { "none".to_owned() } else { levels.join(", then ") }
        ));
        let id = ModeId::new(manifest.name.clone(), mode.slug.clone());
        let sandbox = profile_text(ProcessKind::Command, plan.mode_sandbox(&id));
        output.line(&format!("  sandbox: {}", display_line(&sandbox)));
        if let Some(prompt) = &entry.prompt {
            output.line(&format!("  prompt: {} ({} bytes)", display_line(&prompt.file), prompt.text.len()));
        }
        if entry.source.file != agent.source.file {
            output.line(&format!("  from: {}", display_line(&entry.source.file)));
        }
    }
}

fn levels(plan: &Plan, agent: &AgentName, entry: &ModeEntry) -> Vec<String> {
    let id = ModeId::new(agent.clone(), entry.mode.slug.clone());
    let level = |needs: Vec<crate::graph::RequiredService>| {
        let names: Vec<_> = needs
            .into_iter()
            .map(|need| if need.optional { format!("{} (optional)", need.service) } else { need.service.to_string() })
            .collect();
        names.join(" + ")
    };
    plan.start_levels(&id).into_iter().map(level).collect()
}

fn groups(entry: &ModeEntry) -> String {
    let groups: Vec<_> = entry
        .mode
        .tool_groups
        .iter()
        .map(|group| match group {
            GroupEntry::Name(name) => name.to_string(),
            GroupEntry::Files(narrowed) => format!("{} ({})", narrowed.group, display_line(&narrowed.files)),
        })
        .collect();
    if groups.is_empty() { "none".to_owned() } else { groups.join(", ") }
}

fn default_mode(agent: &AgentEntry) -> String {
    agent.default_mode().map(|mode| mode.mode.to_string()).unwrap_or_default()
}

fn agent_json(plan: &Plan, agent: &AgentEntry, running: &RunningAgents) -> Value {
    let manifest = &agent.manifest;
    let modes: Vec<_> = plan
        .modes_of(agent)
        .map(|entry| {
            let mode = &entry.mode;
            let id = ModeId::new(manifest.name.clone(), mode.slug.clone());
            let levels: Vec<Vec<_>> = plan
                .start_levels(&id)
                .into_iter()
                .map(|level| {
                    level.into_iter().map(|need| json!({"service": need.service, "optional": need.optional})).collect()
                })
                .collect();
            json!({
                "id": id,
                "slug": mode.slug,
                "name": mode.name.as_deref().unwrap_or(mode.slug.as_str()),
                "description": mode.description,
                "when_to_use": mode.when_to_use,
                "tool_groups": mode.tool_groups,
                "dependencies": mode.dependencies.iter().map(dependency_json).collect::<Vec<_>>(),
                "internal": mode.internal,
                "approval": mode.approval,
                "code_execution": mode.code_execution,
                "start_levels": levels,
                "sandbox": profile_json(plan.mode_sandbox(&id)),
                "prompt": entry.prompt.as_ref().map(|prompt| &prompt.file),
            })
        })
        .collect();
    let delegates = plan.delegates(&manifest.name);
    let workspace = |mode: &ModeId| json!(plan.manifests().task_workspace(&manifest.name, mode));
    let workspaces: Map<_, _> = delegates.iter().map(|mode| (mode.to_string(), workspace(mode))).collect();
    json!({
        "name": manifest.name,
        "title": manifest.title.as_deref().unwrap_or(manifest.name.as_str()),
        "description": manifest.description,
        "default_mode": default_mode(agent),
        "delegates": delegates,
        "workspaces": workspaces,
        "external": manifest.runtime.is_some(),
        "unfenced": plan.is_unfenced(agent),
        "sandbox": profile_json(plan.agent_sandbox(&manifest.name)),
        "running": running.of(manifest.name.as_str()).collect::<Vec<_>>(),
        "layer": agent.layer,
        "file": agent.source.file,
        "overrides": agent.overrides,
        "modes": modes,
    })
}

/// Writes a required tool dependency as its name alone, even if the manifest has the long form.
fn dependency_json(dependency: &Dependency) -> Value {
    let plain = dependency.kind() == DependencyKind::Tool && !dependency.optional();
    if plain { json!(dependency.name()) } else { json!(dependency) }
}
