//! Decodes and encodes text so that an edit keeps a file's encoding, byte order mark and line ends.

use std::borrow::Cow;

/// Maximum size of a file that is shown or edited.
pub(super) const MAX_TEXT: u64 = 16 << 20;
/// Number of leading bytes that decide whether a file is binary.
const SNIFFED: usize = 8 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Utf8,
    Utf8WithMark,
    Utf16Le,
    Utf16Be,
    Latin1,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DecodedText {
    pub(super) text: String,
    pub(super) encoding: Encoding,
}

impl Encoding {
    /// Returns a remark for the reader; `None` for UTF-8.
    pub(super) fn note(self) -> Option<&'static str> {
        match self {
            Encoding::Utf8 | Encoding::Utf8WithMark => None,
            Encoding::Utf16Le => Some("UTF-16 (little endian)"),
            Encoding::Utf16Be => Some("UTF-16 (big endian)"),
            Encoding::Latin1 => Some("not UTF-8; shown as Latin-1"),
        }
    }

    /// Encodes `text`. `None` if the encoding lacks a character.
    pub(super) fn encode(self, text: &str) -> Option<Vec<u8>> {
        match self {
            Encoding::Utf8 => Some(text.as_bytes().to_vec()),
            Encoding::Utf8WithMark => Some([&[0xef, 0xbb, 0xbf], text.as_bytes()].concat()),
            Encoding::Utf16Le => {
                Some([0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect())
            }
            Encoding::Utf16Be => {
                Some([0xfe, 0xff].into_iter().chain(text.encode_utf16().flat_map(u16::to_be_bytes)).collect())
            }
            Encoding::Latin1 => text.chars().map(|letter| u8::try_from(u32::from(letter)).ok()).collect(),
        }
    }
}

/// Decodes `bytes`; `None` if they are not text.
pub(super) fn decode(bytes: &[u8]) -> Option<DecodedText> {
    let decoded = if let Some(rest) = bytes.strip_prefix(&[0xef, 0xbb, 0xbf]) {
        DecodedText { text: String::from_utf8(rest.to_vec()).ok()?, encoding: Encoding::Utf8WithMark }
    } else if let Some(rest) = bytes.strip_prefix(&[0xff, 0xfe]) {
        DecodedText { text: utf16(rest, u16::from_le_bytes)?, encoding: Encoding::Utf16Le }
    } else if let Some(rest) = bytes.strip_prefix(&[0xfe, 0xff]) {
        DecodedText { text: utf16(rest, u16::from_be_bytes)?, encoding: Encoding::Utf16Be }
    } else if looks_binary(bytes) {
        return None;
    } else {
        match std::str::from_utf8(bytes) {
            Ok(text) => DecodedText { text: text.to_owned(), encoding: Encoding::Utf8 },
            Err(_) => {
                DecodedText { text: bytes.iter().map(|byte| char::from(*byte)).collect(), encoding: Encoding::Latin1 }
            }
        }
    };
    Some(decoded)
}

