//! Compares the profiles of the built-in modes with the design, and checks who gets a profile.

use super::*;
use crate::graph::resolve;
use crate::ids::ServiceName;
use crate::manifest::{Layer, ManagedFile, Root, load, load_managed};
use crate::sandbox::{CommandPower, FileAccess, GitAccess, OtherHosts, PortAccess};

fn plan(layers: &[(Layer, &str, &str)]) -> Plan {
    let mut roots = vec![(Layer::Builtin, Root::Builtin)];
    for (layer, path, text) in layers {
        let files = [(path.into(), format!("version: 1\n{text}").into_bytes())].into();
        roots.push((*layer, Root::Snapshot { files, shown: String::new() }));
    }
    let (manifests, found) = load(&roots);
    let resolution = resolve(manifests, found);
    resolution.plan.unwrap_or_else(|| panic!("{:#?}", resolution.diagnostics))
}

fn id(text: &str) -> ModeId {
    text.parse().expect("a mode")
}

const WITH_REGISTRIES: &str = "network: registries, else ask; git asks; ports ask; preferred";
const CLOUD: &str = "reads ~/.kube (asks for kubectl, helm, kustomize, k9s), ~/.aws (asks for aws, eksctl, terraform, \
                     kubectl), ~/.config/gcloud (asks for gcloud, gsutil, bq, terraform, kubectl), ~/.azure (asks for \
                     az, terraform, kubectl)";

/// Returns the profile that the design gives a built-in mode. `None` for a mode without a shell, also for a new one.
fn designed(mode: &str) -> Option<String> {
    match mode {
        "goose/assistant" | "goose/specialist" | "coding/backend" | "coding/frontend" => {
            Some(format!("writes the workspace; {WITH_REGISTRIES}"))
        }
        "coding/devsecops" => Some(format!("writes the workspace; {CLOUD}; {WITH_REGISTRIES}")),
        "coding/qa" => Some(format!("writes only git-ignored, tests, test, __tests__, spec; {WITH_REGISTRIES}")),
        "coding/sre" => Some(format!("writes nothing; {CLOUD}; network: ask; git asks; ports ask; preferred")),
        _ => None,
    }
}

#[test]
fn built_in_modes_have_the_designed_profiles() {
    let plan = plan(&[]);
    let mut modes = 0;
    for agent in plan.agents() {
        for mode in &agent.modes {
            let id = ModeId::new(agent.manifest.name.clone(), mode.mode.slug.clone());
            let profile = plan.mode_sandbox(&id);
            assert_eq!(profile.map(ToString::to_string), designed(&id.to_string()), "{id}");
            modes += usize::from(profile.is_some());
        }
    }
    assert_eq!(modes, 7, "every designed mode exists");
    assert!(plan.services().all(|service| plan.service_sandbox(&service.manifest.name).is_none()));
}

const HEAD: &str = "kind: agent\nname: mine\ndescription: x\nmetadata: {dependencies: [developer]}\n";

fn own_mode(rest: &str) -> String {
    format!("{HEAD}modes: [{{slug: one, description: x, prompt: p.md, dependencies: [developer], {rest}}}]\n")
}

fn own_profile(rest: &str) -> Option<SandboxProfile> {
    let manifest = format!("version: 1\n{}", own_mode(rest));
    let files = [("agents/mine.yaml".into(), manifest.into_bytes()), ("agents/p.md".into(), b"x".to_vec())].into();
    let user = Root::Snapshot { files, shown: String::new() };
    let (manifests, found) = load(&[(Layer::Builtin, Root::Builtin), (Layer::User, user)]);
    let resolution = resolve(manifests, found);
    let plan = resolution.plan.unwrap_or_else(|| panic!("{:#?}", resolution.diagnostics));
    plan.mode_sandbox(&id("mine/one")).cloned()
}

#[test]
fn other_modes_get_a_default_by_their_tools() {
    let default = |rest: &str| own_profile(rest).map(|profile| (profile.files, profile.network.allow));
    let registries = vec!["registries".to_owned()];
    let wide = Some((FileAccess::Workspace, registries));
    let narrow = Some((FileAccess::ReadOnly, Vec::new()));
    assert_eq!(default("tool_groups: [read, edit]"), None);
    assert_eq!(default("tool_groups: [read, edit, command]"), wide);
    assert_eq!(default("tool_groups: [developer]"), wide, "the whole service includes the shell");
    assert_eq!(default("tool_groups: [read, command]"), narrow);
    assert_eq!(default("tool_groups: [command, {group: edit, files: x}]"), narrow);
}

#[test]
fn a_manifest_states_fields_of_a_required_profile() {
    let profile = own_profile("tool_groups: [edit, command], sandbox: {network: [docs.rs], git: off}").expect("one");
    assert_eq!((profile.files, profile.git), (FileAccess::Workspace, GitAccess::Off));
    assert_eq!((profile.network.allow, profile.network.otherwise), (vec!["docs.rs".to_owned()], OtherHosts::Off));
    assert_eq!(profile.enforce, Enforcement::Required);
    let without_shell = own_profile("sandbox: {files: read-only}").expect("a stated one");
    assert_eq!(without_shell.network.otherwise, OtherHosts::Off);
}

const SERVICE: &str = "kind: service\nname: mine\ndescription: x\ntransport: {stdio: {command: mine}}\n";

