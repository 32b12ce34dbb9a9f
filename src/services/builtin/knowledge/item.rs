//! Parses a skill, a recipe or an agent file into an item with a name and a description, or into a problem with its
//! location and a remedy.

use std::path::{Path, PathBuf};

use super::recipe::RecipeItem;
use super::source_text::{FRONT, Wrong, display_name, parse, text_of};
use crate::manifest::{self, SourceFile};

const MAX_NAME: usize = 64;
/// Maximum size of front matter, and of a recipe, which is YAML as a whole. Every listing parses them.
const MAX_FRONT: usize = 8 * 1024;
const MAX_RECIPE: usize = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemKind {
    Skill,
    Recipe,
    Agent,
}

impl ItemKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            ItemKind::Skill => "skill",
            ItemKind::Recipe => "recipe",
            ItemKind::Agent => "agent",
        }
    }
}

/// The source of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemOrigin {
    Project,
    User,
}

impl ItemOrigin {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            ItemOrigin::Project => "project",
            ItemOrigin::User => "user",
        }
    }
}

/// An item that can be loaded, without its text.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) kind: ItemKind,
    pub(super) name: String,
    /// One line.
    pub(super) description: String,
    pub(super) origin: ItemOrigin,
    /// The path as [`display_name`] formats it, and with links resolved.
    pub(super) shown: String,
    pub(super) file: PathBuf,
    /// The resolved folder that the files of a skill must be in; `None` for other kinds.
    pub(super) folder: Option<PathBuf>,
    pub(super) recipe: Option<RecipeItem>,
}

/// A file that looks like knowledge and cannot be used.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// The item's name according to its path.
    pub(super) name: String,
    /// The path as [`display_name`] formats it.
    pub(super) file: String,
    /// Line and column, both counted from 1.
    pub(super) at: Option<(usize, usize)>,
    pub problem: String,
    pub help: String,
}

impl Problem {
    /// Returns the file, with line and column if they are known.
    pub fn place(&self) -> String {
        match self.at {
            Some((line, column)) => format!("{}:{line}:{column}", self.file),
            None => self.file.clone(),
        }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}; {}", self.place(), self.problem, self.help)
    }
}

/// The parsed contents of a file.
#[derive(Debug)]
pub(super) struct ItemDocument {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) body: String,
    pub(super) recipe: Option<RecipeItem>,
}

/// Returns the number of bytes that are YAML, which determine the cost of parsing.
pub(super) fn weight(kind: ItemKind, text: &str) -> usize {
    match kind {
        ItemKind::Recipe => text.len().min(MAX_RECIPE),
        ItemKind::Skill | ItemKind::Agent => split_front_matter(text).map_or(0, |(front, _)| front.len()),
    }
}

/// Parses the text of a file whose path suggests `name`.
pub(super) fn read(kind: ItemKind, name: &str, file: &Path, text: &str) -> Result<ItemDocument, Wrong> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match kind {
        ItemKind::Recipe if text.len() > MAX_RECIPE => {
            let problem = format!("the recipe has more than {} kB", MAX_RECIPE / 1024);
            Err(Wrong::new(problem, "keep what it is to do, and have it name files for the rest"))
        }
        ItemKind::Recipe => {
            let (recipe, description) = RecipeItem::read(file, text)?;
            let body = recipe.text();
            Ok(ItemDocument { name: check_name(name, None)?, description, body, recipe: Some(recipe) })
        }
        ItemKind::Skill | ItemKind::Agent => {
            let (front, body) = split_front_matter(text)?;
            let source = SourceFile::new("front matter", front);
            let value = parse(&source)?;
            if !value.is_object() {
                return Err(Wrong::at(
                    &source,
                    &manifest::DocumentPath::root(),
                    "the front matter is no mapping",
                    FRONT,
                ));
            }
            let given = text_of(&source, &value, "name")?;
            let description = text_of(&source, &value, "description")?;
            let Some(description) = description.filter(|description| !description.is_empty()) else {
                return Err(Wrong::at(&source, &manifest::DocumentPath::root(), "it has no `description`", DESCRIBE));
            };
            let name = match given {
                Some(given) => check_name(&given, Some(&source))?,
                None => check_name(name, None)?,
            };
            Ok(ItemDocument { name, description, body: body.trim().to_owned(), recipe: None })
        }
    }
}

const DESCRIBE: &str = "add `description: …`: it says when to use the item";

/// Splits a text into front matter and body. Line numbers in the front matter equal those in the file.
fn split_front_matter(text: &str) -> Result<(String, &str), Wrong> {
    let mut lines = text.split_inclusive('\n');
    if lines.next().map(str::trim_end) != Some("---") {
        return Err(Wrong { at: Some((1, 1)), ..Wrong::new("it has no front matter", FRONT) });
    }
    let mut front = String::from("\n");
    for line in lines.by_ref() {
        if line.trim_end() == "---" {
            // The first character of `front` replaces the first line and is counted as its line break.
            let behind = text.find('\n').unwrap_or_default() + front.len() + line.len();
            return Ok((front, &text[behind..]));
        }
        front.push_str(line);
        if front.len() > MAX_FRONT {
            let problem = format!("the front matter has more than {} kB, or no end", MAX_FRONT / 1024);
            let help = "close it with a line `---`, and put what it does not need for `name` and `description` below";
            return Err(Wrong { at: Some((1, 1)), ..Wrong::new(problem, help) });
        }
    }
    Err(Wrong { at: Some((1, 1)), ..Wrong::new("the front matter has no end", "close it with a line `---`") })
}

/// Checks a name. It must be valid after a slash and in a URI.
pub(super) fn check_name(name: &str, source: Option<&SourceFile>) -> Result<String, Wrong> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let good =
        name.len() <= MAX_NAME && name.chars().all(fits) && name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if good {
        return Ok(name.to_owned());
    }
    let problem = format!("`{}` is no name", display_name(name));
    let help = format!("use up to {MAX_NAME} letters, digits, `-`, `_` and `.`, beginning with a letter or a digit");
    Err(match source {
        Some(source) => Wrong::at(source, &manifest::DocumentPath::root().key("name"), problem, &help),
        None => Wrong::new(problem, help),
    })
}
