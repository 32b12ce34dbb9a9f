//! Serves the scripts, the style sheet and the icon of the console, which are part of the program.
//!
//! The address of an asset in a page names its version. A browser therefore asks for each version once, and never shows
//! a page with the assets of another release.

use axum::extract::{Path, RawQuery};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

const SCRIPT: &str = "text/javascript; charset=utf-8";
/// For an address with the version that it names.
const KEEP: &str = "public, max-age=31536000, immutable";
/// For other addresses: the browser asks whether the asset has changed.
const ASK: &str = "no-cache";

/// A file that a page loads.
#[derive(Debug, Clone, Copy)]
struct Asset {
    media_type: &'static str,
    text: &'static str,
    version: u64,
}

impl Asset {
    const CONSOLE_CSS: Self = Self::new("text/css; charset=utf-8", include_str!("assets/console.css"));
    const CONSOLE_JS: Self = Self::new(SCRIPT, include_str!("assets/console.js"));
    const EVENTS_WORKER_JS: Self = Self::new(SCRIPT, include_str!("assets/events-worker.js"));
    const LOGIN_JS: Self = Self::new(SCRIPT, include_str!("assets/login.js"));
    const ICON_SVG: Self = Self::new("image/svg+xml", include_str!("assets/icon.svg"));

    const fn new(media_type: &'static str, text: &'static str) -> Self {
        Self { media_type, text, version: checksum(text) }
    }

    /// Returns an asset. `None` if there is none with this name.
    fn find(name: &str) -> Option<Self> {
        Some(match name {
            "console.css" => Self::CONSOLE_CSS,
            "console.js" => Self::CONSOLE_JS,
            "events-worker.js" => Self::EVENTS_WORKER_JS,
            "login.js" => Self::LOGIN_JS,
            "icon.svg" => Self::ICON_SVG,
            _ => return None,
        })
    }

    /// Returns the query of its address.
    fn query(self) -> String {
        format!("v={:x}", self.version)
    }
}

/// Returns the address of an asset for a page.
pub(super) fn asset_address(name: &str) -> String {
    let query = Asset::find(name).map(|asset| format!("?{}", asset.query())).unwrap_or_default();
    format!("/console/assets/{name}{query}")
}

/// Answers a request for an asset.
pub(super) async fn serve(Path(name): Path<String>, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    let Some(asset) = Asset::find(&name) else {
        return (StatusCode::NOT_FOUND, "there is no such file\n").into_response();
    };
    let tag = format!("\"{:x}\"", asset.version);
    let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, asset.media_type)], asset.text).into_response(),
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    let caching = if query.is_some_and(|query| query == asset.query()) { KEEP } else { ASK };
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(caching));
    response
}

/// Returns a number that differs for different texts, almost always.
pub(super) const fn checksum(text: &str) -> u64 {
    let bytes = text.as_bytes();
    let mut sum: u64 = 0xcbf2_9ce4_8422_2325;
    let mut place = 0;
    while place < bytes.len() {
        sum = (sum ^ bytes[place] as u64).wrapping_mul(0x0100_0000_01b3);
        place += 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 5] = ["console.css", "console.js", "events-worker.js", "login.js", "icon.svg"];

    #[test]
    fn all_assets_of_the_first_view_are_small_and_load_nothing_else() {
        let texts = NAMES.map(|name| {
            let text = Asset::find(name).unwrap().text;
            assert!(!text.contains("https://") && !text.contains("@import"), "{name} names no other host");
            text.len()
        });
        assert!(texts.iter().sum::<usize>() < 80_000, "{texts:?}");
        assert!(Asset::find("../console.rs").is_none());
    }

    #[tokio::test]
    async fn a_browser_keeps_the_version_that_its_page_names() {
        for name in NAMES {
            let address = asset_address(name);
            let (_, query) = address.split_once('?').unwrap();
            let cached = async |query: &str| {
                let query = RawQuery(Some(query.to_owned()));
                let answer = serve(Path(name.to_owned()), query, HeaderMap::new()).await;
                assert_eq!(answer.status(), StatusCode::OK, "{name}");
                answer.headers()[header::CACHE_CONTROL].to_str().unwrap().to_owned()
            };
            assert_eq!((cached(query).await, cached("v=1").await), (KEEP.to_owned(), ASK.to_owned()), "{name}");
        }
    }
}
