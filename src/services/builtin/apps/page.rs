//! Converts an app to and from one HTML file: the page, its product description and its history as a JSON block,
//! inside a frame that restricts the page to what its metadata allows.
//!
//! Invariant: reading a written file returns the same app, byte for byte.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::network::NetworkOrigin;

/// MIME type that hosts of MCP Apps display.
pub(super) const MIME: &str = "text/html;profile=mcp-app";

/// Resource that a host displays for a call of `open_app`. It asks the host for the app of that call. No app name
/// is valid as `_view`, so there is no conflict.
pub(super) const VIEW: &str = "ui://apps/_view";
pub(super) const VIEW_PAGE: &str = include_str!("../view.html");

const FRAME: &str = include_str!("frame.html");
/// Script that runs before any script of the page.
const GUARD: &str = include_str!("guard.js");
const BLOCK: &str = "<script type=\"application/json\" id=\"skein-app\">";

/// One version of an app with all its metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct App {
    pub(super) name: String,
    pub(super) title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) width: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) height: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) network: Vec<NetworkOrigin>,
    /// Oldest first; the last one is this version.
    pub(super) versions: Vec<Version>,
    pub(super) prd: String,
    pub(super) html: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Version {
    pub(super) version: u32,
    /// UTC time in ISO 8601.
    pub(super) saved: String,
    pub(super) note: String,
}

/// Why a file does not contain an app.
#[derive(Debug, thiserror::Error)]
pub(super) enum AppFileError {
    #[error("it holds no app")]
    NoApp,
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

impl App {
    pub(super) fn version(&self) -> u32 {
        self.versions.last().map_or(0, |last| last.version)
    }

    pub(super) fn uri(&self) -> String {
        uri(&self.name)
    }

    /// Returns the file that a browser opens.
    pub(super) fn to_file(&self) -> String {
        // In a script element only `<` can start an end tag or a comment, and JSON can escape it.
        let app = serde_json::to_string(self).unwrap_or_default().replace('<', "\\u003c");
        let limit = |name: &str, value: Option<u32>| value.map(|value| format!(" max-{name}: {value}px;"));
        let size = [limit("width", self.width), limit("height", self.height)].into_iter().flatten().collect::<String>();
        let holes = [
            ("{policy}", policy(&self.network)),
            ("{title}", escape_html(&self.title)),
            ("{size}", size),
            ("{app}", app),
            ("{guard.js}", GUARD.to_owned()),
        ];
        let mut file = String::with_capacity(FRAME.len() + self.html.len() * 2);
        let mut rest = FRAME;
        // Fills the holes in one pass, so that inserted text is not searched for holes.
        while let Some((at, hole, text)) =
            holes.iter().filter_map(|(hole, text)| Some((rest.find(hole)?, hole, text))).min_by_key(|(at, ..)| *at)
        {
            file.push_str(&rest[..at]);
            file.push_str(text);
            rest = &rest[at + hole.len()..];
        }
        file + rest
    }

    pub(super) fn from_file(file: &str) -> Result<Self, AppFileError> {
        let block = file.split_once(BLOCK).and_then(|(_, rest)| rest.split_once("</script>"));
        let (block, _) = block.ok_or(AppFileError::NoApp)?;
        Ok(serde_json::from_str(block)?)
    }

    /// Returns the page for a host that shows it in its own frame.
    pub(super) fn to_resource(&self) -> String {
        let policy = format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">", policy(&self.network));
        // The policy precedes the page, regardless of how the page starts. Browsers skip the second doctype.
        format!("<!doctype html>{policy}<script>({GUARD})()</script>{}", self.html)
    }

    /// Returns the resource metadata for such a host.
    pub(super) fn meta(&self) -> Value {
        let mut meta = meta(&self.network);
        if self.width.is_some() || self.height.is_some() {
            meta["skein"] = json!({"width": self.width, "height": self.height});
        }
        meta
    }
}

/// Returns the origins and permissions of a page in the format of MCP Apps.
pub(super) fn meta(network: &[NetworkOrigin]) -> Value {
    json!({"ui": {
        "csp": {"connectDomains": network, "resourceDomains": network, "frameDomains": [], "baseUriDomains": []},
        "permissions": {"clipboardWrite": {}},
        "prefersBorder": true,
    }})
}

pub(super) fn uri(name: &str) -> String {
    format!("ui://apps/{name}")
}

/// Returns the content security policy: inline code and embedded data are allowed. Origins from the metadata are
/// allowed for data, never for code.
fn policy(network: &[NetworkOrigin]) -> String {
    let origins: String = network.iter().map(|origin| format!(" {}", origin.as_str())).collect();
    let connect = if origins.is_empty() { " 'none'" } else { &origins };
    format!(
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:{origins}; \
         media-src data: blob:{origins}; font-src data:{origins}; connect-src{connect}; frame-src 'none'; \
         form-action 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types default"
    )
}

/// Escapes text for an attribute or an element.
fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
