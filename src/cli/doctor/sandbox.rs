//! Shows the layers of the sandbox, what follows for each process, and how to get the missing layers.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use super::super::folders::Folders;
use super::super::output::CommandError;
use super::super::runtime::own_program;
use super::super::sandbox::machine::{SandboxMachine, show_lines};
use super::Findings;
use crate::diagnostic::Severity;
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::process::read_proc;
use crate::sandbox::{Enforcement, Layer, LayerState, SandboxProfile, layer_help};

/// Exists in a container of Docker.
const DOCKER_FILE: &str = "/.dockerenv";
/// The file of `/proc` that contains 1 if AppArmor refuses user namespaces to programs without a profile.
const APPARMOR_SETTING: &str = "sys/kernel/apparmor_restrict_unprivileged_userns";

/// What decides how the user gets a missing layer.
#[derive(Debug, Clone)]
pub(super) struct MachineFacts {
    pub(super) program: PathBuf,
    pub(super) in_docker: bool,
    pub(super) has_apparmor: bool,
}

impl MachineFacts {
    fn of_this_machine() -> Result<Self, CommandError> {
        let setting = read_proc(APPARMOR_SETTING).unwrap_or_default();
        Ok(Self {
            program: own_program()?,
            in_docker: Path::new(DOCKER_FILE).exists(),
            has_apparmor: setting.trim_ascii() == b"1",
        })
    }

    /// Returns the steps that give this machine a layer.
    fn steps(&self, layer: Layer) -> String {
        let is_namespace = matches!(
            layer,
            Layer::UserNamespace
                | Layer::MountNamespace
                | Layer::PidNamespace
                | Layer::IpcNamespace
                | Layer::NetworkNamespace
        );
        match layer {
            _ if is_namespace && self.in_docker => {
                "start the container with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined \
                 --security-opt systempaths=unconfined`"
                    .to_owned()
            }
            _ if is_namespace && self.has_apparmor => format!(
                "write `abi <abi/4.0>, profile skein {} flags=(unconfined) {{ userns, }}` to /etc/apparmor.d/skein, \
                 then run `sudo apparmor_parser -r /etc/apparmor.d/skein`",
                self.program.display()
            ),
            _ => layer_help(layer).to_owned(),
        }
    }
}

/// The layers of this machine and what they enforce.
#[derive(Debug)]
pub(super) struct SandboxReport {
    machine: SandboxMachine,
    facts: MachineFacts,
    outcomes: Vec<ProcessOutcome>,
}

/// What happens to processes with equal results.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct ProcessOutcome {
    processes: Vec<String>,
    outcome: OutcomeKind,
    /// The lines that nothing enforces.
    unenforced: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum OutcomeKind {
    /// Every line is enforced.
    Holds,
    /// The process starts with the layers there are.
    Weaker,
    /// The process does not start.
    Refused,
}

/// Probes this machine. `plan` is `None` if the manifests have errors.
pub(super) fn probe(plan: Option<&Plan>, folders: &Folders) -> Result<SandboxReport, CommandError> {
    Ok(SandboxReport::new(plan, SandboxMachine::probe(folders)?, MachineFacts::of_this_machine()?))
}

impl SandboxReport {
    pub(super) fn new(plan: Option<&Plan>, machine: SandboxMachine, facts: MachineFacts) -> Self {
        let mut outcomes: Vec<ProcessOutcome> = Vec::new();
        for (name, profile) in plan.map(list_profiles).unwrap_or_default() {
            let lines = machine.list_unenforced(profile);
            let outcome = match (lines.is_empty(), profile.enforce) {
                (true, _) => OutcomeKind::Holds,
                (false, Enforcement::Required) => OutcomeKind::Refused,
                (false, Enforcement::Preferred | Enforcement::Off) => OutcomeKind::Weaker,
            };
            let unenforced = show_lines(&lines);
            match outcomes.iter_mut().find(|known| known.outcome == outcome && known.unenforced == unenforced) {
                Some(known) => known.processes.push(name),
                None => outcomes.push(ProcessOutcome { processes: vec![name], outcome, unenforced }),
            }
        }
        Self { machine, facts, outcomes }
    }

    /// The layers, in the order in which a sandbox applies them.
    fn layers(&self) -> Vec<(Layer, &LayerState)> {
        let layers = &self.machine.layers;
        vec![
            (Layer::UserNamespace, &layers.namespaces),
            (Layer::NewProc, &layers.new_proc),
            (Layer::Overlay, &layers.overlay),
            (Layer::Landlock, &layers.landlock),
            (Layer::Seccomp, &layers.seccomp),
            (Layer::Cgroup, &layers.cgroup),
        ]
    }

