//! The bearer token of one connection: loads it, renews it before it expires or after the server refused it.

use std::sync::Arc;

use tokio::sync::{Mutex, oneshot};

use super::discovery::client_for;
use super::requests::LoginClient;
use super::tokens::refresh;
use super::{LoginError, LoginLock, LoginStore, LoginStoreError, StoredLogin, join_scopes};
use crate::ids::ServiceName;
use crate::task::TaskScope;

/// The login of a service, as one connection uses it.
#[derive(Debug)]
pub(in crate::services) struct ServiceLogin {
    service: ServiceName,
    service_url: String,
    store: Arc<dyn LoginStore>,
    http: LoginClient,
    /// Locked during a renewal, so that concurrent requests cause only one.
    current: Mutex<Option<StoredLogin>>,
    scope: TaskScope,
}

impl ServiceLogin {
    /// Returns the login of the service at this address. Fails if the address is not safe for tokens. A login that
    /// cannot be read is reported when the service wants one.
    pub(in crate::services) async fn load(
        service: ServiceName,
        service_url: String,
        store: Arc<dyn LoginStore>,
        scope: TaskScope,
    ) -> Result<Arc<Self>, LoginError> {
        let (http, _) = client_for(&service_url)?;
        let (source, name) = (Arc::clone(&store), service.clone());
        let stored = run_blocking(move || source.load(&name)).await.unwrap_or_else(|error| {
            tracing::warn!(service = %service, %error, "no login");
            None
        });
        let current = Mutex::new(stored.filter(|login| login.is_for(&service_url)));
        Ok(Arc::new(Self { service, service_url, store, http, current, scope }))
    }

    /// Returns the token for the next request, renewed if it is about to expire. `None` if there is no login. Fails if
    /// the authorization server refuses to renew it.
    pub(in crate::services) async fn token(self: &Arc<Self>) -> Result<Option<String>, LoginError> {
        let Some(login) = self.current.lock().await.clone() else { return Ok(None) };
        if !login.is_due() || login.refresh_token.is_none() {
            return Ok(Some(login.access_token));
        }
        match self.renew(Some(login.access_token.clone())).await {
            // The token may still be good for a moment, so the service decides.
            Err(error @ (LoginError::Unreachable { .. } | LoginError::Unexpected { .. })) => {
                tracing::warn!(service = %self.service, %error, "the login was not renewed");
                Ok(Some(login.access_token))
            }
            renewed => renewed,
        }
    }

    /// Returns another token than `refused`. `None` if there is no login. Fails if only a new login helps.
    ///
    /// A renewal always runs to its end: the server may accept a refresh token only once, so that a lost answer would
    /// end the login.
    pub(in crate::services) async fn renew(
        self: &Arc<Self>,
        refused: Option<String>,
    ) -> Result<Option<String>, LoginError> {
        let (sender, receiver) = oneshot::channel();
        let login = Arc::clone(self);
        self.scope.spawn(async move {
            // The request that wanted the token may be gone.
            drop(sender.send(login.renew_now(refused).await));
        });
        receiver.await.unwrap_or(Err(LoginError::Stopped))
    }

    /// Returns the token of a login that is newer than `refused`, which lacks rights. Otherwise stores the rights that the
    /// service wants, so that the next login asks for them, and returns `None`.
    pub(in crate::services) async fn widen(
        &self,
        refused: Option<&str>,
        scope: Option<&str>,
    ) -> Result<Option<String>, LoginError> {
        let mut current = self.current.lock().await;
        let (lock, stored) = self.lock_and_load().await?;
        let Some(mut stored) = stored else { return Ok(None) };
        // The user has logged in again.
        if refused != Some(stored.access_token.as_str()) && !stored.is_due() {
            let token = stored.access_token.clone();
            *current = Some(stored);
            return Ok(Some(token));
        }
        if let Some(scope) = scope {
            let wanted = join_scopes(stored.wanted_scope.as_deref().unwrap_or_default(), scope);
            stored.wanted_scope = Some(wanted);
            let (store, service, wanting) = (Arc::clone(&self.store), self.service.clone(), stored.clone());
            *current = Some(stored);
            run_blocking(move || store.save(&service, &wanting)).await?;
        }
        drop(lock);
        Ok(None)
    }

    async fn renew_now(&self, refused: Option<String>) -> Result<Option<String>, LoginError> {
        let mut current = self.current.lock().await;
        let is_good = |login: &StoredLogin| refused.as_ref() != Some(&login.access_token) && !login.is_due();
        if let Some(login) = current.as_ref().filter(|login| is_good(login)) {
            return Ok(Some(login.access_token.clone()));
        }
        let (lock, stored) = self.lock_and_load().await?;
        let Some(stored) = stored else {
            *current = None;
            return Ok(None);
        };
        // The user or another process has changed the login.
        if is_good(&stored) {
            let token = stored.access_token.clone();
            *current = Some(stored);
            return Ok(Some(token));
        }
        let renewed = refresh(&self.http, &stored).await?;
        let token = renewed.access_token.clone();
        *current = Some(renewed.clone());
        let (store, service) = (Arc::clone(&self.store), self.service.clone());
        let saved = run_blocking(move || store.save(&service, &renewed)).await;
        drop(lock);
        if let Err(error) = saved {
            // This process uses the new token. A later process needs a login.
            tracing::error!(service = %self.service, %error, "the renewed login was not stored");
        }
        Ok(Some(token))
    }

    /// Locks the login against other processes and reads it. The login is `None` if it is of another origin.
    async fn lock_and_load(&self) -> Result<(LoginLock, Option<StoredLogin>), LoginStoreError> {
        let (store, service) = (Arc::clone(&self.store), self.service.clone());
        let (lock, stored) = run_blocking(move || {
            let lock = store.lock(&service)?;
            let stored = store.load(&service)?;
            Ok((lock, stored))
        })
        .await?;
        Ok((lock, stored.filter(|login| login.is_for(&self.service_url))))
    }
}

/// Runs work that waits for the keyring, a file or another process.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LoginStoreError> + Send + 'static,
) -> Result<T, LoginStoreError> {
    let ended = |_| LoginStoreError { problem: "the work on it ended early".to_owned() };
    crate::task::run_blocking(work).await.map_err(ended)?
}
