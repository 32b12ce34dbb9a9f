//! `skein chat` on a real screen, which tmux draws, with a scripted model over HTTP.

use std::sync::{Arc, Mutex, mpsc};

use serde_json::{Value, json};

use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::outside::{manifest, mode};
use crate::support::peers::echo;
use crate::support::tmux::{Terminal, eventually};
use crate::support::{Sandbox, full_tests, read, repository, servers};

const SIZE: (u16, u16) = (80, 40);
/// Stands below every turn that ended.
const TOOK: &str = "out · openai";
/// Stands below a question as soon as a key answers it.
const OFFERED: &str = "y yes · n no";

fn says(text: &str) -> Answer {
    Answer::Says(text.split_inclusive(' ').map(str::to_owned).collect())
}

fn calls(tool: &'static str, arguments: Value) -> Answer {
    Answer::Calls { id: "c1", tool, arguments }
}

/// A model that runs this command when it is asked anything, and then says that it has.
fn runs(command: &'static str) -> ScriptedModel {
    ScriptedModel::new(move |request| {
        if has_result(request) {
            says("I have seen it.")
        } else {
            calls("developer__shell", json!({"command": command}))
        }
    })
}

fn talking(sandbox: &Sandbox, model: &ScriptedModel, size: (u16, u16), more: &[&str]) -> Terminal {
    let mut args = vec!["chat"];
    // With a model, the default is `orchestrator/auto`; most tests are about one mode.
    if !more.iter().any(|arg| ["-a", "-c", "--continue", "--resume"].contains(arg)) {
        args.extend(["-a", "goose"]);
    }
    args.extend(more);
    let terminal = Terminal::start(sandbox, Some(model), size, &args);
    terminal.shows("›");
    terminal
}

