//! Finds the programs that git configs name, so that git starts without them.
//!
//! Invariant: filters, merge drivers and hooks of the user's configs are off. A repository is refused if its own config
//! names hooks or reads other files, because these can change between this check and a command.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use super::WorktreeError;
use super::git::{GitCommand, GitRunner};

/// Git prints names with a NUL after each.
const NUL: u8 = 0;
/// The keys that name a program, or a file with further keys.
const KEYS: &str = r"^((filter|merge|hook)\..*\.|include\.|includeif\.)";
/// The scopes of settings that belong to a repository.
const OWN_SCOPES: [&[u8]; 2] = [b"local", b"worktree"];
/// Prefixes of keys that a config of a repository must not have.
const REFUSED: [&[u8]; 3] = [b"hook.", b"include.", b"includeif."];

/// Returns settings that turn off every program that the configs name now. `list` makes a command for the repository.
/// `configs` are the files with its settings. Fails if they read other files or name hooks.
pub(super) async fn settings_without_programs(
    runner: &GitRunner,
    list: impl FnOnce([&'static str; 6]) -> GitCommand + Send,
    configs: [PathBuf; 2],
) -> Result<Vec<(OsString, OsString)>, WorktreeError> {
    for config in configs {
        // A link may lead to a file that a task can write.
        if config.symlink_metadata().is_ok_and(|data| !data.is_file()) {
            return Err(refusal(&config, "it is not a plain file"));
        }
    }
    let output = runner.run(list(["config", "--null", "--show-scope", "--name-only", "--get-regexp", KEYS])).await?;
    // 1: no such key.
    if !matches!(output.code, Some(0 | 1)) {
        return Err(output.failure("config").into());
    }
    read_settings(&output.stdout)
}

fn refusal(path: &Path, reason: &str) -> WorktreeError {
    WorktreeError::folder(path, std::io::Error::other(reason))
}

/// Reads `SCOPE<NUL>KEY<NUL>`, repeated. Fails if there is a key that a repository must not have.
fn read_settings(listed: &[u8]) -> Result<Vec<(OsString, OsString)>, WorktreeError> {
    let fields: Vec<&[u8]> = listed.split(|byte| *byte == NUL).collect();
    let mut sections: BTreeSet<&[u8]> = BTreeSet::new();
    for pair in fields.chunks_exact(2) {
        let (scope, key) = (pair[0], pair[1]);
        let is_refused = REFUSED.iter().any(|prefix| key.starts_with(prefix));
        if is_refused && OWN_SCOPES.contains(&scope) {
            return Err(WorktreeError::RefusedKey { key: String::from_utf8_lossy(key).into_owned() });
        }
        sections.extend(key.iter().rposition(|byte| *byte == b'.').map(|end| &key[..end]));
    }
    let mut settings = Vec::new();
    for section in sections {
        let keys: &[(&str, &str)] = if section.starts_with(b"filter.") {
            &[("clean", ""), ("smudge", ""), ("process", ""), ("required", "false")]
        } else if section.starts_with(b"merge.") {
            // A file that needs a driver then has a conflict.
            &[("driver", "false")]
        } else if section.starts_with(b"hook.") {
            &[("enabled", "false")]
        } else {
            &[]
        };
        for (key, value) in keys {
            let name = [section, b".", key.as_bytes()].concat();
            settings.push((OsString::from_vec(name), OsString::from(value)));
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(listed: &str) -> Result<Vec<String>, WorktreeError> {
        let settings = read_settings(listed.replace('|', "\0").as_bytes())?;
        Ok(settings
            .iter()
            .map(|(key, value)| format!("{}={}", key.to_string_lossy(), value.to_string_lossy()))
            .collect())
    }

    #[test]
    fn every_named_program_is_turned_off() {
        let found = read("local|filter.a.b.clean|global|merge.m.driver|global|hook.h.command|").unwrap();
        let filter = ["filter.a.b.clean=", "filter.a.b.smudge=", "filter.a.b.process=", "filter.a.b.required=false"];
        assert_eq!(found, [&filter[..], &["hook.h.enabled=false", "merge.m.driver=false"]].concat());
        assert_eq!(read("").unwrap(), [""; 0]);
    }

    #[test]
    fn hooks_and_includes_of_a_repository_are_refused() {
        for key in ["hook.x.command", "include.path", "includeif.gitdir:**.path"] {
            for scope in ["local", "worktree"] {
                let refused = read(&format!("global|include.path|{scope}|{key}|"));
                assert!(
                    matches!(&refused, Err(WorktreeError::RefusedKey { key: named }) if named == key),
                    "{refused:?}"
                );
            }
            assert!(read(&format!("global|{key}|")).is_ok(), "{key} of the user");
        }
    }
}
