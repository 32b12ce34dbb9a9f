//! Parses recipes in goose's format: instructions and a prompt with parameters.
//!
//! Invariant: a recipe is only text here. Its extensions, models and sub-recipes are reported but not used.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::file::KnowledgeFileError;
use super::source_text::{Wrong, display_name, one_line, parse, text_of};
use crate::manifest::{self, SourceFile, TemplateError};

/// The supported keys; any other key is reported.
const KNOWN: [&str; 9] =
    ["version", "title", "description", "instructions", "prompt", "parameters", "author", "activities", "metadata"];

const MAX_KEY: usize = 64;
/// Maximum number of parameters; no user fills in a longer form.
const MAX_PARAMETERS: usize = 50;

/// Why the values for a recipe cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecipeItemError {
    #[error("`{key}` is no parameter of it; it has {known}")]
    UnknownParameter { key: String, known: String },
    #[error("it needs {missing}")]
    MissingParameters { missing: String },
    #[error("`{key}` is one of {options}")]
    NotOption { key: String, options: String },
    #[error("the file for `{key}` cannot be read: {source}")]
    File { key: String, source: KnowledgeFileError },
    #[error("its text cannot be filled in: {0}")]
    Template(#[from] TemplateError),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct RecipeItem {
    instructions: String,
    prompt: String,
    pub(super) parameters: Vec<ItemParameter>,
    /// Keys of the recipe that are not supported.
    pub(super) undone: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ItemParameter {
    pub(super) key: String,
    pub(super) description: String,
    pub(super) required: bool,
    default: String,
    options: Vec<String>,
    /// The value names a file, and the file's text is inserted.
    file: bool,
}

impl ItemParameter {
    /// Returns the options and the default as JSON Schema, for a form. `None` if there are none.
    pub(super) fn form_schema(&self) -> Option<Value> {
        let mut schema = Map::new();
        if !self.options.is_empty() {
            schema.insert("enum".to_owned(), json!(self.options));
        }
        if !self.default.is_empty() {
            schema.insert("default".to_owned(), json!(self.default));
        }
        (!schema.is_empty()).then_some(Value::Object(schema))
    }
}

impl RecipeItem {
    /// Parses a recipe. Returns it with its description.
    pub(super) fn read(file: &Path, text: &str) -> Result<(Self, String), Wrong> {
        let source = SourceFile::new(file.display().to_string(), text);
        let value = parse(&source)?;
        let root = manifest::DocumentPath::root();
        let Some(fields) = value.as_object() else {
            return Err(Wrong::at(&source, &root, "it is no mapping", RECIPE));
        };
        let whole = |key: &str| match &value[key] {
            Value::Null => Ok(String::new()),
            Value::String(text) => Ok(text.trim().to_owned()),
            _ => Err(Wrong::at(&source, &root.key(key), format!("`{key}` is not text"), "write it as text, after `|`")),
        };
        let (instructions, prompt) = (whole("instructions")?, whole("prompt")?);
        if instructions.is_empty() && prompt.is_empty() {
            return Err(Wrong::at(&source, &root, "it has neither `instructions` nor a `prompt`", RECIPE));
        }
        let description = text_of(&source, &value, "description")?.filter(|description| !description.is_empty());
        let Some(description) = description.or(text_of(&source, &value, "title")?) else {
            return Err(Wrong::at(&source, &root, "it has neither a `title` nor a `description`", RECIPE));
        };
        let parameters = parameters(&source, &value)?;
        let undone = fields.keys().filter(|key| !KNOWN.contains(&key.as_str())).map(|key| display_name(key)).collect();
        Ok((Self { instructions, prompt, parameters, undone }, description))
    }

    /// Returns the text with its placeholders.
    pub(super) fn text(&self) -> String {
        let parts: Vec<_> = [&self.instructions, &self.prompt].into_iter().filter(|part| !part.is_empty()).collect();
        parts.into_iter().cloned().collect::<Vec<_>>().join("\n\n")
    }

    /// Returns the text with the given values filled in. `folder` contains the recipe. `read` returns the text of a
    /// file that a value names.
    pub(super) fn fill_in(
        &self,
        given: &Map<String, Value>,
        folder: &Path,
        read: impl Fn(&str) -> Result<String, KnowledgeFileError>,
    ) -> Result<String, RecipeItemError> {
        let known =
            || self.parameters.iter().map(|parameter| format!("`{}`", parameter.key)).collect::<Vec<_>>().join(", ");
        if let Some(key) = given.keys().find(|key| self.parameters.iter().all(|known| known.key != **key)) {
            return Err(RecipeItemError::UnknownParameter { key: display_name(key), known: known() });
        }
        let missing: Vec<_> =
            self.parameters.iter().filter(|wanted| wanted.required && !given.contains_key(&wanted.key)).collect();
        if !missing.is_empty() {
            let tell = |wanted: &&ItemParameter| format!("`{}` ({})", wanted.key, wanted.description);
            let missing = missing.iter().map(tell).collect::<Vec<_>>().join(" and ");
            return Err(RecipeItemError::MissingParameters { missing });
        }
        let mut values = BTreeMap::from([("recipe_dir".to_owned(), folder.display().to_string())]);
        for parameter in &self.parameters {
            let value = match given.get(&parameter.key) {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                None => parameter.default.clone(),
            };
            if given.contains_key(&parameter.key)
                && !parameter.options.is_empty()
                && !parameter.options.contains(&value)
            {
                let options = one_line(&parameter.options.join(", "));
                return Err(RecipeItemError::NotOption { key: parameter.key.clone(), options });
            }
            let value = if parameter.file && !value.is_empty() {
                read(&value).map_err(|source| RecipeItemError::File { key: parameter.key.clone(), source })?
            } else {
                value
            };
            values.insert(parameter.key.clone(), value);
        }
        Ok(manifest::fill_in(&self.text(), &values)?)
    }
}

const RECIPE: &str = "a recipe has `title`, `description` and `instructions` or a `prompt`";

fn parameters(source: &SourceFile, value: &Value) -> Result<Vec<ItemParameter>, Wrong> {
    let at = manifest::DocumentPath::root().key("parameters");
    let listed = match &value["parameters"] {
        Value::Null => return Ok(Vec::new()),
        Value::Array(listed) => listed,
        _ => return Err(Wrong::at(source, &at, "`parameters` is no list", "write each as `- key: …`")),
    };
    if listed.len() > MAX_PARAMETERS {
        let problem = format!("it has {} parameters", listed.len());
        return Err(Wrong::at(source, &at, problem, &format!("have up to {MAX_PARAMETERS}")));
    }
    let read = |(index, parameter): (usize, &Value)| {
        let at = at.index(index);
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let fits = |key: &&str| (1..=MAX_KEY).contains(&key.len()) && key.chars().all(word);
        let key = parameter["key"].as_str().filter(fits);
        let key = key.ok_or_else(|| {
            let help = "give it a `key` of up to 64 letters, digits and `_`, as the text uses it";
            Wrong::at(source, &at, "the parameter has no usable `key`", help)
        })?;
        if listed[..index].iter().any(|earlier| earlier["key"] == key) {
            let problem = format!("two parameters are called `{key}`");
            return Err(Wrong::at(source, &at.key("key"), problem, "keep one of the two"));
        }
        let file = parameter["input_type"] == "file";
        if file && !parameter["default"].is_null() {
            let problem = format!("the parameter `{key}` is a file and has a default");
            let help = "remove the default: only the user says which file is read";
            return Err(Wrong::at(source, &at.key("default"), problem, help));
        }
        let scalar = |value: &Value| match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let options = parameter["options"].as_array().map(|options| options.iter().map(scalar).collect());
        Ok(ItemParameter {
            key: key.to_owned(),
            description: one_line(&scalar(&parameter["description"])),
            required: parameter["requirement"] != "optional" && parameter["default"].is_null(),
            default: scalar(&parameter["default"]),
            options: options.unwrap_or_default(),
            file,
        })
    };
    listed.iter().enumerate().map(read).collect()
}
