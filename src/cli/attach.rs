//! `@path` in a prompt: the file goes along with it.

use std::path::Path;

use base64::Engine as _;
use serde_json::json;

use super::output::Failure;
use crate::conversation::Content;

/// A longer text is better read by the agent itself, in parts.
const MAX_TEXT: u64 = 256 << 10;
const MAX_IMAGE: u64 = 5 << 20;

/// The prompt, and every file that it names as `@path`. A word that names no file stays a word, and is told.
pub(super) fn prompt(text: &str, cwd: &Path) -> Result<(Vec<Content>, Vec<String>), Failure> {
    let mut contents = vec![Content::text(text)];
    let mut notes = Vec::new();
    for name in text.split_whitespace().filter_map(|word| word.strip_prefix('@')) {
        // A sentence may go on behind the name.
        let whole = cwd.join(name);
        let trimmed = cwd.join(name.trim_end_matches(['.', ',', ';', ':', '!', '?', ')']));
        match [whole, trimmed].into_iter().find(|path| path.is_file()) {
            Some(path) => contents.push(attached(&path)?),
            None if name.contains(['/', '.']) => notes.push(format!("@{name} is no file here and stays a word")),
            None => {}
        }
    }
    Ok((contents, notes))
}

fn attached(path: &Path) -> Result<Content, Failure> {
    let shown = path.display();
    let unfit = |problem: String| Failure::usage(problem, "leave out the @, and let the agent read it");
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
