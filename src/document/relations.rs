//! Relations between the parts of an OOXML document, and their content types.

use super::archive::OfficeArchive;
use super::error::DocumentError;
use super::xml::{TextSplices, XmlEvent, XmlReader, decode, escape};

const CONTENT_TYPES: &str = "[Content_Types].xml";
const OFFICE: &str = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";

/// A link from one part to another.
#[derive(Debug, Clone)]
pub(super) struct PartRelation {
    pub(super) id: String,
    /// The last word of its type, such as `worksheet`.
    pub(super) kind: String,
    /// The name of the part in the archive.
    pub(super) target: String,
}

/// Returns the relations of a part; the empty name is the package.
pub(super) fn relations(archive: &mut OfficeArchive<'_>, part: &str) -> Result<Vec<PartRelation>, DocumentError> {
    let Some(bytes) = archive.read(&relations_part(part))? else { return Ok(Vec::new()) };
    let text = decode(bytes)?;
    let mut reader = XmlReader::new(&text);
    let mut relations = Vec::new();
    while let Some(event) = reader.next()? {
        let XmlEvent::Open(element) = event else { continue };
        if element.name() != "Relationship" {
            continue;
        }
        let (Some(id), Some(kind), Some(target)) =
            (element.attribute("Id"), element.attribute("Type"), element.attribute("Target"))
        else {
            continue;
        };
        // External targets are links, not parts.
        if element.attribute("TargetMode").is_some_and(|mode| mode == "External") {
            continue;
        }
        let kind = kind.rsplit('/').next().unwrap_or_default().to_owned();
        relations.push(PartRelation { id, kind, target: resolve(part, &target) });
    }
    Ok(relations)
}

/// Returns the main part of the package, such as `word/document.xml`.
pub(super) fn main_part(archive: &mut OfficeArchive<'_>) -> Result<Option<String>, DocumentError> {
    let relations = relations(archive, "")?;
    Ok(relations.into_iter().find(|relation| relation.kind == "officeDocument").map(|relation| relation.target))
}

/// Adds a part with its content type and a relation from `from`. Returns the id of the relation.
pub(super) fn add_part(
    archive: &mut OfficeArchive<'_>,
    from: &str,
    part: NewPart<'_>,
) -> Result<String, DocumentError> {
    let types = decode(archive.require(CONTENT_TYPES)?)?;
    let mut splices = TextSplices::default();
    let end = end_tag(&types, "Types")?;
    splices
        .insert(end, format!("<Override PartName=\"/{}\" ContentType=\"{}\"/>", escape(part.name), part.content_type));
    archive.write(CONTENT_TYPES, splices.apply(&types)?);
    archive.write(part.name, part.contents);
    let name = relations_part(from);
    let text = match archive.read(&name)? {
        Some(bytes) => decode(bytes)?,
        None => "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"yes\"?>\n<Relationships xmlns=\"http://schemas.openxmlformats.org/package/2006/relationships\"></Relationships>".to_owned(),
    };
    // External relations have ids too, so that the text is searched.
    let is_free = |id: &String| !text.contains(&format!("\"{id}\"")) && !text.contains(&format!("'{id}'"));
    let id = (1..).map(|number| format!("rId{number}")).find(is_free).unwrap_or_default();
    let relation =
        format!("<Relationship Id=\"{id}\" Type=\"{OFFICE}/{}\" Target=\"/{}\"/>", part.kind, escape(part.name));
    let mut splices = TextSplices::default();
    splices.insert(end_tag(&text, "Relationships")?, relation);
    archive.write(&name, splices.apply(&text)?);
    Ok(id)
}

/// A part to add.
pub(super) struct NewPart<'a> {
    pub(super) name: &'a str,
    pub(super) content_type: &'a str,
    /// The last word of the relation's type.
    pub(super) kind: &'a str,
    pub(super) contents: Vec<u8>,
}

/// Removes a part with its content type and the relation from `from`.
pub(super) fn remove_part(archive: &mut OfficeArchive<'_>, from: &str, part: &str) -> Result<(), DocumentError> {
    archive.remove(part);
    for (name, element_name, attribute) in
        [(CONTENT_TYPES.to_owned(), "Override", "PartName"), (relations_part(from), "Relationship", "Target")]
    {
        let Some(bytes) = archive.read(&name)? else { continue };
        let text = decode(bytes)?;
        let mut splices = TextSplices::default();
        let mut reader = XmlReader::new(&text);
        while let Some(event) = reader.next()? {
            let XmlEvent::Open(element) = event else { continue };
            let value = element.attribute(attribute).unwrap_or_default();
            if element.name() == element_name && resolve(if attribute == "Target" { from } else { "" }, &value) == part
            {
                let start = element.span.start;
                let end = reader.skip(&element)?;
                splices.replace(start..end, "");
            }
        }
        if !splices.is_empty() {
            archive.write(&name, splices.apply(&text)?);
        }
    }
    Ok(())
}

/// Returns where the end tag of the root element starts. Fails for an empty root.
pub(super) fn end_tag(text: &str, root: &str) -> Result<usize, DocumentError> {
    let mut reader = XmlReader::new(text);
    let mut end = None;
    while let Some(event) = reader.next()? {
        if let XmlEvent::Close(close) = event
            && close.name() == root
        {
            end = Some(close.span).filter(|span| !span.is_empty());
        }
    }
    end.map(|span| span.start).ok_or_else(|| DocumentError::damage(format!("a part has no element `{root}`")))
}

fn relations_part(part: &str) -> String {
    let (folder, name) = part.rsplit_once('/').unwrap_or(("", part));
    if folder.is_empty() { format!("_rels/{name}.rels") } else { format!("{folder}/_rels/{name}.rels") }
}

/// Resolves a target relative to the folder of a part. The result cannot leave the archive.
fn resolve(part: &str, target: &str) -> String {
    let folder = part.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut names: Vec<&str> = Vec::new();
    if !target.starts_with('/') {
        names.extend(folder.split('/').filter(|name| !name.is_empty()));
    }
    for name in target.split('/') {
        match name {
            "" | "." => {}
            ".." => _ = names.pop(),
            name => names.push(name),
        }
    }
    names.join("/")
}
