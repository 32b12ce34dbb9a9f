//! Lists a server's tools, prompts, resources and templates, page by page.

use rmcp::model::PaginatedRequestParams;
use serde::Serialize;
use serde_json::Value;

use super::McpConnection;
use crate::services::connection::CallError;
use crate::services::content;
use crate::tool::Catalog;

/// Maximum number of pages and items per list; a server may page forever.
const MAX_PAGES: usize = 50;
const MAX_ITEMS: usize = 2_000;
/// Maximum bytes of the items of a list as JSON.
const MAX_BYTES: usize = 8 << 20;

impl McpConnection {
    pub(super) async fn list(&self) -> Result<Catalog, CallError> {
        let capabilities = self.peer.peer_info().map(|info| info.capabilities.clone()).unwrap_or_default();
        let mut catalog = Catalog::default();
        // Each list ends at the limits or when the server repeats a cursor.
        macro_rules! pages {
            ($list:ident, $items:ident, $into:expr) => {{
                let (mut cursor, mut bytes) = (None, 0);
                for page in 0.. {
                    let request = PaginatedRequestParams::default().with_cursor(cursor.clone());
                    let result = match self.peer.$list(Some(request)).await {
                        Ok(result) => result,
                        Err(error) => return Err(self.explain(error).await),
                    };
                    let items: &mut Vec<_> = $into;
                    let is_full = !add_items(items, result.$items, &mut bytes);
                    let next = result.next_cursor;
                    let is_last = page + 1 == MAX_PAGES || items.len() == MAX_ITEMS || is_full;
                    if next.is_none() || next == cursor || is_last {
                        if next.is_some() || is_full {
                            self.warn_truncated(stringify!($list), items.len());
                        }
                        break;
                    }
                    cursor = next;
                }
            }};
        }
        if capabilities.tools.is_some() {
            pages!(list_tools, tools, &mut catalog.tools);
        }
        if capabilities.prompts.is_some() {
            pages!(list_prompts, prompts, &mut catalog.prompts);
        }
        if capabilities.resources.is_some() {
            pages!(list_resources, resources, &mut catalog.resources);
            // Optional: some servers with resources do not implement the method.
            if let Ok(result) = self.peer.list_resource_templates(None).await {
                let is_full = !add_items(&mut catalog.templates, result.resource_templates, &mut 0);
                if result.next_cursor.is_some() || is_full {
                    self.warn_truncated("list_resource_templates", catalog.templates.len());
                }
            }
        }
        Ok(catalog)
    }

    /// Logs that the rest of a list is dropped.
    fn warn_truncated(&self, list: &str, kept: usize) {
        tracing::warn!(service = %self.client.service, list, kept, "list of the server truncated");
    }
}

/// Adds the items of a page until the list is full. `bytes` is the size of the list so far. Returns whether it has all.
fn add_items<I: Serialize + Convert<T>, T>(items: &mut Vec<T>, page: Vec<I>, bytes: &mut usize) -> bool {
    for item in page {
        *bytes += serde_json::to_vec(&item).map_or(0, |json| json.len());
        if items.len() == MAX_ITEMS || *bytes > MAX_BYTES {
            return false;
        }
        items.push(item.convert());
    }
    true
}

/// Converts an item of an MCP list to its catalog form.
trait Convert<T> {
    fn convert(self) -> T;
}

impl Convert<crate::tool::ToolSpec> for rmcp::model::Tool {
    fn convert(self) -> crate::tool::ToolSpec {
        content::spec(self)
    }
}

macro_rules! kept_as_json {
    ($($item:ty),*) => {$(
        impl Convert<Value> for $item {
            fn convert(self) -> Value {
                content::json(&self)
            }
        }
    )*};
}
kept_as_json!(rmcp::model::Prompt, rmcp::model::Resource, rmcp::model::ResourceTemplate);
