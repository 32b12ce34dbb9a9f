//! An MCP client whose user answers the questions of a server, in both eras of the protocol.

use std::sync::{Arc, Mutex};

use rmcp::model::{
    ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationCapability,
    FormElicitationCapability, Implementation, ProtocolVersion,
};
use rmcp::service::RequestContext;
use rmcp::{ClientHandler, ClientLifecycleMode, ErrorData, RoleClient};
use serde_json::json;

pub(crate) const ERAS: [ProtocolVersion; 2] = [ProtocolVersion::V_2025_11_25, ProtocolVersion::V_2026_07_28];

/// What the user of a client was asked.
pub(crate) type HeardQuestions = Arc<Mutex<Vec<ElicitRequestParams>>>;

/// A client whose user answers like this, and which keeps the questions.
pub(crate) struct AnswerClient {
    version: ProtocolVersion,
    answer: Box<dyn Fn() -> ElicitResult + Send + Sync>,
    heard: HeardQuestions,
}

impl AnswerClient {
    pub(crate) fn new(
        version: ProtocolVersion,
        answer: impl Fn() -> ElicitResult + Send + Sync + 'static,
    ) -> (Self, HeardQuestions) {
        let heard = HeardQuestions::default();
        (Self { version, answer: Box::new(answer), heard: Arc::clone(&heard) }, heard)
    }

    /// How a connection begins in its version.
    pub(crate) fn lifecycle(&self) -> ClientLifecycleMode {
        if self.version >= ProtocolVersion::V_2026_07_28 {
            ClientLifecycleMode::Discover { preferred_versions: vec![self.version.clone()] }
        } else {
            ClientLifecycleMode::Initialize
        }
    }
}

impl ClientHandler for AnswerClient {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        capabilities.elicitation = Some(ElicitationCapability::new().with_form(FormElicitationCapability::default()));
        ClientConfig::new(capabilities, Implementation::new("test", "1")).with_protocol_version(self.version.clone())
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.heard.lock().expect("what was heard").push(request);
        Ok((self.answer)())
    }
}

/// The answer of a user who fills in the form.
pub(crate) fn accepts(answer: &str) -> ElicitResult {
    ElicitResult::new(ElicitationAction::Accept).with_content(json!({"answer": answer}))
}
