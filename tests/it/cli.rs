//! Commands as a user runs them: what they print, where, and with which exit code. `UPDATE_EXPECT=1` writes
//! the snapshots anew.

#![expect(clippy::expect_used, reason = "what a test cannot go on without ends it")]

use std::collections::BTreeSet;
use std::fs;

use expect_test::{expect, expect_file};
use serde_json::{Value, json};

use crate::support::{Run, Sandbox, echo, read, repository};

/// An agent that is right: one mode, one service.
const NOTES: &str = "version: 1
kind: agent
name: notes
description: Reads notes.
metadata: {dependencies: [developer]}
modes:
  - slug: reader
    description: Reads.
    prompt: notes.md
    tool_groups: [read]
    dependencies: [developer]
";

/// A service that a user brings.
const CLOCK: &str = "version: 1
kind: service
name: clock
description: Tells the time.
transport: {stdio: {command: clock-mcp, args: [--utc], env: {CLOCK_ZONE: UTC}}}
groups: {time: [now]}
";

fn snapshot(name: &str, text: &str) {
    expect_file![repository(&format!("tests/fixtures/cli/{name}"))].assert_eq(text);
}

fn notes_with(from: &str, to: &str) -> String {
    assert!(NOTES.contains(from), "{from}");
    NOTES.replace(from, to)
}

/// The notes agent as this folder's manifest.
fn write_notes(sandbox: &Sandbox, folder: &str) {
    sandbox.write(&format!("{folder}/notes.yaml"), NOTES);
    sandbox.write(&format!("{folder}/notes.md"), "You read notes.\n");
}

// check

#[test]
fn check_of_the_built_in_set_has_notes_only() {
    snapshot("check.txt", &Sandbox::new().skein(&["check"]).whole());
}

