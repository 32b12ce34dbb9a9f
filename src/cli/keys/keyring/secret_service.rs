//! A client of the Secret Service on the session's D-Bus.

use std::collections::HashMap;

use serde::{Serialize, de::DeserializeOwned};
use zbus::{Connection, DBusError as _, DynamicType, Error, OwnedObjectPath, Type, Variant, fdo};

use super::super::super::environment::session_bus;
use super::{KeyringError, PATIENCE};

const SERVICE: &str = "org.freedesktop.secrets";

impl From<Error> for KeyringError {
    /// Keeps only the name of the error, because its message could quote the request.
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

/// Returns the key `name`. `None` if the service does not have it.
pub(super) fn read(name: &str) -> Result<Option<String>, KeyringError> {
    ask(async |secrets| secrets.read(name).await)
}

/// Stores a key. Replaces an older one with this name.
pub(super) fn keep(name: &str, key: &str) -> Result<(), KeyringError> {
    ask(async |secrets| secrets.keep(name, key).await)
}

/// Removes the key. Returns whether it existed.
pub(super) fn forget(name: &str) -> Result<bool, KeyringError> {
    ask(async |secrets| secrets.forget(name).await)
}

/// Runs a request on a separate thread, because the caller may be inside async code.
fn ask<T: Send>(work: impl AsyncFnOnce(&SecretService) -> Result<T, KeyringError> + Send) -> Result<T, KeyringError> {
    let address = session_bus().ok_or(KeyringError::Absent)?;
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

/// A secret in transit: session, parameters, value, content type.
type Secret = (OwnedObjectPath, Vec<u8>, Vec<u8>, String);

/// A connection to the service. Secrets are sent unencrypted: a process that can listen on the bus has the same user
/// and can request them anyway.
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

    /// Returns the items of that name: the unlocked ones and the locked ones.
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

/// Fails if the service returned a prompt, which is a window that it would show first.
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
