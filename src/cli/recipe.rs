//! `skein run --recipe`: prepares a recipe. Asks for its parameters, shows its services for consent, and gives `run`
//! the session defaults.

mod consent;
mod extensions;
mod steps;
mod subs;

use std::collections::BTreeMap;
use std::io::{BufRead as _, IsTerminal as _};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;

use steps::{FilledRecipe, shell_is_there};
pub(super) use steps::{RecipeOutcome, Stage};
use subs::RecipeTree;

use super::Global;
use super::folders::Folders;
use super::output::{CommandError, CommandOutput, display_line};
use super::session_flags::{LaunchSettings, SessionDefaults};
use crate::conversation::Content;
use crate::graph::Plan;
use crate::manifest::{ExtensionKind, RecipeParameter, RecipeSettings, Requirement, Scalar};
use crate::orchestrator::Orchestrator;
use crate::recipe::{self, Recipe, file_named};
use crate::session::Session;

#[derive(Debug, Args)]
pub(super) struct RecipeArgs {
    /// Run this recipe, a file in goose's format
    #[arg(long, value_name = "FILE", conflicts_with_all = ["continues", "resume"])]
    recipe: Option<PathBuf>,
    /// Set a parameter of the recipe
    #[arg(long = "param", value_name = "KEY=VALUE", requires = "recipe", value_parser = pair)]
    params: Vec<(String, String)>,
    /// Use the recipe's programs and servers without asking
    #[arg(long, requires = "recipe")]
    allow_extensions: bool,
}

fn pair(text: &str) -> anyhow::Result<(String, String)> {
    let (key, value) = text.split_once('=').context("write it as KEY=VALUE")?;
    Ok((key.trim().to_owned(), value.to_owned()))
}

/// A recipe with its values, before mode and model are known.
pub(super) struct RecipeInput {
    recipe: Recipe,
    ready: FilledRecipe,
    allowed: bool,
}

/// A recipe that is ready to run.
pub(super) struct PreparedRecipe {
    ready: Arc<FilledRecipe>,
    parts: Arc<RecipeTree>,
}

impl RecipeInput {
    /// Reads the recipe and its parameters. `None` if no recipe is given.
    pub(super) fn of(
        args: &RecipeArgs,
        folders: &Folders,
        output: &mut CommandOutput,
    ) -> Result<Option<Self>, CommandError> {
        let Some(path) = &args.recipe else { return Ok(None) };
        let (recipe, found) = recipe::read(&folders.cwd.join(path), &folders.display_path(path));
        output.diagnostics(&found);
        let recipe = recipe.ok_or_else(|| CommandError::usage("the recipe is wrong", "correct it as said above"))?;
        let given = collect_values(&recipe, &args.params, output)?;
        let values = recipe.values(&given, |name| file_named(name, &folders.cwd)).map_err(|wrong| {
            let wrong: Vec<_> = wrong.iter().map(ToString::to_string).collect();
            CommandError::usage(wrong.join("\n       "), "give each parameter as --param KEY=VALUE")
        })?;
        let ready = recipe.fill(&values).and_then(FilledRecipe::new);
        let ready = ready.map_err(|reason| {
            CommandError::usage(format!("the recipe is wrong: {reason}"), "correct the recipe, or the parameters")
        })?;
        notes(&recipe, output);
        Ok(Some(Self { recipe, ready, allowed: args.allow_extensions }))
    }

    /// Returns the recipe's limit on model requests per turn, for use without `--max-turns`.
    pub(super) fn max_turns(&self) -> Option<u64> {
        self.settings().max_turns.map(u64::from)
    }

    pub(super) fn session_defaults(&self) -> SessionDefaults {
        let RecipeSettings { goose_provider, goose_model, .. } = self.settings();
        SessionDefaults { mode: Some(("goose", "assistant")), model: goose_provider.zip(goose_model) }
    }

    fn settings(&self) -> RecipeSettings {
        self.ready.file.settings.clone().unwrap_or_default()
    }

    /// Checks which services of the recipe are available, and asks for consent to those it brings.
    pub(super) fn prepare(
        self,
        opening: &mut LaunchSettings<'_>,
        plan: &Plan,
        folders: &Folders,
        output: &mut CommandOutput,
    ) -> Result<PreparedRecipe, CommandError> {
        let Self { recipe, ready, allowed } = self;
        let parts = RecipeTree::of(&recipe, &ready.file, &opening.choice.mode, plan)?;
        for part in parts.iter() {
            shell_is_there(part.retries(), &part.mode, plan)?;
        }
        consent::consent(&parts, allowed, folders, output)?;
        opening.client_services = parts.root().services.clone();
        Ok(PreparedRecipe { ready: Arc::new(ready), parts: Arc::new(parts) })
    }
}

