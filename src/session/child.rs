//! Sessions that work for another: in the same place, with the same editor and servers, and never with more.

use std::sync::Arc;

use super::{Session, SessionError, SessionPorts, SessionRoots, SessionSettings};
use crate::broker::{Asker, ParentLimits, WriteLock};
use crate::ids::ModeId;
use crate::manifest::ServiceEntry;

impl Session {
    /// A session in `mode` that works for this one. It has the same folders, editor, servers, rules and model; consent
    /// is never easier to have. `brought` takes the place of the servers that came with this one. `asker` is given whoever is asked here and says who is asked there.
    pub async fn child(
        &self,
        mode: ModeId,
        asker: impl FnOnce(Arc<dyn Asker>) -> Arc<dyn Asker>,
        turnstile: Option<Arc<dyn WriteLock>>,
        brought: Option<Vec<Arc<ServiceEntry>>>,
    ) -> Result<Arc<Self>, SessionError> {
        let setup = self.turn_setup();
        let bounds = ParentLimits { parent: Some(setup.binding().await?), write_lock: turnstile };
        let host = setup.host();
        let asker = asker(Arc::clone(&host.asker));
        let brought = brought.unwrap_or_else(|| host.client_services.clone());
        let host =
            SessionPorts { broker: host.broker.with_limits(bounds), asker, client_services: brought, ..host.clone() };
        let session = self.context();
        // The first two are its own working directory and scratch folder.
        let place = SessionRoots { cwd: session.cwd.clone(), roots: session.roots.iter().skip(2).cloned().collect() };
        let choice = SessionSettings { mode, ..setup.choice.clone() };
        let child = self.sessions().create_for(Some(self.id()), place, choice, |_| host).await?;
        self.not_alone();
        child.context().share_services(session);
        Ok(child)
    }
}
