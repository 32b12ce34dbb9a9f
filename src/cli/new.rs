//! `skein new`: writes a manifest template that passes `skein check`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;

use super::folders::Folders;
use super::output::{CommandError, CommandOutput, display_line};
use super::whole_file::create;
use super::workspace::trust_failure;
use crate::diagnostic::Severity;
use crate::graph;
use crate::ids::NAME_PATTERN;
use crate::manifest::{self, Layer, Root};
use crate::trust::{ProjectFiles, TrustState, TrustStore};

#[derive(Debug, Args)]
pub(super) struct NewArgs {
    #[command(subcommand)]
    what: NewCommand,
}

#[derive(Debug, Subcommand)]
enum NewCommand {
    /// Write an agent with one mode that can read files
    Agent(NewManifestArgs),
    /// Write a service that runs an MCP server on stdio
    Service(NewManifestArgs),
}

#[derive(Debug, Args)]
struct NewManifestArgs {
    name: String,
    /// Write to your own settings instead of the project's .skein/
    #[arg(long)]
    user: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &NewArgs, folders: &Folders, output: &mut CommandOutput) -> Result<(), CommandError> {
    let (NewCommand::Agent(place) | NewCommand::Service(place)) = &args.what;
    let name = &place.name;
    check_name(name)?;
    let scaffold = match &args.what {
        NewCommand::Agent(_) => vec![
            (PathBuf::from(format!("agents/{name}.yaml")), agent(name)),
            (PathBuf::from(format!("agents/{name}/reader.md")), PROMPT.to_owned()),
        ],
        NewCommand::Service(_) => vec![(PathBuf::from(format!("services/{name}.yaml")), service(name))],
    };
    let replaces = check(name, &scaffold, output)?;
    let base = if place.user { folders.config.clone() } else { project_root(folders).join(".skein") };
    let files: Vec<_> = scaffold.into_iter().map(|(path, text)| (base.join(path), text)).collect();
    if let Some((path, _)) = files.iter().find(|(path, _)| path.exists()) {
        return Err(CommandError::usage(
            format!("{} exists already", folders.display_path(path)),
            "choose another name, or edit that file",
        ));
    }
    let trusted_before = if place.user { None } else { Some(was_trusted(folders)?) };
    for (path, text) in &files {
        create(path, text, 0o666).map_err(|error| {
            CommandError::work(format!("cannot write {}: {error}", path.display()), "check the folder's permissions")
        })?;
    }
    if trusted_before == Some(true) {
        trust(folders)?;
    }
    let written: Vec<_> = files.iter().map(|(path, _)| folders.display_path(path)).collect();
    if place.json {
        output.json(&json!({"files": written, "trusted": trusted_before, "replaces": replaces}));
        return Ok(());
    }
    for path in written {
        output.line(&format!("wrote {path}"));
    }
    if let Some(replaced) = replaces {
        let kind = if matches!(args.what, NewCommand::Agent(_)) { "agent" } else { "service" };
        output.note(&format!(
            "it replaces the built-in {kind} `{name}` ({replaced}), whose definition no longer applies; remove the file \
             to get it back, or choose another name"
        ));
    }
    if trusted_before == Some(false) {
        output.line("the project is not trusted: look at its .skein/, then run `skein trust`");
    }
    output.line(match trusted_before {
        None => "edit it, then check it with `skein check`",
        Some(_) => "edit it, check it with `skein check`, then trust the change with `skein trust`",
    });
    Ok(())
}

/// Fails if the text cannot be the name of an agent or a service.
pub(super) fn check_name(name: &str) -> Result<(), CommandError> {
    if name.len() <= 32 && regex::Regex::new(NAME_PATTERN).is_ok_and(|pattern| pattern.is_match(name)) {
        return Ok(());
    }
    Err(CommandError::usage(
        format!("`{}` cannot be a name", display_line(name)),
        "use at most 32 lower-case letters and digits, words joined by - or _, beginning with a letter",
    ))
}

