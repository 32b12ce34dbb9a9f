//! Provides sub-recipes as tools: each call runs in a child session with the same asker, and its answer is the result.
//!
//! Invariant: a sub-recipe may do no more than its recipe. It inherits the approval level of the calling session, and
//! all its calls go through its own binding.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use anyhow::{Context as _, anyhow, bail};
use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::super::output::CommandError;
use super::super::progress::TerminalNotifier;
use super::super::runtime::session_failure;
use super::super::session_flags::prompt_failure;
use super::extensions;
use super::steps::{ActiveRecipes, FilledRecipe, RecipeOutcome, Stage};
use crate::agents::{Event, Notifier, StatusUpdate, StopReason, TurnEnd};
use crate::conversation::Content;
use crate::graph::Plan;
use crate::ids::{ModeId, ServiceName, ToolName};
use crate::manifest::{InputType, ManifestDuration, RecipeFile, Requirement, Scalar, ServiceEntry, session_service};
use crate::orchestrator::{Orchestrator, PromptOptions};
use crate::recipe::{FOLDER, Recipe, file_below};
use crate::services::{BuiltinRegistry, InlineTools};
use crate::session::Session;
use crate::tool::{CallContext, ToolCall, ToolHints, ToolOutcome, ToolSpec};

/// Name of the service that provides the tools.
const SERVICE: &str = "subrecipe";
/// Setting of the service: the index of the recipe whose sub-recipes it provides.
const OF: &str = "of";
/// Time limit of a sub-recipe, which may run for hours.
const LONGEST: ManifestDuration = ManifestDuration::seconds(24 * 60 * 60);

/// A recipe or sub-recipe in a [`RecipeTree`].
pub(super) struct RecipeNode {
    pub(super) recipe: Recipe,
    pub(super) mode: ModeId,
    /// Services added to its session.
    pub(super) services: Vec<Arc<ServiceEntry>>,
    /// Its sub-recipes, as indexes into [`RecipeTree`].
    subs: Vec<usize>,
    /// A lock for each sub-recipe, used if it must not run concurrently.
    alone: Vec<tokio::sync::Mutex<()>>,
}

impl RecipeNode {
    pub(super) fn retries(&self) -> bool {
        self.recipe.file.retry.is_some()
    }

    /// Returns the services that the recipe requires.
    pub(super) fn service_names(&self) -> Vec<ServiceName> {
        self.services.iter().map(|entry| entry.manifest.name.clone()).collect()
    }
}

/// A recipe with all its sub-recipes; the recipe itself is first.
pub(super) struct RecipeTree {
    all: Arc<Vec<RecipeNode>>,
    around: Arc<OnceLock<RunContext>>,
    active: Arc<ActiveRecipes>,
}

/// Context that exists only once services run.
pub(super) struct RunContext {
    pub(super) front: Arc<TerminalNotifier>,
    pub(super) orchestrator: Orchestrator,
}

impl RecipeTree {
    /// Builds the tree. The recipe itself runs in `mode`, with its values filled in as `file`.
    pub(super) fn of(recipe: &Recipe, file: &RecipeFile, mode: &ModeId, plan: &Plan) -> Result<Self, CommandError> {
        let mut all = Vec::new();
        add(recipe, Some(file), mode, plan, &mut all)?;
        Ok(Self { all: Arc::new(all), around: Arc::default(), active: Arc::default() })
    }

