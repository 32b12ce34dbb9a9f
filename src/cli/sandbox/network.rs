//! Serves the proxy of `skein sandbox`: hosts of the list only, because there is no session to ask.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::cli::folders::Folders;
use crate::cli::output::CommandError;
use crate::network::{RemoteHost, SystemNetwork};
use crate::sandbox::proxy::{
    CommandNetwork, CompanyProxy, CompanyProxyError, HostAnswer, HostGate, HostPolicy, HostQuestion, HostRecord,
    HostRuling, Proxy, ProxyParts, ProxyVariables,
};
use crate::sandbox::{HostResources, NetworkAccess, SandboxPorts};

/// A gate without rules and without a user.
pub(in crate::cli) struct ListOnly;

impl HostGate for ListOnly {
    fn rule(&self, _: &RemoteHost) -> HostRuling {
        HostRuling::Silent
    }

    fn settle(&self, _: &RemoteHost) -> Option<HostAnswer> {
        None
    }

    fn ask(&self, _: HostQuestion) -> BoxFuture<'_, HostAnswer> {
        Box::pin(async { HostAnswer::Unavailable("there is no user to ask".to_owned()) })
    }

    fn record(&self, record: &HostRecord) {
        let refusal = record.refusal.as_ref().map(ToString::to_string);
        tracing::debug!(host = %record.host.authority(), refusal, "sandbox host");
    }
}

/// The proxy of one command.
pub(super) struct CommandProxy {
    proxy: Proxy,
    command: CommandNetwork,
}

impl CommandProxy {
    /// Serves the ports of a sandbox. Needs the context of a runtime. Returns `None` if the network is off.
    pub(super) fn serve(
        access: &NetworkAccess,
        ports: SandboxPorts,
        line: String,
    ) -> Result<Option<Self>, CommandError> {
        let Some(listener) = ports.proxy else { return Ok(None) };
        let policy = HostPolicy::new(access)
            .map_err(|error| CommandError::usage(error.to_string(), "correct the list after --network"))?;
        let proxy = Proxy::new(ProxyParts {
            policy,
            gate: Arc::new(ListOnly),
            network: Arc::new(SystemNetwork),
            company: company_proxy().map_err(|error| {
                CommandError::usage(error.to_string(), "set the variable to an http proxy, or unset it")
            })?,
            servers: None,
            token: None,
        });
        let served = proxy.serve(listener).and_then(|()| {
            ports.relays.into_iter().try_for_each(|(address, listener): (SocketAddr, _)| proxy.relay(listener, address))
        });
        served.map_err(|error| CommandError::work(error.to_string(), "check the limit of open files"))?;
        let command = proxy.begin_command(line, &[]);
        Ok(Some(Self { proxy, command }))
    }

    /// Ends the proxy. Returns its refusals.
    pub(super) async fn stop(self) -> Vec<String> {
        let refusals = self.command.refusals().iter().map(ToString::to_string).collect();
        self.proxy.stop().await;
        refusals
    }
}

/// Returns what sandboxes use of this user's session: proxy, ssh-agent and environment.
pub(in crate::cli) fn host_resources(folders: &Folders) -> HostResources {
    let agent = std::env::var_os("SSH_AUTH_SOCK").map(PathBuf::from).filter(|path| path.is_absolute());
    HostResources { company: company_proxy(), ssh_agent: agent, environment: folders.environment().collect() }
}

/// Returns the proxy of a company, from Skein's own environment.
fn company_proxy() -> Result<CompanyProxy, CompanyProxyError> {
    let value = |name: &str| {
        // The lower-case name is the older one and wins, as in curl.
        let names = [name.to_owned(), name.to_ascii_uppercase()];
        names.iter().find_map(|name| std::env::var(name).ok()).filter(|value| !value.is_empty())
    };
    let (https, http, none) = (value("https_proxy"), value("http_proxy"), value("no_proxy"));
    let variables =
        ProxyVariables { https_proxy: https.as_deref(), http_proxy: http.as_deref(), no_proxy: none.as_deref() };
    CompanyProxy::new(variables)
}
