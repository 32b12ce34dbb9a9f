//! Encrypts the text and the tags of memories. Searches decrypt all memories of the project, of which there are few.

use super::memory_rows::{MemoryRows, merge_tags};
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

    /// Encrypts all tags as one.
    fn seal_tags(&self, tags: &[String]) -> Result<Vec<String>, StoreError> {
        let tags = serde_json::to_string(tags).unwrap_or_default();
        Ok(vec![self.key.seal(TAGS, tags.as_bytes())?])
    }

    fn open(&self, memory: Memory) -> Result<Memory, StoreError> {
        let text = self.key.open_text(TEXT, &memory.text)?;
        let damaged = || StoreError::Sealed { column: TAGS.to_owned(), problem: "it is damaged".to_owned() };
        let [sealed] = memory.tags.as_slice() else { return Err(damaged()) };
        let tags = serde_json::from_str(&self.key.open_text(TAGS, sealed)?).map_err(|_| damaged())?;
        Ok(Memory { text, tags, ..memory })
    }
}

impl MemoryRows for SealedMemories {
    fn remember(&mut self, principal: &str, project: Option<&str>, new: &NewMemory<'_>) -> Result<Memory, StoreError> {
        // Equal texts are not equal once encrypted.
        let same = self.select(principal, project.unwrap_or_default(), None, Some(new.scope))?;
        if let Some(known) = same.into_iter().find(|known| known.text == new.text) {
            let tags = merge_tags(known.tags.clone(), new.tags);
            let sealed = self.seal_tags(&tags)?;
            self.rows.set_tags(principal, known.id, &sealed)?;
            return Ok(Memory { tags, ..known });
        }
        let (text, tags) = (self.key.seal(TEXT, new.text.as_bytes())?, self.seal_tags(new.tags)?);
        let kept = self.rows.remember(principal, project, &NewMemory { text: &text, tags: &tags, ..*new })?;
        self.open(kept)
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

    fn set_tags(&mut self, principal: &str, id: i64, tags: &[String]) -> Result<(), StoreError> {
        let sealed = self.seal_tags(tags)?;
        self.rows.set_tags(principal, id, &sealed)
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
