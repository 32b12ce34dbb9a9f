//! The flags and settings of a server that shares its store with others.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::super::folders::Folders;
use super::super::output::{CommandError, CommandOutput, display_line};
use super::super::store_failure::store_failure;
use super::super::store_flag::read_address;
use super::super::{Global, private_files, workspace};
use crate::manifest::{Layer, StoreConfig};
use crate::network::{AddressKind, address_kind};
use crate::serve::ReplicaParts;
use crate::store::{FilesMarker, ListenHub, Replica, ReplicaSettings, SessionStore, StoreAddress, StorePlace};

#[derive(Debug, Clone, Default, Args)]
pub(in crate::cli) struct ReplicaFlags {
    /// Take requests of other replicas on this address
    ///
    /// Needs --store. The address must be one that only replicas reach, on loopback or in a private network, because
    /// these requests have no TLS.
    #[arg(long, value_name = "ADDRESS")]
    internal_listen: Option<String>,
    /// Keep the files of sessions in this folder of all replicas
    ///
    /// Needs --store. All replicas must mount one volume at this path. Without it, a session can be used only on the
    /// machine where it began.
    #[arg(long, value_name = "PATH")]
    shared_dir: Option<PathBuf>,
}

/// What a server needs to join the replicas of its store.
pub(in crate::cli) struct ReplicaLaunch {
    address: Arc<StoreAddress>,
    /// Where notifications come from.
    listen: StoreAddress,
    listener: Option<TcpListener>,
    pub(in crate::cli) shared_dir: Option<PathBuf>,
    expiry: Duration,
}

impl ReplicaFlags {
    /// Returns whether other replicas can reach this one.
    pub(super) fn has_internal_address(&self) -> bool {
        self.internal_listen.is_some()
    }

    /// Checks the flags, and listens for other replicas. `None` if the store is not shared. Fails if a flag or a setting
    /// cannot be used.
    pub(super) fn launch(
        &self,
        place: &StorePlace,
        global: &Global,
        folders: &Folders,
        output: &mut CommandOutput,
    ) -> Result<Option<ReplicaLaunch>, CommandError> {
        let Some(address) = place.address() else {
            let flags =
                [("--internal-listen", self.internal_listen.is_some()), ("--shared-dir", self.shared_dir.is_some())];
            return match flags.iter().find(|(_, is_set)| *is_set) {
                Some((flag, _)) => Err(CommandError::usage(
                    format!("{flag} is for servers that share a store"),
                    "add --store with the address of a PostgreSQL database, or leave it out",
                )),
                None => Ok(None),
            };
        };
        let config = store_config(global, folders, output)?;
        let listen = match &config.listen_url {
            Some(url) => read_address(url, folders)?,
            None => StoreAddress::clone(address),
        };
        let listener = self.internal_listen.as_deref().map(open_listener).transpose()?;
        if let Some(folder) = self.shared_dir.as_ref().filter(|folder| !folder.is_absolute()) {
            let problem =
                format!("`{}` of --shared-dir is not an absolute path", display_line(&folder.to_string_lossy()));
            return Err(CommandError::usage(problem, "write the whole path of the folder"));
        }
        let (address, shared_dir) = (Arc::clone(address), self.shared_dir.clone());
        Ok(Some(ReplicaLaunch { address, listen, listener, shared_dir, expiry: config.expiry() }))
    }
}

impl ReplicaLaunch {
    /// Joins the replicas, and opens the store as one of them. Fails if the database or the folder cannot be used.
    pub(in crate::cli) fn join(
        self,
        place: &StorePlace,
        folders: &Folders,
    ) -> Result<(SessionStore, ReplicaParts), CommandError> {
        let files = match &self.shared_dir {
            Some(folder) => FilesMarker::of_shared_folder(folder),
            None => {
                private_files::make_folder(&folders.data).map_err(|error| {
                    let problem = format!("{} cannot be created: {error}", folders.data.display());
                    CommandError::work(problem, "check the folder that SKEIN_DATA_DIR or XDG_DATA_HOME names")
                })?;
                FilesMarker::of_own_folder(&folders.data)
            }
        };
        let files = files.map_err(|error| store_failure(&error))?;
        let address = match &self.listener {
            Some(listener) => Some(listener.local_addr().map_err(|error| {
                CommandError::work(format!("--internal-listen has no address: {error}"), "choose another address")
            })?),
            None => None,
        };
        let settings = ReplicaSettings { address, files, expiry: self.expiry };
        let replica = Replica::join(&self.address, settings).map_err(|error| store_failure(&error))?;
        let hub = ListenHub::open(&self.address, &self.listen).map_err(|error| store_failure(&error))?;
        let store = SessionStore::open_replica(place, replica.clone()).map_err(|error| store_failure(&error))?;
        Ok((store, ReplicaParts { replica, hub, listener: self.listener }))
    }
}

/// Returns the settings of the store in the user's config.
fn store_config(global: &Global, folders: &Folders, output: &mut CommandOutput) -> Result<StoreConfig, CommandError> {
    let plan = workspace::plan(global, folders, output)?;
    let configs = plan.manifests().configs.iter().filter(|entry| entry.layer == Layer::User);
    Ok(configs.filter_map(|entry| entry.config.store.clone()).next_back().unwrap_or_default())
}

/// Listens for other replicas. Fails if others could reach the address, or it cannot be used.
fn open_listener(text: &str) -> Result<TcpListener, CommandError> {
    let shown = display_line(text);
    let address: Option<SocketAddr> = text.to_socket_addrs().ok().and_then(|mut found| found.next());
    let address = address.ok_or_else(|| {
        let problem = format!("`{shown}` is not an address that --internal-listen can use");
        CommandError::usage(problem, "write it as IP:PORT, as in 10.0.0.7:4781")
    })?;
    match address_kind(address.ip()) {
        AddressKind::Loopback | AddressKind::Private(_) => {}
        AddressKind::Unspecified => {
            let problem = format!("--internal-listen {shown} names no address that other replicas can use");
            return Err(CommandError::usage(
                problem,
                "write the address of this machine in the network of the replicas",
            ));
        }
        AddressKind::Public | AddressKind::LinkLocal | AddressKind::Multicast | AddressKind::Reserved(_) => {
            let problem = format!("--internal-listen {shown} is outside private networks, and has no TLS");
            return Err(CommandError::usage(problem, "use an address that only replicas reach"));
        }
    }
    TcpListener::bind(address).map_err(|error| {
        let problem = format!("cannot listen on {address}: {error}");
        CommandError::work(problem, "choose another --internal-listen, or end the program that uses the address")
    })
}
