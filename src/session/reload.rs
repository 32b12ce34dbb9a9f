//! Applies changed manifests and settings to an open session.

use std::sync::Arc;

use super::setup::SessionSetup;
use super::{Session, SessionError, SessionPorts, lock};
use crate::ids::ModeId;
use crate::manifest::Settings;
use crate::store::SessionChange;
use crate::tool::Notice;

impl Session {
    /// Uses the plan, the models and the external agents of `ports` from the next turn on. A running turn keeps its
    /// binding. If the mode is gone, the session continues in `fallback`, with a notice. Fails and changes nothing if
    /// the mode cannot be entered with the new plan. If the managed settings are other ones, they apply nevertheless,
    /// with a notice, and turns fail until the mode can be entered.
    pub async fn reload(
        &self,
        ports: impl FnOnce(&SessionPorts) -> SessionPorts,
        fallback: ModeId,
    ) -> Result<(), SessionError> {
        let _switch = self.switch.lock().await;
        let now = self.setup();
        let (mut choice, ports) = (now.choice.clone(), ports(now.host()));
        let (before, plan) = (now.host().broker.plan(), ports.broker.plan());
        let is_managed = !plan.manifests().managed.has_files_of(&before.manifests().managed);
        let is_gone = !plan.is_selectable(&choice.mode);
        if is_gone {
            choice.mode = fallback;
        }
        let alerts = Settings::of(plan.manifests()).notifications;
        let choice = self.sessions.limit_settings(choice, &ports.broker);
        let next = now.with_ports(choice.clone(), ports);
        match self.enter(&next).await {
            Err(error) if is_managed => {
                let notice = format!("the managed settings have changed, and the mode cannot be entered: {error}");
                self.queue_notice(Notice::new(notice));
            }
            entered => entered?,
        }
        *lock(&self.setup) = Arc::new(next);
        *lock(&self.alerts) = alerts;
        if is_gone {
            let notice = format!("the mode `{}` is gone; the session goes on in `{}`", now.choice.mode, choice.mode);
            self.queue_notice(Notice::new(notice));
            let (agent, mode) = (Some(choice.mode.agent.to_string()), Some(choice.mode.mode.to_string()));
            self.sessions.store.change(self.id(), SessionChange { agent, mode, ..SessionChange::default() });
        }
        Ok(())
    }

    /// Makes the binding of a setup, and the external session that it needs.
    async fn enter(&self, next: &SessionSetup) -> Result<(), SessionError> {
        next.binding().await?;
        self.ensure_external_session(next, false).await?;
        Ok(())
    }
}
