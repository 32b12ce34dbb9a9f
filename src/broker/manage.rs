//! Applies the services that a session enabled or disabled, and lets its service manager inspect services.
//!
//! Invariant: only services that the group `mcp` covers can be enabled or disabled; the manifests decide about all
//! others. An enabled service is bound only to modes that list `mcp` or depend on it.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{BindRequest, Broker, sanitize, template};
use crate::graph::{Plan, RequiredService};
use crate::ids::ServiceName;
use crate::manifest::ServiceEntry;
use crate::tool::{CallContext, Catalog, ServiceError, SessionContext};

/// The reason why a service that the session disabled is missing.
pub(super) const DISABLED: &str = "it is disabled in this session";

impl BindRequest {
    /// Adds the services that the session enabled beyond its configuration to the client-provided ones. Such a copy
    /// takes precedence over the entry of the plan. Also adds the services that the session itself added.
    pub(super) fn add_enabled_services(&mut self, plan: &Plan) {
        let added = self.session.service_overrides().new_services();
        self.client_services
            .extend(added.into_iter().filter(|entry| plan.service(entry.manifest.name.as_str()).is_none()));
        for (name, enabled) in self.session.service_overrides().all() {
            let entry = plan.service(name.as_str()).filter(|entry| entry.user_installed() && !entry.enabled && enabled);
            self.client_services.extend(entry.map(|entry| Arc::new(ServiceEntry { enabled: true, ..entry.clone() })));
        }
    }

    /// Returns whether the session has disabled a service that can be disabled.
    pub(super) fn disables(&self, entry: &ServiceEntry) -> bool {
        entry.user_installed() && self.session.service_overrides().of(&entry.manifest.name) == Some(false)
    }

    /// Returns the client-provided services as optional requirements, without those that are required already.
    pub(super) fn client_requirements(&self, levels: &[Vec<RequiredService>]) -> Vec<RequiredService> {
        let needed = |name: &ServiceName| levels.iter().flatten().any(|need| need.service == *name);
        let names = self.client_services.iter().map(|entry| &entry.manifest.name).filter(|name| !needed(name));
        names.map(|service| RequiredService { service: service.clone(), optional: true }).collect()
    }
}

impl Broker {
    /// Fails if a managed setting does not allow the service.
    fn check_service(&self, entry: &ServiceEntry) -> Result<(), ServiceError> {
        match self.plan.manifests().service_refusal(entry) {
            Some(exclusion) => {
                let service = entry.manifest.name.clone();
                Err(ServiceError::NotStarted { service, reason: exclusion.to_string() })
            }
            None => Ok(()),
        }
    }

    /// Starts a service and returns its catalog. For inspection only; tools are called through a binding.
    pub async fn inspect_service(
        &self,
        entry: &ServiceEntry,
        session: &SessionContext,
    ) -> Result<Arc<Catalog>, ServiceError> {
        self.check_service(entry)?;
        self.lease_service(entry, session).service().catalog().await
    }

    /// Reads a resource that the service lists or that matches one of its templates. Fails for any other URI.
    pub async fn read_listed(
        &self,
        entry: &ServiceEntry,
        uri: &str,
        context: CallContext,
    ) -> Result<Value, ServiceError> {
        self.check_service(entry)?;
        let lease = self.lease_service(entry, &context.session);
        let catalog = lease.service().catalog().await?;
        let listed = catalog.resources.iter().any(|resource| resource["uri"] == json!(uri));
        if !listed && !catalog.templates.iter().any(|template| matches_template(template, uri)) {
            let reason = format!("it lists no resource `{uri}`");
            return Err(ServiceError::Refused { service: entry.manifest.name.clone(), reason });
        }
        lease.service().read_resource(uri.to_owned(), context).await
    }
}

/// Removes invisible characters from a service's text and truncates it.
pub fn sanitize_text(text: &str) -> String {
    sanitize::sanitize_text(text)
}

/// Returns whether the template can produce the URI.
pub(super) fn matches_template(template: &Value, uri: &str) -> bool {
    template["uriTemplate"].as_str().is_some_and(|template| template::matches(template, uri))
}
