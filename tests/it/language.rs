//! Checks that names and prose stay plain: see docs/CONTRIBUTING.md. Each test prints its findings.

#![expect(clippy::expect_used, reason = "a test ends if a file cannot be read")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use regex::Regex;

use crate::support::{files_below, read, repository};

const MAX_COLUMNS: usize = 100;
const MAX_SENTENCE_WORDS: usize = 35;
const MAX_HELP_CHARACTERS: usize = 70;
const MAX_TEST_NAME: usize = 60;
/// Findings that the checks accept. These numbers only go down.
const MAX_BANNED_WORDS: usize = 10;
const MAX_LONG_SENTENCES: usize = 16;
const MAX_STRING_ERRORS: usize = 0;
/// A Rust line with this comment is exempt.
const EXEMPT: &str = "wordcheck: ok";

/// Words of the old dialect. Name the actor instead, or use the word of the glossary in docs/CONTRIBUTING.md.
const BANNED: &[&str] = &[
    "whom?ever",
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "whatever",
    "whichever",
    "whom",
    "told",
    "untold",
    "tells",
    "heard",
    "unheard",
    "hears",
    "stood",
    "anew",
    "as (it|they) (came|come|comes)",
    "spoken? of",
    "speaks? of",
    "be had",
    "beside",
    "front doors?",
    "agents? outside",
    "outsiders?",
    "seats?",
    "seated",
    "desk",
    "errands?",
    "in (our|its|their) (own )?words",
    "of ours",
    "of theirs",
    "of (its|their|our) own",
    "lets? go",
    "letting go",
];
const PARTICIPLES: &str = "told said found held heard begun taken given known seen shown gone done made meant kept sent \
    met spent built written chosen broken hidden forgotten spoken drawn grown thrown bound brought thought caught taught \
    sought dealt felt paid laid stood lent undone unseen led lost frozen proven fallen";
const NOT_PARTICIPLES: &str = "need feed seed speed embed bed red shed exceed proceed indeed hundred naked";
const FUNCTION_WORDS: &str = "Before After Then Because By Which What Why Who Within Without Around Beneath Below Above \
    Between Beside Behind Since Until While Nobody Others Same Alone Apart Once Where When How Here There Over Under Again \
    Already Still Outside Inside Every Each Whole Nothing Something Last First Next Live Open Deaf Absent";
/// Idioms of Rust and tokio, and private helpers whose file gives the context.
const SHARED_NAMES: &str = "Inner State Key Error Shared Builder Iter Visitor Args Test Bound";
const PARTICIPLE_FUNCTIONS: &str = "cloned copied sorted reversed cancelled closed elapsed matched";

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a pattern")
}

fn has_word(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|entry| entry == word)
}

fn is_participle(word: &str) -> bool {
    let word = word.to_lowercase();
    let regular = word.len() > 4 && word.ends_with("ed") && !word.ends_with("eed");
    !has_word(NOT_PARTICIPLES, &word) && (has_word(PARTICIPLES, &word) || regular)
}

/// A source file without its tests.
struct SourceFile {
    path: String,
    text: String,
}

fn name_in_repository(file: &Path) -> String {
    file.strip_prefix(repository("")).expect("a file of the repository").to_string_lossy().into_owned()
}

fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut files = files_below(&repository(folder));
    files.retain(|file| file.extension().is_some_and(|found| found == extension));
    files.retain(|file| {
        !file.components().any(|part| matches!(part.as_os_str().to_str(), Some("node_modules" | "venv")))
    });
    files.sort();
    files
}

fn sources() -> Vec<SourceFile> {
    let is_test =
        |path: &str| ["_tests.rs", "harness.rs", "testing.rs", "fake_editor.rs"].iter().any(|end| path.ends_with(end));
    let source = |file: &PathBuf| SourceFile {
        path: name_in_repository(file),
        text: read(file).split("\n#[cfg(test)]\nmod ").next().unwrap_or_default().to_owned(),
    };
    files("src", "rs").iter().map(source).filter(|file| !is_test(&file.path)).collect()
}

fn documents() -> Vec<(String, String)> {
    let all = files("docs", "md").into_iter().chain([repository("README.md")]);
    all.map(|file| (name_in_repository(&file), read(&file))).collect()
}

/// Fails with the findings if there are more than `limit`.
fn at_most(limit: usize, what: &str, findings: &[String]) {
    assert!(findings.len() <= limit, "{} {what}, at most {limit}:\n{}", findings.len(), findings.join("\n"));
}

/// Every match of `regex` in the code of all files, with its place.
fn names(regex: &Regex) -> Vec<(String, String)> {
    let mut names = Vec::new();
    for file in sources() {
        for (number, line) in file.text.lines().enumerate() {
            if let Some(found) = regex.captures(line).filter(|_| !line.contains(EXEMPT)) {
                names.push((found[1].to_owned(), format!("{}:{}", file.path, number + 1)));
            }
        }
    }
    names
}

