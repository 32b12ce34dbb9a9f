//! Checks and renders a mode's prompt, which is Markdown with minijinja variables. The check happens on loading, so
//! that a session never gets a prompt that cannot be rendered.

use std::collections::BTreeMap;

use crate::diagnostic::{Diagnostic, SourceLocation};
use crate::ids::nearest;

use super::template::{Template, TemplateError, TemplateProblem};

/// The variables of a prompt. A session sets them in every turn.
pub const VARIABLES: [&str; 6] = ["agent", "mode", "cwd", "date", "os", "delegates"];

/// A prompt file as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    pub file: String,
    pub text: String,
}

/// One value for each of [`VARIABLES`].
#[derive(Debug, Clone, Copy)]
pub struct PromptValues<'a> {
    pub agent: &'a str,
    pub mode: &'a str,
    pub cwd: &'a str,
    pub date: &'a str,
    pub os: &'a str,
    /// The modes that the agent may delegate to, one per line; empty if there are none.
    pub delegates: &'a str,
}

/// A prompt file that cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}{}: {}", .source.line.map(|line| format!(":{line}")).unwrap_or_default(), .source.reason)]
pub struct PromptFileError {
    pub file: String,
    pub source: TemplateError,
}

/// Renders a text with custom variables under the same limits. Fails if it uses a variable without a value.
pub fn fill_in(text: &str, values: &BTreeMap<String, String>) -> Result<String, TemplateError> {
    Template::parse("<string>", text).and_then(|template| template.render(values_of(values)))
}

fn values_of(values: &BTreeMap<String, String>) -> minijinja::Value {
    minijinja::Value::from_pairs(values.iter().map(|(name, value)| (name.clone(), value.clone())))
}

/// Returns the variables that a text uses and does not set itself, sorted. Fails if it is not a template.
pub fn variables_of(text: &str) -> Result<Vec<String>, TemplateError> {
    Template::parse("<string>", text).and_then(|template| template.variables())
}

/// Whether a check may render a prompt with placeholder values, to find errors that only rendering shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rendering {
    WithStandIns,
    /// The prompt may come from an untrusted project and is only parsed.
    Never,
}

impl Prompt {
    /// Renders the prompt with these values.
    pub fn fill_in(&self, values: &PromptValues<'_>) -> Result<String, PromptFileError> {
        let PromptValues { agent, mode, cwd, date, os, delegates } = *values;
        let values = minijinja::context! { agent, mode, cwd, date, os, delegates };
        let filled = Template::parse(&self.file, &self.text).and_then(|template| template.render(values));
        filled.map_err(|source| PromptFileError { file: self.file.clone(), source })
    }

    /// Returns every reason why this prompt cannot be rendered.
    pub fn check(&self, rendering: Rendering) -> Vec<Diagnostic> {
        if !self.text.contains("{{") && !self.text.contains("{%") && !self.text.contains("{#") {
            return Vec::new();
        }
        let template = match Template::parse(&self.file, &self.text) {
            Ok(template) => template,
            Err(error) => return vec![self.template_error(&error)],
        };
        let mut unknown = match template.variables() {
            Ok(used) => used,
            Err(error) => return vec![self.template_error(&error)],
        };
        unknown.retain(|name| !VARIABLES.contains(&name.as_str()));
        if unknown.is_empty() && rendering == Rendering::Never {
            return Vec::new();
        }
        if unknown.is_empty() {
            // Type errors only show when a template is rendered, so it is rendered with placeholder values.
            let stand_ins = VARIABLES.map(|name| (name.to_owned(), name.to_owned())).into();
            let filled = template.render(values_of(&stand_ins));
            return filled.err().map(|error| self.template_error(&error)).into_iter().collect();
        }
        unknown
            .iter()
            .map(|name| {
                let help = match nearest(name, VARIABLES) {
                    Some(near) => format!("did you mean `{near}`? known: {}", VARIABLES.join(", ")),
                    None => format!("known: {}; write {{{{ \"{{{{\" }}}} for literal braces", VARIABLES.join(", ")),
                };
                Diagnostic::error(
                    "E112",
                    self.place_of(name),
                    format!("the prompt uses an unknown variable `{name}`"),
                    help,
                )
            })
            .collect()
    }

