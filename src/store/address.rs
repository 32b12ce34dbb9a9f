//! The address of a PostgreSQL database, and where its password comes from.
//!
//! Invariant: no text of an address that this module returns or reports contains a password. A parser's message may
//! quote a part of one, so no such message is passed on.

use std::fmt;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use postgres::Config;
use postgres::config::{Host, SslMode};

use super::StoreError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// When a silent connection is probed, how often, and after how many probes it counts as lost.
const PROBE_AFTER: Duration = Duration::from_secs(10);
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
const MAX_PROBES: u32 = 3;

/// The port of PostgreSQL if an address has none.
const DEFAULT_PORT: u16 = 5432;

/// The address of a database, as `postgres://USER@HOST:PORT/DATABASE`.
#[derive(Clone)]
pub struct StoreAddress {
    config: Config,
}

impl FromStr for StoreAddress {
    type Err = StoreError;

    /// Fails if the text is no URL of a PostgreSQL database. The error does not quote the text.
    fn from_str(text: &str) -> Result<Self, StoreError> {
        let wrong = |problem: &str| StoreError::Address { problem: problem.to_owned() };
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return Err(wrong("it does not begin with postgres://"));
        }
        let parsed = Config::from_str(text);
        let mut config = parsed.map_err(|_| wrong("a part of it cannot be read, such as the port or an option"))?;
        // With an unescaped `@`, a part of the password would pass for a host or a database.
        let is_name = |name: &str| !name.is_empty() && !name.contains(['@', '/', '?', '#', ' ']);
        let hosts_are_names = config.get_hosts().iter().all(|host| match host {
            Host::Tcp(name) => is_name(name),
            Host::Unix(folder) => folder.is_absolute() && !folder.to_string_lossy().contains('@'),
        });
        if !hosts_are_names {
            return Err(wrong("its host is no host name"));
        }
        if config.get_hosts().is_empty() {
            return Err(wrong("it has no host"));
        }
        if !config.get_dbname().is_some_and(|name| is_name(name) && !name.contains(':')) {
            return Err(wrong("it has no name of a database after the host"));
        }
        if config.get_user().is_none() {
            return Err(wrong("it has no user before the host"));
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_keepalives_interval().is_none() {
            config.keepalives_idle(PROBE_AFTER).keepalives_interval(PROBE_INTERVAL).keepalives_retries(MAX_PROBES);
        }
        // `prefer`, the default of the crate, lets anyone between both machines turn TLS off and ask for the password.
        if config.get_ssl_mode() != SslMode::Disable && leaves_machine(&config) {
            config.ssl_mode(SslMode::Require);
        }
        config.application_name("skein");
        Ok(Self { config })
    }
}

impl StoreAddress {
    pub fn has_password(&self) -> bool {
        self.config.get_password().is_some()
    }

    /// Uses the password of a password file, if the address has none and the file has an entry for it. Fails if others
    /// can read the file. A missing file has no entries.
    pub fn with_password_file(mut self, file: &Path) -> Result<Self, StoreError> {
        if self.has_password() {
            return Ok(self);
        }
        let unusable = |problem: String| StoreError::PasswordFile { file: file.display().to_string(), problem };
        let metadata = match std::fs::metadata(file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(self),
            other => other.map_err(|error| unusable(error.to_string()))?,
        };
        if metadata.permissions().mode() & 0o077 != 0 {
            return Err(unusable("others can read it".to_owned()));
        }
        let text = std::fs::read_to_string(file).map_err(|error| unusable(error.to_string()))?;
        if let Some(password) = text.lines().find_map(|line| self.password_in(line)) {
            self.config.password(password);
        }
        Ok(self)
    }

    /// Returns the password of a line `HOST:PORT:DATABASE:USER:PASSWORD`, if the line is for this address.
    fn password_in(&self, line: &str) -> Option<String> {
        let [host, port, database, user, password] = <[String; 5]>::try_from(split_fields(line)?).ok()?;
        let fits = |field: &str, value: &str| field == "*" || field == value;
        let own_host = self.host();
        // As in libpq, `localhost` stands for a socket too.
        let is_host = fits(&host, &own_host) || (host == "localhost" && own_host.starts_with('/'));
        let is_entry = is_host
            && fits(&port, &self.port().to_string())
            && fits(&database, self.config.get_dbname()?)
            && fits(&user, self.config.get_user()?);
        is_entry.then_some(password)
    }

    /// Returns the same address for a connection that the database lists under this name.
    pub(super) fn with_application(&self, name: &str) -> Self {
        let mut config = self.config.clone();
        config.application_name(name);
        Self { config }
    }

    pub(super) fn requires_tls(&self) -> bool {
        self.config.get_ssl_mode() == SslMode::Require
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    fn host(&self) -> String {
        match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(folder)) => folder.display().to_string(),
            None => String::new(),
        }
    }

    fn port(&self) -> u16 {
        self.config.get_ports().first().copied().unwrap_or(DEFAULT_PORT)
    }
}