fn types() -> Vec<(String, String)> {
    names(&pattern(r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:struct|enum|trait|union)\s+([A-Z]\w*)"))
}

#[test]
fn types_are_named_by_nouns() {
    let words = pattern(r"[A-Z][a-z0-9]*");
    let is_bad = |name: &str| {
        let words: Vec<_> = words.find_iter(name).map(|word| word.as_str()).collect();
        !has_word(SHARED_NAMES, name) && words.iter().all(|word| is_participle(word) || has_word(FUNCTION_WORDS, word))
    };
    let bad: Vec<_> = types().into_iter().filter(|(name, _)| is_bad(name)).collect();
    at_most(
        8,
        "types are named by a participle or a function word",
        &bad.iter().map(|(name, at)| format!("{at} {name}")).collect::<Vec<_>>(),
    );
}

#[test]
fn types_have_unique_names() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, at) in types() {
        places.entry(name).or_default().push(at);
    }
    let shared = places.iter().filter(|(name, at)| at.len() > 1 && !has_word(SHARED_NAMES, name));
    let findings: Vec<_> = shared.flat_map(|(name, at)| at.iter().map(move |at| format!("{at} {name}"))).collect();
    at_most(40, "types share their name with another", &findings);
}

#[test]
fn functions_are_named_by_verbs_or_nouns() {
    let functions = names(&pattern(r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:const\s+)?(?:async\s+)?fn\s+(\w+)"));
    let is_bad = |name: &str| {
        let first = name.trim_start_matches('_').split('_').next().unwrap_or_default();
        is_participle(first) && !has_word(PARTICIPLE_FUNCTIONS, name)
    };
    let bad: Vec<_> =
        functions.iter().filter(|(name, _)| is_bad(name)).map(|(name, at)| format!("{at} {name}")).collect();
    at_most(45, "functions are named by a participle", &bad);
}

#[test]
fn test_names_are_short() {
    let test = pattern(r"#\[(?:\w+::)?test\b[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:async\s+)?fn\s+(\w+)");
    let mut long = Vec::new();
    for file in files("src", "rs").into_iter().chain(files("tests/it", "rs")) {
        let text = read(&file);
        let names = test.captures_iter(&text).map(|found| found[1].to_owned());
        long.extend(
            names.filter(|name| name.len() > MAX_TEST_NAME).map(|name| format!("{} {name}", name_in_repository(&file))),
        );
    }
    at_most(10, "test names are over 60 characters", &long);
}

/// The error type of each `Result<_, E>`, with the number of its line.
fn result_errors(text: &str) -> Vec<(usize, &str)> {
    let mut errors = Vec::new();
    for found in pattern(r"\bResult<").find_iter(text) {
        let rest = &text[found.end()..];
        let (mut depth, mut comma) = (1, None);
        for (at, c) in rest.char_indices() {
            match c {
                '<' | '(' | '[' | '{' => depth += 1,
                '>' if rest[..at].ends_with(['-', '=']) => {}
                '>' | ')' | ']' | '}' => depth -= 1,
                ',' if depth == 1 => comma = comma.or(Some(at + 1)),
                _ => {}
            }
            if depth == 0 {
                let line = text[..found.start()].lines().count().max(1);
                errors.extend(comma.map(|comma| (line, rest[comma..at].trim().trim_end_matches(',').trim())));
                break;
            }
        }
    }
    errors
}

#[test]
fn errors_in_signatures_have_types() {
    assert_eq!(result_errors("-> Result<Map<String, String>, Error> {"), [(1, "Error")]);
    assert_eq!(result_errors("\nfn a(b: impl Fn(u8) -> Result<(), String>)"), [(2, "String")]);
    let mut found = Vec::new();
    for file in sources() {
        let text = result_errors(&file.text).into_iter();
        let text = text.filter(|(_, error)| ["String", "&'static str", "&str"].contains(error));
        found.extend(text.map(|(line, error)| format!("{}:{line} Result<_, {error}>", file.path)));
    }
    found
        .extend(names(&pattern(r"(type (?:Error|Err) = String)")).into_iter().map(|(text, at)| format!("{at} {text}")));
    at_most(MAX_STRING_ERRORS, "signatures have a text as error", &found);
}

#[test]
fn code_does_not_search_the_text_of_errors() {
    let search = r"\b((?:error|problem|reason|why|failure)(?:\.to_string\(\))?\.(?:contains|starts_with|ends_with)\()";
    let found = names(&pattern(search));
    at_most(0, "places search the text of an error", &found.iter().map(|(_, at)| at.clone()).collect::<Vec<_>>());
}

/// The comments of a file as blocks: the first line of each, and its text without the markers.
fn comment_blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut last = 0;
    for (number, line) in text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
        let comment = comment.trim_start_matches(['/', '!']);
        match blocks.last_mut().filter(|_| last == number) {
            Some((_, block)) => *block = format!("{block}\n{comment}"),
            None => blocks.push((number + 1, comment.to_owned())),
        }
        last = number + 1;
    }
    blocks
}

