//! The keyring of the desktop: the Secret Service, asked over the session's D-Bus.
//!
//! Invariant: nobody waits for it longer than [`PATIENCE`], and it is never asked to show a window. A keyring that is
//! locked stays locked.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
use zbus::{Connection, DBusError as _, DynamicType, Error, OwnedObjectPath, Type, Variant, fdo};

use super::super::models::variable;

/// A keyring that is there answers in milliseconds, also if it has to be started first.
const PATIENCE: Duration = Duration::from_secs(3);
const SERVICE: &str = "org.freedesktop.secrets";

/// Why the keyring cannot be used.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::cli) enum KeyringError {
    /// There is none: no desktop, no bus, no service.
    Absent,
    Locked,
    /// It does not answer in time.
    Silent,
    Failed(String),
}

/// In words that follow "the keyring".
impl std::fmt::Display for KeyringError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KeyringError::Absent => f.write_str("is not there"),
            KeyringError::Locked => f.write_str("is locked"),
            KeyringError::Silent => write!(f, "did not answer within {} seconds", PATIENCE.as_secs()),
            KeyringError::Failed(problem) => write!(f, "failed: {problem}"),
        }
    }
}

impl From<Error> for KeyringError {
    /// By the name of the error alone: what else it says could quote what was sent.
    fn from(error: Error) -> Self {
        match error {
            Error::MethodError(name, ..) if name.as_str() == "org.freedesktop.Secret.Error.IsLocked" => Self::Locked,
            Error::MethodError(name, ..) => Self::Failed(name.to_string()),
            Error::FDO(error) => match *error {
                fdo::Error::ServiceUnknown(_) | fdo::Error::NameHasNoOwner(_) => Self::Absent,
                error => Self::Failed(error.name().to_string()),
            },
            Error::Connection(..) | Error::Address(_) => Self::Absent,
            _ => Self::Failed("its answer was not understood".to_owned()),
        }
    }
}

/// What is known of the keyring in this process.
#[derive(Default)]
pub(super) struct Keyring {
    /// A key that was found is not asked for again.
    found: Mutex<BTreeMap<String, String>>,
    trouble: Mutex<Option<KeyringError>>,
}

impl Keyring {
    /// The key of that name, if the keyring gives it.
    pub(super) fn read(&self, name: &str) -> Option<String> {
        if let Some(key) = self.lock_cache().get(name) {
            return Some(key.clone());
        }
        // One that keeps everybody waiting does it once.
        if self.trouble() == Some(KeyringError::Silent) {
            return None;
        }
        let read = self.note_result(ask(async |secrets| secrets.read(name).await));
        let key = read.ok().flatten()?;
        self.lock_cache().insert(name.to_owned(), key.clone());
        Some(key)
    }

    pub(super) fn keep(&self, name: &str, key: &str) -> Result<(), KeyringError> {
        self.note_result(ask(async |secrets| secrets.keep(name, key).await))?;
        self.lock_cache().insert(name.to_owned(), key.to_owned());
        Ok(())
    }

    /// Whether there was such a key.
    pub(super) fn forget(&self, name: &str) -> Result<bool, KeyringError> {
        self.lock_cache().remove(name);
        self.note_result(ask(async |secrets| secrets.forget(name).await))
    }

    /// What was wrong when it was last asked.
    pub(super) fn trouble(&self) -> Option<KeyringError> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_result<T>(&self, result: Result<T, KeyringError>) -> Result<T, KeyringError> {
        let trouble = result.as_ref().err().cloned();
        if let Some(trouble) = trouble.as_ref().filter(|trouble| **trouble != KeyringError::Absent) {
            tracing::warn!("the keyring {trouble}");
        }
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        result
    }

    fn lock_cache(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, String>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the session's bus is. No other place is tried: a program that was started without a session has none.
fn address() -> Option<String> {
    variable("DBUS_SESSION_BUS_ADDRESS").or_else(|| {
        let bus = Path::new(&variable("XDG_RUNTIME_DIR")?).join("bus");
        // A relative one would be a folder of the project.
        (bus.is_absolute() && bus.exists()).then(|| format!("unix:path={}", bus.display()))
    })
}

/// On a thread of its own, because whoever needs a key may be in the middle of asynchronous work.
fn ask<T: Send>(work: impl AsyncFnOnce(&SecretService) -> Result<T, KeyringError> + Send) -> Result<T, KeyringError> {
    let address = address().ok_or(KeyringError::Absent)?;
    let asked = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| KeyringError::Failed(error.to_string()))?;
        let work = async { work(&SecretService::connect(&address).await?).await };
        let result = runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await });
        runtime.shutdown_background();
        result.unwrap_or(Err(KeyringError::Silent))
    };
    let broken = |_| Err(KeyringError::Failed("its answer could not be read".to_owned()));
    std::thread::scope(|scope| scope.spawn(asked).join().unwrap_or_else(broken))
}

