//! A connection to a PostgreSQL database, its prepared statements, and the migrations of its tables.
//!
//! A connection blocks its thread and owns a runtime, so it must not be used or dropped on a thread that runs async
//! tasks. The stores use it on blocking threads; separate threads open and drop it.

use std::collections::HashMap;
use std::error::Error as _;
use std::sync::Arc;

use postgres::error::SqlState;
use postgres::types::ToSql;
use postgres::{Client, GenericClient, IsolationLevel, Row, Statement, Transaction};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::{self, ClientConfig};

use super::database_migrator::{self, MigrationError};
use super::database_schema::MIGRATIONS;
use super::key_check;
use super::sealing::StoreKey;
use super::{StoreAddress, StoreError};

/// SQL: the present, in milliseconds since 1970. All processes that share the database have this clock.
pub(super) const PRESENT: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
/// The version of this program, which decides which tables it may use.
pub(super) const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// SQL: the time as a text of SQLite's tables.
pub(super) const NOW: &str = "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')";

/// Parameters of a statement.
pub(super) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// One connection. It is opened again after it broke.
pub(super) struct Database {
    address: Arc<StoreAddress>,
    client: Option<Client>,
    statements: HashMap<String, Statement>,
    /// Checked in each transaction of `write` and `transact`.
    guard: Option<KeyGuard>,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        close(self.client.take());
    }
}

/// Closes a connection on a separate thread, because closing one blocks.
fn close(client: Option<Client>) {
    if let Some(client) = client {
        let closed = std::thread::Builder::new().name("database".to_owned()).spawn(move || drop(client));
        if let Err(error) = closed {
            tracing::warn!(%error, "a connection to the store could not be closed");
        }
    }
}

impl Database {
    /// Returns a connection that opens when it is first used, for tables that are migrated already.
    pub(super) fn new(address: &Arc<StoreAddress>) -> Self {
        Self { address: Arc::clone(address), client: None, statements: HashMap::new(), guard: None }
    }

    /// Connects and migrates the tables. Fails if the database cannot be reached, or its tables need a newer program.
    pub(super) fn open(address: &Arc<StoreAddress>) -> Result<Self, StoreError> {
        let mut client = connect(address)?;
        let migrated = std::thread::scope(|scope| {
            let migrated = scope.spawn(|| migrate(&mut client, address)).join();
            migrated.unwrap_or_else(|_| Err(unusable(address, "its migration broke off".to_owned())))
        });
        let database =
            Self { address: Arc::clone(address), client: Some(client), statements: HashMap::new(), guard: None };
        migrated.map(|()| database)
    }

    /// Does the same for writing texts. From then on, a transaction fails if the database has another key.
    pub(super) fn open_with_key(address: &Arc<StoreAddress>, key: Option<&StoreKey>) -> Result<Self, StoreError> {
        let mut database = Self::open(address)?;
        database.guard = Some(KeyGuard::new(key));
        Ok(database)
    }

    pub(super) fn address(&self) -> &Arc<StoreAddress> {
        &self.address
    }

    /// Reads with single statements. If the database has closed the connection meanwhile, it reads again on a new one.
    pub(super) fn read<T>(
        &mut self,
        mut work: impl FnMut(&mut Queries<'_, Client>) -> Result<T, postgres::Error>,
    ) -> Result<T, StoreError> {
        let mut is_second = false;
        loop {
            self.ensure_open()?;
            let Some(client) = self.client.as_mut() else {
                return Err(unusable(&self.address, "it is closed".to_owned()));
            };
            let mut queries = Queries { client, statements: &mut self.statements };
            match work(&mut queries) {
                Ok(done) => return Ok(done),
                Err(error) if is_of_connection(&error) && !is_second => {}
                Err(error) => return Err(unusable(&self.address, problem(&error))),
            }
            is_second = true;
            self.close();
        }
    }

    /// Reads with several statements, which all see the same rows.
    pub(super) fn snapshot<T>(
        &mut self,
        work: impl FnOnce(&mut Queries<'_, Transaction<'_>>) -> Result<T, postgres::Error>,
    ) -> Result<T, StoreError> {
        self.ensure_open()?;
        let address = Arc::clone(&self.address);
        let Some(client) = self.client.as_mut() else { return Err(unusable(&address, "it is closed".to_owned())) };
        let failed = |error: postgres::Error| unusable(&address, problem(&error));
        let moment = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).read_only(true);
        let mut moment = moment.start().map_err(failed)?;
        let mut queries = Queries { client: &mut moment, statements: &mut self.statements };
        work(&mut queries).map_err(failed)
    }

