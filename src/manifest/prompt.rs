//! A mode's prompt: Markdown with minijinja variables, checked when it is read, so that a session never meets
//! a template that cannot be filled in.

use std::collections::BTreeMap;

use minijinja::{Environment, ErrorKind, UndefinedBehavior};

use crate::diagnostic::{Diagnostic, Place};
use crate::ids::nearest;

/// What a prompt may refer to. A session fills them in at every turn.
pub const VARIABLES: [&str; 6] = ["agent", "mode", "cwd", "date", "os", "delegates"];

/// Enough for any prompt with a loop or two; a template that wants more is an accident or an attack.
const FUEL: u64 = 50_000;

/// A prompt file as it was read.
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
    /// Whom the agent may hand work to, a line each; empty if nobody.
    pub delegates: &'a str,
}

/// Text with variables of its own, filled in under the same limits. Whatever it uses must be among the values.
pub fn fill_in(text: &str, values: &BTreeMap<String, String>) -> Result<String, String> {
    environment().render_str(text, values).map_err(|error| {
        let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
        error.line().map_or_else(|| detail.clone(), |line| format!("line {line}: {detail}"))
    })
}

/// What a text refers to and does not set itself, sorted; or the line at which it is no template, and why.
pub fn variables_of(text: &str) -> Result<Vec<String>, (Option<usize>, String)> {
    let environment = environment();
    let template = environment.template_from_str(text).map_err(|error| {
        let reason = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
        (error.line(), reason)
    })?;
    let mut used: Vec<_> = template.undeclared_variables(false).into_iter().collect();
    used.retain(|name| !environment.globals().any(|(global, _)| global == name));
    used.sort();
    Ok(used)
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(FUEL));
    environment
}

impl Prompt {
    /// The text with its variables filled in.
    pub fn fill_in(&self, values: &PromptValues<'_>) -> Result<String, String> {
        let PromptValues { agent, mode, cwd, date, os, delegates } = *values;
        let values = minijinja::context! { agent, mode, cwd, date, os, delegates };
        environment()
            .render_named_str(&self.file, &self.text, values)
            .map_err(|error| format!("{}: {error}", self.file))
    }

    /// Every reason why this prompt could not be filled in.
    pub fn check(&self) -> Vec<Diagnostic> {
        if !self.text.contains("{{") && !self.text.contains("{%") && !self.text.contains("{#") {
            return Vec::new();
        }
        let environment = environment();
        let template = match environment.template_from_named_str(&self.file, &self.text) {
            Ok(template) => template,
            Err(error) => return vec![self.template_error(&error)],
        };
        let mut unknown: Vec<_> = template
            .undeclared_variables(false)
            .into_iter()
            .filter(|name| !VARIABLES.contains(&name.as_str()))
            .filter(|name| !environment.globals().any(|(global, _)| global == name))
            .collect();
        unknown.sort();
        if unknown.is_empty() {
            // Filters and functions are looked up when a template is filled in, so it is, with stand-ins.
            let stand_ins: BTreeMap<_, _> = VARIABLES.iter().map(|name| (*name, *name)).collect();
            return template.render(stand_ins).err().map(|error| self.template_error(&error)).into_iter().collect();
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

    fn template_error(&self, error: &minijinja::Error) -> Diagnostic {
        let place = match error.line() {
            Some(line) => Place::at(&self.file, &self.text, line, 1, usize::MAX),
            None => Place::file(&self.file),
        };
        let (problem, help) = match (error.kind(), error.detail()) {
            (ErrorKind::OutOfFuel, _) => {
                ("the prompt takes too long to fill in".to_owned(), "shorten its loops, or write the text out")
            }
            (kind, detail) => {
                let reason = detail.map_or_else(|| kind.to_string(), str::to_owned);
                let help = "correct the template; write {{ \"{{\" }} for literal braces";
                (format!("the prompt is not a valid template: {reason}"), help)
            }
        };
        Diagnostic::error("E113", place, problem, help)
    }

    fn place_of(&self, name: &str) -> Place {
        place_in_tags(&self.file, &self.text, name)
    }
}

/// minijinja tells which variables are unknown but not where: the first use inside a tag is looked up.
pub fn place_in_tags(file: &str, text: &str, name: &str) -> Place {
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
                        return Place::at(file, text, index + 1, start + 1, column - start);
                    }
                }
                _ => {}
            }
            previous = c;
        }
    }
    Place::file(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Vec<(&'static str, usize, usize)> {
        let prompt = Prompt { file: "p.md".into(), text: text.into() };
        let places = prompt.check().into_iter().map(|found| {
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
        assert_eq!(
            check("{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}")[0].0,
            "E113"
        );
    }
}
