//! `update_plan`: the steps of longer work, for the user to see.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::tool::{Activity, CallContext, PlanStep, StepStatus};

use crate::services::builtin::answer::{Answer, Refusal, count, structured};

const MAX_STEPS: usize = 50;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UpdatePlan {
    #[schemars(length(max = 50))]
    steps: Vec<PlanStep>,
}

pub(super) fn update_plan(call: &CallContext, request: UpdatePlan) -> Answer {
    if request.steps.len() > MAX_STEPS {
        return Err(Refusal::new(format!("a plan has at most {MAX_STEPS} steps; join some of them")));
    }
    if request.steps.iter().any(|step| step.text.trim().is_empty()) {
        return Err(Refusal::new("every step needs a text"));
    }
    let done = request.steps.iter().filter(|step| step.status == StepStatus::Completed).count();
    let current = request.steps.iter().find(|step| step.status == StepStatus::InProgress);
    let said = match current {
        Some(step) => format!("{done} of {} done; now: {}", count(request.steps.len(), "step"), step.text),
        None => format!("{done} of {} done", count(request.steps.len(), "step")),
    };
    let data = json!({"steps": request.steps});
    call.report(Activity::Plan(request.steps));
    Ok(structured(said, data))
}
