//! Generates docs/services.md from the services: the tools that they list, and example calls with their real answers.

use std::fmt::Write as _;
use std::sync::Arc;

use expect_test::expect_file;
use serde_json::{Value, json};
use skein::broker::{BindRequest, Binding};
use skein::manifest::{ApprovalLevel, Layer, Readiness, Root, ServiceEntry};
use skein::orchestrator::session_services::SessionServices;
use skein::runtime::Runtime;
use skein::services::{BuiltinRegistry, Environment, PoolOptions};
use skein::tool::ask::NoAsker;
use skein::tool::{CallContext, SessionContext};

use crate::support::repository;

/// Returns an example call for each service that has tools.
fn example(service: &str) -> Option<(&'static str, Value)> {
    let example = match service {
        "tom" => return None,
        "chatrecall" => ("search_sessions", json!({"query": "zebra importer", "after": "2026-11-01"})),
        "summon" => {
            ("delegate", json!({"task": "Say what the login endpoint does", "agent": "coding", "mode": "security"}))
        }
        "extensionmanager" => ("search_services", json!({"query": "web"})),
        "apps" => (
            "create_app",
            json!({
                "name": "dinner-wheel", "prd": "Spins a wheel to decide what is for dinner.",
                "html": "<!doctype html>\n<title>Dinner Wheel</title>\n<script src=\"https://cdn.example.com/wheel.js\"></script>",
            }),
        ),
        "autovisualiser" => {
            ("draw", json!({"kind": "pie", "data": [{"party": "A", "seats": 12}, {"party": "B", "seats": -3}]}))
        }
        "computercontroller" => (
            "write_document",
            json!({"path": "prices.xlsx", "sheets": [{"name": "Fruit", "rows": [
                [{"value": "Item", "bold": true}, {"value": "Price", "bold": true}],
                ["Apple", 1.2], ["Pear", 1.5], ["Sum", "=SUM(B2:B3)"],
            ]}]}),
        ),
        "developer" => {
            ("edit_file", json!({"path": "greeting.txt", "edits": [{"before": "hello", "after": "good morning"}]}))
        }
        "memory" => ("remember", json!({"text": "The user writes commit messages in English", "scope": "project"})),
        "todo" => (
            "set_todos",
            json!({"items": [{"text": "write the test", "status": "completed"}, {"text": "make it pass", "status": "pending"}]}),
        ),
        "knowledge" => ("load", json!({"name": "review"})),
        "tutorial" => ("load_tutorial", json!({"name": "first-manifest"})),
        "fetch" => ("fetch_url", json!({"url": "http://169.254.169.254/latest/meta-data"})),
        other => panic!("a service that is ready needs an example here: {other}"),
    };
    Some(example)
}

/// A plan in which one agent has a mode for each service that is ready.
fn wired(ready: &[String]) -> skein::graph::Plan {
    let modes: Vec<_> = ready
        .iter()
        .map(|name| json!({"slug": name, "description": name, "tool_groups": [name], "dependencies": [name]}))
        .collect();
    let agent = json!({
        "version": 1, "kind": "agent", "name": "reader", "description": "Reads what services say.",
        "runtime": {"acp": {"command": "none"}}, "metadata": {"dependencies": ready}, "modes": modes,
    });
    let files = [("reader.json".into(), agent.to_string().into_bytes())].into();
    let extra = (Layer::Extra, Root::Snapshot { files, shown: String::new() });
    let (manifests, found) = skein::manifest::load(&[(Layer::Builtin, Root::Builtin), extra]);
    skein::graph::resolve(manifests, found).plan.expect("the manifests are right")
}

/// Wraps a text at 100 columns.
fn wrap(text: &str) -> String {
    let mut wrapped = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > 100 {
            wrapped.push('\n');
            column = 0;
        } else if column > 0 {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += width;
    }
    wrapped
}

fn section(out: &mut String, entry: &ServiceEntry, binding: &Binding) {
    let manifest = &entry.manifest;
    _ = writeln!(out, "\n## {}\n\n{}\n", manifest.name, wrap(&manifest.description));
    if let Some(owner) = &manifest.owner {
        _ = writeln!(out, "Only the agent {owner} can ask for it.");
    }
    let tools = || binding.tools().iter().filter(|(_, tool)| tool.service == manifest.name);
    if tools().next().is_none() {
        return;
    }
    if manifest.owner.is_some() {
        _ = writeln!(out);
    }
    _ = writeln!(out, "| tool | groups | what it does |\n| --- | --- | --- |");
    for (_, tool) in tools() {
        let groups: Vec<_> = manifest
            .groups
            .iter()
            .filter(|(_, tools)| tools.contains(&tool.spec.name))
            .map(|(group, _)| group.as_str())
            .collect();
        let read_only = match tool.reaching.as_slice() {
            _ if !tool.read_only => String::new(),
            [] => " Read-only.".to_owned(),
            names => format!(" Read-only, but Skein asks if `{}` is given.", names.join("` or `")),
        };
        let description = tool.spec.description.trim_end_matches('.');
        _ = writeln!(out, "| `{}` | {} | {description}.{read_only} |", tool.spec.name, groups.join(", "));
    }
    let bytes: usize = tools().map(|(name, tool)| tool.request_bytes(name)).sum();
    _ = writeln!(out, "\nIts tools add {bytes} bytes to a request.");
}

