//! `skein run` as a user types it: without a model, and with one that is scripted but reached over real HTTP.

use serde_json::{Value, json};

use crate::model::{Answer, Model, calls, says, stop};
use crate::support::tmux::{Terminal, eventually};
use crate::support::{Run, Sandbox, full_tests, read, servers};

impl Model {
    pub(crate) fn run(&self, sandbox: &Sandbox, args: &[&str]) -> Run {
        // With a model, the default is `orchestrator/auto`, which asks the model where a vague prompt belongs.
        let chooses = ["-a", "-m", "-c", "--resume", "--recipe", "--agent", "--mode"];
        let mode = if args.iter().any(|arg| chooses.contains(arg)) { &[][..] } else { &["-a", "goose"] };
        let mut command = sandbox.command(&[&["run", "--model", "openai:scripted"], mode, args].concat());
        command.env("OPENAI_BASE_URL", &self.address).env("OPENAI_API_KEY", "sk-a-marked-secret");
        let output = command.output().unwrap();
        Run {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

#[test]
fn without_a_model_tools_are_called_by_name() {
    let sandbox = Sandbox::new();
    sandbox.write("project/notes.txt", "one\ntwo\n");
    let read = sandbox.skein(&["run", "-a", "coding", "-m", "security", "read notes.txt"]);
    assert_eq!((read.code, read.stdout.contains("two")), (0, true), "{}", read.whole());
    let shell =
        sandbox.skein(&["run", "-a", "coding", "--approval", "auto", "/developer.shell {\"command\": \"echo hi\"}"]);
    assert_eq!((shell.code, shell.stdout.contains("hi")), (0, true), "{}", shell.whole());
    let unknown = sandbox.skein(&["run", "write a poem"]);
    assert!(unknown.stdout.contains("No language model is configured"), "{}", unknown.whole());
}

#[test]
fn a_failed_command_without_a_model_sets_the_exit_code() {
    let sandbox = Sandbox::new();
    sandbox.write("project/notes.txt", "one\n");
    let run = |args: &[&str]| sandbox.skein(&[&["run", "-a", "coding", "-m", "security"], args].concat());
    for (prompt, says) in [
        ("/developer.read_file {\"path\": \"gone.txt\"}", "error: the command failed: developer__read_file: "),
        ("read gone.txt", "error: the command failed: developer__read_file: "),
        ("/developer.reed_file notes.txt", "error: the command was not run: There is no tool `developer.reed_file`"),
        ("/read_file {broken", "error: the command was not run: The arguments of /read_file are not a JSON object"),
    ] {
        let failed = run(&[prompt]);
        assert_eq!((failed.code, failed.stderr.contains(says)), (1, true), "{prompt}: {}", failed.whole());
    }
    let said: Value = serde_json::from_str(&run(&["--json", "read gone.txt"]).stdout).unwrap();
    assert!(said["error"].as_str().unwrap().starts_with("the command failed: developer__read_file: "), "{said}");
    for prompt in ["/developer.read_file notes.txt", "write a poem"] {
        let done = run(&[prompt]);
        assert_eq!(done.code, 0, "{prompt}: {}", done.whole());
    }
}

#[test]
fn a_failed_call_of_a_model_does_not_set_the_exit_code() {
    let sandbox = Sandbox::new();
    let wish = calls("developer__read_file", &json!({"path": "gone.txt"}));
    let model = Model::new(vec![Answer::Stream(wish), Answer::Stream(says("There is no such file."))]);
    let run = model.run(&sandbox, &["-a", "coding", "-m", "security", "/developer.read_file gone.txt"]);
    assert_eq!((run.code, run.stdout.trim()), (0, "There is no such file."), "{}", run.whole());
    assert!(run.stderr.contains("✗ developer__read_file"), "{}", run.whole());
}

/// A command that runs long enough for the spinner, and whether the screen shows a frame of it.
const SLEEP: [&str; 6] = ["run", "--model", "offline", "--approval", "auto", "run sleep 4"];

fn shows_spinner(terminal: &Terminal) -> bool {
    terminal.whole().contains(|c| ('\u{2800}'..='\u{28ff}').contains(&c))
}

#[test]
fn the_spinner_leaves_nothing_in_a_narrow_window() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let terminal = Terminal::start(&sandbox, None, (20, 40), &SLEEP);
    eventually("the spinner turns", || terminal.screen().contains("developer__s…") && shows_spinner(&terminal));
    terminal.shows("[exit 0]");
    assert!(!shows_spinner(&terminal), "{}", terminal.whole());
}

#[test]
fn a_dumb_terminal_gets_no_spinner() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new().with("TERM", "dumb");
    let terminal = Terminal::start(&sandbox, None, (100, 40), &SLEEP);
    eventually("the command ends", || {
        assert!(!shows_spinner(&terminal), "{}", terminal.whole());
        terminal.whole().contains("[exit 0]")
    });
    assert!(terminal.whole().contains("developer__shell"), "{}", terminal.whole());
}

#[test]
fn call_without_an_asker_is_refused_with_its_exit_code() {
    let sandbox = Sandbox::new();
    let run = sandbox.skein(&["run", "-a", "coding", "-m", "backend", "run touch made"]);
    assert_eq!(run.code, 5, "{}", run.whole());
    assert!(run.stderr.contains("--approval auto"), "{}", run.stderr);
    assert!(!sandbox.path("project/made").exists());
}

#[test]
fn what_cannot_be_run_is_said_before_anything_starts() {
    let sandbox = Sandbox::new();
    for (args, says) in [
        (vec!["run", "-m", "judge", "x"], "internal mode"),
        (vec!["run", "-m", "assistent", "x"], "did you mean `goose/assistant`"),
        (vec!["run", "-a", "codin", "x"], "did you mean `coding`"),
        (vec!["run", "  "], "the prompt is empty"),
        (vec!["run", "--model", "openai:gpt", "x"], "set OPENAI_API_KEY"),
        (vec!["run", "--model", "nobody:x", "x"], "there is no provider `nobody`"),
    ] {
        let run = sandbox.skein(&args);
        assert_eq!(run.code, 2, "{args:?}: {}", run.whole());
        assert!(run.stderr.contains(says), "{args:?}: {}", run.stderr);
    }
}

#[test]
fn a_model_is_shown_its_modes_tools_and_its_calls_are_answered() {
    let sandbox = Sandbox::new();
    sandbox.write("project/AGENTS.md", "Answer in rhymes.\n");
    let wish = calls("developer__shell", &json!({"command": "env; echo from the shell"}));
    let model = Model::new(vec![Answer::Stream(wish), Answer::Stream(says("It is done."))]);
    let run = model.run(&sandbox, &["-a", "coding", "-m", "backend", "--approval", "auto", "--json", "do it"]);
    assert_eq!(run.code, 0, "{}", run.whole());
    let answer: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(answer["text"], "It is done.");
    assert_eq!(answer["stop_reason"], "end_turn");
    assert_eq!(answer["usage"], json!({"input": 200, "output": 14, "cached": 120}));
    let first = model.request(0);
    let offered: Vec<_> = first["tools"].as_array().unwrap().iter().map(|tool| &tool["function"]["name"]).collect();
    assert!(offered.contains(&&json!("developer__shell")) && !offered.contains(&&json!("fetch__fetch_url")));
    let system = first["messages"][0]["content"].to_string();
    assert!(system.contains("Answer in rhymes.") && system.contains("project-instructions"), "{system}");
    let second = model.request(1);
    let result = second["messages"].as_array().unwrap().last().unwrap();
    assert_eq!(result["role"], "tool");
    let said = result["content"].to_string();
    assert!(said.contains("from the shell") && !said.contains("sk-a-marked-secret"), "{said}");
}

#[test]
fn the_key_goes_to_its_provider_and_nowhere_else() {
    let sandbox = Sandbox::new();
    let model = Model::new(vec![Answer::Status(400, "")]);
    let run = model.run(&sandbox, &["hello"]);
    assert_eq!(run.code, 1, "{}", run.whole());
    assert!(model.requests.lock().unwrap()[0].0.contains("sk-a-marked-secret"));
    assert!(!run.whole().contains("sk-a-marked-secret"));
    assert!(!read(sandbox.path("data/state/log/skein.log")).contains("sk-a-marked-secret"));
}

#[test]
fn a_busy_model_is_asked_again_and_a_wrong_request_is_not() {
    let sandbox = Sandbox::new();
    let busy = Model::new(vec![Answer::Status(429, "retry-after: 1\r\n"), Answer::Stream(says("now"))]);
    let run = busy.run(&sandbox, &["hello"]);
    assert_eq!((run.code, run.stdout.trim(), busy.asked()), (0, "now", 2), "{}", run.whole());
    let wrong = Model::new(vec![Answer::Status(401, ""), Answer::Stream(says("never"))]);
    let run = wrong.run(&sandbox, &["hello"]);
    assert_eq!((run.code, wrong.asked()), (1, 1), "{}", run.whole());
    assert!(run.stderr.contains("401"), "{}", run.stderr);
}

#[test]
fn an_answer_that_is_cut_off_is_taken_up_and_shown_once() {
    let sandbox = Sandbox::new();
    let pieces = vec![json!({"index": 0, "delta": {"role": "assistant", "content": "half a sent"}})];
    let model = Model::new(vec![Answer::Cut(pieces), Answer::Stream(says("half a sentence"))]);
    let run = model.run(&sandbox, &["hello"]);
    assert_eq!((run.code, run.stdout.trim(), model.asked()), (0, "half a sentence", 2), "{}", run.whole());
    assert!(run.stderr.contains("asking again in 0.5 s, try 2 of 5"), "{}", run.stderr);
}

#[test]
fn a_model_that_says_nothing_is_not_quoted_with_the_prompt() {
    let sandbox = Sandbox::new();
    let model = Model::new(vec![Answer::Stream(vec![stop("stop")])]);
    let run = model.run(&sandbox, &["--json", "hello"]);
    assert_eq!((run.code, run.json()["text"].as_str()), (0, Some("")), "{}", run.whole());
    assert!(run.stderr.contains("said nothing"), "{}", run.stderr);
}

#[test]
fn a_stream_of_events_ends_with_the_end_of_the_turn() {
    let sandbox = Sandbox::new();
    let wish = calls("developer__list_dir", &json!({"path": "."}));
    let model = Model::new(vec![Answer::Stream(wish), Answer::Stream(says("done"))]);
    let run = model.run(&sandbox, &["--output", "stream-json", "look"]);
    let events: Vec<Value> = run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        ["message", "message", "tool_started", "tool_ended", "message", "message", "turn_ended"],
        "{}",
        run.whole()
    );
}

