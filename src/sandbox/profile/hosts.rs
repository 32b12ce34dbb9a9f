//! Parses and intersects the host lists of sandbox profiles.
//!
//! Invariant: the intersection matches a host only if both lists do.

use crate::network::{HostPattern, HostPatternError, REGISTRIES};

/// An entry that stands for the known package registries.
const REGISTRIES_ENTRY: &str = "registries";

/// An entry of `allow` or `deny`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostEntry {
    /// The hosts of [`REGISTRIES`], port 443.
    Registries,
    Pattern(HostPattern),
}

/// The reason why a text is not an entry of a host list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostEntryError {
    #[error(transparent)]
    Pattern(#[from] HostPatternError),
    #[error("the address `{0}` has no port")]
    AddressPort(String),
}

impl HostEntry {
    /// Parses `registries`, `HOST[:PORT]`, `*.HOST[:PORT]` or `IP:PORT`.
    pub fn parse(text: &str) -> Result<Self, HostEntryError> {
        if text == REGISTRIES_ENTRY {
            return Ok(HostEntry::Registries);
        }
        let pattern = HostPattern::parse(text)?;
        if pattern.is_address() && !pattern.has_port() {
            return Err(HostEntryError::AddressPort(text.to_owned()));
        }
        Ok(HostEntry::Pattern(pattern))
    }

    /// Returns true if the entry is an address, which only a list opens.
    fn is_address(&self) -> bool {
        matches!(self, HostEntry::Pattern(pattern) if pattern.is_address())
    }
}

/// Returns the hosts that both lists allow. Invalid entries, which are reported elsewhere, allow nothing.
pub(super) fn intersect(one: &[String], other: &[String]) -> Vec<String> {
    let mut both = Vec::new();
    for left in one {
        for right in other {
            for entry in intersect_entries(left, right) {
                if !both.contains(&entry) {
                    both.push(entry);
                }
            }
        }
    }
    both
}

/// Returns the entries that a side with `on` also reaches: names, but no addresses.
pub(super) fn name_entries(allow: &[String]) -> impl Iterator<Item = &String> {
    allow.iter().filter(|text| HostEntry::parse(text).is_ok_and(|entry| !entry.is_address()))
}

fn intersect_entries(left: &str, right: &str) -> Vec<String> {
    match (HostEntry::parse(left), HostEntry::parse(right)) {
        (Ok(HostEntry::Registries), Ok(HostEntry::Registries)) => vec![left.to_owned()],
        (Ok(HostEntry::Registries), Ok(HostEntry::Pattern(pattern)))
        | (Ok(HostEntry::Pattern(pattern)), Ok(HostEntry::Registries)) => {
            let registries = REGISTRIES.iter().filter_map(|host| HostPattern::parse(&format!("{host}:443")).ok());
            registries.filter_map(|registry| registry.intersect(&pattern)).map(|both| both.to_string()).collect()
        }
        (Ok(HostEntry::Pattern(left)), Ok(HostEntry::Pattern(right))) => {
            left.intersect(&right).map(|both| both.to_string()).into_iter().collect()
        }
        (Err(_), _) | (_, Err(_)) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(one: &[&str], other: &[&str]) -> Vec<String> {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        intersect(&owned(one), &owned(other))
    }

    #[test]
    fn hosts_intersect_by_name_and_port() {
        for (one, other, expected) in [
            ("example.com", "example.com", &["example.com"][..]),
            ("*.example.com", "api.example.com", &["api.example.com"]),
            ("*.example.com", "*.eu.example.com", &["*.eu.example.com"]),
            ("*.example.com", "example.com", &[]),
            ("*.example.com", "badexample.com", &[]),
            ("example.com", "example.com:443", &["example.com:443"]),
            ("example.com", "example.com:8080", &[]),
            ("*.example.com:443", "a.example.com", &["a.example.com:443"]),
            ("registries", "registries", &["registries"]),
            ("registries", "crates.io", &["crates.io:443"]),
            ("registries", "crates.io:80", &[]),
            ("*.crates.io", "registries", &["index.crates.io:443", "static.crates.io:443"]),
            ("registries", "example.com", &[]),
            ("127.0.0.1:5432", "127.0.0.1:5432", &["127.0.0.1:5432"]),
            ("127.0.0.1:5432", "127.0.0.1:5433", &[]),
            ("not a host", "not a host", &[]),
        ] {
            assert_eq!(both(&[one], &[other]), expected, "{one} {other}");
        }
    }

    #[test]
    fn an_address_needs_a_port() {
        for text in ["127.0.0.1", "[::1]"] {
            assert_eq!(HostEntry::parse(text), Err(HostEntryError::AddressPort(text.to_owned())));
        }
        assert!(HostEntry::parse("[::1]:80").is_ok());
        assert!(HostEntry::parse("https://example.com").is_err());
    }
}
