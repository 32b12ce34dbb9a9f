//! The sandbox process: sets up all layers in order, then stays as PID 1 and starts commands.
//!
//! It is the `skein` program, executed again and dispatched before anything else, so it has one thread. The outer
//! process keeps the user's rights, has no descriptors and waits for the inner one, which is PID 1 of the sandbox.
//!
//! A Skein process with one thread copies itself instead: then it is the outer process.

mod enter;
mod identity;
mod init;
mod kernel;
mod landlock;
mod mounts;
mod network;
mod probe;
mod seccomp;

use std::io::{self, Read as _, Write as _};
use std::net::TcpListener;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;

use nix::sys::signal::SigSet;
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, WaitOptions, getpid, getrlimit, set_child_subreaper,
    set_dumpable_behavior, setrlimit, setsid, waitpid,
};
use rustix::thread::UnshareFlags;

use super::layers::Layer;
use super::plan::{EarlyPlan, Isolation, ResourceLimits, SandboxLifetime, SandboxPlan, SocketRules, TerminalSession};
use super::wire::{self, Namespace, Reply, Request};
pub use enter::enter_sandbox;
use identity::UserIds;
pub(super) use kernel::landlock_version;
use mounts::PreparedMounts;
use seccomp::SystemCallFilter;

/// A part of the set-up that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step}: {source}")]
pub(super) struct SetupError {
    layer: Layer,
    step: String,
    source: io::Error,
}

/// Names the step in which an error occurs.
pub(super) trait LayerContext<T> {
    fn in_step(self, layer: Layer, step: impl FnOnce() -> String) -> Result<T, SetupError>;
}

impl<T, E: Into<io::Error>> LayerContext<T> for Result<T, E> {
    fn in_step(self, layer: Layer, step: impl FnOnce() -> String) -> Result<T, SetupError> {
        self.map_err(|error| SetupError { layer, step: step(), source: error.into() })
    }
}

/// Runs a sandbox process. Its stdin must be the socket to Skein.
pub fn run_sandbox_process() -> ExitCode {
    let Ok(control) = take_control() else { return ExitCode::FAILURE };
    let ended = match wire::receive(&control) {
        Ok((Request::SetUp(plan), _)) => start(control, &plan),
        Ok((Request::Probe { scratch }, _)) => probe::run(&control, scratch.as_path()),
        Ok((Request::Start { .. } | Request::Signal { .. } | Request::Open { .. }, _)) | Err(_) => {
            Err(io::ErrorKind::InvalidData.into())
        }
    };
    if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Takes the socket from stdin, and closes all other descriptors.
fn take_control() -> io::Result<UnixStream> {
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    leave_host(&control)?;
    Ok(control)
}

/// Closes all descriptors but the socket, and blocks signals.
fn leave_host(control: &UnixStream) -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    drop(null);
    kernel::close_from(3, &[control.as_fd()])?;
    // Signals of the terminal are for commands. They start with an empty mask.
    SigSet::all().thread_block()?;
    rustix::thread::set_name(c"skein-sandbox")?;
    Ok(())
}

/// Copies this process, which must have one thread, into new namespaces. The copy is a sandbox process that serves
/// `control`. While it waits for its plan, it prepares what it knows already.
pub(super) fn copy_into_sandbox(control: UnixStream, early: &EarlyPlan) -> io::Result<Pid> {
    let ids = UserIds::current();
    // The kernel lets only root map the ids of a process that is closed to others, and the copy is what this process
    // is. A process of the user could read no more of it now than of the program that started it.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    // The copy needs no rights for its filter, so it makes the filter while this process maps its ids.
    let mut made = None;
    let cloned = clone_mapped(ids, || made = Some(filter(early.sockets)));
    if let Ok(None) = cloned {
        let served = made.map(|filter| serve_copy(&control, early, ids, filter));
        exit(matches!(served, Some(Ok(()))));
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    match cloned {
        Ok(Some(inner)) => Ok(inner),
        Ok(None) => Err(io::ErrorKind::InvalidData.into()),
        Err(error) => Err(error.source),
    }
}

/// The work of the copy.
fn serve_copy(
    control: &UnixStream,
    early: &EarlyPlan,
    ids: UserIds,
    filter: Result<SystemCallFilter, SetupError>,
) -> io::Result<()> {
    leave_host(control)?;
    rustix::process::chdir("/")?;
    let prepared = prepare(early, ids).and_then(|mounts| Ok(PreparedNamespaces { mounts, filter: filter? }));
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return report(control, &error),
    };
    let (Request::SetUp(plan), _) = wire::receive(control)? else { return Err(io::ErrorKind::InvalidData.into()) };
    if plan.session == TerminalSession::Shared {
        // A new session, which the leader of a group cannot start, has its own group.
        rustix::process::setpgid(None, None)?;
    }
    serve(control, &plan, ids, Some(prepared))
}

/// Ends a copy of a process, which must not return into its caller.
#[expect(clippy::disallowed_methods, reason = "the copy of a process must not return into its caller")]
fn exit(is_success: bool) -> ! {
    std::process::exit(if is_success { 0 } else { 1 })
}