    /// Runs `work` in one transaction. Nothing is written if it fails.
    pub(super) fn write<T>(
        &mut self,
        work: impl FnOnce(&mut Queries<'_, Transaction<'_>>) -> Result<T, postgres::Error>,
    ) -> Result<T, StoreError> {
        self.transact(work).map_err(|error| match error {
            TransactionError::Store(error) => error,
            TransactionError::Query(error) => unusable(&self.address, problem(&error)),
        })
    }

    /// Runs `work` in one transaction, and returns errors of statements as they are.
    pub(super) fn transact<T>(
        &mut self,
        work: impl FnOnce(&mut Queries<'_, Transaction<'_>>) -> Result<T, postgres::Error>,
    ) -> Result<T, TransactionError> {
        let mut is_second = false;
        loop {
            self.ensure_open().map_err(TransactionError::Store)?;
            let Some(client) = self.client.as_mut() else {
                return Err(TransactionError::Store(unusable(&self.address, "it is closed".to_owned())));
            };
            match client.transaction() {
                Ok(mut transaction) => {
                    let mut queries = Queries { client: &mut transaction, statements: &mut self.statements };
                    if let Some(guard) = &self.guard {
                        guard.check(&self.address, &mut queries)?;
                    }
                    let done = work(&mut queries).map_err(TransactionError::Query)?;
                    transaction.commit().map_err(TransactionError::Query)?;
                    return Ok(done);
                }
                // The database has closed the connection meanwhile, and nothing was sent on it.
                Err(error) if is_of_connection(&error) && !is_second => {}
                Err(error) => return Err(TransactionError::Query(error)),
            }
            is_second = true;
            self.close();
        }
    }

    fn close(&mut self) {
        self.statements.clear();
        close(self.client.take());
    }

    /// Runs `work` in one transaction. Nothing is written if it fails. `work` gets the conversion of a statement's error.
    pub(super) fn transact_with<T>(
        &mut self,
        work: impl FnOnce(
            &mut Queries<'_, Transaction<'_>>,
            &dyn Fn(postgres::Error) -> StoreError,
        ) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.ensure_open()?;
        let address = Arc::clone(&self.address);
        let failed = |error: postgres::Error| unusable(&address, problem(&error));
        let Some(client) = self.client.as_mut() else { return Err(unusable(&address, "it is closed".to_owned())) };
        let mut transaction = client.transaction().map_err(failed)?;
        let mut queries = Queries { client: &mut transaction, statements: &mut self.statements };
        let done = work(&mut queries, &failed)?;
        transaction.commit().map_err(failed)?;
        Ok(done)
    }

    fn ensure_open(&mut self) -> Result<(), StoreError> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            self.close();
            self.client = Some(connect(&self.address)?);
        }
        Ok(())
    }
}

/// Why a transaction was not committed.
#[derive(Debug)]
pub(super) enum TransactionError {
    Store(StoreError),
    Query(postgres::Error),
}

/// Compares the key of a database again in each transaction.
#[derive(Debug)]
struct KeyGuard {
    key: Option<StoreKey>,
}

impl KeyGuard {
    fn new(key: Option<&StoreKey>) -> Self {
        Self { key: key.cloned() }
    }

    /// Fails if the database has another key. Until the transaction ends, no process can record one.
    fn check<C: GenericClient>(
        &self,
        address: &StoreAddress,
        queries: &mut Queries<'_, C>,
    ) -> Result<(), TransactionError> {
        queries.execute("LOCK TABLE store_key IN ROW SHARE MODE", &[]).map_err(TransactionError::Query)?;
        let recorded = queries.query_opt(key_check::FIND, &[]).map_err(TransactionError::Query)?;
        let recorded: Option<String> = recorded.map(|row| row.get(0));
        key_check::check_again(&address.to_string(), recorded.as_deref(), self.key.as_ref())
            .map_err(TransactionError::Store)
    }
}

/// Runs statements, each prepared once per connection.
pub(super) struct Queries<'a, C> {
    pub(super) client: &'a mut C,
    pub(super) statements: &'a mut HashMap<String, Statement>,
}

impl<C: GenericClient> Queries<'_, C> {
    pub(super) fn query(&mut self, sql: &str, values: Values<'_>) -> Result<Vec<Row>, postgres::Error> {
        let statement = self.prepare(sql)?;
        self.client.query(&statement, values)
    }

    pub(super) fn query_opt(&mut self, sql: &str, values: Values<'_>) -> Result<Option<Row>, postgres::Error> {
        let statement = self.prepare(sql)?;
        self.client.query_opt(&statement, values)
    }

    pub(super) fn query_one(&mut self, sql: &str, values: Values<'_>) -> Result<Row, postgres::Error> {
        let statement = self.prepare(sql)?;
        self.client.query_one(&statement, values)
    }

    /// Returns the number of rows that were written.
    pub(super) fn execute(&mut self, sql: &str, values: Values<'_>) -> Result<u64, postgres::Error> {
        let statement = self.prepare(sql)?;
        self.client.execute(&statement, values)
    }

    fn prepare(&mut self, sql: &str) -> Result<Statement, postgres::Error> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql)?;
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }
}

