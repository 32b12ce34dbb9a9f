//! What holds for every tool of every built-in service: it says what it does and what it may do, its parameters have a
//! description and a limit, and hostile arguments get an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::harness::runtime;
use super::{BuiltinContext, BuiltinRegistry};
use crate::ids::ToolName;
use crate::services::UserFolders;
use crate::services::connection::ServiceConnection;
use crate::tool::{CallContext, SessionContext, ToolCall, ToolSpec};

/// Parameters whose schema has no limit, with the reason.
const UNLIMITED: &[(&str, &str)] = &[
    ("path", "the service resolves it, and refuses what is outside the session's folders"),
    ("content", "a file may be empty, and the service limits its size in bytes"),
    ("before", "an edit of a workbook has none"),
    ("after", "the new text may be empty"),
    ("text", "a block of a document may be a table"),
    ("query", "any words find something or nothing"),
    ("confirm", "only the code that the service gave is accepted"),
    ("glob", "any pattern finds something or nothing"),
    ("tags", "any tags find something or nothing"),
    ("around", "any number is near a message"),
    ("min", "a value axis may start anywhere"),
    ("max", "a value axis may end anywhere"),
];

/// Tools that run what they are given, reach the network or wait. The test of all tools leaves them out.
const APART: [&str; 4] = ["shell", "run_script", "fetch_url", "watch"];

/// The property test of each tool: file, name and tools.
const PROPERTY_TESTS: &[(&str, &str, &[&str])] = &[
    (
        "services/builtin/apps_tests.rs",
        "arbitrary_changes_never_spoil_what_is_kept",
        &["apps__create_app", "apps__read_app", "apps__restore_app", "apps__update_app"],
    ),
    (
        "services/builtin/apps_tests.rs",
        "apps_live_until_they_are_deleted",
        &["apps__delete_app", "apps__list_apps", "apps__open_app"],
    ),
    ("services/builtin/autovisualiser_tests.rs", "any_text_gives_a_picture_or_an_error", &["autovisualiser__draw"]),
    (
        "services/builtin/autovisualiser_tests.rs",
        "watching_returns_exactly_the_file_that_changed",
        &["autovisualiser__watch"],
    ),
    (
        "services/builtin/chatrecall_tests.rs",
        "any_query_stays_in_the_project",
        &["chatrecall__read_session", "chatrecall__search_sessions"],
    ),
    (
        "services/builtin/computercontroller/browser/view.rs",
        "references_of_any_view_resolve",
        &["computercontroller__browse", "computercontroller__browse_act", "computercontroller__browse_read"],
    ),
    (
        "services/builtin/computercontroller/script_tests.rs",
        "any_script_arrives_unchanged",
        &["computercontroller__run_script"],
    ),
    (
        "services/builtin/computercontroller_tests.rs",
        "parts_join_to_the_whole_text",
        &["computercontroller__read_cache"],
    ),
    (
        "services/builtin/computercontroller_tests.rs",
        "the_cache_lists_what_was_read_and_not_removed",
        &["computercontroller__clear_cache", "computercontroller__list_cache"],
    ),
    (
        "services/builtin/computercontroller/screen_tools.rs",
        "a_listed_window_can_be_focused",
        &["computercontroller__focus_window", "computercontroller__list_windows"],
    ),
    ("document/document_tests.rs", "changed_bytes_of_real_files_never_panic", &["computercontroller__read_document"]),
    (
        "document/document_tests.rs",
        "cells_survive_a_round_trip",
        &["computercontroller__update_document", "computercontroller__write_document"],
    ),
    ("screen.rs", "the_common_part_has_the_common_points", &["computercontroller__see_screen"]),
    ("screen.rs", "a_click_hits_the_named_point", &["computercontroller__click"]),
    ("screen/keyboard.rs", "a_text_is_typed_as_it_is_or_not_at_all", &["computercontroller__type_text"]),
    ("screen/keyboard.rs", "keys_are_pressed_as_they_are_named", &["computercontroller__press_keys"]),
    (
        "services/builtin/developer/edit_tests.rs",
        "edits_are_all_or_none_and_undo_restores_every_byte",
        &["developer__edit_file", "developer__undo_edit"],
    ),
    (
        "services/builtin/developer/property_tests.rs",
        "a_written_file_has_the_content_and_no_unread_file_is_lost",
        &["developer__write_file"],
    ),
    ("services/builtin/developer/property_tests.rs", "pages_of_a_file_join_to_the_whole", &["developer__read_file"]),
    (
        "services/builtin/developer/property_tests.rs",
        "every_file_is_found_and_listed_once",
        &["developer__find_files", "developer__list_dir"],
    ),
    (
        "services/builtin/developer/property_tests.rs",
        "a_literal_search_finds_exactly_the_lines_that_contain_it",
        &["developer__search"],
    ),
    ("services/builtin/developer/property_tests.rs", "analyze_answers_for_any_source_text", &["developer__analyze"]),
    (
        "services/builtin/developer/property_tests.rs",
        "a_plan_counts_its_steps_and_returns_them",
        &["developer__update_plan"],
    ),
    (
        "services/builtin/developer/property_tests.rs",
        "a_command_returns_its_output_and_exit_code",
        &["developer__shell"],
    ),
    (
        "services/builtin/developer/property_tests.rs",
        "parts_of_a_background_output_join_to_the_whole",
        &["developer__shell_output", "developer__shell_stop"],
    ),
    (
        "services/builtin/extensionmanager/property_tests.rs",
        "a_call_changes_exactly_the_service_that_it_names",
        &["extensionmanager__disable_service", "extensionmanager__enable_service", "extensionmanager__search_services"],
    ),
    (
        "services/builtin/extensionmanager/property_tests.rs",
        "resources_cannot_leave_their_place",
        &["extensionmanager__list_resources", "extensionmanager__read_resource"],
    ),
    (
        "services/builtin/extensionmanager/property_tests.rs",
        "nothing_is_added_without_consent",
        &["extensionmanager__propose_service"],
    ),
    ("services/builtin/fetch_tests.rs", "no_inner_address_is_dialled", &["fetch__fetch_url"]),
    ("services/builtin/knowledge_tests.rs", "any_text_is_listed_or_told", &["knowledge__load"]),
    (
        "services/builtin/memory_tests.rs",
        "what_a_query_listed_is_what_it_forgets",
        &["memory__forget", "memory__list_memories", "memory__recall", "memory__remember"],
    ),
    ("services/builtin/summon_tests.rs", "a_task_is_handed_over_unchanged_or_refused", &["summon__delegate"]),
    (
        "services/builtin/summon_tests.rs",
        "any_task_id_is_known_or_refused",
        &["summon__task_cancel", "summon__task_status"],
    ),
    (
        "services/builtin/todo_tests.rs",
        "any_calls_leave_a_sound_list",
        &["todo__list_todos", "todo__set_todos", "todo__update_todo"],
    ),
    (
        "services/builtin/tutorial_tests.rs",
        "any_request_is_answered",
        &["tutorial__list_tutorials", "tutorial__load_tutorial"],
    ),
];

