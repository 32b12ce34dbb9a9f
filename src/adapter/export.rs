//! A binding offered outward as an MCP server: what the mode may use, and nothing else.
//!
//! Invariant: the list of tools does not change while a client is connected, and every call goes through the binding
//! that counts at that moment.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, GetPromptRequestParams, GetPromptResponse,
    Implementation, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ProgressNotificationParam, ReadResourceRequestParams, ReadResourceResponse,
    ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::broker::{Binding, BoundTool, Requester};
use crate::conversation::Content;
use crate::tool::{CallContext, CallProgress, ServiceError, SessionContext, ToolOutcome};

/// Progress that a slow client has not taken yet; more is dropped, the newest count.
const PROGRESS_BUFFER: usize = 64;

/// A binding as an MCP server. Clones are views of the same, with one list between them.
#[derive(Debug, Clone)]
pub struct BindingServer {
    source: BindingSource,
    session: Arc<SessionContext>,
    names: ToolNaming,
    about: String,
    listed: Arc<OnceLock<BTreeMap<String, ExportedTool>>>,
}

/// Where the binding comes from: whoever holds the session may replace it by another one of the same mode while a
/// client is connected, and from then on the new one judges the calls.
#[derive(Clone)]
pub struct BindingSource {
    binding: Arc<dyn Fn() -> Arc<Binding> + Send + Sync>,
    turn: Arc<dyn Fn() -> CancellationToken + Send + Sync>,
}

impl BindingSource {
    pub fn new(current: impl Fn() -> Arc<Binding> + Send + Sync + 'static) -> Self {
        let never = CancellationToken::new();
        Self { binding: Arc::new(current), turn: Arc::new(move || never.clone()) }
    }

    /// Only in a turn something is called, and with it the call ends. What is given is cancelled when no turn runs.
    #[must_use]
    pub fn in_turns(self, turn: impl Fn() -> CancellationToken + Send + Sync + 'static) -> Self {
        Self { turn: Arc::new(turn), ..self }
    }

    fn current(&self) -> Arc<Binding> {
        (self.binding)()
    }

    fn turn(&self) -> Result<CancellationToken, ErrorData> {
        let turn = (self.turn)();
        if turn.is_cancelled() {
            return Err(ErrorData::invalid_request("no turn of the session runs, so nothing is called", None));
        }
        Ok(turn)
    }
}

/// A binding that stays.
impl From<Arc<Binding>> for BindingSource {
    fn from(binding: Arc<Binding>) -> Self {
        Self::new(move || Arc::clone(&binding))
    }
}

impl std::fmt::Debug for BindingSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BindingSource").field(&self.current()).finish()
    }
}

/// A tool as a client was told of it.
#[derive(Debug)]
struct ExportedTool {
    /// The binding's name of it.
    inside: String,
    tool: Tool,
}

/// What the tools are called on the outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolNaming {
    /// `service__tool`.
    Qualified,
    /// `tool`: for a service that is offered alone.
    Bare,
}

impl BindingServer {
    /// `about` opens the instructions that the client's model reads.
    pub fn new(
        source: impl Into<BindingSource>,
        session: Arc<SessionContext>,
        names: ToolNaming,
        about: impl Into<String>,
    ) -> Self {
        Self { source: source.into(), session, names, about: about.into(), listed: Arc::default() }
    }

    /// The tools by their outside names, as they were when somebody first asked for them.
    fn tool_list(&self) -> &BTreeMap<String, ExportedTool> {
        self.listed.get_or_init(|| {
            let binding = self.source.current();
            let listed = binding.tools().iter().map(|(name, tool)| {
                let outside = self.outside(name, tool).to_owned();
                (outside, ExportedTool { inside: name.clone(), tool: self.tool(name, tool) })
            });
            listed.collect()
        })
    }

    fn outside<'a>(&self, name: &'a str, tool: &'a BoundTool) -> &'a str {
        match self.names {
            ToolNaming::Qualified => name,
            ToolNaming::Bare => tool.spec.name.as_str(),
        }
    }

    /// A prompt's name on the outside; `listed` is the binding's, `own` the service's.
    fn outside_prompt<'a>(&self, listed: &'a str, own: &'a Value) -> &'a str {
        match self.names {
            ToolNaming::Qualified => listed,
            ToolNaming::Bare => own["name"].as_str().unwrap_or(listed),
        }
    }

    fn context(&self, request: &RequestContext<RoleServer>) -> Result<CallContext, ErrorData> {
        self.source.turn()?;
        Ok(CallContext::new(Arc::clone(&self.session)).with_cancel(request.ct.child_token()))
    }

    fn tool(&self, name: &str, tool: &BoundTool) -> Tool {
        let spec = &tool.spec;
        let mut exported =
            Tool::new(self.outside(name, tool).to_owned(), spec.description.clone(), Arc::clone(&spec.input_schema));
        exported.title.clone_from(&spec.title);
        exported.output_schema.clone_from(&spec.output_schema);
        exported.meta = spec.meta.clone().and_then(|meta| serde_json::from_value(meta).ok());
        let hints = &spec.hints;
        exported.annotations = Some(ToolAnnotations::from_raw(
            None,
            hints.read_only,
            hints.destructive,
            hints.idempotent,
            hints.open_world,
        ));
        exported
    }
}