/// `UPDATE_EXPECT=1 cargo test services_doc` writes the page again.
#[tokio::test]
async fn the_page_on_services_is_what_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let project = folder.path().join("project");
    std::fs::create_dir(&project).unwrap();
    std::fs::write(project.join("greeting.txt"), "hello world\n").unwrap();
    let skill = project.join(".agents/skills/review");
    std::fs::create_dir_all(&skill).unwrap();
    let text = "---\nname: review\ndescription: Reviews a change\n---\nLook at the tests first.\n";
    std::fs::write(skill.join("SKILL.md"), text).unwrap();
    let session = SessionContext::new("s1", project, Vec::new(), folder.path().join("scratch"));

    let (manifests, _) = skein::manifest::load(&[(Layer::Builtin, Root::Builtin)]);
    let ready: Vec<_> = manifests.services.values().filter(|entry| entry.manifest.status == Readiness::Ready).collect();
    let free = ready.iter().filter(|entry| entry.manifest.owner.is_none());
    let free: Vec<_> = free.map(|entry| entry.manifest.name.to_string()).collect();
    let environment = Environment::new(std::env::vars_os());
    let sandbox = Some(crate::support::launcher(folder.path(), skein::sandbox::LayerRestriction::default()));
    let options = PoolOptions { environment, sandbox, data: folder.path().join("data"), ..PoolOptions::default() };
    let runtime = Runtime::start(Arc::new(wired(&free)), BuiltinRegistry::builtin(), options, None);
    // The agent that is there for this page is not one of ours.
    let (manifests, found) = skein::manifest::load(&[(Layer::Builtin, Root::Builtin)]);
    let ours = skein::graph::resolve(manifests, found).plan.expect("the manifests are right");
    let manager = SessionServices::new(runtime.broker().with_plan(Arc::new(ours)), Vec::new());
    assert!(session.manager.set(Arc::new(manager)).is_ok());

    let mut page = String::from(
        "# The built-in services\n\n\
         Each built-in service is an MCP server. Skein calls it in process, and `skein mcp --service NAME`\n\
         starts it alone. A mode gets the tools of the groups that it [lists](manifests.md#tool-groups).\n\
         Skein starts a service only if a mode of a session asks for it. A test generates this page from the\n\
         services.\n\n\
         **Files.** File tools work in the session's working directory, its additional directories and its\n\
         scratch folder. Skein resolves links first. It asks before a tool writes a\n\
         [protected path](security.md#protected-and-hidden-paths), and refuses hidden paths. A failed call\n\
         changes nothing, and its error names the next step. `skein services` also lists planned services.\n\n\
         **Editors.** If the editor provides its files, `read_file`, `write_file`, `edit_file` and\n\
         `undo_edit` read and write UTF-8 text through it, including unsaved changes. `search`, `find_files`\n\
         and `list_dir` read the disk. If the editor provides terminals, `shell` runs in one, except in the\n\
         background. If the editor fails, the tool works without it, unless unsaved text would be lost or a\n\
         command could run twice.\n\n\
         **Sandbox.** Commands of `shell` run in the [sandbox](sandbox.md#shell-commands) of their mode. With\n\
         `read_only: true` they change nothing and need no approval. With `unsandboxed` they run without a\n\
         sandbox, after a question.\n\n\
         **Processes.** When a command of `shell` ends, its process group ends with it. A process that left\n\
         the group, with `setsid` or as a daemon, runs until the session ends. No command or service can\n\
         write a core file, or a file of more than 8 GiB.\n\n\
         **Scripts.** `run_script` runs a shell, Python or JavaScript text with the sandbox, approval and\n\
         [rules](security.md#rules) of `shell`. The question shows the whole script, which has at most 16 kB.\n\
         The interpreter gets exactly this text. With `save`, a process in the sandbox of the mode also\n\
         writes it to a file. `save` replaces a file only if this session wrote it.\n\n\
         **Documents.** `computercontroller` reads PDF, DOCX, XLSX, PPTX, ODT, ODS and CSV files of up to\n\
         64 MiB. It writes and changes DOCX and XLSX files, and inserts PNG, JPEG and GIF images into DOCX\n\
         files. Parts of the file that an edit does not concern keep their bytes. Each document is parsed by\n\
         its own child process, which is Skein's program in a [sandbox](sandbox.md) with `files: none` and\n\
         `network: off`. The process gets the file through a pipe, has no environment, and may use 1 GiB of\n\
         memory and 60 seconds. A machine without some layers of the sandbox runs it with the others; the\n\
         limits and the empty environment remain. The same process reads XLSX files for `draw`.\n\n\
         **Cache.** A session keeps the texts of up to 32 documents (32 MiB) and of up to 32 web pages that\n\
         it fetched (8 MB). `list_cache`, `read_cache` and `clear_cache` work on both. Each text is also an\n\
         MCP resource, `document://ID` or `page://ID`.\n\n\
         **Browser.** `browse` opens a page in an installed Chromium (Debian package `chromium`), without a\n\
         window and without your logins. The page appears as a list of its elements. Those that can be used\n\
         have references such as `e12`, which `browse_act` takes; they hold until the page shows another\n\
         document. Skein answers dialogs and blocks new windows; the result lists them. Downloads of up to\n\
         256 MiB go to the folder `downloads` in the session's scratch folder; `upload` takes files of the\n\
         workspace. Each session has one browser with its own profile, in a separate [sandbox](sandbox.md).\n\
         It reaches hosts only through Skein's proxy, under the network of the mode, your host rules and your\n\
         consent. `http://localhost:PORT` leads to servers that `shell` started in the same session.\n\
         [security.md](security.md#what-a-browser-can-do) has the limits. A call may take 75 seconds; a page\n\
         that does not respond, or opens more than 30 dialogs, is closed. A page of more than 25,000 elements\n\
         appears as plain text. The browser ends with the session, and its profile is removed.\n\n\
         **Screen.** `see_screen`, `list_windows`, `focus_window`, `click`, `type_text` and `press_keys` use\n\
         your screen. Each asks for consent, also those that only look. They work on X11 with the XTEST\n\
         extension, and refuse on Wayland and without a display. `click` takes positions in pixels: it cannot\n\
         find a button by its label, because X11 does not know labels.\n\n\
         **More.** [knowledge.md](knowledge.md) describes what `knowledge` loads.\n\
         [orchestrator.md](orchestrator.md) describes `chatrecall`, `extensionmanager` and `tom`. The\n\
         lessons of `tutorial` are also [pages](tutorials/first-manifest.md). The\n\
         [gallery](gallery.md) shows every kind of picture of `autovisualiser`.\n",
    );
    for entry in ready {
        let name = entry.manifest.name.as_str();
        let terms = BindRequest {
            session: Arc::clone(&session),
            approval: Some(ApprovalLevel::Auto),
            asker: Arc::new(NoAsker),
            client_services: Vec::new(),
        };
        let owned = entry.manifest.owner.is_some();
        let id = if owned { "orchestrator/auto".to_owned() } else { format!("reader/{name}") };
        let binding = runtime.broker().bind(&id.parse().unwrap(), terms).await.expect("a ready service starts");
        section(&mut page, entry, &binding);
        let Some((tool, arguments)) = example(name) else { continue };
        if name == "developer" {
            let read = json!({"path": "greeting.txt"}).as_object().cloned().unwrap();
            binding.call("developer__read_file", read, CallContext::new(Arc::clone(&session))).await.unwrap();
        }
        let context = CallContext::new(Arc::clone(&session));
        let answer = binding.call(&format!("{name}__{tool}"), arguments.as_object().cloned().unwrap(), context).await;
        let answer = answer.expect("an answer");
        let said = if answer.is_error { "It refuses" } else { "It answers" };
        _ = writeln!(
            page,
            "\n```text\n{tool} {arguments}\n```\n\n{said}:\n\n```text\n{}\n```",
            answer.all_text().trim()
        );
    }
    runtime.stop().await;
    expect_file![repository("docs/services.md")].assert_eq(&page);
}

/// Every request to a model pays for the tools it offers.
#[tokio::test]
async fn the_everyday_tools_cost_few_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let session = SessionContext::new("s1", folder.path().to_owned(), Vec::new(), folder.path().join("scratch"));
    let (manifests, found) = skein::manifest::load(&[(Layer::Builtin, Root::Builtin)]);
    let plan = skein::graph::resolve(manifests, found).plan.expect("the manifests are right");
    let options = PoolOptions { data: folder.path().join("data"), ..PoolOptions::default() };
    let runtime = Runtime::start(Arc::new(plan), BuiltinRegistry::builtin(), options, None);
    let terms = BindRequest { session, approval: None, asker: Arc::new(NoAsker), client_services: Vec::new() };
    let binding = runtime.broker().bind(&"goose/assistant".parse().unwrap(), terms).await.expect("bound");
    let bytes: usize = binding.tools().iter().map(|(name, tool)| tool.request_bytes(name)).sum();
    assert!(bytes < 7_700, "developer, knowledge, memory and todo add {bytes} bytes to a request");
    drop(binding);
    runtime.stop().await;
}
