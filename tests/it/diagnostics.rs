//! Manifests that are wrong in one way each, and exactly what is said about them.
//!
//! `tests/fixtures/manifests/bad/` holds a file or a folder for each case and, beside it, the golden text
//! NAME.txt; `UPDATE_EXPECT=1 cargo test --test it diagnostics` writes those anew. A folder with `.skein/` or
//! `.mcp.json` is read as a project, everything else as `--manifests`. `tests/fixtures/recipes/bad/` does the same for
//! recipes, a folder there being that of a `recipe.yaml`.
#![allow(clippy::expect_used, reason = "helpers of tests fail the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use expect_test::expect_file;
use skein::diagnostic::Diagnostic;
use skein::graph;
use skein::manifest::{self, Layer, Root};

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn bad() -> PathBuf {
    package().join("tests/fixtures/manifests/bad")
}

fn bad_recipes() -> PathBuf {
    package().join("tests/fixtures/recipes/bad")
}

/// Everything in a folder of fixtures but the golden texts.
fn cases(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the fixtures").map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.extension().is_none_or(|extension| extension != "txt")).collect()
}

/// What is said about `layer` when it stands on the built-in manifests.
fn findings(layer: (Layer, Root), shown: &str) -> Vec<Diagnostic> {
    let (manifests, found) = manifest::load(&[(Layer::Builtin, Root::Builtin), layer]);
    let resolved = graph::resolve(manifests, found);
    resolved.diagnostics.into_iter().filter(|found| found.at.file.starts_with(shown)).collect()
}

fn assert_says(name: &str, layer: (Layer, Root), shown: &str) {
    assert_found(name, &findings(layer, shown), &bad());
}

fn assert_found(name: &str, found: &[Diagnostic], folder: &Path) {
    assert!(!found.is_empty(), "nothing is said about {name}");
    for diagnostic in found {
        assert!(!diagnostic.help.is_empty(), "{name}: {diagnostic:?} has no help");
    }
    let text: String = found.iter().map(Diagnostic::render).collect();
    let golden = folder.join(format!("{name}.txt"));
    expect_file![golden].assert_eq(&anstream::adapter::strip_str(&text).to_string());
}

fn on_disk(path: &Path, shown: &str) -> (Layer, Root) {
    (Layer::Extra, Root::Disk { path: path.to_owned(), shown: shown.to_owned() })
}

/// The files of a project as its trust would take them.
fn project(path: &Path, shown: &str) -> (Layer, Root) {
    let mut files = BTreeMap::new();
    let mut pending = vec![path.to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let entry = entry.expect("an entry").path();
            if entry.is_dir() {
                pending.push(entry);
            } else {
                let relative = entry.strip_prefix(path).expect("below").to_owned();
                files.insert(relative, fs::read(&entry).expect("readable"));
            }
        }
    }
    (Layer::Project, Root::Snapshot { files, shown: shown.to_owned() })
}

/// Wrong manifests with keys in the fields that may hold some, on the line that is quoted and in the wrong value itself.
const WITH_KEYS: [(&str, &str); 12] = [
    (
        ".mcp.json",
        r#"{"mcpServers":{"a":{"url":"https://u:canary-1@h/?q=canary-2","headers":{"X":"canary-3","A_TOKEN":"canary-4"}},"b":{}}}"#,
    ),
    (
        ".mcp.json",
        r#"{"mcpServers":{"a":{"url":"canary-1.example/mcp"},"b":{"command":"x","args":["canary-2"],"env":[]}}}"#,
    ),
    (
        "s.yaml",
        "{version: 1, kind: service, name: s, description: x, tittle: y, transport: {http: {url: 'https://h/?k=canary-1', headers: {X: canary-2, Authorization: Bearer canary-3}}}}",
    ),
    (
        "s.yaml",
        "{version: 1, kind: service, name: s, description: x, transport: {http: {url: https://h, headers: Bearer canary-1}}}",
    ),
    (
        "s.yaml",
        "version: 1\nkind: service\nname: s\ndescription: x\ntransport:\n  http:\n    url: h/canary-1\n    headers: Bearer canary-2\n",
    ),
    (
        "s.yaml",
        "version: 1\nkind: service\nname: s\ndescription: x\ntransport:\n  stdio:\n    command: x\n    args: --key canary-1\n    env: {A: [canary-2], B: {c: canary-3}}\n",
    ),
    (
        "s.yaml",
        "version: 1\nkind: service\nname: s\ndescription: x\ntransport:\n  stdio:\n    command: x\n    args:\n    - canary-1\n    - [canary-2]\n    - ${env:A canary-3\n",
    ),
    (
        "s.yaml",
        "version: 1\nkind: service\nname: s\ndescription: x\ntransport:\n  http:\n    url: https://h/${env:A canary-1\n    headers:\n      X-A: ${env A:-canary-3}\n",
    ),
    ("s.yaml", "version: 1\nkind: service\nname: s\ndescription: x\ntransport: https://u:canary-1@h/mcp\n"),
    ("s.yaml", "version: 1\nkind: service\ntransport:\n  http:\n    headers:\n      X-A: \"canary-1\n"),
    ("config.yaml", "{version: 1, notifications: {webhook: 'https://h/canary-1', wen: always}, aproval: ask}"),
    ("config.yaml", "version: 1\nproviders:\n  own: {base_url: canary-1, key: 'canary-2 Secret', stranger: 1}\n"),
];

