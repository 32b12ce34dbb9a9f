//! Converts the text of a prompt to contents, and attaches each file that it names as `@path`.

use std::io::Read as _;
use std::path::Path;

use base64::Engine as _;
use serde_json::json;

use super::output::CommandError;
use crate::conversation::Content;

/// The agent reads longer texts better itself, in parts.
const MAX_TEXT: u64 = 256 << 10;
const MAX_IMAGE: u64 = 5 << 20;

/// Returns the prompt with every file below `cwd` that it names as `@path`, and notes for the user. A word that names
/// no such file stays text, with a note if it looks like a path. Call this only for text that the user typed: other
/// text must not choose files.
pub(super) fn prompt(text: &str, cwd: &Path) -> Result<(Vec<Content>, Vec<String>), CommandError> {
    let root = cwd.canonicalize().unwrap_or_else(|_| cwd.to_owned());
    let mut contents = vec![Content::text(text)];
    let mut notes = Vec::new();
    for name in text.split_whitespace().filter_map(|word| word.strip_prefix('@')) {
        // The name may end with punctuation of the sentence.
        let whole = cwd.join(name);
        let trimmed = cwd.join(name.trim_end_matches(['.', ',', ';', ':', '!', '?', ')']));
        match [whole, trimmed].into_iter().find(|path| path.is_file()) {
            Some(path) if !path.canonicalize().is_ok_and(|real| real.starts_with(&root)) => {
                notes.push(format!("@{name} is outside this folder and stays plain text"));
            }
            Some(path) => contents.push(read_attachment(&path)?),
            // A prompt may start with `@mode`.
            None if text.trim_start().strip_prefix('@').is_some_and(|first| first.starts_with(name)) => {}
            None if name.contains(['/', '.']) => notes.push(format!("@{name} is no file here and stays a word")),
            None => {}
        }
    }
    Ok((contents, notes))
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
    let image = match extension.as_deref() {
        Some("png") => Some("image/png"),
        Some("jpg" | "jpeg") => Some("image/jpeg"),
        Some("gif") => Some("image/gif"),
        Some("webp") => Some("image/webp"),
        _ => None,
    };
    let size = path.metadata().map_err(|error| unfit(format!("{shown} cannot be read: {error}")))?.len();
    let limit = if image.is_some() { MAX_IMAGE } else { MAX_TEXT };
    if size > limit {
        return Err(unfit(format!("{shown} is too large to go along: {size} bytes, at most {limit}")));
    }
    let bytes = std::fs::read(path).map_err(|error| unfit(format!("{shown} cannot be read: {error}")))?;
    if let Some(mime) = image {
        let data = base64::engine::general_purpose::STANDARD.encode(bytes);
        return Ok(Content::Image { mime: mime.to_owned(), data });
    }
    let text = String::from_utf8(bytes).map_err(|_| unfit(format!("{shown} is neither text nor a picture")))?;
    Ok(Content::Resource(json!({"uri": format!("file://{shown}"), "mimeType": "text/plain", "text": text})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_go_along_and_other_words_do_not() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.txt"), "alpha").unwrap();
        std::fs::write(folder.path().join("b.png"), [0x89, b'P']).unwrap();
        let (contents, notes) = prompt("compare @a.txt, @b.png and @gone/c.txt for @ann", folder.path()).unwrap();
        assert_eq!(contents.len(), 3);
        assert!(matches!(&contents[1], Content::Resource(value) if value["text"] == "alpha"));
        assert!(matches!(&contents[2], Content::Image { mime, .. } if mime == "image/png"));
        assert_eq!(notes, ["@gone/c.txt is no file here and stays a word"]);
    }

    #[test]
    fn no_file_outside_the_folder_goes_along_not_even_by_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let project = folder.path().join("project");
        std::fs::create_dir(&project).unwrap();
        std::fs::write(folder.path().join("key"), "secret").unwrap();
        std::os::unix::fs::symlink("../key", project.join("link.txt")).unwrap();
        let text = format!("see @../key @link.txt @{}", folder.path().join("key").display());
        let (contents, notes) = prompt(&text, &project).unwrap();
        assert_eq!((contents.len(), notes.len()), (1, 3), "{notes:?}");
    }

    #[test]
    fn what_is_too_large_or_no_text_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("big"), "x".repeat(300 << 10)).unwrap();
        std::fs::write(folder.path().join("binary"), [0xff, 0xfe, 0x00]).unwrap();
        for (text, problem) in [("@big", "too large"), ("@binary", "neither text nor a picture")] {
            let Err(failure) = prompt(text, folder.path()) else { panic!("{text} is refused") };
            assert!(failure.problem().contains(problem), "{}", failure.problem());
        }
    }
}
