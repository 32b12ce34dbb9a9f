//! Questions of a turn, put to the user of the client as elicitations: a form with one choice for consent, and whatever
//! a service or an agent outside asks as it is.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use rmcp::model::{
    ClientCapabilities, ClientResult, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction,
    ServerRequest,
};
use rmcp::{Peer, RoleServer};
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::broker::{Answer, Asker, Choosing, Question, RuleStore};
use crate::tool::elicit::{Elicitation, Elicited, Wanted};
use crate::tool::{head, plain};

/// The one field of a form about consent.
const FIELD: &str = "answer";
const ALLOW: &str = "allow";
const ALLOW_ALWAYS: &str = "allow in this session";
const ALLOW_IN_PROJECT: &str = "allow in this project";
const REFUSE: &str = "reject";
const REFUSE_ALWAYS: &str = "reject in this session";

/// The longest that is shown of a call's arguments; whoever cannot see all of them is told so.
const ARGUMENTS: usize = 16 * 1024;

/// What the client can ask its user.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reach {
    forms: bool,
    pages: bool,
}

impl Reach {
    pub(super) fn of(client: ClientCapabilities) -> Self {
        let Some(can) = client.elicitation else { return Self::default() };
        // One that names neither is of the time when there were only forms.
        Self { forms: can.form.is_some() || can.url.is_none(), pages: can.url.is_some() }
    }
}

/// A question on its way to the client.
pub(super) struct Asked {
    pub(super) params: ElicitRequestParams,
    answer: oneshot::Sender<Option<ElicitResult>>,
}

impl Asked {
    /// As a request of its own.
    pub(super) async fn put(self, client: &Peer<RoleServer>) {
        let request = ServerRequest::ElicitRequest(ElicitRequest::new(self.params));
        let said = match client.send_request(request).await {
            Ok(ClientResult::ElicitResult(said)) => Some(said),
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(%error, "the client did not answer a question");
                None
            }
        };
        // The turn may have been cancelled meanwhile.
        drop(self.answer.send(said));
    }

    pub(super) fn answer(self, said: Option<ElicitResult>) {
        drop(self.answer.send(said));
    }
}

/// Asks whether a session may work in a folder. `None` if the client cannot ask its user. The receiver gets the answer.
pub(super) fn about_folder(folder: &Path, reach: Reach) -> Option<(Asked, oneshot::Receiver<Option<ElicitResult>>)> {
    let message = format!(
        "The client's model wants an agent to work in {}, which is not below the folder in which skein was started. Allow it \
         this folder until skein ends?",
        folder.display()
    );
    let params = reach.forms.then(|| form(&message, choice(&[ALLOW, REFUSE]))).flatten()?;
    let (answer, answered) = oneshot::channel();
    Some((Asked { params, answer }, answered))
}

/// True if the user accepted the form and chose to allow.
pub(super) fn allows(said: Option<ElicitResult>) -> bool {
    matches!(said, Some(ElicitResult { action: ElicitationAction::Accept, content: Some(content), .. })
        if content[FIELD].as_str() == Some(ALLOW))
}

/// The schema of a form with one choice.
fn choice(options: &[&str]) -> Value {
    json!({
        "type": "object",
        "properties": {FIELD: {"type": "string", "title": "Answer", "enum": options}},
        "required": [FIELD],
    })
}

/// Asks through whichever request the turn of the moment answers.
pub(super) struct ByClient {
    to: Mutex<Option<(mpsc::UnboundedSender<Asked>, Reach)>>,
    /// Somebody should have been asked in this turn, and nobody could be.
    unheard: AtomicBool,
    rules: Arc<dyn RuleStore>,
}

impl ByClient {
    pub(super) fn new(rules: Arc<dyn RuleStore>) -> Self {
        Self { to: Mutex::default(), unheard: AtomicBool::new(false), rules }
    }

    /// From the beginning of a turn to that of the next.
    pub(super) fn speaks_to(&self, sender: mpsc::UnboundedSender<Asked>, reach: Reach) {
        *self.to.lock().unwrap_or_else(PoisonError::into_inner) = Some((sender, reach));
        self.unheard.store(false, Ordering::Relaxed);
    }

    pub(super) fn was_unheard(&self) -> bool {
        self.unheard.load(Ordering::Relaxed)
    }

    /// What the user says; nothing if nobody can be asked in this way.
    async fn put(&self, params: Option<ElicitRequestParams>) -> Option<ElicitResult> {
        let to = self.to.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let can = |(_, reach): &(_, Reach)| match &params {
            Some(ElicitRequestParams::UrlElicitationParams { .. }) => reach.pages,
            Some(_) => reach.forms,
            None => false,
        };
        let said = match (to.filter(can), params) {
            (Some((sender, _)), Some(params)) => {
                let (answer, answered) = oneshot::channel();
                drop(sender.send(Asked { params, answer }));
                answered.await.ok().flatten()
            }
            _ => None,
        };
        if said.is_none() {
            self.unheard.store(true, Ordering::Relaxed);
        }
        said
    }

