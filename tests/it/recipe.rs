//! `skein run --recipe`: recipes as a user runs them, with a model that is scripted but reached over real HTTP, and with
//! real services.

use serde_json::{Value, json};

use crate::cli::code_blocks;
use crate::model::{Answer, Model, calls, says};
use crate::support::tmux::Terminal;
use crate::support::{Run, Sandbox, full_tests, servers};

const GREETING: &str = r#"
title: Greet
description: Greets somebody.
instructions: |
  Be {{ tone }}.
prompt: "Greet {{ who }}."
parameters:
  - {key: who, input_type: string, requirement: required, description: Whom to greet}
  - {key: tone, input_type: select, requirement: optional, description: How, options: [kind, brief], default: kind}
"#;

fn model(answers: &[&str]) -> Model {
    Model::new(answers.iter().map(|answer| Answer::Stream(says(answer))).collect())
}

/// All that the user said, in one text.
fn asked(model: &Model, index: usize) -> String {
    let request = model.request(index);
    let user = request["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "user");
    let text = |content: &Value| match content {
        Value::String(text) => text.clone(),
        other => {
            other.as_array().unwrap().iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
    };
    user.map(|message| text(&message["content"])).collect::<Vec<_>>().join("\n")
}

fn offered(model: &Model, index: usize) -> Vec<String> {
    let request = model.request(index);
    let tools = request["tools"].as_array().cloned().unwrap_or_default();
    tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap().to_owned()).collect()
}

/// What the model was told of its last call.
fn result(model: &Model, index: usize) -> String {
    let request = model.request(index);
    request["messages"].as_array().unwrap().last().unwrap()["content"].to_string()
}

fn with_extension(available: &str, more: &str) -> String {
    let echo = servers::mcp_echo();
    format!(
        "title: Echo\ndescription: Uses a server.\nprompt: Use it.\nextensions:\n  - {{type: stdio, name: words, cmd: {echo}, \
         available_tools: {available}{more}}}\n"
    )
}

#[test]
fn a_recipe_is_filled_in_and_its_answer_printed() {
    let sandbox = Sandbox::new();
    sandbox.write("project/greet.yaml", GREETING);
    let model = model(&["Good day, Ada."]);
    let run = model.run(&sandbox, &["--recipe", "greet.yaml", "--param", "who=Ada", "In French."]);
    assert_eq!((run.code, run.stdout.trim()), (0, "Good day, Ada."), "{}", run.whole());
    let asked = asked(&model, 0);
    assert!(asked.starts_with("Recipe: Greet\n\nBe kind.\n\nGreet Ada."), "{asked}");
    assert!(asked.trim_end().ends_with("In French."), "what is typed comes after it: {asked}");
    assert!(offered(&model, 0).contains(&"developer__shell".to_owned()), "it runs in goose/assistant");
    let listed = sandbox.skein(&["sessions", "list"]);
    assert!(listed.stdout.contains("Recipe: Greet"), "{}", listed.whole());
}

/// As goose's own programs write them.
#[test]
fn what_is_null_is_left_out() {
    let sandbox = Sandbox::new();
    let saved = json!({"version": "1.0.0", "title": "Saved", "description": "By a program.", "prompt": "Go.", "instructions": null,
        "context": null, "parameters": null, "sub_recipes": null, "retry": null, "author": {"contact": "me", "metadata": null},
        "extensions": [{"type": "builtin", "name": "developer", "display_name": "Developer", "timeout": 300, "bundled": null,
            "args": null, "envs": {}, "available_tools": []}],
        "response": {"json_schema": {"enum": ["yes", null]}}});
    sandbox.write("project/saved.json", &saved.to_string());
    let checked = sandbox.skein(&["check", "-q", "saved.json"]);
    assert_eq!((checked.code, checked.stderr.as_str()), (0, ""), "{}", checked.whole());
    let run = model(&["null"]).run(&sandbox, &["--recipe", "saved.json"]);
    assert_eq!((run.code, run.stdout.as_str()), (0, "null\n"), "{}", run.whole());
}

#[test]
fn everything_that_is_wrong_with_the_parameters_is_said_at_once() {
    let sandbox = Sandbox::new();
    sandbox.write("project/greet.yaml", GREETING);
    let run = sandbox.skein(&["run", "--recipe", "greet.yaml", "--param", "tone=loud", "--param", "wo=Ada"]);
    assert_eq!(run.code, 2, "{}", run.whole());
    for says in [
        "`wo` is no parameter of the recipe; did you mean `who`?",
        "the parameter `who` is missing: Whom to greet",
        "the parameter `tone` does not fit: \"loud\" is none of its options: kind, brief",
    ] {
        assert!(run.stderr.contains(says), "{says}: {}", run.stderr);
    }
    for (args, says) in [
        (vec!["--recipe", "none.yaml"], "cannot be read"),
        (vec!["--recipe", "greet.yaml", "--param", "who"], "KEY=VALUE"),
        (vec!["--recipe", "greet.yaml", "--param", "who=a", "--param", "who=b"], "given twice"),
        (vec!["--param", "who=a", "hello"], "--recipe"),
        (vec!["--recipe", "greet.yaml", "-c"], "cannot be used with"),
    ] {
        let run = sandbox.skein(&[&["run"], args.as_slice()].concat());
        assert_eq!((run.code, run.stderr.contains(says)), (2, true), "{args:?}: {}", run.whole());
    }
}

#[test]
fn a_parameter_of_the_type_file_is_the_text_of_the_file() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "project/sum.yaml",
        "title: Sum\ndescription: x\nprompt: \"Sum up: {{ text }} from {{ recipe_dir }}\"\nparameters:\n  - {key: text, input_type: file, \
         requirement: required, description: What}\n",
    );
    sandbox.write("project/notes.txt", "seven {{ geese }}");
    let model = model(&["ok"]);
    let run = model.run(&sandbox, &["--recipe", "sum.yaml", "--param", "text=notes.txt"]);
    assert_eq!(run.code, 0, "{}", run.whole());
    let asked = asked(&model, 0);
    assert!(asked.contains("Sum up: seven {{ geese }} from /") && asked.contains("/project"), "{asked}");
    for (value, says) in [("gone.txt", "cannot be read"), ("/dev/zero", "no regular file"), (".", "no regular file")] {
        let run = sandbox.skein(&["run", "--recipe", "sum.yaml", "--param", &format!("text={value}")]);
        assert_eq!((run.code, run.stderr.contains(says)), (2, true), "{}", run.whole());
    }
}

