//! Delegated tasks in git worktrees of their own, over real ACP, with real git and a scripted model.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Barrier};

use serde_json::{Value, json};
use skein::store::session_project;

use crate::support::acp::{Acp, selected};
use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::{Sandbox, read};

const CONFIG: &str = "version: 1\ndelegates: [{to: coding/*, workspace: worktree}]\n";
const LINES: &str = "1\n2\n3\n4\n5\n";

/// A machine whose project is a repository with one commit, in which tasks of `coding` get worktrees.
fn machine() -> Sandbox {
    let sandbox = Sandbox::outside_tmp();
    sandbox.write("config/config.yaml", CONFIG);
    sandbox.write("project/shared.txt", LINES);
    sandbox.write("project/.gitignore", "*.log\n");
    git(&sandbox, &["init", "-q"]);
    git(&sandbox, &["add", "."]);
    git(&sandbox, &["commit", "-qm", "first"]);
    sandbox
}

fn git(sandbox: &Sandbox, args: &[&str]) -> String {
    git_in(&sandbox.path("project"), args)
}

#[expect(clippy::disallowed_methods, reason = "git prepares and reads the repository of a test")]
fn git_in(folder: &Path, args: &[&str]) -> String {
    let mut command = std::process::Command::new("git");
    command.args(["-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"]).args(args);
    command.current_dir(folder).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let output = command.output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn branches(sandbox: &Sandbox) -> Vec<String> {
    let listed = git(sandbox, &["for-each-ref", "--format=%(refname:short)", "refs/heads/skein/"]);
    listed.lines().map(str::to_owned).collect()
}

/// Nothing but branches is left of a task.
fn assert_tidy(sandbox: &Sandbox) {
    assert_eq!(left(&sandbox.path("data/worktrees")), 0);
    assert_eq!(git(sandbox, &["worktree", "list"]).lines().count(), 1);
}

fn left(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, |entries| entries.count())
}

fn is_orchestrator(request: &Value) -> bool {
    request["messages"][0]["content"].to_string().contains("You are orchestrator in mode auto")
}

/// What the orchestrator's model was told of its calls, as text.
fn told(model: &ScriptedModel) -> String {
    let requests = model.requests();
    requests.iter().rfind(|request| is_orchestrator(request)).unwrap()["messages"].to_string()
}

/// A model that delegates these tasks to `coding/backend`, and one that works on them.
fn model(
    tasks: &'static [(&'static str, &'static str)],
    others: impl Fn(&Value) -> Answer + Send + Sync + 'static,
) -> ScriptedModel {
    let call = |&(id, task): &(&'static str, &'static str)| {
        (id, "summon__delegate", json!({"task": task, "agent": "coding", "mode": "backend"}))
    };
    ScriptedModel::new(move |request| match (is_orchestrator(request), has_result(request)) {
        (true, false) => Answer::CallsMany(tasks.iter().map(call).collect()),
        (true, true) => Answer::Says(vec!["Joined.".to_owned()]),
        (false, _) => others(request),
    })
}

fn write(path: &str, content: &str) -> Answer {
    let arguments = json!({"path": path, "content": content, "overwrite": true});
    Answer::Calls { id: "w1", tool: "developer__write_file", arguments }
}

fn says(text: &str) -> Answer {
    Answer::Says(vec![text.to_owned()])
}

/// A client that answers each request to merge with this option, and allows everything else. Also returns the requests to
/// merge.
fn client(sandbox: &Sandbox, model: &ScriptedModel, merge: &'static str) -> (Acp, Rc<RefCell<Vec<Value>>>) {
    client_with(sandbox, model, merge, &[])
}

