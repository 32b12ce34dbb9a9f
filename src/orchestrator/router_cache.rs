//! Caches one router per plan, trained when a prompt first needs it, and stores the users' corrections.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::graph::Plan;
use crate::ids::ModeId;
use crate::principal::Principal;
use crate::router::{self, Router};
use crate::secrets;
use crate::store::{self, CorrectionStore, StorePlace};

/// File and folder below the data folder.
const CORRECTIONS: &str = "routes.db";
const ROUTERS: &str = "router";
/// Matches the number of folders that an editor typically has open.
const MAX_CACHED_ROUTERS: usize = 8;

type CachedRouter = (Arc<Plan>, Arc<Router>);

#[derive(Debug, Default)]
pub(super) struct RouterCache {
    store: StorePlace,
    /// The corrections of all principals, once they are open. Other tasks wait while one opens them.
    corrections: Mutex<Option<CorrectionStore>>,
    routers: Mutex<Vec<CachedRouter>>,
}

/// Why a router cannot be used or a correction cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum RouterCacheError {
    /// The thread that trains the router or writes the store panicked.
    #[error(transparent)]
    Thread(#[from] tokio::task::JoinError),
    #[error(transparent)]
    Store(#[from] store::StoreError),
}

impl RouterCache {
    pub(super) fn new(store: StorePlace) -> Self {
        Self { store, corrections: Mutex::default(), routers: Mutex::default() }
    }

    /// Returns the router over `own` and the modes it may delegate to, with the principal's corrections of this project.
    /// Logs and skips corrections that cannot be read, because a router without them is still useful.
    pub(super) async fn router(
        self: &Arc<Self>,
        plan: &Arc<Plan>,
        own: &ModeId,
        principal: &Principal,
        cwd: &Path,
    ) -> Result<Router, RouterCacheError> {
        let (known, plan, own) = (Arc::clone(self), Arc::clone(plan), own.clone());
        let (principal, cwd) = (principal.clone(), cwd.to_owned());
        let made = tokio::task::spawn_blocking(move || {
            let base = known.router_for(&plan, &own);
            match known.corrections(principal, &cwd) {
                Ok(corrections) if corrections.is_empty() => base.as_ref().clone(),
                Ok(corrections) => {
                    let pairs = corrections.iter().map(|(prompt, mode)| (prompt.as_str(), mode));
                    base.as_ref().clone().with_corrections(pairs)
                }
                Err(error) => {
                    tracing::warn!(%error, "corrections of routes are left out");
                    base.as_ref().clone()
                }
            }
        });
        Ok(made.await?)
    }

    fn router_for(&self, plan: &Arc<Plan>, own: &ModeId) -> Arc<Router> {
        let mut routers = self.routers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, router)) = routers.iter().find(|(known, _)| known.is_same(plan)) {
            return Arc::clone(router);
        }
        let granted = plan.delegates(&own.agent);
        let mut candidates = router::candidates(plan.manifests());
        candidates.retain(|candidate| candidate.mode == *own || granted.contains(&candidate.mode));
        let router = Arc::new(Router::load_or_learn(&self.store.data().join(ROUTERS), &candidates));
        if routers.len() == MAX_CACHED_ROUTERS {
            routers.remove(0);
        }
        routers.push((Arc::clone(plan), Arc::clone(&router)));
        router
    }

    fn corrections(&self, principal: Principal, cwd: &Path) -> Result<Vec<(String, ModeId)>, store::StoreError> {
        // Reading creates no file.
        if self.store.address().is_none() && !self.store.data().join(CORRECTIONS).exists() {
            return Ok(Vec::new());
        }
        let corrections = self.open_corrections(principal)?.corrections(&store::project_root(cwd))?;
        Ok(corrections.into_iter().filter_map(|kept| Some((kept.prompt, kept.mode.parse().ok()?))).collect())
    }

    /// Stores, for this project, the mode that the principal chose for a prompt. Skips prompts that contain a secret.
    pub(super) async fn correct(
        self: &Arc<Self>,
        principal: &Principal,
        cwd: &Path,
        prompt: &str,
        mode: &ModeId,
    ) -> Result<(), RouterCacheError> {
        if secrets::find_secret(prompt).is_some() {
            return Ok(());
        }
        let (known, project) = (Arc::clone(self), store::project_root(cwd));
        let (principal, prompt, mode) = (principal.clone(), prompt.to_owned(), mode.to_string());
        let keep = move || known.open_corrections(principal)?.remember(&project, &prompt, &mode);
        Ok(tokio::task::spawn_blocking(keep).await??)
    }

    /// Returns the corrections of a principal. Opens a file each time, because it may have been moved, and a database
    /// once.
    fn open_corrections(&self, principal: Principal) -> Result<CorrectionStore, store::StoreError> {
        if self.store.address().is_none() {
            return Ok(self.store.corrections()?.of(principal));
        }
        let mut corrections = self.corrections.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = match &*corrections {
            Some(opened) => opened.clone(),
            None => corrections.insert(self.store.corrections()?).clone(),
        };
        Ok(opened.of(principal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_router_makes_room_for_that_of_another_plan() {
        let folder = tempfile::tempdir().unwrap();
        let cache = RouterCache::new(StorePlace::files(folder.path()));
        let own: ModeId = "goose/assistant".parse().unwrap();
        let plan = |number: usize| Arc::new(Plan::empty().restrict_to(&[format!("agent{number}/*")]));
        let plans: Vec<_> = (0..=MAX_CACHED_ROUTERS).map(plan).collect();
        let routers: Vec<_> = plans.iter().map(|plan| cache.router_for(plan, &own)).collect();
        let is_cached = |number: usize| Arc::ptr_eq(&cache.router_for(&plans[number], &own), &routers[number]);
        assert!((1..=MAX_CACHED_ROUTERS).all(is_cached));
        assert!(!is_cached(0));
    }
}
