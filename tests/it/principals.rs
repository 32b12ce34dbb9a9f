//! Two principals over one store, one pool and one plan: neither reaches anything of the other, and the limits of a
//! token hold in its sessions and their children.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use skein::agents::{Event, Notifier, RecoveryPolicy, StatusUpdate, TurnLimits};
use skein::broker::BindError;
use skein::conversation::{Content, Message, MessagePart, Role};
use skein::ids::{ModeId, ModelRef};
use skein::llm::offline::OfflineProvider;
use skein::llm::{LlmError, Provider};
use skein::manifest::{ApprovalLevel, HttpTransport, ServiceEntry, StdioTransport, Transport, client_service};
use skein::orchestrator::tom::TopOfMind;
use skein::orchestrator::{Orchestrator, PromptOptions};
use skein::principal::{GrantError, Principal, SessionGrant, TokenLimits};
use skein::sandbox::HiddenPaths;
use skein::session::{
    ModelSource, PromptError, Session, SessionError, SessionOptions, SessionPorts, SessionRoots, SessionSettings,
    Sessions,
};
use skein::store::{
    FolderFilter, ListFilter, NewEvent, RecallQuery, SessionChange, SessionStore, StateEntry, TermWeights,
};
use skein::tool::ask::NoAsker;
use skein::tool::{CallContext, ToolOutcome};
use tokio_util::sync::CancellationToken;

use crate::support::{Wired, Wiring, agent, arguments, echo, mode, with};

/// Every session of these tests answers without a model.
struct NoModels;

impl ModelSource for NoModels {
    fn provider(&self, _: &ModelRef) -> Result<Arc<dyn Provider>, LlmError> {
        Ok(Arc::new(OfflineProvider))
    }

    fn recovery_policy(&self) -> Result<RecoveryPolicy, LlmError> {
        Ok(RecoveryPolicy::default())
    }

    fn judge(&self, _: &ModelRef) -> Option<Arc<dyn Provider>> {
        None
    }
}

struct NoFront;

impl Notifier for NoFront {
    fn log(&self, _: Event) {}

    fn status(&self, _: StatusUpdate) {}
}

/// One process that several principals use.
struct Server {
    wired: Wired,
    sessions: Sessions,
}

/// The mode with all services whose data belongs to a principal.
const ALL: &str = "test/all";
const AUTO: &str = "orchestrator/auto";

fn server() -> Server {
    let services = json!(["memory", "apps", "echo", "common"]);
    let all = mode("all", services.clone(), services);
    // Without a profile, each session of a principal would have its own process.
    let shared = |name: &str| with(echo(name, &[]), json!({"sandbox": {"files": "none", "network": "off"}}));
    let common = with(shared("common"), json!({"shared_by": "all"}));
    let wired = Wiring::new().user([shared("echo"), common, agent(&[all])]).sandboxed("").start();
    let store = SessionStore::open(&wired.path("data")).expect("a store");
    let options = SessionOptions {
        limits: TurnLimits::default(),
        scratch: wired.path("scratch"),
        hidden: HiddenPaths::default(),
        os: "test",
        checkpoints: None,
        attention: None,
    };
    Server { sessions: Sessions::new(store, options), wired }
}

fn principal(name: &str) -> Principal {
    Principal::new(name).expect("a name")
}

fn mode_id(name: &str) -> ModeId {
    name.parse().expect("a mode")
}

impl Server {
    /// The folder in which every session works.
    fn root(&self) -> PathBuf {
        self.wired.path("project").canonicalize().expect("a folder")
    }

    /// The sessions of a principal whose token has these limits and the project as its root.
    fn sessions_of(&self, name: &str, limits: TokenLimits) -> Sessions {
        let limits = TokenLimits { roots: vec![self.root()], ..limits };
        self.sessions.with_grant(SessionGrant::new(principal(name), limits))
    }

    fn of(&self, name: &str) -> Sessions {
        self.sessions_of(name, TokenLimits::default())
    }

    fn ports(&self, client_services: Vec<Arc<ServiceEntry>>) -> SessionPorts {
        SessionPorts {
            broker: self.wired.runtime.broker().clone(),
            models: Arc::new(NoModels),
            external_agents: self.wired.runtime.external_agents(),
            asker: Arc::new(NoAsker),
            editor: None,
            client_services,
        }
    }

