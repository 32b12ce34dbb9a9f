//! Server-sent events: the same events come out however the bytes are cut. The first byte is the size of the pieces.

#![no_main]

use skein::network::read_events;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((first, bytes)) = data.split_first() else { return };
    let whole = read_events(std::iter::once(bytes));
    let pieces = read_events(bytes.chunks(usize::from(*first).max(1)));
    assert_eq!(whole, pieces);
});
