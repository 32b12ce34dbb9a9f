//! Shell commands of agents in the sandbox of their mode, through the program.

use std::cell::RefCell;
use std::io::Write as _;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::support::acp::{Acp, selected, spoken};
use crate::support::{Run, Sandbox, files_below};

/// Runs one call of the shell in `coding/backend`.
fn shell(sandbox: &Sandbox, flags: &[&str], arguments: &Value) -> Run {
    let prompt = format!("/developer.shell {arguments}");
    sandbox.skein(&[&["run", "-a", "coding", "-m", "backend"], flags, &[&prompt]].concat())
}

/// Returns whether this machine has all layers. Says so in one line otherwise.
fn has_all_layers(sandbox: &Sandbox) -> bool {
    let layers = &sandbox.skein(&["sandbox", "--explain", "--json"]).json()["layers"];
    let all = ["namespaces", "landlock", "seccomp"].iter().all(|layer| layers[*layer] == "available");
    if !all {
        drop(writeln!(std::io::stderr(), "skipped: this machine has not all layers: {layers}"));
    }
    all
}

/// A client whose user answers every permission request with this option; the requests.
fn client(sandbox: &Sandbox, args: &[&str], option: &'static str) -> (Acp, Rc<RefCell<Vec<Value>>>) {
    let mut client = Acp::able(sandbox, args, &json!({}));
    let requests: Rc<RefCell<Vec<Value>>> = Rc::default();
    let asked = Rc::clone(&requests);
    client.on("session/request_permission", move |params| {
        asked.borrow_mut().push(params.clone());
        Some(selected(option))
    });
    (client, requests)
}

#[test]
fn a_default_profile_limits_commands() {
    let sandbox = Sandbox::new();
    if !has_all_layers(&sandbox) {
        return;
    }
    sandbox.write("home/.ssh/id", "SECRET");
    sandbox.write("project/.git/HEAD", "ref: refs/heads/main\n");
    sandbox.write("project/.git/config", "[core]\n");
    sandbox.write("project/.git/objects/x", "");
    let secret = sandbox.path("home/.ssh/id");
    let command =
        format!("cat {}; echo x > .git/config; echo y > made; (exec 3<>/dev/tcp/127.0.0.1/1); id", secret.display());
    let run = shell(&sandbox, &["--approval", "auto"], &json!({"command": command}));
    assert_eq!(run.code, 0, "{}", run.whole());
    assert!(!run.stdout.contains("SECRET"), "{}", run.whole());
    assert_eq!(std::fs::read_to_string(sandbox.path("project/made")).unwrap(), "y\n");
    assert_eq!(std::fs::read_to_string(sandbox.path("project/.git/config")).unwrap(), "[core]\n");
    let off = shell(&sandbox, &["--approval", "auto", "--sandbox", "off"], &json!({"command": command}));
    assert!(off.stdout.contains("SECRET"), "without a sandbox the attack works: {}", off.whole());
}

#[test]
fn a_read_only_command_changes_nothing() {
    let sandbox = Sandbox::new();
    if !has_all_layers(&sandbox) {
        return;
    }
    sandbox.write("project/a.txt", "content");
    sandbox.write("home/notes", "SECRET");
    let notes = sandbox.path("home/notes");
    let command = format!("cat a.txt; cat {}; echo x > /tmp/scratch && cat /tmp/scratch; touch made", notes.display());
    let call = json!({"command": command, "read_only": true});
    for level in ["read-only", "ask", "smart"] {
        let run = shell(&sandbox, &["--approval", level], &call);
        assert!(run.stdout.contains("content") && run.stdout.contains('x'), "{level}: {}", run.whole());
        assert!(!run.stdout.contains("SECRET"), "{level}: {}", run.whole());
        assert!(run.stdout.contains("made; allowed without `read_only`"), "{level}: {}", run.whole());
        assert!(!sandbox.path("project/made").exists(), "{level}");
    }
    let denied = shell(&sandbox, &["--approval", "ask", "--deny", "developer__shell: {command: \"cat *\"}"], &call);
    assert!(!denied.stdout.contains("content"), "rules come first: {}", denied.whole());
    assert_eq!(shell(&sandbox, &["--approval", "deny"], &call).code, 5);
}

