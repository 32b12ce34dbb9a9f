//! A skein with one more built-in service: `words`, which counts them. Run it as you would run `skein`:
//! `cargo run --example words_builtin -- mcp --service words`

use std::process::ExitCode;

use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};
use skein::services::BuiltinRegistry;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Count {
    text: String,
}

struct Words;

#[tool_router(server_handler)]
impl Words {
    /// The model reads the description. Skein trusts the read-only hint of a built-in service.
    #[tool(description = "Count the words of a text", annotations(read_only_hint = true))]
    async fn count(&self, Parameters(request): Parameters<Count>) -> Result<String, String> {
        match request.text.split_whitespace().count() {
            // An `Err` is an answer too: the model reads it and can correct its call.
            0 => Err("there is no word in it; give a text".to_owned()),
            1 => Ok("1 word".to_owned()),
            words => Ok(format!("{words} words")),
        }
    }
}

fn main() -> ExitCode {
    let registry = BuiltinRegistry::builtin().with("words", |_| Words);
    skein::cli::main_with(registry, &[("services/words.yaml", include_str!("words.yaml"))])
}