#[test]
fn at_a_terminal_missing_parameters_are_asked_for() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let asking = GREETING
        .replace("requirement: optional", "requirement: user_prompt")
        .replace("Greet {{ who }}.", "run echo {{ who }}-{{ tone }}");
    sandbox.write("project/greet.yaml", &asking.replace("instructions: |\n  Be {{ tone }}.\n", ""));
    let terminal = Terminal::start(&sandbox, None, (90, 24), &["run", "--approval", "auto", "--recipe", "greet.yaml"]);
    terminal.shows("who: Whom to greet:");
    terminal.type_line("Ada");
    terminal.shows("tone: How (kind, brief) [kind]:");
    terminal.press(&["Enter"]);
    terminal.shows("Ada-kind");
    terminal.shows("[exit 0]");
}

#[test]
fn the_services_of_a_recipe_are_consented_to_before_they_start() {
    let sandbox = Sandbox::new();
    let recipe = with_extension("[echo]", "");
    sandbox.write("project/echo.yaml", &recipe);
    let refused = sandbox.skein(&["run", "--recipe", "echo.yaml"]);
    assert_eq!(refused.code, 2, "{}", refused.whole());
    let (asks, runs) = ("echo.yaml asks Skein to use:", "service words runs: ");
    assert!(refused.stderr.contains(asks) && refused.stderr.contains(runs), "{}", refused.stderr);
    assert!(refused.stderr.contains("--allow-extensions"), "{}", refused.stderr);

    let allowed = model(&["ok"]);
    let run = allowed.run(&sandbox, &["--recipe", "echo.yaml", "--allow-extensions"]);
    assert_eq!((run.code, run.stderr.contains(asks)), (0, false), "{}", run.whole());
    assert!(offered(&allowed, 0).contains(&"words__echo".to_owned()), "{:?}", offered(&allowed, 0));

    // The user's own files, and those of a project that is trusted as it is.
    sandbox.write("config/recipes/echo.yaml", &recipe);
    sandbox.write("project/.skein/recipes/echo.yaml", &recipe);
    let own = sandbox.path("config/recipes/echo.yaml");
    let run = model(&["ok"]).run(&sandbox, &["--recipe", own.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{}", run.whole());
    let projects = ["--recipe", ".skein/recipes/echo.yaml"];
    assert_eq!(model(&[]).run(&sandbox, &projects).code, 2);
    assert_eq!(sandbox.skein(&["trust", "--yes"]).code, 0);
    assert_eq!(model(&["ok"]).run(&sandbox, &projects).code, 0);
    sandbox.write("project/.skein/recipes/other.yaml", "x: 1\n");
    assert_eq!(model(&[]).run(&sandbox, &projects).code, 2, "a change ends the trust");
}

#[test]
fn at_a_terminal_the_services_of_a_recipe_are_asked_about() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.write("project/echo.yaml", &with_extension("[echo]", "").replace("Use it.", "list"));
    for (answer, exit) in [("n", "[exit 2]"), ("y", "[exit 0]")] {
        let terminal = Terminal::start(&sandbox, None, (120, 30), &["run", "--recipe", "echo.yaml"]);
        terminal.shows("Use these services? [y/N]");
        terminal.type_line(answer);
        terminal.shows(exit);
    }
}

#[test]
fn recipe_service_has_only_its_listed_tools_and_variables() {
    let sandbox = Sandbox::new().with("TICKET", "t-42").with("OTHER", "o-43");
    sandbox.write("project/echo.yaml", &with_extension("[echo, env]", ", env_keys: [TICKET], envs: {COLOUR: red}"));
    let wish = Answer::Stream(calls("words__env", &json!({})));
    let sly = Answer::Stream(calls("words__add", &json!({"a": 1, "b": 2})));
    let model = Model::new(vec![wish, sly, Answer::Stream(says("done"))]);
    let run = model.run(&sandbox, &["--approval", "auto", "--recipe", "echo.yaml", "--allow-extensions"]);
    assert_eq!(run.code, 0, "{}", run.whole());
    let of_words: Vec<_> = offered(&model, 0).into_iter().filter(|name| name.starts_with("words__")).collect();
    assert_eq!(of_words, ["words__echo", "words__env"]);
    let environment = result(&model, 1);
    assert!(environment.contains("t-42") && environment.contains("red"), "{environment}");
    assert!(!environment.contains("o-43") && !environment.contains("marked-secret"), "{environment}");
    assert!(result(&model, 2).contains("there is no tool `words__add`"), "{}", result(&model, 2));
}

#[test]
fn missing_recipe_needs_are_reported_before_any_question() {
    let sandbox = Sandbox::new();
    let task = "title: x\ndescription: x\nprompt: Go.\n";
    let gone = format!("{task}extensions: [{{type: stdio, name: gone, cmd: /no/such/program}}]\n");
    for (recipe, args, code, says) in [
        (format!("{task}extensions: [{{type: builtin, name: autovisualiser}}]\n"), vec![], 2, "does not have"),
        (
            format!("{task}extensions: [{{type: sse, name: old, uri: \"http://127.0.0.1:1/\"}}]\n"),
            vec![],
            2,
            "`old` cannot be used",
        ),
        (
            format!("{task}retry: {{max_retries: 1, checks: [{{type: shell, command: ls}}]}}\n"),
            vec!["-m", "planner"],
            2,
            "has no shell",
        ),
        (with_extension("[]", ""), vec!["-m", "planner", "--allow-extensions"], 2, "takes no services from outside"),
        (gone, vec!["--allow-extensions"], 1, "the recipe's service `gone` is unavailable"),
        ("title: x\ndescription: x\ninstructions: Work.\n".to_owned(), vec![], 2, "the prompt is empty"),
        ("title: x\nprompt: Go.\n".to_owned(), vec![], 2, "the recipe is wrong"),
    ] {
        sandbox.write("project/r.yaml", &recipe);
        let model = model(&[]);
        let run = model.run(&sandbox, &[&["--recipe", "r.yaml"], args.as_slice()].concat());
        assert_eq!((run.code, run.stderr.contains(says), model.asked()), (code, true, 0), "{recipe}: {}", run.whole());
    }
}

/// Without `--model`.
fn with_its_own_model(model: &Model, sandbox: &Sandbox, args: &[&str]) -> Run {
    let mut command = sandbox.command(&[&["run"], args].concat());
    command.env("OPENAI_BASE_URL", &model.address).env("OPENAI_API_KEY", "a-key");
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
}

#[test]
fn recipe_settings_apply_unless_the_user_overrides_them() {
    let sandbox = Sandbox::new();
    let settings = |provider: &str| {
        format!(
            "title: x\ndescription: x\nprompt: Go.\nsettings: {{goose_provider: {provider}, goose_model: theirs, temperature: 0.1, \
             max_turns: 1}}\n"
        )
    };
    sandbox.write("project/r.yaml", &settings("openai"));
    let theirs = model(&["ok"]);
    let run = with_its_own_model(&theirs, &sandbox, &["--recipe", "r.yaml"]);
    assert_eq!((run.code, theirs.request(0)["model"].as_str()), (0, Some("theirs")), "{}", run.whole());
    assert!(run.stderr.contains("`temperature` is left out"), "{}", run.stderr);
    let ours = model(&["ok"]);
    let run = ours.run(&sandbox, &["--recipe", "r.yaml"]);
    assert_eq!((run.code, ours.request(0)["model"].as_str()), (0, Some("scripted")), "{}", run.whole());
    let busy = || {
        Model::new(vec![
            Answer::Stream(calls("developer__list_dir", &json!({"path": "."}))),
            Answer::Stream(says("ok")),
        ])
    };
    let (limited, free) = (busy(), busy());
    assert_eq!((limited.run(&sandbox, &["--recipe", "r.yaml"]).code, limited.asked()), (1, 1));
    assert_eq!((free.run(&sandbox, &["--recipe", "r.yaml", "--max-turns", "5"]).code, free.asked()), (0, 2));
    for provider in ["replay", "nobody"] {
        sandbox.write("project/r.yaml", &settings(provider));
        let run = with_its_own_model(&model(&[]), &sandbox, &["--recipe", "r.yaml"]);
        assert_eq!((run.code, run.stderr.contains("which is not known")), (2, true), "{}", run.whole());
    }
}

const COUNTING: &str = "title: Count\ndescription: Counts.\nprompt: Count the geese.\nresponse:\n  json_schema: {type: object, required: \
                        [geese], properties: {geese: {type: integer}}}\n";

#[test]
fn an_answer_with_a_schema_is_asked_for_until_it_fits() {
    let sandbox = Sandbox::new();
    sandbox.write("project/count.yaml", COUNTING);
    let model = model(&["There are seven.", "{\"geese\": \"seven\"}", "```json\n{\"geese\": 7}\n```"]);
    let run = model.run(&sandbox, &["--recipe", "count.yaml"]);
    let answer: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{}", run.whole()));
    assert_eq!((run.code, answer), (0, json!({"geese": 7})), "{}", run.whole());
    assert!(asked(&model, 0).contains("\"geese\""), "the model knows the schema: {}", asked(&model, 0));
    assert!(asked(&model, 1).contains("it is no JSON"), "{}", asked(&model, 1));
    assert!(asked(&model, 2).contains("is not of type \"integer\""), "{}", asked(&model, 2));
}

#[test]
fn an_answer_that_never_fits_is_no_answer() {
    let sandbox = Sandbox::new();
    sandbox.write("project/count.yaml", COUNTING);
    let stubborn = model(&["Seven."; 5]);
    let run = stubborn.run(&sandbox, &["--recipe", "count.yaml"]);
    assert_eq!((run.code, run.stdout.as_str(), stubborn.asked()), (1, "", 4), "{}", run.whole());
    assert!(run.stderr.contains("does not fit the recipe's `json_schema`"), "{}", run.stderr);
    let fits = model(&["{\"geese\": 7}"]);
    let run = fits.run(&sandbox, &["--recipe", "count.yaml", "--json"]);
    assert_eq!(run.json()["structured"], json!({"geese": 7}), "{}", run.whole());
}

const UNTIL_DONE: &str = "title: Make\ndescription: Makes a file.\nprompt: Make it.\nparameters: [{key: file, input_type: string, requirement: \
                          required, description: Which}]\nretry:\n  max_retries: 2\n  timeout_seconds: 20\n  checks: [{type: shell, command: \
                          \"test -f {{ file }}\"}]\n  on_failure: echo again >> tries\n";

#[test]
fn work_that_does_not_pass_its_checks_is_begun_anew() {
    let sandbox = Sandbox::new();
    sandbox.write("project/make.yaml", UNTIL_DONE);
    let made = Answer::Stream(calls("developer__shell", &json!({"command": "touch made"})));
    let model = Model::new(vec![Answer::Stream(says("I made it.")), made, Answer::Stream(says("Really made."))]);
    let args = ["--approval", "auto", "--recipe", "make.yaml", "--param", "file=made"];
    let run = model.run(&sandbox, &args);
    assert_eq!((run.code, run.stdout.trim()), (0, "Really made."), "{}", run.whole());
    assert!(!model.body(1).contains("I made it."), "it is a new session");
    assert_eq!(crate::support::read(sandbox.path("project/tries")), "again\n");
}

#[test]
fn work_that_never_passes_its_checks_fails_with_what_failed() {
    let sandbox = Sandbox::new();
    sandbox.write("project/make.yaml", UNTIL_DONE);
    let lazy = model(&["Done."; 4]);
    let run = lazy.run(&sandbox, &["--approval", "auto", "--recipe", "make.yaml", "--param", "file=made"]);
    assert_eq!((run.code, run.stdout.as_str(), lazy.asked()), (1, "", 3), "{}", run.whole());
    assert!(run.stderr.contains("the recipe's check failed: `test -f made`: [exit 1"), "{}", run.stderr);
}

#[test]
fn the_checks_of_a_recipe_need_consent_like_every_call() {
    let sandbox = Sandbox::new();
    sandbox.write("project/make.yaml", UNTIL_DONE);
    let unheard = model(&["Done."]);
    let run = unheard.run(&sandbox, &["--verify", "--recipe", "make.yaml", "--param", "file=made"]);
    assert_eq!((run.code, run.stdout.trim()), (5, "Done."), "nobody is there to be asked: {}", run.whole());
    assert_eq!(unheard.asked(), 1, "the judge is not asked about work that is not complete");
    assert!(run.stderr.contains("1 tool call was refused:\n  developer__shell {\"command\":"), "{}", run.whole());
    assert!(!sandbox.path("project/tries").exists());
    let unheard = model(&["Done."]);
    let run = unheard.run(&sandbox, &["--json", "--recipe", "make.yaml", "--param", "file=made"]);
    let report: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{}", run.whole()));
    assert_eq!((run.code, &report["text"]), (5, &json!("Done.")), "{}", run.whole());
    let error = report["error"].as_str().unwrap_or_default();
    assert!(error.contains("1 tool call was refused: developer__shell"), "{report}");
    assert_eq!(report["refused_calls"][0]["arguments"]["command"], "test -f made", "{report}");
}

#[test]
fn the_time_limit_of_a_run_also_ends_its_checks() {
    let sandbox = Sandbox::new();
    let recipe = |check: &str, on_failure: &str| {
        format!(
            "title: Wait\ndescription: Waits.\nprompt: Go.\nretry:\n  max_retries: 2\n  checks: [{{type: shell, command: \
             \"{check}\"}}]\n  on_failure: '{on_failure}'\n"
        )
    };
    for (check, on_failure, answer) in [("sleep 60", "true", "Done."), ("false", "sleep 60", "")] {
        sandbox.write("project/wait.yaml", &recipe(check, on_failure));
        let model = model(&["Done."]);
        let began = std::time::Instant::now();
        let run = model.run(&sandbox, &["--time-limit", "12s", "--approval", "auto", "--recipe", "wait.yaml"]);
        assert!(began.elapsed() < std::time::Duration::from_secs(50), "the command was ended");
        assert_eq!((run.code, run.stdout.trim()), (3, answer), "{}", run.whole());
        assert!(run.stderr.contains("the time limit was reached"), "{}", run.whole());
    }
}

#[test]
fn a_rejected_answer_is_not_printed_at_the_time_limit() {
    let sandbox = Sandbox::new();
    let recipe = "title: Count\ndescription: Counts.\nprompt: Go.\nresponse: {json_schema: {type: object}}\n";
    sandbox.write("project/count.yaml", recipe);
    let (_held, release) = std::sync::mpsc::channel();
    let model = Model::new(vec![Answer::Stream(says("no JSON")), Answer::Slow(says("{}"), release)]);
    let run = model.run(&sandbox, &["--time-limit", "12s", "--recipe", "count.yaml"]);
    assert_eq!((run.code, run.stdout.as_str(), model.asked()), (3, "", 2), "{}", run.whole());
}

#[test]
fn a_sub_recipe_is_a_tool_that_runs_in_a_session_of_its_own() {
    let sandbox = Sandbox::new();
    let main = "title: Report\ndescription: Reports.\nprompt: Report on {{ topic }}.\nparameters: [{key: topic, input_type: string, requirement: \
                required, description: What}]\nsub_recipes:\n  - {name: count, path: parts/count.yaml, values: {what: \"{{ topic }} birds\"}}\n";
    let part = "title: Count\ndescription: Counts birds.\nprompt: \"Count {{ what }} in {{ place }}.\"\nparameters:\n  - {key: what, input_type: \
                string, requirement: required, description: What}\n  - {key: place, input_type: string, requirement: required, description: \
                Where}\nresponse: {json_schema: {type: object, required: [n], properties: {n: {type: integer}}}}\n";
    sandbox.write("project/report.yaml", main);
    sandbox.write("project/parts/count.yaml", part);
    let wish = Answer::Stream(calls("subrecipe__count", &json!({"place": "the park"})));
    let model = Model::new(vec![wish, Answer::Stream(says("{\"n\": 3}")), Answer::Stream(says("Three birds."))]);
    let run = model.run(&sandbox, &["--recipe", "report.yaml", "--param", "topic=small"]);
    assert_eq!((run.code, run.stdout.trim()), (0, "Three birds."), "{}", run.whole());
    let tools = model.request(0)["tools"].clone();
    let tool = tools.as_array().unwrap().iter().find(|tool| tool["function"]["name"] == "subrecipe__count").unwrap();
    let parameters = &tool["function"]["parameters"];
    assert_eq!(parameters["required"], json!(["place"]), "what the recipe decides is not asked for: {tool}");
    assert!(parameters["properties"].get("what").is_none(), "{tool}");
    let child = asked(&model, 1);
    assert!(child.contains("Count small birds in the park.") && !child.contains("Report on"), "{child}");
    assert!(model.body(1).contains("goose/assistant"), "it has the mode of the whole");
    assert!(!offered(&model, 1).contains(&"subrecipe__count".to_owned()), "and its own tools");
    assert!(result(&model, 2).contains("\\\"n\\\":3"), "{}", result(&model, 2));
}

#[test]
fn a_sub_recipe_may_do_no_more_than_the_recipe_that_runs_it() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "project/main.yaml",
        "title: Main\ndescription: x\nprompt: Go.\nsub_recipes: [{name: part, path: part.yaml}]\n",
    );
    let part = "title: Part\ndescription: x\nprompt: \"Work on {{ text }}.\"\nparameters: [{key: text, input_type: file, requirement: \
                required, description: What}]\n";
    sandbox.write("project/part.yaml", part);
    sandbox.write("secret.txt", "a secret");
    let outside = Answer::Stream(calls("subrecipe__part", &json!({"text": "../secret.txt"})));
    let inside = Answer::Stream(calls("subrecipe__part", &json!({"text": "part.yaml"})));
    let write = Answer::Stream(calls("developer__shell", &json!({"command": "touch made"})));
    let model = Model::new(vec![outside, inside, write, Answer::Stream(says("refused")), Answer::Stream(says("end"))]);
    let run = model.run(&sandbox, &["--approval", "read-only", "--recipe", "main.yaml"]);
    assert_eq!(run.stdout.trim(), "end", "{}", run.whole());
    assert!(result(&model, 1).contains("is outside the working directory"), "{}", result(&model, 1));
    assert!(result(&model, 3).contains("was not called"), "{}", result(&model, 3));
    assert!(!sandbox.path("project/made").exists());
}

