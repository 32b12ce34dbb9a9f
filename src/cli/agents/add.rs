//! `skein agents add`: writes the example manifest of an external agent to the user's settings.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::json;

use super::super::environment::find_in_path;
use super::super::folders::Folders;
use super::super::output::{CommandError, CommandOutput, display_line};
use super::super::whole_file::{create, replace};
use super::super::{Global, workspace};
use super::UNFENCED;
use crate::graph::{Plan, ProcessKind, profile_json, profile_text};
use crate::manifest::{AcpRuntime, AgentEntry, AgentProgram, AgentRuntime, ExampleAgent, Layer};

#[derive(Debug, Args)]
pub(super) struct AddAgentArgs {
    /// The agent to add
    #[arg(value_name = "AGENT", value_parser = PossibleValuesParser::new(ExampleAgent::names()))]
    agent: String,
    /// Replace a manifest of the same name
    #[arg(long)]
    replace: bool,
    /// Write the manifest although the program is not installed
    #[arg(long)]
    no_probe: bool,
}

pub(super) fn run(
    args: &AddAgentArgs,
    json: bool,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let example = ExampleAgent::find(&args.agent).ok_or_else(|| {
        let names: Vec<_> = ExampleAgent::names().collect();
        let problem = format!("there is no example of the agent `{}`", display_line(&args.agent));
        CommandError::usage(problem, format!("there are: {}", names.join(", ")))
    })?;
    let text = example.manifest_text();
    let inside = format!("agents/{}.yaml", example.name);
    let plan = workspace::plan_with(global, folders, output, (inside.as_str(), text.to_owned()))?;
    let entry = example_entry(&plan, &inside)?;
    let name = entry.manifest.name.as_str();
    let file = folders.config.join("agents").join(format!("{name}.yaml"));
    let shown = folders.display_path(&file);
    check_free(name, &file, args, global, folders)?;
    let Some(AgentRuntime::Acp(acp)) = &entry.manifest.runtime else {
        return Err(CommandError::work(format!("the example `{name}` starts no program"), "report this as a bug"));
    };
    let AgentProgram { command, args: arguments, .. } = acp.program();
    let program = find_in_path(&command);
    if program.is_none() && !args.no_probe {
        return Err(missing_program(&command, acp));
    }
    let permissions = Permissions::from_mode(0o600);
    let written = if file.exists() { replace(&file, text, permissions) } else { create(&file, text, 0o600) };
    written.map_err(|error| {
        CommandError::work(format!("{} cannot be written: {error}", file.display()), "check the folder's permissions")
    })?;
    let sandbox = plan.agent_sandbox(&entry.manifest.name);
    let starts = [std::slice::from_ref(&command), arguments.as_slice()].concat().join(" ");
    if json {
        output.json(&json!({
            "agent": name, "file": shown, "starts": starts, "program": program, "sandbox": profile_json(sandbox),
            "login": example.login,
        }));
        return Ok(());
    }
    output.line(&format!("wrote {shown}"));
    output.line(&format!("runs: {}", display_line(&starts)));
    output.line(&format!("sandbox: {}", display_line(&profile_text(ProcessKind::ExternalAgent, sandbox))));
    if plan.is_unfenced(entry) {
        output.line(UNFENCED);
    }
    if program.is_none() {
        output.note(&format!("`{command}` is not on the PATH: {}", acp.missing_help()));
    }
    output.line(&format!("first: {}", example.login));
    output.line(&format!("then: skein run -a {name} \"why does this test fail?\""));
    Ok(())
}

/// Returns the agent of the manifest that was added to the plan.
fn example_entry<'a>(plan: &'a Plan, file: &str) -> Result<&'a AgentEntry, CommandError> {
    let is_added = |agent: &&AgentEntry| agent.layer == Layer::Extra && agent.source.file == file;
    plan.agents().find(is_added).ok_or_else(|| {
        // `--manifests` may override the example.
        CommandError::usage("a manifest of --manifests has the name of this agent", "leave --manifests out")
    })
}

/// Fails if the user already has an agent of this name.
fn check_free(
    name: &str,
    file: &Path,
    args: &AddAgentArgs,
    global: &Global,
    folders: &Folders,
) -> Result<(), CommandError> {
    let known = workspace::manifests_quietly(global, folders)?;
    let shown = folders.display_path(file);
    let entry = known.agents.get(name).filter(|entry| entry.layer != Layer::Builtin);
    if let Some(entry) = entry.filter(|entry| entry.layer == Layer::User && entry.source.file != shown) {
        let problem = format!("the agent `{name}` is defined in {}", display_line(&entry.source.file));
        return Err(CommandError::usage(problem, "remove it there first"));
    }
    if (file.exists() || entry.is_some()) && !args.replace {
        let place = entry.map_or(shown, |entry| display_line(&entry.source.file));
        let problem = format!("there is an agent `{name}` already, in {place}");
        return Err(CommandError::usage(problem, "pass --replace to write it again"));
    }
    Ok(())
}

fn missing_program(command: &str, acp: &AcpRuntime) -> CommandError {
    let problem = format!("`{command}` is not on the PATH; nothing was written");
    CommandError::work(problem, format!("{}; --no-probe writes the manifest now", acp.missing_help()))
}
