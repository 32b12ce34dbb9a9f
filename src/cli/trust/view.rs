//! Describes what a project would have Skein use: its programs, the manifests they replace, the user's variables they
//! receive, the rules and the hooks.

use std::collections::{BTreeMap, BTreeSet};

use super::super::folders::Folders;
use super::super::output::{CommandError, CommandOutput};
use super::super::{Global, workspace};
use crate::diagnostic::printable;
use crate::ids::ServiceName;
use crate::manifest::{
    self, AgentEntry, AgentProgram, AgentRuntime, Config, ConfiguredHook, DocumentPath, Layer, Manifests, Mode,
    Placeholder, Root, RuleEffect, ServiceEntry, Transport, VariableName,
};
use crate::sandbox::SandboxSettings;
use crate::trust::{FileChange, ProjectFiles, TrustStore};

/// The warning about files that would keep Skein from starting.
const ERRORS: &str = "these files have errors, and Skein does not start here while it uses them: `skein check` names \
                      the errors, `skein trust --revoke` takes the trust back";

/// Prints the project's files and, above all, the programs they would start. Escapes control characters, so that a
/// project cannot hide what the user is asked to trust. Fails if the other layers cannot be read.
pub(super) fn describe(
    project: &ProjectFiles,
    store: &TrustStore,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let adds_errors = workspace::project_adds_errors(project, global, folders)?;
    let root = Root::Snapshot { files: project.files.clone(), shown: String::new() };
    let (manifests, _) = manifest::load(&[(Layer::Project, root)]);
    let (builtin, _) = manifest::load(&[(Layer::Builtin, Root::Builtin)]);
    let user = Root::Disk { path: folders.config.clone(), shown: String::new() };
    let (user, _) = manifest::load(&[(Layer::User, user)]);

    let mut lines = vec![format!("{} asks Skein to use:", project.root.display())];
    lines.extend(project.files.iter().map(|(path, content)| format!("  {} ({} bytes)", path.display(), content.len())));
    lines.extend(changes(project, store));
    for service in manifests.services.values() {
        lines.extend(service_lines(service, &builtin, &user));
    }
    for agent in manifests.agents.values() {
        lines.extend(agent_lines(agent, &builtin, &user));
    }
    lines.extend(manifests.configs.iter().flat_map(|entry| rules(&entry.config)));
    lines.extend(manifests.hooks().iter().map(hook_line));
    if adds_errors {
        lines.push(ERRORS.to_owned());
    }
    lines.push("Programs and scripts outside .skein/ that these name are not part of the hash.".to_owned());
    lines.iter().for_each(|line| output.aside(&format!("{}\n", printable(line))));
    Ok(())
}

/// Returns the command of a hook, which runs without a question.
fn hook_line(hook: &ConfiguredHook) -> String {
    let matcher = hook.matcher_text.as_deref().map(|matcher| format!(" {matcher}")).unwrap_or_default();
    format!("hook {}{matcher} runs, and may refuse: {}", hook.event.as_str(), hook.command.command)
}

/// Returns the changes since the project was trusted, if it ever was.
fn changes(project: &ProjectFiles, store: &TrustStore) -> Vec<String> {
    let changes = store.changes(project);
    let head = (!changes.is_empty()).then(|| "since it was trusted:".to_owned());
    let became = |(file, since): (String, FileChange)| match since {
        FileChange::Added => format!("  {file} is new"),
        FileChange::Changed => format!("  {file} has changed"),
        FileChange::Removed => format!("  {file} is gone"),
    };
    head.into_iter().chain(changes.into_iter().map(became)).collect()
}

fn service_lines(service: &ServiceEntry, builtin: &Manifests, user: &Manifests) -> Vec<String> {
    let name = &service.manifest.name;
    let mut lines = access_lines(service);
    // A server of `.mcp.json` with a built-in name is ignored.
    if builtin.services.contains_key(name.as_str()) && service.path == DocumentPath::root() {
        lines.push(format!("service {name} changes the built-in service of that name"));
    }
    if user.services.contains_key(name.as_str()) {
        lines.push(format!("service {name} replaces your service of that name"));
    }
    lines.extend(sandbox_lines(&format!("service {name}"), service.manifest.sandbox.as_ref()));
    lines
}

/// Describes the sandbox that a project's manifest states. Its hosts come first, because the process reaches them
/// without a question.
fn sandbox_lines(who: &str, stated: Option<&SandboxSettings>) -> Vec<String> {
    let Some(settings) = stated else { return Vec::new() };
    let hosts = settings.network.as_ref().and_then(|network| network.parts().allow).unwrap_or_default();
    let mut lines = Vec::new();
    if !hosts.is_empty() {
        lines.push(format!("{who} may reach without a question: {}", hosts.join(", ")));
    }
    let fields = serde_json::to_string(settings).unwrap_or_default();
    lines.push(format!("{who} has the sandbox: {fields}"));
    lines
}

/// Returns the program or URL of a service, and the user's variables it receives.
pub(in super::super) fn access_lines(service: &ServiceEntry) -> Vec<String> {
    let name = &service.manifest.name;
    let transport = &service.manifest.transport;
    let what = match transport {
        Transport::Builtin(_) => None,
        Transport::Stdio(stdio) => {
            Some(format!("service {name} runs: {}", program(&stdio.command, &stdio.args, &stdio.env)))
        }
        Transport::Http(http) => Some(format!("service {name} connects to: {}", http.url)),
    };
    what.into_iter().chain(variables_line(&format!("service {name}"), transport, &[])).collect()
}

