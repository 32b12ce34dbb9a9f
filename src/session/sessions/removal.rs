//! Deletes sessions with their files.
//!
//! Invariant: a folder is deleted with a session only if no other stored session works in it, such as a fork.

use std::path::{Path, PathBuf};

use super::{SessionError, Sessions, is_inside};
use crate::checkpoint::SessionHold;
use crate::principal::{Principal, SessionFiles};
use crate::session::checkpoints::run_blocking;
use crate::store::{self, ListFilter, OpenSessionPolicy, RemovedPrincipal, RetentionPolicy, StoreError, StorePlace};

impl Sessions {
    /// Keeps turns and restores away from a session that is to be deleted. Fails if one runs, in any process. `None` if
    /// sessions have no checkpoints.
    pub async fn hold_for_deletion(&self, id: &str) -> Result<Option<SessionHold>, SessionError> {
        let Some(store) = self.checkpoint_store() else { return Ok(None) };
        let session = id.to_owned();
        Ok(Some(run_blocking(move || store.hold_alone(&session)).await?))
    }

    /// Deletes a session, its child sessions, their scratch folders and checkpoints. Returns false if there was no such session.
    pub async fn delete(&self, id: &str) -> Result<bool, SessionError> {
        let children = ListFilter { parent: Some(id.to_owned()), ..ListFilter::default() };
        for child in self.store.list(children).await? {
            self.delete_one(&child.id).await?;
        }
        self.delete_one(id).await
    }

    async fn delete_one(&self, id: &str) -> Result<bool, SessionError> {
        let stored = self.store.find(id).await?;
        let deleted = self.store.delete(id).await?;
        // A child session shares the folder of its parent.
        let own = stored.filter(|stored| stored.files == SessionFiles::Own && stored.parent.is_none());
        if deleted {
            self.remove_files(id, own.map(|stored| stored.cwd)).await;
        }
        Ok(deleted)
    }

    /// Removes the sessions of all principals in `place` that the policy does not keep, and their files on this machine.
    /// Returns their number, child sessions included. A session that is open in any process stays.
    pub async fn remove_expired(&self, place: &StorePlace, policy: RetentionPolicy) -> Result<usize, SessionError> {
        let mut count = 0;
        loop {
            let (store, name) = (place.clone(), place.to_string());
            let removed = tokio::task::spawn_blocking(move || store::remove_expired(&store, policy)).await;
            let broken =
                |error: tokio::task::JoinError| StoreError::Unusable { file: name, problem: error.to_string() };
            let removed = removed.map_err(broken)??;
            if removed.is_empty() {
                return Ok(count);
            }
            // Their files go before the next sessions, because an error would leave them behind for ever.
            for session in &removed {
                let own = session.files == SessionFiles::Own && !session.is_child;
                self.remove_files(&session.id, own.then(|| session.cwd.clone())).await;
            }
            count += removed.len();
        }
    }

    /// Removes everything that the store has of a principal, and the files of its sessions on this machine. Fails if a
    /// session is open and the policy refuses that; then nothing is removed.
    pub async fn remove_principal(
        &self,
        place: &StorePlace,
        principal: &Principal,
        policy: OpenSessionPolicy,
    ) -> Result<RemovedPrincipal, SessionError> {
        let (store, owner, name) = (place.clone(), principal.clone(), place.to_string());
        let removed = tokio::task::spawn_blocking(move || store::remove_principal(&store, &owner, policy)).await;
        let broken = |error: tokio::task::JoinError| StoreError::Unusable { file: name, problem: error.to_string() };
        let removed = removed.map_err(broken)??;
        for session in &removed.sessions {
            let own = session.files == SessionFiles::Own && !session.is_child;
            self.remove_files(&session.id, own.then(|| session.cwd.clone())).await;
        }
        Ok(removed)
    }

    /// Removes the scratch folder and the checkpoints of a deleted session, and the folder that it had for itself.
    async fn remove_files(&self, id: &str, own_folder: Option<PathBuf>) {
        // A fork of a task's session names the worktree of the task, which may still work there.
        let own_folder = own_folder.filter(|folder| is_inside(folder, &self.options.scratch));
        let in_use = match &own_folder {
            Some(folder) => self.is_in_use(folder).await,
            None => false,
        };
        let folders = [Some(self.scratch(id)), own_folder.filter(|_| !in_use)];
        for folder in folders.into_iter().flatten().filter(|folder| folder.exists()) {
            drop(tokio::fs::remove_dir_all(&folder).await.inspect_err(|error| {
                tracing::warn!(folder = %folder.display(), %error, "files of a session are left behind");
            }));
        }
        if let Some(store) = self.checkpoint_store() {
            let session = id.to_owned();
            if let Err(error) = run_blocking(move || store.delete(&session)).await {
                tracing::warn!(session = id, %error, "checkpoints are left behind");
            }
        }
    }

    /// Returns whether a stored session works in a folder, or whether this is not known.
    async fn is_in_use(&self, folder: &Path) -> bool {
        match self.store.has_folder(folder).await {
            Ok(in_use) => in_use,
            Err(error) => {
                tracing::warn!(folder = %folder.display(), %error, "the folder of a session is left behind");
                true
            }
        }
    }
}
