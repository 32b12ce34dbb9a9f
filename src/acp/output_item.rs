//! The items of a client's output queue, and their JSON.

use std::sync::Arc;

use crate::agents::ChunkTemplate;

/// Queued text is merged into chunks of about this size, in bytes.
pub(super) const MAX_CHUNK: usize = 16 << 10;

/// Whether a chunk belongs to the agent's message or its thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChunkKind {
    Agent,
    Thought,
}

/// A chunk of a message that is being streamed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MessageChunk {
    pub(super) session: Arc<str>,
    pub(super) message: Arc<str>,
    pub(super) kind: ChunkKind,
    pub(super) text: String,
}

/// A chunk of an external agent's message, framed by that agent's template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExternalChunk {
    pub(super) session: Arc<str>,
    pub(super) template: Arc<ChunkTemplate>,
    pub(super) text: String,
}

#[derive(Debug)]
pub(super) enum OutputItem {
    /// A message of the SDK.
    Line(String),
    /// An update of a session.
    Update(Arc<str>, String),
    Chunk(MessageChunk),
    External(ExternalChunk),
    /// The last bytes of an item of this size, whose first bytes are written.
    Rest {
        bytes: Vec<u8>,
        size: usize,
    },
}

impl OutputItem {
    pub(super) fn is_piece(&self) -> bool {
        matches!(self, OutputItem::Chunk(_) | OutputItem::External(_))
    }

    /// Returns the session of the item. `None` if only its JSON shows whether it has one.
    pub(super) fn session(&self) -> Option<&Arc<str>> {
        match self {
            OutputItem::Line(_) | OutputItem::Rest { .. } => None,
            OutputItem::Update(session, _) => Some(session),
            OutputItem::Chunk(chunk) => Some(&chunk.session),
            OutputItem::External(piece) => Some(&piece.session),
        }
    }

    /// Returns the bytes that the item counts for; merged chunks count for the sum of their parts.
    pub(super) fn size(&self) -> usize {
        match self {
            OutputItem::Line(line) | OutputItem::Update(_, line) => line.len(),
            OutputItem::Chunk(chunk) => chunk.text.len(),
            OutputItem::External(piece) => piece.text.len(),
            OutputItem::Rest { size, .. } => *size,
        }
    }

    /// Appends `next` if both are chunks of one message. Otherwise returns `next`.
    pub(super) fn try_merge(&mut self, next: OutputItem) -> Option<OutputItem> {
        if let (OutputItem::External(piece), OutputItem::External(more)) = (&mut *self, &next)
            && (&piece.session, &piece.template) == (&more.session, &more.template)
            && piece.text.len() < MAX_CHUNK
        {
            piece.text.push_str(&more.text);
            return None;
        }
        if let (OutputItem::Chunk(chunk), OutputItem::Chunk(more)) = (&mut *self, &next)
            && (chunk.kind, &chunk.session, &chunk.message) == (more.kind, &more.session, &more.message)
            && chunk.text.len() < MAX_CHUNK
        {
            chunk.text.push_str(&more.text);
            return None;
        }
        Some(next)
    }

    /// Appends the JSON of the item and the end of its line.
    pub(super) fn write(&self, buffer: &mut Vec<u8>) {
        match self {
            OutputItem::Line(line) | OutputItem::Update(_, line) => buffer.extend_from_slice(line.as_bytes()),
            OutputItem::Chunk(chunk) => chunk.write(buffer),
            OutputItem::External(piece) => piece.write(buffer),
            OutputItem::Rest { bytes, .. } => {
                buffer.extend_from_slice(bytes);
                return;
            }
        }
        buffer.push(b'\n');
    }
}

impl ExternalChunk {
    fn write(&self, buffer: &mut Vec<u8>) {
        buffer.extend_from_slice(br#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"#);
        text(buffer, &self.session);
        buffer.extend_from_slice(br#","update":"#);
        buffer.extend_from_slice(self.template.before.as_bytes());
        text(buffer, &self.text);
        buffer.extend_from_slice(self.template.after.as_bytes());
        buffer.extend_from_slice(b"}}");
    }
}

impl MessageChunk {
    /// Writes the same JSON as serde for the protocol's type, at a lower cost; a test compares the two.
    pub(super) fn write(&self, buffer: &mut Vec<u8>) {
        let kind = match self.kind {
            ChunkKind::Agent => "agent_message_chunk",
            ChunkKind::Thought => "agent_thought_chunk",
        };
        buffer.extend_from_slice(br#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"#);
        text(buffer, &self.session);
        buffer.extend_from_slice(br#","update":{"sessionUpdate":""#);
        buffer.extend_from_slice(kind.as_bytes());
        buffer.extend_from_slice(br#"","content":{"type":"text","text":"#);
        text(buffer, &self.text);
        buffer.extend_from_slice(br#"},"messageId":"#);
        text(buffer, &self.message);
        buffer.extend_from_slice(b"}}}");
    }
}

fn text(buffer: &mut Vec<u8>, text: &str) {
    // Writing a string to memory cannot fail.
    drop(serde_json::to_writer(buffer, text));
}
