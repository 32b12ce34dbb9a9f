//! Checks the values of a recipe's parameters: finds missing ones, validates types and reads files.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use super::Recipe;
use crate::ids::nearest;
use crate::manifest::{InputType, RecipeParameter, Requirement, Scalar};

/// The parameter that every recipe can use: its folder.
pub const FOLDER: &str = "recipe_dir";

/// The maximum size of a file parameter. Its text becomes part of a prompt; an agent should read a larger file in
/// parts.
const MAX_FILE: u64 = 256 * 1024;

/// Why the value of a parameter cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    #[error("\"{}\" is no number", shorten(.0))]
    NotNumber(String),
    #[error("\"{}\" is neither true nor false", shorten(.0))]
    NotBoolean(String),
    #[error("\"{}\" is no date as 2026-01-31", shorten(.0))]
    NotDate(String),
    #[error("\"{}\" is none of its options: {}", shorten(.value), .options.join(", "))]
    NotOption { value: String, options: Vec<String> },
    #[error("no file is named")]
    NoFile,
    #[error("{name} cannot be read: {source}")]
    Unreadable { name: String, source: std::io::Error },
    #[error("{name} is no regular file")]
    NotRegularFile { name: String },
    #[error("{name} is larger than {MAX_FILE} bytes; let the agent read it itself")]
    TooLarge { name: String },
    #[error("{name} is no text")]
    NotText { name: String },
    #[error("{name} is outside the working directory")]
    Outside { name: String },
}

/// A problem with the values that a user or a recipe gives.
#[derive(Debug, thiserror::Error)]
pub enum ParameterError {
    #[error("`{key}` is no parameter of the recipe{}", suggest(.near.as_deref()))]
    Unknown { key: String, near: Option<String> },
    #[error("the parameter `{key}` is missing: {description}")]
    Missing { key: String, description: String },
    #[error("the parameter `{key}` does not fit: {source}")]
    Value { key: String, source: ValueError },
}

fn suggest(near: Option<&str>) -> String {
    near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default()
}

/// Returns the start of a value, for messages.
fn shorten(value: &str) -> String {
    value.chars().take(60).collect()
}

impl Recipe {
    /// Returns the parameters that need a value and have none. If `asking`, includes those that prompt the user despite
    /// a default.
    pub fn missing(&self, given: &BTreeMap<String, String>, asking: bool) -> Vec<&RecipeParameter> {
        let needs = |parameter: &&RecipeParameter| match parameter.requirement {
            _ if given.contains_key(&parameter.key.0) => false,
            Requirement::UserPrompt => asking || parameter.default.is_none(),
            Requirement::Required => parameter.default.is_none(),
            Requirement::Optional => false,
        };
        self.file.parameters.iter().filter(needs).collect()
    }

    /// Returns all values to fill in, or all problems with the given ones. `read` returns the text of a file that a
    /// value names.
    pub fn values(
        &self,
        given: &BTreeMap<String, String>,
        read: impl Fn(&str) -> Result<String, ValueError>,
    ) -> Result<BTreeMap<String, String>, Vec<ParameterError>> {
        let mut wrong = Vec::new();
        let known = || self.file.parameters.iter().map(|parameter| parameter.key.0.as_str());
        for key in given.keys().filter(|key| !known().any(|known| known == *key)) {
            let near = nearest(key, known()).map(str::to_owned);
            wrong.push(ParameterError::Unknown { key: key.clone(), near });
        }
        for parameter in self.missing(given, false) {
            let (key, description) = (parameter.key.0.clone(), parameter.description.clone());
            wrong.push(ParameterError::Missing { key, description });
        }
        let mut values = BTreeMap::from([(FOLDER.to_owned(), self.folder().display().to_string())]);
        for parameter in &self.file.parameters {
            let key = &parameter.key.0;
            let (value, checked) = match given.get(key) {
                Some(value) => (value.clone(), fits(parameter, value)),
                None => (parameter.default.as_ref().map(|default| default.text()).unwrap_or_default(), Ok(())),
            };
            let value = checked.and_then(|()| match parameter.input_type {
                InputType::File if given.contains_key(key) => read(&value),
                _ => Ok(value),
            });
            match value {
                Ok(value) => drop(values.insert(key.clone(), value)),
                Err(source) => wrong.push(ParameterError::Value { key: key.clone(), source }),
            }
        }
        if wrong.is_empty() { Ok(values) } else { Err(wrong) }
    }
}