fn agent_lines(agent: &AgentEntry, builtin: &Manifests, user: &Manifests) -> Vec<String> {
    let name = &agent.manifest.name;
    let mut lines = Vec::new();
    for (others, whose) in [(builtin, "the built-in"), (user, "your")] {
        if others.agents.contains_key(name.as_str()) {
            lines.push(format!("agent {name} replaces {whose} agent of that name"));
        }
    }
    for entry in &agent.modes {
        let who = format!("mode {name}/{}", entry.mode.slug);
        lines.push(format!("{who}: {}", mode(&entry.mode)));
        lines.extend(sandbox_lines(&who, entry.mode.sandbox.as_ref()));
    }
    match &agent.manifest.runtime {
        Some(AgentRuntime::Acp(acp)) => {
            let AgentProgram { command, args, env } = acp.program();
            lines.push(format!("agent {name} runs: {}", program(&command, &args, &env)));
            lines.extend(variables_line(&format!("agent {name}"), acp, &acp.inherit));
            lines.extend(sandbox_lines(&format!("agent {name}"), acp.sandbox.as_ref()));
        }
        Some(AgentRuntime::A2a(a2a)) => {
            lines.push(format!("agent {name} sends your prompts to: {}", a2a.url));
            lines.extend(variables_line(&format!("agent {name}"), a2a, &[]));
        }
        None => {}
    }
    lines
}

/// Formats a command line with the variables that it sets, because `BASH_ENV=x.sh` can run code just as a program does.
fn program(command: &str, args: &[String], env: &BTreeMap<String, String>) -> String {
    let mut text = [&[command.to_owned()], args].concat().join(" ");
    if !env.is_empty() {
        let set: Vec<_> = env.iter().map(|(name, value)| format!("{name}={}", quote(value))).collect();
        text.push_str(&format!(" (sets {})", set.join(", ")));
    }
    text
}

/// Quotes a value that could be read as more than one.
fn quote(value: &str) -> String {
    let plain = !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || ",()\"".contains(c));
    if plain { value.to_owned() } else { format!("{value:?}") }
}

/// Returns the user's variables that a service or agent receives: they may contain keys, and a URL decides where they
/// are sent.
fn variables_line(receiver: &str, transport: &impl serde::Serialize, inherited: &[VariableName]) -> Option<String> {
    let text = serde_json::to_string(transport).unwrap_or_default();
    let inherited = inherited.iter().map(|VariableName(name)| name.as_str());
    let names: BTreeSet<_> = Placeholder::all_in(&text).map(|placeholder| placeholder.name).chain(inherited).collect();
    let names: Vec<_> = names.into_iter().collect();
    (!names.is_empty()).then(|| format!("{receiver} gets your variables: {}", names.join(", ")))
}

/// Describes the tools, prompt and approval level of a mode.
fn mode(mode: &Mode) -> String {
    let groups: Vec<_> = mode.tool_groups.iter().map(|group| group.group().as_str()).collect();
    let tools = if groups.is_empty() { "none".to_owned() } else { groups.join(", ") };
    let prompt = mode.prompt.as_ref().map(|file| format!("; prompt {file}")).unwrap_or_default();
    let approval = mode.approval.map(|level| format!("; approval {}", level.as_str())).unwrap_or_default();
    format!("tools {tools}{prompt}{approval}")
}

/// Describes the changes that a project's config makes.
fn rules(config: &Config) -> Vec<String> {
    let mut rules = Vec::new();
    if let Some(approval) = config.approval {
        rules.push(format!("approval {}, unless yours is stricter", approval.as_str()));
    }
    if config.recall == Some(false) {
        rules.push("prompts get no excerpts of earlier sessions".to_owned());
    }
    if !config.disabled_services.is_empty() {
        let names: Vec<_> = config.disabled_services.iter().map(ServiceName::as_str).collect();
        rules.push(format!("services are turned off: {}", names.join(", ")));
    }
    if config.sandbox.is_some() {
        rules.push("sandbox profiles are tightened".to_owned());
    }
    for rule in &config.permissions {
        let what = match rule.then {
            RuleEffect::Deny => "calls are refused",
            RuleEffect::Ask => "calls are asked about",
            RuleEffect::Allow => "calls cannot be allowed by a project, and make its config wrong",
        };
        rules.push(format!("{what}: {rule}"));
    }
    rules.extend(config.profile.iter().map(|profile| format!("profile {profile} is used")));
    for (name, profile) in &config.profiles {
        let processors =
            profile.processor.iter().flat_map(|processor| processor.models()).map(|model| ("model", model));
        let accelerator = profile.accelerator.iter().map(|model| ("accelerator", model));
        let models = processors.chain(accelerator);
        rules.extend(models.map(|(what, model)| format!("profile {name}: {what} {model}")));
        if let Some(agent) = &profile.agent {
            let mode = profile.mode.as_ref().map(|mode| format!("/{mode}")).unwrap_or_default();
            rules.push(format!("profile {name}: sessions begin with {agent}{mode}"));
        }
        if let Some(services) = profile.services() {
            let names: Vec<_> = services.map(|service| service.name().as_str()).collect();
            rules.push(format!("profile {name}: of your services only {} stay on", names.join(", ")));
        }
    }
    rules
}
