//! Specifies assertions: each form with a plan that satisfies it and one that does not, and every mistake.

use super::*;
use crate::graph::resolve;
use crate::manifest::{DocumentKind, Layer, Root, load, parse, read_as};

const TERRAFORM: &str = "version: 1\nkind: service\nname: terraform\ndescription: x\n\
                         transport: {stdio: {command: t}}\ngroups: {infra: [apply]}\n";
const DEPLOY: &str = "version: 1\nkind: service\nname: deploy\ndescription: x\n\
                      transport: {stdio: {command: d}}\nrequires: [terraform]\ngroups: {ship: [ship]}\n";

/// Returns a plan with an agent `ops` whose mode `run` has these fields, beside the built-in agents.
fn plan(fields: &str) -> Plan {
    plan_of(fields, "")
}

fn plan_of(fields: &str, agent: &str) -> Plan {
    let ops = format!(
        "version: 1\nkind: agent\nname: ops\ndescription: x\nmetadata: {{dependencies: [developer, terraform, deploy]}}\n\
         modes: [{{slug: run, description: x, prompt: p.md, {fields}}}]\n{agent}"
    );
    let files = [
        ("services/terraform.yaml", TERRAFORM.to_owned()),
        ("services/deploy.yaml", DEPLOY.to_owned()),
        ("agents/ops.yaml", ops),
        ("agents/p.md", "x".to_owned()),
    ];
    let files = files.into_iter().map(|(path, text)| (path.into(), text.into_bytes())).collect();
    let user = Root::Snapshot { files, shown: String::new() };
    let (manifests, found) = load(&[(Layer::Builtin, Root::Builtin), (Layer::User, user)]);
    let resolution = resolve(manifests, found);
    resolution.plan.unwrap_or_else(|| panic!("{:#?}", resolution.diagnostics))
}

fn check(plan: &Plan, text: &str) -> Vec<String> {
    let source = SourceFile::new("rules.yaml", format!("version: 1\nkind: assertions\n{text}"));
    let value = parse(&source).expect("YAML");
    let mut found = Vec::new();
    let file: AssertionFile =
        read_as(DocumentKind::Assertions, value, &source, &mut found).unwrap_or_else(|| panic!("{found:#?}"));
    let reports = check_assertions(plan, &file, &source);
    let diagnostics = reports.iter().flat_map(|report| &report.diagnostics);
    diagnostics.map(|found| format!("{} {} {}", found.at, found.code, found.problem)).collect()
}

/// Modes with the group `mcp` reach every third-party service.
const ONLY: &str = "assert:\n  - {only: [coding/*, goose/*], reach: {service: terraform}}\n";

#[test]
fn only_listed_modes_reach_a_service() {
    assert_eq!(check(&plan("dependencies: [developer], tool_groups: [read]"), ONLY), [""; 0]);
    assert_eq!(
        check(&plan("dependencies: [terraform], tool_groups: [infra]"), ONLY),
        ["rules.yaml:4:33 E142 ops/run reaches the service terraform: ops/run → terraform"]
    );
}

#[test]
fn a_required_service_is_reached_too() {
    assert_eq!(
        check(&plan("dependencies: [deploy], tool_groups: [ship]"), ONLY),
        ["rules.yaml:4:33 E142 ops/run reaches the service terraform: ops/run → deploy → terraform"]
    );
}

#[test]
fn delegation_counts_if_the_assertion_says_so() {
    let plan = plan("dependencies: [terraform], tool_groups: [infra]");
    let of_orchestrator = |text: &str| -> Vec<String> {
        check(&plan, text).into_iter().filter(|line| line.contains(" orchestrator/auto ")).collect()
    };
    assert_eq!(of_orchestrator(ONLY), [""; 0]);
    let with = "assert:\n  - {only: [ops/run, coding/*, goose/*], reach: {service: terraform, delegation: true}}\n";
    assert_eq!(
        of_orchestrator(with),
        [
            "rules.yaml:4:42 E142 orchestrator/auto reaches the service terraform: orchestrator/auto → coding/backend → terraform"
        ]
    );
}

