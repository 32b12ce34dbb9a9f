//! Serves agents to MCP clients: each selectable mode is a tool, and a call of the tool runs a turn in a session.
//!
//! Invariant: this module converts and decides nothing. The tool list does not change while a client is connected. A
//! turn ends with the request that it answers. Only the client's user answers its questions.

mod folders;
mod outcome;
mod sessions;
mod progress;
mod tools;
mod turn;

use std::path::PathBuf;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CustomRequest, CustomResult, ElicitRequest, Implementation, InputRequest,
    InputRequiredResult, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities,
    ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};

use self::folders::RootError;
use self::sessions::{OpenError, OpenSession, OpenSessions};
use self::tools::AgentTools;
use self::turn::BackgroundTurn;
use crate::adapter::client_asker::{self as ask, ElicitationSupport, PendingQuestion, in_rounds};
use crate::adapter::request_errors::refuse_request;
use crate::adapter::suspension_slots::{SuspensionSlot, SuspensionSlots};
use crate::adapter::suspensions::Suspensions;
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::manifest::ApprovalLevel;
use crate::orchestrator::Orchestrator;
use crate::project::ProjectLoader;
use crate::session::Sessions;
use crate::task::TaskScope;

const ABOUT: &str = "The agents of Skein. Each tool asks one of them, in one way of working, and gives its answer when it \
                     is done. It knows the prompt, its session so far and related pieces of earlier sessions in its folder. It \
                     does not know your conversation. The answer names the session, so that you can continue it.";

/// The sessions, projects and orchestrator that [`AgentMcpServer`] serves, and its settings.
pub struct McpServerConfig {
    pub sessions: Sessions,
    pub projects: Arc<dyn ProjectLoader>,
    pub orchestrator: Orchestrator,
    /// The folder in which the program was started.
    pub cwd: PathBuf,
    /// Further folders below which sessions may work.
    pub roots: Vec<PathBuf>,
    pub approval: Option<ApprovalLevel>,
    /// The places for turns that wait for answers of clients.
    pub suspended: SuspensionSlots,
}

/// An MCP server with agents as tools. A cheap handle.
#[derive(Clone)]
pub struct AgentMcpServer(Arc<Inner>);

struct Inner {
    tools: AgentTools,
    sessions: OpenSessions,
    orchestrator: Orchestrator,
    /// Runs the turns and the timers of `suspended`.
    scope: TaskScope,
    /// Turns and requests that wait for the client's answer.
    suspended: Suspensions<SuspendedRequest>,
}

/// A turn or a request that waits.
struct SuspendedRequest {
    /// The tool. The request with the answers must name the same.
    tool: String,
    waiting: PendingAnswer,
}

enum PendingAnswer {
    /// Dropping it cancels the turn.
    Turn { turn: Box<BackgroundTurn>, asked: Vec<(String, PendingQuestion)> },
    /// A request for a folder that the client's user must allow first.
    Folder { request: Box<CallToolRequestParams>, folder: PathBuf, asked: Box<PendingQuestion> },
}

/// The next step after a request was read.
enum NextStep {
    Attend(Box<BackgroundTurn>),
    /// Returns questions to the client as the result of its request.
    Ask(InputRequiredResult),
}

/// Key of the question about a folder.
const FOLDER: &str = "folder";

impl AgentMcpServer {
    /// Creates a server for the modes of the plan that `offers` accepts.
    pub fn new(front: McpServerConfig, plan: &Plan, offers: impl Fn(&ModeId) -> bool) -> Self {
        let McpServerConfig { sessions, projects, orchestrator, cwd, roots, approval, suspended } = front;
        let scope = TaskScope::new();
        let slots = suspended.of(sessions.grant().principal().name());
        Self(Arc::new(Inner {
            tools: AgentTools::of(plan, offers),
            suspended: Suspensions::new(slots, scope.clone()),
            sessions: OpenSessions::new(sessions, projects, cwd, &roots, approval),
            orchestrator,
            scope,
        }))
    }

    /// Ends every turn. All of them are in the store when this returns.
    pub async fn stop(&self) {
        self.0.suspended.clear();
        self.0.scope.stop().await;
    }

    /// Returns whether a turn or a request waits for an answer of the client.
    pub fn has_suspended(&self) -> bool {
        !self.0.suspended.is_empty()
    }

    /// Returns whether the turn or request with this state waits for an answer of the client.
    pub fn is_suspended(&self, state: &str) -> bool {
        self.0.suspended.contains(state)
    }