/// The first screen in docs/chat.md, as the program shows it. How long it took depends on the machine.
#[test]
fn the_screen_in_the_docs_is_what_is_shown() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.write("project/greet.py", "import sys\nprint('hello')\n");
    let model = ScriptedModel::new(|request| {
        let results =
            request["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "tool").count();
        let edits = json!([{"before": "print('hello')", "after": "print('hello', sys.argv[1])"}]);
        match results {
            0 => Answer::SaysAndCalls {
                text: "I look at the file first.",
                tool: "developer__read_file",
                arguments: json!({"path": "greet.py"}),
            },
            1 => Answer::Calls {
                id: "c2",
                tool: "developer__edit_file",
                arguments: json!({"path": "greet.py", "edits": edits}),
            },
            _ => says("**Done.** Run it with a name: `python3 greet.py Ann`"),
        }
    });
    let terminal = talking(&sandbox, &model, SIZE, &["-a", "coding", "-m", "backend"]);
    terminal.enter("make it greet by name");
    terminal.shows(OFFERED);
    terminal.press(&["y"]);
    terminal.shows(TOOK);
    terminal.shows_times("›", 2);
    let timeless = |text: &str| {
        let lines = text.trim_end().lines().map(|line| match line.split_once(" s · ") {
            Some((before, rest)) if before.parse::<f64>().is_ok() => format!("[time] · {rest}"),
            _ => line.trim_end().to_owned(),
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    let document = read(repository("docs/chat.md"));
    let documented = document.split("```text screen\n").nth(1).unwrap().split("\n```\n\nThe screen").next().unwrap();
    assert_eq!(timeless(&terminal.screen()), timeless(documented));
}

/// From the line on in which `from` stands, as far as something is there.
fn part(screen: &str, from: &str) -> String {
    let lines: Vec<_> = screen.lines().map(str::trim_end).skip_while(|line| !line.contains(from)).collect();
    lines.join("\n").trim_end().to_owned()
}

#[test]
fn it_needs_a_terminal() {
    let run = Sandbox::new().skein(&["chat"]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("stdin is no terminal") && run.stderr.contains("skein run"), "{}", run.stderr);
}

#[test]
fn chat_refuses_a_stderr_that_shows_no_questions() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let terminal = Terminal::start_redirected(&sandbox, None, SIZE, &["chat"], "2>errors.txt");
    terminal.shows("[exit 2]");
    let errors = read(sandbox.path("project/errors.txt"));
    assert!(errors.contains("stderr is no terminal") && errors.contains("skein run"), "{errors}");
}

#[test]
fn unconfigured_chat_shows_what_is_active_and_what_to_type() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let terminal = Terminal::start(&sandbox, None, SIZE, &["chat"]);
    terminal.shows("›");
    let screen = terminal.screen();
    assert!(screen.contains("goose/assistant with developer, knowledge, memory, todo; model: offline"), "{screen}");
    assert!(screen.contains("list, read FILE, search TEXT, run COMMAND; /help"), "{screen}");
    assert!(screen.contains("`skein configure` for a model"), "{screen}");
    sandbox.write("project/a.txt", "alpha\n");
    terminal.enter("read a.txt");
    terminal.shows("● developer__read_file a.txt");
    terminal.waits_for_input();
    terminal.press(&["C-d"]);
    terminal.shows("[exit 0]");
}

const MARKDOWN: &str = "# A plan\n\nRead **all** of `src/main.rs`, then 日本語のテキスト and 👩‍👩‍👧 that are wrapped by columns.\n\n- one\n- two items that do not fit on the line of a narrow screen\n\n| what | cost |\n|---|--:|\n| reading | 2 |\n| writing it all down | 15 |\n\n```sh\ncargo test --all --quiet --locked --no-fail-fast\n```\n> quoted \u{1b}[31mred\u{7}\n";

#[test]
fn markdown_is_set_for_the_width_of_the_screen() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| says(MARKDOWN));
    let terminal = talking(&sandbox, &model, SIZE, &[]);
    terminal.enter("plan it");
    terminal.shows(TOOK);
    expect_test::expect![[r"
        A plan

        Read all of src/main.rs, then 日本語のテキスト and 👩‍👩‍👧 that are wrapped by
        columns.

        • one
        • two items that do not fit on the line of a narrow screen

        what                 cost
        ───────────────────  ────
        reading                 2
        writing it all down    15

        ```sh
        cargo test --all --quiet --locked --no-fail-fast
        ```
        │ quoted �[31mred�"]]
    .assert_eq(part(&terminal.screen(), "A plan").split("\n\n0.").next().unwrap());
    assert!(terminal.styled().contains("\u{1b}[1mall"), "bold is bold: {}", terminal.styled());
}

#[test]
fn a_narrow_screen_hangs_and_wraps_wide_characters_at_its_edge() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| {
        says("x日本語の長い文章は、二列ずつ数えて折り返します。\n- 項目も同じように折り返して字下げします\n")
    });
    let terminal = talking(&sandbox, &model, (26, 30), &[]);
    terminal.enter("go");
    terminal.shows(TOOK);
    expect_test::expect![[r"
        x日本語の長い文章は、二列
        ずつ数えて折り返します。
        • 項目も同じように折り返し
          て字下げします"]]
    .assert_eq(part(&terminal.screen(), "x日").split("\n\n0.").next().unwrap());
}

#[test]
fn resize_during_an_answer_rewraps_the_rest() {
    if !full_tests() {
        return;
    }
    let (go, wait) = mpsc::channel();
    let wait = Arc::new(Mutex::new(wait));
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(move |_| Answer::Paced {
        pieces: vec!["one two three ".into(), "four five six seven eight nine ten eleven twelve thirteen ".into()],
        go: Arc::clone(&wait),
    });
    let terminal = talking(&sandbox, &model, (60, 20), &[]);
    terminal.enter("count");
    terminal.shows("one two three");
    terminal.resize(30, 20);
    go.send(()).unwrap();
    terminal.shows(" 7 out");
    let screen = part(&terminal.screen(), "one two");
    assert!(
        screen.starts_with("one two three four five six\nseven eight nine ten eleven\ntwelve thirteen\n"),
        "{screen}"
    );
}

#[test]
fn calls_are_folded_and_can_be_unfolded() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = runs("seq 1 30; echo \u{1b}[2Jend");
    let terminal = talking(&sandbox, &model, SIZE, &["--approval", "auto"]);
    terminal.enter("count");
    terminal.shows(TOOK);
    let screen = terminal.screen();
    assert!(screen.contains("● developer__shell seq 1 30; echo"), "{screen}");
    assert!(screen.contains("lines · /show 1"), "{screen}");
    assert!(!screen.contains("29\n"), "{screen}");
    terminal.enter("/show 1");
    terminal.shows("\u{FFFD}[2Jend");
    terminal.shows("29\n30\n");
    terminal.enter("/show 7");
    terminal.shows("there is no such call here");
}

#[test]
fn an_edit_is_shown_as_a_diff_and_undo_takes_it_back() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.write("project/greet.py", "import sys\nprint('hello')\n");
    let model = ScriptedModel::new(|request| match (asked(request).contains("greet"), has_result(request)) {
        (true, false) => calls(
            "developer__write_file",
            json!({"path": "greet.py", "content": "import sys\nprint('hello', sys.argv[1])\n", "overwrite": true}),
        ),
        _ => says("Done."),
    });
    let terminal = talking(&sandbox, &model, SIZE, &["-a", "coding", "-m", "backend", "--approval", "auto"]);
    terminal.enter("hello");
    terminal.shows(TOOK);
    terminal.enter("greet by name");
    terminal.shows_times(TOOK, 2);
    let screen = terminal.whole();
    for expected in
        ["● developer__write_file greet.py  +1 -1", "   2 - print('hello')", "   2 + print('hello', sys.argv[1])"]
    {
        assert!(screen.contains(expected), "{expected}: {screen}");
    }
    assert!(terminal.styled().contains("\u{1b}[32m+ print"), "{}", terminal.styled());
    let before = model.requests().len();
    terminal.enter("/undo");
    terminal.shows("Put this file back as before? y yes · n no");
    terminal.press(&["y"]);
    terminal.shows("→ yes");
    eventually("the file is as before", || read(sandbox.path("project/greet.py")) == "import sys\nprint('hello')\n");
    // The prompt stands there again, to be edited.
    terminal.shows_times("› greet by name", 2);
    terminal.press(&["C-c"]);
    // The line editor drops what comes in one go with Ctrl-C.
    terminal.shows_times("›", 5);
    terminal.enter("and now?");
    terminal.shows_times(TOOK, 3);
    let last = model.requests().pop().unwrap();
    assert!(model.requests().len() > before && !last.to_string().contains("greet by name"), "{last}");
    assert!(last.to_string().contains("hello"), "{last}");
    let shown = sandbox.skein(&["sessions", "list", "--json"]).json()[0]["id"].as_str().unwrap().to_owned();
    let shown = sandbox.skein(&["sessions", "show", &shown]).stdout;
    assert!(shown.contains("greet by name") && shown.contains("were undone"), "{shown}");
}

