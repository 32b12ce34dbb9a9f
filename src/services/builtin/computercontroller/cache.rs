//! Keeps the texts of documents that a session has read, so that long ones can be read in parts. Shows them together
//! with the pages that the session has fetched.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::document::DocumentContent;
use crate::services::builtin::fetch::CachedPage;

/// The schemes of the resources.
pub(super) const DOCUMENT: &str = "document://";
pub(super) const PAGE: &str = "page://";

/// Limits of what a session keeps: documents and total bytes. The oldest go first.
const MAX_ENTRIES: usize = 32;
const MAX_BYTES: usize = 32 << 20;

/// The documents of a session.
#[derive(Debug, Default)]
pub(crate) struct DocumentCache {
    state: Mutex<CacheState>,
}

#[derive(Debug, Default)]
struct CacheState {
    /// Oldest first.
    entries: Vec<Arc<CachedDocument>>,
    last_id: usize,
}

/// What was read of a document.
#[derive(Debug)]
pub(super) struct CachedDocument {
    pub(super) id: String,
    /// The path as it is shown, and what was read.
    pub(super) title: String,
    /// A hash of the file and the request.
    key: [u8; 32],
    pub(super) content: DocumentContent,
}

impl CachedDocument {
    fn size(&self) -> usize {
        let images: usize = self.content.images.iter().map(|image| image.bytes.len()).sum();
        self.content.text.len() + images
    }
}

/// A text that a session has read.
pub(super) enum CacheEntry {
    Document(Arc<CachedDocument>),
    Page(CachedPage),
}

impl CacheEntry {
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Document(document) => &document.id,
            Self::Page(page) => &page.id,
        }
    }

    pub(super) fn title(&self) -> &str {
        match self {
            Self::Document(document) => &document.title,
            Self::Page(page) => page.title(),
        }
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::Document(document) => &document.content.text,
            Self::Page(page) => page.text(),
        }
    }

    pub(super) fn uri(&self) -> String {
        match self {
            Self::Document(document) => format!("{DOCUMENT}{}", document.id),
            Self::Page(page) => format!("{PAGE}{}", page.id),
        }
    }
}

impl DocumentCache {
    fn state(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(&self, key: &[u8; 32]) -> Option<Arc<CachedDocument>> {
        self.state().entries.iter().find(|entry| entry.key == *key).cloned()
    }

    pub(super) fn entries(&self) -> Vec<Arc<CachedDocument>> {
        self.state().entries.clone()
    }

    pub(super) fn put(&self, key: [u8; 32], title: String, content: DocumentContent) -> Arc<CachedDocument> {
        let mut state = self.state();
        state.last_id += 1;
        let entry = Arc::new(CachedDocument { id: format!("d{}", state.last_id), title, key, content });
        state.entries.push(Arc::clone(&entry));
        while state.entries.len() > MAX_ENTRIES
            || state.entries.len() > 1 && state.entries.iter().map(|entry| entry.size()).sum::<usize>() > MAX_BYTES
        {
            state.entries.remove(0);
        }
        entry
    }

    /// Removes one document, or all. Returns how many.
    pub(super) fn clear(&self, id: Option<&str>) -> usize {
        let mut state = self.state();
        let before = state.entries.len();
        state.entries.retain(|entry| id.is_some_and(|id| entry.id != id));
        before - state.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(cache: &DocumentCache, key: u8, bytes: usize) -> String {
        let content = DocumentContent { text: "x".repeat(bytes), ..DocumentContent::default() };
        cache.put([key; 32], "a.pdf".to_owned(), content).id.clone()
    }

    #[test]
    fn the_oldest_documents_leave_at_the_limit() {
        let cache = DocumentCache::default();
        assert_eq!(put(&cache, 1, 20 << 20), "d1");
        assert_eq!(put(&cache, 2, 20 << 20), "d2");
        assert!(cache.find(&[1; 32]).is_none());
        let sizes: Vec<_> = cache.entries().iter().map(|entry| (entry.id.clone(), entry.size())).collect();
        assert_eq!(sizes, [("d2".to_owned(), 20 << 20)]);
        put(&cache, 3, 40 << 20);
        assert_eq!(cache.entries().len(), 1, "the newest stays, also if it is large");
    }

    #[test]
    fn clearing_removes_one_or_all() {
        let cache = DocumentCache::default();
        for key in 0..3 {
            put(&cache, key, 1);
        }
        assert_eq!((cache.clear(Some("d2")), cache.clear(Some("d2")), cache.clear(None)), (1, 0, 2));
        assert_eq!(put(&cache, 9, 1), "d4", "ids are not used again");
    }

    #[test]
    fn the_oldest_of_too_many_documents_leaves() {
        let cache = DocumentCache::default();
        for key in 0..=32 {
            put(&cache, key, 1);
        }
        assert_eq!(cache.entries().len(), MAX_ENTRIES);
        assert!(cache.find(&[0; 32]).is_none() && cache.find(&[1; 32]).is_some());
    }
}
