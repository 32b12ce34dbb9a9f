//! What a command says about an error of a store, and its exit code.

use super::output::{CommandError, display_line};
use crate::store::StoreError;

/// Returns the error of a command with its exit code and what to do.
pub(super) fn store_failure(error: &StoreError) -> CommandError {
    match error {
        StoreError::Ambiguous { .. } => {
            CommandError::usage(display_line(&error.to_string()), "`skein sessions list` shows whole ids")
        }
        StoreError::Address { .. } => CommandError::usage(
            display_line(&error.to_string()),
            "write it as postgres://USER@HOST:PORT/DATABASE, and `@` and `%` in a password as %40 and %25",
        ),
        StoreError::Unreachable { .. } => CommandError::usage(
            display_line(&error.to_string()),
            "check host, port, database, user and password in --store or SKEIN_STORE, and that the database runs",
        ),
        StoreError::NoNotifications { .. } => CommandError::usage(
            display_line(&error.to_string()),
            "add `store: {listen_url: \"postgres://USER@HOST:PORT/DATABASE\"}` to your config.yaml",
        ),
        StoreError::SharedFolder { .. } => CommandError::usage(
            display_line(&error.to_string()),
            "name a folder with --shared-dir that exists, that Skein can write, and that all replicas mount",
        ),
        StoreError::PasswordFile { .. } => {
            CommandError::usage(display_line(&error.to_string()), "make it readable by you only, with mode 600")
        }
        StoreError::KeyFormat | StoreError::KeyMissing { .. } | StoreError::WrongKey { .. } => CommandError::usage(
            display_line(&error.to_string()),
            "set SKEIN_STORE_KEY to the key with which the store was created",
        ),
        StoreError::NotEncrypted { .. } => CommandError::usage(
            display_line(&error.to_string()),
            "unset SKEIN_STORE_KEY, or copy the store with `skein store migrate`, which encrypts it",
        ),
        StoreError::SearchOff => CommandError::usage(error.to_string(), "use `skein sessions list` and `show`"),
        StoreError::Record { .. } => CommandError::work(
            display_line(&error.to_string()),
            "export the store again, or bring back a copy of the file",
        ),
        StoreError::ExportUnreadable { .. } => {
            CommandError::usage(display_line(&error.to_string()), "name a file that `skein store export` wrote")
        }
        StoreError::Occupied { .. } => {
            CommandError::usage(display_line(&error.to_string()), "name an empty database or another folder")
        }
        StoreError::Different { .. } => CommandError::work(
            display_line(&error.to_string()),
            "stop everything that writes to the stores, and try again",
        ),
        StoreError::SessionsOpen { .. } => CommandError::work(
            display_line(&error.to_string()),
            "wait until they are closed for an hour, or pass --force to end them",
        ),
        StoreError::OldProgram { .. } => {
            CommandError::work(display_line(&error.to_string()), "update this Skein, or use another database")
        }
        StoreError::Unusable { file, .. } if is_database(file) => CommandError::work(
            display_line(&error.to_string()),
            "check that the database accepts writes, such as no standby, and the rights of its user on the tables",
        ),
        _ => CommandError::work(
            display_line(&error.to_string()),
            "sessions are in the folder that SKEIN_DATA_DIR or XDG_DATA_HOME names",
        ),
    }
}

/// Returns whether an error names the address of a database, and no file.
fn is_database(store: &str) -> bool {
    store.starts_with("postgres://") || store.starts_with("postgresql://")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_for_a_database_names_no_folder() {
        let help = |store: &str| {
            let problem = "cannot execute INSERT in a read-only transaction".to_owned();
            format!("{:?}", store_failure(&StoreError::Unusable { file: store.to_owned(), problem }))
        };
        for address in ["postgres://ann@db/skein", "postgresql://ann@db/skein"] {
            let help = help(address);
            assert!(help.contains("accepts writes") && !help.contains("SKEIN_DATA_DIR"), "{help}");
        }
        assert!(help("/data/sessions.db").contains("SKEIN_DATA_DIR"));
    }
}
