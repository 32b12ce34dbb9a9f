//! Classifies the errors of requests: permanent, transient or too long for the window.

use std::error::Error;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde_json::Value;

use super::dialect::{EventError, ProviderError};
use super::overflow;
use crate::clock;
use crate::network::is_trust_failure;
use crate::secrets::{address_secrets, secret_forms};

/// Minimum length of a key that is hidden; shorter ones protect nothing and occur within words.
const SHORTEST_KEY: usize = 8;

/// The reason of a failure and its kind, which decides about a retry.
pub(super) struct RequestFailure {
    pub(super) reason: String,
    pub(super) kind: FailureKind,
}

pub(super) enum FailureKind {
    Lasting,
    /// The provider answered with this HTTP status, and would do so again.
    Rejected(u16),
    Transient {
        retry_after: Option<Duration>,
    },
    /// The provider had too many requests.
    RateLimited {
        retry_after: Option<Duration>,
    },
    Overflow,
    /// The answer is longer than the maximum.
    TooLong,
}

/// Secrets that a provider may repeat in its error texts: its key, and those in its address. Each has a replacement for
/// all its forms. Longer ones come first, because one may begin another.
#[derive(Clone, Default)]
pub(super) struct ProviderSecrets(Vec<(String, String)>);

impl ProviderSecrets {
    pub(super) fn new(key: Option<&str>, address: &str) -> Self {
        let mut all = Vec::new();
        let mut add = |value: &str, replacement: String, shortest: usize| {
            let forms =
                secret_forms(value).into_iter().filter(|form| value.len() >= shortest && form.len() >= shortest);
            all.extend(forms.map(|form| (form, replacement.clone())));
        };
        if let Some(key) = key {
            add(key, "(the key)".to_owned(), SHORTEST_KEY);
        }
        // The address of a provider ends with a slash.
        for found in address_secrets(address.trim_end_matches('/')) {
            add(&found.value, format!("({} of the address)", found.part), found.part.min_length());
        }
        all.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
        Self(all)
    }

    fn hide(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (value, replacement)| text.replace(value, replacement))
    }

    /// Returns the beginning of a body. Hides the secrets first, because a truncated secret would not be recognized.
    fn brief(&self, body: &str) -> String {
        self.hide(body).chars().take(500).collect()
    }
}

impl RequestFailure {
    /// Classifies an error. The reason contains no secret. Each text is hidden once, because a replacement may contain
    /// another secret.
    pub(super) fn new(error: &ProviderError, secrets: &ProviderSecrets) -> Self {
        match error {
            ProviderError::Connection(cause) => Self {
                reason: secrets.hide(&unreachable_reason(cause.as_ref()).unwrap_or_else(|| chain(error))),
                kind: connection_failure(cause.as_ref()),
            },
            ProviderError::Status { status, headers, body } => Self::from_status(*status, headers, body, secrets),
            ProviderError::Blocked(reason) => {
                let reason = format!("it blocked the prompt: {}", secrets.brief(reason));
                Self { reason, kind: FailureKind::Lasting }
            }
            ProviderError::BrokenOff(reason) => {
                let reason = format!("it broke off: {}", secrets.brief(reason));
                Self { reason, kind: FailureKind::Transient { retry_after: None } }
            }
            ProviderError::Stopped(reason) => {
                let reason = format!("it stopped the answer: {}", secrets.brief(reason));
                Self { reason, kind: FailureKind::Lasting }
            }
            ProviderError::Reported(body) => Self::from_report(body, secrets),
            ProviderError::Foreign(text) => match serde_json::from_str::<Value>(text).map(first_entry) {
                Ok(body) if body.get("error").is_some_and(|error| !error.is_null()) => {
                    let reason = format!("it answered: {}", secrets.brief(&body.to_string()));
                    Self { reason, ..Self::from_report(&body, secrets) }
                }
                // A gateway may show a page while the model starts.
                Ok(_) | Err(_) => Self {
                    reason: format!(
                        "its answer is not an event stream; is its address that of a model? It begins with: {}",
                        secrets.brief(text)
                    ),
                    kind: FailureKind::Transient { retry_after: None },
                },
            },
            // Bytes that are no events were damaged on their way.
            ProviderError::Malformed(_) | ProviderError::Events(EventError::Text(_)) => {
                Self { reason: secrets.hide(&chain(error)), kind: FailureKind::Transient { retry_after: None } }
            }
            // The same request would get the same answer, so that a retry is of no use.
            ProviderError::Events(EventError::TooLong) => {
                Self { reason: secrets.hide(&chain(error)), kind: FailureKind::Lasting }
            }
            ProviderError::CallsTooLong => Self { reason: chain(error), kind: FailureKind::TooLong },
        }
    }

