//! The built-in wiring: the table in the docs against the manifests, and what every prompt and mode must have.

#![expect(clippy::expect_used, reason = "what a test cannot go on without ends it")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use regex::Regex;
use skein::diagnostic::Severity;
use skein::graph::{self, Plan, Resolution};
use skein::manifest::{self, GroupEntry, Layer, Manifests, ModeEntry, Root};
use skein::router::{Router, candidates};
use skein::sandbox::SandboxProfile;

use crate::support::model::{Answer, ScriptedModel};
use crate::support::{Sandbox, files_below, read, repository, table};

fn built_in() -> Manifests {
    let (manifests, found) = manifest::load(&[(Layer::Builtin, Root::Builtin)]);
    assert_eq!(found, [], "the built-in files can be read");
    manifests
}

/// Every mode as `agent/mode`.
fn modes(manifests: &Manifests) -> Vec<(String, &ModeEntry)> {
    let mut modes = Vec::new();
    for (name, agent) in &manifests.agents {
        modes.extend(agent.modes.iter().map(|mode| (format!("{name}/{}", mode.mode.slug), mode)));
    }
    modes
}

/// One row of the wiring table: groups with the files they are narrowed to, services with whether they are
/// optional.
#[derive(Debug, PartialEq)]
struct Wiring {
    groups: Vec<(String, Option<String>)>,
    dependencies: Vec<(String, bool)>,
    internal: bool,
}

fn documented(row: &[String]) -> (String, Wiring) {
    let [mode, groups, dependencies] = row else { panic!("three cells: {row:?}") };
    let remark = Regex::new(r" \(no [^)]*\)").expect("a pattern");
    let narrowed = Regex::new(r"\{group: (\w+), files: `([^`]+)`\}").expect("a pattern");
    let groups = remark.replace_all(groups, "");
    // A pattern may hold a comma, so the narrowed groups are taken out before the list is split.
    let patterns: BTreeMap<_, _> =
        narrowed.captures_iter(&groups).map(|found| (format!("<{}>", &found[1]), found[2].to_owned())).collect();
    let groups = narrowed.replace_all(&groups, "<$1>");
    let mut wiring = Wiring { groups: Vec::new(), dependencies: Vec::new(), internal: false };
    for group in groups.split(", ") {
        match patterns.get(group) {
            _ if group == "(none)" => {}
            _ if group == "internal: never offered to a user" => wiring.internal = true,
            Some(files) => wiring.groups.push((group.trim_matches(['<', '>']).to_owned(), Some(files.clone()))),
            None => wiring.groups.push((group.to_owned(), None)),
        }
    }
    for dependency in dependencies.split(", ").filter(|dependency| *dependency != "(none)") {
        wiring.dependencies.push(match dependency.strip_suffix(" (optional)") {
            Some(name) => (name.to_owned(), true),
            None => (dependency.to_owned(), false),
        });
    }
    (mode.clone(), wiring)
}

fn written(entry: &ModeEntry) -> Wiring {
    let group = |group: &GroupEntry| (group.group().to_string(), group.files().map(str::to_owned));
    let mode = &entry.mode;
    Wiring {
        groups: mode.tool_groups.iter().map(group).collect(),
        dependencies: mode.dependencies.iter().map(|one| (one.name().to_string(), one.optional())).collect(),
        internal: mode.internal,
    }
}

#[test]
fn the_manifests_are_wired_as_the_table_in_the_docs_says() {
    let rows = table(&read(repository("docs/manifests.md")), &["agent/mode", "tool_groups", "dependencies"]);
    let mut table: BTreeMap<_, _> = rows.iter().map(|row| documented(row)).collect();
    assert_eq!(table.len(), rows.len(), "no mode has two rows");
    for (id, entry) in modes(&built_in()) {
        assert_eq!(table.remove(&id), Some(written(entry)), "{id}: left the table in the docs, right the manifest");
    }
    assert!(table.is_empty(), "rows without a mode: {table:?}");
}

