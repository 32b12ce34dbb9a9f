//! Asks the user the questions of services at the terminal: whether to answer at all, then each field; or shows a page
//! to open.
//!
//! Invariant: the question names the service that asks, and only values that the user typed or chose are sent.

use std::io::Write as _;
use std::sync::atomic::AtomicBool;

use anstyle::AnsiColor;
use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

use super::keyboard::{Key, Keyboard};
use super::output::{BOLD, QUIET, clear_line, display_line};
use super::wrap::{paragraph, screen_width};
use crate::tool::elicit::{Elicitation, ElicitationKind, ElicitationResponse, host};

/// Shows the question and waits for the answer.
pub(super) fn put(
    question: &Elicitation,
    keyboard: &Keyboard,
    given_up: &AtomicBool,
) -> std::io::Result<ElicitationResponse> {
    let mut stderr = anstream::stderr();
    let yellow = AnsiColor::Yellow.on_default().bold();
    clear_line();
    writeln!(stderr, "{yellow}?{yellow:#} {BOLD}{}{BOLD:#} asks:", display_line(&question.by))?;
    for line in question.message.lines() {
        write!(stderr, "{}", paragraph(&display_line(line), 2, anstyle::Style::new(), screen_width()))?;
    }
    if let Some(reason) = question.refusal() {
        write!(stderr, "{}", paragraph(&format!("declined: {}", display_line(&reason)), 2, QUIET, screen_width()))?;
        return Ok(ElicitationResponse::Declined);
    }
    let offered = match &question.kind {
        ElicitationKind::Page { url, .. } => {
            let cyan = AnsiColor::Cyan.on_default();
            writeln!(stderr, "    {cyan}{}{cyan:#}", display_line(url))?;
            writeln!(stderr, "  {QUIET}a page of {}{QUIET:#}", display_line(host(url).unwrap_or_default()))?;
            "I have done it"
        }
        ElicitationKind::Fields(_) => "answer",
    };
    let keys = format!("  {BOLD}y{BOLD:#} {offered} · {BOLD}n{BOLD:#} decline ");
    match yes_or_no(keyboard, given_up, &keys)? {
        Some(true) => {}
        Some(false) => return Ok(ElicitationResponse::Declined),
        None => return Ok(ElicitationResponse::Dismissed),
    }
    match &question.kind {
        ElicitationKind::Page { .. } => Ok(ElicitationResponse::Accepted(Map::new())),
        ElicitationKind::Fields(schema) => {
            Ok(fields(schema, keyboard, given_up)?
                .map_or(ElicitationResponse::Dismissed, ElicitationResponse::Accepted))
        }
    }
}

/// Asks for the fields of a command that the user typed. Does not ask first whether to answer: Escape closes the form.
pub(super) fn put_fields(
    question: &Elicitation,
    keyboard: &Keyboard,
    given_up: &AtomicBool,
) -> std::io::Result<ElicitationResponse> {
    let ElicitationKind::Fields(schema) = &question.kind else { return put(question, keyboard, given_up) };
    let (mut stderr, plain) = (anstream::stderr(), anstyle::Style::new());
    clear_line();
    let message = format!("{}; Escape closes the form", display_line(&question.message));
    write!(stderr, "{}", paragraph(&message, 0, plain, screen_width()))?;
    if let Some(reason) = question.refusal() {
        write!(stderr, "{}", paragraph(&format!("declined: {}", display_line(&reason)), 2, QUIET, screen_width()))?;
        return Ok(ElicitationResponse::Declined);
    }
    let filled = fields(schema, keyboard, given_up)?;
    Ok(filled.map_or(ElicitationResponse::Dismissed, ElicitationResponse::Accepted))
}

/// Reads a yes-or-no key. `None` if the question is cancelled or closed with Escape.
fn yes_or_no(keyboard: &Keyboard, given_up: &AtomicBool, keys: &str) -> std::io::Result<Option<bool>> {
    let mut again = false;
    let offer = || {
        let gap = if std::mem::replace(&mut again, true) { "\n" } else { "" };
        write!(anstream::stderr(), "{gap}{keys}").and_then(|()| anstream::stderr().flush())
    };
    let said = keyboard.ask(given_up, offer, |key| {
        Ok(match key {
            Key::Letter('y' | 'Y') => Some(Some(true)),
            Key::Letter('n' | 'N') => Some(Some(false)),
            Key::Escape => Some(None),
            Key::Letter(_) | Key::Enter => None,
        })
    })?;
    let said = said.flatten();
    let word = said.map_or("", |yes| if yes { "→ yes" } else { "→ no" });
    writeln!(anstream::stderr(), "{BOLD}{word}{BOLD:#}")?;
    Ok(said)
}

/// Asks for each field of the schema. `None` if the user closes the question before the end.
fn fields(
    schema: &Map<String, Value>,
    keyboard: &Keyboard,
    given_up: &AtomicBool,
) -> std::io::Result<Option<Map<String, Value>>> {
    let mut filled = Map::new();
    let all = schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    for (name, about) in &all {
        let needed = required.contains(&json!(name));
        let title = display_line(about["title"].as_str().unwrap_or(name));
        if let Some(description) = about["description"].as_str() {
            write!(anstream::stderr(), "{}", paragraph(&display_line(description), 2, QUIET, screen_width()))?;
        }
        for (at, (_, called)) in choices(about).iter().enumerate() {
            writeln!(anstream::stderr(), "    {BOLD}{}{BOLD:#} {}", at + 1, display_line(called))?;
        }
        let hint = hint(about, needed);
        let prompt = format!("  {BOLD}{title}{BOLD:#} {QUIET}{hint}{QUIET:#} › ");
        loop {
            let Some(text) = keyboard.line(given_up, &prompt)? else { return Ok(None) };
            match read_field(about, needed, text.trim()) {
                Ok(Some(value)) => drop(filled.insert(name.clone(), value)),
                Ok(None) => {}
                Err(problem) => {
                    writeln!(anstream::stderr(), "  {QUIET}{problem}{QUIET:#}")?;
                    continue;
                }
            }
            break;
        }
    }
    Ok(Some(filled))
}

