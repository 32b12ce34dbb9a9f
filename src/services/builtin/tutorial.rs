//! Serves step-by-step lessons on Skein. The pages in `docs/tutorials` are compiled in, and a test executes every
//! step as written.

use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{ServerHandler, tool, tool_handler, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

pub use crate::lesson::{Lesson, LessonStep, lessons};

use super::answer::{self, ToolRefusal, ToolReply};
use super::schema;
use crate::lesson;

/// The `tutorial` service.
pub struct TutorialService {
    tool_router: ToolRouter<Self>,
    lessons: Vec<Lesson>,
}

impl std::fmt::Debug for TutorialService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TutorialService").finish_non_exhaustive()
    }
}

impl Default for TutorialService {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LoadLesson {
    /// Name from list_tutorials, e.g. first-manifest
    #[schemars(length(min = 1))]
    name: String,
    /// Number from 1; default: an overview
    #[schemars(range(min = 1))]
    step: Option<usize>,
}

#[tool_router]
impl TutorialService {
    pub fn new() -> Self {
        Self { tool_router: schema::slim(Self::tool_router()), lessons: lessons() }
    }

    #[tool(
        description = "List the tutorials on Skein",
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn list_tutorials(&self) -> ToolReply {
        let line = |of: &Lesson| format!("- {}: {} {}", of.name, of.about, answer::count(of.steps.len(), "step"));
        let data =
            |of: &Lesson| json!({"name": of.name, "title": of.title, "about": of.about, "steps": of.steps.len()});
        let text = self.lessons.iter().map(line).collect::<Vec<_>>().join("\n");
        let data: Vec<_> = self.lessons.iter().map(data).collect();
        Ok(answer::with_data(text, json!({"tutorials": data})))
    }

    #[tool(
        description = "Load a tutorial, or one step of it: text, files, commands, and the check of what was done",
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn load_tutorial(&self, Parameters(request): Parameters<LoadLesson>) -> ToolReply {
        let LoadLesson { name, step } = request;
        let lesson = lesson::find(&name).map_err(|error| ToolRefusal::new(error.to_string()))?;
        let count = lesson.steps.len();
        let Some(number) = step else {
            let titles = lesson.steps.iter().enumerate().map(|(at, step)| format!("{}. {}", at + 1, step.title));
            let titles: Vec<_> = titles.collect();
            let text =
                format!("{}\n\n{}\n\n{}\n\nLoad step 1 to begin.", lesson.title, lesson.about, titles.join("\n"));
            let data = json!({"name": name, "title": lesson.title, "about": lesson.about, "steps": titles});
            return Ok(answer::with_data(text, data));
        };
        let step = lesson.step(number).map_err(|error| ToolRefusal::new(error.to_string()))?;
        let next = if number < count {
            format!("Step {} comes next.", number + 1)
        } else {
            "This is the last step.".to_owned()
        };
        let text = format!("{name}, step {number} of {count}: {}\n\n{}\n\n{next}", step.title, step.text);
        let files: Vec<_> = step.files.iter().map(|(path, text)| json!({"path": path, "text": text})).collect();
        let check = step.check.as_ref().map(|(command, expected)| json!({"command": command, "prints": expected}));
        let data = json!({
            "name": name, "step": number, "of": count, "title": step.title,
            "files": files, "commands": step.commands, "check": check,
        });
        Ok(answer::with_data(text, data))
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for TutorialService {
    fn get_info(&self) -> rmcp::model::ServerConfig {
        let capabilities = rmcp::model::ServerCapabilities::builder().enable_tools().build();
        rmcp::model::ServerConfig::new(capabilities)
            .with_server_info(rmcp::model::Implementation::new("tutorial", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }
}

const INSTRUCTIONS: &str = "Teach one step at a time: say what it is for, have its files written and its commands run exactly as \
                            written, and continue when its check prints what it should.";

#[cfg(test)]
#[path = "tutorial_tests.rs"]
mod tests;