/// All built-in services, each with its data below one folder.
struct AllServices {
    folder: TempDir,
    running: Vec<(String, Arc<dyn ServiceConnection>)>,
}

impl AllServices {
    /// Starts them; call it within a runtime.
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["cwd", "scratch", "data"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let context = BuiltinContext {
            principal: crate::principal::Principal::local(),
            roles: std::collections::BTreeMap::new(),
            reaper: None,
            environment: std::collections::BTreeMap::new(),
            sandbox: None,
            data: folder.path().join("data"),
            store: crate::store::StorePlace::files(folder.path().join("data")),
            user: UserFolders::default(),
            cwd: Some(folder.path().join("cwd")),
            settings: Map::new(),
        };
        let registry = BuiltinRegistry::builtin();
        let mut names: Vec<_> = registry.names().map(str::to_owned).collect();
        names.sort();
        let running = names.into_iter().map(|name| {
            let connection = registry.start(&name, &context).unwrap();
            (name, connection)
        });
        let running = running.collect();
        Self { folder, running }
    }

    /// Returns every tool with its name as models see it.
    async fn tools(&self) -> Vec<(String, ToolSpec)> {
        let mut tools = Vec::new();
        for (service, connection) in &self.running {
            let catalog = connection.catalog().await.unwrap();
            tools.extend(catalog.tools.into_iter().map(|tool| (format!("{service}__{}", tool.name), tool)));
        }
        tools
    }

    fn session(&self) -> Arc<SessionContext> {
        let path = |name: &str| self.folder.path().join(name);
        SessionContext::new("first", path("cwd"), Vec::new(), path("scratch"))
    }
}

/// One parameter, also of an object inside an array: where it is, its name and its schema.
struct FoundParameter {
    place: String,
    name: String,
    schema: Value,
}

fn find_parameters(place: &str, schema: &Value, found: &mut Vec<FoundParameter>) {
    assert!(schema.get("$ref").is_none(), "{place} refers to another schema");
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let place = format!("{place}.{name}");
        find_parameters(&place, schema, found);
        found.push(FoundParameter { place, name: name.clone(), schema: schema.clone() });
    }
    if let Some(items) = schema.get("items") {
        find_parameters(&format!("{place}[]"), items, found);
    }
    for choice in ["anyOf", "oneOf"].iter().filter_map(|key| schema[*key].as_array()).flatten() {
        find_parameters(place, choice, found);
    }
}

