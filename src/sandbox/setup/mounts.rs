//! Builds the file tree of a sandbox: opens all sources, makes the base read-only, then mounts.
//!
//! Targets are opened without following links, so a link that appears after planning makes the set-up fail.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
};

use super::identity::UserIds;
use super::kernel::{MountDepth, MountFlags, make_mounts_private, set_mount_flags};
use super::{LayerContext as _, SetupError};
use crate::sandbox::layers::Layer;
use crate::sandbox::os_text::OsText;
use crate::sandbox::plan::{
    BaseAccess, EarlyPlan, FileBase, KeptName, MountSource, PlannedMount, ProcMount, SandboxPlan,
};

/// Where the folder with empty files is mounted until `/dev` covers it.
const STAGE: &str = "/dev";
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// What is opened before anything changes.
pub(super) struct PreparedMounts {
    root: OwnedFd,
    system: SystemMounts,
}

/// Separates the mounts of this process from the host's, and opens those of the kernel. This process must be alone in
/// its mount namespace.
pub(super) fn prepare(plan: &EarlyPlan, ids: UserIds) -> Result<PreparedMounts, SetupError> {
    let root = open("/").in_step(Layer::MountNamespace, || "open /".to_owned())?;
    make_mounts_private(&root).in_step(Layer::MountNamespace, || "make mounts private".to_owned())?;
    let system = SystemMounts::open(plan, ids)?;
    Ok(PreparedMounts { root, system })
}

impl PreparedMounts {
    /// Mounts everything in the plan.
    pub(super) fn attach(self, plan: &SandboxPlan) -> Result<(), SetupError> {
        let Self { root, system } = self;
        let sources = plan.mounts.iter().map(open_source).collect::<Result<Vec<_>, _>>()?;
        let new_root = apply_base(plan.base, &root)?;
        let stage = stage().in_step(Layer::MountNamespace, || "mount empty files".to_owned())?;
        if let Some(sys) = &system.sys {
            attach(sys, Path::new("/sys")).in_step(Layer::MountNamespace, || "mount /sys".to_owned())?;
        }
        attach(&system.proc, Path::new("/proc")).in_step(Layer::MountNamespace, || "mount /proc".to_owned())?;
        for (at, (planned, source)) in plan.mounts.iter().zip(sources).enumerate() {
            attach_source(planned, source, at)
                .in_step(Layer::MountNamespace, || format!("mount {}", planned.target.as_path().display()))?;
        }
        drop(stage);
        system.attach_devices().in_step(Layer::MountNamespace, || "mount /dev".to_owned())?;
        if let Some(new_root) = new_root {
            set_mount_flags(&new_root, MountFlags(MountFlags::READ_ONLY), MountDepth::Single)
                .in_step(Layer::MountNamespace, || "make / read-only".to_owned())?;
        }
        rustix::process::chdir("/").in_step(Layer::MountNamespace, || "enter /".to_owned())
    }
}

/// Mounts of the kernel's own file systems, opened while the host's are visible.
struct SystemMounts {
    /// Read-only for root, whose id owns the kernel's settings.
    proc: OwnedFd,
    /// A read-only `/sys`, if the base would leave it writable.
    sys: Option<OwnedFd>,
    devices: Vec<(OsText, OwnedFd)>,
    terminals: OwnedFd,
}

impl SystemMounts {
    fn open(plan: &EarlyPlan, ids: UserIds) -> Result<Self, SetupError> {
        let proc = match plan.proc {
            ProcMount::New => {
                let access = if ids.is_root() { MountAttrFlags::MOUNT_ATTR_RDONLY } else { MountAttrFlags::empty() };
                new_file_system("proc", &[], MountAttrFlags::MOUNT_ATTR_NOSUID | access)
                    .in_step(Layer::NewProc, || "mount a new /proc".to_owned())?
            }
            ProcMount::Host => {
                let flags = if ids.is_root() { MountFlags::READ_ONLY | MountFlags::NO_SUID } else { 0 };
                clone_path(Path::new("/proc"), flags).in_step(Layer::MountNamespace, || "keep /proc".to_owned())?
            }
        };
        let sys = match plan.base {
            FileBase::Host(BaseAccess::Writable) if Path::new("/sys").is_dir() => Some(
                clone_path(Path::new("/sys"), MountFlags::READ_ONLY | MountFlags::NO_SUID | MountFlags::NO_DEV)
                    .in_step(Layer::MountNamespace, || "make /sys read-only".to_owned())?,
            ),
            FileBase::Host(_) | FileBase::Empty => None,
        };
        let mut devices = Vec::new();
        let usual = DEVICES.iter().map(|name| OsText::from(&Path::new("/dev").join(name)));
        for path in usual.chain(plan.devices.iter().cloned()) {
            let device = clone_path(path.as_path(), MountFlags::NO_SUID);
            match device {
                Ok(device) => devices.push((path, device)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(error).in_step(Layer::MountNamespace, || format!("open {}", path.as_path().display()));
                }
            }
        }
        let options = [("mode", "0620"), ("ptmxmode", "0666")];
        let terminals = new_file_system("devpts", &options, MountAttrFlags::MOUNT_ATTR_NOSUID)
            .in_step(Layer::MountNamespace, || "mount terminals".to_owned())?;
        Ok(Self { proc, sys, devices, terminals })
    }

