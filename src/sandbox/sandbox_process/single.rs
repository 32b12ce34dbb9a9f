//! A sandbox for one command, which is ready sooner: this process copies itself instead of starting Skein's program
//! again, the copy creates its namespaces while the profile is expanded, and no other thread is needed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use nix::sys::signal::{SigSet, SigmaskHow, Signal as NixSignal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};

use super::check_enforcement;
use super::command::{SandboxCommand, add_variables, spawn_error};
use crate::sandbox::error::{SandboxError, SpawnError};
use crate::sandbox::expand::{CacheFolder, ExpandedProfile, SandboxContext, early_plan, expand, uses_proxy};
use crate::sandbox::explain::ProtectedState;
use crate::sandbox::layer_probe::likely_layers;
use crate::sandbox::layers::LayerRestriction;
use crate::sandbox::plan::{MountSource, SandboxLifetime};
use crate::sandbox::profile::SandboxProfile;
use crate::sandbox::request_table::{StartFailure, kill_status};
use crate::sandbox::setup;
use crate::sandbox::wire::{self, Reply, Request};

/// The id of the command.
const COMMAND: u64 = 1;

/// A sandbox that ends with its only command. Dropping it ends the command, and waits until no process is left but
/// PID 1, which may still undo its mounts.
#[derive(Debug)]
pub struct SingleSandbox {
    socket: UnixStream,
    /// PID 1 of the sandbox, a child of this process.
    inner: Pid,
    /// Whether no process is left but PID 1.
    is_empty: bool,
    /// Whether caches are mounted. Another sandbox must not mount them before this one has undone its mounts.
    has_cache_mounts: bool,
    env: BTreeMap<OsString, Option<OsString>>,
    notices: Vec<String>,
    cache: Option<CacheFolder>,
}

impl SingleSandbox {
    /// Starts a sandbox. This process must have one thread. `context` is called when the copy has other work. Returns
    /// `None` if only a [`SandboxProcess`] can enforce the profile here: it has a network, or the machine lacks a layer.
    /// Fails if the profile is required and this machine cannot enforce it.
    ///
    /// [`SandboxProcess`]: super::SandboxProcess
    pub fn start<E: From<SandboxError>>(
        profile: &SandboxProfile,
        restriction: &LayerRestriction,
        context: impl FnOnce() -> Result<SandboxContext, E>,
    ) -> Result<Option<Self>, E> {
        let layers = likely_layers().restricted(restriction);
        let needs_outside = uses_proxy(profile) || profile.limits.memory.is_some();
        if needs_outside || !layers.namespaces.is_available() {
            return Ok(None);
        }
        let (socket, control) = UnixStream::pair().map_err(|source| SandboxError::Process { source })?;
        let Ok(inner) = setup::copy_into_sandbox(control, &early_plan(profile, &layers)) else { return Ok(None) };
        let mut sandbox = Self {
            socket,
            inner,
            is_empty: false,
            has_cache_mounts: false,
            env: BTreeMap::new(),
            notices: Vec::new(),
            cache: None,
        };
        // Mounts cover protected paths.
        check_enforcement(profile, &layers, ProtectedState::Absent)?;
        let ExpandedProfile { mut plan, env, notices, cache, .. } =
            expand(profile, &context()?, &layers).map_err(SandboxError::from)?;
        plan.lifetime = SandboxLifetime::Command;
        sandbox.has_cache_mounts = plan.mounts.iter().any(|mount| matches!(mount.source, MountSource::Overlay { .. }));
        (sandbox.env, sandbox.notices, sandbox.cache) = (env, notices, cache);
        let sent = wire::send(&sandbox.socket, &Request::SetUp(Box::new(plan)), &[]);
        // The reason is in the answer, but the general way finds it too.
        Ok(sent.is_ok().then_some(sandbox))
    }