/// Connects on a separate thread, because the caller may run async tasks.
pub(super) fn connect(address: &StoreAddress) -> Result<Client, StoreError> {
    let unreachable = |problem: String| StoreError::Unreachable { address: address.to_string(), problem };
    let tls = tls_settings().map_err(|error| unreachable(format!("TLS cannot be set up: {error}")))?;
    let connect = || {
        let mut client = address.config().connect(MakeRustlsConnect::new(tls))?;
        // The planner overestimates searches in large stores, and compiling a search takes longer than running it.
        client.batch_execute("SET jit = off")?;
        Ok::<_, postgres::Error>(client)
    };
    let connected = std::thread::scope(|scope| scope.spawn(connect).join());
    let connected = connected.map_err(|_| unreachable("connecting to it broke off".to_owned()))?;
    connected.map_err(|error| unreachable(format!("{}{}", problem(&error), tls_hint(address, &error))))
}

/// Returns what to do if the database may be one without TLS. Then the error has no answer of the database, and no
/// cause of the system, such as a wrong certificate.
fn tls_hint(address: &StoreAddress, error: &postgres::Error) -> &'static str {
    let of_system = |cause: &(dyn std::error::Error + 'static)| cause.is::<std::io::Error>();
    let is_refusal = error.as_db_error().is_none() && error.source().is_some_and(|cause| !of_system(cause));
    match address.requires_tls() && is_refusal {
        true => "; Skein requires TLS here: turn it on in the database, or add ?sslmode=disable to the address",
        false => "",
    }
}

fn tls_settings() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(crate::network::tls_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_platform_verifier()?.with_no_client_auth())
}

/// Describes an error. The messages of the database and of the system contain no password.
pub(super) fn problem(error: &postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(answer), _) => answer.message().to_owned(),
        (None, Some(cause)) => format!("{error}: {cause}"),
        (None, None) => error.to_string(),
    }
}

pub(super) fn unusable(address: &StoreAddress, problem: String) -> StoreError {
    StoreError::Unusable { file: address.to_string(), problem }
}

/// Returns true if the connection broke, so that the outcome of a transaction may be unknown.
pub(super) fn is_of_connection(error: &postgres::Error) -> bool {
    // The class 08: connection exceptions. The class 57P: the server stops, starts, or ended the connection. 25P03: it
    // ended a transaction that was idle for too long, with its connection.
    let of_class = |code: &SqlState| ["08", "57P", "25P03"].iter().any(|class| code.code().starts_with(class));
    let is_io = || error.source().is_some_and(|cause| cause.is::<std::io::Error>());
    error.code().map_or_else(|| error.is_closed() || is_io(), of_class)
}

/// Returns true if the database ended a transaction because of others, such as a deadlock. Nothing is written, and the
/// same transaction may succeed.
pub(super) fn is_of_conflict(error: &postgres::Error) -> bool {
    // The class 40: transactions that were rolled back.
    error.code().is_some_and(|code| code.code().starts_with("40"))
}

/// Returns true for an error that would recur for this statement and does not concern others.
pub(super) fn is_of_data(error: &postgres::Error) -> bool {
    // The classes 22 and 23: data that a column cannot have, and constraints. 54: a value that is too large.
    let of_class = |code: &SqlState| ["22", "23", "54"].iter().any(|class| code.code().starts_with(class));
    error.code().is_some_and(of_class)
}

/// Brings the tables to the latest version, unless a newer program already brought them further.
fn migrate(client: &mut Client, address: &StoreAddress) -> Result<(), StoreError> {
    database_migrator::migrate(client, MIGRATIONS, PROGRAM).map_err(|error| migration_failure(address, error))
}

pub(super) fn migration_failure(address: &StoreAddress, error: MigrationError) -> StoreError {
    match error {
        MigrationError::Query(error) => unusable(address, problem(&error)),
        MigrationError::OldProgram { oldest } => {
            StoreError::OldProgram { address: address.to_string(), oldest, own: PROGRAM.to_owned() }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_host_without_tls_never_gets_a_password() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // Someone on the way to the database, who says that it has no TLS.
        let attacker = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 8]).unwrap();
            stream.write_all(b"N").unwrap();
            stream.read(&mut [0; 64]).unwrap()
        });
        let url = format!("postgres://ann:hush@db.example.com:{port}/skein?hostaddr=127.0.0.1");
        let Err(error) = connect(&url.parse().unwrap()) else { panic!("it is connected") };
        let error = error.to_string();
        assert!(error.contains("?sslmode=disable") && !error.contains("hush"), "{error}");
        assert_eq!(attacker.join().unwrap(), 0, "nothing follows the refusal");
    }
}