    async fn create(&self, sessions: &Sessions, mode: &str) -> Result<Arc<Session>, SessionError> {
        let roots = SessionRoots::here(self.root(), Vec::new());
        sessions.create(roots, settings(mode), |_| self.ports(Vec::new())).await
    }

    async fn open(&self, sessions: &Sessions, id: &str) -> Result<Arc<Session>, SessionError> {
        let opened = sessions.open(id, Vec::new(), settings(ALL), |_| self.ports(Vec::new())).await;
        opened.map(|opened| opened.session)
    }

    /// A session of the principal in which the user wrote `text`.
    async fn session_with(&self, sessions: &Sessions, text: &str) -> Arc<Session> {
        let session = self.create(sessions, ALL).await.expect("a session");
        sessions.store().append(session.id(), said(text));
        let entry = StateEntry { owner: "test".to_owned(), key: "key".to_owned(), value: text.as_bytes().to_vec() };
        sessions.store().put_state(session.id(), entry);
        sessions.store().flush(session.id()).await.expect("stored");
        session
    }
}

fn settings(mode: &str) -> SessionSettings {
    SessionSettings { mode: mode_id(mode), model: ModelRef::Offline, approval: Some(ApprovalLevel::Auto) }
}

fn said(text: &str) -> NewEvent {
    let message = Message { role: Role::User, parts: vec![MessagePart::Content(Content::text(text))] };
    let body = serde_json::to_string(&Event::Message { message: Arc::new(message) }).expect("JSON");
    NewEvent { kind: "message".into(), body, text: Some(text.to_owned()) }
}

async fn call(session: &Session, tool: &str, with: Value) -> ToolOutcome {
    let binding = session.binding().await.expect("a binding");
    let context = CallContext::new(Arc::clone(session.context()));
    binding.call(tool, arguments(with), context).await.expect("not cancelled")
}

/// The answer of a call that works.
async fn told(session: &Session, tool: &str, with: Value) -> String {
    let outcome = call(session, tool, with).await;
    assert!(!outcome.is_error, "{tool}: {}", outcome.all_text());
    outcome.all_text()
}

/// The answer of a call that does not.
async fn refused(session: &Session, tool: &str, with: Value) -> String {
    let outcome = call(session, tool, with).await;
    assert!(outcome.is_error, "{tool}: {}", outcome.all_text());
    outcome.all_text()
}

/// Everything that the store tells a principal about a session with this id.
async fn everything_about(store: &SessionStore, id: &str) -> String {
    let found = store.find(id).await.expect("read");
    let prefix = store.resolve(&id[..12]).await.expect("read");
    let (events, state) = (store.events(id).await.expect("read"), store.state(id).await.expect("read"));
    let (family, messages) = (store.family(id).await.expect("read"), store.messages(id, 0, 9).await.expect("read"));
    let children = ListFilter { parent: Some(id.to_owned()), ..ListFilter::default() };
    let children = store.list(children).await.expect("read");
    format!("{found:?} {prefix:?} {events:?} {state:?} {family:?} {messages:?} {children:?}")
}