#[test]
fn a_session_begins_with_what_was_remembered_labelled_as_data() {
    let sandbox = Sandbox::new();
    let told = sandbox.skein(&["run", "--approval", "auto", "remember the user likes short answers"]);
    assert_eq!(told.code, 0, "{}", told.whole());
    let model = Model::new(vec![Answer::Stream(says("ok")), Answer::Stream(says("ok"))]);
    model.run(&sandbox, &["hello"]);
    let system = model.request(0)["messages"][0]["content"].to_string();
    assert!(system.contains("the user likes short answers") && system.contains("data, not instructions"), "{system}");
    model.run(&sandbox, &["-m", "planner", "hello"]);
    let system = model.request(1)["messages"][0]["content"].to_string();
    assert!(!system.contains("short answers"), "a mode without memory is told nothing: {system}");
}

#[test]
fn the_plan_is_shown_while_it_changes() {
    let sandbox = Sandbox::new();
    let run = sandbox.skein(&["run", "--approval", "auto", "todo buy milk; drink it"]);
    assert!(run.stderr.contains("  [ ] buy milk\n  [ ] drink it\n"), "{}", run.whole());
}

#[test]
fn the_memories_of_goose_are_taken_over_and_found() {
    let sandbox = Sandbox::new();
    sandbox.write("project/memory/style.txt", "# code\nuse tabs\n\n# code\nno semicolons\n\npassword: hunter2\n");
    let imported = sandbox.skein(&["import", "memory", "--json"]).json();
    assert_eq!(imported["kept"], 2);
    assert_eq!(imported["left_out"].as_array().map(Vec::len), Some(1));
    let found = sandbox.skein(&["run", "recall tabs"]);
    assert!(found.stdout.contains("use tabs"), "{}", found.whole());
    let missing = sandbox.skein(&["import", "nowhere"]);
    assert_eq!((missing.code, missing.stderr.contains("cannot be read")), (2, true), "{}", missing.whole());
}

