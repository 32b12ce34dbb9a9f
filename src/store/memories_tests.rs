//! What is kept is found until it is forgotten, whoever else writes at the same time.

use std::path::PathBuf;

use proptest::prelude::*;
use rusqlite::Connection;

use super::*;

struct Store {
    memories: MemoryStore,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

fn store() -> Store {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("data/memory.db");
    Store { memories: MemoryStore::open(&file).unwrap(), file, _folder: folder }
}

fn here() -> &'static Path {
    Path::new("/here")
}

fn keep(memories: &MemoryStore, text: &str, tags: &[&str], scope: MemoryOwner) -> i64 {
    let tags: Vec<_> = tags.iter().map(|tag| (*tag).to_owned()).collect();
    memories.remember(here(), &NewMemory { text, tags: &tags, scope, source: "test" }).unwrap().id
}

fn ids(found: &[Memory]) -> Vec<i64> {
    let mut ids: Vec<_> = found.iter().map(|memory| memory.id).collect();
    ids.sort_unstable();
    ids
}

fn by_words(memories: &MemoryStore, words: &str) -> Vec<i64> {
    ids(&memories.recall(here(), &MemoryFilter { words: Some(words), ..MemoryFilter::default() }).unwrap())
}

#[test]
fn only_the_owner_reads_what_is_kept() {
    use std::os::unix::fs::PermissionsExt as _;
    let store = store();
    keep(&store.memories, "private", &[], MemoryOwner::User);
    for entry in std::fs::read_dir(store.file.parent().unwrap()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", entry.path().display());
    }
}

#[test]
fn entries_with_equal_tags_stand_beside_each_other() {
    let store = store();
    let (one, two) = (
        keep(&store.memories, "tabs", &["style"], MemoryOwner::User),
        keep(&store.memories, "short lines", &["style"], MemoryOwner::User),
    );
    let tags = ["style".to_owned()];
    let found = store.memories.recall(here(), &MemoryFilter { tags: &tags, ..MemoryFilter::default() }).unwrap();
    assert_eq!(ids(&found), [one, two]);
}

#[test]
fn the_same_text_is_kept_once_and_gains_tags() {
    let store = store();
    let id = keep(&store.memories, "tabs", &["style"], MemoryOwner::Project);
    assert_eq!(keep(&store.memories, "tabs", &["go"], MemoryOwner::Project), id);
    assert_ne!(keep(&store.memories, "tabs", &[], MemoryOwner::User), id);
    assert_eq!(store.memories.get(here(), id).unwrap().unwrap().tags, ["style", "go"]);
}

#[test]
fn a_project_sees_its_own_and_the_users() {
    let store = store();
    let (project, user) = (
        keep(&store.memories, "of here", &[], MemoryOwner::Project),
        keep(&store.memories, "of all", &[], MemoryOwner::User),
    );
    let recall = |folder: &str, scope| {
        ids(&store.memories.recall(Path::new(folder), &MemoryFilter { scope, ..MemoryFilter::default() }).unwrap())
    };
    assert_eq!(recall("/here", None), [project, user]);
    assert_eq!(recall("/here", Some(MemoryOwner::Project)), [project]);
    assert_eq!(recall("/here", Some(MemoryOwner::User)), [user]);
    assert_eq!(recall("/elsewhere", None), [user]);
    assert_eq!(store.memories.get(Path::new("/elsewhere"), project).unwrap(), None);
    assert_eq!(store.memories.exactly(Path::new("/elsewhere"), "here").unwrap(), []);
}

#[test]
fn a_letter_is_not_taken_for_all_words_that_hold_it() {
    let store = store();
    keep(&store.memories, "remember the tests", &["everything"], MemoryOwner::User);
    let letter = keep(&store.memories, "vitamin e", &[], MemoryOwner::User);
    assert_eq!(ids(&store.memories.exactly(here(), "e").unwrap()), [letter]);
    assert_eq!(store.memories.exactly(here(), "").unwrap(), []);
    assert_eq!(store.memories.exactly(here(), "* \" ' - OR").unwrap(), []);
}