/// Each of three principals against each other, `local` included.
#[tokio::test]
async fn no_principal_reaches_a_session_of_another() {
    let server = server();
    let owners = [server.of("ann"), server.of("bob"), server.sessions.clone()];
    let mut open = Vec::new();
    for sessions in &owners {
        let text = format!("zebra of {}", sessions.grant().principal());
        open.push(server.session_with(sessions, &text).await);
    }
    // An id that was never given.
    let unknown = "0".repeat(20);
    for (reader, own) in owners.iter().zip(&open) {
        let store = reader.store();
        let listed = store.list(ListFilter::default()).await.expect("read");
        assert_eq!(listed.iter().map(|session| session.id.as_str()).collect::<Vec<_>>(), [own.id()]);
        let found = store.search("zebra", FolderFilter::Anywhere, 9).await.expect("read");
        assert!(found.iter().all(|hit| hit.session == own.id()) && found.len() == 1, "{found:?}");
        // Words in the middle of others are found by reading every text.
        let found = store.search("ebra", FolderFilter::Anywhere, 9).await.expect("read");
        assert!(found.iter().all(|hit| hit.session == own.id()) && found.len() == 1, "{found:?}");
        for words in ["zebra", "zebra nowhere", "ebra", ""] {
            let query = RecallQuery { words: words.to_owned(), limit: 9, ..RecallQuery::default() };
            let hits = store.recall(query).await.expect("read").hits;
            assert!(hits.iter().all(|hit| hit.session == own.id()) && hits.len() == 1, "{words}: {hits:?}");
        }
        let weigh = TermWeights { word: |_| 1.0, least: 0.5 };
        let terms = store.common_terms(vec!["zebra".to_owned()], FolderFilter::default, Vec::new(), weigh, 9).await;
        let terms = terms.expect("read");
        assert_eq!((terms.frequency.as_slice(), terms.events, terms.messages.len()), (&[1][..], 1, 1));
        for other in open.iter().filter(|other| other.id() != own.id()) {
            let id = other.id();
            assert_eq!(everything_about(store, id).await, everything_about(store, &unknown).await);
            let error = server.open(reader, id).await.expect_err("not opened").to_string();
            let same = server.open(reader, &unknown).await.expect_err("not opened").to_string();
            assert_eq!(error.replace(id, "ID"), same.replace(&unknown, "ID"));
            // Whatever is written through the wrong handle changes nothing.
            store.append(id, said("giraffe"));
            store.change(id, SessionChange { title: Some("giraffe".to_owned()), ..SessionChange::default() });
            let entry = StateEntry { owner: "test".to_owned(), key: "key".to_owned(), value: b"giraffe".to_vec() };
            store.put_state(id, entry);
            store.remove_state(id, "test", "key");
            assert!(store.flush(id).await.is_err());
            assert_eq!(store.copy(id).await.expect("read"), None);
            assert_eq!(reader.delete(id).await.expect("read"), None);
        }
    }
    for (sessions, session) in owners.iter().zip(&open) {
        let whole = everything_about(sessions.store(), session.id()).await;
        assert!(whole.contains("zebra") && !whole.contains("giraffe"), "{whole}");
        assert_eq!(sessions.delete(session.id()).await.expect("deleted"), Some(Vec::new()));
    }
    server.wired.stop().await;
}

/// A session without a message is only in memory.
#[tokio::test]
async fn a_session_without_a_message_is_as_private_as_a_stored_one() {
    let server = server();
    let (ann, bob) = (server.of("ann"), server.of("bob"));
    let session = server.create(&ann, ALL).await.expect("a session");
    let id = session.id();
    assert!(ann.store().find(id).await.expect("read").is_some());
    assert_eq!(bob.store().find(id).await.expect("read"), None);
    assert_eq!(bob.store().copy(id).await.expect("read"), None);
    assert_eq!(bob.delete(id).await.expect("read"), None);
    bob.store().change(id, SessionChange { mode: Some("other".to_owned()), ..SessionChange::default() });
    let found = ann.store().find(id).await.expect("read").expect("still there");
    assert_eq!(found.mode, "all");
    server.wired.stop().await;
}

