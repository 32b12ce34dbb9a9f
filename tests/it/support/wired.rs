//! Manifests that run: the real loader, resolver, pool and broker, a real reaper, and no status socket.
//!
//! Invariant: whatever a `Wired` starts carries its folder in the environment, so that no process of it can hide.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use skein::broker::{BindError, BindRequest, Binding};
use skein::graph;
use skein::manifest::{self, ApprovalLevel, Layer, Root};
use skein::process::Reaper;
use skein::runtime::{Runtime, RuntimePaths};
use skein::sandbox::proxy::CompanyProxy;
use skein::sandbox::{HiddenPaths, HostResources, LayerRestriction, SandboxLauncher};
use skein::services::{BuiltinRegistry, Environment, PoolOptions, UserFolders};
use skein::tool::ask::{Asker, NoAsker};
use skein::tool::{CallContext, ServiceStatus, SessionContext, ToolOutcome};
use tempfile::TempDir;

use super::servers;

/// How long anything may take before a test gives up on it.
const DEADLINE: Duration = Duration::from_secs(60);

/// A service manifest for `skein-mcp-echo` with these flags.
pub(crate) fn echo(name: &str, flags: &[&str]) -> Value {
    service(name, json!({"stdio": {"command": servers::mcp_echo(), "args": flags}}))
}

