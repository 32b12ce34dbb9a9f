//! What processes and file tools of a session are kept from. So far the lists of paths.

mod paths;

pub use paths::{HiddenPaths, PROTECTED, ProtectedPath, find_protected, find_protected_name};