    /// Returns remarks about the expansion of the profile.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Runs the command to its end, and passes on the signals that ask this process to end. `on_pause` is called when a
    /// signal has stopped the command, which then continues. Returns `None` if the machine lacks a layer after all:
    /// then nothing has run.
    pub fn run(
        mut self,
        command: &SandboxCommand,
        on_pause: Option<&dyn Fn()>,
    ) -> Result<Option<ExitStatus>, SpawnError> {
        let ended = |source| SpawnError::Ended { source: Some(source) };
        // A signal that arrives while the command starts is for the command.
        let signals = SignalRelay::block().map_err(ended)?;
        if self.send_command(command).is_err() {
            return Ok(None);
        }
        let mut is_ready = false;
        loop {
            let has_answer = signals.pass_on_until_answer(&self.socket).map_err(ended)?;
            if !has_answer {
                continue;
            }
            match wire::receive(&self.socket) {
                Ok((Reply::Ready { .. }, _)) => is_ready = true,
                Ok((Reply::Failed { layer, step, error, .. }, _)) => {
                    tracing::debug!(%layer, step, error, "a layer is missing");
                    return Ok(None);
                }
                Ok((Reply::StartFailed { part, errno, error, .. }, _)) => {
                    return Err(spawn_error(StartFailure { part, errno, error }, command));
                }
                Ok((Reply::Paused { .. }, _)) => {
                    if let Some(on_pause) = on_pause {
                        on_pause();
                        signal(&self.socket, Signal::CONT.as_raw());
                    }
                }
                Ok((Reply::Ended { status, is_empty, .. }, _)) => {
                    self.is_empty = is_empty;
                    return Ok(Some(ExitStatus::from_raw(status)));
                }
                Ok((
                    Reply::Started { .. } | Reply::Probed { .. } | Reply::Opened { .. } | Reply::OpenFailed { .. },
                    _,
                )) => {}
                Err(_) if is_ready => return Ok(Some(kill_status())),
                Err(_) => return Ok(None),
            }
        }
    }

    /// Sends the command, which starts as soon as all layers are set up.
    fn send_command(&self, command: &SandboxCommand) -> io::Result<()> {
        let mut env = command.env.clone();
        add_variables(&self.env, &mut env);
        let request = Request::Start { id: COMMAND, command: Box::new(command.spec(&env)) };
        wire::send(&self.socket, &request, &[command.stdin.as_fd(), command.stdout.as_fd(), command.stderr.as_fd()])
    }
}

impl Drop for SingleSandbox {
    fn drop(&mut self) {
        // PID 1 ends when the socket closes, and the kernel ends all processes with it.
        drop(self.socket.shutdown(Shutdown::Both));
        // The kernel undoes the mounts when PID 1 ends. That takes a millisecond, and with caches as long as the disk
        // needs. This process ends now, so it leaves its last child to the system.
        let is_left = || self.cache.as_ref().is_some_and(|cache| cache.leave_to(self.inner).is_ok());
        if self.is_empty && (!self.has_cache_mounts || is_left()) {
            return;
        }
        while let Err(rustix::io::Errno::INTR) = waitpid(Some(self.inner), WaitOptions::empty()) {}
    }
}

/// Sends a signal to the command's process group.
fn signal(socket: &UnixStream, signal: i32) {
    // A sandbox that has ended has no processes.
    drop(wire::send(socket, &Request::Signal { id: COMMAND, signal }, &[]));
}

/// Signals that this process collects for the command. Dropping it gives them their usual effect again.
struct SignalRelay {
    collected: SignalFd,
    /// The mask from before.
    mask: SigSet,
}

impl SignalRelay {
    fn block() -> io::Result<Self> {
        let mut signals = SigSet::empty();
        for signal in [NixSignal::SIGTERM, NixSignal::SIGHUP, NixSignal::SIGINT, NixSignal::SIGQUIT] {
            signals.add(signal);
        }
        let mask = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let collected = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { collected, mask })
    }

    /// Waits for a signal, which it passes on, or for an answer. Returns true if there is an answer.
    fn pass_on_until_answer(&self, socket: &UnixStream) -> io::Result<bool> {
        let mut events = [
            PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.collected.as_fd(), PollFlags::IN),
        ];
        match poll(&mut events, None) {
            Err(rustix::io::Errno::INTR) => return Ok(false),
            result => result?,
        };
        let [has_answer, _] = events.map(|event| !event.revents().is_empty());
        while let Some(collected) = self.collected.read_signal()? {
            signal(socket, collected.ssi_signo.cast_signed());
        }
        Ok(has_answer)
    }
}

impl Drop for SignalRelay {
    fn drop(&mut self) {
        // The mask was valid before.
        _ = self.mask.thread_set_mask();
    }
}