impl PreparedRecipe {
    pub(super) fn has_prompt(&self) -> bool {
        self.ready.file.prompt.as_deref().is_some_and(|prompt| !prompt.trim().is_empty())
    }

    /// Returns true if only the final answer may be printed.
    pub(super) fn answers_late(&self) -> bool {
        self.ready.answers_late()
    }

    pub(super) fn prompt(&self, typed: Vec<Content>) -> Vec<Content> {
        self.ready.prompt(typed)
    }

    /// Returns `global` with the sub-recipes registered as built-in services.
    pub(super) fn with_sub_recipes(&self, global: &Global) -> Global {
        let mut global = global.clone();
        global.built_in.registry = self.parts.register_in(global.built_in.registry);
        global
    }

    /// Runs the recipe, starting in the open session `first`.
    pub(super) async fn run(
        &self,
        first: Arc<Session>,
        prompt: Vec<Content>,
        stage: &dyn Stage,
    ) -> Result<RecipeOutcome, CommandError> {
        self.ready.run(first, prompt, &self.parts.root().service_names(), self.parts.active(), stage).await
    }

    /// Gives the sub-recipes the context in which they run. Call this once, before [`PreparedRecipe::run`].
    pub(super) fn settle(&self, front: Arc<super::progress::TerminalNotifier>, orchestrator: Orchestrator) {
        self.parts.settle(subs::RunContext { front, orchestrator });
    }
}

/// Collects the parameters from the command line, and asks for missing ones at the terminal.
fn collect_values(
    recipe: &Recipe,
    params: &[(String, String)],
    output: &mut CommandOutput,
) -> Result<BTreeMap<String, String>, CommandError> {
    let mut given = BTreeMap::new();
    for (key, value) in params {
        if given.insert(key.clone(), value.clone()).is_some() {
            return Err(CommandError::usage(format!("the parameter `{key}` is given twice"), "give it once"));
        }
    }
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Ok(given);
    }
    let missing: Vec<_> = recipe.missing(&given, true).into_iter().cloned().collect();
    for parameter in missing {
        output.aside(&question(&parameter));
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        if !read.is_ok_and(|bytes| bytes > 0) {
            return Err(CommandError::Interrupted);
        }
        let line = line.trim_end_matches(['\r', '\n']);
        // An empty line selects the default, if there is one.
        if !line.is_empty() {
            given.insert(parameter.key.0.clone(), line.to_owned());
        }
    }
    Ok(given)
}

fn question(parameter: &RecipeParameter) -> String {
    let options: Vec<_> = parameter.options.iter().map(Scalar::text).collect();
    let options = if options.is_empty() { String::new() } else { format!(" ({})", display_line(&options.join(", "))) };
    let default = parameter.default.as_ref().filter(|_| parameter.requirement == Requirement::UserPrompt);
    let default = default.map(|default| format!(" [{}]", display_line(&default.text()))).unwrap_or_default();
    format!("{}: {}{options}{default}: ", parameter.key.0, display_line(&parameter.description))
}

/// Notes the parts of the recipe that Skein ignores.
fn notes(recipe: &Recipe, output: &mut CommandOutput) {
    for part in recipe.all() {
        let settings = part.file.settings.clone().unwrap_or_default();
        let is_sub = !std::ptr::eq(part, recipe);
        if is_sub && part.file.settings.is_some() {
            let title = display_line(&part.file.title);
            output
                .note(&format!("the settings of the sub-recipe {title} are left out: it runs like the recipe itself"));
        } else if settings.temperature.is_some() {
            output.note("the recipe's `temperature` is left out: models run with their own");
        }
        if settings.goose_model.is_some() != settings.goose_provider.is_some() && !is_sub {
            output.note("`goose_model` and `goose_provider` count only together, and are left out");
        }
        for extension in part.file.extensions.iter().filter(|extension| !extension.available_tools.is_empty()) {
            if matches!(extension.kind, ExtensionKind::Builtin | ExtensionKind::Platform) {
                let name = display_line(&extension.name);
                output.note(&format!("`available_tools` of {name} is left out: the mode says which tools there are"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::pair;

    #[test]
    fn a_value_may_hold_an_equals_sign_and_may_be_empty() {
        assert_eq!(pair("a=b=c").unwrap(), ("a".to_owned(), "b=c".to_owned()));
        assert_eq!(pair("a=").unwrap(), ("a".to_owned(), String::new()));
        assert!(pair("a").is_err());
    }
}
