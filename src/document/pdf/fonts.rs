//! The fonts of a page: from the bytes of a string to characters and widths.

use std::collections::HashMap;

use hayro_syntax::object::{Array, Dict, Name, Number, Object, Stream};

use super::cmap::CharacterMap;
use super::glyphs::{BaseEncoding, decode, default_width, glyph_text};

/// One character of a string.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FontCharacter {
    /// Empty if the font does not say what it means.
    pub(super) text: String,
    /// In units of the font size.
    pub(super) width: f32,
    /// Word spacing applies to it.
    pub(super) is_space: bool,
}

/// What is known about a font.
#[derive(Debug, Clone, Default)]
pub(super) struct PageFont {
    to_unicode: CharacterMap,
    kind: FontKind,
}

#[derive(Debug, Clone)]
enum FontKind {
    Simple { texts: Vec<Option<String>>, widths: Vec<f32> },
    Composite { widths: HashMap<u32, f32>, default: f32, is_unicode: bool },
}

impl Default for FontKind {
    fn default() -> Self {
        let texts = (0..=255).map(|code| decode(BaseEncoding::WinAnsi, code).map(String::from)).collect();
        let widths = (0..=255).map(|code| default_width("", code) / 1000.0).collect();
        Self::Simple { texts, widths }
    }
}

impl PageFont {
    pub(super) fn read(font: &Dict<'_>) -> Self {
        let map = font.get::<Stream<'_>>("ToUnicode").and_then(|stream| stream.decoded().ok());
        let to_unicode = map.map(|bytes| CharacterMap::parse(&bytes)).unwrap_or_default();
        let is_composite = font.get::<Name<'_>>("Subtype").is_some_and(|kind| kind.as_str() == "Type0");
        let kind = if is_composite { composite(font) } else { simple(font) };
        Self { to_unicode, kind }
    }

    /// Splits a string into characters.
    pub(super) fn characters(&self, bytes: &[u8]) -> Vec<FontCharacter> {
        match &self.kind {
            FontKind::Simple { texts, widths } => bytes.iter().map(|byte| self.simple(*byte, texts, widths)).collect(),
            FontKind::Composite { widths, default, is_unicode } => {
                let mut characters = Vec::new();
                let mut rest = bytes;
                while !rest.is_empty() {
                    let length = self.to_unicode.code_length(rest).unwrap_or(2).min(rest.len());
                    let (code, after) = rest.split_at(length);
                    rest = after;
                    let code = code.iter().fold(0u32, |code, byte| code << 8 | u32::from(*byte));
                    let unicode = || char::from_u32(code).filter(|_| *is_unicode).map(String::from);
                    let text = self.to_unicode.text(code).map(str::to_owned).or_else(unicode).unwrap_or_default();
                    let width = widths.get(&code).copied().unwrap_or(*default);
                    characters.push(FontCharacter { text, width, is_space: length == 1 && code == 32 });
                }
                characters
            }
        }
    }

    fn simple(&self, byte: u8, texts: &[Option<String>], widths: &[f32]) -> FontCharacter {
        let at = usize::from(byte);
        let mapped = self.to_unicode.text(u32::from(byte)).map(str::to_owned);
        let text = mapped.or_else(|| texts.get(at).cloned().flatten()).unwrap_or_default();
        FontCharacter { text, width: widths.get(at).copied().unwrap_or(0.5), is_space: byte == 32 }
    }
}

