//! Writes new text documents.

use super::blocks::WORD;
use super::edit::append;
use super::styles::EMPTY_STYLES;
use crate::document::archive::OfficeArchive;
use crate::document::error::DocumentError;
use crate::document::relations::{NewPart, add_part};
use crate::document::request::TextBlock;

const DECLARATION: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"yes\"?>\n";
const OFFICE: &str = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";
const PACKAGE: &str = "http://schemas.openxmlformats.org/package/2006";
const DOCUMENT: &str = "word/document.xml";

/// Returns a new document with these blocks.
pub(in crate::document) fn write(blocks: &[TextBlock]) -> Result<Vec<u8>, DocumentError> {
    if blocks.is_empty() {
        return Err(DocumentError::request("a text document has at least one block: give `blocks`"));
    }
    let mut archive = OfficeArchive::empty();
    archive.write(
        "[Content_Types].xml",
        format!(
            "{DECLARATION}<Types xmlns=\"{PACKAGE}/content-types\">\
             <Default Extension=\"rels\" ContentType=\"application/vnd.openxmlformats-package.relationships+xml\"/>\
             <Default Extension=\"xml\" ContentType=\"application/xml\"/>\
             <Override PartName=\"/word/document.xml\" ContentType=\"application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml\"/>\
             </Types>"
        ),
    );
    archive.write(
        "_rels/.rels",
        format!(
            "{DECLARATION}<Relationships xmlns=\"{PACKAGE}/relationships\"><Relationship Id=\"rId1\" \
             Type=\"{OFFICE}/officeDocument\" Target=\"word/document.xml\"/></Relationships>"
        ),
    );
    archive.write(
        DOCUMENT,
        format!(
            "{DECLARATION}<w:document xmlns:w=\"{WORD}\"><w:body><w:sectPr><w:pgSz w:w=\"11906\" w:h=\"16838\"/>\
             <w:pgMar w:top=\"1134\" w:right=\"1134\" w:bottom=\"1134\" w:left=\"1134\" w:header=\"709\" \
             w:footer=\"709\" w:gutter=\"0\"/></w:sectPr></w:body></w:document>"
        ),
    );
    let content_type = "application/vnd.openxmlformats-officedocument.wordprocessingml.styles+xml";
    let styles = NewPart { name: "word/styles.xml", content_type, kind: "styles", contents: EMPTY_STYLES.into() };
    add_part(&mut archive, DOCUMENT, styles)?;
    append(&mut archive, DOCUMENT, blocks)?;
    archive.finish()
}
