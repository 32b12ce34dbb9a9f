//! A child that is Skein's own program and serves one descriptor.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::Pid;

use super::scope::Children;

/// A child without environment or output. It must end when the other end of its stdin closes. Dropping it collects its
/// exit.
#[derive(Debug)]
pub struct HelperProcess {
    child: Child,
}

impl HelperProcess {
    #[expect(clippy::disallowed_methods, reason = "this starts Skein's own program")]
    pub fn spawn(program: &Path, args: &[OsString], stdin: OwnedFd) -> std::io::Result<Self> {
        let mut command = Command::new(program);
        command.args(args).env_clear().process_group(0).current_dir("/");
        command.stdin(Stdio::from(stdin)).stdout(Stdio::null()).stderr(Stdio::null());
        let mut children = Children::lock();
        let child = command.spawn()?;
        if let Some(pid) = Pid::from_raw(child.id().cast_signed()) {
            children.add(pid);
        }
        Ok(Self { child })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process has ended.
    pub fn wait(&mut self) {
        // An error means that the exit was collected elsewhere.
        drop(self.child.wait());
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        self.wait();
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            Children::lock().remove(pid);
        }
    }
}
