//! Reads as much of a message as a transport must know: which stream it belongs to, and whether a client must wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::output_item::OutputItem;

/// A message for the client.
#[derive(Debug)]
pub struct OutgoingMessage {
    /// One JSON message without a line break.
    pub text: String,
    session: Option<Arc<str>>,
    pub(super) size: usize,
}

impl From<OutputItem> for OutgoingMessage {
    fn from(item: OutputItem) -> Self {
        let (session, size) = (item.session().cloned(), item.size());
        let text = match item {
            OutputItem::Line(line) | OutputItem::Update(_, line) => line,
            piece @ (OutputItem::Chunk(_) | OutputItem::External(_) | OutputItem::Rest { .. }) => {
                let mut buffer = Vec::with_capacity(size + 256);
                piece.write(&mut buffer);
                buffer.pop();
                // The parts of a chunk are text already.
                String::from_utf8(buffer).unwrap_or_default()
            }
        };
        Self { text, session, size }
    }
}

/// The parts of a client's message that decide where it goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IncomingMessage {
    method: Option<String>,
    id: Option<String>,
    session: Option<String>,
}

/// The envelope of a JSON-RPC message.
#[derive(Deserialize)]
struct MessageEnvelope<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(default)]
    method: Option<String>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct SessionOfParams {
    #[serde(rename = "sessionId")]
    session: String,
}

impl IncomingMessage {
    /// Reads a message. A text that is not a message has no parts: the connection answers it with an error.
    pub fn parse(text: &str) -> Self {
        let Ok(envelope) = serde_json::from_str::<MessageEnvelope<'_>>(text) else { return Self::default() };
        Self {
            session: envelope.session(),
            id: envelope.id.map(id_text).filter(|id| id != "null"),
            method: envelope.method,
        }
    }

    /// Returns true for the request that begins a connection.
    pub fn is_initialize(&self) -> bool {
        self.is_request("initialize")
    }

    /// Returns true for a request that opens a session.
    pub fn opens_session(&self) -> bool {
        ["session/new", "session/load", "session/resume", "session/fork"].iter().any(|method| self.is_request(method))
    }

    /// Returns true for a request that starts a turn.
    pub fn starts_turn(&self) -> bool {
        self.is_request("session/prompt")
    }

    /// Returns the session that the message names. `None` if it names none.
    pub fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    fn is_request(&self, method: &str) -> bool {
        self.id.is_some() && self.method.as_deref() == Some(method)
    }
}

impl MessageEnvelope<'_> {
    /// Returns the session of the parameters. Messages of the protocol itself belong to no session.
    fn session(&self) -> Option<String> {
        if self.method.as_deref().is_none_or(|method| method.starts_with("$/")) {
            return None;
        }
        serde_json::from_str::<SessionOfParams>(self.params?.get()).ok().map(|params| params.session)
    }
}

/// Returns an id as serde_json writes it. A client may write the same id in another way, such as `"a\/b"`.
fn id_text(id: &RawValue) -> String {
    serde_json::from_str::<Value>(id.get()).map_or_else(|_| id.get().to_owned(), |id| id.to_string())
}

/// The stream of an HTTP client on which it expects a message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MessageStream {
    /// The stream of the connection.
    Connection,
    /// The stream of a session.
    Session(Arc<str>),
}

/// Finds the stream of each message. The response to a request belongs to the session that the request names.
#[derive(Debug, Default)]
pub struct StreamRoutes {
    /// The sessions of requests without a response, by the JSON of the request's id.
    sessions: Mutex<HashMap<String, Arc<str>>>,
}

impl StreamRoutes {
    /// Remembers the session of a request.
    pub fn add(&self, message: &IncomingMessage) {
        if let (Some(_), Some(id), Some(session)) = (&message.method, &message.id, &message.session) {
            let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.insert(id.clone(), session.as_str().into());
        }
    }

    /// Returns the stream on which the client expects the message.
    pub fn stream_of(&self, message: &OutgoingMessage) -> MessageStream {
        if let Some(session) = &message.session {
            return MessageStream::Session(Arc::clone(session));
        }
        let Ok(envelope) = serde_json::from_str::<MessageEnvelope<'_>>(&message.text) else {
            return MessageStream::Connection;
        };
        let session = match (&envelope.method, envelope.id) {
            (None, Some(id)) => self.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(&id_text(id)),
            _ => envelope.session().map(Arc::from),
        };
        session.map_or(MessageStream::Connection, MessageStream::Session)
    }
}

