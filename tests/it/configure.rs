//! `skein configure`: a model, its key and an agent are chosen; what a person wrote stays, and the key is nowhere but
//! in its file.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use serde_json::Value;

use crate::support::model::{Answer, ScriptedModel};
use crate::support::tmux::Terminal;
use crate::support::{Sandbox, files_below, full_tests, read};

/// Not a real one.
const KEY: &str = concat!("a-key", "-that-is-marked-7261");

struct Said {
    code: i32,
    stdout: String,
    stderr: String,
}

fn configure(sandbox: &Sandbox, base: Option<&str>, args: &[&str], input: &str) -> Said {
    let mut command = sandbox.command(&[&["configure"], args].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.envs(base.map(|base| ("OPENAI_BASE_URL", base)));
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let said =
        Said { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) };
    assert!(!said.stdout.contains(KEY) && !said.stderr.contains(KEY), "{}{}", said.stdout, said.stderr);
    said
}

/// Which files hold the key.
fn holding_the_key(sandbox: &Sandbox) -> Vec<String> {
    let files = files_below(&sandbox.path("")).into_iter();
    let holding = files.filter(|file| {
        let bytes = std::fs::read(file).unwrap_or_default();
        bytes.windows(KEY.len()).any(|window| window == KEY.as_bytes())
    });
    holding.map(|file| file.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_key_from_stdin_is_kept_for_its_owner_and_read_back() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Says(vec!["hello".to_owned()]));
    let args = ["--provider", "openai", "--model", "scripted", "--key-stdin", "--json"];
    let said = configure(&sandbox, Some(model.address()), &args, &format!("{KEY}\n"));
    assert_eq!(said.code, 0, "{}", said.stderr);
    let told: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((&told["model"], &told["tested"]), (&"openai:scripted".into(), &true.into()));
    assert_eq!(told["key"]["in"], "file");
    assert_eq!(told["editor"]["agent_servers"]["Skein"]["args"][0], "acp");
    assert_eq!(model.answered(), 1, "it was really asked");
    let mode = sandbox.path("config/keys.json").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut run = sandbox.command(&["run", "-a", "goose", "hello"]);
    run.env("OPENAI_BASE_URL", model.address());
    assert!(run.status().unwrap().success());
    assert_eq!(model.answered(), 2);
    let mut shell = sandbox.command(&["run", "--model", "offline", "--approval", "auto", "run env"]);
    let output = shell.output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stdout).contains(KEY), "no child has it");
    assert_eq!(holding_the_key(&sandbox), ["keys.json"]);
}

#[test]
fn a_variable_that_overrides_the_stored_key_is_named() {
    let args = ["--model", "openai:some", "--key-stdin", "--no-test"];
    for (value, is_named) in [("another-key", true), (KEY, false)] {
        let sandbox = Sandbox::new().with("OPENAI_API_KEY", value);
        let said = configure(&sandbox, None, &args, &format!("{KEY}\n"));
        assert_eq!(said.code, 0, "{}", said.stderr);
        let told = said.stderr.contains("the variable OPENAI_API_KEY is set and takes precedence");
        assert_eq!(told, is_named, "{}", said.stderr);
    }
}

#[test]
fn a_model_that_does_not_answer_changes_nothing() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Status(401));
    let args = ["--model", "openai:scripted", "--key-stdin"];
    let said = configure(&sandbox, Some(model.address()), &args, &format!("{KEY}\n"));
    assert_eq!(said.code, 1, "{}", said.stdout);
    assert!(said.stderr.contains("nothing was changed") && said.stderr.contains("--no-test"), "{}", said.stderr);
    assert!(!sandbox.path("config/config.yaml").exists() && !sandbox.path("config/keys.json").exists());
}

