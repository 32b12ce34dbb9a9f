//! Creates session ids: seven characters for the start time in seconds, then thirteen random ones.
//!
//! The time comes first so that ids sort by age and a short prefix is enough to type. The rest is 65 bits from the
//! system's random source (`getrandom`, already a dependency of `tempfile` and `uuid`). No id is ever given twice, even
//! if several processes create one in the same second.

use std::time::{Duration, SystemTime};

use crate::store::StoreError;

/// Crockford's base 32 alphabet, in which no two characters look alike.
const SIGNS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const OF_TIME: usize = 7;
const OF_CHANCE: usize = 13;
/// Maximum length of an id that another Skein gave.
const MAX_FOREIGN: usize = 64;

/// Returns the milliseconds since 1970.
pub(in crate::store) fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn new(now: u64) -> Result<String, StoreError> {
    let mut chance = [0_u8; OF_CHANCE];
    getrandom::fill(&mut chance).map_err(|error| StoreError::Unusable {
        file: "sessions.db".to_owned(),
        problem: format!("the system gives no random numbers: {error}"),
    })?;
    let seconds = now / 1_000;
    let time = (0..OF_TIME).rev().map(|place| sign((seconds >> (5 * place)) as u8));
    Ok(time.chain(chance.into_iter().map(sign)).collect())
}

/// Returns whether a text from outside can be an id. Folders have the names of sessions, so an id is one plain name.
pub(in crate::store) fn is_plain(id: &str) -> bool {
    let is_plain = |sign: u8| sign.is_ascii_alphanumeric() || matches!(sign, b'-' | b'_');
    (1..=MAX_FOREIGN).contains(&id.len()) && id.bytes().all(is_plain)
}

fn sign(bits: u8) -> char {
    char::from(SIGNS[usize::from(bits & 31)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_creation_second_and_are_unique() {
        let names: Vec<_> = (0..1_000).map(|second| new(1_790_000_000_000 + second * 1_000).unwrap()).collect();
        assert!(names.is_sorted() && names.iter().all(|name| name.len() == 20), "{names:?}");
        let of_one_moment: std::collections::BTreeSet<_> =
            (0..10_000).map(|_| new(1_790_000_000_000).unwrap()).collect();
        assert_eq!(of_one_moment.len(), 10_000);
        assert!(names.iter().all(|name| is_plain(name)));
    }

    #[test]
    fn an_id_from_outside_names_no_other_folder() {
        for id in ["", ".", "..", "/etc", "a/b", "a/../b", "a b", "a\0", &"a".repeat(65)] {
            assert!(!is_plain(id), "{id:?}");
        }
    }
}
