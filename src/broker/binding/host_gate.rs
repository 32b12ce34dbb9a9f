//! Decides about the hosts that processes in a sandbox reach, with the rules, the approval level and the consents of
//! their session.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures::future::BoxFuture;
use serde_json::{Map, json};

use super::super::gate::{self, DecisionReason, GateDecision, HostCall};
use super::super::session_state::{BindingGate, BrokerState};
use super::CallPolicy;
use super::audit::AuditBasis;
use crate::network::RemoteHost;
use crate::permissions::{RuleDecision, SourcedRule, judge_host};
use crate::sandbox::proxy::{HostAnswer, HostGate, HostQuestion, HostRecord, HostRefusal, HostRuling, RefusalReason};
use crate::tool::ask::{Asker, ConsentSubject, PermissionRequest, PermissionResponse};
use crate::tool::{AuditKind, AuditRecord, AuditSink, AuditSource, AuditVerdict, Notice, NoticeSink};

/// The tool name that requests and consents about hosts of a sandbox have.
const SANDBOX_NETWORK: &str = "sandbox:network";
/// The actor of decisions about the process of a service or an external agent, which several modes may use.
const PROGRAM: &str = "program";
/// Maximum number of refusals of one program that the user is shown. Later ones are only in the logs.
const MAX_REPORTED: usize = 100;

/// The gate of one session in one mode. It holds no session, because the session holds the sandboxes that use it.
pub(in crate::broker) struct SessionHostGate {
    pub(in crate::broker) policy: Arc<CallPolicy>,
    pub(in crate::broker) asker: Arc<dyn Asker>,
    /// What the broker remembers about the top-level session.
    pub(in crate::broker) state: Arc<BrokerState>,
    pub(in crate::broker) audit: Arc<dyn AuditSink>,
    /// The mode, as `agent/mode`.
    pub(in crate::broker) actor: String,
}

/// Returns what the host rules say.
fn apply_rules(rules: &[SourcedRule], host: &RemoteHost) -> HostRuling {
    match judge_host(rules, host) {
        RuleDecision::Deny(rule) => HostRuling::Deny(rule.to_string()),
        RuleDecision::Ask { .. } => HostRuling::Ask,
        RuleDecision::Allow(rules) if rules.iter().any(|rule| is_exact(rule)) => HostRuling::AllowExact,
        RuleDecision::Allow(_) => HostRuling::Allow,
        RuleDecision::Silent => HostRuling::Silent,
    }
}

/// Records a decision about a host.
fn record_host(audit: &dyn AuditSink, actor: &str, record: &HostRecord, AuditBasis { source, rule }: AuditBasis) {
    let is_managed = record.refusal.is_some() && source == AuditSource::Managed;
    audit.record(AuditRecord {
        kind: if is_managed { AuditKind::Managed } else { AuditKind::Host },
        actor: actor.to_owned(),
        subject: record.host.authority(),
        call: None,
        decision: if record.refusal.is_some() { AuditVerdict::Refuse } else { AuditVerdict::Allow },
        source,
        rule,
        arguments: None,
    });
}

/// Returns what decided about a host without a question. `None` if there was a question.
fn basis_of_sandbox(rules: &[SourcedRule], record: &HostRecord) -> Option<AuditBasis> {
    let by_sandbox = |check: &str| AuditBasis { source: AuditSource::Sandbox, rule: Some(check.to_owned()) };
    match (&record.refusal, judge_host(rules, &record.host)) {
        (Some(RefusalReason::Rule(_)), RuleDecision::Deny(rule)) => {
            Some(AuditBasis::of_rules(std::slice::from_ref(rule)))
        }
        (Some(RefusalReason::Rule(_)), _) => Some(AuditSource::Rule.into()),
        (Some(RefusalReason::Profile | RefusalReason::Unlisted), _) => Some(by_sandbox("profile")),
        (Some(RefusalReason::Address { .. }), _) => Some(by_sandbox("address")),
        (Some(RefusalReason::OtherName(_)), _) => Some(by_sandbox("server name")),
        (Some(RefusalReason::Declined(_) | RefusalReason::NoUser(_)), _)
        | (Some(RefusalReason::Unanswered | RefusalReason::TooManyQuestions), _) => None,
        (None, _) if record.consented => None,
        (None, RuleDecision::Allow(rules)) => {
            let rules: Vec<_> = rules.into_iter().cloned().collect();
            Some(AuditBasis::of_rules(&rules))
        }
        (None, _) => Some(by_sandbox("profile")),
    }
}