    fn template_error(&self, error: &TemplateError) -> Diagnostic {
        let place = match error.line {
            Some(line) => SourceLocation::at(&self.file, &self.text, line, 1, usize::MAX),
            None => SourceLocation::file(&self.file),
        };
        let (problem, help) = match error.kind {
            TemplateProblem::OverLimit => ("the prompt is over a limit", "shorten its loops, or write the text out"),
            TemplateProblem::Unavailable => {
                ("the prompt uses what templates do not have", "see docs/manifests.md for what they have")
            }
            TemplateProblem::Invalid => {
                ("the prompt is not a valid template", "correct the template; write {{ \"{{\" }} for literal braces")
            }
        };
        Diagnostic::error("E113", place, format!("{problem}: {}", error.reason), help)
    }

    fn place_of(&self, name: &str) -> SourceLocation {
        place_in_tags(&self.file, &self.text, name)
    }
}

/// Finds the first use of a variable inside a tag. minijinja reports unknown variables without their location.
pub fn place_in_tags(file: &str, text: &str, name: &str) -> SourceLocation {
    let mut inside = false;
    for (index, line) in text.lines().enumerate() {
        let mut word_start = None;
        let mut previous = ' ';
        for (column, c) in line.chars().chain([' ']).enumerate() {
            match (previous, c) {
                ('{', '{' | '%') => inside = true,
                ('}' | '%', '}') => inside = false,
                _ => {}
            }
            let word = c.is_alphanumeric() || c == '_';
            match (word, word_start) {
                (true, None) => word_start = Some(column),
                (false, Some(start)) => {
                    word_start = None;
                    let found: String = line.chars().skip(start).take(column - start).collect();
                    if inside && found == name {
                        return SourceLocation::at(file, text, index + 1, start + 1, column - start);
                    }
                }
                _ => {}
            }
            previous = c;
        }
    }
    SourceLocation::file(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Vec<(&'static str, usize, usize)> {
        let prompt = Prompt { file: "p.md".into(), text: text.into() };
        let places = prompt.check(Rendering::WithStandIns).into_iter().map(|found| {
            let (line, column) = found.at.span.map_or((0, 0), |span| (span.line, span.column));
            (found.code, line, column)
        });
        places.collect()
    }

    #[test]
    fn a_prompt_may_use_the_known_variables_and_builtin_filters() {
        assert_eq!(check("You are {{ agent }}/{{ mode|upper }} in {{ cwd }}."), []);
        assert_eq!(check("no template at all, { braces } or not"), []);
    }

    #[test]
    fn an_unknown_variable_is_found_where_it_stands() {
        assert_eq!(check("modell\n{% if cwd %}{{ modell }}{% endif %}"), [("E112", 2, 16)]);
    }

    #[test]
    fn a_template_that_cannot_be_filled_in_is_an_error() {
        assert_eq!(check("a\n{{ cwd "), [("E113", 2, 1)]);
        assert_eq!(check("{{ cwd|nosuchfilter }}"), [("E113", 1, 1)]);
        assert_eq!(check("{% for i in range(1000) %}{% for j in range(1000) %}x{% endfor %}{% endfor %}")[0].0, "E113");
    }

    #[test]
    fn a_project_prompt_is_not_filled_in_by_a_check() {
        let prompt = Prompt { file: "p.md".into(), text: "{% for i in cwd|int %}{% endfor %}".into() };
        assert_eq!(prompt.check(Rendering::Never), []);
        assert_eq!(prompt.check(Rendering::WithStandIns).len(), 1);
        let bomb = Prompt { text: "a\n{{ \"x\" * 100000000 }}".into(), ..prompt };
        let found = bomb.check(Rendering::Never);
        assert_eq!((found[0].code, found[0].at.span.as_ref().map(|span| span.line)), ("E113", Some(2)));
        assert_eq!(found[0].problem, "the prompt uses what templates do not have: `*` is not available");
    }
}