impl OutgoingMessage {
    /// Returns whether this is the response to `request`, and whether it is an error. `None` if it is not.
    pub fn response_to(&self, request: &IncomingMessage) -> Option<Response> {
        #[derive(Deserialize)]
        struct Answer<'a> {
            #[serde(borrow)]
            id: &'a RawValue,
            #[serde(borrow, default)]
            error: Option<&'a RawValue>,
        }
        if self.session.is_some() {
            return None;
        }
        let answer = serde_json::from_str::<Answer<'_>>(&self.text).ok()?;
        let id = id_text(answer.id);
        // Before the connection is open, an error without an id can only be about its first request.
        let is_unnamed = id == "null" && answer.error.is_some() && request.is_initialize();
        let is_response = request.id.as_deref() == Some(id.as_str()) || is_unnamed;
        is_response.then_some(if answer.error.is_some() { Response::Error } else { Response::Result })
    }
}

/// Whether a request succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response {
    Result,
    Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_belong_to_the_session_of_their_request() {
        let routes = StreamRoutes::default();
        let message = |text: &str| OutgoingMessage { text: text.to_owned(), session: None, size: text.len() };
        let prompt = IncomingMessage::parse(
            r#"{"jsonrpc":"2.0","id":"7","method":"session/prompt","params":{"sessionId":"s1"}}"#,
        );
        assert!(prompt.starts_turn() && !prompt.opens_session());
        routes.add(&prompt);
        let of_session = MessageStream::Session("s1".into());
        assert_eq!(routes.stream_of(&message(r#"{"jsonrpc":"2.0","id":7,"result":{}}"#)), MessageStream::Connection);
        assert_eq!(routes.stream_of(&message(r#"{"jsonrpc":"2.0","id":"7","result":{}}"#)), of_session);
        assert_eq!(routes.stream_of(&message(r#"{"jsonrpc":"2.0","id":"7","result":{}}"#)), MessageStream::Connection);
        let request = r#"{"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"sessionId":"s1"}}"#;
        assert_eq!(routes.stream_of(&message(request)), of_session);
        let cancel = r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"sessionId":"s1"}}"#;
        assert_eq!(routes.stream_of(&message(cancel)), MessageStream::Connection);
        let update = OutgoingMessage { session: Some("s1".into()), ..message("{}") };
        assert_eq!(routes.stream_of(&update), of_session);
    }

    #[test]
    fn text_that_is_no_message_has_no_parts() {
        for text in ["", "{", "[]", "7", r#"{"id":null,"params":[]}"#] {
            assert_eq!(IncomingMessage::parse(text), IncomingMessage::default(), "{text}");
        }
        let initialize = IncomingMessage::parse(r#"{"id":0,"method":"initialize","params":{}}"#);
        assert!(initialize.is_initialize());
        let answer = OutgoingMessage { text: r#"{"id":0,"error":{}}"#.to_owned(), session: None, size: 0 };
        assert_eq!(answer.response_to(&initialize), Some(Response::Error));
        assert!(!IncomingMessage::parse(r#"{"method":"initialize"}"#).is_initialize(), "a notification");
        let answer = OutgoingMessage { text: r#"{"id":null,"error":{}}"#.to_owned(), ..answer };
        assert_eq!(answer.response_to(&initialize), Some(Response::Error), "the id could not be read");
        let prompt = IncomingMessage::parse(r#"{"id":0,"method":"session/prompt","params":{}}"#);
        assert_eq!(answer.response_to(&prompt), None);
    }

    #[test]
    fn an_id_may_be_written_in_several_ways() {
        let initialize = IncomingMessage::parse(r#"{"id":"a\/\u00e9","method":"initialize","params":{}}"#);
        let answer = OutgoingMessage { text: r#"{"id":"a/é","result":{}}"#.to_owned(), session: None, size: 0 };
        assert_eq!(answer.response_to(&initialize), Some(Response::Result));
        let routes = StreamRoutes::default();
        let prompt = r#"{"id":"a\/b","method":"session/prompt","params":{"sessionId":"s1"}}"#;
        routes.add(&IncomingMessage::parse(prompt));
        let answer = OutgoingMessage { text: r#"{"id":"a/b","result":{}}"#.to_owned(), session: None, size: 0 };
        assert_eq!(routes.stream_of(&answer), MessageStream::Session("s1".into()));
    }
}