/// A recipe of a project that nobody trusts is a command, and `/undo` puts its text on the line.
#[test]
fn undo_sends_no_control_characters_to_the_terminal() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.write(
        "project/.goose/recipes/evil.yaml",
        "version: 1.0.0\ntitle: Evil\ndescription: x\nprompt: \"SAY x \\e]0;PWNED\\a \\e[31mred \\e[2J end\"\n",
    );
    let model = ScriptedModel::new(|_| says("Fine."));
    let terminal = talking(&sandbox, &model, SIZE, &[]);
    let copy = sandbox.path("copy");
    terminal.copy_output(&copy);
    terminal.enter("/evil");
    terminal.shows(TOOK);
    terminal.enter("/undo");
    terminal.shows("SAY x \u{FFFD}]0;PWNED\u{FFFD} \u{FFFD}[31mred \u{FFFD}[2J end");
    terminal.press(&["Enter"]);
    terminal.shows_times(TOOK, 2);
    // The arrow brings it back from the history.
    terminal.waits_for_input();
    terminal.press(&["Up"]);
    terminal.shows_times("SAY x \u{FFFD}]0;PWNED", 2);
    let sent = read(&copy);
    assert!(sent.contains("]0;PWNED"), "{sent:?}");
    assert!(!sent.contains("\u{1b}]0;PWNED") && !sent.contains("\u{1b}[2J"), "{sent:?}");
    assert!(!read(sandbox.path("data/chat_history")).contains("u001b"));
}

#[test]
fn one_key_answers_a_question() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = runs("echo ran >> log.txt");
    let terminal = talking(&sandbox, &model, SIZE, &["--approval", "ask"]);
    let log = || std::fs::read_to_string(sandbox.path("project/log.txt")).unwrap_or_default().lines().count();
    terminal.enter("run it");
    terminal.shows("wants to run:");
    terminal.shows("    echo ran >> log.txt");
    terminal.shows_times(OFFERED, 1);
    terminal.press(&["x"]);
    terminal.shows_times(OFFERED, 2);
    terminal.press(&["Enter"]);
    terminal.shows_times(OFFERED, 3);
    terminal.press(&["n"]);
    terminal.shows("→ no");
    terminal.shows("✗ developer__shell echo ran");
    terminal.shows("the user refused");
    assert_eq!(log(), 0);
    terminal.enter("again");
    terminal.shows_times(OFFERED, 4);
    terminal.press(&["y"]);
    terminal.shows_times(TOOK, 2);
    assert_eq!(log(), 1);
    terminal.enter("again");
    terminal.shows_times(OFFERED, 5);
    terminal.press(&["a"]);
    terminal.shows_times(TOOK, 3);
    terminal.enter("again");
    terminal.shows_times(TOOK, 4);
    assert_eq!(log(), 3);
    assert!(!sandbox.path("config/config.yaml").exists());
}

