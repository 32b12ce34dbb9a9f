//! Encodes spans as the Protobuf message `ExportTraceServiceRequest`. It has few fields, so that this is shorter than the
//! crates that generate such code, and adds no dependency.

use super::{AttributeValue, FinishedSpan};

const FIXED64: u64 = 1;
const LENGTH: u64 = 2;

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
        // The type of a varint is zero.
        self.varint(field << 3);
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
}
