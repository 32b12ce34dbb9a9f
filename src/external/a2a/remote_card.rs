//! Reads the card of a remote agent: where it answers, and what it can do.
//!
//! Invariant: requests go only to the host that the manifest names, because they carry its headers.

use serde_json::Value;

use super::CALL_EXTENSION;
use super::remote_error::RemoteError;
use crate::network::RemoteHost;

const BINDING: &str = "JSONRPC";
const CARD_PATH: &str = ".well-known/agent-card.json";

/// What Skein needs of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemoteCard {
    /// The address of the JSON-RPC interface.
    pub(super) url: String,
    pub(super) tenant: Option<String>,
    pub(super) streams: bool,
    /// Whether the agent calls tools of its mode.
    pub(super) calls_tools: bool,
}

/// Returns the address of the card: below the agent's address, unless that names a JSON file.
pub(super) fn card_url(address: &str) -> String {
    match address.ends_with(".json") {
        true => address.to_owned(),
        false => format!("{}/{CARD_PATH}", address.trim_end_matches('/')),
    }
}

impl RemoteCard {
    /// Reads a card from this address. Fails if it offers no interface that Skein can use.
    pub(super) fn read(card: &Value, address: &str) -> Result<Self, RemoteError> {
        let wrong = |problem: String| RemoteError::Card { problem };
        let interfaces = card["supportedInterfaces"].as_array().map(Vec::as_slice).unwrap_or_default();
        let text = |interface: &Value, key: &str| interface[key].as_str().unwrap_or_default().to_owned();
        let is_usable = |interface: &&Value| {
            let version = text(interface, "protocolVersion");
            text(interface, "protocolBinding") == BINDING && (version == "1" || version.starts_with("1."))
        };
        let Some(interface) = interfaces.iter().find(is_usable) else {
            let offered: Vec<_> = interfaces
                .iter()
                .map(|known| format!("{} {}", text(known, "protocolBinding"), text(known, "protocolVersion")))
                .collect();
            let offered = if offered.is_empty() { "none".to_owned() } else { offered.join(", ") };
            return Err(wrong(format!("it has no interface {BINDING} of version 1; it has {offered}")));
        };
        let url = text(interface, "url");
        if !is_same_server(&url, address) {
            let host = RemoteHost::of_url(&url).map_or_else(|| "no host".to_owned(), |host| host.authority());
            let problem = format!("its interface is at {host}; write that host into `url` of `runtime.a2a`");
            return Err(wrong(problem));
        }
        let capabilities = &card["capabilities"];
        let extensions = capabilities["extensions"].as_array();
        Ok(Self {
            url,
            tenant: Some(text(interface, "tenant")).filter(|tenant| !tenant.is_empty()),
            streams: capabilities["streaming"] == true,
            calls_tools: extensions.is_some_and(|all| all.iter().any(|known| known["uri"] == CALL_EXTENSION)),
        })
    }
}

/// Returns whether two addresses have the same scheme, host and port.
fn is_same_server(one: &str, other: &str) -> bool {
    let scheme = |url: &str| url.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let host = RemoteHost::of_url(one);
    host.is_some() && host == RemoteHost::of_url(other) && scheme(one) == scheme(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ADDRESS: &str = "https://agent.example.com/base";

    fn read(url: &str, version: &str, capabilities: Value) -> Result<RemoteCard, String> {
        let interface = json!({"url": url, "protocolBinding": "JSONRPC", "protocolVersion": version});
        let card = json!({"supportedInterfaces": [interface], "capabilities": capabilities});
        RemoteCard::read(&card, ADDRESS).map_err(|error| error.to_string())
    }

    #[test]
    fn a_card_names_the_interface_and_its_abilities() {
        let url = "https://agent.example.com/rpc";
        let all = json!({"streaming": true, "extensions": [{"uri": CALL_EXTENSION}]});
        let expected = RemoteCard { url: url.to_owned(), tenant: None, streams: true, calls_tools: true };
        assert_eq!(read(url, "1.0", all), Ok(expected));
        let plain = read(url, "1.0", json!({})).unwrap();
        assert!(!plain.streams && !plain.calls_tools);
    }

    #[test]
    fn a_card_of_another_version_or_host_is_refused() {
        let refused = |url: &str, version: &str| read(url, version, json!({})).unwrap_err();
        assert!(refused("https://agent.example.com/rpc", "0.3").contains("it has JSONRPC 0.3"));
        for url in ["https://evil.example/rpc", "http://agent.example.com/rpc", "https://agent.example.com:8443/", "x"]
        {
            assert!(refused(url, "1.0").contains("its interface is at"), "{url}");
        }
        let nothing = RemoteCard::read(&json!("text"), ADDRESS).unwrap_err().to_string();
        assert!(nothing.contains("it has none"), "{nothing}");
    }

    #[test]
    fn the_card_is_below_the_address() {
        assert_eq!(card_url("http://a/b/"), "http://a/b/.well-known/agent-card.json");
        assert_eq!(card_url("http://a/card.json"), "http://a/card.json");
    }
}
