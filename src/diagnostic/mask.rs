//! Masks values in a quoted source line that may be secrets, such as those of `env` and `headers`. A mask has one
//! character for each masked one, so that positions stay the same.
//!
//! The lines before the quoted one decide which values are under such a key. The text may be invalid, so this is no
//! parser: it reads indentation, brackets, quotes and keys of YAML and JSON. Errors of this reading are caught by the
//! keys of less indented lines, and by the formats of keys.

use crate::secrets::{is_secret_name, secret_ranges};

const MASK: char = '*';
/// Maximum size of a text that is read up to the line. In a larger one, all values are masked.
const MAX_TEXT: usize = 128 << 10;

/// Fields whose values may be or contain secrets.
const FIELDS: [&str; 8] = ["args", "base_url", "env", "envs", "headers", "listen_url", "url", "webhook"];

/// Returns true if an error must not quote the value below these keys. `field` is the last one if the value directly
/// follows it. `key` of a provider names a variable, unless it is the key itself.
pub fn hides_value(keys: &[&str], field: Option<&str>, value: &str) -> bool {
    keys.iter().any(|key| hides_all_below(key))
        || field.is_some_and(names_secret)
        || (keys.contains(&"providers") && keys.contains(&"key") && !is_variable_name(value))
}

/// Returns true if all values below a field may be secrets.
fn hides_all_below(field: &str) -> bool {
    FIELDS.contains(&field.to_ascii_lowercase().as_str())
}

/// Returns true if the text directly after a key of this name may be a secret. Lists and mappings below it are none,
/// because users choose names of groups, profiles and providers. Numbers of tokens are none either.
fn names_secret(field: &str) -> bool {
    is_secret_name(field) && !field.to_ascii_lowercase().contains("tokens")
}

/// Masks the keys, tokens and passwords that have a known form.
pub fn mask_keys(line: &str) -> String {
    let ranges = secret_ranges(line);
    let is_masked = |at: usize| ranges.iter().any(|range| range.contains(&at));
    line.char_indices().map(|(at, c)| if is_masked(at) { MASK } else { c }).collect()
}

/// Returns the line with this index, in which values of fields that may hold secrets are masked.
pub(super) fn mask_line(text: &str, index: usize) -> String {
    let line = text.lines().nth(index).unwrap_or_default();
    let chars: Vec<char> = line.chars().collect();
    let mut mask = if text.len() > MAX_TEXT { LineMasker::alone(true).read(&chars) } else { mask_of(text, index) };
    show_placeholders(&chars, &mut mask);
    chars.iter().zip(mask).map(|(c, masked)| if masked { MASK } else { *c }).collect()
}

/// Returns for each character of a line whether it is masked.
fn mask_of(text: &str, index: usize) -> Vec<bool> {
    let mut reader = LineMasker::default();
    let mut outer: Vec<(usize, &str)> = Vec::new();
    for line in text.lines().take(index) {
        reader.read(&line.chars().collect::<Vec<_>>());
        if let Some(indent) = content_indent(line) {
            outer.retain(|(of, _)| *of < indent);
            outer.push((indent, line));
        }
    }
    let line = text.lines().nth(index).unwrap_or_default();
    let chars: Vec<char> = line.chars().collect();
    let indent = content_indent(line).unwrap_or_default();
    let is_below = outer.iter().any(|(of, line)| *of < indent && hides_lines_below(line));
    let alone = LineMasker::alone(is_below).read(&chars);
    reader.read(&chars).into_iter().zip(alone).map(|(one, other)| one || other).collect()
}

/// Returns the indentation of a line, dashes of lists included. `None` for an empty line.
fn content_indent(line: &str) -> Option<usize> {
    let content = line.trim_start_matches(|c: char| c.is_whitespace() || c == '-');
    (!content.is_empty()).then(|| line.chars().count() - content.chars().count())
}

/// Returns true if a line has the key of a field that may hold secrets, or starts a text that may be one.
fn hides_lines_below(line: &str) -> bool {
    if line.split(':').rev().skip(1).any(|before| hides_all_below(last_name(before))) {
        return true;
    }
    line.rsplit_once(':').is_some_and(|(before, value)| {
        let mut value = value.trim_start().chars();
        let is_text = matches!(value.next(), Some('|' | '>')) && is_literal_header(&value.collect::<Vec<_>>());
        is_text && names_secret(last_name(before))
    })
}

