//! Reads XML parts as a stream of elements and text, and replaces ranges of their text.
//!
//! Invariant: no document type is read, so that no entity expands to more than one character.

use std::borrow::Cow;
use std::ops::Range;

use quick_xml::escape::{minimal_escape, unescape};
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;

use super::error::DocumentError;

/// Deeper nesting than any real document has.
const MAX_DEPTH: usize = 256;

/// A piece of an XML part, with its range in the text.
#[derive(Debug)]
pub(super) enum XmlEvent<'a> {
    Open(XmlElement<'a>),
    /// Also follows an empty element.
    Close(XmlClose),
    Text(Cow<'a, str>),
}

#[derive(Debug)]
pub(super) struct XmlElement<'a> {
    start: BytesStart<'a>,
    /// The tag.
    pub(super) span: Range<usize>,
    pub(super) is_empty: bool,
}

#[derive(Debug)]
pub(super) struct XmlClose {
    name: String,
    pub(super) span: Range<usize>,
}

impl XmlClose {
    /// Returns the name without its prefix.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl XmlElement<'_> {
    /// Returns the name without its prefix.
    pub(super) fn name(&self) -> &str {
        local(self.start.name().into_inner())
    }

    /// Returns the name's prefix with its colon.
    pub(super) fn prefix(&self) -> &str {
        let name = self.start.name().into_inner();
        &name[..name.len() - local(name).len()]
    }

    /// Returns an attribute by its name without a prefix.
    pub(super) fn attribute(&self, name: &str) -> Option<String> {
        let attribute = self.start.attributes().flatten().find(|found| local(found.key.into_inner()) == name)?;
        unescape(&attribute.value).ok().map(Cow::into_owned)
    }

    /// Returns an attribute by its name with the prefix.
    pub(super) fn attribute_with_prefix(&self, name: &str) -> Option<String> {
        let attribute = self.start.attributes().flatten().find(|found| found.key.into_inner() == name)?;
        unescape(&attribute.value).ok().map(Cow::into_owned)
    }

    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.attribute(name)?.trim().parse().ok()
    }
}

fn local(name: &str) -> &str {
    name.rsplit_once(':').map_or(name, |(_, local)| local)
}

/// A reader of one part.
pub(super) struct XmlReader<'a> {
    reader: Reader<&'a [u8]>,
    depth: usize,
    /// The empty element whose end comes next.
    pending: Option<XmlClose>,
}