fn client_with(
    sandbox: &Sandbox,
    model: &ScriptedModel,
    merge: &'static str,
    flags: &[&str],
) -> (Acp, Rc<RefCell<Vec<Value>>>) {
    let command = sandbox.command(&[&["acp", "-a", "orchestrator"][..], flags].concat());
    let mut client = Acp::launch(sandbox, model.offered_to(command));
    client.introduce(&json!({}));
    let merges: Rc<RefCell<Vec<Value>>> = Rc::default();
    let seen = Rc::clone(&merges);
    client.on("session/request_permission", move |request| {
        let is_merge = request["toolCall"]["title"].as_str().is_some_and(|title| title.contains("Merge "));
        if is_merge {
            seen.borrow_mut().push(request.clone());
        }
        Some(selected(if is_merge { merge } else { "allow_once" }))
    });
    (client, merges)
}

fn shell(command: &str) -> Answer {
    Answer::Calls { id: "s1", tool: "developer__shell", arguments: json!({"command": command}) }
}

/// The folder of the only task.
fn worktree(worktrees: &Path) -> PathBuf {
    let inside = |folder: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let mut found = inside(worktrees).into_iter().flat_map(|folder| inside(&folder.join("work")));
    found.find(|tree| tree.join(".git").exists()).expect("a worktree")
}

/// Runs the tasks to their end.
fn run(client: &mut Acp) {
    let session = client.session();
    assert_eq!(client.prompt(&session, "@orchestrator go").0, "end_turn");
}

#[test]
fn two_tasks_change_one_file_at_once_and_both_are_merged() {
    let sandbox = machine();
    // Each task goes on only after the other has written the file.
    let both = Arc::new(Barrier::new(2));
    let model = model(&[("d1", "change the first line"), ("d2", "change the last line")], move |request| {
        match (asked(request).contains("first"), has_result(request)) {
            (true, false) => write("shared.txt", "one\n2\n3\n4\n5\n"),
            (false, false) => write("shared.txt", "1\n2\n3\n4\nfive\n"),
            (_, true) => {
                both.wait();
                says("It is changed.")
            }
        }
    });
    let (mut client, merges) = client(&sandbox, &model, "allow_once");
    run(&mut client);
    assert_eq!(read(sandbox.path("project/shared.txt")), "one\n2\n3\n4\nfive\n");
    let merges = merges.borrow();
    assert_eq!(merges.len(), 2, "{merges:#?}");
    let title = merges[0]["toolCall"]["title"].as_str().unwrap();
    assert!(title.starts_with("coding/backend: Merge `shared.txt` from the branch skein/task-"), "{title}");
    assert_eq!(merges[0]["toolCall"]["rawInput"]["files"], json!(["shared.txt +1 -1"]));
    let offered: Vec<_> = merges[0]["options"].as_array().unwrap().iter().map(|option| &option["kind"]).collect();
    assert_eq!(offered, ["allow_once", "reject_once"], "each merge has other changes, so no answer holds for longer");
    let told = told(&model);
    assert!(told.contains("are merged into the user's files, not committed"), "{told}");
    // The user's branch and index are as they were; each task has a branch with one commit and its summary.
    assert_eq!(git(&sandbox, &["status", "--porcelain"]), " M shared.txt\n");
    assert_eq!(git(&sandbox, &["log", "--format=%s", "main"]), "first\n");
    let branches = branches(&sandbox);
    assert_eq!(branches.len(), 2, "{branches:?}");
    for branch in &branches {
        assert_eq!(git(&sandbox, &["rev-list", "--count", &format!("main..{branch}")]), "1\n");
        let message = git(&sandbox, &["log", "-1", "--format=%B", branch]);
        assert!(message.starts_with("change the ") && message.contains("\n\nIt is changed."), "{message}");
    }
    assert_tidy(&sandbox);
}

#[test]
fn agents_show_names_the_modes_that_get_worktrees() {
    let sandbox = Sandbox::new();
    sandbox.write("config/config.yaml", CONFIG);
    let shown = sandbox.skein(&["agents", "show", "orchestrator"]).stdout;
    assert!(shown.contains(", coding/backend (worktree), ") && shown.contains(", goose/assistant, "), "{shown}");
    let agent = sandbox.skein(&["agents", "show", "orchestrator", "--json"]).json();
    assert_eq!(agent["workspaces"]["coding/backend"], "worktree", "{agent}");
    assert_eq!(agent["workspaces"]["goose/assistant"], "shared", "{agent}");
}

