//! Gives services and external agents their sandboxes. The session that uses a program decides about the hosts that its
//! process reaches.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use super::binding::CallPolicy;
use super::binding::host_gate::{ProgramHostGate, ProgramUsers, SessionHostGate};
use super::requirement::SessionRequirements;
use super::session_state::BindingGate;
use super::{BindRequest, Broker};
use crate::ids::{AgentName, ModeId, ServiceName};
use crate::manifest::{Layer, ModeEntry, ServiceEntry, ServiceSharing, Transport};
use crate::sandbox::{SandboxProfile, SandboxSpec};
use crate::services::{Lease, RequirementHost, ServiceSpec};
use crate::tool::SessionContext;

type FindEntry<'a> = &'a dyn Fn(&ServiceName) -> Option<&'a ServiceEntry>;

impl Broker {
    /// Creates the gate of a new binding, with the policy for its calls. Services that start before the binding exists
    /// already use it.
    pub(super) fn session_gate(&self, id: &ModeId, mode: &ModeEntry, request: &BindRequest) -> Arc<SessionHostGate> {
        let approval = request.approval.map_or_else(|| self.approval(mode), |level| self.tighten(level));
        let policy = CallPolicy {
            approval: Mutex::new(approval),
            rules: self.session_rules(&request.session),
            judge: self.judge.clone(),
            limits: self.limits.clone(),
            states: Arc::clone(&self.states),
            managed_approval: self.plan.manifests().managed.approval(),
            managed_sandbox: self.plan.manifests().managed.sandbox_requirement(),
            hooks: self.plan.manifests().hooks(),
            pool: self.pool.clone(),
        };
        let own = self.states.of(&request.session);
        let state = self.limits.parent.as_ref().map_or_else(|| Arc::clone(&own), |parent| parent.top_state());
        let gate = Arc::new(SessionHostGate {
            policy: Arc::new(policy),
            asker: Arc::clone(&request.asker),
            state,
            audit: Arc::clone(&request.session.audit),
            actor: id.to_string(),
        });
        own.add_gate(Arc::downgrade(&gate) as Weak<dyn BindingGate>);
        gate
    }

    /// Leases a service of the plan or of the client for a session, as its sharing setting says. Does not start it.
    pub fn lease_service(&self, entry: &ServiceEntry, session: &SessionContext) -> Lease {
        self.lease(entry, session, &|name| self.plan.service(name.as_str()))
    }

    /// Leases a service. `find` looks up the services that it requires.
    pub(super) fn lease(&self, entry: &ServiceEntry, session: &SessionContext, find: FindEntry<'_>) -> Lease {
        let state = Arc::downgrade(&self.states.of(session));
        let requirements: Arc<dyn RequirementHost> =
            Arc::new(SessionRequirements { publisher: self.publisher.clone(), session: state });
        let spec = |entry: &ServiceEntry| {
            let profile = self.service_profile(entry, session);
            let sandbox = profile.and_then(|profile| self.sandbox_spec(&profile, is_alone(entry, &profile), session));
            let requirements = Some(Arc::clone(&requirements));
            ServiceSpec { manifest: entry.manifest.clone(), sandbox, requirements }
        };
        let is_allowed = |entry: &&ServiceEntry| self.plan.manifests().service_refusal(entry).is_none();
        let find_spec = |name: &ServiceName| find(name).filter(is_allowed).map(spec);
        match entry.layer {
            Layer::Editor => self.pool.lease_brought(&spec(entry), session, &find_spec),
            Layer::Builtin | Layer::User | Layer::Project | Layer::Extra => {
                self.pool.lease(&spec(entry), session, &find_spec)
            }
        }
    }

    /// Returns the sandbox of an external agent. `None` if it runs without one.
    pub fn agent_sandbox(&self, agent: &AgentName, session: &SessionContext) -> Option<SandboxSpec> {
        let stated = self.plan.agent_sandbox(agent).cloned();
        let layer = self.plan.agent(agent.as_str()).map_or(Layer::Project, |entry| entry.layer);
        let profile = if session.grant.is_remote() { Some(remote_profile(stated, layer)) } else { stated }?;
        self.sandbox_spec(&profile, profile.is_per_root(), session)
    }

    /// Returns the profile of a service's process for a session. `None` if it has no process, or runs without a sandbox.
    fn service_profile(&self, entry: &ServiceEntry, session: &SessionContext) -> Option<SandboxProfile> {
        let stated = self.plan.sandbox_of_service(entry);
        if !session.grant.is_remote() || !matches!(entry.manifest.transport, Transport::Stdio(_)) {
            return stated;
        }
        if stated.is_none() && entry.manifest.is_shared_by_all() {
            return Some(SandboxProfile::of_shared_program());
        }
        Some(remote_profile(stated, entry.layer))
    }

    /// Returns the sandbox of a program. `None` if the profile is not applied. `is_alone`: no other top-level session uses
    /// the process.
    fn sandbox_spec(&self, profile: &SandboxProfile, is_alone: bool, session: &SessionContext) -> Option<SandboxSpec> {
        if !profile.is_applied() {
            return None;
        }
        let (notices, audit) = (Arc::clone(&session.notices), Arc::clone(&session.audit));
        let users = if is_alone { ProgramUsers::One { notices, audit } } else { ProgramUsers::Several };
        let mut rules = self.session_rules(session);
        rules.retain(|rule| rule.rule.host.is_some());
        let shown = rules.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        let gate = ProgramHostGate::new(rules, users, Arc::downgrade(&self.states.of(session)));
        let visible = session.grant.visible_folders().map(<[PathBuf]>::to_vec);
        Some(SandboxSpec { profile: Arc::new(profile.clone()), gate: Arc::new(gate), rules: shown, visible })
    }
}

/// Returns the profile of a program in a remote session, which always has one. What the user's own manifest opens for a
/// program stays readable, such as the folder of its code.
fn remote_profile(stated: Option<SandboxProfile>, layer: Layer) -> SandboxProfile {
    let stated = stated.unwrap_or_else(SandboxProfile::of_remote_program);
    let is_own = matches!(layer, Layer::Builtin | Layer::User | Layer::Extra);
    let read = stated.read.iter().filter(|entry| is_own && entry.ask.is_empty()).cloned().collect();
    SandboxProfile { read, ..stated.for_remote() }
}

/// Returns true if no other top-level session uses the process of a service.
fn is_alone(entry: &ServiceEntry, profile: &SandboxProfile) -> bool {
    entry.layer == Layer::Editor || entry.manifest.sharing() == ServiceSharing::Session || profile.is_per_root()
}