#[test]
fn check_quiet_leaves_notes_out_and_still_counts_them() {
    expect![[r"
        exit 0
        --- stdout
        3 agents, 17 modes, 13 services: no errors, no warnings, 8 notes
        --- stderr
    "]]
    .assert_eq(&Sandbox::new().skein(&["check", "--quiet"]).whole());
}

#[test]
fn check_of_a_broken_file_shows_location_and_help_and_exits_6() {
    let sandbox = Sandbox::new();
    write_notes(&sandbox, "project");
    sandbox.write("project/notes.yaml", &notes_with("    dependencies: [developer]", "    dependencies: [develper]"));
    snapshot("check-broken.txt", &sandbox.skein(&["check", "--quiet", "notes.yaml"]).whole());
}

#[test]
fn check_json_says_the_same_to_a_program() {
    let sandbox = Sandbox::new();
    write_notes(&sandbox, "project");
    sandbox.write("project/notes.yaml", &notes_with("    dependencies: [developer]", "    dependencies: [develper]"));
    snapshot("check-broken.json.txt", &sandbox.skein(&["check", "--quiet", "--json", "notes.yaml"]).whole());
}

#[test]
fn check_takes_files_and_folders() {
    let sandbox = Sandbox::new();
    write_notes(&sandbox, "project/mine/agents");
    sandbox.write("project/clock.yaml", CLOCK);
    let run = sandbox.skein(&["check", "-q", "mine", "clock.yaml"]);
    assert_eq!(run.stdout, "4 agents, 18 modes, 14 services: no errors, no warnings, 8 notes\n");
}

#[test]
fn check_of_a_path_that_is_not_there_is_a_usage_error() {
    expect![[r"
        exit 2
        --- stdout
        --- stderr
        error: there is no file or folder nowhere
          help: name a folder with manifests, or a manifest file
    "]]
    .assert_eq(&Sandbox::new().skein(&["check", "nowhere"]).whole());
}

// graph

#[test]
fn graph_is_drawn_as_text_dot_mermaid_and_json() {
    let sandbox = Sandbox::new();
    for format in ["text", "dot", "mermaid", "json"] {
        let run = sandbox.skein(&["graph", "--format", format]);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{format}");
        snapshot(&format!("graph.{format}"), &run.stdout);
    }
    assert_eq!(sandbox.skein(&["graph"]).stdout, sandbox.skein(&["graph", "--format", "text"]).stdout);
    assert_eq!(sandbox.skein(&["graph", "--json"]).stdout, sandbox.skein(&["graph", "--format", "json"]).stdout);
}

/// The picture in the README cannot go stale.
#[test]
fn the_picture_in_the_docs_is_what_graph_draws() {
    let run = Sandbox::new().skein(&["graph", "--format", "svg"]);
    expect_file![repository("docs/graph.svg")].assert_eq(&run.stdout);
}

#[test]
fn svg_is_well_formed_complete_and_self_contained() {
    let sandbox = Sandbox::new();
    let svg = sandbox.skein(&["graph", "--format", "svg"]).stdout;
    let texts = xml_texts(&svg);
    let graph = sandbox.skein(&["graph", "--json"]).json();
    let agents = sandbox.skein(&["agents", "--json"]).json();
    for node in graph["nodes"].as_array().expect("nodes") {
        let name = node["name"].as_str().expect("a name");
        let shown = match node["kind"].as_str() {
            Some("mode") => name.split_once('/').expect("agent/mode").1.to_owned(),
            Some("agent") => title_of(&agents, name),
            _ => name.to_owned(),
        };
        assert!(texts.contains(&shown), "{shown} is not in the picture");
    }
    let without_namespace = svg.replacen("xmlns=\"http://www.w3.org/2000/svg\"", "", 1);
    for loads in ["http:", "https:", "href", "url(http", "@import", "<image", "<script", "<foreignObject", "data:"] {
        assert!(!without_namespace.contains(loads), "{loads}");
    }
}

#[test]
fn a_hostile_title_is_only_text_in_the_svg() {
    let sandbox = Sandbox::new();
    write_notes(&sandbox, "config/agents");
    let title = "\"</text><script>&\\u0007\\uFFFE";
    let hostile = format!("description: Reads notes.\ntitle: \"{}\"", title.replacen('"', "\\\"", 1));
    sandbox.write("config/agents/notes.yaml", &notes_with("description: Reads notes.", &hostile));
    let run = sandbox.skein(&["graph", "--format", "svg"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(!run.stdout.contains("<script"));
    assert!(xml_texts(&run.stdout).contains("\"</text><script>&"), "{:?}", xml_texts(&run.stdout));
}

fn title_of(agents: &Value, name: &str) -> String {
    let agent = agents.as_array().expect("a list").iter().find(|agent| agent["name"] == name).expect("the agent");
    agent["title"].as_str().expect("a title").to_owned()
}

/// Reads XML strictly enough to refuse what a browser would: tags that do not match, raw `<` or `&`, characters
/// that XML does not know. Returns the texts between tags.
fn xml_texts(xml: &str) -> BTreeSet<String> {
    let allowed =
        |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{D7FF}' | '\u{E000}'..='\u{FFFD}' | '\u{10000}'..);
    assert!(xml.chars().all(allowed), "a character that XML does not allow");
    let tag = regex::Regex::new(r#"^<(/?)([a-zA-Z]+)((?:\s+[a-zA-Z:-]+="[^"<]*")*)\s*(/?)>"#).expect("a pattern");
    let entity = regex::Regex::new("&(?:amp|lt|gt|quot);").expect("a pattern");
    let (mut rest, mut open, mut texts) = (xml.trim_end(), Vec::new(), BTreeSet::new());
    while !rest.is_empty() {
        if rest.starts_with('<') {
            let found = tag.captures(rest).unwrap_or_else(|| panic!("not a tag: {rest:.60}"));
            let name = found[2].to_owned();
            assert!(!entity.replace_all(&found[3], "").contains('&'), "a raw & in {}", &found[0]);
            match (&found[1], &found[4]) {
                ("/", _) => assert_eq!(open.pop(), Some(name)),
                ("", "") => open.push(name),
                _ => {}
            }
            rest = &rest[found[0].len()..];
            assert!(!open.is_empty() || rest.is_empty(), "text after the document");
        } else {
            let text = &rest[..rest.find('<').unwrap_or(rest.len())];
            assert!(!entity.replace_all(text, "").contains('&'), "a raw & in {text}");
            let plain = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&");
            texts.insert(plain);
            rest = &rest[text.len()..];
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
    texts
}

// agents

#[test]
fn agents_lists_every_mode() {
    snapshot("agents.txt", &Sandbox::new().skein(&["agents"]).whole());
}

#[test]
fn agents_json_has_every_documented_field() {
    let run = Sandbox::new().skein(&["agents", "--json"]);
    let agents = run.json();
    for agent in agents.as_array().expect("a list") {
        for field in ["name", "title", "description"] {
            assert!(agent[field].is_string(), "{field} of {}", agent["name"]);
        }
        for mode in agent["modes"].as_array().expect("modes") {
            for field in ["slug", "name", "description", "when_to_use"] {
                assert!(mode[field].is_string(), "{field} of {}", mode["id"]);
            }
            assert!(mode["tool_groups"].is_array() && mode["dependencies"].is_array(), "{}", mode["id"]);
            assert!(mode["internal"].is_boolean(), "{}", mode["id"]);
        }
    }
    snapshot("agents.json", &run.stdout);
}

#[test]
fn both_spellings_of_a_dependency_are_one_in_json() {
    let sandbox = Sandbox::new();
    let detailed = "metadata: {dependencies: [{type: tool, name: developer}, {type: agent, name: goose}]}";
    let manifest = notes_with("metadata: {dependencies: [developer]}", detailed)
        .replace("    dependencies: [developer]", "    dependencies: [{name: developer}, {type: agent, name: goose}]");
    sandbox.write("project/extra/notes.yaml", &manifest);
    sandbox.write("project/extra/notes.md", "You read notes.\n");
    let agent = sandbox.skein(&["agents", "show", "notes", "--json", "--manifests", "extra"]).json();
    assert_eq!(agent["modes"][0]["dependencies"], json!(["developer", {"type": "agent", "name": "goose"}]));
}

#[test]
fn agents_show_says_which_file_an_agent_came_from() {
    snapshot("agents-show-coding.txt", &Sandbox::new().skein(&["agents", "show", "coding"]).whole());
}

#[test]
fn agents_show_names_the_file_that_was_overridden_too() {
    let sandbox = Sandbox::new();
    sandbox.write("config/agents/goose.yaml", &notes_with("name: notes", "name: goose"));
    sandbox.write("config/agents/notes.md", "You read notes.\n");
    expect![[r#"
        exit 0
        --- stdout
        goose
        Reads notes.
        from: [TMP]/config/agents/goose.yaml (user)
        overrides: builtin:manifests/agents/goose.yaml

        goose/reader (default)
          Reads.
          tools: read
          services: developer
          sandbox: runs no commands
          prompt: [TMP]/config/agents/notes.md (16 bytes)

        goose/judge (internal: never offered to a user)
          Says whether a tool call is read-only, or whether joined results are complete.
          when: Used by the program itself, never by a user. Given one tool call with its arguments, it says whether the call only reads; given a task and the joined results of its parts, it says whether they are complete and agree. It answers with one JSON object.
          tools: none
          services: none
          sandbox: runs no commands
          prompt: builtin:agents/goose/judge.md (3585 bytes)
          from: builtin:manifests/agents/goose.yaml
        --- stderr
    "#]]
    .assert_eq(&sandbox.skein(&["agents", "show", "goose"]).whole());
}

#[test]
fn an_unknown_agent_is_answered_with_the_nearest() {
    expect![[r"
        exit 2
        --- stdout
        --- stderr
        error: there is no agent `codign`
          help: did you mean `coding`?
    "]]
    .assert_eq(&Sandbox::new().skein(&["agents", "show", "codign"]).whole());
}

// services and tools

#[test]
fn services_are_listed_with_those_who_ask_for_them() {
    let sandbox = Sandbox::new();
    sandbox.write("config/services/clock.yaml", CLOCK);
    snapshot("services.txt", &sandbox.skein(&["services"]).whole());
    let run = sandbox.skein(&["services", "--json"]);
    snapshot("services.json", &run.stdout);
    let names: Vec<_> = run.json().as_array().expect("a list").iter().map(|one| one["name"].clone()).collect();
    assert!(names.contains(&json!("clock")));
}

fn tools_of(sandbox: &Sandbox, agent: &str, mode: &str) -> Value {
    sandbox.skein(&["tools", "-a", agent, "-m", mode, "--json"]).json()
}

#[test]
fn tools_shows_what_a_mode_sees_and_why_not_the_rest() {
    let sandbox = Sandbox::new();
    snapshot("tools-coding-architect.txt", &sandbox.skein(&["tools", "-a", "coding", "-m", "architect"]).whole());
    let run = sandbox.skein(&["tools", "-a", "coding", "-m", "security", "--json"]);
    snapshot("tools-coding-security.json", &run.stdout);
}

#[test]
fn the_security_reviewer_has_no_tool_that_edits_or_runs() {
    let sandbox = Sandbox::new();
    let value = tools_of(&sandbox, "coding", "security");
    let tools: BTreeSet<_> =
        value["tools"].as_array().expect("tools").iter().map(|tool| tool["tool"].as_str()).collect();
    assert!(tools.contains(&Some("read_file")));
    let services = sandbox.skein(&["services", "--json"]).json();
    for service in services.as_array().expect("a list") {
        for group in ["edit", "command", "browser", "document"] {
            for tool in service["groups"][group].as_array().into_iter().flatten() {
                assert!(!tools.contains(&tool.as_str()), "{tool}");
            }
        }
    }
}

#[test]
fn the_judge_has_no_tool_at_all() {
    let value = tools_of(&Sandbox::new(), "goose", "judge");
    assert_eq!((&value["tools"], &value["mcp"]), (&json!([]), &json!(false)));
}

#[test]
fn every_tool_that_is_out_of_scope_has_a_reason() {
    let sandbox = Sandbox::new();
    sandbox.write("config/services/clock.yaml", CLOCK);
    let agents = sandbox.skein(&["agents", "--json"]).json();
    for agent in agents.as_array().expect("a list") {
        for mode in agent["modes"].as_array().expect("modes") {
            let (agent, mode) = (agent["name"].as_str().expect("a name"), mode["slug"].as_str().expect("a slug"));
            let value = tools_of(&sandbox, agent, mode);
            for tool in value["out_of_scope"].as_array().expect("a list") {
                assert!(tool["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{agent}/{mode}: {tool}");
            }
            let sees_clock = value["tools"].as_array().expect("tools").iter().any(|tool| tool["service"] == "clock");
            assert_eq!(json!(sees_clock), value["mcp"], "{agent}/{mode}: mcp alone brings what a user installed");
        }
    }
}

/// What a service offers is asked of the service, so one that does not start leaves nothing to show.
#[test]
fn tools_of_a_service_that_cannot_be_started_are_not_guessed() {
    let sandbox = Sandbox::new();
    sandbox.write("project/extra/clock.yaml", CLOCK);
    sandbox.write("project/extra/notes.yaml", &NOTES.replace("developer", "clock").replace("[read]", "[clock]"));
    sandbox.write("project/extra/notes.md", "You read notes.\n");
    expect![[r"
        exit 1
        --- stdout
        --- stderr
        error: `notes/reader` cannot be entered: the service `clock` could not be started: there is no program `clock-mcp` on the PATH
          help: correct the service's manifest, or make its dependency optional; the log has its own words
    "]]
    .assert_eq(&sandbox.skein(&["tools", "-a", "notes", "--manifests", "extra"]).whole());
}

#[test]
fn a_service_whose_manifest_names_no_tools_is_asked_for_them() {
    let sandbox = Sandbox::new();
    sandbox.write("project/extra/clock.yaml", &echo("clock", &[]).to_string());
    sandbox.write("project/extra/notes.yaml", &NOTES.replace("developer", "clock").replace("[read]", "[clock]"));
    sandbox.write("project/extra/notes.md", "You read notes.\n");
    let run = sandbox.skein(&["tools", "-a", "notes", "--manifests", "extra"]);
    assert!(run.stdout.contains("clock__echo"), "{}", run.whole());
    let value = sandbox.skein(&["tools", "-a", "notes", "--manifests", "extra", "--json"]).json();
    let tools = value["tools"].as_array().expect("a list");
    assert!(tools.iter().all(|tool| tool["service"] == "clock" && tool["read_only"] == json!(false)), "{value}");
}

#[test]
fn an_unknown_mode_is_a_usage_error() {
    expect![[r"
        exit 2
        --- stdout
        --- stderr
        error: the agent `coding` has no mode `backnd`
          help: did you mean `backend`?
    "]]
    .assert_eq(&Sandbox::new().skein(&["tools", "-a", "coding", "-m", "backnd"]).whole());
}

// new

#[test]
fn a_scaffold_passes_check_as_it_is() {
    let sandbox = Sandbox::new();
    expect![[r"
        exit 0
        --- stdout
        wrote .skein/agents/helper.yaml
        wrote .skein/agents/helper/reader.md
        edit it, check it with `skein check`, then trust the change with `skein trust`
        --- stderr
    "]]
    .assert_eq(&sandbox.skein(&["new", "agent", "helper"]).whole());
    assert_eq!(sandbox.skein(&["new", "service", "clock"]).code, 0);
    expect![[r"
        exit 0
        --- stdout
        4 agents, 18 modes, 14 services: no errors, no warnings, 8 notes
        --- stderr
    "]]
    .assert_eq(&sandbox.skein(&["check", "--quiet"]).whole());
}

#[test]
fn a_scaffold_of_the_users_own_lies_in_the_users_settings() {
    let sandbox = Sandbox::new();
    expect![[r"
        exit 0
        --- stdout
        wrote [TMP]/config/services/clock.yaml
        edit it, then check it with `skein check`
        --- stderr
    "]]
    .assert_eq(&sandbox.skein(&["new", "service", "clock", "--user"]).whole());
    assert!(!sandbox.path("project/.skein").exists());
    assert_eq!(sandbox.skein(&["check", "-q"]).code, 0);
}

#[test]
fn new_does_not_overwrite() {
    let sandbox = Sandbox::new();
    sandbox.write("project/.skein/agents/helper.yaml", "mine");
    let run = sandbox.skein(&["new", "agent", "helper"]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("exists already"), "{}", run.stderr);
    assert_eq!(read(sandbox.path("project/.skein/agents/helper.yaml")), "mine");
}

#[test]
fn new_refuses_names_that_could_not_pass_check() {
    let sandbox = Sandbox::new();
    for bad in ["Big", "two words", "../up", "a__b", "1st", "", &"a".repeat(33)] {
        let run = sandbox.skein(&["new", "agent", bad]);
        assert_eq!(run.code, 2, "{bad}");
    }
    // Well formed, but the orchestrator's, and the name of a group.
    for (kind, taken) in [("agent", "orchestrator"), ("service", "summon"), ("service", "read")] {
        let run = sandbox.skein(&["new", kind, taken]);
        assert_eq!(run.code, 2, "{taken}");
        assert!(run.stderr.contains(&format!("leave no room for the name `{taken}`")), "{}", run.stderr);
    }
    assert!(!sandbox.path("project/.skein").exists());
}

#[test]
fn new_writes_to_the_project_that_will_be_found() {
    let sandbox = Sandbox::new();
    // A .skein above the repository belongs to something else.
    sandbox.write("project/.skein/agents/readme.md", "");
    sandbox.write("project/repository/.git/HEAD", "");
    sandbox.write("project/repository/src/main.rs", "");
    let mut command = sandbox.command(&["new", "service", "clock"]);
    let output = command.current_dir(sandbox.path("project/repository/src")).output().expect("it runs");
    assert!(output.status.success());
    assert!(sandbox.path("project/repository/.skein/services/clock.yaml").is_file());
}

// trust

/// A sandbox whose project came from somewhere else.
fn cloned_project() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("project/.skein/services/clock.yaml", CLOCK);
    sandbox
}

fn has_clock(sandbox: &Sandbox) -> (bool, String) {
    let run = sandbox.skein(&["services"]);
    (run.stdout.contains("clock"), run.stderr)
}

const NOT_TRUSTED: &str = "note: this project's .skein/ or .mcp.json is not trusted and is not used; look at it, \
                           then run `skein trust`\n";

#[test]
fn an_untrusted_project_is_not_used_and_that_is_said() {
    assert_eq!(has_clock(&cloned_project()), (false, NOT_TRUSTED.to_owned()));
}

#[test]
fn a_trusted_project_is_used_until_one_byte_changes() {
    let sandbox = cloned_project();
    snapshot("trust.txt", &sandbox.skein(&["trust", "--yes"]).whole());
    assert_eq!(has_clock(&sandbox), (true, String::new()));
    sandbox.write("project/.skein/services/clock.yaml", &CLOCK.replace("[--utc]", "[--utd]"));
    let (used, said) = has_clock(&sandbox);
    assert!(!used && said.contains("has changed since it was trusted and is not used"), "{said}");
    expect![[r"
        exit 0
        --- stdout
        [TMP]/project: changed since it was trusted: not used
        --- stderr
    "]]
    .assert_eq(&sandbox.skein(&["trust", "--status"]).whole());
}

#[test]
fn trust_knows_the_services_of_other_layers() {
    let sandbox = Sandbox::new();
    let agent = "version: 1\nkind: agent\nname: house\ndescription: x\n\
                 metadata: {dependencies: [clock]}\nruntime: {acp: {command: none}}\n\
                 modes: [{slug: one, description: x, tool_groups: [time], dependencies: [clock]}]\n";
    sandbox.write("project/.skein/agents/house.yaml", agent);
    sandbox.write("team/services/clock.yaml", CLOCK);
    let alone = sandbox.skein(&["trust", "--yes"]);
    assert!(alone.stderr.contains("these files have errors"), "{}", alone.stderr);
    assert_eq!(sandbox.skein(&["trust", "--revoke"]).code, 0);
    let with_team = sandbox.skein(&["--manifests", "../team", "trust", "--yes"]);
    assert_eq!(with_team.code, 0, "{}", with_team.whole());
    assert!(!with_team.stderr.contains("these files have errors"), "{}", with_team.stderr);
    assert_eq!(sandbox.skein(&["--manifests", "../team", "check", "-q"]).code, 0);
}

#[test]
fn a_changed_examples_file_ends_the_trust_of_a_project() {
    let sandbox = Sandbox::new();
    let agent = "version: 1\nkind: agent\nname: house\ndescription: x\nruntime: {acp: {command: none}}\nmodes:\n  \
                 - {slug: one, description: x, examples_file: one.examples.txt}\n";
    sandbox.write("project/.skein/agents/house.yaml", agent);
    sandbox.write("project/.skein/agents/one.examples.txt", "mow the lawn\n");
    sandbox.skein(&["trust", "--yes"]);
    assert_eq!(sandbox.skein(&["trust", "--status", "--json"]).json()["trust"], "trusted");
    sandbox.write("project/.skein/agents/one.examples.txt", "mow the roof\n");
    assert_eq!(sandbox.skein(&["trust", "--status", "--json"]).json()["trust"], "changed");
}

#[test]
fn trust_can_be_taken_back() {
    let sandbox = cloned_project();
    sandbox.skein(&["trust", "--yes"]);
    expect![[r"
        exit 0
        --- stdout
        [TMP]/project: not trusted: not used
        --- stderr
    "]]
    .assert_eq(&sandbox.skein(&["trust", "--revoke"]).whole());
    assert_eq!(has_clock(&sandbox), (false, NOT_TRUSTED.to_owned()));
}

#[test]
fn trust_speaks_json_on_stdout_alone() {
    let sandbox = cloned_project();
    let status = sandbox.skein(&["trust", "--status", "--json"]).json();
    assert_eq!(status["trust"], "unknown");
    let trusted = sandbox.skein(&["trust", "--yes", "--json"]).json();
    assert_eq!(
        (&trusted["trust"], &trusted["project"], &trusted["files"]),
        (&json!("trusted"), &json!("[TMP]/project"), &json!([".skein/services/clock.yaml"]))
    );
    assert!(trusted["hash"].as_str().is_some_and(|hash| hash.starts_with("sha256:")));
}

#[test]
fn without_a_terminal_trust_needs_yes() {
    let sandbox = cloned_project();
    for args in [&["trust"][..], &["trust", "--json"]] {
        let run = sandbox.skein(args);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""));
        assert!(
            run.stderr.contains("there is no terminal to ask on") && run.stderr.contains("--yes"),
            "{}",
            run.stderr
        );
    }
    assert!(!has_clock(&sandbox).0);
}

#[test]
fn trust_without_a_project_is_a_usage_error() {
    assert_eq!(Sandbox::new().skein(&["trust"]).code, 2);
}

#[test]
fn a_project_cannot_hide_what_it_runs_behind_escape_sequences() {
    let sandbox = Sandbox::new().with("CLICOLOR_FORCE", "1");
    let hidden = "\u{202e}\u{61c}\u{34f}\u{115f}\u{1160}\u{2800}\u{3164}\u{ffa0}\u{e0041}";
    let server =
        json!({"mcpServers": {"x": {"command": format!("evil\u{1b}[2K\r{hidden}good"), "args": ["\u{1b}[8m"]}}});
    sandbox.write("project/.mcp.json", &server.to_string());
    let run = sandbox.skein(&["trust", "--yes"]);
    assert!(run.stderr.contains("service x runs: evil"), "{}", run.stderr);
    assert!(!run.stderr.contains(|c| "\u{1b}\r".contains(c) || hidden.contains(c)), "{:?}", run.stderr);
}

/// Issue 16, point 8: JSON that is printed says the same without characters that do not show.
#[test]
fn json_escapes_what_does_not_show() {
    let sandbox = Sandbox::new();
    let text = "Reads\u{202e}\u{61c}\u{e0041}\u{9b}2J the notes.";
    let agent = json!({"version": 1, "kind": "agent", "name": "notes", "description": text,
        "modes": [{"slug": "default", "description": text, "prompt": "notes.md"}]});
    sandbox.write("config/agents/notes.json", &agent.to_string());
    sandbox.write("config/agents/notes.md", "Read.");
    let run = sandbox.skein(&["agents", "show", "notes", "--json"]);
    let hidden = |c: char| (c.is_control() && c != '\n') || "\u{202e}\u{61c}\u{e0041}".contains(c);
    assert!(!run.stdout.contains(hidden), "{:?}", run.stdout);
    assert!(run.stdout.contains(r"Reads\u202e\u061c\udb40\udc41\u009b2J the"), "{}", run.stdout);
    assert_eq!(run.json()["description"], text);
}

#[test]
fn check_reads_an_untrusted_project_because_that_starts_nothing() {
    let run = cloned_project().skein(&["check", "-q"]);
    expect![[r"
        exit 0
        --- stdout
        3 agents, 17 modes, 14 services: no errors, no warnings, 8 notes
        --- stderr
        note: this project's .skein/ or .mcp.json is not trusted and is checked here but not used; look at it, then run `skein trust`
    "]]
    .assert_eq(&run.whole());
}

// layers

#[test]
fn later_layers_override_earlier_ones() {
    let sandbox = Sandbox::new();
    let seen = |sandbox: &Sandbox, args: &[&str]| {
        let args = [&["agents", "show", "coding", "--json"], args].concat();
        let agent = sandbox.skein(&args).json();
        (agent["layer"].clone(), agent["overrides"].as_array().expect("a list").len())
    };
    assert_eq!(seen(&sandbox, &[]), (json!("builtin"), 0));
    for (layer, folder) in [("user", "config/agents"), ("project", "project/.skein/agents"), ("extra", "project/extra")]
    {
        write_notes(&sandbox, folder);
        sandbox.write(&format!("{folder}/notes.yaml"), &notes_with("name: notes", "name: coding"));
        assert_eq!(sandbox.skein(&["trust", "--yes"]).code, if layer == "user" { 2 } else { 0 });
        if layer != "extra" {
            assert_eq!(seen(&sandbox, &[]).0, layer);
        }
    }
    assert_eq!(seen(&sandbox, &[]), (json!("project"), 2));
    assert_eq!(seen(&sandbox, &["--manifests", "extra"]), (json!("extra"), 3));
}

// everything else a terminal expects

#[test]
fn completions_are_printed_for_every_shell() {
    let sandbox = Sandbox::new();
    for (shell, mark) in [("bash", "complete -F _skein"), ("zsh", "#compdef skein"), ("fish", "complete -c skein")] {
        let run = sandbox.skein(&["completions", shell]);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""));
        assert!(run.stdout.contains(mark) && run.stdout.contains("graph"), "{shell}");
    }
}

#[test]
fn colour_is_for_terminals_and_no_color_turns_it_off() {
    let coloured = |sandbox: Sandbox| {
        let Run { stdout, stderr, .. } = sandbox.skein(&["agents"]);
        let checked = sandbox.skein(&["check"]);
        [stdout, stderr, checked.stdout, checked.stderr].concat().contains('\u{1b}')
    };
    assert!(!coloured(Sandbox::new()));
    assert!(coloured(Sandbox::new().with("CLICOLOR_FORCE", "1")));
    assert!(!coloured(Sandbox::new().with("CLICOLOR_FORCE", "1").with("NO_COLOR", "1")));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let sandbox = Sandbox::new();
    for args in [&["graph"][..], &["agents", "--json"], &["completions", "zsh"], &["--help"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = sandbox.command(args).stdout(writer).output().expect("it runs");
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn every_command_leaves_a_line_in_the_log_and_none_on_stderr() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.skein(&["graph"]).stderr, "");
    sandbox.skein(&["agents", "show", "nobody"]);
    let lines: Vec<_> = sandbox
        .log()
        .into_iter()
        .map(|line| {
            json!([line["level"], line["fields"]["message"], line["fields"]["command"], line["fields"]["code"]])
        })
        .collect();
    assert_eq!(
        lines,
        [json!(["INFO", "command finished", "graph", 0]), json!(["INFO", "command finished", "agents", 2])]
    );
}

#[test]
fn skein_log_brings_the_log_to_stderr_without_colour() {
    let run = Sandbox::new().with("SKEIN_LOG", "debug").skein(&["graph"]);
    assert!(run.stderr.contains("manifests loaded") && run.stderr.contains("command finished"), "{}", run.stderr);
    assert!(!run.stderr.contains('\u{1b}') && !run.stdout.contains("manifests loaded"));
}

#[test]
fn unwritable_state_folder_is_reported_and_harmless() {
    let sandbox = Sandbox::new();
    sandbox.write("data", "a file where the folder should be");
    let run = sandbox.skein(&["graph"]);
    assert_eq!(run.code, 0);
    assert!(run.stderr.starts_with("note: no log is written: [TMP]/data/state"), "{}", run.stderr);
}

#[test]
fn mistakes_on_the_command_line_exit_2() {
    let sandbox = Sandbox::new();
    for args in
        [&[][..], &["nonsense"], &["graph", "--format", "gif"], &["tools"], &["graph", "--format", "dot", "--json"]]
    {
        let run = sandbox.skein(args);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{args:?}");
        assert!(run.stderr.contains("--help"), "{args:?}: {}", run.stderr);
    }
    assert_eq!(sandbox.skein(&["--version"]).stdout, format!("skein {}\n", env!("CARGO_PKG_VERSION")));
}

// the docs

/// Every `$ skein …` in a `console` block of the README and the docs is run, in a project of its own per
/// document, and must print what stands there. A line `…` stands for lines left out. A block that names a file
/// (`yaml file=NAME`) is written first.
#[test]
fn the_examples_in_the_docs_are_what_the_program_prints() {
    let documents = fs::read_dir(repository("docs")).expect("docs").map(|entry| entry.expect("an entry").path());
    for document in
        documents.chain([repository("README.md")]).filter(|path| path.extension().is_some_and(|e| e == "md"))
    {
        let sandbox = Sandbox::new();
        for (info, block) in code_blocks(&read(&document)) {
            if let Some((_, file)) = info.split_once(" file=") {
                sandbox.write(&format!("project/{file}"), &block);
            } else if info == "console" {
                let place = document.display().to_string();
                run_example(&sandbox, &place, &block);
            }
        }
    }
}

/// The info string and the text of every block, in order.
pub(crate) fn code_blocks(markdown: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut lines = markdown.lines();
    while let Some(line) = lines.next() {
        if let Some(info) = line.strip_prefix("```") {
            let block: String =
                lines.by_ref().take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect();
            blocks.push((info.to_owned(), block));
        }
    }
    blocks
}

/// A command line as a shell takes it apart: words at spaces, but not inside quotes.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in command.chars() {
        match (c, quote) {
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            (' ', None) => words.push(String::new()),
            (c, _) => words.last_mut().expect("there is always one").push(c),
        }
    }
    words
}

fn run_example(sandbox: &Sandbox, place: &str, block: &str) {
    for example in format!("\n{block}").split("\n$ ").skip(1) {
        let (command, promised) = example.split_once('\n').unwrap_or((example, ""));
        let words = words(command);
        let args: Vec<_> = words.iter().map(String::as_str).skip(1).collect();
        assert!(command.starts_with("skein "), "{place}: only skein is run here: {command}");
        let printed = sandbox.transcript(&args).replace("[TMP]/project", "/home/you/project");
        let printed = printed.replace("[TMP]/data/state", "/home/you/.local/state/skein");
        let printed = printed.replace("[TMP]/config", "/home/you/.config/skein");
        let pattern: Vec<_> = promised.trim_end().split("\n…\n").map(regex::escape).collect();
        let pattern = pattern.join("\n(?s:.*)\n").replace("\n…", "\n(?s:.*)");
        let matches = regex::Regex::new(&format!("^{pattern}$")).expect("a pattern");
        assert!(matches.is_match(printed.trim_end()), "{place}: `{command}` prints\n{printed}\nand not\n{promised}");
    }
}

#[test]
fn a_wrong_level_is_blamed_on_whoever_said_it() {
    let sandbox = Sandbox::new().with("SKEIN_APPROVAL", "bogus");
    let run = sandbox.skein(&["agents"]);
    assert!(run.code == 2 && run.stderr.contains("environment variable SKEIN_APPROVAL"), "{}", run.whole());
    let run = sandbox.skein(&["agents", "--approval", "bogus"]);
    assert!(run.code == 2 && !run.stderr.contains("SKEIN_APPROVAL\n"), "{}", run.whole());
}

/// Nobody should take an agent from outside for one that Skein holds.
#[test]
fn an_external_agent_is_labelled_unfenced_wherever_it_is_shown() {
    let sandbox = Sandbox::new();
    let manifest = "version: 1\nkind: agent\nname: outside\ndescription: From elsewhere.\n\
        runtime: {acp: {npx: {package: outside, args: [--acp]}}}\nmetadata: {dependencies: [memory]}\n\
        modes: [{slug: default, description: As it is., tool_groups: [memory], dependencies: [memory]}]\n";
    sandbox.write("config/agents/outside.yaml", manifest);
    let sentence = "unfenced: what it asks of Skein is held by its mode; what its process does by itself is not";
    let shown = |args: &[&str]| sandbox.skein(args).stdout;
    assert!(shown(&["agents"]).contains("outside (unfenced)  From elsewhere."));
    let one = shown(&["agents", "show", "outside"]);
    assert!(one.contains(sentence) && one.contains("runs: npx -y outside --acp\n"), "{one}");
    let tools = shown(&["tools", "-a", "outside"]);
    assert!(tools.contains(sentence) && tools.contains("memory__"), "{tools}");
    for format in ["text", "dot", "mermaid", "svg"] {
        let picture = shown(&["graph", "--format", format]);
        assert_eq!(picture.matches("outside (unfenced)").count(), 1, "{format}: {picture}");
        assert_eq!(picture.matches("unfenced").count(), 1, "{format}: {picture}");
    }
    let unfenced = |value: &Value| value["unfenced"] == true;
    let agents = sandbox.skein(&["agents", "--json"]).json();
    let labelled: Vec<_> = agents.as_array().unwrap().iter().filter(|agent| unfenced(agent)).collect();
    assert_eq!((labelled.len(), &labelled[0]["name"]), (1, &json!("outside")));
    assert!(unfenced(&sandbox.skein(&["tools", "-a", "outside", "--json"]).json()));
    assert!(!unfenced(&sandbox.skein(&["tools", "-a", "goose", "-m", "planner", "--json"]).json()));
    let graph = sandbox.skein(&["graph", "--format", "json"]).json();
    assert_eq!(graph["nodes"].as_array().unwrap().iter().filter(|node| unfenced(node)).count(), 1);
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_reported() {
    let sandbox = Sandbox::new();
    for args in [&["agents"][..], &["agents", "--json"], &["--help"], &["--version"]] {
        let full = fs::File::options().write(true).open("/dev/full").expect("a full device");
        let output = sandbox.command(args).stdout(full).output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        let error = "error: the output could not be written: No space left on device";
        assert_eq!(said.matches(error).count(), 1, "{args:?}: {said}");
    }
    // A reader that ends early is no error.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = sandbox.command(&["agents"]).stdout(writer).output().expect("the program starts");
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}
