//! Templates of recipes: any text is filled in within its limits, or refused. Values are not read as templates.

use std::collections::BTreeMap;

use skein::manifest::{fill_in, variables_of};

use super::text_of;

const MAX_OUTPUT: usize = 1 << 20;
/// A value that looks like a template, and the result if it were one.
const VALUE: &str = "{{ 1234567 * 7654321 }}";
const RESULT: &str = "9449772114007";

pub(super) fn run(data: &[u8]) {
    let text = text_of(data);
    let Ok(names) = variables_of(text) else { return };
    let values: BTreeMap<_, _> = names.into_iter().map(|name| (name, VALUE.to_owned())).collect();
    let full = fill_in(text, &values);
    assert_eq!(full, fill_in(text, &values));
    if let Ok(full) = full {
        assert!(full.len() <= MAX_OUTPUT);
        assert!(!full.contains(RESULT) || text.contains(RESULT), "{text:?}");
    }
}
