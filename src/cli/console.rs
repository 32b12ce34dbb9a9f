//! `skein console`: serves the console on loopback and opens it in the user's browser.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::Args;
use tempfile::TempPath;

use super::Global;
use super::agent_flags::AgentFlags;
use super::folders::Folders;
use super::open_browser::open_secret_page;
use super::output::{CommandError, CommandOutput};
use super::serve::{ServerLaunch, serve_failure};
use crate::serve::{AddressSource, HttpFrontEnd, ServeSettings};

/// Time for running turns at the end.
const DRAIN: Duration = Duration::from_secs(5);
/// Time after which unused connections of other clients are removed.
const IDLE: Duration = Duration::from_secs(300);
/// The flag that chooses the address.
const LISTEN_FLAG: &str = "--port";
const MAX_CONNECTIONS: usize = 1_000;

#[derive(Debug, Args)]
pub(super) struct ConsoleArgs {
    #[command(flatten)]
    speaker: AgentFlags,
    /// Listen on this port of loopback; default: a free one
    #[arg(long, value_name = "PORT", default_value = "0", hide_default_value = true)]
    port: u16,
    /// Print the address of the page instead of opening a browser
    #[arg(long)]
    no_browser: bool,
}

pub(super) fn run(
    args: &ConsoleArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let settings = ServeSettings {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, args.port)),
        metrics_listen: None,
        public_url: None,
        client_addresses: AddressSource::Connection,
        tls: None,
        drain: DRAIN,
        idle: IDLE,
        connections: MAX_CONNECTIONS,
    };
    let (flags, store) = (args.speaker.clone(), folders.store.clone());
    let launch = ServerLaunch {
        settings,
        listen_flag: LISTEN_FLAG,
        socket: None,
        oidc: None,
        flags,
        store,
        replica: None,
        fork: false,
    };
    let mut page = None;
    let served = launch.serve(global, folders, output, |server: &HttpFrontEnd, output: &mut CommandOutput| {
        page = show_page(server, args.no_browser, folders, output)?;
        Ok(())
    });
    // Not earlier: a browser may take a while to read it.
    drop(page);
    served
}

/// Opens the login page with a code, or prints its address. Returns the file that leads the browser to the page.
fn show_page(
    server: &HttpFrontEnd,
    no_browser: bool,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<Option<TempPath>, CommandError> {
    let Some(address) = server.address() else { return Ok(None) };
    let code = server.create_login_code().map_err(|error| serve_failure(&error, LISTEN_FLAG))?;
    let url = format!("http://{address}/console/login#{code}");
    let page = if no_browser { None } else { open_secret_page(&url, folders) };
    output.line(&match page.is_some() {
        true => format!("Your browser shows the console. If it does not, open this page within a minute: {url}"),
        false => format!("Open this page in a browser on this machine within a minute: {url}"),
    });
    Ok(page)
}
