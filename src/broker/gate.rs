//! The permission gate: decides whether a call runs, needs consent or is refused. `Binding::call` uses it.

use futures::future::BoxFuture;

use crate::diagnostic::printable;
use crate::manifest::{ApprovalLevel, ManagedSetting, PermissionRule};
use crate::network::RemoteHost;
use crate::permissions::{RuleDecision, SourcedRule};
use crate::sandbox::ProtectedPath;
use crate::tool::ask::PermissionRequest;

/// Decides for `smart` whether a call is read-only, so that the user gets fewer requests.
pub trait Judge: Send + Sync + std::fmt::Debug {
    /// Returns true only if this exact call, with its arguments, certainly changes nothing.
    fn finds_read_only<'a>(&'a self, question: &'a PermissionRequest) -> BoxFuture<'a, bool>;
}

/// Why a rule was not stored. The message gives the reason and a remedy.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct RuleStoreError(Box<dyn std::error::Error + Send + Sync>);

impl RuleStoreError {
    pub fn new(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(error.into())
    }
}

/// Stores rules for later sessions, in the user's config and never in the project.
pub trait RuleStore: Send + Sync {
    /// Stores a rule. Fails if the user's config cannot be changed.
    fn keep(&self, rule: &PermissionRule) -> Result<(), RuleStoreError>;
}

/// The decision on a call before the user is asked, and its reason.
#[derive(Debug, Clone, PartialEq)]
pub enum GateDecision {
    Run(DecisionReason),
    Ask(DecisionReason),
    Refuse(DecisionReason),
}

/// The reason for a decision on a call.
#[derive(Debug, Clone, PartialEq)]
pub enum DecisionReason {
    /// The approval level alone.
    Level(ApprovalLevel),
    /// The call is read-only; the level would have asked about any other call.
    ReadOnly(ApprovalLevel),
    /// One rule, or several if a command line has several parts.
    Rules(Vec<SourcedRule>),
    /// No rule allows the host that the call reaches, and the user did not name it.
    Host { host: String, level: ApprovalLevel },
    /// The user named the host that the call reaches.
    UserNamed(String),
    /// It cannot be determined whether a rule matches the call.
    Unsure(SourcedRule),
    /// The command runs without a sandbox, which every level asks about. `rule` would allow it.
    Unsandboxed { reason: String, rule: String },
    /// The command is to run without a sandbox, which a managed setting forbids.
    ManagedSandbox(ManagedSetting),
    /// The call writes a protected path, which every level asks about. `rule` would allow it.
    Protected { path: ProtectedPath, rule: String },
    /// A hook wants the user to decide, at every level.
    Hook { reason: String },
}

impl DecisionReason {
    pub(super) fn rules(rules: &[&SourcedRule]) -> Self {
        Self::Rules(rules.iter().map(|rule| (*rule).clone()).collect())
    }

    /// Returns the approval level that led to the decision. `None` if something else did.
    pub(super) fn level(&self) -> Option<ApprovalLevel> {
        match self {
            Self::Level(level) | Self::ReadOnly(level) | Self::Host { level, .. } => Some(*level),
            Self::Rules(_)
            | Self::UserNamed(_)
            | Self::Unsure(_)
            | Self::Unsandboxed { .. }
            | Self::ManagedSandbox(_)
            | Self::Hook { .. }
            | Self::Protected { .. } => None,
        }
    }
}

/// Formats the reason as the end of a sentence: "it is refused, because …".
impl std::fmt::Display for DecisionReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DecisionReason::Level(ApprovalLevel::ReadOnly) => {
                f.write_str("the session is read-only, and this call may change something")
            }
            DecisionReason::Level(ApprovalLevel::Deny) => f.write_str("the session allows no tool calls"),
            DecisionReason::Level(level) => write!(f, "the approval level is `{}`", level.as_str()),
            DecisionReason::ReadOnly(level) => {
                write!(f, "the tool changes nothing, and the approval level is `{}`", level.as_str())
            }
            DecisionReason::Rules(rules) => {
                let rules: Vec<_> = rules.iter().map(ToString::to_string).collect();
                write!(f, "required by a rule: {}", rules.join(", "))
            }
            DecisionReason::Host { host, level: ApprovalLevel::ReadOnly } => {
                write!(f, "the session is read-only, and no rule allows the host `{host}`")
            }
            DecisionReason::Host { host, .. } => {
                write!(f, "no rule allows the host `{host}`, and no prompt of the user names it")
            }
            DecisionReason::UserNamed(host) => write!(f, "a prompt of the user names the host `{host}`"),
            DecisionReason::Unsure(rule) => {
                write!(f, "cannot determine whether this rule applies: {rule}")
            }
            DecisionReason::Unsandboxed { reason, .. } => {
                write!(f, "the command is to run without a sandbox: {}", printable(reason))
            }
            DecisionReason::ManagedSandbox(setting) => {
                write!(f, "{setting} forbids commands without a sandbox; run it without `unsandboxed`")
            }
            DecisionReason::Protected { path, .. } => path.fmt(f),
            DecisionReason::Hook { reason } => write!(f, "a hook asks for your decision: {}", printable(reason)),
        }
    }
}

