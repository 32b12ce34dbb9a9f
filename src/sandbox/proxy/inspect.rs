//! Compares the name that a client sends through a tunnel, in TLS or HTTP, with the host that it was granted.
//!
//! Invariant: bytes pass only if they belong to another protocol or name the granted host. The inspection never waits
//! for client bytes: the server's bytes pass meanwhile.

use super::client_hello::{ClientHello, read_client_hello};
use super::head::{MAX_HEAD, host_header};
use crate::network::RemoteHost;

/// Methods that start a request of HTTP/1.
const METHODS: [&[u8]; 12] = [
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"PUT ",
    b"DELETE ",
    b"OPTIONS ",
    b"PATCH ",
    b"TRACE ",
    b"CONNECT ",
    b"PROPFIND ",
    b"REPORT ",
    b"MKCOL ",
];

/// Inspects the first bytes of a client.
#[derive(Debug)]
pub(super) struct NameInspector {
    host: RemoteHost,
    held: Vec<u8>,
    decided: bool,
}

/// A name that differs from the granted host, or a first message that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameMismatch {
    ServerName(String),
    HostHeader(String),
    Unreadable,
}

#[derive(Debug, PartialEq, Eq)]
enum Inspection {
    Incomplete,
    Pass,
}

impl NameInspector {
    pub(super) fn new(host: RemoteHost) -> Self {
        Self { host, held: Vec::new(), decided: false }
    }

    /// Takes bytes of the client and appends those that may pass to `output`. Fails if the bytes name another host.
    pub(super) fn push(&mut self, bytes: &[u8], output: &mut Vec<u8>) -> Result<(), NameMismatch> {
        if self.decided {
            output.extend_from_slice(bytes);
            return Ok(());
        }
        self.held.extend_from_slice(bytes);
        if self.inspect()? == Inspection::Pass {
            self.decided = true;
            output.append(&mut self.held);
        }
        Ok(())
    }

    fn inspect(&self) -> Result<Inspection, NameMismatch> {
        match read_client_hello(&self.held) {
            ClientHello::OtherProtocol => self.inspect_http(),
            ClientHello::Incomplete => Ok(Inspection::Incomplete),
            ClientHello::Unnamed => Ok(Inspection::Pass),
            ClientHello::Named(name) if self.is_granted(&name) => Ok(Inspection::Pass),
            ClientHello::Named(name) => Err(NameMismatch::ServerName(name)),
            ClientHello::Malformed => Err(NameMismatch::Unreadable),
        }
    }

    /// Checks the first request. Later requests of a tunnel are not checked: in TLS they are invisible, too.
    fn inspect_http(&self) -> Result<Inspection, NameMismatch> {
        if METHODS.iter().any(|method| self.held.len() < method.len() && method.starts_with(&self.held)) {
            return Ok(Inspection::Incomplete);
        }
        if !METHODS.iter().any(|method| self.held.starts_with(method)) {
            return Ok(Inspection::Pass);
        }
        let line_end = self.held.iter().position(|byte| *byte == b'\n');
        let line = &self.held[..line_end.unwrap_or(self.held.len())];
        if line_end.is_some() && !line.trim_ascii_end().windows(6).any(|part| part == b"HTTP/1") {
            return Ok(Inspection::Pass);
        }
        let Some(end) = head_end(&self.held) else {
            let over = self.held.len() > MAX_HEAD;
            return if over { Err(NameMismatch::Unreadable) } else { Ok(Inspection::Incomplete) };
        };
        for value in host_header(&self.held[..end]) {
            let name = std::str::from_utf8(value).map_err(|_| NameMismatch::Unreadable)?.trim();
            let host = RemoteHost::of_text(name);
            if host.is_none_or(|host| host.name() != self.host.name()) {
                return Err(NameMismatch::HostHeader(name.to_owned()));
            }
        }
        Ok(Inspection::Pass)
    }

    fn is_granted(&self, name: &str) -> bool {
        RemoteHost::new(name, self.host.port()).is_some_and(|host| host.name() == self.host.name())
    }
}

