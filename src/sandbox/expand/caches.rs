//! Caches of build tools: a sandbox reads the user's, and its changes go to a copy that belongs to the project.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Pid;
use sha2::{Digest as _, Sha256};

use super::{BaseAccess, PlannedMount, SandboxContext, path_mount, read_only};
use crate::process::read_proc;
use crate::sandbox::layers::Layers;
use crate::sandbox::plan::MountSource;
use crate::sandbox::profile::CacheAccess;

/// Folders below the home in which build tools keep what they download and build.
const CACHES: [&str; 28] = [
    ".cache",
    ".cargo",
    ".npm",
    "go",
    ".m2",
    ".gradle",
    ".ivy2",
    ".sbt",
    ".nuget",
    ".yarn",
    ".pnpm-store",
    ".bun",
    ".deno",
    ".gem",
    ".bundle",
    ".composer",
    ".pub-cache",
    ".hex",
    ".mix",
    ".stack",
    ".cabal",
    ".ccache",
    ".conan2",
    ".julia",
    ".local/share/pnpm",
    ".local/share/uv",
    ".node-gyp",
    ".electron-gyp",
];
/// Folders with programs that the user runs.
const PROGRAMS: [&str; 7] =
    [".cargo/bin", ".local/bin", "go/bin", ".deno/bin", ".bun/bin", ".cabal/bin", ".local/share/pnpm/bin"];
/// Variables that move a cache, for machines without overlay and for caches that do not exist.
const VARIABLES: [(&str, &str, &str); 7] = [
    ("XDG_CACHE_HOME", ".cache", "cache"),
    ("CARGO_HOME", ".cargo", "cargo"),
    ("npm_config_cache", ".npm", "npm"),
    ("GOPATH", "go", "go"),
    ("GOCACHE", ".cache", "go-build"),
    ("UV_CACHE_DIR", ".cache", "uv"),
    ("PIP_CACHE_DIR", ".cache", "pip"),
];

/// The mounts that give a sandbox its caches.
#[derive(Debug, Default)]
pub(super) struct CacheMounts {
    pub(super) mounts: Vec<PlannedMount>,
    /// A writable folder with those that variables name.
    pub(super) plain: Option<PathBuf>,
    pub(super) folder: Option<CacheFolder>,
}

impl CacheMounts {
    pub(super) fn find(
        access: CacheAccess,
        context: &SandboxContext,
        layers: &Layers,
        env: &mut BTreeMap<OsString, Option<OsString>>,
    ) -> Self {
        let home = context.home.canonicalize().unwrap_or_else(|_| context.home.clone());
        let resolve = |name: &&str| {
            let path = home.join(name);
            // Most do not exist, and resolving a path takes a system call for each folder above.
            path.symlink_metadata().ok()?;
            path.canonicalize().ok()
        };
        let existing: Vec<PathBuf> = CACHES.iter().filter_map(resolve).filter(|path| path.is_dir()).collect();
        let programs = PROGRAMS.iter().filter_map(resolve);
        let programs: Vec<PlannedMount> = programs.map(|path| read_only(&path)).collect();
        match access {
            CacheAccess::Off => Self::default(),
            CacheAccess::Shared => {
                let writable = existing.iter().map(|path| path_mount(path, BaseAccess::Writable));
                Self { mounts: writable.chain(programs).collect(), plain: None, folder: None }
            }
            CacheAccess::Private => {
                let root = context.roots.first().map(PathBuf::as_path).unwrap_or(Path::new("/"));
                // Without a private folder, the sandbox reads the caches and cannot write them.
                let Ok(folder) = CacheFolder::lock(&context.caches, root) else { return Self::default() };
                folder.mounts(&home, &existing, programs, layers, env)
            }
        }
    }
}

/// How long a sandbox waits for the mounts of the one before it. The kernel undoes them when it has written the changes to
/// the disk.
const MOUNT_TIMEOUT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// The folder with a project's changes to caches. Only one sandbox process uses it at a time.
#[derive(Debug)]
pub(in crate::sandbox) struct CacheFolder {
    path: PathBuf,
    /// The kernel releases the lock with the descriptor. The file names the process that may still have mounts here.
    lock: File,
    is_temporary: bool,
}

