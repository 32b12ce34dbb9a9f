//! Converts JSON with comments and trailing commas, as editors write it, to plain JSON.

/// Returns the text as plain JSON. Keeps all lines, so that errors have the right line number.
pub(super) fn without_comments(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    // The position of the last comma, if only blanks and comments follow it.
    let mut comma = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                comma = None;
                plain.push(c);
                copy_string(&mut chars, &mut plain);
            }
            '/' if chars.peek() == Some(&'/') => {
                while chars.peek().is_some_and(|next| *next != '\n') {
                    chars.next();
                }
            }
            '/' if chars.peek() == Some(&'*') => {
                chars.next();
                let mut before = ' ';
                for inside in chars.by_ref() {
                    if inside == '\n' {
                        plain.push('\n');
                    }
                    if before == '*' && inside == '/' {
                        break;
                    }
                    before = inside;
                }
            }
            ',' => {
                comma = Some(plain.len());
                plain.push(c);
            }
            '}' | ']' => {
                if let Some(at) = comma.take() {
                    plain.replace_range(at..=at, " ");
                }
                plain.push(c);
            }
            c => {
                if !c.is_whitespace() {
                    comma = None;
                }
                plain.push(c);
            }
        }
    }
    plain
}

fn copy_string(chars: &mut impl Iterator<Item = char>, plain: &mut String) {
    let mut escaped = false;
    for inside in chars {
        plain.push(inside);
        match inside {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_last_commas_go_and_text_stays() {
        let text = "{ // one\n \"a\": \"http://x/* no */ \\\" // no\", /* two\n lines */ \"b\": [1, 2, ], // end\n}";
        let plain = without_comments(text);
        let value: serde_json::Value = serde_json::from_str(&plain).expect("plain JSON");
        assert_eq!(value["a"], "http://x/* no */ \" // no");
        assert_eq!(value["b"], serde_json::json!([1, 2]));
        assert_eq!(plain.lines().count(), text.lines().count());
    }
}
