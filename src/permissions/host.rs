//! Evaluates host rules: finds the rules that match a host and returns the decision.

use super::{RuleDecision, RuleOrigin, SourcedRule};
use crate::manifest::RuleEffect;
use crate::network::{HostPattern, RemoteHost, UnstatedPort};

/// Evaluates the host rules for a host. Ignores tool rules.
pub fn judge_host<'a>(rules: &'a [SourcedRule], host: &RemoteHost) -> RuleDecision<'a> {
    let first = |then: RuleEffect| rules.iter().find(move |rule| rule.rule.then == then && rule.names_host(host));
    if let Some(rule) = first(RuleEffect::Deny) {
        RuleDecision::Deny(rule)
    } else if let Some(rule) = first(RuleEffect::Ask) {
        RuleDecision::Ask { rule, certain: true }
    } else {
        first(RuleEffect::Allow).map_or(RuleDecision::Silent, |rule| RuleDecision::Allow(vec![rule]))
    }
}

impl SourcedRule {
    /// Returns true if this is a host rule that matches. An invalid pattern was reported before; here it matches every
    /// host for `deny` and `ask`, and none for `allow`.
    fn names_host(&self, host: &RemoteHost) -> bool {
        let Some(pattern) = &self.rule.host else { return false };
        if let RuleOrigin::Managed { except, .. } = &self.origin
            && except.iter().filter_map(|pattern| HostPattern::parse(pattern).ok()).any(|pattern| {
                // Without a port, an entry allows the ports of the web only, as a rule that allows does.
                pattern.matches(host, UnstatedPort::Web)
            })
        {
            return false;
        }
        // Without a port, `allow` covers the ports of the web only; `ask` and `deny` cover all.
        let unstated = match self.rule.then {
            RuleEffect::Allow => UnstatedPort::Web,
            RuleEffect::Ask | RuleEffect::Deny => UnstatedPort::Any,
        };
        match HostPattern::parse(pattern) {
            Ok(pattern) => pattern.matches(host, unstated),
            Err(_) => self.rule.then != RuleEffect::Allow,
        }
    }
}

impl<'a> RuleDecision<'a> {
    /// Combines two decisions about one call: `deny` beats `ask`, and `ask` beats `allow`.
    #[must_use]
    pub fn and(self, other: RuleDecision<'a>) -> RuleDecision<'a> {
        let rank = |ruling: &RuleDecision<'_>| match ruling {
            RuleDecision::Deny(_) => 4,
            RuleDecision::Ask { certain: true, .. } => 3,
            RuleDecision::Ask { certain: false, .. } => 2,
            RuleDecision::Allow(_) => 1,
            RuleDecision::Silent => 0,
        };
        if rank(&other) > rank(&self) { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::PermissionRule;

    fn host(url: &str) -> RemoteHost {
        RemoteHost::of_url(url).expect(url)
    }

    #[test]
    fn deny_beats_ask_beats_allow() {
        let rule = |host: &str, then| {
            let rule = PermissionRule { tool: None, host: Some(host.to_owned()), then, ..PermissionRule::default() };
            SourcedRule { rule, origin: RuleOrigin::Flag }
        };
        let rules = [
            rule("*.example.com", RuleEffect::Allow),
            rule("asks.example.com", RuleEffect::Ask),
            rule("bad.example.com", RuleEffect::Deny),
            rule("bad.example.com", RuleEffect::Allow),
        ];
        let said = |url: &str| match judge_host(&rules, &host(url)) {
            RuleDecision::Deny(_) => "deny",
            RuleDecision::Ask { .. } => "ask",
            RuleDecision::Allow(_) => "allow",
            RuleDecision::Silent => "silent",
        };
        assert_eq!(said("https://docs.example.com/"), "allow");
        assert_eq!(said("https://asks.example.com/"), "ask");
        assert_eq!(said("https://bad.example.com/"), "deny");
        assert_eq!(said("https://example.com/"), "silent");
    }
}
