//! Sends the questions of a turn or a call to the user of an MCP client as elicitations. A permission request becomes a
//! form with one choice; elicitations of services are forwarded unchanged.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use rmcp::model::{
    ClientCapabilities, ClientResult, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction,
    InputResponses, ProtocolVersion, ServerRequest,
};
use rmcp::service::{PeerRequestOptions, RequestContext, ServiceError};
use rmcp::{Peer, RoleServer};
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::broker::{RuleStore, RuleStoreError};
use crate::tool::ask::{Asker, ExternalPermissionRequest, PermissionRequest, PermissionResponse};
use crate::tool::elicit::{Elicitation, ElicitationKind, ElicitationResponse};
use crate::tool::{strip_invisible, truncate};

/// The only field of a form for a permission request.
const FIELD: &str = "answer";
const ALLOW: &str = "allow";
const ALLOW_ALWAYS: &str = "allow in this session";
const ALLOW_IN_PROJECT: &str = "allow in this project";
const REFUSE: &str = "reject";
const REFUSE_ALWAYS: &str = "reject in this session";

/// Maximum number of bytes shown of a call's arguments; the question gives the number of bytes left out. The longest
/// script of `run_script` has 16 kB, and more with its escapes.
const ARGUMENTS: usize = 40 * 1024;

/// How long a question waits for the answer of the client.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// The kinds of elicitations that the client supports.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ElicitationSupport {
    forms: bool,
    pages: bool,
}

impl ElicitationSupport {
    pub(crate) fn of(client: ClientCapabilities) -> Self {
        let Some(can) = client.elicitation else { return Self::default() };
        // A client that names neither predates pages and supports forms.
        Self { forms: can.form.is_some() || can.url.is_none(), pages: can.url.is_some() }
    }
}

/// A question that the client has not answered. `answer` goes to the turn or the call that waits in `McpAsker`.
pub(crate) struct PendingQuestion {
    pub(crate) params: ElicitRequestParams,
    answer: oneshot::Sender<Option<ElicitResult>>,
}

impl PendingQuestion {
    /// Sends the question as a separate request to the client, and its response to the turn. Without a response for
    /// [`ANSWER_TIMEOUT`], or when `over` is cancelled, cancels the question.
    pub(crate) async fn put(self, client: &Peer<RoleServer>, over: &CancellationToken) {
        let request = ServerRequest::ElicitRequest(ElicitRequest::new(self.params));
        let said = match request_answer(request, client, over).await {
            Ok(ClientResult::ElicitResult(said)) => Some(said),
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(%error, "the client did not answer a question");
                // A client that waited in vain for its user can ask, unlike one that failed.
                matches!(error, ServiceError::Timeout { .. }).then(|| ElicitResult::new(ElicitationAction::Cancel))
            }
        };
        // Fails only if the turn was cancelled.
        drop(self.answer.send(said));
    }

    pub(crate) fn answer(self, said: Option<ElicitResult>) {
        drop(self.answer.send(said));
    }
}

/// Sends a request to the client and returns the answer.
async fn request_answer(
    request: ServerRequest,
    client: &Peer<RoleServer>,
    over: &CancellationToken,
) -> Result<ClientResult, ServiceError> {
    let mut asked = client.send_request_with_option(request, PeerRequestOptions::no_options()).await?;
    let waiting = tokio::time::timeout(ANSWER_TIMEOUT, over.run_until_cancelled(&mut asked.rx));
    let (reason, error) = match waiting.await {
        Ok(Some(said)) => return said.unwrap_or(Err(ServiceError::TransportClosed)),
        Ok(None) => {
            let reason = "the request that needs the answer has ended";
            (reason, ServiceError::Cancelled { reason: Some(reason.to_owned()) })
        }
        Err(_) => ("no answer came in time", ServiceError::Timeout { timeout: ANSWER_TIMEOUT }),
    };
    asked.cancel(Some(reason.to_owned())).await?;
    Err(error)
}

/// Returns the answer to the question with this key. `None` if there is none.
pub(crate) fn response(responses: &InputResponses, key: &str) -> Option<ElicitResult> {
    responses.get(key).and_then(|said| serde_json::from_value(said.clone()).ok())
}

/// Passes the answers of a client on. Returns the questions that have none.
pub(crate) fn give_answers(
    asked: Vec<(String, PendingQuestion)>,
    responses: &InputResponses,
) -> Vec<(String, PendingQuestion)> {
    let mut open = Vec::new();
    for (key, asked) in asked {
        match response(responses, &key) {
            Some(said) => asked.answer(Some(said)),
            None => open.push((key, asked)),
        }
    }
    open
}

