//! Caches of build tools: a sandbox reads the user's, and its changes go to a copy that belongs to the project.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest as _, Sha256};

use super::{BaseAccess, PlannedMount, SandboxContext, path_mount, read_only};
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

/// The folder with a project's changes to caches. Only one sandbox process uses it at a time.
#[derive(Debug)]
pub(in crate::sandbox) struct CacheFolder {
    path: PathBuf,
    /// The kernel releases the lock with the descriptor.
    _lock: File,
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
        if let Some(lock) = try_lock(&path)? {
            return Ok(Self { path, _lock: lock, is_temporary: false });
        }
        let temporary = caches.join("temporary");
        remove_unused(&temporary);
        let own = std::process::id();
        for number in 0..1000 {
            let path = temporary.join(format!("{own}-{number}"));
            if !path.exists()
                && let Some(lock) = try_lock(&path)?
            {
                return Ok(Self { path, _lock: lock, is_temporary: true });
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
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
    let file = File::create(folder.join("lock"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Removes temporary folders that a killed process left behind.
fn remove_unused(temporary: &Path) {
    for folder in super::list(temporary) {
        if let Ok(Some(_lock)) = try_lock(&folder) {
            drop(fs::remove_dir_all(&folder));
        }
    }
}
