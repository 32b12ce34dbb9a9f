//! Encodes spans as the Protobuf message `ExportTraceServiceRequest`, and reads its answer. They have few fields, so that
//! this is shorter than the crates that generate such code, and adds no dependency.

use super::{AttributeValue, FinishedSpan};

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;

const KIND_INTERNAL: u64 = 1;
const KIND_CLIENT: u64 = 3;
const STATUS_ERROR: u64 = 2;

/// A Protobuf message. Fields follow each other in the order of the calls.
#[derive(Default)]
struct ProtobufMessage(Vec<u8>);

impl ProtobufMessage {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
            value >>= 7;
        }
        self.0.push(u8::try_from(value).unwrap_or_default());
    }

    fn integer(&mut self, field: u64, value: u64) {
        self.varint((field << 3) | VARINT);
        self.varint(value);
    }

    fn eight_bytes(&mut self, field: u64, value: u64) {
        self.varint((field << 3) | FIXED64);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.varint((field << 3) | LENGTH);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    fn message(&mut self, field: u64, value: &ProtobufMessage) {
        self.bytes(field, &value.0);
    }
}

/// Returns the request that reports these spans.
pub(super) fn encode_request(resource: &[(String, AttributeValue)], spans: &[FinishedSpan]) -> Vec<u8> {
    let mut resource_message = ProtobufMessage::default();
    put_attributes(&mut resource_message, 1, resource);
    let mut scope = ProtobufMessage::default();
    scope.bytes(1, b"skein");
    scope.bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
    let mut scope_spans = ProtobufMessage::default();
    scope_spans.message(1, &scope);
    for span in spans {
        scope_spans.message(2, &span_message(span));
    }
    let mut resource_spans = ProtobufMessage::default();
    resource_spans.message(1, &resource_message);
    resource_spans.message(2, &scope_spans);
    let mut request = ProtobufMessage::default();
    request.message(1, &resource_spans);
    request.0
}

/// Returns how many spans the receiver rejected, as its answer `ExportTraceServiceResponse` says. Zero if the answer is
/// not valid: the receiver has taken the request.
pub(super) fn count_rejected(answer: &[u8]) -> u64 {
    let partial_success = match find_field(answer, 1) {
        Some(FieldValue::Bytes(message)) => message,
        _ => return 0,
    };
    match find_field(partial_success, 1) {
        // The number is signed. A negative one would be very large.
        Some(FieldValue::Integer(number)) => i64::try_from(number).map_or(0, i64::unsigned_abs),
        _ => 0,
    }
}

/// The value of a field that is read.
enum FieldValue<'a> {
    Integer(u64),
    Bytes(&'a [u8]),
}

/// Returns the first field of a message that has this number. `None` if there is none before the end or an error.
fn find_field(mut message: &[u8], wanted: u64) -> Option<FieldValue<'_>> {
    loop {
        let tag = take_varint(&mut message)?;
        let value = match tag & 7 {
            VARINT => FieldValue::Integer(take_varint(&mut message)?),
            FIXED64 => FieldValue::Bytes(message.split_off(..8)?),
            LENGTH => {
                let length = usize::try_from(take_varint(&mut message)?).ok()?;
                FieldValue::Bytes(message.split_off(..length)?)
            }
            FIXED32 => FieldValue::Bytes(message.split_off(..4)?),
            _ => return None,
        };
        if tag >> 3 == wanted {
            return Some(value);
        }
    }
}

/// Removes a varint from the start of `message`. `None` if there is no whole one.
fn take_varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    // Ten bytes have room for 64 bits. Bits beyond them are lost, as in other decoders.
    for shift in (0..70).step_by(7) {
        let byte = u64::from(*message.split_off_first()?);
        value |= (byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn span_message(span: &FinishedSpan) -> ProtobufMessage {
    let mut message = ProtobufMessage::default();
    message.bytes(1, &span.trace);
    message.bytes(2, &span.id);
    if let Some(parent) = &span.parent {
        message.bytes(4, parent);
    }
    message.bytes(5, span.name.as_bytes());
    message.integer(6, if span.is_client { KIND_CLIENT } else { KIND_INTERNAL });
    message.eight_bytes(7, span.start);
    message.eight_bytes(8, span.end);
    put_attributes(&mut message, 9, &span.attributes);
    if span.failed {
        let mut status = ProtobufMessage::default();
        status.integer(3, STATUS_ERROR);
        message.message(15, &status);
    }
    message
}

fn put_attributes(message: &mut ProtobufMessage, field: u64, attributes: &[(String, AttributeValue)]) {
    for (key, value) in attributes {
        let mut attribute = ProtobufMessage::default();
        attribute.bytes(1, key.as_bytes());
        attribute.message(2, &value_message(value));
        message.message(field, &attribute);
    }
}

fn value_message(value: &AttributeValue) -> ProtobufMessage {
    let mut message = ProtobufMessage::default();
    match value {
        AttributeValue::Text(text) => message.bytes(1, text.as_bytes()),
        AttributeValue::Flag(flag) => message.integer(2, u64::from(*flag)),
        AttributeValue::Integer(number) => message.integer(3, number.cast_unsigned()),
        AttributeValue::Float(number) => message.eight_bytes(4, number.to_bits()),
        AttributeValue::Texts(texts) => {
            let mut list = ProtobufMessage::default();
            for text in texts {
                list.message(1, &value_message(&AttributeValue::Text(text.clone())));
            }
            message.message(5, &list);
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes were computed by hand from the definition of the wire format.
    #[test]
    fn values_have_the_bytes_of_protobuf() {
        let encoded = |value| value_message(&value).0;
        assert_eq!(encoded(AttributeValue::Text("ab".to_owned())), [0x0a, 2, b'a', b'b']);
        assert_eq!(encoded(AttributeValue::Flag(true)), [0x10, 1]);
        assert_eq!(encoded(AttributeValue::Integer(300)), [0x18, 0xac, 0x02]);
        assert_eq!(encoded(AttributeValue::Float(1.0)), [0x21, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
        assert_eq!(encoded(AttributeValue::Texts(vec!["a".to_owned()])), [0x2a, 5, 0x0a, 3, 0x0a, 1, b'a']);
        // A negative number has ten bytes.
        assert_eq!(encoded(AttributeValue::Integer(-1)).len(), 11);
    }

    #[test]
    fn an_answer_says_how_many_spans_were_rejected() {
        let mut partial = ProtobufMessage::default();
        partial.bytes(2, b"too old");
        partial.integer(1, 300);
        let mut answer = ProtobufMessage::default();
        // Fields of a later version.
        answer.eight_bytes(7, 1);
        answer.integer(8, 1);
        answer.message(1, &partial);
        assert_eq!(count_rejected(&answer.0), 300);
        assert_eq!(count_rejected(&[0x3d, 0, 0, 0, 0, 0x0a, 2, 0x08, 5]), 5, "after a field of four bytes");
        assert_eq!(count_rejected(&[]), 0);
        for end in 0..answer.0.len() {
            assert_eq!(count_rejected(&answer.0[..end]), 0, "{end} bytes");
        }
        let negative = [&[0x0a, 11, 0x08][..], &[0xff; 9], &[1]].concat();
        for wrong in [&negative[..], &[0xff; 20], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 1], b"{\"partialSuccess\":{}}"]
        {
            assert_eq!(count_rejected(wrong), 0, "{wrong:?}");
        }
    }
}
