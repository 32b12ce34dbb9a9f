//! Defines why a binding leaves a tool out.

use super::super::sanitize;
use crate::graph::ScopeRefusal;
use crate::manifest::SchemaError;

/// Why a tool of a bound service is not offered.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExclusionError {
    #[error(transparent)]
    Scope(#[from] ScopeRefusal),
    #[error(transparent)]
    Spec(#[from] sanitize::ToolSpecError),
    #[error("it takes a command line, which no `files` rule can hold")]
    CommandLine,
    #[error("no rule admits it")]
    NoRule,
    #[error("its input schema cannot be used: {0}")]
    Schema(#[source] SchemaError),
    #[error("its service lists another tool of that name before it")]
    ListedTwice,
    #[error("the files of this session are at the client, and ACP has no request for this")]
    AtClient,
    #[error("the files of this session are at the client, which does not lend them (`fs`)")]
    NoClientFiles,
    #[error("commands of this session run at the client, and only `skein acp --connect` runs them in a sandbox")]
    NoClientSandbox,
}
