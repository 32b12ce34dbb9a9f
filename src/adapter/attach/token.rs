//! The bearer token a client must present to attach.

use std::hint::black_box;

const BYTES: usize = 32;

/// 256 random bits, as hexadecimal digits.
#[derive(Clone)]
pub(super) struct Token(String);

impl Token {
    /// Number of digits in [`Token::text`].
    pub(super) const DIGITS: usize = 2 * BYTES;

    /// Creates a token. Fails if the system gives no random numbers.
    pub(super) fn new() -> Result<Self, getrandom::Error> {
        let mut chance = [0; BYTES];
        getrandom::fill(&mut chance)?;
        Ok(Self(chance.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Compares in constant time: a token that is wrong at the start takes as long as one that is nearly right.
    pub(super) fn is(&self, shown: &[u8]) -> bool {
        let differing = self.0.bytes().zip(shown).fold(0, |all, (own, shown)| all | (own ^ shown));
        black_box(differing) == 0 && shown.len() == self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_the_token() {
        let token = Token::new().unwrap();
        let text = token.text().to_owned();
        assert_eq!(text.len(), Token::DIGITS);
        assert!(token.is(text.as_bytes()));
        assert!(!token.is(&text.as_bytes()[1..]) && !token.is(&text.as_bytes()[..63]) && !token.is(b""));
        assert!(!token.is(format!("{text}0").as_bytes()));
        for place in 0..text.len() {
            let mut wrong = text.clone().into_bytes();
            wrong[place] ^= 1;
            assert!(!token.is(&wrong), "{place}");
        }
        assert_ne!(Token::new().unwrap().text(), text);
    }
}
