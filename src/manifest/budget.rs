//! Defines limits of cost, tokens, model requests and time, as configs, profiles and managed files state them.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::duration::ManifestDuration;

/// Limits of work with models. Delegated work counts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetConfig {
    /// The limits of each turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<BudgetLimits>,
    /// The limits of each session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<BudgetLimits>,
    /// The limits of all sessions of each principal in a day or a month.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<PeriodBudget>,
}

/// The most that work may use. A field that is left out limits nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetLimits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<DollarAmount>,
    /// Tokens of requests and answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenCount>,
    /// Requests to models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub requests: Option<u32>,
    /// The time that turns take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<ManifestDuration>,
}

/// The most that work may use in a day or a month.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PeriodBudget {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<DollarAmount>,
    /// Tokens of requests and answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenCount>,
    /// Requests to models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub requests: Option<u32>,
    /// The time that turns take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<ManifestDuration>,
    /// The period, in UTC.
    #[serde(default)]
    pub per: BudgetPeriod,
}

impl PeriodBudget {
    pub fn limits(&self) -> BudgetLimits {
        BudgetLimits { cost: self.cost, tokens: self.tokens, requests: self.requests, time: self.time }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BudgetPeriod {
    #[default]
    Day,
    Month,
}

impl BudgetPeriod {
    /// Returns the name of the period that contains a day such as `2026-11-15`: the day itself, or its month.
    pub fn name_of(self, day: &str) -> String {
        match self {
            BudgetPeriod::Day => day.to_owned(),
            BudgetPeriod::Month => day.rsplit_once('-').map_or(day, |(month, _)| month).to_owned(),
        }
    }
}

/// An amount of US dollars, as `2 USD`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DollarAmount(f64);

/// A text that is not an amount of US dollars.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an amount like 2 USD or 0.50 USD")]
pub struct DollarAmountError {
    text: String,
}

impl DollarAmount {
    pub fn dollars(self) -> f64 {
        self.0
    }
}

impl TryFrom<String> for DollarAmount {
    type Error = DollarAmountError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let amount = text.strip_suffix("USD").map(str::trim_end).and_then(|amount| amount.parse::<f64>().ok());
        match amount.filter(|amount| amount.is_finite() && *amount >= 0.0) {
            Some(amount) => Ok(Self(amount)),
            None => Err(DollarAmountError { text }),
        }
    }
}

impl From<DollarAmount> for String {
    fn from(amount: DollarAmount) -> Self {
        amount.to_string()
    }
}

impl fmt::Display for DollarAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} USD", self.0)
    }
}

impl JsonSchema for DollarAmount {
    fn schema_name() -> Cow<'static, str> {
        "DollarAmount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "an amount of US dollars: 2 USD, 0.50 USD",
            "pattern": "^[0-9]{1,9}(\\.[0-9]{1,6})? ?USD$",
        })
    }
}

/// A number of tokens: `500000`, `500k` or `2M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "TokenText", into = "u64")]
pub struct TokenCount(u64);

/// The forms of a number of tokens in a file.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenText {
    Number(u64),
    Text(String),
}

/// A text that is not a number of tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a number of tokens like 500000, 500k or 2M")]
pub struct TokenCountError {
    text: String,
}

impl TokenCount {
    pub fn tokens(self) -> u64 {
        self.0
    }
}

impl TryFrom<TokenText> for TokenCount {
    type Error = TokenCountError;

    fn try_from(text: TokenText) -> Result<Self, Self::Error> {
        let text = match text {
            TokenText::Number(number) => return Ok(Self(number)),
            TokenText::Text(text) => text,
        };
        let (digits, unit) = match (text.strip_suffix('k'), text.strip_suffix('M')) {
            (Some(digits), _) => (digits, 1_000),
            (_, Some(digits)) => (digits, 1_000_000),
            (None, None) => (text.as_str(), 1),
        };
        let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
        number.map(Self).ok_or(TokenCountError { text })
    }
}

impl From<TokenCount> for u64 {
    fn from(count: TokenCount) -> Self {
        count.0
    }
}

impl JsonSchema for TokenCount {
    fn schema_name() -> Cow<'static, str> {
        "TokenCount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let description = "a number of tokens: 500000, 500k, 2M";
        json_schema!({
            "description": description,
            "anyOf": [
                {"type": "integer", "minimum": 1},
                // Messages show the description next to the pattern.
                {"type": "string", "description": description, "pattern": "^[0-9]{1,9}[kM]?$"},
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn limits_are_read_as_people_write_them() {
        let read = |value: Value| serde_json::from_value::<BudgetLimits>(value);
        let limits = read(json!({"cost": "0.50 USD", "tokens": "500k", "requests": 20, "time": "30m"})).unwrap();
        assert_eq!(limits.cost.map(DollarAmount::dollars), Some(0.5));
        assert_eq!(limits.tokens.map(TokenCount::tokens), Some(500_000));
        assert_eq!(read(json!({"tokens": 7})).unwrap().tokens.map(TokenCount::tokens), Some(7));
        for wrong in [json!({"cost": "2 EUR"}), json!({"cost": "-1 USD"}), json!({"tokens": "5G"}), json!({"turns": 1})]
        {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_period_has_the_name_of_its_day_or_month() {
        assert_eq!(BudgetPeriod::Day.name_of("2026-11-15"), "2026-11-15");
        assert_eq!(BudgetPeriod::Month.name_of("2026-11-15"), "2026-11");
    }
}