/// Returns what an "always" answer about a host covers.
fn subject_of(host: &RemoteHost) -> ConsentSubject {
    ConsentSubject::of_host(SANDBOX_NETWORK, host.to_string())
}

/// Returns what decided about a host after a question, now or before.
fn source_of_answer(state: &BrokerState, record: &HostRecord) -> AuditSource {
    match &record.refusal {
        Some(RefusalReason::NoUser(_) | RefusalReason::Unanswered | RefusalReason::TooManyQuestions) => {
            AuditSource::NoUser
        }
        refusal => {
            let is_known = state.consents.about(&subject_of(&record.host)) == Some(refusal.is_none());
            if is_known { AuditSource::Consent } else { AuditSource::User }
        }
    }
}

/// Logs a decision. A command line and the names that a command sends may contain secrets, so the log has the id of the
/// command and the kind of the reason instead.
fn log_decision(actor: &str, HostRecord { host, id, refusal, .. }: &HostRecord) {
    let command = id.map(tracing::field::display);
    match refusal.as_ref().map(RefusalReason::name) {
        Some(reason) => tracing::info!(host = %host.authority(), actor, command, reason, "the sandbox refused a host"),
        None => tracing::info!(host = %host.authority(), actor, command, "the sandbox allowed a host"),
    }
}

impl HostGate for SessionHostGate {
    fn rule(&self, host: &RemoteHost) -> HostRuling {
        apply_rules(&self.policy.rules, host)
    }

    fn settle(&self, host: &RemoteHost) -> Option<HostAnswer> {
        match (self.state.consents.about(&subject_of(host)), self.judge(host)) {
            (Some(true), _) => Some(HostAnswer::Session),
            (_, GateDecision::Refuse(because)) => Some(HostAnswer::Forbidden(self.policy.explain(&because))),
            (None, GateDecision::Run(_)) => Some(HostAnswer::Permitted),
            // A later consent to a command line that names the host counts more than a refusal for the session.
            (Some(false), GateDecision::Run(_)) | (_, GateDecision::Ask(_)) => None,
        }
    }

    fn ask(&self, question: HostQuestion) -> BoxFuture<'_, HostAnswer> {
        Box::pin(self.answer(question))
    }

    fn record(&self, record: &HostRecord) {
        log_decision(&self.actor, record);
        let basis = basis_of_sandbox(&self.policy.rules, record).unwrap_or_else(|| self.basis_of_answer(record));
        record_host(self.audit.as_ref(), &self.actor, record, basis);
    }
}

/// The sessions that use a program.
pub(in crate::broker) enum ProgramUsers {
    /// One session, which gets questions, notices about refusals, and entries in its audit log.
    One { notices: Arc<dyn NoticeSink>, audit: Arc<dyn AuditSink> },
    /// Several. None can be asked, because its answer would hold for the others.
    Several,
}

/// The gate of a service or an external agent. Its process may run longer than the binding, which holds the process, so
/// the gate does not hold the binding.
pub(in crate::broker) struct ProgramHostGate {
    rules: Vec<SourcedRule>,
    users: ProgramUsers,
    /// What the broker remembers about the session, with the gate of its latest binding.
    session: Weak<BrokerState>,
    /// The refusals that the user knows.
    reported: Mutex<HashSet<String>>,
}

impl ProgramHostGate {
    pub(in crate::broker) fn new(rules: Vec<SourcedRule>, users: ProgramUsers, session: Weak<BrokerState>) -> Self {
        Self { rules, users, session, reported: Mutex::default() }
    }

