//! Decides which tools a mode may use, from its resolved tool groups. The tool list of a model, the MCP view and every
//! call use this one predicate.
//!
//! Invariant: a tool that no rule names is not admitted; an empty scope admits nothing.

use regex::Regex;
use serde::Serialize;

use crate::ids::{GroupName, ServiceName};
use crate::manifest::{DisableSource, ManagedExclusion, ServiceEntry};

/// The resolved tool groups of one mode.
#[derive(Debug, Clone, Default)]
pub struct ToolScope {
    pub(super) rules: Vec<GroupRule>,
    /// The services that the mode depends on.
    pub(super) needs: Vec<ServiceName>,
    /// Set in the scope of calls that a service makes: the service that it requires, and the only one in scope.
    pub(super) required: Option<ServiceName>,
}

/// One entry of `tool_groups`, resolved.
#[derive(Debug, Clone)]
pub struct GroupRule {
    pub group: GroupName,
    pub kind: GroupRuleKind,
    /// A pattern that every path argument of a call must match.
    pub files: Option<Regex>,
}

/// The resolved meaning of a group's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupRuleKind {
    /// A group that services declare.
    Declared,
    /// All tools of the service with that name.
    Service,
    /// All tools of third-party and client-provided services.
    Mcp,
    /// All tools of a required service that no other rule names.
    Required,
}

/// The reason why a tool is in scope.
#[derive(Debug, Clone)]
pub struct Admission<'a> {
    /// The rules that admit it. If one of them has no `files`, paths are unrestricted.
    pub rules: Vec<&'a GroupRule>,
}

impl Admission<'_> {
    /// Returns the patterns of which each path must match one; empty if paths are unrestricted.
    pub fn files(&self) -> Vec<&Regex> {
        let patterns: Option<Vec<_>> = self.rules.iter().map(|rule| rule.files.as_ref()).collect();
        patterns.unwrap_or_default()
    }
}

/// The reason why a tool is out of scope, shown to users.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScopeRefusal {
    #[error("the mode does not ask for the service {service}")]
    NotBound { service: ServiceName },
    #[error("the active profile leaves out the service {service}")]
    NotInProfile { service: ServiceName },
    #[error("the service {service} is disabled by `disabled_services` in {file}")]
    Disabled { service: ServiceName, file: String },
    #[error("{}", exclusion_problem(.service, .exclusion))]
    Managed { service: ServiceName, exclusion: Box<ManagedExclusion> },
    /// `groups` are those of the tool.
    #[error("{}", group_problem(.groups))]
    NoGroup { groups: Vec<GroupName> },
    #[error("the mode lists no tool groups")]
    NoGroups,
    /// The manifest of the service, or the client that provides it, selected other tools.
    #[error("the manifest of its service excludes it")]
    LeftOut,
}

fn exclusion_problem(service: &ServiceName, exclusion: &ManagedExclusion) -> String {
    exclusion.describe(&format!("the service {service}"))
}

fn group_problem(groups: &[GroupName]) -> String {
    if groups.is_empty() {
        return "none of the mode's groups admits it".to_owned();
    }
    let names: Vec<_> = groups.iter().map(GroupName::as_str).collect();
    format!("it is in the group {}, which the mode does not list", names.join(" or "))
}

impl ToolScope {
    pub fn rules(&self) -> &[GroupRule] {
        &self.rules
    }

    /// Returns true if the mode uses all third-party and client-provided services.
    pub fn lists_mcp(&self) -> bool {
        self.rules.iter().any(|rule| rule.kind == GroupRuleKind::Mcp)
    }

    /// Returns true if a session in this mode binds the service.
    pub fn binds(&self, service: &ServiceEntry) -> bool {
        if let Some(required) = &self.required {
            return *required == service.manifest.name;
        }
        service.enabled && (self.needs.contains(&service.manifest.name) || (service.is_in_mcp() && self.lists_mcp()))
    }

    /// Returns the scope of the calls that another service makes on `service`, because it requires it. If the mode itself
    /// depends on `service`, its groups decide. Otherwise all tools are in scope; a tool of a group that the mode limits
    /// with `files` has the same limit.
    #[must_use]
    pub fn for_required(&self, service: &ServiceEntry) -> Self {
        let name = &service.manifest.name;
        let mut rules = self.rules.clone();
        if !self.needs.contains(name) && !self.binds(service) {
            rules.retain(|rule| rule.kind == GroupRuleKind::Declared && rule.files.is_some());
            let group = GroupName::new(name.as_str());
            rules.push(GroupRule { group, kind: GroupRuleKind::Required, files: None });
        }
        Self { rules, needs: vec![name.clone()], required: Some(name.clone()) }
    }

    /// Returns the services that the mode depends on.
    pub fn needs(&self) -> &[ServiceName] {
        &self.needs
    }

    /// Returns the admission if the service is bound and a group admits the tool.
    pub fn admits(&self, service: &ServiceEntry, tool: &str) -> Result<Admission<'_>, ScopeRefusal> {
        let name = &service.manifest.name;
        let named = self.needs.contains(name);
        if self.required.is_none() && !service.enabled && (named || (service.user_installed() && self.lists_mcp())) {
            return Err(match &service.disabled_by {
                Some(DisableSource::Config(file)) => {
                    ScopeRefusal::Disabled { service: name.clone(), file: file.clone() }
                }
                Some(DisableSource::Managed(exclusion)) => {
                    ScopeRefusal::Managed { service: name.clone(), exclusion: Box::new(exclusion.clone()) }
                }
                Some(DisableSource::Profile(_)) | None => ScopeRefusal::NotInProfile { service: name.clone() },
            });
        }
        if !self.binds(service) {
            return Err(ScopeRefusal::NotBound { service: name.clone() });
        }
        let left_out = service.only.as_ref().is_some_and(|only| only.iter().all(|name| name.as_str() != tool));
        if left_out {
            return Err(ScopeRefusal::LeftOut);
        }
        let rules: Vec<_> = self
            .rules
            .iter()
            .filter(|rule| match rule.kind {
                GroupRuleKind::Declared => named && declares(service, &rule.group, tool),
                GroupRuleKind::Service => named && rule.group.as_str() == name.as_str(),
                GroupRuleKind::Mcp => service.is_in_mcp(),
                GroupRuleKind::Required => !self.declares(service, tool),
            })
            .collect();
        if !rules.is_empty() {
            return Ok(Admission { rules });
        }
        Err(if self.rules.is_empty() {
            ScopeRefusal::NoGroups
        } else {
            let groups = service.manifest.groups.keys().filter(|group| declares(service, group, tool)).cloned();
            ScopeRefusal::NoGroup { groups: groups.collect() }
        })
    }
}

impl ToolScope {
    /// Returns true if a group of the scope names the tool.
    fn declares(&self, service: &ServiceEntry, tool: &str) -> bool {
        let mut declared = self.rules.iter().filter(|rule| rule.kind == GroupRuleKind::Declared);
        declared.any(|rule| declares(service, &rule.group, tool))
    }
}

fn declares(service: &ServiceEntry, group: &GroupName, tool: &str) -> bool {
    service.manifest.groups.get(group).is_some_and(|tools| tools.iter().any(|name| name.as_str() == tool))
}
