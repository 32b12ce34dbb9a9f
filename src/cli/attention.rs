//! Reaches a user who does not answer a permission request: the terminal's bell, the desktop, a webhook.

#[cfg(target_os = "linux")]
mod desktop;
#[cfg(not(target_os = "linux"))]
#[path = "attention/no_desktop.rs"]
mod desktop;

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::json;

use super::output::display_line;
use crate::manifest::NotificationSettings;
use crate::network;
use crate::session::{AttentionSink, OpenRequest};

/// How long a webhook may take.
const WEBHOOK_TIME: Duration = Duration::from_secs(10);

/// Notifies the user of this machine, and the webhook of the config.
#[derive(Debug, Clone, Copy)]
pub(super) struct UserAttention;

impl AttentionSink for UserAttention {
    fn alert<'a>(&'a self, settings: &'a NotificationSettings, request: OpenRequest) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            // The terminal and the desktop are those of the user of this machine, not of the client of a server.
            if request.principal.is_local() {
                if settings.bell {
                    ring();
                }
                if settings.desktop {
                    let text = format!("{} waits for your consent", display_line(&request.asked_by));
                    let place = display_line(&request.cwd.display().to_string());
                    desktop::notify(&text, &place).await;
                }
            }
            if let Some(url) = &settings.webhook {
                post(url, settings, &request).await;
            }
        })
    }
}

/// Rings the bell of the terminal. It changes nothing on the screen, so it may ring while a question is shown.
fn ring() {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal()
        && let Err(error) = stderr.write_all(b"\x07").and_then(|()| stderr.flush())
    {
        tracing::debug!(%error, "the terminal did not ring");
    }
}

/// Posts the request to the webhook, without arguments of the call.
async fn post(url: &str, settings: &NotificationSettings, request: &OpenRequest) {
    let body = json!({
        "event": "permission_request_open",
        "session": request.session,
        "principal": request.principal.name(),
        "asked_by": request.asked_by,
        "folder": request.cwd,
        "seconds": settings.after.as_secs(),
        "link": settings.console_link(&request.session),
    });
    let client = match network::client_builder().timeout(WEBHOOK_TIME).build() {
        Ok(client) => client,
        Err(error) => return tracing::warn!(%error, "the webhook of `notifications` cannot be used"),
    };
    let sent = client.post(url).header("content-type", "application/json").body(body.to_string()).send().await;
    match sent.and_then(|response| response.error_for_status()) {
        Ok(_) => {}
        // The URL may contain a secret.
        Err(error) => tracing::warn!(error = %error.without_url(), "the webhook of `notifications` failed"),
    }
}
