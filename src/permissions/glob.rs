//! Matches patterns with `*` against a whole text in which some characters may be unknown.

use super::budget::Budget;

/// A placeholder for any number of unknown characters, such as the result of an expansion. Real text contains no NUL
/// where this is used.
pub(super) const UNKNOWN: char = '\0';

/// Returns true if the pattern matches for every value of the unknown characters; only `*` matches them.
pub(super) fn matches(pattern: &str, text: &str, budget: &Budget) -> bool {
    // `*` matches without spending the budget.
    pattern == "*" || matches_from(pattern, text, budget, |_, at| at == 0)
}

/// Returns true if the pattern matches the rest of the text from the start of a word. A match may also start at a
/// program's name within a word: `rm` in `/bin/rm` and `-crm`.
pub(super) fn matches_within(pattern: &str, text: &str, budget: &Budget) -> bool {
    let mut word = 0;
    matches_from(pattern, text, budget, |text, at| {
        if text[..at].last() == Some(&' ') {
            word = at;
        }
        match &text[word..at] {
            [] => true,
            ['/', .., last] => *last == '/',
            ['/'] => true,
            ['-', option] => option.is_ascii_alphabetic(),
            _ => false,
        }
    })
}

/// `starts` returns true where a match may begin.
fn matches_from(pattern: &str, text: &str, budget: &Budget, mut starts: impl FnMut(&[char], usize) -> bool) -> bool {
    if !budget.spend(pattern.len() + text.len()) {
        return false;
    }
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    // `reached[n]`: the first n characters of the pattern match the text so far.
    let mut reached = vec![false; pattern.len() + 1];
    let mut next = reached.clone();
    // Whether any prefix is reached.
    let mut active = false;
    for at in 0..=text.len() {
        if starts(&text, at) {
            reached[0] = true;
            active = true;
        }
        if !active {
            continue;
        }
        if !budget.spend(pattern.len()) {
            return false;
        }
        skip_stars(&pattern, &mut reached);
        let Some(c) = text.get(at).copied() else { break };
        next.fill(false);
        active = false;
        for (at, wanted) in pattern.iter().enumerate().filter(|(at, _)| reached[*at]) {
            if *wanted == '*' {
                next[at] = true;
                active = true;
            } else if *wanted == c && c != UNKNOWN {
                next[at + 1] = true;
                active = true;
            }
        }
        std::mem::swap(&mut reached, &mut next);
    }
    reached[pattern.len()]
}

/// Returns true if the pattern matches for some value of the unknown characters.
pub(super) fn may_match(pattern: &str, text: &str, budget: &Budget) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let mut reached = vec![false; pattern.len() + 1];
    reached[0] = true;
    skip_stars(&pattern, &mut reached);
    for c in text.chars() {
        if !budget.spend(1 + pattern.len()) {
            return false;
        }
        if c == UNKNOWN {
            // The unknown characters may match any rest of the pattern.
            let first = reached.iter().position(|reached| *reached).unwrap_or(reached.len());
            reached.iter_mut().skip(first).for_each(|reached| *reached = true);
            continue;
        }
        let mut next = vec![false; pattern.len() + 1];
        for (at, wanted) in pattern.iter().enumerate().filter(|(at, _)| reached[*at]) {
            if *wanted == '*' {
                next[at] = true;
            } else if *wanted == c {
                next[at + 1] = true;
            }
        }
        if !next.contains(&true) {
            return false;
        }
        skip_stars(&pattern, &mut next);
        reached = next;
    }
    reached[pattern.len()]
}

/// Lets each `*` match nothing.
fn skip_stars(pattern: &[char], reached: &mut [bool]) {
    for (at, wanted) in pattern.iter().enumerate() {
        if reached[at] && *wanted == '*' {
            reached[at + 1] = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, text: &str) -> bool {
        super::matches(pattern, text, &Budget::default())
    }

    fn may_match(pattern: &str, text: &str) -> bool {
        super::may_match(pattern, text, &Budget::default())
    }

    #[test]
    fn star_matches_any_characters_and_the_pattern_all_text() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("*", "", true),
            ("*", "a\nb", true),
            ("git status*", "git status", true),
            ("git status*", "git status-x", true),
            ("git status *", "git status", false),
            ("git status", "git status ", false),
            ("a*b*c", "abbc", true),
            ("a*b*c", "acb", false),
            ("src/*", "src", false),
            ("[a]", "a", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn only_a_star_takes_what_is_unknown() {
        assert!(matches("ls *", "ls \0"));
        assert!(!matches("ls a", "ls \0"));
        assert!(!matches("ls \0", "ls \0"));
        assert!(may_match("ls a", "ls \0"));
        assert!(may_match("rm", "r\0m"));
        assert!(!may_match("rm *", "echo \0"));
    }

    proptest! {
        #[test]
        fn the_unknown_is_taken_for_every_value_or_for_some(
            pattern in "[ab*]{0,6}", before in "[ab]{0,3}", value in "[ab]{0,3}", after in "[ab]{0,3}"
        ) {
            let (unknown, known) = (format!("{before}\0{after}"), format!("{before}{value}{after}"));
            prop_assert!(!matches(&pattern, &unknown) || matches(&pattern, &known));
            prop_assert!(!matches(&pattern, &known) || may_match(&pattern, &unknown));
            prop_assert_eq!(matches(&pattern, &known), may_match(&pattern, &known));
        }
    }
}
