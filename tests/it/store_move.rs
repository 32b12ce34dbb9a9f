//! `skein store`: everything moves between files and databases, or nothing; encrypted texts; retention.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use postgres::{Client, NoTls};
use skein::principal::{Principal, SessionFiles, SessionGrant, TokenLimits};
use skein::store::{
    AuditFilter, Correction, FolderFilter, ListFilter, Memory, MemoryFilter, MemoryOwner, NewAuditEntry, NewEvent,
    NewMemory, NewSession, NewToken, RetentionPolicy, SessionChange, SessionStore, StateEntry, StoreError, StoreKey,
    StorePlace, StoredConsent, UsageKey, UsageRow, remove_expired,
};

use crate::support::fifo::make_fifo;
use crate::support::postgres::Postgres;
use crate::support::serve::eventually;
use crate::support::{Run, Sandbox, full_tests};

const KEY: &str = "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00";
const OTHER_KEY: &str = "0ff1ce000ff1ce000ff1ce000ff1ce000ff1ce000ff1ce000ff1ce000ff1ce00";
/// A word of every text in the store of [`fill`].
const SECRET: &str = "walrus";

fn key(text: &str) -> StoreKey {
    text.parse().unwrap()
}

fn database(postgres: &Postgres, name: &str) -> (String, StorePlace) {
    let url = postgres.database(name);
    let place = StorePlace::default().with_database(Arc::new(url.parse().unwrap()));
    (url, place)
}

/// Does work that waits for a store, outside the threads of tests that run async tasks.
fn blocking<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

fn new_session(parent: Option<&str>) -> NewSession {
    NewSession {
        cwd: "/here".into(),
        roots: vec!["/other".into()],
        agent: "goose".to_owned(),
        mode: "assistant".to_owned(),
        model: "offline".to_owned(),
        approval: None,
        parent: parent.map(str::to_owned),
        files: SessionFiles::Server,
    }
}

fn said(text: &str) -> NewEvent {
    let body = serde_json::json!({"message": {"role": "user", "text": text}}).to_string();
    NewEvent { kind: "message".into(), body, text: Some(text.to_owned()) }
}

fn decision(tool: &str) -> NewAuditEntry {
    NewAuditEntry {
        actor: "goose/assistant".to_owned(),
        kind: "call",
        subject: tool.to_owned(),
        call: Some("call 1".to_owned()),
        decision: "allow",
        source: "level",
        rule: Some("auto \0".to_owned()),
        arguments: Some(b"a walrus".to_vec()),
    }
}

async fn add_session(store: &SessionStore, parent: Option<&str>, texts: &[&str]) -> String {
    let id = store.create(new_session(parent)).await.unwrap();
    texts.iter().for_each(|text| store.append(&id, said(text)));
    store.flush(&id).await.unwrap();
    id
}