/// Returns a readable form of any bytes, with replacement characters if they are not text.
pub(super) fn readable(bytes: &[u8]) -> String {
    decode(bytes).map_or_else(|| String::from_utf8_lossy(bytes).into_owned(), |decoded| decoded.text)
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Option<String> {
    let (pairs, []) = bytes.as_chunks::<2>() else { return None };
    char::decode_utf16(pairs.iter().map(|pair| unit(*pair))).collect::<Result<String, _>>().ok()
}

/// Returns whether `bytes` contain a NUL or many control characters.
pub(super) fn looks_binary(bytes: &[u8]) -> bool {
    let sniffed = &bytes[..bytes.len().min(SNIFFED)];
    let is_control = |byte: &&u8| **byte < 0x20 && !matches!(**byte, b'\n' | b'\r' | b'\t' | 0x0c | 0x1b | 0x08);
    sniffed.contains(&0) || sniffed.iter().filter(is_control).count() * 20 > sniffed.len()
}

/// Names the type of a binary file by its first bytes.
pub(super) fn kind(bytes: &[u8]) -> &'static str {
    const KINDS: [(&[u8], &str); 22] = [
        (b"\x89PNG\r\n\x1a\n", "PNG image"),
        (b"\xff\xd8\xff", "JPEG image"),
        (b"GIF8", "GIF image"),
        (b"BM", "BMP image"),
        (b"%PDF-", "PDF document"),
        (b"PK\x03\x04", "ZIP archive (or a document, JAR or wheel in one)"),
        (b"\x1f\x8b", "gzip data"),
        (b"BZh", "bzip2 data"),
        (b"\xfd7zXZ\0", "xz data"),
        (b"\x28\xb5\x2f\xfd", "zstd data"),
        (b"7z\xbc\xaf\x27\x1c", "7-Zip archive"),
        (b"\x7fELF", "ELF program or library"),
        (b"\xcf\xfa\xed\xfe", "Mach-O program or library"),
        (b"\xca\xfe\xba\xbe", "Java class or universal Mach-O"),
        (b"MZ", "Windows program or library"),
        (b"\0asm", "WebAssembly module"),
        (b"SQLite format 3\0", "SQLite database"),
        (b"OggS", "Ogg media"),
        (b"ID3", "MP3 audio"),
        (b"fLaC", "FLAC audio"),
        (b"wOFF", "WOFF font"),
        (b"wOF2", "WOFF2 font"),
    ];
    match bytes {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "WebP image",
        [b'R', b'I', b'F', b'F', ..] => "RIFF media",
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => "MP4 or similar media",
        _ => KINDS.iter().find(|(magic, _)| bytes.starts_with(magic)).map_or("unknown data", |(_, kind)| kind),
    }
}

/// Returns whether at least half of the lines end in CR LF.
pub(super) fn uses_crlf(text: &str) -> bool {
    let crlf = text.matches("\r\n").count();
    crlf > 0 && crlf * 2 >= text.matches('\n').count()
}

/// Converts every line end to CR LF.
pub(super) fn with_crlf(text: &str) -> Cow<'_, str> {
    if !text.contains('\n') {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace("\r\n", "\n").replace('\n', "\r\n"))
}

/// Returns whether two UTF-8 texts differ only in line ends and a byte order mark. Editors store both separately
/// from the text, and some return the text without them.
pub(super) fn same_but_for_form(left: &[u8], right: &[u8]) -> bool {
    left == right || matches!((plain(left), plain(right)), (Some(left), Some(right)) if left == right)
}

/// Returns `bytes` with the line ends and the byte order mark of `model`. Both must be UTF-8.
pub(super) fn match_format(model: &[u8], bytes: &[u8]) -> Vec<u8> {
    let (Some(model), Some(text)) = (decode(model), plain(bytes)) else { return bytes.to_vec() };
    let text = if uses_crlf(&model.text) { with_crlf(&text) } else { Cow::Borrowed(text.as_str()) };
    model.encoding.encode(&text).unwrap_or_else(|| bytes.to_vec())
}

fn plain(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    Some(text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn marks_decide_the_encoding_and_latin_1_is_the_last_resort() {
        let decode = |bytes: &[u8]| decode(bytes).map(|decoded| (decoded.text, decoded.encoding));
        assert_eq!(decode(b"caf\xc3\xa9"), Some(("café".to_owned(), Encoding::Utf8)));
        assert_eq!(decode(b"\xef\xbb\xbfa"), Some(("a".to_owned(), Encoding::Utf8WithMark)));
        assert_eq!(decode(b"\xff\xfea\0\n\0"), Some(("a\n".to_owned(), Encoding::Utf16Le)));
        assert_eq!(decode(b"\xfe\xff\0a"), Some(("a".to_owned(), Encoding::Utf16Be)));
        assert_eq!(decode(b"caf\xe9\n"), Some(("café\n".to_owned(), Encoding::Latin1)));
        assert_eq!(decode(b"\x7fELF\0\0"), None);
        assert_eq!(decode(b"\xff\xfea"), None, "half a character");
    }

    proptest! {
        #[test]
        fn what_was_decoded_encodes_to_the_same_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for mark in [&b""[..], b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"] {
                let bytes = [mark, &bytes].concat();
                if let Some(decoded) = decode(&bytes) {
                    prop_assert_eq!(decoded.encoding.encode(&decoded.text), Some(bytes));
                }
            }
        }
    }
}
