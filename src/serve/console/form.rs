//! Reads the fields of forms and queries.

/// The fields of a form or a query, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FormFields(Vec<(String, String)>);

impl FormFields {
    /// Reads `name=value&…`. Bytes that are not UTF-8 become `�`.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        Self(url::form_urlencoded::parse(bytes).into_owned().collect())
    }

    /// Reads the query of an address.
    pub(super) fn of_query(query: Option<&str>) -> Self {
        Self::parse(query.unwrap_or_default().as_bytes())
    }

    /// Returns the first field with this name.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the first field with this name, without the spaces around it. `None` if it is empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.get(name).map(str::trim).filter(|text| !text.is_empty())
    }

    /// Returns all fields with this name.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> + 'a {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Returns a query with these fields, escaped.
pub(super) fn query(fields: &[(&str, &str)]) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    fields.iter().filter(|(_, value)| !value.is_empty()).for_each(|(name, value)| {
        query.append_pair(name, value);
    });
    query.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_decoded_and_empty_ones_left_out() {
        let form = FormFields::parse(b"a=1+2&b=%3Cb%3E&a=&c=+");
        assert_eq!((form.get("a"), form.get("b"), form.text("c")), (Some("1 2"), Some("<b>"), None));
        assert_eq!(form.all("a").collect::<Vec<_>>(), ["1 2", ""]);
        assert_eq!(query(&[("q", "a&b"), ("mode", "")]), "q=a%26b");
    }
}