/// A mode without a row has no shell, so a new mode without one needs none.
#[test]
fn the_modes_have_the_sandbox_that_the_docs_say() {
    let rows = table(&read(repository("docs/manifests.md")), &["mode", "sandbox of its commands"]);
    let mut table: BTreeMap<_, _> = rows.iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    let (manifests, found) = manifest::load(&[(Layer::Builtin, Root::Builtin)]);
    let plan = graph::resolve(manifests, found).plan.expect("a plan");
    for (id, _) in modes(plan.manifests()) {
        let profile = plan.mode_sandbox(&id.parse().expect("a mode"));
        assert_eq!(table.remove(&id), profile.map(SandboxProfile::summary), "{id}: left the docs, right the plan");
    }
    assert!(table.is_empty(), "rows without a mode: {table:?}");
}

#[test]
fn the_services_have_the_tools_that_the_docs_list() {
    let rows = table(&read(repository("docs/manifests.md")), &["service", "owner", "tools by group"]);
    let mut table: BTreeMap<_, _> = rows.iter().map(|row| (row[0].clone(), (row[1].clone(), row[2].clone()))).collect();
    for (name, service) in &built_in().services {
        let groups = service.manifest.groups.iter().map(|(group, tools)| {
            let tools: Vec<_> = tools.iter().map(|tool| tool.as_str()).collect();
            format!("{group}: {}", if tools.is_empty() { "(none)".to_owned() } else { tools.join(", ") })
        });
        let owner = service.manifest.owner.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
        let groups: Vec<_> = groups.collect();
        let groups = if groups.is_empty() { "(none)".to_owned() } else { groups.join("; ") };
        assert_eq!(table.remove(name.as_str()), Some((owner, groups)), "{name}: left the docs, right the manifest");
    }
    assert!(table.is_empty(), "rows without a service: {table:?}");
}

#[test]
fn the_built_in_set_has_no_errors_and_no_warnings() {
    let Resolution { plan, diagnostics } = graph::resolve(built_in(), Vec::new());
    assert!(plan.is_some());
    let serious: Vec<_> = diagnostics.iter().filter(|found| found.severity != Severity::Note).collect();
    assert!(serious.is_empty(), "{serious:#?}");
}

#[test]
fn every_mode_prompt_renders_and_is_short() {
    for (id, entry) in modes(&built_in()) {
        let prompt = entry.prompt.as_ref().unwrap_or_else(|| panic!("{id} has a prompt"));
        assert_eq!(prompt.check(skein::manifest::Rendering::WithStandIns), [], "{id}");
        let limit = if id == "goose/assistant" { 2_000 } else { 5_000 };
        assert!(prompt.text.len() <= limit, "{id} has {} bytes of {limit}", prompt.text.len());
    }
}

#[test]
fn every_prompt_has_its_five_parts() {
    for (id, entry) in modes(&built_in()) {
        let text = &entry.prompt.as_ref().unwrap_or_else(|| panic!("{id} has a prompt")).text;
        let (role, parts) = text.split_once("\n## ").unwrap_or_else(|| panic!("{id} has headings"));
        assert!(role.starts_with("You are "), "{id} begins with the role");
        let headings: Vec<_> = parts.split("\n## ").map(|part| part.lines().next().unwrap_or_default()).collect();
        assert_eq!(headings, ["Responsibilities", "How to work", "Deliver", "Limits"], "{id}");
        for part in parts.split("\n## ") {
            let body = part.split_once('\n').map_or("", |(_, body)| body.trim());
            assert!(body.len() > 40, "{id}: a part says something: {part}");
        }
    }
}

