//! Delegates tasks to other agents through the session's delegator.
//!
//! Invariant: no tool here changes anything by itself. The agent's own binding decides each call of the task, never
//! more permissively than the calling session would.

use std::sync::Arc;

use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler, tool, tool_handler, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::answer::{self, ToolRefusal, ToolReply};
use super::{call_context, schema};
use crate::tool::CallContext;
use crate::tool::delegate::{Delegator, TaskReport, TaskRequest, TaskState};

/// Maximum bytes of a task with its context.
const MAX_TEXT: usize = 100_000;

/// The `summon` service. It has no state.
#[derive(Clone)]
pub struct SummonService {
    tool_router: Arc<ToolRouter<Self>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Delegate {
    /// Complete task: goal, paths, constraints, what to report. The agent sees nothing else.
    #[schemars(length(min = 1, max = 100000))]
    task: String,
    /// Default: the agent that fits best.
    #[schemars(length(max = 100))]
    agent: Option<String>,
    /// Default: the agent's default mode.
    #[schemars(length(max = 100))]
    mode: Option<String>,
    /// Return at once with an id for task_status and task_cancel.
    background: Option<bool>,
    /// Additional information: findings, decisions, loaded text.
    #[schemars(length(max = 100000))]
    context: Option<String>,
    /// Short name that `after` of other tasks can use.
    #[schemars(length(max = 100))]
    name: Option<String>,
    /// Names of tasks that must be done first. Their results are passed on.
    #[schemars(length(max = 50))]
    after: Option<Vec<String>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TaskStatus {
    /// Default: all tasks of this session.
    #[schemars(length(max = 100))]
    id: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TaskCancel {
    /// Id or name of the task.
    #[schemars(length(min = 1))]
    id: String,
}

#[tool_router]
impl SummonService {
    pub fn new() -> Self {
        Self { tool_router: Arc::new(schema::slim(Self::tool_router())) }
    }

    #[tool(
        description = "Hand a task to another agent and wait for its report. Several in one answer run side by side",
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = false, open_world_hint = false)
    )]
    async fn delegate(
        &self,
        Parameters(request): Parameters<Delegate>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        let (delegator, context) = desk(&context)?;
        let background = request.background.unwrap_or_default();
        let task = task(request)?;
        if background {
            let report = delegator.begin(task, context).await.map_err(ToolRefusal::of)?;
            let text = format!("{} works on it in the background as task `{}`", report.mode, report.id);
            return Ok(answer::with_data(text, json!(report)));
        }
        report_result(&delegator.delegate(task, context).await.map_err(ToolRefusal::of)?)
    }

    #[tool(
        description = "How far tasks are, and what came of them",
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn task_status(
        &self,
        Parameters(request): Parameters<TaskStatus>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        let (delegator, _) = desk(&context)?;
        let tasks = delegator.tasks(request.id.as_deref()).map_err(ToolRefusal::of)?;
        let text = match tasks.as_slice() {
            [] => "nothing was delegated in this session".to_owned(),
            [only] if request.id.is_some() => report_text(only),
            several => several.iter().map(line).collect::<Vec<_>>().join("\n"),
        };
        Ok(answer::with_data(text, json!({"tasks": tasks})))
    }

    #[tool(
        description = "End a task. What it has done stays done",
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn task_cancel(
        &self,
        Parameters(request): Parameters<TaskCancel>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        let (delegator, _) = desk(&context)?;
        let report = delegator.cancel(&request.id).await.map_err(ToolRefusal::of)?;
        Ok(answer::with_data(line(&report), json!(report)))
    }
}

impl Default for SummonService {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for SummonService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SummonService")
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for SummonService {
    fn get_info(&self) -> rmcp::model::ServerConfig {
        let capabilities = rmcp::model::ServerCapabilities::builder().enable_tools().build();
        rmcp::model::ServerConfig::new(capabilities)
            .with_server_info(rmcp::model::Implementation::new("summon", env!("CARGO_PKG_VERSION")))
    }
}

fn desk(context: &RequestContext<RoleServer>) -> Result<(Arc<dyn Delegator>, CallContext), ToolRefusal> {
    let context = call_context(context)?;
    let delegator = context.session.delegator.get();
    let delegator = delegator.ok_or_else(|| ToolRefusal::new("this session cannot hand work to others"))?;
    Ok((Arc::clone(delegator), context.clone()))
}

fn task(request: Delegate) -> Result<TaskRequest, ToolRefusal> {
    let size = request.task.len() + request.context.as_ref().map_or(0, String::len);
    if request.task.trim().is_empty() {
        return Err(ToolRefusal::new("`task` is empty: say what is to be done"));
    }
    if size > MAX_TEXT {
        return Err(ToolRefusal::new(format!(
            "task and context have {size} bytes, {MAX_TEXT} are the limit: name files instead of their text"
        )));
    }
    let to = match (request.agent, request.mode) {
        (Some(agent), Some(mode)) => Some(format!("{agent}/{mode}")),
        (Some(agent), None) => Some(agent),
        (None, Some(mode)) if mode.contains('/') => Some(mode),
        (None, Some(_)) => return Err(ToolRefusal::new("`mode` needs its `agent`")),
        (None, None) => None,
    };
    let (name, context, after) = (request.name, request.context, request.after.unwrap_or_default());
    Ok(TaskRequest { text: request.task, to, name, after, context })
}

fn report_result(report: &TaskReport) -> ToolReply {
    let (text, data) = (report_text(report), json!(report));
    Ok(if report.state == TaskState::Done {
        answer::with_data(text, data)
    } else {
        answer::error_with_data(text, data)
    })
}

fn report_text(report: &TaskReport) -> String {
    format!("{}\n\n{}", line(report), report.result)
}

fn line(report: &TaskReport) -> String {
    let state = match report.state {
        TaskState::Waiting => "waits",
        TaskState::Working => "works on it",
        TaskState::Done => "is done",
        TaskState::Failed => "failed",
        TaskState::Cancelled => "was cancelled",
        TaskState::Interrupted => "was interrupted",
    };
    let session = report.session.as_ref().map(|session| format!(", session {session}")).unwrap_or_default();
    format!("Task `{}` ({}{session}) {state}.", report.id, report.mode)
}

#[cfg(test)]
#[path = "summon_tests.rs"]
mod tests;