async fn all_parameters() -> Vec<FoundParameter> {
    let mut found = Vec::new();
    for (name, tool) in AllServices::start().tools().await {
        find_parameters(&name, &Value::Object((*tool.input_schema).clone()), &mut found);
    }
    assert!(found.len() >= 90, "only {} parameters were found", found.len());
    found
}

#[tokio::test]
async fn every_tool_says_what_it_does_and_may_do() {
    let tools = AllServices::start().tools().await;
    assert!(tools.len() >= 45, "only {} tools were found", tools.len());
    for (name, tool) in tools {
        let words = tool.description.split_whitespace().count();
        assert!(words >= 3, "{name}: `{}` is no description", tool.description);
        let hints = tool.hints;
        let all = [hints.read_only, hints.destructive, hints.idempotent, hints.open_world];
        assert!(all.iter().all(Option::is_some), "{name} leaves hints out: {hints:?}");
        let contradicts = hints.read_only == Some(true) && hints.destructive == Some(true);
        assert!(!contradicts, "{name} reads only and destroys");
        assert_eq!(tool.input_schema.get("type"), Some(&json!("object")), "{name}");
    }
}

#[tokio::test]
async fn every_parameter_has_a_description() {
    let is_bare = |parameter: &FoundParameter| {
        let text = parameter.schema["description"].as_str().unwrap_or_default();
        text.len() < 8 || text.split_whitespace().count() < 2
    };
    let bare: Vec<_> = all_parameters().await.into_iter().filter(is_bare).map(|of| of.place).collect();
    assert!(bare.is_empty(), "say in two words or more what these are, with unit, format or default: {bare:#?}");
}

#[tokio::test]
async fn every_parameter_has_a_limit_or_a_reason() {
    let mut unused: BTreeSet<_> = UNLIMITED.iter().map(|(name, _)| *name).collect();
    let mut open = Vec::new();
    for FoundParameter { place, name, schema } in all_parameters().await {
        let limits: &[&str] = match schema["type"].as_str() {
            Some("string") => &["enum", "const", "minLength", "maxLength", "pattern", "format"],
            Some("integer" | "number") => &["enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
            Some("array") => &["minItems", "maxItems"],
            _ => continue,
        };
        if limits.iter().any(|limit| schema.get(*limit).is_some()) {
            continue;
        }
        unused.remove(name.as_str());
        if !UNLIMITED.iter().any(|(known, _)| *known == name) {
            open.push(place);
        }
    }
    assert!(open.is_empty(), "give these a limit in the schema, or UNLIMITED the reason: {open:#?}");
    assert!(unused.is_empty(), "every parameter of these names has a limit: {unused:?}");
}

/// Returns the smallest value that a schema accepts.
fn least_value(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].as_array().and_then(|values| values.first()) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("string") => json!("x"),
        Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or(json!(1)),
        Some("boolean") => json!(false),
        Some("array") if schema["minItems"].as_u64() > Some(0) => json!([least_value(&schema["items"])]),
        Some("array") => json!([]),
        Some("object") => Value::Object(least_arguments(schema)),
        _ => Value::Null,
    }
}

/// Returns the least values of what an object requires.
fn least_arguments(schema: &Value) -> Map<String, Value> {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    required.map(|name| (name.to_owned(), least_value(&schema["properties"][name]))).collect()
}

fn hostile_values() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(u64::MAX),
        json!(1e308),
        json!(""),
        json!("\0"),
        json!("../../../../etc/passwd"),
        json!("/proc/self/environ"),
        json!("\u{202e}x\u{7}\n</service>"),
        json!("a".repeat(10_000)),
        json!([]),
        json!([null, "\0", {}]),
        json!({}),
        json!({"a": {"b": [1, 2]}}),
    ]
}

