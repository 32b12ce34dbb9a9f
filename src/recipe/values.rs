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
        read: impl Fn(&str) -> Result<String, String>,
    ) -> Result<BTreeMap<String, String>, Vec<String>> {
        let mut wrong = Vec::new();
        let known = || self.file.parameters.iter().map(|parameter| parameter.key.0.as_str());
        for key in given.keys().filter(|key| !known().any(|known| known == *key)) {
            let near = nearest(key, known()).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            wrong.push(format!("`{key}` is no parameter of the recipe{near}"));
        }
        for parameter in self.missing(given, false) {
            wrong.push(format!("the parameter `{}` is missing: {}", parameter.key.0, parameter.description));
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
                Err(reason) => wrong.push(format!("the parameter `{key}` does not fit: {reason}")),
            }
        }
        if wrong.is_empty() { Ok(values) } else { Err(wrong) }
    }
}

/// Checks that a value matches the type of the parameter.
pub(super) fn fits(parameter: &RecipeParameter, text: &str) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("\"{}\" is {what}", text.chars().take(60).collect::<String>()));
    match parameter.input_type {
        InputType::String => Ok(()),
        InputType::Number if text.trim().parse::<f64>().is_ok_and(f64::is_finite) => Ok(()),
        InputType::Number => wrong("no number"),
        InputType::Boolean if ["true", "false"].contains(&text) => Ok(()),
        InputType::Boolean => wrong("neither true nor false"),
        InputType::Date if is_date(text) => Ok(()),
        InputType::Date => wrong("no date as 2026-01-31"),
        InputType::File if text.trim().is_empty() => Err("no file is named".to_owned()),
        InputType::File => Ok(()),
        InputType::Select => {
            let options: Vec<_> = parameter.options.iter().map(Scalar::text).collect();
            if options.iter().any(|option| option == text) {
                return Ok(());
            }
            wrong(&format!("none of its options: {}", options.join(", ")))
        }
    }
}

fn is_date(text: &str) -> bool {
    let parts: Vec<_> = text.split('-').collect();
    let [year, month, day] = parts.as_slice() else { return false };
    let number = |part: &str, digits: usize| {
        (part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit())).then(|| part.parse::<u32>().ok())?
    };
    let long = |month: u32| match month {
        2 => 29,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    number(year, 4).is_some()
        && number(month, 2)
            .filter(|month| (1..=12).contains(month))
            .is_some_and(|month| number(day, 2).is_some_and(|day| (1..=long(month)).contains(&day)))
}

/// Reads a file that the user named, relative to `cwd`. Fails if it is not a regular file, too large or not UTF-8.
pub fn file_named(name: &str, cwd: &Path) -> Result<String, String> {
    let path = cwd.join(name);
    let cannot = |error: &std::io::Error| format!("{name} cannot be read: {error}");
    // Reading a pipe or a device could block forever.
    if !fs::metadata(&path).map_err(|error| cannot(&error))?.is_file() {
        return Err(format!("{name} is no regular file"));
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(&path).map_err(|error| cannot(&error))?;
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|error| cannot(&error))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(format!("{name} is larger than {MAX_FILE} bytes; let the agent read it itself"));
    }
    String::from_utf8(bytes).map_err(|_| format!("{name} is no text"))
}

/// Reads a file that the user did not choose; it must be below `cwd`, with links resolved.
pub fn file_below(name: &str, cwd: &Path) -> Result<String, String> {
    let real = fs::canonicalize(cwd.join(name)).map_err(|error| format!("{name} cannot be read: {error}"))?;
    if !fs::canonicalize(cwd).is_ok_and(|cwd| real.starts_with(cwd)) {
        return Err(format!("{name} is outside the working directory"));
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
                vec!["2026-01-31", "2024-02-29"],
                vec!["2026-13-01", "2026-04-31", "26-1-1", "2026-01-31T00:00", "+026-01-01"],
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
        assert_eq!(file_below("notes", &cwd).as_deref(), Ok("n"));
        for name in ["../secret", "link", "/etc/passwd", "gone"] {
            assert!(file_below(name, &cwd).is_err(), "{name}");
        }
        assert_eq!(file_named("../secret", &cwd).as_deref(), Ok("s"), "a user may name any file");
    }

    #[test]
    fn a_file_that_is_too_large_or_no_text_is_not_filled_in() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("large"), vec![b'x'; 256 * 1024 + 1]).unwrap();
        fs::write(folder.path().join("binary"), [0xff, 0xfe]).unwrap();
        assert!(file_named("large", folder.path()).unwrap_err().contains("larger than 262144 bytes"));
        assert!(file_named("binary", folder.path()).unwrap_err().contains("no text"));
    }
}
