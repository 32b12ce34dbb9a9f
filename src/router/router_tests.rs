//! What a router learns, and what it does with any text.

use proptest::prelude::*;

use super::*;

pub(super) fn candidate(mode: &str, examples: &[&str]) -> Candidate {
    Candidate {
        mode: mode.parse().unwrap(),
        name: None,
        description: "Does its work.".to_owned(),
        when_to_use: None,
        examples: examples.iter().map(|example| (*example).to_owned()).collect(),
        capabilities: Vec::new(),
    }
}

pub(super) fn two_modes() -> Vec<Candidate> {
    vec![
        candidate("house/kitchen", &["boil the eggs", "bake a loaf of bread", "chop the onions", "heat the oven"]),
        candidate("house/garden", &["mow the lawn", "water the roses", "plant a tree", "rake the leaves"]),
    ]
}

fn best(router: &Router, prompt: &str) -> RankedMode {
    router.rank(prompt).remove(0)
}

#[test]
fn what_is_like_the_examples_is_routed_and_says_why() {
    let router = Router::learn(&two_modes());
    let found = best(&router, "please bake some bread rolls");
    assert_eq!(found.mode.to_string(), "house/kitchen");
    assert!(found.confidence > THRESHOLD, "{found:?}");
    assert_eq!(found.reason, "the words \"bread\" and \"bake\"");
}

#[test]
fn a_word_that_no_example_has_is_known_by_its_meaning() {
    let router = Router::learn(&two_modes());
    assert_eq!(best(&router, "fry potatoes").mode.to_string(), "house/kitchen");
    assert_eq!(best(&router, "trim the hedge").mode.to_string(), "house/garden");
}

#[test]
fn what_belongs_nowhere_is_unsure() {
    let router = Router::learn(&two_modes());
    for prompt in ["how old is the moon", "", "?!", "\u{4f60}\u{597d}"] {
        let found = best(&router, prompt);
        assert!(found.confidence < THRESHOLD, "{prompt}: {found:?}");
    }
}

#[test]
fn descriptions_alone_are_enough_to_begin_with() {
    let mut candidates = two_modes();
    for (candidate, description) in candidates.iter_mut().zip(["Cooks and bakes.", "Looks after plants and flowers."]) {
        candidate.examples.clear();
        candidate.description = description.to_owned();
    }
    let router = Router::learn(&candidates);
    assert_eq!(best(&router, "cook some soup").mode.to_string(), "house/kitchen");
    assert_eq!(best(&router, "the flowers are dry").mode.to_string(), "house/garden");
}

#[test]
fn what_a_mode_is_not_for_is_no_reason_to_take_it() {
    assert_eq!(positive("For soup. Not for roses, nor trees. Also bread, not cake."), "For soup. Also bread");
    let mut candidates = two_modes();
    candidates[0].when_to_use = Some("Cooking. Not for hedges, bushes and shrubs.".to_owned());
    let router = Router::learn(&candidates);
    assert_eq!(best(&router, "hedges, bushes and shrubs").mode.to_string(), "house/garden");
}

#[test]
fn a_correction_counts_for_its_prompt_and_draws_what_is_like_it() {
    let router = Router::learn(&two_modes());
    let (garden, kitchen): (ModeId, ModeId) = ("house/garden".parse().unwrap(), "house/kitchen".parse().unwrap());
    let before = best(&router, "chop the onions on the lawn table");
    let unknown = "house/cellar".parse().unwrap();
    let router = router.with_corrections([
        ("Chop  the onions.", &kitchen),
        ("chop the onions", &garden),
        ("bring up a bottle", &unknown),
    ]);
    let same = best(&router, "chop the ONIONS!");
    assert_eq!((same.mode, same.confidence), (garden.clone(), 1.0));
    assert_eq!(same.reason, "you chose it before for this prompt");
    let near = best(&router, "chop the onions now");
    assert_eq!(near.mode, garden, "{near:?}");
    assert_eq!(near.reason, "it is like a prompt for which you chose it before");
    assert_eq!(best(&router, "heat the oven").mode, kitchen, "what is unlike it stays: {before:?}");
}

#[test]
fn one_mode_and_none_are_no_choice() {
    assert_eq!(Router::learn(&[]).rank("anything"), []);
    assert_eq!(Router::learn(&two_modes()[..1]).rank("boil the eggs").len(), 1);
}

#[test]
fn of_a_long_prompt_the_beginning_and_the_end_are_read() {
    let long = format!("bake a loaf of bread {} rake the leaves", "é".repeat(40_000));
    let read = truncate_middle(&long);
    assert!(read.len() < 5_000 && read.starts_with("bake") && read.ends_with("leaves"));
}

fn any_candidates() -> impl Strategy<Value = Vec<Candidate>> {
    let mode = ("[a-c]", "[a-d]").prop_map(|(agent, mode)| format!("{agent}/{mode}"));
    let text = prop_oneof!["[a-z ]{0,30}", ".{0,20}"];
    let one = (mode, prop::collection::vec(text.clone(), 0..6), text.clone(), prop::option::of(text));
    let one = one.prop_map(|(mode, examples, description, when)| Candidate {
        description,
        when_to_use: when,
        examples,
        ..candidate(&mode, &[])
    });
    prop::collection::btree_map("[a-z]{3}", one, 0..6).prop_map(|candidates| {
        let mut candidates: Vec<_> = candidates.into_values().collect();
        candidates.sort_by(|a, b| a.mode.cmp(&b.mode));
        candidates.dedup_by(|a, b| a.mode == b.mode);
        candidates
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_manifests_and_any_text_give_the_same_ranks_again(candidates in any_candidates(), prompt in ".{0,80}") {
        let router = Router::learn(&candidates);
        let ranked = router.rank(&prompt);
        prop_assert_eq!(ranked.len(), candidates.len());
        prop_assert!(ranked.iter().all(|ranked| (0.0..=1.0).contains(&ranked.confidence)));
        prop_assert!(ranked.is_sorted_by(|a, b| a.confidence >= b.confidence), "{:?}", ranked);
        let turned: Vec<_> = candidates.iter().rev().cloned().collect();
        prop_assert_eq!(&Router::learn(&turned), &router, "the order of candidates does not matter");
        for task in split(&prompt, &router) {
            prop_assert!(task.after.iter().all(|before| *before < MAX_TASKS));
        }
    }
}
