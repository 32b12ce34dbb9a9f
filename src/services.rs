//! Layer 0: services.

pub mod builtin;
