//! Skein: one server in front of many agents. Each agent, in each of its modes, gets exactly the MCP services
//! that its manifest asks for, and no others.
//!
//! The modules from the ground up; `docs/architecture.md` has the arrows between them, which a test enforces.

/// The command line.
pub mod cli;
/// What is said between people, models and tools.
pub mod conversation;
/// What a person is told about a file.
pub mod diagnostic;
/// Manifests to a checked graph and a plan.
pub mod graph;
/// Names that appear in manifests.
pub mod ids;
/// Files to typed manifests.
pub mod manifest;
/// Child processes that leave nothing behind.
pub mod process;
/// Service nodes to running services.
pub mod services;
/// Tasks that end with whoever started them.
pub mod task;
/// The port between callers of tools and services.
pub mod tool;
/// Whether a project's files may be used.
pub mod trust;
