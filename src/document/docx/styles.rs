//! The paragraph styles of a text document: what they mean, and how missing ones are added.

use std::collections::HashMap;

use crate::document::archive::OfficeArchive;
use crate::document::error::DocumentError;
use crate::document::relations::{NewPart, add_part, end_tag, relations};
use crate::document::request::BlockStyle;
use crate::document::xml::{TextSplices, XmlEvent, XmlReader, decode};

pub(super) const EMPTY_STYLES: &str = concat!(
    "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"yes\"?>\n",
    "<w:styles xmlns:w=\"http://schemas.openxmlformats.org/wordprocessingml/2006/main\"><w:docDefaults><w:rPrDefault>",
    "<w:rPr><w:rFonts w:ascii=\"Calibri\" w:hAnsi=\"Calibri\" w:cs=\"Calibri\"/><w:sz w:val=\"22\"/></w:rPr>",
    "</w:rPrDefault><w:pPrDefault><w:pPr><w:spacing w:after=\"160\" w:line=\"259\" w:lineRule=\"auto\"/></w:pPr>",
    "</w:pPrDefault></w:docDefaults><w:style w:type=\"paragraph\" w:default=\"1\" w:styleId=\"Normal\">",
    "<w:name w:val=\"Normal\"/><w:qFormat/></w:style></w:styles>"
);

/// What a style is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StyleRole {
    Title,
    Heading(u8),
    Other,
}

/// The paragraph styles by id.
#[derive(Debug, Default)]
pub(super) struct ParagraphStyles {
    styles: HashMap<String, StyleEntry>,
    ids: HashMap<String, String>,
}

#[derive(Debug, Default, Clone)]
struct StyleEntry {
    name: String,
    based_on: Option<String>,
    outline: Option<u8>,
    list: Option<String>,
}

/// Styles are based on each other; a cycle must end.
const MAX_BASES: usize = 20;

impl ParagraphStyles {
    pub(super) fn read(archive: &mut OfficeArchive<'_>, part: &str) -> Result<Self, DocumentError> {
        let mut styles = Self::default();
        let relation = relations(archive, part)?.into_iter().find(|relation| relation.kind == "styles");
        let Some(bytes) = relation.map(|relation| archive.read(&relation.target)).transpose()?.flatten() else {
            return Ok(styles);
        };
        let text = decode(bytes)?;
        let mut reader = XmlReader::new(&text);
        let mut current: Option<(String, StyleEntry)> = None;
        while let Some(event) = reader.next()? {
            match event {
                XmlEvent::Open(element) if element.name() == "style" => {
                    let is_paragraph = element.attribute("type").is_none_or(|kind| kind == "paragraph");
                    let id = element.attribute("styleId").filter(|_| is_paragraph);
                    current = id.map(|id| (id, StyleEntry::default()));
                }
                XmlEvent::Open(element) => {
                    let Some((_, entry)) = &mut current else { continue };
                    let value = element.attribute("val");
                    match element.name() {
                        "name" => entry.name = value.unwrap_or_default(),
                        "basedOn" => entry.based_on = value,
                        "outlineLvl" => entry.outline = value.and_then(|level| level.parse().ok()),
                        "numId" => entry.list = value,
                        _ => {}
                    }
                }
                XmlEvent::Close(close) if close.name() == "style" => {
                    if let Some((id, entry)) = current.take() {
                        styles.ids.insert(entry.name.to_lowercase(), id.clone());
                        styles.styles.insert(id, entry);
                    }
                }
                XmlEvent::Close(_) | XmlEvent::Text(_) => {}
            }
        }
        Ok(styles)
    }

    /// Returns what a style is for, by its name, its outline level or the style that it is based on.
    pub(super) fn role(&self, id: Option<&str>) -> StyleRole {
        for entry in self.chain(id) {
            let name = entry.name.to_lowercase();
            if name == "title" {
                return StyleRole::Title;
            }
            if let Some(level) = name.strip_prefix("heading ").and_then(|level| level.parse().ok()) {
                return StyleRole::Heading(level);
            }
            if let Some(level @ 0..=8) = entry.outline {
                return StyleRole::Heading(level + 1);
            }
        }
        StyleRole::Other
    }

    /// Returns the list that a style belongs to.
    pub(super) fn list(&self, id: Option<&str>) -> Option<&str> {
        self.chain(id).find_map(|entry| entry.list.as_deref()).filter(|list| *list != "0")
    }