    /// Reports the layers without which a profile is weaker or its processes do not start.
    pub(super) fn add_findings(&self, found: &mut Findings) {
        let no_namespaces = !self.machine.layers.namespaces.is_available();
        for (layer, state) in self.layers() {
            let Some(reason) = state.reason() else { continue };
            let matters = match layer {
                Layer::UserNamespace | Layer::Landlock | Layer::Seccomp => true,
                // Without namespaces they are missing for the same reason.
                Layer::NewProc => !no_namespaces,
                // Others replace them: variables move caches, and each process has its own limit.
                _ => false,
            };
            if matters {
                let what = format!("the sandbox lacks a layer: no {layer}: {reason}");
                found.add(Severity::Note, what, "this machine", self.facts.steps(layer));
            }
        }
        for outcome in self.outcomes.iter().filter(|outcome| outcome.outcome == OutcomeKind::Refused) {
            let what = format!("this machine cannot enforce {}: these processes do not start", outcome.unenforced);
            let fix = "get the missing layer, write `enforce: preferred`, or pass `--sandbox preferred`";
            found.warning(what, outcome.processes.join(", "), fix);
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec!["sandbox layers:".to_owned()];
        for (layer, state) in self.layers() {
            let shown = match (state, layer) {
                (LayerState::Available, Layer::Landlock) => format!("version {}", self.machine.layers.landlock_version),
                (LayerState::Available, _) => "available".to_owned(),
                (LayerState::Missing(reason), _) => format!("missing: {reason}"),
            };
            lines.push(format!("  {:<15} {shown}", layer_label(layer)));
        }
        for ProcessOutcome { processes, outcome, unenforced } in &self.outcomes {
            let processes = processes.join(", ");
            lines.push(match outcome {
                OutcomeKind::Holds => format!("  all limits hold for {processes}"),
                OutcomeKind::Weaker => format!("  {unenforced} not enforced for {processes}"),
                OutcomeKind::Refused => format!("  {unenforced} not enforced, so these do not start: {processes}"),
            });
        }
        lines
    }

    pub(super) fn json(&self) -> Value {
        let steps: serde_json::Map<_, _> = self
            .layers()
            .into_iter()
            .filter(|(_, state)| !state.is_available())
            .map(|(layer, _)| (layer_label(layer).to_owned(), json!(self.facts.steps(layer))))
            .collect();
        json!({"layers": self.machine.layers, "processes": self.outcomes, "steps": steps})
    }
}

/// One name for the five namespaces, which a machine has together.
fn layer_label(layer: Layer) -> &'static str {
    match layer {
        Layer::UserNamespace => "namespaces",
        layer => layer.name(),
    }
}