/// Returns the name at the end of the text before a colon.
fn last_name(before: &str) -> &str {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let before = before.trim_end().trim_end_matches(['"', '\'']);
    before.rsplit(|c| !is_name(c)).next().unwrap_or_default()
}

/// Takes variables without a default out of the mask: `${env:NAME}` is no secret.
fn show_placeholders(line: &[char], mask: &mut [bool]) {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | ' ');
    for start in 0..line.len().saturating_sub(1) {
        if line[start..].starts_with(&['$', '{']) {
            let length = line[start + 2..].iter().take_while(|c| is_name(**c)).count();
            let end = start + 2 + length;
            if line.get(end) == Some(&'}') {
                mask[start..=end].fill(false);
            }
        }
    }
}

/// A key of a block mapping that the next lines may belong to.
struct BlockKey {
    indent: usize,
    is_secret: bool,
    /// A text directly after it is masked.
    hides_text: bool,
}

/// Reads lines one after the other and knows which values are below a key that may hold secrets.
#[derive(Default)]
struct LineMasker {
    /// The whole text is below such a key.
    is_below: bool,
    blocks: Vec<BlockKey>,
    /// The open brackets: whether their content is below such a key.
    brackets: Vec<bool>,
    /// A quote that no line has closed yet, and whether its text is masked.
    quote: Option<(char, bool)>,
    /// A text of several lines, `|` or `>`: the indentation of its key, and whether it is masked.
    literal: Option<(usize, bool)>,
    /// The indentation of the current line.
    indent: usize,
    /// The next value is masked, and all below it.
    is_secret: bool,
    /// The next value is masked if it is a text.
    hides_text: bool,
    /// The next value is the name of a variable, unless it is the key itself.
    is_name: bool,
}

impl LineMasker {
    /// Creates a reader of one line.
    fn alone(is_below: bool) -> Self {
        Self { is_below, ..Self::default() }
    }

    /// Returns for each character whether it is masked.
    fn read(&mut self, line: &[char]) -> Vec<bool> {
        let mut mask = vec![false; line.len()];
        self.indent = line.iter().take_while(|c| c.is_whitespace()).count();
        let mut at = 0;
        if let Some((quote, is_secret)) = self.quote {
            let end = quote_end(line, 0, quote);
            mask[..end.unwrap_or(line.len())].fill(is_secret);
            let Some(end) = end else { return mask };
            self.quote = None;
            at = end;
        } else if let Some((indent, is_secret)) = self.literal
            && (self.indent > indent || self.indent == line.len())
        {
            mask[self.indent..].fill(is_secret);
            return mask;
        } else if self.brackets.is_empty() {
            self.literal = None;
            at = self.start_block(line);
        }
        while at < line.len() {
            at = self.read_token(line, at, &mut mask);
        }
        mask
    }

    /// Closes the blocks that end before this line. Returns where its content starts.
    fn start_block(&mut self, line: &[char]) -> usize {
        let is_dash = |at: usize| line.get(at) == Some(&'-') && line.get(at + 1).is_none_or(|c| c.is_whitespace());
        let mut at = self.indent;
        if at < line.len() && line[at] != '#' {
            // The entries of a list may be as far to the left as their key.
            let (indent, is_entry) = (self.indent, is_dash(at));
            self.close_blocks(|block| block.indent > indent || (block.indent == indent && !is_entry));
        }
        while is_dash(at) {
            at += 1 + line[at + 1..].iter().take_while(|c| c.is_whitespace()).count();
        }
        self.expect_value(self.is_inside_secret());
        // The text may start in the line after its key.
        self.hides_text = at == self.indent && self.blocks.last().is_some_and(|block| block.hides_text);
        at
    }

    fn close_blocks(&mut self, is_closed: impl Fn(&BlockKey) -> bool) {
        while self.blocks.last().is_some_and(&is_closed) {
            self.blocks.pop();
        }
    }

    fn is_inside_secret(&self) -> bool {
        let block = || self.blocks.last().map(|block| block.is_secret);
        self.brackets.last().copied().or_else(block).unwrap_or(self.is_below)
    }

    fn expect_value(&mut self, is_secret: bool) {
        self.is_secret = is_secret;
        self.hides_text = false;
        self.is_name = false;
    }

