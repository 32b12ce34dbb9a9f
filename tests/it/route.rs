//! `skein route`: who takes a prompt on, what is said about it, and how it is measured.

use std::fs;

use serde_json::{Value, json};
use skein::manifest::{Layer, Root};
use skein::router::{Router, candidates};

use crate::support::{Run, Sandbox};

const KITCHEN: &str = "version: 1
kind: agent
name: house
description: Looks after a house.
runtime: {acp: {command: none}}
modes:
  - slug: kitchen
    description: Cooks and bakes.
    when_to_use: Anything that is cooked, baked or eaten. Not for gardening.
    examples: [boil the eggs, bake a loaf of bread, chop the onions, heat the oven, make tomato soup, fry the fish]
  - slug: garden
    description: Looks after the plants.
    examples: [mow the lawn, water the roses, plant an apple tree, rake the leaves, trim the hedge, weed the flower bed]
";

/// The same manifest teaches the same if its examples are in a file.
#[test]
fn the_router_learns_from_examples_and_the_examples_file() {
    let sandbox = Sandbox::new();
    let split = KITCHEN
        .replace(", heat the oven, make tomato soup, fry the fish]", "]\n    examples_file: kitchen.txt")
        .replace("    examples: [mow the lawn, water the roses, plant an apple tree, rake the leaves, trim the hedge, weed the flower bed]", "    examples_file: lists/garden.txt");
    sandbox.write("inline/house.yaml", KITCHEN);
    sandbox.write("split/house.yaml", &split);
    sandbox.write("split/kitchen.txt", "# Hot food.\nheat the oven\n\nmake tomato soup\nfry the fish\n");
    let garden =
        "mow the lawn\nwater the roses\nplant an apple tree\nrake the leaves\ntrim the hedge\nweed the flower bed";
    sandbox.write("split/lists/garden.txt", garden);
    let read = |folder: &str| {
        let root = Root::Disk { path: sandbox.path(folder), shown: folder.to_owned() };
        let (manifests, found) = skein::manifest::load(&[(Layer::Extra, root)]);
        assert_eq!(found, []);
        candidates(&manifests)
    };
    assert_eq!(read("split"), read("inline"));
}

fn routed(run: &Run) -> Vec<(String, String, Value)> {
    let json = run.json();
    let routes = json["routes"].as_array().unwrap();
    let mode = |route: &Value| format!("{}/{}", route["agent"].as_str().unwrap(), route["mode"].as_str().unwrap());
    routes
        .iter()
        .map(|route| (mode(route), route["task"].as_str().unwrap().to_owned(), route["after"].clone()))
        .collect()
}

#[test]
fn a_choice_in_the_prompt_costs_nothing() {
    let sandbox = Sandbox::new();
    let run = sandbox.skein(&["route", "--json", "@coding/frontend add a dark theme"]);
    assert_eq!(
        run.json(),
        json!({
            "routes": [{"agent": "coding", "mode": "frontend", "confidence": 1.0, "reason": "you chose it",
                        "task": "add a dark theme", "after": []}],
            "compound": false, "by": "explicit", "alternatives": [],
        })
    );
    assert_eq!(routed(&sandbox.skein(&["route", "--json", "@goose hello"]))[0].0, "goose/assistant");
    let wrong = sandbox.skein(&["route", "@coding/frontnd add a dark theme"]);
    assert_eq!((wrong.code, wrong.stdout.as_str()), (2, ""));
    assert!(wrong.stderr.contains("did you mean `@coding/frontend`?"), "{}", wrong.stderr);
    assert_eq!(sandbox.skein(&["route", " "]).code, 2, "an empty prompt");
    assert!(!sandbox.path("data/router").exists(), "nothing was learned for it");
}

#[test]
fn the_built_in_modes_take_what_is_theirs() {
    let sandbox = Sandbox::new();
    let two = sandbox.skein(&["route", "--json", "fix the login API and add a dark theme"]);
    let expected = [
        ("coding/backend".to_owned(), "fix the login API".to_owned(), json!([])),
        ("coding/frontend".to_owned(), "add a dark theme".to_owned(), json!([])),
    ];
    assert_eq!(routed(&two), expected);
    assert_eq!((&two.json()["compound"], &two.json()["by"]), (&json!(true), &json!("embedded")));
    let ordered = sandbox.skein(&["route", "implement the parser, then write tests for it"]);
    assert!(ordered.stdout.contains("write tests for it (after 1)\n"), "{}", ordered.stdout);

    let one = sandbox.skein(&["route", "--json", "add created_at and updated_at"]);
    assert_eq!(one.json()["compound"], false);

    let unsure = sandbox.skein(&["route", "--json", "zzz qqq"]).json();
    assert_eq!(unsure["by"], "default");
    assert_eq!((&unsure["routes"][0]["agent"], &unsure["routes"][0]["mode"]), (&json!("goose"), &json!("assistant")));
    assert_eq!(unsure["alternatives"].as_array().map(Vec::len), Some(3));

    for vague in [
        "handle the whole gadget matter end to end",
        "deal with the gadget stuff",
        "take care of everything about the widget",
        "do something about the printer situation",
    ] {
        let unsure = sandbox.skein(&["route", "--json", vague]).json();
        assert_eq!(unsure["by"], "default", "{vague}: {unsure}");
        assert_eq!(unsure["alternatives"].as_array().map(Vec::len), Some(3), "{vague}");
    }

    let list = "For the shop:\n- fix the login endpoint of the REST API\n- add a dark theme to the CSS\n";
    let expected_list =
        ["For the shop: fix the login endpoint of the REST API", "For the shop: add a dark theme to the CSS"];
    let tasks: Vec<_> =
        routed(&sandbox.skein(&["route", "--json", list])).into_iter().map(|(_, task, _)| task).collect();
    assert_eq!(tasks, expected_list);

    assert!(!sandbox.path("data/router").exists(), "the router of the built-in modes is compiled in");
}

