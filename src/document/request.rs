//! What a caller asks of a document, and what it gets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The part of a document that a caller wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline, description = "")]
pub enum DocumentView {
    #[default]
    Text,
    Outline,
    Formulas,
    Images,
}

/// What to read of a document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReadRequest {
    pub what: DocumentView,
    /// Pages or slides: `3`, `2-5`, `1,4-6`.
    pub pages: Option<String>,
    pub sheet: Option<String>,
    /// Cells: `B2:D20`, `B2`, `C:D` or `3:9`.
    pub range: Option<String>,
    /// Only lines, paragraphs or cells with this text.
    pub search: Option<String>,
}

/// The table to read of a workbook.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableRequest {
    /// `None`: the first sheet with cells that is not hidden.
    pub sheet: Option<String>,
    /// Cells: `B2:D20` or `C:D`. `None`: all.
    pub range: Option<String>,
}

/// What a document says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DocumentContent {
    pub text: String,
    pub images: Vec<DocumentImage>,
}

/// An image of a document, as it is stored or as PNG.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentImage {
    pub name: String,
    pub mime: String,
    pub bytes: Vec<u8>,
}

/// A paragraph or table of a text document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct TextBlock {
    /// One paragraph, or the caption of an image; **bold** and *italic* work
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Default: normal
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub style: Option<BlockStyle>,
    /// A table instead of text; the first row is its head
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10000))]
    pub table: Option<Vec<Vec<String>>>,
    /// PNG, JPEG or GIF file to insert
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub image_file: Option<String>,
    /// Width of the image in cm; default: its own, within the page
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.5, max = 50))]
    pub width: Option<f64>,
    /// The bytes of `image_file`, which the caller reads.
    #[serde(skip)]
    pub image_bytes: Option<Vec<u8>>,
}

/// The style of a paragraph.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline, description = "")]
pub enum BlockStyle {
    #[default]
    Normal,
    Title,
    Heading1,
    Heading2,
    Heading3,
    Bullet,
    Number,
    Quote,
    Code,
    Caption,
}

/// A sheet of a new workbook.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct SheetSpec {
    /// Sheet name, at most 31 characters
    #[schemars(length(min = 1))]
    pub name: String,
    /// Rows of cells: text, number, true/false, null, "=SUM(A1:A3)", or {"value", "bold", "italic", "fill", "format"}
    #[schemars(length(max = 1048576))]
    pub rows: Vec<Vec<Value>>,
}

/// One change of a document. Text documents use `append`, or `before` and `after`; workbooks use `sheet`, `at` and
/// `rows`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct DocumentEdit {
    /// DOCX: blocks to add at the end
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10000))]
    pub append: Option<Vec<TextBlock>>,
    /// DOCX: text to replace, within one paragraph
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// DOCX: its replacement
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// DOCX: replace every occurrence
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// XLSX: sheet name
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub sheet: Option<String>,
    /// XLSX: add this sheet
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub create: bool,
    /// XLSX: top left cell, default A1
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20))]
    pub at: Option<String>,
    /// XLSX: rows as in write_document; null clears a cell
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1048576))]
    pub rows: Option<Vec<Vec<Value>>>,
}
