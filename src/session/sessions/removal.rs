//! Deletes sessions with their files.
//!
//! Invariant: a folder is deleted with a session only if no other stored session works in it, such as a fork. Files stay
//! until their session has left the store, and a record names them from before that.

use std::path::{Path, PathBuf};

use super::removal_record::{LeftSession, RemovalRecord};
use super::{SessionError, Sessions, is_inside};
use crate::checkpoint::SessionHold;
use crate::principal::{Principal, SessionFiles};
use crate::session::checkpoints::run_blocking;
use crate::store::{
    self, ListFilter, OpenSessionPolicy, RemovedPrincipal, RemovedSession, RetentionPolicy, StoreError, StorePlace,
};

impl Sessions {
    /// Keeps turns and restores away from a session that is to be deleted. Fails if one runs, in any process. `None` if
    /// sessions have no checkpoints.
    pub async fn hold_for_deletion(&self, id: &str) -> Result<Option<SessionHold>, SessionError> {
        let Some(store) = self.checkpoint_store() else { return Ok(None) };
        let session = id.to_owned();
        Ok(Some(run_blocking(move || store.hold_alone(&session)).await?))
    }

    /// Deletes a session, its child sessions, their scratch folders and checkpoints. Returns the files that are left, with
    /// the reasons, or `None` if there was no such session.
    pub async fn delete(&self, id: &str) -> Result<Option<Vec<String>>, SessionError> {
        let children = ListFilter { parent: Some(id.to_owned()), ..ListFilter::default() };
        let mut left = Vec::new();
        for child in self.store.list(children).await? {
            left.extend(self.delete_one(&child.id).await?.unwrap_or_default());
        }
        let own = self.delete_one(id).await?;
        Ok(own.map(|own| {
            left.extend(own);
            left
        }))
    }

    async fn delete_one(&self, id: &str) -> Result<Option<Vec<String>>, SessionError> {
        let stored = self.store.find(id).await?;
        let is_stored = stored.is_some();
        // A child session shares the folder of its parent.
        let own = stored.filter(|stored| stored.files == SessionFiles::Own && stored.parent.is_none());
        let deleted = [LeftSession { id: id.to_owned(), own_folder: own.map(|stored| stored.cwd) }];
        let record = if is_stored { self.note(&deleted).await? } else { None };
        let Some(children) = self.store.delete_family(id).await? else {
            record.into_iter().for_each(RemovalRecord::finish);
            return Ok(None);
        };
        let mut left = self.remove_left(record, &deleted).await;
        // A turn in another process may have created them since the caller looked for them.
        if !children.is_empty() {
            let deleted: Vec<_> = children.into_iter().map(|id| LeftSession { id, own_folder: None }).collect();
            let record = self.note(&deleted).await?;
            left.extend(self.remove_left(record, &deleted).await);
        }
        Ok(Some(left))
    }

    /// Records sessions whose files are to be removed.
    async fn note(&self, left: &[LeftSession]) -> Result<Option<RemovalRecord>, SessionError> {
        let (folder, name, noted) = (self.removals(), self.store.name().to_owned(), left.to_vec());
        self.run_on_store(move || Ok(RemovalRecord::note(&folder, &name, &noted))).await
    }

    /// Removes the sessions of all principals in `place` that the policy does not keep, and their files on this machine.
    /// Returns their number, child sessions included, and the files that are left, with the reasons. A session that is
    /// open in any process stays.
    pub async fn remove_expired(
        &self,
        place: &StorePlace,
        policy: RetentionPolicy,
    ) -> Result<(usize, Vec<String>), SessionError> {
        let (mut count, mut left) = (0, Vec::new());
        loop {
            let (store, note) = (place.clone(), self.recorder());
            let removed = self.run_on_store(move || {
                let mut record = None;
                let removed = store::remove_expired(&store, policy, &mut |removed| record = note(removed))?;
                Ok((removed, record))
            });
            let (removed, record) = removed.await?;
            if removed.is_empty() {
                return Ok((count, left));
            }
            // Their files go before the next sessions, so that an error leaves few of them behind.
            left.extend(self.remove_left(record, &removed.iter().map(LeftSession::from).collect::<Vec<_>>()).await);
            count += removed.len();
        }
    }

    /// Removes everything that the store has of a principal, and the files of its sessions on this machine. Fails if a
    /// session is open and the policy refuses that; then nothing is removed. Also returns the files that are left, with
    /// the reasons.
    pub async fn remove_principal(
        &self,
        place: &StorePlace,
        principal: &Principal,
        policy: OpenSessionPolicy,
    ) -> Result<(RemovedPrincipal, Vec<String>), SessionError> {
        let (store, owner, note) = (place.clone(), principal.clone(), self.recorder());
        let removed = self.run_on_store(move || {
            let mut record = None;
            let removed = store::remove_principal(&store, &owner, policy, &mut |removed| record = note(removed))?;
            Ok((removed, record))
        });
        let (removed, record) = removed.await?;
        let left = self.remove_left(record, &removed.sessions.iter().map(LeftSession::from).collect::<Vec<_>>()).await;
        Ok((removed, left))
    }

