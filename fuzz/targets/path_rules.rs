//! Rules about paths: a pattern, a line `---`, and a path. A pattern means the same to Skein as to a matcher that tries
//! everything, and a protected path stays protected however it is written.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use skein::manifest::{PermissionRule, RuleEffect};
use skein::permissions::{Argument, Call, RuleDecision, RuleOrigin, SourcedRule, evaluate};
use skein::root_files::normalize;
use skein::sandbox::{find_protected, find_protected_name};

use super::text_of;

/// The matcher that tries everything takes too long for longer texts, and for patterns with more stars.
const MAX_LENGTH: usize = 64;
const MAX_STARS: usize = 4;

pub(super) fn run(data: &[u8]) {
    let text = text_of(data);
    let (pattern, path) = text.split_once("\n---\n").unwrap_or(("*", text));
    check_protection(path);
    // Skein takes a NUL for unknown characters.
    let is_small = pattern.len() + path.len() <= MAX_LENGTH && pattern.matches('*').count() <= MAX_STARS;
    if is_small && !text.contains('\0') {
        check_rules(pattern, path);
    }
}

fn check_rules(pattern: &str, path: &str) {
    let argument = Argument::Path { shown: path.to_owned(), absolute: path.to_owned(), given: path.to_owned() };
    let arguments = BTreeMap::from([("path".to_owned(), argument)]);
    let call = Call { tool: "developer__write", arguments: &arguments, brought: false };
    let rule = |then: RuleEffect| {
        let (tool, arguments) =
            (Some("developer__*".to_owned()), BTreeMap::from([("path".to_owned(), pattern.to_owned())]));
        SourcedRule {
            rule: PermissionRule { tool, arguments, then, ..PermissionRule::default() },
            origin: RuleOrigin::Flag,
        }
    };
    let (pattern, path): (Vec<char>, Vec<char>) = (pattern.chars().collect(), path.chars().collect());
    let expected = matches(&pattern, &path);
    let (deny, allow) = ([rule(RuleEffect::Deny)], [rule(RuleEffect::Allow)]);
    assert_eq!(matches!(evaluate(&deny, call), RuleDecision::Deny(_)), expected, "{pattern:?} {path:?}");
    assert_eq!(matches!(evaluate(&allow, call), RuleDecision::Allow(_)), expected, "{pattern:?} {path:?}");
}

fn matches(pattern: &[char], path: &[char]) -> bool {
    match (pattern, path) {
        ([], path) => path.is_empty(),
        (['*', rest @ ..], path) => (0..=path.len()).any(|at| matches(rest, &path[at..])),
        ([wanted, rest @ ..], [found, others @ ..]) => wanted == found && matches(rest, others),
        (_, []) => false,
    }
}

fn check_protection(path: &str) {
    let path = normalize(Path::new(path));
    assert!(path.is_absolute() && !path.components().any(|part| part == Component::ParentDir), "{path:?}");
    assert_eq!(normalize(&path), path);
    let found = find_protected(&path, None);
    if let Some(text) = path.to_str() {
        assert_eq!(find_protected_name(text), found, "{text:?}");
        assert_eq!(find_protected(Path::new(&text.to_ascii_uppercase()), None), found, "{text:?} in capitals");
    }
    // What is below a protected folder is protected, too. Of git, only some of it is.
    if let Some((name, _)) = found.filter(|(name, _)| ![".git", ".github"].contains(name)) {
        assert_eq!(find_protected(&path.join("more"), None).map(|(name, _)| name), Some(name), "{path:?}");
    }
}
