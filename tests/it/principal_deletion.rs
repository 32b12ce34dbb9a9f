//! `skein principal delete` removes everything of a principal, and nothing of others.

use std::path::Path;
use std::sync::Arc;

use skein::principal::{Principal, SessionFiles, SessionGrant, TokenLimits};
use skein::store::{
    AuditFilter, ListFilter, MemoryFilter, MemoryOwner, NewAuditEntry, NewEvent, NewMemory, NewSession, SessionStore,
    StateEntry, StoreAddress, StorePlace, UsageKey, UsageRow,
};

use crate::support::postgres::Postgres;
use crate::support::{Run, Sandbox, full_tests};

/// A machine with a store of one kind.
struct Machine {
    sandbox: Sandbox,
    place: StorePlace,
    /// The address of a database.
    url: Option<String>,
    postgres: Option<Postgres>,
}

impl Machine {
    fn with_files() -> Self {
        let sandbox = Sandbox::new();
        let place = StorePlace::files(sandbox.path("data"));
        Self { sandbox, place, url: None, postgres: None }
    }

    fn with_database() -> Self {
        let (sandbox, postgres) = (Sandbox::new(), Postgres::start());
        let url = postgres.database("own");
        let address: StoreAddress = url.parse().unwrap();
        let place = StorePlace::files(sandbox.path("data")).with_database(Arc::new(address));
        Self { sandbox, place, url: Some(url), postgres: Some(postgres) }
    }

    fn skein(&self, args: &[&str]) -> Run {
        let store = self.url.iter().flat_map(|url| ["--store", url.as_str()]);
        self.sandbox.skein(&args.iter().copied().chain(store).collect::<Vec<_>>())
    }

    /// Ends the marks of open sessions, as after an hour.
    fn close_sessions(&self) {
        let close = "UPDATE session SET busy_until = 0";
        match &self.postgres {
            Some(postgres) => drop(postgres.sql("own", close)),
            None => {
                let file = rusqlite::Connection::open(self.sandbox.path("data/sessions.db")).unwrap();
                file.execute_batch(close).unwrap();
                // This process would take the closed session from its list some minutes later.
                std::fs::remove_dir_all(self.sandbox.path("data/open-sessions")).unwrap();
            }
        }
    }

    /// What the store has of a principal, as text.
    async fn everything_of(&self, name: &str) -> String {
        let (principal, here) = (Principal::new(name).unwrap(), Path::new("/srv/project"));
        let store = handle(&self.place.sessions().unwrap(), name);
        let sessions = store.list(ListFilter::default()).await.unwrap();
        let usage = store.usage(usage_key()).await.unwrap();
        let others = off_runtime(|| {
            let memories = self.place.memories().unwrap().of(principal.clone());
            let memories = memories.recall(here, &MemoryFilter::default()).unwrap();
            let corrections = self.place.corrections().unwrap().of(principal.clone()).corrections(here).unwrap();
            let consents = self.place.consents().unwrap().of(principal.clone()).list().unwrap();
            format!("{memories:?} {corrections:?} {consents:?}")
        });
        let tokens = self.place.tokens().unwrap().list().await.unwrap();
        let tokens: Vec<_> = tokens.into_iter().filter(|token| token.grant.principal == principal).collect();
        format!("{sessions:?} {usage:?} {others} {tokens:?}")
    }
}

/// Runs what blocks and must not run among async tasks.
fn off_runtime<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

fn handle(store: &SessionStore, name: &str) -> SessionStore {
    let limits = TokenLimits { roots: vec!["/srv".into()], ..TokenLimits::default() };
    store.for_grant(&SessionGrant::new(Principal::new(name).unwrap(), limits))
}

fn usage_key() -> UsageKey {
    UsageKey { scope: "principal".to_owned(), period: "2026-11".to_owned() }
}

/// Stores something of every kind. Returns the session.
async fn fill(machine: &Machine, name: &str) -> String {
    let created = machine.skein(&["token", "create", "--name", name]);
    assert_eq!(created.code, 0, "{}", created.stderr);
    let (principal, here) = (Principal::new(name).unwrap(), Path::new("/srv/project"));
    let store = handle(&machine.place.sessions().unwrap(), name);
    let new = NewSession {
        cwd: here.into(),
        roots: Vec::new(),
        agent: "goose".to_owned(),
        mode: "assistant".to_owned(),
        model: "offline".to_owned(),
        approval: None,
        parent: None,
        files: SessionFiles::Server,
    };
    let id = store.create(new.clone()).await.unwrap();
    let text = format!("walrus-of-{name}");
    store.append(&id, NewEvent { kind: "message".into(), body: format!("\"{text}\""), text: Some(text.clone()) });
    store.put_state(&id, StateEntry { owner: "todo".to_owned(), key: "list".to_owned(), value: text.clone().into() });
    store.create(NewSession { parent: Some(id.clone()), ..new }).await.unwrap();
    store.add_usage(usage_key(), UsageRow { cost: 0.5, tokens: 10, requests: 1, milliseconds: 5 });
    for subject in ["one", "two"] {
        let entry = NewAuditEntry {
            actor: "goose/assistant".to_owned(),
            kind: "call",
            subject: subject.to_owned(),
            call: None,
            decision: "allow",
            source: "level",
            rule: None,
            arguments: Some(b"{}".to_vec()),
        };
        store.audit(&id, entry);
    }
    store.flush(&id).await.unwrap();
    off_runtime(|| {
        let new = NewMemory { text: &text, tags: &[], scope: MemoryOwner::User, source: "test" };
        machine.place.memories().unwrap().of(principal.clone()).remember(here, &new).unwrap();
        machine.place.corrections().unwrap().of(principal.clone()).remember(here, &text, "coding/qa").unwrap();
        machine.place.consents().unwrap().of(principal.clone()).keep("{}").unwrap();
    });
    for file in ["config/config.yaml", "apps/timer/1.html", "top-of-mind.md", "trust.json"] {
        machine.sandbox.write(&format!("data/principals/{name}/{file}"), "version: 1\n");
    }
    machine.sandbox.write(&format!("data/state/scratch/{id}/note.txt"), &text);
    id
}

