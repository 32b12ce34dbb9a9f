//! Classifies the errors of `genai` requests: permanent, transient or too long for the window.

use std::error::Error;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::HeaderMap;

use super::overflow;

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
}

impl From<&genai::Error> for RequestFailure {
    fn from(error: &genai::Error) -> Self {
        use genai::webc::Error as WebError;
        match error {
            // genai wraps an HTTP error that it finds while it opens the stream.
            genai::Error::WebStream { error: inner, .. } => match inner.downcast_ref::<genai::Error>() {
                Some(inner) => Self::from(inner),
                None => {
                    let reason = unreachable_reason(inner.as_ref()).unwrap_or_else(|| chain(error));
                    Self { reason, kind: FailureKind::Transient { retry_after: None } }
                }
            },
            genai::Error::HttpError { status, headers, body, .. }
            | genai::Error::WebModelCall {
                webc_error: WebError::ResponseFailedStatus { status, body, headers }, ..
            } => Self::from_status(*status, headers, body),
            // The provider reported an error in the middle of the answer.
            genai::Error::ChatResponse { body, .. } => {
                let body = body.to_string();
                let passing = ["overloaded", "rate_limit", "server_error", "api_error", "unavailable", "timeout"];
                let kind = if overflow::is_overflow(&body) {
                    FailureKind::Overflow
                } else if passing.iter().any(|word| body.to_lowercase().contains(word)) {
                    FailureKind::Transient { retry_after: None }
                } else {
                    FailureKind::Lasting
                };
                Self { reason: format!("it broke off: {}", brief(&body)), kind }
            }
            // A response that does not parse was cut off or damaged on its way.
            genai::Error::StreamParse { .. } | genai::Error::WebModelCall { webc_error: WebError::Reqwest(_), .. } => {
                let reason = unreachable_reason(error).unwrap_or_else(|| chain(error));
                Self { reason, kind: FailureKind::Transient { retry_after: None } }
            }
            _ => Self { reason: chain(error), kind: FailureKind::Lasting },
        }
    }
}

impl RequestFailure {
    fn from_status(status: StatusCode, headers: &HeaderMap, body: &str) -> Self {
        let reason = format!("it answered {status}: {}", brief(body));
        let kind = match status.as_u16() {
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

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let milliseconds = number("retry-after-ms").map(|wait| wait / 1000.0);
    Duration::try_from_secs_f64(milliseconds.or_else(|| number("retry-after"))?).ok()
}

fn brief(body: &str) -> String {
    body.chars().take(500).collect()
}

/// Describes a failed connection, with the reason from the system. Shows only the origin of the URL, because the rest
/// may contain a key. `None` if the error is not a failed connection.
fn unreachable_reason(error: &(dyn Error + 'static)) -> Option<String> {
    let causes: Vec<&(dyn Error + 'static)> =
        std::iter::successors(Some(error), |error: &&(dyn Error + 'static)| (*error).source()).collect();
    let request = causes.iter().find_map(|cause| cause.downcast_ref::<reqwest::Error>())?;
    let origin = request.url().filter(|_| request.is_connect())?.origin().ascii_serialization();
    Some(format!("it cannot be reached at {origin}: {}", causes.last()?))
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
    use super::*;

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