/// Puts something of every kind into a store. Returns the id of the first session.
async fn fill(place: &StorePlace) -> String {
    let store = place.sessions().unwrap();
    let id = add_session(&store, None, &["first walrus", "second walrus \0 part", "\u{1f40b} walrus"]).await;
    add_session(&store, Some(&id), &["the walrus of a child"]).await;
    store.append(&id, NewEvent { kind: "undone".into(), body: r#"{"events":2}"#.to_owned(), text: None });
    store.change(&id, SessionChange { title: Some("A walrus".to_owned()), ..SessionChange::default() });
    let value = b"\0walrus\xff".to_vec();
    store.put_state(&id, StateEntry { owner: "todo".to_owned(), key: "list".to_owned(), value });
    store.put_uuid(&id, "0c4f");
    ["read", "write"].into_iter().for_each(|tool| store.audit(&id, decision(tool)));
    store.audit("a-client", decision("fetch"));
    store.flush(&id).await.unwrap();
    let more = UsageRow { cost: 0.1 + 0.2, tokens: 10, requests: 1, milliseconds: 5 };
    store.add_usage(UsageKey { scope: "principal".to_owned(), period: "2026-11".to_owned() }, more);
    let ann = SessionGrant::new(Principal::new("ann").unwrap(), TokenLimits::default());
    add_session(&store.for_grant(&ann), None, &["the walrus of ann"]).await;
    blocking(|| {
        let memories = place.memories().unwrap();
        for (text, scope) in [("no walrus in tests", MemoryOwner::Project), ("walrus first", MemoryOwner::User)] {
            let tags = ["walrus-tag".to_owned()];
            memories.remember(Path::new("/here"), &NewMemory { text, tags: &tags, scope, source: "test" }).unwrap();
        }
        place.corrections().unwrap().remember(Path::new("/here"), "feed the walrus", "coding/backend").unwrap();
        let consents = place.consents().unwrap();
        for (name, rule) in [("ann", "feed"), ("bob", "feed"), ("ann", "brush \"é\"")] {
            consents.of(Principal::new(name).unwrap()).keep(rule).unwrap();
        }
    });
    let tokens = place.tokens().unwrap();
    let principal = Principal::new("ann").unwrap();
    let created = tokens.create(NewToken { principal, limits: TokenLimits::default(), expires: None }).await.unwrap();
    tokens.put_login("cookie", &created.id, "csrf").await.unwrap();
    id
}

/// The rules that ann and bob keep in a store, newest first.
fn rules(place: &StorePlace) -> [Vec<StoredConsent>; 2] {
    let consents = place.consents().unwrap();
    ["ann", "bob"].map(|name| consents.of(Principal::new(name).unwrap()).list().unwrap())
}

/// The memories and corrections of a store.
fn notes(place: &StorePlace) -> (Vec<Memory>, Vec<Correction>) {
    let memories = place.memories().unwrap().recall(Path::new("/here"), &MemoryFilter::default()).unwrap();
    (memories, place.corrections().unwrap().corrections(Path::new("/here")).unwrap())
}

/// What a user sees of a store, without its search.
async fn view(place: &StorePlace, id: &str) -> String {
    let store = place.sessions().unwrap();
    let session = store.find(id).await.unwrap().unwrap();
    let (events, state) = (store.events(id).await.unwrap(), store.state(id).await.unwrap());
    let (mut family, uuid) = (store.family(id).await.unwrap(), store.find_uuid("0c4f").await.unwrap());
    family.sort();
    let usage = store.usage(UsageKey { scope: "principal".to_owned(), period: "2026-11".to_owned() }).await.unwrap();
    let (memories, corrections) = blocking(|| notes(place));
    let consents = blocking(|| rules(place));
    assert_eq!(consents.each_ref().map(Vec::len), [2, 1], "{consents:?}");
    let tokens = place.tokens().unwrap().list().await.unwrap();
    let (audit, names) =
        (store.audit_entries(AuditFilter::default()).await.unwrap(), store.audit_names().await.unwrap());
    let chains = store.verify_audit().await.unwrap();
    assert!(chains.findings.is_empty(), "{chains:?}");
    format!(
        "{session:?} {events:?} {state:?} {family:?} {uuid:?} {usage:?} {memories:?} {corrections:?} {consents:?} \
         {tokens:?} {audit:?} {names:?} {chains:?}"
    )
}

async fn search(place: &StorePlace) -> usize {
    place.sessions().unwrap().search(SECRET, FolderFilter::Anywhere, 10).await.unwrap().len()
}

/// Runs a command and returns its checksum.
fn totals(run: &Run) -> String {
    assert_eq!(run.code, 0, "{}", run.stderr);
    let table = |name: &str| run.stdout.lines().find(|line| line.trim().starts_with(name)).unwrap().trim().to_owned();
    assert_eq!(table("session:"), "session: 3", "{}", run.stdout);
    assert_eq!(table("event:"), "event: 6", "{}", run.stdout);
    assert_eq!(table("audit_entry:"), "audit_entry: 3", "{}", run.stdout);
    assert_eq!(table("memory:"), "memory: 2", "{}", run.stdout);
    assert_eq!(table("consent:"), "consent: 3", "{}", run.stdout);
    table("checksum:")
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_moves_to_a_database_and_back() {
    if !full_tests() {
        return;
    }
    let (postgres, from, back) = (Postgres::start(), Sandbox::new(), Sandbox::new());
    let source = StorePlace::files(from.path("data"));
    let id = fill(&source).await;
    let (url, target) = database(&postgres, "target");
    let copied = totals(&from.skein(&["store", "migrate", "--to", &url]));
    let seen = view(&source, &id).await;
    assert_eq!(view(&target, &id).await, seen);
    assert_eq!(search(&target).await, search(&source).await);
    blocking(|| {
        let memories = target.memories().unwrap();
        let found = memories.exactly(Path::new("/here"), "walrus").unwrap();
        assert_eq!(found.len(), 2, "the words of memories are indexed");
        // The database counts on where the files ended.
        let new = NewMemory { text: "later", tags: &[], scope: MemoryOwner::User, source: "test" };
        let later = memories.remember(Path::new("/here"), &new).unwrap();
        assert!(found.iter().all(|memory| memory.id < later.id), "{later:?}");
        memories.forget(&[later.id]).unwrap();
        let consents = target.consents().unwrap().of(Principal::new("ann").unwrap());
        consents.keep("later").unwrap();
        let listed = consents.list().unwrap();
        assert!(listed.len() == 3 && listed[0].id > 3, "{listed:?}");
        assert!(consents.remove(listed[0].id).unwrap());
    });
    let file = from.path("export.jsonl").display().to_string();
    let exported = totals(&from.skein(&["store", "export", &file, "--store", &url]));
    let imported = totals(&back.skein(&["store", "import", &file]));
    assert_eq!((&exported, &imported), (&copied, &copied));
    let place = StorePlace::files(back.path("data"));
    assert_eq!(view(&place, &id).await, seen);
    assert_eq!(search(&place).await, search(&source).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_moves_from_one_database_to_another() {
    if !full_tests() {
        return;
    }
    let (postgres, sandbox) = (Postgres::start(), Sandbox::new());
    let ((from, source), (to, target)) = (database(&postgres, "source"), database(&postgres, "target"));
    let id = fill(&source).await;
    let copied = totals(&sandbox.skein(&["store", "migrate", "--store", &from, "--to", &to]));
    assert_eq!(view(&target, &id).await, view(&source, &id).await);
    let folder = sandbox.path("folder").display().to_string();
    assert_eq!(totals(&sandbox.skein(&["store", "migrate", "--store", &to, "--to", &folder])), copied);
    let files = StorePlace::files(folder);
    assert_eq!(view(&files, &id).await, view(&source, &id).await);
}

#[test]
fn a_store_that_has_only_a_rule_is_not_overwritten() {
    let (sandbox, empty) = (Sandbox::new(), Sandbox::new());
    let ann = StorePlace::files(sandbox.path("data")).consents().unwrap().of(Principal::new("ann").unwrap());
    ann.keep("here before").unwrap();
    drop(ann);
    let file = empty.path("export.jsonl").display().to_string();
    assert_eq!(empty.skein(&["store", "export", &file]).code, 0);
    let run = sandbox.skein(&["store", "import", &file]);
    assert_eq!(run.code, 2, "{}", run.stderr);
    assert!(run.stderr.contains("has data already (consent)"), "{}", run.stderr);
}

#[tokio::test]
async fn a_store_that_is_not_empty_is_not_overwritten() {
    let sandbox = Sandbox::new();
    let (source, target) = (StorePlace::files(sandbox.path("data")), StorePlace::files(sandbox.path("target")));
    fill(&source).await;
    let store = target.sessions().unwrap();
    let kept = add_session(&store, None, &["here before"]).await;
    drop(store);
    let run = sandbox.skein(&["store", "migrate", "--to", &sandbox.path("target").display().to_string()]);
    assert_eq!(run.code, 2, "{}", run.stderr);
    assert!(run.stderr.contains("has data already (session)"), "{}", run.stderr);
    let listed = target.sessions().unwrap().list(ListFilter::default()).await.unwrap();
    assert_eq!(listed.iter().map(|session| &session.id).collect::<Vec<_>>(), [&kept]);
    let file = sandbox.path("export.jsonl").display().to_string();
    assert_eq!(sandbox.skein(&["store", "export", &file]).code, 0);
    let again = sandbox.skein(&["store", "export", &file]);
    assert_eq!(again.code, 1, "a file is not overwritten: {}", again.stderr);
}

async fn is_empty(place: &StorePlace) -> bool {
    let sessions = place.sessions().unwrap().list(ListFilter::default()).await.unwrap();
    let (memories, corrections) = blocking(|| notes(place));
    let tokens = place.tokens().unwrap().list().await.unwrap();
    let consents = blocking(|| rules(place)).concat();
    sessions.is_empty() && memories.is_empty() && corrections.is_empty() && consents.is_empty() && tokens.is_empty()
}

/// Exports a filled store, and returns the lines.
async fn export(sandbox: &Sandbox) -> Vec<String> {
    fill(&StorePlace::files(sandbox.path("data"))).await;
    let file = sandbox.path("export.jsonl");
    let run = sandbox.skein(&["store", "export", &file.display().to_string()]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    fs::read_to_string(&file).unwrap().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn a_damaged_file_writes_nothing_and_names_the_line() {
    let (sandbox, target) = (Sandbox::new(), Sandbox::new());
    let lines = export(&sandbox).await;
    let changed = lines.iter().position(|line| line.contains("second walrus")).unwrap();
    let damaged = |at: usize, line: &str| {
        let mut lines = lines.clone();
        line.clone_into(&mut lines[at]);
        lines
    };
    for (lines, line) in [
        (damaged(changed, &lines[changed].replace("second", "Second")), changed + 1),
        (damaged(changed, "{"), changed + 1),
        (lines[..lines.len() - 1].to_vec(), lines.len()),
        (lines[1..].to_vec(), 1),
    ] {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        target.write("damaged.jsonl", &text);
        let run = target.skein(&["store", "import", &target.path("damaged.jsonl").display().to_string()]);
        assert_eq!(run.code, 1, "{}", run.stderr);
        assert!(run.stderr.contains(&format!("nothing was written: line {line} of")), "{line}: {}", run.stderr);
        assert!(!run.stderr.contains(SECRET), "{}", run.stderr);
        assert!(!target.path("data/sessions.db").exists(), "the file is checked first");
    }
}

/// Starts an import from a pipe, passes it the file once to check, and once almost to the end.
fn start_import(sandbox: &Sandbox, lines: &[String], store: Option<&str>) -> (Child, File) {
    let path = sandbox.path("pipe");
    let make = || make_fifo(&path);
    make();
    let mut command = sandbox.command(&["store", "import", &path.display().to_string()]);
    command.envs(store.map(|url| ("SKEIN_STORE", url)));
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    // Each opening waits for the other side.
    let mut writer = File::options().write(true).open(&path).unwrap();
    // The second reader gets a pipe of its own.
    fs::remove_file(&path).unwrap();
    make();
    writer.write_all(text.as_bytes()).unwrap();
    drop(writer);
    let mut writer = File::options().write(true).open(&path).unwrap();
    writer.write_all(&text.as_bytes()[..text.len() - 10]).unwrap();
    (child, writer)
}

/// An export that no pipe can hold: once half of it is written, the import has read rows.
async fn long_export(sandbox: &Sandbox) -> Vec<String> {
    let store = StorePlace::files(sandbox.path("data")).sessions().unwrap();
    let id = store.create(new_session(None)).await.unwrap();
    (0..4_000).for_each(|number| store.append(&id, said(&format!("walrus {number} {}", "x".repeat(100)))));
    store.flush(&id).await.unwrap();
    drop(store);
    export(sandbox).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_import_leaves_no_row_in_files() {
    let (sandbox, target) = (Sandbox::new(), Sandbox::new());
    let lines = long_export(&sandbox).await;
    let (mut child, writer) = start_import(&target, &lines, None);
    child.kill().unwrap();
    child.wait().unwrap();
    drop(writer);
    let place = StorePlace::files(target.path("data"));
    assert!(is_empty(&place).await);
    let run = target.skein(&["store", "import", &sandbox.path("export.jsonl").display().to_string()]);
    assert_eq!(run.code, 0, "a second attempt works: {}", run.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_import_leaves_no_row_in_a_database() {
    if !full_tests() {
        return;
    }
    let (postgres, sandbox, target) = (Postgres::start(), Sandbox::new(), Sandbox::new());
    let lines = long_export(&sandbox).await;
    let (url, place) = database(&postgres, "target");
    let (mut child, writer) = start_import(&target, &lines, Some(&url));
    child.kill().unwrap();
    child.wait().unwrap();
    drop(writer);
    assert!(is_empty(&place).await);
    let file = sandbox.path("export.jsonl").display().to_string();
    let run = target.skein(&["store", "import", &file, "--store", &url]);
    assert_eq!(run.code, 0, "a second attempt works: {}", run.stderr);
}

#[test]
fn an_interrupted_export_leaves_no_file() {
    let sandbox = Sandbox::new();
    // A database that never answers.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://ann@{}/skein?sslmode=disable", listener.local_addr().unwrap());
    let folder = sandbox.path("exports");
    fs::create_dir(&folder).unwrap();
    let mut command = sandbox.command(&["store", "export", &folder.join("all.jsonl").display().to_string()]);
    let mut child = command.env("SKEIN_STORE", &url).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let files = || fs::read_dir(&folder).unwrap().count();
    eventually("the export has begun", || files() == 1);
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(files(), 0);
}

fn with_key(sandbox: &Sandbox, key: &str, args: &[&str]) -> (Option<i32>, String) {
    let mut command = sandbox.command(args);
    command.env("SKEIN_STORE_KEY", key);
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[tokio::test]
async fn encrypted_files_have_no_text_and_open_only_with_their_key() {
    let sandbox = Sandbox::new();
    let plain = StorePlace::files(sandbox.path("data"));
    let sealed = plain.clone().with_key(Some(key(KEY)));
    let id = fill(&sealed).await;
    let seen = view(&sealed, &id).await;
    assert!(seen.contains("A walrus") && seen.contains("second walrus"), "{seen}");
    for entry in fs::read_dir(sandbox.path("data")).unwrap().flatten().filter(|entry| entry.path().is_file()) {
        let bytes = fs::read(entry.path()).unwrap();
        let found = bytes.windows(SECRET.len()).any(|window| window.eq_ignore_ascii_case(SECRET.as_bytes()));
        assert!(!found, "{}", entry.path().display());
    }
    let store = sealed.sessions().unwrap();
    let refused = store.search(SECRET, FolderFilter::Anywhere, 10).await;
    assert!(matches!(refused, Err(StoreError::SearchOff)), "{refused:?}");
    assert!(store.copy(&id).await.unwrap().is_some());
    drop(store);
    let memories = sealed.memories().unwrap();
    assert_eq!(memories.exactly(Path::new("/here"), "walrus tests").unwrap().len(), 1);
    let tags = ["more".to_owned()];
    let again = NewMemory { text: "walrus first", tags: &tags, scope: MemoryOwner::User, source: "test" };
    assert_eq!(memories.remember(Path::new("/here"), &again).unwrap().tags, ["walrus-tag", "more"]);
    for (place, other) in [(plain, None), (sealed.clone(), Some(OTHER_KEY))] {
        let place = if let Some(other) = other { place.with_key(Some(key(other))) } else { place };
        let opened = [place.sessions().map(drop), place.memories().map(drop), place.corrections().map(drop)];
        for error in opened.map(Result::unwrap_err) {
            assert!(matches!(error, StoreError::KeyMissing { .. } | StoreError::WrongKey { .. }), "{error}");
        }
    }
    for (key, code) in [(KEY, 0), (OTHER_KEY, 2), ("", 2), ("short", 2)] {
        let (ended, said) = with_key(&sandbox, key, &["sessions", "list", "--all"]);
        assert_eq!(ended, Some(code), "{key}: {said}");
        assert_eq!(said.contains("A walrus"), code == 0, "{key}: {said}");
    }
    // Without the key, there would be no audit log of its calls.
    let serve = ["mcp", "--service", "developer"];
    let (ended, said) = with_key(&sandbox, OTHER_KEY, &serve);
    assert_eq!(ended, Some(2), "{said}");
    let run = sandbox.skein(&serve);
    assert_eq!(run.code, 2, "{}", run.stderr);
    let (ended, said) = with_key(&sandbox, KEY, &["sessions", "search", "--all", SECRET]);
    assert_eq!(ended, Some(2), "{said}");
    assert!(said.contains("cannot be searched"), "{said}");
    let (_, said) = with_key(&sandbox, KEY, &["check"]);
    assert!(said.contains("search and recall of sessions are off"), "{said}");
    assert!(!sandbox.skein(&["check"]).whole().contains("recall of sessions"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_database_has_no_text() {
    if !full_tests() {
        return;
    }
    let postgres = Postgres::start();
    let (_, plain) = database(&postgres, "sealed");
    let sealed = plain.clone().with_key(Some(key(KEY)));
    let id = fill(&sealed).await;
    assert!(view(&sealed, &id).await.contains("A walrus"));
    let tables = "SELECT string_agg(tablename, ' ') FROM pg_tables WHERE schemaname = 'public'";
    for table in postgres.sql("sealed", tables).split_ascii_whitespace() {
        let rows = postgres.sql("sealed", &format!("TABLE {table}"));
        assert!(!rows.to_lowercase().contains(SECRET), "{table}: {rows}");
        // Bytes are printed as hexadecimal digits.
        assert!(!rows.contains("77616c727573"), "{table}: {rows}");
    }
    assert!(matches!(plain.sessions().map(drop), Err(StoreError::KeyMissing { .. })));
    let other = plain.with_key(Some(key(OTHER_KEY)));
    assert!(matches!(other.memories().map(drop), Err(StoreError::WrongKey { .. })));
}

#[tokio::test]
async fn a_store_is_encrypted_and_decrypted_by_copies() {
    let sandbox = Sandbox::new();
    let plain = StorePlace::files(sandbox.path("data"));
    let id = fill(&plain).await;
    let (code, said) = with_key(&sandbox, KEY, &["sessions", "list", "--all"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("not encrypted"), "{said}");
    let seen = view(&plain, &id).await;
    let folder = |name: &str| sandbox.path(name).display().to_string();
    let (code, copied) = with_key(&sandbox, KEY, &["store", "migrate", "--to", &folder("sealed")]);
    assert_eq!(code, Some(0), "{copied}");
    let sealed = StorePlace::files(sandbox.path("sealed")).with_key(Some(key(KEY)));
    assert_eq!(view(&sealed, &id).await, seen);
    let mut command = sandbox.command(&["store", "migrate", "--plain", "--to", &folder("plain")]);
    command.env("SKEIN_DATA_DIR", sandbox.path("sealed")).env("SKEIN_STORE_KEY", KEY);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let back = StorePlace::files(sandbox.path("plain"));
    assert_eq!(view(&back, &id).await, seen);
    assert_eq!(search(&back).await, search(&plain).await, "the words are back");
    let checksum = |text: &str| text.lines().find(|line| line.contains("checksum:")).unwrap().to_owned();
    assert_eq!(checksum(&String::from_utf8_lossy(&output.stdout)), checksum(&copied));
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_keeps_an_open_session_in_both_stores() {
    if !full_tests() {
        return;
    }
    let (postgres, sandbox) = (Postgres::start(), Sandbox::new());
    sandbox.write("config/config.yaml", "version: 1\nstore: {retention: {days: 30}}\n");
    let (url, target) = database(&postgres, "target");
    for (place, store_flag) in [(StorePlace::files(sandbox.path("data")), None), (target, Some(url.as_str()))] {
        let store = place.sessions().unwrap();
        let (open, old) = (add_session(&store, None, &["open"]).await, add_session(&store, None, &["old"]).await);
        let new = add_session(&store, None, &["new"]).await;
        let child = add_session(&store, Some(&old), &["child"]).await;
        let age = |id: &str| format!("UPDATE session SET updated_at = 1 WHERE id = '{id}'");
        let sql = |statement: &str| match store_flag {
            Some(_) => postgres.sql("target", statement),
            None => {
                let file = rusqlite::Connection::open(sandbox.path("data/sessions.db")).unwrap();
                file.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
                let row = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
                let found = file.prepare(statement).unwrap().query_map([], row).unwrap().next();
                found.transpose().unwrap().map(|number| number.to_string()).unwrap_or_default()
            }
        };
        [&open, &old, &child].into_iter().for_each(|id| drop(sql(&age(id))));
        let lease = store.hold_stored(&open).await.unwrap();
        if store_flag.is_some() {
            sql(&format!("INSERT INTO ownership (session, epoch) VALUES ('{open}', 1), ('{old}', 1)"));
        }
        let mut args = vec!["store", "prune"];
        args.extend(store_flag.iter().flat_map(|url| ["--store", *url]));
        let run = sandbox.skein(&args);
        assert_eq!((run.code, run.stdout.as_str()), (0, "removed 2 sessions\n"), "{}", run.stderr);
        let left: Vec<_> = store.list(ListFilter::default()).await.unwrap().into_iter().map(|left| left.id).collect();
        assert_eq!(left, [new, open.clone()]);
        if store_flag.is_some() {
            assert_eq!(sql("SELECT session FROM ownership"), open, "nothing of a removed session stays");
        }
        drop(lease);
    }
}

#[test]
fn a_session_that_opens_during_a_clean_up_stays() {
    if !full_tests() {
        return;
    }
    let postgres = Postgres::start();
    let (url, place) = database(&postgres, "shared");
    let tokio = tokio::runtime::Runtime::new().unwrap();
    let store = place.sessions().unwrap();
    let [first, second] = ["first", "second"].map(|text| tokio.block_on(add_session(&store, None, &[text])));
    let mut client = Client::connect(&url, NoTls).unwrap();
    client.execute("UPDATE session SET updated_at = CASE WHEN id = $1 THEN 1 ELSE 2 END", &[&first]).unwrap();
    // The clean-up takes the older session first, and waits for it.
    let mut blocker = client.transaction().unwrap();
    blocker.execute("SELECT 1 FROM session WHERE id = $1 FOR UPDATE", &[&first]).unwrap();
    let policy = RetentionPolicy { age: Some(Duration::from_secs(1)), count: None };
    std::thread::scope(|scope| {
        let cleaning = scope.spawn(|| remove_expired(&place, policy, &mut |_| {}).unwrap());
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        eventually("the clean-up waits", || postgres.sql("shared", waiting) == "1");
        let lease = tokio.block_on(store.hold_stored(&second)).unwrap();
        blocker.rollback().unwrap();
        let removed: Vec<_> = cleaning.join().unwrap().into_iter().map(|session| session.id).collect();
        assert_eq!((removed, lease.is_some()), (vec![first], true));
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn prune_fails_if_files_of_a_session_are_left() {
    let sandbox = Sandbox::new();
    sandbox.write("config/config.yaml", "version: 1\nstore: {retention: {days: 30}}\n");
    let store = StorePlace::files(sandbox.path("data")).sessions().unwrap();
    let id = add_session(&store, None, &["old"]).await;
    let file = rusqlite::Connection::open(sandbox.path("data/sessions.db")).unwrap();
    file.busy_timeout(Duration::from_secs(10)).unwrap();
    file.execute("UPDATE session SET updated_at = 1 WHERE id = ?1", [&id]).unwrap();
    // A file where the folder of checkpoints should be cannot be removed as a folder.
    let checkpoints = format!("data/checkpoints/sessions/{id}");
    sandbox.write(&checkpoints, "no folder");
    let run = sandbox.skein(&["store", "prune"]);
    assert_eq!((run.code, run.stdout.as_str()), (1, "removed 1 sessions\n"), "{}", run.stderr);
    assert!(run.stderr.contains(&id), "{}", run.stderr);
    fs::remove_file(sandbox.path(&checkpoints)).unwrap();
    let run = sandbox.skein(&["store", "prune"]);
    assert_eq!((run.code, run.stdout.as_str()), (0, "removed 0 sessions\n"), "{}", run.stderr);
}

#[test]
fn prune_needs_a_policy_and_a_project_cannot_set_one() {
    let sandbox = Sandbox::new();
    let run = sandbox.skein(&["store", "prune"]);
    assert_eq!(run.code, 2, "{}", run.stderr);
    assert!(run.stderr.contains("store.retention"), "{}", run.stderr);
    sandbox.write("config/config.yaml", "version: 1\nstore: {retention: {days: 0}}\n");
    let run = sandbox.skein(&["store", "prune"]);
    assert_eq!(run.code, 2, "{}", run.stderr);
    sandbox.write("config/config.yaml", "version: 1\n");
    sandbox.write("project/.skein/config.yaml", "version: 1\nstore: {retention: {days: 1}}\n");
    let run = sandbox.skein(&["check"]);
    assert_eq!(run.code, 6, "{}", run.stderr);
    assert!(run.stderr.contains("E122") && run.stderr.contains("`store`"), "{}", run.stderr);
}

#[test]
fn an_import_file_that_is_missing_is_named() {
    let sandbox = Sandbox::new();
    let run = sandbox.skein(&["store", "import", "missing.jsonl"]);
    assert_eq!(run.code, 2, "{}", run.whole());
    assert!(run.stderr.contains("the exported file [TMP]/project/missing.jsonl cannot be read"), "{}", run.stderr);
    assert!(run.stderr.contains("skein store export") && !run.stderr.contains("SKEIN_DATA_DIR"), "{}", run.stderr);
}
