//! Decides which mode gets a prompt: the user's choice, then the router, then the default mode with alternatives.
//!
//! Invariant: pure functions. Every front end routes through them and shows the decision.

use serde_json::{Value, json};

use crate::graph::Plan;
use crate::ids::{AgentName, ModeId, ModeSlug, nearest};
use crate::manifest::{AgentEntry, ManagedExclusion, ManagedSetting};
use crate::router::{RankedMode, RoutedTask, Router, THRESHOLD, split};
use crate::tool::truncate;

use super::recall::RecallExcerpt;

/// Number of alternative modes in a decision.
const ALTERNATIVES: usize = 3;
/// Minimum lead in confidence of the best mode over the second.
const MIN_LEAD: f64 = 0.1;
/// Minimum length of a word that counts as content.
const MIN_WORD_LETTERS: usize = 4;
/// Bytes of top of mind that routing reads.
const MAX_TOP_OF_MIND: usize = 4_000;

/// What routing knows besides the prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RoutingContext {
    /// The beginning of the top-of-mind text.
    pub(super) top_of_mind: Option<String>,
    /// Excerpts of earlier sessions that match the prompt.
    pub(super) earlier: Vec<String>,
}

impl RoutingContext {
    pub(super) fn new(top_of_mind: Option<&str>, excerpts: &[RecallExcerpt]) -> Self {
        Self {
            top_of_mind: top_of_mind.map(|text| truncate(text, MAX_TOP_OF_MIND).to_owned()),
            earlier: excerpts.iter().map(|excerpt| excerpt.text.clone()).collect(),
        }
    }

    /// Returns the mode that the context speaks for, if it is one of those that the prompt suggests. Text that is the
    /// same for every prompt cannot send a prompt to a mode that has nothing to do with it.
    fn choose(&self, suggested: &[RankedMode], router: &Router) -> Option<RankedMode> {
        let parts = self.top_of_mind.iter().chain(&self.earlier).map(String::as_str);
        let text = parts.collect::<Vec<_>>().join("\n");
        let ranked = if text.is_empty() { Vec::new() } else { router.rank(&text) };
        let best = ranked.first().filter(|_| is_sure(&text, &ranked))?;
        suggested.iter().take(ALTERNATIVES).any(|other| other.mode == best.mode).then(|| best.clone())
    }
}

/// The source of a routing decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionSource {
    /// The user, with `@agent/mode`.
    Explicit,
    /// The built-in router.
    Embedded,
    /// The adviser model.
    Model,
    /// The mode of the previous prompt continues.
    Continuing,
    /// No mode had enough confidence.
    Default,
}

impl DecisionSource {
    pub fn as_str(self) -> &'static str {
        match self {
            DecisionSource::Explicit => "explicit",
            DecisionSource::Embedded => "embedded",
            DecisionSource::Model => "model",
            DecisionSource::Continuing => "continuing",
            DecisionSource::Default => "default",
        }
    }
}

/// One task and the mode it is routed to.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    pub mode: ModeId,
    pub confidence: f64,
    pub reason: String,
    pub task: String,
    /// Indices of the routes whose tasks must end before this one starts.
    pub after: Vec<usize>,
}

impl From<RoutedTask> for Route {
    fn from(RoutedTask { text, mode, confidence, reason, after }: RoutedTask) -> Self {
        Self { mode, confidence, reason, task: text, after }
    }
}

/// The routes of a prompt and the reason for them.
#[derive(Debug, Clone, PartialEq)]
pub struct RoutingDecision {
    /// At least one; more if the prompt is compound.
    pub routes: Vec<Route>,
    pub by: DecisionSource,
    /// Other modes that fit, best first.
    pub alternatives: Vec<RankedMode>,
}

impl RoutingDecision {
    /// Returns the decision for a mode that the user chose.
    pub(super) fn explicit(mode: ModeId, task: String) -> Self {
        let reason = "you chose it".to_owned();
        let route = Route { mode, confidence: 1.0, reason, task, after: Vec::new() };
        Self { routes: vec![route], by: DecisionSource::Explicit, alternatives: Vec::new() }
    }

    pub fn is_compound(&self) -> bool {
        self.routes.len() > 1
    }

    pub fn to_json(&self) -> Value {
        let route = |route: &Route| {
            json!({
                "agent": route.mode.agent, "mode": route.mode.mode, "confidence": round_confidence(route.confidence),
                "reason": route.reason, "task": route.task, "after": route.after,
            })
        };
        let alternative = |ranked: &RankedMode| {
            json!({
                "agent": ranked.mode.agent, "mode": ranked.mode.mode, "confidence": round_confidence(ranked.confidence),
            })
        };
        json!({
            "routes": self.routes.iter().map(route).collect::<Vec<_>>(),
            "compound": self.is_compound(),
            "by": self.by.as_str(),
            "alternatives": self.alternatives.iter().map(alternative).collect::<Vec<_>>(),
        })
    }
}

