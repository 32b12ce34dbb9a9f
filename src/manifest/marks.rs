//! Records the position of every node of a YAML document in a second parse, for diagnostics and edits.

use std::collections::HashMap;
use std::sync::Arc;

use saphyr_parser::{Event, Parser, Span as YamlSpan};

/// The maximum number of nodes. Aliases can make a document much larger than its text; a larger one is an attack.
pub(super) const MAX_NODES: usize = 200_000;
/// The maximum depth, the same as in `serde_yaml`. Deeper documents get no marks, because dropping them could overflow
/// the stack.
pub(super) const MAX_DEPTH: usize = 128;

/// The structure of a document, and the first duplicate key: its first and its second position.
pub(super) struct Marks {
    pub(super) root: Arc<MarkedNode>,
    pub(super) repeated: Option<(TextSpan, TextSpan)>,
}

/// The reason why a text has no marks.
pub(super) enum MarkError {
    /// Not YAML, or nested deeper than the other parser reads.
    Unreadable,
    /// The document exceeds the size limit at this alias.
    TooLarge(TextSpan),
}

/// A node of a document with its position. An alias shares the node of its anchor, so a document with aliases needs no
/// more memory than its text.
pub(super) struct MarkedNode {
    pub(super) span: TextSpan,
    pub(super) node: NodeContent,
    /// The number of nodes including this one, with aliases followed.
    size: usize,
}

pub(super) enum NodeContent {
    Scalar,
    Seq(Vec<Arc<MarkedNode>>),
    Map(Vec<MarkedEntry>),
}

/// A key of a mapping, its position and its value.
pub(super) type MarkedEntry = (String, TextSpan, Arc<MarkedNode>);

#[derive(Clone, Copy)]
pub(super) struct TextSpan {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) width: usize,
}

impl From<YamlSpan> for TextSpan {
    fn from(span: YamlSpan) -> Self {
        let same_line = span.start.line() == span.end.line();
        let width = if same_line { span.end.col().saturating_sub(span.start.col()) } else { 1 };
        Self { line: span.start.line(), column: span.start.col() + 1, width: width.max(1) }
    }
}

/// A collection whose end has not been parsed yet.
struct OpenCollection {
    span: TextSpan,
    anchor: usize,
    /// `Some` for a mapping.
    mapping: Option<OpenMapping>,
    items: Vec<Arc<MarkedNode>>,
    size: usize,
}

/// The entries so far, and the key that waits for its value.
#[derive(Default)]
struct OpenMapping {
    entries: Vec<MarkedEntry>,
    keys: HashMap<String, TextSpan>,
    waiting: Option<(String, TextSpan)>,
}

pub(super) fn mark(text: &str) -> Result<Marks, MarkError> {
    let mut anchors: HashMap<usize, Arc<MarkedNode>> = HashMap::new();
    let mut open: Vec<OpenCollection> = Vec::new();
    let mut repeated = None;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|_| MarkError::Unreadable)?;
        if open.len() > MAX_DEPTH {
            return Err(MarkError::Unreadable);
        }
        let span = TextSpan::from(span);
        let (mark, key, anchor) = match event {
            Event::Scalar(text, _, anchor, _) => {
                let mark = Arc::new(MarkedNode { span, node: NodeContent::Scalar, size: 1 });
                (mark, Some(text.into_owned()), anchor)
            }
            Event::Alias(anchor) => match anchors.get(&anchor) {
                Some(target) => (Arc::clone(target), None, 0),
                None => return Err(MarkError::Unreadable),
            },
            Event::SequenceStart(anchor, _) => {
                open.push(OpenCollection { span, anchor, mapping: None, items: Vec::new(), size: 1 });
                continue;
            }
            Event::MappingStart(anchor, _) => {
                open.push(OpenCollection {
                    span,
                    anchor,
                    mapping: Some(OpenMapping::default()),
                    items: Vec::new(),
                    size: 1,
                });
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let done = open.pop().ok_or(MarkError::Unreadable)?;
                let node = match done.mapping {
                    Some(mapping) => NodeContent::Map(mapping.entries),
                    None => NodeContent::Seq(done.items),
                };
                (Arc::new(MarkedNode { span: done.span, node, size: done.size }), None, done.anchor)
            }
            _ => continue,
        };
        if anchor > 0 {
            anchors.insert(anchor, Arc::clone(&mark));
        }
        let Some(parent) = open.last_mut() else { return Ok(Marks { root: mark, repeated }) };
        parent.size = parent.size.saturating_add(mark.size);
        if parent.size > MAX_NODES {
            return Err(MarkError::TooLarge(span));
        }
        match &mut parent.mapping {
            None => parent.items.push(mark),
            Some(mapping) => match mapping.waiting.take() {
                None => {
                    if let Some(key) = &key
                        && let Some(first) = mapping.keys.insert(key.clone(), span)
                    {
                        repeated = repeated.or(Some((first, span)));
                    }
                    mapping.waiting = Some((key.unwrap_or_default(), span));
                }
                Some((key, key_span)) => mapping.entries.push((key, key_span, mark)),
            },
        }
    }
    Err(MarkError::Unreadable)
}
