//! The permission gate: whether a call may run, must be asked about, or is refused. It sits inside
//! `Binding::call`; a front door supplies who may be asked.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Map, Value};

use super::consent::Subject;
use crate::manifest::{Approval, PermissionRule};
use crate::permissions::{RemoteHost, Rule, Ruling};
use crate::sandbox::ProtectedPath;
use crate::tool::FileTarget;
use crate::tool::elicit::{Elicitation, Elicited, Elicitor};

/// Who can be asked. A front door with nobody behind it uses [`Nobody`].
pub trait Asker: Send + Sync {
    fn ask(&self, question: Question) -> BoxFuture<'_, Answer>;

    /// A question with answers of its own, which an agent outside puts to the user. Gives the id of the option that the
    /// user chose; nothing if nobody chose one. Whoever cannot put it to a person must not choose.
    fn choose(&self, _: Choosing) -> BoxFuture<'_, Option<String>> {
        Box::pin(async { None })
    }

    /// A question of a service, or of an agent outside, that is more than one of consent.
    fn elicit(&self, _: Elicitation) -> BoxFuture<'_, Elicited> {
        Box::pin(async { Elicited::Unheard })
    }

    /// A page that the user was asked to open is done with.
    fn page_done(&self, _by: &str, _id: &str) {}
}

/// An agent outside asks for consent in its own words.
#[derive(Debug, Clone, PartialEq)]
pub struct Choosing {
    /// Who asks, as `agent/mode`.
    pub by: String,
    /// The session of whoever that is, if it works for the session that is asked, for those who see it apart.
    pub apart: Option<String>,
    /// What the session that is asked calls the call that it is about, if that is not what the question calls it.
    pub call: Option<String>,
    /// What it wants to do, for people.
    pub title: String,
    pub options: Vec<ChoosingOption>,
    /// The whole question in ACP's JSON, but for the session, for those who can show it as it is.
    pub request: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChoosingOption {
    pub id: String,
    pub name: String,
    pub allows: bool,
}

/// The way from a call to whoever may be asked about it.
pub(super) struct ByAsker(pub(super) Arc<dyn Asker>);

impl Elicitor for ByAsker {
    fn elicit(&self, question: Elicitation) -> BoxFuture<'_, Elicited> {
        self.0.elicit(question)
    }

    fn page_done(&self, by: &str, id: &str) {
        self.0.page_done(by, id);
    }
}

/// Reads a call for `smart`, so that people are asked less.
pub trait Judge: Send + Sync + std::fmt::Debug {
    /// True only if it is certain that this very call, with its arguments, changes nothing.
    fn finds_read_only<'a>(&'a self, question: &'a Question) -> BoxFuture<'a, bool>;
}

/// A call that somebody must consent to.
#[derive(Debug, Clone)]
pub struct Question {
    /// The id of the call, if it has one.
    pub call: Option<Arc<str>>,
    /// Who wants to make it, as `agent/mode`, if it works for the session that is asked.
    pub by: Option<String>,
    /// The session of whoever that is, and what the call is called there, for those who see it apart.
    pub apart: Option<(String, Arc<str>)>,
    /// As the model sees it.
    pub tool: String,
    pub title: Option<String>,
    pub arguments: Map<String, Value>,
    /// The file that a built-in tool is called for, resolved.
    pub target: Option<FileTarget>,
    /// Set if the call writes a protected path: then consent is for this call only.
    pub protected: Option<ProtectedPath>,
    /// What [`Answer::AllowAlways`] and [`Answer::RefuseAlways`] would cover, for this session.
    pub always: Subject,
    /// What could be kept for this project: the narrowest rule that is still of use, if there is one.
    pub rule: Option<PermissionRule>,
}

/// Keeps rules for later sessions, where the user keeps theirs and never in the project.
pub trait RuleStore: Send + Sync {
    /// `Err` says why it was not kept, and what to do.
    fn keep(&self, rule: &PermissionRule) -> Result<(), String>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Allow,
    AllowAlways,
    Refuse,
    RefuseAlways,
    /// There is no one to ask.
    Unheard,
}

/// No terminal and no client: whatever would be asked is refused.
#[derive(Debug, Clone, Copy)]
pub struct Nobody;

impl Asker for Nobody {
    fn ask(&self, _: Question) -> BoxFuture<'_, Answer> {
        Box::pin(async { Answer::Unheard })
    }
}

/// What is to happen to a call before anybody is asked, and what decided it.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Run(Because),
    Ask(Because),
    Refuse(Because),
}

/// What decided about a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Because {
    /// The approval level alone.
    Level(Approval),
    /// The level would have asked for anything else.
    ReadOnly(Approval),
    /// Rules; several if a command line has several parts.
    Rules(Vec<Rule>),
    /// No rule allows the host that the call reaches, and the user did not name it.
    Host { host: String, level: Approval },
    /// The user named the host that the call reaches.
    UserNamed(String),
    /// A rule may speak of the call, and nobody can tell.
    Unsure(Rule),
    /// The call writes a protected path, which every level asks about. With the rule that would allow it.
    Protected { path: ProtectedPath, rule: String },
}

