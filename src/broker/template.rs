//! Matches URIs against URI templates (RFC 6570). The whole URI must match, with only the characters that the template
//! can produce.

/// Longer templates and URIs never match.
const MAX_LENGTH: usize = 8_000;

/// Returns whether the template can produce the URI. Unsupported expressions, and URIs with a `..` part, never match.
pub(super) fn matches(template: &str, uri: &str) -> bool {
    if template.len() > MAX_LENGTH || uri.len() > MAX_LENGTH || climbs(uri) || uri.chars().any(char::is_control) {
        return false;
    }
    let Some(pieces) = pieces(template) else { return false };
    // An expression at the start would let the caller choose the scheme, and so the resource.
    if !matches!(pieces.first(), Some(TemplatePart::Text(_))) {
        return false;
    }
    let uri: Vec<char> = uri.chars().collect();
    // The positions that the pieces so far can end at.
    let mut reached = vec![false; uri.len() + 1];
    reached[0] = true;
    for piece in &pieces {
        reached = piece.step(&uri, &reached);
    }
    reached[uri.len()]
}

enum TemplatePart {
    Text(Vec<char>),
    /// A value of characters that match `allowed`. `lead` precedes them; both can be absent if `optional`.
    Value {
        lead: Option<char>,
        allowed: fn(char) -> bool,
        optional: bool,
    },
}

impl TemplatePart {
    fn step(&self, uri: &[char], reached: &[bool]) -> Vec<bool> {
        let mut next = vec![false; reached.len()];
        match self {
            Self::Text(text) => {
                for at in (0..reached.len()).filter(|at| reached[*at]) {
                    if uri[at..].starts_with(text) {
                        next[at + text.len()] = true;
                    }
                }
            }
            Self::Value { lead, allowed, optional } => {
                // Without a lead the value has at least one character; after a lead it may be empty.
                let mut inside = false;
                for at in 0..reached.len() {
                    if *optional && reached[at] {
                        next[at] = true;
                    }
                    inside = inside && at > 0 && allowed(uri[at - 1]);
                    inside |= match lead {
                        None => at > 0 && reached[at - 1] && allowed(uri[at - 1]),
                        Some(lead) => at > 0 && reached[at - 1] && uri[at - 1] == *lead,
                    };
                    next[at] |= inside;
                }
            }
        }
        next
    }
}

/// Parses a template. `None` if it is malformed or unsupported.
fn pieces(template: &str) -> Option<Vec<TemplatePart>> {
    let mut pieces = Vec::new();
    let mut rest = template;
    while let Some((before, behind)) = rest.split_once('{') {
        let (expression, after) = behind.split_once('}')?;
        if !before.is_empty() {
            pieces.push(TemplatePart::Text(before.chars().collect()));
        }
        pieces.extend(expression_pieces(expression)?);
        rest = after;
    }
    if rest.contains('}') {
        return None;
    }
    if !rest.is_empty() {
        pieces.push(TemplatePart::Text(rest.chars().collect()));
    }
    Some(pieces)
}

fn expression_pieces(expression: &str) -> Option<Vec<TemplatePart>> {
    let (operator, names) = match expression.chars().next()? {
        operator @ ('+' | '#' | '.' | '/' | ';' | '?' | '&') => (Some(operator), &expression[1..]),
        _ => (None, expression),
    };
    let is_name = |name: &str| {
        let name = name.trim_end_matches('*').split(':').next().unwrap_or_default();
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.%-".contains(c))
    };
    let names: Vec<_> = names.split(',').collect();
    if !names.iter().all(|name| is_name(name)) {
        return None;
    }
    let value = |lead, allowed, optional| TemplatePart::Value { lead, allowed, optional };
    let piece = match operator {
        None if names.len() == 1 => value(None, is_simple_char, false),
        None => value(None, is_list_char, false),
        Some('+') => value(None, is_reserved_char, false),
        Some('#') => value(Some('#'), is_reserved_char, true),
        Some('/') if names.iter().any(|name| name.ends_with('*')) => value(Some('/'), is_segments_char, true),
        Some(lead @ ('.' | '/' | ';')) => {
            let one = |_| value(Some(lead), is_list_char, true);
            return Some(names.iter().map(one).collect());
        }
        // The service interprets the names of a query. A value ends neither the query nor the URI.
        Some(lead) => value(Some(lead), is_query_char, true),
    };
    Some(vec![piece])
}