    /// Classifies an error that the provider reported in the middle of the answer.
    fn from_report(body: &Value, secrets: &ProviderSecrets) -> Self {
        let text = body.to_string();
        let passing = ["overloaded", "rate_limit", "server_error", "api_error", "unavailable", "timeout"];
        // Many providers report an HTTP status.
        let status = body["code"].as_u64().or_else(|| body["error"]["code"].as_u64());
        let kind = if overflow::is_overflow(&text) {
            FailureKind::Overflow
        } else if is_out_of_credit(&text) {
            FailureKind::Rejected(429)
        } else if status == Some(402) {
            FailureKind::Rejected(402)
        } else if status == Some(429) {
            FailureKind::RateLimited { retry_after: None }
        } else if matches!(status, Some(408 | 409 | 500..=599))
            || passing.iter().any(|word| text.to_lowercase().contains(word))
        {
            FailureKind::Transient { retry_after: None }
        } else {
            FailureKind::Lasting
        };
        Self { reason: format!("it broke off: {}", secrets.brief(&text)), kind }
    }

    fn from_status(status: StatusCode, headers: &HeaderMap, body: &str, secrets: &ProviderSecrets) -> Self {
        let reason = format!("it answered {status}: {}", secrets.brief(body));
        let kind = match status.as_u16() {
            429 if is_out_of_credit(body) => FailureKind::Rejected(429),
            429 => FailureKind::RateLimited { retry_after: retry_after(headers) },
            413 => FailureKind::Overflow,
            _ if overflow::is_overflow(body) => FailureKind::Overflow,
            // Providers answer 408 if they were too slow, and 409 if they received the request twice.
            408 | 409 | 500.. => FailureKind::Transient { retry_after: retry_after(headers) },
            status => FailureKind::Rejected(status),
        };
        Self { reason, kind }
    }
}

/// Returns true if an error has the code of OpenAI or of Moonshot for an account without credit. Their sentence does not
/// count: Gemini uses it for its limits per minute. So does Alibaba, with the code, and with a link to its limit.
fn is_out_of_credit(text: &str) -> bool {
    ["insufficient_quota", "exceeded_current_quota"].iter().any(|code| text.contains(code))
        && !text.contains("#token-limit")
}

/// Returns the first entry of a list, and other values as they are. Google sends its errors in a list.
fn first_entry(body: Value) -> Value {
    match body {
        Value::Array(entries) => entries.into_iter().next().unwrap_or_default(),
        other => other,
    }
}

/// Returns how long the provider asks to wait: a number, or until a date. `None` also for a date that is over, which
/// says nothing about now.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let number = |name: &str| text(name)?.trim().parse::<f64>().ok();
    let milliseconds = number("retry-after-ms").map(|wait| wait / 1000.0);
    if let Some(seconds) = milliseconds.or_else(|| number("retry-after")) {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let until = clock::parse_http(text("retry-after")?)?;
    // The clocks of the provider and of this machine may differ.
    let now = text("date").and_then(clock::parse_http).unwrap_or_else(clock::now);
    until.checked_sub(now).filter(|wait| *wait > 0).map(Duration::from_millis)
}

/// Returns the kind of a failed connection. A server that is not trusted now is not trusted a moment later.
fn connection_failure(error: &(dyn Error + 'static)) -> FailureKind {
    if causes(error).any(is_trust_failure) {
        FailureKind::Lasting
    } else {
        FailureKind::Transient { retry_after: None }
    }
}

/// Returns an error and its causes.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&(dyn Error + 'static)| (*error).source())
}