#[test]
fn read_only_asks_where_a_layer_is_missing() {
    for layers in ["no-namespaces", "landlock=0"] {
        let sandbox = Sandbox::new().with("SKEIN_TEST_SANDBOX_LAYERS", layers);
        let call = json!({"command": "echo ran", "read_only": true});
        assert_eq!(shell(&sandbox, &["--approval", "read-only"], &call).code, 5, "{layers}");
        let (mut client, requests) = client(&sandbox, &["--approval", "ask"], "allow_once");
        let session = client.session();
        let (_, updates) = client.prompt(&session, &format!("/developer.shell {call}"));
        assert!(spoken(&updates).contains("ran"), "{layers}: {}", spoken(&updates));
        assert_eq!(requests.borrow().len(), 1, "{layers}");
    }
}

#[test]
fn unsandboxed_asks_at_every_level() {
    for level in ["auto", "ask"] {
        for (option, runs) in [("allow_once", true), ("reject_once", false)] {
            let sandbox = Sandbox::new();
            let (mut client, requests) = client(&sandbox, &["--approval", level], option);
            let session = client.session();
            let outside = sandbox.path("outside");
            let call = json!({"command": format!("touch {}", outside.display()), "unsandboxed": "it writes outside"});
            client.prompt(&session, &format!("/developer.shell {call}"));
            let requests = requests.borrow();
            assert_eq!(requests.len(), 1, "{level}");
            let shown = requests[0].to_string();
            assert!(shown.contains("it writes outside") && shown.contains("without a sandbox"), "{level}: {shown}");
            assert_eq!(outside.exists(), runs, "{level} {option}");
            drop(client);
            let entries = sandbox.skein(&["audit", "list", "--kind", "escape", "--json"]).json();
            let decisions: Vec<_> = entries.as_array().unwrap().iter().map(|entry| &entry["decision"]).collect();
            assert_eq!(decisions, [if runs { "allow" } else { "refuse" }], "{level} {option}: {entries}");
        }
    }
}

#[test]
fn a_rule_that_names_the_program_answers() {
    let sandbox = Sandbox::new();
    let outside = sandbox.path("outside");
    let call = json!({"command": format!("touch {}", outside.display()), "unsandboxed": "it writes outside"});
    for flags in [
        &["--approval", "auto"][..],
        &["--approval", "auto", "--allow", "developer__shell"],
        &["--approval", "read-only", "--allow", "developer__shell: {command: \"touch *\"}"],
    ] {
        let run = shell(&sandbox, flags, &call);
        assert_eq!(run.code, 5, "{flags:?}: {}", run.whole());
        assert!(!outside.exists(), "{flags:?}");
    }
    let refused = shell(&sandbox, &["--approval", "auto"], &call).whole();
    assert!(refused.contains("--allow 'developer__shell: {command: \"touch *\"}'"), "{refused}");
    assert!(refused.contains("--sandbox off"), "{refused}");
    for flags in
        [&["--allow", "developer__shell: {command: \"touch *\"}"][..], &["--approval", "auto", "--sandbox", "off"]]
    {
        let run = shell(&sandbox, flags, &call);
        assert!(outside.exists(), "{flags:?}: {}", run.whole());
        std::fs::remove_file(&outside).unwrap();
    }
}

#[test]
fn a_refused_path_is_probable_and_names_a_config_line() {
    let sandbox = Sandbox::new();
    if !has_all_layers(&sandbox) {
        return;
    }
    let run = shell(&sandbox, &["--approval", "auto"], &json!({"command": "touch /usr/local/skein-test; ls missing"}));
    let said = "[probably refused by the sandbox: /usr/local/skein-test; allowed by `sandbox: {write: [\"/usr/local\"]}` \
                in your config]";
    assert!(run.stdout.contains(said), "{}", run.whole());
    assert_eq!(run.stdout.matches("probably").count(), 1, "{}", run.whole());
}

/// A command of `coding/sre`, whose profile opens `~/.kube` for `kubectl`.
fn reads_kube_config(program: &str) -> String {
    let call = json!({"command": format!("{program} version; cat ~/.kube/config")});
    format!("/developer.shell {call}")
}

