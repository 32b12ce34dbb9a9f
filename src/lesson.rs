//! Finds the lessons of `docs/tutorials`, which are compiled in, shows their steps to people, and runs the check of a
//! step.
//!
//! Invariant: runs nothing but the checks of these pages, and only if a front end calls for it.

mod check;
mod page;

pub use check::{CheckOutcome, CheckVariables, MissingLines, run_check};
pub use page::{Lesson, LessonStep};

use crate::ids::nearest;

const PAGES: [(&str, &str); 4] = [
    ("first-manifest", include_str!("../docs/tutorials/first-manifest.md")),
    ("first-service", include_str!("../docs/tutorials/first-service.md")),
    ("from-goose", include_str!("../docs/tutorials/from-goose.md")),
    ("editors", include_str!("../docs/tutorials/editors.md")),
];

/// Why a lesson or a step cannot be shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LessonError {
    #[error("there is no tutorial `{name}`; {near}there are {known}")]
    UnknownLesson { name: String, near: String, known: String },
    #[error("`{lesson}` has the steps 1 to {count}; there is no step {step}")]
    UnknownStep { lesson: String, count: usize, step: String },
}

/// Returns all lessons in teaching order.
pub fn lessons() -> Vec<Lesson> {
    PAGES.iter().map(|(name, page)| Lesson::read(name, page)).collect()
}

/// Returns the lesson of that name. Fails with the nearest name if there is none.
pub fn find(name: &str) -> Result<Lesson, LessonError> {
    if let Some((known, page)) = PAGES.iter().find(|(known, _)| *known == name) {
        return Ok(Lesson::read(known, page));
    }
    let names = PAGES.map(|(known, _)| known);
    let near = nearest(name, names).map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
    Err(LessonError::UnknownLesson { name: name.to_owned(), near, known: names.join(", ") })
}

impl Lesson {
    /// Returns a step by its number, from 1. Fails if there is no such step.
    pub fn step(&self, number: usize) -> Result<&LessonStep, LessonError> {
        number.checked_sub(1).and_then(|at| self.steps.get(at)).ok_or_else(|| self.no_step(number.to_string()))
    }

    /// Returns the error for a step that the lesson does not have, as the user named it.
    pub fn no_step(&self, step: String) -> LessonError {
        LessonError::UnknownStep { lesson: self.name.clone(), count: self.steps.len(), step }
    }

    /// Returns a step as Markdown for people. The first one starts with what the lesson is about. Fails if there is no
    /// such step.
    pub fn render_step(&self, number: usize) -> Result<String, LessonError> {
        let step = self.step(number)?;
        let about = if number == 1 { format!("# {}\n\n{}\n\n", self.title, self.about) } else { String::new() };
        let count = self.steps.len();
        Ok(format!("{about}## Step {number} of {count}: {}\n\n{}\n", step.title, step.display_text()))
    }
}

/// Lists all lessons as Markdown for people. `command` starts a lesson: `skein tutorial` or `/tutorial`.
pub fn render_list(command: &str) -> String {
    let line = |lesson: &Lesson| {
        let steps = if lesson.steps.len() == 1 { "step" } else { "steps" };
        format!("- `{command} {}` ({} {steps}): {}\n", lesson.name, lesson.steps.len(), lesson.about)
    };
    lessons().iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_for_people_names_its_files_and_its_check() {
        let page = "# Title\n\nAbout.\n\n## One\n\nText.\n\n```yaml file=a/b.yaml\nx: 1\n```\n\n```console\n$ do it\n```\n\n\
                    ```console check\n$ look\nthere\n```\n\n## Two\n\nMore.\n";
        let lesson = Lesson::read("name", page);
        let shown = "# Title\n\nAbout.\n\n## Step 1 of 2: One\n\nText.\n\nWrite the file `a/b.yaml`:\n\n```yaml\nx: 1\n```\n\n\
                     ```console\n$ do it\n```\n\nThe check of this step, and what it prints:\n\n```console\n$ look\nthere\n```\n";
        assert_eq!(lesson.render_step(1).unwrap(), shown);
        assert_eq!(lesson.render_step(2).unwrap(), "## Step 2 of 2: Two\n\nMore.\n");
        for number in [0, 3] {
            let error = lesson.render_step(number).unwrap_err().to_string();
            assert_eq!(error, format!("`name` has the steps 1 to 2; there is no step {number}"));
        }
    }

    #[test]
    fn an_unknown_lesson_is_answered_with_the_nearest() {
        let error = find("editor").unwrap_err().to_string();
        let known = "first-manifest, first-service, from-goose, editors";
        assert_eq!(error, format!("there is no tutorial `editor`; did you mean `editors`? there are {known}"));
        assert_eq!(
            find("xylophone").unwrap_err().to_string(),
            format!("there is no tutorial `xylophone`; there are {known}")
        );
        assert_eq!(find("editors").unwrap().name, "editors");
    }

    #[test]
    fn the_list_says_how_to_start_each_lesson() {
        let list = render_list("/tutorial");
        assert_eq!(list.lines().count(), PAGES.len());
        assert!(list.starts_with("- `/tutorial first-manifest` (4 steps): Write an agent"), "{list}");
    }
}
