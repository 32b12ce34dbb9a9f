//! Defines what processes and file tools of a session may not access. Currently contains the lists of paths.

mod paths;

pub use paths::{HiddenPaths, PROTECTED, PROTECTED_EXAMPLES, ProtectedPath, find_protected, find_protected_name};