#[test]
fn typed_or_pasted_words_are_no_answer_and_are_returned() {
    if !full_tests() {
        return;
    }
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(move |request| {
        if has_result(request) {
            return says("I have seen it.");
        }
        wait.lock().unwrap().recv().unwrap();
        calls("developer__shell", json!({"command": "echo ran >> log.txt"}))
    });
    let terminal = talking(&sandbox, &model, SIZE, &["--approval", "ask"]);
    terminal.enter("run it");
    eventually("the model is asked", || !model.requests().is_empty());
    terminal.type_in("please st");
    go.send(()).unwrap();
    terminal.shows_times(OFFERED, 1);
    terminal.type_in("ay away");
    terminal.shows_times(OFFERED, 2);
    assert!(!terminal.screen().contains('→'), "{}", terminal.screen());
    terminal.press(&["n"]);
    terminal.shows("→ no");
    terminal.shows("› please stay away");
    assert!(!sandbox.path("project/log.txt").exists());
}

#[test]
fn ctrl_z_does_not_stop_it_at_the_prompt_or_in_a_turn() {
    if !full_tests() {
        return;
    }
    let (go, wait) = mpsc::channel();
    let wait = Arc::new(Mutex::new(wait));
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(move |_| Answer::Paced {
        pieces: vec!["One ".into(), "two.".into()],
        go: Arc::clone(&wait),
    });
    let terminal = talking(&sandbox, &model, SIZE, &[]);
    terminal.waits_for_input();
    terminal.press(&["C-z"]);
    terminal.enter("count");
    terminal.shows("One");
    // Where it stops a program, what was typed before it is lost.
    terminal.press(&["a", "b", "C-z", "c", "d"]);
    go.send(()).unwrap();
    terminal.shows("› abcd");
}

#[test]
fn undo_skips_a_file_that_changes_during_its_question() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| {
        match request["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "tool").count() {
            0 => calls("developer__write_file", json!({"path": "new.txt", "content": "made\n"})),
            1 => Answer::Calls { id: "c2", tool: "developer__shell", arguments: json!({"command": "echo once"}) },
            _ => says("Done."),
        }
    });
    let terminal = talking(&sandbox, &model, SIZE, &["-a", "coding", "-m", "backend", "--approval", "auto"]);
    terminal.enter("make it");
    terminal.shows(TOOK);
    terminal.enter("/undo");
    terminal.shows(OFFERED);
    sandbox.write("project/new.txt", "my own work\n");
    terminal.press(&["y"]);
    terminal.shows("new.txt has changed since and stays as it is");
    terminal.shows("what these calls did elsewhere stays done: developer__shell echo once\n");
    assert_eq!(read(sandbox.path("project/new.txt")), "my own work\n");
}

#[test]
fn ctrl_c_at_the_file_question_cancels_the_whole_undo() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| match (asked(request).contains("make it"), has_result(request)) {
        (true, false) => calls("developer__write_file", json!({"path": "new.txt", "content": "made\n"})),
        _ => says("Done."),
    });
    let terminal = talking(&sandbox, &model, SIZE, &["-a", "coding", "-m", "backend", "--approval", "auto"]);
    terminal.enter("make it");
    terminal.shows(TOOK);
    terminal.enter("/undo");
    terminal.shows_times(OFFERED, 1);
    terminal.press(&["C-c"]);
    terminal.shows("cancelled; nothing was changed");
    assert_eq!(read(sandbox.path("project/new.txt")), "made\n");
    terminal.enter("and now?");
    terminal.shows_times(TOOK, 2);
    let last = model.requests().pop().unwrap().to_string();
    assert!(last.contains("make it") && last.contains("and now?"), "{last}");
    assert!(!terminal.whole().contains("undone"), "{}", terminal.whole());
}

#[test]
fn without_a_model_tools_are_called_by_name() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "alpha\n");
    let terminal = Terminal::start(&sandbox, None, SIZE, &["chat"]);
    terminal.shows("›");
    terminal.enter(r#"/developer.read_file {"path": "a.txt"}"#);
    terminal.shows("● developer__read_file a.txt");
    terminal.enter("/developer__list_dir .");
    terminal.shows("● developer__list_dir");
    terminal.enter("/nothing");
    terminal.shows("there is no /nothing");
}

