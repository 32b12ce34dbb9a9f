//! Encodes and decodes text as in URLs, where `%41` is `A`.

/// Encodes all characters but those for which `is_kept` is true.
pub(super) fn percent_encode(text: &str, is_kept: impl Fn(char) -> bool) -> String {
    let mut encoded = String::new();
    for c in text.chars() {
        if is_kept(c) {
            encoded.push(c);
        } else {
            c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| encoded.push_str(&format!("%{byte:02X}")));
        }
    }
    encoded
}

/// Replaces `%41` by `A`. Returns the text itself if the result is no text.
pub(super) fn percent_decode(text: &str) -> String {
    let mut decoded = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| byte == b'%').filter(|code| code.iter().all(u8::is_ascii_hexdigit));
        let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        decoded.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(decoded).unwrap_or_else(|_| text.to_owned())
}
