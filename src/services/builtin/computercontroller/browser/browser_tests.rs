//! What needs no browser. `tests/it/browser.rs` has the rest.

use super::*;

#[test]
fn only_web_addresses_are_opened() {
    for url in ["https://example.com/a?b#c", "http://localhost:5173", " http://[::1]:8080/ "] {
        assert!(check_url(url).is_ok(), "{url}");
    }
    for url in [
        "file:///etc/passwd",
        "chrome://settings",
        "about:blank",
        "javascript:alert(1)",
        "data:text/html,x",
        "view-source:http://a.test",
        "devtools://devtools/bundled/inspector.html",
        "FILE:///etc/passwd",
        "ftp://a.test/",
        "blob:http://a.test/1",
    ] {
        let refusal = check_url(url).unwrap_err().0;
        assert!(refusal.contains("`browse` opens http and https only"), "{url}: {refusal}");
    }
    assert!(check_url("example.com").unwrap_err().0.contains("is no URL"));
    assert!(check_url("https://me:secret@example.com").unwrap_err().0.contains("leave it out"));
    assert!(check_url(&format!("https://a.test/{}", "x".repeat(MAX_URL))).unwrap_err().0.contains("longer than"));
}
