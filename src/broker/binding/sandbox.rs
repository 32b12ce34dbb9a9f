//! Gives calls the sandbox of their mode.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::super::bound_tool::SandboxChoice;
use super::super::named_hosts::hosts_in;
use super::{Binding, BoundTool};
use crate::manifest::ApprovalLevel;
use crate::network::remote_hosts_in_command;
use crate::permissions;
use crate::sandbox::{Enforcement, FileAccess, ProfileOwner, ReadPath, SandboxGate, SandboxLauncher, SandboxProfile};
use crate::tool::{CallSandbox, SandboxView};

/// The sandbox of a binding.
pub(super) struct BoundSandbox {
    profile: Arc<SandboxProfile>,
    /// For commands that change nothing.
    reading: Arc<SandboxProfile>,
    gate: Arc<dyn SandboxGate>,
}

impl Binding {
    /// Returns the sandbox of this mode, with the limits of all parents. `None` if the mode has no profile or the user
    /// turned the sandbox off.
    pub(super) fn bind_sandbox(&self) -> Option<BoundSandbox> {
        let profile = self.sandbox_profile().filter(SandboxProfile::is_applied)?;
        let reading = Arc::new(profile.for_reading());
        let gate = Arc::clone(&self.gate) as Arc<dyn SandboxGate>;
        Some(BoundSandbox { profile: Arc::new(profile), reading, gate })
    }

    /// Returns the effective profile of the commands of this mode, never wider than that of a parent.
    fn sandbox_profile(&self) -> Option<SandboxProfile> {
        let stated = self.plan.mode_sandbox(&self.mode).cloned();
        let session = &self.request.session;
        let own = if session.client_folders().is_some() {
            // The client narrows it for its own machine.
            let stated = stated.unwrap_or_else(SandboxProfile::of_remote_program);
            SandboxProfile { read: Vec::new(), enforce: Enforcement::Required, ..stated }
        } else if session.grant.is_remote() {
            stated.unwrap_or_else(SandboxProfile::of_remote_program).for_remote()
        } else {
            stated?
        };
        let parent = self.policy.limits.parent.as_ref().and_then(|parent| parent.sandbox_profile());
        Some(match parent {
            Some(parent) => own.tighten(&parent),
            None => own,
        })
    }

    /// Returns the sandbox of hooks: that of the mode's commands. In a mode without commands, hooks write nothing and reach
    /// no host; hooks of a project never do. `None` if the user turned the sandbox off.
    pub(super) fn hook_sandbox(&self, is_of_project: bool) -> Option<CallSandbox> {
        let mut profile = self.sandbox_profile().unwrap_or_else(|| self.profile_without_commands());
        if !profile.is_applied() {
            return None;
        }
        let view = if is_of_project {
            profile = profile.for_reading();
            SandboxView::Roots
        } else {
            // Skein's settings are hidden, but not the user's scripts in the folder `hooks`.
            let scripts = self.policy.pool.hook_scripts().map(|path| ReadPath { path, ask: Vec::new() });
            profile.read.extend(scripts);
            SandboxView::Profile
        };
        let gate = Arc::clone(&self.gate) as Arc<dyn SandboxGate>;
        Some(CallSandbox { profile: Arc::new(profile), view, gate, consented_hosts: Vec::new() })
    }

    fn profile_without_commands(&self) -> SandboxProfile {
        let manifests = self.plan.manifests();
        let is_managed = manifests.managed.sandbox_configs().next().is_some();
        let loosest = if is_managed { Enforcement::Preferred } else { Enforcement::Off };
        let flag = manifests.sandbox_flag.unwrap_or(Enforcement::Preferred).min(loosest);
        let enforce = if self.policy.managed_sandbox.is_some() { Enforcement::Required } else { flag };
        let own =
            SandboxProfile { files: FileAccess::ReadOnly, enforce, ..SandboxProfile::narrowest(ProfileOwner::Program) };
        let parent = self.policy.limits.parent.as_ref().and_then(|parent| parent.sandbox_profile());
        parent.map_or_else(|| own.clone(), |parent| own.tighten(&parent))
    }

    /// Returns whether the call's command runs in a sandbox that changes nothing, and this machine enforces it.
    pub(super) async fn is_confined(&self, tool: &BoundTool, arguments: &Map<String, Value>) -> bool {
        let Some((launcher, profile)) = self.reading_sandbox(tool, arguments) else { return false };
        // Probing takes some milliseconds once.
        tokio::task::spawn_blocking(move || launcher.enforces_fully(&profile)).await.unwrap_or_default()
    }

