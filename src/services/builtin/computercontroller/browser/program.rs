//! Finds the installed Chromium and starts it in a separate sandbox. The sandbox shows system folders and one folder of
//! the session; its only way to other hosts is Skein's proxy.
//!
//! Invariant: no process and no profile is left when this is dropped.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStderr;

use super::page_events::PageEvents;
use crate::cdp::{CdpClient, CdpError, EventSink};
use crate::process::{Launch, Pipes, ProcessGroup, ProcessScope, Stdin};
use crate::sandbox::proxy::{HostGate, InsideNetwork};
use crate::sandbox::{
    CacheAccess, CurrentGate, Enforcement, NetworkAccess, ProfileOwner, RunningSandbox, SandboxFolders,
    SandboxLauncher, SandboxProfile, SandboxRequest, SandboxStartError,
};
use crate::services::builtin::answer::ToolRefusal;
use crate::task::TaskScope;

/// Names of the program, in order of preference.
const PROGRAMS: [&str; 7] = [
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
    "chrome",
    "chromium-headless-shell",
    "chrome-headless-shell",
];
/// Where programs are if the environment has no PATH.
const USUAL_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Folders that every sandbox shows.
const SYSTEM_FOLDERS: [&str; 5] = ["/usr", "/bin", "/opt", "/nix/store", "/etc"];
/// The pipes are the program's stdin and stdout. Chromium expects them as descriptors 3 and 4.
const MOVE_PIPES: &str = "exec 3<&0 4>&1 </dev/null >/dev/null; exec \"$@\"";
/// Time for one answer of the browser.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
const START_LIMIT: Duration = Duration::from_secs(40);
/// What is kept of the program's errors.
const MAX_ERRORS: usize = 2_000;
/// The size of the page in pixels.
pub(super) const WIDTH: u32 = 1280;
pub(super) const HEIGHT: u32 = 800;

/// Where and how browsers start.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct BrowserSetup {
    pub(in super::super) launcher: Option<SandboxLauncher>,
    pub(in super::super) environment: BTreeMap<OsString, OsString>,
}

/// What the sandbox of one browser allows.
pub(super) struct BrowserLimits {
    pub(super) network: NetworkAccess,
    pub(super) enforce: Enforcement,
    pub(super) gate: Arc<dyn HostGate>,
    pub(super) servers: Arc<dyn InsideNetwork>,
}

