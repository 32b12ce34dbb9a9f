//! Keys in the keyring of the desktop: a real gnome-keyring on a bus of its own, one that is locked, and one that
//! never answers. Needs `dbus-run-session` and `gnome-keyring-daemon`; `scripts/bootstrap` installs them.
#![expect(clippy::expect_used, reason = "helpers of tests fail the test")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::model::{Answer, ScriptedModel};
use crate::support::{Run, Sandbox, files_below, full_tests, require_full_tests};

/// Not a real one.
pub(crate) const KEY: &str = concat!("a-key", "-of-a-keyring-5140");

/// A desktop's session: a bus, and a keyring on it. It ends with its stdin, so also with this process.
pub(crate) struct Desktop {
    session: Child,
    pub(crate) address: String,
}

impl Desktop {
    #[expect(clippy::disallowed_methods, reason = "the session is what the program under test runs in")]
    pub(crate) fn start(sandbox: &Sandbox) -> Self {
        require_full_tests("a keyring");
        let script = "printf secret | gnome-keyring-daemon --unlock --components=secrets >/dev/null 2>&1 || exit 1
            echo \"$DBUS_SESSION_BUS_ADDRESS\"; exec cat >/dev/null";
        for folder in ["run", "home/.local/share", "home/.cache"] {
            std::fs::create_dir_all(sandbox.path(folder)).expect("a folder");
        }
        let mut session = Command::new("dbus-run-session")
            .args(["--", "sh", "-c", script])
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .env("HOME", sandbox.path("home"))
            .env("XDG_RUNTIME_DIR", sandbox.path("run"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("dbus-run-session starts: install the Debian package dbus");
        let mut address = String::new();
        BufReader::new(session.stdout.as_mut().expect("a pipe")).read_line(&mut address).expect("an address");
        assert!(!address.is_empty(), "gnome-keyring-daemon starts: install the Debian package gnome-keyring");
        Self { session, address: address.trim().to_owned() }
    }

    #[expect(clippy::disallowed_methods, reason = "another program of the desktop")]
    fn lock(&self) {
        let locked = Command::new("dbus-send")
            .args(["--session", "--print-reply", "--dest=org.freedesktop.secrets", "/org/freedesktop/secrets"])
            .args(["org.freedesktop.Secret.Service.Lock"])
            .args(["array:objpath:/org/freedesktop/secrets/collection/login"])
            .env("DBUS_SESSION_BUS_ADDRESS", &self.address)
            .output()
            .expect("dbus-send starts");
        assert!(locked.status.success(), "{}", String::from_utf8_lossy(&locked.stderr));
    }
}

impl Drop for Desktop {
    fn drop(&mut self) {
        drop(self.session.stdin.take());
        self.session.wait().expect("the session ends");
    }
}

/// The program in a session with this bus.
pub(crate) fn skein(sandbox: &Sandbox, bus: &str, base: &str, args: &[&str], input: &str) -> Run {
    let mut command = sandbox.command(args);
    command.env("DBUS_SESSION_BUS_ADDRESS", bus).env("OPENAI_BASE_URL", base);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let run =
        Run { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) };
    assert!(!run.stdout.contains(KEY) && !run.stderr.contains(KEY), "{run:?}");
    run
}

/// Everything that Skein could have written, with the desktop's own files left out.
pub(crate) fn files_with_the_key(sandbox: &Sandbox) -> Vec<String> {
    let own = files_below(&sandbox.path("config")).into_iter().chain(files_below(&sandbox.path("data")));
    let holding =
        own.filter(|file| std::fs::read(file).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(KEY)));
    holding.map(|file| file.file_name().expect("a name").to_string_lossy().into_owned()).collect()
}

pub(crate) const CONFIGURE: &[&str] =
    &["configure", "--model", "openai:scripted", "--key-stdin", "--no-test", "--json"];

pub(crate) fn kept_in(run: &Run) -> Value {
    assert_eq!(run.code, 0, "{run:?}");
    let told: Value = serde_json::from_str(&run.stdout).expect("stdout is JSON");
    told["key"]["in"].clone()
}

