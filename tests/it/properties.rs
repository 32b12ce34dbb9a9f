//! What holds for every input: nothing panics, places lie in their files, a plan is sound, and a mode never
//! reaches what it did not ask for.
#![allow(clippy::expect_used, reason = "helpers of tests fail the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};
use skein::diagnostic::{Diagnostic, Severity, SourceLocation};
use skein::graph::{self, Plan, Resolution};
use skein::ids::ModeId;
use skein::manifest::{self, DependencyKind, Layer, Root};

type Files = BTreeMap<PathBuf, Vec<u8>>;

/// A project in memory, alone or on the built-in manifests.
fn resolve(files: &Files, below: &[(Layer, Root)]) -> Resolution {
    let mut roots = below.to_vec();
    roots.push((Layer::Project, Root::Snapshot { files: files.clone(), shown: String::new() }));
    let (manifests, found) = manifest::load(&roots);
    graph::resolve(manifests, found)
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

// ---- arbitrary documents ----

const BASES: [(&str, &str); 4] = [
    (
        ".skein/agents/a.yaml",
        r#"{"version": 1, "kind": "agent", "name": "a", "description": "x", "default_mode": "m",
            "metadata": {"dependencies": ["s", {"type": "tool", "name": "t", "optional": true}], "tags": ["x"]},
            "delegates": ["a/m"], "runtime": {"acp": {"command": "x", "env": {"K": "${env:K}"}}},
            "modes": [{"slug": "m", "description": "x", "prompt": "a.md", "approval": "ask",
                       "tool_groups": ["s", {"group": "read", "files": "\\.md$"}], "dependencies": ["s"]}]}"#,
    ),
    (
        ".skein/services/s.json",
        r#"{"version": 1, "kind": "service", "name": "s", "description": "x", "requires": {"role": "t"},
            "transport": {"stdio": {"command": "x", "args": ["${env:A}"], "env": {"TOKEN": "y"}}},
            "groups": {"read": ["get", "list"]}, "timeouts": {"call": "5s"}, "restart": {"max": 3}}"#,
    ),
    (
        ".skein/config.yaml",
        r#"{"version": 1, "approval": "ask", "profile": "p",
            "profiles": {"p": {"processor": "a:b", "services": ["s"], "agent": "a", "mode": "m"}}}"#,
    ),
    (
        ".mcp.json",
        r#"{"mcpServers": {"One Two": {"command": "x", "args": ["y"], "env": {"A": "${A}"}},
            "web": {"type": "http", "url": "https://example.org", "headers": {"Authorization": "z"}}}}"#,
    ),
];

/// What YAML and JSON are made of, and what their parsers disagree about.
const TOKENS: [&str; 34] = [
    "- ", ": ", ":", "\n", "  ", "[", "]", "{", "}", ",", "&a ", "*a", "!t ", "|", ">", "\"", "'", "#", "---\n",
    "...\n", "? ", "<<: *a", "\t", "\r", "é", "日本", "\u{85}", "\u{2028}", "\u{feff}", "\0", "~", "1e999", "${",
    "{{ x }}",
];

#[derive(Debug, Clone)]
enum Change {
    Replace(Value),
    Remove,
    Add(String, Value),
    Nest(usize),
}

fn values() -> impl Strategy<Value = Value> {
    select(vec![
        json!(null),
        json!(true),
        json!(-1),
        json!(1.5),
        json!(u64::MAX),
        json!(""),
        json!("s"),
        json!("(("),
        json!("a/*"),
        json!("${X}"),
        json!("../../x"),
        json!([]),
        json!({}),
        json!(["s", "s"]),
        json!([[1], {"name": "s"}]),
        json!({"group": "s", "files": "["}),
        json!({"stdio": {"command": "x"}, "http": {"url": "http://x"}}),
    ])
}

fn changes() -> impl Strategy<Value = Change> {
    let keys = select(vec!["name", "slug", "kind", "owner", "internal", "requires", "groups", "<<", "", "ü", "7"]);
    prop_oneof![
        4 => values().prop_map(Change::Replace),
        2 => Just(Change::Remove),
        2 => (keys, values()).prop_map(|(key, value)| Change::Add(key.to_owned(), value)),
        1 => select(vec![1, 20, 130, 300]).prop_map(Change::Nest),
    ]
}