fn simple(font: &Dict<'_>) -> FontKind {
    let name = font.get::<Name<'_>>("BaseFont").map(|name| name.as_str().to_owned()).unwrap_or_default();
    let base_of = |name: &str| match name {
        "WinAnsiEncoding" => Some(BaseEncoding::WinAnsi),
        "MacRomanEncoding" => Some(BaseEncoding::MacRoman),
        "StandardEncoding" => Some(BaseEncoding::Standard),
        _ => None,
    };
    let named = font.get::<Name<'_>>("Encoding").and_then(|name| base_of(name.as_str()));
    let dictionary = font.get::<Dict<'_>>("Encoding");
    let in_dictionary = dictionary.as_ref().and_then(|encoding| encoding.get::<Name<'_>>("BaseEncoding"));
    let base = named.or_else(|| in_dictionary.and_then(|name| base_of(name.as_str())));
    let is_true_type = font.get::<Name<'_>>("Subtype").is_some_and(|kind| kind.as_str() == "TrueType");
    let base = base.unwrap_or(if is_true_type { BaseEncoding::WinAnsi } else { BaseEncoding::Standard });
    let mut texts: Vec<Option<String>> = (0..=255).map(|code| decode(base, code).map(String::from)).collect();
    if let Some(differences) = dictionary.and_then(|encoding| encoding.get::<Array<'_>>("Differences")) {
        let mut code = 0usize;
        for object in differences.iter::<Object<'_>>() {
            match object {
                Object::Number(number) => code = usize::try_from(number.as_i64()).unwrap_or(256),
                Object::Name(name) => {
                    if let Some(text) = texts.get_mut(code) {
                        *text = glyph_text(name.as_str());
                    }
                    code = code.saturating_add(1);
                }
                _ => {}
            }
        }
    }
    let descriptor = font.get::<Dict<'_>>("FontDescriptor");
    let missing =
        descriptor.and_then(|descriptor| descriptor.get::<Number>("MissingWidth")).map(|width| width.as_f32());
    // The glyphs of a Type 3 font have their own scale.
    let matrix = font.get::<Array<'_>>("FontMatrix").and_then(|matrix| matrix.iter::<Number>().next());
    let scale = matrix.map_or(0.001, |scale| scale.as_f32().abs()).clamp(0.000_01, 10.0);
    let mut widths: Vec<f32> = (0..=255)
        .map(|code| missing.filter(|width| *width > 0.0).unwrap_or_else(|| default_width(&name, code)) * 0.001)
        .collect();
    let first = font.get::<Number>("FirstChar").and_then(|first| usize::try_from(first.as_i64()).ok()).unwrap_or(0);
    if let Some(given) = font.get::<Array<'_>>("Widths") {
        for (width, slot) in given.iter::<Number>().zip(widths.iter_mut().skip(first)) {
            *slot = width.as_f32() * scale;
        }
    }
    FontKind::Simple { texts, widths }
}

fn composite(font: &Dict<'_>) -> FontKind {
    let descendant = font.get::<Array<'_>>("DescendantFonts").and_then(|fonts| fonts.iter::<Dict<'_>>().next());
    let default =
        descendant.as_ref().and_then(|font| font.get::<Number>("DW")).map_or(1.0, |width| width.as_f32() / 1000.0);
    let mut widths = HashMap::new();
    if let Some(list) = descendant.and_then(|font| font.get::<Array<'_>>("W")) {
        let objects: Vec<Object<'_>> = list.iter::<Object<'_>>().take(100_000).collect();
        let mut rest = objects.as_slice();
        let code = |number: &Number| u32::try_from(number.as_i64()).unwrap_or(0);
        loop {
            match rest {
                [Object::Number(first), Object::Array(list), after @ ..] => {
                    for (offset, width) in list.iter::<Number>().take(65_536).enumerate() {
                        widths.insert(
                            code(first).saturating_add(u32::try_from(offset).unwrap_or(0)),
                            width.as_f32() / 1000.0,
                        );
                    }
                    rest = after;
                }
                [Object::Number(first), Object::Number(last), Object::Number(width), after @ ..] => {
                    for code in code(first)..=code(last).min(code(first).saturating_add(65_535)) {
                        widths.insert(code, width.as_f32() / 1000.0);
                    }
                    rest = after;
                }
                _ => break,
            }
        }
    }
    let encoding = font.get::<Name<'_>>("Encoding").map(|name| name.as_str().to_owned()).unwrap_or_default();
    let is_unicode = encoding.contains("UCS2") || encoding.contains("UTF16");
    FontKind::Composite { widths, default, is_unicode }
}
