//! A control group that limits the memory of a sandbox as a whole.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::process::read_proc;

/// How often a group is removed before it is left behind: its processes need a moment to end.
const MAX_REMOVALS: u32 = 50;
const REMOVAL_PAUSE: Duration = Duration::from_millis(2);
const ROOT: &str = "/sys/fs/cgroup";

/// A control group that Skein has made. Dropping it removes the group, when its processes have ended.
#[derive(Debug)]
pub(super) struct ControlGroup {
    folder: PathBuf,
}

impl ControlGroup {
    /// Makes a group with this much memory, in bytes. Fails if Skein's user may not make one here.
    pub(super) fn create(memory: u64) -> io::Result<Self> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let own = read_proc("self/cgroup")?;
        let (parent, file) = parent_folder(&String::from_utf8_lossy(&own)).ok_or(io::ErrorKind::NotFound)?;
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("skein-{}-{number}", std::process::id()));
        fs::create_dir(&folder)?;
        let group = Self { folder };
        fs::write(group.folder.join(file), memory.to_string())?;
        Ok(group)
    }

    /// Moves a process into the group. Its later children belong to it too.
    pub(super) fn add_process(&self, pid: u32) -> io::Result<()> {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let mut attempts = 0;
        while fs::remove_dir(&self.folder).is_err_and(|error| error.kind() != io::ErrorKind::NotFound) {
            attempts += 1;
            if attempts == MAX_REMOVALS {
                tracing::warn!(folder = %self.folder.display(), "a control group is left behind");
                break;
            }
            std::thread::sleep(REMOVAL_PAUSE);
        }
    }
}

/// Returns the folder of this process's group, and the name of its limit. `None` if memory is not delegated to it.
fn parent_folder(own: &str) -> Option<(PathBuf, &'static str)> {
    let mut groups = own.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        Some((controllers, path.trim_start_matches('/')))
    });
    if let Some((_, path)) = groups.clone().find(|(controllers, _)| controllers.split(',').any(|name| name == "memory"))
    {
        let folder = Path::new(ROOT).join("memory").join(path);
        return Some((folder, "memory.limit_in_bytes")).filter(|(folder, _)| folder.is_dir());
    }
    let (_, path) = groups.find(|(controllers, _)| controllers.is_empty())?;
    let folder = Path::new(ROOT).join(path);
    let enabled = fs::read_to_string(folder.join("cgroup.subtree_control")).ok()?;
    Some((folder, "memory.max")).filter(|_| enabled.split_whitespace().any(|name| name == "memory"))
}