#[test]
fn a_session_in_which_nothing_was_said_is_not_kept() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| says("Fine."));
    for leave in ["", "/new"] {
        let terminal = talking(&sandbox, &model, SIZE, &[]);
        if !leave.is_empty() {
            terminal.enter(leave);
            terminal.shows("a new session; the previous session has no messages");
            terminal.shows_times("›", 2);
        }
        terminal.waits_for_input();
        terminal.press(&["C-d"]);
        terminal.shows("[exit 0]");
        assert!(!terminal.whole().contains("continues this session"), "{}", terminal.whole());
    }
    assert_eq!(sandbox.skein(&["sessions", "list", "--json"]).json(), json!([]));
}

#[test]
fn errors_are_wrapped_by_words() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| says("Fine."));
    let terminal = talking(&sandbox, &model, (44, 30), &[]);
    terminal.enter("/xyzzy");
    terminal.shows("        model\n");
    expect_test::expect![[r"
        error: there is no /xyzzy
          help: /help lists the commands; with a
                space before it, it goes to the
                model"]]
    .assert_eq(part(&terminal.screen(), "error:").split("\n\n").next().unwrap());
}

#[test]
fn consent_for_the_project_is_kept_in_the_config() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = runs("touch made.txt");
    let terminal = talking(&sandbox, &model, SIZE, &["--approval", "ask"]);
    terminal.enter("run it");
    terminal.shows("p always in project");
    terminal.press(&["p"]);
    terminal.shows("kept in your config");
    terminal.shows(TOOK);
    assert!(read(sandbox.path("config/config.yaml")).contains("touch made.txt"));
    terminal.waits_for_input();
    terminal.press(&["C-d"]);
    terminal.shows("[exit 0]");
}

#[test]
fn ctrl_c_cancels_a_turn_and_a_question_and_never_the_program() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| match asked(request) {
        text if text.contains("hang") => Answer::Hangs("I begin and "),
        text if text.contains("sleep") && !has_result(request) => {
            calls("developer__shell", json!({"command": "echo $$ > pid; exec sleep 1000"}))
        }
        _ => says("Fine."),
    });
    // In a sandbox the command would write another process id.
    let terminal = talking(&sandbox, &model, SIZE, &["--approval", "ask", "--sandbox", "off"]);
    terminal.waits_for_input();
    terminal.press(&["C-c"]);
    terminal.shows("Ctrl-D or /quit leaves");
    terminal.enter("hang");
    terminal.shows("I begin and");
    terminal.press(&["C-c"]);
    terminal.shows_times("cancelled", 1);
    terminal.enter("sleep");
    terminal.shows(OFFERED);
    terminal.press(&["C-c"]);
    terminal.shows_times("cancelled", 2);
    terminal.enter("sleep");
    terminal.shows_times(OFFERED, 2);
    terminal.press(&["y"]);
    eventually("the command runs", || {
        std::fs::read_to_string(sandbox.path("project/pid")).is_ok_and(|pid| pid.ends_with('\n'))
    });
    let pid = read(sandbox.path("project/pid"));
    terminal.press(&["C-c"]);
    terminal.shows_times("cancelled", 3);
    eventually("the command is gone", || !std::path::Path::new(&format!("/proc/{}", pid.trim())).exists());
    terminal.enter("and now?");
    terminal.shows("Fine.");
    terminal.enter("/quit");
    terminal.shows("[exit 0]");
}

#[test]
fn commands_switch_list_and_help() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| says("Fine."));
    let terminal = talking(&sandbox, &model, (80, 60), &["-a", "coding", "-m", "backend"]);
    for (line, expected) in [
        ("/mode", "\n● coding/backend "),
        ("/mode", "\n  coding/qa "),
        ("/mode qa", "coding/qa continues this session"),
        ("/mode goose/nobody", "has no mode `nobody`"),
        ("/mode goose", "goose/assistant continues this session"),
        ("/mode backend", "did you mean /mode coding/backend?"),
        ("/model", "● openai:scripted"),
        ("/model offline", "offline continues this session"),
        ("/model openai:scripted", "openai:scripted continues this session"),
        ("/model nobody:x", "error:"),
        ("/tools", "• developer__shell:"),
        ("/services", "developer      healthy"),
        ("/compact", "nothing was changed:"),
        ("/undo", "there is nothing left to undo"),
        ("/help", "Ctrl-D               leaves"),
        ("/tols", "did you mean /tools?"),
        ("/new", "a new session;"),
    ] {
        terminal.enter(line);
        terminal.shows(expected);
    }
    assert!(model.requests().is_empty(), "no command goes to the model");
    terminal.enter(" /etc is a folder");
    terminal.shows("Fine.");
    assert!(asked(&model.requests()[0]).contains("/etc is a folder"));
}