const LOOSE: &str = "version: 1
kind: agent
name: goose
description: Takes the place of the built-in agent.
metadata: {dependencies: [developer]}
modes:
  - {slug: assistant, description: Runs., prompt: goose.md, tool_groups: [developer], dependencies: [developer], approval: auto}
";

#[test]
fn a_project_cannot_do_without_the_users_consent() {
    let sandbox = Sandbox::new();
    sandbox.write("project/.skein/agents/goose.yaml", LOOSE);
    sandbox.write("project/.skein/agents/goose.md", "You run things.\n");
    let trusted = sandbox.skein(&["trust", "--yes"]);
    assert!(trusted.stderr.contains("agent goose replaces the built-in agent"), "{}", trusted.whole());
    let mode = "mode goose/assistant: tools developer; prompt goose.md; approval auto\n";
    assert!(trusted.stderr.contains(mode), "{}", trusted.whole());
    assert_eq!(sandbox.skein(&["run", "run touch made"]).code, 5);
    assert!(!sandbox.path("project/made").exists());
    // The user's own manifest may.
    sandbox.write("config/agents/goose.yaml", LOOSE);
    sandbox.write("config/agents/goose.md", "You run things.\n");
    assert_eq!(sandbox.skein(&["trust", "--revoke"]).code, 0);
    assert_eq!(sandbox.skein(&["run", "run touch made"]).code, 0);
}