/// Describes a failed connection, with the reason from the system. Shows only the origin of the URL, because the rest
/// may contain a key. `None` if the error is not a failed connection.
fn unreachable_reason(error: &(dyn Error + 'static)) -> Option<String> {
    let request = causes(error).find_map(|cause| cause.downcast_ref::<reqwest::Error>())?;
    let origin = request.url().filter(|_| request.is_connect())?.origin().ascii_serialization();
    Some(format!("it cannot be reached at {origin}: {}", causes(error).last()?))
}

/// Returns an error and its causes on one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string().replace('\n', " ");
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(&format!(": {cause_text}"));
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn no_part_of_a_secret_is_left_at_the_end_of_a_reason() {
        let secrets = ProviderSecrets::new(Some("a-long-secret"), "http://localhost/v1?version=2&key=0123456789/");
        // The text ends within the key.
        let body = format!("{}a-long-secret", "x".repeat(495));
        let said = secrets.brief(&body);
        assert!(said.ends_with("x(the "), "{said}");
        let said = secrets.hide("version=2&key=0123456789 a-long-secret");
        assert_eq!(said, "version=2&key=(key of the address) (the key)");
    }

    #[test]
    fn secrets_of_an_address_are_hidden_in_every_form() {
        let address = "http://user:pw@localhost/0123456789abcdef01234567/?sig=canary%2Bmcp%2F12345/";
        let secrets = ProviderSecrets::new(Some("a\"long\"secret"), address);
        let body = "canary+mcp/12345, a\\\"long\\\"secret, user:pw, dXNlcjpwdw==, 0123456789abcdef01234567";
        assert_eq!(
            secrets.hide(body),
            "(sig of the address), (the key), (user of the address), (user of the address), (path of the address)"
        );
    }

    #[test]
    fn a_key_is_hidden_once_and_a_short_one_not_at_all() {
        let reason = |key: &str, body: &str| {
            let secrets = ProviderSecrets::new(Some(key), "http://localhost/v1/");
            RequestFailure::from_status(StatusCode::UNAUTHORIZED, &HeaderMap::new(), body, &secrets).reason
        };
        assert_eq!(reason("k", "invalid x-api-key"), "it answered 401 Unauthorized: invalid x-api-key");
        assert_eq!(reason("sk-12345", "not sk-12345"), "it answered 401 Unauthorized: not (the key)");
    }

    #[test]
    fn an_account_without_credit_is_not_asked_again() {
        let kind = |body: &str| {
            let secrets = ProviderSecrets::default();
            let by_status =
                RequestFailure::from_status(StatusCode::TOO_MANY_REQUESTS, &HeaderMap::new(), body, &secrets);
            let by_report = RequestFailure::from_report(&serde_json::from_str(body).unwrap(), &secrets);
            [by_status.kind, by_report.kind].map(|kind| matches!(kind, FailureKind::Rejected(429)))
        };
        for (body, is_rejected) in [
            (r#"{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}"#, true),
            (r#"{"error":{"type":"exceeded_current_quota_error","message":"suspended"}}"#, true),
            (r#"{"error":{"code":429,"message":"You exceeded your current quota","status":"X"}}"#, false),
            (r#"{"error":{"code":"insufficient_quota","message":"see error-code#token-limit"}}"#, false),
        ] {
            assert_eq!(kind(body), [is_rejected; 2], "{body}");
        }
    }

    #[test]
    fn an_error_with_the_status_of_no_credit_is_not_asked_again() {
        let body = r#"{"code":402,"message":"Insufficient credits"}"#;
        let secrets = ProviderSecrets::default();
        let by_status = RequestFailure::from_status(StatusCode::PAYMENT_REQUIRED, &HeaderMap::new(), body, &secrets);
        let by_report = RequestFailure::from_report(&serde_json::from_str(body).unwrap(), &secrets);
        for failure in [by_status, by_report] {
            assert!(matches!(failure.kind, FailureKind::Rejected(402)), "{}", failure.reason);
        }
    }

    #[test]
    fn a_wait_is_a_number_or_lasts_until_a_date() {
        let wait = |fields: &[(&'static str, &str)]| {
            let headers = fields.iter().map(|&(name, value)| {
                (HeaderName::from_static(name), value.parse::<HeaderValue>().expect("a header value"))
            });
            retry_after(&headers.collect())
        };
        let (until, date) = ("Wed, 18 Nov 2026 16:00:30 GMT", "Wed, 18 Nov 2026 16:00:00 GMT");
        let seconds = |seconds: u64| Some(Duration::from_secs(seconds));
        assert_eq!(wait(&[("retry-after", "7")]), seconds(7));
        assert_eq!(wait(&[("retry-after", "7"), ("retry-after-ms", "2000")]), seconds(2));
        assert_eq!(wait(&[("retry-after", until), ("retry-after-ms", "2000")]), seconds(2));
        assert_eq!(wait(&[("retry-after", until), ("date", date)]), seconds(30));
        assert_eq!(wait(&[("retry-after", date), ("date", until)]), None);
        assert_eq!(wait(&[("retry-after", date), ("date", date)]), None);
        assert_eq!(wait(&[("retry-after", "Mon, 01 Jan 2001 00:00:00 GMT")]), None);
        for wrong in ["-1", "soon", "Mon, 18 Nov 2026 16:00:30 GMT", "inf"] {
            assert_eq!(wait(&[("retry-after", wrong)]), None, "{wrong}");
        }
    }

    #[tokio::test]
    async fn unreachable_server_error_shows_only_the_origin() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let client = crate::network::client_builder().build().unwrap();
        let error = client.get(format!("http://{address}/v1?key=hidden")).send().await.unwrap_err();
        let told = unreachable_reason(&error).unwrap();
        assert!(told.starts_with(&format!("it cannot be reached at http://{address}: Connection refused")), "{told}");
    }
}