#[test]
fn a_whole_text_comes_first() {
    let store = store();
    let wanted = keep(&store.memories, "deploy", &[], MemoryOwner::User);
    for number in 0..20 {
        keep(&store.memories, &format!("deploy deploy deploy {number}"), &["deploy"], MemoryOwner::User);
    }
    let found = store
        .memories
        .recall(here(), &MemoryFilter { words: Some("Deploy"), limit: Some(3), ..MemoryFilter::default() })
        .unwrap();
    assert_eq!((found.len(), found[0].id), (3, wanted));
    let blank = store
        .memories
        .recall(here(), &MemoryFilter { words: Some(" "), limit: Some(2), ..MemoryFilter::default() })
        .unwrap();
    assert_eq!(blank.len(), 2);
}

#[test]
fn changed_tags_of_an_encrypted_memory_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("memory.db");
    let key: StoreKey = "a1".repeat(32).parse().unwrap();
    let memories = MemoryStore::open_file(&file, Some(&key)).unwrap();
    keep(&memories, "tabs", &["style"], MemoryOwner::User);
    for tags in ["[]", "no list", "[\"plain\"]"] {
        Connection::open(&file).unwrap().execute("UPDATE memory SET tags = ?1", [tags]).unwrap();
        let error = memories.recall(here(), &MemoryFilter::default()).unwrap_err();
        assert!(matches!(error, StoreError::Sealed { .. }), "{tags}: {error}");
    }
}

/// Each has the file open for itself, as processes do; they open it, and make it, at the same moment.
#[test]
fn writers_at_the_same_time_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("memory.db");
    let (writers, each) = (8, 25);
    let begin = std::sync::Barrier::new(writers);
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let (file, begin) = (&file, &begin);
            scope.spawn(move || {
                begin.wait();
                let memories = MemoryStore::open(file).unwrap();
                for number in 0..each {
                    let id = keep(&memories, &format!("writer {writer} number {number}"), &["both"], MemoryOwner::User);
                    keep(&memories, "shared by all", &[&format!("w{writer}")], MemoryOwner::User);
                    if number % 5 == 0 {
                        memories.forget(&[id]).unwrap();
                    }
                }
            });
        }
    });
    let memories = MemoryStore::open(&file).unwrap();
    let all = memories.recall(here(), &MemoryFilter::default()).unwrap();
    assert_eq!(all.len(), writers * (each - each / 5) + 1);
    let shared =
        memories.recall(here(), &MemoryFilter { words: Some("shared by all"), ..MemoryFilter::default() }).unwrap();
    assert_eq!(shared[0].tags.len(), writers);
    // The words say the same as the texts.
    for memory in &all {
        assert!(ids(&memories.exactly(here(), &memory.text).unwrap()).contains(&memory.id), "{}", memory.text);
    }
}

#[test]
fn a_store_of_a_newer_skein_is_left_alone() {
    let store = store();
    Connection::open(&store.file).unwrap().pragma_update(None, "user_version", 99).unwrap();
    assert!(matches!(MemoryStore::open(&store.file), Err(StoreError::Newer { found: 99, .. })));
}

#[test]
fn principals_have_their_own_memories() {
    let store = store();
    let ann = store.memories.of(Principal::new("ann").unwrap());
    let (mine, hers) = (
        keep(&store.memories, "tea at noon", &["mine"], MemoryOwner::User),
        keep(&ann, "tea at noon", &["hers"], MemoryOwner::User),
    );
    for words in ["tea", "ea at no", "tea at noon"] {
        assert_eq!(by_words(&store.memories, words), [mine], "{words}");
        assert_eq!(by_words(&ann, words), [hers], "{words}");
    }
    assert_eq!(ids(&ann.exactly(here(), "tea").unwrap()), [hers]);
    assert_eq!(ann.get(here(), mine).unwrap(), None);
    ann.forget(&[mine]).unwrap();
    assert_eq!(store.memories.get(here(), mine).unwrap().unwrap().tags, ["mine"]);
}