/// Returns the processes that run in a sandbox, with their profiles.
fn list_profiles(plan: &Plan) -> Vec<(String, &SandboxProfile)> {
    let mut all = Vec::new();
    for agent in plan.agents() {
        let name = &agent.manifest.name;
        all.extend(plan.agent_sandbox(name).map(|profile| (format!("agent {name}"), profile)));
        for mode in &agent.modes {
            let id = ModeId::new(name.clone(), mode.mode.slug.clone());
            all.extend(plan.mode_sandbox(&id).map(|profile| (id.to_string(), profile)));
        }
    }
    for service in plan.services() {
        let name = &service.manifest.name;
        all.extend(plan.service_sandbox(name).map(|profile| (format!("service {name}"), profile)));
    }
    all.retain(|(_, profile)| profile.is_applied());
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph;
    use crate::manifest::{self, Layer as ManifestLayer, Root};
    use crate::sandbox::{LayerRestriction, Layers, ProtectedState};

    fn plan() -> Plan {
        let agent = "version: 1\nkind: agent\nname: outside\ndescription: x\n\
            runtime: {acp: {command: none, sandbox: {files: read-only, network: [example.com]}}}\n\
            modes: [{slug: default, description: x}]\n";
        let service = "version: 1\nkind: service\nname: mine\ndescription: x\n\
            transport: {stdio: {command: none}}\nsandbox: {files: none, network: ask, enforce: preferred}\n";
        let files = vec![
            ("agents/outside.yaml".into(), agent.as_bytes().to_vec()),
            ("services/mine.yaml".into(), service.as_bytes().to_vec()),
        ];
        let roots = [
            (ManifestLayer::Builtin, Root::Builtin),
            (ManifestLayer::User, Root::Snapshot { files: files.into_iter().collect(), shown: "user".to_owned() }),
        ];
        let (manifests, found) = manifest::load(&roots);
        let resolved = graph::resolve(manifests, found);
        resolved.plan.unwrap_or_else(|| panic!("{:#?}", resolved.diagnostics))
    }

    fn facts() -> MachineFacts {
        MachineFacts { program: "/opt/skein".into(), in_docker: false, has_apparmor: false }
    }

    fn report(layers: Layers, facts: MachineFacts) -> SandboxReport {
        SandboxReport::new(Some(&plan()), SandboxMachine { layers, protected: ProtectedState::Absent }, facts)
    }

    fn without_namespaces() -> Layers {
        let mut layers = Layers::complete().restricted(&LayerRestriction::parse("no-namespaces").unwrap());
        layers.namespaces = LayerState::Missing("cannot write uid_map: Permission denied".to_owned());
        layers
    }

    fn findings(report: &SandboxReport) -> Vec<(String, String)> {
        let mut found = Findings::default();
        report.add_findings(&mut found);
        found.0.into_iter().map(|found| (found.what, found.fix)).collect()
    }

    #[test]
    fn a_complete_machine_has_no_finding() {
        let report = report(Layers::complete(), facts());
        assert_eq!(findings(&report), []);
        let lines = report.lines();
        assert!(lines.contains(&"  Landlock        version 7".to_owned()), "{lines:#?}");
        let holds = lines.iter().find(|line| line.contains("all limits hold")).expect("a line");
        assert!(holds.contains("agent outside") && holds.contains("service mine"), "{holds}");
    }

    #[test]
    fn missing_namespaces_show_who_starts_and_who_does_not() {
        let report = report(without_namespaces(), facts());
        let lines = report.lines();
        assert!(lines.contains(&"  namespaces      missing: cannot write uid_map: Permission denied".to_owned()));
        let line = |words: &str| lines.iter().find(|line| line.contains(words)).expect(words).clone();
        assert_eq!(
            line("do not start"),
            "  `network: example.com; else off` not enforced, so these do not start: agent outside"
        );
        assert!(line("service mine").starts_with("  `network: ask` not enforced for "), "{}", line("service mine"));
        let [(layer, help), (refused, _)] = &findings(&report)[..] else { panic!("{:#?}", findings(&report)) };
        assert_eq!(layer, "the sandbox lacks a layer: no user namespace: cannot write uid_map: Permission denied");
        assert!(help.contains("AppArmor") && help.contains("Docker"), "{help}");
        assert!(refused.contains("`network: example.com; else off`"), "{refused}");
    }

    #[test]
    fn the_steps_follow_the_machine() {
        let apparmor = report(without_namespaces(), MachineFacts { has_apparmor: true, ..facts() });
        let help = &findings(&apparmor)[0].1;
        assert!(help.contains("profile skein /opt/skein flags=(unconfined) { userns, }"), "{help}");
        assert!(help.contains("apparmor_parser -r /etc/apparmor.d/skein"), "{help}");
        let docker = report(without_namespaces(), MachineFacts { in_docker: true, has_apparmor: true, ..facts() });
        assert!(findings(&docker)[0].1.contains("--security-opt seccomp=unconfined"), "{:?}", findings(&docker));
        let mut layers = Layers::complete();
        layers.landlock = LayerState::Missing("the kernel has no Landlock".to_owned());
        let old = report(layers, facts());
        assert!(findings(&old)[0].1.contains("Linux 5.13"), "{:?}", findings(&old));
        let mut layers = Layers::complete();
        layers.new_proc = LayerState::Missing("cannot mount proc".to_owned());
        assert!(findings(&report(layers, facts()))[0].1.contains("systempaths=unconfined"));
    }

    #[test]
    fn another_system_has_no_layer() {
        let none = report(Layers::none("sandboxes need Linux"), facts());
        let found = findings(&none);
        assert!(found.iter().filter(|(what, _)| what.contains("sandboxes need Linux")).count() == 3, "{found:#?}");
        assert_eq!(none.json()["layers"]["landlock_version"], 0);
        assert!(none.json()["steps"]["Landlock"].as_str().is_some_and(|help| help.contains("lsm=")));
    }
}