/// Returns true if the client takes questions as the result of its request, not as requests from the server.
pub(crate) fn in_rounds(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
}

/// Creates the question whether a session may work in a folder, and the receiver of the answer. `None` if the client
/// does not support forms.
pub(crate) fn about_folder(
    folder: &Path,
    reach: ElicitationSupport,
) -> Option<(PendingQuestion, oneshot::Receiver<Option<ElicitResult>>)> {
    let message = format!(
        "The client's model wants an agent to work in {}, which is not below the folder in which skein was started. Allow it \
         this folder until skein ends?",
        folder.display()
    );
    let params = reach.forms.then(|| form(&message, choice(&[ALLOW, REFUSE]))).flatten()?;
    let (answer, answered) = oneshot::channel();
    Some((PendingQuestion { params, answer }, answered))
}

/// Returns true if the user accepted the form and chose to allow.
pub(crate) fn allows(said: Option<ElicitResult>) -> bool {
    matches!(said, Some(ElicitResult { action: ElicitationAction::Accept, content: Some(content), .. })
        if content[FIELD].as_str() == Some(ALLOW))
}

/// Returns the schema of a form with one choice.
fn choice(options: &[&str]) -> Value {
    json!({
        "type": "object",
        "properties": {FIELD: {"type": "string", "title": "Answer", "enum": options}},
        "required": [FIELD],
    })
}

/// An asker that sends questions through the request that the current turn answers.
pub(crate) struct McpAsker {
    to: Mutex<Option<(mpsc::UnboundedSender<PendingQuestion>, ElicitationSupport)>>,
    /// A question of this turn had no answer, because the client cannot ask its user or failed.
    unavailable: AtomicBool,
    /// Keeps rules for the project. `None` if the client may not add any.
    rules: Option<Arc<dyn RuleStore>>,
}

impl McpAsker {
    pub(crate) fn new(rules: Option<Arc<dyn RuleStore>>) -> Self {
        Self { to: Mutex::default(), unavailable: AtomicBool::new(false), rules }
    }

    /// Sets the channel to the client and its abilities, from the start of a turn to the start of the next one.
    pub(crate) fn set_client(&self, sender: mpsc::UnboundedSender<PendingQuestion>, reach: ElicitationSupport) {
        *self.to.lock().unwrap_or_else(PoisonError::into_inner) = Some((sender, reach));
        self.unavailable.store(false, Ordering::Relaxed);
    }

    pub(crate) fn was_unavailable(&self) -> bool {
        self.unavailable.load(Ordering::Relaxed)
    }

    /// Returns the user's response. `None` if the client does not support this kind of question or gave no response.
    async fn put(&self, params: Option<ElicitRequestParams>) -> Option<ElicitResult> {
        let to = self.to.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let can = |(_, reach): &(_, ElicitationSupport)| match &params {
            Some(ElicitRequestParams::UrlElicitationParams { .. }) => reach.pages,
            Some(_) => reach.forms,
            None => false,
        };
        let said = match (to.filter(can), params) {
            (Some((sender, _)), Some(params)) => {
                let (answer, answered) = oneshot::channel();
                drop(sender.send(PendingQuestion { params, answer }));
                answered.await.ok().flatten()
            }
            _ => None,
        };
        if said.is_none() {
            self.unavailable.store(true, Ordering::Relaxed);
        }
        said
    }

    /// Sends a form with one choice and returns the chosen option.
    async fn ask_choice(&self, message: &str, options: &[&str]) -> FormChoice {
        match self.put(form(message, choice(options))).await {
            None => FormChoice::Unavailable,
            Some(ElicitResult { action: ElicitationAction::Accept, content: Some(content), .. }) => {
                let value = content[FIELD].as_str();
                options.iter().position(|option| Some(*option) == value).map_or(FormChoice::None, FormChoice::Option)
            }
            Some(_) => FormChoice::None,
        }
    }
}

enum FormChoice {
    /// The index of the chosen option.
    Option(usize),
    None,
    Unavailable,
}

fn form(message: &str, schema: Value) -> Option<ElicitRequestParams> {
    let requested_schema = serde_json::from_value(schema)
        .inspect_err(|error| tracing::warn!(%error, "a question that MCP has no form for"))
        .ok()?;
    Some(ElicitRequestParams::FormElicitationParams { meta: None, message: strip_invisible(message), requested_schema })
}