fn is_simple_char(c: char) -> bool {
    c.is_alphanumeric() || "-._~%".contains(c)
}

fn is_list_char(c: char) -> bool {
    is_simple_char(c) || ",=".contains(c)
}

fn is_segments_char(c: char) -> bool {
    is_list_char(c) || c == '/'
}

fn is_query_char(c: char) -> bool {
    is_list_char(c) || c == '&'
}

fn is_reserved_char(c: char) -> bool {
    is_simple_char(c) || ":/?#[]@!$&'()*+,;=".contains(c)
}

/// Returns whether a part of the URI is `..`, also percent-encoded.
fn climbs(uri: &str) -> bool {
    let plain = uri.replace("%2e", ".").replace("%2E", ".").replace("%2f", "/").replace("%2F", "/").replace("%5c", "/");
    plain.replace("%5C", "/").split(['/', '\\', '?', '#']).any(|part| part == "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_made_by_its_template_as_a_whole() {
        for (template, uri, made) in [
            ("echo://pages/{number}", "echo://pages/7", true),
            ("echo://pages/{number}", "echo://pages/a-b.c_d~%20", true),
            ("echo://pages/{number}", "echo://pages/", false),
            ("echo://pages/{number}", "echo://pages/7/secret", false),
            ("echo://pages/{number}", "echo://pages/7?x=1", false),
            ("echo://pages/{number}", "echo://pages/7#x", false),
            ("echo://pages/{number}", "echo://pages/..", false),
            ("echo://pages/{number}", "echo://pages/%2e%2E", false),
            ("echo://pages/{number}", "echo://other/7", false),
            ("echo://pages/{number}/text", "echo://pages/7/text", true),
            ("echo://pages/{number}/text", "echo://pages/7/texts", false),
            ("echo://{a}/{b}", "echo://x/y", true),
            ("echo://{a}/{b}", "echo://x", false),
            ("file:///{+path}", "file:///a/b?c", true),
            ("file:///{+path}", "file:///a/../b", false),
            ("file:///{+path}", "file:///a%2f..%2Fb", false),
            ("memory://start{?about}", "memory://start", true),
            ("memory://start{?about}", "memory://start?about=a%20b", true),
            ("memory://start{?a,b}", "memory://start?a=1&b=2", true),
            ("memory://start{?about}", "memory://start/x", false),
            ("memory://start{?about}", "memory://start?about=a/b", false),
            ("x://a{?b}{&c}", "x://a?b=1&c=2", true),
            ("x://a{/b,c}", "x://a/1/2", true),
            ("x://a{/b}", "x://a/1/2", false),
            ("x://a{/b*}", "x://a/1/2/3", true),
            ("x://a{#part}", "x://a#one/two", true),
            ("x://a{.kind}", "x://a.txt", true),
            ("x://a/b", "x://a/b", true),
            ("x://a/b", "x://a/b/c", false),
            ("{scheme}://a", "x://a", false),
            ("{+all}", "file:///etc/passwd", false),
            ("x://{}", "x://a", false),
            ("x://{a", "x://a", false),
            ("x://a}", "x://a}", false),
            ("x://{a b}", "x://a", false),
            ("x://{|a}", "x://a", false),
            ("", "", false),
            ("", "x://a", false),
        ] {
            assert_eq!(matches(template, uri), made, "{template} {uri}");
        }
    }
}