fn start(control: UnixStream, plan: &SandboxPlan) -> io::Result<()> {
    // Inside a user namespace, every id looks different.
    let ids = UserIds::current();
    match plan.isolation {
        Isolation::Namespaces { .. } => {
            let inner = match clone_mapped(ids, || {}) {
                Ok(inner) => inner,
                Err(error) => return report(&control, &error),
            };
            let Some(inner) = inner else { return serve(&control, plan, ids, None) };
            drop(control);
            watch(inner)
        }
        Isolation::None => {
            set_child_subreaper(Some(getpid()))?;
            let ended = serve(&control, plan, ids, None);
            crate::process::end_descendants();
            ended
        }
    }
}

/// Creates the inner process, in a user and a PID namespace. Returns `None` in it, when its ids are mapped. Meanwhile it
/// calls `before_map`, in which it has no rights.
fn clone_mapped(ids: UserIds, before_map: impl FnOnce()) -> Result<Option<Pid>, SetupError> {
    let step = || "create namespaces".to_owned();
    let (ready, mapped) = pipe_with(PipeFlags::CLOEXEC).in_step(Layer::Limits, || "create a pipe".to_owned())?;
    // The inner process creates the others, because that takes longer.
    let flags = UnshareFlags::NEWUSER | UnshareFlags::NEWPID;
    match kernel::clone_process(flags).in_step(Layer::UserNamespace, step)? {
        None => {
            drop(mapped);
            before_map();
            // Without a map, the outer process reports the error.
            if std::fs::File::from(ready).read_exact(&mut [0]).is_err() {
                exit(false);
            }
            Ok(None)
        }
        Some(inner) => {
            drop(ready);
            let done = ids.map(inner).and_then(|()| std::fs::File::from(mapped).write_all(&[1]));
            if done.is_err() {
                // The pipe has closed, so the inner process ends.
                waitpid(Some(inner), WaitOptions::empty()).in_step(Layer::UserNamespace, step)?;
            }
            done.in_step(Layer::UserNamespace, || "map user ids".to_owned()).map(|()| Some(inner))
        }
    }
}

/// Waits for the inner process. This process keeps nothing that the inner one could use.
fn watch(inner: Pid) -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    kernel::close_from(3, &[])?;
    loop {
        match waitpid(Some(inner), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.map(drop).map_err(io::Error::from),
        }
    }
}

/// Sets up all layers and starts commands until Skein closes the socket.
fn serve(
    control: &UnixStream,
    plan: &SandboxPlan,
    ids: UserIds,
    prepared: Option<PreparedNamespaces>,
) -> io::Result<()> {
    match set_up(plan, ids, prepared) {
        Ok(ready) => {
            ready.send(control)?;
            drop(ready);
            init::run(control, plan.lifetime)
        }
        Err(error) => report(control, &error),
    }
}

/// The namespaces of this process, and what its layers need.
struct PreparedNamespaces {
    mounts: PreparedMounts,
    filter: SystemCallFilter,
}

/// Creates the namespaces that the inner process does not have yet, and prepares their mounts.
fn prepare(plan: &EarlyPlan, ids: UserIds) -> Result<PreparedMounts, SetupError> {
    kernel::unshare(UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWNET)
        .in_step(Layer::MountNamespace, || "create namespaces".to_owned())?;
    network::start_loopback().in_step(Layer::NetworkNamespace, || "start the loopback device".to_owned())?;
    mounts::prepare(plan, ids)
}

fn filter(sockets: SocketRules) -> Result<SystemCallFilter, SetupError> {
    seccomp::filter(sockets).map_err(io::Error::other).in_step(Layer::Seccomp, || "make the seccomp filter".to_owned())
}

fn report(control: &UnixStream, error: &SetupError) -> io::Result<()> {
    let errno = error.source.raw_os_error();
    let failed = Reply::Failed { layer: error.layer, step: error.step.clone(), error: error.source.to_string(), errno };
    wire::send(control, &failed, &[])
}

/// What Skein receives from a sandbox that is ready.
struct ReadySandbox {
    namespaces: Vec<(Namespace, OwnedFd)>,
    proxy: Option<TcpListener>,
    relays: Vec<TcpListener>,
    /// Two, or none.
    git: Vec<UnixListener>,
}

impl ReadySandbox {
    fn proxy_port(&self) -> Option<u16> {
        self.proxy.as_ref().and_then(|listener| listener.local_addr().ok()).map(|address| address.port())
    }

    fn send(&self, control: &UnixStream) -> io::Result<()> {
        let reply = Reply::Ready {
            namespaces: self.namespaces.iter().map(|(kind, _)| *kind).collect(),
            proxy: self.proxy.as_ref().map(TcpListener::local_addr).transpose()?,
            relays: self.relays.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?,
            git: !self.git.is_empty(),
        };
        let namespaces = self.namespaces.iter().map(|(_, fd)| fd.as_fd());
        let listeners = self.proxy.iter().chain(&self.relays).map(std::os::fd::AsFd::as_fd);
        let of_git = self.git.iter().map(std::os::fd::AsFd::as_fd);
        let descriptors: Vec<BorrowedFd<'_>> = namespaces.chain(listeners).chain(of_git).collect();
        wire::send(control, &reply, &descriptors)
    }
}

