//! Top of mind: text that the user wants in every turn. The service has no tools. The orchestrator reads the text
//! and the file before each turn and puts them before the prompt.

use rmcp::ServerHandler;
use rmcp::model::{Implementation, ServerCapabilities, ServerConfig};

/// The `tom` service, an MCP server without tools.
#[derive(Debug, Clone, Default)]
pub struct TomService;

impl ServerHandler for TomService {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::default())
            .with_server_info(Implementation::new("tom", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }
}

const INSTRUCTIONS: &str = "What the user wants kept in mind comes before a prompt between `top-of-mind` marks. The last one \
                            holds until another comes.";

#[cfg(test)]
mod tests {
    use super::super::harness::Harness;
    use super::*;

    #[tokio::test]
    async fn it_has_no_tools_and_says_what_it_is_for() {
        let tom = Harness::new(TomService);
        assert!(tom.tools().await.is_empty());
        assert!(tom.instructions().contains("top-of-mind"));
    }
}