const NETWORK: &str = "  - {modes: {group: command}, sandbox: {network: [off, ask]}}\n";

#[test]
fn at_auto_a_network_that_asks_is_open() {
    let flagged = "dependencies: [developer], tool_groups: [command], sandbox: {network: ask}";
    let plan = plan(flagged);
    let of_ops = |text: &str| -> Vec<String> {
        check(&plan, text).into_iter().filter(|line| line.contains("ops/run")).collect()
    };
    assert_eq!(of_ops(&format!("approval: [ask, read-only]\nassert:\n{NETWORK}")), [""; 0]);
    let open = of_ops(&format!("assert:\n{NETWORK}"));
    assert!(
        open[0].contains("the shell of ops/run has `network: ask`, which is `on` at the approval level auto"),
        "{open:?}"
    );
}

#[test]
fn fields_of_a_sandbox_have_allowed_values() {
    let plan = plan("dependencies: [developer], tool_groups: [command], sandbox: {files: full, network: [a.example]}");
    let mode = |field: &str| check(&plan, &format!("assert:\n  - {{mode: ops/run, sandbox: {{{field}}}}}\n"));
    assert_eq!(mode("files: [full], network: [off], hosts: [a.example]"), [""; 0]);
    assert_eq!(mode("files: [none, workspace]"), ["rules.yaml:4:21 E142 the shell of ops/run has `files: full`"]);
    assert_eq!(mode("hosts: [b.example]"), ["rules.yaml:4:21 E142 the shell of ops/run reaches the host `a.example`"]);
}

#[test]
fn a_mode_has_no_excluded_group() {
    let text = "assert:\n  - {mode: ops/run, groups: {not: [edit, command]}}\n";
    assert_eq!(check(&plan("dependencies: [developer], tool_groups: [read]"), text), [""; 0]);
    assert_eq!(
        check(&plan("dependencies: [developer], tool_groups: [read, edit]"), text),
        ["rules.yaml:4:21 E142 ops/run has the group edit"]
    );
    let builtin = "assert:\n  - {mode: coding/security, groups: {not: [edit, command]}}\n";
    assert_eq!(check(&plan(""), builtin), [""; 0]);
}

#[test]
fn tools_and_delegates_are_compared_with_lists() {
    let plan = plan("dependencies: [developer], tool_groups: [read]");
    assert_eq!(check(&plan, "assert:\n  - {mode: ops/run, tools: {not: [\"*__shell*\"]}}\n"), [""; 0]);
    let some = check(&plan, "assert:\n  - {mode: ops/run, tools: [developer__read_file]}\n");
    assert!(some.contains(&"rules.yaml:4:21 E142 ops/run has the tool developer__search".to_owned()), "{some:?}");
    let delegates = check(&plan, "assert:\n  - {agents: [orchestrator], delegates: {not: [ops/*]}}\n");
    assert!(delegates[0].ends_with("orchestrator may delegate to ops/run"), "{delegates:?}");
}

#[test]
fn levels_are_compared_with_a_list() {
    let text = "assert:\n  - {mode: ops/run, approval: [ask, read-only]}\n";
    assert_eq!(check(&plan("approval: read-only"), text), [""; 0]);
    assert_eq!(check(&plan("approval: auto"), text), ["rules.yaml:4:21 E142 ops/run has the approval level auto"]);
}

#[test]
fn services_with_a_process_need_a_sandbox() {
    let plan = plan("dependencies: [terraform], tool_groups: [infra]");
    let found = check(&plan, "assert:\n  - {services: {transport: stdio}, sandbox: present}\n");
    assert_eq!(
        found,
        [
            "rules.yaml:4:36 E142 the service deploy runs without a sandbox",
            "rules.yaml:4:36 E142 the service terraform runs without a sandbox",
        ]
    );
    assert_eq!(check(&plan, "assert:\n  - {services: [developer], sandbox: present}\n"), [""; 0]);
}

