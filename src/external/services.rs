//! What an agent outside is handed of the services of its mode: one MCP server, through which the same binding answers
//! that answers for everything else it asks.

use serde_json::{Value, json};

use super::Surroundings;
use super::place::{Bound, Place};
use crate::adapter::attach::{HttpOffer, Offer, SOCKET_VARIABLE, TOKEN_VARIABLE};
use crate::adapter::export::{Export, Names};
use crate::agents::Outsider;
use crate::manifest::Handover;

/// As the agent knows the server.
const NAME: &str = "skein";

/// The server, as long as this is there.
pub(super) enum Handed {
    Stdio { _offer: Offer },
    Http { _offer: HttpOffer },
}

/// The server for the agent, in the words of `session/new`; none if its mode has nothing to offer.
pub(super) fn hand(
    around: &Surroundings,
    who: &Outsider,
    place: &Place,
    bound: &Bound,
    about: &Value,
) -> Result<(Option<Handed>, Vec<Value>), String> {
    let binding = &bound.binding;
    if binding.tools().is_empty() && !binding.has_resources() && !binding.has_prompts() {
        return Ok((None, Vec::new()));
    }
    let mode = binding.mode();
    let told =
        format!("What Skein provides to {} in the mode {mode}. Only the tools of this mode exist here.", who.title);
    let Some(source) = place.source() else { return Ok((None, Vec::new())) };
    let export = Export::new(source, bound.session.clone(), Names::Qualified, told);
    match who.runtime.mcp {
        Handover::Stdio => {
            let offer = around.attachments.offer(export)?;
            let env =
                [(SOCKET_VARIABLE, offer.socket.to_string_lossy().into_owned()), (TOKEN_VARIABLE, offer.token.clone())];
            let env = env.map(|(name, value)| json!({"name": name, "value": value}));
            let server = json!({"name": NAME, "command": around.program, "args": ["mcp", "--attach"], "env": env});
            Ok((Some(Handed::Stdio { _offer: offer }), vec![server]))
        }
        Handover::Http if about["agentCapabilities"]["mcpCapabilities"]["http"] != true => {
            Err("its manifest says `mcp: http`, and it takes no MCP servers over HTTP; write `mcp: stdio`".to_owned())
        }
        Handover::Http => {
            let offer = around.attachments.offer_http(export)?;
            let headers = [json!({"name": "Authorization", "value": format!("Bearer {}", offer.token)})];
            let server = json!({"type": "http", "name": NAME, "url": offer.url, "headers": headers});
            Ok((Some(Handed::Http { _offer: offer }), vec![server]))
        }
    }
}
