//! Expands a sandbox profile for a session: from fields of a manifest to the mounts, rules and limits of one process.

mod caches;
mod credentials;
mod git_config;
mod grants;
mod mount_stamps;
mod protected_paths;
mod sockets;
mod system;
mod write_paths;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::layers::Layers;
use super::os_text::OsText;
use super::path_refusals::PathRules;
use super::paths::HiddenPaths;
use super::plan::{
    BaseAccess, EarlyPlan, FileBase, InternetSockets, Isolation, KeptName, LandlockRules, MountSource, PlannedMount,
    ProcMount, ResourceLimits, SandboxLifetime, SandboxPlan, SocketRules, TerminalSession,
};
use super::profile::{FileAccess, GitAccess, OtherHosts, SandboxDevice, SandboxProfile};
pub(super) use caches::CacheFolder;
use caches::CacheMounts;
pub(super) use mount_stamps::MountStamps;
pub use protected_paths::protected_paths;
use write_paths::WritableFolders;

/// Where a sandbox is used: the folders of the session and of the user.
#[derive(Debug, Clone)]
pub struct SandboxContext {
    /// The `skein` program, which runs as the sandbox process.
    pub program: PathBuf,
    /// The session's roots. Relative paths start at the first.
    pub roots: Vec<PathBuf>,
    pub home: PathBuf,
    pub hidden: HiddenPaths,
    /// A writable folder of the session, for temporary files.
    pub scratch: Option<PathBuf>,
    /// Skein keeps private copies of caches here. Must not be inside a cache.
    pub caches: PathBuf,
    /// `$XDG_RUNTIME_DIR`.
    pub runtime_folder: Option<PathBuf>,
    /// Readable although `files: none` excludes them, such as the folder of a program.
    pub readable: Vec<PathBuf>,
    /// Sockets of Skein that stay reachable.
    pub sockets: Vec<PathBuf>,
    /// Files of Skein that stay readable, also in hidden folders.
    pub own_files: Vec<PathBuf>,
    /// The only folders that are shown, besides those of the system, the scratch folder and private ones. `None`: what
    /// the profile shows.
    pub visible: Option<Vec<PathBuf>>,
    pub terminal: TerminalSession,
}

/// A profile with all paths resolved, ready to start.
#[derive(Debug)]
pub(super) struct ExpandedProfile {
    pub(super) plan: SandboxPlan,
    /// Variables that commands get in addition. `None`: the variable is removed.
    pub(super) env: BTreeMap<OsString, Option<OsString>>,
    pub(super) notices: Vec<String>,
    /// Explains errors of commands.
    pub(super) path_rules: PathRules,
    /// Shows whether the mounts still cover what they did.
    pub(super) stamps: MountStamps,
    /// Kept while the process runs.
    pub(super) cache: Option<CacheFolder>,
}

/// Reasons why a profile cannot be expanded.
#[derive(Debug, thiserror::Error)]
pub enum ExpandError {
    #[error("`{pattern}` matches more than {max} paths")]
    TooManyMatches { pattern: String, max: usize },
    #[error("`{pattern}` is not a valid glob: {source}")]
    Glob { pattern: String, source: globset::Error },
    #[error("the session has no root that exists")]
    NoRoot,
    #[error("cannot create `{path}`: {source}")]
    Create { path: String, source: io::Error },
    #[error("`{entry}` in `network` is not an address to relay")]
    Relay { entry: String },
}

/// Returns the folders and files that a profile lets a process write, other than private ones. Resolved; none is below
/// another.
pub fn writable_folders(profile: &SandboxProfile, context: &SandboxContext) -> Result<Vec<PathBuf>, ExpandError> {
    let roots: Vec<PathBuf> = context.roots.iter().filter_map(|root| root.canonicalize().ok()).collect();
    Ok(WritableFolders::find(profile, context, &roots, &mut Vec::new())?.folders)
}

