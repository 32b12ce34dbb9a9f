//! Reads the server name from the first TLS message of a client.
//!
//! Invariant: a message is complete or malformed before its name counts. Records may split it anywhere.

/// The state of a message that starts with the given bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClientHello {
    /// The bytes are no TLS.
    OtherProtocol,
    /// More bytes are needed.
    Incomplete,
    /// A whole message without a server name.
    Unnamed,
    /// A whole message with this server name.
    Named(String),
    /// TLS, but not a message that a server would accept.
    Malformed,
}

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
const RECORD_HEADER: usize = 5;
const MAX_RECORD: usize = 16_384;
/// Maximum size of the message. Browsers send up to 2 KiB.
const MAX_MESSAGE: usize = 32 * 1024;
/// Maximum bytes of the records that a message needs: twice its own. Longer inputs count as malformed.
const MAX_HELLO: usize = 64 * 1024;

/// Reads the message at the start of `bytes`.
pub(super) fn read_client_hello(bytes: &[u8]) -> ClientHello {
    match bytes {
        [] | [HANDSHAKE] => return ClientHello::Incomplete,
        // A server rejects other major versions before it reads a name.
        [HANDSHAKE, 3, ..] => {}
        _ => return ClientHello::OtherProtocol,
    }
    match join_records(bytes) {
        Some(message) => match message.as_slice() {
            [CLIENT_HELLO, _, _, _, body @ ..] => read_body(body).unwrap_or(ClientHello::Malformed),
            _ => ClientHello::Malformed,
        },
        None if bytes.len() >= MAX_HELLO || is_malformed_prefix(bytes) => ClientHello::Malformed,
        None => ClientHello::Incomplete,
    }
}

/// Returns the first handshake message without record headers. `None` if it is incomplete or malformed.
fn join_records(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut message = Vec::new();
    for record in Records(bytes) {
        message.extend_from_slice(record.ok()?);
        if let Some(length) = message_length(&message)
            && message.len() >= length
        {
            message.truncate(length);
            return Some(message);
        }
    }
    None
}

/// Returns true if no further bytes can make the message valid.
fn is_malformed_prefix(bytes: &[u8]) -> bool {
    let mut message = Vec::new();
    for record in Records(bytes) {
        match record {
            Ok(part) => message.extend_from_slice(part),
            Err(TlsRecordError::Malformed) => return true,
            Err(TlsRecordError::Incomplete(part)) => message.extend_from_slice(part),
        }
    }
    message.first().is_some_and(|kind| *kind != CLIENT_HELLO)
        || message_length(&message).is_some_and(|length| length > MAX_MESSAGE)
}

/// Returns the length of a message with its header of four bytes.
fn message_length(message: &[u8]) -> Option<usize> {
    let [_, high, middle, low, ..] = message else { return None };
    Some(4 + usize::from(*high) * 65_536 + usize::from(*middle) * 256 + usize::from(*low))
}

enum TlsRecordError<'a> {
    Incomplete(&'a [u8]),
    Malformed,
}

/// The contents of the handshake records in a byte string.
struct Records<'a>(&'a [u8]);

impl<'a> Iterator for Records<'a> {
    type Item = Result<&'a [u8], TlsRecordError<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = std::mem::take(&mut self.0);
        if bytes.first().is_some_and(|kind| *kind != HANDSHAKE) || bytes.get(1).is_some_and(|major| *major != 3) {
            return Some(Err(TlsRecordError::Malformed));
        }
        let [_, _, _, high, low, rest @ ..] = bytes else { return None };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if length == 0 || length > MAX_RECORD {
            return Some(Err(TlsRecordError::Malformed));
        }
        let Some(content) = rest.get(..length) else { return Some(Err(TlsRecordError::Incomplete(rest))) };
        self.0 = &bytes[RECORD_HEADER + length..];
        Some(Ok(content))
    }
}

/// Reads a message without its header. `None` if it is malformed.
fn read_body(body: &[u8]) -> Option<ClientHello> {
    let mut fields = Fields(body);
    fields.take(2 + 32)?;
    let session = fields.take_vector8()?;
    let suites = fields.take_vector16()?;
    let compression = fields.take_vector8()?;
    if session.len() > 32 || suites.is_empty() || suites.len() % 2 != 0 || compression.is_empty() {
        return None;
    }
    if fields.0.is_empty() {
        return Some(ClientHello::Unnamed);
    }
    let mut extensions = Fields(fields.take_vector16()?);
    if !fields.0.is_empty() {
        return None;
    }
    let mut name = None;
    while !extensions.0.is_empty() {
        let kind = extensions.take_u16()?;
        let data = extensions.take_vector16()?;
        if kind == SERVER_NAME && name.replace(read_server_name(data)?).is_some() {
            return None;
        }
    }
    Some(name.map_or(ClientHello::Unnamed, ClientHello::Named))
}

/// Reads a server name extension, which contains exactly one name. `None` if it is malformed.
fn read_server_name(data: &[u8]) -> Option<String> {
    let mut outer = Fields(data);
    let mut list = Fields(outer.take_vector16()?);
    let kind = list.take(1)?;
    let name = list.take_vector16()?;
    let whole = outer.0.is_empty() && list.0.is_empty() && kind == [HOST_NAME];
    let text = std::str::from_utf8(name).ok().filter(|text| !text.is_empty() && text.is_ascii())?;
    whole.then(|| text.to_owned())
}

