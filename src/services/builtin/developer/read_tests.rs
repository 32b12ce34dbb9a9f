//! Kinds of files and pages of them; also the tools that list and find.

use base64::Engine as _;
use serde_json::json;

use crate::services::builtin::developer::testing::Workshop;

#[tokio::test]
async fn lines_are_numbered_and_paged() {
    let workshop = Workshop::new();
    workshop.put("a.txt", "one\r\ntwo\nthree");
    let said = workshop.call("read_file", json!({"path": "a.txt"})).await.ok();
    assert_eq!(said.text, "    1\tone\n    2\ttwo\n    3\tthree\n");
    let said = workshop.call("read_file", json!({"path": "a.txt", "line": 2, "limit": 1})).await.ok();
    assert_eq!(said.text, "    2\ttwo\n[lines 2-2 of 3; continue with `line: 3`]\n");
    workshop.call("read_file", json!({"path": "a.txt", "line": 4})).await.refused("has 3 lines; there is no line 4");
    workshop.put("empty", "");
    assert_eq!(workshop.call("read_file", json!({"path": "empty"})).await.ok().text, "`empty` is empty");
    workshop.call("read_file", json!({"path": "missing"})).await.refused("look with `list_dir` or `find_files`");
}

#[tokio::test]
async fn long_files_and_long_lines_are_cut_and_say_how_to_go_on() {
    let workshop = Workshop::new();
    workshop.put("long", "x\n".repeat(2_500));
    let said = workshop.call("read_file", json!({"path": "long"})).await.ok();
    assert!(said.text.ends_with(" 2000\tx\n[lines 1-2000 of 2500; continue with `line: 2001`]\n"));
    workshop.put("wide", format!("{}\nend\n", "ä".repeat(3_000)));
    let said = workshop.call("read_file", json!({"path": "wide"})).await.ok();
    assert!(said.text.ends_with("ä[... 1.9 kB more]\n    2\tend\n"), "{}", said.text);
    workshop.put("broad", format!("{}\n", "y".repeat(1_000)).repeat(100));
    let said = workshop.call("read_file", json!({"path": "broad"})).await.ok();
    assert!(said.text.len() < 51_000 && said.text.contains("of 100; continue with `line: 50`"));
    let huge = std::fs::File::create(workshop.path("huge")).unwrap();
    huge.set_len(17 << 20).unwrap();
    workshop.call("read_file", json!({"path": "huge"})).await.refused("larger than 16.0 MB");
}

#[tokio::test]
async fn other_encodings_are_read_and_named() {
    let workshop = Workshop::new();
    workshop.put("latin", b"caf\xe9\n");
    workshop.put("wide", b"\xff\xfea\0\n\0");
    let latin = workshop.call("read_file", json!({"path": "latin"})).await.ok();
    assert_eq!(latin.text, "    1\tcafé\n[not UTF-8; shown as Latin-1]\n");
    let wide = workshop.call("read_file", json!({"path": "wide"})).await.ok();
    assert_eq!(wide.text, "    1\ta\n[UTF-16 (little endian)]\n");
}

#[tokio::test]
async fn binaries_are_described_and_images_are_shown() {
    let workshop = Workshop::new();
    workshop.put("program", b"\x7fELF\x02\x01\x01\0\0\0");
    let said = workshop.call("read_file", json!({"path": "program"})).await.ok();
    assert_eq!(said.text, "`program` is binary: ELF program or library, 10 B. Look into it with `shell` if you must");
    let png = b"\x89PNG\r\n\x1a\n\0\0\0";
    workshop.put("picture.dat", png);
    let said = workshop.call("read_file", json!({"path": "picture.dat"})).await.ok();
    let data = base64::engine::general_purpose::STANDARD.encode(png);
    assert_eq!(
        (said.text.as_str(), said.images),
        ("picture.dat (image/png, 11 B)", vec![("image/png".to_owned(), data)])
    );
    workshop.put("large.gif", [&b"GIF89a"[..], &vec![0; 4_000_000]].concat());
    let said = workshop.call("read_file", json!({"path": "large.gif"})).await.ok();
    assert!(said.images.is_empty() && said.text.contains("too large to look at"));
    workshop.put("a.webp", b"RIFF\0\0\0\0WEBPVP8 ");
    workshop.put("a.jpg", b"\xff\xd8\xff\xe0");
    for (name, mime) in [("a.webp", "image/webp"), ("a.jpg", "image/jpeg")] {
        assert_eq!(workshop.call("read_file", json!({"path": name})).await.ok().images[0].0, mime);
    }
}