/// Rounds to three digits; more would suggest a precision that the router does not have.
fn round_confidence(confidence: f64) -> f64 {
    (confidence * 1000.0).round() / 1000.0
}

/// A prompt names a mode that does not exist or cannot be selected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}; {help}")]
pub struct UnknownModeError {
    pub problem: String,
    pub help: String,
    /// Set if a managed setting does not allow the mode.
    pub refusal: Option<Box<ModeRefusal>>,
}

/// An agent or mode that a managed setting does not allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModeRefusal {
    pub name: String,
    pub setting: ManagedSetting,
}

impl UnknownModeError {
    pub(super) fn new(problem: impl Into<String>, help: impl Into<String>) -> Self {
        Self { problem: problem.into(), help: help.into(), refusal: None }
    }

    fn of_setting(name: &str, exclusion: &ManagedExclusion) -> Self {
        let problem = format!("`{name}` is not allowed here: {exclusion}");
        let refusal = ModeRefusal { name: name.to_owned(), setting: exclusion.setting.clone() };
        Self { problem, help: "choose another one".to_owned(), refusal: Some(Box::new(refusal)) }
    }
}

/// Returns the router's decision. A mode that the user chose before for this prompt takes all of it. If the prompt
/// leaves it open, the context decides between the modes that the prompt suggests. If that is open too, the decision
/// is the default mode.
pub(super) fn route_by_router(
    prompt: &str,
    router: &Router,
    default: &ModeId,
    context: &RoutingContext,
) -> RoutingDecision {
    let ranked = router.rank(prompt);
    let single = |RankedMode { mode, confidence, reason }| {
        vec![Route { mode, confidence, reason, task: prompt.trim().to_owned(), after: Vec::new() }]
    };
    let (by, routes) = if let Some(remembered) = router.correction(prompt) {
        // The user chose this mode for the whole prompt, so it is not split.
        (DecisionSource::Embedded, single(remembered))
    } else {
        let tasks = split(prompt, router);
        if tasks.len() > 1 || is_sure(prompt, &ranked) {
            (DecisionSource::Embedded, tasks.into_iter().map(Route::from).collect())
        } else if let Some(best) = context.choose(&ranked, router) {
            let reason = format!("top of mind or earlier sessions decide: {}", best.reason);
            (DecisionSource::Embedded, single(RankedMode { reason, ..best }))
        } else {
            let known = ranked.iter().find(|ranked| ranked.mode == *default);
            let confidence = known.map_or(0.0, |ranked| ranked.confidence);
            let reason = "no mode fits for sure, so the default one takes it".to_owned();
            (DecisionSource::Default, single(RankedMode { mode: default.clone(), confidence, reason }))
        }
    };
    let others = ranked.into_iter().filter(|ranked| routes.iter().all(|route| route.mode != ranked.mode));
    let alternatives = others.take(ALTERNATIVES).collect();
    RoutingDecision { routes, by, alternatives }
}

/// Returns whether one mode leads clearly. False if two modes are close or the prompt has no content words.
fn is_sure(prompt: &str, ranked: &[RankedMode]) -> bool {
    let says =
        prompt.split(|c: char| !c.is_alphanumeric()).filter(|word| word.chars().count() >= MIN_WORD_LETTERS).count();
    let second = ranked.get(1).map_or(0.0, |second| second.confidence);
    let stands_out = |best: &RankedMode| best.confidence >= THRESHOLD && best.confidence - second >= MIN_LEAD;
    says > 0 && ranked.first().is_some_and(stands_out)
}

/// Returns the mode that a prompt starts with, as `@coding/backend` or `@coding`, and the rest of the prompt. Any other
/// word with an `@` is a file or a name and stays text.
pub(super) fn explicit<'a>(prompt: &'a str, plan: &Plan) -> Result<Option<(ModeId, &'a str)>, UnknownModeError> {
    let Some(after) = prompt.trim_start().strip_prefix('@') else { return Ok(None) };
    let end = after.find(char::is_whitespace).unwrap_or(after.len());
    let name = after[..end].trim_end_matches([':', ',']);
    let task = after[end..].trim();
    let (agent, slug) = name.split_once('/').map_or((name, None), |(agent, slug)| (agent, Some(slug)));
    if ![Some(agent), slug].into_iter().flatten().all(is_name) {
        return Ok(None);
    }
    match (plan.agent(agent), slug) {
        (Some(entry), None) => Ok(plan.default_mode(entry).map(|mode| (mode, task))),
        (Some(entry), Some(slug)) => Ok(Some((mode_of(plan, entry, slug)?, task))),
        (None, _) => match (plan.agent_refusal(agent), nearest_mode_error(name, slug.is_some(), plan)) {
            (Some(exclusion), _) => Err(UnknownModeError::of_setting(name, &exclusion)),
            (None, Some(error)) if slug.is_some() || task.is_empty() => Err(error),
            (None, _) => Ok(None),
        },
    }
}