#[test]
fn a_sub_recipe_has_the_tools_of_its_own_sub_recipes() {
    let sandbox = Sandbox::new();
    let with_part = |title: &str, part: &str| {
        format!(
            "title: {title}\ndescription: x\nprompt: Do {title}.\nsub_recipes: [{{name: {part}, path: {part}.yaml}}]\n"
        )
    };
    sandbox.write("project/main.yaml", &with_part("main", "outer"));
    sandbox.write("project/outer.yaml", &with_part("outer", "inner"));
    sandbox.write("project/inner.yaml", "title: inner\ndescription: x\nprompt: Do inner.\n");
    let call = |name: &str| Answer::Stream(calls(name, &json!({})));
    let said = |text: &str| Answer::Stream(says(text));
    let answers =
        vec![call("subrecipe__outer"), call("subrecipe__inner"), said("deep"), said("less deep"), said("end")];
    let model = Model::new(answers);
    let run = model.run(&sandbox, &["--recipe", "main.yaml"]);
    assert_eq!((run.code, run.stdout.trim()), (0, "end"), "{}", run.whole());
    let subs = |index: usize| -> Vec<_> {
        offered(&model, index).into_iter().filter(|name| name.starts_with("subrecipe__")).collect()
    };
    assert_eq!((subs(0), subs(1), subs(2)), (vec!["subrecipe__outer".into()], vec!["subrecipe__inner".into()], vec![]));
    assert!(result(&model, 3).contains("deep") && result(&model, 4).contains("less deep"));
}

