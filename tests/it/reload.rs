//! Manifests that change while `skein acp`, `skein chat` or `skein serve` runs: valid and invalid ones, running turns,
//! trust, SIGHUP.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::acp::{Acp, of_kind, selected, spoken};
use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::serve::{Server, eventually, token};
use crate::support::tmux::Terminal;
use crate::support::{Sandbox, full_tests, processes_of, read};

const HELPER: &str = "helper/main";
const NOT_USED: &str = "the changed files are not used";
const BROKEN: &str = "version: 1\nkind: agent\nname: helper\ndescription: Helps.\nmodes: 3\n";

/// Writes an agent with one mode, which has these tool groups of `developer`.
pub(crate) fn write_helper(sandbox: &Sandbox, folder: &str, groups: &str) {
    let manifest = format!(
        "version: 1\nkind: agent\nname: helper\ndescription: Helps.\nmetadata: {{dependencies: [developer]}}\nmodes:\n  \
         - {{slug: main, description: Helps., prompt: helper.md, tool_groups: {groups}, dependencies: [developer]}}\n"
    );
    sandbox.write(&format!("{folder}/helper.md"), "You help.\n");
    sandbox.write(&format!("{folder}/helper.yaml"), &manifest);
}

/// A client that is told notices.
fn client(sandbox: &Sandbox) -> Acp {
    Acp::able(sandbox, &[], &json!({"session": {"notices": {}}}))
}

fn notices(updates: &[Value]) -> Vec<String> {
    of_kind(updates, "notice").iter().map(|notice| notice["title"].as_str().expect("a title").to_owned()).collect()
}

fn hang_up(pid: u32) {
    kill(Pid::from_raw(i32::try_from(pid).expect("a process id")), Signal::SIGHUP).expect("the process runs");
}

fn logs(sandbox: &Sandbox, text: &str) -> bool {
    sandbox.log().iter().any(|line| line.to_string().contains(text))
}

#[test]
fn an_editor_gets_a_new_mode_with_its_next_turn() {
    let sandbox = Sandbox::new();
    let mut client = client(&sandbox);
    let session = client.session();
    client.refused("session/set_mode", json!({"sessionId": session, "modeId": HELPER}));
    write_helper(&sandbox, "config/agents", "[read]");
    let (end, updates) = client.prompt(&session, "list .");
    assert_eq!((end.as_str(), notices(&updates)), ("end_turn", Vec::new()));
    client.set_mode(&session, HELPER);
    assert!(spoken(&client.prompt(&session, "/tools").1).contains(&format!("**{HELPER}**")));
}

#[test]
fn an_invalid_change_is_told_once_and_changes_nothing() {
    let sandbox = Sandbox::new();
    write_helper(&sandbox, "config/agents", "[read]");
    let mut client = client(&sandbox);
    let session = client.session();
    client.set_mode(&session, HELPER);
    sandbox.write("config/agents/helper.yaml", BROKEN);
    let (end, updates) = client.prompt(&session, "list .");
    let told = notices(&updates);
    assert_eq!((end.as_str(), told.len()), ("end_turn", 1), "{told:?}");
    assert!(told[0].contains(NOT_USED) && told[0].contains("helper.yaml:5:"), "{told:?}");
    assert_eq!(notices(&client.prompt(&session, "list .").1), Vec::<String>::new(), "once is enough");
    assert!(spoken(&client.prompt(&session, "/tools").1).contains(&format!("**{HELPER}**")));
    // A new session has what was valid before, and says so.
    let mark = client.mark();
    let other = client.session();
    client.set_mode(&other, HELPER);
    client.settle();
    let told = notices(&client.updates(mark, &other));
    assert!(told.len() == 1 && told[0].contains(NOT_USED), "{told:?}");
    assert!(logs(&sandbox, "helper.yaml:5:"));
    write_helper(&sandbox, "config/agents", "[read, edit]");
    assert_eq!(notices(&client.prompt(&session, "list .").1), Vec::<String>::new());
    assert!(spoken(&client.prompt(&session, "/tools").1).contains("write_file"));
}

