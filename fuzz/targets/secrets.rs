//! The detector of secrets: what it finds in a text it also finds in a longer one.

use skein::secrets::find_secret;

use super::text_of;

pub(super) fn run(data: &[u8]) {
    let text = text_of(data);
    if let Some(kind) = find_secret(text) {
        assert!(find_secret(&format!("before\n{text}\nafter")).is_some(), "{kind}");
    }
}
