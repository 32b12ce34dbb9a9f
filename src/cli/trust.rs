//! `skein trust`: shows what a project would have Skein use, and remembers the user's consent to exactly that.

use std::collections::BTreeMap;
use std::io::{BufRead as _, IsTerminal as _};

use clap::Args;
use serde_json::json;

use super::folders::Folders;
use super::output::{Failure, Output};
use super::workspace::trust_failure;
use crate::diagnostic::printable;
use crate::manifest::{self, Config, Layer, Mode, Path, Root, Runtime, Then, Transport};
use crate::trust::{Project, Since, Trust, TrustStore};

#[derive(Debug, Args)]
pub(super) struct TrustArgs {
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// Take the trust back
    #[arg(long, conflicts_with = "yes")]
    revoke: bool,
    /// Only say whether the project is trusted
    #[arg(long, conflicts_with_all = ["yes", "revoke"])]
    status: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &TrustArgs, folders: &Folders, output: &mut Output) -> Result<(), Failure> {
    let project = Project::find(&folders.cwd).map_err(|error| trust_failure(&error))?;
    let Some(project) = project else {
        let help = "`skein new agent NAME` makes one";
        return Err(Failure::usage("there is no .skein/ or .mcp.json here or in a folder above", help));
    };
    let mut store = TrustStore::open(&folders.data).map_err(|error| trust_failure(&error))?;
    if args.revoke {
        store.revoke(&project).map_err(|error| trust_failure(&error))?;
    } else if !args.status && store.trust_of(&project) != Trust::Trusted {
        describe(&project, &store, output);
        if !args.yes && !confirmed(output)? {
            return Err(Failure::work("the project was not trusted", "answer y, or pass --yes"));
        }
        store.trust(&project).map_err(|error| trust_failure(&error))?;
    }
    let trust = store.trust_of(&project);
    if args.json {
        let changes: Vec<_> =
            store.changes(&project).iter().map(|(file, since)| json!({"file": file, "since": since})).collect();
        let files: Vec<_> = project.files.keys().map(|path| path.display().to_string()).collect();
        output.json(&json!({
            "project": project.root.display().to_string(), "trust": trust, "hash": project.hash, "files": files,
            "changes": changes,
        }));
    } else {
        let says = match trust {
            Trust::Trusted => "trusted as it is now; any change of these files ends that",
            Trust::Changed => "changed since it was trusted: not used",
            Trust::Unknown => "not trusted: not used",
        };
        output.line(&format!("{}: {says}", project.root.display()));
    }
    Ok(())
}

/// Asks once about a project that is not trusted as it is, if somebody is there to be asked. Whoever says no goes on
/// without it, and is told so like everybody else.
pub(super) fn offer(folders: &Folders, output: &mut Output) -> Result<(), Failure> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Ok(());
    }
    // What cannot be read is told where the manifests are read.
    let Ok(Some(project)) = Project::find(&folders.cwd) else { return Ok(()) };
    let mut store = TrustStore::open(&folders.data).map_err(|error| trust_failure(&error))?;
    if store.trust_of(&project) == Trust::Trusted {
        return Ok(());
    }
    describe(&project, &store, output);
    if confirmed(output)? {
        store.trust(&project).map_err(|error| trust_failure(&error))?;
    }
    Ok(())
}