#[test]
fn the_order_of_memories_ignores_those_of_others() {
    let store = store();
    let [ann, bob] = ["ann", "bob"].map(|name| store.memories.of(Principal::new(name).unwrap()));
    let kept = ["zebra zebra walrus", "zebra walrus walrus"].map(|text| keep(&ann, text, &[], MemoryOwner::User));
    let order = || {
        let filter = MemoryFilter { words: Some("zebra walrus"), ..MemoryFilter::default() };
        ann.recall(here(), &filter).unwrap().iter().map(|memory| memory.id).collect::<Vec<_>>()
    };
    assert_eq!(order(), [kept[1], kept[0]], "both words are as frequent, so the newer memory is first");
    for word in ["walrus", "zebra"] {
        (0..20).for_each(|number| {
            keep(&bob, &format!("{word} {number}"), &[], MemoryOwner::User);
        });
        assert_eq!(order(), [kept[1], kept[0]], "after {word} of another principal");
    }
}

#[test]
fn memories_of_an_older_version_become_those_of_local() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("memory.db");
    let before = Connection::open(&file).unwrap();
    before.execute_batch(SCHEMA.migrations[0]).unwrap();
    let rows = "PRAGMA user_version = 1; INSERT INTO memory (text, tags, source) VALUES ('tea at noon', '[]', 's')";
    before.execute_batch(rows).unwrap();
    drop(before);
    let local = MemoryStore::open(&file).unwrap();
    assert_eq!(by_words(&local, "tea").len(), 1);
    assert_eq!(by_words(&local.of(Principal::new("ann").unwrap()), "tea"), Vec::<i64>::new());
}

fn text() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        4 => "[a-zA-Z]{1,8}",
        1 => "[0-9]{1,4}",
        1 => "\\p{Han}{1,4}",
        1 => "\\p{Hiragana}{1,4}",
        1 => "\\p{Cyrillic}{1,6}",
        1 => "\\p{Arabic}{1,5}",
        1 => "\\p{Devanagari}{1,5}",
        1 => "e\u{301}[a-z]{1,3}",
        1 => "[🦀🎉→©]{1,2}",
        1 => "\\PC{1,6}",
        1 => "[\"'*()^:-]{1,3}[a-z]{1,3}",
    ];
    proptest::collection::vec(word, 1..6)
        .prop_map(|words| words.join(" ").trim().to_owned())
        .prop_filter("a text", |text| !text.is_empty())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_kept_is_found_until_it_is_forgotten(texts in proptest::collection::btree_set(text(), 1..8), pick in any::<proptest::sample::Index>()) {
        let store = store();
        let kept: Vec<_> = texts.iter().map(|text| (keep(&store.memories, text, &[], MemoryOwner::User), text.clone())).collect();
        for (id, text) in &kept {
            prop_assert!(by_words(&store.memories, text).contains(id), "as a whole: {text:?}");
            for word in text.split_whitespace() {
                prop_assert!(by_words(&store.memories, word).contains(id), "{word:?} of {text:?}");
            }
        }
        let (gone, text) = pick.get(&kept);
        store.memories.forget(&[*gone]).unwrap();
        prop_assert!(!by_words(&store.memories, text).contains(gone));
        let left: Vec<_> = kept.iter().map(|(id, _)| *id).filter(|id| id != gone).collect();
        prop_assert_eq!(ids(&store.memories.recall(here(), &MemoryFilter::default()).unwrap()), left);
        // Its number is never given to another.
        prop_assert!(keep(&store.memories, "another", &[], MemoryOwner::User) > *gone);
    }

    #[test]
    fn any_query_lists_and_removes_the_same(texts in proptest::collection::btree_set(text(), 1..8), query in prop_oneof![text(), "\\PC{0,12}", any::<String>()]) {
        let store = store();
        for text in &texts {
            keep(&store.memories, text, &["tag"], MemoryOwner::Project);
        }
        let before = ids(&store.memories.recall(here(), &MemoryFilter::default()).unwrap());
        store.memories.recall(here(), &MemoryFilter { words: Some(&query), ..MemoryFilter::default() }).unwrap();
        let listed = ids(&store.memories.exactly(here(), &query).unwrap());
        store.memories.forget(&listed).unwrap();
        let after = ids(&store.memories.recall(here(), &MemoryFilter::default()).unwrap());
        let expected: Vec<_> = before.into_iter().filter(|id| !listed.contains(id)).collect();
        prop_assert_eq!(after, expected);
        prop_assert_eq!(ids(&store.memories.exactly(here(), &query).unwrap()), Vec::<i64>::new());
    }
}
