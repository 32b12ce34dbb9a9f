//! Lists the tables that are moved. A new table is one more line here.

use super::cell::RowCell;
use crate::store::{Schema, memories, routes, sessions, tokens};

/// An SQLite file, and the name under which a connection attaches it.
#[derive(Debug)]
pub(super) struct StoreFile {
    pub(super) name: &'static str,
    pub(super) schema: &'static str,
    /// The file has a table `store_key`.
    pub(super) has_key: bool,
}

pub(super) const SESSIONS: StoreFile = StoreFile { name: "sessions.db", schema: "main", has_key: true };
pub(super) const MEMORIES: StoreFile = StoreFile { name: "memory.db", schema: "memories", has_key: true };
pub(super) const ROUTES: StoreFile = StoreFile { name: "routes.db", schema: "routes", has_key: true };
pub(super) const TOKENS: StoreFile = StoreFile { name: "tokens.db", schema: "tokens", has_key: false };

/// All files; the first one is the main file of a connection.
pub(super) const FILES: [(&StoreFile, &Schema); 4] = [
    (&SESSIONS, &sessions::SCHEMA),
    (&MEMORIES, &memories::SCHEMA),
    (&ROUTES, &routes::SCHEMA),
    (&TOKENS, &tokens::SCHEMA),
];

/// A table. The stores of either kind have it with these columns, and maybe more that follow from them.
#[derive(Debug)]
pub(super) struct TableSpec {
    pub(super) name: &'static str,
    pub(super) file: &'static StoreFile,
    /// Separated by spaces.
    columns: &'static str,
    /// The columns that an encrypted store encrypts, separated by spaces.
    sealed: &'static str,
    /// SQL: an order that is the same in all stores. The table is `t`, and `s` the session of a linked table.
    pub(super) order: &'static str,
    /// The column `session` has the key of a session. Rows that are moved have its id instead.
    pub(super) is_linked: bool,
    /// The database counts the column `id`.
    pub(super) is_counted: bool,
}

/// The tables in the order in which they are written: sessions before what belongs to them.
pub(super) const TABLES: &[TableSpec] = &[
    TableSpec::new("session", &SESSIONS, SESSION_COLUMNS, "t.key").with_sealed("title"),
    TableSpec::new("event", &SESSIONS, "session seq at kind body text", "t.key").with_link().with_sealed("body"),
    TableSpec::new("state", &SESSIONS, "session owner key value", "s.key, t.owner, t.key")
        .with_link()
        .with_sealed("value"),
    TableSpec::new("spending", &SESSIONS, "session at input output cached cost", "t.key").with_link(),
    TableSpec::new("budget", &SESSIONS, BUDGET_COLUMNS, "t.principal, t.scope, t.period"),
    TableSpec::new("audit_key", &SESSIONS, "principal key", "t.principal"),
    TableSpec::new("audit_entry", &SESSIONS, AUDIT_COLUMNS, "t.session, t.seq"),
    TableSpec::new("audit_head", &SESSIONS, "session entries hash", "t.session"),
    TableSpec::new("memory", &MEMORIES, "id principal text tags project created source", "t.id")
        .with_sealed("text tags")
        .with_counter(),
    TableSpec::new("route", &ROUTES, "id principal project prompt mode created", "t.id")
        .with_sealed("prompt")
        .with_counter(),
    TableSpec::new("token", &TOKENS, "id principal hash limits created_at expires_at revoked_at", "t.id"),
    TableSpec::new("login", &TOKENS, "hash token csrf used_at", "t.hash"),
    TableSpec::new("consent", &TOKENS, "id principal rule created", "t.id").with_counter(),
];

const SESSION_COLUMNS: &str = "id principal parent files cwd roots agent mode model approval title created_at updated_at \
    input output cached cost events audited";
const AUDIT_COLUMNS: &str = "session seq at pseudonym actor kind subject call decision source rule arguments previous";
const BUDGET_COLUMNS: &str = "principal scope period cost tokens requests milliseconds";

impl TableSpec {
    const fn new(name: &'static str, file: &'static StoreFile, columns: &'static str, order: &'static str) -> Self {
        Self { name, file, columns, sealed: "", order, is_linked: false, is_counted: false }
    }

    const fn with_link(self) -> Self {
        Self { is_linked: true, ..self }
    }

    const fn with_counter(self) -> Self {
        Self { is_counted: true, ..self }
    }

    const fn with_sealed(self, sealed: &'static str) -> Self {
        Self { sealed, ..self }
    }

    pub(super) fn columns(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.columns.split_ascii_whitespace()
    }

    pub(super) fn is_sealed(&self, column: &str) -> bool {
        self.sealed.split_ascii_whitespace().any(|sealed| sealed == column)
    }

    /// Returns SQL that selects all rows in order. `schema` is the name of an attached file with a dot, or empty.
    /// Returns the ids of sessions in a row of this table.
    pub(super) fn session_ids<'a>(&'a self, row: &'a [RowCell]) -> impl Iterator<Item = &'a str> {
        let names_session = |column: &str| match self.name {
            "session" => matches!(column, "id" | "parent"),
            _ => column == "session",
        };
        self.columns().zip(row).filter_map(move |(column, cell)| match cell {
            RowCell::Text(id) if names_session(column) => Some(id.as_str()),
            _ => None,
        })
    }

    pub(super) fn select(&self, schema: &str) -> String {
        let column = |column: &str| match column {
            "session" if self.is_linked => "s.id".to_owned(),
            other => format!("t.{other}"),
        };
        let columns: Vec<_> = self.columns().map(column).collect();
        let link = if self.is_linked { format!(" JOIN {schema}session s ON s.key = t.session") } else { String::new() };
        format!("SELECT {} FROM {schema}{} t{link} ORDER BY {}", columns.join(", "), self.name, self.order)
    }
}
