//! PostgreSQL from Debian's packages, run by the test as an unprivileged user in a temporary folder.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::free_address;
use super::full_tests::require_full_tests;
use super::serve::eventually;

/// The user `nobody`: PostgreSQL refuses to run as root.
const NOBODY: u32 = 65_534;

/// The owner of all databases of the test.
pub(crate) const USER: &str = "skein";
pub(crate) const PASSWORD: &str = "hush-4711";

/// A running server, without databases of its own.
pub(crate) struct Postgres {
    server: Child,
    pub(crate) address: SocketAddr,
    programs: PathBuf,
    folder: TempDir,
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // It has ended already, or it must: the test is over.
        drop(self.server.kill());
        drop(self.server.wait());
    }
}

impl Postgres {
    pub(crate) fn start() -> Self {
        require_full_tests("PostgreSQL");
        let programs = programs();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let password = folder.path().join("password");
        fs::write(&password, PASSWORD).expect("written");
        if nix::unistd::geteuid().is_root() {
            for path in [folder.path(), password.as_path()] {
                chown(path, Some(NOBODY), Some(NOBODY)).expect("another owner");
            }
        }
        let data = folder.path().join("data").display().to_string();
        let password = format!("--pwfile={}", password.display());
        let args = ["-D", &data, "-U", USER, "-A", "scram-sha-256", &password, "-E", "UTF8", "--locale=C", "--no-sync"];
        let made = unprivileged(&programs.join("initdb"), folder.path()).args(args).output().expect("initdb starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let address = free_address();
        let sockets = folder.path().display().to_string();
        let port = address.port().to_string();
        let args = ["-D", &data, "-h", "127.0.0.1", "-p", &port, "-k", &sockets, "-c", "fsync=off"];
        let server = unprivileged(&programs.join("postgres"), folder.path()).args(args).stderr(Stdio::null()).spawn();
        let server = server.expect("PostgreSQL starts");
        eventually("PostgreSQL listens", || TcpStream::connect(address).is_ok());
        let postgres = Self { server, address, programs, folder };
        eventually("PostgreSQL answers", || postgres.try_sql("postgres", "SELECT 1").is_some());
        postgres
    }

    /// Creates a database and returns its address with the password.
    pub(crate) fn database(&self, name: &str) -> String {
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        self.url(PASSWORD, name)
    }

    pub(crate) fn url(&self, password: &str, database: &str) -> String {
        format!("postgres://{USER}:{password}@{}/{database}", self.address)
    }

    /// Runs SQL and returns what it prints.
    pub(crate) fn sql(&self, database: &str, sql: &str) -> String {
        self.try_sql(database, sql).unwrap_or_else(|| panic!("{sql}"))
    }

    fn try_sql(&self, database: &str, sql: &str) -> Option<String> {
        let mut command = unprivileged(&self.programs.join("psql"), self.folder.path());
        let url = self.url(PASSWORD, database);
        let output = command.args(["-X", "-A", "-t", "-q", "-d", &url, "-c", sql]).output().expect("psql starts");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

/// The folder of the newest version that is installed.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.map(|version| version.path().join("bin")).filter(|bin| bin.join("initdb").exists()).max();
    newest.expect("PostgreSQL is missing: run scripts/bootstrap, which installs it")
}

#[expect(clippy::disallowed_methods, reason = "another program, next to the one under test")]
fn unprivileged(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).env_clear().env("LC_ALL", "C").stdin(Stdio::null());
    if nix::unistd::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}
