//! Serves the scripts, the style sheet and the icon of the console, which are part of the program.

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::layout::ConsoleProblem;

/// Part of the tag by which a browser asks whether an asset has changed.
const VERSION: &str = env!("CARGO_PKG_VERSION");

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Returns the media type and the text of an asset. `None` if there is none.
fn find(name: &str) -> Option<(&'static str, &'static str)> {
    Some(match name {
        "console.css" => ("text/css; charset=utf-8", include_str!("assets/console.css")),
        "console.js" => (SCRIPT, include_str!("assets/console.js")),
        "events-worker.js" => (SCRIPT, include_str!("assets/events-worker.js")),
        "login.js" => (SCRIPT, include_str!("assets/login.js")),
        "icon.svg" => ("image/svg+xml", include_str!("assets/icon.svg")),
        _ => return None,
    })
}

/// Answers a request for an asset.
pub(super) async fn serve(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let Some((kind, text)) = find(&name) else {
        return ConsoleProblem::new(StatusCode::NOT_FOUND, "there is no such file\n").to_text();
    };
    let tag = format!("\"{VERSION}-{:x}\"", checksum(text));
    let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, kind)], text).into_response(),
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Returns a number that differs for different texts of one asset, almost always.
pub(super) fn checksum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_assets_of_the_first_view_are_small_and_load_nothing_else() {
        let texts = ["console.css", "console.js", "events-worker.js", "login.js", "icon.svg"].map(|name| {
            let (_, text) = find(name).unwrap();
            assert!(!text.contains("https://") && !text.contains("@import"), "{name} names no other host");
            text.len()
        });
        assert!(texts.iter().sum::<usize>() < 80_000, "{texts:?}");
        assert!(find("../console.rs").is_none());
    }
}