#[test]
fn approval_resources_and_exit_are_commands() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let notes = json!({"version": 1, "kind": "service", "name": "notes", "description": "Notes.",
        "transport": {"stdio": {"command": servers::mcp_echo(), "args": ["--resources"]}}});
    sandbox.write("config/services/notes.json", &notes.to_string());
    let model = ScriptedModel::new(|request| match has_result(request) {
        false if asked(request).contains("touch") => {
            calls("developer__write_file", json!({"path": "made.txt", "content": "x"}))
        }
        _ => says("Fine."),
    });
    let terminal = talking(&sandbox, &model, (100, 60), &[]);
    for (line, expected) in [
        ("/approval", "● ask "),
        ("/approval rad-only", "did you mean /approval read-only?"),
        ("/approval auto", "the approval level of this session is auto"),
        ("/resources", "echo://page"),
    ] {
        terminal.enter(line);
        terminal.shows(expected);
    }
    terminal.enter("touch it");
    terminal.shows(TOOK);
    assert!(sandbox.path("project/made.txt").exists(), "at `auto` nothing is asked");
    terminal.enter("use @echo://page now");
    terminal.shows_times(TOOK, 2);
    let sent = model.requests().last().unwrap()["messages"].to_string();
    assert!(sent.contains("the text of"), "{sent}");
    terminal.enter("/exit");
    terminal.shows("[exit 0]");
}

/// A mode without the service `knowledge` has skills and recipes as commands all the same.
#[test]
fn skills_and_recipes_are_commands_in_every_mode() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.write(
        "project/.agents/skills/review/SKILL.md",
        "---\nname: review\ndescription: Reviews a change.\n---\nLook at every line twice.\n",
    );
    sandbox.write(
        "project/.goose/recipes/weekly.yaml",
        "version: 1.0.0\ntitle: Weekly\ndescription: Sums up a week.\nprompt: Sum up the week of {{ team }}.\n\
         parameters: [{key: team, input_type: string, requirement: required, description: Who.}]\n",
    );
    let model = ScriptedModel::new(|_| says("Fine."));
    let terminal = talking(&sandbox, &model, (100, 60), &["-a", "goose/planner"]);
    terminal.enter("/help");
    terminal.shows("/weekly team");
    terminal.shows("/review");
    terminal.enter("/weekly");
    terminal.shows("/weekly needs these values");
    terminal.shows("team (text) ›");
    terminal.press(&["Escape"]);
    terminal.shows("/weekly needs `team`");
    terminal.enter("/weekly");
    terminal.shows_times("team (text) ›", 2);
    terminal.type_in("core");
    terminal.press(&["Enter"]);
    terminal.shows(TOOK);
    assert!(asked(&model.requests()[0]).contains("Sum up the week of core."), "{}", asked(&model.requests()[0]));
    terminal.enter("/review the last commit");
    terminal.shows_times(TOOK, 2);
    let sent = model.requests()[1]["messages"].to_string();
    assert!(sent.contains("Look at every line twice.") && sent.contains("the last commit"), "{sent}");
    terminal.enter("/revew");
    terminal.shows("did you mean /review?");
}

/// A recipe with a parameter that is asked for.
fn weekly(sandbox: &Sandbox) {
    sandbox.write(
        "project/.goose/recipes/weekly.yaml",
        "version: 1.0.0\ntitle: Weekly\ndescription: Sums up a week.\nprompt: Sum up the week of {{ team }}.\n\
         parameters: [{key: team, input_type: string, requirement: required, description: Who.}]\n",
    );
}

#[test]
fn a_form_refuses_several_pasted_lines() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    weekly(&sandbox);
    let model = ScriptedModel::new(|_| says("Fine."));
    let terminal = talking(&sandbox, &model, SIZE, &[]);
    terminal.enter("/weekly");
    terminal.shows("team (text) ›");
    terminal.paste(&format!("first team\n{}\nlast team\n", "x".repeat(600)));
    terminal.shows("this takes one line, and several came");
    terminal.shows_times("team (text) ›", 2);
    assert!(model.requests().is_empty());
    terminal.paste("core\n");
    terminal.shows(TOOK);
    assert!(asked(&model.requests()[0]).contains("Sum up the week of core."), "{}", asked(&model.requests()[0]));
}

