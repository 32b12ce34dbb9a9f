//! The only integration-test binary. Each line says what belongs in the module.

/// The arrows between modules, the files nobody may forget, the size of files.
mod architecture;
/// The built-in wiring: the table in the docs against the manifests, prompts, examples.
mod builtin;
/// Commands as a user runs them: what they print, where, and with which exit code.
mod cli;
/// Manifests that are wrong, and exactly what is said about them.
mod diagnostics;
/// Memory, todo and fetch through the program.
mod everyday;
/// Nothing panics: arbitrary text and arbitrary graphs.
mod properties;
/// JSON Schemas against the types.
mod schemas;
/// The test vocabulary.
mod support;