/// Changes one node of the document, counted in the order they are written.
fn change(value: &mut Value, at: &mut usize, change: &Change) {
    if *at == 0 {
        match (change, &mut *value) {
            (Change::Replace(new), _) => *value = new.clone(),
            (Change::Remove, Value::Object(entries)) => drop(entries.pop_last()),
            (Change::Remove, Value::Array(items)) => drop(items.pop()),
            (Change::Remove, _) => *value = Value::Null,
            (Change::Add(key, new), Value::Object(entries)) => drop(entries.insert(key.clone(), new.clone())),
            (Change::Add(_, new), _) => *value = json!([new, new]),
            (Change::Nest(depth), _) => *value = (0..*depth).fold(value.take(), |inner, _| json!([inner])),
        }
    }
    *at = at.wrapping_sub(1);
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| self::change(item, at, change)),
        Value::Object(entries) => entries.values_mut().for_each(|entry| self::change(entry, at, change)),
        _ => {}
    }
}

trait PopLast {
    fn pop_last(&mut self) -> Option<Value>;
}

impl PopLast for serde_json::Map<String, Value> {
    fn pop_last(&mut self) -> Option<Value> {
        let key = self.keys().next_back()?.clone();
        self.remove(&key)
    }
}

fn insert(text: &mut String, at: &Index, token: &str) {
    let mut byte = at.index(text.len() + 1);
    while !text.is_char_boundary(byte) {
        byte -= 1;
    }
    text.insert_str(byte, token);
}

/// Valid manifests, some nodes of one of them changed, then some tokens strewn into its text.
fn mutated() -> impl Strategy<Value = Files> {
    let nodes = vec((0..40_usize, changes()), 0..4);
    let tokens = vec((any::<Index>(), select(TOKENS.to_vec())), 0..3);
    (0..BASES.len(), nodes, tokens, any::<bool>()).prop_map(|(which, nodes, tokens, block)| {
        let mut files = Files::from([(PathBuf::from(".skein/agents/a.md"), b"You are {{ agent }}.".to_vec())]);
        for (index, (path, text)) in BASES.iter().enumerate() {
            let mut value: Value = serde_json::from_str(text).expect("a valid base");
            let mut text = (*text).to_owned();
            if index == which {
                for (at, wanted) in &nodes {
                    change(&mut value, &mut at.clone(), wanted);
                }
                let yaml = path.ends_with(".yaml") && block;
                text = if yaml { serde_yaml::to_string(&value).expect("YAML") } else { format!("{value:#}") };
                for (at, token) in &tokens {
                    insert(&mut text, at, token);
                }
            }
            files.insert(PathBuf::from(path), text.into_bytes());
        }
        files
    })
}

fn arbitrary_text() -> impl Strategy<Value = String> {
    let soup =
        vec(prop_oneof![select(TOKENS.to_vec()), select(vec!["a", "version: 1\n", "kind: agent\n", "1"])], 0..60);
    prop_oneof![any::<String>(), soup.prop_map(|tokens| tokens.concat())]
}

fn assert_lies_inside(place: &SourceLocation, code: &str, files: &Files) {
    let Some(span) = &place.span else { return };
    let bytes = files.get(&PathBuf::from(&place.file)).expect("a place lies in a file that was read");
    let text = std::str::from_utf8(bytes).expect("a place lies in text");
    // The mark that some editors put first is no part of the first line.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let line = text.lines().nth(span.line - 1).unwrap_or_default();
    assert!(span.line <= text.lines().count().max(1), "{place:?}");
    assert!(span.column + span.width <= line.chars().count() + 2, "{place:?} in {line:?}");
    // Secrets in the line are masked, character by character, or cut off.
    let is_shown = |(shown, c): (char, char)| shown == c || shown == '*';
    let same = span.text.chars().count() == line.chars().count() && span.text.chars().zip(line.chars()).all(is_shown);
    assert!(same || code == "W202", "{place:?} in {line:?}");
}

fn assert_well_reported(diagnostics: &[Diagnostic], files: &Files) {
    for found in diagnostics {
        assert!(!found.render().is_empty() && !found.problem.is_empty() && !found.help.is_empty());
        assert_lies_inside(&found.at, found.code, files);
        found.related.iter().for_each(|(place, _)| assert_lies_inside(place, found.code, files));
    }
}