/// Combines approval level and rules. Denying and asking rules apply at every level. An allowing rule only replaces a
/// question: it does not override `read-only` or `deny`.
pub(super) fn decide(approval: ApprovalLevel, read_only: bool, ruling: &RuleDecision<'_>) -> GateDecision {
    let level = match approval {
        ApprovalLevel::Auto => GateDecision::Run(DecisionReason::Level(approval)),
        ApprovalLevel::Deny => GateDecision::Refuse(DecisionReason::Level(approval)),
        ApprovalLevel::Ask | ApprovalLevel::Smart | ApprovalLevel::ReadOnly if read_only => {
            GateDecision::Run(DecisionReason::ReadOnly(approval))
        }
        ApprovalLevel::Ask | ApprovalLevel::Smart => GateDecision::Ask(DecisionReason::Level(approval)),
        ApprovalLevel::ReadOnly => GateDecision::Refuse(DecisionReason::Level(approval)),
    };
    match (ruling, level) {
        (RuleDecision::Deny(rule), _) => GateDecision::Refuse(DecisionReason::rules(&[rule])),
        (_, refused @ GateDecision::Refuse(_)) => refused,
        (RuleDecision::Ask { rule, certain: true }, _) => GateDecision::Ask(DecisionReason::rules(&[rule])),
        (RuleDecision::Ask { rule, certain: false }, _) => GateDecision::Ask(DecisionReason::Unsure((*rule).clone())),
        (RuleDecision::Allow(rules), GateDecision::Ask(_)) => GateDecision::Run(DecisionReason::rules(rules)),
        (RuleDecision::Allow(_) | RuleDecision::Silent, level) => level,
    }
}

/// The host that a call reaches, and the facts about it.
pub(super) struct HostCall<'a> {
    pub(super) host: RemoteHost,
    /// A prompt of the user names the host.
    pub(super) user_named: bool,
    /// The decision of the host rules.
    pub(super) ruling: RuleDecision<'a>,
}

/// Decides about a call that reads from a host. At `ask` and `smart` it runs if a rule allows it or the user named the
/// host. At `read-only` only a host rule counts: prompts mention hosts casually, and the user is not asked.
pub(super) fn judge_host<'a>(approval: ApprovalLevel, call: HostCall<'a>, of_tool: RuleDecision<'a>) -> GateDecision {
    let HostCall { host, user_named, ruling: of_host } = call;
    let allowed = matches!(of_host, RuleDecision::Allow(_));
    let unknown = || DecisionReason::Host { host: host.to_string(), level: approval };
    match (approval, of_tool.and(of_host)) {
        (ApprovalLevel::Auto | ApprovalLevel::Deny, ruling) => decide(approval, true, &ruling),
        (ApprovalLevel::ReadOnly, RuleDecision::Silent | RuleDecision::Allow(_) | RuleDecision::Ask { .. })
            if !allowed =>
        {
            GateDecision::Refuse(unknown())
        }
        (_, RuleDecision::Allow(rules)) => GateDecision::Run(DecisionReason::rules(&rules)),
        (_, RuleDecision::Silent) if user_named => GateDecision::Run(DecisionReason::UserNamed(host.to_string())),
        (_, RuleDecision::Silent) => GateDecision::Ask(unknown()),
        (_, ruling @ (RuleDecision::Deny(_) | RuleDecision::Ask { .. })) => decide(approval, true, &ruling),
    }
}

/// Turns the decision on a call that writes a protected path into a question, unless it is a refusal. `rule` would
/// allow the path.
pub(super) fn guard(verdict: GateDecision, path: ProtectedPath, rule: String) -> GateDecision {
    match verdict {
        GateDecision::Refuse(_) => verdict,
        GateDecision::Run(_) | GateDecision::Ask(_) => GateDecision::Ask(DecisionReason::Protected { path, rule }),
    }
}

/// Turns the decision on a command without a sandbox into a question, unless it is a refusal. `rule` would allow the
/// command.
pub(super) fn guard_unsandboxed(verdict: GateDecision, reason: String, rule: String) -> GateDecision {
    match verdict {
        GateDecision::Refuse(_) => verdict,
        GateDecision::Run(_) | GateDecision::Ask(_) => GateDecision::Ask(DecisionReason::Unsandboxed { reason, rule }),
    }
}

