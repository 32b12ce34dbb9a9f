//! The threat model in docs/security.md: every line has a mechanism and a test that exists.

use regex::Regex;

use crate::support::{files_below, read, repository};

#[test]
fn every_line_of_the_threat_model_has_a_test() {
    let document = read(repository("docs/security.md"));
    let model = document.split("\n## ").find(|section| section.starts_with("Threat model")).unwrap();
    let sources = ["src", "tests/it"].map(|folder| files_below(&repository(folder)));
    let rust = sources.iter().flatten().filter(|file| file.extension().is_some_and(|extension| extension == "rs"));
    let code: String = rust.map(read).collect();
    let test = Regex::new("Test: `(?:[a-z_]+::)?([a-z_]+)`").unwrap();
    let attackers: Vec<_> = model.split("\n### ").skip(1).collect();
    assert_eq!(attackers.len(), 7, "model, web page, repository, service, agent, local user, network");
    for attacker in attackers {
        for line in attacker.split("\n- ").skip(1) {
            assert!(line.contains("\n  Mechanism: "), "no mechanism: {line}");
            let name = test.captures(line).unwrap_or_else(|| panic!("no test: {line}"));
            assert!(code.contains(&format!("fn {}(", &name[1])), "no such test: {line}");
        }
    }
}
