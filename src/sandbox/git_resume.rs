//! Finds what makes git run a program or write elsewhere when a rebase, a cherry-pick or `git am` is continued.
//!
//! Git changes these files with each step, so a sandbox cannot make them read-only. They are protected while they
//! contain something that git does not write by itself.

use std::fs;
use std::path::{Path, PathBuf};

use super::git_text::{parse_config, read_small};
use super::paths::RESUMED_BY_GIT;

/// The options of `git am`, which may name a file to write.
pub(super) const OPTIONS_OF_AM: &str = "apply-opt";

/// Commands of a rebase that run no program.
const HARMLESS_STEPS: &str = "pick p revert edit e reword r fixup f squash s break b label l reset t merge m update-ref u \
                              noop drop d";
/// Merge strategies of git. Any other is the name of a program, and may be a path.
const STRATEGIES: [&str; 6] = ["ort", "recursive", "resolve", "octopus", "ours", "subtree"];
/// Options of `git am` that name no file to write.
const HARMLESS_OPTIONS: [&str; 9] = [
    "--whitespace=",
    "--ignore-space-change",
    "--ignore-whitespace",
    "--reject",
    "--include=",
    "--exclude=",
    "--directory=",
    "-p",
    "-C",
];

/// Returns the files of work in progress in a git folder because of which git runs programs, or writes elsewhere.
pub(super) fn find_resumed(git: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in RESUMED_BY_GIT.map(|name| git.join(name)) {
        let Ok(data) = fs::symlink_metadata(&folder) else { continue };
        // Git makes no link here.
        if data.is_symlink() {
            found.push(folder);
            continue;
        }
        for (name, is_harmless) in CHECKS {
            let file = folder.join(name);
            let Ok(data) = file.symlink_metadata() else { continue };
            if data.is_symlink() || !read_small(&file).is_some_and(|text| is_harmless(&text)) {
                found.push(file);
            }
        }
    }
    found
}

/// Returns whether a text is harmless.
type TextCheck = fn(&str) -> bool;

/// The files that are read when work is continued, and what is harmless in them.
const CHECKS: [(&str, TextCheck); 4] = [
    ("git-rebase-todo", has_harmless_steps),
    ("strategy", is_strategy),
    ("opts", has_harmless_settings),
    (OPTIONS_OF_AM, has_harmless_options),
];

/// Returns whether each line of a rebase is a comment or a command that runs no program.
fn has_harmless_steps(text: &str) -> bool {
    let spaces = [' ', '\t', '\r'];
    text.split('\n').map(|line| line.trim_matches(spaces)).all(|line| {
        let step = line.split(spaces).next().unwrap_or_default();
        line.is_empty() || line.starts_with('#') || HARMLESS_STEPS.split_whitespace().any(|listed| listed == step)
    })
}

fn is_strategy(text: &str) -> bool {
    let name = text.trim_matches(['\r', '\n']);
    name.is_empty() || STRATEGIES.contains(&name)
}

/// Returns whether the options of a cherry-pick name no strategy but those of git. Git writes only one section.
fn has_harmless_settings(text: &str) -> bool {
    let is_harmless = |(key, value): &(String, &str)| {
        key.starts_with("options.") && (key != "options.strategy" || STRATEGIES.contains(value))
    };
    parse_config(text).is_ok_and(|settings| settings.iter().all(is_harmless))
}

/// Returns whether `git am` knows each option as one that names no file to write. Each is in quotes.
fn has_harmless_options(text: &str) -> bool {
    text.split_whitespace().all(|option| {
        let option = option.trim_matches('\'');
        let is_listed = HARMLESS_OPTIONS.iter().any(|listed| option.starts_with(listed));
        is_listed && !option.contains(['\'', '\\'])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(files: &[(&str, &str)]) -> Vec<String> {
        let git = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = git.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let found = find_resumed(git.path()).into_iter();
        found.map(|path| path.strip_prefix(git.path()).unwrap().display().to_string()).collect()
    }

    #[test]
    fn steps_that_git_writes_by_itself_are_harmless() {
        let steps = "pick 1234567 exec in a subject\nreword 1234567\n\n# exec true\nfixup -C 1234567 x\nlabel onto\n\
                     reset onto\nmerge -C 1234567 x # y\nupdate-ref refs/heads/a\nbreak\nnoop\nd 1234567\n  p 12\r\n";
        assert_eq!(find(&[("rebase-merge/git-rebase-todo", steps), ("rebase-merge/done", "exec true\n")]), [""; 0]);
        assert_eq!(find(&[("rebase-merge/git-rebase-todo", "")]), [""; 0]);
        for line in ["exec make", "x make", "\texec make", "x\tmake", "run make", "exec"] {
            let steps = format!("pick 1234567 x\n{line}\n");
            assert_eq!(find(&[("rebase-merge/git-rebase-todo", &steps)]), ["rebase-merge/git-rebase-todo"], "{line}");
        }
    }

    #[test]
    fn a_strategy_that_git_does_not_have_is_a_program() {
        for (strategy, is_harmless) in [("ort", true), ("ours", true), ("x/run", false), ("ort x", false)] {
            let settings = format!("[options]\n\tsignoff = true\n\tstrategy = {strategy}\n");
            let found = find(&[("rebase-merge/strategy", &format!("{strategy}\n")), ("sequencer/opts", &settings)]);
            let expected: &[&str] = if is_harmless { &[] } else { &["rebase-merge/strategy", "sequencer/opts"] };
            assert_eq!(found, expected, "{strategy}");
        }
        for settings in [
            "[options] strategy = x/run\n",
            "\u{feff}[options]\n\tstrategy = x/run\n",
            "strategy = x/run\n",
            "[other]\n\tsignoff = true\n",
        ] {
            assert_eq!(find(&[("sequencer/opts", settings)]), ["sequencer/opts"], "{settings}");
        }
        assert_eq!(find(&[("sequencer/todo", "pick 1234567 x\n"), ("sequencer/head", "1234567\n")]), [""; 0]);
    }

    #[test]
    fn options_of_am_name_no_file_to_write() {
        for options in ["\n", "", " '--whitespace=fix' '-p1' '--directory=sub' '-C2'\n"] {
            assert_eq!(find(&[("rebase-apply/apply-opt", options)]), [""; 0], "{options}");
        }
        for options in [" '--build-fake-ancestor=/x'\n", " '-p1''--build-f=/x'", " '-p1' \\--build-f=/x"] {
            assert_eq!(find(&[("rebase-apply/apply-opt", options)]), ["rebase-apply/apply-opt"], "{options}");
        }
    }

    #[test]
    fn links_and_pipes_in_work_in_progress_are_not_harmless() {
        let git = tempfile::tempdir().unwrap();
        let path = |name: &str| git.path().join(name);
        fs::create_dir_all(path("other")).unwrap();
        std::os::unix::fs::symlink("other", path("rebase-merge")).unwrap();
        fs::create_dir(path("sequencer")).unwrap();
        let pipe = path("sequencer/opts");
        crate::test_fifo::make_fifo(&pipe);
        fs::create_dir(path("rebase-apply")).unwrap();
        fs::write(path("empty"), "").unwrap();
        std::os::unix::fs::symlink("../empty", path("rebase-apply/apply-opt")).unwrap();
        assert_eq!(find_resumed(git.path()), [path("rebase-merge"), path("rebase-apply/apply-opt"), pipe]);
    }
}