impl Asker for McpAsker {
    fn ask(&self, question: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        Box::pin(async move {
            let mut options = vec![ALLOW, ALLOW_ALWAYS, REFUSE, REFUSE_ALWAYS];
            if question.is_single() {
                options = vec![ALLOW, REFUSE];
            } else if question.protected.is_some() {
                options.retain(|option| *option != ALLOW_ALWAYS);
            } else if question.rule.is_some() && self.rules.is_some() {
                options.insert(2, ALLOW_IN_PROJECT);
            }
            match self.ask_choice(&question_text(&question), &options).await {
                FormChoice::Unavailable => PermissionResponse::Unavailable,
                FormChoice::None => PermissionResponse::Refuse,
                FormChoice::Option(place) => match options[place] {
                    ALLOW => PermissionResponse::Allow,
                    ALLOW_ALWAYS => PermissionResponse::AllowAlways,
                    ALLOW_IN_PROJECT => {
                        // The user has allowed the call, so it runs even if the rule cannot be saved.
                        // Saved outside the async threads: it may be in a database.
                        let keep = self.rules.clone().zip(question.rule).map(|(rules, rule)| move || rules.keep(&rule));
                        if let Some(keep) = keep {
                            let kept = tokio::task::spawn_blocking(keep).await;
                            if let Err(problem) = kept.unwrap_or_else(|error| Err(RuleStoreError::new(error))) {
                                tracing::warn!(%problem, "a rule was not kept");
                            }
                        }
                        PermissionResponse::AllowAlways
                    }
                    REFUSE_ALWAYS => PermissionResponse::RefuseAlways,
                    _ => PermissionResponse::Refuse,
                },
            }
        })
    }

    fn choose(&self, choosing: ExternalPermissionRequest) -> BoxFuture<'_, Option<String>> {
        Box::pin(async move {
            // Two options may have the same name.
            let names: Vec<_> = choosing.options.iter().map(|option| strip_invisible(&option.name)).collect();
            let twice = |name: &String| names.iter().filter(|other| *other == name).count() > 1;
            let shown: Vec<_> = names
                .iter()
                .zip(&choosing.options)
                .map(|(name, option)| if twice(name) { format!("{name} ({})", option.id) } else { name.clone() })
                .collect();
            let shown: Vec<_> = shown.iter().map(String::as_str).collect();
            match self.ask_choice(&format!("{} asks: {}", choosing.by, choosing.title), &shown).await {
                FormChoice::Option(place) => Some(choosing.options[place].id.clone()),
                FormChoice::None | FormChoice::Unavailable => None,
            }
        })
    }

    fn elicit(&self, question: Elicitation) -> BoxFuture<'_, ElicitationResponse> {
        Box::pin(async move {
            if question.refusal().is_some() {
                return ElicitationResponse::Declined;
            }
            let message = format!("{} asks: {}", question.by, question.message);
            let params = match question.kind {
                ElicitationKind::Fields(schema) => form(&message, Value::Object(schema)),
                ElicitationKind::Page { id, url } => Some(ElicitRequestParams::UrlElicitationParams {
                    meta: None,
                    message: strip_invisible(&message),
                    url,
                    elicitation_id: id,
                }),
            };
            match self.put(params).await {
                None => ElicitationResponse::Unavailable,
                Some(said) => match said.action {
                    ElicitationAction::Accept => ElicitationResponse::Accepted(fields(said.content)),
                    ElicitationAction::Decline => ElicitationResponse::Declined,
                    _ => ElicitationResponse::Dismissed,
                },
            }
        })
    }
}

