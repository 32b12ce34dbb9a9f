//! `skein check --assert`: proofs, counter-examples, and reports for other programs.

#![expect(clippy::disallowed_methods, reason = "a test starts other programs and waits for them")]

use expect_test::{expect, expect_file};
use serde_json::Value;

use crate::support::{Sandbox, full_tests, repository};

const HOLDS: &str = "version: 1\nkind: assertions\nassert:\n  \
                     - {name: security only reads, mode: coding/security, groups: {not: [edit, command]}}\n";
const FAILS: &str = "version: 1\nkind: assertions\nassert:\n  \
                     - {name: nobody fetches, only: [goose/assistant], reach: {tool: fetch__fetch_url}}\n  \
                     - {mode: coding/pm, groups: {not: [command]}}\n";

#[test]
fn assertions_that_hold_are_counted() {
    let sandbox = Sandbox::new();
    sandbox.write("project/rules.yaml", HOLDS);
    let ran = sandbox.skein(&["check", "--quiet", "--assert", "rules.yaml"]);
    assert!(ran.whole().starts_with("exit 0\n"), "{}", ran.whole());
    assert!(ran.whole().contains("1 assertion: all hold\n"), "{}", ran.whole());
}

#[test]
fn a_counter_example_has_a_place_and_a_path() {
    let sandbox = Sandbox::new();
    sandbox.write("project/rules.yaml", FAILS);
    let whole = sandbox.skein(&["check", "--quiet", "--assert", "rules.yaml"]).whole();
    assert!(whole.starts_with("exit 6\n"), "{whole}");
    assert!(whole.contains("E142") && whole.contains("rules.yaml:4:"), "{whole}");
    assert!(whole.contains("coding/pm reaches the tool fetch__fetch_url: coding/pm → fetch__fetch_url"), "{whole}");
    assert!(!whole.contains("coding/pm has"), "{whole}");
}

#[test]
fn an_unknown_key_names_the_nearest() {
    let sandbox = Sandbox::new();
    sandbox
        .write("project/rules.yaml", "version: 1\nkind: assertions\nassert:\n  - {mode: coding/pm, group: [read]}\n");
    let whole = sandbox.skein(&["check", "--quiet", "--assert", "rules.yaml"]).whole();
    assert!(whole.starts_with("exit 6\n"), "{whole}");
    assert!(whole.contains("rules.yaml:4:") && whole.contains("did you mean `groups`?"), "{whole}");
}

/// Each code with its place and its help.
#[test]
fn mistakes_are_explained() {
    let sandbox = Sandbox::new();
    let rules = "version: 1\nkind: assertions\nassert:\n  - {mode: coding/pm}\n  \
                 - {mode: coding/pn, groups: [read]}\n  - {mode: coding/backend, groups: {not: [command]}}\n";
    sandbox.write("project/rules.yaml", rules);
    let ran = sandbox.skein(&["check", "--quiet", "--assert", "rules.yaml"]);
    expect_file![repository("tests/fixtures/assertions/mistakes.txt")].assert_eq(&ran.whole());
}

#[test]
fn a_missing_file_is_an_error() {
    let whole = Sandbox::new().skein(&["check", "--quiet", "--assert", "none.yaml"]).whole();
    assert!(whole.starts_with("exit 6\n") && whole.contains("none.yaml"), "{whole}");
}

#[test]
fn json_lists_each_assertion() {
    let sandbox = Sandbox::new();
    sandbox.write("project/rules.yaml", FAILS);
    let ran = sandbox.skein(&["check", "--quiet", "--json", "--assert", "rules.yaml"]);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let holds: Vec<_> = report["assertions"].as_array().unwrap().iter().map(|proof| proof["holds"].as_bool()).collect();
    assert_eq!(holds, [Some(false), Some(true)]);
    assert_eq!(report["assertions"][0]["name"], "nobody fetches");
}

#[test]
fn sarif_has_a_result_with_a_region() {
    let sandbox = Sandbox::new();
    sandbox.write("project/rules.yaml", FAILS);
    let ran = sandbox.skein(&["check", "--quiet", "--format", "sarif", "--assert", "rules.yaml"]);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["version"], "2.1.0");
    let result = &report["runs"][0]["results"][0];
    assert_eq!((&result["ruleId"], &result["level"]), (&"E142".into(), &"error".into()));
    let place = &result["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "rules.yaml");
    assert_eq!(place["region"]["startLine"], 4);
}

#[test]
fn junit_has_a_case_per_assertion() {
    let sandbox = Sandbox::new();
    let rules = HOLDS.replace("security only reads", "\"<b> & \\\"c\\\"\"");
    sandbox.write("project/rules.yaml", &rules);
    let ran = sandbox.skein(&["check", "--quiet", "--format", "junit", "--assert", "rules.yaml"]);
    expect![[r#"
        <?xml version="1.0" encoding="UTF-8"?>
        <testsuites>
          <testsuite name="skein check" tests="2" failures="0" errors="0" time="0">
            <testcase classname="manifests" name="manifests" time="0"/>
            <testcase classname="assertions" name="&lt;b&gt; &amp; &quot;c&quot;" time="0"/>
          </testsuite>
        </testsuites>
    "#]]
    .assert_eq(&ran.stdout);
}

#[test]
fn junit_is_well_formed_with_failures() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.write("project/rules.yaml", FAILS);
    let ran = sandbox.skein(&["check", "--quiet", "--format", "junit", "--assert", "rules.yaml"]);
    sandbox.write("project/report.xml", &ran.stdout);
    let script = "import sys, xml.etree.ElementTree as tree\n\
                  suite = tree.parse(sys.argv[1]).getroot()[0]\n\
                  print(suite.get('failures'), [case.get('name') for case in suite if len(case)])";
    let read = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(sandbox.path("project/report.xml"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&read.stdout), "1 ['nobody fetches']\n");
}
