//! What processes and file tools of a session are kept from. So far the lists of paths.

mod paths;

pub use paths::{HiddenPaths, PROTECTED, PROTECTED_EXAMPLES, ProtectedPath, find_protected, find_protected_name};