#[test]
fn the_offline_model_can_be_chosen() {
    let sandbox = Sandbox::new();
    sandbox.write("config/config.yaml", "version: 1\nprofiles: {default: {processor: 'openai:gpt'}}\n");
    for args in [&["--model", "offline", "--json"][..], &["--provider", "offline", "--json"]] {
        let said = configure(&sandbox, None, args, "");
        assert_eq!(said.code, 0, "{}", said.stderr);
        let told: Value = serde_json::from_str(&said.stdout).unwrap();
        assert_eq!((&told["model"], &told["tested"], &told["key"]), (&"offline".into(), &false.into(), &Value::Null));
    }
    assert!(read(sandbox.path("config/config.yaml")).contains("processor: \"offline\""));
    assert_eq!(sandbox.skein(&["run", "list"]).code, 0);
    let key = configure(&sandbox, None, &["--model", "offline", "--key-stdin"], "x\n");
    assert!(key.code == 2 && key.stderr.contains("offline needs no key"), "{}", key.stderr);
}

#[test]
fn it_can_be_run_again_and_keeps_what_a_person_wrote() {
    let sandbox = Sandbox::new();
    let mine =
        "# mine\nversion: 1\napproval: ask # careful\nprofiles:\n  default:\n    processor: 'ollama:old' # slow\n";
    sandbox.write("config/config.yaml", mine);
    let args = ["--model", "ollama:new", "--agent", "coding", "--mode", "backend", "--no-test"];
    for _ in 0..2 {
        let said = configure(&sandbox, None, &args, "");
        assert_eq!(said.code, 0, "{}", said.stderr);
    }
    let now = read(sandbox.path("config/config.yaml"));
    for kept in ["# mine\n", "approval: ask # careful\n", "processor: \"ollama:new\" # slow\n"] {
        assert!(now.contains(kept), "{kept}: {now}");
    }
    assert!(now.contains("agent: \"coding\"") && now.contains("mode: \"backend\""), "{now}");
    assert_eq!(sandbox.skein(&["check", "-q"]).code, 0);
}

#[test]
fn another_agent_replaces_the_mode_of_the_profile() {
    let sandbox = Sandbox::new();
    for (agent, mode) in [("coding/backend", "backend"), ("goose", "assistant")] {
        let said = configure(&sandbox, None, &["--model", "offline", "--agent", agent, "--no-test", "--json"], "");
        assert_eq!(said.code, 0, "{}", said.stderr);
        let told: Value = serde_json::from_str(&said.stdout).unwrap();
        assert_eq!(told["mode"], mode);
        let now = read(sandbox.path("config/config.yaml"));
        assert!(now.contains(&format!("mode: \"{mode}\"")), "{now}");
        assert_eq!(sandbox.skein(&["check", "-q"]).code, 0, "{now}");
    }
}

#[test]
fn the_profile_of_the_flag_is_changed() {
    let sandbox = Sandbox::new();
    let mine = "version: 1\nprofiles:\n  default: {processor: 'ollama:mine'}\n  work: {processor: 'ollama:old'}\n";
    sandbox.write("config/config.yaml", mine);
    sandbox.write("project/own.yaml", "processor: ollama:old\n");
    let said = configure(&sandbox, None, &["--profile", "work", "--model", "ollama:new", "--no-test"], "");
    assert_eq!(said.code, 0, "{}", said.stderr);
    let now = read(sandbox.path("config/config.yaml"));
    assert_eq!(now, mine.replace("'ollama:old'", "\"ollama:new\""));
    for (profile, expected) in [("wrk", "there is no profile `wrk`"), ("own.yaml", "is not in your config.yaml")] {
        let said = configure(&sandbox, None, &["--profile", profile, "--model", "ollama:new", "--no-test"], "");
        assert!(said.code == 2 && said.stderr.contains(expected), "{}", said.stderr);
        assert_eq!(read(sandbox.path("config/config.yaml")), now);
    }
    // Without flags it would ask, which needs a terminal.
    let said = configure(&sandbox.with("SKEIN_PROFILE", "own.yaml"), None, &[], "");
    assert!(said.stderr.contains("is not in your config.yaml"), "{}", said.stderr);
    assert!(said.code == 2 && said.stderr.contains("SKEIN_PROFILE"), "{}", said.stderr);
}

