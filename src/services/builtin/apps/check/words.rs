//! Finds expressions in scripts and styles that would make a page load something.

use std::sync::LazyLock;

use regex::Regex;

use super::super::network::{LinkTarget, NetworkOrigin, address};
use super::INSTEAD;

/// A forbidden expression and its position.
pub(super) struct WordProblem {
    pub(super) at: usize,
    pub(super) problem: String,
}

/// Calls that open a connection. Captures the address if it directly follows as a literal.
static CONNECTS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let called = r"\b(?P<called>fetch|sendBeacon|importScripts)\s*(?:\?\.\s*)?\(";
    let made = r"\bnew\s+(?P<made>WebSocket|EventSource)\b\s*\(?";
    let handed = r"[=(,:]\s*(?:(?:window|self|globalThis)\.)?(?P<handed>fetch)\s*(?:[;,)\n]|$)";
    Regex::new(&format!(r#"(?:{called}|{made}|{handed})\s*(?:["'`](?P<to>[^"'`$]*)["'`])?"#)).ok()
});

/// Places that receive an address, in code and in markup that code creates: `i.src = "…"`, `'<img src="…">'`,
/// `setAttribute("src", "…")`.
static NAMES: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let given = r#"\b(?:src|href|poster|action|location)\b["'`]?\s*[=,:]"#;
    let called = r"\bnew\s+Audio\s*\(|\blocation\s*\.\s*(?:assign|replace)\s*\(";
    Regex::new(&format!(r#"(?:{given}|{called})\s*\\?["'`]?\s*(?P<to>(?:(?:https?|wss?):)?//[^\s"'`<>$\\]+)"#)).ok()
});

/// APIs that no origin in the metadata can allow. Some of them would fail only when the app runs.
static NEVER: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let words = r"\b(?:(?:webkit)?RTCPeerConnection|WebTransport|serviceWorker|SharedWorker)\b|\bnew\s+Worker\b|\b(?:XMLHttpRequest|XSLTProcessor)\b";
    let dead = r"\beval\s*\(|\bnew\s+Function\b|\bdocument\.write(?:ln)?\s*\(|\bwindow\.open\s*\(";
    let hints = r"\bdns-prefetch\b|\bpreconnect\b|\bspeculationrules\b";
    Regex::new(&format!(
        r#"{words}|{dead}|{hints}|\bimport\s*\(|(?m:^)\s*import\s*["'{{*]|\bfrom\s*["']\s*(?:https?:)?//"#
    ))
    .ok()
});

static LOADS: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r#"(?i)@import\b|(?:url\(\s*["']?|image-set\(\s*["'])(?P<to>[^"')\s]*)"#).ok());

pub(super) fn check_script(code: &str, network: &[NetworkOrigin]) -> Vec<WordProblem> {
    let never = NEVER.iter().flat_map(|never| never.find_iter(code)).map(|found| {
        let word = found.as_str().trim();
        WordProblem { at: found.start(), problem: format!("the script uses `{word}`, which no app may: do without it") }
    });
    let connects = CONNECTS.iter().flat_map(|connects| connects.captures_iter(code)).filter_map(|found| {
        let name = found.name("called").or_else(|| found.name("made")).or_else(|| found.name("handed"))?;
        let to = found.name("to").map_or("", |to| to.as_str());
        let problem = match address(to, network) {
            LinkTarget::Remote(origin) => format!("the script goes to {origin}: {INSTEAD}"),
            _ if network.is_empty() => {
                let name = name.as_str();
                format!("the script uses `{name}`, and the app has no network: {INSTEAD}")
            }
            LinkTarget::Within | LinkTarget::Allowed | LinkTarget::Beside => return None,
        };
        Some(WordProblem { at: name.start(), problem })
    });
    let names = NAMES.iter().flat_map(|names| names.captures_iter(code)).filter_map(|found| {
        let to = found.name("to")?;
        let LinkTarget::Remote(origin) = address(to.as_str(), network) else { return None };
        Some(WordProblem { at: to.start(), problem: format!("the script goes to {origin}: {INSTEAD}") })
    });
    never.chain(connects).chain(names).collect()
}

pub(super) fn check_style(rules: &str, network: &[NetworkOrigin]) -> Vec<WordProblem> {
    let loads = LOADS.iter().flat_map(|loads| loads.captures_iter(rules));
    let found = loads.filter_map(|found| {
        let whole = found.get(0)?;
        let Some(to) = found.name("to") else {
            let problem = "`@import` is not allowed: write the styles into the page".to_owned();
            return Some(WordProblem { at: whole.start(), problem });
        };
        let problem = match address(to.as_str(), network) {
            LinkTarget::Within | LinkTarget::Allowed => return None,
            LinkTarget::Beside => "a style names another file, and an app has none: use a data URI".to_owned(),
            LinkTarget::Remote(origin) => format!("a style needs {origin}: {INSTEAD}"),
        };
        Some(WordProblem { at: whole.start(), problem })
    });
    found.collect()
}