/// Returns true if one of the hosts is neither a socket nor a loopback address.
fn leaves_machine(config: &Config) -> bool {
    let is_loopback = |name: &str| {
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    let is_remote = |host: &Host| matches!(host, Host::Tcp(name) if !is_loopback(name));
    config.get_hosts().iter().any(is_remote) || config.get_hostaddrs().iter().any(|address| !address.is_loopback())
}

/// Splits a line of a password file. `\` escapes a colon or itself. `None` for a comment.
fn split_fields(line: &str) -> Option<Vec<String>> {
    if line.starts_with('#') {
        return None;
    }
    let (mut fields, mut characters) = (vec![String::new()], line.chars());
    while let Some(character) = characters.next() {
        let is_last = fields.len() == 5;
        let field = fields.last_mut()?;
        match character {
            '\\' => field.extend(characters.next()),
            ':' if !is_last => fields.push(String::new()),
            other => field.push(other),
        }
    }
    Some(fields)
}

/// Without the password and the user.
impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.host();
        let database = self.config.get_dbname().unwrap_or_default();
        if host.starts_with('/') {
            write!(f, "postgres:///{database}?host={host}")
        } else {
            write!(f, "postgres://{host}:{}/{database}", self.port())
        }
    }
}

/// The password stays out of logs.
impl fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreAddress({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> StoreAddress {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_is_shown_without_its_password() {
        let shown = address("postgres://ann:hush@db.example.com/skein");
        assert_eq!(shown.to_string(), "postgres://db.example.com:5432/skein");
        assert!(!format!("{shown:?}").contains("hush"));
        let socket = address("postgres://ann@%2Frun%2Fpostgresql:5433/skein");
        assert_eq!(socket.to_string(), "postgres:///skein?host=/run/postgresql");
    }

    #[test]
    fn a_wrong_address_is_refused_without_a_quote() {
        for text in [
            "",
            "mysql://ann:hush@host/skein",
            "postgres://ann:hush@host",
            "postgres://ann:hush@/skein",
            "postgres://host/skein",
            "postgres://ann:hu@sh@host/skein",
            "postgres://ann:hu@s/hu@host/skein",
            "postgres://ann:hu@s?hu@host/skein",
            "postgres://ann:hush@host:port/skein",
            "postgres://ann:hush@host/skein?hush=1",
        ] {
            let error = text.parse::<StoreAddress>().unwrap_err().to_string();
            assert!(!error.contains("hu") && !error.contains("sh@"), "{text}: {error}");
        }
    }

    #[test]
    fn other_machines_need_tls_unless_it_is_turned_off() {
        for (text, mode) in [
            ("postgres://ann@db.example.com/skein", SslMode::Require),
            ("postgres://ann@db.example.com/skein?sslmode=prefer", SslMode::Require),
            ("postgres://ann@db.example.com/skein?sslmode=disable", SslMode::Disable),
            ("postgres://ann@192.0.2.7/skein", SslMode::Require),
            ("postgres://ann@localhost.example.com/skein", SslMode::Require),
            ("postgres://ann@localhost,db.example.com/skein", SslMode::Require),
            ("postgres://ann@localhost/skein?hostaddr=192.0.2.7", SslMode::Require),
            ("postgres://ann@localhost/skein", SslMode::Prefer),
            ("postgres://ann@127.0.0.1/skein", SslMode::Prefer),
            ("postgres://ann@[::1]/skein", SslMode::Prefer),
            ("postgres://ann@localhost/skein?sslmode=require", SslMode::Require),
            ("postgres://ann@%2Frun%2Fpostgresql/skein", SslMode::Prefer),
        ] {
            assert_eq!(address(text).config.get_ssl_mode(), mode, "{text}");
        }
    }

    #[test]
    fn a_password_file_counts_if_it_is_private_and_fits() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pgpass");
        let lines = "# hosts\nother:5432:skein:ann:wrong\n*:*:skein:ann:a\\:b\\\\c:d\n*:*:*:*:late\n";
        std::fs::write(&file, lines).unwrap();
        let password = |text: &str| {
            let found = address(text).with_password_file(&file)?;
            Ok::<_, StoreError>(found.config.get_password().map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
        };
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(password("postgres://ann@host/skein").is_err(), "others can read it");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(password("postgres://ann@host/skein").unwrap().as_deref(), Some("a:b\\c:d"));
        assert_eq!(password("postgres://bob@host/skein").unwrap().as_deref(), Some("late"));
        assert_eq!(password("postgres://bob:own@host/skein").unwrap().as_deref(), Some("own"));
        let missing = address("postgres://ann@host/skein").with_password_file(&folder.path().join("none")).unwrap();
        assert!(!missing.has_password());
    }
}
