//! The flag `--store` and the variable `SKEIN_STORE`: the database that servers share instead of files.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::environment;
use super::folders::Folders;
use super::output::{CommandError, CommandOutput};
use super::store_failure::store_failure;
use crate::store::{StoreAddress, StorePlace};

/// The variable that names a store if there is no flag. It may have a password.
const VARIABLE: &str = "SKEIN_STORE";

#[derive(Debug, Clone, Default, Args)]
pub(super) struct StoreFlag {
    /// Use this PostgreSQL database instead of the data folder
    ///
    /// As postgres://USER@HOST:PORT/DATABASE. The default is SKEIN_STORE, or else files in the data folder. A password
    /// belongs in SKEIN_STORE or in the file that PGPASSFILE names, because others can see the command line.
    #[arg(long, value_name = "URL", global = true)]
    store: Option<String>,
}

impl StoreFlag {
    /// Returns the place of the store. Notes a password on the command line. Fails if the address or the password file
    /// cannot be used.
    pub(super) fn place(&self, folders: &Folders, output: &mut CommandOutput) -> Result<StorePlace, CommandError> {
        match (&self.store, environment::variable(VARIABLE)) {
            (Some(text), _) => database_on_command_line("--store", text, folders, output),
            (None, Some(text)) => database(parse_address(&text)?, folders),
            (None, None) => Ok(folders.store.clone()),
        }
    }
}

/// Returns the place of a database that a flag names. Notes a password, which others can see.
pub(super) fn database_on_command_line(
    flag: &str,
    text: &str,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<StorePlace, CommandError> {
    let address = parse_address(text)?;
    if address.has_password() {
        output.note(&format!(
            "others on this machine can see the password in {flag}; \
             write it to SKEIN_STORE or to the file that PGPASSFILE names"
        ));
    }
    database(address, folders)
}

/// Reads an address, with the password of the user's password file. Fails if either cannot be used.
pub(super) fn read_address(text: &str, folders: &Folders) -> Result<StoreAddress, CommandError> {
    with_password(parse_address(text)?, folders)
}

fn parse_address(text: &str) -> Result<StoreAddress, CommandError> {
    text.parse::<StoreAddress>().map_err(|error| store_failure(&error))
}

fn database(address: StoreAddress, folders: &Folders) -> Result<StorePlace, CommandError> {
    Ok(folders.store.clone().with_database(Arc::new(with_password(address, folders)?)))
}

fn with_password(address: StoreAddress, folders: &Folders) -> Result<StoreAddress, CommandError> {
    let file = environment::variable("PGPASSFILE").map_or_else(|| folders.home.join(".pgpass"), PathBuf::from);
    address.with_password_file(&file).map_err(|error| store_failure(&error))
}