#[test]
fn the_orchestrator_learns_which_modes_get_worktrees() {
    let sandbox = machine();
    let model = model(&[("d1", "look")], |_| says("There is nothing to do."));
    let (mut client, _) = client(&sandbox, &model, "allow_once");
    run(&mut client);
    let requests = model.requests();
    let prompt =
        requests.iter().find(|request| is_orchestrator(request)).unwrap()["messages"][0]["content"].to_string();
    assert!(prompt.contains("`coding/backend` (own worktree): ") && prompt.contains("`goose/assistant`: "), "{prompt}");
    assert!(prompt.contains("unless both have their own worktree"), "{prompt}");
}

#[test]
fn a_refused_merge_leaves_the_files_and_the_branch() {
    let sandbox = machine();
    let model = model(&[("d1", "change it")], |request| match has_result(request) {
        false => write("shared.txt", "changed\n"),
        true => says("Changed."),
    });
    let (mut client, merges) = client(&sandbox, &model, "reject_once");
    run(&mut client);
    assert_eq!(merges.borrow().len(), 1);
    assert_eq!(read(sandbox.path("project/shared.txt")), LINES);
    let told = told(&model);
    assert!(told.contains("Changed.") && told.contains("the user refused the merge"), "{told}");
    let branches = branches(&sandbox);
    let [branch] = branches.as_slice() else { panic!("one branch: {branches:?}") };
    assert!(told.contains(branch.as_str()), "{told}");
    assert_eq!(git(&sandbox, &["show", &format!("{branch}:shared.txt")]), "changed\n");
    assert_eq!(git(&sandbox, &["status", "--porcelain"]), "");
    assert_tidy(&sandbox);
}

#[test]
fn a_conflict_is_reported_with_its_files_and_changes_nothing() {
    let sandbox = machine();
    let file = sandbox.path("project/shared.txt");
    let of_user = file.clone();
    let model = model(&[("d1", "change it")], move |request| match has_result(request) {
        false => write("shared.txt", "task\n2\n3\n4\n5\n"),
        true => {
            std::fs::write(&of_user, "user\n2\n3\n4\n5\n").unwrap();
            says("Changed.")
        }
    });
    let (mut client, merges) = client(&sandbox, &model, "allow_once");
    run(&mut client);
    assert_eq!(merges.borrow().len(), 0, "nobody is asked about a merge that cannot be made");
    assert_eq!(read(&file), "user\n2\n3\n4\n5\n");
    let told = told(&model);
    assert!(told.contains("there are conflicts") && told.contains("`shared.txt`"), "{told}");
    let branches = branches(&sandbox);
    let [branch] = branches.as_slice() else { panic!("one branch: {branches:?}") };
    assert_eq!(git(&sandbox, &["show", &format!("{branch}:shared.txt")]), "task\n2\n3\n4\n5\n");
    assert_tidy(&sandbox);
}

