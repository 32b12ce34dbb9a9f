//! How long Skein takes to read, check and resolve a large set of manifests, and the work that `scripts/scale`
//! counts: `resolve --once small|large` does it exactly once.
//!
//! The sets are texts in memory, so that parsing is part of the measurement and the disk is not. Each size has
//! the same shape: per agent 4 modes with 8 services each, 10 services, and 50 edges.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion};
use skein::diagnostic::has_errors;
use skein::graph::{Plan, Resolution, resolve};
use skein::ids::ModeId;
use skein::manifest::{Layer, Root, load};

const MODES: usize = 4;
const NEEDS: usize = 8;
const SERVICES_PER_AGENT: usize = 10;
/// 4 modes, 32 needs, 13 requires and on average 1 delegation.
const EDGES_PER_AGENT: usize = 50;

#[derive(Clone, Copy)]
struct Size {
    name: &'static str,
    agents: usize,
}

const SIZES: [Size; 2] = [Size { name: "small", agents: 100 }, Size { name: "large", agents: 1_000 }];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let Some(position) = arguments.iter().position(|argument| argument == "--once") else {
        let mut criterion = Criterion::default().configure_from_args();
        measure(&mut criterion);
        criterion.final_summary();
        return ExitCode::SUCCESS;
    };
    let wanted = arguments.get(position + 1).map(String::as_str);
    let Some(size) = SIZES.into_iter().find(|size| Some(size.name) == wanted) else { return ExitCode::from(2) };
    let roots = generate(size);
    plan_of(size, load_and_resolve(&roots));
    ExitCode::SUCCESS
}

/// The work that is counted. Kept as a function of its own, under this name, for `scripts/scale`.
#[inline(never)]
fn load_and_resolve(roots: &[(Layer, Root)]) -> Resolution {
    let (manifests, found) = load(roots);
    resolve(manifests, found)
}

fn measure(criterion: &mut Criterion) {
    for size in SIZES {
        let roots = generate(size);
        let plan = plan_of(size, load_and_resolve(&roots));
        let modes = modes(&plan);

        let mut group = criterion.benchmark_group("set");
        group.sample_size(10).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(10));
        group.bench_function(BenchmarkId::new("load", size.name), |bencher| {
            bencher.iter_with_large_drop(|| load(&roots));
        });
        group.bench_function(BenchmarkId::new("resolve", size.name), |bencher| {
            let loaded = || load(&roots);
            bencher.iter_batched(loaded, |(manifests, found)| resolve(manifests, found), BatchSize::PerIteration);
        });
        group.bench_function(BenchmarkId::new("start_levels_of_every_mode", size.name), |bencher| {
            bencher.iter(|| modes.iter().map(|id| plan.start_levels(id).len()).sum::<usize>());
        });
        group.finish();
    }
}

/// The plan of a generated set, which must be what its size promises: a set with an error would be dropped
/// half way, and the measurement would flatter.
fn plan_of(size: Size, resolved: Resolution) -> Plan {
    let errors = has_errors(&resolved.diagnostics);
    assert!(!errors, "the generated set is wrong: {:?}", resolved.diagnostics.first());
    let Some(plan) = resolved.plan else { panic!("a set without errors has a plan") };
    assert_eq!(plan.agents().count(), size.agents);
    assert_eq!(plan.services().count(), size.agents * SERVICES_PER_AGENT);
    assert_eq!(plan.graph().edges().count(), size.agents * EDGES_PER_AGENT);
    plan
}

fn modes(plan: &Plan) -> Vec<ModeId> {
    plan.agents()
        .flat_map(|agent| {
            let name = &agent.manifest.name;
            agent.modes.iter().map(|entry| ModeId::new(name.clone(), entry.mode.slug.clone()))
        })
        .collect()
}

fn generate(size: Size) -> Vec<(Layer, Root)> {
    let services = size.agents * SERVICES_PER_AGENT;
    let mut files = BTreeMap::new();
    for index in 0..services {
        let path = format!(".skein/services/{}.yaml", service_name(index));
        files.insert(PathBuf::from(path), service(index, services).into_bytes());
    }
    for index in 0..size.agents {
        let name = agent_name(index);
        files.insert(PathBuf::from(format!(".skein/agents/{name}.yaml")), agent(index, services).into_bytes());
        if !is_external(index) {
            for mode in 0..MODES {
                let path = format!(".skein/agents/prompts/{name}/mode-{mode}.md");
                files.insert(PathBuf::from(path), prompt(index, mode).into_bytes());
            }
        }
    }
    vec![(Layer::Project, Root::Snapshot { files, shown: String::new() })]
}

