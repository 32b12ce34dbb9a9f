//! Server-sent events: the same events come out however the bytes are cut. The first byte is the size of the pieces.

use skein::llm::decode_pieces;
use skein::network::read_events;

pub(super) fn run(data: &[u8]) {
    let Some((first, bytes)) = data.split_first() else { return };
    let size = usize::from(*first).max(1);
    assert_eq!(read_events(std::iter::once(bytes)), read_events(bytes.chunks(size)));
    assert_eq!(decode_pieces(std::iter::once(bytes)), decode_pieces(bytes.chunks(size)));
}
