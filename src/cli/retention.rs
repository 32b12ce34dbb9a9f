//! Applies `store.retention` of the user's config, at the start of a server and every hour.

use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

use super::folders::Folders;
use super::output::{CommandError, CommandOutput, display_line};
use super::runtime::session_failure;
use crate::clock;
use crate::diagnostic::has_errors;
use crate::manifest::{self, Layer, Root};
use crate::session::Sessions;
use crate::store::{RetentionPolicy, StorePlace};

/// The time between two clean-ups.
const INTERVAL: Duration = Duration::from_secs(60 * 60);
/// How far the clock may move by itself between two clean-ups.
const MAX_JUMP: Duration = Duration::from_secs(60 * 60);

/// The user's config has errors, so it is not known which sessions to keep.
#[derive(Debug, thiserror::Error)]
#[error("the config in {} has errors", .folder.display())]
pub(super) struct RetentionConfigError {
    folder: std::path::PathBuf,
}

/// Reads the policy from the user's config. Without the setting, everything is kept.
pub(super) fn policy(folders: &Folders) -> Result<RetentionPolicy, RetentionConfigError> {
    let root = Root::Disk { path: folders.config.clone(), shown: String::new() };
    let (manifests, found) = manifest::load(&[(Layer::User, root)]);
    if has_errors(&found) {
        return Err(RetentionConfigError { folder: folders.config.clone() });
    }
    let settings = manifests.configs.iter().filter_map(|entry| entry.config.store.as_ref()?.retention).next_back();
    let settings = settings.unwrap_or_default();
    let age = settings.days.map(|days| Duration::from_secs(u64::from(days) * 24 * 60 * 60));
    Ok(RetentionPolicy { age, count: settings.sessions })
}

/// Notices when someone sets the clock, by a time that only grows.
#[derive(Debug)]
struct ClockWatch {
    wall: SystemTime,
    steady: Duration,
}

impl ClockWatch {
    /// Returns how far the clock was moved since the last call, if that is more than it may be.
    fn take_jump(&mut self, wall: SystemTime, steady: Duration) -> Option<Duration> {
        let expected = self.wall + steady.saturating_sub(self.steady);
        let moved = wall.duration_since(expected).unwrap_or_else(|error| error.duration());
        *self = Self { wall, steady };
        Some(moved).filter(|moved| *moved > MAX_JUMP)
    }
}

/// Applies the policy now and every hour, until `ended` is cancelled. Reads the config each time. Leaves one time out
/// after the clock has jumped: it may be wrong, and what it says about the age of sessions too.
pub(super) async fn keep_applying(sessions: Sessions, place: StorePlace, folders: Folders, ended: CancellationToken) {
    match sessions.finish_removals(&place).await {
        Ok((0, _)) => {}
        Ok((count, _)) => tracing::info!(count, "files of sessions were removed that an earlier removal had left"),
        Err(error) => tracing::warn!(%error, "files of removed sessions could not be removed"),
    }
    let mut watch = ClockWatch { wall: SystemTime::now(), steady: clock::since_boot() };
    loop {
        match watch.take_jump(SystemTime::now(), clock::since_boot()) {
            Some(moved) => {
                let seconds = moved.as_secs();
                tracing::warn!(seconds, "the clock has jumped, so no old sessions are removed now; check it");
            }
            None => apply(&sessions, &place, &folders).await,
        }
        tokio::select! {
            () = ended.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

/// Removes the files that earlier removals of sessions left. Returns those that are still left, with the reasons.
pub(super) fn finish_removals(
    tokio: &tokio::runtime::Runtime,
    sessions: &Sessions,
    place: &StorePlace,
    output: &mut CommandOutput,
) -> Result<Vec<String>, CommandError> {
    let (count, left) = tokio.block_on(sessions.finish_removals(place)).map_err(|error| session_failure(&error))?;
    if count > 0 {
        output.note(&format!("removed the files of {count} sessions, which an earlier removal had left"));
    }
    Ok(left)
}

/// Fails if files of removed sessions are left.
pub(super) fn check_left(left: &[String]) -> Result<(), CommandError> {
    let [first, ..] = left else { return Ok(()) };
    let problem = format!("{} files or folders of sessions are left, such as {first}", left.len());
    let help = "correct their rights and run `skein store prune`, or remove them yourself";
    Err(CommandError::work(display_line(&problem), help))
}

async fn apply(sessions: &Sessions, place: &StorePlace, folders: &Folders) {
    let policy = match policy(folders) {
        Ok(policy) => policy,
        Err(error) => {
            tracing::warn!(%error, "no old sessions are removed");
            return;
        }
    };
    match sessions.remove_expired(place, policy).await {
        // The log has each file that is left. The next start tries again to remove it.
        Ok((0, _)) => {}
        Ok((count, _)) => tracing::info!(count, "old sessions were removed"),
        Err(error) => tracing::warn!(%error, "old sessions could not be removed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_of_the_clock_is_noticed_once() {
        let (wall, steady) = (SystemTime::now(), clock::since_boot());
        let mut watch = ClockWatch { wall, steady };
        let day = Duration::from_secs(24 * 60 * 60);
        assert_eq!(watch.take_jump(wall + INTERVAL, steady + INTERVAL), None, "an hour has passed");
        assert_eq!(watch.take_jump(wall + INTERVAL * 2 + day, steady + INTERVAL * 2), Some(day));
        assert_eq!(watch.take_jump(wall + INTERVAL * 3 + day, steady + INTERVAL * 3), None, "the clock stays as it is");
        assert_eq!(watch.take_jump(wall + INTERVAL * 4, steady + INTERVAL * 4), Some(day), "it was set back");
    }
}
