//! Parses a number of bytes as in manifests: `512MiB`, `4GiB`, or a plain number.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "SizeForm", into = "String")]
pub struct ByteSize(pub u64);

/// The forms of a size in a file.
#[derive(Deserialize)]
#[serde(untagged)]
enum SizeForm {
    Bytes(u64),
    Text(String),
}

/// The reason why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a size like 512MiB or 4GiB")]
pub struct SizeError(String);

impl ByteSize {
    /// Parses a number with an optional unit. Fails if the text has another form, or is 0 or too large.
    pub fn parse(text: &str) -> Result<Self, SizeError> {
        let error = || SizeError(text.to_owned());
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let amount: u64 = text[..split].parse().map_err(|_| error())?;
        let factor = match &text[split..] {
            "" => 1,
            unit => UNITS.iter().find(|(name, _)| *name == unit).map(|(_, bits)| 1u64 << bits).ok_or_else(error)?,
        };
        amount.checked_mul(factor).filter(|bytes| *bytes > 0).map(Self).ok_or_else(error)
    }
}

impl std::fmt::Display for ByteSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unit = UNITS.iter().rev().find(|(_, bits)| self.0 != 0 && self.0.is_multiple_of(1u64 << bits));
        match unit {
            Some((name, bits)) => write!(f, "{}{name}", self.0 >> bits),
            None => write!(f, "{}", self.0),
        }
    }
}

impl TryFrom<SizeForm> for ByteSize {
    type Error = SizeError;

    fn try_from(form: SizeForm) -> Result<Self, SizeError> {
        match form {
            SizeForm::Bytes(bytes) => Self::parse(&bytes.to_string()),
            SizeForm::Text(text) => Self::parse(&text),
        }
    }
}

impl From<ByteSize> for String {
    fn from(size: ByteSize) -> Self {
        size.to_string()
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {
                    "type": "string",
                    "pattern": "^[0-9]{1,12}(KiB|MiB|GiB|TiB)?$",
                    "description": "A size such as 512MiB or 4GiB.",
                },
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown_with_binary_units() {
        for (text, bytes, shown) in [
            ("4GiB", 4 << 30, "4GiB"),
            ("512MiB", 512 << 20, "512MiB"),
            ("1024KiB", 1 << 20, "1MiB"),
            ("1000", 1000, "1000"),
        ] {
            let size = ByteSize::parse(text).unwrap();
            assert_eq!((size, size.to_string()), (ByteSize(bytes), shown.to_owned()), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_sizes() {
        for text in ["", "GiB", "4GB", "4 GiB", "-1", "0", "1.5GiB", "99999999999TiB"] {
            assert!(ByteSize::parse(text).is_err(), "{text}");
        }
    }
}
