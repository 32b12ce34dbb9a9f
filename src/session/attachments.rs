//! Lists resources of bound services as links, and attaches the resources that a prompt links to.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::slash::SlashCommandError;
use crate::broker::{Binding, Requester, sanitize_text};
use crate::conversation::Content;
use crate::tool::{CallContext, SessionContext};

/// Maximum bytes of attached text; more would leave the model little room for the rest.
const MAX_ATTACHED: usize = 256 << 10;

/// Returns the resources of the mode as links for a prompt. Leaves out built-in services, which have commands and tools
/// for theirs.
pub async fn links(binding: &Binding) -> Vec<Content> {
    let resources = binding.resources_where(|service| !binding.has_built_in(service)).await;
    let listed = resources.into_iter().filter(|of| !of.template);
    let link = |of: crate::broker::ServiceResource| {
        let text = |key: &str| of.value[key].as_str().map(sanitize_text).filter(|text| !text.is_empty());
        let uri = of.value["uri"].as_str()?;
        let name = text("name").unwrap_or_else(|| uri.to_owned());
        let mut link = json!({"uri": uri, "name": format!("{}: {name}", of.service)});
        for key in ["title", "description", "mimeType"] {
            if let Some(text) = text(key) {
                link[key] = json!(text);
            }
        }
        Some(Content::Link(link))
    };
    listed.filter_map(link).collect()
}

/// Replaces links to resources of bound services by their content. Other links stay. Fails if a resource cannot be read
/// or is too long.
pub async fn attach_resources(
    binding: &Binding,
    session: &Arc<SessionContext>,
    prompt: Vec<Content>,
    cancel: &CancellationToken,
) -> Result<Vec<Content>, SlashCommandError> {
    let mut whole = Vec::new();
    for content in prompt {
        let uri = match &content {
            Content::Link(link) => link["uri"].as_str().unwrap_or_default().to_owned(),
            _ => String::new(),
        };
        if uri.is_empty() || !binding.offers_resource(&uri).await {
            whole.push(content);
            continue;
        }
        let context = CallContext::new(Arc::clone(session)).with_cancel(cancel.clone());
        let read = binding.read_resource(&uri, Requester::User, context).await;
        let read = read.map_err(|source| SlashCommandError::Attachment { uri: uri.clone(), source })?;
        let contents = read["contents"].as_array().map(Vec::as_slice).unwrap_or_default();
        let size: usize = contents.iter().filter_map(|piece| piece["text"].as_str()).map(str::len).sum();
        if size > MAX_ATTACHED {
            return Err(SlashCommandError::AttachmentTooLarge { uri, size, limit: MAX_ATTACHED });
        }
        whole.extend(contents.iter().map(piece));
    }
    Ok(whole)
}

fn piece(content: &Value) -> Content {
    let mime = content["mimeType"].as_str().unwrap_or_default();
    match content["blob"].as_str().filter(|_| mime.starts_with("image/")) {
        Some(data) => Content::Image { mime: mime.to_owned(), data: data.to_owned() },
        None => Content::Resource(content.clone()),
    }
}
