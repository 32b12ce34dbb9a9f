//! The client on stdin and stdout. The task that needs the bytes reads and writes them itself, without another thread.
//!
//! stdin and stdout stay in blocking mode: the mode belongs to the open file, which other processes may share. Skein
//! therefore asks the kernel before each call whether it can proceed.

use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::retry_on_intr;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

use super::wire::TryWrite;

/// Bytes for which a pipe or a socket that can be written has room (`PIPE_BUF` of Linux).
const MAX_WRITE: usize = 4096;

/// Returns stdin. A regular file cannot be waited for, so another thread reads it.
pub(super) fn input() -> Box<dyn AsyncRead + Send + Unpin> {
    match register(rustix::stdio::stdin(), Interest::READABLE) {
        Ok(stdin) => Box::new(PolledInput(stdin)),
        Err(_) => Box::new(tokio::io::stdin()),
    }
}

/// Returns stdout, for writing without and with waiting. Another thread writes to a regular file, which cannot be waited
/// for, and to a terminal, which may have less room than [`MAX_WRITE`].
pub(super) fn output() -> (Option<Box<dyn TryWrite>>, Box<dyn AsyncWrite + Send + Unpin>) {
    let stdout = rustix::stdio::stdout();
    match register(stdout, Interest::WRITABLE) {
        Ok(registered) if !rustix::termios::isatty(stdout) => {
            let stdout = PolledOutput(Arc::new(registered));
            (Some(Box::new(stdout.clone())), Box::new(stdout))
        }
        _ => (None, Box::new(tokio::io::stdout())),
    }
}

fn register(file: BorrowedFd<'static>, interest: Interest) -> io::Result<AsyncFd<BorrowedFd<'static>>> {
    // SAFETY: a file that is borrowed for `'static` stays open, and its descriptor stays the same.
    #[expect(unsafe_code, reason = "no safe wrapper")]
    let registered = unsafe { AsyncFd::register_with_interest(file, interest) };
    registered.map_err(io::Error::from)
}

struct PolledInput(AsyncFd<BorrowedFd<'static>>);

impl AsyncRead for PolledInput {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(context))?;
            if is_ready(*self.0.get_ref(), PollFlags::IN)? {
                let read = retry_on_intr(|| rustix::io::read(self.0.get_ref(), buffer.initialize_unfilled()))?;
                buffer.advance(read);
                return Poll::Ready(Ok(()));
            }
            guard.clear_ready();
        }
    }
}

#[derive(Debug, Clone)]
struct PolledOutput(Arc<AsyncFd<BorrowedFd<'static>>>);

impl TryWrite for PolledOutput {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let stdout = *self.0.get_ref();
        let mut written = 0;
        while written < bytes.len() && is_ready(stdout, PollFlags::OUT)? {
            let end = bytes.len().min(written + MAX_WRITE);
            written += retry_on_intr(|| rustix::io::write(stdout, &bytes[written..end]))?;
        }
        Ok(written)
    }
}

impl AsyncWrite for PolledOutput {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(context))?;
            let written = self.try_write(bytes)?;
            if written > 0 || bytes.is_empty() {
                return Poll::Ready(Ok(written));
            }
            guard.clear_ready();
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Returns whether a call would return at once. That includes the end of the input, and a reader that is gone.
fn is_ready(file: BorrowedFd<'_>, wanted: PollFlags) -> io::Result<bool> {
    let mut asked = [PollFd::from_borrowed_fd(file, wanted)];
    // Signals that Skein survives interrupt the call.
    Ok(retry_on_intr(|| rustix::event::poll(&mut asked, Some(&Timespec::default())))? > 0)
}
