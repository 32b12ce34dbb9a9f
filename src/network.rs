//! Hosts and addresses: their patterns and kinds, the known package registries, the port to the network, and clients of
//! HTTP and WebSocket.

mod address;
mod command_hosts;
mod dial;
mod event_parser;
mod host;
mod http_client;
mod json_client;
mod json_document;
mod protobuf_json;
mod registries;
mod websocket;

pub use address::{AddressKind, address_kind};
pub use command_hosts::remote_hosts_in_command;
pub use dial::{Network, SystemNetwork};
pub use host::{HostPattern, HostPatternError, RemoteHost, UnstatedPort};
pub use http_client::{TrustedRoots, TrustedRootsError, client_builder, is_trust_failure, tls_provider};
pub use json_client::{JsonClient, JsonClientError, JsonEventReader, JsonReply};
pub use json_document::{DocumentClient, JsonDocumentError, is_private_url};
pub use protobuf_json::restore_integers;
pub use registries::REGISTRIES;
pub use websocket::{WebSocketAddress, WebSocketAddressError, WebSocketClient, WebSocketError};

/// Returns the events in the pieces of a stream, for the fuzzer.
#[cfg(any(test, fuzzing))]
pub fn read_events<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    let mut parser = event_parser::EventParser::default();
    let mut events = Vec::new();
    for piece in pieces {
        parser.push(piece);
        events.extend(std::iter::from_fn(|| parser.next()));
    }
    events
}

#[cfg(test)]
pub(crate) use address::tests as address_strategies;
