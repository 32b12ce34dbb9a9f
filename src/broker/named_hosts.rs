//! Remembers the hosts that the user names in prompts. A call that reads from one of them needs no consent.
//!
//! Invariant: searches only text that the user typed, never files, tool results, attached resources or model output. A
//! word that may be a file name or code counts only in a URL.

use std::sync::{Mutex, PoisonError};

use crate::network::RemoteHost;

/// Maximum number of hosts that a session remembers.
const MAX_HOSTS: usize = 200;

/// The hosts that the user of a session has named.
#[derive(Debug, Default)]
pub(super) struct NamedHosts(Mutex<Vec<RemoteHost>>);

impl NamedHosts {
    /// Adds the hosts in a text that the user typed.
    pub(super) fn add_from(&self, text: &str) {
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for host in hosts_in(text) {
            if hosts.len() < MAX_HOSTS && !hosts.contains(&host) {
                hosts.push(host);
            }
        }
    }

    pub(super) fn contains(&self, host: &RemoteHost) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|named| named.is_same(host))
    }
}

/// Finds URLs, and bare hosts as in `look at docs.example.com/intro`.
pub(super) fn hosts_in(text: &str) -> impl Iterator<Item = RemoteHost> {
    let apart = |c: char| c.is_whitespace() || c.is_control() || "<>\"'`()[]{}|\\^,;".contains(c);
    // A URL may contain brackets, for an IPv6 address. It ends before the first character that it cannot contain.
    let ends = |c: char| c.is_whitespace() || c.is_control() || "<>\"'`()|\\^{},;".contains(c);
    let urls = text.match_indices("://").filter_map(move |(at, _)| {
        let ends_with = |scheme: &&str| {
            let start = at.checked_sub(scheme.len());
            start.is_some_and(|start| text.as_bytes()[start..at].eq_ignore_ascii_case(scheme.as_bytes()))
        };
        let scheme = ["https", "http"].into_iter().find(ends_with)?;
        let rest = text[at..].split(ends).next().unwrap_or_default().trim_end_matches(['.', ':', '!', '?']);
        RemoteHost::of_url(&format!("{scheme}{rest}")).filter(|_| !authority(rest).contains('@'))
    });
    let words = text.split(apart).filter(|word| !word.contains("://")).filter_map(bare);
    urls.chain(words)
}

fn authority(rest: &str) -> &str {
    rest.trim_start_matches("://").split(['/', '?', '#']).next().unwrap_or_default()
}

/// Top-level domains that are also file extensions or common names in code.
const AMBIGUOUS: [&str; 24] = [
    "rs", "md", "py", "sh", "pl", "cc", "so", "zip", "mov", "app", "ps", "pm", "tf", "ml", "mk", "mm", "ai", "ms",
    "st", "id", "name", "do", "is", "in",
];

/// Returns the host if the word can only mean a host.
fn bare(word: &str) -> Option<RemoteHost> {
    let word = word.trim_end_matches(['.', ':', '!', '?']);
    if word.contains(['@', '*', '=', '$', '~']) {
        return None;
    }
    let host = word.split(['/', '?', '#']).next()?;
    let name = host.split(':').next()?;
    let labels: Vec<&str> = name.split('.').collect();
    let last = labels.last().filter(|_| labels.len() > 1 && labels.iter().all(|label| !label.is_empty()))?;
    let address = name.parse::<std::net::Ipv4Addr>().is_ok();
    let domain = last.chars().count() > 1
        && last.chars().all(char::is_alphabetic)
        && !AMBIGUOUS.contains(&last.to_lowercase().as_str());
    RemoteHost::of_text(host).filter(|_| address || domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> String {
        hosts_in(text).map(|host| host.to_string()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn urls_and_bare_hosts_are_named() {
        for (text, expected) in [
            ("read https://docs.rs/tokio, please", "docs.rs"),
            ("(see http://Example.COM:8080/a?b=c).", "example.com:8080"),
            ("HTTPS://A.example/ and <https://b.example>", "a.example b.example"),
            ("what does example.com say?", "example.com"),
            ("open www.example.org/path.", "www.example.org"),
            ("http://[::1]:9/x", "[::1]:9"),
            ("ask 127.0.0.1:8080 or localhost", "127.0.0.1:8080"),
            ("bücher.de", "xn--bcher-kva.de"),
        ] {
            assert_eq!(named(text), expected, "{text}");
        }
    }

    #[test]
    fn files_code_mail_and_other_users_hosts_are_not() {
        for text in [
            "fix main.rs and README.md",
            "run src/evil.com/x.py",
            "mail me@example.com",
            "https://example.com@evil.net/",
            "object.id, this.name and version 1.2.3",
            "a..com .com com. x.",
            "ftp://files.example.com/",
            "evil.com=1 *.evil.com ~/evil.com",
        ] {
            assert_eq!(named(text), "", "{text}");
        }
    }

    #[test]
    fn a_session_remembers_what_its_user_named() {
        let hosts = NamedHosts::default();
        hosts.add_from("compare https://a.example/x with b.example:8080");
        let knows = |url: &str| hosts.contains(&RemoteHost::of_url(url).expect(url));
        assert!(knows("http://a.example/other") && knows("https://b.example:8080/"));
        assert!(!knows("https://b.example/") && !knows("https://sub.a.example/") && !knows("https://a.example:8080/"));
    }

    #[test]
    fn hosts_over_the_limit_are_not_remembered() {
        let hosts = NamedHosts::default();
        for number in 0..=MAX_HOSTS {
            hosts.add_from(&format!("read https://h{number}.example/"));
        }
        let knows = |number: usize| {
            let url = format!("https://h{number}.example/");
            hosts.contains(&RemoteHost::of_url(&url).expect("a host"))
        };
        assert!((0..MAX_HOSTS).all(knows) && !knows(MAX_HOSTS));
    }
}
