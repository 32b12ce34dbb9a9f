//! Shows a user of an older Skein once what has changed, and how to keep the old behaviour.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::folders::Folders;

/// The changes of this version that a user notices without looking for them.
pub(super) const CHANGES: [&str; 5] = [
    "This version of Skein behaves differently:",
    "With a model, sessions start in `orchestrator/auto`. Keep the old mode with `-a goose/assistant` or a profile.",
    "`fetch` asks before it reads from a host. Allow hosts with `--allow 'host: example.com'` or `permissions`.",
    "Over ACP, permission options have the ids allow_once, allow_always, reject_once and reject_always.",
    "\"Always\" in an editor means this session. `skein permissions` shows saved rules; docs/CHANGELOG.md has the rest.",
];

/// The file in the data folder that records whether the user has seen the changes.
const MARKER: &str = "changes-0.2";
const NEW_USER: &str = "new user\n";
const TOLD: &str = "told\n";

/// Who reads what a command prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    User,
    /// Gets no text that it did not ask for; the user sees the changes later.
    Script,
}

/// Records that a user has no older Skein, if nothing is stored yet. Call it before a command can create the session
/// store, because a store without this record is that of an older Skein.
pub(super) fn record_new_user(folders: &Folders) {
    if !folders.data.join(MARKER).exists() && !has_older_data(&folders.data) {
        record(folders, NEW_USER);
    }
}

/// Returns the changes if an older Skein was used here and its user has not seen them yet. Later calls return `None`.
pub(super) fn changes_once(folders: &Folders, reader: Reader) -> Option<String> {
    let is_told = folders.data.join(MARKER).exists();
    if is_told || reader == Reader::Script || !has_older_data(&folders.data) {
        return None;
    }
    // Without the record, the changes would be shown at every start.
    record(folders, TOLD).then(|| CHANGES.join("\n"))
}

/// Writes the record. Returns false if that failed; the log has the reason.
fn record(folders: &Folders, text: &str) -> bool {
    let write = || {
        super::private_files::make_folder(&folders.data)?;
        let mut options = std::fs::OpenOptions::new();
        let marker = folders.data.join(MARKER);
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(marker)?;
        file.write_all(text.as_bytes())
    };
    let written: std::io::Result<()> = write();
    if let Err(error) = &written {
        tracing::warn!(%error, "it cannot be recorded whether the user knows the changes of this version");
    }
    written.is_ok()
}

/// Returns true if the user had an older Skein, whether the changes were shown or not.
pub(super) fn is_upgraded(folders: &Folders) -> bool {
    match std::fs::read_to_string(folders.data.join(MARKER)) {
        Ok(marker) => marker == TOLD,
        Err(_) => has_older_data(&folders.data),
    }
}

fn has_older_data(data: &Path) -> bool {
    data.join("sessions.db").exists()
}
