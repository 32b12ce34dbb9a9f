//! The numbers that X11 has for characters and keys.

/// A key that was named wrongly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no key; use a character or Enter, Tab, Escape, Backspace, Delete, Insert, Space, Up, Down, Left, Right, \
     Home, End, PageUp, PageDown, F1-F12, with ctrl+, alt+, shift+ or super+ before it"
)]
pub struct KeyNameError(String);

pub(super) const SHIFT: u32 = 0xffe1;
const CONTROL: u32 = 0xffe3;
const ALT: u32 = 0xffe9;
const SUPER: u32 = 0xffeb;

const KEYS: [(&str, u32); 22] = [
    ("enter", 0xff0d),
    ("return", 0xff0d),
    ("tab", 0xff09),
    ("escape", 0xff1b),
    ("esc", 0xff1b),
    ("backspace", 0xff08),
    ("delete", 0xffff),
    ("insert", 0xff63),
    ("space", 0x20),
    ("up", 0xff52),
    ("down", 0xff54),
    ("left", 0xff51),
    ("right", 0xff53),
    ("home", 0xff50),
    ("end", 0xff57),
    ("pageup", 0xff55),
    ("pagedown", 0xff56),
    ("menu", 0xff67),
    ("ctrl", CONTROL),
    ("alt", ALT),
    ("shift", SHIFT),
    ("super", SUPER),
];

/// Returns the number of a character. `None` for control characters that no key writes.
pub(super) fn of_char(letter: char) -> Option<u32> {
    match letter {
        '\n' | '\r' => Some(0xff0d),
        '\t' => Some(0xff09),
        letter if letter.is_control() => None,
        // Latin-1 has its own numbers.
        '\u{20}'..='\u{ff}' => Some(letter.into()),
        letter => Some(0x0100_0000 | u32::from(letter)),
    }
}

/// Parses `ctrl+shift+t`. Returns the modifiers and the key.
pub(super) fn of_keys(text: &str) -> Result<(Vec<u32>, u32), KeyNameError> {
    let error = || KeyNameError(text.chars().take(40).collect());
    let (before, name) = match text.strip_suffix('+') {
        Some(before) if before.is_empty() || before.ends_with('+') => (before.trim_end_matches('+'), "+"),
        Some(_) => return Err(error()),
        None => text.rsplit_once('+').unwrap_or(("", text)),
    };
    let modifiers =
        before.split('+').filter(|part| !part.is_empty()).map(|part| match part.to_ascii_lowercase().as_str() {
            "ctrl" | "control" => Ok(CONTROL),
            "alt" => Ok(ALT),
            "shift" => Ok(SHIFT),
            "super" | "meta" | "win" => Ok(SUPER),
            _ => Err(error()),
        });
    let modifiers = modifiers.collect::<Result<Vec<_>, _>>()?;
    Ok((modifiers, of_name(name).ok_or_else(error)?))
}

fn of_name(name: &str) -> Option<u32> {
    let lower = name.to_ascii_lowercase();
    let plain = lower.strip_prefix("arrow").unwrap_or(&lower);
    if let Some((_, number)) = KEYS.iter().find(|(known, _)| *known == plain) {
        return Some(*number);
    }
    let function = lower.strip_prefix('f').and_then(|number| number.parse::<u32>().ok());
    if let Some(number) = function.filter(|number| (1..=12).contains(number)) {
        return Some(0xffbd + number);
    }
    let mut letters = name.chars();
    match (letters.next(), letters.next()) {
        (Some(letter), None) => of_char(letter),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_and_keys_have_numbers() {
        assert_eq!([of_char('a'), of_char('é'), of_char('€')], [Some(0x61), Some(0xe9), Some(0x0100_20ac)]);
        assert_eq!([of_char('\n'), of_char('\u{7}')], [Some(0xff0d), None]);
        assert_eq!(of_keys("ctrl+shift+T").unwrap(), (vec![CONTROL, SHIFT], 0x54));
        assert_eq!(of_keys("Return").unwrap(), (vec![], 0xff0d));
        assert_eq!(of_keys("f12").unwrap(), (vec![], 0xffc9));
        assert_eq!(of_keys("ArrowLeft").unwrap(), (vec![], 0xff51));
        assert_eq!(of_keys("alt++").unwrap(), (vec![ALT], 0x2b));
        for text in ["", "hyper+a", "ab", "ctrl+", "f0"] {
            assert!(of_keys(text).is_err(), "{text}");
        }
    }
}
