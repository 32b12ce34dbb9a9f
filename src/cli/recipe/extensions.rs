//! Determines the services of a recipe: those of the mode, and programs and servers that it brings.

use std::sync::Arc;

use super::super::output::{CommandError, display_line};
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::manifest::{RecipeFile, ServiceEntry, recipe_service};

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