/// Applies the layers in the only order that works: Landlock forbids mounting, and seccomp forbids both.
fn set_up(plan: &SandboxPlan, ids: UserIds, prepared: Option<PreparedNamespaces>) -> Result<ReadySandbox, SetupError> {
    if plan.session == TerminalSession::New {
        match setsid() {
            // The outer process already leads a group; without namespaces there is no other process.
            Ok(_) | Err(rustix::io::Errno::PERM) => {}
            Err(error) => return Err(error).in_step(Layer::Limits, || "start a session".to_owned()),
        }
    }
    let mut ready = ReadySandbox { namespaces: Vec::new(), proxy: None, relays: Vec::new(), git: Vec::new() };
    let filter = match (plan.isolation, prepared) {
        (Isolation::None, _) => filter(plan.sockets)?,
        (Isolation::Namespaces { proc }, prepared) => {
            let PreparedNamespaces { mounts, filter } = match prepared {
                Some(prepared) => prepared,
                None => {
                    let mounts = prepare(&plan.early(proc), ids)?;
                    PreparedNamespaces { mounts, filter: filter(plan.sockets)? }
                }
            };
            mounts.attach(plan)?;
            filter
        }
    };
    let offers_entry = plan.isolation != Isolation::None && plan.lifetime == SandboxLifetime::Session;
    if offers_entry {
        ready.namespaces = open_namespaces().in_step(Layer::MountNamespace, || "open the namespaces".to_owned())?;
    }
    if plan.proxy {
        let listener = network::listen_for_proxy();
        ready.proxy = Some(listener.in_step(Layer::NetworkNamespace, || "listen for the proxy".to_owned())?);
    }
    for address in &plan.relays {
        let listener = network::listen_for_relay(*address);
        ready.relays.push(listener.in_step(Layer::NetworkNamespace, || format!("listen on {address}"))?);
    }
    if plan.git {
        let listeners = network::listen_for_git();
        ready.git = listeners.in_step(Layer::MountNamespace, || "listen for git".to_owned())?.into();
    }
    if let Isolation::Namespaces { .. } = plan.isolation {
        ids.enter_user_namespace().in_step(Layer::UserNamespace, || "create a second user namespace".to_owned())?;
        if offers_entry && !ids.is_root() {
            let inner = open_namespace(Namespace::InnerUser);
            ready.namespaces.push(inner.in_step(Layer::UserNamespace, || "open the namespaces".to_owned())?);
        }
    }
    if plan.isolation != Isolation::None || ids.is_root() {
        ids.drop_capabilities().in_step(Layer::UserNamespace, || "drop capabilities".to_owned())?;
    }
    limit(plan.limits).in_step(Layer::Limits, || "set resource limits".to_owned())?;
    rustix::thread::set_no_new_privs(true).in_step(Layer::Seccomp, || "set no_new_privs".to_owned())?;
    if let Some(rules) = &plan.landlock {
        let mut rules = rules.clone();
        if plan.isolation == Isolation::None {
            // In the host's network, only the proxy may be reached. Landlock compares only port numbers.
            rules.connect_ports = Some(ready.proxy_port().into_iter().collect());
        }
        landlock::apply(&rules).map_err(io::Error::other).in_step(Layer::Landlock, || "apply Landlock".to_owned())?;
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .in_step(Layer::Limits, || "close the memory of the process".to_owned())?;
    filter.apply().map_err(io::Error::other).in_step(Layer::Seccomp, || "apply the seccomp filter".to_owned())?;
    Ok(ready)
}

fn open_namespaces() -> io::Result<Vec<(Namespace, OwnedFd)>> {
    let all = [Namespace::User, Namespace::Mount, Namespace::Pid, Namespace::Ipc, Namespace::Network];
    all.into_iter().map(open_namespace).collect()
}

/// Opens a namespace of this process.
fn open_namespace(kind: Namespace) -> io::Result<(Namespace, OwnedFd)> {
    let name = match kind {
        Namespace::User | Namespace::InnerUser => "user",
        Namespace::Mount => "mnt",
        Namespace::Pid => "pid",
        Namespace::Ipc => "ipc",
        Namespace::Network => "net",
    };
    let path = format!("/proc/self/ns/{name}");
    Ok((kind, rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?))
}

/// Sets limits that descendants inherit and cannot raise.
fn limit(limits: ResourceLimits) -> io::Result<()> {
    let all = [
        (Resource::Core, Some(0)),
        (Resource::Nproc, limits.processes.map(u64::from)),
        (Resource::Data, limits.data),
        (Resource::Fsize, limits.file_size),
    ];
    for (resource, max) in all {
        let Some(max) = max else { continue };
        let now = getrlimit(resource);
        let lower = |limit: Option<u64>| Some(limit.map_or(max, |limit| limit.min(max)));
        setrlimit(resource, Rlimit { current: lower(now.current), maximum: lower(now.maximum) })?;
    }
    Ok(())
}