/// The task sees what the user sees, except ignored files. Nothing of the user's work is lost, staged or committed.
#[test]
fn a_task_starts_from_files_that_are_not_committed() {
    let sandbox = machine();
    sandbox.write("project/shared.txt", "1\n2\n3\n4\nmine\n");
    sandbox.write("project/staged.txt", "staged\n");
    git(&sandbox, &["add", "staged.txt"]);
    sandbox.write("project/staged.txt", "staged and changed\n");
    sandbox.write("project/new.txt", "new\n");
    sandbox.write("project/debug.log", "ignored\n");
    let model = model(&[("d1", "change it")], |request| match has_result(request) {
        false => {
            let command = "cat shared.txt staged.txt new.txt > seen.txt; ls >> seen.txt; sed -i s/1/one/ shared.txt";
            Answer::Calls { id: "s1", tool: "developer__shell", arguments: json!({"command": command}) }
        }
        true => says("Changed."),
    });
    let (mut client, _) = client(&sandbox, &model, "allow_once");
    run(&mut client);
    let seen = read(sandbox.path("project/seen.txt"));
    assert_eq!(seen, "1\n2\n3\n4\nmine\nstaged and changed\nnew\nnew.txt\nseen.txt\nshared.txt\nstaged.txt\n");
    assert_eq!(read(sandbox.path("project/shared.txt")), "one\n2\n3\n4\nmine\n");
    assert_eq!(read(sandbox.path("project/debug.log")), "ignored\n");
    assert_eq!(git(&sandbox, &["show", ":staged.txt"]), "staged\n");
    assert_eq!(git(&sandbox, &["status", "--porcelain"]), " M shared.txt\nAM staged.txt\n?? new.txt\n?? seen.txt\n");
    let branches = branches(&sandbox);
    assert_eq!(git(&sandbox, &["show", "--format=", "--name-only", &branches[0]]), "seen.txt\nshared.txt\n");
    assert_tidy(&sandbox);
}

/// A file that the snapshot leaves out is not overwritten.
#[test]
fn an_ignored_file_of_the_user_is_a_conflict() {
    let sandbox = machine();
    sandbox.write("project/debug.log", "the user's\n");
    let model = model(&[("d1", "change it")], |request| match has_result(request) {
        false => {
            let command = "echo > .gitignore; echo task > debug.log";
            Answer::Calls { id: "s1", tool: "developer__shell", arguments: json!({"command": command}) }
        }
        true => says("Changed."),
    });
    let (mut client, merges) = client(&sandbox, &model, "allow_once");
    run(&mut client);
    assert_eq!(merges.borrow().len(), 0);
    assert_eq!(read(sandbox.path("project/debug.log")), "the user's\n");
    assert!(told(&model).contains("`debug.log`"), "{}", told(&model));
}

#[test]
fn a_task_writes_neither_the_workspace_nor_the_git_folder() {
    let sandbox = machine();
    let project = sandbox.path("project").canonicalize().unwrap();
    let model = model(&[("d1", "try it")], move |request| match has_result(request) {
        false => {
            let project = project.display();
            let command = format!(
                "echo x > {project}/shared.txt; echo x > {project}/.git/HEAD; git branch mine; git commit -qam x; \
                 git status --porcelain > status.txt; echo y >> shared.txt; git checkout -q -- shared.txt; echo end"
            );
            Answer::Calls { id: "s1", tool: "developer__shell", arguments: json!({"command": command}) }
        }
        true => says("Tried."),
    });
    let (mut client, _) = client(&sandbox, &model, "allow_once");
    run(&mut client);
    assert_eq!(read(sandbox.path("project/shared.txt")), LINES);
    assert_eq!(git(&sandbox, &["log", "--format=%s", "main"]), "first\n");
    assert_eq!(git(&sandbox, &["branch", "--list", "mine"]), "");
    // Git works inside: it reads, and restores files.
    assert_eq!(read(sandbox.path("project/status.txt")), "?? status.txt\n");
}

#[test]
fn a_task_without_changes_leaves_no_branch() {
    let sandbox = machine();
    let model = model(&[("d1", "look at it")], |_| says("It is fine."));
    let (mut client, merges) = client(&sandbox, &model, "allow_once");
    run(&mut client);
    assert!(told(&model).contains("It is fine."), "{}", told(&model));
    assert_eq!((merges.borrow().len(), branches(&sandbox).len()), (0, 0));
    assert_tidy(&sandbox);
}

#[test]
fn without_a_repository_the_task_fails_and_says_why() {
    let sandbox = Sandbox::new();
    sandbox.write("config/config.yaml", CONFIG);
    let model = model(&[("d1", "change it")], |_| says("It was begun."));
    let (mut client, _) = client(&sandbox, &model, "allow_once");
    run(&mut client);
    let told = told(&model);
    assert!(told.contains("has no git repository") && told.contains("git init"), "{told}");
    assert!(!told.contains("It was begun."), "{told}");
}