#[test]
fn an_asked_path_opens_for_its_program_after_consent() {
    for (program, option, opens) in
        [("kubectl", "allow_once", true), ("kubectl", "reject_once", false), ("helper", "allow_once", false)]
    {
        let sandbox = Sandbox::outside_tmp();
        if !has_all_layers(&sandbox) {
            return;
        }
        sandbox.write("home/.kube/config", "SECRET");
        let (mut client, requests) = client(&sandbox, &["--approval", "ask"], option);
        let session = client.session();
        client.set_mode(&session, "coding/sre");
        let (_, updates) = client.prompt(&session, &reads_kube_config(program));
        let heard = json!(updates).to_string();
        assert_eq!(heard.contains("SECRET"), opens, "{program}, {option}: {heard}");
        let shown = requests.borrow()[0]["toolCall"]["rawInput"].clone();
        assert_eq!(shown["opens"][0] == "~/.kube", program == "kubectl", "the request shows the path: {shown}");
        // The consent was for one call.
        let (_, updates) = client.prompt(&session, "/developer.shell {\"command\": \"cat ~/.kube/config\"}");
        assert!(!json!(updates).to_string().contains("SECRET"), "{program}, {option}: {updates:?}");
    }
}

#[test]
fn at_auto_only_a_path_of_the_user_opens() {
    let config = "version: 1\nsandbox: {modes: {coding/sre: {read: [{path: ~/.kube, ask: [kubectl]}]}}}\n";
    for (config, opens) in [("version: 1\n", false), (config, true)] {
        let sandbox = Sandbox::outside_tmp();
        if !has_all_layers(&sandbox) {
            return;
        }
        sandbox.write("home/.kube/config", "SECRET");
        sandbox.write("config/config.yaml", config);
        let run = |program: &str| {
            sandbox.skein(&["run", "-a", "coding", "-m", "sre", "--approval", "auto", &reads_kube_config(program)])
        };
        let opened = run("kubectl");
        assert_eq!(opened.stdout.contains("SECRET"), opens, "{config}: {}", opened.whole());
        let hidden = run("helper");
        assert!(!hidden.stdout.contains("SECRET"), "{config}: {}", hidden.whole());
    }
}

#[test]
fn a_new_protected_path_needs_consent() {
    let command = json!({"command": "mkdir .vscode && echo 1 > .vscode/tasks.json; echo done"});
    let sandbox = Sandbox::new();
    let run = shell(&sandbox, &["--approval", "auto"], &command);
    assert!(run.stdout.contains("the command created `.vscode`, a protected path"), "{}", run.whole());
    assert!(!sandbox.path("project/.vscode").exists());
    let kept: Vec<_> =
        files_below(&sandbox.path("")).into_iter().filter(|path| path.ends_with(".vscode/tasks.json")).collect();
    assert_eq!(kept.len(), 1, "it is in quarantine: {kept:?}");
    for (option, stays) in [("allow_once", true), ("reject_once", false)] {
        let sandbox = Sandbox::new();
        let (mut client, requests) = client(&sandbox, &["--approval", "auto"], option);
        let session = client.session();
        client.prompt(&session, &format!("/developer.shell {command}"));
        assert_eq!(sandbox.path("project/.vscode/tasks.json").exists(), stays, "{option}");
        assert!(requests.borrow()[0].to_string().contains("`.vscode` is a protected path"), "{:?}", requests.borrow());
        client.prompt(&session, "run echo again");
        assert_eq!(requests.borrow().len(), 1, "{option}: a path is asked about once");
    }
}

/// Runs git outside of a sandbox, as the user does.
#[expect(clippy::disallowed_methods, reason = "the user's git runs outside of Skein")]
fn git(sandbox: &Sandbox, folder: &str, arguments: &[&str]) {
    let mut git = std::process::Command::new("git");
    git.args(arguments).current_dir(sandbox.path(folder)).env("GIT_CONFIG_GLOBAL", "/dev/null");
    drop(git.output().unwrap());
}

