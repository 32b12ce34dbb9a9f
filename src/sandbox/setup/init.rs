//! PID 1 of a sandbox: starts commands, collects exits and forwards signals until Skein closes the socket.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use nix::sys::signal::{SigSet, Signal as NixSignal, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process_group, pidfd_open, test_kill_process_group, waitpid,
};

use super::{kernel, network};
use crate::process::find_program;
use crate::sandbox::plan::SandboxLifetime;
use crate::sandbox::wire::{self, AddressVersion, CommandSpec, InsideTarget, Reply, Request, StartPart, TerminalUse};

/// Serves requests. Returns when Skein closes the socket, or when the only command has ended.
pub(super) fn run(control: &UnixStream, lifetime: SandboxLifetime) -> io::Result<()> {
    let mut ended = SigSet::empty();
    ended.add(NixSignal::SIGCHLD);
    let signals = SignalFd::with_flags(&ended, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    kernel::close_from(3, &[control.as_fd(), signals.as_fd()])?;
    let mut commands = Commands { ids: HashMap::new(), lifetime, has_ended: false };
    loop {
        let mut events = [
            PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
        ];
        match poll(&mut events, None) {
            Err(rustix::io::Errno::INTR) => continue,
            result => result?,
        };
        let [has_request, has_signal] = events.map(|event| !event.revents().is_empty());
        if has_signal {
            while signals.read_signal()?.is_some() {}
            commands.collect(control)?;
        }
        if has_request {
            match wire::receive(control) {
                Ok((request, descriptors)) => commands.handle(control, request, descriptors)?,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if commands.has_ended {
            return Ok(());
        }
    }
}

/// The commands that run.
struct Commands {
    /// By process id.
    ids: HashMap<i32, u64>,
    lifetime: SandboxLifetime,
    /// True if the only command has ended.
    has_ended: bool,
}

impl Commands {
    fn handle(&mut self, control: &UnixStream, request: Request, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        match request {
            Request::Start { id, command } => self.start(control, id, &command, descriptors),
            Request::Signal { id, signal } => {
                self.signal(id, signal);
                Ok(())
            }
            Request::Open { id, target } => match open_inside(target) {
                Ok(opened) => wire::send(control, &Reply::Opened { id }, &[opened.as_fd()]),
                Err(error) => wire::send(control, &Reply::OpenFailed { id, errno: error.raw_os_error() }, &[]),
            },
            Request::SetUp(_) | Request::Probe { .. } => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn start(
        &mut self,
        control: &UnixStream,
        id: u64,
        spec: &CommandSpec,
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<()> {
        match spawn(spec, descriptors) {
            Ok(pid) => {
                self.ids.insert(pid.as_raw_nonzero().get(), id);
                match self.lifetime {
                    SandboxLifetime::Session => {
                        let handle = pidfd_open(pid, PidfdFlags::empty()).ok();
                        let descriptors: Vec<_> = handle.iter().map(std::os::fd::AsFd::as_fd).collect();
                        wire::send(control, &Reply::Started { id }, &descriptors)?;
                    }
                    // The caller waits for the end.
                    SandboxLifetime::Command => {}
                }
                // Signals about exits are lost while a command starts.
                self.collect(control)
            }
            Err((part, error)) => {
                let errno = error.raw_os_error();
                wire::send(control, &Reply::StartFailed { id, part, errno, error: error.to_string() }, &[])
            }
        }
    }

    fn signal(&self, id: u64, signal: i32) {
        let group = self.ids.iter().find(|(_, known)| **known == id).map(|(pid, _)| *pid);
        if let (Some(group), Ok(signal)) = (group, NixSignal::try_from(signal)) {
            // ESRCH means that no process of the group is left.
            _ = killpg(nix::unistd::Pid::from_raw(group), signal);
        }
    }

    /// Collects all exits. Kills the rest of a command's group before its id can be reused.
    fn collect(&mut self, control: &UnixStream) -> io::Result<()> {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        loop {
            let pid = match waitid(Id::All, flags) {
                Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..)) => pid.as_raw(),
                Ok(WaitStatus::Stopped(pid, _)) => {
                    self.note_stop(control, pid.as_raw())?;
                    continue;
                }
                Ok(WaitStatus::StillAlive) | Err(nix::Error::ECHILD) => return Ok(()),
                Ok(_) => continue,
                Err(error) => return Err(error.into()),
            };
            let id = self.ids.remove(&pid);
            let Some(process) = Pid::from_raw(pid) else { continue };
            if id.is_some() {
                // ESRCH means that no process of the group is left.
                _ = kill_process_group(process, Signal::KILL);
            }
            let Some((_, status)) = waitpid(Some(process), WaitOptions::NOHANG)? else { continue };
            if let Some(id) = id {
                self.has_ended = self.lifetime == SandboxLifetime::Command;
                let is_empty = self.has_ended && is_last_process();
                wire::send(control, &Reply::Ended { id, status: status.as_raw(), is_empty }, &[])?;
            }
        }
    }

    fn note_stop(&self, control: &UnixStream, pid: i32) -> io::Result<()> {
        let Some(process) = Pid::from_raw(pid) else { return Ok(()) };
        let stopped = waitpid(Some(process), WaitOptions::NOHANG | WaitOptions::UNTRACED)?;
        match (stopped, self.ids.get(&pid)) {
            (Some((_, status)), Some(id)) if status.stopped() => wire::send(control, &Reply::Paused { id: *id }, &[]),
            _ => Ok(()),
        }
    }
}

/// Returns whether the PID namespace has no process but this one, which is PID 1. Then none can appear any more.
fn is_last_process() -> bool {
    // Sends no signal: PID 1 names all processes of its namespace.
    test_kill_process_group(Pid::INIT) == Err(rustix::io::Errno::SRCH)
}

fn open_inside(target: InsideTarget) -> io::Result<OwnedFd> {
    match target {
        InsideTarget::Connection(address) => network::begin_connection(address),
        InsideTarget::PortTable(version) => {
            let name = match version {
                AddressVersion::V4 => "tcp",
                AddressVersion::V6 => "tcp6",
            };
            Ok(std::fs::File::open(format!("/proc/self/net/{name}"))?.into())
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the sandbox process starts the commands of the sandbox")]
fn spawn(spec: &CommandSpec, descriptors: Vec<OwnedFd>) -> Result<Pid, (StartPart, io::Error)> {
    let cwd = spec.cwd.as_path();
    if let Err(error) = std::fs::read_dir(cwd).map(drop).or_else(|error| match error.kind() {
        // A folder that can be entered but not listed is fine.
        io::ErrorKind::PermissionDenied => Ok(()),
        _ => Err(error),
    }) {
        return Err((StartPart::WorkingFolder, error));
    }
    let Ok([stdin, stdout, stderr]) = <[OwnedFd; 3]>::try_from(descriptors) else {
        return Err((StartPart::Program, io::ErrorKind::InvalidInput.into()));
    };
    if let Some(pid) = spawn_without_copy(spec, [&stdin, &stdout, &stderr]) {
        return Ok(pid);
    }
    let mut command = Command::new(&spec.program.0);
    command.args(spec.args.iter().map(|arg| &arg.0)).env_clear().current_dir(cwd);
    command.envs(spec.env.iter().map(|(name, value)| (&name.0, &value.0)));
    command.stdin(Stdio::from(stdin)).stdout(Stdio::from(stdout)).stderr(Stdio::from(stderr));
    prepare_terminal(&mut command, spec.terminal);
    let child = command.spawn().map_err(|error| (StartPart::Program, error))?;
    Pid::from_raw(child.id().cast_signed())
        .ok_or_else(|| (StartPart::Program, io::Error::other("the kernel gave no process id")))
}

/// Starts a command without copying this process first, which takes several times as long. Returns `None` if the command
/// must be started in the other way, or cannot be started.
#[expect(clippy::disallowed_methods, reason = "the sandbox process starts the commands of the sandbox")]
fn spawn_without_copy(spec: &CommandSpec, stdio: [&OwnedFd; 3]) -> Option<Pid> {
    // Only PID 1 of a namespace may unblock its signals: they do nothing to it.
    if spec.terminal != TerminalUse::None || getpid() != Pid::INIT {
        return None;
    }
    let path = spec.env.iter().find(|(name, _)| name.0 == "PATH").map(|(_, value)| value.0.as_os_str());
    let mut command = Command::new(find_program(&spec.program.0, path, spec.cwd.as_path())?);
    command.arg0(&spec.program.0).args(spec.args.iter().map(|arg| &arg.0)).env_clear();
    command.envs(spec.env.iter().map(|(name, value)| (&name.0, &value.0)));
    command.current_dir(spec.cwd.as_path()).process_group(0);
    let [stdin, stdout, stderr] = stdio.map(OwnedFd::try_clone);
    command.stdin(Stdio::from(stdin.ok()?)).stdout(Stdio::from(stdout.ok()?)).stderr(Stdio::from(stderr.ok()?));
    unblock_signals().ok()?;
    let child = command.spawn();
    SigSet::all().thread_block().ok()?;
    Pid::from_raw(child.ok()?.id().cast_signed())
}

fn prepare_terminal(command: &mut Command, terminal: TerminalUse) {
    let prepare: fn() -> io::Result<()> = match terminal {
        TerminalUse::None => {
            command.process_group(0);
            unblock_signals
        }
        TerminalUse::Foreground => {
            command.process_group(0);
            take_foreground
        }
        TerminalUse::Controlling => take_terminal,
    };
    // SAFETY: these functions only make system calls.
    #[expect(unsafe_code, reason = "no safe wrapper")]
    unsafe {
        command.pre_exec(prepare);
    }
}

/// PID 1 blocks all signals, and programs inherit that.
fn unblock_signals() -> io::Result<()> {
    SigSet::empty().thread_set_mask()?;
    Ok(())
}

/// Makes this process's group the foreground group of the terminal.
fn take_foreground() -> io::Result<()> {
    // A background process that does this is stopped by SIGTTOU, unless it blocks the signal, as PID 1 does.
    rustix::termios::tcsetpgrp(io::stdin(), rustix::process::getpgrp())?;
    unblock_signals()
}

/// Starts a session whose terminal is stdin.
fn take_terminal() -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::ioctl_tiocsctty(io::stdin())?;
    unblock_signals()
}
