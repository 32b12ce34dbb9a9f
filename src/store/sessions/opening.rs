//! Opens the session store: a file of SQLite, or a database of PostgreSQL.

use std::path::Path;
use std::sync::{Arc, mpsc};

use super::backend::{SessionReads, SessionWrites};
use super::claims::ClaimTable;
use super::file_backend::{FileReads, FileWrites};
use super::leases::SessionLeases;
use super::open_list::OpenList;
use super::pending_jobs::PendingJobs;
use super::query::QueryRunner;
use super::sealed_backend::{SealedReads, SealedWrites};
use super::shared_reads::SharedReads;
use super::shared_writes::SharedWrites;
use super::unused_sessions::UnusedSessions;
use super::view::SessionView;
use super::writer::SessionWriter;
use super::{SessionStore, Shared};
use crate::principal::SessionGrant;
use crate::store::{Replica, StoreAddress, StoreError, StorePlace, database_key};

impl SessionStore {
    /// Opens the store in the data folder, creating it if it does not exist. The handle is that of `local`. Fails if the
    /// store is encrypted.
    pub fn open(data: &Path) -> Result<Self, StoreError> {
        Self::open_in(&StorePlace::files(data))
    }

    /// Opens the store in a PostgreSQL database for one process, creating its tables if they do not exist. The handle is
    /// that of `local`. It may wait for the network. Fails if the store is encrypted.
    pub fn connect(address: &Arc<StoreAddress>) -> Result<Self, StoreError> {
        Self::open_in(&StorePlace::default().with_database(Arc::clone(address)))
    }

    /// Opens the store of a place, creating it if it does not exist. The handle is that of `local`. Fails if the store has
    /// another key than the place. It may wait for the network.
    pub fn open_in(place: &StorePlace) -> Result<Self, StoreError> {
        Self::open_as(place, None)
    }

    /// Opens the store of several replicas, as [`Self::open_in`] does. Only the owner of a session can write it.
    pub fn open_replica(place: &StorePlace, replica: Replica) -> Result<Self, StoreError> {
        Self::open_as(place, Some(replica))
    }

    fn open_as(place: &StorePlace, replica: Option<Replica>) -> Result<Self, StoreError> {
        let (name, reads, writes): (_, Box<dyn SessionReads>, Box<dyn SessionWrites>) = match place.address() {
            Some(address) => {
                database_key::check_database(address, place.key())?;
                let writes = SharedWrites::open(address, place.key(), replica.clone())?;
                (address.to_string(), Box::new(SharedReads::open(address)?), Box::new(writes))
            }
            None => {
                let file = place.data().join("sessions.db");
                let writes = FileWrites::open(&file, place.key())?;
                (file.display().to_string(), Box::new(FileReads::open(&file)?), Box::new(writes))
            }
        };
        let list = place.address().is_none().then(|| OpenList::new(place.data()));
        let leases = SessionLeases::new(list);
        match place.key() {
            Some(key) => {
                let reads = SealedReads { inner: reads, key: key.clone() };
                let writes = SealedWrites { inner: writes, key: key.clone() };
                Self::start(name, Box::new(reads), Box::new(writes), leases, replica)
            }
            None => Self::start(name, reads, writes, leases, replica),
        }
    }

    fn start(
        name: String,
        reads: Box<dyn SessionReads>,
        writes: Box<dyn SessionWrites>,
        leases: SessionLeases,
        replica: Option<Replica>,
    ) -> Result<Self, StoreError> {
        let (queue, jobs) = mpsc::channel();
        let pending: Arc<PendingJobs> = Arc::default();
        let leases = Arc::new(leases);
        let writer = SessionWriter::new(writes, jobs, Arc::clone(&pending), Arc::clone(&leases));
        let writer = std::thread::Builder::new().name("sessions".to_owned()).spawn(move || writer.run());
        let writer = writer.map_err(|error| StoreError::Unusable {
            file: name.clone(),
            problem: format!("no thread can be started: {error}"),
        })?;
        let (reader, unused) = (Arc::new(QueryRunner::new(reads)), UnusedSessions::default());
        let (queue, writer, claims) = (Some(queue), Some(writer), ClaimTable::default());
        let shared = Shared { name, reader, queue, pending, writer, unused, leases, replica, claims };
        Ok(Self { shared: Arc::new(shared), view: Arc::new(SessionView::of(&SessionGrant::local())), owner: None })
    }
}
