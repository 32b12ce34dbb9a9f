//! Converts the text of a prompt to contents, and attaches each file that it names as `@path` or `@"path with spaces"`.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use serde_json::json;

use super::output::CommandError;
use crate::conversation::{Content, image_type};

/// The agent reads longer texts better itself, in parts.
const MAX_TEXT: u64 = 256 << 10;
const MAX_IMAGE: u64 = 5 << 20;

/// Endings of file names. A word with another ending, such as `@app.route`, may be code.
const FILE_ENDINGS: [&str; 60] = [
    "adoc", "bat", "bmp", "c", "cc", "cfg", "conf", "cpp", "cs", "css", "csv", "cxx", "diff", "doc", "docx", "env",
    "gif", "go", "gradle", "h", "hpp", "html", "ini", "ipynb", "java", "jpeg", "jpg", "js", "json", "jsonl", "jsx",
    "kt", "lock", "log", "lua", "md", "mdx", "patch", "pdf", "php", "png", "py", "rb", "rs", "rst", "scss", "sh",
    "sql", "svg", "swift", "toml", "ts", "tsv", "tsx", "txt", "webp", "xlsx", "xml", "yaml", "yml",
];

/// A path that a prompt names.
struct NamedPath<'a> {
    /// The path, without quotes and with the punctuation of the sentence if it has no quotes.
    name: &'a str,
    is_quoted: bool,
    /// The prompt begins with it.
    is_first: bool,
}

impl<'a> NamedPath<'a> {
    /// Finds the words that begin with `@`, and the texts in quotes after an `@` that begins a word.
    fn all_in(text: &'a str) -> Vec<Self> {
        let mut found = Vec::new();
        let mut rest = text.trim_start();
        let mut is_first = true;
        while !rest.is_empty() {
            let quoted = rest.strip_prefix("@\"").and_then(|after| after.split_once('"'));
            if let Some((name, after)) = quoted.filter(|(name, _)| !name.is_empty() && !name.contains('\n')) {
                found.push(Self { name, is_quoted: true, is_first });
                rest = after;
            } else if let Some(after) = rest.strip_prefix('@') {
                let name = after.split(char::is_whitespace).next().unwrap_or_default();
                found.push(Self { name, is_quoted: false, is_first });
            }
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            rest = rest[end..].trim_start();
            is_first = false;
        }
        found
    }

    /// Returns the path without the punctuation of the sentence.
    fn bare(&self) -> &'a str {
        match self.is_quoted {
            true => self.name,
            false => self.name.trim_end_matches(['.', ',', ';', ':', '!', '?', ')', '"', '\'']),
        }
    }
}

/// Returns the prompt with every file that it names as `@path`, and notes for the user. The file must be below one of
/// `folders`, and a relative path starts at the first of them. Fails if a path names no file. Other words stay text:
/// `@mode`, a name or an e-mail address. Call this only for text that the user typed: other text must not choose files.
pub(super) fn prompt(text: &str, folders: &[PathBuf]) -> Result<(Vec<Content>, Vec<String>), CommandError> {
    let cwd = folders.first().cloned().unwrap_or_default();
    let roots: Vec<_> = folders.iter().map(|folder| folder.canonicalize().unwrap_or_else(|_| folder.clone())).collect();
    let mut contents = vec![Content::text(text)];
    let mut notes = Vec::new();
    for named in NamedPath::all_in(text) {
        let (name, bare) = (named.name, named.bare());
        // A URI names a resource of a service.
        if name.is_empty() || name.contains("://") {
            continue;
        }
        let shown = if named.is_quoted { format!("@\"{bare}\"") } else { format!("@{bare}") };
        let (whole, trimmed) = (cwd.join(name), cwd.join(bare));
        match [whole, trimmed.clone()].into_iter().find(|path| path.is_file()) {
            Some(path) if !path.canonicalize().is_ok_and(|real| roots.iter().any(|root| real.starts_with(root))) => {
                notes.push(format!("{shown} is outside this folder and stays plain text"));
            }
            Some(path) => contents.push(read_attachment(&path)?),
            // Reading a pipe or a device could block forever.
            None if trimmed.exists() && !trimmed.is_dir() => {
                return Err(CommandError::usage(
                    format!("`{bare}`, which the prompt names as `{shown}`, is no regular file"),
                    "name a file, or leave out the @ to send the word as text",
                ));
            }
            None if names_path(bare, &cwd)
                && !trimmed.is_dir()
                && (!named.is_quoted || is_quoted_path(bare, &trimmed, &roots)) =>
            {
                return Err(CommandError::usage(
                    format!("there is no file `{bare}`, which the prompt names as `{shown}`"),
                    "correct the path, or leave out the @ to send the word as text",
                ));
            }
            // A prompt may start with `@mode`.
            None if named.is_first && !named.is_quoted => {}
            None if bare.contains(['/', '.']) => notes.push(format!("{shown} is no file here and stays a word")),
            None => {}
        }
    }
    Ok((contents, notes))
}