#[test]
fn programs_that_a_repository_names_do_not_run() {
    let sandbox = machine();
    sandbox.write("project/.gitattributes", "*.txt filter=evil merge=evil\n");
    git(&sandbox, &["add", "."]);
    git(&sandbox, &["commit", "-qm", "second"]);
    let mark = sandbox.path("ran");
    let program = format!("touch {}; cat", mark.display());
    for key in ["filter.evil.clean", "filter.evil.smudge", "core.fsmonitor"] {
        git(&sandbox, &["config", key, &program]);
    }
    git(&sandbox, &["config", "filter.evil.required", "true"]);
    git(&sandbox, &["config", "merge.evil.driver", &format!("touch {}; false", mark.display())]);
    for hook in ["post-checkout", "reference-transaction", "post-index-change"] {
        let hook = format!("project/.git/hooks/{hook}");
        sandbox.write(&hook, &format!("#!/bin/sh\ntouch {}\n", mark.display()));
        make_executable(&sandbox.path(&hook));
    }
    // The configuration above may have started some of them.
    drop(std::fs::remove_file(&mark));
    sandbox.write("project/shared.txt", "1\n2\n3\n4\nmine\n");
    let model = model(&[("d1", "change it")], |request| match has_result(request) {
        false => write("new.md", "new\n"),
        true => says("Changed."),
    });
    let (mut client, _) = client(&sandbox, &model, "allow_once");
    run(&mut client);
    assert_eq!(read(sandbox.path("project/new.md")), "new\n", "{}", told(&model));
    assert!(!mark.exists(), "a program of the repository has run");
}

#[test]
fn programs_that_a_config_gets_during_a_task_do_not_run() {
    let sandbox = machine();
    let (mark, config) = (sandbox.path("ran"), sandbox.path("project/.git/config"));
    let program = format!("touch {}; cat", mark.display());
    let model = model(&[("d1", "change it")], move |request| match has_result(request) {
        false => {
            let added = format!("[filter \"late\"]\n\tclean = \"{program}\"\n\tsmudge = \"{program}\"\n");
            std::fs::write(&config, read(&config) + &added).unwrap();
            shell("echo '*.md filter=late' > .gitattributes; echo new > new.md; echo plain > plain.txt")
        }
        true => says("Changed."),
    });
    let (mut client, _) = client(&sandbox, &model, "allow_once");
    run(&mut client);
    assert!(!mark.exists(), "a program of the repository has run");
    assert_eq!(read(sandbox.path("project/plain.txt")), "plain\n", "{}", told(&model));
    // A file with a filter stays in the worktree.
    assert!(!sandbox.path("project/new.md").exists());
    let told = told(&model);
    assert!(told.contains("`new.md`") && told.contains("git worktree remove --force"), "{told}");
    assert_eq!(read(worktree(&sandbox.path("data/worktrees")).join("new.md")), "new\n");
}

/// Git runs hooks of a config since 2.54. An included file can change at any time, and can be for worktrees only.
#[test]
fn a_config_with_hooks_or_includes_is_refused() {
    for key in ["hook.x.command", "include.path", "includeif.gitdir:**/worktrees/**.path"] {
        let sandbox = machine();
        git(&sandbox, &["config", key, "anything"]);
        let model = model(&[("d1", "change it")], |_| says("It was begun."));
        let (mut client, _) = client(&sandbox, &model, "allow_once");
        run(&mut client);
        let told = told(&model);
        assert!(told.contains(&format!("the config of the git repository has `{key}`")), "{told}");
        assert!(!told.contains("It was begun."), "{told}");
        assert_eq!(branches(&sandbox).len(), 0);
        assert_tidy(&sandbox);
    }
}

