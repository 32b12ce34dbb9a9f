//! Limits the processes of a session: sandbox profiles, and the lists of protected and hidden paths.

mod paths;
mod profile;

pub use paths::{HiddenPaths, PROTECTED, PROTECTED_EXAMPLES, ProtectedPath, find_protected, find_protected_name};
pub use profile::{
    CacheAccess, Enforcement, FileAccess, GitAccess, NetworkAccess, OtherHosts, PortAccess, ReadPath, SandboxDevice,
    SandboxLimits, SandboxProfile, WritePath,
};
