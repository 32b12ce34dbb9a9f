//! Creates child sessions, which share the editor, the servers and usually the folders of their parent and never exceed
//! its limits.
//!
//! Invariant: a child session needs consent wherever its parent would, and cannot delegate.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Session, SessionError, SessionPorts, SessionRoots, SessionSettings};
use crate::broker::{BindError, Binding, ParentLimits, WriteLock};
use crate::ids::ModeId;
use crate::manifest::ServiceEntry;
use crate::tool::ask::Asker;

impl Session {
    /// Creates a child session in `mode` with the same editor, servers, rules and model. Its calls never need less
    /// consent than in this session. `place` replaces the folders of this session. `brought` replaces the MCP servers
    /// that the client passed. `asker` maps this session's asker to the child's. Fails if the mode does not exist, or
    /// not within the limits of the grant.
    pub async fn child(
        &self,
        mode: ModeId,
        place: Option<SessionRoots>,
        asker: impl FnOnce(Arc<dyn Asker>) -> Arc<dyn Asker>,
        turnstile: Option<Arc<dyn WriteLock>>,
        brought: Option<Vec<Arc<ServiceEntry>>>,
    ) -> Result<Arc<Self>, SessionError> {
        let setup = self.turn_setup();
        if setup.host().broker.plan().mode(&mode).is_none() {
            return Err(BindError::UnknownMode(mode).into());
        }
        let bounds = ParentLimits { parent: Some(setup.binding().await?), write_lock: turnstile };
        let host = setup.host();
        let asker = asker(Arc::clone(&host.asker));
        let brought = brought.unwrap_or_else(|| host.client_services.clone());
        let host =
            SessionPorts { broker: host.broker.with_limits(bounds), asker, client_services: brought, ..host.clone() };
        let session = self.context();
        let shares_files = place.is_none();
        let place = place.unwrap_or_else(|| SessionRoots::of(session));
        let choice = SessionSettings { mode, ..setup.choice.clone() };
        let child = self.sessions().create_for(Some(self), place, choice, |_| host).await?;
        self.not_alone();
        child.context().share_services(session);
        // What a child changes elsewhere is not in the checkpoints of this session.
        if let Some(keeper) = session.keeper.get().filter(|_| shares_files) {
            child.context().keeper.get_or_init(|| Arc::clone(keeper));
        }
        Ok(child)
    }

    /// Returns the binding of the running turn. Its asker records the answers of the user.
    pub async fn turn_binding(&self) -> Result<Arc<Binding>, BindError> {
        let setup = self.turn_setup();
        setup.binding().await
    }

    /// Returns the ids of the session's family: its parent, or itself if it has none, and all children of that one.
    pub async fn family(&self) -> Vec<String> {
        let own = || vec![self.id().to_owned()];
        if self.alone.load(Ordering::Relaxed) {
            return own();
        }
        let family = self.sessions.store.family(self.id()).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the sessions that belong together could not be read");
            own()
        });
        self.alone.store(family == own(), Ordering::Relaxed);
        family
    }

    /// Notes that the session has a child.
    fn not_alone(&self) {
        self.alone.store(false, Ordering::Relaxed);
    }
}