/// Returns true if the word can only be a path: it starts like one, is in a folder that exists, or has a file's
/// ending.
fn names_path(name: &str, cwd: &Path) -> bool {
    let path = Path::new(name);
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    let in_folder = name.split_once('/').is_some_and(|(folder, _)| cwd.join(folder).is_dir());
    ["/", "./", "../"].iter().any(|start| name.starts_with(start))
        || in_folder
        || ending.is_some_and(|ending| FILE_ENDINGS.contains(&ending.as_str()))
}

/// Returns true if the text in quotes can be a path: it is a plain name, or in a folder below one of `roots`. Pasted
/// code has texts such as `@"C:\app\config.json"`.
fn is_quoted_path(name: &str, path: &Path, roots: &[PathBuf]) -> bool {
    if !name.contains('/') {
        return !name.contains(|c: char| c.is_whitespace() || c == '\\');
    }
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    folder.is_some_and(|folder| roots.iter().any(|root| folder.starts_with(root)))
}

/// Reads the prompt from stdin.
pub(super) fn from_stdin() -> Result<String, CommandError> {
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    let unread =
        |error| CommandError::usage(format!("stdin cannot be read: {error}"), "give the prompt as an argument");
    read.map(|_| text).map_err(unread)
}

fn read_attachment(path: &Path) -> Result<Content, CommandError> {
    let shown = path.display();
    let unfit = |problem: String| CommandError::usage(problem, "leave out the @, and let the agent read it");
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    let is_image = matches!(extension.as_deref(), Some("png" | "jpg" | "jpeg" | "gif" | "webp"));
    let size = path.metadata().map_err(|error| unfit(format!("{shown} cannot be read: {error}")))?.len();
    let limit = if is_image { MAX_IMAGE } else { MAX_TEXT };
    if size > limit {
        return Err(unfit(format!("{shown} is too large to go along: {size} bytes, at most {limit}")));
    }
    let bytes = std::fs::read(path).map_err(|error| unfit(format!("{shown} cannot be read: {error}")))?;
    if is_image {
        // A provider refuses an image of another type than declared, and the name may be wrong.
        let mime = image_type(&bytes);
        let mime =
            mime.ok_or_else(|| unfit(format!("{shown} is no PNG, JPEG, GIF or WebP image, as its name says")))?;
        let data = base64::engine::general_purpose::STANDARD.encode(bytes);
        return Ok(Content::Image { mime: mime.to_owned(), data });
    }
    let text = String::from_utf8(bytes).map_err(|_| unfit(format!("{shown} is neither text nor a picture")))?;
    Ok(Content::Resource(json!({"uri": format!("file://{shown}"), "mimeType": "text/plain", "text": text})))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt_in(folder: &Path, text: &str) -> Result<(Vec<Content>, Vec<String>), CommandError> {
        prompt(text, &[folder.to_owned()])
    }

    #[test]
    fn a_pipe_does_not_go_along() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("notes.md");
        crate::test_fifo::make_fifo(&pipe);
        let Err(error) = prompt_in(folder.path(), "read @notes.md") else { panic!("it is read") };
        assert!(error.problem().contains("is no regular file"), "{}", error.problem());
    }

    #[test]
    fn files_go_along_and_other_words_do_not() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.txt"), "alpha").unwrap();
        // The type is that of the bytes, whatever the name says.
        std::fs::write(folder.path().join("b.png"), [0xff, 0xd8, 0xff, 0xe0]).unwrap();
        std::fs::create_dir(folder.path().join("src")).unwrap();
        let text = "compare @a.txt, @b.png and @src/ for @ann <ann@example.com>: @app.route, @types/node";
        let (contents, notes) = prompt_in(folder.path(), text).unwrap();
        assert_eq!(contents.len(), 3);
        assert!(matches!(&contents[1], Content::Resource(value) if value["text"] == "alpha"));
        assert!(matches!(&contents[2], Content::Image { mime, .. } if mime == "image/jpeg"));
        assert_eq!(
            notes,
            [
                "@src/ is no file here and stays a word",
                "@app.route is no file here and stays a word",
                "@types/node is no file here and stays a word"
            ]
        );
        assert_eq!(prompt_in(folder.path(), "@coding/backend go").unwrap().1, [""; 0]);
    }

    #[test]
    fn a_path_without_a_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("src")).unwrap();
        for (text, path) in [
            ("explain @missing.txt.", "missing.txt"),
            ("@missing.txt explain it", "missing.txt"),
            ("look at @src/gone, please", "src/gone"),
            ("@goose/assistant read @./gone", "./gone"),
        ] {
            let failure = prompt_in(folder.path(), text).err().unwrap_or_else(|| panic!("{text} is refused"));
            assert_eq!(failure.code(), 2);
            assert!(failure.problem().contains(&format!("no file `{path}`")), "{}", failure.problem());
        }
    }

    #[test]
    fn quoted_path_may_contain_spaces() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("my notes")).unwrap();
        std::fs::write(folder.path().join("my notes/first one.txt"), "one").unwrap();
        std::fs::write(folder.path().join("a.txt"), "alpha").unwrap();
        let text = "@\"my notes/first one.txt\", then @\"a.txt\" and @a.txt. Not mail@\"a.txt\"";
        let (contents, notes) = prompt_in(folder.path(), text).unwrap();
        let texts: Vec<_> = contents[1..]
            .iter()
            .map(|content| match content {
                Content::Resource(value) => value["text"].as_str().unwrap_or_default(),
                _ => "",
            })
            .collect();
        assert_eq!((texts.as_slice(), notes.len()), (["one", "alpha", "alpha"].as_slice(), 0), "{notes:?}");
        let failure = prompt_in(folder.path(), "read @\"my notes/gone.txt\"").err().unwrap();
        let expected = "there is no file `my notes/gone.txt`, which the prompt names as `@\"my notes/gone.txt\"`";
        assert!(failure.problem().starts_with(expected), "{}", failure.problem());
        assert_eq!(prompt_in(folder.path(), "say @\"hello there").unwrap().0.len(), 1, "there is no second quote");
    }

    #[test]
    fn a_text_in_quotes_of_pasted_code_stays_text() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("src")).unwrap();
        for name in [
            r"C:\Program Files\app\config.json",
            r"C:\app\config.json",
            "cannot read config.json",
            "/gone/app/config.json",
            "Resources/Base.lproj/config.json",
            "../config.json",
        ] {
            for start in ["", "var p = "] {
                let (contents, notes) = prompt_in(folder.path(), &format!("{start}@\"{name}\";")).unwrap();
                assert_eq!(contents.len(), 1, "{name}");
                assert_eq!(notes, [format!("@\"{name}\" is no file here and stays a word")]);
            }
        }
        for name in ["config.json", "src/config.json", "src/my config.json", "./config.json"] {
            let failure = prompt_in(folder.path(), &format!("read @\"{name}\"")).err();
            let failure = failure.unwrap_or_else(|| panic!("{name} is refused"));
            assert!(failure.problem().contains(&format!("no file `{name}`")), "{}", failure.problem());
        }
    }

    #[test]
    fn a_file_below_another_root_goes_along() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        std::fs::create_dir(&one).unwrap();
        std::fs::create_dir(&two).unwrap();
        std::fs::write(two.join("b.txt"), "beta").unwrap();
        assert_eq!(prompt("see @../two/b.txt", std::slice::from_ref(&one)).unwrap().0.len(), 1);
        assert_eq!(prompt("see @../two/b.txt", &[one, two]).unwrap().0.len(), 2);
    }

    #[test]
    fn no_file_outside_the_folder_goes_along_not_even_by_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let project = folder.path().join("project");
        std::fs::create_dir(&project).unwrap();
        std::fs::write(folder.path().join("key"), "secret").unwrap();
        std::os::unix::fs::symlink("../key", project.join("link.txt")).unwrap();
        let text = format!("see @../key @link.txt @{}", folder.path().join("key").display());
        let (contents, notes) = prompt_in(&project, &text).unwrap();
        assert_eq!((contents.len(), notes.len()), (1, 3), "{notes:?}");
    }

    #[test]
    fn what_is_too_large_or_no_text_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("big"), "x".repeat(300 << 10)).unwrap();
        std::fs::write(folder.path().join("binary"), [0xff, 0xfe, 0x00]).unwrap();
        std::fs::write(folder.path().join("page.png"), "<html>").unwrap();
        for (text, problem) in [
            ("@big", "too large"),
            ("@binary", "neither text nor a picture"),
            ("@page.png", "is no PNG, JPEG, GIF or WebP image"),
        ] {
            let Err(failure) = prompt_in(folder.path(), text) else { panic!("{text} is refused") };
            assert_eq!(failure.code(), 2);
            assert!(failure.problem().contains(problem), "{}", failure.problem());
        }
    }
}
