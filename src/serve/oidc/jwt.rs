//! Reads JWTs and checks their claims. The caller verifies the signature in between.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::Value;

use super::key_set::{IssuerKey, SignatureAlgorithm};

/// How far the clocks of the issuer and of this machine may differ.
pub(super) const LEEWAY: SignedDuration = SignedDuration::from_secs(30);

/// Why a JWT is refused. Clients do not learn the reason; the log does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    #[error("it is malformed")]
    Malformed,
    #[error("its algorithm is none of RS256, ES256 and EdDSA")]
    Algorithm,
    #[error("its header has a critical extension or another type than JWT")]
    Header,
    #[error("the issuer has no such key")]
    UnknownKey,
    #[error("its signature is wrong")]
    Signature,
    #[error("it is of another issuer")]
    Issuer,
    #[error("it is for another audience")]
    Audience,
    #[error("it has expired, or has no `exp`")]
    Expired,
    #[error("it is not valid yet")]
    NotYetValid,
    #[error("it has no `sub`")]
    NoSubject,
    #[error("no entry of `serve.principals` matches its claims")]
    NoPrincipal,
    #[error("the claim with the name of the principal is missing, or no name")]
    NoName,
}

#[derive(Debug, Deserialize)]
struct JwtHeader {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    crit: Option<Value>,
}

/// A JWT whose signature is not verified yet.
pub(super) struct UnverifiedJwt<'a> {
    pub(super) algorithm: SignatureAlgorithm,
    pub(super) key: Option<String>,
    /// The text that is signed.
    message: &'a str,
    payload: &'a str,
    signature: Vec<u8>,
}

impl<'a> UnverifiedJwt<'a> {
    /// Reads the header and the signature. Fails if the header asks for something that is not accepted.
    pub(super) fn parse(text: &'a str) -> Result<Self, JwtError> {
        let (message, signature) = text.rsplit_once('.').ok_or(JwtError::Malformed)?;
        let (header, payload) = message.split_once('.').ok_or(JwtError::Malformed)?;
        let header: JwtHeader = serde_json::from_slice(&decode(header)?).map_err(|_| JwtError::Malformed)?;
        let algorithm = SignatureAlgorithm::from_name(&header.alg).ok_or(JwtError::Algorithm)?;
        let is_access = |kind: &str| {
            let kind = kind.to_ascii_lowercase();
            ["jwt", "at+jwt", "application/at+jwt"].contains(&kind.as_str())
        };
        if header.crit.is_some() || !header.typ.as_deref().is_none_or(is_access) {
            return Err(JwtError::Header);
        }
        Ok(Self { algorithm, key: header.kid, message, payload, signature: decode(signature)? })
    }

    /// Returns the claims. Fails if the signature is not one of the key.
    pub(super) fn verify(&self, key: &IssuerKey) -> Result<Value, JwtError> {
        if !key.verifies(self.message.as_bytes(), &self.signature) {
            return Err(JwtError::Signature);
        }
        let claims: Value = serde_json::from_slice(&decode(self.payload)?).map_err(|_| JwtError::Malformed)?;
        if claims.is_object() { Ok(claims) } else { Err(JwtError::Malformed) }
    }
}

/// Returns the time from which a JWT is refused. Fails if it is of another issuer, for none of the audiences, or not
/// valid `now`.
pub(super) fn check_claims(
    claims: &Value,
    issuer: &str,
    audiences: &[&str],
    now: Timestamp,
) -> Result<Timestamp, JwtError> {
    if claims["iss"].as_str() != Some(issuer) {
        return Err(JwtError::Issuer);
    }
    let is_audience = match &claims["aud"] {
        Value::String(one) => audiences.contains(&one.as_str()),
        Value::Array(several) => several.iter().filter_map(Value::as_str).any(|one| audiences.contains(&one)),
        _ => false,
    };
    if !is_audience {
        return Err(JwtError::Audience);
    }
    let expires = time(&claims["exp"]).ok_or(JwtError::Expired)?;
    let end = expires.checked_add(LEEWAY).unwrap_or(Timestamp::MAX);
    if end <= now {
        return Err(JwtError::Expired);
    }
    for name in ["nbf", "iat"] {
        let Some(value) = claims.get(name) else { continue };
        let begin = time(value).ok_or(JwtError::Malformed)?;
        if begin.checked_sub(LEEWAY).unwrap_or(Timestamp::MIN) > now {
            return Err(JwtError::NotYetValid);
        }
    }
    Ok(end)
}