fn hint(about: &Value, needed: bool) -> String {
    let kind = match about["type"].as_str() {
        Some("boolean") => "y or n",
        Some("integer") => "a whole number",
        Some("number") => "a number",
        Some("array") => "numbers of the list, with commas",
        _ if !choices(about).is_empty() => "a number of the list",
        _ => "text",
    };
    match (&about["default"], needed) {
        (Value::Null, true) => format!("({kind})"),
        (Value::Null, false) => format!("({kind}, or nothing)"),
        (default, _) => format!("({kind}; nothing for {})", display_line(&default.to_string())),
    }
}

/// Returns the values to choose from, each with its display name.
fn choices(about: &Value) -> Vec<(String, String)> {
    let about = if about["type"] == "array" { &about["items"] } else { about };
    let list = |key: &str| about[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let titled = list("oneOf").iter().chain(list("anyOf"));
    let titled = titled.filter_map(|one| Some((one["const"].as_str()?, one["title"].as_str()?)));
    let names = list("enumNames");
    let plain = list("enum").iter().enumerate().filter_map(|(at, value)| {
        let value = value.as_str()?;
        Some((value, names.get(at).and_then(Value::as_str).unwrap_or(value)))
    });
    plain.chain(titled).map(|(value, name)| (value.to_owned(), name.to_owned())).collect()
}

/// Parses the text typed for a field. `None` if the field is left out. The error says what is wrong with the text.
fn read_field(about: &Value, needed: bool, text: &str) -> anyhow::Result<Option<Value>> {
    if text.is_empty() {
        return match (&about["default"], needed) {
            (Value::Null, true) => bail!("this one is needed; Escape closes the question"),
            (Value::Null, false) => Ok(None),
            (default, _) => Ok(Some(default.clone())),
        };
    }
    let choices = choices(about);
    let chosen = |text: &str| {
        let by_number = text.parse::<usize>().ok().and_then(|number| choices.get(number.checked_sub(1)?));
        let found = by_number.or_else(|| choices.iter().find(|(value, name)| value == text || name == text));
        found.map(|(value, _)| json!(value)).with_context(|| format!("choose a number from 1 to {}", choices.len()))
    };
    match about["type"].as_str() {
        Some("boolean") => match text.to_lowercase().as_str() {
            "y" | "yes" | "true" => Ok(Some(json!(true))),
            "n" | "no" | "false" => Ok(Some(json!(false))),
            _ => bail!("write y or n"),
        },
        Some("integer") => {
            let number: i64 = text.parse().context("write a whole number")?;
            check_range(about, number as f64).map(|()| Some(json!(number)))
        }
        Some("number") => {
            let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
            let number = number.context("write a number")?;
            check_range(about, number).map(|()| Some(json!(number)))
        }
        Some("array") => {
            text.split(',').map(|one| chosen(one.trim())).collect::<Result<Vec<_>, _>>().map(|all| Some(json!(all)))
        }
        Some("string") if !choices.is_empty() => chosen(text).map(Some),
        Some("string") => {
            let length = text.chars().count() as u64;
            match (about["minLength"].as_u64(), about["maxLength"].as_u64()) {
                (Some(least), _) if length < least => bail!("write at least {least} characters"),
                (_, Some(most)) if length > most => bail!("write at most {most} characters"),
                _ => Ok(Some(json!(text))),
            }
        }
        _ if needed => bail!("this cannot be typed here; Escape closes the question"),
        _ => Ok(None),
    }
}

fn check_range(about: &Value, number: f64) -> anyhow::Result<()> {
    match (about["minimum"].as_f64(), about["maximum"].as_f64()) {
        (Some(least), _) if number < least => bail!("write at least {least}"),
        (_, Some(most)) if number > most => bail!("write at most {most}"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_held_to_its_field() {
        let age = json!({"type": "integer", "minimum": 0});
        assert_eq!(read_field(&age, true, "7").unwrap(), Some(json!(7)));
        assert_eq!(read_field(&age, true, "-1").unwrap_err().to_string(), "write at least 0");
        assert!(read_field(&age, true, "x").is_err() && read_field(&age, true, "").is_err());
        assert_eq!(read_field(&age, false, "").unwrap(), None);
        let colour = json!({"type": "string", "enum": ["red", "green"]});
        assert_eq!(read_field(&colour, true, "2").unwrap(), Some(json!("green")));
        assert_eq!(read_field(&colour, true, "red").unwrap(), Some(json!("red")));
        assert!(read_field(&colour, true, "3").is_err() && read_field(&colour, true, "0").is_err());
        let many =
            json!({"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]}});
        assert_eq!(read_field(&many, true, "1, B").unwrap(), Some(json!(["a", "b"])));
        assert_eq!(read_field(&json!({"type": "boolean", "default": true}), true, "").unwrap(), Some(json!(true)));
        assert!(read_field(&json!({"type": "string", "minLength": 3}), true, "ab").is_err());
    }
}
