//! Applies `store.retention` of the user's config, at the start of a server and every hour.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::folders::Folders;
use crate::diagnostic::has_errors;
use crate::manifest::{self, Layer, Root};
use crate::session::Sessions;
use crate::store::{RetentionPolicy, StorePlace};

/// The time between two clean-ups.
const INTERVAL: Duration = Duration::from_secs(60 * 60);

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

/// Applies the policy now and every hour, until `ended` is cancelled. Reads the config each time.
pub(super) async fn keep_applying(sessions: Sessions, place: StorePlace, folders: Folders, ended: CancellationToken) {
    loop {
        apply(&sessions, &place, &folders).await;
        tokio::select! {
            () = ended.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
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
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "old sessions were removed"),
        Err(error) => tracing::warn!(%error, "old sessions could not be removed"),
    }
}
