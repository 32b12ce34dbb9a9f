//! Offers the services of a mode to an external agent, as one MCP server. The binding behind it is the one that also
//! decides the agent's client requests.

use serde_json::{Value, json};

use super::LaunchContext;
use super::client_context::{ClientContext, SessionBinding};
use super::connection::AgentConnection;
use crate::adapter::attach::{HttpOffer, OfferError, SOCKET_VARIABLE, SocketOffer, TOKEN_VARIABLE};
use crate::adapter::export::{BindingServer, ToolNaming};
use crate::manifest::Handover;

/// Name of the MCP server, as the agent sees it.
const NAME: &str = "skein";

/// The offered MCP server; dropping it withdraws the offer.
pub(super) enum OfferedServer {
    Stdio { _offer: SocketOffer },
    Http { _offer: HttpOffer },
}

/// Why the MCP server cannot be offered to an agent.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandoverError {
    #[error(transparent)]
    Offer(#[from] OfferError),
    #[error("its sandbox has no Unix sockets on this machine; write `mcp: http`, or see `skein doctor`")]
    NoSockets,
    #[error("its manifest says `mcp: http`, and it takes no MCP servers over HTTP; write `mcp: stdio`")]
    HttpUnsupported,
}

/// Returns true if the agent takes MCP servers over HTTP.
fn takes_http(connection: &AgentConnection) -> bool {
    let about = connection.about.get();
    about.is_some_and(|about| about["agentCapabilities"]["mcpCapabilities"]["http"] == true)
}

/// Offers the MCP server and returns it with its `mcpServers` entry for the agent. Both are empty if the mode has
/// nothing to offer. Fails if the manifest requires HTTP and the agent does not support it.
pub(super) fn offer_server(
    around: &LaunchContext,
    client: &ClientContext,
    bound: &SessionBinding,
    connection: &AgentConnection,
) -> Result<(Option<OfferedServer>, Vec<Value>), HandoverError> {
    let binding = &bound.binding;
    if binding.tools().is_empty() && !binding.has_resources() && !binding.has_prompts() {
        return Ok((None, Vec::new()));
    }
    let mode = binding.mode();
    let told = format!(
        "What Skein provides to {} in the mode {mode}. Only the tools of this mode exist here.",
        client.agent.title
    );
    let Some(source) = client.source() else { return Ok((None, Vec::new())) };
    let export = BindingServer::new(source, bound.session.clone(), ToolNaming::Qualified, told);
    match client.agent.runtime.mcp {
        Handover::Stdio if !connection.has_unix_sockets => Err(HandoverError::NoSockets),
        Handover::Stdio => {
            let offer = around.attachments.offer(export)?;
            let env =
                [(SOCKET_VARIABLE, offer.socket.to_string_lossy().into_owned()), (TOKEN_VARIABLE, offer.token.clone())];
            let env = env.map(|(name, value)| json!({"name": name, "value": value}));
            let server = json!({"name": NAME, "command": around.program, "args": ["mcp", "--attach"], "env": env});
            Ok((Some(OfferedServer::Stdio { _offer: offer }), vec![server]))
        }
        Handover::Http if !takes_http(connection) => Err(HandoverError::HttpUnsupported),
        Handover::Http => {
            let offer = around.attachments.offer_http(export)?;
            let headers = [json!({"name": "Authorization", "value": format!("Bearer {}", offer.token)})];
            let server = json!({"type": "http", "name": NAME, "url": offer.url, "headers": headers});
            Ok((Some(OfferedServer::Http { _offer: offer }), vec![server]))
        }
    }
}
