//! Finds the layers of this machine, with a sandbox process that only tries them.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::cgroup::ControlGroup;
use super::error::SandboxError;
use super::layers::{LayerState, Layers};
use super::os_text::OsText;
use super::setup::landlock_version;
use super::wire::{self, Reply, Request};
use crate::ids::random_uuid;
use crate::process::HelperProcess;

/// The argument with which `skein` runs as a sandbox process.
pub const SANDBOX_PROCESS_ARGUMENT: &str = "sandbox-process";
/// A sandbox is ready within milliseconds; a hung mount must not block Skein for ever.
const SETUP_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a probe counts that found no namespaces. The machine may have run out of them for a moment.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

static LAYERS: Mutex<KnownLayers> = Mutex::new(KnownLayers { last: None });

/// What the last probe found.
#[derive(Debug)]
struct KnownLayers {
    last: Option<(Layers, Instant)>,
}

impl KnownLayers {
    fn get(&self, now: Instant) -> Option<&Layers> {
        let (layers, probed) = self.last.as_ref()?;
        let lasts = layers.namespaces.is_available() || now.saturating_duration_since(*probed) < RETRY_INTERVAL;
        lasts.then_some(layers)
    }

    /// Keeps what a probe found, and returns what counts: namespaces that another probe has found stay.
    fn put(&mut self, layers: Layers, now: Instant) -> Layers {
        match self.get(now) {
            Some(known) if known.namespaces.is_available() => known.clone(),
            Some(_) | None => {
                self.last = Some((layers.clone(), now));
                layers
            }
        }
    }
}

fn lock_layers() -> MutexGuard<'static, KnownLayers> {
    LAYERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the layers if they were probed before, and the machine may not have got namespaces since.
pub(super) fn recall_layers() -> Option<Layers> {
    lock_layers().get(Instant::now()).cloned()
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

/// Returns the layers of this machine, found by using them. Probes once per process, and again after some time while
/// there are no namespaces. `program` is `skein`; `scratch` is a folder for temporary files.
pub fn probe_layers(program: &Path, scratch: &Path) -> Result<Layers, SandboxError> {
    if let Some(layers) = recall_layers() {
        return Ok(layers);
    }
    // Several probes may run at once.
    let folder = scratch.join(format!("probe-{}-{}", std::process::id(), random_uuid()));
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
    let layers = layers.unwrap_or_else(|error| Layers::none(&error.to_string()));
    Ok(lock_layers().put(layers, Instant::now()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_namespaces_counts_for_half_a_minute() {
        let (mut known, now) = (KnownLayers { last: None }, Instant::now());
        let (without, with) = (Layers::none("no space left"), Layers::complete());
        assert_eq!(known.get(now), None);
        assert_eq!(known.put(without.clone(), now), without);
        assert_eq!(known.get(now + RETRY_INTERVAL / 2), Some(&without));
        assert_eq!(known.get(now + RETRY_INTERVAL), None, "it is probed again");
        assert_eq!(known.put(with.clone(), now + RETRY_INTERVAL), with);
        assert_eq!(known.get(now + RETRY_INTERVAL * 100), Some(&with), "what works stays known");
        assert_eq!(known.put(without, now + RETRY_INTERVAL * 101), with, "a slower probe does not undo it");
    }
}
