//! Implements `update_plan`: shows the user the steps of longer work.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::tool::{Activity, CallContext, StepStatus, TodoStep};

use crate::services::builtin::answer::{ToolRefusal, ToolReply, count, with_data};

const MAX_STEPS: usize = 50;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UpdatePlan {
    /// All steps
    #[schemars(length(max = 50))]
    steps: Vec<TodoStep>,
}

pub(super) fn update_plan(call: &CallContext, request: UpdatePlan) -> ToolReply {
    if request.steps.len() > MAX_STEPS {
        return Err(ToolRefusal::new(format!("a plan has at most {MAX_STEPS} steps; join some of them")));
    }
    if request.steps.iter().any(|step| step.text.trim().is_empty()) {
        return Err(ToolRefusal::new("every step needs a text"));
    }
    let done = request.steps.iter().filter(|step| step.status == StepStatus::Completed).count();
    let current = request.steps.iter().find(|step| step.status == StepStatus::InProgress);
    let said = match current {
        Some(step) => format!("{done} of {} done; now: {}", count(request.steps.len(), "step"), step.text),
        None => format!("{done} of {} done", count(request.steps.len(), "step")),
    };
    let data = json!({"steps": request.steps});
    call.report(Activity::TodoList(request.steps));
    Ok(with_data(said, data))
}
