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
        let table = self.key_table()?;
        let symbols = text.chars().map(|letter| keysyms::of_char(letter).ok_or(ScreenError::NoKey(letter)));
        let symbols = symbols.collect::<Result<Vec<_>, _>>()?;
        let shift = table.find(SHIFT).map(|(code, _)| code);
        let spare = table.spare();
        for (letter, symbol) in text.chars().zip(&symbols) {
            let is_possible = match table.find(*symbol) {
                Some((_, needs_shift)) => !needs_shift || shift.is_some(),
                None => spare.is_some(),
            };
            if !is_possible {
                return Err(ScreenError::NoKey(letter));
            }
        }
        for symbol in symbols {
            self.type_symbol(&table, symbol, shift, spare)?;
        }
        Ok(())
    }

    fn type_symbol(
        &self,
        table: &KeyTable,
        symbol: u32,
        shift: Option<u8>,
        spare: Option<u8>,
    ) -> Result<(), ScreenError> {
        match (table.find(symbol), spare) {
            (Some((code, needs_shift)), _) => {
                let held: Vec<u8> = shift.filter(|_| needs_shift).into_iter().collect();
                self.press_with(&held, code)
            }
            (None, Some(code)) => {
                self.set_key(code, symbol)?;
                let pressed = self.press_with(&[], code);
                self.set_key(code, 0)?;
                pressed
            }
            (None, None) => Ok(()),
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
        let code = |symbol: u32| table.find(symbol).ok_or(ScreenError::NoKey(char::from_u32(symbol).unwrap_or('?')));
        let mut presses = Vec::new();
        for (modifiers, symbol) in parsed {
            let mut held = modifiers.iter().map(|m| code(*m).map(|(code, _)| code)).collect::<Result<Vec<_>, _>>()?;
            let (key, needs_shift) = code(symbol)?;
            if needs_shift && !modifiers.contains(&SHIFT) {
                held.push(code(SHIFT)?.0);
            }
            presses.push((held, key));
        }
        presses.iter().try_for_each(|(held, key)| self.press_with(held, *key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
