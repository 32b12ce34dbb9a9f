//! The map in docs/architecture.md and the rules in docs/dependencies.md against the source: the arrows between
//! modules, the fences around crates, the size and the opening of files, forgotten tests, and links that lead nowhere.

#![expect(clippy::expect_used, reason = "what a test cannot go on without ends it")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use regex::Regex;

use crate::support::import_graph::ImportGraph;
use crate::support::{files_below, read, repository, table};

/// Excluding tests; past this a file is split by responsibility.
const MAX_LINES: usize = 500;

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a pattern")
}

fn rust_files(folder: &str) -> Vec<PathBuf> {
    files_below(&repository(folder)).into_iter().filter(|file| file.extension().is_some_and(|e| e == "rs")).collect()
}

/// As it is written in the docs: `manifest/yaml.rs`.
fn below_source(file: &Path) -> String {
    file.strip_prefix(repository("src")).expect("a source file").to_string_lossy().into_owned()
}

/// `src/manifest/yaml.rs` and `src/manifest.rs` are both of the module `manifest`.
fn module_of(file: &Path) -> String {
    let path = below_source(file);
    path.split('/').next().unwrap_or_default().trim_end_matches(".rs").to_owned()
}

/// The code of a file: comments may speak of anything.
fn code(file: &Path) -> String {
    let text = read(file);
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.map(|line| format!("{line}\n")).collect()
}

/// Unit tests stand at the end of a file.
fn without_tests(text: &str) -> String {
    text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default().to_owned()
}

/// `a, b` in a cell of the docs, with or without backticks; `nothing` is an empty list.
fn listed(cell: &str) -> BTreeSet<String> {
    let names = cell.split(',').map(|name| name.trim().trim_matches('`').to_owned());
    names.filter(|name| !name.is_empty() && name != "nothing").collect()
}

fn architecture() -> String {
    read(repository("docs/architecture.md"))
}

fn dependencies() -> String {
    read(repository("docs/dependencies.md"))
}

/// Which modules each module may use, as the docs say. `every module above except a, b` is all rows before this one.
fn arrows() -> BTreeMap<String, BTreeSet<String>> {
    let mut arrows = BTreeMap::new();
    for row in table(&dependencies(), &["module", "may use", "rule of the arrow"]) {
        assert!(!row[2].is_empty(), "{}: every row says its rule", row[0]);
        let allowed = match row[1].strip_prefix("every module above except ") {
            Some(others) => &arrows.keys().cloned().collect() - &listed(others),
            None => listed(&row[1]),
        };
        for module in listed(&row[0]) {
            assert!(arrows.insert(module.clone(), allowed.clone()).is_none(), "{module} has two rows");
        }
    }
    arrows
}

/// The modules of `crate` that a text refers to, whichever way it is written.
fn used_modules(code: &str, depth: usize, modules: &BTreeSet<String>) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for found in pattern(r"\bcrate::(\w+)").captures_iter(code) {
        used.insert(found[1].to_owned());
    }
    for found in pattern(r"\bcrate::\{([^;]*)\}").captures_iter(code) {
        used.extend(pattern(r"(?:^|,)\s*(\w+)").captures_iter(&found[1]).map(|name| name[1].to_owned()));
    }
    // More `super` than a file lies deep ends at the crate, too.
    for found in pattern(r"\b((?:super::)+)(\w+)").captures_iter(code) {
        if found[1].matches("super").count() > depth {
            used.insert(found[2].to_owned());
        }
    }
    used.retain(|name| modules.contains(name));
    used
}

#[test]
fn modules_use_only_what_the_table_in_the_docs_allows() {
    let arrows = arrows();
    let modules: BTreeSet<_> = arrows.keys().cloned().collect();
    for file in rust_files("src") {
        let module = module_of(&file);
        let Some(allowed) = arrows.get(&module) else { continue };
        let depth = below_source(&file).matches('/').count();
        for used in used_modules(&code(&file), depth, &modules) {
            let fine = used == module || allowed.contains(&used);
            assert!(fine, "src/{} uses `{used}`, which docs/dependencies.md does not allow", below_source(&file));
        }
    }
}

#[test]
fn every_module_has_a_row_and_every_row_a_module() {
    let modules: BTreeSet<_> = rust_files("src").iter().map(|file| module_of(file)).collect();
    let modules: BTreeSet<_> =
        modules.into_iter().filter(|module| !["lib", "main"].contains(&module.as_str())).collect();
    let rows: BTreeSet<_> = arrows().into_keys().collect();
    assert_eq!(rows, modules, "left the arrows of docs/dependencies.md, right src/");
    let map = table(&architecture(), &["module", "responsibility"]);
    let mapped: BTreeSet<_> = map.iter().flat_map(|row| listed(&row[0])).collect();
    assert_eq!(mapped, modules, "left the code map of docs/architecture.md, right src/");
    assert_eq!(map.len(), modules.len(), "the code map has one row per module");
    let library = read(repository("src/lib.rs"));
    for module in modules {
        assert!(library.contains(&format!("mod {module};")), "lib.rs declares {module}");
    }
}