#[test]
fn git_outside_runs_nothing_that_a_command_left() {
    let ran = |sandbox: &Sandbox| format!("core.fsmonitor 'touch {}; false'", sandbox.path("ran").display());
    let submodule = "git init -q --bare .git/x; git config -f .git/x/config core.bare false; \
                     git config -f .git/x/config core.worktree $PWD/a/b/sub; mkdir -p a/b/sub; \
                     echo 'gitdir: ../../../.git/x' > a/b/sub/.git; (cd a/b/sub; touch f; git add f; \
                     git -c user.name=x -c user.email=x commit -qm s); git config -f .git/x/config RAN; \
                     git update-index --add --cacheinfo 160000,$(git -C a/b/sub -c core.fsmonitor=false rev-parse \
                     HEAD),a/b/sub";
    let decoys = "mkdir -p .git/modules; for i in $(seq 700); do git init -q --bare .git/modules/m$i; done; \
                  git config -f .git/modules/m700/config core.bare false; \
                  git config -f .git/modules/m700/config core.worktree $PWD/sub; mkdir sub; \
                  echo 'gitdir: ../.git/modules/m700' > sub/.git; git config -f .git/modules/m700/config RAN";
    let root = "git init -q --bare . && rm -rf hooks && git config -f config core.bare false && \
                git config -f config core.worktree $PWD && git config -f config RAN";
    let common = "git init -q --bare x && rm -r x/HEAD x/hooks && mkdir x/.git && echo .. > x/.git/commondir && \
                  echo 'ref: refs/heads/main' > x/.git/HEAD && git config -f x/config core.bare false && \
                  git config -f x/config RAN";
    for (has_git, command, folder) in [
        (true, submodule, "project"),
        (true, decoys, "project/sub"),
        (false, root, "project"),
        (false, common, "project/x"),
    ] {
        let sandbox = Sandbox::new();
        if has_git {
            git(&sandbox, "project", &["init", "-q"]);
        }
        let command = command.replace("RAN", &ran(&sandbox));
        let run = shell(&sandbox, &["--approval", "auto"], &json!({"command": command, "timeout": 120}));
        assert!(run.stdout.contains("a protected path"), "{}", run.whole());
        git(&sandbox, folder, &["status"]);
        assert!(!sandbox.path("ran").exists(), "{}", run.whole());
    }
}

/// Makes a rebase that stops at a conflict.
const CONFLICT: &str = "git config --global user.name x; git config --global user.email x; echo a > f; git add f; \
     git commit -qm a; git branch side; echo b > f; git commit -qam b; git checkout -q side; echo c > f; git commit -qam c; \
     git rebase - || echo stopped";

#[test]
fn git_outside_continues_no_rebase_with_a_program() {
    let sandbox = Sandbox::new();
    git(&sandbox, "project", &["init", "-q"]);
    let (mut client, requests) = client(&sandbox, &["--approval", "auto"], "reject_once");
    let session = client.session();
    let mut run = |command: &str| {
        let command = json!({"command": format!("export GIT_CONFIG_GLOBAL=/tmp/gitconfig; {command}")});
        let (_, updates) = client.prompt(&session, &format!("/developer.shell {command}"));
        json!(updates).to_string()
    };
    let heard = run(CONFLICT);
    assert!(heard.contains("stopped") && requests.borrow().is_empty(), "{heard}: {:?}", requests.borrow());
    let heard = run("echo d > f; git add f; GIT_EDITOR=true git rebase --continue && git log --format=subject-%s");
    assert!(heard.contains("subject-c") && requests.borrow().is_empty(), "{heard}: {:?}", requests.borrow());
    let todo = sandbox.path("project/.git/rebase-merge/git-rebase-todo");
    let left = "git reset -q --hard HEAD~2; git checkout -q -B main; echo e > f; git commit -qam e; git checkout -q -B side \
                HEAD~1; echo g > f; git commit -qam g; git rebase main; echo 'exec touch ../ran' >> \
                .git/rebase-merge/git-rebase-todo; echo h > f; git add f";
    let heard = run(left);
    let asked = requests.borrow().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(asked.len() == 1 && asked[0].contains("git-rebase-todo"), "{asked:?}: {heard}");
    assert!(!todo.exists() && heard.contains("a protected path"), "{heard}");
    git(
        &sandbox,
        "project",
        &["-c", "user.name=x", "-c", "user.email=x", "-c", "core.editor=true", "rebase", "--continue"],
    );
    assert!(!sandbox.path("ran").exists());
    git(&sandbox, "project", &["rebase", "--abort"]);
    assert!(!todo.with_file_name("").exists(), "the user can give the rebase up");
}

