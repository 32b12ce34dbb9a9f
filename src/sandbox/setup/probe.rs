//! Finds out which layers this machine has, by setting up sandboxes that run nothing.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::process::{WaitOptions, waitpid};

use super::identity::UserIds;
use super::{SetupError, clone_mapped, exit, kernel, report, set_up};
use crate::sandbox::layers::{Layer, LayerState, Layers};
use crate::sandbox::os_text::OsText;
use crate::sandbox::plan::{
    BaseAccess, FileBase, InternetSockets, Isolation, LandlockRules, MountSource, PlannedMount, ProcMount,
    ResourceLimits, SandboxLifetime, SandboxPlan, SocketRules, TerminalSession,
};
use crate::sandbox::wire::{self, Reply};

/// Sends the layers to Skein. `scratch` is a folder for the overlay.
pub(super) fn run(control: &UnixStream, scratch: &Path) -> io::Result<()> {
    let ids = UserIds::current();
    let mut layers = Layers::complete();
    layers.is_root = ids.is_root();
    match kernel::landlock_version() {
        Ok(version) => layers.landlock_version = version,
        Err(error) => {
            layers.landlock_version = 0;
            layers.landlock = LayerState::Missing(landlock_reason(&error));
        }
    }
    layers.overlay =
        prepare_overlay(scratch).map_or_else(|error| missing("prepare a folder", &error), |()| LayerState::Available);
    // Each round tries everything that has not failed yet.
    loop {
        let failed = attempt(&plan(&layers, scratch), ids)?;
        let Some((layer, step, error)) = failed else { break };
        let state = LayerState::Missing(format!("cannot {step}: {error}"));
        let known = match layer {
            Layer::NewProc => &mut layers.new_proc,
            Layer::Overlay => &mut layers.overlay,
            Layer::Landlock => &mut layers.landlock,
            Layer::Seccomp => &mut layers.seccomp,
            Layer::UserNamespace
            | Layer::MountNamespace
            | Layer::PidNamespace
            | Layer::IpcNamespace
            | Layer::NetworkNamespace
            | Layer::Limits
            | Layer::Cgroup => &mut layers.namespaces,
        };
        if !known.is_available() {
            break;
        }
        *known = state;
    }
    if !layers.namespaces.is_available() {
        for state in [&mut layers.new_proc, &mut layers.overlay] {
            *state = layers.namespaces.clone();
        }
    }
    wire::send(control, &Reply::Probed { layers: Box::new(layers) }, &[])
}

fn missing(step: &str, error: &io::Error) -> LayerState {
    LayerState::Missing(format!("cannot {step}: {error}"))
}

fn landlock_reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => "the kernel has Landlock, but it is not enabled (boot parameter `lsm=`)".to_owned(),
        _ => "the kernel has no Landlock (Linux 5.13 or newer)".to_owned(),
    }
}

fn prepare_overlay(scratch: &Path) -> io::Result<()> {
    ["lower", "upper", "work"].iter().try_for_each(|name| fs::create_dir_all(scratch.join(name)))
}

/// Returns a plan that uses every layer that is not known to be missing.
fn plan(layers: &Layers, scratch: &Path) -> SandboxPlan {
    let isolation = if layers.namespaces.is_available() {
        let proc = if layers.new_proc.is_available() { ProcMount::New } else { ProcMount::Host };
        Isolation::Namespaces { proc }
    } else {
        Isolation::None
    };
    let path = |name: &str| OsText::from(&scratch.join(name));
    let source = MountSource::Overlay { lower: path("lower"), upper: path("upper"), work: path("work") };
    let overlay = PlannedMount { target: path("lower"), source };
    let uses_overlay = layers.overlay.is_available() && isolation != Isolation::None;
    let landlock = LandlockRules { version: layers.landlock_version, files: None, connect_ports: None };
    SandboxPlan {
        isolation,
        base: FileBase::Host(BaseAccess::ReadOnly),
        mounts: if uses_overlay { vec![overlay] } else { Vec::new() },
        devices: Vec::new(),
        landlock: layers.landlock.is_available().then_some(landlock),
        sockets: SocketRules { unix: true, internet: InternetSockets::All, netlink_route: true },
        proxy: false,
        relays: Vec::new(),
        git: false,
        limits: ResourceLimits { processes: None, data: None, file_size: None },
        session: TerminalSession::New,
        lifetime: SandboxLifetime::Session,
    }
}

type FailedStep = (Layer, String, String);

/// Sets up a sandbox in another process. Returns the step that failed.
fn attempt(plan: &SandboxPlan, ids: UserIds) -> io::Result<Option<FailedStep>> {
    let (here, there) = UnixStream::pair()?;
    let in_namespaces = plan.isolation != Isolation::None;
    let cloned = if in_namespaces {
        clone_mapped(ids, || {})
    } else {
        kernel::clone_process(rustix::thread::UnshareFlags::empty()).map_err(|source| SetupError {
            layer: Layer::Limits,
            step: "start a process".to_owned(),
            source,
        })
    };
    match cloned {
        Err(error) => Ok(Some((error.layer, error.step.clone(), error.source.to_string()))),
        Ok(None) => {
            drop(here);
            let reply = match set_up(plan, ids, None) {
                Ok(ready) => ready.send(&there),
                Err(error) => report(&there, &error),
            };
            // Only the first process continues.
            exit(reply.is_ok());
        }
        Ok(Some(child)) => {
            drop(there);
            let reply = wire::receive::<Reply>(&here);
            waitpid(Some(child), WaitOptions::empty())?;
            match reply {
                Ok((Reply::Failed { layer, step, error, .. }, _)) => Ok(Some((layer, step, error))),
                Ok(_) => Ok(None),
                Err(error) => Ok(Some((Layer::MountNamespace, "set up a sandbox".to_owned(), error.to_string()))),
            }
        }
    }
}
