//! Reads recipes in goose's format with their sub-recipes, checks them, and fills in their parameters.
//!
//! Invariant: nothing here runs or resolves anything, and every file is read once. The text that was checked, and that
//! the user consented to, is the text that is used.

mod check;
mod response;
mod values;

use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use serde_json::Value;

pub use response::{AnswerError, ResponseSchema};
pub use values::{FOLDER, ParameterError, ValueError, file_below, file_named};

use crate::diagnostic::{Diagnostic, SourceLocation};
use crate::manifest::{self, DocumentKind, DocumentPath, RecipeFile, SchemaError, SourceFile, TemplateError};

/// The maximum nesting depth of sub-recipes.
const MAX_DEPTH: usize = 2;

/// A valid recipe with its sub-recipes.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// The recipe as written, with its templates.
    pub file: RecipeFile,
    /// The path of the file, with links resolved.
    pub path: PathBuf,
    /// The text as read.
    pub text: Arc<SourceFile>,
    value: Value,
    /// In the order of `sub_recipes`.
    pub subs: Vec<Recipe>,
}

/// Why a recipe cannot be used with its values.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    #[error("`{field}` cannot be filled in: {source}")]
    Template { field: String, source: TemplateError },
    #[error("it does not fit once it is filled in: {0}")]
    Format(#[source] serde_json::Error),
    #[error(transparent)]
    ResponseSchema(#[from] SchemaError),
}

/// Returns true if a document without a `kind` looks like a recipe.
pub fn is_recipe(value: &Value) -> bool {
    let has = |field: &str| value.get(field).is_some();
    let ours = ["kind", "modes", "transport", "mcpServers", "profiles"];
    !ours.iter().any(|field| has(field)) && ["title", "instructions", "prompt"].iter().any(|field| has(field))
}

/// Reads a recipe and its sub-recipes, and returns all diagnostics. `shown` is the file name in messages. `None` if
/// there is an error.
pub fn read(path: &FilePath, shown: &str) -> (Option<Recipe>, Vec<Diagnostic>) {
    let mut reader = RecipeReader { above: Vec::new(), found: Vec::new() };
    let recipe = reader.read(path, shown);
    let mut found = reader.found;
    crate::diagnostic::sort(&mut found);
    (recipe.filter(|_| !crate::diagnostic::has_errors(&found)), found)
}

struct RecipeReader {
    /// The chain of recipes above the current one, each with the location that names the next.
    above: Vec<(PathBuf, String, SourceLocation)>,
    found: Vec<Diagnostic>,
}

impl RecipeReader {
    fn read(&mut self, path: &FilePath, shown: &str) -> Option<Recipe> {
        let text = match manifest::read_named(path, shown) {
            Ok(text) => text,
            Err(diagnostic) => {
                self.found.push(*diagnostic);
                return None;
            }
        };
        let source = SourceFile::new(shown, text);
        let mut value = match manifest::parse(&source) {
            Ok(value) => value,
            Err(diagnostic) => {
                self.found.push(*diagnostic);
                return None;
            }
        };
        without_nulls(&mut value);
        let file: RecipeFile = manifest::read_as(DocumentKind::Recipe, value.clone(), &source, &mut self.found)?;
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut recipe = Recipe { file, path, text: source, value, subs: Vec::new() };
        check::check(&recipe, &mut self.found);
        recipe.subs = self.subs(&recipe);
        Some(recipe)
    }

    fn subs(&mut self, recipe: &Recipe) -> Vec<Recipe> {
        let mut subs = Vec::new();
        for (index, sub) in recipe.file.sub_recipes.iter().enumerate() {
            let at = recipe.text.place(&DocumentPath::root().key("sub_recipes").index(index).key("path"));
            let Some(path) = self.sub_path(recipe, &sub.path, &at) else { continue };
            let shown = FilePath::new(&recipe.text.file).with_file_name("").join(sub.path.replace(IN_FOLDER, ""));
            let shown = if path.is_absolute() && sub.path.starts_with('/') { path.clone() } else { shown };
            let shown = shown.display().to_string();
            if !self.may_follow(recipe, &path, &at) {
                continue;
            }
            self.above.push((recipe.path.clone(), recipe.text.file.clone(), at));
            let read = self.read(&path, &shown);
            self.above.pop();
            let Some(read) = read else { continue };
            check::is_plain(&read, &mut self.found);
            check::values_of(recipe, index, &read, &mut self.found);
            subs.push(read);
        }
        subs
    }

    /// Resolves the path of a sub-recipe and reports a missing file. Only `recipe_dir` is filled in, because the file
    /// must be known before anything runs.
    fn sub_path(&mut self, recipe: &Recipe, written: &str, at: &SourceLocation) -> Option<PathBuf> {
        let folder = BTreeMap::from([(FOLDER.to_owned(), recipe.folder().display().to_string())]);
        let filled = manifest::fill_in(written, &folder);
        let path = filled.map(|path| recipe.folder().join(path)).ok().filter(|path| path.exists());
        if path.is_none() {
            let problem = format!("there is no sub-recipe {written}");
            let help = "write the path of a recipe, relative to this file; of the parameters only `recipe_dir` can \
                        stand in it";
            self.found.push(Diagnostic::error("E126", at.clone(), problem, help));
        }
        path
    }

    fn may_follow(&mut self, recipe: &Recipe, path: &FilePath, at: &SourceLocation) -> bool {
        let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let here = (recipe.path.clone(), recipe.text.file.clone(), at.clone());
        let chain: Vec<_> = self.above.iter().chain([&here]).collect();
        if let Some(first) = chain.iter().position(|(above, ..)| *above == real) {
            let round = chain[first..].iter().chain(chain.get(first));
            let names: Vec<_> = round.map(|(_, name, _)| name.as_str()).collect();
            let problem = format!("sub-recipes lead back to where they began: {}", names.join(" → "));
            let found = Diagnostic::error("E110", at.clone(), problem, "remove one of these sub-recipes");
            let edges = chain[first..].iter().zip(names.iter().skip(1));
            self.found.push(edges.fold(found, |found, ((_, _, place), next)| {
                found.with_related(place.clone(), format!("names {next}"))
            }));
            return false;
        }
        if chain.len() > MAX_DEPTH {
            let problem = format!("recipes lie more than {MAX_DEPTH} deep in recipes");
            let help = "let the recipe do this part itself, or name the sub-recipe further up";
            self.found.push(Diagnostic::error("E126", at.clone(), problem, help));
            return false;
        }
        true
    }
}

/// An optional prefix of a path relative to the recipe.
const IN_FOLDER: &str = "{{ recipe_dir }}/";

impl Recipe {
    /// Returns the folder of the recipe.
    pub fn folder(&self) -> &FilePath {
        self.path.parent().unwrap_or_else(|| FilePath::new("/"))
    }

    /// Returns this recipe and all its sub-recipes.
    pub fn all(&self) -> Vec<&Recipe> {
        std::iter::once(self).chain(self.subs.iter().flat_map(Recipe::all)).collect()
    }

    /// Returns the recipe with the values filled in. Fails if a template is invalid or the result does not fit the
    /// format.
    pub fn fill(&self, values: &BTreeMap<String, String>) -> Result<RecipeFile, RecipeError> {
        let mut value = self.value.clone();
        for (field, part) in value.as_object_mut().into_iter().flatten() {
            if is_template(field) {
                fill(part, values).map_err(|source| RecipeError::Template { field: field.clone(), source })?;
            }
        }
        serde_json::from_value(value).map_err(RecipeError::Format)
    }

    /// Returns every text that may contain a parameter.
    fn templates(&self) -> Vec<(DocumentPath, &str)> {
        let mut texts = Vec::new();
        for (field, part) in self.value.as_object().into_iter().flatten().filter(|(field, _)| is_template(field)) {
            collect(part, DocumentPath::root().key(field), &mut texts);
        }
        texts
    }
}

/// Returns false for the fields that describe the recipe, which are not filled in.
fn is_template(field: &str) -> bool {
    !["version", "parameters", "response", "author", "metadata"].contains(&field)
}

/// Removes `null` fields, which programs that save recipes write for missing values. Keeps them in `response`, where a
/// schema may give them a meaning.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.iter_mut().filter(|(key, _)| *key != "response").for_each(|(_, field)| without_nulls(field));
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

fn fill(value: &mut Value, values: &BTreeMap<String, String>) -> Result<(), TemplateError> {
    match value {
        Value::String(text) => *text = manifest::fill_in(text, values)?,
        Value::Array(items) => items.iter_mut().try_for_each(|item| fill(item, values))?,
        Value::Object(fields) => fields.values_mut().try_for_each(|field| fill(field, values))?,
        _ => {}
    }
    Ok(())
}

fn collect<'a>(value: &'a Value, at: DocumentPath, texts: &mut Vec<(DocumentPath, &'a str)>) {
    match value {
        Value::String(text) => texts.push((at, text)),
        Value::Array(items) => items.iter().enumerate().for_each(|(index, item)| collect(item, at.index(index), texts)),
        Value::Object(fields) => fields.iter().for_each(|(key, field)| collect(field, at.key(key), texts)),
        _ => {}
    }
}
