//! Reads the environment variables of OpenTelemetry that concern the export of spans.

use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use super::AttributeValue;
use crate::manifest::ManagedLayer;
use crate::network::TrustedRootsError;

const DEFAULT_ENDPOINT: &str = "http://localhost:4318";
/// Adds the text of messages and calls to spans.
pub(super) const CONTENT_VARIABLE: &str = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";
const PROTOCOL: &str = "http/protobuf";
/// Spans that may wait, if the user sets no other number.
const DEFAULT_QUEUE: u64 = 2_048;
/// The largest number that the user can set.
const MAX_QUEUE: u64 = 65_536;

/// Where spans go, and how.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ExportSettings {
    pub(super) url: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) resource: Vec<(String, AttributeValue)>,
    /// Time limit of a request.
    pub(super) timeout: Duration,
    /// Longest time between the end of a span and its request.
    pub(super) delay: Duration,
    /// Spans that may wait.
    pub(super) queue: usize,
    /// Spans in one request.
    pub(super) batch: usize,
    /// Whether spans contain the text of messages and calls.
    pub(super) with_content: bool,
    /// Whether requests are compressed with gzip.
    pub(super) with_gzip: bool,
    /// `None` if the receiver must have a certificate that the system trusts, and for plain HTTP.
    pub(super) certificate: Option<CertificateFile>,
}

/// The file with the certificates that the receiver may have, in PEM format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CertificateFile {
    pub(super) variable: &'static str,
    pub(super) path: PathBuf,
}