    /// Reads a token and returns the position after it.
    fn read_token(&mut self, line: &[char], at: usize, mask: &mut [bool]) -> usize {
        match line[at] {
            '#' if at == 0 || line[at - 1].is_whitespace() => {
                // Directly after its key, it is a comment for YAML, but the user may have meant it as the value.
                let before = line[..at].iter().rev().find(|c| !c.is_whitespace());
                let is_value = matches!(before, Some(':' | '-' | ',' | '[' | '{'));
                mask[at..].fill(is_value && self.hides(&line[at..]));
                return line.len();
            }
            '{' | '[' => {
                self.brackets.push(self.is_secret);
                self.hides_text = false;
            }
            '}' | ']' => {
                self.brackets.pop();
                self.expect_value(self.is_inside_secret());
            }
            ',' => self.expect_value(self.is_inside_secret()),
            ':' => {}
            c if c.is_whitespace() => {}
            '&' | '!' => return self.read_property(line, at, mask),
            '|' | '>' if self.brackets.is_empty() && is_literal_header(&line[at + 1..]) => {
                let key = self.blocks.last().map_or(0, |block| block.indent);
                self.literal = Some((key.max(self.indent), self.is_secret || self.hides_text));
                return line.len();
            }
            quote @ ('"' | '\'') => return self.read_quoted(line, at, quote, mask),
            _ => return self.read_plain(line, at, mask),
        }
        at + 1
    }

    /// Reads a tag or an anchor. It may be a secret without quotes that begins with `!` or `&`.
    fn read_property(&self, line: &[char], at: usize, mask: &mut [bool]) -> usize {
        let is_flow = !self.brackets.is_empty();
        let ends = |c: &char| c.is_whitespace() || (is_flow && ",[]{}".contains(*c));
        let end = at + line[at..].iter().take_while(|c| !ends(c)).count();
        mask[at..end].fill(self.hides(&line[at..end]));
        end
    }

    fn read_quoted(&mut self, line: &[char], at: usize, quote: char, mask: &mut [bool]) -> usize {
        let Some(end) = quote_end(line, at + 1, quote) else {
            let is_masked = self.is_secret || self.hides_text;
            self.quote = Some((quote, is_masked));
            mask[at..].fill(is_masked);
            return line.len();
        };
        let text = &line[at + 1..end - 1];
        if line[end..].iter().find(|c| !c.is_whitespace()) == Some(&':') {
            self.read_key(text, at);
        } else {
            // The quotes stay, so that the reader sees what is masked.
            mask[at + 1..end - 1].fill(self.hides(text));
        }
        end
    }

    /// Reads text without quotes. Outside brackets, it ends with the line or as a key.
    fn read_plain(&mut self, line: &[char], at: usize, mask: &mut [bool]) -> usize {
        let is_flow = !self.brackets.is_empty();
        let is_border = |c: &char| c.is_whitespace() || (is_flow && ",[]{}".contains(*c));
        let ends = |index: usize| match line[index] {
            ':' => line.get(index + 1).is_none_or(is_border),
            '#' => line[index - 1].is_whitespace(),
            c => is_flow && ",[]{}".contains(c),
        };
        let end = (at + 1..line.len()).find(|index| ends(*index)).unwrap_or(line.len());
        let length = line[at..end].iter().rposition(|c| !c.is_whitespace()).map_or(1, |last| last + 1);
        let text = &line[at..at + length];
        if line.get(end) == Some(&':') {
            // A text with a colon, such as `password: a: b`, is no key.
            let is_text = self.hides_text && at > self.indent;
            mask[at..at + length].fill(is_text);
            self.read_key(text, at);
            self.hides_text |= is_text;
        } else {
            mask[at..at + length].fill(self.hides(text));
        }
        end
    }

    fn read_key(&mut self, name: &[char], at: usize) {
        let name: String = name.iter().collect();
        if self.brackets.is_empty() {
            self.close_blocks(|block| block.indent >= at);
        }
        let is_secret = self.is_inside_secret() || hides_all_below(&name);
        let hides_text = names_secret(&name);
        if self.brackets.is_empty() {
            self.blocks.push(BlockKey { indent: at, is_secret, hides_text });
        }
        self.expect_value(is_secret);
        self.hides_text = hides_text;
        self.is_name = name == "key";
    }

    fn hides(&self, value: &[char]) -> bool {
        self.is_secret || self.hides_text || (self.is_name && !is_variable_name(&value.iter().collect::<String>()))
    }
}

