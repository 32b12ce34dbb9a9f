//! Reads office documents and PDF files as text, and writes and changes DOCX and XLSX files.
//!
//! The formats share an archive, an XML reader and a renderer. Everything is bytes in and bytes or text out.
//!
//! Invariant: nothing here opens a file or a connection, and every size has a limit.

mod archive;
mod cells;
mod csv;
mod docx;
mod error;
mod media;
mod odf;
mod pdf;
mod pptx;
mod relations;
mod render;
mod request;
mod xlsx;
mod xml;

#[cfg(test)]
mod image_tests;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
#[path = "document/document_tests.rs"]
mod tests;

use archive::OfficeArchive;
pub use error::DocumentError;
pub use request::{
    BlockStyle, DocumentContent, DocumentEdit, DocumentImage, DocumentView, ReadRequest, SheetSpec, TableRequest,
    TextBlock,
};

/// The kind of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DocumentFormat {
    Pdf,
    Docx,
    Xlsx,
    Pptx,
    Odt,
    Ods,
    Csv,
}

/// The first bytes of the formats before 2007, and of encrypted newer ones.
const COMPOUND_FILE: [u8; 8] = [0xd0, 0xcf, 0x11, 0xe0, 0xa1, 0xb1, 0x1a, 0xe1];

/// Returns the content of a document. `name` is its file name, which decides for plain text.
pub fn read_document(bytes: &[u8], name: &str, request: &ReadRequest) -> Result<DocumentContent, DocumentError> {
    match find_format(bytes, name)? {
        DocumentFormat::Pdf => pdf::read(bytes, request),
        DocumentFormat::Csv => csv::read(bytes, request),
        format @ (DocumentFormat::Docx
        | DocumentFormat::Xlsx
        | DocumentFormat::Pptx
        | DocumentFormat::Odt
        | DocumentFormat::Ods) => {
            let mut archive = OfficeArchive::new(bytes)?;
            match format {
                DocumentFormat::Xlsx => xlsx::read(&mut archive, request),
                DocumentFormat::Pptx => pptx::read(&mut archive, request),
                DocumentFormat::Odt => odf::read_text(&mut archive, request),
                DocumentFormat::Ods => odf::read_sheets(&mut archive, request),
                _ => docx::read(&mut archive, request),
            }
        }
    }
}

/// Returns the rows of a workbook's sheet, each cell as people see it. The rows have equal length; empty ones are left
/// out. Fails if the document is no XLSX or ODS file.
pub fn read_table(bytes: &[u8], name: &str, request: &TableRequest) -> Result<Vec<Vec<String>>, DocumentError> {
    match find_format(bytes, name)? {
        DocumentFormat::Xlsx => xlsx::read_rows(&mut OfficeArchive::new(bytes)?, request),
        DocumentFormat::Ods => odf::read_rows(&mut OfficeArchive::new(bytes)?, request),
        _ => Err(DocumentError::no_support("the file is no XLSX or ODS file")),
    }
}

/// Returns a new document. The ending of `name` says which kind.
pub fn write_document(
    name: &str,
    blocks: Option<&[TextBlock]>,
    sheets: Option<&[SheetSpec]>,
) -> Result<Vec<u8>, DocumentError> {
    match (extension(name).as_str(), blocks, sheets) {
        ("docx", Some(blocks), None) => docx::write(blocks),
        ("xlsx", None, Some(sheets)) => xlsx::write(sheets),
        ("docx", ..) => Err(DocumentError::request("a DOCX file is made of `blocks` and has no `sheets`")),
        ("xlsx", ..) => Err(DocumentError::request("an XLSX file is made of `sheets` and has no `blocks`")),
        _ => Err(DocumentError::no_support("only .docx and .xlsx files can be written; choose one of these endings")),
    }
}

/// Applies edits to a DOCX or XLSX file, all or none. Returns the new file and one line about each edit.
pub fn update_document(
    bytes: &[u8],
    name: &str,
    edits: &[DocumentEdit],
) -> Result<(Vec<u8>, Vec<String>), DocumentError> {
    if edits.is_empty() {
        return Err(DocumentError::request("`edits` is empty"));
    }
    let format = find_format(bytes, name)?;
    if !matches!(format, DocumentFormat::Docx | DocumentFormat::Xlsx) {
        return Err(DocumentError::no_support("only DOCX and XLSX files can be changed"));
    }
    let mut archive = OfficeArchive::new(bytes)?;
    let lines = match format {
        DocumentFormat::Xlsx => xlsx::update(&mut archive, edits)?,
        _ => docx::update(&mut archive, edits)?,
    };
    Ok((archive.finish()?, lines))
}

/// Finds the kind of a document by its contents; plain text by its name.
fn find_format(bytes: &[u8], name: &str) -> Result<DocumentFormat, DocumentError> {
    let start = &bytes[..bytes.len().min(1024)];
    if start.windows(5).any(|window| window == b"%PDF-") {
        return Ok(DocumentFormat::Pdf);
    }
    if start.starts_with(&COMPOUND_FILE) {
        let package: Vec<u8> = "EncryptedPackage".encode_utf16().flat_map(u16::to_le_bytes).collect();
        if bytes.windows(package.len()).any(|window| window == package) {
            return Err(DocumentError::Encrypted);
        }
        return Err(DocumentError::no_support(
            "the file has a format from before 2007; convert it, such as with `soffice --convert-to docx`",
        ));
    }
    if start.starts_with(b"PK") {
        return find_archive_format(bytes);
    }
    match extension(name).as_str() {
        "csv" | "tsv" | "tab" | "txt" => Ok(DocumentFormat::Csv),
        "pdf" | "docx" | "xlsx" | "pptx" | "odt" | "ods" => {
            Err(DocumentError::damage("its first bytes are not those of its format"))
        }
        _ => Err(DocumentError::no_support(
            "the file is no PDF, DOCX, XLSX, PPTX, ODT, ODS or CSV file; use `read_file` of developer for text",
        )),
    }
}

fn find_archive_format(bytes: &[u8]) -> Result<DocumentFormat, DocumentError> {
    let mut archive = OfficeArchive::new(bytes)?;
    if let Some(kind) = archive.read("mimetype")? {
        // Templates and web pages have an ending: `text-template`, `text-web`.
        let family = kind.strip_prefix(b"application/vnd.oasis.opendocument.").unwrap_or_default();
        return match family.split(|byte| *byte == b'-').next() {
            Some(b"text") => Ok(DocumentFormat::Odt),
            Some(b"spreadsheet") => Ok(DocumentFormat::Ods),
            _ => Err(DocumentError::no_support("of the OpenDocument formats, only ODT and ODS can be read")),
        };
    }
    let part = relations::main_part(&mut archive)?.unwrap_or_default();
    match part.split('/').next() {
        Some("word") => Ok(DocumentFormat::Docx),
        Some("xl") => Ok(DocumentFormat::Xlsx),
        Some("ppt") => Ok(DocumentFormat::Pptx),
        _ => Err(DocumentError::no_support("the file is an archive and no office document; unpack it with `shell`")),
    }
}

fn extension(name: &str) -> String {
    name.rsplit_once('.').map_or(String::new(), |(_, ending)| ending.to_lowercase())
}
