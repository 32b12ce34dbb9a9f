//! Keeps the downloads of a page in the session's folder, out of the browser's reach.

use std::path::{Path, PathBuf};

use super::page_events::{DownloadState, MAX_DOWNLOAD, PageDownload};
use crate::services::builtin::answer::{size, truncate};

/// Why a download was not kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum DownloadError {
    #[error("it is larger than {}", size(MAX_DOWNLOAD))]
    TooLarge,
    #[error("it was cancelled")]
    Cancelled,
    #[error("it is no file")]
    NoFile,
    #[error("there are too many files of this name")]
    TooManyNames,
    #[error("it could not be stored: {0}")]
    Io(#[from] std::io::Error),
}

/// Moves a download to the session's folder, out of the browser's reach. Returns its path.
pub(super) fn keep_download(file: &Path, scratch: &Path, download: &PageDownload) -> Result<PathBuf, DownloadError> {
    match download.state {
        DownloadState::TooLarge => return Err(DownloadError::TooLarge),
        DownloadState::Cancelled => return Err(DownloadError::Cancelled),
        DownloadState::Active | DownloadState::Complete | DownloadState::Reported => {}
    }
    let data = file.symlink_metadata()?;
    if !data.is_file() {
        return Err(DownloadError::NoFile);
    }
    if data.len() > MAX_DOWNLOAD {
        return Err(DownloadError::TooLarge);
    }
    let folder = scratch.join("downloads");
    std::fs::create_dir_all(&folder)?;
    let name = file_name(&download.name);
    let (stem, end) = match name.rfind('.').filter(|at| *at > 0) {
        Some(at) => name.split_at(at),
        None => (name.as_str(), ""),
    };
    for number in 1..1000 {
        let path = folder.join(if number == 1 { name.clone() } else { format!("{stem}-{number}{end}") });
        // A name is taken by creating it, so that two downloads never share one.
        match std::fs::File::create_new(&path) {
            Ok(_) => {
                std::fs::rename(file, &path)?;
                return Ok(path);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(DownloadError::TooManyNames)
}

/// Returns a plain file name. The page suggests it, so it may be anything.
fn file_name(suggested: &str) -> String {
    let last = suggested.rsplit(['/', '\\']).next().unwrap_or_default();
    let plain = |c: char| c.is_alphanumeric() || "._-() ".contains(c);
    let name: String = last.chars().map(|c| if plain(c) { c } else { '_' }).collect();
    let name = truncate(name.trim().trim_start_matches('.'), 120).trim_end().to_owned();
    if name.is_empty() { "download".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn download(name: &str, state: DownloadState) -> PageDownload {
        PageDownload { name: name.to_owned(), url: "http://a.test/f".to_owned(), state }
    }

    #[test]
    fn downloads_get_plain_and_new_names() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("guid");
        let mut names = Vec::new();
        for name in
            ["report.pdf", "report.pdf", "../../etc/passwd", "..", ".bashrc", "a\u{202e}\nb.txt", "C:\\x\\y.doc"]
        {
            std::fs::write(&file, "x").unwrap();
            let path = keep_download(&file, folder.path(), &download(name, DownloadState::Complete)).unwrap();
            names.push(path.strip_prefix(folder.path().join("downloads")).unwrap().display().to_string());
        }
        assert_eq!(names, ["report.pdf", "report-2.pdf", "passwd", "download", "bashrc", "a__b.txt", "y.doc"]);
    }

    #[test]
    fn a_download_that_is_no_file_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("guid");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        let refused =
            keep_download(&link, folder.path(), &download("a", DownloadState::Complete)).unwrap_err().to_string();
        assert!(refused.contains("no file"), "{refused}");
        for (state, reason) in
            [(DownloadState::TooLarge, "larger than 256.0 MB"), (DownloadState::Cancelled, "cancelled")]
        {
            let refused = keep_download(&link, folder.path(), &download("a", state)).unwrap_err().to_string();
            assert!(refused.contains(reason), "{refused}");
        }
        assert!(!folder.path().join("downloads").exists());
    }

    proptest! {
        /// Whatever a page suggests, the file is directly in its folder.
        #[test]
        fn any_name_stays_in_its_folder(name in "\\PC{0,300}") {
            let name = file_name(&name);
            let path = Path::new("/d").join(&name);
            prop_assert_eq!(path.parent(), Some(Path::new("/d")));
            prop_assert!(!name.is_empty() && name.len() <= 120 && !name.starts_with('.'));
        }
    }
}
