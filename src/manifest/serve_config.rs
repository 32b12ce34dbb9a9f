//! Defines the settings of `skein serve` in a user's config: which principal the JWTs of an OIDC issuer act for.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::approval::ApprovalLevel;

/// Settings of `skein serve`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServeConfig {
    /// Who the JWTs of the OIDC issuer act for. The first entry whose claims a JWT has counts; without one, the JWT is
    /// refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub principals: Vec<PrincipalRule>,
}

/// Maps claims of a JWT to a principal and its limits. The limits are those of `skein token create`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrincipalRule {
    /// The claims that a JWT must have, all of them. A name that begins with `/` is a JSON pointer into the claims.
    #[schemars(extend("minProperties" = 1))]
    pub claims: BTreeMap<String, ClaimMatch>,
    /// The name of the principal. Either this or `name_claim`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9._@-]{0,63}$"))]
    pub name: Option<String>,
    /// The claim that holds the name of the principal. Choose one that users cannot change themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub name_claim: Option<String>,
    /// Globs of the modes that the principal reaches, as `agent/mode`; all if left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modes: Vec<String>,
    /// Globs of the services below `/mcp/services`; all if left out together with `modes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<Vec<String>>,
    /// Clients may bring services that start a program on the server.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub client_services: bool,
    /// The loosest approval level of a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalLevel>,
    /// Folders of the server in which sessions may work, as absolute paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roots: Vec<PathBuf>,
    /// Maximum number of open sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub sessions: Option<u32>,
    /// Maximum number of turns that run at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub turns: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub requests_per_minute: Option<u32>,
    /// The principal may manage tokens, manifests and rules.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub admin: bool,
}

/// The value of a claim, or several of which one is enough.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ClaimMatch {
    One(ClaimValue),
    AnyOf(Vec<ClaimValue>),
}

/// A value of a claim. If the claim is a list, the value must be one of its entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ClaimValue {
    Text(String),
    Number(i64),
    Flag(bool),
}

impl PrincipalRule {
    /// Returns whether a JWT has all claims of the rule. A rule without claims matches nothing.
    pub fn matches(&self, claims: &Value) -> bool {
        let has = |(name, wanted): (&String, &ClaimMatch)| {
            find_claim(claims, name).is_some_and(|value| wanted.values().iter().any(|wanted| wanted.is_in(name, value)))
        };
        !self.claims.is_empty() && self.claims.iter().all(has)
    }
}

/// Returns the claim with this name, or at this JSON pointer.
pub fn find_claim<'a>(claims: &'a Value, name: &str) -> Option<&'a Value> {
    if name.starts_with('/') { claims.pointer(name) } else { claims.get(name) }
}

impl ClaimMatch {
    fn values(&self) -> &[ClaimValue] {
        match self {
            ClaimMatch::One(value) => std::slice::from_ref(value),
            ClaimMatch::AnyOf(values) => values,
        }
    }
}

impl ClaimValue {
    fn is_in(&self, name: &str, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Array(values)) => values.iter().any(|value| self.is_equal(value)),
            // OAuth writes several scopes into one text.
            (ClaimValue::Text(wanted), Value::String(text)) if name == "scope" => {
                text.split_ascii_whitespace().any(|scope| scope == wanted)
            }
            _ => self.is_equal(value),
        }
    }

    fn is_equal(&self, value: &Value) -> bool {
        match self {
            ClaimValue::Text(text) => value.as_str() == Some(text),
            ClaimValue::Number(number) => value.as_i64() == Some(*number),
            ClaimValue::Flag(flag) => value.as_bool() == Some(*flag),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(claims: Value) -> PrincipalRule {
        serde_json::from_value(json!({"claims": claims, "name": "ann"})).unwrap()
    }

    #[test]
    fn a_rule_needs_all_its_claims() {
        let jwt = json!({
            "sub": "1", "email": "ann@example.com", "email_verified": true, "level": 3, "groups": ["dev", "ops"],
            "scope": "openid skein", "realm_access": {"roles": ["admin"]}, "https://example.com/team": "a",
        });
        for claims in [
            json!({"email": "ann@example.com"}),
            json!({"email": "ann@example.com", "email_verified": true, "level": 3}),
            json!({"groups": "ops"}),
            json!({"groups": ["qa", "dev"]}),
            json!({"scope": "skein"}),
            json!({"/realm_access/roles": "admin"}),
            json!({"https://example.com/team": "a"}),
        ] {
            assert!(rule(claims.clone()).matches(&jwt), "{claims}");
        }
        for claims in [
            json!({}),
            json!({"email": "ann@example.co"}),
            json!({"email": "ann@example.com", "level": 4}),
            json!({"email_verified": "true"}),
            json!({"level": "3"}),
            json!({"groups": "op"}),
            json!({"groups": []}),
            json!({"scope": "openid skein"}),
            json!({"realm_access": "admin"}),
            json!({"missing": "x"}),
        ] {
            assert!(!rule(claims.clone()).matches(&jwt), "{claims}");
        }
    }
}