#[test]
fn a_mode_must_reach_or_must_never_reach() {
    let plan = plan("dependencies: [terraform], tool_groups: [infra]");
    assert_eq!(check(&plan, "assert:\n  - {mode: ops/run, reach: {tool: terraform__apply}}\n"), [""; 0]);
    assert_eq!(
        check(&plan, "assert:\n  - {mode: ops/run, reach: {tool: terraform__apply, never: true}}\n"),
        ["rules.yaml:4:21 E142 ops/run reaches the tool terraform__apply: ops/run → terraform__apply"]
    );
    assert_eq!(
        check(&plan, "assert:\n  - {mode: ops/run, reach: {service: fetch}}\n"),
        ["rules.yaml:4:21 E142 ops/run does not reach the service fetch"]
    );
}

#[test]
fn mistakes_are_errors_with_a_place() {
    let plan = plan("");
    let mistake = |entry: &str| check(&plan, &format!("assert:\n  - {entry}\n"));
    assert_eq!(
        mistake("{mode: codng/security, groups: [read]}"),
        ["rules.yaml:4:12 E141 no mode matches `codng/security`"]
    );
    assert_eq!(
        mistake("{modes: [ops/*, nobody/*], groups: [read]}"),
        ["rules.yaml:4:21 E141 no mode matches `nobody/*`"]
    );
    assert_eq!(
        mistake("{modes: {group: comand}, sandbox: present}"),
        ["rules.yaml:4:21 E141 no group matches `comand`"]
    );
    assert_eq!(mistake("{agents: {external: true}, sandbox: present}"), ["rules.yaml:4:14 E141 no agent is selected"]);
    assert_eq!(
        mistake("{mode: ops/run, reach: {service: terrafrom}}"),
        ["rules.yaml:4:28 E141 nothing in the plan has the name `terrafrom`"]
    );
    assert_eq!(mistake("{mode: ops/run}"), ["rules.yaml:4:5 E140 the assertion states nothing"]);
    assert_eq!(
        mistake("{mode: ops/run, modes: [ops/run], groups: [read]}"),
        ["rules.yaml:4:5 E140 an assertion has exactly one of `only`, `mode`, `modes`, `agents` and `services`"]
    );
    assert_eq!(
        mistake("{only: [ops/run], groups: [read]}"),
        ["rules.yaml:4:5 E140 `only` needs `reach` and no other statement"]
    );
}

#[test]
fn a_listed_name_that_matches_nothing_is_a_mistake() {
    let plan = plan("dependencies: [developer], tool_groups: [read]");
    let of_mode = |fields: &str| check(&plan, &format!("assert:\n  - {{mode: ops/run, {fields}}}\n"));
    assert_eq!(of_mode("groups: {not: [edit, comand]}"), ["rules.yaml:4:42 E141 no group matches `comand`"]);
    assert_eq!(of_mode("groups: [read, wriet]"), ["rules.yaml:4:36 E141 no group matches `wriet`"]);
    assert_eq!(
        of_mode("tools: {not: [developer__shel, shell]}"),
        ["rules.yaml:4:35 E141 no tool matches `developer__shel`", "rules.yaml:4:52 E141 no tool matches `shell`"]
    );
    // A mode can list a service as a group.
    assert_eq!(of_mode("groups: {not: [none, mcp, deploy]}"), [""; 0]);
    // Only the running service knows all its tools.
    assert_eq!(of_mode("tools: {not: [terraform__destroy, \"*__destroy\", \"*stroy\"]}"), [""; 0]);
    assert_eq!(of_mode("delegates: {not: [ops/rum]}"), ["rules.yaml:4:39 E141 no mode matches `ops/rum`"]);
}

#[test]
fn an_unknown_field_of_a_sandbox_has_a_line() {
    let text = "version: 1\nkind: assertions\nassert:\n  - {mode: ops/run, sandbox: {netwrk: [off]}}\n";
    let source = SourceFile::new("rules.yaml", text);
    let mut found = Vec::new();
    let file: Option<AssertionFile> = read_as(DocumentKind::Assertions, parse(&source).unwrap(), &source, &mut found);
    assert!(file.is_none());
    let shown: Vec<_> = found.iter().map(|found| format!("{} {} {}", found.at, found.problem, found.help)).collect();
    assert_eq!(shown, ["rules.yaml:4:31 unknown field `netwrk` did you mean `network`?"]);
}