    fn attach_devices(&self) -> io::Result<()> {
        let folder = Path::new("/dev");
        let dev = memory_folder(0o755)?;
        attach(&dev, folder)?;
        for (path, device) in &self.devices {
            attach(device, path.as_path())?;
        }
        for (name, target) in DEVICE_LINKS {
            symlink(target, folder.join(name))?;
        }
        attach(&self.terminals, &folder.join("pts"))?;
        attach(&memory_folder(0o1777)?, &folder.join("shm"))?;
        set_mount_flags(&dev, MountFlags(MountFlags::READ_ONLY), MountDepth::Single)
    }
}

/// Opens a source before the base changes. `None` if it is made when it is mounted.
fn open_source(planned: &PlannedMount) -> Result<Option<OwnedFd>, SetupError> {
    let step = || format!("open the source of {}", planned.target.as_path().display());
    match &planned.source {
        MountSource::Path { path, access } => {
            clone_path(path.as_path(), flags_of(*access)).map(Some).in_step(Layer::MountNamespace, step)
        }
        MountSource::Overlay { lower, upper, work } => {
            overlay(lower, upper, work).map(Some).in_step(Layer::Overlay, step)
        }
        MountSource::Link(_) | MountSource::Cover { .. } | MountSource::Memory { .. } | MountSource::Text(_) => {
            Ok(None)
        }
    }
}

fn flags_of(access: BaseAccess) -> u64 {
    let read_only = match access {
        BaseAccess::ReadOnly => MountFlags::READ_ONLY,
        BaseAccess::Writable => 0,
    };
    read_only | MountFlags::NO_SUID | MountFlags::NO_DEV
}

/// Applies the base. Returns the new root if the base is empty; it is writable until all targets exist.
fn apply_base(base: FileBase, root: &OwnedFd) -> Result<Option<OwnedFd>, SetupError> {
    let step = || "make the file system read-only".to_owned();
    match base {
        FileBase::Host(BaseAccess::ReadOnly) => {
            let flags = MountFlags(MountFlags::READ_ONLY | MountFlags::NO_SUID | MountFlags::NO_DEV);
            set_mount_flags(root, flags, MountDepth::Recursive).in_step(Layer::MountNamespace, step)?;
            Ok(None)
        }
        FileBase::Host(BaseAccess::Writable) => {
            let flags = MountFlags(MountFlags::NO_SUID | MountFlags::NO_DEV);
            set_mount_flags(root, flags, MountDepth::Recursive).in_step(Layer::MountNamespace, step)?;
            Ok(None)
        }
        FileBase::Empty => {
            empty_root().map(Some).in_step(Layer::MountNamespace, || "change to an empty root".to_owned())
        }
    }
}

/// Replaces the root with an empty folder. No path leads to the old one any more.
fn empty_root() -> io::Result<OwnedFd> {
    let new_root = memory_folder(0o755)?;
    // Any folder that always exists serves as the mount point.
    attach(&new_root, Path::new("/proc"))?;
    rustix::process::fchdir(&new_root)?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    Ok(new_root)
}

/// Mounts a folder with an empty folder and an empty file.
fn stage() -> io::Result<OwnedFd> {
    let stage = memory_folder(0o755)?;
    attach(&stage, Path::new(STAGE))?;
    fs::DirBuilder::new().mode(0o555).create(Path::new(STAGE).join("folder"))?;
    write_file(&Path::new(STAGE).join("file"), "")?;
    Ok(stage)
}

