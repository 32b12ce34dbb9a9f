//! An MCP server in this process, made of a list of tools and a closure.

use std::sync::Arc;

use futures::future::BoxFuture;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use skein::tool::CallContext;

type Handler = dyn Fn(String, CallContext) -> BoxFuture<'static, String> + Send + Sync;

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
        Self { tools: Arc::new(tools.iter().map(tool).collect()), handler: Arc::new(handler) }
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
        let call = context.extensions.get::<CallContext>().expect("every call has a context").clone();
        let text = (self.handler)(request.name.into_owned(), call).await;
        Ok(CallToolResponse::Complete(CallToolResult::success(vec![ContentBlock::text(text)])))
    }
}
