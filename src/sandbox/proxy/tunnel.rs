//! Copies bytes between a client and a server, with fixed buffers in both directions.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::body::BodyReader;
use super::inspect::{NameInspector, NameMismatch};

const BUFFER: usize = 16 * 1024;
/// How long an open connection may be silent.
const IDLE: Duration = Duration::from_secs(30 * 60);
/// How long it may be silent after one side has ended.
const HALF_CLOSED_IDLE: Duration = Duration::from_secs(60);

/// One end of a tunnel: a connection and the bytes that were read from it before.
#[derive(Debug)]
pub(super) struct TunnelEnd {
    pub(super) stream: TcpStream,
    pub(super) unread: Vec<u8>,
}

/// What may pass from the client to the server.
#[derive(Debug)]
pub(super) enum ClientFilter {
    /// Everything.
    Open,
    /// Everything, if the first message names the granted host.
    Name(NameInspector),
    /// The body of one request.
    Body(BodyReader),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum TunnelError {
    #[error("{0}")]
    Mismatch(NameMismatch),
    #[error("cannot relay: {0}")]
    Io(#[from] io::Error),
    #[error("the connection was silent for too long")]
    Idle,
}

impl ClientFilter {
    /// Appends what may pass to `output`. Returns true if nothing more may pass.
    fn push(&mut self, bytes: &[u8], output: &mut Vec<u8>) -> Result<bool, TunnelError> {
        match self {
            ClientFilter::Open => output.extend_from_slice(bytes),
            ClientFilter::Name(inspector) => inspector.push(bytes, output).map_err(TunnelError::Mismatch)?,
            ClientFilter::Body(body) => {
                body.push(bytes, output).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                return Ok(body.is_complete());
            }
        }
        Ok(false)
    }
}

/// Copies until both sides have ended, or one fails.
pub(super) async fn run(client: TunnelEnd, server: TunnelEnd, mut filter: ClientFilter) -> Result<(), TunnelError> {
    let activity = TunnelActivity::new();
    let (mut client_read, mut client_write) = client.stream.into_split();
    let (mut server_read, mut server_write) = server.stream.into_split();
    let upward = async {
        copy_filtered(client.unread, &mut client_read, &mut server_write, &mut filter, &activity).await?;
        match filter {
            // Some servers take the end of a single request for the loss of the client. The proxy reads on, because
            // only a read shows that the client is gone.
            ClientFilter::Body(_) => discard(&mut client_read).await?,
            ClientFilter::Open | ClientFilter::Name(_) => server_write.shutdown().await?,
        }
        activity.close_half();
        Ok::<_, TunnelError>(())
    };
    let downward = async {
        client_write.write_all(&server.unread).await?;
        let mut buffer = vec![0; BUFFER];
        loop {
            let count = server_read.read(&mut buffer).await?;
            if count == 0 {
                break;
            }
            client_write.write_all(&buffer[..count]).await?;
            activity.note();
        }
        client_write.shutdown().await?;
        activity.close_half();
        Ok::<_, TunnelError>(())
    };
    tokio::select! {
        result = async { tokio::try_join!(upward, downward) } => result.map(drop),
        () = activity.idle() => Err(TunnelError::Idle),
    }
}

async fn copy_filtered(
    unread: Vec<u8>,
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    filter: &mut ClientFilter,
    activity: &TunnelActivity,
) -> Result<(), TunnelError> {
    let mut output = Vec::new();
    let mut finished = filter.push(&unread, &mut output)?;
    drop(unread);
    let mut buffer = vec![0; BUFFER];
    loop {
        to.write_all(&output).await?;
        output.clear();
        activity.note();
        if finished {
            return Ok(());
        }
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        finished = filter.push(&buffer[..count], &mut output)?;
    }
}

/// Reads bytes that do not belong to the request, until the client sends some or ends.
async fn discard(from: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    from.read(&mut [0; 64]).await.map(drop)
}

/// The time of the last byte in either direction.
struct TunnelActivity {
    start: Instant,
    /// Milliseconds after `start`.
    last: AtomicU64,
    limit: AtomicU64,
}

impl TunnelActivity {
    fn new() -> Self {
        Self { start: Instant::now(), last: AtomicU64::new(0), limit: AtomicU64::new(milliseconds(IDLE)) }
    }

    fn note(&self) {
        self.last.store(milliseconds(self.start.elapsed()), Ordering::Relaxed);
    }

    fn close_half(&self) {
        self.note();
        self.limit.store(milliseconds(HALF_CLOSED_IDLE), Ordering::Relaxed);
    }

    /// Returns when the connection was silent for too long.
    async fn idle(&self) {
        loop {
            let silent = milliseconds(self.start.elapsed()).saturating_sub(self.last.load(Ordering::Relaxed));
            let limit = self.limit.load(Ordering::Relaxed);
            if silent >= limit {
                return;
            }
            // The limit may become shorter meanwhile.
            tokio::time::sleep(Duration::from_millis(limit - silent).min(HALF_CLOSED_IDLE)).await;
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
