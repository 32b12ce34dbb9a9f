//! The crates that Skein depends on: a reason for each, one registry, and no second version without an entry in
//! `.deny.toml`.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{read, repository, table};

/// The names in `[dependencies]` and `[dev-dependencies]` of a Cargo.toml.
fn direct_dependencies(manifest: &str) -> BTreeSet<String> {
    let mut section = "";
    let mut names = BTreeSet::new();
    let manifest = read(repository(manifest));
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        } else if section.ends_with("dependencies]")
            && let Some((name, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#'))
        {
            names.insert(name.to_owned());
        }
    }
    assert!(names.contains("tokio"), "{names:?}");
    names
}

/// Name, version and source of each package in Cargo.lock. Skein itself has no source.
fn locked_packages() -> Vec<(String, String, Option<String>)> {
    let lock = read(repository("Cargo.lock"));
    let value = |package: &str, key: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(&format!("{key} = \"")))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    let packages = lock.split("[[package]]\n").skip(1);
    let entry = |package| Some((value(package, "name")?, value(package, "version")?, value(package, "source")));
    packages.filter_map(entry).collect()
}

#[test]
fn every_direct_dependency_has_a_reason() {
    let mut reasons = BTreeSet::new();
    for row in table(&read(repository("docs/dependencies.md")), &["dependency", "reason"]) {
        assert!(row[1].split_whitespace().count() > 1, "{}: a reason has more than one word", row[0]);
        for name in row[0].split(',').map(|name| name.trim().to_owned()) {
            assert!(reasons.insert(name.clone()), "{name} has two rows in docs/dependencies.md");
        }
    }
    let mut used = direct_dependencies("Cargo.toml");
    assert!(used.contains("proptest"), "crates of the tests: {used:?}");
    used.extend(direct_dependencies("fuzz/Cargo.toml"));
    used.remove("skein");
    assert_eq!(reasons, used, "left docs/dependencies.md, right Cargo.toml and fuzz/Cargo.toml");
}

#[test]
fn every_crate_comes_from_the_public_registry() {
    for (name, version, source) in locked_packages() {
        let expected =
            if name == "skein" { None } else { Some("registry+https://github.com/rust-lang/crates.io-index") };
        assert_eq!(source.as_deref(), expected, "{name} {version}");
    }
}

/// cargo-deny reports a missing entry in CI. This test also reports an entry that is no longer needed.
#[test]
fn second_versions_of_crates_are_those_that_deny_lists() {
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, version, _) in locked_packages() {
        versions.entry(name).or_default().push(version);
    }
    let number = |version: &String| -> Vec<u64> {
        let core = version.split(['-', '+']).next().unwrap_or_default();
        core.split('.').map(|part| part.parse().expect("a number")).collect()
    };
    let mut older = BTreeSet::new();
    for (name, mut versions) in versions {
        versions.sort_by_key(number);
        versions.pop();
        older.extend(versions.iter().map(|version| format!("{name}@{version}")));
    }
    let rules = read(repository(".deny.toml"));
    let entries = rules.lines().filter_map(|line| line.trim().strip_prefix("{ crate = \""));
    let listed: BTreeSet<_> = entries
        .map(|entry| {
            let (name, rest) = entry.split_once('"').expect("a closing quote");
            assert!(rest.starts_with(", reason = \""), "{name} has a reason");
            name.to_owned()
        })
        .collect();
    assert_eq!(listed, older, "left .deny.toml, right Cargo.lock");
}
