//! Invariants of the tools that read, find and run: they hold for any files and arguments.

use std::collections::BTreeSet;

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::testing::{Workshop, block_on};

/// The number before the first `:` of each line that has one.
fn line_numbers(text: &str) -> Vec<usize> {
    text.lines().filter_map(|line| line.split_once(':')?.0.parse().ok()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn pages_of_a_file_join_to_the_whole(lines in vec("[a-zä ]{0,30}", 1..40), limit in 1usize..9) {
        block_on(async {
            let workshop = Workshop::new();
            workshop.put("f", lines.iter().map(|line| format!("{line}\n")).collect::<String>());
            let mut read: Vec<String> = Vec::new();
            while read.len() < lines.len() {
                let first = read.len() + 1;
                let said = workshop.call("read_file", json!({"path": "f", "line": first, "limit": limit})).await.ok();
                for line in said.text.lines().filter_map(|line| line.split_once('\t')) {
                    assert_eq!(line.0.trim(), (read.len() + 1).to_string(), "{}", said.text);
                    read.push(line.1.to_owned());
                }
                assert!((first..first + limit).contains(&read.len()), "{}", said.text);
            }
            assert_eq!(read, lines);
        });
    }

    #[test]
    fn a_written_file_has_the_content_and_no_unread_file_is_lost(
        old in "[a-z \n]{0,40}",
        content in "[a-zäß€ \t\n]{0,60}",
        new_name in "([a-c]/){0,2}[a-z]{1,6}",
    ) {
        block_on(async {
            let workshop = Workshop::new();
            workshop.put("old.txt", &old);
            let write = async |arguments: Value| workshop.call("write_file", arguments).await;
            write(json!({"path": "old.txt", "content": content})).await.refused("was not read in this session");
            assert_eq!(workshop.get("old.txt"), old.as_bytes());
            write(json!({"path": "old.txt", "content": content, "overwrite": true})).await.ok();
            assert_eq!(workshop.get("old.txt"), content.as_bytes());
            write(json!({"path": new_name, "content": content})).await.ok();
            assert_eq!(workshop.get(&new_name), content.as_bytes());
            // The session has seen what it wrote, until someone else changes the file.
            write(json!({"path": new_name, "content": "again"})).await.ok();
            workshop.put(&new_name, "changed");
            write(json!({"path": new_name, "content": "lost", "overwrite": true})).await.refused("was changed");
            assert_eq!(workshop.get(&new_name), b"changed");
        });
    }

    #[test]
    fn every_file_is_found_and_listed_once(names in btree_set("([a-c]/){0,2}[a-z]{1,6}\\.txt", 1..8)) {
        block_on(async {
            let workshop = Workshop::new();
            for name in &names {
                workshop.put(name, "text\n");
            }
            let found = workshop.call("find_files", json!({"glob": "**/*.txt"})).await.ok().text;
            assert_eq!(found.lines().count(), names.len(), "{found}");
            assert_eq!(found.lines().map(str::to_owned).collect::<BTreeSet<_>>(), names);
            let listed = workshop.call("list_dir", json!({"depth": 10})).await.ok().text;
            assert_eq!(listed.lines().filter(|line| line.contains(".txt")).count(), names.len(), "{listed}");
        });
    }

    #[test]
    fn a_literal_search_finds_exactly_the_lines_that_contain_it(
        lines in vec("[ab(.* ]{0,8}", 1..20),
        wanted in "[ab(.*]{1,2}",
    ) {
        block_on(async {
            let workshop = Workshop::new();
            workshop.put("f", lines.iter().map(|line| format!("{line}\n")).collect::<String>());
            let said = workshop.call("search", json!({"pattern": wanted, "literal": true})).await.ok().text;
            let matches = lines.iter().enumerate().filter(|(_, line)| line.contains(&wanted));
            let expected: Vec<_> = matches.map(|(index, _)| index + 1).collect();
            assert_eq!(line_numbers(&said), expected, "{said}");
        });
    }

    #[test]
    fn analyze_answers_for_any_source_text(text in "\\PC{0,200}", focus in "\\PC{1,20}") {
        block_on(async {
            let workshop = Workshop::new();
            for name in ["a.rs", "b.py", "c.ts", "d.sh"] {
                workshop.put(name, &text);
            }
            for arguments in [json!({}), json!({"path": "a.rs"}), json!({"focus": focus}), json!({"budget": 100})] {
                let said = workshop.call("analyze", arguments.clone()).await;
                assert!(!said.text.is_empty() && !said.text.contains("should not"), "{arguments}: {}", said.text);
                assert!(said.text.len() < 60_000, "{arguments}");
            }
        });
    }

    #[test]
    fn a_plan_counts_its_steps_and_returns_them(steps in vec(("[a-zä]{1,12}", 0usize..3), 0..50)) {
        let status = ["pending", "in_progress", "completed"];
        let steps: Vec<_> = steps.iter().map(|(text, of)| json!({"text": text, "status": status[*of]})).collect();
        let done = steps.iter().filter(|step| step["status"] == "completed").count();
        block_on(async {
            let said = Workshop::new().call("update_plan", json!({"steps": steps})).await.ok();
            assert!(said.text.starts_with(&format!("{done} of {} step", steps.len())), "{}", said.text);
            assert_eq!(said.data["steps"], Value::from(steps.clone()));
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_command_returns_its_output_and_exit_code(text in "[a-zA-Zä ]{0,40}", code in 0u8..100) {
        block_on(async {
            let command = format!("printf %s '{text}'; printf %s '{text}' >&2; exit {code}");
            let said = Workshop::new().call("shell", json!({"command": command})).await;
            assert_eq!(said.is_error, code != 0, "{}", said.text);
            let data = &said.data;
            assert_eq!(
                (&data["stdout"], &data["stderr"], &data["exit_code"]),
                (&json!(text), &json!(text), &json!(code))
            );
        });
    }

    #[test]
    fn parts_of_a_background_output_join_to_the_whole(lines in vec("[a-z]{1,8}", 1..6)) {
        block_on(async {
            let workshop = Workshop::new();
            let command: String = lines.iter().map(|line| format!("echo {line}; ")).collect();
            let said = workshop.call("shell", json!({"command": command, "background": true})).await.ok();
            let id = said.data["id"].clone();
            let mut joined = String::new();
            loop {
                let said = workshop.call("shell_output", json!({"id": id, "wait_seconds": 60})).await;
                joined.push_str(said.data["output"].as_str().unwrap_or_default());
                if said.data["running"] == false {
                    break;
                }
            }
            assert_eq!(joined.lines().collect::<Vec<_>>(), lines);
            let stopped = workshop.call("shell_stop", json!({"id": id})).await.ok();
            assert_eq!(stopped.data["running"], false);
        });
    }
}