/// Returns the built-in file that the new manifest replaces. `None` if the name is new. Fails if the name conflicts with
/// the built-in manifests: the orchestrator, or groups and services that built-in modes rely on.
fn check(
    name: &str,
    scaffold: &[(PathBuf, String)],
    output: &mut CommandOutput,
) -> Result<Option<String>, CommandError> {
    let files = scaffold.iter().map(|(path, text)| (path.clone(), text.clone().into_bytes())).collect();
    let root = Root::Snapshot { files, shown: String::new() };
    let (manifests, found) = manifest::load(&[(Layer::Builtin, Root::Builtin), (Layer::User, root)]);
    let is_ours = |layer: Layer| layer == Layer::User;
    let agents = manifests.agents.values().filter(|entry| is_ours(entry.layer)).map(|entry| &entry.overrides);
    let services = manifests.services.values().filter(|entry| is_ours(entry.layer)).map(|entry| &entry.overrides);
    let replaces = agents.chain(services).flatten().next().cloned();
    let mut found = graph::resolve_without_notes(manifests, found).diagnostics;
    found.retain(|diagnostic| diagnostic.severity == Severity::Error);
    if found.is_empty() {
        return Ok(replaces);
    }
    output.diagnostics(&found);
    Err(CommandError::usage(
        format!("the built-in manifests leave no room for the name `{name}`"),
        "choose another name",
    ))
}

/// Returns the folder that `ProjectFiles::find` will find. That is the nearest project or repository, or else the
/// working directory.
pub(super) fn project_root(folders: &Folders) -> PathBuf {
    let root = folders.cwd.ancestors().find(|folder| {
        folder.join(".skein").is_dir() || folder.join(".mcp.json").is_file() || folder.join(".git").exists()
    });
    root.unwrap_or(&folders.cwd).to_owned()
}

/// Returns true if the project was trusted before, or does not exist yet. Only then are the new files trusted.
pub(super) fn was_trusted(folders: &Folders) -> Result<bool, CommandError> {
    let Some(project) = ProjectFiles::find(&folders.cwd).map_err(|error| trust_failure(&error))? else {
        return Ok(true);
    };
    let store = TrustStore::open(&folders.data).map_err(|error| trust_failure(&error))?;
    Ok(store.trust_of(&project) == TrustState::Trusted)
}

/// Trusts the project as it is now.
pub(super) fn trust(folders: &Folders) -> Result<(), CommandError> {
    let Some(project) = ProjectFiles::find(&folders.cwd).map_err(|error| trust_failure(&error))? else { return Ok(()) };
    let mut store = TrustStore::open(&folders.data).map_err(|error| trust_failure(&error))?;
    store.trust(&project).map_err(|error| trust_failure(&error))
}

fn agent(name: &str) -> String {
    format!(
        "version: 1
kind: agent
name: {name}
description: Say in one sentence what {name} is for.
metadata:
  dependencies: [developer]        # all that any mode may ask for
modes:
  - slug: reader
    description: Reads the project and answers questions about it.
    when_to_use: Questions about what the code or the documents of this project say.
    examples:
      - \"Where is the retry logic?\"
      - \"Summarise the README\"
    prompt: {name}/reader.md
    tool_groups: [read]            # an empty list means no tools at all
    dependencies: [developer]
    approval: ask
"
    )
}

const PROMPT: &str = "You read the project in {{ cwd }} and answer questions about it.

Name the file and line that an answer rests on. If the project has no answer, state that.
";

fn service(name: &str) -> String {
    format!(
        "version: 1
kind: service
name: {name}
description: Say in one sentence what {name} offers.
transport:
  stdio:
    command: {name}                # a program that speaks MCP on its standard input and output
    args: []
    env: {{}}                        # secrets stay in the environment: TOKEN: ${{env:TOKEN}}
sandbox:                           # without it, the process has all your rights
  files: read-only                 # or none, workspace, full: what it may write
  network: off                     # or the hosts it needs, as [api.example.com]
groups: {{}}                         # which of its tools belong to which group, for example read: [get_thing]
timeouts: {{start: 20s, call: 120s, idle: 5m}}
restart: {{max: 3, within: 60s}}
"
    )
}