/// Reasons why no browser runs. They are worded for the model.
#[derive(Debug, thiserror::Error)]
pub(super) enum BrowserError {
    #[error(
        "no Chromium is installed, so there is no browser: ask the user to install it (the package `chromium` on Debian \
         and Fedora, `chromium-browser` on Ubuntu from a PPA, or Google Chrome)"
    )]
    NotInstalled,
    #[error(
        "`{program}` is a snap, which does not run in a sandbox: ask the user to install another Chromium or Google Chrome"
    )]
    Snap { program: String },
    #[error("this program cannot start a sandbox, and the browser does not run without one; tell the user")]
    NoLauncher,
    #[error(
        "the browser needs user namespaces, which this machine does not have: its pages could reach every host. Tell the \
         user; `skein doctor` shows how to get them"
    )]
    NoNamespaces,
    #[error("the browser does not start: {0}")]
    Sandbox(#[from] SandboxStartError),
    #[error("the browser does not start: {0}")]
    Io(#[from] io::Error),
    #[error("the browser does not start: {error}{errors}")]
    Start { error: CdpError, errors: String },
}

impl From<BrowserError> for ToolRefusal {
    fn from(error: BrowserError) -> Self {
        ToolRefusal::of(error)
    }
}

/// A running Chromium with one page.
#[derive(Debug)]
pub(super) struct ChromiumProcess {
    pub(super) client: CdpClient,
    pub(super) events: Arc<PageEvents>,
    /// The protocol's id of the page.
    pub(super) page: String,
    pub(super) sandbox: Arc<RunningSandbox>,
    group: ProcessGroup,
    tasks: TaskScope,
    /// Profile, downloads and uploads. The browser writes nothing else.
    folder: TempDir,
}

impl Drop for ChromiumProcess {
    fn drop(&mut self) {
        self.tasks.cancel();
        self.group.kill();
        // The profile can be removed only when no process writes to it.
        self.sandbox.process().stop();
    }
}

impl ChromiumProcess {
    /// Starts a browser whose folder is below `scratch`.
    pub(super) async fn start(
        setup: &BrowserSetup,
        scratch: &Path,
        limits: BrowserLimits,
    ) -> Result<Self, BrowserError> {
        let program = find_program(&setup.environment)?;
        let launcher = setup.launcher.as_ref().ok_or(BrowserError::NoLauncher)?;
        tokio::fs::create_dir_all(scratch).await?;
        let folder = tempfile::Builder::new().prefix("browser-").tempdir_in(scratch)?;
        for name in ["profile", "downloads", "uploads"] {
            tokio::fs::create_dir(folder.path().join(name)).await?;
        }
        let sandbox = start_sandbox(launcher, folder.path(), &program, limits).await?;
        let address = sandbox.process().proxy_address().filter(|_| !sandbox.process().namespaces().is_empty());
        let Some(proxy) = address else { return Err(BrowserError::NoNamespaces) };
        let launch = Launch {
            program: "sh".into(),
            args: arguments(&program, folder.path(), &format!("http://{proxy}")),
            env: environment(&setup.environment, folder.path()),
            cwd: Some("/".into()),
            stdin: Stdin::Piped,
            launcher: Some(Arc::new(sandbox.process().clone())),
        };
        // The sandbox process answers when the program runs, which takes a moment.
        let started =
            tokio::task::spawn_blocking(move || ProcessGroup::spawn_in(&ProcessScope::default(), &launch, None)).await;
        let (group, Pipes { stdin, stdout, stderr }) = started.map_err(io::Error::other)??;
        let stdin = stdin.ok_or_else(|| io::Error::other("the browser has no pipe"))?;
        let events: Arc<PageEvents> = Arc::default();
        let client = CdpClient::start(stdout, stdin, Arc::clone(&events) as Arc<dyn EventSink>, ANSWER_LIMIT);
        let (tasks, errors) = (TaskScope::new(), Arc::new(Mutex::new(Vec::new())));
        let (cancelled, kept) = (tasks.cancelled().clone(), Arc::clone(&errors));
        tasks.spawn(async move {
            cancelled.run_until_cancelled(keep_errors(stderr, &kept)).await;
        });
        let mut process = Self { client, events, page: String::new(), sandbox, group, tasks, folder };
        match process.open_page().await {
            Ok(()) => Ok(process),
            Err(error) => {
                let errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
                let last = String::from_utf8_lossy(&errors).trim().to_owned();
                let errors = if last.is_empty() { String::new() } else { format!(". Its last messages:\n{last}") };
                Err(BrowserError::Start { error, errors })
            }
        }
    }

    /// Attaches to the first page and prepares it.
    async fn open_page(&mut self) -> Result<(), CdpError> {
        let client = self.client.clone();
        client.call_within(START_LIMIT, None, "Browser.getVersion", json!({})).await?;
        let targets = client.call(None, "Target.getTargets", json!({})).await?;
        let pages = targets["targetInfos"].as_array().into_iter().flatten();
        let mut target = pages.filter(|info| info["type"] == "page").find_map(|info| info["targetId"].as_str());
        let created;
        if target.is_none() {
            created = client.call(None, "Target.createTarget", json!({"url": "about:blank"})).await?;
            target = created["targetId"].as_str();
        }
        let target = target.unwrap_or_default().to_owned();
        let attach = json!({"targetId": target, "flatten": true});
        let attached = client.call(None, "Target.attachToTarget", attach).await?;
        self.page = attached["sessionId"].as_str().unwrap_or_default().to_owned();
        self.events.attach(client.clone(), target, self.page.clone());
        let downloads = self.folder.path().join("downloads");
        let download =
            json!({"behavior": "allowAndName", "downloadPath": downloads.to_string_lossy(), "eventsEnabled": true});
        client.call(None, "Browser.setDownloadBehavior", download).await?;
        client.call(None, "Target.setDiscoverTargets", json!({"discover": true})).await?;
        let size = json!({"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": false});
        for (method, params) in [
            ("Page.enable", json!({})),
            ("DOM.enable", json!({})),
            ("Inspector.enable", json!({})),
            ("Emulation.setDeviceMetricsOverride", size),
            ("Page.setInterceptFileChooserDialog", json!({"enabled": true})),
        ] {
            client.call(Some(&self.page), method, params).await?;
        }
        Ok(())
    }

    /// Calls a method of the page.
    pub(super) async fn call(&self, method: &str, params: Value) -> Result<Value, CdpError> {
        self.client.call(Some(&self.page), method, params).await
    }

    pub(super) fn downloads(&self) -> PathBuf {
        self.folder.path().join("downloads")
    }

    pub(super) fn uploads(&self) -> PathBuf {
        self.folder.path().join("uploads")
    }
}

async fn start_sandbox(
    launcher: &SandboxLauncher,
    folder: &Path,
    program: &Path,
    limits: BrowserLimits,
) -> Result<Arc<RunningSandbox>, SandboxStartError> {
    let BrowserLimits { network, enforce, gate, servers } = limits;
    let mut profile = SandboxProfile::narrowest(ProfileOwner::Program);
    profile.caches = CacheAccess::Off;
    profile.network = network;
    profile.network.deny.extend(OWN_HOSTS.map(str::to_owned));
    profile.enforce = enforce;
    let is_system = SYSTEM_FOLDERS.iter().any(|system| program.starts_with(system));
    let readable = program.parent().filter(|_| !is_system).map(Path::to_owned);
    let folders = SandboxFolders {
        scratch: Some(folder.to_owned()),
        readable: readable.into_iter().collect(),
        ..SandboxFolders::default()
    };
    let request = SandboxRequest {
        profile: Arc::new(profile),
        folders,
        gate: Arc::new(CurrentGate::new(gate)),
        servers: Some(servers),
        watches: None,
    };
    RunningSandbox::start(launcher, request).await
}

/// Searches PATH.
fn find_program(environment: &BTreeMap<OsString, OsString>) -> Result<PathBuf, BrowserError> {
    let path = environment.get(OsStr::new("PATH")).cloned().unwrap_or_else(|| USUAL_PATH.into());
    let folders: Vec<PathBuf> = path.to_string_lossy().split(':').map(PathBuf::from).collect();
    let mut snap = None;
    for name in PROGRAMS {
        for file in folders.iter().map(|folder| folder.join(name)).filter(|file| is_program(file)) {
            let real = file.canonicalize()?;
            if file.starts_with("/snap") || real.ends_with("usr/bin/snap") {
                snap.get_or_insert(file);
                continue;
            }
            return Ok(real);
        }
    }
    Err(snap.map_or(BrowserError::NotInstalled, |file| BrowserError::Snap { program: file.display().to_string() }))
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Returns the variables of the browser. Its home is its folder.
fn environment(ours: &BTreeMap<OsString, OsString>, folder: &Path) -> BTreeMap<OsString, OsString> {
    let kept = ["PATH", "LANG", "LC_ALL", "TZ"].iter().filter_map(|name| ours.get_key_value(OsStr::new(name)));
    let mut variables: BTreeMap<OsString, OsString> = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    variables.entry("PATH".into()).or_insert_with(|| USUAL_PATH.into());
    variables.insert("HOME".into(), folder.join("profile").into_os_string());
    variables
}

/// Returns the arguments of `sh`. The browser's own sandbox cannot start inside ours: namespaces are refused there.
fn arguments(program: &Path, folder: &Path, proxy: &str) -> Vec<OsString> {
    let mut profile = OsString::from("--user-data-dir=");
    profile.push(folder.join("profile"));
    let mut arguments: Vec<OsString> = vec!["-c".into(), MOVE_PIPES.into(), "sh".into(), program.into(), profile];
    arguments.extend(FLAGS.iter().map(OsString::from));
    arguments.push(format!("--proxy-server={proxy}").into());
    arguments.push(format!("--window-size={WIDTH},{HEIGHT}").into());
    arguments.push("about:blank".into());
    arguments
}

/// Hosts that Chromium itself contacts in spite of its flags. They are refused without a question.
pub(super) const OWN_HOSTS: [&str; 2] = ["clients2.google.com", "update.googleapis.com"];

const FLAGS: [&str; 27] = [
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    // Also for loopback addresses: the proxy leads them to the servers of the session.
    "--proxy-bypass-list=<-loopback>",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    // One process for all frames, so that one tree has all of them. Without its sandbox, processes separate nothing.
    "--disable-site-isolation-trials",
    "--disable-features=IsolateOrigins,site-per-process,Translate,OptimizationHints,MediaRouter,DialMediaRouteProvider,\
     AutofillServerCommunication,HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,NetworkTimeServiceQuerying",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-client-side-phishing-detection",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--metrics-recording-only",
    "--mute-audio",
    "--no-default-browser-check",
    "--no-first-run",
    "--password-store=basic",
];

/// Reads the program's errors and keeps the last part.
async fn keep_errors(mut stderr: ChildStderr, kept: &Mutex<Vec<u8>>) {
    let mut part = [0; 4096];
    while let Ok(count) = stderr.read(&mut part).await {
        if count == 0 {
            return;
        }
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&part[..count]);
        let surplus = kept.len().saturating_sub(MAX_ERRORS);
        kept.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(folders: &[&Path]) -> BTreeMap<OsString, OsString> {
        let joined: Vec<_> = folders.iter().map(|folder| folder.to_string_lossy()).collect();
        [("PATH".into(), joined.join(":").into())].into()
    }

    fn make(folder: &Path, name: &str, mode: u32) -> PathBuf {
        let file = folder.join(name);
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        file.canonicalize().unwrap()
    }

    #[test]
    fn the_preferred_program_of_path_is_found() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folders = path(&[first.path(), second.path()]);
        let error = find_program(&folders).unwrap_err().to_string();
        assert!(error.starts_with("no Chromium is installed") && error.contains("package `chromium`"), "{error}");
        let chrome = make(first.path(), "google-chrome", 0o755);
        make(first.path(), "chromium", 0o644);
        assert_eq!(find_program(&folders).unwrap(), chrome, "a file that is no program does not count");
        let chromium = make(second.path(), "chromium", 0o755);
        assert_eq!(find_program(&folders).unwrap(), chromium);
    }

    #[test]
    fn a_browser_gets_no_variable_that_could_hold_a_secret() {
        let ours = [("PATH", "/bin"), ("HOME", "/home/me"), ("API_KEY", "x"), ("LANG", "C")];
        let ours = ours.map(|(name, value)| (name.into(), value.into())).into();
        let names: Vec<_> = environment(&ours, Path::new("/s")).into_iter().collect();
        let expected = [("HOME", "/s/profile"), ("LANG", "C"), ("PATH", "/bin")];
        assert_eq!(names, expected.map(|(name, value)| (name.into(), value.into())));
    }
}