#[test]
fn programs_have_a_profile_only_if_one_is_stated() {
    let bare = plan(&[(Layer::User, "services/mine.yaml", SERVICE)]);
    assert_eq!(bare.service_sandbox(&ServiceName::new("mine")), None);
    let stated = format!("{SERVICE}sandbox: {{files: read-only, write: [~/data]}}\n");
    let plan = plan(&[(Layer::User, "services/mine.yaml", &stated)]);
    let profile = plan.service_sandbox(&ServiceName::new("mine")).expect("a profile");
    assert_eq!((profile.files, profile.git), (FileAccess::ReadOnly, GitAccess::Off));
    assert_eq!((&profile.ports, profile.enforce), (&PortAccess::Off, Enforcement::Required));
}

#[test]
fn the_config_adds_to_modes_and_projects_tighten() {
    let user = "sandbox:\n  write: [~/.cache/bazel]\n  network: {allow: [git.example.com], otherwise: ask}\n  \
                modes: {coding/sre: {read: [~/.kube]}}\n";
    let with_user = plan(&[(Layer::User, "config.yaml", user)]);
    let sre = with_user.mode_sandbox(&id("coding/sre")).expect("a profile");
    assert!(sre.read.iter().any(|entry| entry.path == "~/.kube" && entry.ask.is_empty()));
    assert_eq!(sre.network.allow, ["git.example.com"]);
    assert_eq!(sre.enforce, Enforcement::Required, "the config states it");
    let project = "sandbox: {files: read-only, network: [registries], modes: {coding/qa: {write: [tests]}}}\n";
    let both = plan(&[(Layer::User, "config.yaml", user), (Layer::Project, ".skein/config.yaml", project)]);
    let backend = both.mode_sandbox(&id("coding/backend")).expect("a profile");
    assert_eq!(backend.files, FileAccess::ReadOnly);
    assert_eq!((&*backend.network.allow, backend.network.otherwise), (&["registries".to_owned()][..], OtherHosts::Off));
    let qa = both.mode_sandbox(&id("coding/qa")).expect("a profile");
    assert_eq!(qa.writes(), "writes only tests");
}

#[test]
fn client_services_have_the_profile_of_the_config() {
    let servers = r#"{"mcpServers": {"theirs": {"command": "x"}}}"#;
    let user = "sandbox: {client_services: {files: read-only, network: off}, hide: [~/notes]}\n";
    let files = [(".mcp.json".into(), servers.as_bytes().to_vec())].into();
    let config = [("config.yaml".into(), format!("version: 1\n{user}").into_bytes())].into();
    let snapshot = |files| Root::Snapshot { files, shown: String::new() };
    let roots = [(Layer::Builtin, Root::Builtin), (Layer::User, snapshot(config)), (Layer::Project, snapshot(files))];
    let (manifests, found) = load(&roots);
    let plan = resolve(manifests, found).plan.expect("a plan");
    let profile = plan.service_sandbox(&ServiceName::new("theirs")).expect("a profile");
    assert_eq!((profile.files, &*profile.hide), (FileAccess::ReadOnly, &["~/notes".to_owned()][..]));
    assert_eq!(plan.client_sandbox(), Some(profile));
}

#[test]
fn the_flag_overrides_manifests_and_config() {
    let (mut manifests, found) = load(&[(Layer::Builtin, Root::Builtin)]);
    manifests.sandbox_flag = Some(Enforcement::Off);
    let plan = resolve(manifests, found).plan.expect("a plan");
    let profile = plan.mode_sandbox(&id("coding/backend")).expect("a profile");
    assert_eq!(profile.enforce, Enforcement::Off);
    assert_eq!(profile_text(ProcessKind::Command, Some(profile)), "unsandboxed (--sandbox off)");
}

#[test]
fn a_flag_does_not_lift_managed_limits() {
    let text = "version: 1\nsandbox: {client_services: {files: read-only, enforce: required}}\n".to_owned();
    let file = ManagedFile { file: "managed.yaml".to_owned(), text };
    let (mut manifests, found) = load_managed(&[(Layer::Builtin, Root::Builtin)], None, &[file]);
    manifests.sandbox_flag = Some(Enforcement::Off);
    let plan = resolve(manifests, found).plan.expect("a plan");
    let clients = plan.client_sandbox().expect("a profile");
    assert_eq!((clients.files, clients.enforce), (FileAccess::ReadOnly, Enforcement::Required));
    let backend = plan.mode_sandbox(&id("coding/backend")).expect("a profile");
    assert_eq!(backend.enforce, Enforcement::Preferred);
}

#[test]
fn every_profile_is_applied_unless_it_is_off() {
    let default = SandboxProfile::of_commands(CommandPower::EditsAll);
    let stated = SandboxProfile { enforce: Enforcement::Required, ..default.clone() };
    let off = SandboxProfile { enforce: Enforcement::Off, ..default.clone() };
    for kind in [ProcessKind::Command, ProcessKind::Service, ProcessKind::ExternalAgent] {
        assert_eq!(profile_text(kind, Some(&stated)), stated.to_string());
        assert_eq!(profile_text(kind, Some(&default)), default.to_string());
        assert_eq!(profile_text(kind, Some(&off)), "unsandboxed (--sandbox off)");
    }
    assert_eq!(profile_json(Some(&default))["applied"], true);
    assert_eq!(profile_json(Some(&off))["applied"], false);
    assert_eq!(profile_text(ProcessKind::Service, None), "unsandboxed");
    assert_eq!(profile_json(None), Value::Null);
}