/// A secret as it is sent: session, parameters, value, type of content.
type Secret = (OwnedObjectPath, Vec<u8>, Vec<u8>, String);

/// A connection to the service. Secrets go over the bus as they are: whoever could listen there is the same user, and
/// can ask for them as well.
struct SecretService {
    bus: Connection,
    session: OwnedObjectPath,
}

impl SecretService {
    async fn connect(address: &str) -> Result<Self, KeyringError> {
        let bus = zbus::connection::Builder::address(address).build().await?;
        let root = "/org/freedesktop/secrets";
        let (_, session): (zbus::OwnedVariant, OwnedObjectPath) =
            call(&bus, root, "Service", "OpenSession", &("plain", Variant::from(""))).await?;
        Ok(Self { bus, session })
    }

    async fn service<R>(&self, method: &str, body: &(impl Serialize + DynamicType)) -> Result<R, KeyringError>
    where
        R: DeserializeOwned + Type,
    {
        call(&self.bus, "/org/freedesktop/secrets", "Service", method, body).await
    }

    /// The items of that name: those that can be read, and those that are locked.
    async fn items(&self, name: &str) -> Result<(Vec<OwnedObjectPath>, Vec<OwnedObjectPath>), KeyringError> {
        self.service("SearchItems", &(attributes(name),)).await
    }

    async fn read(&self, name: &str) -> Result<Option<String>, KeyringError> {
        let (open, locked) = self.items(name).await?;
        let Some(item) = open.first() else {
            return if locked.is_empty() { Ok(None) } else { Err(KeyringError::Locked) };
        };
        let (secret,): (Secret,) =
            call(&self.bus, item.as_str(), "Item", "GetSecret", &(self.session.as_ref(),)).await?;
        Ok(String::from_utf8(secret.2).ok().filter(|key| !key.is_empty()))
    }

    async fn keep(&self, name: &str, key: &str) -> Result<(), KeyringError> {
        let (collection,): (OwnedObjectPath,) = self.service("ReadAlias", &("default",)).await?;
        if collection.as_str() == "/" {
            return Err(KeyringError::Absent);
        }
        let properties: HashMap<&str, Variant<'_>> = HashMap::from([
            ("org.freedesktop.Secret.Item.Label", Variant::from(format!("Skein: {name}"))),
            ("org.freedesktop.Secret.Item.Attributes", Variant::from(attributes(name))),
        ]);
        let secret = (self.session.as_ref(), Vec::<u8>::new(), key.as_bytes(), "text/plain");
        let (_, prompt): (OwnedObjectPath, OwnedObjectPath) =
            call(&self.bus, collection.as_str(), "Collection", "CreateItem", &(properties, secret, true)).await?;
        ensure_no_prompt(&prompt)
    }

    async fn forget(&self, name: &str) -> Result<bool, KeyringError> {
        let (open, locked) = self.items(name).await?;
        if !locked.is_empty() {
            return Err(KeyringError::Locked);
        }
        for item in &open {
            let (prompt,): (OwnedObjectPath,) = call(&self.bus, item.as_str(), "Item", "Delete", &()).await?;
            ensure_no_prompt(&prompt)?;
        }
        Ok(!open.is_empty())
    }
}

/// A prompt is a window that would have to be shown first.
fn ensure_no_prompt(prompt: &OwnedObjectPath) -> Result<(), KeyringError> {
    if prompt.as_str() == "/" { Ok(()) } else { Err(KeyringError::Locked) }
}

fn attributes(name: &str) -> HashMap<&str, &str> {
    HashMap::from([("application", "skein"), ("variable", name)])
}

async fn call<R>(
    bus: &Connection,
    path: &str,
    interface: &str,
    method: &str,
    body: &(impl Serialize + DynamicType),
) -> Result<R, KeyringError>
where
    R: DeserializeOwned + Type,
{
    let interface = format!("org.freedesktop.Secret.{interface}");
    let reply = bus.call_method(Some(SERVICE), path, Some(interface.as_str()), method, body).await?;
    Ok(reply.body().deserialize()?)
}