#[test]
fn models_that_replace_the_main_one_stay() {
    let sandbox = Sandbox::new();
    let mine = "version: 1\nprofiles:\n  default:\n    processor: ['ollama:first', 'ollama:second'] # both\n";
    sandbox.write("config/config.yaml", mine);
    let said = configure(&sandbox, None, &["--agent", "coding", "--no-test"], "");
    assert_eq!(said.code, 0, "{}", said.stderr);
    let now = read(sandbox.path("config/config.yaml"));
    assert_eq!(now, mine.replace("    processor", "    agent: \"coding\"\n    processor"));
    let said = configure(&sandbox, None, &["--model", "ollama:new", "--no-test"], "");
    assert_eq!(said.code, 1, "{}", said.stdout);
    let advice = "processor:\n      - \"ollama:new\"\n      - \"ollama:second\"";
    assert!(said.stderr.contains(advice), "{}", said.stderr);
    assert_eq!(read(sandbox.path("config/config.yaml")), now);
}

#[test]
fn advice_for_a_json_config_is_json() {
    let sandbox = Sandbox::new();
    let mine = r#"{"version": 1, "profiles": {"default": {"processor": "ollama:mine"}}}"#;
    sandbox.write("config/config.json", mine);
    let said = configure(&sandbox, None, &["--agent", "coding/qa", "--no-test"], "");
    assert_eq!(said.code, 1, "{}", said.stdout);
    let (_, advice) = said.stderr.split_once("write into it:").unwrap();
    let advice: Value = serde_json::from_str(advice).unwrap_or_else(|_| panic!("{advice}"));
    assert_eq!(advice, serde_json::json!({"profiles": {"default": {"agent": "coding", "mode": "qa"}}}));
    assert_eq!(read(sandbox.path("config/config.json")), mine);
    let same = configure(&sandbox, None, &["--model", "ollama:mine", "--no-test"], "");
    assert_eq!(same.code, 0, "{}", same.stderr);
    assert_eq!(read(sandbox.path("config/config.json")), mine);
}

#[test]
fn values_that_would_make_the_config_wrong_are_refused() {
    let sandbox = Sandbox::new();
    let mine = "version: 1\nprofiles: {default: {processor: 'openai:mine'}}\n";
    sandbox.write("config/config.yaml", mine);
    let said = configure(&sandbox, None, &["--model", "openai:new", "--key-env", "not-a-name", "--no-test"], "");
    assert_eq!(said.code, 2, "{}", said.stdout);
    assert!(said.stderr.contains("error[E") && said.stderr.contains("nothing was changed"), "{}", said.stderr);
    assert_eq!(read(sandbox.path("config/config.yaml")), mine);
}

#[test]
fn unsafe_config_edit_is_skipped_and_the_text_to_add_is_shown() {
    let sandbox = Sandbox::new();
    let mine = "version: 1\nprofiles:\n  a: &x {processor: 'ollama:a'}\n  default: *x\n";
    sandbox.write("config/config.yaml", mine);
    let said = configure(&sandbox, None, &["--model", "ollama:new", "--no-test"], "");
    assert_eq!(said.code, 1);
    assert!(said.stderr.contains("processor: \"ollama:new\""), "{}", said.stderr);
    assert_eq!(read(sandbox.path("config/config.yaml")), mine);
}

#[test]
fn the_key_may_stay_in_a_variable_of_another_name() {
    let sandbox = Sandbox::new().with("MY_OWN_KEY", "x");
    let args = ["--model", "openai:some", "--key-env", "MY_OWN_KEY", "--no-test"];
    assert_eq!(configure(&sandbox, None, &args, "").code, 0);
    let config = read(sandbox.path("config/config.yaml"));
    assert!(config.contains("key: \"MY_OWN_KEY\""), "{config}");
    assert_eq!(sandbox.skein(&["doctor"]).code, 0, "{}", sandbox.skein(&["doctor"]).stdout);
}