#[test]
fn a_form_in_a_narrow_window_shows_its_line_once() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    weekly(&sandbox);
    let model = ScriptedModel::new(|_| says("Fine."));
    let terminal = talking(&sandbox, &model, (30, 30), &[]);
    terminal.enter("/weekly");
    terminal.shows("team (text) ›");
    for letter in "abcdefghij klmnopqrst uvwxyz".chars() {
        terminal.type_in(&letter.to_string());
    }
    terminal.shows("wxyz");
    terminal.press(&["BSpace"]);
    terminal.press(&["BSpace"]);
    terminal.press(&["BSpace"]);
    eventually("the letters are gone", || !terminal.whole().contains("wx"));
    assert_eq!(terminal.whole().matches("team (text) ›").count(), 1, "{}", terminal.whole());
    terminal.press(&["Enter"]);
    terminal.shows("tokens in");
    let asked = asked(&model.requests()[0]);
    assert!(asked.contains("Sum up the week of abcdefghij klmnopqrst uvw."), "{asked}");
}

#[test]
fn a_lesson_is_taught_and_checked_in_a_chat() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| says("Fine."));
    let terminal = talking(&sandbox, &model, (100, 60), &[]);
    terminal.enter("/help");
    terminal.shows("/tutorial [NAME [STEP]]");
    terminal.enter("/tutorial editor");
    terminal.shows("did you mean `editors`?");
    terminal.enter("/tutorial editors 2");
    terminal.shows("y answer · n decline");
    terminal.press(&["y"]);
    terminal.shows("is not done yet");
    terminal.shows("Step 2 of 3: Send the first message");
    assert_eq!(model.answered(), 0, "a lesson needs no model");
}

#[test]
fn help_lists_the_commands_of_an_external_agent() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.install(&manifest("echo", &echo(&["--commands"]), &[mode("default", json!([]), json!([]))]));
    let terminal = Terminal::start(&sandbox, None, (100, 60), &["chat", "-a", "echo"]);
    terminal.shows("›");
    terminal.enter("say ready");
    terminal.shows("ready\n");
    terminal.enter("/help");
    terminal.shows("/shout what");
    terminal.shows("Says it loud. (echo)");
}

#[test]
fn a_talk_is_made_shorter() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| {
        let long = "word ".repeat(2000);
        if asked(request).contains("more") { says(&long) } else { says("A summary.") }
    });
    let terminal = talking(&sandbox, &model, SIZE, &[]);
    for turn in 1..=4 {
        terminal.enter("more");
        terminal.shows_times(TOOK, turn);
    }
    terminal.enter("/compact");
    terminal.shows("messages in short from now on");
}

#[test]
fn text_of_many_lines_is_pasted_and_typed_as_one_prompt() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| says("Fine."));
    let terminal = talking(&sandbox, &model, SIZE, &[]);
    terminal.paste("first line\nsecond line\n");
    terminal.shows("second line");
    assert!(model.requests().is_empty(), "a paste sends nothing");
    terminal.type_line("third");
    terminal.shows(TOOK);
    assert!(asked(&model.requests()[0]).contains(r"first line\nsecond line\nthird"), "{:?}", model.requests()[0]);
    terminal.waits_for_input();
    terminal.press(&["a", "C-j", "b", "M-Enter", "c"]);
    terminal.type_line("\\");
    terminal.type_line("d");
    terminal.shows_times(TOOK, 2);
    assert!(asked(&model.requests()[1]).contains(r"a\nb\nc\nd"), "{:?}", model.requests()[1]);
    // The first line can still be changed.
    terminal.waits_for_input();
    terminal.type_line("ls \\");
    terminal.type_in("src");
    terminal.press(&["Up", "Home", "s", "u", "d", "o", "Space", "Enter"]);
    terminal.shows_times(TOOK, 3);
    assert!(asked(&model.requests()[2]).contains(r"sudo ls \nsrc"), "{:?}", model.requests()[2]);
    // A backslash of a pasted text stays; only Enter after one continues the input.
    terminal.waits_for_input();
    terminal.paste("docker run \\\n -it x");
    terminal.shows(" -it x");
    terminal.press(&["Enter"]);
    terminal.shows_times(TOOK, 4);
    assert!(asked(&model.requests()[3]).contains(r"docker run \\\n -it x"), "{:?}", model.requests()[3]);
    // The arrow brings it back, whole, also in a later session.
    terminal.waits_for_input();
    terminal.press(&["C-d"]);
    terminal.shows("[exit 0]");
    drop(terminal);
    let terminal = talking(&sandbox, &model, SIZE, &[]);
    terminal.waits_for_input();
    terminal.press(&["Up", "Enter"]);
    terminal.shows(TOOK);
    assert!(asked(&model.requests()[4]).contains(r"docker run \\\n -it x"), "{:?}", model.requests()[4]);
}

