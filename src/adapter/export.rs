//! Serves a binding as an MCP server: the tools, resources and prompts that its mode may use, and nothing else.
//!
//! Invariant: the tool list does not change while a client is connected, and every call goes through the binding that
//! is current at that moment.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CustomRequest, CustomResult, GetPromptRequestParams, GetPromptResponse,
    GetPromptResult, Implementation, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ReadResourceRequestParams,
    ReadResourceResponse, ReadResourceResult, ResultType, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::call_results::{parse, refusal, result};
use super::client_calls::{ClientAnswer, ClientCall, ClientCalls, buffer_progress, cancel_at_end};
use super::request_errors::{missing_arguments, refuse_request};
use super::suspension_slots::SuspensionSlots;
use crate::broker::{Binding, BoundTool, Requester, RequirementSource, ServiceResource};
use crate::tool::{CallContext, ServiceError, SessionContext, ToolOutcome};

/// Services whose tools work only in a session that Skein runs: they need its delegator or its service manager.
pub const SESSION_SERVICES: [&str; 2] = ["summon", "extensionmanager"];

/// An MCP server for a binding. Clones share one tool list.
#[derive(Debug, Clone)]
pub struct BindingServer {
    origin: CallOrigin,
    names: ToolNaming,
    about: String,
    /// Services whose tools are not served.
    excluded: Vec<String>,
    listed: Arc<OnceLock<BTreeMap<String, ExportedTool>>>,
    /// The calls whose questions go to the client. `None` if they go to the user of the session.
    client_calls: Option<AskingCalls>,
}

/// The calls whose questions go to the client.
#[derive(Debug, Clone)]
struct AskingCalls {
    tools: ClientCalls<ToolOutcome>,
    /// Resources and prompts, as MCP's JSON.
    values: ClientCalls<Value>,
}

/// The origin of the calls that a server receives, and the binding that decides on them.
#[derive(Debug, Clone)]
enum CallOrigin {
    /// A client or an external agent, in this session.
    Session { source: BindingSource, session: Arc<SessionContext> },
    /// The program of a service, in the session whose call it works on.
    Service(RequirementSource),
}

impl CallOrigin {
    /// Returns the binding that decides on calls now. `None` if the session of a service has none.
    fn binding(&self) -> Option<Arc<Binding>> {
        match self {
            CallOrigin::Session { source, .. } => Some(source.current()),
            CallOrigin::Service(source) => source.binding(),
        }
    }

    /// Returns the binding for a call.
    fn require_binding(&self) -> Result<Arc<Binding>, ErrorData> {
        let unbound = "no session uses the service that asks, so nothing is called";
        self.binding().ok_or_else(|| ErrorData::invalid_request(unbound, None))
    }

    /// Returns the context of a call, and a token that is cancelled when the call must end. Fails if nothing may be
    /// called now.
    fn begin(&self, request: &RequestContext<RoleServer>) -> Result<(CallContext, CancellationToken), ErrorData> {
        let (context, end) = match self {
            CallOrigin::Session { source, session } => (CallContext::new(Arc::clone(session)), source.turn()?),
            CallOrigin::Service(source) => source.context().ok_or_else(|| {
                let problem = format!(
                    "`{}` works on no call of a session now, so it may not call `{}`",
                    source.caller(),
                    source.service()
                );
                ErrorData::invalid_request(problem, None)
            })?,
        };
        // The task of the turn does not make the call.
        Ok((context.in_running_turn().with_cancel(request.ct.child_token()), end))
    }
}

/// A source of the current binding of a session. The session may replace it with another one of the same mode while a
/// client is connected; from then on the new one decides on calls.
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

    /// Allows calls only during a turn, and cancels them with it. `turn` returns the token of the current turn, or a
    /// cancelled one if no turn is running.
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

/// A source that always returns the same binding.
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

/// A tool as it was listed to the client.
#[derive(Debug)]
struct ExportedTool {
    /// The name of the tool in the binding.
    inside: String,
    tool: Tool,
}

/// The form of the tool names that clients see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolNaming {
    /// `service__tool`.
    Qualified,
    /// `tool`, for a binding with a single service.
    Bare,
}

/// Returns the start of the instructions of a server with the tools of a mode.
pub fn about_mode(mode: &dyn std::fmt::Display, description: &str) -> String {
    format!("Skein in the mode {mode}: {description} Only the tools of this mode exist here.")
}

/// Returns the start of the instructions of a server with one service.
pub fn about_service(service: &str) -> String {
    format!("The service {service} of Skein, with all its tools.")
}

impl BindingServer {
    /// Creates a server. `about` is the start of the instructions for the client's model.
    pub fn new(
        source: impl Into<BindingSource>,
        session: Arc<SessionContext>,
        names: ToolNaming,
        about: impl Into<String>,
    ) -> Self {
        let origin = CallOrigin::Session { source: source.into(), session };
        Self { origin, names, about: about.into(), excluded: Vec::new(), listed: Arc::default(), client_calls: None }
    }

