//! The first bytes of a connection to the proxy: a request or a TLS greeting, or an error.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    skein::sandbox::proxy::read_first_bytes(data);
});
