//! Invariants of the tools, for any services, resources and proposals.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::answer;
use super::super::harness::{Harness, runtime};
use super::ExtensionManagerService;
use crate::ids::ServiceName;
use crate::manifest::{self, Layer, Root, ServiceEntry};
use crate::tool::ask::{Asker, PermissionRequest, PermissionResponse};
use crate::tool::manage::{
    ManageError, ManifestText, ResourceListing, ServiceChange, ServiceManager, ServiceState, ServiceSummary,
};
use crate::tool::{CallContext, Catalog, strip_invisible};

/// A manager that keeps services in memory and starts nothing.
#[derive(Default)]
struct MemoryManager {
    /// The description of each service, and whether it is enabled.
    services: Mutex<BTreeMap<String, (String, bool)>>,
    resources: Vec<ResourceListing>,
    /// The texts of every resource.
    texts: Vec<String>,
    probes: AtomicUsize,
    additions: AtomicUsize,
}

impl MemoryManager {
    fn set(&self, name: &str, enabled: bool) -> Result<ServiceChange, ManageError> {
        let mut services = self.services.lock().unwrap();
        let unknown = || ManageError::Unknown { name: name.to_owned(), near: None };
        services.get_mut(name).ok_or_else(unknown)?.1 = enabled;
        Ok(change(name, enabled))
    }
}

fn change(name: &str, enabled: bool) -> ServiceChange {
    let service = ServiceName::new(name);
    ServiceChange { service, enabled, tools: Vec::new(), modes: Vec::new(), stopped: Vec::new() }
}

impl ServiceManager for MemoryManager {
    fn search(&self, _: &str, _: &CallContext) -> Vec<ServiceSummary> {
        let services = self.services.lock().unwrap();
        let summary = |(name, (description, enabled)): (&String, &(String, bool))| ServiceSummary {
            service: ServiceName::new(name.as_str()),
            description: description.clone(),
            state: if *enabled { ServiceState::Enabled } else { ServiceState::Disabled },
            modes: Vec::new(),
        };
        services.iter().map(summary).collect()
    }

    fn enable<'a>(&'a self, service: &'a str, _: &'a CallContext) -> BoxFuture<'a, Result<ServiceChange, ManageError>> {
        Box::pin(async move { self.set(service, true) })
    }

    fn disable(&self, service: &str, _: &CallContext) -> Result<ServiceChange, ManageError> {
        self.set(service, false)
    }

    fn check_manifest(&self, manifest: ManifestText, _: &CallContext) -> Result<ServiceEntry, ManageError> {
        let inside = PathBuf::from(format!("services/{}.yaml", manifest.name));
        let root = Root::Snapshot { files: [(inside, manifest.text.into_bytes())].into(), shown: String::new() };
        let (manifests, _) = manifest::load(&[(Layer::User, root)]);
        manifests.services.get(&manifest.name).cloned().ok_or(ManageError::Invalid { code: "E010" })
    }

    fn probe<'a>(
        &'a self,
        _: &'a ServiceEntry,
        _: &'a CallContext,
    ) -> BoxFuture<'a, Result<Arc<Catalog>, ManageError>> {
        self.probes.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(Arc::default()) })
    }

    fn add(&self, entry: ServiceEntry, _: &CallContext) -> ServiceChange {
        self.additions.fetch_add(1, Ordering::Relaxed);
        change(entry.manifest.name.as_str(), true)
    }

    fn resources<'a>(
        &'a self,
        service: Option<&'a str>,
        _: &'a CallContext,
    ) -> BoxFuture<'a, Result<Vec<ResourceListing>, ManageError>> {
        let is_wanted = move |of: &&ResourceListing| service.is_none_or(|name| of.service.as_str() == name);
        Box::pin(async move { Ok(self.resources.iter().filter(is_wanted).cloned().collect()) })
    }

    fn read<'a>(&'a self, _: &'a str, _: &'a str, _: &'a CallContext) -> BoxFuture<'a, Result<Value, ManageError>> {
        let contents: Vec<_> = self.texts.iter().map(|text| json!({"text": text})).collect();
        Box::pin(async move { Ok(json!({"contents": contents})) })
    }
}

/// The service in a session with this manager. Its config folder is `data`, beside the working directory.
fn managed(manager: &Arc<MemoryManager>) -> Harness {
    let harness = Harness::with_data(|data| ExtensionManagerService::new().with_config(data.to_owned()));
    assert!(harness.session.manager.set(Arc::clone(manager) as Arc<dyn ServiceManager>).is_ok());
    harness
}

/// Gives one answer to every question.
struct FixedAnswer(PermissionResponse);

impl Asker for FixedAnswer {
    fn ask(&self, _: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        Box::pin(async { self.0 })
    }
}

fn any_text() -> &'static str {
    "(?s).{0,30}"
}

fn listing() -> impl Strategy<Value = ResourceListing> {
    let resource = (any_text(), any_text(), any_text())
        .prop_map(|(uri, name, description)| json!({"uri": uri, "name": name, "description": description}));
    ("[a-z]{1,6}", vec(resource, 0..4), prop::option::of(any_text())).prop_map(|(service, resources, problem)| {
        ResourceListing { service: ServiceName::new(service), resources, problem }
    })
}