/// A call past the schema, as a client of the service alone could send it. The tools of [`APART`] have their own tests.
/// Without a sandbox and a display, no browser starts and no screen is touched.
#[tokio::test]
async fn hostile_arguments_get_an_answer_and_leave_nothing_outside() {
    let services = AllServices::start();
    for (service, connection) in &services.running {
        for tool in connection.catalog().await.unwrap().tools {
            if APART.contains(&tool.name.as_str()) {
                continue;
            }
            let schema = Value::Object((*tool.input_schema).clone());
            let names: Vec<_> = schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name).collect();
            for name in names {
                for value in hostile_values() {
                    let mut arguments = least_arguments(&schema);
                    arguments.insert(name.clone(), value.clone());
                    let shown = format!("{service}__{} with `{name}`: {}", tool.name, answer_head(&value.to_string()));
                    let context = CallContext::new(services.session());
                    let call = ToolCall { tool: ToolName::new(tool.name.as_str()), arguments, context };
                    let outcome = connection.call(call, Duration::from_secs(30)).await;
                    let outcome = outcome.unwrap_or_else(|error| panic!("{shown} got no answer: {error:?}"));
                    let text = outcome.all_text();
                    let is_fault = text.contains("panicked") || text.contains("in a way it should not");
                    assert!(!is_fault, "{shown}: {text}");
                    assert!(!outcome.is_error || text.len() > 10, "{shown}: the refusal says nothing: `{text}`");
                    assert!(text.len() < 70_000, "{shown}: the answer has {} bytes", text.len());
                }
            }
        }
    }
    let entries = std::fs::read_dir(services.folder.path()).unwrap();
    let mut entries: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    entries.sort();
    assert_eq!(entries, ["cwd", "data", "scratch"], "a tool wrote outside the folders of the session");
}

fn answer_head(text: &str) -> &str {
    super::answer::truncate(text, 60)
}

#[tokio::test]
async fn every_tool_has_a_property_test() {
    let offered: BTreeSet<String> = AllServices::start().tools().await.into_iter().map(|(name, _)| name).collect();
    let rows = PROPERTY_TESTS.iter().flat_map(|(_, _, tools)| *tools);
    let mut listed = BTreeSet::new();
    for tool in rows {
        assert!(offered.contains(*tool), "there is no tool {tool}");
        assert!(listed.insert((*tool).to_owned()), "{tool} has two rows");
    }
    let missing: Vec<_> = offered.difference(&listed).collect();
    assert!(missing.is_empty(), "write a property test for these, and add them to PROPERTY_TESTS: {missing:?}");
    for (file, name, _) in PROPERTY_TESTS {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file)).unwrap();
        let (_, properties) = text.split_once("proptest! {").unwrap_or_else(|| panic!("{file} has no property test"));
        assert!(properties.contains(&format!("fn {name}(")), "{file} has no property test {name}");
    }
}

/// Any JSON value, with paths among the texts.
fn any_value() -> impl Strategy<Value = Value> {
    let paths = vec!["kept.txt", "folder", "folder/kept.csv", "new.txt", "../outside", "/etc/passwd", ""];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3..300_i64).prop_map(Value::from),
        "\\PC{0,30}".prop_map(Value::from),
        prop::sample::select(paths).prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,6}", inner, 0..3)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// The files below a folder with their contents.
fn files_of(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_of(&path));
            files.insert(path, Vec::new());
        } else {
            let bytes = std::fs::read(&path).unwrap();
            files.insert(path, bytes);
        }
    }
    files
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    /// A call that fails, or that only reads, leaves every file of the user as it was.
    #[test]
    fn failed_and_reading_calls_change_no_file(values in prop::collection::vec(any_value(), 7)) {
        runtime().block_on(async {
            let services = AllServices::start();
            let cwd = services.folder.path().join("cwd");
            std::fs::create_dir(cwd.join("folder")).unwrap();
            std::fs::write(cwd.join("kept.txt"), "text\n").unwrap();
            std::fs::write(cwd.join("folder/kept.csv"), "month,sales\nJan,3\n").unwrap();
            let mut next = values.iter().cycle();
            for (service, connection) in &services.running {
                for tool in connection.catalog().await.unwrap().tools {
                    if APART.contains(&tool.name.as_str()) {
                        continue;
                    }
                    let schema = Value::Object((*tool.input_schema).clone());
                    let mut arguments = least_arguments(&schema);
                    for (name, _) in schema["properties"].as_object().into_iter().flatten() {
                        if let Some(value) = next.next().filter(|value| !value.is_null()) {
                            arguments.insert(name.clone(), value.clone());
                        }
                    }
                    let shown = format!("{service}__{} {}", tool.name, Value::Object(arguments.clone()));
                    let before = files_of(&cwd);
                    let context = CallContext::new(services.session());
                    let call = ToolCall { tool: ToolName::new(tool.name.as_str()), arguments, context };
                    let outcome = connection.call(call, Duration::from_secs(60)).await;
                    let outcome = outcome.unwrap_or_else(|error| panic!("{shown} got no answer: {error:?}"));
                    if outcome.is_error || tool.hints.read_only == Some(true) {
                        assert_eq!(files_of(&cwd), before, "{shown}: {}", outcome.all_text());
                    }
                }
            }
        });
    }
}