/// At `auto` nobody is asked, so the folders of the session are the limit.
#[test]
fn a_merge_writes_nothing_outside_the_folders_of_the_session() {
    for (command, is_merged) in [("echo new > a.txt", true), ("echo new > a.txt; echo new > ../other.txt", false)] {
        let sandbox = machine();
        sandbox.write("project/sub/a.txt", "old\n");
        sandbox.write("project/other.txt", "old\n");
        git(&sandbox, &["add", "."]);
        git(&sandbox, &["commit", "-qm", "second"]);
        let model = model(&[("d1", "change it")], move |request| match has_result(request) {
            false => shell(command),
            true => says("Changed."),
        });
        let (mut client, merges) = client_with(&sandbox, &model, "allow_once", &["--approval", "auto"]);
        let cwd = sandbox.path("project/sub");
        let session = client.ask("session/new", json!({"cwd": cwd, "mcpServers": []}))["sessionId"].clone();
        assert_eq!(client.prompt(session.as_str().unwrap(), "@orchestrator go").0, "end_turn");
        assert_eq!(merges.borrow().len(), 0);
        let told = told(&model);
        assert_eq!(read(sandbox.path("project/sub/a.txt")), if is_merged { "new\n" } else { "old\n" }, "{told}");
        assert_eq!(read(sandbox.path("project/other.txt")), "old\n");
        let refusal = "they are not all in the folders of the session, and Skein merges all or none: `other.txt`";
        assert_eq!(told.contains(refusal), !is_merged, "{told}");
        let branches = branches(&sandbox);
        assert_eq!(git(&sandbox, &["show", &format!("{}:sub/a.txt", branches[0])]), "new\n");
        assert_tidy(&sandbox);
    }
}

/// A filter may encrypt what git stores, and filters do not run.
#[test]
fn no_snapshot_has_the_plain_text_of_a_file_with_a_filter() {
    let sandbox = machine();
    sandbox.write("project/.gitattributes", "*.key filter=crypt\n");
    sandbox.write("project/a.key", "stored\n");
    git(&sandbox, &["add", "."]);
    git(&sandbox, &["commit", "-qm", "second"]);
    git(&sandbox, &["config", "filter.crypt.clean", "echo stored"]);
    sandbox.write("project/a.key", "plain text\n");
    sandbox.write("project/new.key", "plain text\n");
    let model = model(&[("d1", "change it")], |request| match has_result(request) {
        false => shell("cat a.key > shared.txt; ls >> shared.txt"),
        true => says("Changed."),
    });
    let (mut client, _) = client(&sandbox, &model, "allow_once");
    run(&mut client);
    assert_eq!(read(sandbox.path("project/shared.txt")), "stored\na.key\nshared.txt\n", "{}", told(&model));
    assert_eq!(read(sandbox.path("project/a.key")), "plain text\n");
    let stored = git(&sandbox, &["log", "--all", "-p", "--format="]);
    assert!(stored.contains("stored") && !stored.contains("plain text"), "{stored}");
    assert_tidy(&sandbox);
}

#[test]
fn a_merge_is_in_the_audit_log_whether_it_was_asked_or_not() {
    let unasked = [["call", "allow", "level"]];
    let refused = [["consent", "refuse", "user"], ["call", "refuse", "user"]];
    for (flags, expected) in [(&["--approval", "auto"][..], &unasked[..]), (&[], &refused)] {
        let sandbox = machine();
        let model = model(&[("d1", "change it")], |request| match has_result(request) {
            false => write("shared.txt", "changed\n"),
            true => says("Changed."),
        });
        let (mut client, _) = client_with(&sandbox, &model, "reject_once", flags);
        run(&mut client);
        drop(client);
        let entries = sandbox.skein(&["audit", "list", "--json"]).json();
        let merges = entries.as_array().unwrap().iter().filter(|entry| entry["subject"] == "task:merge");
        let found: Vec<_> =
            merges.map(|entry| ["kind", "decision", "source"].map(|field| entry[field].clone())).collect();
        assert_eq!(json!(found), json!(expected), "{flags:?}");
    }
}