    fn chain(&self, id: Option<&str>) -> impl Iterator<Item = &StyleEntry> {
        let first = id.and_then(|id| self.styles.get(id));
        let next = |entry: &&StyleEntry| entry.based_on.as_ref().and_then(|base| self.styles.get(base));
        std::iter::successors(first, next).take(MAX_BASES)
    }

    /// Returns the id of the style of a block. `None` for normal text. Adds the style to the document if it has none
    /// with the name.
    pub(super) fn ensure(
        &mut self,
        archive: &mut OfficeArchive<'_>,
        part: &str,
        style: BlockStyle,
    ) -> Result<Option<String>, DocumentError> {
        let Some((name, id, properties)) = definition(style) else { return Ok(None) };
        if let Some(id) = self.ids.get(&name.to_lowercase()) {
            return Ok(Some(id.clone()));
        }
        let id = if self.styles.contains_key(id) { format!("{id}Skein") } else { id.to_owned() };
        let known = relations(archive, part)?.into_iter().find(|relation| relation.kind == "styles");
        let styles_part = match known {
            Some(relation) => relation.target,
            None => {
                let name = "word/styles.xml";
                let contents = EMPTY_STYLES.into();
                let content_type = "application/vnd.openxmlformats-officedocument.wordprocessingml.styles+xml";
                add_part(archive, part, NewPart { name, content_type, kind: "styles", contents })?;
                name.to_owned()
            }
        };
        let text = decode(archive.require(&styles_part)?)?;
        // The prefix may be another one in this document, so that the style declares its own.
        let style = format!(
            "<w:style xmlns:w=\"{}\" w:type=\"paragraph\" w:styleId=\"{id}\"><w:name w:val=\"{name}\"/><w:qFormat/>{properties}</w:style>",
            super::blocks::WORD
        );
        let mut splices = TextSplices::default();
        splices.insert(end_tag(&text, "styles")?, style);
        archive.write(&styles_part, splices.apply(&text)?);
        self.ids.insert(name.to_lowercase(), id.clone());
        self.styles.insert(id.clone(), StyleEntry { name: name.to_owned(), ..StyleEntry::default() });
        Ok(Some(id))
    }
}

/// Returns the name, id and properties of a style. `None` for normal text.
fn definition(style: BlockStyle) -> Option<(&'static str, &'static str, &'static str)> {
    Some(match style {
        BlockStyle::Normal => return None,
        BlockStyle::Title => {
            ("Title", "Title", "<w:pPr><w:spacing w:after=\"240\"/></w:pPr><w:rPr><w:sz w:val=\"52\"/></w:rPr>")
        }
        BlockStyle::Heading1 => (
            "heading 1",
            "Heading1",
            "<w:pPr><w:keepNext/><w:spacing w:before=\"360\" w:after=\"120\"/><w:outlineLvl w:val=\"0\"/></w:pPr><w:rPr><w:b/><w:sz w:val=\"36\"/></w:rPr>",
        ),
        BlockStyle::Heading2 => (
            "heading 2",
            "Heading2",
            "<w:pPr><w:keepNext/><w:spacing w:before=\"240\" w:after=\"80\"/><w:outlineLvl w:val=\"1\"/></w:pPr><w:rPr><w:b/><w:sz w:val=\"28\"/></w:rPr>",
        ),
        BlockStyle::Heading3 => (
            "heading 3",
            "Heading3",
            "<w:pPr><w:keepNext/><w:spacing w:before=\"200\" w:after=\"60\"/><w:outlineLvl w:val=\"2\"/></w:pPr><w:rPr><w:b/><w:sz w:val=\"24\"/></w:rPr>",
        ),
        BlockStyle::Bullet | BlockStyle::Number => {
            ("List Paragraph", "ListParagraph", "<w:pPr><w:ind w:left=\"720\"/><w:contextualSpacing/></w:pPr>")
        }
        BlockStyle::Quote => {
            ("Quote", "Quote", "<w:pPr><w:ind w:left=\"720\" w:right=\"720\"/></w:pPr><w:rPr><w:i/></w:rPr>")
        }
        BlockStyle::Caption => (
            "caption",
            "Caption",
            "<w:pPr><w:spacing w:after=\"200\"/></w:pPr><w:rPr><w:i/><w:sz w:val=\"18\"/></w:rPr>",
        ),
        BlockStyle::Code => (
            "Source Code",
            "SourceCode",
            "<w:pPr><w:spacing w:after=\"0\"/></w:pPr><w:rPr><w:rFonts w:ascii=\"Courier New\" w:hAnsi=\"Courier New\" w:cs=\"Courier New\"/><w:sz w:val=\"20\"/></w:rPr>",
        ),
    })
}