fn attach_source(planned: &PlannedMount, source: Option<OwnedFd>, at: usize) -> io::Result<()> {
    let target = planned.target.as_path();
    match &planned.source {
        MountSource::Path { .. } | MountSource::Overlay { .. } => match source {
            Some(mount) => attach(&mount, target),
            None => Err(io::Error::other("the source was not opened")),
        },
        MountSource::Cover { keep } => cover(target, keep),
        MountSource::Link(link) => {
            create_parents(target)?;
            symlink(link.as_path(), target)
        }
        MountSource::Memory { mode } => attach(&memory_folder(*mode)?, target),
        MountSource::Text(text) => {
            let file = Path::new(STAGE).join(format!("text-{at}"));
            write_file(&file, text)?;
            attach(&clone_path(&file, flags_of(BaseAccess::ReadOnly))?, target)
        }
    }
}

/// Covers a folder or file with an empty one. A target that is gone needs no cover.
fn cover(target: &Path, keep: &[KeptName]) -> io::Result<()> {
    let data = match fs::symlink_metadata(target) {
        Ok(data) => data,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if keep.is_empty() {
        let empty = if data.is_dir() { "folder" } else { "file" };
        return attach(&clone_path(&Path::new(STAGE).join(empty), flags_of(BaseAccess::ReadOnly))?, target);
    }
    let folder = memory_folder(0o755)?;
    attach(&folder, target)?;
    for KeptName { name, is_folder } in keep {
        let path = target.join(&name.0);
        create_parents(&path)?;
        match (is_folder, path.exists()) {
            (_, true) => {}
            (true, false) => fs::create_dir(path)?,
            (false, false) => write_file(&path, "")?,
        }
    }
    set_mount_flags(&folder, MountFlags(MountFlags::READ_ONLY), MountDepth::Single)
}

/// Opens a copy of the mounts at and below `path`, with more flags. Follows no link, also not above the path.
fn clone_path(path: &Path, flags: u64) -> io::Result<OwnedFd> {
    let tree = open_tree(
        &open(path)?,
        "",
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_EMPTY_PATH,
    )?;
    if flags != 0 {
        set_mount_flags(&tree, MountFlags(flags), MountDepth::Recursive)?;
    }
    Ok(tree)
}

fn memory_folder(mode: u32) -> io::Result<OwnedFd> {
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    new_file_system("tmpfs", &[("mode", &format!("{mode:o}"))], flags)
}

fn overlay(lower: &OsText, upper: &OsText, work: &OsText) -> io::Result<OwnedFd> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_flag(&context, "userxattr")?;
    fsconfig_set_string(&context, "lowerdir", escape_overlay(lower)?)?;
    fsconfig_set_string(&context, "upperdir", upper.as_path())?;
    fsconfig_set_string(&context, "workdir", work.as_path())?;
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

/// A `:` separates lower folders.
fn escape_overlay(path: &OsText) -> io::Result<String> {
    let text = path.0.to_str().ok_or_else(|| io::Error::other("the path is not UTF-8"))?;
    Ok(text.replace('\\', "\\\\").replace(':', "\\:"))
}

fn new_file_system(kind: &str, options: &[(&str, &str)], flags: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in options {
        fsconfig_set_string(&context, *name, *value)?;
    }
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

/// Mounts `mount` at `target`, which is created if it is missing.
fn attach(mount: &OwnedFd, target: &Path) -> io::Result<()> {
    let target = match open(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create_target(mount, target)?;
            open(target)?
        }
        result => result?,
    };
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount.as_fd(), "", target.as_fd(), "", flags)?)
}

fn create_target(mount: &OwnedFd, target: &Path) -> io::Result<()> {
    let data = rustix::fs::fstat(mount)?;
    let is_folder = rustix::fs::FileType::from_raw_mode(data.st_mode).is_dir();
    let create = || if is_folder { fs::create_dir(target) } else { write_file(target, "") };
    match create() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create_parents(target)?;
            create()
        }
        result => result,
    }
}

fn create_parents(target: &Path) -> io::Result<()> {
    target.parent().map_or(Ok(()), |parent| fs::DirBuilder::new().recursive(true).mode(0o755).create(parent))
}

fn write_file(path: &Path, text: &str) -> io::Result<()> {
    let mut file: File = fs::OpenOptions::new().write(true).create_new(true).mode(0o444).open(path)?;
    file.write_all(text.as_bytes())
}

/// Opens a path for mounting, without following links.
fn open(path: impl AsRef<Path>) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(openat2(CWD, path.as_ref(), flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}
