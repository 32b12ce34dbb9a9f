//! The arguments of the document tools. Their comments are the descriptions that a model gets.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::document::{DocumentEdit, DocumentView, SheetSpec, TextBlock};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadDocument {
    /// PDF, DOCX, XLSX, PPTX, ODT, ODS, CSV or TSV file
    #[schemars(length(min = 1))]
    pub(super) path: String,
    /// Default: text
    pub(super) what: Option<DocumentView>,
    /// PDF pages or slides, such as 3 or 2-5
    #[schemars(length(max = 200))]
    pub(super) pages: Option<String>,
    /// Only this sheet
    #[schemars(length(max = 255))]
    pub(super) sheet: Option<String>,
    /// Cells, such as B2:D20 or C:D
    #[schemars(length(max = 40))]
    pub(super) range: Option<String>,
    /// Only lines and cells with this text
    #[schemars(length(max = 1000))]
    pub(super) search: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteDocument {
    /// New .docx or .xlsx file
    #[schemars(length(min = 1))]
    pub(super) path: String,
    /// DOCX: paragraphs, tables and images
    #[schemars(length(max = 10000))]
    pub(super) blocks: Option<Vec<TextBlock>>,
    /// XLSX: sheets in order
    #[schemars(length(max = 255))]
    pub(super) sheets: Option<Vec<SheetSpec>>,
    /// Replace an existing file
    #[serde(default)]
    pub(super) overwrite: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UpdateDocument {
    /// Existing .docx or .xlsx file
    #[schemars(length(min = 1))]
    pub(super) path: String,
    /// Applied in order, all or none
    #[schemars(length(min = 1))]
    pub(super) edits: Vec<DocumentEdit>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadCache {
    /// From list_cache or read_document, such as d1
    #[schemars(length(min = 1))]
    pub(super) id: String,
    /// First line
    #[schemars(range(min = 1))]
    pub(super) line: Option<usize>,
    /// Number of lines
    #[schemars(range(min = 1, max = 2000))]
    pub(super) limit: Option<usize>,
}