/// The files, and above all the programs they would start. What a project says is shown without anything
/// that would steer the terminal: it must not be able to hide what one is asked to trust.
fn describe(project: &Project, store: &TrustStore, output: &mut Output) {
    let mut say = |line: &str| output.aside(&format!("{}\n", printable(line)));
    say(&format!("{} asks Skein to use:", project.root.display()));
    for (path, content) in &project.files {
        say(&format!("  {} ({} bytes)", path.display(), content.len()));
    }
    let changes = store.changes(project);
    if !changes.is_empty() {
        say("since it was trusted:");
    }
    for (file, since) in &changes {
        let became = match since {
            Since::Added => "is new",
            Since::Changed => "has changed",
            Since::Removed => "is gone",
        };
        say(&format!("  {file} {became}"));
    }
    let root = Root::Snapshot { files: project.files.clone(), shown: String::new() };
    let (manifests, _) = manifest::load(&[(Layer::Project, root)]);
    for service in manifests.services.values() {
        let name = &service.manifest.name;
        match &service.manifest.transport {
            Transport::Builtin(_) => {}
            Transport::Stdio(stdio) => {
                say(&format!("service {name} runs: {}", program(&stdio.command, &stdio.args, &stdio.env)));
            }
            Transport::Http(http) => say(&format!("service {name} connects to: {}", http.url)),
        }
    }
    let (builtin, _) = manifest::load(&[(Layer::Builtin, Root::Builtin)]);
    for (name, agent) in &manifests.agents {
        if builtin.agents.contains_key(name) {
            say(&format!("agent {name} replaces the built-in agent of that name"));
        }
        agent.modes.iter().for_each(|entry| say(&format!("mode {name}/{}: {}", entry.mode.slug, mode(&entry.mode))));
    }
    // A server of .mcp.json with a built-in name is left out.
    let own = manifests.services.iter().filter(|(_, entry)| entry.path == Path::root());
    for (name, _) in own.filter(|(name, _)| builtin.services.contains_key(*name)) {
        say(&format!("service {name} changes the built-in service of that name"));
    }
    for agent in manifests.agents.values() {
        if let Some(Runtime::Acp(acp)) = &agent.manifest.runtime {
            say(&format!("agent {} runs: {}", agent.manifest.name, program(&acp.command, &acp.args, &acp.env)));
        }
    }
    for entry in &manifests.configs {
        rules(&entry.config).iter().for_each(|rule| say(rule));
    }
    say("Programs and scripts outside .skein/ that these name are not part of the hash.");
}

/// What a mode is told and may use.
fn mode(mode: &Mode) -> String {
    let groups: Vec<_> = mode.tool_groups.iter().map(|group| group.group().as_str()).collect();
    let tools = if groups.is_empty() { "none".to_owned() } else { groups.join(", ") };
    let prompt = mode.prompt.as_ref().map(|file| format!("; told by {file}")).unwrap_or_default();
    let approval = mode.approval.map(|level| format!("; approval {}", level.as_str())).unwrap_or_default();
    format!("tools {tools}{prompt}{approval}")
}

/// What a project's config would change.
fn rules(config: &Config) -> Vec<String> {
    let mut rules = Vec::new();
    if let Some(approval) = config.approval {
        rules.push(format!("approval {}, unless yours is stricter", approval.as_str()));
    }
    for rule in &config.permissions {
        let what = match rule.then {
            Then::Deny => "calls are refused",
            Then::Ask => "calls are asked about",
            Then::Allow => "calls cannot be allowed by a project, and make its config wrong",
        };
        rules.push(format!("{what}: {rule}"));
    }
    rules.extend(config.profile.iter().map(|profile| format!("profile {profile} is used")));
    for (name, profile) in &config.profiles {
        let models = [("model", &profile.processor), ("accelerator", &profile.accelerator)];
        for (what, model) in models {
            rules.extend(model.iter().map(|model| format!("profile {name}: {what} {model}")));
        }
        if let Some(agent) = &profile.agent {
            let mode = profile.mode.as_ref().map(|mode| format!("/{mode}")).unwrap_or_default();
            rules.push(format!("profile {name}: sessions begin with {agent}{mode}"));
        }
        if let Some(services) = &profile.services {
            let names: Vec<_> = services.iter().map(|service| service.as_str()).collect();
            rules.push(format!("profile {name}: of your services only {} stay on", names.join(", ")));
        }
    }
    rules
}

/// A command line, with the names of the variables it is given: `LD_PRELOAD` says as much as a program.
fn program(command: &str, args: &[String], env: &BTreeMap<String, String>) -> String {
    let mut text = [&[command.to_owned()], args].concat().join(" ");
    if !env.is_empty() {
        let names: Vec<_> = env.keys().map(String::as_str).collect();
        text.push_str(&format!(" (sets {})", names.join(", ")));
    }
    text
}

fn confirmed(output: &mut Output) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage("there is no terminal to ask on", "look at the files, then pass --yes"));
    }
    output.aside("Use these files? [y/N] ");
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    Ok(read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes"))
}