#[tokio::test]
async fn tools_reach_only_the_data_of_their_principal() {
    let server = server();
    let (ann, bob) = (server.of("ann"), server.of("bob"));
    let earlier = server.session_with(&ann, "the zebra of ann").await;
    let (ann, bob) =
        (server.create(&ann, ALL).await.expect("a session"), server.create(&bob, ALL).await.expect("a session"));
    // Memories.
    told(&ann, "memory__remember", json!({"text": "the zebra is at noon", "scope": "user"})).await;
    told(&bob, "memory__remember", json!({"text": "the zebra is at noon", "scope": "user", "tags": ["bob"]})).await;
    let of_ann = told(&ann, "memory__recall", json!({"query": "zebra"})).await;
    assert!(
        of_ann.contains("noon") && !of_ann.contains("bob"),
        "the same text, without the tag of the other: {of_ann}"
    );
    told(&ann, "memory__remember", json!({"text": "the parrot is green", "scope": "project"})).await;
    for (tool, with) in
        [("memory__recall", json!({"query": "parrot"})), ("memory__list_memories", json!({"scope": "project"}))]
    {
        let of_bob = told(&bob, tool, with).await;
        assert!(!of_bob.contains("green"), "{of_bob}");
    }
    for id in 1..=3 {
        call(&bob, "memory__forget", json!({"id": id})).await;
    }
    let of_ann = told(&ann, "memory__list_memories", json!({})).await;
    assert!(of_ann.contains("green") && of_ann.contains("noon"), "{of_ann}");
    // Earlier sessions of the project. Only the orchestrator recalls them.
    let (ann_auto, bob_auto) =
        (server.create(&server.of("ann"), AUTO).await, server.create(&server.of("bob"), AUTO).await);
    let (ann_auto, bob_auto) = (ann_auto.expect("a session"), bob_auto.expect("a session"));
    let of_ann = told(&ann_auto, "chatrecall__search_sessions", json!({"query": "zebra"})).await;
    assert!(of_ann.contains(earlier.id()), "{of_ann}");
    for query in ["zebra", ""] {
        let of_bob = told(&bob_auto, "chatrecall__search_sessions", json!({"query": query})).await;
        assert!(!of_bob.contains("of ann") && !of_bob.contains(earlier.id()), "{of_bob}");
    }
    let unknown = "0".repeat(20);
    let other = refused(&bob_auto, "chatrecall__read_session", json!({"id": earlier.id()})).await;
    let none = refused(&bob_auto, "chatrecall__read_session", json!({"id": unknown})).await;
    assert_eq!(other.replace(earlier.id(), "ID"), none.replace(&unknown, "ID"));
    // Apps.
    let page = |title: &str| {
        let head = format!("<head><title>{title}</title></head>");
        let html = format!("<!doctype html>\n<html lang=\"en\">{head}\n<body>hi</body></html>\n");
        json!({"name": "timer", "prd": "counts", "html": html})
    };
    told(&ann, "apps__create_app", page("Of Ann")).await;
    assert!(!told(&bob, "apps__list_apps", json!({})).await.contains("timer"));
    let other = refused(&bob, "apps__read_app", json!({"name": "timer"})).await;
    let none = refused(&bob, "apps__read_app", json!({"name": "other"})).await;
    assert_eq!(other.replace("timer", "NAME"), none.replace("other", "NAME"));
    told(&bob, "apps__create_app", page("Of Bob")).await;
    assert!(told(&ann, "apps__read_app", json!({"name": "timer"})).await.contains("Of Ann"));
    drop((ann, bob, ann_auto, bob_auto, earlier));
    server.wired.stop().await;
}

/// Sessions of one principal share a process of a service, those of two do not, unless the user's manifest says so.
#[tokio::test]
async fn principals_share_no_service_process() {
    let server = server();
    let (ann, bob) = (server.of("ann"), server.of("bob"));
    let mut open = Vec::new();
    for sessions in [&ann, &ann, &bob] {
        let session = server.create(sessions, ALL).await.expect("a session");
        session.binding().await.expect("a binding");
        open.push(session);
    }
    let processes = |service: &str| {
        let all = server.wired.runtime.pool().status();
        all.iter().filter(|(name, _)| name.as_str() == service).count()
    };
    assert_eq!((processes("echo"), processes("common")), (2, 1));
    drop(open);
    server.wired.stop().await;
}

#[tokio::test]
async fn top_of_mind_is_that_of_the_principal() {
    let server = server();
    let data = server.wired.path("data");
    for name in ["ann", "bob"] {
        let folder = principal(name).folder(&data);
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("top-of-mind.md"), format!("think of {name}")).expect("written");
    }
    let orchestrator = Orchestrator::new(data, TopOfMind::new(Some("think of local".to_owned()), None));
    for sessions in [server.of("ann"), server.of("bob"), server.sessions.clone()] {
        let name = sessions.grant().principal().name().to_owned();
        let session = server.create(&sessions, "goose/planner").await.expect("a session");
        let pending = session.begin().expect("a turn");
        let prompt = vec![Content::text("hello")];
        let (front, cancel) = (Arc::new(NoFront), CancellationToken::new());
        orchestrator.prompt(pending, prompt, PromptOptions::default(), front, &cancel).await.expect("a turn");
        let shown = format!("{:?}", session.last_exchange());
        for other in ["ann", "bob", "local"] {
            assert_eq!(shown.contains(&format!("think of {other}")), other == name, "{name}: {shown}");
        }
    }
    server.wired.stop().await;
}

fn globs(globs: &[&str]) -> Vec<String> {
    globs.iter().map(|glob| (*glob).to_owned()).collect()
}