#[test]
fn the_arrows_make_no_circle() {
    let mut left = arrows();
    loop {
        let done: Vec<_> = left.iter().filter(|(_, uses)| uses.is_empty()).map(|(module, _)| module.clone()).collect();
        if done.is_empty() {
            break;
        }
        for module in done {
            left.remove(&module);
            left.values_mut().for_each(|uses| {
                uses.remove(&module);
            });
        }
    }
    assert!(left.is_empty(), "these go round in circles, or use what has no row: {left:?}");
}

fn import_graph(files: impl IntoIterator<Item = (String, String)>) -> ImportGraph {
    ImportGraph::new(files.into_iter().filter(|(path, _)| !["lib.rs", "main.rs"].contains(&path.as_str())))
}

/// Siblings that import each other can only be read together.
#[test]
fn files_import_each_other_without_cycles() {
    let files = rust_files("src").into_iter().filter(|file| !file.to_string_lossy().ends_with("_tests.rs"));
    let graph = import_graph(files.map(|file| (below_source(&file), without_tests(&code(&file)))));
    if let Some(cycle) = graph.cycle() {
        panic!("files import each other in a circle: {}", cycle.join(" → "));
    }
}

#[test]
fn a_cycle_of_imports_is_found_with_its_path() {
    let file = |path: &str, code: &str| (path.to_owned(), code.to_owned());
    let graph = |parent: &str, one: &str, two: &str| {
        import_graph([file("m.rs", parent), file("m/one.rs", one), file("m/two.rs", two)]).cycle()
    };
    let cycle = || Some(["src/m/one.rs", "src/m/two.rs", "src/m/one.rs"].map(str::to_owned).to_vec());
    assert_eq!(graph("mod one;\nmod two;", "use super::two::B;", "use crate::m::one::{self, A};"), cycle());
    let parent = "mod one;\nmod two;\npub use one::A;\npub use two::B;";
    assert_eq!(graph(parent, "use super::B;", "fn f() { super::A::new() }"), cycle(), "behind re-exports");
    assert_eq!(graph(parent, "use super::{two};\nfn f() { two::f() }", "use crate::m::{A};"), cycle(), "by module");
    assert_eq!(
        graph("mod one;\nmod two;\npub struct C;\nuse one::A;", "use super::{C, two::B};", "use super::C;"),
        None
    );
}

#[test]
fn crates_stay_inside_their_fences() {
    let mut fences = BTreeMap::new();
    for row in table(&dependencies(), &["crate", "only in"]) {
        for name in listed(&row[0]) {
            let uses = pattern(&format!(r"(?:^|[^\w:]){name}::|\buse {name}\b"));
            fences.insert(name, (uses, listed(&row[1])));
        }
    }
    for needed in ["serde_yaml", "saphyr_parser", "jsonschema", "petgraph", "clap", "rmcp", "rusqlite", "genai"] {
        assert!(fences.contains_key(needed), "docs/dependencies.md has a fence around {needed}");
    }
    for file in rust_files("src") {
        let (path, module, code) = (below_source(&file), module_of(&file), without_tests(&code(&file)));
        for (name, (uses, allowed)) in &fences {
            let inside = allowed.contains(&module) || allowed.contains(&path);
            // The plain search spares most files the slow one.
            let used = code.contains(name) && uses.is_match(&code);
            assert!(inside || !used, "src/{path} uses {name}, which belongs in {allowed:?} alone");
        }
    }
}

/// Names in ACP's JSON that MCP and the manifests do not use.
const ACP_NAMES: [&str; 20] = [
    "sessionUpdate",
    "sessionId",
    "toolCall",
    "toolCallId",
    "rawInput",
    "rawOutput",
    "stopReason",
    "optionId",
    "modeId",
    "currentModeId",
    "availableModes",
    "availableCommands",
    "configOptions",
    "terminalId",
    "agentCapabilities",
    "clientCapabilities",
    "session_info_update",
    "agent_message_chunk",
    "tool_call",
    "tool_call_update",
];