/// The paragraphs of a Markdown file, without code blocks: the first line of each, and its text.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let mut paragraphs: Vec<(usize, String)> = Vec::new();
    let (mut in_code, mut open) = (false, false);
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            (in_code, open) = (!in_code, false);
        } else if in_code || line.trim().is_empty() || line.starts_with("<!--") {
            open = false;
        } else {
            let starts = line.trim_start().starts_with(['-', '|', '#', '*']) || !open;
            match paragraphs.last_mut().filter(|_| !starts) {
                Some((_, paragraph)) => *paragraph = format!("{paragraph}\n{line}"),
                None => paragraphs.push((number + 1, line.to_owned())),
            }
            open = true;
        }
    }
    paragraphs
}

/// Prose without inline code and links' addresses.
fn prose(text: &str) -> String {
    let text = pattern("(?s)`[^`]*`").replace_all(text, " CODE ");
    pattern(r"\]\([^)]*\)").replace_all(&text, "]").into_owned()
}

fn blocks() -> Vec<(String, String)> {
    let of_code = sources().into_iter().flat_map(|file| {
        let path = file.path;
        comment_blocks(&file.text).into_iter().map(move |(line, text)| (format!("{path}:{line}"), text))
    });
    let of_docs = documents().into_iter().flat_map(|(path, text)| {
        paragraphs(&text).into_iter().map(move |(line, text)| (format!("{path}:{line}"), text))
    });
    of_code.chain(of_docs).filter(|(_, text)| !text.contains(EXEMPT)).collect()
}

#[test]
fn comments_and_docs_use_plain_words() {
    let banned = pattern(&format!(r"(?i)(?:^|[^\w-])(?:{})(?:[^\w-]|$)", BANNED.join("|")));
    let findings = blocks().into_iter().flat_map(|(at, text)| {
        let text = prose(&text).split_whitespace().collect::<Vec<_>>().join(" ");
        banned.find_iter(&text).map(|found| format!("{at} {}", found.as_str())).collect::<Vec<_>>()
    });
    at_most(MAX_BANNED_WORDS, "banned words in comments and docs", &findings.collect::<Vec<_>>());
}

#[test]
fn sentences_are_short() {
    let end = pattern(r"[.!?:;]\s");
    let findings = blocks().into_iter().flat_map(|(at, text)| {
        let text = prose(&text);
        let long = |sentence: &&str| sentence.split_whitespace().count() > MAX_SENTENCE_WORDS;
        end.split(&text).filter(long).map(|sentence| format!("{at} {}", sentence.trim())).collect::<Vec<_>>()
    });
    at_most(MAX_LONG_SENTENCES, "sentences have more than 35 words", &findings.collect::<Vec<_>>());
}

#[test]
fn markdown_lines_are_short() {
    let mut wide = Vec::new();
    for (path, text) in documents() {
        for (number, line) in paragraphs(&text).iter().flat_map(|(first, text)| (*first..).zip(text.lines())) {
            let breakable =
                !line.trim_start().starts_with(['|', '#', '!']) && line.split(' ').all(|word| word.len() < 80);
            if breakable && line.chars().count() > MAX_COLUMNS {
                wide.push(format!("{path}:{number} {} columns", line.chars().count()));
            }
        }
    }
    at_most(0, "Markdown lines are over 100 columns", &wide);
}

#[test]
fn help_texts_are_short() {
    let mut long = Vec::new();
    let item = pattern(r"#\[derive\([^)]*\b(?:Args|Parser|Subcommand)\b[^)]*\)\]");
    for file in sources().into_iter().filter(|file| file.path.starts_with("src/cli") && item.is_match(&file.text)) {
        let mut in_item = false;
        let mut first_line = true;
        for (number, line) in file.text.lines().enumerate() {
            in_item = (in_item || item.is_match(line)) && line != "}";
            let help = line.trim_start().strip_prefix("/// ").filter(|_| in_item && first_line);
            if let Some(help) = help.filter(|help| help.chars().count() > MAX_HELP_CHARACTERS) {
                long.push(format!("{}:{} {help}", file.path, number + 1));
            }
            first_line = !line.trim_start().starts_with("///");
        }
    }
    at_most(0, "help texts are over 70 characters", &long);
}
