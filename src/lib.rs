//! Skein: one server in front of many agents. Each agent, in each of its modes, gets exactly the MCP services
//! that its manifest asks for, and no others.
//!
//! The modules from the ground up; `docs/architecture.md` has the arrows between them, which a test enforces.

/// Names that appear in manifests.
pub mod ids;
/// Invisible characters and Markdown fences.
pub mod text;
/// What time it is.
pub mod clock;
/// What a person is told about a file.
pub mod diagnostic;
/// What must not be kept.
pub mod secrets;
/// Child processes that leave nothing behind.
pub mod process;
/// Sockets that only the user can open.
pub mod socket;
/// Tasks that end with whoever started them.
pub mod task;
/// Files below a folder, opened without following links.
pub mod root_files;
/// Paths that are protected or hidden.
pub mod sandbox;
/// Whether a project's files may be used.
pub mod trust;
/// What is said between people, models and tools.
pub mod conversation;
/// The port between callers of tools and services.
pub mod tool;
/// Files to typed manifests.
pub mod manifest;
/// Rules about calls: allowed, asked about, denied.
pub mod permissions;
/// Recipes: read, checked, filled in.
pub mod recipe;
/// Manifests to a checked graph and a plan.
pub mod graph;
/// Which mode a request belongs to, from the manifests alone.
pub mod router;
/// What lasts, in SQLite.
pub mod store;
/// Service manifests to running services.
pub mod services;
/// Modes to bindings: exactly what was asked for.
pub mod broker;
/// Models.
pub mod llm;
/// The loop between a model and its tools.
pub mod agents;
/// A talk in a mode, with its record.
pub mod session;
/// What holds in a folder.
pub mod project;
/// Who works on a prompt.
pub mod orchestrator;
/// The front door for editors.
pub mod acp;
/// The front door for MCP clients that ask agents.
pub mod mcp_server;
/// A binding offered outward.
pub mod adapter;
/// Agents that are programs of their own.
pub mod external;
/// A plan that runs.
pub mod runtime;
/// The command line.
pub mod cli;