async fn delete_one_of_two(machine: Machine) {
    let (of_ann, of_bob) = (fill(&machine, "ann").await, fill(&machine, "bob").await);
    let bob = machine.everything_of("bob").await;
    assert!(bob.contains("walrus-of-bob") && bob.contains(&of_bob), "{bob}");
    // A session that a process has open stays, and all the rest with it.
    let store = machine.place.sessions().unwrap();
    let lease = handle(&store, "ann").hold_stored(&of_ann).await.unwrap();
    let refused = machine.skein(&["principal", "delete", "ann"]);
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(refused.stderr.contains("1 sessions of `ann` are open"), "{}", refused.stderr);
    assert!(machine.everything_of("ann").await.contains(&of_ann));
    drop(lease);
    machine.close_sessions();
    let deleted = machine.skein(&["principal", "delete", "ann"]);
    assert_eq!(deleted.code, 0, "{}", deleted.stderr);
    assert!(deleted.stdout.contains("with 2 sessions"), "{}", deleted.stdout);
    let nobody = machine.everything_of("nobody").await;
    assert_eq!(machine.everything_of("ann").await, nobody);
    assert_eq!(machine.everything_of("bob").await, bob);
    // A handle that was open before finds no session, and brings none back.
    let ann = handle(&store, "ann");
    ann.append(&of_ann, NewEvent { kind: "message".into(), body: "{}".to_owned(), text: None });
    assert!(ann.flush(&of_ann).await.is_err());
    for (path, is_left) in [
        ("data/principals/ann".to_owned(), false),
        (format!("data/state/scratch/{of_ann}"), false),
        ("data/principals/bob/top-of-mind.md".to_owned(), true),
        (format!("data/state/scratch/{of_bob}/note.txt"), true),
    ] {
        assert_eq!(machine.sandbox.path(&path).exists(), is_left, "{path}");
    }
    // The decisions stay, and no name belongs to them any more.
    let verified = machine.skein(&["audit", "verify"]);
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
    let entries = store.audit_entries(AuditFilter { session: Some(of_ann), ..AuditFilter::default() }).await.unwrap();
    assert_eq!(entries.len(), 2);
    let names = store.audit_names().await.unwrap();
    assert_eq!(names.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), ["bob"]);
    assert!(names.iter().all(|(pseudonym, _)| *pseudonym != entries[0].pseudonym));
    let again = machine.skein(&["principal", "delete", "ann"]);
    assert_eq!(again.code, 2, "{}", again.stderr);
    assert!(again.stderr.contains("nothing of `ann`"), "{}", again.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_principal_removes_its_rows_and_files() {
    delete_one_of_two(Machine::with_files()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_principal_removes_its_rows_in_a_database() {
    if full_tests() {
        delete_one_of_two(Machine::with_database()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_byte_of_a_deleted_text_stays_in_the_files() {
    let machine = Machine::with_files();
    fill(&machine, "ann").await;
    fill(&machine, "bob").await;
    let contains = |text: &str| {
        let files = ["sessions.db", "memory.db", "routes.db"].map(|file| machine.sandbox.path(&format!("data/{file}")));
        let with_log = files.iter().flat_map(|file| [file.clone(), file.with_extension("db-wal")]);
        let bytes = with_log.filter_map(|file| std::fs::read(file).ok());
        bytes.map(|bytes| String::from_utf8_lossy(&bytes).contains(text)).collect::<Vec<_>>().contains(&true)
    };
    assert!(contains("walrus-of-ann"));
    let deleted = machine.skein(&["principal", "delete", "ann"]);
    assert_eq!(deleted.code, 0, "{}", deleted.stderr);
    assert!(!contains("walrus-of-ann") && contains("walrus-of-bob"));
}

#[tokio::test(flavor = "multi_thread")]
async fn force_deletes_an_open_session_and_names_are_checked() {
    let machine = Machine::with_files();
    let id = fill(&machine, "ann").await;
    let store = machine.place.sessions().unwrap();
    let _lease = handle(&store, "ann").hold_stored(&id).await.unwrap();
    let deleted = machine.skein(&["principal", "delete", "ann", "--force"]);
    assert_eq!(deleted.code, 0, "{}", deleted.stderr);
    assert!(handle(&store, "ann").find(&id).await.unwrap().is_none());
    for (name, said) in [("local", "reserved"), ("../ann", "not a name"), ("carl", "nothing of `carl`")] {
        let refused = machine.skein(&["principal", "delete", name]);
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
    }
}
