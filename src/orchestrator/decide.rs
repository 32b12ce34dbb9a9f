//! Routes a prompt that names no mode. The router decides; a model decides if the router is unsure or the prompt has
//! several parts.

use super::adviser::advice;
use super::route::{self, DecisionSource, Route, RoutingContext, RoutingDecision};
use crate::conversation::Usage;
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::llm::Provider;
use crate::manifest::{AgentEntry, Settings};
use crate::router::Router;

/// Mode for prompts that no mode fits with enough confidence, unless a profile names another one.
const DEFAULT: &str = "goose/assistant";

/// A routing decision and the tokens it used.
pub(super) struct DecisionOutcome {
    pub(super) decision: RoutingDecision,
    pub(super) usage: Usage,
    /// Why the adviser's answer could not be used. `None` if it was used or not requested.
    pub(super) problem: Option<String>,
}

/// Routes `text`. `own` is the deciding mode; it also does the work that cannot be delegated.
pub(super) async fn route_prompt(
    plan: &Plan,
    own: &ModeId,
    text: &str,
    context: &RoutingContext,
    router: &Router,
    adviser: Option<&dyn Provider>,
) -> DecisionOutcome {
    let mut decision = route::route_by_router(text, router, &default_mode(plan, own, router), context);
    if decision.is_compound() {
        // The deciding mode cannot be delegated a part, so the next best mode gets it.
        for route in decision.routes.iter_mut().filter(|route| route.mode == *own) {
            let next = router.rank(&route.task).into_iter().find(|ranked| ranked.mode != *own);
            if let Some(next) = next {
                (route.mode, route.confidence, route.reason) = (next.mode, next.confidence, next.reason);
            }
        }
    }
    let simple = decision.by == DecisionSource::Embedded && !decision.is_compound() && decision.routes[0].mode != *own;
    let Some(adviser) = adviser.filter(|_| !simple) else {
        return DecisionOutcome { decision, usage: Usage::default(), problem: None };
    };
    match advice(adviser, plan, router.modes(), text, context).await {
        Ok((parts, usage)) => {
            let place = |name: &String| parts.iter().position(|part| part.name == *name);
            let route = |part: &super::adviser::AdvisedTask| Route {
                mode: part.mode.clone(),
                confidence: 1.0,
                reason: part.why.clone(),
                // A single part is the whole request, in the user's own words.
                task: if parts.len() == 1 { text.to_owned() } else { part.task.clone() },
                after: part.after.iter().filter_map(place).collect(),
            };
            let own_part = parts.len() > 1 && parts.iter().any(|part| part.mode == *own);
            let routes = if own_part { vec![whole_request(own, text)] } else { parts.iter().map(route).collect() };
            DecisionOutcome {
                decision: RoutingDecision { routes, by: DecisionSource::Model, ..decision },
                usage,
                problem: None,
            }
        }
        Err(problem) => {
            let problem = format!("the model {} could not say who should do this: {problem}", adviser.name());
            DecisionOutcome { decision, usage: Usage::default(), problem: Some(problem) }
        }
    }
}

/// Returns the mode of the profile if work can be delegated to it, else [`DEFAULT`], else `own`.
fn default_mode(plan: &Plan, own: &ModeId, router: &Router) -> ModeId {
    let settings = Settings::of(plan.manifests());
    let chosen = settings.agent.as_ref().and_then(|agent| match &settings.mode {
        Some(mode) => Some(ModeId::new(agent.clone(), mode.clone())),
        None => plan.agent(agent.as_str()).and_then(AgentEntry::default_mode),
    });
    let known = |mode: &ModeId| *mode != *own && router.modes().contains(mode);
    chosen.filter(known).or_else(|| DEFAULT.parse().ok().filter(known)).unwrap_or_else(|| own.clone())
}

/// Returns a route for the whole request to the deciding mode, because its parts cannot be delegated.
fn whole_request(own: &ModeId, text: &str) -> Route {
    let reason = "it needs several at once".to_owned();
    Route { mode: own.clone(), confidence: 1.0, reason, task: text.to_owned(), after: Vec::new() }
}