fn has_error(resolved: &Resolution) -> bool {
    resolved.diagnostics.iter().any(|found| found.severity == Severity::Error)
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn any_text_is_read_or_explained(text in arbitrary_text(), which in 0..BASES.len()) {
        let files = Files::from([(PathBuf::from(BASES[which].0), text.into_bytes())]);
        let resolved = resolve(&files, &[]);
        assert_well_reported(&resolved.diagnostics, &files);
        prop_assert_eq!(resolved.plan.is_none(), has_error(&resolved));
    }

    #[test]
    fn any_change_to_a_manifest_is_read_or_explained(files in mutated()) {
        let resolved = resolve(&files, &[]);
        assert_well_reported(&resolved.diagnostics, &files);
        prop_assert_eq!(resolved.plan.is_none(), has_error(&resolved));
    }
}

// ---- arbitrary graphs ----

/// Manifests by number: service `sN` declares groups `gN`, agent `aN` has modes `mN`.
#[derive(Debug, Clone)]
struct Model {
    services: Vec<Service>,
    agents: Vec<Agent>,
    /// Only what can be right: names that exist, no circles, all that is asked for declared.
    sound: bool,
}

#[derive(Debug, Clone)]
struct Service {
    requires: BTreeSet<usize>,
    groups: BTreeSet<usize>,
}

#[derive(Debug, Clone)]
struct Agent {
    modes: Vec<Mode>,
    delegates: BTreeSet<usize>,
}

#[derive(Debug, Clone)]
struct Mode {
    needs: BTreeMap<usize, bool>,
    groups: Vec<Group>,
}

#[derive(Debug, Clone)]
enum Group {
    Declared(usize),
    Service(usize),
    Named(&'static str),
}

const SERVICES: usize = 6;
const AGENTS: usize = 4;
/// One number in each range names nothing.
const GROUPS: usize = 4;

fn models() -> impl Strategy<Value = Model> {
    let numbers = |below: usize, most: usize| proptest::collection::btree_set(0..below, 0..most);
    let service =
        (numbers(SERVICES + 1, 3), numbers(GROUPS, 3)).prop_map(|(requires, groups)| Service { requires, groups });
    let group = prop_oneof![
        (0..=GROUPS).prop_map(Group::Declared),
        (0..=SERVICES).prop_map(Group::Service),
        select(vec!["mcp", "none", "summon", "read"]).prop_map(Group::Named),
    ];
    let needs = proptest::collection::btree_map(0..=SERVICES, any::<bool>(), 0..4);
    let mode = (needs, vec(group, 0..4)).prop_map(|(needs, groups)| Mode { needs, groups });
    let agent = (vec(mode, 1..3), numbers(AGENTS + 1, 2)).prop_map(|(modes, delegates)| Agent { modes, delegates });
    (vec(service, SERVICES), vec(agent, AGENTS), any::<bool>())
        .prop_map(|(services, agents, sound)| Model { services, agents, sound }.mended())
}

impl Model {
    fn mended(mut self) -> Self {
        if self.sound {
            for (index, service) in self.services.iter_mut().enumerate() {
                service.requires.retain(|required| *required < index);
            }
            for (index, agent) in self.agents.iter_mut().enumerate() {
                agent.delegates.retain(|target| *target < index);
                for mode in &mut agent.modes {
                    mode.needs.retain(|service, _| *service < SERVICES);
                    mode.groups.retain(|group| match group {
                        Group::Declared(group) => mode.needs.keys().any(|s| self.services[*s].groups.contains(group)),
                        Group::Service(service) => mode.needs.contains_key(service),
                        Group::Named(name) => ["mcp", "none"].contains(name),
                    });
                }
            }
        }
        self
    }

    fn files(&self) -> Files {
        let mut files = Files::new();
        let list = |names: Vec<String>| names.join(", ");
        for (index, service) in self.services.iter().enumerate() {
            let requires = list(service.requires.iter().map(|required| format!("s{required}")).collect());
            let groups = list(service.groups.iter().map(|group| format!("g{group}: [t{index}, u{group}]")).collect());
            let text = format!(
                "version: 1\nkind: service\nname: s{index}\ndescription: x\ntransport: {{stdio: {{command: x}}}}\n\
                 requires: [{requires}]\ngroups: {{{groups}}}\n"
            );
            files.insert(PathBuf::from(format!(".skein/services/s{index}.yaml")), text.into_bytes());
        }
        for (index, agent) in self.agents.iter().enumerate() {
            let needed: BTreeSet<_> = agent.modes.iter().flat_map(|mode| mode.needs.keys()).collect();
            let declared = list(needed.into_iter().map(|service| format!("s{service}")).collect());
            let delegates = list(agent.delegates.iter().map(|target| format!("\"a{target}/*\"")).collect());
            let mut text = format!(
                "version: 1\nkind: agent\nname: a{index}\ndescription: x\nruntime: {{acp: {{command: x}}}}\n\
                 metadata: {{dependencies: [{declared}]}}\ndelegates: [{delegates}]\nmodes:\n"
            );
            for (index, mode) in agent.modes.iter().enumerate() {
                let needs = mode.needs.iter().map(|(s, optional)| format!("{{name: s{s}, optional: {optional}}}"));
                let groups = mode.groups.iter().map(|group| match group {
                    Group::Declared(group) => format!("g{group}"),
                    Group::Service(service) => format!("s{service}"),
                    Group::Named(name) => (*name).to_owned(),
                });
                let (needs, groups) = (list(needs.collect()), list(groups.collect()));
                _ = writeln!(
                    text,
                    "  - slug: m{index}\n    description: x\n    tool_groups: [{groups}]\n    dependencies: [{needs}]"
                );
            }
            files.insert(PathBuf::from(format!(".skein/agents/a{index}.yaml")), text.into_bytes());
        }
        files
    }

