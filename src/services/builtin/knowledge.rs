//! Lists and loads skills, recipes and agent files of the project and the user. Offers them as a tool, as
//! resources, and as prompts, which editors show as slash commands.
//!
//! Invariant: a loaded item is text with a named origin. Nothing in it is executed, and it grants no permission.

mod skill_files;
mod file;
mod source_text;
mod find;
mod item;
mod recipe;
mod show;

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use percent_encoding::percent_decode_str;
use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{
    GetPromptRequestParams, GetPromptResponse, GetPromptResult, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, MetaObject, PaginatedRequestParams, Prompt, PromptArgument, PromptMessage,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
    Role,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, tool, tool_handler, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::find::{KnowledgeItems, find};
pub use self::item::Problem;
use self::item::{Item, ItemKind};
use self::recipe::RecipeItem;
use self::show::{MAX_LINE, add_label, extras, instructions, list_data, list_text, uri};
use super::answer::{self, ToolRefusal, ToolReply};
use super::{CatalogRead, call_context, schema};
use crate::ids::nearest;
use crate::services::UserFolders;
use crate::tool::SessionContext;

/// Argument of a prompt without parameters.
const REQUEST: &str = "request";

/// The `knowledge` service of one session.
pub struct KnowledgeService {
    /// All instances share it: each session has one, and their tools are the same.
    tool_router: Arc<ToolRouter<Self>>,
    user: UserFolders,
    /// Result of the last search, for the instructions, which are requested without a session.
    last: Mutex<Arc<KnowledgeItems>>,
}

impl std::fmt::Debug for KnowledgeService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KnowledgeService").field("user", &self.user).finish_non_exhaustive()
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LoadItem {
    /// As listed; name/path is a file of a skill; omit to list all
    #[schemars(length(max = 1000))]
    name: Option<String>,
}

#[tool_router]
impl KnowledgeService {
    /// Creates the service. It searches the user's folders and those of the session's project.
    pub fn new(user: UserFolders) -> Self {
        static TOOLS: OnceLock<Arc<ToolRouter<KnowledgeService>>> = OnceLock::new();
        let tools = TOOLS.get_or_init(|| Arc::new(schema::slim(Self::tool_router())));
        Self { tool_router: Arc::clone(tools), user, last: Mutex::default() }
    }

    #[tool(
        description = "Load a skill, recipe or agent file, or list them",
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn load(&self, Parameters(request): Parameters<LoadItem>, context: RequestContext<RoleServer>) -> ToolReply {
        let found = self.search(&context).await?;
        match request.name.as_deref().map(str::trim).filter(|name| !name.is_empty()) {
            None => Ok(answer::with_data(list_text(&found), list_data(&found))),
            Some(name) => {
                let name = name.to_owned();
                let (text, data) = blocking(move || load_item(&found, &name)).await?;
                Ok(answer::with_data(text, data))
            }
        }
    }

    /// Searches the folders again, unless another request for the same catalog has.
    async fn search(&self, context: &RequestContext<RoleServer>) -> Result<Arc<KnowledgeItems>, ToolRefusal> {
        let listing = context.extensions.get::<CatalogRead>();
        let known = listing.and_then(|listing| listing.0.get()).cloned();
        if let Some(found) = known.and_then(|known| known.downcast().ok()) {
            return Ok(found);
        }
        let (cwd, user) = (call_context(context)?.session.cwd.clone(), self.user.clone());
        let found = blocking(move || Ok(find(&cwd, &user))).await.map(Arc::new)?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&found);
        if let Some(listing) = listing {
            listing.0.get_or_init(|| Arc::clone(&found) as _);
        }
        Ok(found)
    }
}

