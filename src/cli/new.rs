//! `skein new`: a manifest to start from, which passes `skein check` as it is.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::folders::Folders;
use super::output::{Failure, Output};
use super::workspace::trust_failure;
use crate::ids::NAME_PATTERN;
use crate::trust::{Project, Trust, TrustStore};

#[derive(Debug, Args)]
pub(super) struct NewArgs {
    #[command(subcommand)]
    what: NewCommand,
}

#[derive(Debug, Subcommand)]
enum NewCommand {
    /// An agent with one mode that can read files
    Agent(Place),
    /// A service that runs an MCP server on stdio
    Service(Place),
}

#[derive(Debug, Args)]
struct Place {
    name: String,
    /// Write it to your own settings instead of this project's .skein/
    #[arg(long)]
    user: bool,
}

pub(super) fn run(args: &NewArgs, folders: &Folders, output: &mut Output) -> Result<(), Failure> {
    let (NewCommand::Agent(place) | NewCommand::Service(place)) = &args.what;
    let name = &place.name;
    if name.len() > 32 || !regex::Regex::new(NAME_PATTERN).is_ok_and(|pattern| pattern.is_match(name)) {
        return Err(Failure::usage(
            format!("`{name}` cannot be a name"),
            "use at most 32 lower-case letters and digits, words joined by - or _, beginning with a letter",
        ));
    }
    let base = if place.user { folders.config.clone() } else { project_root(folders).join(".skein") };
    let files = match &args.what {
        NewCommand::Agent(_) => vec![
            (base.join(format!("agents/{name}.yaml")), agent(name)),
            (base.join(format!("agents/{name}/reader.md")), PROMPT.to_owned()),
        ],
        NewCommand::Service(_) => vec![(base.join(format!("services/{name}.yaml")), service(name))],
    };
    if let Some((path, _)) = files.iter().find(|(path, _)| path.exists()) {
        return Err(Failure::usage(
            format!("{} exists already", folders.shown(path)),
            "choose another name, or edit that file",
        ));
    }
    let trusted_before = if place.user { None } else { Some(was_trusted(folders)?) };
    for (path, text) in &files {
        write_new(path, text).map_err(|error| {
            Failure::work(format!("cannot write {}: {error}", path.display()), "check the folder's permissions")
        })?;
        output.line(&format!("wrote {}", folders.shown(path)));
    }
    if trusted_before == Some(true) {
        trust(folders)?;
    } else if trusted_before == Some(false) {
        output.line("the project is not trusted: look at its .skein/, then run `skein trust`");
    }
    output.line("check it with `skein check`; edit it, then trust the change with `skein trust`");
    Ok(())
}

/// The project's folder if there is one, else the repository's, else the working directory.
fn project_root(folders: &Folders) -> PathBuf {
    let marked = |marker: &str| folders.cwd.ancestors().find(|folder| folder.join(marker).exists());
    marked(".skein").or_else(|| marked(".git")).unwrap_or(&folders.cwd).to_owned()
}

/// What the user has just had written is trusted, if everything beside it already was.
fn was_trusted(folders: &Folders) -> Result<bool, Failure> {
    let Some(project) = Project::find(&folders.cwd).map_err(|error| trust_failure(&error))? else { return Ok(true) };
    let store = TrustStore::open(&folders.data).map_err(|error| trust_failure(&error))?;
    Ok(store.trust_of(&project) == Trust::Trusted)
}

fn trust(folders: &Folders) -> Result<(), Failure> {
    let Some(project) = Project::find(&folders.cwd).map_err(|error| trust_failure(&error))? else { return Ok(()) };
    let mut store = TrustStore::open(&folders.data).map_err(|error| trust_failure(&error))?;
    store.trust(&project).map_err(|error| trust_failure(&error))
}

fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::File::create_new(path)?.write_all(text.as_bytes())
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

Name the file and line that an answer rests on. Say so when the project does not tell.
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
scope: shared                      # or session: one process for each session
groups: {{}}                         # which of its tools belong to which group, for example read: [get_thing]
timeouts: {{start: 20s, call: 120s, idle: 5m}}
restart: {{max: 3, within: 60s}}
"
    )
}
