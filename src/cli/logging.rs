//! Sets up tracing: structured lines to a file in the state folder and, if `SKEIN_LOG` is set, filtered lines to
//! stderr.

mod file;

use std::sync::Mutex;

use tracing::Subscriber;
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};
use tracing_subscriber::filter::{EnvFilter, FilterExt as _, Targets};
use tracing_subscriber::layer::{Filter, Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use super::folders::Folders;
use super::telemetry::{self, ExportGuard};
use super::{Global, managed_files, private_files};
use crate::telemetry::SPAN_TARGET;
use file::LogFile;

/// What no log shows. rmcp logs the notifications of services and full addresses, and `tokio_postgres` the parameters of
/// statements; both may contain secrets or conversations. So does the client of genai, which only tests use. Spans and
/// message content are for the export alone.
const HIDDEN: [(&str, LevelFilter); 4] = [
    ("rmcp", LevelFilter::OFF),
    ("genai", LevelFilter::OFF),
    ("tokio_postgres", LevelFilter::INFO),
    (SPAN_TARGET, LevelFilter::OFF),
];

/// Returns the filter of a log: what the directives show, except [`HIDDEN`]. In one list of directives, a more specific
/// one, such as `telemetry::content=info`, would win over the hidden target. Two filters must both agree.
fn log_filter<S: Subscriber>(directives: &str) -> impl Filter<S> + Send + Sync + 'static {
    let shown = Targets::new().with_default(LevelFilter::TRACE).with_targets(HIDDEN);
    EnvFilter::new(directives).and(shown)
}

/// Starts logging, and the export of telemetry if the environment asks for it and managed settings allow it. Returns a
/// warning for the user if either is incomplete. The export ends with the guard.
pub(super) fn start(global: &Global, folders: &Folders) -> (Option<String>, Option<ExportGuard>) {
    let (file, warning) = match open(folders) {
        Ok(file) => (Some(file), None),
        Err(error) => (None, Some(format!("no log is written: {}: {error}", folders.state.display()))),
    };
    let to_file = file.map(|file| {
        tracing_subscriber::fmt::layer().json().with_writer(Mutex::new(file)).with_filter(log_filter("info")).boxed()
    });
    let to_stderr = std::env::var("SKEIN_LOG").ok().filter(|filter| !filter.is_empty()).map(|filter| {
        // By default, the layer would also colour redirected output.
        let colour = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
        let filter = if STATIC_MAX_LEVEL < LevelFilter::TRACE { limit_to_debug(&filter) } else { filter };
        tracing_subscriber::fmt::layer()
            .with_ansi(colour)
            .with_writer(std::io::stderr)
            .with_filter(log_filter(&filter))
            .boxed()
    });
    let (export, warning) = match telemetry::start(|| managed_files::layer(global, folders)) {
        Ok(export) => (export, warning),
        Err(error) => (None, warning.or_else(|| Some(format!("no telemetry is exported: {error}")))),
    };
    let (spans, guard) = export.unzip();
    let to_receiver = spans.map(|layer| {
        let filter = layer.filter();
        layer.with_filter(filter).boxed()
    });
    // The list has no `None`: tracing treats such a layer as one without a filter. It would then compute every event and
    // span, with message content, although no layer shows it.
    let layers: Vec<_> = [to_file, to_stderr, to_receiver].into_iter().flatten().collect();
    let started = tracing_subscriber::registry().with(layers).try_init();
    (warning.or_else(|| started.err().map(|error| error.to_string())), guard)
}

/// Asks for `debug` where a filter asks for `trace`, which an optimised build does not have. The crate would print a
/// warning for its developers. A name without a level means all levels.
fn limit_to_debug(filter: &str) -> String {
    let is_trace = |text: &str| text.parse::<LevelFilter>().is_ok_and(|level| level == LevelFilter::TRACE);
    let limit = |directive: &str| match directive.rsplit_once('=') {
        Some((target, level)) if is_trace(level) => format!("{target}=debug"),
        None if is_trace(directive) => "debug".to_owned(),
        None if !directive.is_empty() && directive.parse::<LevelFilter>().is_err() => format!("{directive}=debug"),
        _ => directive.to_owned(),
    };
    filter.split(',').map(limit).collect::<Vec<_>>().join(",")
}

fn open(folders: &Folders) -> std::io::Result<LogFile> {
    let folder = folders.state.join("log");
    private_files::make_folder(&folder)?;
    LogFile::open(&folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::CONTENT_TARGET;

    /// Returns what a log with these directives shows.
    fn shown(directives: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        let writer = Mutex::new(file.reopen().unwrap());
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writer);
        let subscriber = tracing_subscriber::registry().with(layer.with_filter(log_filter(directives)));
        tracing::subscriber::with_default(subscriber, || {
            let turn = tracing::info_span!(target: SPAN_TARGET, "turn", text = "hidden-1");
            turn.in_scope(|| {
                tracing::info!(target: CONTENT_TARGET, text = "hidden-2");
                tracing::info!(target: "rmcp::service", text = "hidden-3");
                tracing::info!(target: "genai::client", text = "hidden-4");
                tracing::debug!(target: "tokio_postgres::query", text = "hidden-5");
                tracing::info!(target: "tokio_postgres::connection", text = "notice");
                tracing::info!(target: "skein::session", text = "ordinary");
            });
        });
        std::fs::read_to_string(&file).unwrap()
    }

    #[test]
    fn no_directive_shows_hidden_targets() {
        let content = format!("{CONTENT_TARGET}=info");
        let specific = ["rmcp::service=trace", "genai::client=trace", "tokio_postgres::query=debug", &content];
        let all = specific.join(",") + ",info";
        for directives in specific.into_iter().chain(["trace", "telemetry[turn]=trace", "[turn]=trace", &all]) {
            let log = shown(directives);
            assert!(!log.contains("hidden"), "{directives}: {log}");
        }
        let log = shown("info");
        assert!(log.contains("ordinary") && log.contains("notice"), "{log}");
        assert_eq!(shown("warn"), "");
    }

    #[test]
    fn an_optimised_build_logs_debug_instead_of_trace() {
        assert_eq!(limit_to_debug("trace"), "debug");
        assert_eq!(limit_to_debug("info,skein=TRACE,h2=5,"), "info,skein=debug,h2=debug,");
        assert_eq!(limit_to_debug("skein,h2=off,warn"), "skein=debug,h2=off,warn");
        assert_eq!(limit_to_debug("skein[turn]=trace"), "skein[turn]=debug");
    }
}