fn service_name(index: usize) -> String {
    format!("service-{index:05}")
}

fn agent_name(index: usize) -> String {
    format!("agent-{index:04}")
}

/// One agent in ten is a program of its own and brings its own prompts.
fn is_external(index: usize) -> bool {
    index % 10 == 9
}

/// A service stands on one of ten floors and requires only services of lower floors, anywhere in the set: no
/// cycles, and chains of up to ten, whatever the size of the set.
fn service(index: usize, services: usize) -> String {
    let name = service_name(index);
    let floor = index % 10;
    let on_floor = |floor: usize, step: usize| service_name((index * step) % (services / 10) * 10 + floor);
    let mut text = format!(
        "version: 1\nkind: service\nname: {name}\ntitle: Service {index}\n\
         description: Answers questions about the part of the world that has the number {index}.\n"
    );
    if index.is_multiple_of(4) {
        _ = write!(text, "transport:\n  http:\n    url: https://{name}.example/mcp\n");
        text.push_str("    headers: {Authorization: 'Bearer ${env:SERVICE_TOKEN}'}\n");
    } else {
        _ = write!(text, "transport:\n  stdio:\n    command: {name}\n    args: [serve, --part, '{index}']\n");
        text.push_str("    env: {SERVICE_TOKEN: '${env:SERVICE_TOKEN}'}\n");
    }
    match floor {
        0 => {}
        1..=5 => _ = writeln!(text, "requires: [{}]", on_floor(floor - 1, 7)),
        _ => _ = writeln!(text, "requires: {{store: {}, index: {}}}", on_floor(floor - 1, 7), on_floor(0, 13)),
    }
    _ = write!(
        text,
        "groups:\n  read: [list_{index}, get_{index}]\n  edit: [put_{index}, remove_{index}]\n\
         timeouts: {{start: 10s, call: 30s, idle: 5m}}\n"
    );
    text
}

fn agent(index: usize, services: usize) -> String {
    let name = agent_name(index);
    let needed = |mode: usize| (0..NEEDS).map(move |need| ((index * MODES + mode) * NEEDS + need) % services);
    let declared: Vec<_> = (0..MODES).flat_map(needed).map(service_name).collect();
    let mut text = format!(
        "version: 1\nkind: agent\nname: {name}\ntitle: Agent {index}\n\
         description: Does the work that has the number {index}.\n\
         input_content_types: [text/plain, text/markdown]\n\
         metadata:\n  license: Apache-2.0\n  tags: [generated, number-{index}]\n  dependencies: [{}]\n",
        declared.join(", ")
    );
    if is_external(index) {
        _ = writeln!(text, "runtime:\n  acp: {{command: {name}, args: [--acp]}}");
    }
    text.push_str("default_mode: mode-0\n");
    if index.is_multiple_of(2) {
        let next = agent_name(index + 1);
        _ = writeln!(text, "delegates: [{next}/*, {next}/mode-1]");
    }
    text.push_str("modes:\n");
    for mode in 0..MODES {
        _ = write!(
            text,
            "  - slug: mode-{mode}\n    name: Mode {mode}\n    description: Way {mode} of doing the work.\n    \
             when_to_use: >-\n      The request speaks of the work that has the number {index}, and asks for it to be done in\n      \
             the way that has the number {mode}. Other ways of doing it belong to the other modes.\n    \
             examples:\n"
        );
        for example in 0..5 {
            _ = writeln!(
                text,
                "      - \"Please do part {example} of work {index} in way {mode}, and say what you did\""
            );
        }
        if !is_external(index) {
            _ = writeln!(text, "    prompt: prompts/{name}/mode-{mode}.md");
        }
        // As in the built-in agents, few modes narrow a group to some files.
        let groups = if mode == 0 { r"[read, {group: edit, files: '\.md$'}]" } else { "[read, edit]" };
        _ = write!(text, "    tool_groups: {groups}\n    dependencies:\n");
        for (position, service) in needed(mode).map(service_name).enumerate() {
            _ = match position {
                0 => writeln!(text, "      - {{type: tool, name: {service}, optional: true}}"),
                _ => writeln!(text, "      - {service}"),
            };
        }
        text.push_str("    approval: ask\n");
    }
    text
}

fn prompt(index: usize, mode: usize) -> String {
    let mut text =
        format!("# Work {index}, way {mode}\n\nYou are {{{{ agent }}}}/{{{{ mode }}}} in {{{{ cwd }}}}.\n\n");
    for rule in 0..20 {
        _ = writeln!(text, "- Rule {rule}: read before you write, and say what you left undone.");
    }
    text
}