#[test]
fn every_mode_has_many_distinct_router_examples() {
    let manifests = built_in();
    let mut all = BTreeMap::new();
    for (id, entry) in modes(&manifests) {
        assert!(entry.mode.when_to_use.as_ref().is_some_and(|when| when.len() > 40), "{id}");
        let distinct: BTreeSet<_> = entry.examples.iter().map(|example| example.trim().to_lowercase()).collect();
        assert_eq!(entry.examples.len(), distinct.len(), "{id} repeats an example");
        let enough = if entry.mode.internal { 25 } else { 90 };
        assert!(distinct.len() >= enough, "{id} has {} examples, the router needs {enough}", distinct.len());
        for example in distinct {
            if let Some(other) = all.insert(example.clone(), id.clone()) {
                panic!("{example:?} is an example of both {other} and {id}");
            }
        }
    }
}

#[test]
fn every_file_of_manifests_and_agents_is_compiled_in() {
    let found: BTreeMap<_, _> = Root::Builtin.manifests().into_iter().map(|one| (one.path, one.text)).collect();
    for file in
        ["manifests/agents", "manifests/services", "agents"].iter().flat_map(|folder| files_below(&repository(folder)))
    {
        let path = file.strip_prefix(repository("")).expect("inside the repository").to_owned();
        let compiled = match found.get(&path) {
            Some(text) => text.clone().map_err(|found| found.problem),
            None => {
                let linked = Root::Builtin.read_linked_file(Path::new(""), &path.to_string_lossy());
                linked.map(|linked| linked.text).map_err(|error| error.to_string())
            }
        };
        assert_eq!(compiled.as_deref(), Ok(read(&file).as_str()), "{}", path.display());
    }
}

/// A manifest is documentation: what the router needs in bulk is in `examples_file`.
#[test]
fn a_built_in_agent_manifest_has_at_most_250_lines() {
    for file in files_below(&repository("manifests/agents")) {
        let lines = read(&file).lines().count();
        assert!(lines <= 250, "{} has {lines} lines", file.display());
    }
}

/// The tools of the built-in services that a mode has, as `service__tool`.
fn tools_of(plan: &Plan, mode: &str) -> BTreeSet<String> {
    let (_, scope) = plan.mode(&mode.parse().expect("a mode")).expect("a built-in mode");
    let mut tools = BTreeSet::new();
    for service in plan.services() {
        let declared: BTreeSet<_> = service.manifest.groups.values().flatten().collect();
        let admitted = declared.into_iter().filter(|tool| scope.admits(service, tool.as_str()).is_ok());
        tools.extend(admitted.map(|tool| format!("{}__{tool}", service.manifest.name)));
    }
    tools
}

fn plan() -> Plan {
    graph::resolve(built_in(), Vec::new()).plan.expect("a plan")
}

/// The tools that a text names: `service__tool` anywhere, and a bare tool name in backticks.
fn tools_named(plan: &Plan, text: &str) -> BTreeSet<String> {
    let full = Regex::new(r"\b[a-z]+(?:_[a-z]+)*__[a-z_]+\b").expect("a pattern");
    let mut named: BTreeSet<_> = full.find_iter(text).map(|found| found.as_str().to_owned()).collect();
    let bare = Regex::new(r"`([a-z_]+)`").expect("a pattern");
    let known: BTreeSet<_> = plan.services().flat_map(|service| service.manifest.groups.values().flatten()).collect();
    let quoted = bare.captures_iter(text).map(|found| found[1].to_owned());
    named.extend(quoted.filter(|name| known.iter().any(|tool| tool.as_str() == name)));
    named
}

/// A model that is told of a tool it does not have calls it in vain.
#[test]
fn every_tool_that_a_prompt_names_is_in_the_scope_of_its_mode() {
    let plan = plan();
    for (id, entry) in modes(plan.manifests()) {
        let prompt = entry.prompt.as_ref().unwrap_or_else(|| panic!("{id} has a prompt"));
        let tools = tools_of(&plan, &id);
        for name in tools_named(&plan, &prompt.text) {
            let has = tools.iter().any(|tool| *tool == name || tool.ends_with(&format!("__{name}")));
            assert!(has, "the prompt of {id} names `{name}`, which the mode does not have");
        }
    }
    let found = tools_named(&plan, "call developer__shell, `draw` and `no_such_tool`, not `shell script`");
    assert_eq!(found, BTreeSet::from(["developer__shell", "draw"].map(str::to_owned)), "the test finds tools");
}

