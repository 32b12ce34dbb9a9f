//! Enters a sandbox that runs already, as `skein sandbox --enter` in a terminal of the editor.
//!
//! The outer process stays outside the PID namespace, where no process of the sandbox sees it. It waits for the inner
//! one, which applies all layers and becomes the command. Both keep the controlling terminal.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal as NixSignal, raise};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions, getpgrp, getpid, kill_process_group, pidfd_open,
    set_dumpable_behavior, set_parent_process_death_signal, setpgid, waitpid,
};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::identity::UserIds;
use super::{kernel, landlock, limit, seccomp};
use crate::sandbox::entry_end::{EntryEnd, EntryFailure};
use crate::sandbox::os_text::OsText;
use crate::sandbox::wire::{self, EntryPlan, EntryReply, EntryRequest, Namespace};

/// Skein answers at once; this ends a process whose Skein hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Names the step in which an error occurs.
trait StepContext<T> {
    fn at_step(self, step: &'static str) -> Result<T, EntryFailure>;
}

impl<T, E: Into<io::Error>> StepContext<T> for Result<T, E> {
    fn at_step(self, step: &'static str) -> Result<T, EntryFailure> {
        self.map_err(|error| EntryFailure { step, source: error.into() })
    }
}

/// Enters the sandbox that `socket` offers and runs a command in it. Call it while the process has one thread. Ends
/// this process by the command's signal, if one ended the command.
pub fn enter_sandbox(socket: &Path, program: &OsStr, args: &[OsString]) -> Result<EntryEnd, EntryFailure> {
    let control = crate::socket::connect(socket).at_step("reach Skein")?;
    control.set_read_timeout(Some(PATIENCE)).at_step("reach Skein")?;
    let (plan, namespaces) = receive_plan(&control).at_step("receive the plan of the sandbox")?;
    let entering = EntryAttempt { control: &control, plan: &plan, namespaces: &namespaces, ids: UserIds::current() };
    let entered = entering.start();
    if let Err(failure) = &entered {
        let reply = EntryReply::Failed { error: failure.to_string() };
        // Skein may have withdrawn the offer.
        drop(wire::send(&control, &reply, &[]));
    }
    match entered? {
        None => Ok(EntryEnd::NoProgram(execute(&plan, program, args))),
        Some(inner) => wait(&control, inner).map(EntryEnd::Status).at_step("wait for the command"),
    }
}

fn receive_plan(control: &UnixStream) -> io::Result<(EntryPlan, Vec<OwnedFd>)> {
    let (EntryRequest::Enter(plan), namespaces) = wire::receive(control)? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    if plan.version != env!("CARGO_PKG_VERSION") {
        return Err(io::Error::other(format!("Skein has the version {}", plan.version)));
    }
    Ok((*plan, namespaces))
}

/// A process on its way into a sandbox.
struct EntryAttempt<'a> {
    control: &'a UnixStream,
    plan: &'a EntryPlan,
    /// In the order of the plan.
    namespaces: &'a [OwnedFd],
    /// The ids outside.
    ids: UserIds,
}

