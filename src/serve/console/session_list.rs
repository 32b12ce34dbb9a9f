//! The list of sessions: full-text search, filters by agent, mode and state, and the form for a new session.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use maud::{Markup, html};

use super::super::ServerState;
use super::form::{FormFields, query};
use super::layout::{ConsoleProblem, Section, csrf_field, page};
use super::logins::Login;
use super::open_session::{ConsoleSessions, home_folder, home_project};
use super::transcript::display_text;
use crate::clock;
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::project::Project;
use crate::store::{Cursor, FolderFilter, ListFilter, SearchHit, SessionStore, StoreError, StoredSession};

/// Sessions or matches on one page.
const PAGE: usize = 50;
/// Matches to which the filters of a search apply.
const MAX_MATCHES: usize = 500;
/// Entries that a page of the transcript shows after a match.
const AFTER_MATCH: u64 = 50;

/// What a session does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionState {
    Running,
    /// It has an open request.
    Waiting,
    Idle,
}

impl SessionState {
    const ALL: [Self; 3] = [Self::Running, Self::Waiting, Self::Idle];

    /// Returns what a session does now.
    pub(super) fn of(state: &ServerState, id: &str) -> Self {
        let is_running = state.parts.open_sessions.find(id).is_some_and(|open| open.is_running());
        match (is_running, state.parts.console.requests.is_waiting(id)) {
            (_, true) => Self::Waiting,
            (true, false) => Self::Running,
            (false, false) => Self::Idle,
        }
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Idle => "idle",
        }
    }
}

/// What the person looks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ListQuery {
    words: String,
    /// `agent/mode`, or `agent/*` for all modes of an agent. Empty for all.
    mode: String,
    state: String,
    after: Option<Cursor>,
}

impl ListQuery {
    fn parse(text: &str) -> Self {
        let fields = FormFields::parse(text.as_bytes());
        let field = |name: &str| fields.text(name).unwrap_or_default().to_owned();
        let after = field("after");
        let after = after
            .split_once('-')
            .and_then(|(time, id)| Some(Cursor { updated_at: time.parse().ok()?, id: id.to_owned() }));
        Self { words: field("q"), mode: field("mode"), state: field("state"), after }
    }

    /// Returns whether it asks for the mode of a session.
    fn admits_mode(&self, session: &StoredSession) -> bool {
        self.mode.is_empty() || self.mode == mode_of(session) || self.mode == format!("{}/*", session.agent)
    }

    /// Returns whether it asks for a mode or a state.
    fn is_filtered(&self) -> bool {
        !self.mode.is_empty() || self.state_filter().is_some()
    }

    fn state_filter(&self) -> Option<SessionState> {
        SessionState::ALL.into_iter().find(|state| state.label() == self.state)
    }
}

/// Shows the list.
pub(super) async fn show(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    RawQuery(text): RawQuery,
) -> Result<Response, ConsoleProblem> {
    let wanted = ListQuery::parse(text.as_deref().unwrap_or_default());
    let sessions = ConsoleSessions::of(&state, &login.token).await?;
    let project = home_project(&state, &login.token).await?;
    let found = match wanted.words.is_empty() {
        true => list(&state, &sessions, &wanted).await?,
        false => search(&state, &sessions, &wanted).await?,
    };
    let body = html! {
        h1 { "Sessions" }
        (new_session(&state, &login, &project))
        (filters(&wanted, project.broker.plan()))
        (found)
    };
    Ok(page(&login, Section::Sessions, "Sessions", &body))
}

async fn list(state: &ServerState, sessions: &ConsoleSessions, wanted: &ListQuery) -> Result<Markup, ConsoleProblem> {
    let mode = (!wanted.mode.is_empty()).then(|| wanted.mode.clone());
    let wanted_state = wanted.state_filter();
    let (found, next) = match wanted_state {
        Some(SessionState::Running | SessionState::Waiting) => {
            let mut found = Vec::new();
            for open in state.parts.open_sessions.busy_sessions() {
                found.extend(sessions.store().find(open.session.id()).await?);
            }
            found.retain(|session: &StoredSession| wanted.admits_mode(session) && session.parent.is_none());
            found.sort_by_key(|session| std::cmp::Reverse(session.updated_at));
            (found, None)
        }
        Some(SessionState::Idle) | None => {
            let after = wanted.after.clone();
            let filter = ListFilter { mode, after, limit: Some(PAGE + 1), ..ListFilter::default() };
            let mut found = sessions.store().list(filter).await?;
            let has_more = found.len() > PAGE;
            found.truncate(PAGE);
            let next = found.last().filter(|_| has_more).map(|last| format!("{}-{}", last.updated_at, last.id));
            (found, next)
        }
    };
    let rows: Vec<_> = found.iter().map(|session| (session, SessionState::of(state, &session.id))).collect();
    let rows: Vec<_> = rows.into_iter().filter(|(_, is)| wanted_state.is_none_or(|wanted| wanted == *is)).collect();
    let next = next.map(|after| query(&[("mode", &wanted.mode), ("state", &wanted.state), ("after", &after)]));
    Ok(html! {
        @if rows.is_empty() { p class="empty" { "No session matches." } }
        ul class="rows" {
            @for (session, is) in &rows { (session_row(session, *is)) }
        }
        @if let Some(next) = next {
            p { a href={ "/console/sessions?" (next) } { "Older sessions" } }
        }
    })
}