#[test]
fn key_is_stored_in_the_keyring_used_and_removed() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let desktop = Desktop::start(&sandbox);
    let model = ScriptedModel::new(|_| Answer::Says(vec!["hello".to_owned()]));
    let skein = |args: &[&str], input: &str| skein(&sandbox, &desktop.address, model.address(), args, input);
    sandbox.write("config/keys.json", &format!("{{\"OPENAI_API_KEY\": \"{KEY}\"}}"));
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(sandbox.path("config/keys.json"), mode).expect("changed");
    assert_eq!(kept_in(&skein(CONFIGURE, &format!("{KEY}\n"))), "keyring");
    assert!(files_with_the_key(&sandbox).is_empty(), "{:?}", files_with_the_key(&sandbox));

    assert_eq!(skein(&["run", "-a", "goose", "hello"], "").code, 0);
    assert_eq!(model.answered(), 1);
    assert_eq!(model.keys(), [format!("Bearer {KEY}")]);
    let doctor = skein(&["doctor"], "");
    assert!(doctor.stdout.contains("the key OPENAI_API_KEY is in your keyring"), "{}", doctor.stdout);
    let again = skein(CONFIGURE, &format!("{KEY}\n"));
    assert_eq!(kept_in(&again), "keyring");

    let forgotten = skein(&["configure", "--forget-key", "openai"], "");
    assert_eq!(forgotten.stdout, "The key OPENAI_API_KEY is no longer in: keyring.\n", "{forgotten:?}");
    let again = skein(&["configure", "--forget-key", "openai"], "");
    assert_eq!((again.code, again.stdout.as_str()), (0, "No key OPENAI_API_KEY was kept.\n"));
    assert!(!skein(&["doctor"], "").stdout.contains("in your keyring"));
    assert!(files_with_the_key(&sandbox).is_empty());
}

#[test]
fn a_locked_keyring_is_not_opened_and_a_file_takes_its_place() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let desktop = Desktop::start(&sandbox);
    // No base address: a provider that needs its key.
    let skein = |args: &[&str], input: &str| skein(&sandbox, &desktop.address, "", args, input);
    assert_eq!(kept_in(&skein(CONFIGURE, &format!("{KEY}\n"))), "keyring");
    desktop.lock();
    let run = skein(&["run", "-a", "goose", "hello"], "");
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.stderr.contains("OPENAI_API_KEY") && run.stderr.contains("the keyring is locked"), "{}", run.stderr);
    let doctor = skein(&["doctor"], "");
    assert!(doctor.stdout.contains("unlock your keyring"), "{}", doctor.stdout);
    let refused = skein(&["configure", "--forget-key", "openai"], "");
    assert!(refused.code == 1 && refused.stderr.contains("is locked, and may still have it"), "{refused:?}");

    assert_eq!(kept_in(&skein(CONFIGURE, &format!("{KEY}\n"))), "file");
    assert_eq!(files_with_the_key(&sandbox), ["keys.json"]);
    let doctor = skein(&["doctor"], "");
    assert_eq!(doctor.code, 0, "{}", doctor.stdout);
    assert!(doctor.stdout.contains("in plain text; your keyring is locked"), "{}", doctor.stdout);
}

#[test]
fn a_bus_without_a_keyring_or_no_bus_at_all_means_the_file() {
    for bus in ["unix:path=/nowhere/at/all", "this is no address"] {
        let sandbox = Sandbox::new();
        assert_eq!(kept_in(&skein(&sandbox, bus, "", CONFIGURE, &format!("{KEY}\n"))), "file");
        let doctor = skein(&sandbox, bus, "", &["doctor"], "");
        assert!(doctor.code == 0 && doctor.stdout.contains("is in a file, in plain text\n"), "{}", doctor.stdout);
    }
}

#[test]
fn silent_keyring_is_waited_for_once_and_briefly() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Says(vec!["hello".to_owned()]));
    assert_eq!(kept_in(&skein(&sandbox, "", "", CONFIGURE, &format!("{KEY}\n"))), "file");
    // It takes connections, and says nothing.
    let socket = sandbox.path("bus");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    let bus = format!("unix:path={}", socket.display());
    let begin = Instant::now();
    let run = skein(&sandbox, &bus, model.address(), &["run", "-a", "goose", "hello"], "");
    assert_eq!((run.code, model.answered()), (0, 1), "{run:?}");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    // What needs no key does not ask for one.
    assert_eq!(skein(&sandbox, &bus, "", &["check", "-q"], "").code, 0);
    assert_eq!(skein(&sandbox, &bus, "", &["run", "--model", "offline", "list"], "").code, 0);
    let waited = sandbox.log().iter().filter(|line| line.to_string().contains("the keyring did not answer")).count();
    assert_eq!(waited, 1, "{:?}", sandbox.log());
}