    /// Returns what decided about a host that needed consent. The gate of the session's binding has answered, so it knows:
    /// often its level decides, and no user was asked.
    fn basis_of_answer(&self, record: &HostRecord) -> AuditBasis {
        if let Some(session) = self.session.upgrade().and_then(|state| state.current_gate()) {
            let (source, rule) = session.basis(record);
            return AuditBasis { source, rule };
        }
        let source = if record.refusal.is_some() { AuditSource::NoUser } else { AuditSource::Consent };
        match judge_host(&self.rules, &record.host) {
            RuleDecision::Ask { rule, .. } => AuditBasis::of_rules(std::slice::from_ref(rule)).with_source(source),
            RuleDecision::Deny(_) | RuleDecision::Allow(_) | RuleDecision::Silent => source.into(),
        }
    }
}

impl HostGate for ProgramHostGate {
    fn rule(&self, host: &RemoteHost) -> HostRuling {
        match (apply_rules(&self.rules, host), &self.users) {
            (HostRuling::Ask, ProgramUsers::Several) => {
                HostRuling::Deny("asks, but sessions share this process; write `scope: session`".to_owned())
            }
            (ruling, _) => ruling,
        }
    }

    fn settle(&self, host: &RemoteHost) -> Option<HostAnswer> {
        self.session.upgrade().and_then(|state| state.current_gate())?.settle(host)
    }

    fn ask(&self, question: HostQuestion) -> BoxFuture<'_, HostAnswer> {
        Box::pin(async move {
            match self.session.upgrade().and_then(|state| state.current_gate()) {
                Some(session) => session.ask(question).await,
                None => HostAnswer::Unavailable("no session uses this process now".to_owned()),
            }
        })
    }

    fn record(&self, record: &HostRecord) {
        log_decision(PROGRAM, record);
        let ProgramUsers::One { notices, audit } = &self.users else { return };
        let basis = basis_of_sandbox(&self.rules, record).unwrap_or_else(|| self.basis_of_answer(record));
        record_host(audit.as_ref(), PROGRAM, record, basis);
        let Some(reason) = &record.refusal else { return };
        let refusal = HostRefusal { host: record.host.clone(), reason: reason.clone() }.to_string();
        let text = match &record.command {
            Some(program) => format!("{program}: {refusal}"),
            None => refusal,
        };
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = reported.len() < MAX_REPORTED && reported.insert(text.clone());
        drop(reported);
        if is_new {
            notices.send(Notice::new(text));
        }
    }
}

impl BindingGate for SessionHostGate {
    fn basis(&self, record: &HostRecord) -> (AuditSource, Option<String>) {
        let AuditBasis { source, rule } = self.basis_of_answer(record);
        (source, rule)
    }
}

impl SessionHostGate {
    /// Decides about a host with the rules, the approval level and the prompts of the user.
    fn judge(&self, host: &RemoteHost) -> GateDecision {
        let ruling = judge_host(&self.policy.rules, host);
        let call = HostCall { host: host.clone(), user_named: self.state.hosts.contains(host), ruling };
        gate::judge_host(self.policy.approval(), call, RuleDecision::Silent)
    }

    /// Returns what decided about a host that needed consent.
    fn basis_of_answer(&self, record: &HostRecord) -> AuditBasis {
        let source = source_of_answer(&self.state, record);
        if source == AuditSource::Consent {
            return source.into();
        }
        let of = |because: &DecisionReason, decision| AuditBasis::of(&self.policy, because, decision);
        match (self.judge(&record.host), &record.refusal) {
            (GateDecision::Run(because), None) => of(&because, AuditVerdict::Allow),
            (GateDecision::Refuse(because), Some(_)) => of(&because, AuditVerdict::Refuse),
            (GateDecision::Ask(because) | GateDecision::Run(because) | GateDecision::Refuse(because), _) => {
                of(&because, AuditVerdict::Ask).with_source(source)
            }
        }
    }

