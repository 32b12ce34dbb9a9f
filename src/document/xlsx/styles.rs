//! Adds cell styles to a workbook: bold, italic, fill and number format on top of what a cell has.

use std::collections::HashMap;
use std::ops::Range;

use super::sheet_xml::set_attribute;
use crate::document::error::DocumentError;
use crate::document::xml::{TextSplices, XmlEvent, XmlReader, escape};

pub(super) const STYLES: &str = concat!(
    "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"yes\"?>\n",
    "<styleSheet xmlns=\"http://schemas.openxmlformats.org/spreadsheetml/2006/main\">",
    "<fonts count=\"1\"><font><sz val=\"11\"/><name val=\"Calibri\"/><family val=\"2\"/></font></fonts>",
    "<fills count=\"2\"><fill><patternFill patternType=\"none\"/></fill>",
    "<fill><patternFill patternType=\"gray125\"/></fill></fills>",
    "<borders count=\"1\"><border><left/><right/><top/><bottom/><diagonal/></border></borders>",
    "<cellStyleXfs count=\"1\"><xf numFmtId=\"0\" fontId=\"0\" fillId=\"0\" borderId=\"0\"/></cellStyleXfs>",
    "<cellXfs count=\"1\"><xf numFmtId=\"0\" fontId=\"0\" fillId=\"0\" borderId=\"0\" xfId=\"0\"/></cellXfs>",
    "<cellStyles count=\"1\"><cellStyle name=\"Normal\" xfId=\"0\" builtinId=\"0\"/></cellStyles></styleSheet>"
);

/// Ids below this belong to the formats that every program knows.
const FIRST_FORMAT: u32 = 164;

/// What a caller wants of a cell's looks. The default leaves them alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct CellStyle {
    pub(super) bold: Option<bool>,
    pub(super) italic: Option<bool>,
    /// Six hexadecimal digits.
    pub(super) fill: Option<String>,
    /// A format code, such as `0.00%`.
    pub(super) format: Option<String>,
}

/// The styles of a workbook, with those that were added.
#[derive(Debug)]
pub(super) struct StyleBook {
    text: String,
    fonts: StyleSection,
    fills: StyleSection,
    xfs: StyleSection,
    formats: StyleSection,
    /// Where the number formats go if there are none: after the tag of the root.
    root_end: usize,
    next_format: u32,
    known: HashMap<(usize, CellStyle), usize>,
}

/// A list of elements, such as `fonts`.
#[derive(Debug, Default)]
struct StyleSection {
    tag: Option<Range<usize>>,
    /// Where its end tag starts.
    end: usize,
    elements: Vec<String>,
    added: Vec<String>,
}

impl StyleSection {
    fn len(&self) -> usize {
        self.elements.len() + self.added.len()
    }

    fn get(&self, index: usize) -> Option<&String> {
        self.elements.get(index).or_else(|| self.added.get(index.checked_sub(self.elements.len())?))
    }

    /// Adds an element and returns its index.
    fn add(&mut self, element: String) -> usize {
        self.added.push(element);
        self.len() - 1
    }
}

impl StyleBook {
    pub(super) fn read(text: String) -> Result<Self, DocumentError> {
        let mut book = Self {
            fonts: StyleSection::default(),
            fills: StyleSection::default(),
            xfs: StyleSection::default(),
            formats: StyleSection::default(),
            root_end: 0,
            next_format: FIRST_FORMAT,
            known: HashMap::new(),
            text: String::new(),
        };
        let mut reader = XmlReader::new(&text);
        let mut section: Option<String> = None;
        while let Some(event) = reader.next()? {
            match event {
                XmlEvent::Open(element) => {
                    let name = element.name().to_owned();
                    if name == "styleSheet" {
                        book.root_end = element.span.end;
                    } else if section.is_none() && book.section(&name).is_some() {
                        if let Some(found) = book.section(&name) {
                            found.tag = Some(element.span.clone());
                        }
                        section = Some(name);
                    } else if let Some(section) = &section {
                        if let Some(id) = element.number::<u32>("numFmtId").filter(|_| name == "numFmt") {
                            book.next_format = book.next_format.max(id.saturating_add(1));
                        }
                        let start = element.span.start;
                        let end = reader.skip(&element)?;
                        let element = text.get(start..end).unwrap_or_default().to_owned();
                        if let Some(found) = book.section(section) {
                            found.elements.push(element);
                        }
                    }
                }
                XmlEvent::Close(close) if section.as_deref() == Some(close.name()) => {
                    if let Some(found) = book.section(close.name()) {
                        found.end = close.span.start;
                    }
                    section = None;
                }
                XmlEvent::Close(_) | XmlEvent::Text(_) => {}
            }
        }
        book.text = text;
        Ok(book)
    }

    fn section(&mut self, name: &str) -> Option<&mut StyleSection> {
        match name {
            "fonts" => Some(&mut self.fonts),
            "fills" => Some(&mut self.fills),
            "cellXfs" => Some(&mut self.xfs),
            "numFmts" => Some(&mut self.formats),
            _ => None,
        }
    }

