//! What replicas add to the requests and answers between them.

/// The header with the secret of the replica that a request is for.
pub(super) const SECRET_HEADER: &str = "skein-replica-secret";

/// An extension of an answer that another replica may answer better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotHere;