impl<'a> XmlReader<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { reader: Reader::from_str(text), depth: 0, pending: None }
    }

    /// Returns the next piece. `None` at the end of the part.
    pub(super) fn next(&mut self) -> Result<Option<XmlEvent<'a>>, DocumentError> {
        if let Some(close) = self.pending.take() {
            return Ok(Some(XmlEvent::Close(close)));
        }
        loop {
            let from = self.position();
            let event =
                self.reader.read_event().map_err(|error| DocumentError::damage(format!("wrong XML: {error}")))?;
            let span = from..self.position();
            return Ok(Some(match event {
                Event::Start(start) => {
                    self.depth += 1;
                    if self.depth > MAX_DEPTH {
                        return Err(DocumentError::too_large(format!("its XML is nested more than {MAX_DEPTH} deep")));
                    }
                    XmlEvent::Open(XmlElement { start, span, is_empty: false })
                }
                Event::Empty(start) => {
                    let name = local(start.name().into_inner()).to_owned();
                    self.pending = Some(XmlClose { name, span: span.end..span.end });
                    XmlEvent::Open(XmlElement { start, span, is_empty: true })
                }
                Event::End(end) => {
                    self.depth = self.depth.saturating_sub(1);
                    XmlEvent::Close(XmlClose { name: local(end.name().into_inner()).to_owned(), span })
                }
                Event::Text(text) => XmlEvent::Text(text.into_inner()),
                Event::CData(text) => XmlEvent::Text(text.into_inner()),
                Event::GeneralRef(reference) => {
                    let name = reference.into_inner();
                    let text = unescape(&format!("&{name};")).map(Cow::into_owned).map_err(|_| {
                        let name: String = name.chars().take(40).collect();
                        DocumentError::damage(format!("its XML uses the entity `{name}`, which nothing defines"))
                    })?;
                    XmlEvent::Text(text.into())
                }
                Event::DocType(_) => {
                    return Err(DocumentError::damage(
                        "its XML has a document type, which no office document has and which may define entities",
                    ));
                }
                Event::Decl(_) | Event::PI(_) | Event::Comment(_) => continue,
                Event::Eof => return Ok(None),
            }));
        }
    }

    /// Skips the rest of an element that was opened last. Returns where its end tag ends.
    pub(super) fn skip(&mut self, element: &XmlElement<'_>) -> Result<usize, DocumentError> {
        if element.is_empty {
            self.pending = None;
            return Ok(element.span.end);
        }
        let mut depth = 1usize;
        while let Some(event) = self.next()? {
            match event {
                XmlEvent::Open(_) => depth += 1,
                XmlEvent::Close(close) => {
                    depth -= 1;
                    if depth == 0 {
                        return Ok(close.span.end);
                    }
                }
                XmlEvent::Text(_) => {}
            }
        }
        Err(DocumentError::damage("its XML ends inside an element"))
    }

    /// Returns all text of an element that was opened last.
    pub(super) fn text(&mut self, element: &XmlElement<'_>) -> Result<String, DocumentError> {
        let mut text = String::new();
        if element.is_empty {
            self.pending = None;
            return Ok(text);
        }
        let mut depth = 1usize;
        while let Some(event) = self.next()? {
            match event {
                XmlEvent::Open(_) => depth += 1,
                XmlEvent::Text(piece) => text.push_str(&piece),
                XmlEvent::Close(_) => {
                    depth -= 1;
                    if depth == 0 {
                        return Ok(text);
                    }
                }
            }
        }
        Err(DocumentError::damage("its XML ends inside an element"))
    }

    /// Returns where the last piece ends.
    pub(super) fn offset(&self) -> usize {
        self.position()
    }

    fn position(&self) -> usize {
        usize::try_from(self.reader.buffer_position()).unwrap_or(usize::MAX)
    }
}

/// Decodes a part. XML is UTF-8 or, with a byte order mark, UTF-16.
pub(super) fn decode(bytes: Vec<u8>) -> Result<String, DocumentError> {
    let wrong = || DocumentError::damage("a part is not UTF-8");
    match encoding_rs::Encoding::for_bom(&bytes) {
        Some((encoding, _)) => {
            let (text, _, has_errors) = encoding.decode(&bytes);
            if has_errors { Err(wrong()) } else { Ok(text.into_owned()) }
        }
        None => String::from_utf8(bytes).map_err(|_| wrong()),
    }
}

/// Returns text as the content of an element or a quoted attribute. Drops characters that XML cannot hold.
pub(super) fn escape(text: &str) -> String {
    let text: String = text.chars().filter(|letter| is_xml_char(*letter)).collect();
    minimal_escape(text).replace('"', "&quot;").replace('\r', "&#13;")
}

pub(super) fn is_xml_char(letter: char) -> bool {
    !letter.is_control() && !matches!(letter, '\u{fffe}' | '\u{ffff}')
        || matches!(letter, '\t' | '\n' | '\r' | '\u{7f}'..='\u{9f}')
}

/// Replacements of ranges of one text.
#[derive(Debug, Default)]
pub(super) struct TextSplices {
    splices: Vec<(Range<usize>, String)>,
}

impl TextSplices {
    pub(super) fn replace(&mut self, range: Range<usize>, text: impl Into<String>) {
        self.splices.push((range, text.into()));
    }

    pub(super) fn insert(&mut self, at: usize, text: impl Into<String>) {
        self.replace(at..at, text);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.splices.is_empty()
    }

    /// Returns `text` with the replacements. Those at one place keep their order. Fails if two overlap.
    pub(super) fn apply(mut self, text: &str) -> Result<String, DocumentError> {
        self.splices.sort_by_key(|(range, _)| (range.start, range.end));
        let mut out = String::with_capacity(text.len());
        let mut at = 0;
        for (range, replacement) in &self.splices {
            let kept = text.get(at..range.start).filter(|_| range.end <= text.len());
            out.push_str(kept.ok_or_else(|| DocumentError::damage("two changes overlap"))?);
            out.push_str(replacement);
            at = range.end;
        }
        out.push_str(text.get(at..).unwrap_or_default());
        Ok(out)
    }
}