/// Reads a time in seconds since 1970. `None` if the value is no number, or too large.
fn time(value: &Value) -> Option<Timestamp> {
    let seconds = value.as_i64().or_else(|| value.as_f64().map(|seconds| seconds.floor() as i64))?;
    Timestamp::from_second(seconds).ok()
}

fn decode(text: &str) -> Result<Vec<u8>, JwtError> {
    URL_SAFE_NO_PAD.decode(text).map_err(|_| JwtError::Malformed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn check(claims: Value) -> Result<i64, JwtError> {
        let now = Timestamp::from_second(NOW).unwrap();
        check_claims(&claims, "https://id.example", &["skein"], now).map(Timestamp::as_second)
    }

    fn claims(change: Value) -> Value {
        let mut claims = json!({"iss": "https://id.example", "aud": "skein", "exp": NOW + 60});
        claims.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        claims
    }

    #[test]
    fn issuer_audience_and_times_must_fit() {
        assert_eq!(check(claims(json!({}))), Ok(NOW + 90), "with leeway");
        assert_eq!(check(claims(json!({"aud": ["other", "skein"], "nbf": NOW, "iat": NOW}))), Ok(NOW + 90));
        assert_eq!(check(claims(json!({"exp": NOW - 29}))), Ok(NOW + 1), "clocks may differ");
        assert_eq!(check(claims(json!({"nbf": NOW + 30}))), Ok(NOW + 90));
        assert_eq!(check(claims(json!({"exp": 1.8e9 + 0.5}))), Ok(NOW + 30));
        for (change, error) in [
            (json!({"iss": "https://id.example/"}), JwtError::Issuer),
            (json!({"iss": null}), JwtError::Issuer),
            (json!({"aud": "skein2"}), JwtError::Audience),
            (json!({"aud": []}), JwtError::Audience),
            (json!({"aud": null}), JwtError::Audience),
            (json!({"exp": NOW - 30}), JwtError::Expired),
            (json!({"exp": null}), JwtError::Expired),
            (json!({"exp": "1900000000"}), JwtError::Expired),
            (json!({"exp": 1e300}), JwtError::Expired),
            (json!({"nbf": NOW + 31}), JwtError::NotYetValid),
            (json!({"iat": NOW + 31}), JwtError::NotYetValid),
            (json!({"nbf": "now"}), JwtError::Malformed),
        ] {
            assert_eq!(check(claims(change.clone())), Err(error), "{change}");
        }
    }

    #[test]
    fn the_header_decides_what_is_read() {
        let parse = |header: Value| {
            let text = format!("{}.e30.AA", URL_SAFE_NO_PAD.encode(header.to_string()));
            UnverifiedJwt::parse(&text).map(|jwt| (jwt.algorithm, jwt.key)).err()
        };
        for typ in ["JWT", "jwt", "at+jwt", "application/at+jwt"] {
            assert_eq!(parse(json!({"alg": "ES256", "typ": typ, "kid": "a"})), None, "{typ}");
        }
        for (header, error) in [
            (json!({"alg": "none"}), JwtError::Algorithm),
            (json!({"alg": "HS256"}), JwtError::Algorithm),
            (json!({"alg": "ES256", "typ": "logout+jwt"}), JwtError::Header),
            (json!({"alg": "ES256", "crit": ["exp"]}), JwtError::Header),
            (json!({"kid": "a"}), JwtError::Malformed),
            (json!([]), JwtError::Malformed),
        ] {
            assert_eq!(parse(header.clone()), Some(error), "{header}");
        }
        for text in ["", "a", "a.b", "a.b.c", "e30=.e30.AA"] {
            assert_eq!(UnverifiedJwt::parse(text).err(), Some(JwtError::Malformed), "{text}");
        }
    }
}
