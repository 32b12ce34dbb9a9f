//! Who does what: from a prompt to the modes that take it on.

pub mod route;