#[tokio::test]
async fn notebooks_are_read_as_cells() {
    let workshop = Workshop::new();
    let notebook = json!({"cells": [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": "1 + 1", "outputs": [
            {"output_type": "stream", "text": ["hello\n"]},
            {"output_type": "execute_result", "data": {"text/plain": ["2"], "image/png": "AAAA"}},
            {"output_type": "error", "ename": "E", "evalue": "boom"},
        ]},
    ], "nbformat": 4});
    workshop.put("n.ipynb", notebook.to_string());
    let said = workshop.call("read_file", json!({"path": "n.ipynb"})).await.ok();
    let lines: Vec<&str> = said.text.lines().map(|line| line.split_once('\t').unwrap().1).collect();
    assert_eq!(
        lines,
        [
            "## cell 1 (markdown)",
            "# Title",
            "text",
            "",
            "## cell 2 (code)",
            "1 + 1",
            "-> hello",
            "-> 2 [image/png]",
            "-> error: boom",
            ""
        ]
    );
    workshop.put("broken.ipynb", "{\n");
    assert_eq!(workshop.call("read_file", json!({"path": "broken.ipynb"})).await.ok().text, "    1\t{\n");
}

#[tokio::test]
async fn folder_is_a_tree_folders_first_without_ignored_files() {
    let workshop = Workshop::new();
    workshop.put(".gitignore", "target\n*.log\n");
    workshop.put("target/out", "x");
    workshop.put(".git/config", "x");
    workshop.put("a.rs", "one\ntwo\n");
    workshop.put("noise.log", "x");
    workshop.put("src/lib.rs", "one");
    workshop.put("src/deep/er.rs", "");
    workshop.put("data.bin", [0, 1, 2]);
    std::os::unix::fs::symlink("a.rs", workshop.path("link")).unwrap();
    let said = workshop.call("list_dir", json!({})).await.ok();
    let expected = "./\n  src/\n    deep/\n    lib.rs  1 line\n  .gitignore  2 lines\n  a.rs  2 lines\n  data.bin  3 B\n  link -> a.rs\n";
    assert_eq!(said.text, expected);
    let said = workshop.call("list_dir", json!({"path": "src", "depth": 1})).await.ok();
    assert_eq!(said.text, "src/\n  deep/\n  lib.rs  1 line\n");
    workshop.call("list_dir", json!({"path": "a.rs"})).await.refused("is a file; use `read_file`");
    workshop.call("list_dir", json!({"path": "none"})).await.refused("could not list `none`");
    for number in 0..1_100 {
        workshop.put(&format!("many/{number}"), "");
    }
    let said = workshop.call("list_dir", json!({"path": "many"})).await.ok();
    assert!(said.text.contains("[stopped after 1000 entries"), "{}", said.text);
}

#[tokio::test]
async fn files_are_found_by_glob_with_the_newest_first() {
    let workshop = Workshop::new();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    for (name, age) in [("src/a.rs", 1), ("src/b.rs", 3), ("src/deep/c.rs", 2), ("d.txt", 9)] {
        let file = std::fs::File::create(workshop.put(name, "")).unwrap();
        file.set_modified(old + std::time::Duration::from_secs(age)).unwrap();
    }
    workshop.put(".gitignore", "e.rs\n");
    workshop.put("e.rs", "");
    let find = async |arguments| workshop.call("find_files", arguments).await;
    assert_eq!(find(json!({"glob": "*.rs"})).await.ok().text, "src/b.rs\nsrc/deep/c.rs\nsrc/a.rs\n");
    assert_eq!(find(json!({"glob": "src/*.rs"})).await.ok().text, "src/b.rs\nsrc/a.rs\n");
    assert_eq!(find(json!({"glob": "*.{rs,txt}", "path": "src/deep"})).await.ok().text, "src/deep/c.rs\n");
    assert!(find(json!({"glob": "*.py"})).await.ok().text.starts_with("none of the 5 files below `.` matches `*.py`"));
    find(json!({"glob": "{a"})).await.refused("the glob `{a` is wrong");
    find(json!({"glob": "*", "path": "d.txt"})).await.refused("is not a folder");
}
