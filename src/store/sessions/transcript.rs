//! Reads parts of long transcripts: the events before or after one, without the rest.

use rusqlite::{Connection, params};

use super::read::{event, limit_value, number};
use super::view::{ADMITTED, SessionView};
use super::{SessionStore, StoredEvent};
use crate::store::StoreError;

impl SessionStore {
    /// Returns the last `limit` events before the event `before`, in order. Without `before`, the last ones of all.
    pub async fn events_before(
        &self,
        id: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let id = id.to_owned();
        self.read(move |reads, view| reads.events_before(view, &id, before, limit)).await
    }

    /// Returns the first `limit` events after the event `after`, in order.
    pub async fn events_after(&self, id: &str, after: u64, limit: usize) -> Result<Vec<StoredEvent>, StoreError> {
        let id = id.to_owned();
        self.read(move |reads, view| reads.events_after(view, &id, after, limit)).await
    }
}

pub(super) fn read_before(
    connection: &Connection,
    view: &SessionView,
    id: &str,
    before: Option<u64>,
    limit: usize,
) -> rusqlite::Result<Vec<StoredEvent>> {
    // Without a null in it, the condition is a range of the index.
    let part = if before.is_some() { "e.seq < ?3" } else { "?3 IS NULL" };
    let select = format!(
        "SELECT e.seq, e.at, e.kind, e.body FROM event e JOIN session s ON s.key = e.session
         WHERE s.id = ?2 AND {ADMITTED} AND {part} ORDER BY e.seq DESC LIMIT ?4"
    );
    let values = params![view.query(connection)?, id, before.map(number), limit_value(Some(limit))];
    let events = connection.prepare_cached(&select)?.query_map(values, event)?.collect::<rusqlite::Result<Vec<_>>>();
    events.map(|mut events| {
        events.reverse();
        events
    })
}

pub(super) fn read_after(
    connection: &Connection,
    view: &SessionView,
    id: &str,
    after: u64,
    limit: usize,
) -> rusqlite::Result<Vec<StoredEvent>> {
    let select = format!(
        "SELECT e.seq, e.at, e.kind, e.body FROM event e JOIN session s ON s.key = e.session
         WHERE s.id = ?2 AND {ADMITTED} AND e.seq > ?3 ORDER BY e.seq LIMIT ?4"
    );
    let values = params![view.query(connection)?, id, number(after), limit_value(Some(limit))];
    connection.prepare_cached(&select)?.query_map(values, event)?.collect()
}
