//! The public keys of an issuer, and the signatures that they verify.
//!
//! Invariant: a key verifies only signatures of its algorithm. The algorithm that a JWT names cannot change that.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::Value;

/// Maximum number of keys that are read.
const MAX_KEYS: usize = 100;
/// Bytes of a coordinate on P-256, and of a key of Ed25519.
const COORDINATE: usize = 32;
/// Begins a point on a curve that is not compressed.
const UNCOMPRESSED: u8 = 4;

/// An algorithm of signatures that is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignatureAlgorithm {
    Rs256,
    Es256,
    EdDsa,
}

impl SignatureAlgorithm {
    /// Returns the algorithm with this name in a JWT. `None` if it is not accepted, such as `none` and `HS256`.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            "EdDSA" => Some(Self::EdDsa),
            _ => None,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }
}

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IssuerKey {
    id: Option<String>,
    material: KeyMaterial,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum KeyMaterial {
    /// Modulus and exponent, without leading zeros.
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// A point that is not compressed.
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// The fields of a JSON Web Key that matter here.
#[derive(Debug, Deserialize)]
struct JsonWebKey {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    alg: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl IssuerKey {
    /// Reads a key. `None` if it has another purpose, or is of a kind that is not accepted.
    fn parse(value: &Value) -> Option<Self> {
        let key = JsonWebKey::deserialize(value).ok()?;
        let material = match (key.kty.as_str(), key.crv.as_deref()) {
            ("RSA", _) => {
                KeyMaterial::Rsa { n: decode_number(key.n.as_deref()?)?, e: decode_number(key.e.as_deref()?)? }
            }
            ("EC", Some("P-256")) => {
                let (x, y) = (coordinate(key.x.as_deref()?)?, coordinate(key.y.as_deref()?)?);
                KeyMaterial::P256([&[UNCOMPRESSED][..], &x, &y].concat())
            }
            ("OKP", Some("Ed25519")) => KeyMaterial::Ed25519(coordinate(key.x.as_deref()?)?),
            _ => return None,
        };
        let parsed = Self { id: key.kid, material };
        let is_for_signatures = key.purpose.is_none_or(|purpose| purpose == "sig")
            && key.key_ops.is_none_or(|operations| operations.iter().any(|operation| operation == "verify"))
            && key.alg.is_none_or(|name| name == parsed.algorithm().as_str());
        is_for_signatures.then_some(parsed)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        match self.material {
            KeyMaterial::Rsa { .. } => SignatureAlgorithm::Rs256,
            KeyMaterial::P256(_) => SignatureAlgorithm::Es256,
            KeyMaterial::Ed25519(_) => SignatureAlgorithm::EdDsa,
        }
    }

    /// Returns whether the signature is one of this key for the message.
    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match &self.material {
            KeyMaterial::Rsa { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            KeyMaterial::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            KeyMaterial::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature),
        };
        verified.is_ok()
    }
}

/// The keys of an issuer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KeySet(Vec<IssuerKey>);

impl KeySet {
    /// Reads a JSON Web Key Set, without the keys that have another purpose. `None` if the document has no list of
    /// keys.
    pub(super) fn parse(document: &Value) -> Option<Self> {
        let keys = document.get("keys")?.as_array()?;
        Some(Self(keys.iter().take(MAX_KEYS).filter_map(IssuerKey::parse).collect()))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the key for a signature. Without an id, the key must be the only one of the algorithm.
    pub(super) fn find(&self, algorithm: SignatureAlgorithm, id: Option<&str>) -> Option<&IssuerKey> {
        let mut fitting =
            self.0.iter().filter(|key| key.algorithm() == algorithm && (id.is_none() || key.id.as_deref() == id));
        let first = fitting.next()?;
        (id.is_some() || fitting.next().is_none()).then_some(first)
    }
}

fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Decodes a number without its leading zeros.
fn decode_number(text: &str) -> Option<Vec<u8>> {
    let bytes = decode(text)?;
    let start = bytes.iter().position(|byte| *byte != 0)?;
    Some(bytes[start..].to_vec())
}

fn coordinate(text: &str) -> Option<Vec<u8>> {
    decode(text).filter(|bytes| bytes.len() == COORDINATE)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn keys(keys: Value) -> KeySet {
        KeySet::parse(&json!({"keys": keys})).unwrap()
    }

    fn bytes(length: usize) -> String {
        URL_SAFE_NO_PAD.encode(vec![7; length])
    }

    #[test]
    fn only_algorithms_with_a_public_key_are_accepted() {
        for name in ["none", "None", "NONE", "HS256", "HS384", "HS512", "RS1", "RS512", "PS256", "ES384", "rs256", ""] {
            assert_eq!(SignatureAlgorithm::from_name(name), None, "{name}");
        }
        for name in ["RS256", "ES256", "EdDSA"] {
            assert_eq!(SignatureAlgorithm::from_name(name).map(SignatureAlgorithm::as_str), Some(name));
        }
    }

    #[test]
    fn a_key_is_found_by_id_and_algorithm() {
        let set = keys(json!([
            {"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": bytes(32)},
            {"kty": "EC", "crv": "P-256", "kid": "a", "x": bytes(32), "y": bytes(32), "use": "sig", "alg": "ES256"},
            {"kty": "OKP", "crv": "Ed25519", "kid": "b", "x": bytes(32), "key_ops": ["verify"]},
        ]));
        assert_eq!(set.len(), 3);
        let found = |algorithm, id| set.find(algorithm, id).map(|key| key.material.clone());
        assert!(matches!(found(SignatureAlgorithm::EdDsa, Some("a")), Some(KeyMaterial::Ed25519(_))));
        assert!(matches!(found(SignatureAlgorithm::Es256, Some("a")), Some(KeyMaterial::P256(_))));
        assert!(found(SignatureAlgorithm::Es256, None).is_some(), "it is the only one");
        assert_eq!(found(SignatureAlgorithm::EdDsa, None), None, "there are two");
        assert_eq!(found(SignatureAlgorithm::Rs256, Some("a")), None, "a key has one algorithm");
        assert_eq!(found(SignatureAlgorithm::EdDsa, Some("c")), None);
    }

    #[test]
    fn keys_for_other_purposes_are_left_out() {
        for key in [
            json!({"kty": "oct", "k": bytes(32)}),
            json!({"kty": "OKP", "crv": "X25519", "x": bytes(32)}),
            json!({"kty": "OKP", "crv": "Ed25519", "x": bytes(31)}),
            json!({"kty": "OKP", "crv": "Ed25519", "x": bytes(32), "use": "enc"}),
            json!({"kty": "OKP", "crv": "Ed25519", "x": bytes(32), "key_ops": ["encrypt"]}),
            json!({"kty": "OKP", "crv": "Ed25519", "x": bytes(32), "alg": "HS256"}),
            json!({"kty": "EC", "crv": "P-384", "x": bytes(48), "y": bytes(48)}),
            json!({"kty": "RSA", "n": bytes(256)}),
            json!("key"),
        ] {
            assert_eq!(keys(json!([key.clone()])).len(), 0, "{key}");
        }
        assert_eq!(KeySet::parse(&json!({"keys": {}})), None);
    }

    #[test]
    fn a_limited_number_of_keys_is_read() {
        let key = json!({"kty": "OKP", "crv": "Ed25519", "x": bytes(32)});
        assert_eq!(keys(Value::Array(vec![key; MAX_KEYS + 1])).len(), MAX_KEYS);
    }
}
