//! Ids of calls in the audit log and in spans, which have no text of a model.

use std::borrow::Cow;

use sha2::{Digest as _, Sha256};

/// Maximum characters of an id that is kept.
const MAX_ID: usize = 64;
/// Bytes of the hash of another id.
const HASH_BYTES: usize = 16;

/// Returns the id of a call as logs and spans have it. Providers and external agents choose ids, so an id may be any
/// text. It is kept if it has at most 64 letters, digits and `_.:-`, with one `/` where Skein put its own part before
/// it. Otherwise the label is a hash, which is equal for equal ids.
///
/// ```
/// use skein::ids::call_label;
/// assert_eq!(call_label("call_7"), "call_7");
/// assert!(call_label("the user's words").starts_with("sha256:"));
/// ```
pub fn call_label(id: &str) -> Cow<'_, str> {
    let is_plain = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte))
    };
    let (one, other) = id.split_once('/').map_or((id, None), |(one, other)| (one, Some(other)));
    if id.len() <= MAX_ID && is_plain(one) && other.is_none_or(is_plain) {
        return Cow::Borrowed(id);
    }
    let hash: String = Sha256::digest(id).iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
    Cow::Owned(format!("sha256:{hash}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_ids_without_spaces_are_kept() {
        let longest = "a".repeat(MAX_ID);
        for id in ["c1", "toolu_01AbC", "call-00ff", "a.b:c", "agent-00ff/call_1", longest.as_str()] {
            assert_eq!(call_label(id), id);
        }
        let longer = "a".repeat(MAX_ID + 1);
        for id in ["", "two words", "a\nb", "über", "a/b/c", "/etc", "a/", "{\"a\":1}", longer.as_str()] {
            let label = call_label(id);
            assert!(label.starts_with("sha256:") && label.len() == 7 + 2 * HASH_BYTES, "{id}: {label}");
        }
        assert_eq!(call_label("two words"), call_label("two words"));
        assert_ne!(call_label("two words"), call_label("two other words"));
    }
}
