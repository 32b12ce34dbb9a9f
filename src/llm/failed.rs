//! Why a request to a model behind HTTP failed, read from what `genai` says of it.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::HeaderMap;

use super::overflow;

/// The reason, and what may be done about it.
pub(super) struct Failed {
    pub(super) reason: String,
    pub(super) kind: FailureKind,
}

pub(super) enum FailureKind {
    Lasting,
    Passing { retry_after: Option<Duration> },
    Overflow,
}

impl From<&genai::Error> for Failed {
    fn from(error: &genai::Error) -> Self {
        use genai::webc::Error as WebError;
        match error {
            // A refusal that is found while the stream opens comes wrapped.
            genai::Error::WebStream { error: inner, .. } => match inner.downcast_ref::<genai::Error>() {
                Some(inner) => Self::from(inner),
                None => Self { reason: chain(error), kind: FailureKind::Passing { retry_after: None } },
            },
            genai::Error::HttpError { status, headers, body, .. }
            | genai::Error::WebModelCall {
                webc_error: WebError::ResponseFailedStatus { status, body, headers }, ..
            } => Self::refused(*status, headers, body),
            // An error that is told in the middle of the answer.
            genai::Error::ChatResponse { body, .. } => {
                let body = body.to_string();
                let passing = ["overloaded", "rate_limit", "server_error", "api_error", "unavailable", "timeout"];
                let kind = if overflow::is_overflow(&body) {
                    FailureKind::Overflow
                } else if passing.iter().any(|word| body.to_lowercase().contains(word)) {
                    FailureKind::Passing { retry_after: None }
                } else {
                    FailureKind::Lasting
                };
                Self { reason: format!("it broke off: {}", brief(&body)), kind }
            }
            // What cannot be read was cut or garbled on its way.
            genai::Error::StreamParse { .. } | genai::Error::WebModelCall { webc_error: WebError::Reqwest(_), .. } => {
                Self { reason: chain(error), kind: FailureKind::Passing { retry_after: None } }
            }
            _ => Self { reason: chain(error), kind: FailureKind::Lasting },
        }
    }
}

impl Failed {
    fn refused(status: StatusCode, headers: &HeaderMap, body: &str) -> Self {
        let reason = format!("it answered {status}: {}", brief(body));
        let kind = match status.as_u16() {
            429 => FailureKind::Passing { retry_after: retry_after(headers) },
            413 => FailureKind::Overflow,
            _ if overflow::is_overflow(body) => FailureKind::Overflow,
            // 408 and 409 are what providers answer when they were too slow, or had the request twice.
            408 | 409 | 500.. => FailureKind::Passing { retry_after: retry_after(headers) },
            _ => FailureKind::Lasting,
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

/// An error and what caused it, on one line.
fn chain(error: &dyn std::error::Error) -> String {
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