    /// Removes the files of sessions that left the store `place` before their files could go. Returns the number of
    /// sessions without files now, and the files that are left, with the reasons.
    pub async fn finish_removals(&self, place: &StorePlace) -> Result<(usize, Vec<String>), SessionError> {
        let (folder, name, store) = (self.removals(), self.store.name().to_owned(), place.clone());
        let found = self.run_on_store(move || {
            let unreadable = |error: std::io::Error| StoreError::Unusable {
                file: folder.display().to_string(),
                problem: error.to_string(),
            };
            let mut found = Vec::new();
            for (record, mut sessions) in RemovalRecord::find_interrupted(&folder, &name).map_err(unreadable)? {
                let ids: Vec<_> = sessions.iter().map(|session| session.id.clone()).collect();
                // The process may have been killed before they left the store.
                let stored = store::find_stored(&store, &ids)?;
                sessions.retain(|session| !stored.contains(&session.id));
                found.push((record, sessions));
            }
            Ok(found)
        });
        let (mut count, mut left) = (0, Vec::new());
        for (record, sessions) in found.await? {
            let files = self.remove_left(Some(record), &sessions).await;
            if files.is_empty() {
                count += sessions.len();
            }
            left.extend(files);
        }
        Ok((count, left))
    }

    /// Returns what records sessions before they leave the store.
    fn recorder(&self) -> impl Fn(&[RemovedSession]) -> Option<RemovalRecord> + Send + use<> {
        let (folder, name) = (self.removals(), self.store.name().to_owned());
        move |removed| {
            let left: Vec<_> = removed.iter().map(LeftSession::from).collect();
            RemovalRecord::note(&folder, &name, &left)
        }
    }

    /// Returns the folder of the records, next to the checkpoints.
    fn removals(&self) -> PathBuf {
        self.options.checkpoints.as_ref().unwrap_or(&self.options.scratch).with_file_name("removals")
    }

    /// Runs work that waits for the store, outside the async threads.
    async fn run_on_store<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, SessionError> {
        let done = crate::task::run_blocking(work).await;
        let broken = |error: tokio::task::JoinError| StoreError::Unusable {
            file: self.store.name().to_owned(),
            problem: error.to_string(),
        };
        Ok(done.map_err(broken)??)
    }

    /// Removes the files of sessions that left the store, and the record of them. Returns what is left, with the
    /// reasons; then the record stays too, and the next start tries it again.
    async fn remove_left(&self, record: Option<RemovalRecord>, sessions: &[LeftSession]) -> Vec<String> {
        let mut left = Vec::new();
        for session in sessions {
            left.extend(self.remove_files(&session.id, session.own_folder.clone()).await);
        }
        if let Some(record) = record.filter(|_| left.is_empty()) {
            record.finish();
        }
        left
    }

