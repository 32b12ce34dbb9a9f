//! Checks a recipe for errors that its schema cannot express.

use std::collections::BTreeSet;

use super::Recipe;
use super::response::ResponseSchema;
use super::values::{FOLDER, ValueError, fits};
use crate::diagnostic::{Diagnostic, SourceLocation};
use crate::ids::nearest;
use crate::manifest::{self, DocumentPath, ExtensionKind, InputType, RecipeParameter, Requirement, TemplateError};

pub(super) fn check(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let before = found.len();
    check_recipe(recipe, found);
    for index in 0..recipe.file.parameters.len() {
        parameter(recipe, index, found);
    }
    templates(recipe, found);
    extensions(recipe, found);
    sub_names(recipe, found);
    if let Some(response) = &recipe.file.response
        && let Err(reason) = ResponseSchema::new(&response.json_schema)
    {
        let at = recipe.text.key_place(&DocumentPath::root().key("response").key("json_schema"));
        let help = "write a JSON Schema, as `type: object` with `properties`";
        found.push(Diagnostic::error("E127", at, format!("`json_schema` is no JSON Schema: {reason}"), help));
    }
    found[before..].sort_by(|one, other| one.at.cmp(&other.at));
}

fn check_recipe(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let file = &recipe.file;
    let says = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.trim().is_empty());
    if !says(&file.instructions) && !says(&file.prompt) {
        let problem = "the recipe has neither `instructions` nor a `prompt`";
        let help = "add `prompt: |` with what is to be done";
        found.push(Diagnostic::error("E012", recipe.text.place(&DocumentPath::root()), problem, help));
    }
    let major = file.version.split('.').next().and_then(|major| major.parse::<u64>().ok());
    if major.is_some_and(|major| major > 1) {
        let at = recipe.text.place(&DocumentPath::root().key("version"));
        let problem = format!("this recipe has version {}, and this skein reads 1", file.version);
        found.push(Diagnostic::error("E008", at, problem, "use a newer skein"));
    }
}

fn parameter(recipe: &Recipe, index: usize, found: &mut Vec<Diagnostic>) {
    let all = &recipe.file.parameters;
    let (parameter, at) = (&all[index], DocumentPath::root().key("parameters").index(index));
    let key = &parameter.key.0;
    let place = |field: &str| recipe.text.place(&at.key(field));
    if let Some(first) = all[..index].iter().position(|earlier| earlier.key == parameter.key) {
        let first = recipe.text.place(&DocumentPath::root().key("parameters").index(first).key("key"));
        let problem = format!("two parameters are called `{key}`");
        found.push(
            Diagnostic::error("E101", place("key"), problem, "keep one of the two")
                .with_related(first, "first defined here"),
        );
    }
    if key == FOLDER {
        let problem = format!("`{FOLDER}` is the folder of the recipe and cannot be a parameter");
        found.push(Diagnostic::error("E124", place("key"), problem, "choose another key"));
    }
    let mut wrong = |field: &str, problem: String, help: &str| {
        found.push(Diagnostic::error("E124", place(field), problem, help));
    };
    let select = parameter.input_type == InputType::Select;
    if select && parameter.options.is_empty() {
        wrong(
            "input_type",
            format!("the parameter `{key}` is a select without `options`"),
            "add `options: [one, two]`",
        );
    }
    if !select && !parameter.options.is_empty() {
        wrong("options", format!("the parameter `{key}` has options and is no select"), "write `input_type: select`");
    }
    match &parameter.default {
        None if parameter.requirement == Requirement::Optional && parameter.input_type != InputType::File => {
            let help = "add a `default`, or make it `required`; an empty text is `default: \"\"`";
            wrong("requirement", format!("the parameter `{key}` is optional and has no default"), help);
        }
        Some(_) if parameter.input_type == InputType::File => {
            let help = "remove the default: only the user says which file is read";
            wrong("default", format!("the parameter `{key}` is a file and has a default"), help);
        }
        Some(default) if !(select && parameter.options.is_empty()) => {
            if let Err(reason) = fits_or_empty(parameter, &default.text()) {
                wrong("default", format!("the default of `{key}` does not fit: {reason}"), "correct the default");
            }
        }
        _ => {}
    }
}

/// Checks a default; an optional parameter may be empty.
fn fits_or_empty(parameter: &RecipeParameter, text: &str) -> Result<(), ValueError> {
    if text.is_empty() && parameter.requirement == Requirement::Optional { Ok(()) } else { fits(parameter, text) }
}

