//! Defines text of the system that need not be UTF-8, as messages to a sandbox process carry it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Text of the system, which need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct OsText(pub(super) OsString);

impl OsText {
    pub(super) fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl<T: AsRef<OsStr> + ?Sized> From<&T> for OsText {
    fn from(text: &T) -> Self {
        Self(text.as_ref().to_owned())
    }
}

impl From<PathBuf> for OsText {
    fn from(path: PathBuf) -> Self {
        Self(path.into_os_string())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum TextForm {
    Text(String),
    Bytes(Vec<u8>),
}

impl Serialize for OsText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) => serializer.serialize_str(text),
            None => TextForm::Bytes(self.0.as_bytes().to_vec()).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for OsText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match TextForm::deserialize(deserializer)? {
            TextForm::Text(text) => text.into(),
            TextForm::Bytes(bytes) => OsString::from_vec(bytes),
        }))
    }
}
