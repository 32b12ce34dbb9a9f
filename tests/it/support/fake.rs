//! An MCP server made of a list of tools and a closure.

use std::sync::Arc;

use futures::future::BoxFuture;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use skein::task::TaskScope;
use skein::tool::CallContext;

type Answer = Result<CallToolResponse, ErrorData>;
type Handler = dyn Fn(CallToolRequestParams, RequestContext<RoleServer>) -> BoxFuture<'static, Answer> + Send + Sync;

#[derive(Clone)]
pub(crate) struct Fake {
    tools: Arc<Vec<Tool>>,
    handler: Arc<Handler>,
}

impl Fake {
    /// `handler` is given the name of the tool that is called. Tools whose name begins with `read` say that they
    /// only read.
    pub(crate) fn new(
        tools: &[&str],
        handler: impl Fn(String, CallContext) -> BoxFuture<'static, String> + Send + Sync + 'static,
    ) -> Self {
        let tool = |name: &&str| {
            let mut tool = Tool::new((*name).to_owned(), "For a test.", Arc::default());
            tool.annotations = Some(ToolAnnotations::new().read_only(name.starts_with("read")));
            tool
        };
        Self::with_requests(tools.iter().map(tool).collect(), move |request, context| {
            let call = context.extensions.get::<CallContext>().expect("every call has a context").clone();
            let text = handler(request.name.into_owned(), call);
            Box::pin(async move {
                Ok(CallToolResponse::Complete(CallToolResult::success(vec![ContentBlock::text(text.await)])))
            })
        })
    }

    /// `handler` is given each call as it came.
    pub(crate) fn with_requests(
        tools: Vec<Tool>,
        handler: impl Fn(CallToolRequestParams, RequestContext<RoleServer>) -> BoxFuture<'static, Answer>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self { tools: Arc::new(tools), handler: Arc::new(handler) }
    }
}

impl ServerHandler for Fake {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.to_vec()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        (self.handler)(request, context).await
    }
}

/// Serves on loopback until the scope ends, and says where.
pub(crate) async fn serve_over_http<S: ServerHandler>(
    scope: &TaskScope,
    server: impl Fn() -> S + Send + Sync + 'static,
) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let service = StreamableHttpService::new(
        move || Ok(server()),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default(),
    );
    let router = axum::Router::new().nest_service("/mcp", service);
    let ended = scope.cancelled().clone();
    scope.spawn(async move {
        axum::serve(listener, router).with_graceful_shutdown(ended.cancelled_owned()).await.expect("served");
    });
    format!("http://{address}/mcp")
}
