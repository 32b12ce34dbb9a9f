//! Converts a response body to text: detects its kind and encoding, and renders it in the requested format.

use std::sync::LazyLock;

use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};
use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::answer::{ToolRefusal, size, truncate};
use super::http::HttpResponse;
use super::markdown::{Style, render};

/// The requested format of a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline, description = "")]
pub(super) enum PageFormat {
    #[default]
    Markdown,
    Text,
    Raw,
    Json,
}

impl PageFormat {
    pub(super) fn accept(self) -> &'static str {
        match self {
            PageFormat::Markdown | PageFormat::Text => {
                "text/markdown, text/html, application/xhtml+xml;q=0.9, text/*;q=0.8, */*;q=0.5"
            }
            PageFormat::Raw => "*/*",
            PageFormat::Json => "application/json, */*;q=0.5",
        }
    }

    pub(super) fn extension(self) -> &'static str {
        match self {
            PageFormat::Markdown => "md",
            PageFormat::Text | PageFormat::Raw => "txt",
            PageFormat::Json => "json",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContentKind {
    Html,
    Text,
    Binary,
}

/// Returns the text of a page in the requested format.
pub(super) fn text(response: &HttpResponse, form: PageFormat) -> Result<String, ToolRefusal> {
    let kind = kind(response);
    if kind == ContentKind::Binary {
        let what = response.content_type.as_deref().map_or("of unknown type", |kind| truncate(kind, 100));
        let bytes = size(response.body.len() as u64);
        let more = if response.cut { "more than " } else { "" };
        return Ok(format!("binary content ({what}, {more}{bytes}), not shown"));
    }
    let text = decode(response, kind);
    match form {
        PageFormat::Raw => Ok(text),
        PageFormat::Json => json(&text, response),
        PageFormat::Markdown if kind == ContentKind::Html => Ok(render(&text, &response.url, Style::Markdown)),
        PageFormat::Text if kind == ContentKind::Html => Ok(render(&text, &response.url, Style::Text)),
        PageFormat::Markdown | PageFormat::Text => Ok(text),
    }
}

fn json(text: &str, response: &HttpResponse) -> Result<String, ToolRefusal> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        let url = super::address::display_url(&response.url);
        let kind = response.content_type.as_deref().map_or("of unknown type", |kind| truncate(kind, 100));
        let reason = if response.cut { "it is longer than is read".to_owned() } else { error.to_string() };
        ToolRefusal::new(format!("`{url}` is not JSON ({kind}): {reason}; fetch it as `markdown` or `raw`"))
    })?;
    serde_json::to_string_pretty(&value).map_err(|error| ToolRefusal::new(error.to_string()))
}

fn kind(response: &HttpResponse) -> ContentKind {
    let start = &response.body[..response.body.len().min(8_000)];
    let declared = response.content_type.as_deref().unwrap_or_default();
    let media = declared.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let textual = media.starts_with("text/")
        || [
            "json",
            "xml",
            "javascript",
            "ecmascript",
            "yaml",
            "toml",
            "sql",
            "graphql",
            "x-sh",
            "x-www-form-urlencoded",
        ]
        .iter()
        .any(|word| {
            media
                .strip_prefix("application/")
                .is_some_and(|kind| kind.split(['+', '-', '.']).any(|part| part == *word) || kind == *word)
        });
    let unknown = media.is_empty() || media == "application/octet-stream" && looks_like_html(start);
    if media == "text/html" || media == "application/xhtml+xml" {
        return ContentKind::Html;
    }
    if !textual && !unknown {
        return ContentKind::Binary;
    }
    // Text contains no NUL, except in UTF-16, which a byte order mark or the header declares.
    if start.contains(&0) && Encoding::for_bom(start).is_none() && !declared.to_ascii_lowercase().contains("utf-16") {
        return ContentKind::Binary;
    }
    if unknown && looks_like_html(start) { ContentKind::Html } else { ContentKind::Text }
}

fn looks_like_html(start: &[u8]) -> bool {
    let start = String::from_utf8_lossy(&start[..start.len().min(512)]).trim_start().to_ascii_lowercase();
    start.starts_with("<!doctype html") || start.starts_with("<html")
}

/// Decodes a body by its byte order mark, the header or the page's own declaration, in this order. Without any, it
/// is UTF-8 if valid and otherwise Windows-1252.
fn decode(response: &HttpResponse, kind: ContentKind) -> String {
    static CHARSET: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(r#"(?i)<(?:meta|\?xml)\s[^>]{0,500}?(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]{2,40})"#).ok()
    });
    let header = response.content_type.as_deref().and_then(|value| {
        let charset = value.split(';').skip(1).filter_map(|part| part.split_once('='));
        let mut charset = charset.filter(|(name, _)| name.trim().eq_ignore_ascii_case("charset"));
        Encoding::for_label(charset.next()?.1.trim().trim_matches('"').as_bytes())
    });
    let start = &response.body[..response.body.len().min(4_096)];
    let meta = || {
        let found = CHARSET.as_ref().filter(|_| kind == ContentKind::Html)?.captures(start)?;
        let encoding = Encoding::for_label(found.get(1)?.as_bytes())?;
        // The declaration was readable as ASCII, so the page cannot be UTF-16.
        Some(if encoding.is_ascii_compatible() { encoding } else { UTF_8 })
    };
    let guess = || match std::str::from_utf8(&response.body) {
        Ok(_) => UTF_8,
        // Cut in the middle of a character.
        Err(error) if response.cut && error.error_len().is_none() => UTF_8,
        Err(_) => WINDOWS_1252,
    };
    let encoding = header.or_else(meta).unwrap_or_else(guess);
    encoding.decode(&response.body).0.into_owned()
}
