//! Finds the layers of this machine, with a sandbox process that only tries them.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use super::cgroup::ControlGroup;
use super::error::SandboxError;
use super::layers::{LayerState, Layers};
use super::os_text::OsText;
use super::setup::landlock_version;
use super::wire::{self, Reply, Request};
use crate::process::HelperProcess;

/// The argument with which `skein` runs as a sandbox process.
pub const SANDBOX_PROCESS_ARGUMENT: &str = "sandbox-process";
/// A sandbox is ready within milliseconds; a hung mount must not block Skein for ever.
const SETUP_TIMEOUT: Duration = Duration::from_secs(20);

static LAYERS: OnceLock<Layers> = OnceLock::new();

/// Returns the layers if they were probed before.
pub(super) fn known_layers() -> Option<&'static Layers> {
    LAYERS.get()
}

/// Returns the layers of a machine on which namespaces work.
pub(super) fn likely_layers() -> Layers {
    let mut layers = Layers::complete();
    layers.is_root = rustix::process::geteuid().is_root();
    match landlock_version() {
        Ok(version) => layers.landlock_version = version,
        Err(error) => {
            layers.landlock_version = 0;
            layers.landlock = LayerState::Missing(error.to_string());
        }
    }
    layers
}

/// Makes a control group and removes it.
fn probe_cgroup() -> LayerState {
    match ControlGroup::create(u64::from(u32::MAX)) {
        Ok(_) => LayerState::Available,
        Err(error) => LayerState::Missing(format!("cannot make a control group: {error}")),
    }
}

/// Returns the layers of this machine, found by using them. Probes once per process. `program` is `skein`; `scratch` is
/// a folder for temporary files.
pub fn probe_layers(program: &Path, scratch: &Path) -> Result<&'static Layers, SandboxError> {
    if let Some(layers) = LAYERS.get() {
        return Ok(layers);
    }
    let folder = scratch.join(format!("probe-{}", std::process::id()));
    let probe = || {
        let (socket, mut helper) = launch(program)?;
        let exchange = || {
            wire::send(&socket, &Request::Probe { scratch: OsText::from(&folder) }, &[])?;
            wire::receive::<Reply>(&socket)
        };
        let (reply, _) = exchange().map_err(|source| SandboxError::Process { source })?;
        helper.wait();
        match reply {
            Reply::Probed { layers } => Ok(Layers { cgroup: probe_cgroup(), ..*layers }),
            Reply::Failed { layer, step, error, .. } => Err(SandboxError::SetUp { layer, step, error }),
            Reply::Ready { .. }
            | Reply::Started { .. }
            | Reply::StartFailed { .. }
            | Reply::Paused { .. }
            | Reply::Opened { .. }
            | Reply::OpenFailed { .. }
            | Reply::Ended { .. } => Err(broken("an unexpected answer")),
        }
    };
    let layers = probe();
    drop(std::fs::remove_dir_all(&folder));
    Ok(LAYERS.get_or_init(|| layers.unwrap_or_else(|error| Layers::none(&error.to_string()))))
}

/// Starts a sandbox process, which waits for its first message.
pub(super) fn launch(program: &Path) -> Result<(UnixStream, HelperProcess), SandboxError> {
    let start = || {
        let (here, there) = UnixStream::pair()?;
        let helper = HelperProcess::spawn(program, &[SANDBOX_PROCESS_ARGUMENT.into()], there.into())?;
        here.set_read_timeout(Some(SETUP_TIMEOUT))?;
        Ok((here, helper))
    };
    start().map_err(|source| SandboxError::Process { source })
}

pub(super) fn broken(problem: &str) -> SandboxError {
    SandboxError::Process { source: io::Error::other(problem.to_owned()) }
}
