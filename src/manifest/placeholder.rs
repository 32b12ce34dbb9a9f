//! Parses `${env:NAME}` and `${env:NAME:-DEFAULT}`, environment variables that are filled in when a service starts.

/// A variable in a text, and its default if it is not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placeholder<'a> {
    pub name: &'a str,
    pub default: Option<&'a str>,
}

impl<'a> Placeholder<'a> {
    /// Parses the text between `${env:` and `}`.
    pub fn of(inside: &'a str) -> Self {
        match inside.split_once(":-") {
            Some((name, default)) => Self { name, default: Some(default) },
            None => Self { name: inside, default: None },
        }
    }

    /// Returns the placeholders of a text, in order.
    pub fn all_in(text: &'a str) -> impl Iterator<Item = Self> {
        text.split("${env:").skip(1).filter_map(|part| part.split_once('}')).map(|(inside, _)| Self::of(inside))
    }

    /// Replaces each placeholder with the result of `find`.
    pub fn fill_in<E>(text: &str, find: impl Fn(Placeholder<'_>) -> Result<String, E>) -> Result<String, E> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${env:") {
            let Some((inside, behind)) = after.split_once('}') else { break };
            filled.push_str(before);
            filled.push_str(&find(Placeholder::of(inside))?);
            rest = behind;
        }
        filled.push_str(rest);
        Ok(filled)
    }
}