#[test]
fn project_config_can_only_tighten_the_users_approval() {
    let sandbox = Sandbox::new();
    sandbox.write("config/config.yaml", "version: 1\napproval: auto\n");
    assert_eq!(sandbox.skein(&["run", "run touch made"]).code, 0);
    sandbox.write("project/.skein/config.yaml", "version: 1\napproval: deny\n");
    assert_eq!(sandbox.skein(&["trust", "--yes"]).code, 0);
    let denied = sandbox.skein(&["run", "list"]);
    assert!(denied.code == 5 && denied.stdout.contains("allows no tool calls"), "{}", denied.whole());
    sandbox.write("config/config.yaml", "version: 1\napproval: read-only\n");
    sandbox.write("project/.skein/config.yaml", "version: 1\napproval: auto\n");
    assert_eq!(sandbox.skein(&["trust", "--yes"]).code, 0);
    assert_eq!((sandbox.skein(&["run", "list"]).code, sandbox.skein(&["run", "run ls"]).code), (0, 5));
}

#[test]
fn a_projects_servers_take_no_built_in_services_place() {
    let sandbox = Sandbox::new();
    let echo = servers::mcp_echo();
    let servers = json!({"mcpServers": {"fetch": {"command": echo}, "old": {"type": "sse", "url": "http://127.0.0.1:1/"},
        "off": {"command": echo, "disabled": true}, "extra": {"command": echo}}});
    sandbox.write("project/.mcp.json", &servers.to_string());
    assert_eq!(sandbox.skein(&["trust", "--yes"]).code, 0);
    let tools = sandbox.skein(&["tools", "-a", "coding", "-m", "security"]);
    assert!(tools.code == 0 && tools.stdout.contains("fetch__fetch_url"), "{}", tools.whole());
    assert!(
        tools.stderr.contains("`fetch` is left out") && tools.stderr.contains("`old` is left out"),
        "{}",
        tools.stderr
    );
    let names = sandbox.skein(&["services", "--json"]).json();
    let has = |name: &str| names.as_array().unwrap().iter().any(|service| service["name"] == name);
    assert!(has("extra") && !has("off") && !has("old"));
    sandbox.write("project/.mcp.json", "{\"mcpServers\": {}}");
    let replaced = json!({"version": 1, "kind": "service", "name": "fetch", "description": "x", "transport": {"builtin": "fetch"},
        "settings": {"allow_hosts": ["127.0.0.1:80"]}});
    sandbox.write("project/.skein/services/fetch.yaml", &replaced.to_string());
    let checked = sandbox.skein(&["check"]);
    assert!(checked.code == 6 && checked.stderr.contains("E102"), "{}", checked.whole());
}

