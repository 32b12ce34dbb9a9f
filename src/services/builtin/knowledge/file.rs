//! Reads files of skills, recipes and agents with a size limit.

use std::fs;
use std::io::Read as _;
use std::path::Path;

/// Maximum size of a file that a model reads.
pub(super) const MAX_FILE: u64 = 256 * 1024;

/// Why a file of a skill or of a recipe cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum KnowledgeFileError {
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    #[error("it is not a file")]
    NotAFile,
    #[error("it is outside, links and `..` resolved")]
    Outside,
    #[error("it has more than {} kB; its path is {path}", MAX_FILE / 1024)]
    TooLarge { path: String },
    #[error("it is no text; its path is {path}")]
    NotText { path: String },
}

/// Reads at most one byte more than the limit. Fails for pipes and devices, which have no end.
pub(super) fn contents(real: &Path) -> Result<Vec<u8>, KnowledgeFileError> {
    if !fs::metadata(real)?.is_file() {
        return Err(KnowledgeFileError::NotAFile);
    }
    let mut bytes = Vec::new();
    fs::File::open(real)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
