//! Serves bindings to other programs as MCP servers. Owns no session; a connection ends with the offer it uses.

pub mod attach;
mod call_results;
pub(crate) mod client_asker;
mod client_calls;
mod endpoint_sessions;
pub mod export;
pub mod http_endpoint;
pub(crate) mod request_errors;
pub mod requirement_server;
pub mod suspension_slots;
pub(crate) mod suspensions;