#[test]
fn ctrl_c_at_the_key_question_leaves_the_terminal_as_it_was() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let terminal = Terminal::start(&sandbox, None, (100, 30), &["configure"]);
    terminal.shows("Provider");
    terminal.type_line("openai:scripted");
    terminal.shows("Key for openai");
    terminal.type_in(KEY);
    terminal.press(&["C-c"]);
    terminal.shows("[exit 130]");
    // The shell that started the program shows what is typed.
    terminal.type_in("shown again");
    terminal.shows("shown again");
    assert!(!terminal.whole().contains(KEY), "{}", terminal.whole());
    assert!(holding_the_key(&sandbox).is_empty() && !sandbox.path("config/config.yaml").exists());
}

#[test]
fn a_key_that_is_typed_can_be_corrected_and_is_hidden() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let terminal = Terminal::start(&sandbox, None, (100, 30), &["configure", "--no-test"]);
    terminal.shows("Provider");
    terminal.type_line("openai:scripted");
    terminal.shows("Key for openai");
    terminal.type_in("wrong");
    terminal.press(&["C-u"]);
    terminal.type_in(&format!("{KEY}x"));
    terminal.press(&["BSpace", "Enter"]);
    terminal.shows("Agent to begin with");
    terminal.press(&["Enter"]);
    terminal.shows("[exit 0]");
    assert!(!terminal.whole().contains(KEY), "{}", terminal.whole());
    assert_eq!(holding_the_key(&sandbox), ["keys.json"]);
    assert!(!read(sandbox.path("config/keys.json")).contains(&format!("{KEY}x")));
}

#[test]
fn a_model_that_only_the_project_has_is_written() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let config = "version: 1\nprofile: own\nprofiles: {own: {processor: 'openai:scripted'}}\n";
    sandbox.write("project/.skein/config.yaml", config);
    assert_eq!(sandbox.skein(&["trust", "--yes"]).code, 0);
    let terminal = Terminal::start(&sandbox, None, (100, 30), &["configure", "--no-test"]);
    for question in ["Provider [openai]", "Model [scripted]", "Key for openai", "Agent to begin with"] {
        terminal.shows(question);
        terminal.press(&["Enter"]);
    }
    terminal.shows("sessions begin with openai:scripted");
    terminal.shows("[exit 0]");
    let now = read(sandbox.path("config/config.yaml"));
    assert!(now.contains("processor: \"openai:scripted\""), "{now}");
}

#[test]
fn key_stdin_at_a_terminal_asks_and_hides_the_key() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let args = ["configure", "--provider", "openai", "--model", "scripted", "--key-stdin", "--no-test"];
    let terminal =
        Terminal::start_redirected(&sandbox, None, (100, 30), &[&args[..], &["--json"]].concat(), ">out.json");
    terminal.shows("Key for openai (not shown):");
    terminal.type_line(KEY);
    terminal.shows("[exit 0]");
    assert!(!terminal.whole().contains(KEY), "{}", terminal.whole());
    assert_eq!(holding_the_key(&sandbox), ["keys.json"]);
    let told: Value = serde_json::from_str(&read(sandbox.path("project/out.json"))).unwrap();
    assert_eq!(told["model"], "openai:scripted");
    let terminal = Terminal::start(&sandbox, None, (100, 30), &args);
    terminal.shows("Key for openai (not shown):");
    terminal.press(&["C-d"]);
    terminal.shows("no key came from stdin");
    terminal.shows("[exit 2]");
}

#[test]
fn without_a_terminal_nothing_is_asked_and_the_flags_are_named() {
    let sandbox = Sandbox::new();
    for command in [&["configure"][..], &["acp", "--setup"]] {
        let run = sandbox.skein(command);
        assert_eq!(run.code, 2, "{}", run.whole());
        assert!(run.stderr.contains("no terminal") && run.stderr.contains("--key-stdin"), "{}", run.stderr);
    }
}

#[test]
fn unset_variable_is_reported_before_anything_is_written() {
    let sandbox = Sandbox::new();
    let args = ["--model", "openai:some", "--key-env", "NOT_SET_ANYWHERE"];
    let said = configure(&sandbox, None, &args, "");
    assert_eq!(said.code, 2, "{}", said.stdout);
    assert!(
        said.stderr.contains("NOT_SET_ANYWHERE is not set") && said.stderr.contains("--no-test"),
        "{}",
        said.stderr
    );
    assert!(!sandbox.path("config/config.yaml").exists());
    let said = configure(&sandbox, None, &[&args[..], &["--no-test"]].concat(), "");
    assert!(said.code == 0 && said.stdout.contains("set NOT_SET_ANYWHERE"), "{}{}", said.stdout, said.stderr);
}

