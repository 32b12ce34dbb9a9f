//! Asks the user before a recipe uses its own services.
//!
//! Invariant: no service of a recipe starts before the user has seen it, or has waived that.

use std::io::IsTerminal as _;
use std::path::Path;

use super::super::folders::Folders;
use super::super::output::{CommandError, CommandOutput};
use super::super::trust::{access_lines, confirm};
use super::subs::{RecipeNode, RecipeTree};
use crate::diagnostic::printable;
use crate::recipe::Recipe;
use crate::trust::{ProjectFiles, TrustState, TrustStore};

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