/// Computes everything that the sandbox process sets up.
pub(super) fn expand(
    profile: &SandboxProfile,
    context: &SandboxContext,
    layers: &Layers,
) -> Result<ExpandedProfile, ExpandError> {
    let mut notices = Vec::new();
    let roots: Vec<PathBuf> = context.roots.iter().filter_map(|root| root.canonicalize().ok()).collect();
    let writable = WritableFolders::find(profile, context, &roots, &mut notices)?;
    for entry in profile.read.iter().filter(|entry| write_paths::leads_out(&entry.path, context)) {
        notices.push(format!("`{}` in `read` leads out of the project and opens nothing", entry.path));
    }
    let has_namespaces = layers.namespaces.is_available();
    let mut env = BTreeMap::new();
    let caches = CacheMounts::find(profile.caches, context, layers, &mut env);
    let relays = relay_addresses(profile)?;
    let has_proxy = uses_proxy(profile);
    let mut plan = SandboxPlan {
        isolation: if has_namespaces { Isolation::Namespaces { proc: proc_mount(layers) } } else { Isolation::None },
        base: if begins_empty(profile, context) { FileBase::Empty } else { file_base(profile) },
        mounts: Vec::new(),
        devices: devices(&profile.devices),
        landlock: None,
        sockets: socket_rules(has_namespaces, has_proxy),
        proxy: has_proxy,
        relays: if has_namespaces { relays } else { Vec::new() },
        // Without namespaces, seccomp refuses Unix sockets.
        git: has_namespaces && profile.git == GitAccess::Ask,
        limits: ResourceLimits {
            // The kernel counts per user namespace; without one, it would count all processes of the user.
            processes: profile.limits.processes.filter(|_| has_namespaces),
            data: profile.limits.memory,
            file_size: profile.limits.file_size,
        },
        session: context.terminal,
        lifetime: SandboxLifetime::Session,
    };
    let hidden = hidden_paths(profile, context, layers);
    if has_namespaces {
        // `/tmp` is private, so a folder that the variable names may not exist.
        env.insert("TMPDIR".into(), None);
        env.insert("XDG_RUNTIME_DIR".into(), None);
        plan.mounts = mounts(profile, context, &hidden, &writable, &caches);
    } else {
        env.insert("TMPDIR".into(), context.scratch.clone().map(PathBuf::into_os_string));
    }
    plan.landlock = landlock(profile, context, layers, &hidden, &writable, &caches, &plan.mounts);
    let path_rules = path_rules(profile, context, layers, hidden, &plan.mounts, writable);
    let stamps = MountStamps::take(&plan.mounts);
    Ok(ExpandedProfile { plan, env, notices, path_rules, stamps, cache: caches.folder })
}

/// Returns what the sandbox shows and lets a command write.
fn path_rules(
    profile: &SandboxProfile,
    context: &SandboxContext,
    layers: &Layers,
    mut hidden: Vec<PathBuf>,
    mounts: &[PlannedMount],
    writable: WritableFolders,
) -> PathRules {
    let WritableFolders { mut folders, state } = writable;
    folders.extend(context.scratch.as_ref().and_then(|path| path.canonicalize().ok()));
    let open = profile.read.iter().filter(|entry| entry.ask.is_empty());
    let opened: Vec<_> = open.filter_map(|entry| write_paths::resolve(&entry.path, context)).collect();
    hidden.retain(|path| !opened.contains(path) && !state.contains(path));
    let is_inside = |path: &Path| folders.iter().any(|folder| path.starts_with(folder) && path != folder);
    let targets = mounts.iter().map(|mount| mount.target.as_path().to_owned());
    let mounted = targets.filter(|path| is_inside(path)).collect();
    let shown = || mounts.iter().map(|mount| mount.target.as_path().to_owned()).collect();
    PathRules {
        home: context.home.canonicalize().unwrap_or_else(|_| context.home.clone()),
        writable: (profile.files != FileAccess::Full).then_some(folders),
        hidden,
        shown: (begins_empty(profile, context) && !mounts.is_empty()).then(shown),
        mounted,
        has_mounts: layers.namespaces.is_available(),
    }
}

/// Returns what a sandbox process with namespaces prepares before the profile is expanded.
pub(super) fn early_plan(profile: &SandboxProfile, layers: &Layers) -> EarlyPlan {
    EarlyPlan {
        proc: proc_mount(layers),
        base: file_base(profile),
        devices: devices(&profile.devices),
        sockets: socket_rules(true, uses_proxy(profile)),
    }
}

