//! Searches, enables and disables services for a session, within the limits of the manifests.
//!
//! Invariant: services that are built in or owned by the orchestrator cannot be enabled or disabled. An enabled service
//! is available only to modes that list `mcp` or depend on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use crate::broker::{Broker, sanitize_text};
use crate::diagnostic::Severity;
use crate::graph;
use crate::ids::{ModeId, nearest};
use crate::manifest::{self, Layer, Readiness, Root, ServiceEntry};
use crate::tool::manage::{
    ManageError, ManifestText, ResourceListing, ServiceChange, ServiceManager, ServiceState, ServiceSummary,
};
use crate::tool::{CallContext, Catalog, strip_to_line};

/// The services whose manifests a session wrote.
type AddedServices = [Arc<ServiceEntry>];

/// The service manager of one session and its child sessions.
#[derive(Debug)]
pub struct SessionServices {
    broker: Broker,
    /// Services that the session's client provides.
    client_services: Vec<Arc<ServiceEntry>>,
}

impl SessionServices {
    pub fn new(broker: Broker, client_services: Vec<Arc<ServiceEntry>>) -> Self {
        Self { broker, client_services }
    }

    /// Returns the services of the plan and of the client, and those that the session added.
    fn entries<'a>(&'a self, added: &'a AddedServices) -> impl Iterator<Item = &'a ServiceEntry> {
        let plan = self.broker.plan();
        let added = added.iter().filter(move |entry| plan.service(entry.manifest.name.as_str()).is_none());
        plan.services().chain(self.client_services.iter().chain(added).map(Arc::as_ref))
    }

    fn entry<'a>(&'a self, name: &str, added: &'a AddedServices) -> Result<&'a ServiceEntry, ManageError> {
        let unknown = || {
            let near = nearest(name, self.entries(added).map(|entry| entry.manifest.name.as_str()));
            ManageError::Unknown { name: strip_to_line(name), near: near.map(str::to_owned) }
        };
        self.entries(added).find(|entry| entry.manifest.name.as_str() == name).ok_or_else(unknown)
    }

    /// Returns the service if it can be enabled and disabled. Fails for unknown, owned, built-in and planned services.
    fn changeable<'a>(&'a self, name: &str, added: &'a AddedServices) -> Result<&'a ServiceEntry, ManageError> {
        let entry = self.entry(name, added)?;
        if let Some(owner) = &entry.manifest.owner {
            return Err(ManageError::Owned { name: name.to_owned(), owner: owner.clone() });
        }
        if !entry.user_installed() {
            return Err(ManageError::BuiltIn { name: name.to_owned(), modes: self.modes(entry) });
        }
        if entry.manifest.status == Readiness::Planned {
            return Err(ManageError::Planned { name: name.to_owned() });
        }
        Ok(entry)
    }

    /// Returns a service whose resources may be read: third-party and enabled.
    fn readable<'a>(
        &'a self,
        name: &str,
        added: &'a AddedServices,
        context: &CallContext,
    ) -> Result<&'a ServiceEntry, ManageError> {
        let entry = self.changeable(name, added)?;
        match self.state(entry, context) {
            ServiceState::Enabled => Ok(entry),
            _ => Err(ManageError::Disabled { name: name.to_owned() }),
        }
    }

    fn state(&self, entry: &ServiceEntry, context: &CallContext) -> ServiceState {
        if entry.manifest.status == Readiness::Planned {
            ServiceState::Planned
        } else if entry.manifest.owner.is_some() {
            ServiceState::Owned
        } else if !entry.user_installed() {
            ServiceState::BuiltIn
        } else if context.session.service_overrides().of(&entry.manifest.name).unwrap_or(entry.enabled) {
            ServiceState::Enabled
        } else {
            ServiceState::Disabled
        }
    }

    /// Returns the selectable modes that have the service when it is enabled.
    fn modes(&self, entry: &ServiceEntry) -> Vec<String> {
        let enabled = ServiceEntry { enabled: true, ..entry.clone() };
        self.each_mode(|id| self.broker.plan().mode(id).is_some_and(|(_, scope)| scope.binds(&enabled)))
    }

    /// Returns the modes that cannot run without the service.
    fn dependent_modes(&self, entry: &ServiceEntry) -> Vec<String> {
        let needs = |id: &ModeId| {
            let levels = self.broker.plan().start_levels(id);
            levels.iter().flatten().any(|need| need.service == entry.manifest.name && !need.optional)
        };
        self.each_mode(needs)
    }

    fn each_mode(&self, has: impl Fn(&ModeId) -> bool) -> Vec<String> {
        let offered = self.broker.plan().selectable_modes();
        let ids = offered.flat_map(|(agent, modes)| {
            modes.into_iter().map(|entry| ModeId::new(agent.manifest.name.clone(), entry.mode.slug.clone()))
        });
        ids.filter(|id| has(id)).map(|id| id.to_string()).collect()
    }
}

impl ServiceManager for SessionServices {
    fn search(&self, words: &str, context: &CallContext) -> Vec<ServiceSummary> {
        let words: Vec<String> = words.split_whitespace().map(str::to_lowercase).collect();
        let score = |entry: &ServiceEntry| {
            let manifest = &entry.manifest;
            let tools = manifest.groups.values().flatten().map(|tool| tool.as_str());
            let said = [manifest.name.as_str(), manifest.title.as_deref().unwrap_or_default(), &manifest.description];
            let text = said.into_iter().chain(tools).collect::<Vec<_>>().join(" ").to_lowercase();
            words.iter().filter(|word| text.contains(word.as_str())).count()
        };
        let added = context.session.service_overrides().new_services();
        let mut found: Vec<_> = self.entries(&added).map(|entry| (score(entry), entry)).collect();
        found.retain(|(score, _)| words.is_empty() || *score > 0);
        found.sort_by(|(one, first), (other, second)| {
            other.cmp(one).then_with(|| first.manifest.name.as_str().cmp(second.manifest.name.as_str()))
        });
        let known = |entry: &ServiceEntry| ServiceSummary {
            service: entry.manifest.name.clone(),
            description: strip_to_line(&entry.manifest.description),
            state: self.state(entry, context),
            modes: self.modes(entry),
        };
        found.into_iter().map(|(_, entry)| known(entry)).collect()
    }

