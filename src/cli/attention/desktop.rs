//! Shows a notification on the desktop, over the session's D-Bus.

use std::collections::HashMap;
use std::time::Duration;

use zbus::Variant;

use super::super::environment::session_bus;

/// A desktop answers in milliseconds.
const PATIENCE: Duration = Duration::from_secs(3);
const SERVICE: &str = "org.freedesktop.Notifications";
const OBJECT: &str = "/org/freedesktop/Notifications";

/// Shows a notification. Does nothing without a desktop.
pub(super) async fn notify(title: &str, text: &str) {
    let Some(address) = session_bus() else { return };
    match tokio::time::timeout(PATIENCE, send(&address, title, text)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::info!(%error, "the desktop showed no notification"),
        Err(_) => tracing::info!("the desktop did not answer"),
    }
}

async fn send(address: &str, title: &str, text: &str) -> zbus::Result<()> {
    let bus = zbus::connection::Builder::address(address).build().await?;
    let hints: HashMap<&str, Variant<'_>> = HashMap::from([("category", Variant::from("im.received"))]);
    let no_actions: Vec<&str> = Vec::new();
    // The desktop chooses how long it shows the notification.
    let body = ("Skein", 0_u32, "", title, escape_markup(text), no_actions, hints, -1_i32);
    bus.call_method(Some(SERVICE), OBJECT, Some(SERVICE), "Notify", &body).await?;
    Ok(())
}

/// Escapes the markup that desktops accept in the text of a notification.
fn escape_markup(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