fn session_row(session: &StoredSession, state: SessionState) -> Markup {
    html! {
        li {
            a href={ "/console/sessions/" (session.id) } { (title_of(session.title.as_deref())) }
            " "
            span class={ "state " (state.label()) } { (state.label()) }
            div class="meta" {
                (mode_of(session)) " · " (display_text(&session.cwd.to_string_lossy())) " · "
                time datetime=(clock::iso(session.updated_at)) { (clock::ago(session.updated_at)) }
                " · " (session.spent.input + session.spent.output) " tokens"
                @if let Some(cost) = session.spent.cost { " · $" (format!("{cost:.4}")) }
            }
        }
    }
}

async fn search(state: &ServerState, sessions: &ConsoleSessions, wanted: &ListQuery) -> Result<Markup, ConsoleProblem> {
    let SearchMatches { hits, is_cut } =
        find_matches(sessions.store(), wanted, |id| SessionState::of(state, id)).await?;
    Ok(html! {
        h2 { "Messages with “" (display_text(&wanted.words)) "”" }
        @if is_cut { p class="hint" { "The filters apply to the " (MAX_MATCHES) " best matches." } }
        @if hits.is_empty() { p class="empty" { "No message has these words." } }
        ul class="rows" {
            @for hit in &hits { (hit_row(hit)) }
        }
    })
}

/// The matches of a search that the page shows.
#[derive(Debug)]
struct SearchMatches {
    hits: Vec<SearchHit>,
    /// The filters apply to the best matches only. There may be others.
    is_cut: bool,
}

/// Finds the matches with the mode and the state that the person looks for. `state_of` returns the state of a session.
async fn find_matches(
    store: &SessionStore,
    wanted: &ListQuery,
    state_of: impl Fn(&str) -> SessionState,
) -> Result<SearchMatches, StoreError> {
    if !wanted.is_filtered() {
        let hits = store.search(&wanted.words, FolderFilter::Anywhere, PAGE).await?;
        return Ok(SearchMatches { hits, is_cut: false });
    }
    let best = store.search(&wanted.words, FolderFilter::Anywhere, MAX_MATCHES).await?;
    let is_cut = best.len() == MAX_MATCHES;
    let mut hits = filter_hits(store, wanted, state_of, best).await?;
    hits.truncate(PAGE);
    Ok(SearchMatches { hits, is_cut })
}

/// Returns the matches in sessions with the mode and the state that the person looks for.
async fn filter_hits(
    store: &SessionStore,
    wanted: &ListQuery,
    state_of: impl Fn(&str) -> SessionState,
    hits: Vec<SearchHit>,
) -> Result<Vec<SearchHit>, StoreError> {
    let mut admitted: HashMap<String, bool> = HashMap::new();
    let mut found = Vec::new();
    for hit in hits {
        let is_admitted = match admitted.get(&hit.session) {
            Some(is_admitted) => *is_admitted,
            None => {
                let is_state = wanted.state_filter().is_none_or(|is| is == state_of(&hit.session));
                let session = store.find(&hit.session).await?;
                let is_admitted = is_state && session.is_some_and(|session| wanted.admits_mode(&session));
                admitted.insert(hit.session.clone(), is_admitted);
                is_admitted
            }
        };
        if is_admitted {
            found.push(hit);
        }
    }
    Ok(found)
}

fn hit_row(hit: &SearchHit) -> Markup {
    // The page shows the match and what follows it.
    let before = (hit.seq + AFTER_MATCH).to_string();
    let link = format!("/console/sessions/{}?{}#e{}", hit.session, query(&[("before", &before)]), hit.seq);
    html! {
        li {
            a href=(link) { (title_of(hit.title.as_deref())) }
            p class="said" { (display_text(&hit.snippet)) }
            div class="meta" { time datetime=(clock::iso(hit.at)) { (clock::ago(hit.at)) } }
        }
    }
}