    /// The value of the one field, if the user accepted the form.
    async fn chosen(&self, message: &str, options: &[&str]) -> Chosen {
        match self.put(form(message, choice(options))).await {
            None => Chosen::Unheard,
            Some(ElicitResult { action: ElicitationAction::Accept, content: Some(content), .. }) => {
                let value = content[FIELD].as_str();
                options.iter().position(|option| Some(*option) == value).map_or(Chosen::None, Chosen::Option)
            }
            Some(_) => Chosen::None,
        }
    }
}

enum Chosen {
    /// By its place among those that were offered.
    Option(usize),
    None,
    Unheard,
}

fn form(message: &str, schema: Value) -> Option<ElicitRequestParams> {
    let requested_schema = serde_json::from_value(schema)
        .inspect_err(|error| tracing::warn!(%error, "a question that MCP has no form for"))
        .ok()?;
    Some(ElicitRequestParams::FormElicitationParams { meta: None, message: plain(message), requested_schema })
}

impl Asker for ByClient {
    fn ask(&self, question: Question) -> BoxFuture<'_, Answer> {
        Box::pin(async move {
            let mut options = vec![ALLOW, ALLOW_ALWAYS, REFUSE, REFUSE_ALWAYS];
            if question.protected.is_some() {
                options.retain(|option| *option != ALLOW_ALWAYS);
            } else if question.rule.is_some() {
                options.insert(2, ALLOW_IN_PROJECT);
            }
            match self.chosen(&in_words(&question), &options).await {
                Chosen::Unheard => Answer::Unheard,
                Chosen::None => Answer::Refuse,
                Chosen::Option(place) => match options[place] {
                    ALLOW => Answer::Allow,
                    ALLOW_ALWAYS => Answer::AllowAlways,
                    ALLOW_IN_PROJECT => {
                        // What was consented to runs, whether or not the rule can be kept.
                        if let Some(Err(problem)) = question.rule.map(|rule| self.rules.keep(&rule)) {
                            tracing::warn!(problem, "a rule was not kept");
                        }
                        Answer::AllowAlways
                    }
                    REFUSE_ALWAYS => Answer::RefuseAlways,
                    _ => Answer::Refuse,
                },
            }
        })
    }

    fn choose(&self, choosing: Choosing) -> BoxFuture<'_, Option<String>> {
        Box::pin(async move {
            // Two may have one name.
            let names: Vec<_> = choosing.options.iter().map(|option| plain(&option.name)).collect();
            let twice = |name: &String| names.iter().filter(|other| *other == name).count() > 1;
            let shown: Vec<_> = names
                .iter()
                .zip(&choosing.options)
                .map(|(name, option)| if twice(name) { format!("{name} ({})", option.id) } else { name.clone() })
                .collect();
            let shown: Vec<_> = shown.iter().map(String::as_str).collect();
            match self.chosen(&format!("{} asks: {}", choosing.by, choosing.title), &shown).await {
                Chosen::Option(place) => Some(choosing.options[place].id.clone()),
                Chosen::None | Chosen::Unheard => None,
            }
        })
    }

    fn elicit(&self, question: Elicitation) -> BoxFuture<'_, Elicited> {
        Box::pin(async move {
            if question.refusal().is_some() {
                return Elicited::Declined;
            }
            let message = format!("{} asks: {}", question.by, question.message);
            let params = match question.wanted {
                Wanted::Fields(schema) => form(&message, Value::Object(schema)),
                Wanted::Page { id, url } => Some(ElicitRequestParams::UrlElicitationParams {
                    meta: None,
                    message: plain(&message),
                    url,
                    elicitation_id: id,
                }),
            };
            match self.put(params).await {
                None => Elicited::Unheard,
                Some(said) => match said.action {
                    ElicitationAction::Accept => Elicited::Accepted(fields(said.content)),
                    ElicitationAction::Decline => Elicited::Declined,
                    _ => Elicited::Dismissed,
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

/// A call for a person who cannot see anything else of it.
fn in_words(question: &Question) -> String {
    let who = question.by.as_deref().unwrap_or("The agent");
    let title = question.title.as_deref().map(|title| format!(" ({title})")).unwrap_or_default();
    let arguments = serde_json::to_string_pretty(&question.arguments).unwrap_or_default();
    let shown = head(&arguments, ARGUMENTS);
    let more = match arguments.len() - shown.len() {
        0 => String::new(),
        more => format!("\n… and {more} bytes more, which are not shown"),
    };
    let tool = &question.tool;
    let always = &question.always;
    let host = always.host().map(|host| format!(" and fetch from {host}")).unwrap_or_default();
    let target = question.target.as_ref().map(|target| format!(" on {target}")).unwrap_or_default();
    let covers = match &question.protected {
        Some(protected) => format!("{protected}."),
        None => format!("An answer for the session or the project covers {always}."),
    };
    format!("{who} wants to call {tool}{title}{target}{host}:\n{shown}{more}\n{covers}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::ChoosingOption;
    use crate::manifest::PermissionRule;

    struct NoRules;

    impl RuleStore for NoRules {
        fn keep(&self, _: &PermissionRule) -> Result<(), String> {
            Err("there is no place for it".to_owned())
        }
    }

    /// What comes of a question if the client says this, and what the client was asked.
    async fn said<T>(reach: Reach, said: ElicitResult, ask: impl AsyncFnOnce(&ByClient) -> T) -> (T, Option<Value>) {
        let asker = ByClient::new(Arc::new(NoRules));
        let (sender, mut receiver) = mpsc::unbounded_channel();
        asker.speaks_to(sender, reach);
        let answering = async {
            let asked: Option<Asked> = receiver.recv().await;
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

    const FORMS: Reach = Reach { forms: true, pages: false };

    fn choosing(names: [&str; 2]) -> Choosing {
        let option = |id: &str, name: &str, allows| ChoosingOption { id: id.to_owned(), name: name.to_owned(), allows };
        Choosing {
            call: None,
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
            let put = async |asker: &ByClient| asker.choose(choosing(names)).await;
            let (got, asked) = said(FORMS, accepted(json!({"answer": answer})), put).await;
            assert_eq!(got.as_deref(), chosen, "{answer}");
            let message = asked.unwrap()["message"].to_string();
            assert!(message.contains("claude/default asks: Remove everything"), "{message}");
        }
        let put = async |asker: &ByClient| asker.choose(choosing(["Yes", "No"])).await;
        let (got, _) = said(FORMS, ElicitResult::new(ElicitationAction::Decline), put).await;
        assert_eq!(got, None);
        let (got, asked) = said(Reach::default(), accepted(json!({"answer": "Yes"})), put).await;
        assert_eq!((got, asked), (None, None), "a client that cannot ask is not asked");
    }

    fn elicitation(wanted: Wanted) -> Elicitation {
        Elicitation { by: "crm".to_owned(), call: None, message: "Which one?".to_owned(), wanted }
    }

    #[tokio::test]
    async fn a_form_and_a_page_pass_as_they_are() {
        let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
        let fields = || Wanted::Fields(fields(Some(schema.clone())));
        let put = async |asker: &ByClient| asker.elicit(elicitation(fields())).await;
        let (got, asked) = said(FORMS, accepted(json!({"name": "Ada"})), put).await;
        assert_eq!(got, Elicited::Accepted(super::fields(Some(json!({"name": "Ada"})))));
        let asked = asked.unwrap();
        assert_eq!((&asked["requestedSchema"], &asked["message"]), (&schema, &json!("crm asks: Which one?")));
        let (got, _) = said(FORMS, ElicitResult::new(ElicitationAction::Decline), put).await;
        assert_eq!(got, Elicited::Declined);
        let (got, _) = said(FORMS, ElicitResult::new(ElicitationAction::Cancel), put).await;
        assert_eq!(got, Elicited::Dismissed);

        let page = || Wanted::Page { id: "p1".to_owned(), url: "https://example.org/sign-in".to_owned() };
        let put = async |asker: &ByClient| asker.elicit(elicitation(page())).await;
        let (got, asked) = said(Reach { forms: false, pages: true }, accepted(json!({})), put).await;
        assert_eq!(got, Elicited::Accepted(Map::new()));
        assert_eq!(asked.unwrap()["url"], "https://example.org/sign-in");
        let (got, asked) = said(FORMS, accepted(json!({})), put).await;
        assert_eq!((got, asked), (Elicited::Unheard, None), "a client that opens no pages is not asked to");

        let nested = json!({"type": "object", "properties": {"deep": {"type": "object"}}});
        let put = async |asker: &ByClient| {
            let asked = asker.elicit(elicitation(Wanted::Fields(super::fields(Some(nested.clone()))))).await;
            (asked, asker.was_unheard())
        };
        let (got, asked) = said(FORMS, accepted(json!({})), put).await;
        assert_eq!((got, asked), ((Elicited::Unheard, true), None), "what MCP has no form for is not asked");
    }
}