#[test]
fn an_agent_of_ones_own_is_routed_to_and_measured() {
    let sandbox = Sandbox::new();
    sandbox.write("project/.skein/agents/house.yaml", KITCHEN);
    assert_eq!(sandbox.skein(&["trust", "--yes"]).code, 0);
    let found = routed(&sandbox.skein(&["route", "--json", "bake some bread rolls in the oven"]));
    assert_eq!(found[0].0, "house/kitchen");

    // The same from a damaged file, which is whole afterwards.
    let files: Vec<_> = fs::read_dir(sandbox.path("data/router")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1);
    let whole = fs::read(&files[0]).unwrap();
    fs::write(&files[0], &whole[..whole.len() / 2]).unwrap();
    assert_eq!(routed(&sandbox.skein(&["route", "--json", "bake some bread rolls in the oven"])), found);
    assert!(fs::read(&files[0]).unwrap() == whole);

    // What the user has chosen once is chosen again, in this project.
    let prompt = "bake some bread rolls in the oven";
    let chosen = sandbox.skein(&["route", "--json", "--remember", "house/garden", prompt]).json();
    assert_eq!(chosen["routes"][0]["mode"], "garden");
    assert_eq!(chosen["routes"][0]["reason"], "you chose it before for this prompt");
    assert_eq!(routed(&sandbox.skein(&["route", "--json", "Bake some bread rolls in the oven!"]))[0].0, "house/garden");
    let secret = sandbox.skein(&["route", "--remember", "house/garden", "the password is hunter2-hunter2"]);
    assert_eq!(secret.code, 2);
    assert!(secret.stderr.contains("a password or key"), "{}", secret.stderr);

    sandbox.write(
        "project/cases.tsv",
        "house/kitchen\tbake bread\nhouse/garden\tmow the grass\n\n-\thow far is the moon\n",
    );
    let measured = sandbox.skein(&["route", "--eval", "cases.tsv", "--json"]).json();
    for (key, value) in [
        ("modes", json!(2)),
        ("cases", json!(2)),
        ("out_of_scope", json!(1)),
        ("accuracy", json!(1.0)),
        ("top3", json!(1.0)),
        ("auroc", json!(1.0)),
        ("confusion", json!([])),
    ] {
        assert_eq!(measured[key], value, "{key}: {measured}");
    }
    let error = measured["calibration_error"].as_f64().expect("a number");
    assert!((0.0..0.5).contains(&error), "{measured}");
    let text = sandbox.skein(&["route", "--eval", "cases.tsv"]).stdout;
    assert!(text.starts_with("cases     2 for 2 modes, 1 that belong nowhere\naccuracy  100.0 %\n"), "{text}");
    assert!(text.contains("\noff by    0."), "{text}");
}

#[test]
fn remembered_prompt_goes_to_its_mode_if_short_or_compound() {
    let sandbox = Sandbox::new();
    for prompt in ["fix ci", "fix the login API and add a dark theme"] {
        assert_eq!(sandbox.skein(&["route", "--remember", "coding/qa", prompt]).code, 0);
        let expected = ("coding/qa".to_owned(), prompt.to_owned(), json!([]));
        assert_eq!(routed(&sandbox.skein(&["route", "--json", prompt])), [expected], "{prompt}");
    }
}

#[test]
fn cases_that_cannot_be_read_name_their_line() {
    let sandbox = Sandbox::new();
    for (text, problem, help) in [
        (
            "coding/qa\ttest it\ncoding/backnd\tfix it\n",
            "cases.tsv, line 2: the agent `coding` has no mode `backnd`",
            "did you mean `coding/backend`?",
        ),
        (
            "coding/qa test it\n",
            "cases.tsv, line 1: there is no tab between a mode and a prompt",
            "write `agent/mode`, a tab",
        ),
        ("\n", "cases.tsv has no cases", "write one on each line"),
    ] {
        sandbox.write("project/cases.tsv", text);
        let run = sandbox.skein(&["route", "--eval", "cases.tsv"]);
        assert_eq!(run.code, 2);
        assert!(run.stderr.contains(problem) && run.stderr.contains(help), "{}", run.stderr);
    }
    assert_eq!(sandbox.skein(&["route", "--eval", "nowhere.tsv"]).code, 2);
}

/// Every tenth example is held back. The floor is below what is reached; it is there to fall when something breaks.
#[test]
fn the_built_in_examples_teach_what_they_do_not_say() {
    let (manifests, _) = skein::manifest::load(&[(Layer::Builtin, Root::Builtin)]);
    let mut learned = candidates(&manifests);
    let mut held = Vec::new();
    for candidate in &mut learned {
        for (place, example) in std::mem::take(&mut candidate.examples).into_iter().enumerate() {
            match place % 10 {
                7 => held.push((candidate.mode.clone(), example)),
                _ => candidate.examples.push(example),
            }
        }
    }
    let router = Router::learn(&learned);
    let right = held.iter().filter(|(mode, example)| router.rank(example)[0].mode == *mode).count();
    assert!(right * 100 >= held.len() * 80, "{right} of {}", held.len());
}
