//! Lets the clients of another token of the same principal use a session, within the limits of both tokens. Returns the
//! plan of a session and of its turn.
//!
//! Invariant: a turn that another token begins has no mode and no approval level that this token does not admit.

use std::sync::Arc;

use super::{PendingTurn, PromptError, Session, SessionError};
use crate::broker::BindError;
use crate::graph::Plan;
use crate::manifest::{ServiceEntry, Transport};
use crate::principal::{GrantError, SessionGrant};

impl Session {
    /// Returns whether a client with this grant may see the session in its present mode.
    pub fn admits_client(&self, grant: &SessionGrant) -> bool {
        self.is_of_token(grant) || grant.limits().admits_mode(&self.choice().mode)
    }

    /// Fails if a client with this grant must not use the session: its token does not admit the mode, or the session
    /// reaches folders and programs that the token does not.
    pub fn check_client(&self, grant: &SessionGrant) -> Result<(), SessionError> {
        if !self.admits_client(grant) {
            return Err(SessionError::Unknown(self.id().to_owned()));
        }
        if self.is_of_token(grant) {
            return Ok(());
        }
        grant.check_session_of(self.sessions().grant())?;
        let has_programs = || {
            let services = self.client_services();
            services.iter().any(|entry| matches!(entry.manifest.transport, Transport::Stdio(_)))
        };
        match grant.limits().client_services || !has_programs() {
            true => Ok(()),
            false => Err(GrantError::OtherToken.into()),
        }
    }

    /// Starts a turn that a client with this grant asks for. It counts for the client's token too, and runs within the
    /// limits of both. Fails if another turn runs, if a token has too many, or if the client's does not admit the mode.
    pub fn begin_for(self: &Arc<Self>, grant: &SessionGrant) -> Result<PendingTurn, PromptError> {
        if self.is_of_token(grant) {
            return self.begin();
        }
        if !self.admits_client(grant) {
            return Err(BindError::UnknownMode(self.choice().mode).into());
        }
        let permit = grant.begin_turn()?;
        let pending = self.begin()?;
        let setup = Arc::new(pending.setup().narrow_to(grant));
        self.set_turn_setup(Arc::clone(&setup));
        Ok(pending.with_setup(setup, permit))
    }

    /// Returns the MCP servers that the client passed with the session.
    pub fn client_services(&self) -> Vec<Arc<ServiceEntry>> {
        self.setup().host().client_services.clone()
    }

    pub fn plan(&self) -> Arc<Plan> {
        Arc::clone(self.broker().plan())
    }

    /// Returns the plan of the running turn, which may have fewer modes than that of the session. If no turn runs,
    /// returns that of the session.
    pub fn turn_plan(&self) -> Arc<Plan> {
        Arc::clone(self.turn_setup().host().broker.plan())
    }

    /// Returns whether the token that opened the session has ended, or another replica may have the session. Nothing runs
    /// in the session any more.
    pub fn is_ended(&self) -> bool {
        self.sessions().grant().end_signal().is_cancelled() || self.is_taken()
    }

    /// Returns whether the grant is one of the token that opened the session.
    pub fn is_of_token(&self, grant: &SessionGrant) -> bool {
        self.sessions().grant().is_same_token(grant)
    }
}