    /// Returns the index of a style that is `style` on top of the style `base`.
    pub(super) fn style(&mut self, base: usize, style: &CellStyle) -> Result<usize, DocumentError> {
        if *style == CellStyle::default() {
            return Ok(base);
        }
        if let Some(known) = self.known.get(&(base, style.clone())) {
            return Ok(*known);
        }
        let missing =
            || DocumentError::no_support("the workbook has no list of cell styles; write the cells without styles");
        let xf = self.xfs.get(base).or_else(|| self.xfs.get(0)).ok_or_else(missing)?.clone();
        let (mut tag, rest) = split_tag(&xf);
        if style.bold.is_some() || style.italic.is_some() {
            let font: usize = attribute(&tag, "fontId").and_then(|id| id.parse().ok()).unwrap_or(0);
            let font = self.fonts.get(font).ok_or_else(missing)?;
            let font = with_emphasis(font, style);
            tag = set_attribute(&tag, "fontId", &self.fonts.add(font).to_string());
            tag = set_attribute(&tag, "applyFont", "1");
        }
        if let Some(color) = &style.fill {
            let prefix = tag_prefix(&tag);
            let fill = format!(
                "<{prefix}fill><{prefix}patternFill patternType=\"solid\"><{prefix}fgColor rgb=\"FF{color}\"/></{prefix}patternFill></{prefix}fill>"
            );
            self.fills.tag.as_ref().ok_or_else(missing)?;
            tag = set_attribute(&tag, "fillId", &self.fills.add(fill).to_string());
            tag = set_attribute(&tag, "applyFill", "1");
        }
        if let Some(code) = &style.format {
            let id = self.next_format;
            self.next_format += 1;
            let prefix = tag_prefix(&tag);
            self.formats.add(format!("<{prefix}numFmt numFmtId=\"{id}\" formatCode=\"{}\"/>", escape(code)));
            tag = set_attribute(&tag, "numFmtId", &id.to_string());
            tag = set_attribute(&tag, "applyNumberFormat", "1");
        }
        let index = self.xfs.add(format!("{tag}{rest}"));
        self.known.insert((base, style.clone()), index);
        Ok(index)
    }

    /// Returns the new text of the part. `None` if no style was added.
    pub(super) fn finish(self) -> Result<Option<String>, DocumentError> {
        if self.xfs.added.is_empty() {
            return Ok(None);
        }
        let mut splices = TextSplices::default();
        for section in [&self.fonts, &self.fills, &self.xfs, &self.formats] {
            if section.added.is_empty() {
                continue;
            }
            let added = section.added.concat();
            match &section.tag {
                Some(tag) => {
                    let old = self.text.get(tag.clone()).unwrap_or_default();
                    let new = set_attribute(old, "count", &section.len().to_string());
                    if let Some(open) = new.strip_suffix("/>") {
                        let name = open.trim_start_matches('<').split([' ', '\n']).next().unwrap_or_default();
                        splices.replace(tag.clone(), format!("{open}>{added}</{name}>"));
                    } else {
                        splices.replace(tag.clone(), new);
                        splices.insert(section.end, added);
                    }
                }
                // Only number formats can be missing: they come first.
                None => {
                    let prefix = section.added.first().map(|element| tag_prefix(element)).unwrap_or_default();
                    let count = section.added.len();
                    let list = format!("<{prefix}numFmts count=\"{count}\">{added}</{prefix}numFmts>");
                    splices.insert(self.root_end, list);
                }
            }
        }
        splices.apply(&self.text).map(Some)
    }
}

/// Splits an element into its start tag and the rest.
fn split_tag(element: &str) -> (String, &str) {
    let end = element.find('>').map_or(element.len(), |end| end + 1);
    let (tag, rest) = element.split_at(end);
    (tag.to_owned(), rest)
}

fn tag_prefix(tag: &str) -> &str {
    let name = tag.trim_start_matches('<').split([' ', '>', '/', '\n']).next().unwrap_or_default();
    name.rfind(':').map_or("", |colon| &name[..=colon])
}

fn attribute(tag: &str, name: &str) -> Option<String> {
    let mut reader = XmlReader::new(tag);
    match reader.next() {
        Ok(Some(XmlEvent::Open(element))) => element.attribute(name),
        _ => None,
    }
}

/// Returns a font with bold and italic as asked for.
fn with_emphasis(font: &str, style: &CellStyle) -> String {
    let (tag, rest) = split_tag(font);
    let prefix = tag_prefix(&tag).to_owned();
    let mut rest = rest.to_owned();
    let mut marks = String::new();
    for (name, wanted) in [("b", style.bold), ("i", style.italic)] {
        let had = rest.contains(&format!("<{prefix}{name}/>"));
        rest = rest.replace(&format!("<{prefix}{name}/>"), "").replace(&format!("<{prefix}{name} val=\"1\"/>"), "");
        if wanted.unwrap_or(had) {
            marks.push_str(&format!("<{prefix}{name}/>"));
        }
    }
    match tag.strip_suffix("/>") {
        Some(open) => format!("{}>{marks}</{prefix}font>", open.trim_end()),
        None => format!("{tag}{marks}{rest}"),
    }
}