/// The example in the prompt is what the model imitates, so it must be right; and what the mode makes must run.
#[test]
fn what_recipe_maker_is_told_to_write_is_a_recipe_that_runs() {
    let sandbox = Sandbox::new();
    let made = "title: Greet\ndescription: Greets.\nprompt: \"Greet {{ who }}.\"\nparameters:\n  - {key: who, input_type: string, \
                requirement: required, description: Whom}\n";
    let answer = format!("Here it is:\n\n```yaml\n{made}```\n\nSave it as greet.yaml.");
    let maker = model(&[&answer]);
    let run = maker.run(&sandbox, &["-m", "recipe_maker", "Make a recipe that greets somebody."]);
    assert_eq!(run.code, 0, "{}", run.whole());
    let request = maker.request(0);
    assert!(offered(&maker, 0).is_empty(), "it has no tools");
    let system = request["messages"][0]["content"].as_str().unwrap();
    let yaml = |text: &str| code_blocks(text).into_iter().find(|(info, _)| info == "yaml").unwrap().1;
    sandbox.write("project/example.yaml", &yaml(system));
    let checked = sandbox.skein(&["check", "-q", "example.yaml"]);
    assert_eq!((checked.code, checked.stderr.as_str()), (0, ""), "{}", checked.whole());
    sandbox.write("project/greet.yaml", &yaml(&run.stdout));
    let checked = sandbox.skein(&["check", "-q", "greet.yaml"]);
    assert_eq!((checked.code, checked.stderr.as_str()), (0, ""), "{}", checked.whole());
    let model = model(&["Hello, Ada."]);
    let run = model.run(&sandbox, &["--recipe", "greet.yaml", "--param", "who=Ada"]);
    assert_eq!((run.code, run.stdout.trim()), (0, "Hello, Ada."), "{}", run.whole());
}
