//! Claims a session in one transaction: marks an expired owner as dead under a lock, then sets the next epoch.

use postgres::GenericClient;

use super::ReplicaPeer;
use crate::store::database::Queries;
use crate::store::ownership::ReplicaId;

/// Whether a claim succeeded.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClaimAnswer {
    Owned {
        epoch: u64,
    },
    /// A live replica owns the session.
    Elsewhere(ReplicaPeer),
    /// This replica uses another folder than the last owner.
    OtherFiles {
        replica: String,
    },
    NoSession,
    /// This replica is dead or unknown.
    NoReplica,
}

/// Keeps the own row, without delaying heartbeats. A claim of a replica that is declared dead meanwhile does no harm: the
/// next claim buries it. The database ends the transaction of a process that is paused, and with it its locks.
const OWN_ROW: &str = "SELECT files, set_config('idle_in_transaction_session_timeout', '5000', TRUE)
    FROM replica WHERE id = $1 AND NOT is_dead FOR KEY SHARE";
/// A session that was never owned, such as a copy, begins with epoch 0.
const ADD: &str =
    "INSERT INTO ownership (session, epoch) SELECT id, 0 FROM session WHERE id = $1 ON CONFLICT DO NOTHING";
/// Waits for the writes of the owner that are on their way.
const CURRENT: &str = "SELECT replica, last_replica, files FROM ownership WHERE session = $1 FOR UPDATE";
/// A claim may have come just after the session was removed.
const FORGET: &str = "DELETE FROM ownership o
    WHERE o.session = $1 AND NOT EXISTS (SELECT 1 FROM session s WHERE s.id = $1)";
/// Without a lock: two replicas that claim sessions of each other would wait for each other.
const OWNER: &str = "SELECT address, secret FROM replica WHERE id = $1";
/// Declares an owner dead that has expired. A heartbeat may come before it.
const BURY: &str = "UPDATE replica SET is_dead = TRUE WHERE id = $1 AND (is_dead OR expires_at <= clock_timestamp())";
const TAKE: &str = "UPDATE ownership SET replica = $2, last_replica = $2, files = $3, epoch = epoch + 1
    WHERE session = $1 RETURNING epoch";

/// Claims a top-level session for the replica `own`.
pub(super) fn claim<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    session: &str,
    own: &ReplicaId,
) -> Result<ClaimAnswer, postgres::Error> {
    let Some(row) = queries.query_opt(OWN_ROW, &[&own.as_str()])? else { return Ok(ClaimAnswer::NoReplica) };
    let own_files: String = row.get(0);
    queries.execute(ADD, &[&session])?;
    let Some(row) = queries.query_opt(CURRENT, &[&session])? else { return Ok(ClaimAnswer::NoSession) };
    if queries.execute(FORGET, &[&session])? == 1 {
        return Ok(ClaimAnswer::NoSession);
    }
    let (owner, last, files): (Option<String>, Option<String>, Option<String>) = (row.get(0), row.get(1), row.get(2));
    if let Some(owner) = owner.filter(|owner| owner != own.as_str()) {
        let row = queries.query_opt(OWNER, &[&owner])?;
        let is_over = queries.execute(BURY, &[&owner])? == 1;
        // A replica without a row was removed long after its end.
        if let Some(row) = row.filter(|_| !is_over) {
            let (address, secret): (Option<String>, String) = (row.get(0), row.get(1));
            let address = address.and_then(|address| address.parse().ok());
            return Ok(ClaimAnswer::Elsewhere(ReplicaPeer { id: ReplicaId::from(owner), address, secret }));
        }
    }
    if files.is_some_and(|files| files != own_files) {
        return Ok(ClaimAnswer::OtherFiles { replica: last.unwrap_or_default() });
    }
    let epoch: i64 = queries.query_one(TAKE, &[&session, &own.as_str(), &own_files])?.get(0);
    Ok(ClaimAnswer::Owned { epoch: u64::try_from(epoch).unwrap_or_default() })
}
