//! Keeps single-page HTML apps that the model writes. Checks each page before saving it, and keeps every version.
//!
//! Invariant: a page reaches only the origins in its metadata, regardless of its contents. A failed call changes
//! nothing.

mod check;
mod library;
mod network;
mod page;
mod report;
mod store;

use std::path::Path;
use std::sync::Arc;

use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{
    ContentBlock, ListResourceTemplatesResult, ListResourcesResult, PaginatedRequestParams, ReadResourceRequestParams,
    ReadResourceResponse, ReadResourceResult, ResourceContents, ResourceTemplate,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, tool, tool_handler, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use url::Url;

pub use library::{AppLibrary, AppLibraryError, AppListing, AppSummary, DeletedApp, UnreadableApp};
use network::{MAX_ORIGINS, NetworkOrigin};
use page::{App, MIME, VIEW, VIEW_PAGE, Version};
use report::{about, app_result, list_result, object, summary};
pub use store::AppReadError;
use store::{AppName, AppStore};

use super::answer::{self, ToolRefusal, ToolReply};
use super::developer::edit::{self, Replacement};
use super::schema;
use crate::clock;

const MAX_PRD: usize = 20_000;
const MAX_NOTE: usize = 500;
/// Allowed width and height of a view, in CSS pixels.
const SIZES: std::ops::RangeInclusive<u32> = 100..=4_000;

/// The `apps` service. Clones share the folder.
#[derive(Clone)]
pub struct AppsService {
    tool_router: Arc<ToolRouter<Self>>,
    shelf: AppStore,
}

impl std::fmt::Debug for AppsService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AppsService").field("shelf", &self.shelf).finish_non_exhaustive()
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CreateApp {
    /// Lower-case words joined by hyphens, e.g. water-tracker
    #[schemars(length(min = 1))]
    name: String,
    /// Product description: purpose, features, data, controls
    #[schemars(length(min = 1, max = 20000))]
    prd: String,
    /// One whole document, everything inline, at most 200,000 bytes
    #[schemars(length(min = 1))]
    html: String,
    /// Preferred width in CSS pixels
    #[schemars(range(min = 100, max = 4000))]
    width: Option<u32>,
    /// Preferred height in CSS pixels
    #[schemars(range(min = 100, max = 4000))]
    height: Option<u32>,
    /// Origins it may reach, e.g. `https://api.example.com`. Only on the user's request
    #[serde(default)]
    #[schemars(length(max = 8))]
    network: Vec<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct UpdateApp {
    /// Name of the app
    #[schemars(length(min = 1))]
    name: String,
    /// The change and why, for the history
    #[schemars(length(min = 1, max = 500))]
    note: String,
    /// Whole new page, or `edits`
    #[schemars(length(min = 1))]
    html: Option<String>,
    /// Replacements in the page, in order
    #[schemars(length(max = 100))]
    edits: Option<Vec<Replacement>>,
    /// New product description
    #[schemars(length(min = 1, max = 20000))]
    prd: Option<String>,
    /// New width in CSS pixels
    #[schemars(range(min = 100, max = 4000))]
    width: Option<u32>,
    /// New height in CSS pixels
    #[schemars(range(min = 100, max = 4000))]
    height: Option<u32>,
    /// Replaces the origins
    #[schemars(length(max = 8))]
    network: Option<Vec<String>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadApp {
    /// Name of the app
    #[schemars(length(min = 1))]
    name: String,
    /// Default: current
    #[schemars(range(min = 1))]
    version: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OneApp {
    /// Name of the app
    #[schemars(length(min = 1))]
    name: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RestoreApp {
    /// Name of the app
    #[schemars(length(min = 1))]
    name: String,
    /// Version to restore; read_app lists them
    #[schemars(range(min = 1))]
    version: u32,
}

#[tool_router]
impl AppsService {
    /// Creates the service with its apps below `folder`.
    pub fn new(folder: &Path) -> Self {
        Self { tool_router: Arc::new(schema::slim(Self::tool_router())), shelf: AppStore::new(folder.join("apps")) }
    }

    #[tool(
        description = "Keep a new app: one self-contained HTML page",
        meta = report::model_only_meta(None),
        annotations(
            read_only_hint = false,
            destructive_hint = false,
            idempotent_hint = false,
            open_world_hint = false
        )
    )]
    async fn create_app(&self, Parameters(request): Parameters<CreateApp>) -> ToolReply {
        let name = AppName::parse(&request.name)?;
        let made = self.work(move |shelf| {
            shelf.change(&name, |there, version| {
                if let Some(there) = there? {
                    return Err(ToolRefusal::new(format!(
                        "there is an app `{}` already, \"{}\" in version {}; take another name, or change it with `update_app`",
                        there.name, there.title, there.version()
                    )));
                }
                check_app(App {
                    name: name.as_str().to_owned(),
                    title: String::new(),
                    width: request.width,
                    height: request.height,
                    network: origins(request.network)?,
                    versions: vec![new_version(version, "created")],
                    prd: request.prd,
                    html: request.html,
                })
            })
        });
        let app = made.await?;
        Ok(app_result(format!("created `{}`, version {}: \"{}\"", app.name, app.version(), app.title), &app, json!({})))
    }

    #[tool(
        description = "Make a new version by exact replacements or a whole page; the name stays",
        meta = report::model_only_meta(None),
        annotations(
            read_only_hint = false,
            destructive_hint = false,
            idempotent_hint = false,
            open_world_hint = false
        )
    )]
    async fn update_app(&self, Parameters(request): Parameters<UpdateApp>) -> ToolReply {
        let name = AppName::parse(&request.name)?;
        let made = self.work(move |shelf| {
            shelf.change(&name, |there, version| {
                let there = there?.ok_or_else(|| no_such_app(shelf, &name))?;
                check_app(apply_update(there, request, version)?)
            })
        });
        let app = made.await?;
        let text = format!("`{}` is now version {}; `restore_app` brings an earlier one back", app.name, app.version());
        Ok(app_result(text, &app, json!({})))
    }

    #[tool(
        description = "Read an app: product description, history and page",
        meta = report::model_only_meta(None),
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn read_app(&self, Parameters(request): Parameters<ReadApp>) -> ToolReply {
        let name = AppName::parse(&request.name)?;
        let app = self.work(move |shelf| match request.version {
            Some(version) => earlier(shelf, &name, version),
            None => shelf.get(&name)?.ok_or_else(|| no_such_app(shelf, &name)),
        });
        let app = app.await?;
        let mut result = answer::with_data(about(&app), summary(&app));
        result.content.push(ContentBlock::text(app.html));
        Ok(result)
    }

    #[tool(
        description = "List apps, also deleted ones",
        meta = report::model_only_meta(None),
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn list_apps(&self) -> ToolReply {
        let listing = self.work(AppStore::list).await?;
        Ok(list_result(&listing))
    }

    #[tool(
        description = "Delete an app; its versions stay for `restore_app`",
        meta = report::model_only_meta(None),
        annotations(read_only_hint = false, destructive_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn delete_app(&self, Parameters(request): Parameters<OneApp>) -> ToolReply {
        let name = AppName::parse(&request.name)?;
        let gone = self.work(move |shelf| {
            let newest = shelf.delete(&name)?.ok_or_else(|| no_such_app(shelf, &name))?;
            Ok((name, newest))
        });
        let (name, newest) = gone.await?;
        let name = name.as_str();
        let text = format!("deleted `{name}`; `restore_app` with version {newest} brings it back");
        Ok(answer::with_data(text, json!({"deleted": name, "newest_version": newest})))
    }

    #[tool(
        description = "Make an earlier version, or a deleted app, the current one",
        meta = report::model_only_meta(None),
        annotations(
            read_only_hint = false,
            destructive_hint = false,
            idempotent_hint = false,
            open_world_hint = false
        )
    )]
    async fn restore_app(&self, Parameters(request): Parameters<RestoreApp>) -> ToolReply {
        let name = AppName::parse(&request.name)?;
        let wanted = request.version;
        let made = self.work(move |shelf| {
            let old = earlier(shelf, &name, wanted)?;
            shelf.change(&name, |there, version| {
                // An unreadable current file does not prevent a restore.
                let there = there.ok().flatten();
                if there.as_ref().is_some_and(|there| there.version() == wanted) {
                    return Err(ToolRefusal::new(format!("`{}` is in version {wanted} already", name.as_str())));
                }
                let kept = || shelf.versions(&name).unwrap_or_default().into_iter();
                let newest = || kept().find_map(|version| shelf.version(&name, version).ok().flatten());
                let mut versions = there.or_else(newest).map_or_else(|| old.versions.clone(), |app| app.versions);
                versions.push(new_version(version, &format!("version {wanted} restored")));
                Ok(App { versions, ..old })
            })
        });
        let app = made.await?;
        Ok(app_result(
            format!("`{}` is now version {}, the same as version {wanted}", app.name, app.version()),
            &app,
            json!({}),
        ))
    }

    #[tool(
        description = "Where to see an app: its `ui://` resource and a file for the user's browser",
        meta = report::model_only_meta(Some(VIEW)),
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn open_app(&self, Parameters(request): Parameters<OneApp>) -> ToolReply {
        let name = AppName::parse(&request.name)?;
        let found = self.work(move |shelf| {
            let app = shelf.get(&name)?.ok_or_else(|| no_such_app(shelf, &name))?;
            Ok((app, shelf.file(&name)))
        });
        let (app, file) = found.await?;
        let url = Url::from_file_path(&file)
            .map_err(|()| ToolRefusal::new("the data folder has no absolute path; tell the user"))?;
        let text =
            format!("\"{}\", version {}. Tell the user to open this in a browser: {url}", app.title, app.version());
        Ok(app_result(text, &app, json!({"file": file, "url": url.as_str()})))
    }

    /// Runs `work` on a blocking thread, because it may wait for the disk or another process.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&AppStore) -> Result<T, ToolRefusal> + Send + 'static,
    ) -> Result<T, ToolRefusal> {
        let shelf = self.shelf.clone();
        let done = crate::task::run_blocking(move || work(&shelf)).await;
        done.unwrap_or_else(|error| Err(ToolRefusal::new(format!("nothing was changed: {error}"))))
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for AppsService {
    fn get_info(&self) -> rmcp::model::ServerConfig {
        let capabilities = rmcp::model::ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_resources_list_changed()
            .build();
        rmcp::model::ServerConfig::new(capabilities)
            .with_server_info(rmcp::model::Implementation::new("apps", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let listing = self.work(AppStore::list).await.map_err(|refusal| ErrorData::internal_error(refusal.0, None))?;
        let apps = listing.apps.iter().map(report::resource);
        Ok(ListResourcesResult::with_all_items(std::iter::once(report::view()).chain(apps).collect()))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let mut app = ResourceTemplate::new(page::uri("{name}"), "app");
        app.description = Some("An app as it is now, also one that was made since the list".to_owned());
        app.mime_type = Some(MIME.to_owned());
        Ok(ListResourceTemplatesResult::with_all_items(vec![app]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let unknown = || ErrorData::invalid_params(format!("there is no resource `{}`", request.uri), None);
        let (text, meta) = if request.uri == VIEW {
            (VIEW_PAGE.to_owned(), page::meta(&[]))
        } else {
            let name = request.uri.strip_prefix(&page::uri("")).ok_or_else(unknown)?;
            let name = AppName::parse(name).map_err(|_| unknown())?;
            let app = self.work(move |shelf| shelf.get(&name)).await;
            let app = app.map_err(|refusal| ErrorData::internal_error(refusal.0, None))?.ok_or_else(unknown)?;
            (app.to_resource(), app.meta())
        };
        let contents = ResourceContents::TextResourceContents {
            mime_type: Some(MIME.to_owned()),
            text,
            meta: object(meta),
            uri: request.uri,
        };
        Ok(ReadResourceResponse::Complete(ReadResourceResult::new(vec![contents])))
    }
}

const INSTRUCTIONS: &str = "An app is one HTML document with everything inline. It cannot leave its page and reaches nothing \
                            but what `network` names. localStorage works where the host allows it.";

/// Checks the description, size and page of an app, and sets its title from the page.
fn check_app(mut app: App) -> Result<App, ToolRefusal> {
    if app.prd.trim().is_empty() || app.prd.chars().count() > MAX_PRD {
        return Err(ToolRefusal::new(format!(
            "`prd` has 1 to {MAX_PRD} characters; describe the purpose and the features"
        )));
    }
    if let Some(size) = [app.width, app.height].into_iter().flatten().find(|size| !SIZES.contains(size)) {
        let (least, most) = SIZES.into_inner();
        return Err(ToolRefusal::new(format!(
            "{size} is no size for an app: `width` and `height` are {least} to {most} pixels"
        )));
    }
    app.title = check::check(&app.html, &app.network)?;
    Ok(app)
}

fn apply_update(mut app: App, request: UpdateApp, version: u32) -> Result<App, ToolRefusal> {
    let note = request.note.trim();
    if note.is_empty() || note.chars().count() > MAX_NOTE {
        return Err(ToolRefusal::new(format!("`note` has 1 to {MAX_NOTE} characters; say what changed and why")));
    }
    let before = app.clone();
    app.html = match (request.html, request.edits) {
        (Some(_), Some(_)) => return Err(ToolRefusal::new("give either `html` or `edits`")),
        (Some(html), None) => html,
        (None, Some(edits)) => edit::apply(&app.html, &edits, check::MAX_HTML)
            .map_err(|ToolRefusal(reason)| ToolRefusal(format!("`{}` was not changed: {reason}", app.name)))?,
        (None, None) => app.html,
    };
    app.prd = request.prd.unwrap_or(app.prd);
    app.width = request.width.or(app.width);
    app.height = request.height.or(app.height);
    if let Some(network) = request.network {
        app.network = origins(network)?;
    }
    if app == before {
        return Err(ToolRefusal::new(
            "nothing would change; give `html`, `edits`, `prd`, `width`, `height` or `network`",
        ));
    }
    app.versions.push(new_version(version, note));
    Ok(app)
}

fn origins(network: Vec<String>) -> Result<Vec<NetworkOrigin>, ToolRefusal> {
    if network.len() > MAX_ORIGINS {
        return Err(ToolRefusal::new(format!(
            "at most {MAX_ORIGINS} origins in `network`; an app that needs more is no small app"
        )));
    }
    network.into_iter().map(|origin| NetworkOrigin::try_from(origin).map_err(ToolRefusal::of)).collect()
}

fn new_version(version: u32, note: &str) -> Version {
    Version { version, saved: clock::iso(clock::now()), note: note.to_owned() }
}

fn no_such_app(shelf: &AppStore, name: &AppName) -> ToolRefusal {
    let listing = shelf.list().unwrap_or_default();
    let name = name.as_str();
    if let Some((_, version)) = listing.deleted.iter().find(|(deleted, _)| deleted == name) {
        return ToolRefusal::new(format!("`{name}` was deleted; `restore_app` with version {version} brings it back"));
    }
    let near = crate::ids::nearest(name, listing.apps.iter().map(|app| app.name.as_str()));
    let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    ToolRefusal::new(format!("there is no app `{name}`{near}; `list_apps` shows those there are"))
}

fn earlier(shelf: &AppStore, name: &AppName, version: u32) -> Result<App, ToolRefusal> {
    if let Some(app) = shelf.version(name, version)? {
        return Ok(app);
    }
    match shelf.newest(name)? {
        0 => Err(no_such_app(shelf, name)),
        newest => {
            Err(ToolRefusal::new(format!("`{}` has no version {version}; there are 1 to {newest}", name.as_str())))
        }
    }
}

#[cfg(test)]
#[path = "apps_tests.rs"]
mod tests;