/// Checks that every used parameter is declared, and every declared one is used.
fn templates(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let mut used = BTreeSet::new();
    let mut unread = false;
    for (at, text) in recipe.templates() {
        match manifest::variables_of(text) {
            Ok(names) => used.extend(names),
            Err(TemplateError { line, reason, .. }) => {
                unread = true;
                let line = line.filter(|_| text.contains('\n')).map(|line| format!(" at its line {line}"));
                let problem = format!("`{at}` cannot be filled in{}: {reason}", line.unwrap_or_default());
                let help = "write a parameter as `{{ key }}`, and {{ \"{{\" }} for literal braces";
                found.push(Diagnostic::error("E113", recipe.text.place(&at), problem, help));
            }
        }
    }
    let keys: Vec<_> = recipe.file.parameters.iter().map(|parameter| parameter.key.0.as_str()).collect();
    for name in used.iter().filter(|name| *name != FOLDER && !keys.contains(&name.as_str())) {
        let help = match nearest(name, keys.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("add a parameter with `key: {name}`"),
        };
        let at = manifest::place_in_tags(&recipe.text.file, &recipe.text.text, name);
        found.push(Diagnostic::error("E112", at, format!("`{name}` is used and is no parameter of the recipe"), help));
    }
    // An unreadable template may use any parameter.
    let unused = keys.iter().enumerate().filter(|(_, key)| !unread && **key != FOLDER && !used.contains(**key));
    for (index, key) in unused {
        let at = recipe.text.place(&DocumentPath::root().key("parameters").index(index).key("key"));
        let help = "use it as `{{ key }}`, or remove it: Skein asks the user for it";
        found.push(Diagnostic::warning("W207", at, format!("the parameter `{key}` is used nowhere"), help));
    }
}

fn extensions(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let mut names = BTreeSet::new();
    for (index, extension) in recipe.file.extensions.iter().enumerate() {
        let at = DocumentPath::root().key("extensions").index(index);
        let problem = match manifest::recipe_service(extension, |name| names.contains(name)) {
            Ok(Some(entry)) => {
                names.insert(entry.manifest.name.to_string());
                continue;
            }
            Ok(None) => continue,
            Err(reason) => format!("the extension `{}` cannot be used: {reason}", extension.name),
        };
        let usable = matches!(extension.kind, ExtensionKind::Stdio | ExtensionKind::StreamableHttp);
        let help = if usable {
            "give it a unique name, and a `cmd` with `args`, or a `uri`"
        } else {
            "use `stdio` with a `cmd`, `streamable_http` with a `uri`, or `builtin`"
        };
        found.push(Diagnostic::error("E125", recipe.text.place(&at.key("type")), problem, help));
    }
}

fn sub_names(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let subs = &recipe.file.sub_recipes;
    for (index, sub) in subs.iter().enumerate() {
        let Some(first) = subs[..index].iter().position(|earlier| earlier.name == sub.name) else { continue };
        let place = |index| recipe.text.place(&DocumentPath::root().key("sub_recipes").index(index).key("name"));
        let problem = format!("two sub-recipes are called `{}`", sub.name);
        let twice = Diagnostic::error("E101", place(index), problem, "rename one of the two");
        found.push(twice.with_related(place(first), "first defined here"));
    }
}

/// Reports parameters in the extensions of a sub-recipe. The user consents to its programs before an agent chooses any
/// value.
pub(super) fn is_plain(sub: &Recipe, found: &mut Vec<Diagnostic>) {
    let in_extensions = |at: &DocumentPath| at.to_string().starts_with("extensions[");
    for (at, text) in sub.templates().into_iter().filter(|(at, _)| in_extensions(at)) {
        let used = manifest::variables_of(text).unwrap_or_default();
        let Some(name) = used.iter().find(|name| *name != FOLDER) else { continue };
        let problem = format!("the parameter `{name}` chooses a service of a sub-recipe");
        let help = "write the value out: in a sub-recipe the agent would choose what is started";
        found.push(Diagnostic::error("E126", sub.text.place(&at), problem, help));
    }
}

/// Checks that the values a recipe sets for a sub-recipe match the sub-recipe's parameters.
pub(super) fn values_of(recipe: &Recipe, index: usize, sub: &Recipe, found: &mut Vec<Diagnostic>) {
    let given = &recipe.file.sub_recipes[index];
    let at = DocumentPath::root().key("sub_recipes").index(index).key("values");
    for (key, value) in &given.values {
        let parameter = sub.file.parameters.iter().find(|parameter| parameter.key.0 == *key);
        let text = value.text();
        let (problem, help) = match parameter {
            None => {
                let known = sub.file.parameters.iter().map(|parameter| parameter.key.0.as_str());
                let near = nearest(key, known).map(|near| format!("did you mean `{near}`?"));
                let help = near.unwrap_or_else(|| "remove it, or add the parameter there".to_owned());
                (format!("`{key}` is no parameter of the sub-recipe `{}`", given.name), help)
            }
            Some(_) if text.contains("{{") => continue,
            Some(parameter) => match fits(parameter, &text) {
                Ok(()) => continue,
                Err(reason) => (format!("`{key}` does not fit: {reason}"), "correct the value".to_owned()),
            },
        };
        let place: SourceLocation = recipe.text.key_place(&at.key(key));
        found.push(Diagnostic::error("E126", place, problem, help));
    }
}
