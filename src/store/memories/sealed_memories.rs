//! Encrypts the text and the tags of memories. Searches decrypt all memories of the project, of which there are few.

use super::memory_rows::{MemoryRows, MergeSealed, merge_tags};
use super::{MatchMode, Memory, MemoryOwner, NewMemory};
use crate::store::StoreError;
use crate::store::sealing::StoreKey;

/// The names under which columns are encrypted.
const TEXT: &str = "memory.text";
const TAGS: &str = "memory.tags";

#[derive(Debug)]
pub(super) struct SealedMemories {
    rows: Box<dyn MemoryRows>,
    key: StoreKey,
}

impl SealedMemories {
    pub(super) fn new(rows: Box<dyn MemoryRows>, key: StoreKey) -> Self {
        Self { rows, key }
    }

    fn open(&self, memory: Memory) -> Result<Memory, StoreError> {
        open(&self.key, memory)
    }
}

/// Encrypts all tags as one.
fn seal_tags(key: &StoreKey, tags: &[String]) -> Result<Vec<String>, StoreError> {
    let tags = serde_json::to_string(tags).unwrap_or_default();
    Ok(vec![key.seal(TAGS, tags.as_bytes())?])
}

fn open(key: &StoreKey, memory: Memory) -> Result<Memory, StoreError> {
    let text = key.open_text(TEXT, &memory.text)?;
    let damaged = || StoreError::Sealed { column: TAGS.to_owned(), problem: "it is damaged".to_owned() };
    let [sealed] = memory.tags.as_slice() else { return Err(damaged()) };
    let tags = serde_json::from_str(&key.open_text(TAGS, sealed)?).map_err(|_| damaged())?;
    Ok(Memory { text, tags, ..memory })
}

impl MemoryRows for SealedMemories {
    fn remember(&mut self, principal: &str, project: Option<&str>, new: &NewMemory<'_>) -> Result<Memory, StoreError> {
        let (text, tags) = (self.key.seal(TEXT, new.text.as_bytes())?, seal_tags(&self.key, new.tags)?);
        let sealed = NewMemory { text: &text, tags: &tags, ..*new };
        let kept = self.remember_sealed(principal, project, &sealed, &|known| match known.text == new.text {
            true => Ok(Some(merge_tags(known.tags.clone(), new.tags))),
            false => Ok(None),
        })?;
        self.open(kept)
    }

    fn remember_sealed(
        &mut self,
        principal: &str,
        project: Option<&str>,
        new: &NewMemory<'_>,
        merge: &MergeSealed<'_>,
    ) -> Result<Memory, StoreError> {
        let key = self.key.clone();
        let merge_opened = |known: &Memory| -> Result<Option<Vec<String>>, StoreError> {
            let tags = merge(&open(&key, known.clone())?)?;
            tags.map(|tags| seal_tags(&key, &tags)).transpose()
        };
        self.rows.remember_sealed(principal, project, new, &merge_opened)
    }

    fn select(
        &mut self,
        principal: &str,
        project: &str,
        words: Option<(&str, MatchMode)>,
        scope: Option<MemoryOwner>,
    ) -> Result<Vec<Memory>, StoreError> {
        let stored = self.rows.select(principal, project, None, scope)?;
        let mut found = stored.into_iter().map(|memory| self.open(memory)).collect::<Result<Vec<_>, _>>()?;
        if let Some((words, matching)) = words {
            found.retain(|memory| has_words(memory, words, matching));
        }
        Ok(found)
    }

    fn forget(&mut self, principal: &str, ids: &[i64]) -> Result<(), StoreError> {
        self.rows.forget(principal, ids)
    }
}

/// Returns whether text and tags have one of the words as the beginning of a word, or all as whole words. Words are not
/// stemmed.
fn has_words(memory: &Memory, words: &str, matching: MatchMode) -> bool {
    let split = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        words.map(str::to_lowercase).collect()
    };
    let (asked, mut stored) = (split(words), split(&memory.text));
    stored.extend(memory.tags.iter().flat_map(|tag| split(tag)));
    match matching {
        MatchMode::Any => asked.iter().any(|asked| stored.iter().any(|word| word.starts_with(asked))),
        MatchMode::All => !asked.is_empty() && asked.iter().all(|asked| stored.contains(asked)),
    }
}