#[tokio::test]
async fn other_modes_do_not_exist_for_a_token() {
    let server = server();
    let limits = TokenLimits { modes: globs(&["orchestrator/auto", "coding/q*"]), ..TokenLimits::default() };
    let sessions = server.sessions_of("ann", limits);
    let unknown = |error: SessionError, mode: &str| match error {
        SessionError::Bind(BindError::UnknownMode(id)) => assert_eq!(id, mode_id(mode)),
        other => panic!("{mode}: {other}"),
    };
    for mode in ["goose/assistant", "goose/nothing", "goose/judge"] {
        unknown(server.create(&sessions, mode).await.expect_err("no session"), mode);
    }
    let session = server.create(&sessions, "orchestrator/auto").await.expect("a session");
    let plan = session.plan();
    let offered: Vec<_> = plan
        .selectable_modes()
        .flat_map(|(agent, modes)| modes.into_iter().map(|mode| format!("{}/{}", agent.manifest.name, mode.mode.slug)))
        .collect();
    assert_eq!(offered, ["coding/qa", "orchestrator/auto"]);
    assert_eq!(plan.delegates(&mode_id("orchestrator/auto").agent), [mode_id("coding/qa")]);
    for mode in ["goose/assistant", "coding/backend", "coding/nothing"] {
        unknown(session.set_mode(mode_id(mode)).await.expect_err("no switch"), mode);
        unknown(session.child(mode_id(mode), None, |asker| asker, None, None).await.expect_err("no child"), mode);
    }
    let child = session.child(mode_id("coding/qa"), None, |asker| asker, None, None).await.expect("a child");
    assert_eq!(child.context().principal(), &principal("ann"));
    unknown(child.set_mode(mode_id("coding/backend")).await.expect_err("no switch"), "coding/backend");
    session.set_mode(mode_id("coding/qa")).await.expect("a switch");
    drop(child);
    server.wired.stop().await;
}

#[tokio::test]
async fn no_session_is_looser_than_its_token() {
    let server = server();
    let limits = TokenLimits { approval: Some(ApprovalLevel::ReadOnly), ..TokenLimits::default() };
    let sessions = server.sessions_of("ann", limits);
    let session = server.create(&sessions, "goose/assistant").await.expect("a session");
    assert_eq!(session.choice().approval, Some(ApprovalLevel::ReadOnly), "the launch wanted `auto`");
    for level in [ApprovalLevel::Auto, ApprovalLevel::Smart, ApprovalLevel::Ask] {
        let error = session.set_approval(level).await.expect_err("too loose");
        assert!(matches!(error, SessionError::Grant(GrantError::Approval { .. })), "{error}");
    }
    let write = json!({"path": "new.txt", "content": "x"});
    let answer = refused(&session, "developer__write_file", write.clone()).await;
    assert!(answer.contains("read-only"), "{answer}");
    let child = session.child(mode_id("coding/backend"), None, |asker| asker, None, None).await.expect("a child");
    refused(&child, "developer__write_file", write).await;
    session.set_approval(ApprovalLevel::Deny).await.expect("stricter is fine");
    // A stored session is not looser either.
    let stored = server.session_with(&sessions, "hello").await;
    let reopened = server.open(&sessions, stored.id()).await.expect("opened");
    assert_eq!(reopened.choice().approval, Some(ApprovalLevel::ReadOnly));
    drop((session, child, stored, reopened));
    server.wired.stop().await;
}