#[test]
fn no_diagnostic_quotes_a_key_of_a_manifest() {
    for (name, text) in WITH_KEYS {
        let layer = if name == ".mcp.json" { Layer::Project } else { Layer::Extra };
        let files = BTreeMap::from([(PathBuf::from(name), text.as_bytes().to_vec())]);
        let found = findings((layer, Root::Snapshot { files, shown: "keys".to_owned() }), "keys");
        assert!(!found.is_empty(), "nothing is said about {text}");
        for diagnostic in found {
            let shown = diagnostic.render_plain() + &diagnostic.to_json().to_string();
            assert!(!shown.contains("canary-"), "{shown}");
        }
    }
}

#[test]
fn every_bad_manifest_is_explained() {
    let all = cases(&bad());
    assert!(all.len() > 100, "{} cases", all.len());
    for path in all {
        let shown = path.file_name().expect("a name").to_string_lossy().into_owned();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let is_project = path.join(".skein").exists() || path.join(".mcp.json").exists();
        let layer = if is_project { project(&path, &shown) } else { on_disk(&path, &shown) };
        assert_says(&name, layer, &shown);
    }
}

/// The JSON manifest of the first design document lacks five fields. The messages of one run name all of them.
#[test]
fn one_round_of_messages_makes_the_draft_load() {
    let folder = tempfile::tempdir().expect("a folder");
    let draft = fs::read_to_string(bad().join("rfc-draft.json")).expect("the fixture");
    let mut value: serde_json::Value = serde_json::from_str(&draft).expect("JSON");
    let (manifest, mode) =
        (r#"{"version": 1, "kind": "agent", "description": "x"}"#, r#"{"description": "x", "prompt": "p.md"}"#);
    for (pointer, fields) in [("", manifest), ("/modes/0", mode)] {
        let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(fields).expect("JSON");
        value.pointer_mut(pointer).and_then(|value| value.as_object_mut()).expect("a mapping").extend(fields);
    }
    fs::write(folder.path().join("coding.json"), value.to_string()).expect("written");
    fs::write(folder.path().join("p.md"), "You write code.").expect("written");
    let found = findings(on_disk(folder.path(), "draft"), "draft");
    assert!(!skein::diagnostic::has_errors(&found), "{found:?}");
}

#[test]
fn every_bad_recipe_is_explained() {
    for path in cases(&bad_recipes()) {
        let shown = path.file_name().expect("a name").to_string_lossy().into_owned();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let (file, shown) =
            if path.is_dir() { (path.join("recipe.yaml"), format!("{shown}/recipe.yaml")) } else { (path, shown) };
        assert_found(&name, &skein::recipe::read(&file, &shown).1, &bad_recipes());
    }
}

/// Cases that no repository should hold are made where they are needed.
fn generated(name: &str, make: impl FnOnce(&Path)) {
    let folder = tempfile::tempdir().expect("a folder");
    make(folder.path());
    assert_says(name, on_disk(folder.path(), name), name);
}

#[test]
fn a_file_of_ten_megabytes_is_not_read() {
    generated("ten-megabytes", |folder| {
        fs::write(folder.join("large.yaml"), "# padding\n".repeat(1024 * 1024)).expect("written");
    });
}

#[test]
fn a_file_that_is_not_text_is_refused() {
    generated("not-text", |folder| fs::write(folder.join("latin1.yaml"), b"name: caf\xe9\n").expect("written"));
}

#[cfg(unix)]
#[test]
fn links_that_lead_back_or_nowhere_are_reported() {
    use std::os::unix::fs::symlink;
    generated("links", |folder| {
        fs::create_dir(folder.join("agents")).expect("created");
        symlink("..", folder.join("agents/back")).expect("linked");
        symlink("itself.yaml", folder.join("itself.yaml")).expect("linked");
        symlink("nowhere", folder.join("gone.yaml")).expect("linked");
    });
}

#[test]
fn a_profile_that_the_machine_cannot_enforce_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let manifest = "version: 1\nkind: service\nname: mine\ndescription: x\ntransport: {stdio: {command: mine}}\n";
    for (name, sandbox) in
        [("mine", "sandbox: {network: off}\n"), ("other", "sandbox: {enforce: preferred}\n"), ("bare", "")]
    {
        let text = manifest.replace("name: mine", &format!("name: {name}"));
        fs::write(folder.path().join(format!("{name}.yaml")), format!("{text}{sandbox}")).expect("written");
    }
    let layers = [(Layer::Builtin, Root::Builtin), on_disk(folder.path(), "machine")];
    let (manifests, found) = manifest::load(&layers);
    let plan = graph::resolve(manifests, found).plan.expect("a plan");
    let found = graph::check_machine(&plan, |_| Some("it has no user namespaces".to_owned()));
    assert_found("machine-without-layers", &found, &bad());
    assert!(graph::check_machine(&plan, |_| None).is_empty());
}

