//! The first bytes of a connection to the proxy: a request, a SOCKS message or a TLS greeting, or an error.

use skein::sandbox::proxy::read_first_bytes;

pub(super) fn run(data: &[u8]) {
    read_first_bytes(data);
    // The end of a head is easy to lose in mutations.
    read_first_bytes(&[data, b"\r\n\r\n"].concat());
}
