//! Encrypts texts before they are stored, with the key in `SKEIN_STORE_KEY`.
//!
//! A sealed text is `sk1.KEY.DATA`: the id of the key, and in base64 a random salt and the output of AES-256-GCM. Each
//! text has its own key, the HMAC of its salt, so no nonce repeats. The name of the column is authenticated too: a
//! sealed text is refused in any other column.
//!
//! Invariant: neither the key nor a text is part of an error or a log.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ring::{aead, hmac};

use super::StoreError;

const KEY_BYTES: usize = 32;
const SALT_BYTES: usize = 32;
/// What every sealed text starts with.
const PREFIX: &str = "sk1";

/// The key that encrypts the texts of a store. Clones share it.
#[derive(Clone)]
pub struct StoreKey {
    secret: Arc<hmac::Key>,
    id: Arc<str>,
}

impl FromStr for StoreKey {
    type Err = StoreError;

    /// Fails unless the text has 64 hexadecimal digits. The error does not quote the text.
    fn from_str(text: &str) -> Result<Self, StoreError> {
        let bytes = decode_hex(text.trim()).filter(|bytes| bytes.len() == KEY_BYTES);
        let bytes = bytes.ok_or(StoreError::KeyFormat)?;
        let secret = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        let id = encode_hex(&hmac::sign(&secret, b"skein key id").as_ref()[..4]);
        Ok(Self { secret: Arc::new(secret), id: id.into() })
    }
}

/// The secret stays out of logs.
impl fmt::Debug for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreKey({})", self.id)
    }
}

impl StoreKey {
    /// Returns the name of the key. It reveals nothing about the key.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Returns the value by which a store recognises its key.
    pub(super) fn proof(&self) -> String {
        encode_hex(hmac::sign(&self.secret, b"skein store key").as_ref())
    }

    /// Encrypts a text for a column. Fails if the system gives no random numbers.
    pub(super) fn seal(&self, column: &str, plain: &[u8]) -> Result<String, StoreError> {
        let mut salt = [0_u8; SALT_BYTES];
        getrandom::fill(&mut salt)
            .map_err(|error| StoreError::Failed(format!("the system gives no random numbers: {error}")))?;
        let mut data = plain.to_vec();
        let key = self.text_key(&salt)?;
        key.seal_in_place_append_tag(nonce(), aead::Aad::from(column.as_bytes()), &mut data)
            .map_err(|_| StoreError::Failed("a text is too long to be encrypted".to_owned()))?;
        let data = STANDARD_NO_PAD.encode([salt.as_slice(), &data].concat());
        Ok(format!("{PREFIX}.{}.{data}", self.id))
    }

    /// Decrypts a text of a column. Fails if the text was not sealed for this column with this key, or was changed.
    pub(super) fn open(&self, column: &str, sealed: &str) -> Result<Vec<u8>, StoreError> {
        let unreadable = |problem: &str| StoreError::Sealed { column: column.to_owned(), problem: problem.to_owned() };
        let parts = sealed.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix('.')?.split_once('.'));
        let (id, data) = parts.ok_or_else(|| unreadable("it is not encrypted"))?;
        if id != &*self.id {
            return Err(unreadable("another key encrypted it"));
        }
        let mut data = STANDARD_NO_PAD.decode(data).map_err(|_| unreadable("it is damaged"))?;
        let (salt, data) = data.split_at_mut_checked(SALT_BYTES).ok_or_else(|| unreadable("it is damaged"))?;
        let opened = self.text_key(salt)?.open_in_place(nonce(), aead::Aad::from(column.as_bytes()), data);
        opened.map(|plain| plain.to_vec()).map_err(|_| unreadable("it is damaged, or was moved from another column"))
    }

    /// Decrypts a text that was UTF-8.
    pub(super) fn open_text(&self, column: &str, sealed: &str) -> Result<String, StoreError> {
        let damaged = || StoreError::Sealed { column: column.to_owned(), problem: "it is no text".to_owned() };
        String::from_utf8(self.open(column, sealed)?).map_err(|_| damaged())
    }

    fn text_key(&self, salt: &[u8]) -> Result<aead::LessSafeKey, StoreError> {
        let derived = hmac::sign(&self.secret, salt);
        let key = aead::UnboundKey::new(&aead::AES_256_GCM, derived.as_ref());
        let key = key.map_err(|_| StoreError::Failed("the key has a wrong length".to_owned()))?;
        Ok(aead::LessSafeKey::new(key))
    }
}

/// Each key encrypts one text, so the nonce may be the same.
fn nonce() -> aead::Nonce {
    aead::Nonce::assume_unique_for_key([0; aead::NONCE_LEN])
}

fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(digit: &str) -> StoreKey {
        digit.repeat(64).parse().unwrap()
    }

    #[test]
    fn a_sealed_text_opens_with_its_key_in_its_column_only() {
        let sealed = key("a").seal("title", "Ägypten".as_bytes()).unwrap();
        assert!(!sealed.contains("gypten"), "{sealed}");
        assert_eq!(key("a").open_text("title", &sealed).unwrap(), "Ägypten");
        assert_ne!(key("a").seal("title", "Ägypten".as_bytes()).unwrap(), sealed, "equal texts look different");
        let mut changed = sealed.clone();
        changed.replace_range(sealed.len() - 3.., if sealed.ends_with("AAA") { "BBB" } else { "AAA" });
        for (key, column, text) in [
            (key("b"), "title", sealed.as_str()),
            (key("a"), "body", &sealed),
            (key("a"), "title", &changed),
            (key("a"), "title", "plain"),
            (key("a"), "title", "sk1.x"),
            (key("a"), "title", ""),
        ] {
            assert!(matches!(key.open(column, text), Err(StoreError::Sealed { .. })), "{column} {text}");
        }
    }

    #[test]
    fn a_key_has_64_hexadecimal_digits_and_is_never_shown() {
        for text in ["", "secret", &"a".repeat(63), &"a".repeat(66), &"g".repeat(64), &"é".repeat(32)] {
            let error = text.parse::<StoreKey>().unwrap_err().to_string();
            assert!(text.is_empty() || !error.contains(text), "{error}");
        }
        assert!(!format!("{:?}", key("a")).contains("aaaa"));
        assert_ne!(key("a").proof(), key("b").proof());
    }
}