    /// Creates a server for the program of a service: it serves the service that the program requires, and nothing else.
    pub fn for_service(source: RequirementSource) -> Self {
        let about = format!(
            "The service {}, for the service {}. It can be called while {} works on a call of a session.",
            source.service(),
            source.caller(),
            source.caller()
        );
        let (origin, names) = (CallOrigin::Service(source), ToolNaming::Bare);
        Self { origin, names, about, excluded: Vec::new(), listed: Arc::default(), client_calls: None }
    }

    /// Does not serve the tools and instructions of these services.
    #[must_use]
    pub fn without_services(self, services: &[&str]) -> Self {
        Self { excluded: services.iter().map(ToString::to_string).collect(), ..self }
    }

    /// Sends the questions of tools and services to the client that makes the call. A call that waits for an answer
    /// takes one of the places of the principal.
    #[must_use]
    pub fn with_client_questions(self, slots: &SuspensionSlots, principal: &str) -> Self {
        let slots = slots.of(principal);
        let calls = AskingCalls { tools: ClientCalls::new(slots.clone()), values: ClientCalls::new(slots) };
        Self { client_calls: Some(calls), ..self }
    }

    /// Returns whether a call waits for an answer of a client.
    pub fn has_suspended(&self) -> bool {
        let calls = self.client_calls.as_ref();
        calls.is_some_and(|calls| calls.tools.has_suspended() || calls.values.has_suspended())
    }

    /// Returns whether the call with this request state waits for an answer of a client.
    pub fn is_suspended(&self, state: &str) -> bool {
        let calls = self.client_calls.as_ref();
        calls.is_some_and(|calls| calls.tools.is_suspended(state) || calls.values.is_suspended(state))
    }

    /// Ends the calls that wait for answers of clients, and all others whose questions go to them.
    pub async fn stop(&self) {
        if let Some(calls) = &self.client_calls {
            calls.tools.stop().await;
            calls.values.stop().await;
        }
    }

    /// Gets a resource or a prompt with `run`. Returns it, or the questions that the client must answer first.
    async fn value<F>(
        &self,
        call: ClientCall,
        context: &RequestContext<RoleServer>,
        run: impl FnOnce(CallContext) -> F,
    ) -> Result<ClientAnswer<Value>, ErrorData>
    where
        F: Future<Output = Result<Value, ServiceError>> + Send + 'static,
    {
        if let Some(calls) = &self.client_calls {
            return calls.values.answer(call, context, run).await;
        }
        let cancel = call.context.cancel.clone();
        let value = cancel_at_end(run(call.context), &cancel, &call.end).await;
        value.map(ClientAnswer::Complete).map_err(|error| refusal(&error))
    }

    fn serves(&self, service: &str) -> bool {
        self.excluded.iter().all(|excluded| excluded != service)
    }

    /// Returns the tools by the names that clients see. The first call with a binding fixes the list. `None` before
    /// that.
    fn tool_list(&self) -> Option<&BTreeMap<String, ExportedTool>> {
        if let Some(listed) = self.listed.get() {
            return Some(listed);
        }
        let binding = self.origin.binding()?;
        let served = binding.tools().iter().filter(|(_, tool)| self.serves(tool.service.as_str()));
        let listed = served.map(|(name, tool)| {
            let outside = self.outside(name, tool).to_owned();
            (outside, ExportedTool { inside: name.clone(), tool: self.tool(name, tool) })
        });
        Some(self.listed.get_or_init(|| listed.collect()))
    }

    fn outside<'a>(&self, name: &'a str, tool: &'a BoundTool) -> &'a str {
        match self.names {
            ToolNaming::Qualified => name,
            ToolNaming::Bare => tool.spec.name.as_str(),
        }
    }

    /// Returns the name of a prompt that clients see. `listed` is its name in the binding, `own` the service's
    /// definition.
    fn outside_prompt<'a>(&self, listed: &'a str, own: &'a Value) -> &'a str {
        match self.names {
            ToolNaming::Qualified => listed,
            ToolNaming::Bare => own["name"].as_str().unwrap_or(listed),
        }
    }