impl ServerHandler for BindingServer {
    fn get_info(&self) -> ServerConfig {
        let binding = self.source.current();
        let builder = ServerCapabilities::builder().enable_tools();
        let mut capabilities = builder.build();
        if binding.has_resources() {
            capabilities.resources = Some(Default::default());
        }
        if binding.has_prompts() {
            capabilities.prompts = Some(Default::default());
        }
        let mut instructions = self.about.clone();
        for (service, said) in binding.instructions() {
            instructions.push_str(&format!("\n\nThe service {service} says of itself:\n{said}"));
        }
        for absent in binding.missing_services().iter().filter(|absent| absent.is_expected()) {
            instructions.push_str(&format!("\n\nThe service {} is missing: {}", absent.service, absent.reason));
        }
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("skein", env!("CARGO_PKG_VERSION")))
            .with_instructions(instructions)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tool_list().get(name).map(|listed| listed.tool.clone())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = self.tool_list().values().map(|listed| listed.tool.clone()).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let binding = self.source.current();
        let Some(listed) = self.tool_list().get(request.name.as_ref()) else {
            let problem = format!("there is no tool `{}` in {}", request.name, binding.mode());
            return Err(ErrorData::invalid_params(problem, None));
        };
        let (heard, mut progress) = tokio::sync::mpsc::channel::<CallProgress>(PROGRESS_BUFFER);
        let (mut call_context, turn) = (self.context(&context)?, self.source.turn()?);
        let (cancel, mut ends) = (call_context.cancel.clone(), true);
        let token = context.meta.get_progress_token();
        if token.is_some() {
            // Full means that the client is slow: it misses some, and hears the next.
            call_context = call_context.with_progress(move |progress| drop(heard.try_send(progress)));
        }
        let call = binding.call(&listed.inside, request.arguments.unwrap_or_default(), call_context);
        tokio::pin!(call);
        let outcome = loop {
            tokio::select! {
                biased;
                Some(progress) = progress.recv() => {
                    if let Some(token) = &token {
                        let mut params = ProgressNotificationParam::new(token.clone(), progress.progress);
                        params.total = progress.total;
                        params.message = progress.message;
                        // A client that went away is noticed by the transport.
                        drop(context.peer.notify_progress(params).await);
                    }
                }
                () = turn.cancelled(), if ends => {
                    cancel.cancel();
                    ends = false;
                }
                outcome = &mut call => break outcome,
            }
        };
        outcome.map(|outcome| CallToolResponse::Complete(result(outcome))).map_err(|error| refusal(&error))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let resources = self.source.current().resources().await;
        let resources = resources.iter().filter(|of| !of.template);
        Ok(ListResourcesResult::with_all_items(resources.filter_map(|of| parse(&of.value)).collect()))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let templates = self.source.current().resources().await;
        let templates = templates.iter().filter(|of| of.template);
        Ok(ListResourceTemplatesResult::with_all_items(templates.filter_map(|of| parse(&of.value)).collect()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let contents =
            self.source.current().read_resource(&request.uri, Requester::Model, self.context(&context)?).await;
        let contents = contents.map_err(|error| refusal(&error))?;
        parse(&contents).map(ReadResourceResponse::Complete).ok_or_else(|| unreadable("resource"))
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let prompts = self.source.current().prompts().await;
        let prompts = prompts.iter().filter_map(|(name, (_, prompt))| {
            let mut prompt = prompt.clone();
            prompt["name"] = Value::String(self.outside_prompt(name, &prompt).to_owned());
            parse(&prompt)
        });
        Ok(ListPromptsResult::with_all_items(prompts.collect()))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let binding = self.source.current();
        let prompts = binding.prompts().await;
        let named = prompts.iter().find(|(name, (_, prompt))| self.outside_prompt(name, prompt) == request.name);
        let Some((name, _)) = named else {
            let problem = format!("there is no prompt `{}` in {}", request.name, binding.mode());
            return Err(ErrorData::invalid_params(problem, None));
        };
        let arguments = request.arguments.unwrap_or_default();
        let prompt = binding.get_prompt(name, arguments, Requester::Model, self.context(&context)?).await;
        let prompt = prompt.map_err(|error| refusal(&error))?;
        parse(&prompt).map(GetPromptResponse::Complete).ok_or_else(|| unreadable("prompt"))
    }
}

/// MCP's JSON, kept as it came from a service, as rmcp's type.
fn parse<T: DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_value(value.clone()).ok()
}

fn unreadable(what: &str) -> ErrorData {
    ErrorData::internal_error(format!("the service's {what} is not valid MCP"), None)
}

fn refusal(error: &ServiceError) -> ErrorData {
    match error {
        ServiceError::Refused { .. } | ServiceError::NotPermitted { .. } => {
            ErrorData::invalid_params(error.to_string(), None)
        }
        ServiceError::Cancelled
        | ServiceError::Died { .. }
        | ServiceError::TimedOut { .. }
        | ServiceError::NotStarted { .. }
        | ServiceError::CircuitOpen { .. } => ErrorData::internal_error(error.to_string(), None),
    }
}

fn result(outcome: ToolOutcome) -> CallToolResult {
    let content = outcome.content.into_iter().map(block).collect();
    let mut result = if outcome.is_error { CallToolResult::error(content) } else { CallToolResult::success(content) };
    result.structured_content = outcome.structured;
    result.meta = outcome.meta.and_then(|meta| serde_json::from_value(meta).ok());
    result
}

fn block(content: Content) -> ContentBlock {
    match content {
        Content::Text(text) | Content::Injected(text) => ContentBlock::text(text),
        Content::Image { mime, data } => ContentBlock::image(data, mime),
        Content::Audio { mime, data } => ContentBlock::audio(data, mime),
        Content::Link(value) => match parse(&value) {
            Some(link) => ContentBlock::ResourceLink(link),
            None => ContentBlock::text(value.to_string()),
        },
        Content::Resource(value) => match parse(&value) {
            Some(resource) => ContentBlock::Resource(resource),
            None => ContentBlock::text(value.to_string()),
        },
    }
}
