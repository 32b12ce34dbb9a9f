//! Sets up tracing: structured lines to a file in the state folder and, if `SKEIN_LOG` is set, filtered lines to
//! stderr.

mod file;

use std::sync::Mutex;

use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use super::folders::Folders;
use super::private_files;
use file::LogFile;

/// Filter of the log file. On failure, rmcp's worker logs full addresses and genai full answers; both may contain
/// secrets.
const TO_FILE: &str = "info,rmcp::transport::worker=off,genai=off";

/// Starts logging. Returns a warning for the user if logging is incomplete.
pub(super) fn start(folders: &Folders) -> Option<String> {
    let (file, warning) = match open(folders) {
        Ok(file) => (Some(file), None),
        Err(error) => (None, Some(format!("no log is written: {}: {error}", folders.state.display()))),
    };
    let to_file = file.map(|file| {
        tracing_subscriber::fmt::layer().json().with_writer(Mutex::new(file)).with_filter(EnvFilter::new(TO_FILE))
    });
    let to_stderr = std::env::var("SKEIN_LOG").ok().filter(|filter| !filter.is_empty()).map(|filter| {
        // By default, the layer would also colour redirected output.
        let colour = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
        tracing_subscriber::fmt::layer()
            .with_ansi(colour)
            .with_writer(std::io::stderr)
            .with_filter(EnvFilter::new(filter))
    });
    let started = tracing_subscriber::registry().with(to_file).with(to_stderr).try_init();
    warning.or_else(|| started.err().map(|error| error.to_string()))
}

fn open(folders: &Folders) -> std::io::Result<LogFile> {
    let folder = folders.state.join("log");
    private_files::make_folder(&folder)?;
    LogFile::open(&folder)
}