#[test]
fn a_running_turn_keeps_its_tools() {
    let sandbox = Sandbox::new();
    write_helper(&sandbox, "config/agents", "[read, edit]");
    let model = ScriptedModel::new(|request| {
        if has_result(request) || asked(request).contains("again") {
            return Answer::Says(vec!["Done.".to_owned()]);
        }
        let arguments = json!({"path": "made.txt", "content": "made\n"});
        Answer::Calls { id: "c1", tool: "developer__write_file", arguments }
    });
    let mut client = Acp::launch(&sandbox, model.offered_to(sandbox.command(&["acp", "-a", "helper"])));
    client.introduce(&json!({}));
    client.on("session/request_permission", |_| None);
    let session = client.session();
    let prompt = client.begin(&session, "write it");
    let question = client.wait(0, "a question", |message| message["method"] == "session/request_permission");
    write_helper(&sandbox, "config/agents", "[read]");
    client.reply(&question["id"], selected("allow_once"));
    assert_eq!(client.ended(&prompt), "end_turn");
    assert_eq!(read(sandbox.path("project/made.txt")), "made\n");
    assert_eq!(client.prompt(&session, "again").0, "end_turn");
    let requests = model.requests();
    let tools: Vec<_> = requests.iter().filter(|request| request["tools"].is_array()).collect();
    let can_write: Vec<_> =
        tools.iter().map(|request| request["tools"].to_string().contains("developer__write_file")).collect();
    assert_eq!(can_write, [true, true, false]);
}

#[test]
fn a_changed_project_needs_trust_again() {
    let sandbox = Sandbox::new();
    write_helper(&sandbox, "project/.skein/agents", "[read]");
    assert_eq!(sandbox.skein(&["trust", "--yes"]).code, 0);
    let mut client = client(&sandbox);
    let session = client.session();
    client.set_mode(&session, HELPER);
    write_helper(&sandbox, "project/.skein/agents", "[read, edit]");
    let told = notices(&client.prompt(&session, "list .").1).join("\n");
    assert!(told.contains("has changed since it was trusted") && told.contains("is gone"), "{told}");
    client.refused("session/set_mode", json!({"sessionId": session, "modeId": HELPER}));
    assert_eq!(sandbox.skein(&["trust", "--yes"]).code, 0);
    client.prompt(&session, "list .");
    client.set_mode(&session, HELPER);
}

#[test]
fn an_editor_survives_a_hangup_signal() {
    let sandbox = Sandbox::new();
    let mut client = client(&sandbox);
    let session = client.session();
    write_helper(&sandbox, "config/agents", "[read]");
    hang_up(client.pid());
    eventually("the manifests are read again", || logs(&sandbox, "SIGHUP"));
    assert_eq!(client.prompt(&session, "list .").0, "end_turn");
    client.set_mode(&session, HELPER);
    assert_eq!(client.finish().1, 0);
}

#[test]
fn a_server_lists_changed_agents_and_stays_ready() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "ci", &[]);
    let lists_helper = || {
        let listed = server.get("/agents", &token).json();
        let agents = listed["agents"].as_array().expect("agents");
        agents.iter().any(|agent| agent["name"] == "helper-main")
    };
    let is_ready = || server.request("GET", "/readyz", &[], "").status == 200;
    assert!(!lists_helper());
    write_helper(&sandbox, "config/agents", "[read]");
    assert!(lists_helper() && is_ready());
    sandbox.write("config/agents/helper.yaml", BROKEN);
    // No request is needed.
    eventually("the error is in the log", || logs(&sandbox, "helper.yaml:5:"));
    assert!(lists_helper() && is_ready());
    std::fs::remove_file(sandbox.path("config/agents/helper.yaml")).expect("removed");
    server.signal(Signal::SIGHUP);
    eventually("the manifests are read again", || logs(&sandbox, "SIGHUP"));
    assert!(!lists_helper() && is_ready());
}

#[test]
fn a_chat_gets_a_new_mode_and_survives_a_hangup_signal() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Says(vec!["Hello.".to_owned()]));
    let terminal = Terminal::start(&sandbox, Some(&model), (100, 40), &["chat", "-a", "goose"]);
    terminal.shows("›");
    write_helper(&sandbox, "config/agents", "[read]");
    terminal.enter(&format!("/mode {HELPER}"));
    terminal.shows(&format!("{HELPER} continues this session"));
    sandbox.write("config/agents/helper.yaml", BROKEN);
    terminal.enter("hello");
    terminal.shows(NOT_USED);
    terminal.shows("Hello.");
    let is_skein = |pid: &u32| read(format!("/proc/{pid}/comm")).trim() == "skein";
    processes_of(&sandbox.path("home")).into_iter().filter(is_skein).for_each(hang_up);
    eventually("the manifests are read again", || logs(&sandbox, "SIGHUP"));
    write_helper(&sandbox, "config/agents", "[read, edit]");
    terminal.enter("/tools");
    terminal.shows("write_file");
}
