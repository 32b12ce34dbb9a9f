//! `skein console`: serves the console on loopback and opens it in the user's browser.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::Args;

use super::Global;
use super::agent_flags::AgentFlags;
use super::folders::Folders;
use super::open_browser::open_browser;
use super::output::{CommandError, CommandOutput};
use super::serve::{ServerLaunch, serve_failure};
use crate::serve::{HttpFrontEnd, ServeSettings};

/// Time for running turns at the end.
const DRAIN: Duration = Duration::from_secs(5);
/// Time after which unused connections of other clients are removed.
const IDLE: Duration = Duration::from_secs(300);
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
        tls: None,
        drain: DRAIN,
        idle: IDLE,
        connections: MAX_CONNECTIONS,
    };
    let launch = ServerLaunch { settings, socket: None, oidc: None, flags: args.speaker.clone(), fork: false };
    launch.serve(global, folders, output, |server: &HttpFrontEnd, output: &mut CommandOutput| {
        show_page(server, args.no_browser, folders, output)
    })
}

/// Opens the login page with a code, or prints its address.
fn show_page(
    server: &HttpFrontEnd,
    no_browser: bool,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let Some(address) = server.address() else { return Ok(()) };
    let code = server.create_login_code().map_err(|error| serve_failure(&error))?;
    let url = format!("http://{address}/console/login#{code}");
    let is_open = !no_browser && open_browser(&url, folders).is_some();
    output.line(&match is_open {
        true => format!("Your browser shows the console. If it does not, open this page within a minute: {url}"),
        false => format!("Open this page in a browser on this machine within a minute: {url}"),
    });
    Ok(())
}