/// Returns whether `text` consists of lower-case words joined by `-` or `_`. File names have a dot, so they do not
/// match.
fn is_name(text: &str) -> bool {
    let part = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    text.starts_with(|c: char| c.is_ascii_lowercase()) && text.split(['-', '_']).all(part)
}

fn mode_of(plan: &Plan, agent: &AgentEntry, slug: &str) -> Result<ModeId, UnknownModeError> {
    let name = &agent.manifest.name;
    let slugs = || plan.modes_of(agent).filter(|entry| !entry.mode.internal).map(|entry| entry.mode.slug.as_str());
    if slugs().any(|known| known == slug) {
        return Ok(ModeId::new(name.clone(), ModeSlug::new(slug)));
    }
    let id = ModeId::new(name.clone(), ModeSlug::new(slug));
    if let Some(exclusion) = plan.mode_refusal(&id) {
        return Err(UnknownModeError::of_setting(&id.to_string(), &exclusion));
    }
    if plan.modes_of(agent).any(|entry| entry.mode.slug.as_str() == slug) {
        let problem = format!("`{name}/{slug}` is an internal mode and cannot be asked for");
        return Err(UnknownModeError::new(problem, "see `skein agents`"));
    }
    let help = match nearest(slug, slugs()) {
        Some(near) => format!("did you mean `@{name}/{near}`?"),
        None => format!("it has: {}", slugs().collect::<Vec<_>>().join(", ")),
    };
    Err(UnknownModeError::new(format!("the agent `{name}` has no mode `{slug}`"), help))
}

/// Returns an error if `name` resembles a known name and is probably a typo. `None` for other names, which may be
/// folders.
fn nearest_mode_error(name: &str, with_mode: bool, plan: &Plan) -> Option<UnknownModeError> {
    let known: Vec<String> = plan
        .agents()
        .flat_map(|agent| {
            let modes = plan.modes_of(agent).filter(|entry| with_mode && !entry.mode.internal);
            let modes = modes.map(|entry| format!("{}/{}", agent.manifest.name, entry.mode.slug));
            modes.chain((!with_mode).then(|| agent.manifest.name.to_string())).collect::<Vec<_>>()
        })
        .collect();
    let near = nearest(name, known.iter().map(String::as_str))?;
    let what = if with_mode { "mode" } else { "agent" };
    Some(UnknownModeError::new(format!("there is no {what} `{name}`"), format!("did you mean `@{near}`?")))
}