/// A request that the router sends to a mode must be one that the mode has tools for.
#[test]
fn router_examples_ask_only_for_what_their_mode_can_do() {
    let reads = r"(?i)\b(read|open|summari[sz]e|analy[sz]e|extract|copy)\b.*(\bpdfs?\b|\b(docx|xlsx|pptx|odt|ods)\b|\bspreadsheet\b|\b(word|excel) (file|document|sheet)\b)";
    let draws = r"(?i)\b(pie|bar|line|area|radar|donut|bubble|candlestick) (chart|graph|plot)\b|\bhistogram\b|\bscatter ?plot\b|\bheat ?map\b|\bbox ?plot\b|\btreemap\b|\bsankey\b";
    let rules: [(&str, &[&str]); 2] =
        [(reads, &["computercontroller__read_document"]), (draws, &["autovisualiser__draw", "apps__create_app"])];
    let plan = plan();
    for (id, entry) in modes(plan.manifests()) {
        let tools = tools_of(&plan, &id);
        for (pattern, needed) in &rules {
            if needed.iter().any(|tool| tools.contains(*tool)) {
                continue;
            }
            let pattern = Regex::new(pattern).expect("a pattern");
            let broken: Vec<_> = entry.examples.iter().filter(|example| pattern.is_match(example)).collect();
            assert!(broken.is_empty(), "{id} has none of {needed:?}, and its examples need one: {broken:#?}");
        }
    }
}

#[test]
fn the_analyst_reads_and_draws_without_shell_edit_or_network() {
    let tools = tools_of(&plan(), "goose/analyst");
    for tool in ["developer__read_file", "computercontroller__read_document", "autovisualiser__draw", "memory__recall"]
    {
        assert!(tools.contains(tool), "{tool} is missing in {tools:?}");
    }
    for tool in ["developer__shell", "developer__write_file", "developer__edit_file", "fetch__fetch_url"] {
        assert!(!tools.contains(tool), "the analyst has {tool}");
    }
}

#[test]
fn requests_about_documents_and_charts_go_to_the_analyst() {
    let router = Router::learn(&candidates(&built_in()));
    for prompt in [
        "Summarise the PDF report about water quality",
        "What is the sum of column D in costs.xlsx?",
        "Draw a bar chart of the votes per party",
        "plot the measurements in lab.csv as a scatter chart",
        "Open minutes.docx and tell me the main points",
        "make a pie chart from this spreadsheet",
    ] {
        let best = router.rank(prompt).remove(0);
        assert_eq!(best.mode.to_string(), "goose/analyst", "{prompt}: {best:?}");
    }
    for (prompt, mode) in [
        ("Give me an app to log my weight with a line chart", "goose/app_maker"),
        ("Convert orders.csv to JSON Lines, one object per row", "goose/specialist"),
        ("Fix the bug in the PDF export endpoint of the server", "coding/backend"),
    ] {
        let best = router.rank(prompt).remove(0);
        assert_eq!(best.mode.to_string(), mode, "{prompt}: {best:?}");
    }
}

/// Every prompt of a session pays for it. The limit leaves room for a long working directory.
#[test]
fn the_first_request_of_the_assistant_is_under_11_kb() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Says(vec!["Hello.".to_owned()]));
    let mut command = model.offered_to(sandbox.command(&["run", "-a", "goose/assistant", "hello"]));
    assert!(command.output().expect("an answer").status.success());
    let request = model.requests().remove(0);
    let tools = request["tools"].as_array().expect("tools");
    let has_knowledge = tools.iter().any(|tool| tool["function"]["name"] == "knowledge__load");
    assert!(has_knowledge && tools.len() == 20, "{} tools", tools.len());
    let bytes = request.to_string().len();
    assert!(bytes < 11_000, "the first request has {bytes} bytes");
}