/// Returns the position after the closing quote.
fn quote_end(line: &[char], from: usize, quote: char) -> Option<usize> {
    let mut at = from;
    while at < line.len() {
        match line[at] {
            '\\' if quote == '"' => at += 1,
            c if c == quote && quote == '\'' && line.get(at + 1) == Some(&quote) => at += 1,
            c if c == quote => return Some(at + 1),
            _ => {}
        }
        at += 1;
    }
    None
}

/// Returns true for what may follow the `|` or `>` of a text of several lines.
fn is_literal_header(rest: &[char]) -> bool {
    let mut rest = rest.iter().skip_while(|c| c.is_ascii_digit() || matches!(c, '+' | '-')).skip_while(|c| **c == ' ');
    rest.next().is_none_or(|c| *c == '#')
}

/// Returns true for text such as `OPENAI_API_KEY` or `city`. Few keys have only small letters.
fn is_variable_name(text: &str) -> bool {
    let all = |test: fn(&char) -> bool| text.chars().all(|c| matches!(c, '_' | '-' | ' ') || test(&c));
    all(char::is_ascii_lowercase) || all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Masks each line of a text.
    fn masked(text: &str) -> String {
        let lines: Vec<_> = (0..text.lines().count()).map(|index| mask_line(text, index)).collect();
        for (line, shown) in text.lines().zip(&lines) {
            assert_eq!(line.chars().count(), shown.chars().count(), "{line}");
        }
        lines.join("\n")
    }

    #[track_caller]
    fn check(cases: &[(&str, &str)]) {
        for (text, expected) in cases {
            assert_eq!(masked(text), *expected);
        }
    }

    #[test]
    fn values_of_secret_fields_in_one_line_are_masked() {
        let cases = [
            (
                "transport: {stdio: {command: x, args: [--key, k1], env: {A: k2, B: \"k3\"}, cwd: y}}",
                "transport: {stdio: {command: x, args: [*****, **], env: {A: **, B: \"**\"}, cwd: y}}",
            ),
            (
                r#"{"mcpServers":{"a":{"url":"https://u:k1@h/?q=k2","headers":{"X-A":"k3"}},"b":{"command":"x"}}}"#,
                r#"{"mcpServers":{"a":{"url":"********************","headers":{"X-A":"**"}},"b":{"command":"x"}}}"#,
            ),
            (
                "notifications: {webhook: https://h/k1, when: away}",
                "notifications: {webhook: ************, when: away}",
            ),
            ("  own: {base_url: http://h/k1, key: k1 K2}", "  own: {base_url: ***********, key: *****}"),
            ("  own: {key: OPENAI_API_KEY, title: it's [a]}", "  own: {key: OPENAI_API_KEY, title: it's [a]}"),
            ("headers: Bearer k1 # comment", "headers: ********* # comment"),
            ("env: {A: ${env:KEY}, B: \"${env:KEY:-k1}\"}", "env: {A: ${env:KEY}, B: \"**************\"}"),
            ("budget: {tokens: 5000, max_tokens: 10}", "budget: {tokens: 5000, max_tokens: 10}"),
        ];
        check(&cases);
    }

    #[test]
    fn keys_are_masked_in_any_text() {
        let line = "é: use ghp_abcdefghijklmnopqrstuvwxyz0123456789, DB_PASSWORD=hunter2 https://a:hunter2@h";
        let expected = "é: use ****************************************, DB_PASSWORD=******* https://a:*********";
        assert_eq!(mask_keys(line), expected);
    }

    #[test]
    fn values_below_a_secret_field_are_masked() {
        let text = "\
transport:
  http:
    headers:
      X-A: k1
      X-B: |
        k2
        'k3
    description: {plain
  args:
  - k4
  - name: k5
  title: it's \"plain\"
env: {
A: k6, B: 'k
7', C: [k8]}
title: plain
- env:
    - k9
  title: plain";
        let expected = "\
transport:
  http:
    headers:
      X-A: **
      X-B: |
        **
        ***
    description: {plain
  args:
  - **
  - name: **
  title: it's \"plain\"
env: {
A: **, B: **
**, C: [**]}
title: plain
- env:
    - **
  title: plain";
        let without_bracket = |text: &str| text.replace("{plain", "plain");
        assert_eq!(masked(&without_bracket(text)), without_bracket(expected));
        // A bracket that nothing closes does not uncover the values below.
        let shown = masked(text);
        for number in 1..=9 {
            assert!(!shown.contains(&format!("k{number}")) || number >= 6, "{shown}");
        }
    }

    #[test]
    fn a_secret_that_looks_like_a_tag_or_an_anchor_is_masked() {
        let cases = [
            ("env: {DSN: !Secr3tPw}\ntitle: plain", "env: {DSN: *********}\ntitle: plain"),
            ("env: {DSN: &Secr3tPw, A: k1}", "env: {DSN: *********, A: **}"),
            ("env:\n  DSN: &Secr3tPw k1\ntitle: plain", "env:\n  DSN: ********* **\ntitle: plain"),
            ("password: !Secr3tPw", "password: *********"),
            ("command: !shell mine", "command: !shell mine"),
        ];
        check(&cases);
    }

    #[test]
    fn a_secret_that_looks_like_a_comment_is_masked() {
        let cases = [
            ("password: #k1 k2\ntitle: plain", "password: ******\ntitle: plain"),
            ("env:\n  A: #k1\n  B: k2 # plain", "env:\n  A: ***\n  B: ** # plain"),
            ("args:\n- #k1\n# plain", "args:\n- ***\n# plain"),
            ("command: x\ntitle: # plain", "command: x\ntitle: # plain"),
            ("own: {key: #k1 K2}", "own: {key: *******"),
            ("own:\n  key: #k1\n  title: plain", "own:\n  key: ***\n  title: plain"),
        ];
        check(&cases);
    }

    #[test]
    fn a_secret_name_masks_only_the_text_after_it() {
        let cases = [
            ("groups: {secrets: [Read_Secret], token: k1, a: b}", "groups: {secrets: [Read_Secret], token: **, a: b}"),
            ("groups:\n  secrets:\n  - Read_Secret\n  - b", "groups:\n  secrets:\n  - Read_Secret\n  - b"),
            ("profiles:\n  my_token:\n    mode: open", "profiles:\n  my_token:\n    mode: open"),
            (
                "{\"token_box\": {\"a\": \"b\"}, \"token\": \"k1\"}",
                "{\"token_box\": {\"a\": \"b\"}, \"token\": \"**\"}",
            ),
            ("password:\n  k1\ntitle: plain", "password:\n  **\ntitle: plain"),
            ("password: k1\n  k2\ntitle: plain", "password: **\n  **\ntitle: plain"),
            ("password: |\n  k1\n  a: k2\ntitle: plain", "password: |\n  **\n  *****\ntitle: plain"),
            ("password: k1: k2\ntitle: plain", "password: **: **\ntitle: plain"),
            ("password: \"k1\n  k2\"\ntitle: plain", "password: ***\n*****\ntitle: plain"),
            ("my_token: {env: {A: k1}, title: plain}", "my_token: {env: {A: **}, title: plain}"),
        ];
        check(&cases);
    }

    #[test]
    fn an_error_hides_a_value_by_its_keys() {
        let hides = |keys: &[&str], value: &str| hides_value(keys, keys.last().copied(), value);
        assert!(hides(&["transport", "env", "A"], "k1"));
        assert!(hides(&["serve", "token"], "k1"));
        assert!(hides(&["providers", "own", "key"], "k1 K2"));
        assert!(!hides(&["providers", "own", "key"], "OWN_KEY"));
        assert!(!hides(&["parameters", "key"], "cityName"));
        assert!(!hides(&["profiles", "my_token", "mode"], "open"));
        assert!(!hides_value(&["groups", "secrets"], None, "Read_Secret"));
        assert!(hides_value(&["transport", "args"], None, "k1"));
    }

    #[test]
    fn indented_json_is_masked() {
        let text = "{\n  \"env\": {\n    \"A\": \"k1\"\n  },\n  \"args\": [\n    \"k2\"\n  ],\n  \"command\": \"x\"\n}";
        let expected = text.replace("k1", "**").replace("k2", "**");
        assert_eq!(masked(text), expected);
    }

    #[test]
    fn a_text_of_several_lines_does_not_confuse_the_next_lines() {
        let text = "prompt: |\n  don't {open\n  \"quotes\nenv:\n  A: k1\nsteps:\n- >-\n  it's\n- env: {A: k2}\n";
        assert_eq!(masked(text), text.trim_end().replace("k1", "**").replace("k2", "**"));
    }
}
