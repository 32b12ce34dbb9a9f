//! `skein sandbox`: attempts to leave it, everyday uses, machines with fewer layers, and what is left afterwards.

mod attacks;
mod builds;
mod everyday;
mod git;
mod machines;
mod network;
mod places;
mod ports;
mod session;
mod survivors;

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd as _;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

const NOBODY: u32 = 65534;

/// The user that runs `skein sandbox`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TestUser {
    Root,
    Ordinary,
}

/// Returns the users that this test process can be.
fn users() -> Vec<TestUser> {
    if rustix::process::geteuid().is_root() {
        vec![TestUser::Root, TestUser::Ordinary]
    } else {
        vec![TestUser::Ordinary]
    }
}

/// A home, a project and a folder outside both. Not in `/tmp`, which every sandbox replaces.
struct Place {
    folder: TempDir,
    user: TestUser,
}

impl Place {
    fn new(user: TestUser) -> Self {
        let folder = tempfile::Builder::new().prefix("sandbox-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let place = Self { folder, user };
        fs::set_permissions(place.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        for folder in ["home", "project", "outside"] {
            fs::create_dir(place.path(folder)).unwrap();
        }
        place
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    /// Gives everything to the user.
    fn hand_over(&self) {
        if self.user == TestUser::Ordinary && rustix::process::geteuid().is_root() {
            own(&self.path(""));
        }
    }

    /// A program that runs as the user in the project, with a small environment.
    #[expect(clippy::disallowed_methods, reason = "the program under test is started from outside")]
    fn program(&self, program: &str, args: &[&str]) -> Command {
        self.hand_over();
        let mut command = Command::new(program);
        command.args(args).env_clear().env("HOME", self.path("home")).env("PATH", tool_path());
        command.env("SECRET_TOKEN", "SECRET").current_dir(self.path("project")).stdin(Stdio::null());
        if self.user == TestUser::Ordinary && rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// `skein sandbox` on a machine with these layers.
    fn sandbox(&self, layers: &str, args: &[&str]) -> Command {
        let mut all = vec!["sandbox"];
        all.extend(args);
        let mut command = self.program(env!("CARGO_BIN_EXE_skein"), &all);
        command.env("SKEIN_TEST_SANDBOX_LAYERS", layers);
        command
    }

    /// Runs a script of the shell in a sandbox with these flags.
    fn shell(&self, flags: &[&str], script: &str) -> Output {
        let mut args = flags.to_vec();
        args.extend(["--", "sh", "-c", script]);
        self.sandbox("", &args).output().unwrap()
    }

    /// Runs a script, which must succeed, and returns its output.
    fn works(&self, flags: &[&str], script: &str) -> String {
        let output = self.shell(flags, script);
        assert!(output.status.success(), "{script}: {}", text(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// Programs of the system; tools in root's home are out of reach for other users.
fn tool_path() -> &'static str {
    "/usr/local/bin:/usr/bin:/bin"
}

fn own(path: &Path) {
    rustix::fs::chownat(
        rustix::fs::CWD,
        path,
        Some(rustix::fs::Uid::from_raw(NOBODY)),
        Some(rustix::fs::Gid::from_raw(NOBODY)),
        rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
    )
    .unwrap();
    if fs::symlink_metadata(path).unwrap().is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| own(&entry.unwrap().path()));
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Returns whether the tool that a test needs is installed. `scripts/test` fails if a test was skipped.
fn needs_tool(name: &str) -> bool {
    let found = is_installed(name);
    if !found {
        drop(writeln!(std::io::stderr(), "skipped: needs {name}"));
    }
    found
}

fn is_installed(name: &str) -> bool {
    tool_path().split(':').any(|folder| Path::new(folder).join(name).exists())
}

/// Returns whether a tool is installed where every user can run it. Says so in one line otherwise.
fn has_tool(name: &str) -> bool {
    let found = is_installed(name);
    if !found {
        drop(writeln!(std::io::stderr(), "skipped: `{name}` is not installed"));
    }
    found
}

/// Servers and processes of the host that a sandbox must not reach.
struct Host {
    tcp: u16,
    udp: u16,
    abstract_name: String,
    temporary: TempDir,
    process: Child,
    _terminal: (std::os::fd::OwnedFd, std::os::fd::OwnedFd),
    terminal_path: PathBuf,
}

impl Host {
    #[expect(clippy::disallowed_methods, reason = "a process of the host")]
    fn start(place: &Place) -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp_port = tcp.local_addr().unwrap().port();
        std::thread::spawn(move || tcp.incoming().flatten().for_each(|mut peer| drop(peer.write_all(b"HELLO"))));
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let udp_port = udp.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let mut buffer = [0; 10];
            while let Ok((_, peer)) = udp.recv_from(&mut buffer) {
                drop(udp.send_to(b"HELLO", peer));
            }
        });
        let temporary = tempfile::tempdir_in("/tmp").unwrap();
        let paths = [place.path("outside/socket"), temporary.path().join("socket")];
        for path in &paths {
            greet(UnixListener::bind(path).unwrap());
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        }
        fs::set_permissions(temporary.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let abstract_name = format!("skein-attack-{}-{tcp_port}", std::process::id());
        let address =
            <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(&abstract_name);
        greet(UnixListener::bind_addr(&address.unwrap()).unwrap());
        let mut process = Command::new("sleep");
        process.arg("600").env_clear().env("TOKEN", "SECRET").stdout(Stdio::null()).stderr(Stdio::null());
        if place.user == TestUser::Ordinary && rustix::process::geteuid().is_root() {
            process.uid(NOBODY).gid(NOBODY);
        }
        let process = process.spawn().unwrap();
        let main = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY).unwrap();
        rustix::pty::grantpt(&main).unwrap();
        rustix::pty::unlockpt(&main).unwrap();
        let name = rustix::pty::ptsname(&main, Vec::new()).unwrap();
        let terminal_path = PathBuf::from(name.to_str().unwrap());
        let terminal = fs::OpenOptions::new().read(true).write(true).open(&terminal_path).unwrap();
        if place.user == TestUser::Ordinary && rustix::process::geteuid().is_root() {
            chown(&terminal_path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let terminal = (main, terminal.as_fd().try_clone_to_owned().unwrap());
        Self { tcp: tcp_port, udp: udp_port, abstract_name, temporary, process, _terminal: terminal, terminal_path }
    }

    /// The settings of `attacks.py`.
    fn settings(&self, place: &Place) -> String {
        serde_json::json!({
            "home": place.path("home"),
            "config": place.path("home/.config/skein"),
            "outside": place.path("outside"),
            "outside_pid": self.process.id(),
            "tcp": self.tcp,
            "udp": self.udp,
            "abstract": self.abstract_name,
            "temporary_socket": self.temporary.path().join("socket"),
            "terminal": self.terminal_path,
        })
        .to_string()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn greet(listener: UnixListener) {
    std::thread::spawn(move || listener.incoming().flatten().for_each(|mut peer| drop(peer.write_all(b"HELLO"))));
}
