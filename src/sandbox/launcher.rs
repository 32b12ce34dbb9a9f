//! Starts the sandboxes of sessions, services and external agents with the folders of this user.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::error::SandboxError;
use super::expand::SandboxContext;
use super::explain::{ExplainedLine, ProtectedState, explain};
use super::layer_probe::probe_layers;
use super::layers::LayerRestriction;
use super::paths::{HiddenPaths, is_below};
use super::plan::TerminalSession;
use super::profile::SandboxProfile;
use super::proxy::{CompanyProxy, CompanyProxyError};
use super::sandbox_process::SandboxProcess;
use crate::telemetry::WorkSpan;

/// What all sandboxes of a Skein process have in common.
#[derive(Debug, Clone)]
pub struct SandboxLauncher {
    /// The `skein` program, which runs as the sandbox process.
    pub program: PathBuf,
    pub home: PathBuf,
    pub hidden: HiddenPaths,
    /// Skein keeps private copies of caches here.
    pub caches: PathBuf,
    /// `$XDG_RUNTIME_DIR`.
    pub runtime_folder: Option<PathBuf>,
    /// Processes that enter a sandbox find their socket here.
    pub sockets: PathBuf,
    /// New protected paths without consent are moved here.
    pub quarantine: PathBuf,
    pub restriction: LayerRestriction,
    pub host: HostResources,
}

/// What Skein uses outside for the processes of a sandbox.
#[derive(Clone)]
pub struct HostResources {
    /// The proxy of Skein's own environment. An error matters only to a sandbox with a network.
    pub company: Result<CompanyProxy, CompanyProxyError>,
    /// The socket of the user's ssh-agent.
    pub ssh_agent: Option<PathBuf>,
    /// The user's environment, for the user's credential helper and for the names of certificates.
    pub environment: BTreeMap<OsString, OsString>,
}

/// The environment and the proxy's address may contain secrets.
impl std::fmt::Debug for HostResources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostResources").field("ssh_agent", &self.ssh_agent).finish_non_exhaustive()
    }
}

/// The folders of one sandbox.
#[derive(Debug, Clone, Default)]
pub struct SandboxFolders {
    /// The session's roots. Relative paths of the profile start at the first.
    pub roots: Vec<PathBuf>,
    /// A writable folder for temporary files.
    pub scratch: Option<PathBuf>,
    /// Readable although `files: none` excludes them, such as the folder of a program.
    pub readable: Vec<PathBuf>,
    /// Sockets of Skein that stay reachable.
    pub sockets: Vec<PathBuf>,
    /// Files of Skein that stay readable, also in hidden folders.
    pub own_files: Vec<PathBuf>,
    /// For a remote session: the only folders that processes see, besides those of the system, the scratch folder and
    /// private ones. `None`: what the profile shows.
    pub visible: Option<Vec<PathBuf>>,
}

impl SandboxFolders {
    /// Returns the folders of a session whose roots may contain the scratch folder.
    pub fn new(roots: &[PathBuf], scratch: &Path) -> Self {
        let roots = roots.iter().filter(|root| *root != scratch).cloned().collect();
        Self { roots, scratch: Some(scratch.to_owned()), ..Self::default() }
    }
}

impl SandboxLauncher {
    /// Returns whether every layer of this machine enforces the profile. Probes the machine on first use, which takes
    /// some milliseconds.
    pub fn enforces_fully(&self, profile: &SandboxProfile) -> bool {
        let Ok(layers) = probe_layers(&self.program, &self.caches) else { return false };
        let layers = layers.restricted(&self.restriction);
        let has_all = [&layers.namespaces, &layers.landlock, &layers.seccomp].iter().all(|layer| layer.is_available());
        has_all && !explain(profile, &layers, ProtectedState::Absent).iter().any(ExplainedLine::is_unenforced)
    }

    /// Returns where a sandbox with these folders is used. A root that has become a link out of the visible folders is
    /// left out.
    pub fn context(&self, folders: SandboxFolders) -> SandboxContext {
        let SandboxFolders { mut roots, scratch, readable, sockets, own_files, visible } = folders;
        // A token whose root is `/` sees what the profile shows.
        let visible = visible.filter(|visible| !visible.iter().any(|folder| folder == Path::new("/")));
        if let Some(visible) = &visible {
            roots.retain(|root| root.canonicalize().is_ok_and(|root| is_below(&root, visible)));
        }
        SandboxContext {
            program: self.program.clone(),
            roots,
            home: self.home.clone(),
            hidden: self.hidden.clone(),
            scratch,
            caches: self.caches.clone(),
            runtime_folder: self.runtime_folder.clone(),
            readable,
            sockets,
            own_files,
            visible,
            terminal: TerminalSession::New,
        }
    }

    /// Starts a sandbox process. Fails if the profile is required and this machine cannot enforce it.
    pub async fn start(
        &self,
        profile: SandboxProfile,
        folders: SandboxFolders,
    ) -> Result<SandboxProcess, SandboxError> {
        let is_remote = folders.visible.is_some();
        let context = self.context(folders);
        let restriction = self.restriction.clone();
        let span = WorkSpan::sandbox_start();
        // Mounting takes some milliseconds.
        let start = tokio::task::spawn_blocking(move || SandboxProcess::start(&profile, &context, &restriction));
        let started = span.run(start).await.map_err(|error| SandboxError::Process { source: io::Error::other(error) });
        let started = started.flatten();
        if started.is_err() {
            span.fail("not_started");
        }
        started.map_err(|error| if is_remote { SandboxError::Remote(Box::new(error)) } else { error })
    }
}
