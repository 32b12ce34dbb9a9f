//! Types text and presses keys. A character without a key borrows one that the keyboard does not use.

use std::thread::sleep;
use std::time::Duration;

use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::ConnectionExt as _;

use super::keysyms::{self, SHIFT};
use super::{ScreenError, X11Screen};

/// Types of events, as XTEST wants them.
const KEY_PRESS: u8 = 2;
const KEY_RELEASE: u8 = 3;
/// Time for programs to notice that a key has changed.
const NOTICE: Duration = Duration::from_millis(40);

/// What each key writes.
#[derive(Debug)]
struct KeyTable {
    first: u8,
    per_key: usize,
    symbols: Vec<u32>,
}

impl KeyTable {
    /// Returns the key of a symbol, and whether it needs Shift.
    fn find(&self, symbol: u32) -> Option<(u8, bool)> {
        let column = |column: usize| {
            let mut keys = self.symbols.chunks_exact(self.per_key);
            keys.position(|key| key.get(column) == Some(&symbol)).and_then(|index| self.code(index))
        };
        column(0).map(|code| (code, false)).or_else(|| column(1).map(|code| (code, true)))
    }

    /// Returns a key without symbols. The last one is least likely to matter.
    fn spare(&self) -> Option<u8> {
        let mut keys = self.symbols.chunks_exact(self.per_key).enumerate();
        let index = keys.rfind(|(_, key)| key.iter().all(|symbol| *symbol == 0))?.0;
        self.code(index)
    }

    fn code(&self, index: usize) -> Option<u8> {
        u8::try_from(usize::from(self.first) + index).ok()
    }

    /// Returns how each character is typed. Fails if one cannot be.
    fn plan_text(&self, text: &str) -> Result<Vec<Keystroke>, ScreenError> {
        let shift = self.find(SHIFT).map(|(code, _)| code);
        let spare = self.spare();
        let stroke = |letter: char| {
            let symbol = keysyms::of_char(letter)?;
            match self.find(symbol) {
                Some((code, false)) => Some(Keystroke::Press { held: Vec::new(), code }),
                Some((code, true)) => Some(Keystroke::Press { held: vec![shift?], code }),
                None => Some(Keystroke::Borrow { code: spare?, symbol }),
            }
        };
        text.chars().map(|letter| stroke(letter).ok_or(ScreenError::NoKey(letter))).collect()
    }

    /// Returns the keys to hold for a key with these modifiers, and its key. Fails if the keyboard has one of them not.
    fn plan_press(&self, modifiers: &[u32], symbol: u32) -> Result<(Vec<u8>, u8), ScreenError> {
        let code = |symbol: u32| self.find(symbol).ok_or(ScreenError::NoKey(char::from_u32(symbol).unwrap_or('?')));
        let mut held = modifiers.iter().map(|m| code(*m).map(|(code, _)| code)).collect::<Result<Vec<_>, _>>()?;
        let (key, needs_shift) = code(symbol)?;
        if needs_shift && !modifiers.contains(&SHIFT) {
            held.push(code(SHIFT)?.0);
        }
        Ok((held, key))
    }
}

/// How one character is typed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Keystroke {
    /// A key, while others are held.
    Press { held: Vec<u8>, code: u8 },
    /// A key without symbols, which writes this one for a moment.
    Borrow { code: u8, symbol: u32 },
}

impl X11Screen {
    fn key_table(&self) -> Result<KeyTable, ScreenError> {
        let setup = self.connection.setup();
        let (first, last) = (setup.min_keycode, setup.max_keycode);
        let count = last.saturating_sub(first).saturating_add(1);
        let reply = self.connection.get_keyboard_mapping(first, count)?.reply()?;
        Ok(KeyTable { first, per_key: usize::from(reply.keysyms_per_keycode).max(1), symbols: reply.keysyms })
    }

    fn key(&self, kind: u8, code: u8) -> Result<(), ScreenError> {
        self.fake(kind, code, 0, 0)
    }

    /// Presses and releases a key while others are held.
    fn press_with(&self, held: &[u8], code: u8) -> Result<(), ScreenError> {
        for other in held {
            self.key(KEY_PRESS, *other)?;
        }
        let pressed = self.key(KEY_PRESS, code).and_then(|()| self.key(KEY_RELEASE, code));
        // Keys that were pressed are released in any case: the user's keyboard would hang otherwise.
        for other in held.iter().rev() {
            self.key(KEY_RELEASE, *other)?;
        }
        pressed
    }

    /// Types a text into the window with the focus. Fails before the first key if a character cannot be typed.
    pub fn type_text(&self, text: &str) -> Result<(), ScreenError> {
        self.require_test()?;
        let strokes = self.key_table()?.plan_text(text)?;
        strokes.into_iter().try_for_each(|stroke| self.strike(stroke))
    }

    fn strike(&self, stroke: Keystroke) -> Result<(), ScreenError> {
        match stroke {
            Keystroke::Press { held, code } => self.press_with(&held, code),
            Keystroke::Borrow { code, symbol } => {
                self.set_key(code, symbol)?;
                let pressed = self.press_with(&[], code);
                self.set_key(code, 0)?;
                pressed
            }
        }
    }

