//! Templates of recipes: any text is filled in within its limits, or refused.

#![no_main]

use std::collections::BTreeMap;

use skein::manifest::{fill_in, variables_of};

const MAX_OUTPUT: usize = 1 << 20;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(names) = variables_of(text) else { return };
    let values: BTreeMap<_, _> = names.into_iter().map(|name| (name, "{{ value }}".to_owned())).collect();
    if let Ok(full) = fill_in(text, &values) {
        assert!(full.len() <= MAX_OUTPUT);
    }
});
