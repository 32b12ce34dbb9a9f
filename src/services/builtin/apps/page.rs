//! An app as one file: the page, its product description and its history in a block of JSON, within a frame that
//! lets the page do what its metadata allows and no more.
//!
//! Invariant: what is read from a file that was written is what was written, byte for byte.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::network::NetworkOrigin;

/// What hosts of MCP Apps show.
pub(super) const MIME: &str = "text/html;profile=mcp-app";

/// What a host shows for a call of `open_app`: it asks the host for the app that the call was about. No app can have
/// its name.
pub(super) const VIEW: &str = "ui://apps/_view";
pub(super) const VIEW_PAGE: &str = include_str!("view.html");

const FRAME: &str = include_str!("frame.html");
/// Runs in a page before anything of its own.
const GUARD: &str = include_str!("guard.js");
const BLOCK: &str = "<script type=\"application/json\" id=\"skein-app\">";

/// All there is to know about one version of an app.
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
    /// The newest last, which is this one.
    pub(super) versions: Vec<Version>,
    pub(super) prd: String,
    pub(super) html: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Version {
    pub(super) version: u32,
    /// In UTC, as ISO 8601 has it.
    pub(super) saved: String,
    pub(super) note: String,
}

impl App {
    pub(super) fn version(&self) -> u32 {
        self.versions.last().map_or(0, |last| last.version)
    }

    pub(super) fn uri(&self) -> String {
        uri(&self.name)
    }

    /// The file that a browser opens.
    pub(super) fn to_file(&self) -> String {
        // Within a script element nothing but `<` can begin an end or a comment, and JSON may write it otherwise.
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
        // From hole to hole: what was filled in is not looked at again.
        while let Some((at, hole, text)) =
            holes.iter().filter_map(|(hole, text)| Some((rest.find(hole)?, hole, text))).min_by_key(|(at, ..)| *at)
        {
            file.push_str(&rest[..at]);
            file.push_str(text);
            rest = &rest[at + hole.len()..];
        }
        file + rest
    }

    pub(super) fn from_file(file: &str) -> Result<Self, String> {
        let block = file.split_once(BLOCK).and_then(|(_, rest)| rest.split_once("</script>"));
        let (block, _) = block.ok_or("it holds no app")?;
        serde_json::from_str(block).map_err(|error| error.to_string())
    }

    /// The page for whoever shows it in a frame of their own.
    pub(super) fn to_resource(&self) -> String {
        let policy = format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">", policy(&self.network));
        // Before the page begins, whatever it begins with. Its own doctype is then one too many, which browsers skip.
        format!("<!doctype html>{policy}<script>({GUARD})()</script>{}", self.html)
    }

    /// What such a host is told about it.
    pub(super) fn meta(&self) -> Value {
        let mut meta = meta(&self.network);
        if self.width.is_some() || self.height.is_some() {
            meta["skein"] = json!({"width": self.width, "height": self.height});
        }
        meta
    }
}

/// Where a page may go and what it may do, as MCP Apps have it.
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

/// Inline code and what is in the page; of other places only what the metadata names, and never code.
fn policy(network: &[NetworkOrigin]) -> String {
    let origins: String = network.iter().map(|origin| format!(" {}", origin.as_str())).collect();
    let connect = if origins.is_empty() { " 'none'" } else { &origins };
    format!(
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:{origins}; \
         media-src data: blob:{origins}; font-src data:{origins}; connect-src{connect}; frame-src 'none'; \
         form-action 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types default"
    )
}

/// Text in an attribute or an element.
fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