/// The same, started so that it ignores SIGTERM.
pub(crate) fn stubborn(name: &str, flags: &[&str]) -> Value {
    let mut args = vec!["-c", r#"trap '' TERM; exec "$0" "$@""#, servers::mcp_echo()];
    args.extend(flags);
    service(name, json!({"stdio": {"command": "sh", "args": args}}))
}

pub(crate) fn service(name: &str, transport: Value) -> Value {
    json!({"version": 1, "kind": "service", "name": name, "description": "For a test.", "transport": transport})
}

/// The agent `test` with these modes.
pub(crate) fn agent(modes: &[Value]) -> Value {
    let mut dependencies: Vec<Value> = Vec::new();
    for dependency in modes.iter().flat_map(|mode| mode["dependencies"].as_array().into_iter().flatten()) {
        if !dependencies.contains(dependency) {
            dependencies.push(dependency.clone());
        }
    }
    json!({
        "version": 1, "kind": "agent", "name": "test", "description": "For a test.",
        // An external agent needs no prompt.
        "runtime": {"acp": {"command": "none"}},
        "metadata": {"dependencies": dependencies},
        "modes": modes,
    })
}

pub(crate) fn mode(slug: &str, tool_groups: Value, dependencies: Value) -> Value {
    json!({"slug": slug, "description": "For a test.", "tool_groups": tool_groups, "dependencies": dependencies})
}

/// A manifest with more fields.
pub(crate) fn with(mut manifest: Value, more: Value) -> Value {
    let (Value::Object(fields), Value::Object(more)) = (&mut manifest, more) else { panic!("two objects") };
    fields.extend(more);
    manifest
}

pub(crate) fn arguments(value: Value) -> Map<String, Value> {
    let Value::Object(arguments) = value else { panic!("an object") };
    arguments
}

/// Waits until `check` gives something.
pub(crate) async fn until<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(begun.elapsed() < DEADLINE, "waited too long until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What is to be wired.
#[derive(Default)]
pub(crate) struct Wiring {
    manifests: Vec<(Layer, Value)>,
    config: Option<Value>,
    registry: Option<BuiltinRegistry>,
    variables: Vec<(&'static str, &'static str)>,
    layers: Option<LayerRestriction>,
    attachable: bool,
}

impl Wiring {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// As a user would install them.
    pub(crate) fn user(mut self, manifests: impl IntoIterator<Item = Value>) -> Self {
        self.manifests.extend(manifests.into_iter().map(|manifest| (Layer::User, manifest)));
        self
    }

    /// The user's `config.yaml`.
    pub(crate) fn config(mut self, config: Value) -> Self {
        self.config = Some(config);
        self
    }

    /// As if they were compiled in: only such may have a built-in transport.
    pub(crate) fn builtin(mut self, manifests: impl IntoIterator<Item = Value>) -> Self {
        self.manifests.extend(manifests.into_iter().map(|manifest| (Layer::Builtin, manifest)));
        self
    }

    pub(crate) fn registry(mut self, registry: BuiltinRegistry) -> Self {
        self.registry = Some(registry);
        self
    }

    /// A variable of Skein's own environment.
    pub(crate) fn variable(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
    }

    /// Processes with a sandbox profile run inside, on a machine with these layers.
    pub(crate) fn sandboxed(mut self, layers: &str) -> Self {
        self.layers = Some(LayerRestriction::parse(layers).expect("layers"));
        self
    }

    /// Programs of services reach the services that they require. There is a status socket, too.
    pub(crate) fn attachable(mut self) -> Self {
        self.attachable = true;
        self
    }

    pub(crate) fn start(self) -> Wired {
        // Every sandbox replaces `/tmp`.
        let folder = match self.layers {
            Some(_) => tempfile::Builder::new().prefix("wired-").tempdir_in(env!("CARGO_TARGET_TMPDIR")),
            None => tempfile::tempdir(),
        };
        let folder = folder.expect("a temporary folder");
        let project = folder.path().join("project");
        fs::create_dir(&project).expect("a folder for the project");
        let of_layer = |wanted: Layer| {
            let of_layer = self.manifests.iter().filter(|(layer, _)| *layer == wanted).enumerate();
            let file = |(index, (_, manifest)): (usize, &(Layer, Value))| {
                // JSON is YAML; the folder only tells the loader that the file is a manifest.
                (PathBuf::from(format!("services/{index}.yaml")), manifest.to_string().into_bytes())
            };
            let config = self.config.iter().filter(|_| wanted == Layer::User);
            let config = config.map(|config| ("config.yaml".into(), config.to_string().into_bytes()));
            Root::Snapshot { files: of_layer.map(file).chain(config).collect(), shown: wanted.to_string() }
        };
        let roots = [
            (Layer::Builtin, Root::Builtin),
            (Layer::Builtin, of_layer(Layer::Builtin)),
            (Layer::User, of_layer(Layer::User)),
        ];
        let (manifests, found) = manifest::load(&roots);
        let resolved = graph::resolve(manifests, found);
        let plan = resolved.plan.unwrap_or_else(|| panic!("manifests that are right: {:#?}", resolved.diagnostics));
        let inherited = ["PATH", "HOME"].iter().filter_map(|name| Some(((*name).into(), std::env::var_os(name)?)));
        let given = self.variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let marked = ("TMPDIR".into(), folder.path().into());
        let reaper = Reaper::new(env!("CARGO_BIN_EXE_skein"), &["reaper".into()]);
        let options = PoolOptions {
            environment: Environment::new(inherited.chain(given).chain([marked])),
            reaper: Some(reaper),
            sandbox: self.layers.map(|restriction| launcher(folder.path(), restriction)),
            data: folder.path().join("data"),
            store: None,
            user: UserFolders {
                home: folder.path().join("home"),
                config_home: folder.path().join("home/.config"),
                config: folder.path().join("config"),
            },
            cassette: None,
            logins: None,
        };
        let registry = self.registry.unwrap_or_else(BuiltinRegistry::builtin);
        let home = self.attachable.then(|| RuntimePaths {
            // Hidden from sandboxes, as for a user.
            sockets: folder.path().join("data/run"),
            program: env!("CARGO_BIN_EXE_skein").into(),
            scratch: folder.path().join("agents"),
        });
        let runtime = Runtime::start(Arc::new(plan), registry, options, home);
        Wired { runtime, folder }
    }
}

/// Starts sandboxes with the program under test. Nothing of the user is in reach.
pub(crate) fn launcher(folder: &Path, restriction: LayerRestriction) -> SandboxLauncher {
    let home = folder.join("home");
    fs::create_dir_all(&home).expect("a home");
    SandboxLauncher {
        program: env!("CARGO_BIN_EXE_skein").into(),
        hidden: HiddenPaths::new(&home, [folder.join("config"), folder.join("data")]),
        home,
        caches: folder.join("caches"),
        runtime_folder: None,
        sockets: folder.join("sockets"),
        quarantine: folder.join("quarantine"),
        restriction,
        host: HostResources { company: Ok(CompanyProxy::default()), ssh_agent: None, environment: BTreeMap::new() },
    }
}

/// A plan that runs.
pub(crate) struct Wired {
    pub(crate) runtime: Runtime,
    folder: TempDir,
}

impl Wired {
    /// These manifests, as a user would install them, beside the built-in ones.
    pub(crate) fn with_manifests(manifests: &[Value]) -> Self {
        Wiring::new().user(manifests.iter().cloned()).start()
    }

    /// A path in the temporary folder.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// The text of a file in the temporary folder; nothing if it is not there.
    pub(crate) fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default()
    }

    pub(crate) fn session(&self, id: &str) -> Arc<SessionContext> {
        fs::create_dir_all(self.path("project")).expect("a working folder");
        SessionContext::new(id, self.path("project"), Vec::new(), self.path("scratch"))
    }

    /// A binding in which every call runs.
    pub(crate) async fn bind(&self, mode: &str) -> Result<Binding, BindError> {
        self.bind_session("session", mode).await
    }

    pub(crate) async fn bind_session(&self, session: &str, mode: &str) -> Result<Binding, BindError> {
        self.bind_context(self.session(session), mode).await
    }

    /// A binding of a session that may have others.
    pub(crate) async fn bind_context(&self, session: Arc<SessionContext>, mode: &str) -> Result<Binding, BindError> {
        let asker: Arc<dyn Asker> = Arc::new(NoAsker);
        let approval = Some(ApprovalLevel::Auto);
        self.bind_terms(mode, BindRequest { session, approval, asker, client_services: Vec::new() }).await
    }

    pub(crate) async fn bind_terms(&self, mode: &str, terms: BindRequest) -> Result<Binding, BindError> {
        self.runtime.broker().bind(&format!("test/{mode}").parse().expect("a mode"), terms).await
    }

    pub(crate) fn context(&self) -> CallContext {
        CallContext::new(self.session("session"))
    }

    pub(crate) async fn call(&self, binding: &Binding, tool: &str, with: Value) -> ToolOutcome {
        binding.call(tool, arguments(with), self.context()).await.expect("not cancelled")
    }

    /// The answer of a call that works.
    pub(crate) async fn said(&self, binding: &Binding, tool: &str, with: Value) -> String {
        let outcome = self.call(binding, tool, with).await;
        assert!(!outcome.is_error, "{tool}: {}", outcome.all_text());
        outcome.all_text()
    }

    /// The answer of a call that does not.
    pub(crate) async fn refused(&self, binding: &Binding, tool: &str, with: Value) -> String {
        let outcome = self.call(binding, tool, with).await;
        assert!(outcome.is_error, "{tool}: {}", outcome.all_text());
        outcome.all_text()
    }

    pub(crate) fn status(&self, service: &str) -> Option<ServiceStatus> {
        let all = self.runtime.pool().status();
        all.into_iter().find(|(name, _)| name.as_str() == service).map(|(_, status)| status)
    }

    pub(crate) fn processes(&self) -> Vec<u32> {
        processes_of(self.folder.path())
    }

    pub(crate) async fn until_processes(&self, count: usize) {
        until(&format!("{count} processes are there"), || (self.processes().len() == count).then_some(())).await;
    }

    /// Ends everything, and looks whether it is gone.
    pub(crate) async fn stop(self) {
        tokio::time::timeout(DEADLINE, self.runtime.stop()).await.expect("the runtime stops");
        // What was killed may need a moment to be gone on a machine that has much to do.
        until("nothing is left behind", || processes_of(self.folder.path()).is_empty().then_some(())).await;
    }

    /// Lets go of everything without a word; the folder tells what is left of it.
    pub(crate) fn drop_runtime(self) -> TempDir {
        self.folder
    }
}

/// Every living process that was started with this folder, however far down; zombies have no environment. Empty on
/// systems other than Linux, which do not show the environment of a process.
pub(crate) fn processes_of(folder: &Path) -> Vec<u32> {
    if !cfg!(target_os = "linux") {
        return Vec::new();
    }
    // A sandbox removes the first variable, and keeps the home.
    let marks = ["TMPDIR", "HOME"].map(|name| format!("{name}={}", folder.display()));
    let entries = fs::read_dir("/proc").expect("a /proc").filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let marked = |pid: &u32| {
        let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|variable| marks.iter().any(|mark| variable == mark.as_bytes()))
    };
    pids.filter(marked).collect()
}