/// Returns whether the sandbox begins with an empty root, in which only chosen folders appear.
fn begins_empty(profile: &SandboxProfile, context: &SandboxContext) -> bool {
    profile.files == FileAccess::None || context.visible.is_some()
}

fn file_base(profile: &SandboxProfile) -> FileBase {
    match profile.files {
        FileAccess::None => FileBase::Empty,
        FileAccess::ReadOnly | FileAccess::Workspace => FileBase::Host(BaseAccess::ReadOnly),
        FileAccess::Full => FileBase::Host(BaseAccess::Writable),
    }
}

fn proc_mount(layers: &Layers) -> ProcMount {
    if layers.new_proc.is_available() { ProcMount::New } else { ProcMount::Host }
}

/// Returns whether any host may be reachable.
pub(super) fn uses_proxy(profile: &SandboxProfile) -> bool {
    profile.network.otherwise != OtherHosts::Off || !profile.network.allow.is_empty()
}

/// Returns the listed addresses. A process connects to them without a proxy.
fn relay_addresses(profile: &SandboxProfile) -> Result<Vec<SocketAddr>, ExpandError> {
    let addresses: BTreeSet<SocketAddr> =
        profile.network.allow.iter().filter_map(|entry| entry.parse::<SocketAddr>().ok()).collect();
    match addresses.iter().find(|address| address.port() == 0 || address.ip().is_unspecified()) {
        Some(address) => Err(ExpandError::Relay { entry: address.to_string() }),
        None => Ok(addresses.into_iter().collect()),
    }
}

fn socket_rules(has_namespaces: bool, has_proxy: bool) -> SocketRules {
    if has_namespaces {
        return SocketRules { unix: true, internet: InternetSockets::All, netlink_route: true };
    }
    let internet = if has_proxy { InternetSockets::TcpOnly } else { InternetSockets::None };
    SocketRules { unix: false, internet, netlink_route: false }
}

fn devices(wanted: &[SandboxDevice]) -> Vec<OsText> {
    let mut paths = Vec::new();
    for device in wanted {
        match device {
            SandboxDevice::Gpu => {
                let nvidia = list(Path::new("/dev")).into_iter().filter(|path| starts_with_name(path, "nvidia"));
                paths.extend(nvidia.filter(|path| !path.is_dir()));
                paths.extend(list(Path::new("/dev/dri")).into_iter().filter(|path| !path.is_dir()));
                paths.push("/dev/kfd".into());
            }
            SandboxDevice::Kvm => paths.push("/dev/kvm".into()),
            SandboxDevice::Fuse => paths.push("/dev/fuse".into()),
        }
    }
    paths.into_iter().map(OsText::from).collect()
}

fn starts_with_name(path: &Path, beginning: &str) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(beginning))
}