    async fn answer(&self, HostQuestion { host, command }: HostQuestion) -> HostAnswer {
        // The level or a consent may have changed since the proxy asked the gate to settle.
        if let Some(answer) = self.settle(&host) {
            return answer;
        }
        let subject = subject_of(&host);
        if self.state.consents.about(&subject) == Some(false) {
            return HostAnswer::Declined("the user refused this host for this session".to_owned());
        }
        let (GateDecision::Ask(because) | GateDecision::Run(because) | GateDecision::Refuse(because)) =
            self.judge(&host);
        let mut arguments = Map::new();
        arguments.insert("host".to_owned(), json!(host.authority()));
        if let Some(command) = command {
            arguments.insert("command".to_owned(), json!(command));
        }
        let request = PermissionRequest {
            call: None,
            by: None,
            apart: None,
            chain: Vec::new(),
            tool: SANDBOX_NETWORK.to_owned(),
            title: Some(format!("Connect to {}", host.authority())),
            arguments,
            target: None,
            change: None,
            rule: None,
            protected: None,
            always: subject.clone(),
        };
        match self.asker.ask(request).await {
            PermissionResponse::Allow => HostAnswer::Once,
            PermissionResponse::AllowAlways => {
                self.state.consents.remember(subject, true);
                HostAnswer::Session
            }
            PermissionResponse::Refuse => HostAnswer::Declined("the user refused".to_owned()),
            PermissionResponse::RefuseAlways => {
                self.state.consents.remember(subject, false);
                HostAnswer::Declined("the user refused, and refuses this host for this session".to_owned())
            }
            PermissionResponse::Unavailable => HostAnswer::Unavailable(self.policy.explain_no_asker(&because)),
        }
    }
}

/// Returns true if a host rule names the host itself, not a group of hosts.
fn is_exact(rule: &SourcedRule) -> bool {
    rule.rule.host.as_deref().is_some_and(|host| !host.contains('*'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::proxy::NameMismatch;
    use crate::tool::NoAuditLog;

    #[test]
    fn the_log_of_host_decisions_has_no_command_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let writer = Mutex::new(file.reopen().unwrap());
        let subscriber = tracing_subscriber::fmt().json().with_writer(writer).finish();
        let gate = ProgramHostGate::new(Vec::new(), ProgramUsers::Several, Weak::new());
        let command = "curl -H 'Authorization: Bearer canary-1' https://a.test".to_owned();
        let other_name = RefusalReason::OtherName(NameMismatch::HostHeader("canary-2".to_owned()));
        let refusals = [None, Some(RefusalReason::Unlisted), Some(other_name)];
        tracing::subscriber::with_default(subscriber, || {
            for refusal in refusals {
                let host = RemoteHost::of_authority("a.test:443").unwrap();
                gate.record(&HostRecord { host, id: None, command: Some(command.clone()), refusal, consented: false });
            }
        });
        let log = std::fs::read_to_string(&file).unwrap();
        assert_eq!(log.matches("a.test:443").count(), 3, "{log}");
        assert!(log.contains("allowed a host") && log.contains("\"reason\":\"server name\""), "{log}");
        assert!(!log.contains("canary") && !log.contains("curl"), "{log}");
    }

    #[derive(Default)]
    struct CountedNotices(Mutex<usize>);

    impl NoticeSink for CountedNotices {
        fn send(&self, _: Notice) {
            *self.0.lock().unwrap() += 1;
        }
    }

    #[test]
    fn a_program_that_tries_many_hosts_causes_limited_notices() {
        let notices = Arc::new(CountedNotices::default());
        let users = ProgramUsers::One { notices: notices.clone(), audit: Arc::new(NoAuditLog) };
        let gate = ProgramHostGate::new(Vec::new(), users, Weak::new());
        for number in 0..2 * MAX_REPORTED {
            let host = RemoteHost::of_authority(&format!("host{number}.test:443")).unwrap();
            let refusal = Some(RefusalReason::Unlisted);
            let record = HostRecord { host, id: None, command: None, refusal, consented: false };
            gate.record(&record);
            gate.record(&record);
        }
        assert_eq!(*notices.0.lock().unwrap(), MAX_REPORTED);
        assert_eq!(gate.reported.lock().unwrap().len(), MAX_REPORTED);
    }
}
