//! Serves the clients of a listener, with a limit on their number.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tracing::debug;

use crate::task::TaskScope;

/// Pause after `accept` fails, for example without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener of any kind of stream.
pub(super) trait ClientListener: Send + 'static {
    type Stream: Send;

    fn accept_client(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl ClientListener for TcpListener {
    type Stream = TcpStream;

    async fn accept_client(&self) -> io::Result<TcpStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl ClientListener for UnixListener {
    type Stream = UnixStream;

    async fn accept_client(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

/// Runs `serve` for each client until the tasks are cancelled. Closes the connection of a client over the limit.
pub(super) fn serve_clients<L, F, Fut>(tasks: &TaskScope, listener: L, limit: Arc<Semaphore>, serve: F)
where
    L: ClientListener + Sync,
    F: Fn(L::Stream) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let scope = tasks.clone();
    tasks.spawn(async move {
        loop {
            let accepted = tokio::select! {
                biased;
                () = scope.cancelled().cancelled() => return,
                accepted = listener.accept_client() => accepted,
            };
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    debug!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(permit) = Arc::clone(&limit).try_acquire_owned() else { continue };
            let client = serve(stream);
            let cancelled = scope.cancelled().clone();
            scope.spawn(async move {
                cancelled.run_until_cancelled(client).await;
                drop(permit);
            });
        }
    });
}