    /// Every `requires` and `delegates` edge between things that exist.
    fn edges(&self) -> BTreeSet<(String, String)> {
        let services = self.services.iter().enumerate().flat_map(|(from, service)| {
            let targets = service.requires.iter().filter(|to| **to < SERVICES);
            targets.map(move |to| (format!("s{from}"), format!("s{to}")))
        });
        let agents = self.agents.iter().enumerate().flat_map(|(from, agent)| {
            let targets = agent.delegates.iter().filter(|to| **to < AGENTS);
            targets.map(move |to| (format!("a{from}"), format!("a{to}")))
        });
        services.chain(agents).collect()
    }

    /// Edges that lead nowhere are taken away until none is left, or only circles are.
    fn has_circle(&self) -> bool {
        let mut edges = self.edges();
        loop {
            let sources: BTreeSet<_> = edges.iter().map(|(from, _)| from.clone()).collect();
            let before = edges.len();
            edges.retain(|(_, to)| sources.contains(to));
            if edges.len() == before {
                return before > 0;
            }
        }
    }
}

fn modes(plan: &Plan) -> Vec<ModeId> {
    let ids = plan.agents().flat_map(|agent| {
        agent.modes.iter().map(|mode| ModeId::new(agent.manifest.name.clone(), mode.mode.slug.clone()))
    });
    ids.collect()
}

/// What a mode needs according to its manifest and those of the services, without the graph.
fn closure(plan: &Plan, id: &ModeId) -> BTreeSet<String> {
    let (entry, _) = plan.mode(id).expect("a mode of the plan");
    let tools = entry.mode.dependencies.iter().filter(|dependency| dependency.kind() == DependencyKind::Tool);
    let mut pending: Vec<_> = tools.map(|dependency| dependency.name().as_str().to_owned()).collect();
    if entry.mode.tool_groups.iter().any(|group| group.group().as_str() == "mcp") {
        let brought = plan.services().filter(|service| service.user_installed());
        pending.extend(brought.map(|service| service.manifest.name.as_str().to_owned()));
    }
    let mut reached = BTreeSet::new();
    while let Some(name) = pending.pop() {
        // An optional dependency may name what does not exist.
        let Some(service) = plan.service(&name) else { continue };
        if reached.insert(name) {
            let required = service.manifest.requires.roles();
            pending.extend(required.into_iter().map(|(_, required)| required.as_str().to_owned()));
        }
    }
    reached
}

fn assert_starts_in_order(plan: &Plan, id: &ModeId) {
    let mut started = BTreeSet::new();
    for level in plan.start_levels(id) {
        assert!(!level.is_empty(), "{id} has an empty level");
        for need in &level {
            let service = plan.service(need.service.as_str()).expect("a service of the plan");
            for (_, required) in service.manifest.requires.roles() {
                assert!(started.contains(required.as_str()), "{id} starts {} before {required}", need.service);
            }
        }
        for need in level {
            assert!(started.insert(need.service.as_str().to_owned()), "{id} starts {} twice", need.service);
        }
    }
    assert_eq!(started, closure(plan, id), "{id}");
}

/// Judges every tool of every service by the manifests alone.
fn assert_admits_only_what_was_asked_for(plan: &Plan, id: &ModeId) {
    let (entry, scope) = plan.mode(id).expect("a mode of the plan");
    let lists = |name: &str| entry.mode.tool_groups.iter().any(|group| group.group().as_str() == name);
    for service in plan.services() {
        let manifest = &service.manifest;
        let needed = entry.mode.dependencies.iter().any(|dependency| *dependency.name() == manifest.name);
        let brought = service.user_installed() && lists("mcp");
        let tools = manifest.groups.values().flatten().map(|tool| tool.as_str()).chain(["made_up"]);
        for tool in tools {
            let in_group = manifest
                .groups
                .iter()
                .any(|(group, tools)| lists(group.as_str()) && tools.iter().any(|known| known.as_str() == tool));
            let allowed = brought || (needed && (in_group || lists(manifest.name.as_str())));
            if scope.admits(service, tool).is_ok() {
                assert!(allowed, "{id} may call {tool} of {}", manifest.name);
                assert!(!entry.mode.tool_groups.is_empty(), "{id} lists no groups");
                assert!(manifest.owner.is_none() || id.to_string() == "orchestrator/auto", "{id}: {}", manifest.name);
            }
        }
    }
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn any_graph_has_a_sound_plan_or_an_error(model in models()) {
        let files = model.files();
        let resolved = resolve(&files, &[]);
        assert_well_reported(&resolved.diagnostics, &files);
        prop_assert_eq!(resolved.plan.is_none(), has_error(&resolved));
        prop_assert!(!model.sound || resolved.plan.is_some(), "{:?}", resolved.diagnostics);
        let circles: Vec<_> = resolved.diagnostics.iter().filter(|found| found.code == "E110").collect();
        prop_assert_eq!(model.has_circle(), !circles.is_empty());
        let edges = model.edges();
        for circle in circles {
            let (_, chain) = circle.problem.split_once(": ").expect("a chain");
            let chain: Vec<_> = chain.split(" → ").map(str::to_owned).collect();
            prop_assert_eq!(chain.first(), chain.last());
            prop_assert_eq!(circle.related.len(), chain.len() - 1);
            for pair in chain.windows(2) {
                prop_assert!(edges.contains(&(pair[0].clone(), pair[1].clone())), "{:?} of {:?}", pair, chain);
            }
        }
        if let Some(plan) = &resolved.plan {
            for id in modes(plan) {
                assert_starts_in_order(plan, &id);
                assert_admits_only_what_was_asked_for(plan, &id);
            }
        }
    }
}

proptest! {
    #![proptest_config(config(40))]

    #[test]
    fn no_mode_reaches_past_what_it_asks_for(model in models()) {
        let resolved = resolve(&model.files(), &[(Layer::Builtin, Root::Builtin)]);
        if let Some(plan) = &resolved.plan {
            for id in modes(plan) {
                assert_starts_in_order(plan, &id);
                assert_admits_only_what_was_asked_for(plan, &id);
            }
        }
    }
}

// ---- size ----

const LONG: usize = 10_000;

fn chain(last_requires: &str) -> Files {
    let mut files = Files::new();
    for index in 0..LONG {
        let next = if index + 1 < LONG { format!("s{}", index + 1) } else { last_requires.to_owned() };
        let text = format!(
            "version: 1\nkind: service\nname: s{index}\ndescription: x\ntransport: {{stdio: {{command: x}}}}\n\
             requires: [{next}]\n"
        );
        files.insert(PathBuf::from(format!(".skein/services/s{index}.yaml")), text.into_bytes());
    }
    let agent = "version: 1\nkind: agent\nname: a\ndescription: x\nruntime: {acp: {command: x}}\n\
                 metadata: {dependencies: [s0]}\n\
                 modes: [{slug: m, description: x, tool_groups: [s0], dependencies: [s0]}]\n";
    files.insert(PathBuf::from(".skein/agents/a.yaml"), agent.into());
    files
}

#[test]
fn a_chain_of_ten_thousand_services_is_resolved() {
    let plan = resolve(&chain(""), &[]).plan.expect("a plan");
    let levels = plan.start_levels(&"a/m".parse().expect("a mode"));
    assert_eq!(levels.len(), LONG);
    assert_eq!(levels[0][0].service.as_str(), "s9999");
    assert_eq!(levels[LONG - 1][0].service.as_str(), "s0");
}

#[test]
fn a_circle_of_ten_thousand_services_is_reported_whole() {
    let resolved = resolve(&chain("s0"), &[]);
    assert!(resolved.plan.is_none());
    let [circle] = resolved.diagnostics.as_slice() else { panic!("{} findings", resolved.diagnostics.len()) };
    assert_eq!((circle.code, circle.related.len()), ("E110", LONG));
    assert!(circle.render().contains("→ s9999 → s0"));
}
