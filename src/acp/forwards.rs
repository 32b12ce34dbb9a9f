//! Decides which messages of a client another replica answers: those about sessions that it owns. The caller connects to
//! that replica as the client would, and carries the messages.
//!
//! Invariant: each request gets one response, also if the replica that has the session ends.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

/// The id of the `initialize` that the caller sends to a replica for the client.
const INITIALIZE_ID: &str = "skein-forward";
/// Error code of a request whose outcome is unknown.
const INTERNAL_ERROR: i64 = -32603;
/// Requests about sessions that need not be open here.
const OPENING_METHODS: [&str; 3] = ["session/load", "session/resume", "session/delete"];
const PROMPT: &str = "session/prompt";

/// Identifies a connection to another replica.
pub type ForwardLink = u64;

/// Where a message of the client goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientRoute {
    /// To the connection in this process.
    Here,
    /// To another replica, as this text.
    Elsewhere(ForwardLink, String),
    /// To the owner of this session, which the caller must find. Then it calls [`SessionForwards::forward`] or
    /// [`SessionForwards::keep_here`].
    Owner(String),
}

/// The sessions of one client that other replicas own, and the messages on their way.
#[derive(Debug, Default)]
pub struct SessionForwards {
    /// Parameters of the client's `initialize`.
    initialize: Value,
    sessions: HashMap<String, ForwardLink>,
    /// Requests of the client without a response, by the JSON of their ids.
    requests: BTreeMap<String, ForwardedRequest>,
    /// Requests of replicas that the client has not answered, by the id that the client knows.
    questions: BTreeMap<String, ForwardedQuestion>,
    next_question: u64,
}

#[derive(Debug)]
struct ForwardedRequest {
    link: ForwardLink,
    id: Value,
    is_prompt: bool,
}

#[derive(Debug)]
struct ForwardedQuestion {
    link: ForwardLink,
    /// The id of the replica's request.
    id: Value,
}

impl SessionForwards {
    /// Returns where a message of the client goes.
    pub fn destination(&mut self, text: &str) -> ClientRoute {
        let Ok(mut message) = serde_json::from_str::<Value>(text) else { return ClientRoute::Here };
        let id = message.get("id").filter(|id| !id.is_null()).cloned();
        match (message["method"].as_str(), id) {
            (Some("initialize"), Some(_)) => {
                self.initialize = message["params"].take();
                ClientRoute::Here
            }
            (Some("$/cancel_request"), None) => {
                let request = self.requests.get(&message["params"]["requestId"].to_string());
                let here = ClientRoute::Here;
                request.map_or(here, |request| ClientRoute::Elsewhere(request.link, text.to_owned()))
            }
            (Some(method), id) => {
                let Some(session) = message["params"]["sessionId"].as_str() else { return ClientRoute::Here };
                if id.is_some() && OPENING_METHODS.contains(&method) {
                    return ClientRoute::Owner(session.to_owned());
                }
                let Some(link) = self.sessions.get(session).copied() else { return ClientRoute::Here };
                let is_prompt = method == PROMPT;
                self.add_request(link, id, is_prompt);
                ClientRoute::Elsewhere(link, text.to_owned())
            }
            (None, Some(id)) => match id.as_str().and_then(|id| self.questions.remove(id)) {
                Some(ForwardedQuestion { link, id }) => {
                    message["id"] = id;
                    ClientRoute::Elsewhere(link, message.to_string())
                }
                None => ClientRoute::Here,
            },
            (None, None) => ClientRoute::Here,
        }
    }

    /// Returns the first message to a replica: the `initialize` of the client.
    pub fn initialize(&self) -> String {
        let params = &self.initialize;
        json!({"jsonrpc": "2.0", "id": INITIALIZE_ID, "method": "initialize", "params": params}).to_string()
    }

    /// Notes that a replica answers this request, and all further ones about its session.
    pub fn forward(&mut self, link: ForwardLink, session: &str, text: &str) {
        self.sessions.insert(session.to_owned(), link);
        let id = serde_json::from_str::<Value>(text).ok().and_then(|message| message.get("id").cloned());
        self.add_request(link, id, false);
    }

    /// Notes that this process answers requests about a session.
    pub fn keep_here(&mut self, session: &str) {
        self.sessions.remove(session);
    }

    fn add_request(&mut self, link: ForwardLink, id: Option<Value>, is_prompt: bool) {
        if let Some(id) = id {
            self.requests.insert(id.to_string(), ForwardedRequest { link, id, is_prompt });
        }
    }

    /// Takes a message of a replica. Returns what the client gets. `None` if it gets nothing.
    pub fn receive(&mut self, link: ForwardLink, text: &str) -> Option<String> {
        let mut message = serde_json::from_str::<Value>(text).ok()?;
        let id = message.get("id").filter(|id| !id.is_null()).cloned();
        match (message["method"].as_str(), id) {
            // Only the connection to that replica ends.
            (Some("_skein/shutdown"), None) => None,
            (Some("$/cancel_request"), None) => {
                let withdrawn = &message["params"]["requestId"];
                let known = self.questions.iter().find(|(_, it)| it.link == link && it.id == *withdrawn);
                let id = known.map(|(id, _)| id.clone())?;
                self.questions.remove(&id);
                message["params"]["requestId"] = json!(id);
                Some(message.to_string())
            }
            (Some(_), Some(id)) => {
                self.next_question += 1;
                let own = format!("{INITIALIZE_ID}-{}", self.next_question);
                message["id"] = json!(own);
                self.questions.insert(own, ForwardedQuestion { link, id });
                Some(message.to_string())
            }
            (Some(_), None) => Some(text.to_owned()),
            (None, Some(id)) if id == json!(INITIALIZE_ID) => None,
            (None, Some(id)) => {
                self.requests.remove(&id.to_string())?;
                // A fork is open where its original is.
                if let Some(fork) = message["result"]["sessionId"].as_str() {
                    self.sessions.insert(fork.to_owned(), link);
                }
                Some(text.to_owned())
            }
            (None, None) => None,
        }
    }

    /// Ends a connection that is lost. Returns what the client gets: an error for each of its requests, and the end of
    /// each question.
    pub fn lose(&mut self, link: ForwardLink) -> Vec<String> {
        self.sessions.retain(|_, other| *other != link);
        let mut lines = Vec::new();
        for ForwardedRequest { id, is_prompt, .. } in take_of(&mut self.requests, |request| request.link == link) {
            let problem = match is_prompt {
                true => "turn interrupted: the replica that ran it cannot be reached; load the session again",
                false => "the replica that has the session cannot be reached; load the session again",
            };
            let error = json!({"code": INTERNAL_ERROR, "message": problem});
            lines.push(json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string());
        }
        let open: Vec<String> =
            self.questions.iter().filter(|(_, it)| it.link == link).map(|(id, _)| id.clone()).collect();
        for id in open {
            self.questions.remove(&id);
            let params = json!({"requestId": id});
            lines.push(json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": params}).to_string());
        }
        lines
    }
}

/// Removes and returns the values that match, in the order of their keys.
fn take_of<T>(map: &mut BTreeMap<String, T>, matches: impl Fn(&T) -> bool) -> Vec<T> {
    let keys: Vec<String> = map.iter().filter(|(_, value)| matches(value)).map(|(key, _)| key.clone()).collect();
    keys.iter().filter_map(|key| map.remove(key)).collect()
}

#[cfg(test)]
#[path = "forwards_tests.rs"]
mod tests;
