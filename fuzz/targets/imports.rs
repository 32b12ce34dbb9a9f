//! Files of other programs: each gives services that can be written as manifests, or an error.

use skein::manifest::{SourceFile, parse, read_foreign, read_registry, read_server_json, service_text};

use super::text_of;

const MAX_BRACKETS: usize = 256;

pub(super) fn run(data: &[u8]) {
    let text = text_of(data);
    if let Ok(config) = read_foreign("config.yaml", text) {
        for service in config.services {
            let written = service_text(&service, text);
            // Skein refuses a file with that many open brackets, also if they are in quotes.
            if written.matches(['[', '{']).count() > MAX_BRACKETS {
                continue;
            }
            assert!(parse(&SourceFile::new("service.yaml", written.as_str())).is_ok(), "{written}");
        }
    }
    drop(read_server_json(text, None));
    drop(read_registry("agent.json", text, None, None, "linux-x86_64"));
}
