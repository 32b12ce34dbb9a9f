//! Tutorials as a model meets them. That their steps work is shown by `tests/it/tutorials.rs`.

use expect_test::expect;
use proptest::prelude::*;
use serde_json::Value;

use super::super::harness::{Harness, runtime};
use super::*;

#[tokio::test]
async fn tutorials_are_listed_and_loaded_step_by_step() {
    let tutorial = Harness::new(TutorialService::new());
    let listed = tutorial.data("list_tutorials", json!({})).await;
    let names: Vec<_> = listed["tutorials"].as_array().unwrap().iter().map(|of| of["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["first-manifest", "first-service", "from-goose", "editors"]);
    let overview = tutorial.call("load_tutorial", json!({"name": "first-manifest"})).await.all_text();
    assert!(overview.contains("\n1. ") && overview.ends_with("Load step 1 to begin."), "{overview}");
    for of in listed["tutorials"].as_array().unwrap() {
        for step in 1..=of["steps"].as_u64().unwrap() {
            let data = tutorial.data("load_tutorial", json!({"name": of["name"], "step": step})).await;
            let done = |what: &str| data[what].as_array().unwrap().len();
            assert!(done("files") + done("commands") > 0, "there is something to do: {data}");
            assert!(
                data["check"]["command"].is_string() && !data["check"]["prints"].as_array().unwrap().is_empty(),
                "{data}"
            );
        }
    }
}

#[tokio::test]
async fn what_is_not_there_is_answered_with_what_is() {
    let tutorial = Harness::new(TutorialService::new());
    assert_eq!(
        tutorial.refusal("load_tutorial", json!({"name": "editor"})).await,
        "there is no tutorial `editor`; did you mean `editors`? there are first-manifest, first-service, from-goose, editors"
    );
    for step in [0, 99] {
        let refusal = tutorial.refusal("load_tutorial", json!({"name": "editors", "step": step})).await;
        assert!(refusal.ends_with(&format!("there is no step {step}")), "{refusal}");
    }
}

#[test]
fn a_page_is_read_as_steps() {
    let page = "# Title\n\nWhat it\nis about.\n\n## One\n\nText.\n\n```yaml file=a/b.yaml\nx: 1\n```\n\n```console\n$ do it\nsaid\n```\n\n\
                ```console check\n$ look\nthere\n```\n";
    expect![[r#"
        Lesson {
            name: "name",
            title: "Title",
            about: "What it is about.",
            steps: [
                LessonStep {
                    title: "One",
                    text: "Text.\n\n```yaml file=a/b.yaml\nx: 1\n```\n\n```console\n$ do it\nsaid\n```\n\n```console check\n$ look\nthere\n```",
                    files: [
                        (
                            "a/b.yaml",
                            "x: 1\n",
                        ),
                    ],
                    commands: [
                        "do it",
                    ],
                    check: Some(
                        (
                            "look",
                            [
                                "there",
                            ],
                        ),
                    ),
                },
            ],
        }
    "#]]
    .assert_debug_eq(&Lesson::read("name", page));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is asked for is an answer or a refusal, and the same each time.
    #[test]
    fn any_request_is_answered(name in prop_oneof![Just("editors".to_owned()), "\\PC{0,12}"], step in proptest::option::of(0_u64..9)) {
        let tutorial = runtime().block_on(async {
            let tutorial = Harness::new(TutorialService::new());
            let request = step.map_or_else(|| json!({"name": name}), |step| json!({"name": name, "step": step}));
            let once = tutorial.call("load_tutorial", request.clone()).await;
            assert_eq!(&once, &tutorial.call("load_tutorial", request).await);
            assert_eq!(once.is_error, once.structured.is_none());
            assert!(!once.all_text().is_empty());
            Value::Null
        });
        prop_assert_eq!(tutorial, Value::Null);
    }

    #[test]
    fn any_page_can_be_read(page in "(\n## |```|console|check| file=|\\$ |\n|\\PC){0,40}") {
        let lesson = Lesson::read("any", &page);
        prop_assert_eq!(lesson.steps.len(), page.matches("\n## ").count());
    }
}
