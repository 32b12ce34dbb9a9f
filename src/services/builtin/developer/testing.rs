//! What the tests of the tools share: a session in a folder of its own, and calls through the real handler.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use futures::channel::mpsc;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientJsonRpcMessage, NumberOrString, ServerJsonRpcMessage,
};
use rmcp::service::{RequestContext, RunningService, serve_directly};
use rmcp::{RoleServer, ServerHandler as _};
use serde_json::{Map, Value};

use crate::process::minimal_environment;
use crate::sandbox::HiddenPaths;
use crate::tool::editor::Editor;
use crate::tool::{Activity, CallContext, SessionContext, SessionContextPorts};

use super::{Developer, DeveloperOptions};

pub(super) struct Workshop {
    pub(super) session: Arc<SessionContext>,
    service: RunningService<RoleServer, Developer>,
    requests: AtomicI64,
    /// The client's end of the connection, which nobody uses.
    _client: (mpsc::Sender<ClientJsonRpcMessage>, mpsc::Receiver<ServerJsonRpcMessage>),
    pub(super) folder: tempfile::TempDir,
}

/// A result, taken apart.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Said {
    pub(super) text: String,
    pub(super) data: Value,
    pub(super) is_error: bool,
    pub(super) images: Vec<(String, String)>,
}

impl Workshop {
    /// Must be called within a runtime. The folder holds `project`, the working directory, and `scratch`.
    pub(super) fn new() -> Self {
        Self::shown_in(None)
    }

    pub(super) fn shown_in(editor: Option<Arc<dyn Editor>>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["project", "scratch", "outside"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let (cwd, scratch) = (folder.path().join("project"), folder.path().join("scratch"));
        let hidden = HiddenPaths::new(&cwd.join("home"), []);
        let ports = SessionContextPorts { hidden, editor, ..SessionContextPorts::default() };
        let session = SessionContext::with_ports("s1", cwd, Vec::new(), scratch, ports);
        let (client, requests) = mpsc::channel(8);
        let (answers, from_server) = mpsc::channel(8);
        let environment = minimal_environment([("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())]);
        let handler = Developer::new(DeveloperOptions { reaper: None, environment, sandbox: None });
        let service = serve_directly(handler, (answers, requests), None);
        Self { session, service, requests: AtomicI64::new(0), _client: (client, from_server), folder }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.session.cwd.join(name)
    }

    pub(super) fn outside(&self) -> PathBuf {
        self.folder.path().join("outside")
    }

    pub(super) fn put(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, contents).unwrap();
        path
    }

    pub(super) fn get(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    pub(super) fn handler(&self) -> &Developer {
        self.service.service()
    }

    pub(super) fn context(&self) -> RequestContext<RoleServer> {
        let id = self.requests.fetch_add(1, Ordering::Relaxed);
        RequestContext::new(NumberOrString::Number(id), self.service.peer().clone())
    }

    pub(super) async fn call(&self, tool: &'static str, arguments: Value) -> Said {
        self.call_with(CallContext::new(Arc::clone(&self.session)), tool, arguments).await
    }

    pub(super) async fn call_with(&self, call: CallContext, tool: &'static str, arguments: Value) -> Said {
        let mut context = self.context();
        context.extensions.insert(call);
        self.call_in(context, tool, arguments).await
    }

    /// A call, and what it told while it ran.
    pub(super) async fn call_told(&self, tool: &'static str, arguments: Value) -> (Said, Vec<Activity>) {
        let told: Arc<Mutex<Vec<Activity>>> = Arc::default();
        let listener = {
            let told = Arc::clone(&told);
            move |activity| told.lock().unwrap().push(activity)
        };
        let call = CallContext::new(Arc::clone(&self.session)).with_activity(listener);
        let said = self.call_with(call, tool, arguments).await;
        let told = told.lock().unwrap().clone();
        (said, told)
    }

    pub(super) async fn call_in(
        &self,
        context: RequestContext<RoleServer>,
        tool: &'static str,
        arguments: Value,
    ) -> Said {
        let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
        match self.handler().call_tool(request(tool, arguments), context).await {
            Ok(CallToolResponse::Complete(result)) => Said::from(result),
            other => panic!("no answer of a tool: {other:?}"),
        }
    }
}

fn request(tool: &'static str, arguments: Map<String, Value>) -> CallToolRequestParams {
    CallToolRequestParams::new(tool).with_arguments(arguments)
}

impl From<CallToolResult> for Said {
    fn from(result: CallToolResult) -> Self {
        let texts: Vec<&str> =
            result.content.iter().filter_map(|content| content.as_text()).map(|text| text.text.as_str()).collect();
        let images = result.content.iter().filter_map(|content| content.as_image());
        Self {
            text: texts.join("\n"),
            images: images.map(|image| (image.mime_type.clone(), image.data.clone())).collect(),
            data: result.structured_content.clone().unwrap_or(Value::Null),
            is_error: result.is_error == Some(true),
        }
    }
}

impl Said {
    #[track_caller]
    pub(super) fn ok(self) -> Self {
        assert!(!self.is_error, "{}", self.text);
        self
    }

    #[track_caller]
    pub(super) fn refused(self, part: &str) -> Self {
        assert!(self.is_error && self.text.contains(part), "expected a refusal with {part:?}: {self:?}");
        self
    }
}

/// Runs a test of a property, which is not async, against real tools.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// True if no process with this id is left (a zombie counts as gone).
pub(super) fn is_gone(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.trim()).join("stat"));
    stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z "))
}
