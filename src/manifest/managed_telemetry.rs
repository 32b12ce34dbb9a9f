//! Applies the managed limits of telemetry.

use super::managed_config::ManagedTelemetry;
use super::managed_exclusion::ManagedSetting;
use super::managed_layer::ManagedLayer;

impl ManagedTelemetry {
    /// Returns whether spans may be sent to this address.
    fn admits(&self, url: &str) -> bool {
        let url = plain(url);
        let is_below = |endpoint: &String| {
            let rest = url.strip_prefix(plain(endpoint).as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_admitted = |endpoints: &Vec<String>| !is_ambiguous(&url) && endpoints.iter().any(is_below);
        self.endpoints.as_ref().is_none_or(is_admitted)
    }
}

/// Returns whether an HTTP client may send to another path than the text says, such as `/a/../b`.
fn is_ambiguous(url: &str) -> bool {
    let is_dots = |part: &str| matches!(part.replace("%2e", ".").as_str(), "." | "..");
    url.contains(['\\', '\t', '\n', '\r']) || url.split(['/', '?', '#']).any(is_dots)
}

fn plain(url: &str) -> String {
    url.trim_end_matches('/').to_ascii_lowercase()
}

impl ManagedLayer {
    /// Returns the setting that does not allow spans to be sent to this address. `None` if all do.
    pub fn receiver_refusal(&self, url: &str) -> Option<ManagedSetting> {
        self.find_refusal(|telemetry| !telemetry.admits(url))
    }

    /// Returns the setting that keeps the text of messages and calls out of spans. `None` if none does.
    pub fn content_refusal(&self) -> Option<ManagedSetting> {
        self.find_refusal(|telemetry| telemetry.content == Some(false))
    }

    fn find_refusal(&self, refuses: impl Fn(&ManagedTelemetry) -> bool) -> Option<ManagedSetting> {
        let entry = self.entries().iter().find(|entry| entry.config.telemetry.as_ref().is_some_and(&refuses))?;
        Some(entry.setting("telemetry"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_stands_for_the_paths_below_it() {
        let endpoints = Some(vec!["https://collector.example.com/".to_owned(), "http://127.0.0.1:4318/a".to_owned()]);
        let telemetry = ManagedTelemetry { endpoints, content: None };
        for (url, is_admitted) in [
            ("https://collector.example.com", true),
            ("https://Collector.example.com/v1/traces", true),
            ("http://127.0.0.1:4318/a/v1/traces", true),
            ("http://127.0.0.1:4318/ab", false),
            ("http://127.0.0.1:4318/v1/traces", false),
            ("http://127.0.0.1:4318/a/../v1/traces", false),
            ("http://127.0.0.1:4318/a/%2E./v1/traces", false),
            ("http://127.0.0.1:4318/a/.\t./v1/traces", false),
            ("http://127.0.0.1:4318/a\\..\\v1/traces", false),
            ("http://collector.example.com/v1/traces", false),
            ("https://collector.example.com.evil.example/v1/traces", false),
            ("https://collector.example.com@evil.example/v1/traces", false),
            ("https://collector.example.com:8443/v1/traces", false),
        ] {
            assert_eq!(telemetry.admits(url), is_admitted, "{url}");
        }
        assert!(ManagedTelemetry { endpoints: None, content: Some(false) }.admits("http://anywhere"));
        assert!(!ManagedTelemetry { endpoints: Some(Vec::new()), content: None }.admits("http://anywhere"));
    }
}
