//! Sets up tracing: structured lines to a file in the state folder and, if `SKEIN_LOG` is set, filtered lines to
//! stderr.

mod file;

use std::sync::Mutex;

use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use super::folders::Folders;
use super::telemetry::{self, ExportGuard};
use super::{Global, managed_files, private_files};
use file::LogFile;

/// What no log shows. rmcp logs the notifications of services and full addresses, genai full answers, and
/// `tokio_postgres` the parameters of statements; all may contain secrets or conversations. Spans and message content
/// are for the export alone.
const HIDDEN: &str = "rmcp=off,genai=off,tokio_postgres=info,telemetry=off";

/// Starts logging, and the export of telemetry if the environment asks for it and managed settings allow it. Returns a
/// warning for the user if either is incomplete. The export ends with the guard.
pub(super) fn start(global: &Global, folders: &Folders) -> (Option<String>, Option<ExportGuard>) {
    let (file, warning) = match open(folders) {
        Ok(file) => (Some(file), None),
        Err(error) => (None, Some(format!("no log is written: {}: {error}", folders.state.display()))),
    };
    let to_file = file.map(|file| {
        tracing_subscriber::fmt::layer()
            .json()
            .with_writer(Mutex::new(file))
            .with_filter(EnvFilter::new(format!("info,{HIDDEN}")))
            .boxed()
    });
    let to_stderr = std::env::var("SKEIN_LOG").ok().filter(|filter| !filter.is_empty()).map(|filter| {
        // By default, the layer would also colour redirected output.
        let colour = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
        tracing_subscriber::fmt::layer()
            .with_ansi(colour)
            .with_writer(std::io::stderr)
            .with_filter(EnvFilter::new(format!("{filter},{HIDDEN}")))
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

fn open(folders: &Folders) -> std::io::Result<LogFile> {
    let folder = folders.state.join("log");
    private_files::make_folder(&folder)?;
    LogFile::open(&folder)
}