    pub(super) fn root(&self) -> &RecipeNode {
        &self.all[0]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &RecipeNode> {
        self.all.iter()
    }

    /// Returns the recipes that sessions run now.
    pub(super) fn active(&self) -> &ActiveRecipes {
        &self.active
    }

    pub(super) fn settle(&self, around: RunContext) {
        // Set once, before any sub-recipe can be called.
        drop(self.around.set(around));
    }

    pub(super) fn register_in(&self, registry: BuiltinRegistry) -> BuiltinRegistry {
        let (all, around, active) = (Arc::clone(&self.all), Arc::clone(&self.around), Arc::clone(&self.active));
        registry.with_tools(SERVICE, move |surroundings| {
            let of = surroundings.settings.get(OF).and_then(Value::as_u64);
            let of = of.and_then(|of| usize::try_from(of).ok()).filter(|of| *of < all.len());
            let of = of.context("its recipe is not known")?;
            anyhow::Ok(Arc::new(SubRecipes {
                all: Arc::clone(&all),
                around: Arc::clone(&around),
                active: Arc::clone(&active),
                of,
            }))
        })
    }
}

/// Adds a recipe and its sub-recipes, and returns its index.
fn add(
    recipe: &Recipe,
    file: Option<&RecipeFile>,
    mode: &ModeId,
    plan: &Plan,
    all: &mut Vec<RecipeNode>,
) -> Result<usize, CommandError> {
    let place = all.len();
    let brought = match file {
        Some(file) => extensions::recipe_services(file, mode, plan)?,
        None => extensions::recipe_services(&without_values(recipe)?, mode, plan)?,
    };
    let alone = recipe.subs.iter().map(|_| tokio::sync::Mutex::default()).collect();
    all.push(RecipeNode { recipe: recipe.clone(), mode: mode.clone(), services: brought, subs: Vec::new(), alone });
    for sub in &recipe.subs {
        // A sub-recipe uses its parent's mode and can do no more than its parent.
        let sub = add(sub, None, mode, plan, all)?;
        all[place].subs.push(sub);
    }
    if !recipe.subs.is_empty() {
        if !plan.mode(mode).is_some_and(|(_, scope)| scope.lists_mcp()) {
            let problem = format!("{mode} takes no services from outside, and the recipe brings sub-recipes");
            return Err(CommandError::usage(problem, "choose a mode with the group `mcp`, as goose/assistant"));
        }
        let settings = BTreeMap::from([(OF.to_owned(), json!(place))]);
        all[place].services.push(Arc::new(session_service(SERVICE, "Parts of the recipe", LONGEST, settings)));
    }
    Ok(place)
}

/// Fills the recipe with empty values. The services of a sub-recipe do not depend on its values.
fn without_values(recipe: &Recipe) -> Result<RecipeFile, CommandError> {
    let nothing = recipe.file.parameters.iter().map(|parameter| (parameter.key.0.clone(), String::new()));
    let folder = (FOLDER.to_owned(), recipe.folder().display().to_string());
    let filled = recipe.fill(&nothing.chain([folder]).collect());
    filled.map_err(|reason| CommandError::usage(format!("{}: {reason}", recipe.text.file), "correct the recipe"))
}

/// The tools of one recipe: its sub-recipes.
struct SubRecipes {
    all: Arc<Vec<RecipeNode>>,
    around: Arc<OnceLock<RunContext>>,
    active: Arc<ActiveRecipes>,
    of: usize,
}

impl SubRecipes {
    fn part(&self) -> &RecipeNode {
        &self.all[self.of]
    }
}

impl InlineTools for SubRecipes {
    fn list(&self) -> Vec<ToolSpec> {
        let part = self.part();
        let named = part.recipe.file.sub_recipes.iter().zip(&part.recipe.subs);
        named
            .map(|(sub, recipe)| ToolSpec {
                name: ToolName::new(sub.name.as_str()),
                title: Some(recipe.file.title.clone()),
                description: sub.description.clone().unwrap_or_else(|| recipe.file.description.clone()),
                input_schema: Arc::new(schema(recipe, &sub.values)),
                output_schema: None,
                // Starting a sub-recipe changes nothing; its own calls are subject to consent.
                hints: ToolHints { read_only: Some(true), ..ToolHints::default() },
                meta: None,
            })
            .collect()
    }

    fn call(&self, call: ToolCall) -> BoxFuture<'_, ToolOutcome> {
        Box::pin(async move {
            let subs = &self.part().recipe.file.sub_recipes;
            let index = subs.iter().position(|sub| sub.name.as_str() == call.tool.as_str());
            let (Some(index), Some(around)) = (index, self.around.get()) else {
                return ToolOutcome::error("there is no such sub-recipe");
            };
            let _alone = match subs[index].sequential_when_repeated {
                true => Some(self.part().alone[index].lock().await),
                false => None,
            };
            match self.run(index, &call.arguments, &call.context, around).await {
                Ok(outcome) => outcome,
                Err(reason) => ToolOutcome::error(format!("the sub-recipe failed: {reason}")),
            }
        })
    }
}

impl SubRecipes {
    async fn run(
        &self,
        index: usize,
        arguments: &Map<String, Value>,
        context: &CallContext,
        around: &RunContext,
    ) -> anyhow::Result<ToolOutcome> {
        let part = &self.all[self.part().subs[index]];
        let (above, session) = self.active.find(&context.session.id).context("its recipe is not known")?;
        let mut given: BTreeMap<_, _> =
            above.sub_recipes[index].values.iter().map(|(key, value)| (key.clone(), value.text())).collect();
        for (key, value) in arguments {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            if given.insert(key.clone(), text).is_some() {
                bail!("`{key}` is decided by the recipe");
            }
        }
        // Limit files to the session's folder: a model must not reach files that its file tools cannot.
        let values = part.recipe.values(&given, |name| file_below(name, &context.session.cwd));
        let values = values.map_err(|wrong| {
            let wrong: Vec<_> = wrong.iter().map(ToString::to_string).collect();
            anyhow!(wrong.join("; "))
        })?;
        let ready = part.recipe.fill(&values).and_then(FilledRecipe::new)?;
        let stage = SubRecipeStage { part, around, above: session.clone(), context };
        let child = stage.open().await.map_err(|failure| anyhow!(failure.problem()))?;
        let done = ready.run(child, ready.prompt(Vec::new()), &part.service_names(), &self.active, &stage).await;
        let done = done.map_err(|failure| anyhow!(failure.problem()))?;
        if let Some(above) = session.upgrade() {
            above.spend(done.end.usage);
        }
        outcome(done)
    }
}