/// Runs file access on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolRefusal> + Send + 'static,
) -> Result<T, ToolRefusal> {
    let done = crate::task::run_blocking(work).await;
    done.unwrap_or_else(|error| Err(ToolRefusal::new(format!("nothing was read: {error}"))))
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for KnowledgeService {
    fn get_info(&self) -> rmcp::model::ServerConfig {
        let capabilities = rmcp::model::ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_resources_list_changed()
            .enable_prompts()
            .enable_prompts_list_changed()
            .build();
        let found = Arc::clone(&self.last.lock().unwrap_or_else(PoisonError::into_inner));
        rmcp::model::ServerConfig::new(capabilities)
            .with_server_info(rmcp::model::Implementation::new("knowledge", env!("CARGO_PKG_VERSION")))
            .with_instructions(instructions(&found))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let found = self.search(&context).await.map_err(invalid_params)?;
        let resource = |item: &Item| {
            let mut resource = Resource::new(uri(item), item.name.clone());
            resource.description =
                Some(format!("{} ({}, {})", item.description, item.kind.as_str(), item.origin.as_str()));
            resource.mime_type = Some("text/plain".to_owned());
            resource
        };
        Ok(ListResourcesResult::with_all_items(found.items.iter().map(resource).collect()))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let template = |(pattern, name, description): (&str, &str, &str)| {
            let mut template = ResourceTemplate::new(pattern, name);
            template.description = Some(description.to_owned());
            template.mime_type = Some("text/plain".to_owned());
            template
        };
        let templates = [
            ("skill://{name}/{+path}", "skill", "A skill, as SKILL.md, or a file next to it"),
            ("recipe://{name}", "recipe", "A recipe, not filled in"),
            ("agent://{name}", "agent", "An agent file"),
        ];
        Ok(ListResourceTemplatesResult::with_all_items(templates.into_iter().map(template).collect()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let found = self.search(&context).await.map_err(invalid_params)?;
        let name = load_name(&found, &request.uri)
            .ok_or_else(|| ErrorData::invalid_params(format!("there is no resource `{}`", request.uri), None))?;
        let (text, _) = blocking(move || load_item(&found, &name)).await.map_err(invalid_params)?;
        let contents = ResourceContents::text(text, request.uri);
        Ok(ReadResourceResponse::Complete(ReadResourceResult::new(vec![contents])))
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let found = self.search(&context).await.map_err(invalid_params)?;
        let prompt = |item: &Item| {
            let description = answer::truncate(&item.description, MAX_LINE);
            let description = format!("{} of the {}: {description}", item.kind.as_str(), item.origin.as_str());
            let mut prompt = Prompt::new(item.name.clone(), Some(description), Some(prompt_arguments(item)));
            prompt.meta = form_meta(item);
            prompt
        };
        // An unusable file is listed too, so that a user who types its name learns the reason.
        let broken = |problem: &Problem| {
            let description = answer::truncate(&format!("cannot be used: {problem}"), MAX_LINE).to_owned();
            Prompt::new(problem.name.clone(), Some(description), Some(vec![request_argument()]))
        };
        let prompts = found.items.iter().map(prompt).chain(found.unusable().map(broken));
        Ok(ListPromptsResult::with_all_items(prompts.collect()))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let found = self.search(&context).await.map_err(invalid_params)?;
        let session = Arc::clone(&call_context(&context).map_err(invalid_params)?.session);
        let (name, given) = (request.name, request.arguments.unwrap_or_default());
        let text = blocking(move || prompt_text(&found, &name, &given, &session)).await.map_err(invalid_params)?;
        let messages = vec![PromptMessage::new_text(Role::User, text)];
        Ok(GetPromptResponse::Complete(GetPromptResult::new(messages)))
    }
}

fn invalid_params(refusal: ToolRefusal) -> ErrorData {
    ErrorData::invalid_params(refusal.0, None)
}

/// Returns the `load` name for a resource URI; `None` if there is no item of that name and kind. As in the addresses of
/// browsers, a `%` without two digits stands for itself.
fn load_name(found: &KnowledgeItems, uri: &str) -> Option<String> {
    let (scheme, rest) = uri.split_once("://")?;
    let (name, path) = rest.split_once('/').unwrap_or((rest, "SKILL.md"));
    let item = found.get(name).filter(|item| item.kind.as_str() == scheme)?;
    match item.kind {
        ItemKind::Skill if path != "SKILL.md" => {
            Some(format!("{name}/{}", percent_decode_str(path).decode_utf8().ok()?))
        }
        ItemKind::Skill => Some(name.to_owned()),
        ItemKind::Recipe | ItemKind::Agent => (rest == name).then(|| name.to_owned()),
    }
}

fn prompt_arguments(item: &Item) -> Vec<PromptArgument> {
    match &item.recipe {
        Some(recipe) if !recipe.parameters.is_empty() => {
            let argument = |of: &recipe::ItemParameter| {
                PromptArgument::new(&of.key).with_description(&of.description).with_required(of.required)
            };
            recipe.parameters.iter().map(argument).collect()
        }
        Some(_) | None => vec![request_argument()],
    }
}

/// Returns metadata for a form that asks for the parameters of a recipe: their options and defaults. `None` if there are
/// none.
fn form_meta(item: &Item) -> Option<MetaObject> {
    let parameters = item.recipe.iter().flat_map(|recipe| &recipe.parameters);
    let schemas: Map<String, Value> = parameters.filter_map(|of| Some((of.key.clone(), of.form_schema()?))).collect();
    if schemas.is_empty() {
        return None;
    }
    let mut meta = MetaObject::default();
    meta.insert("skein/arguments".to_owned(), Value::Object(schemas));
    Some(meta)
}

fn request_argument() -> PromptArgument {
    PromptArgument::new(REQUEST).with_description("What to do with it").with_required(false)
}

/// Returns the item of that name. Fails with the file's problem or the nearest name.
fn find_item<'a>(found: &'a KnowledgeItems, name: &str) -> Result<&'a Item, ToolRefusal> {
    found.get(name).ok_or_else(|| {
        if let Some(problem) = found.problems.iter().find(|problem| problem.name == name) {
            return ToolRefusal::new(format!(
                "`{}` cannot be used until its file is corrected: {problem}",
                source_text::display_name(name)
            ));
        }
        let near = nearest(name, found.items.iter().map(|item| item.name.as_str()));
        let near = near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
        let name = source_text::display_name(name);
        ToolRefusal::new(format!(
            "there is no skill, recipe or agent file `{name}`; {near}`load` without a name lists all"
        ))
    })
}

/// Returns the answer of `load` as text and as data.
fn load_item(found: &KnowledgeItems, name: &str) -> Result<(String, Value), ToolRefusal> {
    let (own, path) = name.split_once('/').map_or((name, None), |(own, path)| (own, Some(path)));
    let item = find_item(found, own)?;
    let data =
        json!({"name": item.name, "kind": item.kind.as_str(), "origin": item.origin.as_str(), "file": item.shown});
    match (path, &item.folder) {
        (None, _) => {
            let document = read_again(item)?;
            let files = item.folder.as_deref().map(skill_files::list).unwrap_or_default();
            let extras = extras(item, &files, document.recipe.as_ref());
            let text = add_label(item, &item.shown, &item.file, &document.body, &extras);
            Ok((text, data))
        }
        (Some(path), Some(folder)) => {
            // A refusal carries no label, so it does not list file names.
            let read = skill_files::read(&folder.join(path), std::slice::from_ref(folder)).map_err(|reason| {
                let path = source_text::display_name(path);
                let look = format!("`load` with the name `{own}` lists what there is");
                ToolRefusal::new(format!(
                    "`{path}` is no file that can be loaded of the skill `{own}`: {reason}; {look}"
                ))
            });
            let (real, text) = read?;
            let shown = source_text::display_name(&format!("{}/{path}", item.shown.trim_end_matches("/SKILL.md")));
            Ok((add_label(item, &shown, &real, &text, ""), data))
        }
        (Some(_), None) => {
            let kind = item.kind.as_str();
            Err(ToolRefusal::new(format!("`{own}` is one {kind} file, without other files; load `{own}`")))
        }
    }
}

/// Reads the file again, because it may have changed since it was listed.
fn read_again(item: &Item) -> Result<item::ItemDocument, ToolRefusal> {
    find::text(&item.file)
        .and_then(|text| item::read(item.kind, &item.name, &item.file, &text))
        .map_err(|wrong| ToolRefusal::new(format!("`{}` cannot be used: {}; {}", item.name, wrong.problem, wrong.help)))
}

/// Returns the prompt for a user who types `/name …`. The first line may become the session's title.
fn prompt_text(
    found: &KnowledgeItems,
    name: &str,
    given: &Map<String, Value>,
    session: &SessionContext,
) -> Result<String, ToolRefusal> {
    let item = find_item(found, name)?;
    let document = read_again(item)?;
    // An item without parameters takes a free-form request.
    let free = document.recipe.as_ref().is_none_or(|recipe| recipe.parameters.is_empty());
    let asked = if free {
        request_text(name, given)?
    } else {
        given.iter().map(|(key, value)| format!("{key} = {value}")).collect::<Vec<_>>().join(", ")
    };
    let text = match document.recipe {
        Some(recipe) if free => fill_recipe(item, &recipe, &Map::new(), session)?,
        Some(recipe) => fill_recipe(item, &recipe, given, session)?,
        None => document.body,
    };
    let asks = match asked.as_str() {
        "" => format!("The user asks for `/{name}`."),
        asked => format!("The user asks for `/{name}`: {asked}"),
    };
    Ok(format!("{asks}\n\n{}", add_label(item, &item.shown, &item.file, &text, "")))
}

/// Returns the free-form request for an item without parameters. Fails on any other argument.
fn request_text(name: &str, given: &Map<String, Value>) -> Result<String, ToolRefusal> {
    if let Some(key) = given.keys().find(|key| *key != REQUEST) {
        let key = source_text::display_name(key);
        return Err(ToolRefusal::new(format!("`{key}` is no argument of `{name}`; it has `{REQUEST}`")));
    }
    Ok(match given.get(REQUEST) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    })
}

/// Returns the text of a recipe with the given values filled in.
fn fill_recipe(
    item: &Item,
    recipe: &RecipeItem,
    given: &Map<String, Value>,
    session: &SessionContext,
) -> Result<String, ToolRefusal> {
    let folder = item.file.parent().unwrap_or(Path::new("/"));
    let roots: Vec<_> = session.roots.iter().filter_map(|root| std::fs::canonicalize(root).ok()).collect();
    let read = |path: &str| skill_files::read(&session.cwd.join(path), &roots).map(|(_, text)| text);
    recipe
        .fill_in(given, folder, read)
        .map_err(|reason| ToolRefusal::new(format!("the recipe `{}` was not used: {reason}", item.name)))
}

/// Returns the unusable knowledge files for a session in `cwd`, for setup checks.
pub fn problems(cwd: &Path, user: &UserFolders) -> Vec<Problem> {
    find(cwd, user).problems
}

#[cfg(test)]
#[path = "knowledge_tests.rs"]
mod tests;
