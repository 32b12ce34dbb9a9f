//! The body of a request for a run, and the session that it names.

use serde::Deserialize;

use super::super::runs::{MissingSession, RunRequest, parse_uuid};
use super::errors::RestError;
use super::messages::{self, InputMessage};

/// The body of `POST /runs`.
#[derive(Debug, Deserialize)]
pub(super) struct NewRun {
    agent_name: String,
    session_id: Option<String>,
    session: Option<ForwardedSession>,
    input: Vec<InputMessage>,
    #[serde(default)]
    pub(super) mode: RunMode,
}

/// A session that a client brings along.
#[derive(Debug, Deserialize)]
struct ForwardedSession {
    id: Option<String>,
    #[serde(default)]
    history: Vec<String>,
}

/// What a client gets as the answer to its request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RunMode {
    /// The run when it has stopped.
    #[default]
    Sync,
    /// The run at once.
    Async,
    /// The events until the run stops.
    Stream,
}

impl NewRun {
    /// Returns the run that the client asks for. Fails if its input cannot be used, an id is not a UUID, or the two ids
    /// differ.
    pub(super) fn request(&self) -> Result<RunRequest, RestError> {
        let prompt = messages::prompt(&self.input)?;
        let has_history = self.session.as_ref().is_some_and(|session| !session.history.is_empty());
        let missing = match has_history {
            true => MissingSession::Refuse("`session` has a history of another server, which Skein does not read"),
            false => MissingSession::Create,
        };
        Ok(RunRequest { agent: self.agent_name.clone(), session: self.session_uuid()?, missing, prompt })
    }

    fn session_uuid(&self) -> Result<String, RestError> {
        let forwarded = self.session.as_ref().and_then(|session| session.id.as_deref());
        let mut uuids = Vec::new();
        for id in [self.session_id.as_deref(), forwarded].into_iter().flatten() {
            let uuid = parse_uuid(id).ok_or_else(|| RestError::invalid(format!("`{id}` is not a UUID")))?;
            uuids.push(uuid);
        }
        if uuids.windows(2).any(|pair| pair[0] != pair[1]) {
            return Err(RestError::contradiction("`session_id` and `session.id` differ"));
        }
        Ok(uuids.pop().unwrap_or_else(crate::ids::random_uuid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_names_its_session_by_uuid() {
        let uuid = "0B9A2C1E-0000-4000-8000-000000000001";
        let named = |fields: &str| {
            let input = r#"[{"parts": [{"content": "hello"}]}]"#;
            let body = format!(r#"{{"agent_name": "a", "input": {input}, {fields}}}"#);
            serde_json::from_str::<NewRun>(&body).unwrap().request().ok()
        };
        let lower = uuid.to_lowercase();
        let own = named(&format!(r#""session_id": "{uuid}""#)).unwrap();
        assert_eq!((own.session, own.missing), (lower.clone(), MissingSession::Create));
        let brought = named(&format!(r#""session": {{"id": "{uuid}", "history": ["http://x/1"]}}"#)).unwrap();
        assert_eq!(brought.session, lower);
        assert!(matches!(brought.missing, MissingSession::Refuse(_)));
        assert!(parse_uuid(&named(r#""session_id": null"#).unwrap().session).is_some(), "a new one");
        assert!(named(r#""session_id": "other""#).is_none());
        let other = "0b9a2c1e-0000-4000-8000-000000000002";
        assert!(named(&format!(r#""session_id": "{uuid}", "session": {{"id": "{other}"}}"#)).is_none());
    }
}