fn outcome(done: RecipeOutcome) -> anyhow::Result<ToolOutcome> {
    if let Some(failure) = done.failed {
        bail!(failure.problem());
    }
    if let Some(call) = done.refused {
        bail!("{call} was refused");
    }
    match done.end.ending {
        StopReason::EndTurn | StopReason::MaxTokens => {
            let text = done.structured.as_ref().map_or_else(|| done.session.last_answer(), Value::to_string);
            Ok(ToolOutcome { structured: done.structured, ..ToolOutcome::text(text) })
        }
        StopReason::Exhausted { why } | StopReason::Failed { why, .. } => bail!(why),
        StopReason::Refusal => bail!("the model declined to answer"),
        StopReason::Cancelled => bail!("it was cancelled"),
        StopReason::CallRefused { tool } => bail!("{tool} was refused"),
    }
}

/// Returns the input schema: the parameters whose values the recipe does not fix.
fn schema(recipe: &Recipe, fixed: &BTreeMap<String, Scalar>) -> Map<String, Value> {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for parameter in recipe.file.parameters.iter().filter(|parameter| !fixed.contains_key(&parameter.key.0)) {
        let mut form = json!({"description": parameter.description, "type": "string"});
        match parameter.input_type {
            InputType::Number => form["type"] = json!("number"),
            InputType::Boolean => form["type"] = json!("boolean"),
            InputType::Select => {
                form["enum"] = parameter.options.iter().map(|option| Value::String(option.text())).collect();
            }
            InputType::File => form["description"] = json!(format!("{} (path of a file)", parameter.description)),
            InputType::String | InputType::Date => {}
        }
        if parameter.default.is_none() && parameter.requirement != Requirement::Optional {
            required.push(Value::String(parameter.key.0.clone()));
        }
        properties.insert(parameter.key.0.clone(), form);
    }
    let whole =
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    whole.as_object().cloned().unwrap_or_default()
}

/// Runs a sub-recipe inside a tool call of its parent.
struct SubRecipeStage<'a> {
    part: &'a RecipeNode,
    around: &'a RunContext,
    /// The session of the calling recipe.
    above: Weak<Session>,
    context: &'a CallContext,
}

impl Stage for SubRecipeStage<'_> {
    fn open(&self) -> BoxFuture<'_, Result<Arc<Session>, CommandError>> {
        Box::pin(async {
            let over = || CommandError::work("the recipe that asked is over", "run it again");
            let above = self.above.upgrade().ok_or_else(over)?;
            let brought = Some(self.part.services.clone());
            let child = above.child(self.part.mode.clone(), None, |asker| asker, None, brought).await;
            child.map_err(|error| session_failure(&error))
        })
    }

    fn turn<'a>(
        &'a self,
        session: &'a Arc<Session>,
        prompt: Vec<Content>,
    ) -> BoxFuture<'a, Result<(TurnEnd, bool), CommandError>> {
        Box::pin(async move {
            let front = Arc::new(ToolEventsNotifier(Arc::clone(&self.around.front)));
            let pending = session.begin().map_err(|error| prompt_failure(&error))?;
            let (orchestrator, cancel) = (&self.around.orchestrator, &self.context.cancel);
            let ended = orchestrator.prompt(pending, prompt, PromptOptions::default(), front, cancel).await;
            Ok((ended.map_err(|error| prompt_failure(&error))?, true))
        })
    }

    fn notify(&self, text: &str) {
        self.around.front.status(StatusUpdate::notice(text.to_owned()));
    }

    fn cancel(&self) -> CancellationToken {
        self.context.cancel.clone()
    }
}

/// Shows the tool calls and notices of a sub-recipe. Its text goes only to the calling recipe.
struct ToolEventsNotifier(Arc<TerminalNotifier>);

impl Notifier for ToolEventsNotifier {
    fn log(&self, event: Event) {
        if self.0.shows_events() {
            self.0.note_call(&event);
        } else if matches!(event, Event::ToolStarted { .. } | Event::ToolEnded { .. }) {
            self.0.log(event);
        }
    }

    fn status(&self, status: StatusUpdate) {
        if let StatusUpdate::Notice(_) = status {
            self.0.status(status);
        }
    }
}
