//! Implements the command `/tutorial` of every front end: shows a step of a lesson, and checks the step before it.
//!
//! Invariant: a check runs only with the user's consent, unless the approval level needs none.

use serde_json::{Map, json};

use super::Session;
use crate::broker::BindError;
use crate::lesson::{self, CheckVariables, Lesson, LessonError, LessonStep};
use crate::manifest::ApprovalLevel;
use crate::tool::elicit::{Elicitation, ElicitationKind, ElicitationResponse};

/// The name of the command.
pub const TUTORIAL: &str = "tutorial";
/// What the command does, for lists of commands.
pub const TUTORIAL_ABOUT: &str = "Learn Skein step by step, with a check of each step";
/// The arguments of the command, for lists of commands.
pub const TUTORIAL_HINT: &str = "[NAME [STEP]]";
/// The word that checks the last step.
const DONE: &str = "done";

/// Why `/tutorial` failed.
#[derive(Debug, thiserror::Error)]
pub enum TutorialError {
    #[error(transparent)]
    Lesson(#[from] LessonError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("the check cannot be started: {0}")]
    Check(#[from] std::io::Error),
}

impl TutorialError {
    /// Returns true if the user must change the input.
    pub fn is_misuse(&self) -> bool {
        matches!(self, Self::Lesson(_))
    }
}

impl Session {
    /// Runs `/tutorial` with these arguments and returns its answer as Markdown. Without a name, lists the lessons.
    /// Fails if there is no such lesson or step, or if the mode cannot be bound.
    pub async fn tutorial(&self, arguments: &str, variables: &CheckVariables) -> Result<String, TutorialError> {
        let mut words = arguments.split_whitespace();
        let Some(name) = words.next() else {
            return Ok(format!("The lessons on Skein:\n\n{}", lesson::render_list("/tutorial")));
        };
        let lesson = lesson::find(name)?;
        let count = lesson.steps.len();
        let number = match words.next() {
            None => 1,
            Some(DONE) => count + 1,
            Some(word) => word.parse::<usize>().map_err(|_| lesson.no_step(word.to_owned()))?,
        };
        // A wrong number runs nothing.
        let shown = if number == count + 1 { String::new() } else { lesson.render_step(number)? };
        let mut text = String::new();
        if number > 1 {
            text = self.check_step(&lesson, number - 1, variables).await?;
            text.push('\n');
        }
        text.push_str(&shown);
        text.push_str(&next_line(&lesson, number));
        Ok(text)
    }

    /// Runs the check of a step, if the user consents, and reports its outcome.
    async fn check_step(
        &self,
        lesson: &Lesson,
        number: usize,
        variables: &CheckVariables,
    ) -> Result<String, TutorialError> {
        let step = lesson.step(number)?;
        let command = step.check.as_ref().map(|(command, _)| command.as_str()).unwrap_or_default();
        let by_hand = format!("Run the check of step {number} yourself:\n\n```console\n$ {command}\n```\n");
        // A check runs outside a sandbox, and remote commands never do.
        if !self.context().principal().is_local() {
            return Ok(format!("Skein does not run checks in remote sessions. {by_hand}"));
        }
        let level = self.binding().await?.approval();
        let consents = match level {
            ApprovalLevel::Auto => true,
            ApprovalLevel::Ask | ApprovalLevel::Smart => match self.ask_for_check(step, number, command).await {
                ElicitationResponse::Accepted(_) => true,
                ElicitationResponse::Declined | ElicitationResponse::Dismissed | ElicitationResponse::Unavailable => {
                    false
                }
            },
            ApprovalLevel::ReadOnly | ApprovalLevel::Deny => {
                let level = level.as_str();
                return Ok(format!("At the approval level `{level}`, Skein does not run checks. {by_hand}"));
            }
        };
        if !consents {
            return Ok(format!("The check did not run. {by_hand}"));
        }
        let outcome = lesson::run_check(step, &self.context().cwd, variables, None).await?;
        let done = if outcome.is_passed() { "is done" } else { "is not done yet" };
        Ok(format!("Step {number}, \"{}\", {done}. {}", step.title, outcome.render()))
    }

    async fn ask_for_check(&self, step: &LessonStep, number: usize, command: &str) -> ElicitationResponse {
        let message = format!(
            "Run the check of step {number}, \"{}\"? It runs this command in the session's folder, outside a \
             sandbox: {command}",
            step.title
        );
        let schema = Map::from_iter([("type".to_owned(), json!("object")), ("properties".to_owned(), json!({}))]);
        let question =
            Elicitation { by: TUTORIAL.to_owned(), call: None, message, kind: ElicitationKind::Fields(schema) };
        self.asker().elicit(question).await
    }
}

/// Returns the line that names the next command.
fn next_line(lesson: &Lesson, number: usize) -> String {
    let (name, count) = (&lesson.name, lesson.steps.len());
    match number {
        _ if number > count => "This was the last step. `/tutorial` lists the lessons.\n".to_owned(),
        _ if number == count => format!("\nWhen you have done it, `/tutorial {name} {DONE}` checks it.\n"),
        _ => format!("\nWhen you have done it, `/tutorial {name} {}` checks it and continues.\n", number + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_says_how_to_go_on() {
        let lesson = Lesson::read("name", "# T\n\nA.\n\n## One\n\nx\n\n## Two\n\ny\n");
        assert!(next_line(&lesson, 1).contains("`/tutorial name 2` checks it and continues"));
        assert!(next_line(&lesson, 2).contains("`/tutorial name done` checks it"));
        assert!(next_line(&lesson, 3).starts_with("This was the last step."));
    }
}
