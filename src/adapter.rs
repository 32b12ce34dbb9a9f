//! Serves bindings to other programs as MCP servers. Owns no session; a connection ends with the offer it uses.

pub mod attach;
pub mod export;
pub mod http_endpoint;
pub mod requirement_server;
