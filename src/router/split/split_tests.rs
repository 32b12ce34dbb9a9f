//! What is taken apart, and what stays one.

use super::super::tests::candidate;
use super::*;

fn router() -> Router {
    Router::learn(&[
        candidate(
            "coding/backend",
            &[
                "fix the login API",
                "add an endpoint for orders",
                "the API returns 500, repair it",
                "write a database migration",
                "implement the REST API for users",
                "make the server cache its answers",
                "add a column to the users table",
                "fix the API",
                "add created_at and updated_at to the orders table",
                "implement the login endpoint",
            ],
        ),
        candidate(
            "coding/frontend",
            &[
                "add a dark theme",
                "make the button blue",
                "style the settings page with CSS",
                "fix the layout on mobile",
                "add a dark mode toggle to the header",
                "build a React form",
                "change the font of the web page",
                "restyle the sign-in page",
                "add a theme switcher",
                "make the page responsive",
            ],
        ),
        candidate(
            "coding/qa",
            &[
                "write unit tests for the parser",
                "test it",
                "add tests for the checkout",
                "increase the test coverage",
                "run the test suite and report failures",
                "write integration tests",
                "test the login endpoint",
                "write tests for it",
                "add regression tests",
                "check the coverage of the tests",
            ],
        ),
        candidate(
            "goose/assistant",
            &[
                "remind me to call mum",
                "rename these photos",
                "translate this into Spanish",
                "what is the weather",
                "write a letter to my landlord",
                "document it",
                "write the docs for it",
                "summarise this text",
                "sort my notes",
                "search and replace foo with bar",
            ],
        ),
    ])
}

fn told(prompt: &str) -> Vec<(String, String, Vec<usize>)> {
    let tasks = split(prompt, &router());
    tasks.into_iter().map(|task| (task.text, task.mode.to_string(), task.after)).collect()
}

fn task(text: &str, mode: &str, after: &[usize]) -> (String, String, Vec<usize>) {
    (text.to_owned(), mode.to_owned(), after.to_vec())
}

#[test]
fn two_requests_for_different_modes_are_two_tasks() {
    let expected = [task("fix the login API", "coding/backend", &[]), task("add a dark theme", "coding/frontend", &[])];
    assert_eq!(told("fix the login API and add a dark theme"), expected);
    assert_eq!(
        told("fix the login API, and please add a dark theme"),
        [expected[0].clone(), task("please add a dark theme", "coding/frontend", &[])]
    );
    assert_eq!(
        told("Fix the login API. Add a dark theme."),
        [task("Fix the login API.", "coding/backend", &[]), task("Add a dark theme.", "coding/frontend", &[])]
    );
}

#[test]
fn what_comes_then_waits() {
    assert_eq!(
        told("fix the login API, then write unit tests"),
        [task("fix the login API", "coding/backend", &[]), task("write unit tests", "coding/qa", &[0])]
    );
    assert_eq!(
        told("Fix the login API and add a dark theme. After that, write tests for it"),
        [
            task("Fix the login API", "coding/backend", &[]),
            task("add a dark theme.", "coding/frontend", &[]),
            task("write tests for it", "coding/qa", &[0, 1])
        ]
    );
    assert_eq!(
        told("fix the login API; add a dark theme"),
        [task("fix the login API", "coding/backend", &[]), task("add a dark theme", "coding/frontend", &[0])]
    );
}

#[test]
fn what_refers_back_waits_for_what_it_refers_to() {
    assert_eq!(
        told("add an endpoint for orders and write tests for it"),
        [task("add an endpoint for orders", "coding/backend", &[]), task("write tests for it", "coding/qa", &[0])]
    );
}

#[test]
fn the_items_of_a_numbered_list_follow_each_other() {
    let list = "For the shop:\n1. fix the login API\n2. add a dark theme\n3. write unit tests\n";
    assert_eq!(
        told(list),
        [
            task("For the shop: fix the login API", "coding/backend", &[]),
            task("For the shop: add a dark theme", "coding/frontend", &[0]),
            task("For the shop: write unit tests", "coding/qa", &[1])
        ]
    );
}

#[test]
fn the_items_of_a_bulleted_list_are_tasks_in_any_order() {
    for [first, second, third] in [["- "; 3], ["* "; 3], ["• "; 3], ["- [ ] "; 3], ["  - ", "  - ", "  - "]] {
        let list = format!("{first}fix the login API\n{second}add a dark theme\n{third}write tests for it\n");
        assert_eq!(
            told(&list),
            [
                task("fix the login API", "coding/backend", &[]),
                task("add a dark theme", "coding/frontend", &[]),
                task("write tests for it", "coding/qa", &[1])
            ],
            "{list}"
        );
    }
}

#[test]
fn lines_below_an_item_belong_to_it() {
    let list = "- fix the login API\n  - it returns 500\n- add a dark theme\n  for the shop";
    assert_eq!(
        told(list),
        [
            task("fix the login API\n  - it returns 500", "coding/backend", &[]),
            task("add a dark theme\n  for the shop", "coding/frontend", &[])
        ]
    );
}

#[test]
fn what_is_one_thing_stays_one() {
    let prompts = [
        "add created_at and updated_at",
        "translate this into Spanish:\n- milk\n- eggs",
        "add created_at and updated_at to the orders table",
        "search and replace foo with bar",
        "rename a and b",
        "find and fix the API error",
        "explain how login and logout work",
        "explain how to fix the login API and add a dark theme",
        "write a script to fix the login API and add a dark theme",
        "if the API is broken then add tests",
        "the API has been slow since then, fix it",
        "translate \"fix the login API and add a dark theme\" into Spanish",
        "translate `fix the login API; add a dark theme` into Spanish",
        "fix the login API (and add a dark theme)",
        "read docs/fix-and-add/a theme.md",
        "drag and drop for the web page",
        "fix the login API and the orders API",
        "fix the login API and repair the orders endpoint",
        "what is the difference between then and than?",
        "",
        "and then",
        "1. first\n2. second",
        "ERROR 2024-01-01 12:00:00 add failed; then retried\nERROR fix not found, add missing and stop\n",
    ];
    for prompt in prompts {
        assert_eq!(told(prompt).len(), 1, "{prompt}: {:?}", told(prompt));
    }
}

#[test]
fn what_stays_one_keeps_its_words() {
    assert_eq!(told("  fix the login API and the orders API\n")[0].0, "fix the login API and the orders API");
}

#[test]
fn there_are_never_more_than_five() {
    let many = "1. fix the login API\n2. add a dark theme\n3. write unit tests\n4. fix the API\n5. make the button blue\n\
                6. add regression tests\n";
    assert_eq!(told(many).len(), 1, "six for different modes are a plan");
    let same = "1. fix the login API\n2. fix the API\n3. add a column to the users table\n4. add a dark theme\n\
                5. make the button blue\n6. write unit tests\n";
    assert_eq!(told(same).len(), 3);
}

#[test]
fn without_modes_there_are_no_tasks() {
    assert_eq!(split("fix it", &Router::learn(&[])), []);
}