/// Each place holds its line: thousands of them in a file of one long line would fill the memory.
#[test]
fn thousands_of_errors_in_one_file_are_not_all_located() {
    let unknown: String = (0..3000).map(|n| format!("z{n}, ")).collect();
    let text = format!(
        "{{version: 1, kind: agent, name: mine, description: x, runtime: {{acp: {{command: x}}}}, \
         modes: [{{slug: one, description: x, dependencies: [{unknown}]}}]}}"
    );
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("long.yaml"), text).expect("written");
    let found = findings(on_disk(folder.path(), "long"), "long");
    assert_eq!(found.len(), 3000);
    assert!(found.iter().filter(|found| found.at.span.is_some()).count() <= 200);
}

#[test]
fn a_layer_may_not_give_back_what_an_earlier_one_took_away() {
    let folder = tempfile::tempdir().expect("a folder");
    let head = "version: 1\nkind: service\nname: developer\ndescription: x\ntransport: {builtin: developer}\n";
    let mut roots = vec![(Layer::Builtin, Root::Builtin)];
    for (layer, name, groups) in
        [(Layer::User, "user", "groups: {}"), (Layer::Extra, "extra", "groups: {read: [shell]}")]
    {
        let path = folder.path().join(name).join("services");
        fs::create_dir_all(&path).expect("created");
        fs::write(path.join("developer.yaml"), format!("{head}{groups}\n")).expect("written");
        roots.push((layer, Root::Disk { path: folder.path().join(name), shown: name.to_owned() }));
    }
    let (_, found) = manifest::load(&roots);
    assert_eq!(found.iter().map(|found| found.code).collect::<Vec<_>>(), ["E118"]);
}

/// A code as it stands in the sources and texts: a letter and three digits.
fn codes(text: &str, before: &str, after: &str) -> BTreeSet<String> {
    let is_code = |code: &str| {
        code.len() == 4 && code.starts_with(['E', 'W', 'N']) && code[1..].chars().all(|c| c.is_ascii_digit())
    };
    let pieces = text.split(before).skip(1).filter_map(|piece| piece.split(after).next());
    pieces.filter(|code| is_code(code)).map(str::to_owned).collect()
}

fn codes_in_source() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut pending = vec![package().join("src")];
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(fs::read_dir(path).expect("a folder").map(|entry| entry.expect("an entry").path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.extend(codes(&fs::read_to_string(&path).expect("source text"), "\"", "\""));
        }
    }
    found
}

#[test]
fn every_code_has_a_fixture() {
    let mut shown = BTreeSet::new();
    for folder in [bad(), bad_recipes(), package().join("tests/fixtures/assertions")] {
        for path in fs::read_dir(folder).expect("the fixtures").map(|entry| entry.expect("an entry").path()) {
            if path.extension().is_none_or(|extension| extension != "txt") {
                continue;
            }
            shown.extend(codes(&fs::read_to_string(&path).expect("a golden text"), "[", "]"));
        }
    }
    assert_eq!(codes_in_source(), shown);
}

#[test]
fn every_code_is_documented() {
    let text = fs::read_to_string(package().join("docs/diagnostics.md")).expect("docs/diagnostics.md");
    assert_eq!(codes_in_source(), codes(&text, "| `", "` |"));
}
