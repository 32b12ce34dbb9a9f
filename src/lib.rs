//! Skein: one server in front of many agents. Each agent, in each of its modes, gets exactly the MCP services
//! that its manifest asks for, and no others.
//!
//! The modules from the ground up; `docs/architecture.md` has the arrows between them, which a test enforces.

/// The command line.
pub mod cli;
/// What a person is told about a file.
pub mod diagnostic;
/// Manifests to a checked graph and a plan.
pub mod graph;
/// Names that appear in manifests.
pub mod ids;
/// Files to typed manifests.
pub mod manifest;
/// Whether a project's files may be used.
pub mod trust;
