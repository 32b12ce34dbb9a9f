//! System calls without a safe wrapper in `rustix`.
//!
//! Invariant: the only `unsafe` code of Skein is here, in [`super::init`], in `process::memory` and in `acp::stdio`.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use rustix::process::Pid;
use rustix::thread::UnshareFlags;

/// Duplicates this process into new namespaces, like `fork`. Returns `None` in the new process, which is PID 1 if the
/// flags contain a PID namespace.
///
/// Call it only while the process has one thread: another thread may hold a lock that the copy needs.
pub(super) fn clone_process(namespaces: UnshareFlags) -> io::Result<Option<Pid>> {
    let flags = libc::c_long::from(namespaces.bits()) | libc::c_long::from(libc::SIGCHLD);
    let none: libc::c_long = 0;
    // SAFETY: without CLONE_VM and with no stack this is `fork`. The process has one thread.
    #[expect(unsafe_code, reason = "no safe wrapper")]
    let result = unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) };
    let pid = i32::try_from(check(result)?).map_err(io::Error::other)?;
    Ok(Pid::from_raw(pid))
}

/// Moves this process into new namespaces, of these kinds.
pub(super) fn unshare(namespaces: UnshareFlags) -> io::Result<()> {
    // SAFETY: callers name kinds of namespaces, which change no descriptor table and no memory.
    #[expect(unsafe_code, reason = "no safe wrapper")]
    unsafe {
        rustix::thread::unshare_unsafe(namespaces)?;
    }
    Ok(())
}

/// Flags of a mount.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MountFlags(pub(super) u64);

impl MountFlags {
    pub(super) const READ_ONLY: u64 = 1;
    pub(super) const NO_SUID: u64 = 2;
    pub(super) const NO_DEV: u64 = 4;
}

/// Which mounts a change applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MountDepth {
    Single,
    Recursive,
}

#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Adds flags to a mount and, if recursive, to all mounts below it.
pub(super) fn set_mount_flags(mount: impl AsFd, flags: MountFlags, depth: MountDepth) -> io::Result<()> {
    mount_setattr(mount.as_fd(), &MountAttr { attr_set: flags.0, attr_clr: 0, propagation: 0, userns_fd: 0 }, depth)
}

/// Stops mounts from being shared with other namespaces.
pub(super) fn make_mounts_private(mount: impl AsFd) -> io::Result<()> {
    let attr = MountAttr { attr_set: 0, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    mount_setattr(mount.as_fd(), &attr, MountDepth::Recursive)
}

fn mount_setattr(mount: BorrowedFd<'_>, attr: &MountAttr, depth: MountDepth) -> io::Result<()> {
    const AT_RECURSIVE: libc::c_int = 0x8000;
    let recursive = if depth == MountDepth::Recursive { AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a terminated string, and `attr` has the size that is passed.
    #[expect(unsafe_code, reason = "no safe wrapper")]
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | recursive,
            std::ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    };
    check(result).map(drop)
}

/// Closes all descriptors from `first` on, except `keep`.
pub(super) fn close_from(first: u32, keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<u32> = keep.iter().map(|fd| fd.as_raw_fd().cast_unsigned()).filter(|fd| *fd >= first).collect();
    kept.sort_unstable();
    let mut from = first;
    for fd in kept {
        if fd > from {
            close_range(from, fd - 1)?;
        }
        from = fd + 1;
    }
    close_range(from, u32::MAX)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    let none: libc::c_uint = 0;
    // SAFETY: callers list the descriptors that this process still owns; all others have no owner.
    #[expect(unsafe_code, reason = "no safe wrapper")]
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, none) };
    check(result).map(drop)
}

/// Returns the version of Landlock that the kernel has. Fails if it has none.
pub(in crate::sandbox) fn landlock_version() -> io::Result<u8> {
    const VERSION: libc::c_uint = 1;
    let none: libc::size_t = 0;
    // SAFETY: with this flag the kernel reads no memory.
    #[expect(unsafe_code, reason = "no safe wrapper")]
    let result = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), none, VERSION) };
    Ok(u8::try_from(check(result)?).unwrap_or(u8::MAX))
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