/// Descriptions of servers, most of which Skein could run, and other texts.
fn server_json() -> impl Strategy<Value = String> {
    let remote = ("[a-z]{1,8}", "[a-z]{1,8}", prop::sample::select(vec!["streamable-http", "sse", ""])).prop_map(
        |(name, host, kind)| {
            let remotes = json!([{"type": kind, "url": format!("https://{host}.example/mcp")}]);
            json!({"name": format!("com.example/{name}"), "description": "Greets.", "remotes": remotes}).to_string()
        },
    );
    let package = ("[a-z]{1,8}", "[a-z@/;. -]{1,12}").prop_map(|(name, identifier)| {
        let packages = json!([{"registryType": "npm", "identifier": identifier, "transport": {"type": "stdio"}}]);
        json!({"name": format!("com.example/{name}"), "description": "Greets.", "packages": packages}).to_string()
    });
    prop_oneof![3 => remote, 2 => package, 1 => any_text()]
}

fn response() -> impl Strategy<Value = Option<PermissionResponse>> {
    let responses = vec![
        PermissionResponse::Allow,
        PermissionResponse::AllowAlways,
        PermissionResponse::Refuse,
        PermissionResponse::RefuseAlways,
        PermissionResponse::Unavailable,
    ];
    prop::option::weighted(0.8, prop::sample::select(responses))
}

fn files_in(folder: &Path) -> usize {
    std::fs::read_dir(folder.join("services")).map_or(0, Iterator::count)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// A service is one line, whatever its description says. A call changes the service that it names, and no other.
    #[test]
    fn a_call_changes_exactly_the_service_that_it_names(
        services in btree_map("[a-z]{1,6}", (any_text(), any::<bool>()), 1..6),
        calls in vec((any::<prop::sample::Index>(), any::<bool>(), prop::option::weighted(0.2, "\\PC{1,12}")), 0..6),
    ) {
        runtime().block_on(async {
            let manager = Arc::new(MemoryManager { services: Mutex::new(services.clone()), ..MemoryManager::default() });
            let (harness, mut expected) = (managed(&manager), services);
            for (at, enabled, other) in calls {
                let known: Vec<_> = expected.keys().cloned().collect();
                let name = other.unwrap_or_else(|| at.get(&known).clone());
                let tool = if enabled { "enable_service" } else { "disable_service" };
                let outcome = harness.call(tool, json!({"name": name})).await;
                assert_eq!(outcome.is_error, !expected.contains_key(&name), "{name}: {}", outcome.all_text());
                if let Some(service) = expected.get_mut(&name) {
                    service.1 = enabled;
                }
                let listed = harness.call("search_services", json!({"query": ""})).await.all_text();
                let heads: Vec<_> = listed.lines().map(|line| line.split_once("):").map(|(head, _)| head)).collect();
                let state = |enabled| if enabled { "enabled" } else { "disabled" };
                let shown: Vec<_> = expected.iter().map(|(name, of)| format!("{name} ({}", state(of.1))).collect();
                assert_eq!(heads, shown.iter().map(|head| Some(head.as_str())).collect::<Vec<_>>(), "{listed}");
            }
        });
    }

    /// What services say about their resources stays in its line, and their texts stay before the mark.
    #[test]
    fn resources_cannot_leave_their_place(
        resources in vec(listing(), 0..4),
        texts in vec(any_text(), 0..3),
        uri in "[a-z]{1,5}://[a-z]{1,8}",
    ) {
        runtime().block_on(async {
            let manager = Arc::new(MemoryManager { resources: resources.clone(), texts: texts.clone(), ..MemoryManager::default() });
            let harness = managed(&manager);
            let listed = harness.call("list_resources", json!({})).await.all_text();
            let lines = resources.iter().flat_map(|of| {
                let count = of.resources.len() + usize::from(of.problem.is_some());
                std::iter::repeat_n(format!("{}: ", of.service), count)
            });
            let lines: Vec<_> = lines.collect();
            if lines.is_empty() {
                assert_eq!(listed, "no enabled service has resources");
            } else {
                assert_eq!(listed.lines().count(), lines.len(), "{listed:?}");
                assert!(listed.lines().zip(&lines).all(|(line, start)| line.starts_with(start.trim_end())), "{listed:?}");
            }
            let read = harness.call("read_resource", json!({"service": "notes", "uri": uri})).await.all_text();
            let body = texts.iter().map(|text| strip_invisible(text)).collect::<Vec<_>>().join("\n\n");
            let end = answer::end_of(&body);
            assert!(read.starts_with(&format!("{uri} of notes; ")), "{read:?}");
            assert!(read.ends_with(&format!("\n\n{body}\n\n{end}")), "{read:?}");
            assert_eq!(read.lines().filter(|line| *line == end).count(), 1, "{read:?}");
        });
    }

    /// Whatever is proposed, nothing starts or is written unless the user agrees.
    #[test]
    fn nothing_is_added_without_consent(text in server_json(), response in response()) {
        runtime().block_on(async {
            let manager = Arc::<MemoryManager>::default();
            let harness = managed(&manager);
            std::fs::write(harness.session.cwd.join("server.json"), &text).unwrap();
            let mut context = CallContext::new(Arc::clone(&harness.session));
            if let Some(response) = response {
                context = context.with_asker(Arc::new(FixedAnswer(response)));
            }
            let arguments = serde_json::Map::from_iter([("path".to_owned(), json!("server.json"))]);
            let outcome = harness.call_with(context, "propose_service", arguments).await;
            let config = harness.session.cwd.parent().unwrap().join("data");
            let seen = (
                files_in(&config),
                manager.additions.load(Ordering::Relaxed),
                manager.probes.load(Ordering::Relaxed),
            );
            let is_allowed = matches!(response, Some(PermissionResponse::Allow | PermissionResponse::AllowAlways));
            assert!(is_allowed || outcome.is_error, "{text}: {}", outcome.all_text());
            let expected = if outcome.is_error { (0, 0, 0) } else { (1, 1, 1) };
            assert_eq!(seen, expected, "{text}: {}", outcome.all_text());
        });
    }
}
