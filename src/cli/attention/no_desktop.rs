//! Notifications on systems other than Linux: Skein shows none.

/// Does nothing: only Linux has the D-Bus of a desktop.
pub(super) async fn notify(_title: &str, _text: &str) {}