/// Parses a label `agent/mode` of a test case or correction. Fails for unknown and internal modes.
pub fn parse_mode(text: &str, plan: &Plan) -> Result<ModeId, UnknownModeError> {
    let (agent, slug) = text.split_once('/').ok_or_else(|| {
        let problem = format!("`{text}` is not of the form agent/mode");
        UnknownModeError::new(problem, "write it as in `coding/backend`; `skein agents` lists them")
    })?;
    match plan.agent(AgentName::new(agent).as_str()) {
        Some(entry) => mode_of(plan, entry, slug),
        None => Err(nearest_mode_error(text, true, plan).unwrap_or_else(|| {
            let names: Vec<_> = plan.agents().map(|agent| agent.manifest.name.as_str()).collect();
            UnknownModeError::new(format!("there is no agent `{agent}`"), format!("there are: {}", names.join(", ")))
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Layer, Root, load};
    use crate::router::candidates;

    fn plan() -> Plan {
        let (manifests, found) = load(&[(Layer::Builtin, Root::Builtin)]);
        crate::graph::resolve(manifests, found).plan.unwrap()
    }

    fn chosen(prompt: &str) -> Result<Option<(String, String)>, UnknownModeError> {
        let found = explicit(prompt, &plan())?;
        Ok(found.map(|(mode, task)| (mode.to_string(), task.to_owned())))
    }

    #[test]
    fn a_mode_that_is_named_is_taken() {
        for (prompt, mode, task) in [
            ("@coding/frontend add a theme", "coding/frontend", "add a theme"),
            ("  @coding/frontend: add a theme ", "coding/frontend", "add a theme"),
            ("@goose hello", "goose/assistant", "hello"),
            ("@goose", "goose/assistant", ""),
        ] {
            assert_eq!(chosen(prompt).unwrap(), Some((mode.to_owned(), task.to_owned())), "{prompt}");
        }
    }

    #[test]
    fn a_name_that_is_nearly_right_is_an_error_and_a_file_is_text() {
        assert_eq!(
            chosen("@coding/frontnd add a theme").unwrap_err().to_string(),
            "the agent `coding` has no mode `frontnd`; did you mean `@coding/frontend`?"
        );
        assert_eq!(
            chosen("@codin/frontend add a theme").unwrap_err().to_string(),
            "there is no mode `codin/frontend`; did you mean `@coding/frontend`?"
        );
        assert_eq!(chosen("@codng").unwrap_err().to_string(), "there is no agent `codng`; did you mean `@coding`?");
        for text in
            ["@src/main.rs explain", "@docs/guide explain", "@alice says hello", "@codng says hello", "a @coding/qa"]
        {
            assert_eq!(chosen(text).unwrap(), None, "{text}");
        }
    }

    #[test]
    fn unsure_prompt_goes_to_default_with_alternatives() {
        let plan = plan();
        let mut some = candidates(plan.manifests());
        some.retain(|candidate| candidate.mode.agent.as_str() == "coding");
        some.iter_mut().for_each(|candidate| candidate.examples.truncate(3));
        let router = Router::learn(&some);
        let default: ModeId = "goose/assistant".parse().unwrap();
        let decision = route_by_router("zzz", &router, &default, &RoutingContext::default());
        assert_eq!((decision.by, &decision.routes[0].mode), (DecisionSource::Default, &default));
        assert_eq!(decision.alternatives.len(), ALTERNATIVES);
        let json = decision.to_json();
        assert_eq!(json["by"], "default");
        assert_eq!(json["compound"], false);
        assert_eq!(json["routes"][0]["agent"], "goose");
        assert_eq!(json["routes"][0]["task"], "zzz");
    }

    #[test]
    fn context_decides_between_modes_that_the_prompt_suggests() {
        let plan = plan();
        let mut some = candidates(plan.manifests());
        some.retain(|candidate| candidate.mode.agent.as_str() == "coding");
        let router = Router::learn(&some);
        let default: ModeId = "goose/assistant".parse().unwrap();
        let decide = |prompt: &str, top: &str| {
            let decision = route_by_router(prompt, &router, &default, &RoutingContext::new(Some(top), &[]));
            (decision.routes[0].mode.to_string(), decision.by)
        };
        let suggested = router.rank("zzz");
        let about = some.iter().find(|candidate| candidate.mode == suggested[1].mode).unwrap();
        let top = about.examples.join("\n");
        assert_eq!(decide("zzz", &top), (about.mode.to_string(), DecisionSource::Embedded));
        assert_eq!(decide("zzz", "be brief").1, DecisionSource::Default, "this speaks for no mode");
        let last = suggested.last().unwrap();
        let other = some.iter().find(|candidate| candidate.mode == last.mode).unwrap().examples.join("\n");
        assert_eq!(decide("zzz", &other).1, DecisionSource::Default, "the prompt does not suggest this mode");
    }

    #[test]
    fn remembered_prompt_is_neither_too_short_nor_split() {
        let plan = plan();
        let router = Router::learn(&candidates(plan.manifests()));
        let (qa, default): (ModeId, ModeId) = ("coding/qa".parse().unwrap(), "goose/assistant".parse().unwrap());
        let compound = "fix the login API and add a dark theme";
        assert!(route_by_router(compound, &router, &default, &RoutingContext::default()).is_compound());
        let long = format!("fix ci\n{}", "log line\n".repeat(1_000));
        let prompts = ["fix ci", compound, &long];
        let router = router.with_corrections(prompts.map(|prompt| (prompt, &qa)));
        for prompt in prompts {
            let decision = route_by_router(prompt, &router, &default, &RoutingContext::default());
            assert_eq!((decision.by, decision.routes.len()), (DecisionSource::Embedded, 1), "{prompt}");
            assert_eq!((&decision.routes[0].mode, decision.routes[0].task.as_str()), (&qa, prompt.trim()));
            assert!(decision.alternatives.iter().all(|other| other.mode != qa), "{prompt}");
        }
    }

    #[test]
    fn labels_are_modes_that_can_be_chosen() {
        let plan = plan();
        assert_eq!(parse_mode("coding/backend", &plan).unwrap().to_string(), "coding/backend");
        for (label, problem) in [
            ("backend", "`backend` is not of the form agent/mode"),
            ("coding/backnd", "the agent `coding` has no mode `backnd`"),
            ("codin/backend", "there is no mode `codin/backend`"),
            ("kitchen/sink", "there is no agent `kitchen`"),
        ] {
            assert_eq!(parse_mode(label, &plan).unwrap_err().problem, problem);
        }
    }
}
