//! Converts names of keys, such as `Control+Shift+T`, to key events of the browser.

use serde_json::{Value, json};

/// A key with its modifiers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyPress {
    /// Alt 1, Control 2, Meta 4, Shift 8.
    modifiers: u8,
    key: String,
    code: String,
    /// The number that old pages read.
    number: u32,
    /// What the key writes.
    text: Option<String>,
}

/// Why a key is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no key; use a character or {NAMES}, with Control+, Alt+, Shift+ or Meta+ before it")]
pub(super) struct KeyError(String);

const NAMES: &str = "Enter, Tab, Escape, Backspace, Delete, Space, ArrowUp, ArrowDown, ArrowLeft, ArrowRight, Home, End, \
                     PageUp, PageDown, F1-F12";
/// Name, number, and what the key writes.
const KEYS: [(&str, u32, Option<&str>); 15] = [
    ("Enter", 13, Some("\r")),
    ("Tab", 9, None),
    ("Escape", 27, None),
    ("Backspace", 8, None),
    ("Delete", 46, None),
    ("Insert", 45, None),
    ("Space", 32, Some(" ")),
    ("ArrowUp", 38, None),
    ("ArrowDown", 40, None),
    ("ArrowLeft", 37, None),
    ("ArrowRight", 39, None),
    ("Home", 36, None),
    ("End", 35, None),
    ("PageUp", 33, None),
    ("PageDown", 34, None),
];

impl KeyPress {
    /// Parses one key with modifiers.
    pub(super) fn parse(text: &str) -> Result<Self, KeyError> {
        let error = || KeyError(text.chars().take(40).collect());
        // The key `+` itself is the last character.
        let (before, name) = match text.strip_suffix('+') {
            Some(before) if before.is_empty() || before.ends_with('+') => (before.trim_end_matches('+'), "+"),
            Some(_) => return Err(error()),
            None => text.rsplit_once('+').unwrap_or(("", text)),
        };
        let mut modifiers = 0;
        for part in before.split('+').filter(|part| !part.is_empty()) {
            modifiers |= match part.to_ascii_lowercase().as_str() {
                "alt" | "option" => 1,
                "control" | "ctrl" => 2,
                "meta" | "cmd" | "command" | "super" => 4,
                "shift" => 8,
                _ => return Err(error()),
            };
        }
        let mut key = Self::of_name(name).ok_or_else(error)?;
        key.modifiers = modifiers;
        if modifiers & 8 != 0 && key.key.chars().count() == 1 {
            key.key = key.key.to_uppercase();
            key.text = Some(key.key.clone());
        }
        if modifiers & 7 != 0 {
            // A shortcut writes nothing.
            key.text = None;
        }
        Ok(key)
    }

    fn of_name(name: &str) -> Option<Self> {
        let alias = match name.to_ascii_lowercase().as_str() {
            "esc" => "Escape",
            "return" => "Enter",
            "up" => "ArrowUp",
            "down" => "ArrowDown",
            "left" => "ArrowLeft",
            "right" => "ArrowRight",
            "del" => "Delete",
            _ => name,
        };
        if let Some((known, number, text)) = KEYS.iter().find(|(known, ..)| known.eq_ignore_ascii_case(alias)) {
            let key = if *known == "Space" { " " } else { known };
            return Some(Self::new(key, known, *number, *text));
        }
        let function = name.strip_prefix(['F', 'f']).and_then(|number| number.parse::<u32>().ok());
        if let Some(number) = function.filter(|number| (1..=12).contains(number)) {
            let name = format!("F{number}");
            return Some(Self::new(&name, &name, 111 + number, None));
        }
        let mut letters = name.chars();
        let (letter, None) = (letters.next()?, letters.next()) else { return None };
        if letter.is_control() {
            return None;
        }
        let upper = letter.to_ascii_uppercase();
        let (code, number) = match upper {
            'A'..='Z' => (format!("Key{upper}"), upper as u32),
            '0'..='9' => (format!("Digit{upper}"), upper as u32),
            _ => (String::new(), 0),
        };
        Some(Self::new(name, &code, number, Some(name)))
    }

    fn new(key: &str, code: &str, number: u32, text: Option<&str>) -> Self {
        Self { modifiers: 0, key: key.to_owned(), code: code.to_owned(), number, text: text.map(str::to_owned) }
    }

    /// Returns the parameters of `Input.dispatchKeyEvent`: pressed, then released.
    pub(super) fn events(&self) -> [Value; 2] {
        let base = json!({
            "modifiers": self.modifiers, "key": self.key, "code": self.code, "windowsVirtualKeyCode": self.number,
        });
        let (mut down, mut up) = (base.clone(), base);
        down["type"] = json!(if self.text.is_some() { "keyDown" } else { "rawKeyDown" });
        if let Some(text) = &self.text {
            down["text"] = json!(text);
        }
        // Headless pages have no menu that would do this.
        if self.modifiers == 2 && self.key.eq_ignore_ascii_case("a") {
            down["commands"] = json!(["selectAll"]);
        }
        up["type"] = json!("keyUp");
        [down, up]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_events() {
        let [down, up] = KeyPress::parse("Enter").unwrap().events();
        let expected = json!({"modifiers": 0, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "type": "keyDown", "text": "\r"});
        assert_eq!(down, expected);
        assert_eq!(up["type"], "keyUp");
        let [down, _] = KeyPress::parse("Control+a").unwrap().events();
        assert_eq!(
            (&down["type"], &down["modifiers"], &down["code"]),
            (&json!("rawKeyDown"), &json!(2), &json!("KeyA"))
        );
        assert_eq!(KeyPress::parse("shift+t").unwrap().text.as_deref(), Some("T"));
        assert_eq!(KeyPress::parse("ctrl++").unwrap().key, "+");
        assert_eq!(KeyPress::parse("+").unwrap().key, "+");
        assert_eq!(KeyPress::parse("f5").unwrap().number, 116);
        assert_eq!(KeyPress::parse("é").unwrap().text.as_deref(), Some("é"));
    }

    #[test]
    fn other_names_are_refused() {
        for text in ["", "Entre", "Hyper+a", "a+", "F13", "ab", "Control+"] {
            let error = KeyPress::parse(text).unwrap_err().to_string();
            assert!(error.contains("is no key; use a character or Enter"), "{text}: {error}");
        }
    }
}
