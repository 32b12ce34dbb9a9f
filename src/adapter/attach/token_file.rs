//! Keeps the socket and the token of an offer in a file that only the user can read. A command line can name the file,
//! where a token would be visible to other users.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::{OfferError, SocketOffer};

/// File extension of token files.
const EXTENSION: &str = "token";
/// Maximum bytes of a token file.
const MAX_FILE: u64 = 8 << 10;

/// An offer whose socket and token are in a file. Dropping it withdraws the offer and removes the file.
#[derive(Debug)]
pub struct TokenFile {
    pub path: PathBuf,
    pub offer: SocketOffer,
}

impl TokenFile {
    /// Writes the file at `path`, with the extension of token files. Fails if it exists or cannot be written.
    pub(super) fn write(path: PathBuf, offer: SocketOffer) -> Result<Self, OfferError> {
        let path = path.with_extension(EXTENSION);
        let text = format!("{}\n{}\n", offer.socket.display(), offer.token);
        let open = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let written = open.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|source| OfferError::File { path: path.clone(), source })?;
        Ok(Self { path, offer })
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        // The token is of no use without the offer, so a file that stays does no harm.
        drop(fs::remove_file(&self.path));
    }
}

/// The contents of a token file.
#[derive(Clone, PartialEq, Eq)]
pub struct AttachTarget {
    pub socket: PathBuf,
    pub token: String,
}

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("it has no socket and no token")]
    Format,
}

impl AttachTarget {
    /// Reads a token file. Fails if it cannot be read or is no token file.
    pub fn read(path: &Path) -> Result<Self, TokenFileError> {
        if fs::metadata(path)?.len() > MAX_FILE {
            return Err(TokenFileError::Format);
        }
        let text = fs::read_to_string(path)?;
        match text.lines().collect::<Vec<_>>()[..] {
            [socket, token] if !socket.is_empty() && !token.is_empty() => {
                Ok(Self { socket: PathBuf::from(socket), token: token.to_owned() })
            }
            _ => Err(TokenFileError::Format),
        }
    }
}

/// Omits the token, because debug output ends up in logs.
impl std::fmt::Debug for AttachTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttachTarget").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// Removes a token file whose socket is gone. Ignores other files.
pub(super) fn remove_stale(path: &Path) {
    if path.extension().is_some_and(|extension| extension == EXTENSION)
        && AttachTarget::read(path).is_ok_and(|target| !target.socket.exists())
    {
        drop(fs::remove_file(path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_and_a_token_are_a_token_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.token");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            AttachTarget::read(&path).ok()
        };
        let target = AttachTarget { socket: "/run/a b.attach".into(), token: "abc".to_owned() };
        assert_eq!(read("/run/a b.attach\nabc\n"), Some(target.clone()));
        assert!(!format!("{target:?}").contains("abc"));
        for text in ["", "/run/a", "\nabc\n", "/run/a\nabc\nmore\n", &"x".repeat(10_000)] {
            assert_eq!(read(text), None, "{text:.20}");
        }
    }
}
