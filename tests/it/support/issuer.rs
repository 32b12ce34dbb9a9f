//! An OpenID Connect issuer on loopback: its discovery document, its keys, and the JWTs that it signs.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
    RsaPublicKeyComponents,
};
use serde_json::{Value, json};

use super::repository;

/// The audience of the server under test.
pub(crate) const AUDIENCE: &str = "skein";

/// A running issuer. It ends with the test's process.
pub(crate) struct Issuer {
    /// How its JWTs name it.
    pub(crate) url: String,
    served: Arc<Mutex<Served>>,
}

/// What the issuer answers, and how often it was asked.
#[derive(Default)]
struct Served {
    keys: Vec<Value>,
    /// `None`: the issuer names itself rightly.
    other_name: Option<String>,
    broken: bool,
    key_requests: usize,
}

impl Issuer {
    /// Starts an issuer with these keys.
    pub(crate) fn start(keys: &[&SigningKey]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let served: Arc<Mutex<Served>> = Arc::default();
        let issuer = Self { url: url.clone(), served: Arc::clone(&served) };
        issuer.publish(keys);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                // A client that hangs up gets no answer.
                drop(answer(stream, &url, &served));
            }
        });
        issuer
    }

    /// Replaces the published keys.
    pub(crate) fn publish(&self, keys: &[&SigningKey]) {
        self.served().keys = keys.iter().map(|key| key.public()).collect();
    }

    /// From now on the discovery document names another issuer.
    pub(crate) fn rename(&self, name: &str) {
        self.served().other_name = Some(name.to_owned());
    }

    /// Answers every request with an error, or no longer.
    pub(crate) fn set_broken(&self, broken: bool) {
        self.served().broken = broken;
    }

    /// How often the keys were fetched.
    pub(crate) fn key_requests(&self) -> usize {
        self.served().key_requests
    }

    /// The claims of a JWT for the server under test that ends in `seconds`.
    pub(crate) fn claims(&self, subject: &str, seconds: i64) -> Value {
        let now = jiff::Timestamp::now().as_second();
        json!({
            "iss": self.url, "aud": AUDIENCE, "sub": subject, "iat": now - 600, "exp": now + seconds,
            "email": format!("{subject}@example.com"), "groups": ["dev"],
        })
    }

    fn served(&self) -> std::sync::MutexGuard<'_, Served> {
        self.served.lock().expect("what is served")
    }
}

fn answer(stream: TcpStream, url: &str, served: &Mutex<Served>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut header = String::new();
    while reader.read_line(&mut header)? > 2 {
        header.clear();
    }
    let path = line.split(' ').nth(1).unwrap_or_default();
    let mut served = served.lock().expect("what is served");
    served.key_requests += usize::from(path == "/keys");
    let body = match path {
        _ if served.broken => None,
        "/.well-known/openid-configuration" => {
            let issuer = served.other_name.as_deref().unwrap_or(url);
            Some(json!({"issuer": issuer, "jwks_uri": format!("{url}/keys")}))
        }
        "/keys" => Some(json!({"keys": served.keys})),
        _ => None,
    };
    let (status, text) = body.map_or(("404 Not Found", String::new()), |body| ("200 OK", body.to_string()));
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n");
    write!(reader.get_mut(), "{head}content-length: {}\r\n\r\n{text}", text.len())
}

/// A private key of an issuer.
pub(crate) struct SigningKey {
    pub(crate) id: &'static str,
    pair: Pair,
}

enum Pair {
    Rsa(Box<RsaKeyPair>),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl SigningKey {
    /// The key of the repository. It is for tests only: making one takes too long.
    pub(crate) fn rsa(id: &'static str) -> Self {
        let der = std::fs::read(repository("tests/fixtures/oidc/test-key.der")).expect("the key");
        Self { id, pair: Pair::Rsa(Box::new(RsaKeyPair::from_pkcs8(&der).expect("a key"))) }
    }

    /// A new key on P-256.
    pub(crate) fn p256(id: &'static str) -> Self {
        let (rng, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &rng).expect("a key");
        Self { id, pair: Pair::P256(EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &rng).expect("a key")) }
    }

    /// A new key of Ed25519.
    pub(crate) fn ed25519(id: &'static str) -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        Self { id, pair: Pair::Ed25519(Ed25519KeyPair::from_pkcs8(document.as_ref()).expect("a key")) }
    }

    pub(crate) fn algorithm(&self) -> &'static str {
        match self.pair {
            Pair::Rsa(_) => "RS256",
            Pair::P256(_) => "ES256",
            Pair::Ed25519(_) => "EdDSA",
        }
    }

    /// The public key as a JSON Web Key.
    pub(crate) fn public(&self) -> Value {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match &self.pair {
            Pair::Rsa(pair) => {
                let parts = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
                json!({"kty": "RSA", "kid": self.id, "use": "sig", "n": encode(&parts.n), "e": encode(&parts.e)})
            }
            Pair::P256(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({"kty": "EC", "crv": "P-256", "kid": self.id, "x": encode(x), "y": encode(y)})
            }
            Pair::Ed25519(pair) => {
                let x = encode(pair.public_key().as_ref());
                json!({"kty": "OKP", "crv": "Ed25519", "kid": self.id, "alg": "EdDSA", "x": x})
            }
        }
    }

    /// A JWT with these claims.
    pub(crate) fn sign(&self, claims: &Value) -> String {
        self.sign_with(&json!({"alg": self.algorithm(), "kid": self.id, "typ": "JWT"}), claims)
    }

    /// A JWT with this header.
    pub(crate) fn sign_with(&self, header: &Value, claims: &Value) -> String {
        let message = unsigned(header, claims);
        let bytes = message.as_bytes();
        let signature = match &self.pair {
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), bytes, &mut signature).expect("a signature");
                signature
            }
            Pair::P256(pair) => pair.sign(&SystemRandom::new(), bytes).expect("a signature").as_ref().to_vec(),
            Pair::Ed25519(pair) => pair.sign(bytes).as_ref().to_vec(),
        };
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// The part of a JWT that is signed.
pub(crate) fn unsigned(header: &Value, claims: &Value) -> String {
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", encode(header), encode(claims))
}

/// A JWT with a symmetric signature, made with bytes that are public.
pub(crate) fn sign_with_secret(secret: &[u8], header: &Value, claims: &Value) -> String {
    let message = unsigned(header, claims);
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
    let signature = ring::hmac::sign(&key, message.as_bytes());
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
}