#[test]
fn a_service_that_is_not_there_is_named() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.skein(&["new", "service", "clock", "--user"]).code, 0);
    for command in [&["tools", "-a", "coding", "-m", "backend"][..], &["run", "-a", "coding", "-m", "backend", "list"]]
    {
        let run = sandbox.skein(command);
        assert!(run.code == 0 && run.stderr.contains("service `clock` is unavailable"), "{}", run.whole());
    }
}

#[test]
fn session_topic_selects_its_first_memories() {
    let sandbox = Sandbox::new();
    let remember = |text: &str| {
        assert_eq!(sandbox.skein(&["run", "--approval", "auto", &format!("remember {text}")]).code, 0);
    };
    remember("The frobnicator listens on port 9137");
    for number in 0..9 {
        remember(&format!("Tulips are planted in row {number}"));
    }
    let model = Model::new(vec![Answer::Stream(says("ok"))]);
    model.run(&sandbox, &["On which port does the frobnicator listen?"]);
    let system = model.request(0)["messages"][0]["content"].to_string();
    assert!(system.contains("port 9137"), "{system}");
}

#[test]
fn what_a_model_said_is_recorded_and_played_without_it() {
    let sandbox = Sandbox::new();
    sandbox.write("project/notes.txt", "the needle\n");
    let wish = calls("developer__read_file", &json!({"path": "notes.txt"}));
    let model = Model::new(vec![Answer::Stream(wish), Answer::Stream(says("I found it."))]);
    let file = sandbox.path("talk.jsonl");
    let file = file.to_str().unwrap();
    let recorded = model.run(&sandbox, &["--record-model", file, "find the needle"]);
    assert_eq!((recorded.code, recorded.stdout.trim()), (0, "I found it."), "{}", recorded.whole());
    assert!(!read(sandbox.path("talk.jsonl")).contains("marked-secret"));
    let replay = format!("replay:{file}");
    let played = sandbox.skein(&["run", "--model", &replay, "-a", "goose", "find the needle"]);
    assert_eq!((played.code, played.stdout.trim()), (0, "I found it."), "{}", played.whole());
    assert!(played.stderr.contains("→ developer__read_file"), "the tool is really called: {}", played.stderr);
    let other = sandbox.skein(&["run", "--model", &replay, "-a", "goose", "find the haystack"]);
    assert!(other.code == 1 && other.stderr.contains("answers \"find the needle\""), "{}", other.whole());
    sandbox.write("talk.jsonl", "{\n");
    let broken = sandbox.skein(&["run", "--model", &replay, "-a", "goose", "find the needle"]);
    assert!(broken.code == 2 && broken.stderr.contains("talk.jsonl") && broken.stderr.contains("line 1"));
}

#[test]
fn a_wrong_file_is_said_with_what_to_do() {
    let sandbox = Sandbox::new();
    sandbox.write("project/junk.txt", "notes\n");
    let recording = "help: name another file: one that --record-model has written, or a new one to record";
    for (args, help) in [
        (&["--recipe", "nope.yaml"][..], "help: check the path"),
        (&["--record-model", "junk.txt", "hello"], recording),
        (&["--model", "replay:none.jsonl", "hello"], recording),
    ] {
        let run = sandbox.skein(&[&["run"], args].concat());
        assert!(run.code != 0 && run.stderr.contains(help), "{args:?}: {}", run.whole());
        assert!(!run.stderr.contains("skein configure"), "{args:?}: {}", run.whole());
    }
}

