//! The limits in docs/reliability.md: their values are those of the code, and the named tests exist.

use regex::Regex;

use crate::support::{files_below, read, repository};

/// A row of a table that names a constant.
struct LimitRow {
    limit: String,
    file: String,
    constant: String,
    test: String,
}

fn rows() -> Vec<LimitRow> {
    let row = Regex::new(r"(?m)^\| [^|]+ \| ([^|]+) \| [^|]+ \| `([a-z0-9_/]+\.rs)` `([A-Z_]+)` \| `([a-z0-9_]+)` \|$")
        .expect("a pattern");
    let page = read(repository("docs/reliability.md"));
    let rows = row.captures_iter(&page).map(|found| LimitRow {
        limit: found[1].to_owned(),
        file: found[2].to_owned(),
        constant: found[3].to_owned(),
        test: found[4].to_owned(),
    });
    let rows: Vec<_> = rows.collect();
    let lines = page.lines().filter(|line| line.starts_with("| ") && line.contains(".rs`")).count();
    assert_eq!(rows.len(), lines, "each row with a constant has the form of the others");
    rows
}

/// The tests in the table of large inputs. A row without a limit may have none.
fn large_input_tests() -> Vec<String> {
    let page = read(repository("docs/reliability.md"));
    let (_, section) = page.split_once("\n## Large inputs\n").expect("the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut lines = section.lines().filter(|line| line.starts_with('|'));
    assert_eq!(lines.next(), Some("| input | limit | at the limit | test |"));
    let row = Regex::new(r"^\| [^|]+ \| [^|]+ \| [^|]+ \| (?:`([a-z0-9_]+)`|–) \|$").expect("a pattern");
    let tests = lines.skip(1).filter_map(|line| {
        let found = row.captures(line).unwrap_or_else(|| panic!("not the form of the others: {line}"));
        Some(found.get(1)?.as_str().to_owned())
    });
    tests.collect()
}

/// `4 MiB` and `1,000 logins` as numbers.
fn shown_number(limit: &str) -> u64 {
    let mut words = limit.split(' ');
    let number: u64 = words.next().expect("a number").replace(',', "").parse().expect("a number");
    match words.next() {
        Some("KiB") => number << 10,
        Some("MiB") => number << 20,
        _ => number,
    }
}

/// The value of a constant: a number, a product or a shift.
fn code_number(expression: &str) -> u64 {
    let number = |text: &str| text.trim().replace('_', "").parse::<u64>().expect("a number");
    match expression.split_once("<<") {
        Some((value, places)) => number(value) << number(places),
        None => expression.split('*').map(number).product(),
    }
}

#[test]
fn limits_in_the_docs_are_those_of_the_code() {
    for LimitRow { limit, file, constant, .. } in rows() {
        let source = read(repository("src").join(&file));
        let pattern = format!(r"const {constant}: (?:usize|u64|u32|i64) = ([0-9_ *<]+);");
        let found = Regex::new(&pattern).expect("a pattern");
        let value = found.captures(&source).unwrap_or_else(|| panic!("src/{file} has no {constant}"))[1].to_owned();
        assert_eq!(shown_number(&limit), code_number(&value), "{constant} of src/{file}");
    }
}

#[test]
fn each_limit_in_the_docs_has_its_test() {
    let folders = ["src", "tests/it"].map(repository);
    let files = folders.iter().flat_map(|folder| files_below(folder));
    let sources: Vec<_> = files.filter(|file| file.extension().is_some_and(|kind| kind == "rs")).map(read).collect();
    let large_inputs = large_input_tests();
    assert!(!large_inputs.is_empty(), "the table of large inputs names tests");
    for test in rows().into_iter().map(|row| row.test).chain(large_inputs) {
        let start = format!("fn {test}()");
        assert!(sources.iter().any(|source| source.contains(&start)), "there is no test {test}");
    }
}
