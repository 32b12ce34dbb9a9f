//! The detector of secrets: what it finds in a text it also finds in a longer one.

#![no_main]

use skein::secrets::find_secret;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if find_secret(text).is_some() {
        assert!(find_secret(&format!("before\n{text}\nafter")).is_some());
    }
});