    async fn resources(&self) -> Vec<ServiceResource> {
        match self.origin.binding() {
            Some(binding) => binding.resources().await,
            None => Vec::new(),
        }
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
        let builder = ServerCapabilities::builder().enable_tools();
        let mut capabilities = builder.build();
        let mut instructions = self.about.clone();
        if let Some(binding) = self.origin.binding() {
            if binding.has_resources() {
                capabilities.resources = Some(Default::default());
            }
            if binding.has_prompts() {
                capabilities.prompts = Some(Default::default());
            }
            let said = binding.instructions().into_iter();
            for (service, said) in said.filter(|(service, _)| self.serves(service.as_str())) {
                instructions.push_str(&format!("\n\nThe service {service} says of itself:\n{said}"));
            }
            for absent in binding.missing_services().iter().filter(|absent| absent.is_expected()) {
                instructions.push_str(&format!("\n\nThe service {} is missing: {}", absent.service, absent.reason));
            }
        }
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("skein", env!("CARGO_PKG_VERSION")))
            .with_instructions(instructions)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tool_list()?.get(name).map(|listed| listed.tool.clone())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let listed = self.tool_list().into_iter().flat_map(BTreeMap::values);
        let tools = listed.map(|listed| listed.tool.clone()).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let binding = self.origin.require_binding()?;
        let Some(listed) = self.tool_list().and_then(|listed| listed.get(request.name.as_ref())) else {
            let problem = format!("there is no tool `{}` in {}", request.name, binding.mode());
            return Err(ErrorData::invalid_params(problem, None));
        };
        let missing = missing_arguments(&listed.tool, request.arguments.as_ref());
        if !missing.is_empty() {
            let problem = format!("the call of `{}` lacks {}", request.name, missing.join(", "));
            return Err(ErrorData::invalid_params(problem, None));
        }
        let (mut call_context, end) = self.origin.begin(&context)?;
        if let Some(calls) = &self.client_calls {
            let (name, arguments) = (listed.inside.clone(), request.arguments.unwrap_or_default());
            let (state, responses) = (request.request_state, request.input_responses);
            let call = ClientCall { target: name.clone(), state, responses, context: call_context, end };
            let run = move |context| async move { binding.call(&name, arguments, context).await };
            return Ok(match calls.tools.answer(call, &context, run).await? {
                ClientAnswer::Complete(outcome) => CallToolResponse::Complete(result(outcome)),
                ClientAnswer::Questions(required) => required.into(),
            });
        }
        let (listener, mut progress) = buffer_progress();
        let (cancel, mut ends) = (call_context.cancel.clone(), true);
        let token = context.meta.get_progress_token();
        if token.is_some() {
            call_context = call_context.with_progress(listener);
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
                        // The transport detects a client that has disconnected.
                        drop(context.peer.notify_progress(params).await);
                    }
                }
                () = end.cancelled(), if ends => {
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
        let resources = self.resources().await;
        let resources = resources.iter().filter(|of| !of.template);
        Ok(ListResourcesResult::with_all_items(resources.filter_map(|of| parse(&of.value)).collect()))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let templates = self.resources().await;
        let templates = templates.iter().filter(|of| of.template);
        Ok(ListResourceTemplatesResult::with_all_items(templates.filter_map(|of| parse(&of.value)).collect()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let binding = self.origin.require_binding()?;
        let (call_context, end) = self.origin.begin(&context)?;
        let (uri, state, responses) = (request.uri, request.request_state, request.input_responses);
        let call = ClientCall { target: format!("resource {uri}"), state, responses, context: call_context, end };
        let run = move |context| async move { binding.read_resource(&uri, Requester::Model, context).await };
        let contents = match self.value(call, &context, run).await? {
            ClientAnswer::Complete(contents) => contents,
            ClientAnswer::Questions(required) => return Ok(required.into()),
        };
        let mut read: ReadResourceResult = parse(&contents).ok_or_else(|| unreadable("resource"))?;
        // An older service sends no type. rmcp removes it for older clients.
        read.result_type = Some(ResultType::COMPLETE);
        Ok(ReadResourceResponse::Complete(read))
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let prompts = match self.origin.binding() {
            Some(binding) => binding.prompts().await,
            None => BTreeMap::new(),
        };
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
        let binding = self.origin.require_binding()?;
        let prompts = binding.prompts().await;
        let named = prompts.iter().find(|(name, (_, prompt))| self.outside_prompt(name, prompt) == request.name);
        let Some(name) = named.map(|(name, _)| name.clone()) else {
            let problem = format!("there is no prompt `{}` in {}", request.name, binding.mode());
            return Err(ErrorData::invalid_params(problem, None));
        };
        let arguments = request.arguments.unwrap_or_default();
        let (call_context, end) = self.origin.begin(&context)?;
        let (state, responses) = (request.request_state, request.input_responses);
        let call = ClientCall { target: format!("prompt {name}"), state, responses, context: call_context, end };
        let run = move |context| async move { binding.get_prompt(&name, arguments, Requester::Model, context).await };
        let prompt = match self.value(call, &context, run).await? {
            ClientAnswer::Complete(prompt) => prompt,
            ClientAnswer::Questions(required) => return Ok(required.into()),
        };
        let mut prompt: GetPromptResult = parse(&prompt).ok_or_else(|| unreadable("prompt"))?;
        prompt.result_type = Some(ResultType::COMPLETE);
        Ok(GetPromptResponse::Complete(prompt))
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Err(refuse_request(request))
    }
}

fn unreadable(what: &str) -> ErrorData {
    ErrorData::internal_error(format!("the service's {what} is not valid MCP"), None)
}