/// Returns the length of a head that ends with an empty line. Servers also accept lines without a carriage return.
fn head_end(bytes: &[u8]) -> Option<usize> {
    let ends = [&b"\r\n\r\n"[..], b"\n\n", b"\n\r\n"].into_iter();
    ends.filter_map(|end| bytes.windows(end.len()).position(|part| part == end).map(|at| at + end.len())).min()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::client_hello::tests::hello;
    use super::*;

    fn inspect(parts: &[&[u8]]) -> (Vec<u8>, Option<NameMismatch>) {
        let mut inspector = NameInspector::new(RemoteHost::of_authority("example.com:443").unwrap());
        let mut output = Vec::new();
        for part in parts {
            if let Err(mismatch) = inspector.push(part, &mut output) {
                return (output, Some(mismatch));
            }
        }
        (output, None)
    }

    #[test]
    fn the_granted_name_passes_in_any_spelling() {
        for name in [Some("example.com"), Some("EXAMPLE.com."), None] {
            let bytes = hello(name, 16_384);
            assert_eq!(inspect(&[&bytes, b"more"]), ([&bytes[..], b"more"].concat(), None));
        }
    }

    #[test]
    fn another_name_passes_no_byte() {
        for size in [1, 40, 16_384] {
            let (output, mismatch) = inspect(&[&hello(Some("evil.test"), size)]);
            assert_eq!((output, mismatch), (Vec::new(), Some(NameMismatch::ServerName("evil.test".into()))));
        }
        let (output, mismatch) = inspect(&[b"GET / HTTP/1.1\r\nhost: evil.test\r\n\r\n"]);
        assert_eq!((output, mismatch), (Vec::new(), Some(NameMismatch::HostHeader("evil.test".into()))));
        for request in [
            &b"GET / HTTP/1.1\nHost: evil.test\n\n"[..],
            b"POST /x HTTP/1.0\r\nHost: example.com\r\nHost: evil.test\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost : evil.test\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost:\tevil.test:80\r\n\r\n",
        ] {
            assert!(inspect(&[request]).1.is_some(), "{}", String::from_utf8_lossy(request));
        }
    }

    #[test]
    fn other_protocols_pass_at_once() {
        for bytes in
            [&b"SSH-2.0-OpenSSH\r\n"[..], b"EHLO me\r\n", b"GET key\r\n", b"PRI * HTTP/2.0\r\n\r\n", b"\0\0\0\x08"]
        {
            assert_eq!(inspect(&[bytes]), (bytes.to_vec(), None));
        }
        let request = b"GET / HTTP/1.1\r\nHost: example.com:443\r\n\r\n";
        assert_eq!(inspect(&[request]), (request.to_vec(), None));
    }

    #[test]
    fn first_messages_are_bounded() {
        let endless = [&b"GET /"[..], &vec![b'x'; MAX_HEAD + 1]].concat();
        assert_eq!(inspect(&[&endless]).1, Some(NameMismatch::Unreadable));
        let record = [&[22, 3, 1, 0x40, 0, 1, 0, 0x7f, 0xff][..], &vec![0; 16_380]].concat();
        assert_eq!(inspect(&[&record, &record, &record, &record]).1, Some(NameMismatch::Unreadable));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        /// The result does not depend on how the network splits the bytes.
        #[test]
        fn any_split_gives_the_same_result(evil in any::<bool>(), http in any::<bool>(), size in 1_usize..60, step in 1_usize..40) {
            let name = if evil { "evil.test" } else { "example.com" };
            let bytes = if http {
                format!("GET /a HTTP/1.1\r\nAccept: */*\r\nHost: {name}\r\n\r\nrest").into_bytes()
            } else {
                hello(Some(name), size)
            };
            let parts: Vec<&[u8]> = bytes.chunks(step).collect();
            let (output, mismatch) = inspect(&parts);
            prop_assert_eq!(mismatch.is_some(), evil);
            prop_assert_eq!(output, if evil { Vec::new() } else { bytes.clone() });
        }
    }
}