#[tokio::test]
async fn sessions_work_only_below_the_roots() {
    let server = server();
    let sessions = server.of("ann");
    let outside = server.wired.path("outside");
    std::fs::create_dir_all(server.root().join("below")).expect("a folder");
    std::fs::create_dir(&outside).expect("a folder");
    std::os::unix::fs::symlink(&outside, server.root().join("link")).expect("a link");
    let create = async |cwd: &Path, roots: &[&Path]| {
        let roots = SessionRoots::here(cwd.to_owned(), roots.iter().map(|root| (*root).to_owned()).collect());
        sessions.create(roots, settings("goose/planner"), |_| server.ports(Vec::new())).await
    };
    create(&server.root(), &[&server.root().join("below")]).await.expect("below a root");
    let root = server.root();
    let (link, missing) = (root.join("link"), root.join("missing"));
    for (cwd, roots) in [
        (outside.as_path(), [].as_slice()),
        (&link, &[]),
        (&missing, &[]),
        (Path::new("/"), &[]),
        (&root, &[outside.as_path()]),
    ] {
        let error = create(cwd, roots).await.expect_err("refused");
        assert!(matches!(error, SessionError::Grant(GrantError::Folder { .. })), "{}: {error}", cwd.display());
    }
    // A token of the same principal without this root does not see the session.
    let stored = server.session_with(&sessions, "hello").await;
    let limits = TokenLimits { roots: vec![outside.canonicalize().expect("a folder")], ..TokenLimits::default() };
    let elsewhere = server.sessions.with_grant(SessionGrant::new(principal("ann"), limits));
    assert_eq!(elsewhere.store().list(ListFilter::default()).await.expect("read"), []);
    assert_eq!(elsewhere.store().find(stored.id()).await.expect("read"), None);
    assert_eq!(elsewhere.delete(stored.id()).await.expect("read"), None);
    // Nor does one with other modes.
    let others = server.sessions_of("ann", TokenLimits { modes: globs(&["coding/*"]), ..TokenLimits::default() });
    assert_eq!(others.store().list(ListFilter::default()).await.expect("read"), []);
    assert_eq!(others.store().search("hello", FolderFilter::Anywhere, 9).await.expect("read"), []);
    assert_eq!(others.store().copy(stored.id()).await.expect("read"), None);
    let same = server.sessions_of("ann", TokenLimits { modes: globs(&["test/*"]), ..TokenLimits::default() });
    assert_eq!(same.store().list(ListFilter::default()).await.expect("read").len(), 1, "tokens of one name share data");
    drop(stored);
    server.wired.stop().await;
}

#[tokio::test]
async fn clients_start_no_program_without_the_limit() {
    let server = server();
    let stdio = Transport::Stdio(StdioTransport {
        command: "true".to_owned(),
        args: Vec::new(),
        env: Default::default(),
        cwd: None,
    });
    let http = Transport::Http(HttpTransport { url: "http://127.0.0.1:9/".to_owned(), headers: Default::default() });
    let brought = || -> Vec<_> {
        let services = [("starts", stdio.clone()), ("reaches", http.clone())];
        let service = |(name, transport)| Arc::new(client_service(name, transport, |_| false).expect("a service"));
        services.into_iter().map(service).collect()
    };
    for (client_services, expected) in [(false, &["reaches"][..]), (true, &["starts", "reaches"])] {
        let sessions = server.sessions_of("ann", TokenLimits { client_services, ..TokenLimits::default() });
        let roots = SessionRoots::here(server.root(), Vec::new());
        let session = sessions.create(roots, settings("goose/planner"), |_| server.ports(brought())).await;
        let session = session.expect("a session");
        let kept: Vec<_> = session.client_services().iter().map(|entry| entry.manifest.name.to_string()).collect();
        assert_eq!(kept, expected);
        let notices = session.take_notices();
        assert_eq!(notices.iter().any(|notice| notice.text.contains("`starts` is left out")), !client_services);
    }
    server.wired.stop().await;
}

#[tokio::test]
async fn sessions_and_turns_are_counted_for_their_token() {
    let server = server();
    let limits = TokenLimits { sessions: Some(2), turns: Some(1), ..TokenLimits::default() };
    let sessions = server.sessions_of("ann", limits);
    let first = server.create(&sessions, "goose/planner").await.expect("the first");
    let second = server.create(&sessions, "goose/planner").await.expect("the second");
    let error = server.create(&sessions, "goose/planner").await.expect_err("one too many");
    assert!(matches!(error, SessionError::Grant(GrantError::Sessions { limit: 2 })), "{error}");
    let turn = first.begin().expect("a turn");
    let error = second.begin().expect_err("one too many");
    assert!(matches!(error, PromptError::Grant(GrantError::Turns { limit: 1 })), "{error}");
    // A child session belongs to the turn of its parent.
    let child = first.child(mode_id("goose/planner"), None, |asker| asker, None, None).await.expect("a child");
    drop(child.begin().expect("a turn of the child"));
    drop(turn);
    drop(second.begin().expect("the other turn has ended"));
    drop((first, child));
    server.create(&sessions, "goose/planner").await.expect("a session was closed");
    server.wired.stop().await;
}
