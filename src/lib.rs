//! Skein: one server in front of many agents. Each agent, in each of its modes, gets exactly the MCP services that its
//! manifest names, and no others.
//!
//! The modules are listed from the leaves up. `docs/dependencies.md` has the arrows between them, which a test
//! enforces.

/// Names that appear in manifests.
pub mod ids;
/// Invisible characters, Markdown fences and differences of lines.
pub mod text;
/// The current time and its formats.
pub mod clock;
/// Draws data as SVG.
pub mod chart;
/// Reports on a file: severity, code, location, problem and help.
pub mod diagnostic;
/// Detects secrets, so that they are not stored.
pub mod secrets;
/// Starts child processes and ends them with their descendants.
pub mod process;
/// Unix sockets that only the user can open.
pub mod socket;
/// Tasks that end with their owner.
pub mod task;
/// Spans in the names of OpenTelemetry.
pub mod telemetry;
/// The Chrome DevTools Protocol over two pipes.
pub mod cdp;
/// A screen of X11: pictures, pointer and keyboard.
pub mod screen;
/// Definitions and calls of source files.
pub mod code_index;
/// Files below a folder, opened without following links.
pub mod root_files;
/// Files of recorded lines, which keep an earlier recording until the first line.
pub mod recording_file;
/// Hosts, addresses and the port to the network.
pub mod network;
/// The lessons on Skein, and the checks of their steps.
pub mod lesson;
/// Limits processes in the kernel; paths that are protected or hidden.
pub mod sandbox;
/// Keeps the states of a workspace, to bring earlier files back.
pub mod checkpoint;
/// Git worktrees for delegated tasks, and the merge of their changes.
pub mod worktree;
/// The user's approval of a project's files.
pub mod trust;
/// Office documents and PDF files: bytes to text, and edits.
pub mod document;
/// Messages between users, models and tools.
pub mod conversation;
/// The port between callers of tools and services.
pub mod tool;
/// Parses files into typed manifests.
pub mod manifest;
/// Rules that allow, ask about or deny calls.
pub mod permissions;
/// Reads, checks and fills in recipes.
pub mod recipe;
/// Resolves manifests into a checked graph and a plan.
pub mod graph;
/// Chooses the mode of a request from the manifests alone.
pub mod router;
/// Owners of data, and the limits of their tokens.
pub mod principal;
/// Persistence in SQLite.
pub mod store;
/// Limits requests without an answer, and unread answers, of MCP connections.
pub mod answer_limit;
/// Starts and pools the services that manifests describe.
pub mod services;
/// Binds a mode to exactly the services and tools it requests.
pub mod broker;
/// Model providers.
pub mod llm;
/// The loop between a model and its tools.
pub mod agents;
/// Conversations in a mode, with their history and events.
pub mod session;
/// The manifests and settings that apply in a folder.
pub mod project;
/// Routes, splits and delegates prompts.
pub mod orchestrator;
/// The front end for editors.
pub mod acp;
/// The front end for MCP clients that call agents as tools.
pub mod mcp_server;
/// The front end for clients over HTTP.
pub mod serve;
/// Serves a binding as an MCP server.
pub mod adapter;
/// Runs external agents; Skein is their ACP client.
pub mod external;
/// Runs a plan: the pool, the broker and the status socket.
pub mod runtime;
/// The command line.
pub mod cli;

/// Named pipes for tests. The integration tests use the same file.
#[cfg(test)]
#[path = "../tests/it/support/fifo.rs"]
mod test_fifo;

/// The targets of the fuzzer name the library as other crates do.
#[cfg(test)]
extern crate self as skein;

#[cfg(test)]
#[path = "../fuzz/targets/corpus_tests.rs"]
mod fuzz_targets;