/// Why spans cannot be exported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::cli) enum ExportSettingsError {
    #[error("{variable} is `{value}`; Skein exports with `{PROTOCOL}` only: set it to that, or unset it")]
    Protocol { variable: &'static str, value: String },
    #[error("{variable} is `{value}`; set it to `gzip` or `none`")]
    Compression { variable: &'static str, value: String },
    #[error("{variable} cannot be used: {source}")]
    Certificate { variable: &'static str, source: TrustedRootsError },
    #[error("OTEL_TRACES_EXPORTER is `{value}`; set it to `otlp` or `none`")]
    Exporter { value: String },
    #[error("OTEL_TRACES_SAMPLER is `{value}`; Skein has `always_on`, `always_off` and their `parentbased_` forms")]
    Sampler { value: String },
    #[error("{variable} must be a whole number above 0, not `{value}`")]
    Number { variable: &'static str, value: String },
    /// The value may contain a secret, so it is not shown.
    #[error("{variable} must be a list like `name=value,name=value`, with percent-encoding")]
    List { variable: &'static str },
    #[error("{variable} must begin with http:// or https://")]
    Endpoint { variable: &'static str },
    #[error("the headers cannot be sent: {reason}")]
    Headers { reason: String },
    #[error("{setting} does not allow the receiver that the OTEL_ variables name")]
    Receiver { setting: String },
    #[error("the managed settings cannot be used, and they may limit it")]
    ManagedSettings,
    #[error("no thread can be started: {reason}")]
    Thread { reason: String },
}

impl ExportSettings {
    /// Reads the variables. Returns `None` if they ask for no export. Fails if a variable is not valid.
    pub(super) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, ExportSettingsError> {
        let is_true = |name: &str| variable(name).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let exporter = variable("OTEL_TRACES_EXPORTER");
        let endpoint = endpoint(&variable)?;
        match exporter.as_deref() {
            _ if is_true("OTEL_SDK_DISABLED") => return Ok(None),
            Some("none") => return Ok(None),
            // Telemetry leaves the machine only if the user names a receiver or this exporter.
            None if endpoint.is_none() => return Ok(None),
            None | Some("otlp") => {}
            Some(value) => return Err(ExportSettingsError::Exporter { value: value.to_owned() }),
        }
        match variable("OTEL_TRACES_SAMPLER").as_deref() {
            Some("always_off" | "parentbased_always_off") => return Ok(None),
            None | Some("always_on" | "parentbased_always_on") => {}
            Some(value) => return Err(ExportSettingsError::Sampler { value: value.to_owned() }),
        }
        let of_traces = |names: [&'static str; 2]| names.into_iter().find_map(|name| Some((name, variable(name)?)));
        match of_traces(["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"]) {
            Some((variable, value)) if value != PROTOCOL => {
                return Err(ExportSettingsError::Protocol { variable, value });
            }
            Some(_) | None => {}
        }
        let compression = of_traces(["OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION"]);
        let with_gzip = match compression {
            Some((_, value)) if value == "gzip" => true,
            Some((variable, value)) if value != "none" => {
                return Err(ExportSettingsError::Compression { variable, value });
            }
            Some(_) | None => false,
        };
        let url = endpoint.unwrap_or_else(|| format!("{DEFAULT_ENDPOINT}/v1/traces"));
        let certificate = of_traces(["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"]);
        let certificate = certificate.filter(|_| url.starts_with("https://"));
        let number = |name: &'static str, default: u64| match variable(name) {
            None => Ok(default),
            Some(value) => {
                let number = value.parse::<u64>().ok().filter(|number| *number > 0);
                number.ok_or(ExportSettingsError::Number { variable: name, value })
            }
        };
        let timeout = number("OTEL_EXPORTER_OTLP_TIMEOUT", 10_000)?;
        let count = |name: &'static str, default: u64| -> Result<usize, ExportSettingsError> {
            let number = number(name, default)?.min(MAX_QUEUE);
            Ok(usize::try_from(number).unwrap_or(usize::MAX))
        };
        let queue = count("OTEL_BSP_MAX_QUEUE_SIZE", DEFAULT_QUEUE)?;
        let batch = count("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)?.min(queue);
        let mut headers = list("OTEL_EXPORTER_OTLP_HEADERS", &variable)?;
        headers.extend(list("OTEL_EXPORTER_OTLP_TRACES_HEADERS", &variable)?);
        Ok(Some(Self {
            url,
            headers,
            resource: resource(&variable)?,
            timeout: Duration::from_millis(number("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", timeout)?),
            delay: Duration::from_millis(number("OTEL_BSP_SCHEDULE_DELAY", 5000)?),
            queue,
            batch,
            with_content: is_true(CONTENT_VARIABLE),
            with_gzip,
            certificate: certificate.map(|(variable, path)| CertificateFile { variable, path: path.into() }),
        }))
    }
}

impl ExportSettings {
    /// Applies managed settings. Fails if they do not allow the receiver.
    pub(super) fn limit_to(&mut self, managed: &ManagedLayer) -> Result<(), ExportSettingsError> {
        if let Some(setting) = managed.receiver_refusal(&self.url) {
            return Err(ExportSettingsError::Receiver { setting: setting.to_string() });
        }
        self.with_content &= managed.content_refusal().is_none();
        Ok(())
    }
}

/// Returns the address for spans. The variable for traces has the whole address, the general one its beginning.
fn endpoint(variable: &impl Fn(&str) -> Option<String>) -> Result<Option<String>, ExportSettingsError> {
    let of_traces = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    let general = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let (name, url) = match (variable(of_traces), variable(general)) {
        (Some(url), _) => (of_traces, url),
        (None, Some(url)) => (general, format!("{}/v1/traces", url.trim_end_matches('/'))),
        (None, None) => return Ok(None),
    };
    if url.starts_with("http://") || url.starts_with("https://") {
        return Ok(Some(url));
    }
    Err(ExportSettingsError::Endpoint { variable: name })
}

/// Returns the attributes of the process. `OTEL_SERVICE_NAME` comes before the list.
fn resource(variable: &impl Fn(&str) -> Option<String>) -> Result<Vec<(String, AttributeValue)>, ExportSettingsError> {
    let mut all = vec![
        ("service.name".to_owned(), "skein".to_owned()),
        ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
    ];
    let named = variable("OTEL_SERVICE_NAME").map(|name| ("service.name".to_owned(), name));
    for (key, value) in list("OTEL_RESOURCE_ATTRIBUTES", variable)?.into_iter().chain(named) {
        match all.iter_mut().find(|(existing, _)| *existing == key) {
            Some((_, existing)) => *existing = value,
            None => all.push((key, value)),
        }
    }
    let pid = AttributeValue::Integer(std::process::id().into());
    let texts = all.into_iter().map(|(key, value)| (key, AttributeValue::Text(value)));
    Ok(texts.chain([("process.pid".to_owned(), pid)]).collect())
}

/// Reads a list like `name=value,name=value`.
fn list(
    name: &'static str,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>, ExportSettingsError> {
    let text = variable(name).unwrap_or_default();
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(|item| {
        let (key, value) = item.split_once('=')?;
        Some((decode(key.trim())?, decode(value.trim())?)).filter(|(key, _)| !key.is_empty())
    });
    items.collect::<Option<_>>().ok_or(ExportSettingsError::List { variable: name })
}

/// Decodes `%41`. Returns `None` if an escape is not valid or the result is no UTF-8.
fn decode(text: &str) -> Option<String> {
    let is_escape = |after: &str| after.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    let decoded = percent_decode_str(text).decode_utf8().ok()?;
    text.split('%').skip(1).all(is_escape).then(|| decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{ManagedFile, load_managed};

    fn read(variables: &[(&str, &str)]) -> Result<Option<ExportSettings>, ExportSettingsError> {
        ExportSettings::read(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_is_exported_unless_the_user_asks_for_it() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318");
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[("OTEL_SERVICE_NAME", "mine")]), Ok(None));
        for off in
            [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none"), ("OTEL_TRACES_SAMPLER", "always_off")]
        {
            assert_eq!(read(&[endpoint, off]), Ok(None), "{off:?}");
        }
        assert!(read(&[endpoint]).unwrap().is_some());
        let url = read(&[("OTEL_TRACES_EXPORTER", "otlp")]).unwrap().unwrap().url;
        assert_eq!(url, "http://localhost:4318/v1/traces");
    }

    #[test]
    fn managed_settings_limit_receivers_and_content() {
        let managed = |text: &str| {
            let file = ManagedFile { file: "managed.yaml".to_owned(), text: format!("version: 1\n{text}\n") };
            load_managed(&[], None, &[file]).0.managed
        };
        let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318"), (CONTENT_VARIABLE, "true")];
        let limited = |text: &str| {
            let mut settings = read(&variables).unwrap().unwrap();
            settings.limit_to(&managed(text)).map(|()| settings.with_content)
        };
        assert_eq!(limited("telemetry: {endpoints: ['http://localhost:4318']}"), Ok(true));
        assert_eq!(limited("telemetry: {content: false}"), Ok(false));
        assert_eq!(limited("telemetry: {content: true}"), Ok(true));
        let error = limited("telemetry: {endpoints: []}").unwrap_err().to_string();
        assert!(error.contains("the managed setting `telemetry` (managed.yaml:2)"), "{error}");
    }

    #[test]
    fn the_variables_for_traces_come_before_the_general_ones() {
        let settings = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://general"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces/here"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "none"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "general.pem"),
            ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "traces.pem"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "2"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc, x=1"),
        ]);
        let settings = settings.unwrap().unwrap();
        assert_eq!((settings.url.as_str(), settings.timeout), ("https://traces/here", Duration::from_millis(2)));
        let headers =
            [("authorization", "Bearer abc"), ("x", "1")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(settings.headers, headers);
        assert!(!settings.with_content && !settings.with_gzip);
        let variable = "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE";
        assert_eq!(settings.certificate, Some(CertificateFile { variable, path: "traces.pem".into() }));
    }

    #[test]
    fn plain_http_needs_no_certificate() {
        let certificate = ("OTEL_EXPORTER_OTLP_CERTIFICATE", "general.pem");
        let of = |url| read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", url), certificate]).unwrap().unwrap().certificate;
        assert_eq!(of("http://general"), None);
        assert_eq!(of("https://general").unwrap().variable, "OTEL_EXPORTER_OTLP_CERTIFICATE");
    }

    #[test]
    fn a_service_has_the_name_that_the_user_gives_it() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://general/");
        let name = |variables: &[(&str, &str)]| {
            let settings = read(&[&[endpoint], variables].concat()).unwrap().unwrap();
            assert_eq!(settings.url, "http://general/v1/traces");
            settings.resource.into_iter().find(|(key, _)| key == "service.name").unwrap().1
        };
        let text = |text: &str| AttributeValue::Text(text.to_owned());
        let attributes = ("OTEL_RESOURCE_ATTRIBUTES", "service.name=listed,team=a");
        assert_eq!(name(&[]), text("skein"));
        assert_eq!(name(&[attributes]), text("listed"));
        assert_eq!(name(&[attributes, ("OTEL_SERVICE_NAME", "named")]), text("named"));
    }

    #[test]
    fn an_invalid_variable_is_named_without_its_secret() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost");
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
            ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "deflate"),
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_BSP_SCHEDULE_DELAY", "soon"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "hidden-secret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "key=%zzhidden-secret"),
        ] {
            let error = read(&[endpoint, (name, value)]).unwrap_err().to_string();
            assert!(error.contains(name) && !error.contains("hidden-secret"), "{error}");
        }
        let error = read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4317")]).unwrap_err().to_string();
        assert_eq!(error, "OTEL_EXPORTER_OTLP_ENDPOINT must begin with http:// or https://");
    }
}
