//! `skein import`: takes over what another tool keeps. Today: a folder of goose's memory files.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::folders::Folders;
use super::output::{Failure, Output};
use crate::services::builtin::memory;
use crate::store::{Reach, project_root};

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// A folder with goose's memory files (`<category>.txt`); they stay as they are
    folder: PathBuf,
    /// Keep the memories for this project only
    #[arg(long)]
    project: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ImportArgs, folders: &Folders, output: &mut Output) -> Result<(), Failure> {
    if !args.folder.is_dir() {
        let problem = format!("{} is not a folder", args.folder.display());
        return Err(Failure::usage(problem, "name the folder that holds goose's memory files, ~/.config/goose/memory"));
    }
    let scope = if args.project { Reach::Project } else { Reach::User };
    let imported =
        memory::import(&args.folder, &folders.data, &project_root(&folders.cwd), scope).map_err(|error| {
            Failure::work(error.to_string(), "nothing of goose's was changed; correct this and run it again")
        })?;
    if args.json {
        let left_out: Vec<_> =
            imported.left_out.iter().map(|(file, reason)| json!({"file": file, "reason": reason})).collect();
        output.json(&json!({"kept": imported.kept, "left_out": left_out}));
        return Ok(());
    }
    output.line(&format!("{} memories kept", imported.kept));
    for (file, reason) in &imported.left_out {
        output.line(&format!("left out of {file}: {reason}"));
    }
    Ok(())
}
