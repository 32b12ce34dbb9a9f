//! Refuses requests that a client must repeat later: its token has too many sessions or turns, or the server shuts
//! down.

use tokio_util::sync::CancellationToken;

use super::message_routes::IncomingMessage;
use crate::principal::{GrantError, SessionGrant};

/// Why a client must wait before it repeats a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    #[error(transparent)]
    Grant(#[from] GrantError),
    #[error("the server is shutting down; connect again later")]
    Draining,
}

impl UsageError {
    /// Returns the seconds after which the client may try again.
    pub fn retry_after(&self) -> u64 {
        match self {
            Self::Grant(_) => 5,
            Self::Draining => 30,
        }
    }
}

/// Fails if the server shuts down.
pub(super) fn check_draining(draining: &CancellationToken) -> Result<(), UsageError> {
    if draining.is_cancelled() { Err(UsageError::Draining) } else { Ok(()) }
}

/// Fails if a connection would refuse the message now. The connection itself decides when it handles the message; this
/// lets a transport answer with a status.
pub fn check_usage(
    message: &IncomingMessage,
    grant: &SessionGrant,
    draining: &CancellationToken,
) -> Result<(), UsageError> {
    if message.opens_session() {
        drop(grant.open_session()?);
    }
    if message.starts_turn() {
        check_draining(draining)?;
        drop(grant.begin_turn()?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::principal::{Principal, TokenLimits};

    #[test]
    fn requests_beyond_the_limits_are_refused_early() {
        let limits = TokenLimits { sessions: Some(1), turns: Some(1), ..TokenLimits::default() };
        let grant = SessionGrant::new(Principal::new("ci").unwrap(), limits);
        let draining = CancellationToken::new();
        let check = |text: &str| check_usage(&IncomingMessage::parse(text), &grant, &draining);
        let (open, prompt) = (r#"{"id":1,"method":"session/new"}"#, r#"{"id":2,"method":"session/prompt"}"#);
        assert_eq!((check(open), check(prompt)), (Ok(()), Ok(())), "a check takes no place");
        let session = grant.open_session().unwrap();
        let turn = grant.begin_turn().unwrap();
        assert!(check(open).is_err() && check(prompt).is_err());
        assert_eq!(check(r#"{"id":3,"method":"session/list"}"#), Ok(()));
        drop((session, turn));
        draining.cancel();
        assert_eq!((check(open), check(prompt)), (Ok(()), Err(UsageError::Draining)));
    }
}