/// A branch cannot have them, so the worktree stays, and the report names them. Ignored files are results of a build.
#[test]
fn new_repositories_of_a_task_are_not_lost() {
    let sandbox = machine();
    let worktrees = sandbox.path("data/worktrees");
    let inside = worktrees.clone();
    let model = model(&[("d1", "make a library")], move |request| match has_result(request) {
        false => shell("echo report > report.log"),
        true => {
            let tree = worktree(&inside);
            git_in(&tree, &["init", "-q", "library"]);
            std::fs::write(tree.join("library/code.txt"), "code\n").unwrap();
            says("Made.")
        }
    });
    let (mut client, merges) = client(&sandbox, &model, "allow_once");
    run(&mut client);
    assert_eq!((merges.borrow().len(), branches(&sandbox).len()), (0, 0));
    let (told, tree) = (told(&model), worktree(&worktrees));
    assert!(told.contains("`library/`") && !told.contains("report.log"), "{told}");
    assert!(told.contains(tree.file_name().unwrap().to_str().unwrap()), "{told}");
    assert_eq!(read(tree.join("library/code.txt")), "code\n");
    // The user removes the worktree, and the next start what is left of it.
    drop(client);
    git(&sandbox, &["worktree", "remove", "--force", tree.to_str().unwrap()]);
    let next = ScriptedModel::new(|_| says("Hello."));
    let (mut client, _) = self::client(&sandbox, &next, "allow_once");
    let session = client.session();
    client.prompt(&session, "@goose/assistant hello");
    client.until("the worktree is removed", |_| left(&worktrees) == 0);
    assert_tidy(&sandbox);
}

fn make_executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Memories and earlier sessions are those of the user's project.
#[test]
fn a_task_belongs_to_the_project_of_the_users_files() {
    let sandbox = machine();
    let project = sandbox.path("project").canonicalize().unwrap();
    for name in ["skein-task-1", "other"] {
        git(&sandbox, &["worktree", "add", "-q", "--detach", &format!("../{name}")]);
    }
    assert_eq!(session_project(&sandbox.path("skein-task-1")), project);
    assert_eq!(session_project(&project), project);
    let other = sandbox.path("other").canonicalize().unwrap();
    assert_eq!(session_project(&other), other, "a worktree of the user is a project");
    let forged = read(sandbox.path("skein-task-1/.git"));
    sandbox.write("forged/.git", &forged);
    let folder = sandbox.path("forged").canonicalize().unwrap();
    assert_eq!(session_project(&folder), folder, "the repository does not know it");
}

/// After a crash, the next start saves what the task had changed, and removes the worktree.
#[test]
fn the_next_start_removes_the_worktree_of_a_killed_skein() {
    let sandbox = machine();
    let hangs = model(&[("d1", "change it")], |request| match has_result(request) {
        false => write("shared.txt", "half done\n"),
        true => Answer::Hangs("…"),
    });
    let (mut killed, _) = client(&sandbox, &hangs, "allow_once");
    let session = killed.session();
    let mark = killed.mark();
    killed.begin(&session, "@orchestrator go");
    killed.wait(mark, "the end of the write", |message| {
        let update = &message["params"]["update"];
        update["toolCallId"] == json!("d1.w1") && update["status"] == json!("completed")
    });
    killed.kill();
    assert_eq!(left(&sandbox.path("data/worktrees")), 1);
    let next = ScriptedModel::new(|_| says("Hello."));
    let (mut client, _) = client(&sandbox, &next, "allow_once");
    let session = client.session();
    client.prompt(&session, "@goose/assistant hello");
    client.until("the worktree is removed", |_| left(&sandbox.path("data/worktrees")) == 0);
    let branches = branches(&sandbox);
    let [branch] = branches.as_slice() else { panic!("one branch: {branches:?}") };
    assert_eq!(git(&sandbox, &["show", &format!("{branch}:shared.txt")]), "half done\n");
    assert_eq!(read(sandbox.path("project/shared.txt")), LINES);
    assert_tidy(&sandbox);
}