/// Other modules get typed data, or pass the JSON on without reading it.
#[test]
fn only_the_protocol_modules_open_the_json_of_acp() {
    let names = pattern(&format!(r#""/?(?:{})\b[^"\n]*""#, ACP_NAMES.join("|")));
    for file in rust_files("src") {
        // The DevTools protocol and OpenTelemetry have names of the same spelling.
        let speaks_devtools = module_of(&file) == "cdp" || below_source(&file).contains("computercontroller/browser");
        let writes_spans = below_source(&file) == "agents/request_span.rs";
        if ["acp", "external"].contains(&module_of(&file).as_str()) || speaks_devtools || writes_spans {
            continue;
        }
        let text = without_tests(&code(&file));
        let found = names.find(&text).map(|found| found.as_str().to_owned());
        assert_eq!(found, None, "src/{} names a part of ACP's JSON", below_source(&file));
    }
}

#[test]
fn a_folder_is_opened_by_the_file_of_its_name() {
    for file in rust_files("src").into_iter().chain(rust_files("tests/it")) {
        assert!(!file.ends_with("mod.rs"), "{}", file.display());
    }
}

#[test]
fn every_file_opens_with_what_it_is_for() {
    for file in ["src", "tests/it", "tests/servers"].iter().flat_map(|folder| rust_files(folder)) {
        assert!(read(&file).starts_with("//! "), "{} opens with `//!`", file.display());
    }
}

#[test]
fn no_source_file_is_too_long_to_be_read_at_once() {
    for file in rust_files("src").into_iter().filter(|file| !file.to_string_lossy().ends_with("_tests.rs")) {
        let lines = without_tests(&read(&file)).lines().count();
        assert!(
            lines <= MAX_LINES,
            "src/{} has {lines} lines without its tests; {MAX_LINES} is the limit",
            below_source(&file)
        );
    }
}

#[test]
fn no_test_file_is_forgotten() {
    let main = read(repository("tests/it/main.rs"));
    for file in rust_files("tests/it") {
        let path = file.strip_prefix(repository("tests/it")).expect("a test file");
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        if path.components().count() == 1 && name != "main" {
            assert!(main.contains(&format!("\nmod {name};")), "tests/it/main.rs has no `mod {name};`");
        }
    }
}

fn documents() -> Vec<PathBuf> {
    let docs = files_below(&repository("docs")).into_iter().filter(|file| file.extension().is_some_and(|e| e == "md"));
    docs.chain([repository("README.md")]).collect()
}

/// As the sites that show Markdown make them.
fn anchors(markdown: &str) -> BTreeSet<String> {
    let headings = markdown.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn links_in_the_docs_lead_somewhere() {
    let link = pattern(r##"(?:\]\(|src=")([^)\s"#]*)(?:#([^)\s"]*))?[)"]"##);
    let code = pattern(r"(?ms)^```.*?^```|`[^`\n]*`");
    for document in documents() {
        let text = read(&document);
        for found in link.captures_iter(&code.replace_all(&text, "")) {
            let (target, anchor) = (&found[1], found.get(2));
            if target.starts_with("http://") || target.starts_with("https://") {
                continue;
            }
            let folder = document.parent().expect("a folder");
            let file = if target.is_empty() { document.clone() } else { folder.join(target) };
            assert!(file.exists(), "{}: {target} does not exist", document.display());
            if let Some(anchor) = anchor {
                let known = anchors(&read(&file)).contains(anchor.as_str());
                assert!(known, "{}: {target} has no heading #{}", document.display(), anchor.as_str());
            }
        }
    }
}

#[test]
fn files_and_functions_that_the_docs_name_exist() {
    let file = pattern(r"`((?:src|tests|docs|schemas|manifests|agents|scripts|benches)/[\w./-]+)`");
    let function = pattern(r"`(?:\w+::)*(\w+)` in `(src/[\w./]+\.rs)`");
    // `scripts/bootstrap` installs these.
    let ignored = read(repository(".gitignore"));
    // A page about the code may leave out `src`.
    let exists = |path: &str| repository(path).exists() || repository(&format!("src/{path}")).exists();
    let is_installed = |path: &str| ignored.lines().any(|line| format!("/{path}/").starts_with(&format!("{line}/")));
    for document in documents() {
        let text = read(&document);
        for found in file.captures_iter(&text).filter(|found| !is_installed(&found[1])) {
            assert!(exists(&found[1]), "{}: {} does not exist", document.display(), &found[1]);
        }
        for found in function.captures_iter(&text) {
            let defined =
                pattern(&format!(r"\b(?:fn|struct|enum) {}\b", &found[1])).is_match(&read(repository(&found[2])));
            assert!(defined, "{}: {} has no `{}`", document.display(), &found[2], &found[1]);
        }
    }
}

/// The README says `cargo run`, and `cargo install` must not install the servers of the tests.
#[test]
fn skein_is_the_only_program_of_the_package() {
    let package = read(repository("Cargo.toml"));
    assert!(package.contains("\ndefault-run = \"skein\"\n"));
    assert_eq!(package.matches("[[bin]]").count(), 1);
    assert!(!repository("src/bin").exists(), "cargo takes every file of src/bin for a program");
}