    /// Removes the scratch folder and the checkpoints of a deleted session, and the folder that it had for itself.
    /// Returns what is left, with the reasons.
    async fn remove_files(&self, id: &str, own_folder: Option<PathBuf>) -> Vec<String> {
        // A fork of a task's session names the worktree of the task, which may still work there.
        let own_folder = own_folder.filter(|folder| is_inside(folder, &self.options.scratch));
        let in_use = match &own_folder {
            Some(folder) => self.is_in_use(folder).await,
            None => false,
        };
        let mut left = Vec::new();
        let folders = [Some(self.scratch(id)), own_folder.filter(|_| !in_use)];
        for folder in folders.into_iter().flatten().filter(|folder| folder.exists()) {
            if let Err(error) = tokio::fs::remove_dir_all(&folder).await {
                tracing::warn!(folder = %folder.display(), %error, "files of a session are left behind");
                left.push(format!("{}: {error}", folder.display()));
            }
        }
        if let Some(store) = self.checkpoint_store() {
            let session = id.to_owned();
            if let Err(error) = run_blocking(move || store.delete(&session)).await {
                tracing::warn!(session = id, %error, "checkpoints are left behind");
                left.push(error.to_string());
            }
        }
        left
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

#[cfg(test)]
mod tests {
    use super::super::SessionOptions;
    use super::*;
    use crate::agents::TurnLimits;
    use crate::sandbox::HiddenPaths;
    use crate::store::{NewEvent, NewSession};

    struct Machine {
        folder: tempfile::TempDir,
        place: StorePlace,
        sessions: Sessions,
    }

    impl Machine {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let place = StorePlace::files(folder.path().join("data"));
            let options = SessionOptions {
                limits: TurnLimits::default(),
                scratch: folder.path().join("state/scratch"),
                hidden: HiddenPaths::default(),
                os: "linux",
                checkpoints: Some(folder.path().join("data/checkpoints")),
                attention: None,
            };
            Self { sessions: Sessions::new(place.sessions().unwrap(), options), folder, place }
        }

        /// Makes the files of a session.
        fn add_files(&self, id: &str) -> [PathBuf; 2] {
            let folders = [format!("state/scratch/{id}"), format!("data/checkpoints/sessions/{id}")];
            let folders = folders.map(|folder| self.folder.path().join(folder));
            for folder in &folders {
                std::fs::create_dir_all(folder).unwrap();
                std::fs::write(folder.join("note.txt"), "text").unwrap();
            }
            folders
        }

        async fn add_session(&self) -> String {
            self.add_child(None).await
        }

        async fn add_child(&self, parent: Option<String>) -> String {
            let new = NewSession {
                cwd: "/here".into(),
                roots: Vec::new(),
                agent: "goose".to_owned(),
                mode: "assistant".to_owned(),
                model: "offline".to_owned(),
                approval: None,
                parent,
                files: SessionFiles::Server,
            };
            let id = self.sessions.store.create(new).await.unwrap();
            let event = NewEvent { kind: "message".into(), body: "{}".to_owned(), text: None };
            self.sessions.store.append(&id, event);
            self.sessions.store.flush(&id).await.unwrap();
            id
        }

        fn records(&self) -> usize {
            std::fs::read_dir(self.folder.path().join("data/removals")).map_or(0, Iterator::count)
        }
    }

    #[tokio::test]
    async fn files_of_a_killed_removal_go_with_the_next_start() {
        let machine = Machine::new();
        let stored = machine.add_session().await;
        let (gone, kept, unnamed) =
            (machine.add_files("gone"), machine.add_files(&stored), machine.add_files("of-another-store"));
        // The process was killed after one of two sessions had left the store.
        let left = ["gone", stored.as_str()].map(|id| LeftSession { id: id.to_owned(), own_folder: None });
        let name = machine.sessions.store.name().to_owned();
        drop(RemovalRecord::note(&machine.sessions.removals(), &name, &left).expect("a record"));
        assert_eq!(machine.sessions.finish_removals(&machine.place).await.unwrap(), (1, Vec::new()));
        assert!(gone.iter().all(|folder| !folder.exists()));
        assert!(kept.iter().chain(&unnamed).all(|folder| folder.exists()));
        assert_eq!(machine.records(), 0);
    }

    #[tokio::test]
    async fn a_removal_that_leaves_files_keeps_its_record() {
        let machine = Machine::new();
        let id = machine.add_session().await;
        // A file where the folder of checkpoints should be cannot be removed as a folder.
        let folders = machine.add_files(&id);
        std::fs::remove_dir_all(&folders[1]).unwrap();
        std::fs::write(&folders[1], "no folder").unwrap();
        let left = machine.sessions.delete(&id).await.unwrap().unwrap();
        assert!(!folders[0].exists() && folders[1].exists());
        assert_eq!(left.len(), 1, "{left:?}");
        let (count, left) = machine.sessions.finish_removals(&machine.place).await.unwrap();
        assert_eq!((count, left.len()), (0, 1), "{left:?}");
        assert_eq!(machine.records(), 1);
        std::fs::remove_file(&folders[1]).unwrap();
        assert_eq!(machine.sessions.finish_removals(&machine.place).await.unwrap(), (1, Vec::new()));
        assert_eq!(machine.records(), 0);
    }

    #[tokio::test]
    async fn a_whole_removal_leaves_no_record() {
        let machine = Machine::new();
        let id = machine.add_session().await;
        let files = machine.add_files(&id);
        assert_eq!(machine.sessions.delete(&id).await.unwrap(), Some(Vec::new()));
        assert_eq!(machine.sessions.delete(&id).await.unwrap(), None, "it is gone");
        assert!(files.iter().all(|folder| !folder.exists()));
        assert_eq!(machine.records(), 0);
    }

    #[tokio::test]
    async fn files_of_a_child_go_that_is_created_meanwhile() {
        let machine = Machine::new();
        let id = machine.add_session().await;
        // The caller has looked for child sessions before.
        let child = machine.add_child(Some(id.clone())).await;
        let files = [machine.add_files(&id), machine.add_files(&child)].concat();
        assert_eq!(machine.sessions.delete_one(&id).await.unwrap(), Some(Vec::new()));
        assert!(machine.sessions.store.find(&child).await.unwrap().is_none());
        assert!(files.iter().all(|folder| !folder.exists()));
        assert_eq!(machine.records(), 0);
    }
}