    /// Like `is_confined`, but synchronous, for a preview of the decision.
    pub(super) fn is_confined_here(&self, tool: &BoundTool, arguments: &Map<String, Value>) -> bool {
        let sandbox = self.reading_sandbox(tool, arguments);
        sandbox.is_some_and(|(launcher, profile)| launcher.enforces_fully(&profile))
    }

    /// Returns the sandbox of a call that chooses to change nothing.
    fn reading_sandbox(
        &self,
        tool: &BoundTool,
        arguments: &Map<String, Value>,
    ) -> Option<(SandboxLauncher, Arc<SandboxProfile>)> {
        // Skein does not know what the machine of a client enforces.
        if self.request.session.client_folders().is_some() {
            return None;
        }
        let sandbox = self.sandbox.as_ref().filter(|_| tool.sandbox_choice(arguments) == SandboxChoice::ReadOnly)?;
        Some((self.policy.pool.sandbox_launcher().cloned()?, Arc::clone(&sandbox.reading)))
    }

    /// Returns the hidden paths that open for the programs of a call's command line, once the user agrees.
    pub(super) fn paths_to_ask(&self, tool: &BoundTool, arguments: &Map<String, Value>) -> Vec<String> {
        let Some(sandbox) = self.sandbox.as_ref().filter(|_| tool.sandbox_choice(arguments) == SandboxChoice::Mode)
        else {
            return Vec::new();
        };
        let programs = programs_of(&tool.command_line(arguments));
        let asked = sandbox.profile.read.iter().filter(|entry| is_asked(entry, &programs));
        asked.map(|entry| entry.path.clone()).collect()
    }

    /// Returns the profile in which the asked paths are open that the user agreed to. At `auto` there is no question, so only
    /// those of the user's config open.
    fn open_asked(&self, profile: &Arc<SandboxProfile>, line: &str, consented: bool) -> Arc<SandboxProfile> {
        let programs = programs_of(line);
        let by_user = |path: &str| self.approval() == ApprovalLevel::Auto && self.plan.user_reads(&self.mode, path);
        let opens = |entry: &ReadPath| is_asked(entry, &programs) && (consented || by_user(&entry.path));
        if !profile.read.iter().any(opens) {
            return Arc::clone(profile);
        }
        let mut opened = (**profile).clone();
        for entry in opened.read.iter_mut().filter(|entry| opens(entry)) {
            entry.ask.clear();
        }
        Arc::new(opened)
    }

    /// Returns the sandbox for one call, which the checks have admitted. `consented`: the user agreed to exactly this
    /// call, and so to the hosts in its command line.
    pub(super) fn call_sandbox(
        &self,
        tool: &BoundTool,
        arguments: &Map<String, Value>,
        consented: bool,
    ) -> Option<CallSandbox> {
        let BoundSandbox { profile, reading, gate } = self.sandbox.as_ref()?;
        let line = tool.command_line(arguments);
        let (profile, view) = match tool.sandbox_choice(arguments) {
            SandboxChoice::Mode => (self.open_asked(profile, &line, consented), SandboxView::Profile),
            SandboxChoice::ReadOnly => (Arc::clone(reading), SandboxView::Roots),
            SandboxChoice::Unsandboxed(_) => return None,
        };
        let line = if consented { &*line } else { "" };
        let consented_hosts = hosts_in(line).chain(remote_hosts_in_command(line)).collect();
        Some(CallSandbox { profile, view, gate: Arc::clone(gate), consented_hosts })
    }
}

/// Returns the programs of a command line, without their folders.
fn programs_of(line: &str) -> Vec<String> {
    let first_word = |text: String| text.split_whitespace().next().map(str::to_owned);
    let programs =
        permissions::read(line).parts.iter().filter_map(|part| first_word(part.to_string())).collect::<Vec<_>>();
    programs.iter().map(|program| program.rsplit('/').next().unwrap_or(program).to_owned()).collect()
}

/// Returns whether the path opens for one of these programs.
fn is_asked(entry: &ReadPath, programs: &[String]) -> bool {
    entry.ask.iter().any(|program| programs.contains(program))
}
