//! Limits the processes of a session: sandbox profiles, their layers, the proxy to hosts, git access, and the lists of
//! protected and hidden paths.

#![cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "nothing starts in a sandbox on other systems"))]

mod accept;
mod cgroup;
mod command_env;
mod consent;
mod current_gate;
mod entry_end;
mod error;
mod expand;
mod explain;
mod gate;
pub mod git;
mod git_index;
mod git_resume;
mod git_text;
mod inactive_parts;
mod inside_network;
mod launcher;
mod layer_probe;
mod layers;
mod new_protected;
mod os_text;
mod path_refusals;
mod paths;
mod plan;
mod profile;
mod protected_git;
mod protected_watch;
pub mod proxy;
mod quarantine;
mod request_table;
mod running_sandbox;
mod sandbox_process;
#[cfg(target_os = "linux")]
mod setup;
#[cfg(not(target_os = "linux"))]
#[path = "sandbox/other_system.rs"]
mod setup;
mod wire;

pub use command_env::{CERTIFICATE_VARIABLES, is_java};
pub use consent::ConsentRefusal;
pub use current_gate::CurrentGate;
pub use entry_end::{EntryEnd, EntryFailure};
pub use error::{SandboxError, SpawnError};
pub use expand::{ExpandError, SandboxContext, protected_paths, writable_folders};
pub use explain::{ExplainedLine, LineEnforcement, ProtectedState, explain, explain_text, layer_help};
pub use gate::SandboxGate;
pub use launcher::{HostResources, SandboxFolders, SandboxLauncher};
pub use layer_probe::{SANDBOX_PROCESS_ARGUMENT, probe_layers};
pub use layers::{Layer, LayerRestriction, LayerState, Layers};
pub use new_protected::{InstructionStamps, ProtectedSnapshot};
pub use path_refusals::{PathRefusal, RefusalRemedy};
pub use paths::{
    HiddenPaths, PROTECTED, PROTECTED_EXAMPLES, ProtectedPath, find_protected, find_protected_link, find_protected_name,
};
pub use plan::TerminalSession;
pub use profile::{
    ByteSize, CacheAccess, CommandPower, Enforcement, FileAccess, GitAccess, HostEntry, HostEntryError, HostSettings,
    LimitSettings, NetworkAccess, NetworkSettings, OtherHosts, PortAccess, ProfileOwner, ProfileSources, ReadPath,
    SandboxDevice, SandboxLimits, SandboxProfile, SandboxSettings, StatedEnforcement, WritePath, is_below_root,
    is_relative, overlaps_hidden,
};
pub use protected_watch::{ProtectedWatch, ProtectedWatches, UnsandboxedStart};
pub use quarantine::quarantine;
pub use request_table::CommandState;
pub use running_sandbox::{RunningSandbox, SandboxRequest, SandboxSpec, SandboxStartError, SandboxedLaunch};
pub use sandbox_process::{
    EnteredCommand, EntryError, SandboxChild, SandboxCommand, SandboxEntry, SandboxPorts, SandboxProcess, SingleSandbox,
};
pub use setup::{enter_sandbox, run_sandbox_process};
pub use wire::{Namespace, TerminalUse};
