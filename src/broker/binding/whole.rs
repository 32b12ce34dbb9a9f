//! Resources and prompts of the services that a binding has as a whole. They belong to no group, and are not frozen as
//! tools are: what they follow from may change while a session lasts.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::super::manage::makes;
use super::Binding;
use crate::ids::ServiceName;
use crate::manifest::Transport;
use crate::tool::{CallContext, Catalog, ServiceError};

/// A resource or a template, in MCP's JSON, and whose it is.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceOf {
    pub service: ServiceName,
    pub value: Value,
    pub template: bool,
}

impl Binding {
    /// True if the service is one of our own.
    pub fn has_built_in(&self, service: &ServiceName) -> bool {
        let entry = self.terms.service(&self.plan, service.as_str());
        entry.is_some_and(|entry| matches!(entry.manifest.transport, Transport::Builtin(_)))
    }

    /// True if a service has resources, or may come to have some.
    pub fn has_resources(&self) -> bool {
        self.whole.iter().any(|(_, seen)| seen.volatile || !seen.resources.is_empty() || !seen.templates.is_empty())
    }

    /// True if a service has prompts, or may come to have some.
    pub fn has_prompts(&self) -> bool {
        self.whole.iter().any(|(_, seen)| seen.volatile || !seen.prompts.is_empty())
    }

    /// Resources and templates of services in scope as a whole.
    pub async fn resources(&self) -> Vec<ResourceOf> {
        let mut resources = Vec::new();
        for (service, catalog) in self.whole().await {
            let of = |template| {
                let service = service.clone();
                move |value: &Value| ResourceOf { service: service.clone(), value: value.clone(), template }
            };
            resources.extend(catalog.resources.iter().map(of(false)));
            resources.extend(catalog.templates.iter().map(of(true)));
        }
        resources
    }

    /// Prompts of services in scope as a whole, as `service__prompt`.
    pub async fn prompts(&self) -> BTreeMap<String, (ServiceName, Value)> {
        let mut prompts = BTreeMap::new();
        for (service, catalog) in self.whole().await {
            for prompt in &catalog.prompts {
                let name = format!("{service}__{}", prompt["name"].as_str().unwrap_or_default());
                prompts.insert(name, (service.clone(), prompt.clone()));
            }
        }
        prompts
    }

    /// What the services in scope as a whole offer now.
    async fn whole(&self) -> Vec<(ServiceName, Arc<Catalog>)> {
        let mut whole = self.whole.clone();
        for (name, catalog) in &mut whole {
            let Some(service) = self.services.get(name) else { continue };
            if !catalog.volatile {
                // It may have said that they changed.
                *catalog = service.listed().await.unwrap_or_else(|| Arc::clone(catalog));
                continue;
            }
            match service.catalog().await {
                Ok(now) => *catalog = now,
                Err(error) => tracing::warn!(service = %name, %error, "its lists could not be read again"),
            }
        }
        whole
    }

    /// True if a link to this address means a resource of a bound service. What any program could open is one only if
    /// it is listed.
    pub async fn offers_resource(&self, uri: &str) -> bool {
        let common = ["file:", "http:", "https:"].iter().any(|scheme| uri.starts_with(scheme));
        let resources = self.resources().await;
        resources.iter().any(|of| match of.template {
            true => !common && makes(&of.value, uri),
            false => of.value["uri"] == json!(uri),
        })
    }

    /// A resource of a service that is in scope as a whole.
    pub async fn read_resource(&self, uri: &str, context: CallContext) -> Result<Value, ServiceError> {
        let listed = |of: &&ResourceOf| !of.template && of.value["uri"] == json!(uri);
        let made_from = |of: &&ResourceOf| of.template && makes(&of.value, uri);
        let resources = self.resources().await;
        let found = resources.iter().find(listed).or_else(|| resources.iter().find(made_from));
        let service = found.and_then(|of| self.services.get(&of.service));
        match service {
            Some(service) => service.read_resource(uri.to_owned(), self.heard(context)).await,
            None => Err(self.nothing(format!("there is no resource `{uri}`"))),
        }
    }

    /// A prompt of a service that is in scope as a whole, by its listed name.
    pub async fn get_prompt(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        context: CallContext,
    ) -> Result<Value, ServiceError> {
        let prompts = self.prompts().await;
        let Some((owner, prompt)) = prompts.get(name) else {
            return Err(self.nothing(format!("there is no prompt `{name}`")));
        };
        let own_name = prompt["name"].as_str().unwrap_or_default().to_owned();
        match self.services.get(owner) {
            Some(service) => service.get_prompt(own_name, arguments, self.heard(context)).await,
            None => Err(self.nothing(format!("there is no prompt `{name}`"))),
        }
    }

    fn nothing(&self, reason: String) -> ServiceError {
        ServiceError::Refused { service: ServiceName::new(self.mode.to_string()), reason }
    }
}