#[test]
fn profile_names_the_model_and_config_its_endpoint_and_window() {
    let sandbox = Sandbox::new();
    let model = Model::new(vec![Answer::Stream(says("one")), Answer::Stream(says("two"))]);
    let config = |rest: &str| {
        format!(
            "version: 1\nprofile: work\nprofiles: {{work: {{processor: 'lmstudio:local', moderator: passive}}}}\n\
             providers: {{lmstudio: {{base_url: '{}'{rest}}}}}\nmodels: {{'lmstudio:local': {{window: 100}}}}\n",
            model.address
        )
    };
    sandbox.write("config/config.yaml", &config(""));
    let run = sandbox.skein(&["run", "hello"]);
    assert_eq!((run.code, run.stdout.trim()), (0, "one"), "{}", run.whole());
    assert_eq!(model.request(0)["model"], "local");
    sandbox.write("config/config.yaml", &config(", key: MY_OWN_KEY"));
    let unset = sandbox.skein(&["run", "hello"]);
    assert!(unset.code == 2 && unset.stderr.contains("set MY_OWN_KEY in the environment"), "{}", unset.whole());
    let output = sandbox.command(&["run", "hello"]).env("MY_OWN_KEY", "sk-a-marked-secret").output().unwrap();
    assert!(output.status.success());
    assert!(model.requests.lock().unwrap()[1].0.contains("sk-a-marked-secret"));
    let named = sandbox.skein(&["run", "--model", "offline", "list"]);
    assert_eq!(named.code, 0, "the command line comes first: {}", named.whole());
    // A project chooses by name, and never where keys go.
    sandbox.write("project/.skein/config.yaml", "version: 1\nproviders: {openai: {base_url: 'http://127.0.0.1:1'}}\n");
    assert_eq!(sandbox.skein(&["trust", "--yes"]).code, 0);
    let refused = sandbox.skein(&["run", "hello"]);
    assert!(refused.code == 2 && refused.stderr.contains("E122"), "{}", refused.whole());
}

#[test]
fn user_service_outside_the_profile_is_missing() {
    let sandbox = Sandbox::new();
    let echo = servers::mcp_echo();
    for name in ["first", "second"] {
        let manifest = json!({"version": 1, "kind": "service", "name": name, "description": "x",
            "transport": {"stdio": {"command": echo}}});
        sandbox.write(&format!("config/services/{name}.json"), &manifest.to_string());
    }
    let tools = || sandbox.skein(&["tools", "-a", "coding", "-m", "backend"]).stdout;
    assert!(tools().contains("first__") && tools().contains("second__"), "{}", tools());
    sandbox.write("config/config.yaml", "version: 1\nprofiles: {default: {services: [second]}}\n");
    assert!(!tools().contains("first__") && tools().contains("second__"), "{}", tools());
}

#[test]
fn trust_shows_a_projects_rules() {
    let sandbox = Sandbox::new();
    let config = "version: 1
permissions:
  - {tool: developer__shell, arguments: {command: 'git push*'}, then: deny}
  - {tool: developer__write_file, then: ask}
";
    sandbox.write("project/.skein/config.yaml", config);
    let trusted = sandbox.skein(&["trust", "--yes"]);
    for line in [
        "calls are refused: developer__shell: {command: \"git push*\"}\n",
        "calls are asked about: developer__write_file\n",
    ] {
        assert!(trusted.stderr.contains(line), "{}", trusted.whole());
    }
}