impl Because {
    pub(super) fn rules(rules: &[&Rule]) -> Self {
        Self::Rules(rules.iter().map(|rule| (*rule).clone()).collect())
    }
}

/// In words that end a sentence: "it is refused, because …".
impl std::fmt::Display for Because {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Because::Level(Approval::ReadOnly) => {
                f.write_str("the session is read-only, and this call may change something")
            }
            Because::Level(Approval::Deny) => f.write_str("the session allows no tool calls"),
            Because::Level(level) => write!(f, "the approval level is `{}`", level.as_str()),
            Because::ReadOnly(level) => {
                write!(f, "the tool changes nothing, and the approval level is `{}`", level.as_str())
            }
            Because::Rules(rules) => {
                let rules: Vec<_> = rules.iter().map(ToString::to_string).collect();
                write!(f, "a rule says so: {}", rules.join(", "))
            }
            Because::Host { host, level: Approval::ReadOnly } => {
                write!(f, "the session is read-only, and no rule allows the host `{host}`")
            }
            Because::Host { host, .. } => {
                write!(f, "no rule allows the host `{host}`, and no prompt of the user names it")
            }
            Because::UserNamed(host) => write!(f, "a prompt of the user names the host `{host}`"),
            Because::Unsure(rule) => {
                write!(f, "it cannot be told whether a rule speaks of it: {rule}")
            }
            Because::Protected { path, .. } => path.fmt(f),
        }
    }
}

/// Rules that deny and ask count at every level. One that allows answers only what would be asked: it opens neither
/// `read-only` nor `deny`.
pub(super) fn judge(approval: Approval, read_only: bool, ruling: &Ruling<'_>) -> Verdict {
    let level = match approval {
        Approval::Auto => Verdict::Run(Because::Level(approval)),
        Approval::Deny => Verdict::Refuse(Because::Level(approval)),
        Approval::Ask | Approval::Smart | Approval::ReadOnly if read_only => Verdict::Run(Because::ReadOnly(approval)),
        Approval::Ask | Approval::Smart => Verdict::Ask(Because::Level(approval)),
        Approval::ReadOnly => Verdict::Refuse(Because::Level(approval)),
    };
    match (ruling, level) {
        (Ruling::Deny(rule), _) => Verdict::Refuse(Because::rules(&[rule])),
        (_, refused @ Verdict::Refuse(_)) => refused,
        (Ruling::Ask { rule, certain: true }, _) => Verdict::Ask(Because::rules(&[rule])),
        (Ruling::Ask { rule, certain: false }, _) => Verdict::Ask(Because::Unsure((*rule).clone())),
        (Ruling::Allow(rules), Verdict::Ask(_)) => Verdict::Run(Because::rules(rules)),
        (Ruling::Allow(_) | Ruling::Silent, level) => level,
    }
}

/// The host that a call reaches, and what is known about it.
pub(super) struct HostCall<'a> {
    pub(super) host: RemoteHost,
    /// A prompt of the user names it.
    pub(super) user_named: bool,
    /// Of the host rules.
    pub(super) ruling: Ruling<'a>,
}

/// The same for a call that only reads, from a host: at `ask` and `smart` it runs if a rule allows it or the user named the
/// host. At `read-only` only a host rule counts, because a prompt names hosts in passing and nothing is asked.
pub(super) fn judge_host<'a>(approval: Approval, call: HostCall<'a>, of_tool: Ruling<'a>) -> Verdict {
    let HostCall { host, user_named, ruling: of_host } = call;
    let allowed = matches!(of_host, Ruling::Allow(_));
    let unknown = || Because::Host { host: host.to_string(), level: approval };
    match (approval, of_tool.and(of_host)) {
        (Approval::Auto | Approval::Deny, ruling) => judge(approval, true, &ruling),
        (Approval::ReadOnly, Ruling::Silent | Ruling::Allow(_) | Ruling::Ask { .. }) if !allowed => {
            Verdict::Refuse(unknown())
        }
        (_, Ruling::Allow(rules)) => Verdict::Run(Because::rules(&rules)),
        (_, Ruling::Silent) if user_named => Verdict::Run(Because::UserNamed(host.to_string())),
        (_, Ruling::Silent) => Verdict::Ask(unknown()),
        (_, ruling @ (Ruling::Deny(_) | Ruling::Ask { .. })) => judge(approval, true, &ruling),
    }
}

