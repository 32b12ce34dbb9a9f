//! Finds the end of a request's body, so that nothing behind it reaches the server.

/// How a head announces the length of its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyLength {
    Bytes(u64),
    Chunked,
}

/// Follows a body as its bytes arrive.
#[derive(Debug)]
pub(super) struct BodyReader {
    state: BodyState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum BodyState {
    /// The number of missing bytes of a body with a length.
    Counted(u64),
    /// In the line with the size of a chunk.
    Size(Vec<u8>),
    /// The number of missing bytes of a chunk, its line end included.
    Chunk(u64),
    /// In a line behind the last chunk.
    Trailer {
        line: Vec<u8>,
        total: usize,
    },
    End,
}

/// A chunk that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the chunks of the request's body are malformed")]
pub(super) struct ChunkError;

/// Maximum length of the line with a chunk's size, and of a line behind the last chunk.
const MAX_LINE: usize = 1024;
const MAX_TRAILERS: usize = 8 * 1024;

impl BodyReader {
    pub(super) fn new(length: BodyLength) -> Self {
        let state = match length {
            BodyLength::Bytes(0) => BodyState::End,
            BodyLength::Bytes(count) => BodyState::Counted(count),
            BodyLength::Chunked => BodyState::Size(Vec::new()),
        };
        Self { state }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.state == BodyState::End
    }

    /// Takes bytes of the client and appends those of the body to `output`. Ignores the bytes behind the body.
    pub(super) fn push(&mut self, mut bytes: &[u8], output: &mut Vec<u8>) -> Result<(), ChunkError> {
        while !bytes.is_empty() && !self.is_complete() {
            let used = self.step(bytes)?;
            output.extend_from_slice(&bytes[..used]);
            bytes = &bytes[used..];
        }
        Ok(())
    }

    /// Advances over some bytes and returns their number.
    fn step(&mut self, bytes: &[u8]) -> Result<usize, ChunkError> {
        match &mut self.state {
            BodyState::Counted(left) => {
                let used = take(left, bytes);
                if *left == 0 {
                    self.state = BodyState::End;
                }
                Ok(used)
            }
            BodyState::Chunk(left) => {
                let used = take(left, bytes);
                // The last two bytes are the line end.
                let tail = usize::try_from(*left).unwrap_or(usize::MAX);
                check_line_end(&bytes[..used], tail)?;
                if *left == 0 {
                    self.state = BodyState::Size(Vec::new());
                }
                Ok(used)
            }
            BodyState::Size(line) => {
                let used = take_line(line, bytes)?;
                if let Some(size) = line.strip_suffix(b"\r\n") {
                    self.state = match chunk_size(size)? {
                        0 => BodyState::Trailer { line: Vec::new(), total: 0 },
                        size => BodyState::Chunk(size + 2),
                    };
                }
                Ok(used)
            }
            BodyState::Trailer { line, total } => {
                let used = take_line(line, bytes)?;
                *total += used;
                if *total > MAX_TRAILERS {
                    return Err(ChunkError);
                }
                if line == b"\r\n" {
                    self.state = BodyState::End;
                } else if line.ends_with(b"\r\n") {
                    line.clear();
                }
                Ok(used)
            }
            BodyState::End => Ok(0),
        }
    }
}

/// Returns how many of the missing bytes are here.
fn take(left: &mut u64, bytes: &[u8]) -> usize {
    let used = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
    *left -= used as u64;
    used
}

/// Fails unless the bytes that belong to the line end of a chunk are `\r\n`. `left` bytes of the chunk follow.
fn check_line_end(bytes: &[u8], left: usize) -> Result<(), ChunkError> {
    for (back, byte) in bytes.iter().rev().take(2).enumerate() {
        match (left + back, *byte) {
            (0, b'\n') | (1, b'\r') | (2.., _) => {}
            _ => return Err(ChunkError),
        }
    }
    Ok(())
}

/// Appends bytes up to the end of a line. Fails if the line is too long, or has a line break of another kind.
fn take_line(line: &mut Vec<u8>, bytes: &[u8]) -> Result<usize, ChunkError> {
    let used = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
    line.extend_from_slice(&bytes[..used]);
    let text = line.strip_suffix(b"\r\n").or_else(|| line.strip_suffix(b"\r")).unwrap_or(line);
    let stray = text.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t');
    if stray || line.len() > MAX_LINE { Err(ChunkError) } else { Ok(used) }
}

/// Parses `1a` or `1a;extension`.
fn chunk_size(line: &[u8]) -> Result<u64, ChunkError> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    let text = std::str::from_utf8(digits).map_err(|_| ChunkError)?;
    let fits = !text.is_empty() && text.len() <= 12 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| fits).ok_or(ChunkError)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(length: BodyLength, bytes: &[u8], step: usize) -> Result<(Vec<u8>, bool), ChunkError> {
        let mut reader = BodyReader::new(length);
        let mut output = Vec::new();
        for part in bytes.chunks(step) {
            reader.push(part, &mut output)?;
        }
        Ok((output, reader.is_complete()))
    }

    #[test]
    fn bytes_behind_the_body_are_dropped() {
        let next = b"GET http://evil.test/ HTTP/1.1\r\n\r\n";
        for (length, body) in [
            (BodyLength::Bytes(0), &b""[..]),
            (BodyLength::Bytes(5), b"hello"),
            (BodyLength::Chunked, b"5\r\nhello\r\n0\r\n\r\n"),
            (BodyLength::Chunked, b"5;x=y\r\nhello\r\n1\r\n!\r\n00\r\nA: b\r\n\r\n"),
        ] {
            for step in [1, 2, 7, 1000] {
                let bytes = [body, next].concat();
                assert_eq!(read(length, &bytes, step), Ok((body.to_vec(), true)), "{length:?} {step}");
            }
        }
    }

    #[test]
    fn chunks_with_two_readings_are_refused() {
        for bytes in [
            &b"5\nhello\r\n"[..],
            b"5\r\nhelloxx",
            b"5\r\nhello\r0",
            b"5\r\nhello\n\n",
            b"\r\nhello",
            b"0x5\r\nhello\r\n",
            b"+5\r\nhello\r\n",
            b"-1\r\n",
            b" 5\r\nhello\r\n",
            b"5 \r\nhello\r\n",
            b"ffffffffffffffff\r\n",
            b"5;\rx\r\nhello\r\n",
            b"0\r\nA: b\n\r\n",
        ] {
            for step in [1, 1000] {
                assert_eq!(
                    read(BodyLength::Chunked, bytes, step),
                    Err(ChunkError),
                    "{}",
                    String::from_utf8_lossy(bytes)
                );
            }
        }
        assert_eq!(read(BodyLength::Chunked, &[b'0'; 2000], 100), Err(ChunkError));
        let trailers = [&b"0\r\n"[..], &b"A: b\r\n".repeat(2000)].concat();
        assert_eq!(read(BodyLength::Chunked, &trailers, 100), Err(ChunkError));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_split_gives_the_same_body(chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..6), step in 1_usize..20) {
            let mut body: Vec<u8> = chunks.iter().flat_map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat()).collect();
            body.extend(b"0\r\n\r\n");
            let bytes = [&body[..], b"more"].concat();
            prop_assert_eq!(read(BodyLength::Chunked, &bytes, step), Ok((body, true)));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), step in 1_usize..20) {
            drop(read(BodyLength::Chunked, &bytes, step));
        }
    }
}