fn filters(wanted: &ListQuery, plan: &Plan) -> Markup {
    html! {
        form method="get" action="/console/sessions" class="row" role="search" {
            label class="grow" { "Search all messages" input type="search" name="q" value=(wanted.words); }
            label { "Agent or mode"
                select name="mode" {
                    option value="" { "all agents" }
                    @for (agent, _) in plan.selectable_modes() {
                        @let value = format!("{}/*", agent.manifest.name);
                        option value=(value) selected[value == wanted.mode] { (agent.manifest.name.as_str()) ", all modes" }
                    }
                    (mode_options(plan, &wanted.mode))
                }
            }
            label { "State"
                select name="state" {
                    option value="" { "all states" }
                    @for state in SessionState::ALL {
                        option value=(state.label()) selected[state.label() == wanted.state] { (state.label()) }
                    }
                }
            }
            button type="submit" { "Show" }
        }
    }
}

/// Returns an option for each mode that the login reaches.
pub(super) fn mode_options(plan: &Plan, chosen: &str) -> Markup {
    let modes = plan.selectable_modes().flat_map(|(agent, modes)| {
        modes.into_iter().map(|entry| ModeId::new(agent.manifest.name.clone(), entry.mode.slug.clone()).to_string())
    });
    html! {
        @for mode in modes.collect::<Vec<_>>() {
            option value=(mode) selected[mode == chosen] { (mode) }
        }
    }
}

fn new_session(state: &ServerState, login: &Login, project: &Project) -> Markup {
    let plan = project.broker.plan();
    let default = project.mode.select_or_first(plan).map(|mode| mode.to_string()).unwrap_or_default();
    let folder = home_folder(state, &login.token);
    html! {
        details class="panel" {
            summary { "New session" }
            form method="post" action="/console/sessions" class="stack" data-stay data-draft="new session" {
                (csrf_field(login))
                p class="problem" role="alert" hidden {}
                div class="row" {
                    label { "Mode" select name="mode" { (mode_options(plan, &default)) } }
                    @if let Some(folder) = folder {
                        label class="grow" { "Folder" input name="folder" value=(folder.to_string_lossy()) required; }
                    } @else {
                        p class="hint" { "Your token has no folder. The session works in an empty one." }
                    }
                }
                label { "Prompt" textarea name="prompt" data-draft="new" required {} }
                button type="submit" { "Open session" }
            }
        }
    }
}

/// Returns the title of a session for people.
pub(super) fn title_of(title: Option<&str>) -> String {
    title.map(display_text).filter(|title| !title.trim().is_empty()).unwrap_or_else(|| "Untitled session".to_owned())
}

/// Returns the mode of a stored session, as `agent/mode`.
pub(super) fn mode_of(session: &StoredSession) -> String {
    format!("{}/{}", session.agent, session.mode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::principal::SessionFiles;
    use crate::store::{NewEvent, NewSession};

    /// Stores a session in a mode of `goose` with these messages.
    async fn add_session(store: &SessionStore, mode: &str, texts: &[&str]) {
        let new = NewSession {
            cwd: "/srv".into(),
            roots: Vec::new(),
            agent: "goose".to_owned(),
            mode: mode.to_owned(),
            model: "offline".to_owned(),
            approval: None,
            parent: None,
            files: SessionFiles::Server,
        };
        let id = store.create(new).await.unwrap();
        for text in texts {
            let event = NewEvent { kind: "message".into(), body: "{}".to_owned(), text: Some((*text).to_owned()) };
            store.append(&id, event);
        }
        store.flush(&id).await.unwrap();
    }

    #[tokio::test]
    async fn filters_apply_to_a_limited_number_of_matches() {
        let folder = tempfile::tempdir().unwrap();
        let store = SessionStore::open(folder.path()).unwrap();
        // Of two texts with the word, the shorter one is the better match.
        add_session(&store, "planner", &["a zebra among many other words"]).await;
        add_session(&store, "assistant", &["zebra"; MAX_MATCHES - 1]).await;
        let wanted = ListQuery::parse("q=zebra&mode=goose%2Fplanner");
        let find = async || find_matches(&store, &wanted, |_| SessionState::Idle).await.unwrap();
        assert_eq!(find().await.hits.len(), 1);
        add_session(&store, "assistant", &["zebra"]).await;
        let found = find().await;
        assert!(found.hits.is_empty() && found.is_cut, "{found:?}");
    }

    #[test]
    fn a_query_names_words_filters_and_a_position() {
        let wanted = ListQuery::parse("q=a+b&mode=coding%2Fqa&state=running&after=17-abc");
        assert_eq!((wanted.words.as_str(), wanted.mode.as_str()), ("a b", "coding/qa"));
        assert_eq!(wanted.state_filter(), Some(SessionState::Running));
        assert_eq!(wanted.after, Some(Cursor { updated_at: 17, id: "abc".to_owned() }));
        assert_eq!(ListQuery::parse("after=x-y&state=odd").state_filter(), None);
    }
}
