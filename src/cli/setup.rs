//! `skein acp --setup`: what an editor runs in a terminal for a user who wants to choose a model. It asks one
//! question, and changes no file that somebody else wrote.

use std::io::{BufRead as _, Write as _};
use std::path::Path;

use super::Global;
use super::folders::Folders;
use super::models::KnownModels;
use super::output::{Failure, Output, shown};
use super::workspace;
use crate::manifest::Settings;
use crate::session::ModelSource as _;

pub(super) fn run(global: &Global, folders: &Folders, output: &mut Output) -> Result<(), Failure> {
    let plan = workspace::plan(global, folders, output)?;
    let settings = Settings::of(plan.manifests());
    let models = KnownModels::of(&settings, None);
    match &settings.processor {
        Some(model) => output.line(&format!("Your profile names the model {}.", shown(model))),
        None => output.line("No model is configured. Sessions work all the same: tools are called by name."),
    }
    output.text("Which model should sessions begin with, as provider:model? Enter alone leaves it as it is: ");
    std::io::stdout().flush().map_err(|error| unheard(&error))?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(|error| unheard(&error))?;
    let model = line.trim();
    if model.is_empty() {
        output.line("Nothing was changed.");
        return Ok(());
    }
    models.provider(model).map_err(|error| {
        Failure::usage(shown(&error.to_string()), "docs/models.md lists providers and the variables their keys are in")
    })?;
    let file = folders.config.join("config.yaml");
    if file.exists() {
        output.line(&format!("{} is yours. Write into it:\n\n{}", file.display(), profile(model)));
        return Ok(());
    }
    write(&file, &format!("version: 1\n{}", profile(model))).map_err(|error| {
        Failure::work(format!("{} cannot be written: {error}", file.display()), "check the folder's permissions")
    })?;
    output.line(&format!("Written to {}: sessions begin with {}.", file.display(), shown(model)));
    Ok(())
}

fn profile(model: &str) -> String {
    // JSON is YAML, whatever the name holds.
    format!("profiles:\n  default:\n    processor: {}\n", serde_json::Value::from(model))
}

fn write(file: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    // Somebody else's file that came in between is not overwritten.
    std::fs::OpenOptions::new().create_new(true).write(true).open(file)?.write_all(text.as_bytes())
}

fn unheard(error: &std::io::Error) -> Failure {
    Failure::usage(format!("nobody can be asked: {error}"), "run it in a terminal, or write config.yaml yourself")
}