/// What becomes of a verdict on a call that writes a protected path which no rule names. `rule` would.
pub(super) fn guard(verdict: Verdict, path: ProtectedPath, rule: String) -> Verdict {
    match verdict {
        Verdict::Refuse(_) => verdict,
        Verdict::Run(_) | Verdict::Ask(_) => Verdict::Ask(Because::Protected { path, rule }),
    }
}

/// What is said when there is nobody to ask, with what would let the call run.
pub(super) fn unheard(because: &Because) -> String {
    match because {
        Because::Rules(_) | Because::Unsure(_) => {
            format!("this call needs consent and there is nobody to ask; {because}")
        }
        Because::Host { host, .. } => {
            format!("{because}, and there is no one to ask; run skein with `--allow 'host: {host}'` to allow it")
        }
        Because::Protected { path, rule } => format!(
            "this call needs consent and no one can be asked; {path}. A rule that names the path allows it: run skein \
             with `--allow '{rule}'`, or write the rule into your config"
        ),
        Because::Level(_) | Because::ReadOnly(_) | Because::UserNamed(_) => UNHEARD.to_owned(),
    }
}

const UNHEARD: &str = "this call needs consent and there is nobody to ask; run skein with `--allow RULE` to allow such calls, \
                       or with `--approval auto` to allow all";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{PermissionRule, Then};
    use crate::permissions::Origin;
    use crate::permissions::judge_host as host_ruling;

    #[test]
    fn a_rule_that_allows_answers_only_what_would_be_asked() {
        let rule = |then| Rule { rule: PermissionRule::from_text("a", then).expect("a rule"), origin: Origin::Flag };
        let (allow, ask, deny) = (rule(Then::Allow), rule(Then::Ask), rule(Then::Deny));
        let rulings = [
            Ruling::Silent,
            Ruling::Allow(vec![&allow]),
            Ruling::Ask { rule: &ask, certain: true },
            Ruling::Ask { rule: &deny, certain: false },
            Ruling::Deny(&deny),
        ];
        let shown = |approval, read_only| {
            let one = |ruling| match judge(approval, read_only, ruling) {
                Verdict::Run(_) => "run",
                Verdict::Ask(_) => "ask",
                Verdict::Refuse(_) => "refuse",
            };
            rulings.each_ref().map(one).join(" ")
        };
        for (approval, read_only, expected) in [
            (Approval::Auto, false, "run run ask ask refuse"),
            (Approval::Ask, false, "ask run ask ask refuse"),
            (Approval::Ask, true, "run run ask ask refuse"),
            (Approval::Smart, false, "ask run ask ask refuse"),
            (Approval::ReadOnly, false, "refuse refuse refuse refuse refuse"),
            (Approval::ReadOnly, true, "run run ask ask refuse"),
            (Approval::Deny, true, "refuse refuse refuse refuse refuse"),
        ] {
            assert_eq!(shown(approval, read_only), expected, "{approval:?} {read_only}");
        }
    }

    #[test]
    fn a_host_needs_a_rule_a_prompt_or_a_question() {
        let rule = |text: &str, then| Rule {
            rule: PermissionRule::from_text(text, then).expect("a rule"),
            origin: Origin::Flag,
        };
        let tool = [rule("fetch", Then::Allow)];
        let judged = |approval, then: Option<Then>, user_named, of_tool| {
            let rules: Vec<_> = then.into_iter().map(|then| rule("host: example.com", then)).collect();
            let host = RemoteHost::of_url("https://example.com/").expect("a host");
            let call = HostCall { ruling: host_ruling(&rules, &host), host, user_named };
            match judge_host(approval, call, of_tool) {
                Verdict::Run(_) => "run",
                Verdict::Ask(_) => "ask",
                Verdict::Refuse(_) => "refuse",
            }
        };
        let cases = [None, Some(Then::Allow), Some(Then::Ask), Some(Then::Deny)];
        for (approval, user_named, expected) in [
            (Approval::Auto, false, ["run", "run", "ask", "refuse"]),
            (Approval::Ask, false, ["ask", "run", "ask", "refuse"]),
            (Approval::Ask, true, ["run", "run", "ask", "refuse"]),
            (Approval::Smart, false, ["ask", "run", "ask", "refuse"]),
            (Approval::ReadOnly, true, ["refuse", "run", "refuse", "refuse"]),
            (Approval::Deny, true, ["refuse"; 4]),
        ] {
            let said = cases.map(|then| judged(approval, then, user_named, Ruling::Silent));
            assert_eq!(said, expected, "{approval:?} {user_named}");
        }
        // A rule that allows the tool answers the question, and opens no read-only session.
        let allow = || Ruling::Allow(vec![&tool[0]]);
        assert_eq!(judged(Approval::Ask, None, false, allow()), "run");
        assert_eq!(judged(Approval::Ask, Some(Then::Deny), false, allow()), "refuse");
        assert_eq!(judged(Approval::ReadOnly, None, false, allow()), "refuse");
    }
}