#[test]
fn consent_to_an_unsandboxed_command_covers_its_paths() {
    // Long enough for several looks for ports in the sandbox, which are no commands.
    let create = |name: &str| format!("sleep 3; mkdir {name} && echo 1 > {name}/tasks.json");
    let unsandboxed = |name: &str| json!({"command": create(name), "unsandboxed": "it needs the host"});
    let sandbox = Sandbox::new();
    if !has_all_layers(&sandbox) {
        return;
    }
    let (mut client, requests) = client(&sandbox, &["--approval", "auto"], "allow_once");
    let session = client.session();
    client.prompt(&session, "run true");
    client.prompt(&session, &format!("/developer.shell {}", unsandboxed(".vscode")));
    assert_eq!(requests.borrow().len(), 1, "only about the command: {:?}", requests.borrow());
    let (_, updates) = client.prompt(&session, "run echo 2 > .vscode/tasks.json");
    assert!(format!("{updates:?}").contains("Read-only file system"), "{updates:?}");
    assert_eq!(requests.borrow().len(), 1);
    // A process that waits in the sandbox for the command without one could use its consent.
    let waits = "setsid sh -c 'touch left; until [ -e .zed ]; do sleep 0.01; done; touch .envrc' > /dev/null 2>&1 & \
                 until [ -e left ]; do sleep 0.01; done";
    let waits = json!({"command": waits});
    client.prompt(&session, &format!("/developer.shell {waits}"));
    client.prompt(&session, &format!("/developer.shell {}", unsandboxed(".zed")));
    client.until("the process has written it", |_| sandbox.path("project/.envrc").exists());
    client.prompt(&session, "hello");
    let asked = requests.borrow().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(asked.iter().any(|asked| asked.contains("`.envrc` is a protected path")), "{asked:?}");
}

#[test]
fn consent_to_a_repository_covers_no_earlier_hook() {
    let sandbox = Sandbox::new();
    if !has_all_layers(&sandbox) {
        return;
    }
    let (mut client, requests) = client(&sandbox, &["--approval", "auto"], "allow_once");
    let session = client.session();
    let hook = "mkdir -p x/hooks && echo 'touch ../ran' > x/hooks/post-update && chmod +x x/hooks/post-update";
    client.prompt(&session, &format!("/developer.shell {}", json!({"command": hook})));
    assert_eq!(requests.borrow().len(), 0, "without `HEAD`, `x` is no git folder");
    let create = json!({"command": "git init -q --bare x", "unsandboxed": "it needs the host"});
    client.prompt(&session, &format!("/developer.shell {create}"));
    assert!(sandbox.path("project/x/HEAD").exists());
    let asked = requests.borrow().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(asked.len() == 2 && asked[1].contains("x/HEAD"), "about the command and the repository: {asked:?}");
}

#[test]
fn consent_to_a_hook_is_asked_for_once() {
    let sandbox = Sandbox::new();
    let (mut client, requests) = client(&sandbox, &["--approval", "auto"], "allow_once");
    let session = client.session();
    client.prompt(&session, "run git init -q . && ls .git/hooks");
    assert!(sandbox.path("project/.git/hooks").exists() && requests.borrow().is_empty(), "{:?}", requests.borrow());
    sandbox.write("project/.git/hooks/pre-push.sample", "");
    let hook = json!({"path": ".git/hooks/pre-commit", "content": "#!/bin/sh\n"});
    client.prompt(&session, &format!("/developer.write_file {hook}"));
    let config = json!({"path": ".git/config", "content": "[core]\n\tfsmonitor = true\n", "overwrite": true});
    client.prompt(&session, &format!("/developer.write_file {config}"));
    client.prompt(&session, "run true");
    assert_eq!(requests.borrow().len(), 2, "once about each file: {:?}", requests.borrow());
    assert!(sandbox.path("project/.git/hooks/pre-commit").exists());
    assert!(std::fs::read_to_string(sandbox.path("project/.git/config")).unwrap().contains("fsmonitor"));
}

#[test]
fn a_protected_path_that_appears_later_needs_consent() {
    // The process must leave the group of the command before that ends.
    let command = "setsid sh -c 'touch left; sleep 5; echo evil > .envrc' > /dev/null 2>&1 & \
                   until [ -e left ]; do sleep 0.01; done";
    let later = json!({"command": command});
    for (option, stays) in [("allow_once", true), ("reject_once", false)] {
        let sandbox = Sandbox::new();
        let (mut client, requests) = client(&sandbox, &["--approval", "auto"], option);
        let session = client.session();
        client.prompt(&session, &format!("/developer.shell {later}"));
        client.until("the command has written it", |_| sandbox.path("project/.envrc").exists());
        client.prompt(&session, "hello");
        assert_eq!(requests.borrow().len(), 1, "the end of a turn asks");
        assert_eq!(sandbox.path("project/.envrc").exists(), stays, "{option}");
    }
}

