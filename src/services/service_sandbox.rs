//! The sandbox of a stdio service: its profile, and the gate of the session that uses it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use super::RequirementHost;
use super::remote::Owner;
use super::stdio::ProgramSandbox;
use crate::ids::ServiceName;
use crate::manifest::{ServiceManifest, ServiceSharing};
use crate::sandbox::{CurrentGate, SandboxFolders, SandboxLauncher, SandboxProfile, SandboxRequest, SandboxSpec};
use crate::tool::Notice;

/// A service to lease.
#[derive(Debug, Clone)]
pub struct ServiceSpec {
    pub manifest: ServiceManifest,
    /// `None` if its process runs without a sandbox, or it has no process.
    pub sandbox: Option<SandboxSpec>,
    /// Offers the services that it requires to its program. `None`: a program that requires a service does not start.
    pub requirements: Option<Arc<dyn RequirementHost>>,
}

impl ServiceSpec {
    /// Returns a service that runs without a sandbox, and is offered no other services.
    pub fn without_sandbox(manifest: ServiceManifest) -> Self {
        Self { manifest, sandbox: None, requirements: None }
    }

    /// Returns how sessions share the service. A process whose sandbox depends on the session is not shared.
    pub(super) fn sharing(&self) -> ServiceSharing {
        let is_per_root = self.sandbox.as_ref().is_some_and(|sandbox| sandbox.profile.is_per_root());
        if is_per_root { ServiceSharing::Session } else { self.manifest.sharing() }
    }
}

/// The sandbox of a service in the pool. It stays when the process is started again.
#[derive(Debug)]
pub(super) struct BoundServiceSandbox {
    profile: Arc<SandboxProfile>,
    gate: Arc<CurrentGate>,
    visible: Option<Vec<PathBuf>>,
    /// The user has the remarks about the sandbox.
    reported: AtomicBool,
}

impl BoundServiceSandbox {
    pub(super) fn new(SandboxSpec { profile, gate, visible, .. }: &SandboxSpec) -> Self {
        Self {
            profile: Arc::clone(profile),
            gate: Arc::new(CurrentGate::new(Arc::clone(gate))),
            visible: visible.clone(),
            reported: AtomicBool::new(false),
        }
    }

    pub(super) fn gate(&self) -> &CurrentGate {
        &self.gate
    }

    /// Returns the sandbox of one process. Only a process that belongs to a session has folders of the session.
    pub(super) fn program<'a>(
        &self,
        launcher: Option<&'a SandboxLauncher>,
        owner: Option<&Owner>,
        line: String,
    ) -> ProgramSandbox<'a> {
        let mut folders = owner.map(|owner| SandboxFolders::new(&owner.roots, &owner.scratch)).unwrap_or_default();
        folders.visible.clone_from(&self.visible);
        let (profile, gate) = (Arc::clone(&self.profile), Arc::clone(&self.gate));
        let watches = owner.map(|owner| owner.protected.clone());
        let request = SandboxRequest { profile, folders, gate, servers: None, watches };
        ProgramSandbox { launcher, request, line }
    }

    /// Sends remarks to the user of the session, or to the log if sessions share the service. Does so once.
    pub(super) fn report(&self, notices: Vec<String>, service: &ServiceName, owner: Option<&Owner>) {
        if self.reported.swap(true, Ordering::Relaxed) {
            return;
        }
        for notice in notices {
            let text = format!("Service `{service}`: {notice}");
            match owner {
                Some(owner) => {
                    owner.notices.lock().unwrap_or_else(PoisonError::into_inner).send(Notice::new(text));
                }
                None => tracing::warn!("{text}"),
            }
        }
    }
}