/// Returns the paths in a folder; none if it cannot be read.
fn list(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Returns the mounts in order: each may cover a part of those before it.
fn mounts(
    profile: &SandboxProfile,
    context: &SandboxContext,
    hidden: &[PathBuf],
    writable: &WritableFolders,
    caches: &CacheMounts,
) -> Vec<PlannedMount> {
    let mut mounts = Vec::new();
    let private = private_folders(context);
    let mut readable = Vec::new();
    let is_empty = begins_empty(profile, context);
    if is_empty {
        mounts.extend(system::folders(context));
        readable = readable_paths(profile, context);
    } else if profile.files == FileAccess::ReadOnly {
        // A workspace below a private folder, such as `/tmp`, stays visible.
        let roots = context.roots.iter().filter_map(|root| root.canonicalize().ok());
        readable = roots.filter(|root| private.iter().any(|mount| root.starts_with(mount.target.as_path()))).collect();
    }
    // A path inside a private folder is mounted after it, others before.
    let is_private = |path: &PathBuf| private.iter().any(|mount| path.starts_with(mount.target.as_path()));
    let (inside, outside): (Vec<_>, Vec<_>) = readable.into_iter().partition(is_private);
    mounts.extend(outside.iter().map(|path| read_only(path)));
    mounts.extend(private);
    mounts.extend(inside.iter().map(|path| read_only(path)));
    if !is_empty {
        mounts.extend(caches.mounts.iter().cloned());
    }
    mounts.extend(writable.folders.iter().map(|path| path_mount(path, BaseAccess::Writable)));
    let exceptions = exceptions(profile, context, writable, caches);
    let covers = hidden_covers(profile, context, writable, &exceptions, hidden);
    if is_empty {
        // Only what is mounted can be covered.
        let is_visible = |path: &Path| {
            mounts.iter().any(|mount| {
                matches!(mount.source, MountSource::Path { .. }) && path.starts_with(mount.target.as_path())
            })
        };
        let covers: Vec<_> = covers.into_iter().filter(|cover| is_visible(cover.target.as_path())).collect();
        mounts.extend(covers);
    } else {
        mounts.extend(covers);
    }
    mounts.extend(exceptions);
    if !is_empty {
        mounts.extend(credentials::sanitized_copies(context));
    }
    mounts.extend(sockets::covers(profile, context));
    let protect = match profile.files {
        FileAccess::Full => {
            let roots: Vec<PathBuf> = context.roots.iter().filter_map(|root| root.canonicalize().ok()).collect();
            roots.into_iter().chain(writable.folders.iter().cloned()).collect()
        }
        FileAccess::None | FileAccess::ReadOnly | FileAccess::Workspace => writable.folders.clone(),
    };
    mounts.extend(protected_paths::mounts(&protect));
    mounts
}

/// Returns what a sandbox with an empty root shows in addition to the system.
fn readable_paths(profile: &SandboxProfile, context: &SandboxContext) -> Vec<PathBuf> {
    let open = profile.read.iter().filter(|entry| entry.ask.is_empty());
    let paths = open.filter_map(|entry| write_paths::resolve(&entry.path, context));
    // With `files: none`, a process sees no folder of its session.
    let visible = context.visible.iter().flatten().filter(|_| profile.files != FileAccess::None);
    let given = context.readable.iter().chain(visible).filter_map(|path| path.canonicalize().ok());
    // An empty root cannot be replaced by the whole system.
    paths.chain(given).filter(|path| path != Path::new("/")).collect()
}

fn path_mount(path: &Path, access: BaseAccess) -> PlannedMount {
    PlannedMount { target: path.into(), source: MountSource::Path { path: path.into(), access } }
}

fn read_only(path: &Path) -> PlannedMount {
    path_mount(path, BaseAccess::ReadOnly)
}

/// Returns the folders in which programs of the host keep sockets and temporary files.
fn private_folders(context: &SandboxContext) -> Vec<PlannedMount> {
    let shared =
        [("/tmp", 0o1777), ("/var/tmp", 0o1777), ("/run", 0o755)].map(|(path, mode)| (PathBuf::from(path), mode));
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut mounts = Vec::new();
    // Processes of a remote session have an empty home.
    let home = context.visible.as_ref().map(|_| (context.home.clone(), 0o700));
    let runtime_folder = context.runtime_folder.clone().map(|path| (path, 0o700));
    for (path, mode) in shared.into_iter().chain(runtime_folder).chain(home) {
        let Ok(path) = path.canonicalize() else { continue };
        if path.is_dir() && path != Path::new("/") && !seen.iter().any(|known| path.starts_with(known)) {
            seen.push(path.clone());
            mounts.push(PlannedMount { target: path.into(), source: MountSource::Memory { mode } });
        }
    }
    let system = Path::new("/run/current-system");
    mounts.extend(system.exists().then(|| read_only(system)));
    mounts
}

/// Returns what stays visible inside hidden or private folders.
fn exceptions(
    profile: &SandboxProfile,
    context: &SandboxContext,
    writable: &WritableFolders,
    caches: &CacheMounts,
) -> Vec<PlannedMount> {
    let mut mounts = Vec::new();
    let is_below_hidden = |path: &PathBuf| context.hidden.covering(path).is_some_and(|hidden| hidden != *path);
    let known_hosts = context.home.join(".ssh/known_hosts");
    let open = profile.read.iter().filter(|entry| entry.ask.is_empty());
    let read = open.filter_map(|entry| write_paths::resolve(&entry.path, context));
    let known_hosts = Some(known_hosts).filter(|_| context.visible.is_none());
    let readable = known_hosts.into_iter().filter_map(|path| path.canonicalize().ok()).chain(read);
    for path in readable.filter(|path| is_below_hidden(path) || is_known_hosts(path, context)) {
        mounts.push(read_only(&path));
    }
    let state = writable.state.iter().filter(|path| is_below_hidden(path));
    mounts.extend(state.map(|path| path_mount(path, BaseAccess::Writable)));
    if profile.git == GitAccess::Ask {
        mounts.extend(credentials::public_keys(context).iter().map(|path| read_only(path)));
    }
    mounts.extend(caches.plain.iter().map(|path| path_mount(path, BaseAccess::Writable)));
    let scratch = context.scratch.as_ref().and_then(|path| path.canonicalize().ok());
    mounts.extend(scratch.map(|path| path_mount(&path, BaseAccess::Writable)));
    let own_files = context.own_files.iter().filter_map(|path| path.canonicalize().ok());
    mounts.extend(own_files.map(|path| read_only(&path)));
    mounts.extend(sockets::opened(profile, context).iter().map(|path| path_mount(path, BaseAccess::Writable)));
    mounts
}

fn is_known_hosts(path: &Path, context: &SandboxContext) -> bool {
    context.home.join(".ssh/known_hosts").canonicalize().is_ok_and(|known| known == path)
}

/// Returns a cover for every hidden path that exists.
fn hidden_covers(
    profile: &SandboxProfile,
    context: &SandboxContext,
    writable: &WritableFolders,
    exceptions: &[PlannedMount],
    hidden: &[PathBuf],
) -> Vec<PlannedMount> {
    let open = profile.read.iter().filter(|entry| entry.ask.is_empty());
    let opened: Vec<PathBuf> = open.filter_map(|entry| write_paths::resolve(&entry.path, context)).collect();
    let mut hidden: BTreeSet<PathBuf> = hidden.iter().cloned().collect();
    hidden.retain(|path| !opened.iter().chain(&writable.state).any(|open| open == path));
    let all: Vec<PathBuf> = hidden.iter().cloned().collect();
    hidden.retain(|path| !all.iter().any(|other| other != path && path.starts_with(other)));
    let cover = |path: PathBuf| {
        let below = exceptions.iter().filter_map(|mount| {
            let name = mount.target.as_path().strip_prefix(&path).ok()?;
            Some(KeptName { name: name.into(), is_folder: mount.target.as_path().is_dir() })
        });
        let source = MountSource::Cover { keep: below.collect() };
        PlannedMount { target: path.into(), source }
    };
    hidden.into_iter().map(cover).collect()
}

/// Returns all hidden paths that exist: of the list, of the profile, and of the system.
pub(super) fn hidden_paths(profile: &SandboxProfile, context: &SandboxContext, layers: &Layers) -> Vec<PathBuf> {
    let mut hidden = context.hidden.existing();
    hidden.extend(profile.hide.iter().flat_map(|path| write_paths::resolve_glob(path, context)));
    if layers.is_root {
        hidden.extend(system::hidden_from_root(&context.home));
    }
    hidden
}

/// Landlock repeats what the mounts enforce; without them it enforces what it can.
fn landlock(
    profile: &SandboxProfile,
    context: &SandboxContext,
    layers: &Layers,
    hidden: &[PathBuf],
    writable: &WritableFolders,
    caches: &CacheMounts,
    mounts: &[PlannedMount],
) -> Option<LandlockRules> {
    if !layers.landlock.is_available() || layers.landlock_version == 0 {
        return None;
    }
    let version = layers.landlock_version;
    if layers.namespaces.is_available() {
        // The first version forbids to move files between folders, which mounts make unnecessary.
        let limits_files = version >= 2 && profile.files != FileAccess::Full;
        let files = limits_files.then(|| grants::beside_mounts(mounts));
        return Some(LandlockRules { version, files, connect_ports: None });
    }
    let files = grants::alone(profile, context, hidden, writable, caches);
    Some(LandlockRules { version, files: Some(files), connect_ports: None })
}