#[test]
fn consent_to_one_file_opens_no_other() {
    let sandbox = Sandbox::new();
    let (mut client, requests) = client(&sandbox, &["--approval", "auto"], "allow_once");
    let session = client.session();
    client.prompt(&session, "run true");
    let file = json!({"path": ".vscode/settings.json", "content": "{}"});
    client.prompt(&session, &format!("/developer.write_file {file}"));
    assert_eq!(requests.borrow().len(), 1, "the file tool asks");
    let command = json!({"command": "echo 1 > .vscode/tasks.json; echo 2 > .vscode/settings.json"});
    let (_, updates) = client.prompt(&session, &format!("/developer.shell {command}"));
    assert!(format!("{updates:?}").contains("Read-only file system"), "{updates:?}");
    assert_eq!(std::fs::read_to_string(sandbox.path("project/.vscode/settings.json")).unwrap(), "{}");
    assert!(!sandbox.path("project/.vscode/tasks.json").exists());
    assert_eq!(requests.borrow().len(), 1, "nothing new is left to ask about");
}

#[test]
fn a_protected_link_protects_its_target() {
    let sandbox = Sandbox::new();
    sandbox.write("project/conf/settings.json", "{}");
    std::os::unix::fs::symlink("conf", sandbox.path("project/.claude")).unwrap();
    let (mut client, requests) = client(&sandbox, &["--approval", "auto"], "reject_once");
    let session = client.session();
    let command = json!({"command": "echo 1 > .claude/settings.json; echo 2 > conf/settings.json; mv conf other"});
    client.prompt(&session, &format!("/developer.shell {command}"));
    assert_eq!(std::fs::read_to_string(sandbox.path("project/conf/settings.json")).unwrap(), "{}");
    assert_eq!(requests.borrow().len(), 0);
    for path in [".claude/new.json", "conf/new.json"] {
        let file = json!({"path": path, "content": "{}"});
        client.prompt(&session, &format!("/developer.write_file {file}"));
        assert!(!sandbox.path("project/conf/new.json").exists());
    }
    assert_eq!(requests.borrow().len(), 2, "the file tools ask");
}

#[test]
fn a_harmless_clone_passes_and_instructions_are_reported() {
    let sandbox = Sandbox::new();
    let config = "[core]\\n\\tbare = false\\n[remote \\\"origin\\\"]\\n\\turl = https://example.com/x\\n";
    let command = format!(
        "mkdir -p x/.git/objects x/.git/hooks && echo ref > x/.git/HEAD && printf \"{config}\" > x/.git/config; \
         echo more >> AGENTS.md"
    );
    let run = shell(&sandbox, &["--approval", "auto"], &json!({"command": command}));
    assert!(sandbox.path("project/x/.git/config").exists(), "{}", run.whole());
    assert!(run.stdout.contains("[changed `AGENTS.md`: agents follow the instructions in it]"), "{}", run.whole());
    // What passed once is looked at again: nothing covers it.
    let sandbox = Sandbox::new();
    let (mut client, requests) = client(&sandbox, &["--approval", "auto"], "reject_once");
    let session = client.session();
    client.prompt(&session, &format!("/developer.shell {}", json!({"command": command})));
    assert_eq!(requests.borrow().len(), 0);
    let worse = json!({"command": "printf '[core]\\nfsmonitor = ./run\\n' >> x/.git/config"});
    client.prompt(&session, &format!("/developer.shell {worse}"));
    assert_eq!(requests.borrow().len(), 1);
    assert!(requests.borrow()[0].to_string().contains("(`core.fsmonitor`)"), "{:?}", requests.borrow());
    assert!(!sandbox.path("project/x/.git/config").exists());
    assert!(sandbox.path("project/x/.git/HEAD").exists(), "the repository stays");
}

#[test]
fn missing_layers_are_told_once_per_session() {
    let sandbox = Sandbox::new().with("SKEIN_TEST_SANDBOX_LAYERS", "no-namespaces");
    let (mut client, _) = client(&sandbox, &["--approval", "auto"], "allow_once");
    let session = client.session();
    let mark = client.mark();
    client.prompt(&session, "run echo one");
    client.prompt(&session, "run echo two");
    client.prompt(&session, &format!("/developer.shell {}", json!({"command": "echo three", "read_only": true})));
    let notices = client.heard()[mark..].iter().filter(|message| message.to_string().contains("is incomplete"));
    let notices: Vec<_> = notices.map(ToString::to_string).collect();
    assert_eq!(notices.len(), 1, "{notices:#?}");
    assert!(notices[0].contains("allow user namespaces"), "{}", notices[0]);
}