#[test]
fn a_server_that_is_not_there_is_called_that() {
    let sandbox = Sandbox::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}/v1/", listener.local_addr().unwrap());
    drop(listener);
    let said = configure(&sandbox, Some(&base), &["--model", "openai:some", "--key-stdin"], &format!("{KEY}\n"));
    assert_eq!(said.code, 1, "{}", said.stdout);
    assert!(said.stderr.contains("cannot be reached") && said.stderr.contains("Connection refused"), "{}", said.stderr);
}

#[test]
fn what_there_is_not_is_refused() {
    let sandbox = Sandbox::new();
    for (args, expected) in [
        (&["--model", "nobody:x", "--no-test"][..], "there is no provider `nobody`"),
        (&["--provider", "openai", "--no-test"], "no model is named"),
        (&["--provider", "nope", "--no-test"], "there is no provider `nope`"),
        (&["--model", "gpt-4", "--no-test"], "`gpt-4` has no provider"),
        (&["--model", "openai", "--no-test"], "`openai` is a provider, and no model is named"),
        (&["--model", "ollama:x", "--agent", "nobody", "--no-test"], "nobody"),
        (&["--model", "ollama:x", "--key-stdin", "--no-test"], "needs no key"),
    ] {
        let said = configure(&sandbox, None, args, "");
        assert_eq!(said.code, 2, "{args:?}: {}", said.stderr);
        assert!(said.stderr.contains(expected), "{}", said.stderr);
    }
    assert!(!sandbox.path("config/config.yaml").exists());
}

#[test]
fn a_change_of_keys_waits_for_another_process() {
    let sandbox = Sandbox::new();
    sandbox.write("config/keys.json", "{\"ANTHROPIC_API_KEY\": \"kept\"}");
    let keys = sandbox.path("config/keys.json");
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).unwrap();
    sandbox.write("data/state/logins/ALL.lock", "");
    let store = ["--model", "openai:some", "--key-stdin", "--no-test"];
    for (args, has_key) in [(&store[..], true), (&["--forget-key", "openai"], false)] {
        let before = read(&keys);
        let lock = std::fs::File::options().write(true).open(sandbox.path("data/state/logins/ALL.lock")).unwrap();
        lock.lock().unwrap();
        std::thread::scope(|scope| {
            let change = scope.spawn(|| configure(&sandbox, None, args, &format!("{KEY}\n")));
            std::thread::sleep(std::time::Duration::from_secs(2));
            assert!(!change.is_finished() && read(&keys) == before, "{args:?}");
            drop(lock);
            let said = change.join().unwrap();
            assert_eq!(said.code, 0, "{}", said.stderr);
        });
        let after: Value = serde_json::from_str(&read(&keys)).unwrap();
        assert_eq!(after["ANTHROPIC_API_KEY"], "kept");
        assert_eq!(after["OPENAI_API_KEY"] == KEY, has_key, "{args:?}");
    }
}

#[test]
fn an_agent_alone_keeps_offline() {
    let sandbox = Sandbox::new();
    let said = configure(&sandbox, None, &["--agent", "coding/backend"], "");
    assert_eq!(said.code, 0, "{}", said.stderr);
    let config = read(sandbox.path("config/config.yaml"));
    assert!(config.contains("coding") && config.contains("backend") && !config.contains("processor"), "{config}");
    assert_eq!(sandbox.skein(&["run", "list"]).code, 0);
}

#[test]
fn a_path_is_printed_without_invisible_characters() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["configure", "--model", "offline", "--no-test"]);
    let output = command.env("SKEIN_CONFIG_DIR", sandbox.path("con\u{202e}fig")).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains("sessions begin with offline") && !stdout.contains('\u{202e}'), "{stdout:?}");
}
