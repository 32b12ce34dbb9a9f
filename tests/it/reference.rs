//! docs/reference.md against the source: environment variables and exit codes.

#![expect(clippy::expect_used, reason = "a missing line ends the test")]

use std::collections::BTreeSet;

use regex::Regex;

use crate::support::{files_below, read, repository, table};

fn page() -> String {
    read(repository("docs/reference.md"))
}

fn variables(text: &str) -> BTreeSet<String> {
    let variable = Regex::new(r"\bSKEIN_[A-Z]+(?:_[A-Z]+)*\b").expect("a pattern");
    variable.find_iter(text).map(|found| found.as_str().to_owned()).collect()
}

#[test]
fn every_environment_variable_is_documented() {
    let quoted = Regex::new(r#""SKEIN_[A-Z_]+""#).expect("a pattern");
    let mut used = BTreeSet::new();
    for file in files_below(&repository("src")).iter().filter(|file| file.extension().is_some_and(|e| e == "rs")) {
        used.extend(quoted.find_iter(&read(file)).map(|found| found.as_str().trim_matches('"').to_owned()));
    }
    let rows = table(&page(), &["variable", "meaning"]);
    let documented: BTreeSet<_> = rows.iter().flat_map(|row| variables(&row[0])).collect();
    assert_eq!(documented, used, "left docs/reference.md, right src/");
}

#[test]
fn every_exit_code_is_documented() {
    let source = read(repository("src/cli/output.rs"));
    let body = source.split("fn code(&self) -> u8").nth(1).and_then(|rest| rest.split("\n    }\n").next());
    let arm = Regex::new(r"=> (\d+),").expect("a pattern");
    let mut codes: BTreeSet<u8> =
        arm.captures_iter(body.expect("the function")).map(|found| found[1].parse().expect("a code")).collect();
    codes.insert(0);
    let rows = table(&page(), &["code", "meaning"]);
    let documented: BTreeSet<u8> = rows.iter().map(|row| row[0].parse().expect("a code")).collect();
    assert_eq!(documented, codes, "left docs/reference.md, right src/cli/output.rs");
}
