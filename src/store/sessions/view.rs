//! Limits what a handle to the session store sees: the sessions of one principal, in the modes and folders of its token.
//!
//! Invariant: every query joins the table `session` as `s` and contains [`ADMITTED`]. A session that is not admitted
//! looks like one that does not exist.

use std::path::PathBuf;

use rusqlite::Connection;
use serde_json::json;

use super::StoredSession;
use crate::ids::NamePattern;
use crate::principal::{Principal, SessionFiles, SessionGrant};

/// SQL: whether `s` is admitted; `?1` is the value of [`SessionView::query`]. A child session is admitted with its
/// parent. Roots limit only the folders of this machine. The `+` keeps a full-text query from walking all sessions of
/// the principal instead of the matches.
pub(super) const ADMITTED: &str = "(+s.principal = ?1 ->> 'principal'
    AND (?1 ->> 'modes' IS NULL OR EXISTS (SELECT 1 FROM session top, json_each(?1, '$.modes') admitted
        WHERE top.id = coalesce(s.parent, s.id) AND top.agent || '/' || top.mode = admitted.value))
    AND (?1 ->> 'roots' IS NULL OR s.files <> 'server' OR EXISTS (SELECT 1 FROM json_each(?1, '$.roots') root
        WHERE s.cwd = root.value OR substr(s.cwd, 1, length(rtrim(root.value, '/')) + 1) = rtrim(root.value, '/') || '/')))";

/// SQL: the part of [`ADMITTED`] for which there is an index in the order of the list.
pub(super) const OF_PRINCIPAL: &str = "s.principal = ?1 ->> 'principal'";

/// The sessions that a handle sees.
#[derive(Debug, Clone)]
pub(super) struct SessionView {
    principal: Principal,
    /// `None`: all modes.
    modes: Option<Vec<NamePattern>>,
    /// `None`: all folders.
    roots: Option<Vec<PathBuf>>,
}

impl SessionView {
    pub(super) fn of(grant: &SessionGrant) -> Self {
        let limits = grant.limits();
        let modes = limits.modes.iter().map(|glob| NamePattern::new(glob)).collect();
        Self {
            principal: grant.principal().clone(),
            modes: (!limits.modes.is_empty()).then_some(modes),
            roots: (!grant.principal().is_local()).then(|| limits.roots.clone()),
        }
    }

    pub(super) fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Returns whether the principal sees all its sessions.
    pub(super) fn is_whole(&self) -> bool {
        self.modes.is_none() && self.roots.is_none()
    }

    /// Returns whether a session of the principal is admitted.
    pub(super) fn admits(&self, StoredSession { agent, mode, cwd, files, .. }: &StoredSession) -> bool {
        let is_below = |roots: &Vec<PathBuf>| roots.iter().any(|root| cwd.starts_with(root));
        self.admits_mode(&format!("{agent}/{mode}"))
            && (*files != SessionFiles::Server || self.roots.as_ref().is_none_or(is_below))
    }

    pub(super) fn admits_mode(&self, mode: &str) -> bool {
        self.modes.as_ref().is_none_or(|modes| modes.iter().any(|pattern| pattern.matches(mode)))
    }

    /// Returns the value of `?1` in [`ADMITTED`]: JSON with the principal, its admitted modes and its roots.
    pub(super) fn query(&self, connection: &Connection) -> rusqlite::Result<String> {
        let modes = self.modes.as_ref().map(|_| self.modes_in_store(connection)).transpose()?;
        Ok(json!({"principal": self.principal.name(), "modes": modes, "roots": self.root_texts()}).to_string())
    }

    /// Returns the roots as text.
    pub(super) fn root_texts(&self) -> Option<Vec<String>> {
        let texts = |roots: &Vec<PathBuf>| roots.iter().map(|root| root.to_string_lossy().into_owned()).collect();
        self.roots.as_ref().map(texts)
    }

    /// Returns whether the view admits only some modes.
    pub(super) fn has_modes(&self) -> bool {
        self.modes.is_some()
    }

    /// Returns the admitted modes among those of stored sessions.
    fn modes_in_store(&self, connection: &Connection) -> rusqlite::Result<Vec<String>> {
        let select = "SELECT DISTINCT agent || '/' || mode FROM session WHERE principal = ?1";
        let mut statement = connection.prepare_cached(select)?;
        let modes = statement.query_map([self.principal.name()], |row| row.get(0))?;
        let modes: Vec<String> = modes.collect::<rusqlite::Result<_>>()?;
        Ok(modes.into_iter().filter(|mode| self.admits_mode(mode)).collect())
    }
}
