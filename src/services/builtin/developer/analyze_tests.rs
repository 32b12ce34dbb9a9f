//! Specifies `analyze` through the real handler.

use serde_json::json;

use super::super::testing::Workshop;

const SERVER: &str = "\
pub struct Server { port: u16 }

impl Server {
    pub fn start(&self) -> u16 {
        listen(self.port)
    }
}

fn listen(port: u16) -> u16 { port }
";

#[tokio::test]
async fn a_file_is_outlined() {
    let shop = Workshop::new();
    shop.put("src/server.rs", SERVER);
    let said = shop.call("analyze", json!({"path": "src/server.rs"})).await;
    assert_eq!(
        said.text,
        "src/server.rs (Rust, 9 lines)\n\
         \x20 1-1 pub struct Server\n\
         \x20 3-7 impl Server\n\
         \x20   4-6 pub fn start(&self) -> u16\n\
         \x20 9-9 fn listen(port: u16) -> u16\n"
    );
}

#[tokio::test]
async fn a_symbol_shows_callers_callees_and_uses() {
    let shop = Workshop::new();
    shop.put("src/server.rs", SERVER);
    shop.put("src/main.rs", "fn main() { let s = Server::new(); s.start(); }\n");
    let said = shop.call("analyze", json!({"focus": "Server::start", "depth": 2})).await;
    assert_eq!(
        said.text,
        "src/server.rs:4 pub fn start(&self) -> u16 in Server\n\
         \x20 called by\n\
         \x20   src/main.rs:1 fn main()  [calls on line 1]\n\
         \x20 calls\n\
         \x20   src/server.rs:9 fn listen(port: u16) -> u16  [called on line 5]\n\
         uses by name, on 2 lines of 2 files\n\
         \x20 src/main.rs: 1\n\
         \x20 src/server.rs: 4\n"
    );
}

#[tokio::test]
async fn a_common_name_is_listed_and_not_followed() {
    let shop = Workshop::new();
    for number in 10..30 {
        shop.put(&format!("t{number}.rs"), format!("impl T{number} {{\n    fn get(&self) {{}}\n}}\n"));
    }
    shop.put("use.rs", "fn look() { x.get(); T12::get(&x); }\n");
    let said = shop.call("analyze", json!({"focus": "get"})).await.text;
    let more = "[more definitions exist; for calls, narrow `path` or write `Type::name`]\n";
    assert!(said.contains("t19.rs:2 fn get(&self) in T19\n") && said.contains(more), "{said}");
    assert!(!said.contains("t20.rs:2 fn") && !said.contains("called by"), "{said}");
    let said = shop.call("analyze", json!({"focus": "T12::get"})).await.text;
    assert!(said.contains("  called by\n    use.rs:1 fn look()  [calls on line 1]\n"), "{said}");
    let said = shop.call("analyze", json!({"focus": "look"})).await.text;
    let calls = "  calls\n    t12.rs:2 fn get(&self) in T12  [called on line 1]\n\
                 \x20 [not followed, defined in more than 5 files: get]\n";
    assert!(said.contains(calls), "{said}");
}

#[tokio::test]
async fn many_uses_are_cut() {
    let shop = Workshop::new();
    for number in 100..250 {
        shop.put(&format!("u{number}.py"), "rare_name()\n");
    }
    let said = shop.call("analyze", json!({"focus": "rare_name"})).await.text;
    assert!(said.contains("uses by name, the first 100 lines; narrow `path` for others\n"), "{said}");
    assert!(said.contains("u199.py: 1") && !said.contains("u200.py"), "{said}");
}

#[tokio::test]
async fn a_small_folder_is_shown_whole_and_a_large_one_in_part() {
    let shop = Workshop::new();
    shop.put("src/server.rs", SERVER);
    let small = shop.call("analyze", json!({})).await.text;
    assert!(small.starts_with(".: 1 source file (1 Rust), 9 lines\n"), "{small}");
    assert!(small.contains("fn listen"), "{small}");
    shop.put("core.rs", "pub fn core_of_all() {}\n");
    for number in 0..200 {
        shop.put(&format!("part{number}.rs"), format!("pub fn part{number}() {{ core_of_all(); }}\n"));
    }
    let large = shop.call("analyze", json!({"budget": 200})).await.text;
    assert!(large.len() <= 200 * 4 + 200, "{}", large.len());
    let core = large.find("core.rs").unwrap_or(usize::MAX);
    assert!(core < large.find("part").unwrap_or(usize::MAX), "{large}");
    assert!(large.contains("more files; raise `budget`"), "{large}");
}

#[tokio::test]
async fn a_changed_file_is_analysed_again() {
    let shop = Workshop::new();
    shop.put("a.py", "def one(): pass\n");
    assert!(shop.call("analyze", json!({"path": "a.py"})).await.text.contains("def one()"));
    shop.put("a.py", "def other(): pass\n");
    assert!(shop.call("analyze", json!({"path": "a.py"})).await.text.contains("def other()"));
}

#[tokio::test]
async fn ignored_and_hidden_files_are_left_out() {
    let shop = Workshop::new();
    shop.put(".gitignore", "dist/\n");
    shop.put("dist/a.js", "function built() {}\n");
    shop.put("home/.ssh/b.py", "def secret(): pass\n");
    let said = shop.call("analyze", json!({})).await;
    assert!(said.text.starts_with("no source files in `.`"), "{}", said.text);
}

#[tokio::test]
async fn mistakes_get_advice() {
    let shop = Workshop::new();
    shop.put("notes.txt", "text");
    shop.put("a.rs", "fn start_server() {}\n");
    for (arguments, advice) in [
        (json!({"path": "notes.txt"}), "is not in a language that `analyze` knows (Bash, C, Go"),
        (json!({"path": "missing.rs"}), "look with `list_dir`"),
        (json!({"path": "../outside"}), "outside of what this session may reach"),
        (json!({"focus": "start"}), "no definition of `start` in `.`; similar: start_server"),
    ] {
        let said = shop.call("analyze", arguments.clone()).await;
        assert!(said.text.contains(advice), "{arguments}: {}", said.text);
    }
}

#[tokio::test]
async fn large_files_are_refused_or_counted() {
    let shop = Workshop::new();
    shop.put("big.js", "f();\n".repeat(300_000));
    shop.put("small.js", "function f() {}\n");
    let said = shop.call("analyze", json!({"path": "big.js"})).await;
    assert!(said.is_error && said.text.contains("over 1 MiB"), "{}", said.text);
    let said = shop.call("analyze", json!({})).await;
    assert!(said.text.contains("[1 file over 1 MiB left out]"), "{}", said.text);
}