impl CacheFolder {
    /// Locks the folder of the project. If another process has it, uses a temporary one.
    fn lock(caches: &Path, root: &Path) -> io::Result<Self> {
        let name: String = Sha256::digest(root.as_os_str().as_encoded_bytes())
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let path = caches.join(name);
        if let Some(lock) = try_lock(&path)?
            && wait_for_mounts(&lock)?
        {
            return Ok(Self { path, lock, is_temporary: false });
        }
        let temporary = caches.join("temporary");
        remove_unused(&temporary);
        let own = std::process::id();
        for number in 0..1000 {
            let path = temporary.join(format!("{own}-{number}"));
            if !path.exists()
                && let Some(lock) = try_lock(&path)?
            {
                return Ok(Self { path, lock, is_temporary: true });
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Leaves the folder to a process that ends and still has mounts here: the next sandbox waits for its end. Fails if
    /// the folder is temporary, or if the process cannot be named.
    pub(in crate::sandbox) fn leave_to(&self, process: Pid) -> io::Result<()> {
        if self.is_temporary {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // The next sandbox needs such a descriptor.
        drop(process_handle(process)?);
        let start = start_time(process).ok_or(io::ErrorKind::NotFound)?;
        self.lock.write_all_at(format!("{} {start}\n", process.as_raw_nonzero()).as_bytes(), 0)
    }

    fn mounts(
        self,
        home: &Path,
        existing: &[PathBuf],
        programs: Vec<PlannedMount>,
        layers: &Layers,
        env: &mut BTreeMap<OsString, Option<OsString>>,
    ) -> CacheMounts {
        let has_overlay = layers.overlay.is_available() && layers.namespaces.is_available();
        let mut mounts = Vec::new();
        let mut covered: Vec<&Path> = Vec::new();
        for lower in existing.iter().filter(|_| has_overlay) {
            let Ok(name) = lower.strip_prefix(home) else { continue };
            // The kernel refuses an upper folder inside the lower one.
            if self.path.starts_with(lower) || covered.iter().any(|above| lower.starts_with(above)) {
                continue;
            }
            let folder = self.path.join(name.to_string_lossy().replace('/', "-"));
            let [upper, work] = ["upper", "work"].map(|part| folder.join(part));
            if create(&upper).and_then(|()| create(&work)).is_err() {
                continue;
            }
            covered.push(lower);
            let source = MountSource::Overlay { lower: lower.into(), upper: upper.into(), work: work.into() };
            mounts.push(PlannedMount { target: lower.into(), source });
        }
        mounts.extend(
            programs.into_iter().filter(|mount| covered.iter().any(|cache| mount.target.as_path().starts_with(cache))),
        );
        let plain = self.path.join("plain");
        let mut has_plain = false;
        for (variable, cache, name) in VARIABLES {
            if covered.iter().any(|path| **path == home.join(cache)) {
                continue;
            }
            let folder = plain.join(name);
            if create(&folder).is_ok() {
                env.insert(variable.into(), Some(folder.into_os_string()));
                has_plain = true;
            }
        }
        let plain = Some(plain).filter(|_| has_plain);
        CacheMounts { mounts, plain, folder: Some(self) }
    }
}

impl Drop for CacheFolder {
    fn drop(&mut self) {
        if self.is_temporary {
            drop(fs::remove_dir_all(&self.path));
        }
    }
}

fn create(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Returns `None` if another process has the lock.
fn try_lock(folder: &Path) -> io::Result<Option<File>> {
    create(folder)?;
    let file = File::options().read(true).write(true).create(true).truncate(false).open(folder.join("lock"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Waits for the process that [`CacheFolder::leave_to`] named. Returns false if it takes too long.
fn wait_for_mounts(lock: &File) -> io::Result<bool> {
    let mut text = [0; 64];
    let length = lock.read_at(&mut text, 0)?;
    if length == 0 {
        return Ok(true);
    }
    if let Some((process, start)) = parse_process(&text[..length])
        && let Ok(handle) = process_handle(process)
        // Another process may have the id by now.
        && start_time(process) == Some(start)
    {
        let mut events = [PollFd::new(&handle, PollFlags::IN)];
        let ended = loop {
            match poll(&mut events, Some(&MOUNT_TIMEOUT)) {
                Err(rustix::io::Errno::INTR) => {}
                result => break result?,
            }
        };
        if ended == 0 {
            return Ok(false);
        }
    }
    lock.set_len(0)?;
    Ok(true)
}

/// Returns a descriptor that reports the end of a process. Only Linux has them, as it alone has mounts of a sandbox.
#[cfg(target_os = "linux")]
fn process_handle(process: Pid) -> rustix::io::Result<OwnedFd> {
    rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty())
}

#[cfg(not(target_os = "linux"))]
fn process_handle(_process: Pid) -> rustix::io::Result<OwnedFd> {
    Err(rustix::io::Errno::NOSYS)
}

/// Reads the id and the start time of a process.
fn parse_process(text: &[u8]) -> Option<(Pid, u64)> {
    let (id, start) = std::str::from_utf8(text).ok()?.trim_end().split_once(' ')?;
    Some((Pid::from_raw(id.parse().ok()?)?, start.parse().ok()?))
}

/// Returns when a process started, in ticks of the kernel since the machine started. `None` if it does not exist.
fn start_time(process: Pid) -> Option<u64> {
    let text = read_proc(&format!("{}/stat", process.as_raw_nonzero())).ok()?;
    // The name in brackets may contain anything. The fields after it begin with the third.
    std::str::from_utf8(&text).ok()?.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Removes temporary folders that a killed process left behind.
fn remove_unused(temporary: &Path) {
    for folder in super::list(temporary) {
        if let Ok(Some(_lock)) = try_lock(&folder) {
            drop(fs::remove_dir_all(&folder));
        }
    }
}

#[cfg(test)]
#[path = "caches_tests.rs"]
mod tests;
