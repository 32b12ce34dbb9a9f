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

/// Returns the changes if an older Skein was used here and its user has not seen them yet. Later calls return `None`. Call it
/// before the session store is opened, because a store shows that Skein was used.
pub(super) fn changes_once(folders: &Folders, reader: Reader) -> Option<String> {
    let marker = folders.data.join(MARKER);
    if marker.exists() {
        return None;
    }
    let upgraded = has_older_data(&folders.data);
    if upgraded && reader == Reader::Script {
        return None;
    }
    let record = || {
        super::private_files::make_folder(&folders.data)?;
        let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&marker)?;
        file.write_all(if upgraded { TOLD } else { NEW_USER }.as_bytes())
    };
    let written: std::io::Result<()> = record();
    if let Err(error) = written {
        tracing::warn!(%error, "it cannot be recorded that the changes of this version were shown");
        // Without the record, the changes would be shown at every start.
        return None;
    }
    upgraded.then(|| CHANGES.join("\n"))
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
