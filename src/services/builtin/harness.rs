//! For the tests of built-in services: a service with a session of its own, called as the pool calls it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::ServerHandler;
use serde_json::{Map, Value};
use tempfile::TempDir;

use super::super::connection::{CallError, ServiceConnection};
use super::BuiltinConnection;
use crate::ids::ToolName;
use crate::tool::{Activity, CallContext, Catalog, SessionContext, ToolCall, ToolOutcome, ToolSpec};

pub(super) struct Harness {
    connection: Arc<dyn ServiceConnection>,
    pub(super) session: Arc<SessionContext>,
    /// Holds the folders of the session and the service.
    folder: Arc<TempDir>,
}

impl Harness {
    /// Within a runtime.
    pub(super) fn new(service: impl ServerHandler) -> Self {
        Self::with_data(|_| service)
    }

    /// A service that keeps something in a folder of its own.
    pub(super) fn with_data<H: ServerHandler>(make: impl FnOnce(&std::path::Path) -> H) -> Self {
        let folder = Arc::new(tempfile::tempdir().expect("a folder"));
        for name in ["cwd", "scratch"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let service = make(&folder.path().join("data"));
        Self {
            connection: Arc::new(BuiltinConnection::new(service, Some(folder.path().join("cwd")))),
            session: session("first", &folder),
            folder,
        }
    }

    /// The same service, called by another session.
    pub(super) fn other_session(&self, id: &str) -> Self {
        Self {
            connection: Arc::clone(&self.connection),
            session: session(id, &self.folder),
            folder: Arc::clone(&self.folder),
        }
    }

    pub(super) async fn call(&self, tool: &str, arguments: Value) -> ToolOutcome {
        let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
        self.call_with(CallContext::new(Arc::clone(&self.session)), tool, arguments).await
    }

    /// A call, and what it told while it ran.
    pub(super) async fn told(&self, tool: &str, arguments: Value) -> (ToolOutcome, Vec<Activity>) {
        let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
        let told: Arc<Mutex<Vec<Activity>>> = Arc::default();
        let sink = Arc::clone(&told);
        let context = CallContext::new(Arc::clone(&self.session))
            .with_activity(move |activity| sink.lock().expect("no panic").push(activity));
        let outcome = self.call_with(context, tool, arguments).await;
        let told = told.lock().expect("no panic").clone();
        (outcome, told)
    }

    pub(super) async fn call_with(
        &self,
        context: CallContext,
        tool: &str,
        arguments: Map<String, Value>,
    ) -> ToolOutcome {
        let call = ToolCall { tool: ToolName::new(tool), arguments, context };
        self.connection.call(call, LIMIT).await.expect("an answer")
    }

    /// The structured content of a call that succeeds.
    pub(super) async fn data(&self, tool: &str, arguments: Value) -> Value {
        let outcome = self.call(tool, arguments).await;
        assert!(!outcome.is_error, "{tool}: {}", outcome.all_text());
        outcome.structured.unwrap_or_default()
    }

    /// What a call that fails says.
    pub(super) async fn refusal(&self, tool: &str, arguments: Value) -> String {
        let outcome = self.call(tool, arguments).await;
        assert!(outcome.is_error, "{tool} succeeded: {}", outcome.all_text());
        outcome.all_text()
    }

    pub(super) async fn resource(&self, uri: &str) -> Value {
        let context = CallContext::new(Arc::clone(&self.session));
        self.connection.read_resource(uri.to_owned(), context, LIMIT).await.expect("a resource")
    }

    /// What a resource that cannot be read, or a prompt that cannot be had, says.
    pub(super) fn refused(error: CallError) -> String {
        let CallError::Refused(reason) = error else { panic!("refused: {error:?}") };
        reason
    }

    pub(super) async fn read(&self, uri: &str) -> Result<Value, String> {
        let context = CallContext::new(Arc::clone(&self.session));
        self.connection.read_resource(uri.to_owned(), context, LIMIT).await.map_err(Self::refused)
    }

    /// The text of a prompt's one message.
    pub(super) async fn prompt(&self, name: &str, arguments: Value) -> Result<String, String> {
        let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
        let context = CallContext::new(Arc::clone(&self.session));
        let prompt = self.connection.get_prompt(name.to_owned(), arguments, context, LIMIT).await;
        let prompt = prompt.map_err(Self::refused)?;
        Ok(prompt["messages"][0]["content"]["text"].as_str().expect("text").to_owned())
    }

    pub(super) async fn catalog(&self) -> Catalog {
        self.connection.catalog().await.expect("a catalogue")
    }

    pub(super) fn instructions(&self) -> String {
        self.connection.instructions().unwrap_or_default()
    }

    pub(super) async fn tools(&self) -> Vec<ToolSpec> {
        self.catalog().await.tools
    }

    /// What the service costs in every request to a model: names, descriptions and schemas.
    pub(super) async fn schema_bytes(&self, service: &str) -> usize {
        let bytes = |tool: &ToolSpec| {
            let name = format!("{service}__{}", tool.name);
            let shown = serde_json::json!({
                "name": name, "description": tool.description, "input_schema": &*tool.input_schema,
            });
            shown.to_string().len()
        };
        self.tools().await.iter().map(bytes).sum()
    }
}

fn session(id: &str, folder: &TempDir) -> Arc<SessionContext> {
    SessionContext::new(id, folder.path().join("cwd"), Vec::new(), folder.path().join("scratch"))
}

const LIMIT: Duration = Duration::from_secs(60);

/// A runtime for a property test, in which each case is one `block_on`.
pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}
