//! Reads the lines of a client.
//!
//! Invariant: a line that cannot be parsed is answered with an error and never ends the connection.

use std::io;

use futures::Stream;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};

/// Maximum length of a line in bytes; prompts with images are far shorter.
const MAX_LINE: u64 = 64 << 20;
/// Bytes of input that are read at once. Further input stays unread until the dispatch loop asks for a line, which makes
/// the client wait.
const INPUT_BUFFER: usize = 64 << 10;

/// Returns the lines of `input`. Replaces a line that is too long or not UTF-8 with text that is not JSON, so that the SDK
/// answers with a parse error.
pub(super) fn lines(input: impl AsyncRead + Send + Unpin) -> impl Stream<Item = io::Result<String>> + Send {
    let reader = BufReader::with_capacity(INPUT_BUFFER, input);
    futures::stream::try_unfold(reader, async |mut reader| Ok(next_line(&mut reader).await?.map(|line| (line, reader))))
}

async fn next_line(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    let read = (&mut *reader).take(MAX_LINE).read_until(b'\n', &mut bytes).await?;
    if read == 0 {
        return Ok(None);
    }
    if bytes.len() as u64 == MAX_LINE && bytes.last() != Some(&b'\n') {
        skip_line(reader).await?;
        return Ok(Some("a line that is too long".to_owned()));
    }
    let line = String::from_utf8(bytes).unwrap_or_else(|_| "a line that is not UTF-8".to_owned());
    Ok(Some(line.trim_end_matches(['\n', '\r']).to_owned()))
}

/// Reads up to the end of the line.
async fn skip_line(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<()> {
    loop {
        let bytes = reader.fill_buf().await?;
        let (end, size) = (bytes.iter().position(|byte| *byte == b'\n'), bytes.len());
        reader.consume(end.map_or(size, |end| end + 1));
        if end.is_some() || size == 0 {
            return Ok(());
        }
    }
}

/// Returns the lines of a client, for the fuzzer.
#[cfg(any(test, fuzzing))]
pub fn read_lines(bytes: &[u8]) -> Vec<String> {
    use futures::{FutureExt as _, TryStreamExt as _};
    // Bytes in memory are there at once.
    lines(bytes).try_collect().now_or_never().and_then(Result::ok).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll};

    use futures::StreamExt as _;
    use tokio::io::ReadBuf;

    use super::*;

    #[tokio::test]
    async fn a_line_that_cannot_be_read_is_one_bad_line() {
        let input: &[u8] = b"{\"a\":1}\r\n\xff\xfe\n\n{\"b\":2}";
        let read: Vec<_> = lines(input).map(Result::unwrap).collect().await;
        assert_eq!(read, ["{\"a\":1}", "a line that is not UTF-8", "", "{\"b\":2}"]);
    }

    #[tokio::test]
    async fn a_line_without_end_is_given_up_and_the_next_is_read() {
        let long = tokio::io::repeat(b'x').take(MAX_LINE + 5000);
        let input = long.chain(&b"\n{\"b\":2}\n"[..]);
        let read: Vec<_> = lines(input).map(Result::unwrap).collect().await;
        assert_eq!(read, ["a line that is too long", "{\"b\":2}"]);
    }

    /// Lines without end. Counts the bytes that were read.
    struct EndlessInput(Arc<AtomicUsize>);

    impl AsyncRead for EndlessInput {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            let before = buffer.filled().len();
            while buffer.remaining() >= 3 {
                buffer.put_slice(b"{}\n");
            }
            self.0.fetch_add(buffer.filled().len() - before, Ordering::SeqCst);
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn lines_that_nobody_takes_make_the_client_wait() {
        let count: Arc<AtomicUsize> = Arc::default();
        let mut taken = Box::pin(lines(EndlessInput(Arc::clone(&count))));
        assert_eq!(count.load(Ordering::SeqCst), 0);
        for n in 1..100_000 {
            assert_eq!(taken.next().await.unwrap().unwrap(), "{}");
            assert!(count.load(Ordering::SeqCst) < 3 * n + INPUT_BUFFER);
        }
    }
}
