//! The files of a session come back as they were stored, and what is undone or dropped is not stored any more.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use super::*;
use crate::tool::StateStore;

/// Keeps the entries of one owner in memory.
#[derive(Default)]
struct MemoryEntries(Mutex<BTreeMap<String, Vec<u8>>>);

impl StateStore for MemoryEntries {
    fn take(&self, _owner: &str) -> BTreeMap<String, Vec<u8>> {
        self.0.lock().unwrap().clone()
    }

    fn put(&self, _owner: &str, key: &str, value: Vec<u8>) {
        self.0.lock().unwrap().insert(key.to_owned(), value);
    }

    fn remove(&self, _owner: &str, key: &str) {
        self.0.lock().unwrap().remove(key);
    }
}

fn opened(store: &Arc<MemoryEntries>) -> FileRecords {
    let stored = StateEntries::new(Arc::clone(store) as Arc<dyn StateStore>, "files");
    let entries = stored.take();
    FileRecords::load(stored, &entries)
}

fn edit(place: &str, before: &[u8]) -> Edit {
    let before = PriorContents::Contents { bytes: before.to_vec() };
    Edit { place: place.into(), before, after: Stamp::of(b"after"), had_seen: true }
}

#[test]
fn sightings_and_edits_come_back() {
    let store = Arc::default();
    let (a, b) = (Path::new("/a\nb"), Path::new("/new"));
    let mut records = opened(&store);
    records.saw(a, Stamp::of(b"1"));
    records.record(edit("/a\nb", b"first\nline"));
    records.record(edit("/a\nb", b"\xff\n\0"));
    let folders = vec![PathBuf::from("/x"), PathBuf::from("/x/y")];
    let created = PriorContents::Nothing { folders: folders.clone() };
    records.record(Edit { place: b.into(), before: created, after: Stamp::of(b"new"), had_seen: false });
    let mut records = opened(&store);
    assert_eq!(records.sight(a, Stamp::of(b"1")), FileFreshness::Current);
    assert_eq!(records.sight(b, Stamp::of(b"new")), FileFreshness::Never);
    assert_eq!((records.edits(a), records.edits(b), records.journal_bytes), (2, 1, 13));
    assert!(matches!(&records.last_edit(a).unwrap().before, PriorContents::Contents { bytes } if bytes == b"\xff\n\0"));
    let last = records.last_edit(b).unwrap();
    assert!(matches!(&last.before, PriorContents::Nothing { folders: these } if *these == folders) && !last.had_seen);
    records.forget_last_edit(a);
    records.forget_last_edit(b);
    let records = opened(&store);
    assert_eq!((records.edits(a), records.edits(b)), (1, 0));
    assert_eq!(records.sight(a, Stamp::of(b"\xff\n\0")), FileFreshness::Current, "as before the undone edit");
}

#[test]
fn edits_that_exceed_the_limit_are_no_longer_stored() {
    let store: Arc<MemoryEntries> = Arc::default();
    let mut records = opened(&store);
    let large = vec![0; MAX_JOURNAL / 2];
    (0..3).for_each(|_| records.record(edit("/a", &large)));
    assert_eq!((records.edits(Path::new("/a")), store.0.lock().unwrap().len()), (2, 2));
}

#[test]
fn unreadable_entries_and_odd_paths_do_no_harm() {
    let store: Arc<MemoryEntries> = Arc::default();
    for (key, value) in [("seen//a", "short"), ("edit/x", "{}\n"), ("edit/1", "no header"), ("other", "")] {
        store.put("", key, value.as_bytes().to_vec());
    }
    let mut records = opened(&store);
    assert_eq!(records.sight(Path::new("/a"), Stamp::of(b"short")), FileFreshness::Never);
    assert!(records.journal.is_empty());
    let odd = PathBuf::from(std::ffi::OsStr::from_bytes(b"/\xff"));
    records.saw(&odd, Stamp::of(b"1"));
    assert_eq!(records.sight(&odd, Stamp::of(b"1")), FileFreshness::Current);
    records.record(Edit { place: odd.clone(), ..edit("", b"") });
    assert_eq!(records.edits(&odd), 1);
    assert_eq!(opened(&store).edits(&odd), 0, "it cannot be stored");
}
