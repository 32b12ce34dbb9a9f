//! Checks managed settings: their rules must not allow calls, and their hosts must be valid.

use super::Checks;
use crate::manifest::{DocumentPath, ManagedEntry, RuleEffect};
use crate::network::HostPattern;

impl Checks<'_> {
    pub(super) fn check_managed(&mut self, entry: &ManagedEntry) {
        for (index, rule) in entry.config.permissions.iter().enumerate() {
            let at = DocumentPath::root().key("permissions").index(index);
            if rule.then == RuleEffect::Allow {
                let problem = "managed settings cannot allow calls; they only deny and ask";
                let help = "write `then: deny` or `then: ask`, or remove the rule";
                self.error("E123", entry.source.place(&at.key("then")), problem, help);
            }
            if let Some(host) = &rule.host {
                self.check_managed_host(entry, host, &at.key("host"));
            }
        }
        for (index, host) in entry.config.hosts.iter().flatten().enumerate() {
            self.check_managed_host(entry, host, &DocumentPath::root().key("hosts").index(index));
        }
    }

    fn check_managed_host(&mut self, entry: &ManagedEntry, host: &str, at: &DocumentPath) {
        if let Err(problem) = HostPattern::parse(host) {
            let help = "for example `docs.rs`, `*.example.com` or `127.0.0.1:8080`";
            self.error("E128", entry.source.place(at), problem.to_string(), help);
        }
    }
}