/// Returns the reason for a refusal when there is no user to ask, with the option that would allow the call.
pub(super) fn no_asker_reason(because: &DecisionReason) -> String {
    match because {
        DecisionReason::Rules(_) | DecisionReason::Unsure(_) | DecisionReason::Hook { .. } => {
            format!("this call needs consent and no user can be asked; {because}")
        }
        DecisionReason::Host { host, .. } => {
            format!("{because}, and there is no one to ask; run skein with `--allow 'host: {host}'` to allow it")
        }
        DecisionReason::Unsandboxed { rule, .. } => format!(
            "this call needs consent and no one can be asked; {because}. Run it without `unsandboxed`. To allow it, run \
             skein with `--allow '{rule}'`, which names the program, or with `--sandbox off`"
        ),
        DecisionReason::Protected { path, rule } => format!(
            "this call needs consent and no one can be asked; {path}. A rule that names the path allows it: run skein \
             with `--allow '{rule}'`, or write the rule into your config"
        ),
        DecisionReason::ManagedSandbox(_) => because.to_string(),
        DecisionReason::Level(_) | DecisionReason::ReadOnly(_) | DecisionReason::UserNamed(_) => NO_ASKER.to_owned(),
    }
}

const NO_ASKER: &str = "this call needs consent and no user can be asked; run skein with `--allow RULE` to allow such calls, \
                       or with `--approval auto` to allow all";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{PermissionRule, RuleEffect};
    use crate::permissions::RuleOrigin;
    use crate::permissions::judge_host as host_ruling;

    #[test]
    fn a_rule_that_allows_answers_only_what_would_be_asked() {
        let rule = |then| SourcedRule {
            rule: PermissionRule::from_text("a", then).expect("a rule"),
            origin: RuleOrigin::Flag,
        };
        let (allow, ask, deny) = (rule(RuleEffect::Allow), rule(RuleEffect::Ask), rule(RuleEffect::Deny));
        let rulings = [
            RuleDecision::Silent,
            RuleDecision::Allow(vec![&allow]),
            RuleDecision::Ask { rule: &ask, certain: true },
            RuleDecision::Ask { rule: &deny, certain: false },
            RuleDecision::Deny(&deny),
        ];
        let shown = |approval, read_only| {
            let one = |ruling| match decide(approval, read_only, ruling) {
                GateDecision::Run(_) => "run",
                GateDecision::Ask(_) => "ask",
                GateDecision::Refuse(_) => "refuse",
            };
            rulings.each_ref().map(one).join(" ")
        };
        for (approval, read_only, expected) in [
            (ApprovalLevel::Auto, false, "run run ask ask refuse"),
            (ApprovalLevel::Ask, false, "ask run ask ask refuse"),
            (ApprovalLevel::Ask, true, "run run ask ask refuse"),
            (ApprovalLevel::Smart, false, "ask run ask ask refuse"),
            (ApprovalLevel::ReadOnly, false, "refuse refuse refuse refuse refuse"),
            (ApprovalLevel::ReadOnly, true, "run run ask ask refuse"),
            (ApprovalLevel::Deny, true, "refuse refuse refuse refuse refuse"),
        ] {
            assert_eq!(shown(approval, read_only), expected, "{approval:?} {read_only}");
        }
    }

    #[test]
    fn a_host_needs_a_rule_a_prompt_or_a_question() {
        let rule = |text: &str, then| SourcedRule {
            rule: PermissionRule::from_text(text, then).expect("a rule"),
            origin: RuleOrigin::Flag,
        };
        let tool = [rule("fetch", RuleEffect::Allow)];
        let judged = |approval, then: Option<RuleEffect>, user_named, of_tool| {
            let rules: Vec<_> = then.into_iter().map(|then| rule("host: example.com", then)).collect();
            let host = RemoteHost::of_url("https://example.com/").expect("a host");
            let call = HostCall { ruling: host_ruling(&rules, &host), host, user_named };
            match judge_host(approval, call, of_tool) {
                GateDecision::Run(_) => "run",
                GateDecision::Ask(_) => "ask",
                GateDecision::Refuse(_) => "refuse",
            }
        };
        let cases = [None, Some(RuleEffect::Allow), Some(RuleEffect::Ask), Some(RuleEffect::Deny)];
        for (approval, user_named, expected) in [
            (ApprovalLevel::Auto, false, ["run", "run", "ask", "refuse"]),
            (ApprovalLevel::Ask, false, ["ask", "run", "ask", "refuse"]),
            (ApprovalLevel::Ask, true, ["run", "run", "ask", "refuse"]),
            (ApprovalLevel::Smart, false, ["ask", "run", "ask", "refuse"]),
            (ApprovalLevel::ReadOnly, true, ["refuse", "run", "refuse", "refuse"]),
            (ApprovalLevel::Deny, true, ["refuse"; 4]),
        ] {
            let said = cases.map(|then| judged(approval, then, user_named, RuleDecision::Silent));
            assert_eq!(said, expected, "{approval:?} {user_named}");
        }
        // A rule that allows the tool answers the question, and opens no read-only session.
        let allow = || RuleDecision::Allow(vec![&tool[0]]);
        assert_eq!(judged(ApprovalLevel::Ask, None, false, allow()), "run");
        assert_eq!(judged(ApprovalLevel::Ask, Some(RuleEffect::Deny), false, allow()), "refuse");
        assert_eq!(judged(ApprovalLevel::ReadOnly, None, false, allow()), "refuse");
    }
}