#[test]
fn what_a_rule_denies_is_not_said_to_be_allowed_by_a_level() {
    let sandbox = Sandbox::new();
    let run = sandbox.skein(&["run", "--approval", "auto", "--deny", "developer__shell", "run touch made"]);
    assert_eq!(run.code, 5, "{}", run.whole());
    assert!(
        run.stderr.contains("a denied call, only a rule helps") && run.stderr.contains("skein permissions"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_line_that_is_cut_says_so() {
    let sandbox = Sandbox::new();
    let run = sandbox.skein(&["run", &format!("read {}", "long/".repeat(60))]);
    let line = run.stderr.lines().find(|line| line.starts_with('✗')).unwrap_or_else(|| panic!("{}", run.whole()));
    assert!(line.ends_with('…'), "{line}");
}

#[test]
fn default_mode_is_auto_with_a_model_and_assistant_without() {
    let sandbox = Sandbox::new();
    let model = Model::new(vec![Answer::Stream(says("hi")), Answer::Stream(says("hi"))]);
    let mode = |args: &[&str]| {
        let mut command = sandbox.command(&[&["run", "--json"], args].concat());
        command.env("OPENAI_BASE_URL", &model.address).env("OPENAI_API_KEY", "x");
        let said: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        format!("{}/{}", said["agent"].as_str().unwrap(), said["mode"].as_str().unwrap())
    };
    assert_eq!(mode(&["list"]), "goose/assistant");
    assert_eq!(mode(&["--model", "openai:scripted", "@goose hello"]), "orchestrator/auto");
    sandbox.write("config/config.yaml", "version: 1\nprofiles: {default: {agent: coding, mode: pm}}\n");
    assert_eq!(mode(&["--model", "openai:scripted", "hello"]), "coding/pm");
}

#[test]
fn agent_and_mode_can_be_named_in_one_flag_everywhere() {
    let sandbox = Sandbox::new();
    let tools = sandbox.skein(&["tools", "-a", "coding", "-m", "security"]).stdout;
    assert!(tools.contains("coding/security"), "{tools}");
    for named in [&["-a", "coding/security"][..], &["-m", "security"], &["-m", "coding/security"]] {
        let run = sandbox.skein(&[&["run", "--json"], named, &["list"]].concat());
        let said: Value = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!((&said["agent"], &said["mode"]), (&json!("coding"), &json!("security")), "{named:?}");
        assert_eq!(sandbox.skein(&[&["tools"], named].concat()).stdout, tools, "{named:?}");
        let test = [&["permissions", "test"], named, &["--json", "developer__read_file {\"path\": \"a\"}"]].concat();
        let test: Value = serde_json::from_str(&sandbox.skein(&test).stdout).unwrap();
        assert_eq!(test["mode"], "coding/security", "{named:?}");
    }
    let wrong = sandbox.skein(&["run", "-a", "coding/security", "-m", "qa", "list"]);
    assert_eq!(wrong.code, 2, "{}", wrong.whole());
    assert!(wrong.stderr.contains("names a mode already"), "{}", wrong.stderr);
}

#[test]
fn suggestions_name_neither_internal_modes_nor_commands() {
    let sandbox = Sandbox::new();
    for args in [&["run", "-a", "goose", "-m", "judg", "x"][..], &["run", "-a", "goose/judg", "x"], &["reapr"]] {
        let run = sandbox.skein(args);
        assert_eq!(run.code, 2, "{}", run.whole());
        assert!(!run.stderr.contains("judge") && !run.stderr.contains("reaper"), "{}", run.stderr);
    }
}

#[test]
fn a_failed_command_is_named_with_its_exit_code() {
    let sandbox = Sandbox::new();
    let run = sandbox.skein(&["run", "-a", "coding/backend", "--approval", "auto", "run exit 3"]);
    assert_eq!(run.code, 1, "{}", run.whole());
    assert!(run.stderr.contains("the command failed: developer__shell: exit 3: (no output)"), "{}", run.stderr);
}

#[test]
fn the_help_after_a_refused_call_names_a_command_that_lists() {
    let sandbox = Sandbox::new();
    let run = sandbox.skein(&["run", "-a", "coding/backend", "run touch x"]);
    assert_eq!(run.code, 5, "{}", run.whole());
    assert!(run.stderr.contains("`skein permissions list`"), "{}", run.stderr);
    assert_eq!(sandbox.skein(&["permissions", "list"]).code, 0);
}