    fn enable<'a>(
        &'a self,
        service: &'a str,
        context: &'a CallContext,
    ) -> BoxFuture<'a, Result<ServiceChange, ManageError>> {
        Box::pin(async move {
            let added = context.session.service_overrides().new_services();
            let entry = self.changeable(service, &added)?;
            let looked = self.broker.inspect_service(entry, &context.session).await;
            let catalog = looked.map_err(|source| ManageError::NotEnabled { name: service.to_owned(), source })?;
            let name = entry.manifest.name.clone();
            context.session.service_overrides().set(name.clone(), true);
            let tools = catalog.tools.iter().map(|tool| sanitize_text(tool.name.as_str())).collect();
            Ok(ServiceChange { service: name, enabled: true, tools, modes: self.modes(entry), stopped: Vec::new() })
        })
    }

    fn disable(&self, service: &str, context: &CallContext) -> Result<ServiceChange, ManageError> {
        let added = context.session.service_overrides().new_services();
        let entry = self.changeable(service, &added)?;
        let name = entry.manifest.name.clone();
        context.session.service_overrides().set(name.clone(), false);
        let (modes, stopped) = (self.modes(entry), self.dependent_modes(entry));
        Ok(ServiceChange { service: name, enabled: false, tools: Vec::new(), modes, stopped })
    }

    fn check_manifest(&self, manifest: ManifestText, context: &CallContext) -> Result<ServiceEntry, ManageError> {
        let ManifestText { name, file, text } = manifest;
        let added = context.session.service_overrides().new_services();
        if let Some(known) = self.entries(&added).find(|entry| entry.manifest.name == name) {
            let place = known.source.file.clone();
            return Err(ManageError::Taken { name: name.to_string(), file: place });
        }
        if file.exists() {
            return Err(ManageError::Taken { name: name.to_string(), file: file.display().to_string() });
        }
        let shown = file.parent().and_then(Path::parent).unwrap_or(Path::new("")).display().to_string();
        let inside = PathBuf::from(format!("services/{name}.yaml"));
        let root = Root::Snapshot { files: [(inside, text.into_bytes())].into(), shown };
        let (manifests, found) = manifest::load(&[(Layer::Builtin, Root::Builtin), (Layer::User, root)]);
        let entry = manifests.services.get(&name).cloned();
        // Only the code, because the message may quote a value, which may be a secret.
        let errors = graph::resolve_without_notes(manifests, found).diagnostics;
        if let Some(error) = errors.iter().find(|found| found.severity == Severity::Error) {
            return Err(ManageError::Invalid { code: error.code });
        }
        entry.ok_or(ManageError::Invalid { code: "E010" })
    }

    fn probe<'a>(
        &'a self,
        entry: &'a ServiceEntry,
        context: &'a CallContext,
    ) -> BoxFuture<'a, Result<Arc<Catalog>, ManageError>> {
        Box::pin(async move {
            let looked = self.broker.inspect_service(entry, &context.session).await;
            looked.map_err(|source| ManageError::NotEnabled { name: entry.manifest.name.to_string(), source })
        })
    }

    fn add(&self, entry: ServiceEntry, context: &CallContext) -> ServiceChange {
        let service = entry.manifest.name.clone();
        let tools = entry.manifest.groups.values().flatten().map(|tool| sanitize_text(tool.as_str())).collect();
        let modes = self.modes(&entry);
        context.session.service_overrides().add(Arc::new(entry));
        ServiceChange { service, enabled: true, tools, modes, stopped: Vec::new() }
    }

    fn resources<'a>(
        &'a self,
        service: Option<&'a str>,
        context: &'a CallContext,
    ) -> BoxFuture<'a, Result<Vec<ResourceListing>, ManageError>> {
        Box::pin(async move {
            let added = context.session.service_overrides().new_services();
            let entries: Vec<&ServiceEntry> = match service {
                Some(service) => vec![self.readable(service, &added, context)?],
                None => {
                    self.entries(&added).filter(|entry| self.state(entry, context) == ServiceState::Enabled).collect()
                }
            };
            let offered = entries.into_iter().map(async |entry| {
                let service = entry.manifest.name.clone();
                match self.broker.inspect_service(entry, &context.session).await {
                    Ok(catalog) => {
                        let resources = catalog.resources.iter().chain(&catalog.templates).cloned().collect();
                        ResourceListing { service, resources, problem: None }
                    }
                    Err(error) => ResourceListing { service, resources: Vec::new(), problem: Some(error.to_string()) },
                }
            });
            Ok(futures::future::join_all(offered).await)
        })
    }

    fn read<'a>(
        &'a self,
        service: &'a str,
        uri: &'a str,
        context: &'a CallContext,
    ) -> BoxFuture<'a, Result<Value, ManageError>> {
        Box::pin(async move {
            let added = context.session.service_overrides().new_services();
            let entry = self.readable(service, &added, context)?;
            let read = self.broker.read_listed(entry, uri, context.clone()).await;
            read.map_err(ManageError::Read)
        })
    }
}