/// Checks that a value matches the type of the parameter.
pub(super) fn fits(parameter: &RecipeParameter, text: &str) -> Result<(), ValueError> {
    match parameter.input_type {
        InputType::String => Ok(()),
        InputType::Number if text.trim().parse::<f64>().is_ok_and(f64::is_finite) => Ok(()),
        InputType::Number => Err(ValueError::NotNumber(text.to_owned())),
        InputType::Boolean if ["true", "false"].contains(&text) => Ok(()),
        InputType::Boolean => Err(ValueError::NotBoolean(text.to_owned())),
        InputType::Date if is_date(text) => Ok(()),
        InputType::Date => Err(ValueError::NotDate(text.to_owned())),
        InputType::File if text.trim().is_empty() => Err(ValueError::NoFile),
        InputType::File => Ok(()),
        InputType::Select => {
            let options: Vec<_> = parameter.options.iter().map(Scalar::text).collect();
            if options.iter().any(|option| option == text) {
                return Ok(());
            }
            Err(ValueError::NotOption { value: text.to_owned(), options })
        }
    }
}

fn is_date(text: &str) -> bool {
    let parts: Vec<_> = text.split('-').collect();
    let [year, month, day] = parts.as_slice() else { return false };
    let number = |part: &str, digits: usize| {
        (part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit())).then(|| part.parse::<u32>().ok())?
    };
    let (Some(year), Some(month), Some(day)) = (number(year, 4), number(month, 2), number(day, 2)) else {
        return false;
    };
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    (1..=12).contains(&month) && (1..=days).contains(&day)
}

/// Reads a file that the user named, relative to `cwd`. Fails if it is not a regular file, too large or not UTF-8.
pub fn file_named(name: &str, cwd: &Path) -> Result<String, ValueError> {
    let path = cwd.join(name);
    let owned = || name.to_owned();
    let unreadable = |source| ValueError::Unreadable { name: owned(), source };
    // Reading a pipe or a device could block forever.
    if !fs::metadata(&path).map_err(unreadable)?.is_file() {
        return Err(ValueError::NotRegularFile { name: owned() });
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(&path).map_err(unreadable)?;
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(ValueError::TooLarge { name: owned() });
    }
    String::from_utf8(bytes).map_err(|_| ValueError::NotText { name: owned() })
}

/// Reads a file that the user did not choose; it must be below `cwd`, with links resolved.
pub fn file_below(name: &str, cwd: &Path) -> Result<String, ValueError> {
    let unreadable = |source| ValueError::Unreadable { name: name.to_owned(), source };
    let real = fs::canonicalize(cwd.join(name)).map_err(unreadable)?;
    if !fs::canonicalize(cwd).is_ok_and(|cwd| real.starts_with(cwd)) {
        return Err(ValueError::Outside { name: name.to_owned() });
    }
    file_named(&real.to_string_lossy(), cwd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parameter(input_type: &str) -> RecipeParameter {
        let fields = json!({"key": "k", "input_type": input_type, "requirement": "required", "description": "x",
            "options": ["one", 2]});
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn a_value_is_of_its_type() {
        for (input_type, good, bad) in [
            ("number", vec!["1", "-2.5", "1e3"], vec!["", "many", "NaN", "inf"]),
            ("boolean", vec!["true", "false"], vec!["True", "yes", ""]),
            (
                "date",
                vec!["2026-01-31", "2024-02-29", "2000-02-29"],
                vec![
                    "2026-13-01",
                    "2026-00-01",
                    "2026-04-31",
                    "2026-02-29",
                    "1900-02-29",
                    "26-1-1",
                    "2026-01-31T00:00",
                    "+026-01-01",
                ],
            ),
            ("select", vec!["one", "2"], vec!["three", ""]),
            ("string", vec!["", "anything"], vec![]),
        ] {
            let parameter = parameter(input_type);
            assert!(good.iter().all(|text| fits(&parameter, text).is_ok()), "{input_type}: {good:?}");
            assert!(bad.iter().all(|text| fits(&parameter, text).is_err()), "{input_type}: {bad:?}");
        }
    }

    #[test]
    fn a_file_that_an_agent_names_lies_below_the_working_directory() {
        let folder = tempfile::tempdir().unwrap();
        let cwd = folder.path().join("work");
        fs::create_dir(&cwd).unwrap();
        fs::write(folder.path().join("secret"), "s").unwrap();
        fs::write(cwd.join("notes"), "n").unwrap();
        std::os::unix::fs::symlink("../secret", cwd.join("link")).unwrap();
        assert_eq!(file_below("notes", &cwd).unwrap(), "n");
        for name in ["../secret", "link", "/etc/passwd", "gone"] {
            assert!(file_below(name, &cwd).is_err(), "{name}");
        }
        assert_eq!(file_named("../secret", &cwd).unwrap(), "s", "a user may name any file");
    }

    #[test]
    fn a_file_that_is_too_large_or_no_text_is_not_filled_in() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("large"), vec![b'x'; 256 * 1024 + 1]).unwrap();
        fs::write(folder.path().join("binary"), [0xff, 0xfe]).unwrap();
        assert!(matches!(file_named("large", folder.path()), Err(ValueError::TooLarge { .. })));
        assert!(matches!(file_named("binary", folder.path()), Err(ValueError::NotText { .. })));
    }
}
