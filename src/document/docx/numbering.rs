//! The lists of a text document: which are numbered, and how new ones are added.

use std::collections::HashMap;

use crate::document::archive::OfficeArchive;
use crate::document::error::DocumentError;
use crate::document::relations::{NewPart, add_part, end_tag, relations};
use crate::document::xml::{TextSplices, XmlEvent, XmlReader, decode};

use super::blocks::WORD;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListKind {
    Bullet,
    Number,
}

/// The kind of each list and level.
#[derive(Debug, Default)]
pub(super) struct ListKinds {
    /// The definition of a list.
    lists: HashMap<String, String>,
    levels: HashMap<(String, usize), ListKind>,
}

impl ListKinds {
    /// Returns the kind of a list. `None` if nothing defines it, or its level has no mark.
    pub(super) fn kind(&self, list: &str, level: usize) -> Option<ListKind> {
        self.levels.get(&(self.lists.get(list)?.clone(), level)).copied()
    }
}

fn numbering_part(archive: &mut OfficeArchive<'_>, part: &str) -> Result<Option<String>, DocumentError> {
    let relation = relations(archive, part)?.into_iter().find(|relation| relation.kind == "numbering");
    Ok(relation.map(|relation| relation.target).filter(|target| archive.contains(target)))
}

pub(super) fn read_lists(archive: &mut OfficeArchive<'_>, part: &str) -> Result<ListKinds, DocumentError> {
    let mut kinds = ListKinds::default();
    let Some(name) = numbering_part(archive, part)? else { return Ok(kinds) };
    let text = decode(archive.require(&name)?)?;
    let mut reader = XmlReader::new(&text);
    let (mut definition, mut level, mut list) = (String::new(), 0usize, None);
    while let Some(event) = reader.next()? {
        let XmlEvent::Open(element) = event else { continue };
        match element.name() {
            "abstractNum" => {
                definition = element.attribute("abstractNumId").unwrap_or_default();
                list = None;
            }
            "lvl" => level = element.number("ilvl").unwrap_or(0),
            "numFmt" if list.is_none() => {
                let kind = match element.attribute("val").as_deref() {
                    Some("bullet") => Some(ListKind::Bullet),
                    Some("none") | None => None,
                    Some(_) => Some(ListKind::Number),
                };
                if let Some(kind) = kind {
                    kinds.levels.insert((definition.clone(), level), kind);
                }
            }
            "num" => list = element.attribute("numId"),
            "abstractNumId" => {
                if let (Some(list), Some(definition)) = (&list, element.attribute("val")) {
                    kinds.lists.insert(list.clone(), definition);
                }
            }
            _ => {}
        }
    }
    Ok(kinds)
}

/// Adds lists to a document.
#[derive(Debug, Default)]
pub(super) struct ListMaker {
    bullets: Option<u32>,
    /// The definition of numbered lists, and the list that the last block belongs to.
    numbers: Option<u32>,
    current: Option<u32>,
}

impl ListMaker {
    /// Ends the current numbered list, so that the next one starts at one.
    pub(super) fn end_list(&mut self) {
        self.current = None;
    }

    /// Returns the list for the next block.
    pub(super) fn list(
        &mut self,
        archive: &mut OfficeArchive<'_>,
        part: &str,
        kind: ListKind,
    ) -> Result<u32, DocumentError> {
        if kind == ListKind::Bullet {
            self.end_list();
            if let Some(list) = self.bullets {
                return Ok(list);
            }
            let definition = add_definition(archive, part, kind)?;
            let list = add_list(archive, part, definition)?;
            self.bullets = Some(list);
            return Ok(list);
        }
        if let Some(list) = self.current {
            return Ok(list);
        }
        let definition = match self.numbers {
            Some(definition) => definition,
            None => add_definition(archive, part, kind)?,
        };
        self.numbers = Some(definition);
        let list = add_list(archive, part, definition)?;
        self.current = Some(list);
        Ok(list)
    }
}

/// Returns the name and the text of the part with the lists. Adds the part if there is none.
fn ensure_part(archive: &mut OfficeArchive<'_>, part: &str) -> Result<(String, String), DocumentError> {
    if let Some(name) = numbering_part(archive, part)? {
        let text = decode(archive.require(&name)?)?;
        return Ok((name, text));
    }
    let name = "word/numbering.xml".to_owned();
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"yes\"?>\n<w:numbering xmlns:w=\"{WORD}\"></w:numbering>"
    );
    let content_type = "application/vnd.openxmlformats-officedocument.wordprocessingml.numbering+xml";
    add_part(archive, part, NewPart { name: &name, content_type, kind: "numbering", contents: text.clone().into() })?;
    Ok((name, text))
}

/// Adds the definition of a list. Definitions come before the lists that use them.
fn add_definition(archive: &mut OfficeArchive<'_>, part: &str, kind: ListKind) -> Result<u32, DocumentError> {
    let (name, text) = ensure_part(archive, part)?;
    let mut reader = XmlReader::new(&text);
    let (mut id, mut at) = (0u32, None);
    while let Some(event) = reader.next()? {
        let XmlEvent::Open(element) = event else { continue };
        match element.name() {
            "abstractNum" => id = id.max(element.number::<u32>("abstractNumId").map_or(0, |id| id.saturating_add(1))),
            "num" if at.is_none() => at = Some(element.span.start),
            _ => {}
        }
    }
    let (format, mark, font) = match kind {
        ListKind::Bullet => ("bullet", "•", ""),
        ListKind::Number => ("decimal", "%1.", ""),
    };
    let definition = format!(
        "<w:abstractNum xmlns:w=\"{WORD}\" w:abstractNumId=\"{id}\"><w:multiLevelType w:val=\"singleLevel\"/>\
         <w:lvl w:ilvl=\"0\"><w:start w:val=\"1\"/><w:numFmt w:val=\"{format}\"/><w:lvlText w:val=\"{mark}\"/>\
         <w:lvlJc w:val=\"left\"/><w:pPr><w:ind w:left=\"720\" w:hanging=\"360\"/></w:pPr>{font}</w:lvl></w:abstractNum>"
    );
    let at = at.map_or_else(|| end_tag(&text, "numbering"), Ok)?;
    let mut splices = TextSplices::default();
    splices.insert(at, definition);
    archive.write(&name, splices.apply(&text)?);
    Ok(id)
}

/// Adds a list that starts at one.
fn add_list(archive: &mut OfficeArchive<'_>, part: &str, definition: u32) -> Result<u32, DocumentError> {
    let (name, text) = ensure_part(archive, part)?;
    let mut reader = XmlReader::new(&text);
    let (mut id, mut at) = (1u32, None);
    while let Some(event) = reader.next()? {
        match event {
            XmlEvent::Open(element) if element.name() == "num" => {
                id = id.max(element.number::<u32>("numId").map_or(1, |id| id.saturating_add(1)));
            }
            XmlEvent::Close(close) if close.name() == "num" => at = Some(close.span.end),
            _ => {}
        }
    }
    let at = at.map_or_else(|| end_tag(&text, "numbering"), Ok)?;
    let list = format!(
        "<w:num xmlns:w=\"{WORD}\" w:numId=\"{id}\"><w:abstractNumId w:val=\"{definition}\"/>\
         <w:lvlOverride w:ilvl=\"0\"><w:startOverride w:val=\"1\"/></w:lvlOverride></w:num>"
    );
    let mut splices = TextSplices::default();
    splices.insert(at, list);
    archive.write(&name, splices.apply(&text)?);
    Ok(id)
}