    /// Makes a key write a symbol, or nothing.
    fn set_key(&self, code: u8, symbol: u32) -> Result<(), ScreenError> {
        if symbol == 0 {
            // The program must have read the key before it changes.
            sleep(NOTICE);
        }
        self.connection.change_keyboard_mapping(1, code, 2, &[symbol, symbol])?.check()?;
        sleep(NOTICE);
        Ok(())
    }

    /// Presses keys one after the other, such as `ctrl+s`.
    pub fn press_keys(&self, keys: &[String]) -> Result<(), ScreenError> {
        self.require_test()?;
        let parsed = keys.iter().map(|key| keysyms::of_keys(key)).collect::<Result<Vec<_>, _>>()?;
        let table = self.key_table()?;
        let presses = parsed.iter().map(|(modifiers, symbol)| table.plan_press(modifiers, *symbol));
        let presses = presses.collect::<Result<Vec<_>, _>>()?;
        presses.iter().try_for_each(|(held, key)| self.press_with(held, *key))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIRST: u8 = 8;

    /// Keyboards with two symbols on each key: letters, modifiers and nothing.
    fn table() -> impl Strategy<Value = KeyTable> {
        let symbols = vec![0_u32, 0x61, 0x62, 0x41, 0x42, 0x20, 0xe4, 0xff0d, SHIFT, 0xffe3, 0xffe9];
        let symbol = prop::sample::select(symbols);
        prop::collection::vec((symbol.clone(), symbol), 1..12).prop_map(|keys| {
            let symbols = keys.into_iter().flat_map(|(plain, shifted)| [plain, shifted]).collect();
            KeyTable { first: FIRST, per_key: 2, symbols }
        })
    }

    impl KeyTable {
        fn symbols_of(&self, code: u8) -> &[u32] {
            let at = usize::from(code - self.first) * self.per_key;
            &self.symbols[at..at + self.per_key]
        }

        /// Returns what a key writes while others are held.
        fn written(&self, held: &[u8], code: u8) -> u32 {
            let has_shift = held.iter().any(|other| self.symbols_of(*other).contains(&SHIFT));
            self.symbols_of(code)[usize::from(has_shift)]
        }
    }

    proptest! {
        /// The keys write exactly the text, on any keyboard. A text that it cannot write has no keys at all.
        #[test]
        fn a_text_is_typed_as_it_is_or_not_at_all(table in table(), text in "[abAB ä€\n\u{7}]{0,8}") {
            let symbols: Vec<_> = text.chars().map(keysyms::of_char).collect();
            match table.plan_text(&text) {
                Ok(strokes) => {
                    let written = strokes.iter().map(|stroke| match stroke {
                        Keystroke::Press { held, code } => Some(table.written(held, *code)),
                        Keystroke::Borrow { code, symbol } => {
                            assert_eq!(table.symbols_of(*code), [0, 0], "a borrowed key writes nothing else");
                            Some(*symbol)
                        }
                    });
                    prop_assert_eq!(written.collect::<Vec<_>>(), symbols);
                }
                Err(ScreenError::NoKey(letter)) => {
                    let has_key = keysyms::of_char(letter).is_some_and(|symbol| table.find(symbol).is_some_and(|(_, shifted)| !shifted));
                    prop_assert!(text.contains(letter) && !has_key, "{letter:?}");
                }
                Err(error) => prop_assert!(false, "{error}"),
            }
        }

        /// A press holds the modifiers that were named, and Shift if the key needs it.
        #[test]
        fn keys_are_pressed_as_they_are_named(
            table in table(),
            modifiers in prop::collection::vec(prop::sample::select(vec![("ctrl", 0xffe3_u32), ("alt", 0xffe9), ("shift", SHIFT)]), 0..3),
            key in prop::sample::select(vec![("a", 0x61_u32), ("B", 0x42), ("Enter", 0xff0d), ("+", 0x2b)]),
        ) {
            let names: Vec<_> = modifiers.iter().map(|(name, _)| *name).chain([key.0]).collect();
            let named: Vec<_> = modifiers.iter().map(|(_, symbol)| *symbol).collect();
            let parsed = keysyms::of_keys(&names.join("+"));
            prop_assert_eq!(&parsed, &Ok((named.clone(), key.1)));
            if let Ok((held, code)) = table.plan_press(&named, key.1) {
                prop_assert!(table.symbols_of(code).contains(&key.1));
                for symbol in &named {
                    prop_assert!(held.iter().any(|code| table.symbols_of(*code).contains(symbol)));
                }
                let extra = held.len() - named.len();
                let needs_shift = table.symbols_of(code)[0] != key.1;
                prop_assert_eq!(extra, usize::from(needs_shift && !named.contains(&SHIFT)));
            }
        }
    }

    #[test]
    fn keys_are_found_with_and_without_shift() {
        let table = KeyTable { first: 8, per_key: 2, symbols: vec![0x61, 0x41, 0x31, 0x21, 0, 0, 0xffe1, 0] };
        assert_eq!(table.find(0x61), Some((8, false)));
        assert_eq!(table.find(0x21), Some((9, true)));
        assert_eq!((table.find(0x62), table.spare()), (None, Some(10)));
        let full = KeyTable { first: 8, per_key: 1, symbols: vec![0x61] };
        assert_eq!(full.spare(), None);
    }
}