impl EntryAttempt<'_> {
    /// Returns `None` in the inner process, when it may run the command. Returns the inner process in the outer one.
    fn start(&self) -> Result<Option<Pid>, EntryFailure> {
        let mut keep: Vec<BorrowedFd<'_>> = self.namespaces.iter().map(std::os::fd::AsFd::as_fd).collect();
        keep.push(self.control.as_fd());
        kernel::close_from(3, &keep).at_step("close descriptors")?;
        // The outer process collects these one by one. The inner one unblocks them.
        signal_set().thread_block().at_step("block signals")?;
        let is_foreground = io::stdin().is_terminal() && tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp());
        self.join(Namespace::User)?;
        self.join(Namespace::Pid)?;
        match kernel::clone_process(UnshareFlags::empty()).at_step("start the inner process")? {
            None => self.enter(is_foreground).map(|()| None),
            Some(inner) => Ok(Some(inner)),
        }
    }

    /// Applies all layers to the inner process, in the order in which the sandbox process did.
    fn enter(&self, is_foreground: bool) -> Result<(), EntryFailure> {
        for kind in [Namespace::Ipc, Namespace::Network, Namespace::Mount, Namespace::InnerUser] {
            self.join(kind)?;
        }
        rustix::process::chdir(self.plan.cwd.as_path()).at_step("use the working folder")?;
        if !self.namespaces.is_empty() || self.ids.is_root() {
            self.ids.drop_capabilities().at_step("drop capabilities")?;
        }
        limit(self.plan.limits).at_step("set resource limits")?;
        rustix::thread::set_no_new_privs(true).at_step("set no_new_privs")?;
        if let Some(rules) = &self.plan.landlock {
            landlock::apply(rules).map_err(io::Error::other).at_step("apply Landlock")?;
        }
        set_dumpable_behavior(DumpableBehavior::NotDumpable).at_step("close the memory of the process")?;
        let filter = seccomp::filter(self.plan.sockets).and_then(|filter| filter.apply());
        filter.map_err(io::Error::other).at_step("apply the seccomp filter")?;
        // The command ends with this call, and so does its group.
        setpgid(None, None).at_step("start a process group")?;
        if is_foreground {
            tcsetpgrp(io::stdin(), getpgrp()).at_step("use the terminal")?;
        }
        set_parent_process_death_signal(Some(Signal::KILL)).at_step("follow the outer process")?;
        let handle = pidfd_open(getpid(), PidfdFlags::empty()).ok();
        let descriptors: Vec<BorrowedFd<'_>> = handle.iter().map(std::os::fd::AsFd::as_fd).collect();
        wire::send(self.control, &EntryReply::Entered, &descriptors).at_step("report to Skein")?;
        let (EntryRequest::Run, _) = wire::receive(self.control).at_step("wait for Skein")? else {
            return Err(io::Error::from(io::ErrorKind::InvalidData)).at_step("wait for Skein");
        };
        SigSet::empty().thread_set_mask().at_step("unblock signals")
    }

    /// Joins a namespace, if the sandbox has one of this kind.
    fn join(&self, kind: Namespace) -> Result<(), EntryFailure> {
        let known = self.plan.namespaces.iter().zip(self.namespaces).find(|(known, _)| **known == kind);
        let Some((_, namespace)) = known else { return Ok(()) };
        let (kind, step) = match kind {
            Namespace::User => (LinkNameSpaceType::User, "join the user namespace"),
            Namespace::InnerUser => (LinkNameSpaceType::User, "join the inner user namespace"),
            Namespace::Mount => (LinkNameSpaceType::Mount, "join the mount namespace"),
            Namespace::Pid => (LinkNameSpaceType::ProcessID, "join the PID namespace"),
            Namespace::Ipc => (LinkNameSpaceType::InterProcessCommunication, "join the IPC namespace"),
            Namespace::Network => (LinkNameSpaceType::Network, "join the network namespace"),
        };
        move_into_link_name_space(namespace.as_fd(), Some(kind)).at_step(step)
    }
}

/// Becomes the command. Returns only if it cannot run.
#[expect(clippy::disallowed_methods, reason = "this process becomes the command of a sandbox")]
fn execute(plan: &EntryPlan, program: &OsStr, args: &[OsString]) -> io::Error {
    let variables = plan.env.iter().map(|(OsText(name), OsText(value))| (name, value));
    Command::new(program).args(args).env_clear().envs(variables).exec()
}

/// Returns the signals that the outer process handles. It also changes the terminal, which SIGTTOU would stop.
fn signal_set() -> SigSet {
    let mut signals = SigSet::empty();
    for signal in [
        NixSignal::SIGCHLD,
        NixSignal::SIGTERM,
        NixSignal::SIGHUP,
        NixSignal::SIGINT,
        NixSignal::SIGQUIT,
        NixSignal::SIGTTOU,
    ] {
        signals.add(signal);
    }
    signals
}

/// Waits for the inner process and forwards signals to it. Reports its end to Skein.
fn wait(control: &UnixStream, inner: Pid) -> io::Result<ExitStatus> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let status = loop {
        match signal_set().wait()? {
            NixSignal::SIGCHLD => {
                if let Some(status) = collect(inner)? {
                    break status;
                }
            }
            NixSignal::SIGTTOU => {}
            signal => {
                let group = nix::unistd::Pid::from_raw(inner.as_raw_nonzero().get());
                // ESRCH means that no process of the group is left.
                _ = nix::sys::signal::killpg(group, signal);
            }
        }
    };
    if io::stdin().is_terminal() {
        // Another process may own the terminal by now.
        _ = tcsetpgrp(io::stdin(), getpgrp());
    }
    // Without Skein there is no process to report to.
    drop(wire::send(control, &EntryReply::Ended, &[]));
    if let Some(signal) = status.signal().and_then(|signal| NixSignal::try_from(signal).ok()) {
        SigSet::empty().thread_set_mask()?;
        raise(signal)?;
    }
    Ok(status)
}

/// Returns the status of the inner process if it has ended. Kills the rest of its group before the id can be reused.
fn collect(inner: Pid) -> io::Result<Option<ExitStatus>> {
    let id = Id::Pid(nix::unistd::Pid::from_raw(inner.as_raw_nonzero().get()));
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    match waitid(id, flags)? {
        WaitStatus::Exited(..) | WaitStatus::Signaled(..) => {
            // ESRCH means that no process of the group is left.
            _ = kill_process_group(inner, Signal::KILL);
            let ended = waitpid(Some(inner), WaitOptions::empty())?;
            Ok(ended.map(|(_, status)| ExitStatus::from_raw(status.as_raw())))
        }
        WaitStatus::Stopped(..) => {
            waitpid(Some(inner), WaitOptions::NOHANG | WaitOptions::UNTRACED)?;
            // No shell would continue it.
            _ = kill_process_group(inner, Signal::CONT);
            Ok(None)
        }
        _ => Ok(None),
    }
}