/// The unread rest of a structure.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn take_u16(&mut self) -> Option<u16> {
        self.take(2).and_then(|bytes| bytes.try_into().ok()).map(u16::from_be_bytes)
    }

    fn take_vector8(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(*self.take(1)?.first()?);
        self.take(length)
    }

    fn take_vector16(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.take_u16()?);
        self.take(length)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vector16(data: &[u8]) -> Vec<u8> {
        [&u16::try_from(data.len()).unwrap().to_be_bytes()[..], data].concat()
    }

    fn server_name(name: &[u8]) -> Vec<u8> {
        let entry = [&[HOST_NAME][..], &vector16(name)].concat();
        [&SERVER_NAME.to_be_bytes()[..], &vector16(&vector16(&entry))].concat()
    }

    /// A handshake message with these extensions.
    fn message(extensions: &[u8]) -> Vec<u8> {
        let fixed = [&[3, 3][..], &[7; 32], &[0], &[0, 2, 0x13, 0x01], &[1, 0]].concat();
        let body = [fixed, vector16(extensions)].concat();
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[CLIENT_HELLO][..], &length[1..], &body].concat()
    }

    /// Puts a message into records of at most `size` bytes.
    fn records(message: &[u8], size: usize) -> Vec<u8> {
        message.chunks(size).flat_map(|part| [&[HANDSHAKE, 3, 1][..], &vector16(part)].concat()).collect()
    }

    /// The first bytes of a TLS client that names a server, in records of at most `size` bytes.
    pub(in super::super) fn hello(name: Option<&str>, size: usize) -> Vec<u8> {
        let other = [&0x0010_u16.to_be_bytes()[..], &vector16(b"\0\x03\x02h2")].concat();
        let named = name.map(|name| server_name(name.as_bytes())).unwrap_or_default();
        records(&message(&[other, named].concat()), size)
    }

    #[test]
    fn names_are_read_from_whole_and_split_messages() {
        for size in [1, 3, 50, 16_384] {
            assert_eq!(read_client_hello(&hello(Some("example.com"), size)), ClientHello::Named("example.com".into()));
            assert_eq!(read_client_hello(&hello(None, size)), ClientHello::Unnamed);
        }
        let bare = [&[3, 3][..], &[7; 32], &[0], &[0, 2, 0x13, 0x01], &[1, 0]].concat();
        let bare = [&[CLIENT_HELLO, 0, 0][..], &[u8::try_from(bare.len()).unwrap()], &bare].concat();
        assert_eq!(read_client_hello(&records(&bare, 100)), ClientHello::Unnamed);
    }

    #[test]
    fn other_protocols_are_recognised_at_once() {
        for bytes in [&b"G"[..], b"SSH-2.0-x\r\n", &[0x80, 0x2e, 1, 0, 2], &[22, 2, 0], &[0, 0, 0, 8]] {
            assert_eq!(read_client_hello(bytes), ClientHello::OtherProtocol, "{bytes:?}");
        }
    }

    #[test]
    fn messages_that_hide_a_name_are_malformed() {
        let twice = [server_name(b"a.test"), server_name(b"b.test")].concat();
        let entry = [&[HOST_NAME][..], &vector16(b"a.test"), &[HOST_NAME], &vector16(b"b.test")].concat();
        let two_names = [&SERVER_NAME.to_be_bytes()[..], &vector16(&vector16(&entry))].concat();
        for extensions in [twice, two_names, server_name(b""), server_name(b"\xff"), vec![0, 0, 0, 9]] {
            let bytes = records(&message(&extensions), 16_384);
            assert_eq!(read_client_hello(&bytes), ClientHello::Malformed, "{extensions:?}");
        }
        // An alert or an empty record in the middle of the message.
        let start = &hello(Some("a.test"), 10)[..15];
        for middle in [&[21, 3, 3, 0, 2, 1, 0][..], &[22, 3, 3, 0, 0], &[23, 3], &[22, 2]] {
            assert_eq!(read_client_hello(&[start, middle].concat()), ClientHello::Malformed, "{middle:?}");
        }
        // A message of another type, and one that is too long.
        assert_eq!(read_client_hello(&[22, 3, 1, 0, 9, 2]), ClientHello::Malformed);
        assert_eq!(read_client_hello(&[22, 3, 1, 0, 9, 1, 1, 0, 0]), ClientHello::Malformed);
    }

    #[test]
    fn a_message_in_too_many_records_is_malformed() {
        let bytes = records(&message(&[0; 20_000]), 1);
        assert!(bytes.len() > MAX_HELLO);
        assert_eq!(read_client_hello(&bytes[..MAX_HELLO - 1]), ClientHello::Incomplete);
        assert_eq!(read_client_hello(&bytes[..MAX_HELLO]), ClientHello::Malformed);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_proper_prefix_is_incomplete(name in "[a-z]{1,20}\\.[a-z]{2,5}", size in 1_usize..400, cut in 0.0..1.0_f64) {
            let bytes = hello(Some(&name), size);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a fraction of a small length")]
            let cut = (cut * bytes.len() as f64) as usize;
            prop_assert_eq!(read_client_hello(&bytes[..cut]), ClientHello::Incomplete);
            prop_assert_eq!(read_client_hello(&bytes), ClientHello::Named(name));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), tls in any::<bool>()) {
            let bytes = if tls { [&[22, 3, 1][..], &bytes].concat() } else { bytes };
            read_client_hello(&bytes);
        }

        /// A changed byte never yields the name of another host than the bytes contain.
        #[test]
        fn a_changed_byte_invents_no_name(at in 0_usize..90, value in any::<u8>()) {
            let mut bytes = hello(Some("good.example"), 16_384);
            let at = at % bytes.len();
            bytes[at] = value;
            if let ClientHello::Named(name) = read_client_hello(&bytes) {
                prop_assert!(bytes.windows(name.len()).any(|part| part == name.as_bytes()));
            }
        }
    }
}