    /// Starts a turn, or resumes the suspended one that the request has answers for.
    async fn step(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<NextStep, TurnRefusal> {
        let wrong = |problem: String| TurnRefusal::Request(ErrorData::invalid_params(problem, None));
        let mode = self.0.tools.mode(&request.name);
        let mode = mode.ok_or_else(|| wrong(format!("there is no tool `{}`", request.name)))?;
        let mut request = request;
        if let Some(state) = request.request_state.take() {
            let (waiting, slot) = self.take(&state, &request.name).map_err(TurnRefusal::Request)?;
            let responses = request.input_responses.take().unwrap_or_default();
            match waiting {
                PendingAnswer::Turn { turn, asked } => {
                    let open = ask::give_answers(asked, &responses);
                    if open.is_empty() {
                        return Ok(NextStep::Attend(turn));
                    }
                    let question = self.wait_for_turn(request.name.to_string(), turn, open, Some(slot));
                    return question.map(NextStep::Ask).map_err(TurnRefusal::Request);
                }
                PendingAnswer::Folder { request: first, folder, asked } => match ask::response(&responses, FOLDER) {
                    None => {
                        let question = self.wait_for_folder(*first, folder, *asked, Some(slot));
                        return question.map(NextStep::Ask).map_err(TurnRefusal::Request);
                    }
                    said if ask::allows(said.clone()) => {
                        self.0.sessions.folders().allow(folder);
                        request = *first;
                    }
                    Some(_) => return Err(TurnRefusal::Work(RootError::Outside(folder).to_string())),
                },
            }
        }
        let reach = ElicitationSupport::of(context.client_capabilities().unwrap_or_default());
        let wanted = serde_json::from_value(request.arguments.clone().unwrap_or_default().into());
        let wanted: tools::AskArguments = wanted
            .map_err(|error| TurnRefusal::Work(format!("the arguments do not fit the tool's schema: {error}")))?;
        if wanted.prompt.trim().is_empty() {
            return Err(TurnRefusal::Work("the prompt is empty: say what to do".to_owned()));
        }
        let mut opened = self.open_session(mode, &wanted, context).await?;
        if let Err(OpenError::Folder(RootError::Outside(folder))) = &opened
            && let Some((asked, answer)) = ask::about_folder(folder, reach)
        {
            if in_rounds(context) {
                let question = self.wait_for_folder(request, folder.clone(), asked, None);
                return question.map(NextStep::Ask).map_err(TurnRefusal::Request);
            }
            asked.put(&context.peer, &context.ct).await;
            if ask::allows(answer.await.ok().flatten()) {
                self.0.sessions.folders().allow(folder.clone());
                opened = self.open_session(mode, &wanted, context).await?;
            }
        }
        let talk = opened.map_err(|error| TurnRefusal::Work(error.to_string()))?;
        let turn = BackgroundTurn::begin(talk, wanted.prompt, reach, &self.0.orchestrator, &self.0.scope);
        turn.map(|turn| NextStep::Attend(Box::new(turn))).map_err(|error| TurnRefusal::Work(error.to_string()))
    }

    /// Opens the session of a call. Fails if the client cancels the call before the session is open.
    async fn open_session(
        &self,
        mode: &ModeId,
        wanted: &tools::AskArguments,
        context: &RequestContext<RoleServer>,
    ) -> Result<Result<Arc<OpenSession>, OpenError>, TurnRefusal> {
        let opened = context.ct.run_until_cancelled(self.0.sessions.open(mode, wanted)).await;
        opened.ok_or_else(|| TurnRefusal::Work("the client cancelled the request".to_owned()))
    }

    /// Forwards progress and questions of a turn until it ends. If the client takes questions as the result of its
    /// request, suspends the turn at the first question.
    async fn attend(
        &self,
        tool: String,
        mut turn: Box<BackgroundTurn>,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let token = context.meta.get_progress_token();
        // Cancelled when no question of the request needs an answer any more.
        let questions_over = context.ct.child_token();
        let mut answering = FuturesUnordered::new();
        let ended = loop {
            tokio::select! {
                biased;
                () = context.ct.cancelled(), if !turn.is_cancelled() => turn.cancel(),
                Some(message) = turn.progress.recv() => {
                    turn.count += 1;
                    if let Some(token) = &token {
                        let mut params = ProgressNotificationParam::new(token.clone(), turn.count as f64);
                        params.message = Some(message);
                        // The transport detects a client that has disconnected.
                        drop(context.peer.notify_progress(params).await);
                    }
                }
                Some(asked) = turn.questions.recv() => {
                    if in_rounds(context) {
                        // The client does not read the result of a request that it cancelled.
                        if turn.is_cancelled() {
                            continue;
                        }
                        let mut asked = vec![asked];
                        asked.extend(std::iter::from_fn(|| turn.questions.try_recv().ok()));
                        let keys = (1..).map(|number| format!("question_{number}"));
                        return self.wait_for_turn(tool, turn, keys.zip(asked).collect(), None).map(Into::into);
                    }
                    answering.push(asked.put(&context.peer, &questions_over));
                }
                Some(()) = answering.next(), if !answering.is_empty() => {}
                ended = &mut turn.ended => break ended,
            }
        };
        questions_over.cancel();
        while answering.next().await.is_some() {}
        Ok(outcome::of(&turn.session, ended.ok()).await.into())
    }

    /// Suspends a turn until the client sends answers. Returns its questions. Fails if too many turns wait, and ends
    /// the turn then.
    fn wait_for_turn(
        &self,
        tool: String,
        turn: Box<BackgroundTurn>,
        asked: Vec<(String, PendingQuestion)>,
        slot: Option<SuspensionSlot>,
    ) -> Result<InputRequiredResult, ErrorData> {
        let requests = asked
            .iter()
            .map(|(key, asked)| (key.clone(), InputRequest::Elicitation(ElicitRequest::new(asked.params.clone()))))
            .collect();
        let state = self.keep(tool, PendingAnswer::Turn { turn, asked }, slot)?;
        Ok(InputRequiredResult::new(Some(requests), Some(state)))
    }

    /// Suspends a request until the client's user has answered about the folder. Returns the question. Fails if too
    /// many requests wait.
    fn wait_for_folder(
        &self,
        request: CallToolRequestParams,
        folder: PathBuf,
        asked: PendingQuestion,
        slot: Option<SuspensionSlot>,
    ) -> Result<InputRequiredResult, ErrorData> {
        let question = InputRequest::Elicitation(ElicitRequest::new(asked.params.clone()));
        let requests = [(FOLDER.to_owned(), question)].into_iter().collect();
        let tool = request.name.to_string();
        let waiting = PendingAnswer::Folder { request: Box::new(request), folder, asked: Box::new(asked) };
        let state = self.keep(tool, waiting, slot)?;
        Ok(InputRequiredResult::new(Some(requests), Some(state)))
    }

    /// Keeps a suspended turn or request until the client answers or its time is over. Returns its request state. Fails
    /// if too many wait.
    fn keep(&self, tool: String, waiting: PendingAnswer, slot: Option<SuspensionSlot>) -> Result<String, ErrorData> {
        let state = self.0.suspended.keep(SuspendedRequest { tool, waiting }, slot);
        state.map_err(|error| ErrorData::invalid_request(error.to_string(), None))
    }

    /// Returns what waits for answers with this state, and its place. Fails if there is nothing, or it is of another
    /// tool.
    fn take(&self, state: &str, tool: &str) -> Result<(PendingAnswer, SuspensionSlot), ErrorData> {
        let problem = "nothing waits for these answers any more: ask again, in the same session";
        let taken = self.0.suspended.take(state, |suspended| suspended.tool == tool);
        let (suspended, slot) = taken.ok_or_else(|| ErrorData::invalid_params(problem, None))?;
        Ok((suspended.waiting, slot))
    }
}

/// The reason why no turn was started.
enum TurnRefusal {
    /// The request is invalid.
    Request(ErrorData),
    /// The request is valid but cannot be served; the client's model reads the reason and can correct it.
    Work(String),
}

impl ServerHandler for AgentMcpServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("skein", env!("CARGO_PKG_VERSION")))
            .with_instructions(ABOUT)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.0.tools.get(name).cloned()
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.0.tools.all().cloned().collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let tool = request.name.to_string();
        match self.step(request, &context).await {
            Ok(NextStep::Attend(turn)) => self.attend(tool, turn, &context).await,
            Ok(NextStep::Ask(required)) => Ok(required.into()),
            Err(TurnRefusal::Work(problem)) => Ok(outcome::refusal_result(problem).into()),
            Err(TurnRefusal::Request(error)) => Err(error),
        }
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Err(refuse_request(request))
    }
}

impl std::fmt::Debug for AgentMcpServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AgentMcpServer").field(&self.0.tools).finish()
    }
}

impl std::fmt::Debug for McpServerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("McpServerConfig").field("cwd", &self.cwd).finish_non_exhaustive()
    }
}
