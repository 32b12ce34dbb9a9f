//! A server that speaks MCP over streamable HTTP, of either era.

use std::collections::HashMap;

use reqwest::header::{HeaderName, HeaderValue};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;

use super::environment::Environment;
use crate::manifest::HttpTransport;

/// rmcp's client follows only redirects that stay on the same origin, so headers never reach another.
pub(super) fn start(
    transport: &HttpTransport,
    environment: &Environment,
) -> Result<StreamableHttpClientTransport<reqwest::Client>, String> {
    let url = environment.fill_in(&transport.url)?;
    let mut headers = HashMap::new();
    for (name, value) in &transport.headers {
        let filled = environment.fill_in(value)?;
        let header = HeaderName::try_from(name.as_str()).map_err(|_| format!("`{name}` is not a header name"))?;
        let mut value =
            HeaderValue::try_from(filled).map_err(|_| format!("the value of the header `{name}` is not valid"))?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    let config = StreamableHttpClientTransportConfig::with_uri(url)
        .custom_headers(headers)
        // It would send a call again that was answered with 404. That the server did not run it is only a promise.
        .reinit_on_expired_session(false);
    Ok(StreamableHttpClientTransport::from_config(config))
}
