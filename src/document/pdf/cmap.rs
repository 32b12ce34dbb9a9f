//! Parses character maps: from the codes of a font to Unicode.

use std::collections::HashMap;

/// The most entries that one map may have.
const MAX_ENTRIES: usize = 200_000;

/// A map from codes to text.
#[derive(Debug, Clone, Default)]
pub(super) struct CharacterMap {
    texts: HashMap<u32, String>,
    /// The first and last code of each length in bytes.
    code_spaces: Vec<(usize, u32, u32)>,
}

/// A token of a map's program.
#[derive(Debug, Clone, PartialEq)]
enum CMapToken {
    Bytes(Vec<u8>),
    Number(u32),
    Word(String),
    Open,
    Close,
}

impl CharacterMap {
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let mut map = Self::default();
        let mut operands: Vec<CMapToken> = Vec::new();
        for token in tokens(bytes) {
            let CMapToken::Word(word) = &token else {
                if operands.len() < MAX_ENTRIES {
                    operands.push(token);
                }
                continue;
            };
            match word.as_str() {
                "endcodespacerange" => map.add_code_spaces(&operands),
                "endbfchar" => map.add_characters(&operands),
                "endbfrange" => map.add_ranges(&operands),
                _ => {}
            }
            operands.clear();
        }
        map
    }

    pub(super) fn text(&self, code: u32) -> Option<&str> {
        self.texts.get(&code).map(String::as_str)
    }

    /// Returns the length in bytes of the next code. `None` if the map says nothing about it.
    pub(super) fn code_length(&self, bytes: &[u8]) -> Option<usize> {
        let lengths = self.code_spaces.iter().filter(|(length, first, last)| {
            let Some(code) = bytes.get(..*length).map(number) else { return false };
            (*first..=*last).contains(&code)
        });
        lengths.map(|(length, ..)| *length).min()
    }

    fn add_code_spaces(&mut self, operands: &[CMapToken]) {
        for pair in operands.chunks_exact(2) {
            if let [CMapToken::Bytes(first), CMapToken::Bytes(last)] = pair
                && (1..=4).contains(&first.len())
                && self.code_spaces.len() < 100
            {
                self.code_spaces.push((first.len(), number(first), number(last)));
            }
        }
    }

    fn add_characters(&mut self, operands: &[CMapToken]) {
        for pair in operands.chunks_exact(2) {
            if let [CMapToken::Bytes(code), CMapToken::Bytes(text)] = pair {
                self.add(number(code), utf16(text));
            }
        }
    }

    fn add_ranges(&mut self, operands: &[CMapToken]) {
        let mut operands = operands.iter();
        while let (Some(CMapToken::Bytes(first)), Some(CMapToken::Bytes(last)), Some(target)) =
            (operands.next(), operands.next(), operands.next())
        {
            let (first, last) = (number(first), number(last));
            match target {
                CMapToken::Bytes(start) => {
                    let units: Vec<u16> =
                        start.chunks(2).map(|unit| u16::try_from(number(unit)).unwrap_or(0)).collect();
                    for offset in 0..=last.saturating_sub(first).min(0xffff) {
                        let mut units = units.clone();
                        if let Some(unit) = units.last_mut() {
                            *unit = unit.wrapping_add(u16::try_from(offset).unwrap_or(0));
                        }
                        self.add(first.saturating_add(offset), String::from_utf16_lossy(&units));
                    }
                }
                CMapToken::Open => {
                    let mut code = first;
                    for token in operands.by_ref() {
                        match token {
                            CMapToken::Bytes(text) => {
                                self.add(code, utf16(text));
                                code = code.saturating_add(1);
                            }
                            _ => break,
                        }
                    }
                }
                _ => return,
            }
        }
    }

    fn add(&mut self, code: u32, text: String) {
        if self.texts.len() < MAX_ENTRIES && !text.is_empty() {
            self.texts.insert(code, text);
        }
    }
}

/// Returns big-endian bytes as a number; of more than four bytes the last four.
fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number: u32, byte| number << 8 | u32::from(*byte))
}

fn utf16(bytes: &[u8]) -> String {
    let units: Vec<u16> = bytes.chunks(2).map(|unit| u16::try_from(number(unit)).unwrap_or(0)).collect();
    String::from_utf16_lossy(&units).replace('\0', "")
}

fn tokens(bytes: &[u8]) -> Vec<CMapToken> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(byte) = bytes.get(at).copied() {
        if tokens.len() > MAX_ENTRIES * 3 {
            break;
        }
        at += 1;
        match byte {
            b'%' => at += bytes[at..].iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(bytes.len() - at),
            b'[' => tokens.push(CMapToken::Open),
            b']' => tokens.push(CMapToken::Close),
            b'<' if bytes.get(at) == Some(&b'<') => at += 1,
            b'<' => {
                let end = bytes[at..].iter().position(|byte| *byte == b'>').map_or(bytes.len(), |end| at + end);
                tokens.push(CMapToken::Bytes(hexadecimal(&bytes[at..end])));
                at = (end + 1).min(bytes.len());
            }
            byte if byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'.') => {
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
                let end = bytes[at..].iter().position(|byte| !is_part(byte)).map_or(bytes.len(), |end| at + end);
                let word = String::from_utf8_lossy(&bytes[at - 1..end]).into_owned();
                tokens.push(word.parse().map_or_else(
                    // A name is an operand, and a word is an operator.
                    |_| if byte == b'/' { CMapToken::Close } else { CMapToken::Word(word.clone()) },
                    CMapToken::Number,
                ));
                at = end;
            }
            _ => {}
        }
    }
    tokens
}

fn hexadecimal(digits: &[u8]) -> Vec<u8> {
    let digits: Vec<u8> = digits
        .iter()
        .filter_map(|digit| char::from(*digit).to_digit(16))
        .filter_map(|digit| u8::try_from(digit).ok())
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).copied().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_characters_ranges_and_lists() {
        let map = CharacterMap::parse(
            b"/CIDInit /ProcSet findresource begin 1 begincodespacerange <0000> <FFFF> endcodespacerange\n\
              2 beginbfchar <0003> <0020> <0004> <00660069> endbfchar\n\
              2 beginbfrange <0010> <0012> <0041> <0020> <0021> [<0078> <0079>] endbfrange endcmap",
        );
        let text = |code| map.text(code).unwrap_or("?").to_owned();
        assert_eq!([3, 4, 0x10, 0x12, 0x20, 0x21, 0x22].map(text), [" ", "fi", "A", "C", "x", "y", "?"]);
        assert_eq!(map.code_length(&[0, 3]), Some(2));
    }
}
