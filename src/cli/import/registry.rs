//! `skein import registry`: converts an entry of the ACP registry to an agent manifest of the user.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::super::folders::Folders;
use super::super::output::{CommandError, CommandOutput, display_line, display_lines};
use super::super::whole_file::create;
use super::{problem, text_of};
use crate::manifest::{self, Layer, RegistryAgent, Root, SkippedItem, read_registry};

#[derive(Debug, Args)]
pub(super) struct RegistryArgs {
    /// Read this agent.json or registry.json of the ACP registry
    ///
    /// The file is not changed.
    file: PathBuf,
    /// Choose this agent of a registry.json by its id
    #[arg(long, value_name = "ID")]
    agent: Option<String>,
    /// Name the agent differently from its id
    #[arg(long)]
    name: Option<String>,
    /// Show the files that would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &RegistryArgs, folders: &Folders, output: &mut CommandOutput) -> Result<(), CommandError> {
    let text = text_of(&args.file, "name an agent.json of the registry, or its registry.json")?;
    let from = args.file.display().to_string();
    let agent = read_registry(&from, &text, args.agent.as_deref(), args.name.as_deref(), &platform());
    let agent = agent
        .map_err(|found| CommandError::usage(format!("{}: {}", found.at, display_line(&found.problem)), found.help))?;
    let file = folders.config.join("agents").join(format!("{}.yaml", agent.name));
    let there = check_free_name(&agent, &file, folders)?;
    if !there && !args.dry_run {
        create(&file, &agent.text, 0o600).map_err(|error| {
            CommandError::work(
                format!("{} cannot be written: {error}", file.display()),
                "correct this and run it again",
            )
        })?;
    }
    let file = folders.display_path(&file);
    if args.json {
        let left_out: Vec<_> =
            agent.left_out.iter().map(|left| json!({"what": left.what, "reason": left.reason})).collect();
        output.json(&json!({
            "agent": agent.name, "file": file, "dry_run": args.dry_run, "there": there, "starts": agent.starts,
            "text": args.dry_run.then_some(&agent.text), "left_out": left_out, "notes": agent.notes,
        }));
    } else {
        print_result(&agent, &file, there, args.dry_run, output);
    }
    Ok(())
}

/// Returns the platform as the registry spells it: `linux-x86_64`, `darwin-aarch64`.
fn platform() -> String {
    let system = if std::env::consts::OS == "macos" { "darwin" } else { std::env::consts::OS };
    format!("{system}-{}", std::env::consts::ARCH)
}

/// Returns true if the user already has an agent of this name. Fails if the name cannot be used.
fn check_free_name(agent: &RegistryAgent, file: &Path, folders: &Folders) -> Result<bool, CommandError> {
    let user = Root::Disk { path: folders.config.clone(), shown: folders.display_path(&folders.config) };
    let (known, _) = manifest::load(&[(Layer::Builtin, Root::Builtin), (Layer::User, user)]);
    let name = display_line(&agent.name);
    match known.agents.get(agent.name.as_str()).map(|entry| entry.layer) {
        Some(Layer::Builtin) => {
            let problem = format!("Skein has a built-in agent `{name}`");
            Err(CommandError::usage(problem, format!("give this one another name: `--name {name}-acp`")))
        }
        Some(_) => Ok(true),
        None if file.exists() => Ok(true),
        None => match problem(Path::new("agents"), file, &agent.text) {
            Some(problem) => Err(CommandError::usage(
                format!("`{name}` cannot be taken over: {problem}"),
                "`--dry-run` shows it; a name has at most 32 lower-case letters and digits, joined by - or _: `--name NAME`",
            )),
            None => Ok(false),
        },
    }
}

fn print_result(agent: &RegistryAgent, file: &str, there: bool, dry_run: bool, output: &mut CommandOutput) {
    if there {
        output.line(&format!("{} is there already and was left as it is", display_line(&agent.name)));
        return;
    }
    let wrote = if dry_run { "would write" } else { "wrote" };
    output.line(&format!("{wrote} {file}: {}", display_line(&agent.starts)));
    if dry_run {
        agent.text.lines().for_each(|line| output.line(&format!("  {}", display_lines(line))));
    }
    for SkippedItem { what, reason } in &agent.left_out {
        output.line(&format!("left out: {}: {}", display_line(what), display_line(reason)));
    }
    agent.notes.iter().for_each(|note| output.note(note));
}