fn fields(content: Option<Value>) -> Map<String, Value> {
    match content {
        Some(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// Describes a call in full, because the user sees nothing else of it.
fn question_text(question: &PermissionRequest) -> String {
    let who = question.by.as_deref().unwrap_or("The agent");
    let title = question.title.as_deref().map(|title| format!(" ({title})")).unwrap_or_default();
    let arguments = serde_json::to_string_pretty(&question.arguments).unwrap_or_default();
    let shown = truncate(&arguments, ARGUMENTS);
    let more = match arguments.len() - shown.len() {
        0 => String::new(),
        more => format!("\n… and {more} bytes more, which are not shown"),
    };
    let tool = &question.tool;
    let always = &question.always;
    let host = always.host().map(|host| format!(" and fetch from {host}")).unwrap_or_default();
    let target = question.target.as_ref().map(|target| format!(" on {target}")).unwrap_or_default();
    let covers = match question.once_reason() {
        Some(reason) => format!("{reason}."),
        None => format!("An answer for the session or the project covers {always}."),
    };
    if let Some(title) = question.sandbox_title() {
        return format!("The sandbox asks: {title}\n{shown}{more}\n{covers}");
    }
    if let Some(services) = question.calling_services() {
        let agent = question.by.as_deref().map(|by| format!("{by}: ")).unwrap_or_default();
        return format!("{agent}{services} asks to call {tool}{title}{target}{host}:\n{shown}{more}\n{covers}");
    }
    format!("{who} wants to call {tool}{title}{target}{host}:\n{shown}{more}\n{covers}")
}

#[cfg(test)]
mod tests {
    use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult};
    use rmcp::{ErrorData, ServerHandler, ServiceExt as _};
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, ReadHalf, WriteHalf};

    use super::*;
    use crate::tool::ask::PermissionOption;

    /// What comes of a question if the client says this, and what the client was asked.
    async fn said<T>(
        reach: ElicitationSupport,
        said: ElicitResult,
        ask: impl AsyncFnOnce(&McpAsker) -> T,
    ) -> (T, Option<Value>) {
        let asker = McpAsker::new(None);
        let (sender, mut receiver) = mpsc::unbounded_channel();
        asker.set_client(sender, reach);
        let answering = async {
            let asked: Option<PendingQuestion> = receiver.recv().await;
            let params = asked.as_ref().map(|asked| json!(asked.params));
            if let Some(asked) = asked {
                asked.answer(Some(said));
            }
            params
        };
        let asking = async {
            let answer = ask(&asker).await;
            // Closes the channel, so that a question that was never put ends the test.
            *asker.to.lock().unwrap() = None;
            answer
        };
        tokio::join!(asking, answering)
    }

    fn accepted(content: Value) -> ElicitResult {
        ElicitResult::new(ElicitationAction::Accept).with_content(content)
    }

    const FORMS: ElicitationSupport = ElicitationSupport { forms: true, pages: false };

    fn choosing(names: [&str; 2]) -> ExternalPermissionRequest {
        let option =
            |id: &str, name: &str, allows| PermissionOption { id: id.to_owned(), name: name.to_owned(), allows };
        ExternalPermissionRequest {
            call: "1".to_owned(),
            parent_call: None,
            input: None,
            by: "claude/default".to_owned(),
            apart: None,
            title: "Remove everything".to_owned(),
            options: vec![option("y1", names[0], true), option("n1", names[1], false)],
            request: Map::new(),
        }
    }

    #[tokio::test]
    async fn a_choice_of_an_agent_outside_is_made_by_the_user_alone() {
        for (names, answer, chosen) in [
            (["Yes", "No"], "Yes", Some("y1")),
            (["Yes", "No"], "No", Some("n1")),
            (["Yes", "No"], "y1", None),
            (["Same", "Same"], "Same (n1)", Some("n1")),
            (["Same", "Same"], "Same", None),
        ] {
            let put = async |asker: &McpAsker| asker.choose(choosing(names)).await;
            let (got, asked) = said(FORMS, accepted(json!({"answer": answer})), put).await;
            assert_eq!(got.as_deref(), chosen, "{answer}");
            let message = asked.unwrap()["message"].to_string();
            assert!(message.contains("claude/default asks: Remove everything"), "{message}");
        }
        let put = async |asker: &McpAsker| asker.choose(choosing(["Yes", "No"])).await;
        let (got, _) = said(FORMS, ElicitResult::new(ElicitationAction::Decline), put).await;
        assert_eq!(got, None);
        let (got, asked) = said(ElicitationSupport::default(), accepted(json!({"answer": "Yes"})), put).await;
        assert_eq!((got, asked), (None, None), "a client that cannot ask is not asked");
    }

    /// A server whose only tool asks the user of the client.
    #[derive(Clone)]
    struct AskingServer;

    impl ServerHandler for AskingServer {
        async fn call_tool(
            &self,
            _: CallToolRequestParams,
            context: RequestContext<RoleServer>,
        ) -> Result<CallToolResponse, ErrorData> {
            let (asked, answer) = about_folder(Path::new("/work"), FORMS).unwrap();
            asked.put(&context.peer, &context.ct).await;
            let said = answer.await.unwrap();
            let action = said.as_ref().map(|said| said.action.clone());
            Ok(CallToolResult::structured(json!({"action": action, "allows": allows(said)})).into())
        }
    }

    /// A client of the older versions, which writes and reads lines itself.
    struct LineClient {
        lines: tokio::io::Lines<BufReader<ReadHalf<DuplexStream>>>,
        to: WriteHalf<DuplexStream>,
    }

    impl LineClient {
        async fn send(&mut self, message: Value) {
            self.to.write_all(format!("{message}\n").as_bytes()).await.unwrap();
        }

        async fn next(&mut self) -> Value {
            serde_json::from_str(&self.lines.next_line().await.unwrap().unwrap()).unwrap()
        }

        /// Begins a connection and calls the tool. Returns the question.
        async fn call(&mut self) -> Value {
            let params = json!({"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}},
                "clientInfo": {"name": "test", "version": "1"}});
            self.send(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})).await;
            self.next().await;
            self.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
            self.send(json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ask"}})).await;
            self.next().await
        }
    }

    /// Runs a client of a server that asks.
    async fn with_server(client: impl AsyncFnOnce(&mut LineClient)) {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let serving = async {
            let server = AskingServer.serve(theirs).await.unwrap();
            drop(server.waiting().await);
        };
        let (read, to) = tokio::io::split(ours);
        let mut line_client = LineClient { lines: BufReader::new(read).lines(), to };
        tokio::select! {
            () = serving => panic!("the server has ended"),
            () = client(&mut line_client) => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_without_an_answer_ends_in_time() {
        with_server(async |client| {
            let begun = tokio::time::Instant::now();
            let question = client.call().await;
            assert_eq!(question["method"], "elicitation/create", "{question}");
            let ended = client.next().await;
            assert_eq!(ended["method"], "notifications/cancelled", "{ended}");
            assert_eq!(ended["params"]["requestId"], question["id"], "{ended}");
            assert!(begun.elapsed() >= ANSWER_TIMEOUT, "{:?}", begun.elapsed());
            let result = client.next().await;
            let expected = json!({"action": "cancel", "allows": false});
            assert_eq!(result["result"]["structuredContent"], expected, "{result}");
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_request_takes_its_question_back() {
        with_server(async |client| {
            let begun = tokio::time::Instant::now();
            let question = client.call().await;
            client
                .send(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}))
                .await;
            let ended = client.next().await;
            assert_eq!(ended["method"], "notifications/cancelled", "{ended}");
            assert_eq!(ended["params"]["requestId"], question["id"], "{ended}");
            assert!(begun.elapsed() < ANSWER_TIMEOUT, "{:?}", begun.elapsed());
        })
        .await;
    }

    fn elicitation(wanted: ElicitationKind) -> Elicitation {
        Elicitation { by: "crm".to_owned(), call: None, message: "Which one?".to_owned(), kind: wanted }
    }

    #[tokio::test]
    async fn a_form_and_a_page_pass_as_they_are() {
        let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
        let fields = || ElicitationKind::Fields(fields(Some(schema.clone())));
        let put = async |asker: &McpAsker| asker.elicit(elicitation(fields())).await;
        let (got, asked) = said(FORMS, accepted(json!({"name": "Ada"})), put).await;
        assert_eq!(got, ElicitationResponse::Accepted(super::fields(Some(json!({"name": "Ada"})))));
        let asked = asked.unwrap();
        assert_eq!((&asked["requestedSchema"], &asked["message"]), (&schema, &json!("crm asks: Which one?")));
        let (got, _) = said(FORMS, ElicitResult::new(ElicitationAction::Decline), put).await;
        assert_eq!(got, ElicitationResponse::Declined);
        let (got, _) = said(FORMS, ElicitResult::new(ElicitationAction::Cancel), put).await;
        assert_eq!(got, ElicitationResponse::Dismissed);

        let page = || ElicitationKind::Page { id: "p1".to_owned(), url: "https://example.org/sign-in".to_owned() };
        let put = async |asker: &McpAsker| asker.elicit(elicitation(page())).await;
        let (got, asked) = said(ElicitationSupport { forms: false, pages: true }, accepted(json!({})), put).await;
        assert_eq!(got, ElicitationResponse::Accepted(Map::new()));
        assert_eq!(asked.unwrap()["url"], "https://example.org/sign-in");
        let (got, asked) = said(FORMS, accepted(json!({})), put).await;
        assert_eq!(
            (got, asked),
            (ElicitationResponse::Unavailable, None),
            "a client that opens no pages is not asked to"
        );

        let nested = json!({"type": "object", "properties": {"deep": {"type": "object"}}});
        let put = async |asker: &McpAsker| {
            let asked = asker.elicit(elicitation(ElicitationKind::Fields(super::fields(Some(nested.clone()))))).await;
            (asked, asker.was_unavailable())
        };
        let (got, asked) = said(FORMS, accepted(json!({})), put).await;
        assert_eq!(
            (got, asked),
            ((ElicitationResponse::Unavailable, true), None),
            "what MCP has no form for is not asked"
        );
    }
}
