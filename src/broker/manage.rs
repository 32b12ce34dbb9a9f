//! Services that a session enabled and disabled for itself, and the looks into one that its manager may take.
//!
//! Invariant: only what the group `mcp` speaks of can be enabled or disabled; everything else is as the manifests say.
//! Whatever is enabled, a mode has nothing that it neither lists `mcp` for nor depends on.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{BindRequest, Broker, sanitize, template};
use crate::graph::{Plan, RequiredService};
use crate::ids::ServiceName;
use crate::manifest::{ServiceEntry, ServiceManifest};
use crate::tool::{CallContext, Catalog, ServiceError, SessionContext};

/// Why a service is absent that its session disabled.
pub(super) const DISABLED: &str = "it is disabled in this session";

impl BindRequest {
    /// Takes up what the session has enabled beyond its configuration, as if it had come with the session. Such a copy
    /// stands before the entry of the plan.
    pub(super) fn add_enabled_services(&mut self, plan: &Plan) {
        for (name, enabled) in self.session.service_overrides().all() {
            let entry = plan.service(name.as_str()).filter(|entry| entry.user_installed() && !entry.enabled && enabled);
            self.client_services.extend(entry.map(|entry| Arc::new(ServiceEntry { enabled: true, ..entry.clone() })));
        }
    }

    /// True if the session has disabled it, and it is one that can be.
    pub(super) fn disables(&self, entry: &ServiceEntry) -> bool {
        entry.user_installed() && self.session.service_overrides().of(&entry.manifest.name) == Some(false)
    }

    /// What the group `mcp` brings beside the plan, as far as it is not needed anyway.
    pub(super) fn client_requirements(&self, levels: &[Vec<RequiredService>]) -> Vec<RequiredService> {
        let needed = |name: &ServiceName| levels.iter().flatten().any(|need| need.service == *name);
        let names = self.client_services.iter().map(|entry| &entry.manifest.name).filter(|name| !needed(name));
        names.map(|service| RequiredService { service: service.clone(), optional: true }).collect()
    }
}

impl Broker {
    /// What a service offers, which is started for it. For looking only: a tool is called through a binding.
    pub async fn inspect_service(
        &self,
        entry: &ServiceEntry,
        session: &SessionContext,
    ) -> Result<Arc<Catalog>, ServiceError> {
        self.lease(entry, session, &|name| self.manifest(name)).service().catalog().await
    }

    /// A resource that a service lists, or that a template of its makes.
    pub async fn read_listed(
        &self,
        entry: &ServiceEntry,
        uri: &str,
        context: CallContext,
    ) -> Result<Value, ServiceError> {
        let lease = self.lease(entry, &context.session, &|name| self.manifest(name));
        let catalog = lease.service().catalog().await?;
        let listed = catalog.resources.iter().any(|resource| resource["uri"] == json!(uri));
        if !listed && !catalog.templates.iter().any(|template| matches_template(template, uri)) {
            let reason = format!("it lists no resource `{uri}`");
            return Err(ServiceError::Refused { service: entry.manifest.name.clone(), reason });
        }
        lease.service().read_resource(uri.to_owned(), context).await
    }

    fn manifest(&self, name: &ServiceName) -> Option<ServiceManifest> {
        self.plan.service(name.as_str()).map(|entry| entry.manifest.clone())
    }
}

/// What a service says of itself, as far as it is harmless.
pub fn sanitize_text(text: &str) -> String {
    sanitize::sanitize_text(text)
}

/// True if the template makes the address.
pub(super) fn matches_template(template: &Value, uri: &str) -> bool {
    template["uriTemplate"].as_str().is_some_and(|template| template::matches(template, uri))
}