#[test]
fn commands_and_paths_are_completed() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.write("project/notes/todo.txt", "buy bread");
    let model = ScriptedModel::new(|_| says("Fine."));
    let terminal = talking(&sandbox, &model, SIZE, &[]);
    terminal.waits_for_input();
    terminal.press(&["/", "m", "o", "d", "e", "Space", "c", "o", "d", "Tab", "q", "Tab", "Enter"]);
    terminal.shows("coding/qa continues this session");
    terminal.waits_for_input();
    terminal.press(&["s", "e", "e", "Space", "@", "n", "Tab", "t", "Tab", "Enter"]);
    terminal.shows("Fine.");
    assert!(model.requests()[0].to_string().contains("buy bread"), "{}", model.requests()[0]);
}

#[test]
fn an_answer_that_breaks_off_goes_on_below_a_notice() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let tries = std::sync::atomic::AtomicUsize::new(0);
    let model = ScriptedModel::new(move |_| match tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
        0 => Answer::Breaks("The capital of France "),
        _ => says("is Paris."),
    });
    let terminal = talking(&sandbox, &model, SIZE, &[]);
    terminal.enter("capital?");
    terminal.shows(TOOK);
    let screen = terminal.whole();
    assert_eq!(screen.matches("capital of France").count(), 1, "{screen}");
    assert!(screen.contains("asking again") && screen.contains("Paris."), "{screen}");
}

#[test]
fn a_terminal_that_goes_away_leaves_a_session_to_go_on_with() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| match asked(request) {
        text if text.contains("hang") && !has_result(request) => {
            calls("developer__shell", json!({"command": "echo made > made.txt"}))
        }
        text if text.contains("hang") => Answer::Hangs("Now I wait "),
        _ => says("We were **waiting**."),
    });
    let terminal = talking(&sandbox, &model, SIZE, &["--approval", "auto"]);
    terminal.enter("hang on");
    terminal.shows("Now I wait");
    terminal.hang_up();
    eventually("the turn is stored", || {
        let found = sandbox.skein(&["sessions", "list", "--json"]).json();
        let id = found[0]["id"].as_str().unwrap_or_default().to_owned();
        sandbox.skein(&["sessions", "show", &id]).stdout.contains("cancelled")
    });
    let terminal = talking(&sandbox, &model, SIZE, &["-c"]);
    for expected in ["› hang on", "1 call", "Now I wait"] {
        terminal.shows(expected);
    }
    terminal.enter("where were we?");
    terminal.shows(TOOK);
    let last = model.requests().pop().unwrap().to_string();
    assert!(last.contains("hang on") && last.contains("made.txt"), "{last}");
}

#[test]
fn a_session_is_picked_from_those_of_the_folder() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| says("Fine."));
    let terminal = Terminal::start(&sandbox, Some(&model), SIZE, &["chat", "--resume"]);
    terminal.shows("no session was held in this folder yet");
    terminal.shows("[exit 4]");
    drop(terminal);
    for prompt in ["about apples", "about pears"] {
        let terminal = talking(&sandbox, &model, SIZE, &[prompt]);
        terminal.shows(TOOK);
        terminal.waits_for_input();
        terminal.press(&["C-d"]);
        terminal.shows("[exit 0]");
    }
    let terminal = Terminal::start(&sandbox, Some(&model), SIZE, &["chat", "--resume"]);
    terminal.shows("Which one?");
    let screen = terminal.screen();
    assert!(screen.contains("  1  about pears") && screen.contains("  2  about apples"), "{screen}");
    terminal.type_line("9");
    terminal.shows("from 1 to 2");
    terminal.type_line("2");
    terminal.shows("› about apples");
    terminal.enter("go on");
    terminal.shows(TOOK);
    let last = model.requests().pop().unwrap().to_string();
    assert!(last.contains("about apples") && !last.contains("about pears"), "{last}");
}

#[test]
fn no_colour_means_none() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new().with("NO_COLOR", "1");
    let model = ScriptedModel::new(|_| says("**bold** and `code`"));
    let terminal = talking(&sandbox, &model, SIZE, &[]);
    terminal.enter("go");
    terminal.shows(TOOK);
    assert!(!terminal.styled().contains('\u{1b}'), "{}", terminal.styled());
}
