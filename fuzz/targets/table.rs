//! The targets of the fuzzer. The tests of the library run them, too, with the inputs in `fuzz/corpus`: this shows that
//! they compile, and makes each input that once failed a regression test.

mod acp_lines;
mod command_lines;
mod documents;
mod event_streams;
mod html;
mod imports;
mod manifests;
mod mcp_messages;
mod model_streams;
mod path_rules;
mod permission_rules;
mod pictures;
mod proxy_requests;
mod real_bash;
mod secrets;
mod session_import;
mod templates;

/// A target takes any bytes, and panics if something that must always hold does not.
pub(super) type FuzzTarget = fn(&[u8]);

/// The targets by name. `fuzz/corpus` has a folder of each.
pub(super) static TARGETS: [(&str, FuzzTarget); 16] = [
    ("acp_lines", acp_lines::run),
    ("command_lines", command_lines::run),
    ("documents", documents::run),
    ("event_streams", event_streams::run),
    ("html", html::run),
    ("imports", imports::run),
    ("manifests", manifests::run),
    ("mcp_messages", mcp_messages::run),
    ("model_streams", model_streams::run),
    ("path_rules", path_rules::run),
    ("permission_rules", permission_rules::run),
    ("pictures", pictures::run),
    ("proxy_requests", proxy_requests::run),
    ("secrets", secrets::run),
    ("session_import", session_import::run),
    ("templates", templates::run),
];

/// Returns the text at the start of the bytes, for targets that take text.
fn text_of(data: &[u8]) -> &str {
    data.utf8_chunks().next().map_or("", |chunk| chunk.valid())
}
