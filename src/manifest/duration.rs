//! Parses and formats a duration as in manifests: `500ms`, `20s`, `5m`, `1h`.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ManifestDuration {
    amount: u32,
    unit: Unit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Milliseconds,
    Seconds,
    Minutes,
    Hours,
}

impl ManifestDuration {
    pub const fn seconds(amount: u32) -> Self {
        Self { amount, unit: Unit::Seconds }
    }

    pub fn duration(self) -> Duration {
        let amount = u64::from(self.amount);
        match self.unit {
            Unit::Milliseconds => Duration::from_millis(amount),
            Unit::Seconds => Duration::from_secs(amount),
            Unit::Minutes => Duration::from_secs(amount * 60),
            Unit::Hours => Duration::from_secs(amount * 3600),
        }
    }
}

impl fmt::Display for ManifestDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            Unit::Milliseconds => "ms",
            Unit::Seconds => "s",
            Unit::Minutes => "m",
            Unit::Hours => "h",
        };
        write!(f, "{}{unit}", self.amount)
    }
}

/// A text that is not a length of time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a length of time like 500ms, 20s, 5m or 1h")]
pub struct DurationError {
    text: String,
}

impl TryFrom<String> for ManifestDuration {
    type Error = DurationError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let wrong = || DurationError { text: text.clone() };
        let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let unit = match &text[split..] {
            "ms" => Unit::Milliseconds,
            "s" => Unit::Seconds,
            "m" => Unit::Minutes,
            "h" => Unit::Hours,
            _ => return Err(wrong()),
        };
        let amount = text[..split].parse().map_err(|_| wrong())?;
        Ok(Self { amount, unit })
    }
}

impl From<ManifestDuration> for String {
    fn from(span: ManifestDuration) -> Self {
        span.to_string()
    }
}

impl JsonSchema for ManifestDuration {
    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "a length of time: 500ms, 20s, 5m, 1h",
            "pattern": "^[0-9]{1,6}(ms|s|m|h)$",
        })
    }
}
