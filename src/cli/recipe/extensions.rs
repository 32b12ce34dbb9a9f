//! Determines the services of a recipe: those of the mode, and programs and servers that it brings, which need the
//! user's consent.
//!
//! Invariant: no service of a recipe starts before the user has seen it, or has waived that.

use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Arc;

use super::super::folders::Folders;
use super::super::output::{CommandError, CommandOutput, display_line};
use super::super::trust::{access_lines, confirm};
use super::subs::{RecipeNode, RecipeTree};
use crate::diagnostic::printable;
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::manifest::{RecipeFile, ServiceEntry, recipe_service};
use crate::recipe::Recipe;
use crate::trust::{ProjectFiles, TrustState, TrustStore};

/// Returns the services that the recipe brings to a session in this mode. Fails if the recipe asks for a service that
/// the mode does not have.
pub(super) fn recipe_services(
    file: &RecipeFile,
    mode: &ModeId,
    plan: &Plan,
) -> Result<Vec<Arc<ServiceEntry>>, CommandError> {
    let Some((_, scope)) = plan.mode(mode) else {
        return Err(CommandError::usage(format!("there is no mode {mode}"), "see `skein agents`"));
    };
    let mut brought: Vec<Arc<ServiceEntry>> = Vec::new();
    for extension in &file.extensions {
        let name = display_line(&extension.name);
        let taken = |name: &str| {
            plan.service(name).is_some() || brought.iter().any(|entry| entry.manifest.name.as_str() == name)
        };
        let made = recipe_service(extension, taken).map_err(|reason| {
            CommandError::usage(format!("the extension `{name}` cannot be used: {reason}"), "correct the recipe")
        })?;
        match made {
            Some(_) if !scope.lists_mcp() => {
                let problem = format!("{mode} takes no services from outside, and the recipe brings `{name}`");
                return Err(CommandError::usage(
                    problem,
                    "choose a mode with the group `mcp`: `skein agents show NAME`",
                ));
            }
            Some(entry) => brought.push(Arc::new(entry)),
            None if plan.service(&extension.name).is_some_and(|entry| scope.binds(entry)) => {}
            None => {
                let problem = format!("the recipe asks for the extension `{name}`, which {mode} does not have");
                let help = "choose a mode that has it with -a and -m; `skein services` lists what there is";
                return Err(CommandError::usage(problem, help));
            }
        }
    }
    Ok(brought)
}

/// Asks the user for consent to the recipe's services, unless its files are the user's own or `allowed` is set.
pub(super) fn consent(
    parts: &RecipeTree,
    allowed: bool,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let foreign: Vec<_> = parts.iter().filter(|part| !is_own(&part.recipe, folders)).collect();
    let lines: Vec<_> = foreign.iter().flat_map(|part| describe_services(part)).collect();
    if lines.is_empty() || allowed {
        return Ok(());
    }
    for line in &lines {
        output.aside(&format!("{}\n", printable(line)));
    }
    let refused = |problem: &str| CommandError::usage(problem, "look at these, then pass --allow-extensions");
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Err(refused("the recipe starts or reaches its own services, and there is no terminal to ask"));
    }
    if confirm("Use these services?", output)? {
        return Ok(());
    }
    Err(refused("the services of the recipe were not allowed"))
}

fn describe_services(part: &RecipeNode) -> Vec<String> {
    let lines: Vec<_> = part.services.iter().flat_map(|entry| access_lines(entry)).collect();
    if lines.is_empty() {
        return lines;
    }
    let head = format!("{} asks Skein to use:", part.recipe.text.file);
    std::iter::once(head).chain(lines.into_iter().map(|line| format!("  {line}"))).collect()
}

/// Returns true if the file is in the user's settings, or is part of a project that is trusted in its current state.
fn is_own(recipe: &Recipe, folders: &Folders) -> bool {
    let below = |folder: &Path| folder.canonicalize().is_ok_and(|folder| recipe.path.starts_with(folder));
    if below(&folders.config) {
        return true;
    }
    let Ok(Some(project)) = ProjectFiles::find(&folders.cwd) else { return false };
    let Ok(store) = TrustStore::open(&folders.data) else { return false };
    let inside = recipe.path.strip_prefix(&project.root).ok().and_then(|path| project.files.get(path));
    inside.is_some_and(|bytes| *bytes == recipe.text.text.as_bytes()) && store.trust_of(&project) == TrustState::Trusted
}
