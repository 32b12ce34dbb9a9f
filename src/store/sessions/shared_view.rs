//! Limits the queries of a PostgreSQL database to what a view admits.

use postgres::{Client, Row};

use super::view::SessionView;
use crate::store::database::Queries;

/// SQL: whether `s` is admitted; `$1` to `$3` are the values of [`ViewValues`]. A child session is admitted with its
/// parent. Roots limit only the folders of this machine.
pub(super) const ADMITTED: &str = "(s.principal = $1::text
    AND ($2::text[] IS NULL OR EXISTS (SELECT 1 FROM session top
        WHERE top.id = coalesce(s.parent, s.id) AND top.agent || '/' || top.mode = ANY ($2::text[])))
    AND ($3::text[] IS NULL OR s.files <> 'server' OR EXISTS (SELECT 1 FROM unnest($3::text[]) root
        WHERE s.cwd = root OR starts_with(s.cwd, rtrim(root, '/') || '/'))))";

/// SQL: `$4` is a folder or null, `$5` whether folders below it match too.
pub(super) const WITHIN: &str = "($4::text IS NULL OR s.cwd = $4::text
    OR ($5::bool AND starts_with(s.cwd, rtrim($4::text, '/') || '/')))";

/// The first three values of every query.
pub(super) struct ViewValues {
    pub(super) principal: String,
    pub(super) modes: Option<Vec<String>>,
    pub(super) roots: Option<Vec<String>>,
}

impl ViewValues {
    pub(super) fn of(queries: &mut Queries<'_, Client>, view: &SessionView) -> Result<Self, postgres::Error> {
        let principal = view.principal().name().to_owned();
        let modes = if view.has_modes() {
            let select = "SELECT DISTINCT agent || '/' || mode FROM session WHERE principal = $1";
            let stored = queries.query(select, &[&principal])?;
            let stored = stored.iter().map(|row| row.get::<_, String>(0));
            Some(stored.filter(|mode| view.admits_mode(mode)).collect())
        } else {
            None
        };
        Ok(Self { principal, modes, roots: view.root_texts() })
    }
}

pub(super) fn natural(row: &Row, column: usize) -> u64 {
    u64::try_from(row.get::<_, i64>(column)).unwrap_or_default()
}
