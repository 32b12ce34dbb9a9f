//! Writes new workbooks.

use super::edit::{check_name, place_cells};
use super::sheet_xml::cell_xml;
use super::styles::{CellStyle, STYLES, StyleBook};
use crate::document::archive::OfficeArchive;
use crate::document::error::DocumentError;
use crate::document::request::SheetSpec;
use crate::document::xml::escape;

const DECLARATION: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"yes\"?>\n";
const MAIN: &str = "http://schemas.openxmlformats.org/spreadsheetml/2006/main";
const OFFICE: &str = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";
const PACKAGE: &str = "http://schemas.openxmlformats.org/package/2006";
const SPREADSHEET: &str = "application/vnd.openxmlformats-officedocument.spreadsheetml";

/// Returns a new workbook with these sheets.
pub(in crate::document) fn write(sheets: &[SheetSpec]) -> Result<Vec<u8>, DocumentError> {
    if sheets.is_empty() {
        return Err(DocumentError::request("a workbook has at least one sheet: give `sheets`"));
    }
    let mut archive = OfficeArchive::empty();
    let mut styles = StyleBook::read(STYLES.to_owned())?;
    let (mut list, mut links, mut types) = (String::new(), String::new(), String::new());
    let mut parts = Vec::new();
    for (index, sheet) in sheets.iter().enumerate() {
        let number = index + 1;
        check_name(&sheet.name, sheets[..index].iter().map(|sheet| sheet.name.as_str()))?;
        list.push_str(&format!("<sheet name=\"{}\" sheetId=\"{number}\" r:id=\"rId{number}\"/>", escape(&sheet.name)));
        links.push_str(&format!(
            "<Relationship Id=\"rId{number}\" Type=\"{OFFICE}/worksheet\" Target=\"worksheets/sheet{number}.xml\"/>"
        ));
        types.push_str(&format!(
            "<Override PartName=\"/xl/worksheets/sheet{number}.xml\" ContentType=\"{SPREADSHEET}.worksheet+xml\"/>"
        ));
        parts.push((format!("xl/worksheets/sheet{number}.xml"), sheet_part(sheet, &mut styles)?));
    }
    let styles_id = sheets.len() + 1;
    archive.write(
        "[Content_Types].xml",
        format!(
            "{DECLARATION}<Types xmlns=\"{PACKAGE}/content-types\">\
             <Default Extension=\"rels\" ContentType=\"application/vnd.openxmlformats-package.relationships+xml\"/>\
             <Default Extension=\"xml\" ContentType=\"application/xml\"/>\
             <Override PartName=\"/xl/workbook.xml\" ContentType=\"{SPREADSHEET}.sheet.main+xml\"/>\
             <Override PartName=\"/xl/styles.xml\" ContentType=\"{SPREADSHEET}.styles+xml\"/>{types}</Types>"
        ),
    );
    archive.write(
        "_rels/.rels",
        format!(
            "{DECLARATION}<Relationships xmlns=\"{PACKAGE}/relationships\"><Relationship Id=\"rId1\" \
             Type=\"{OFFICE}/officeDocument\" Target=\"xl/workbook.xml\"/></Relationships>"
        ),
    );
    archive.write(
        "xl/workbook.xml",
        format!(
            "{DECLARATION}<workbook xmlns=\"{MAIN}\" xmlns:r=\"{OFFICE}\"><sheets>{list}</sheets>\
             <calcPr fullCalcOnLoad=\"1\"/></workbook>"
        ),
    );
    archive.write(
        "xl/_rels/workbook.xml.rels",
        format!(
            "{DECLARATION}<Relationships xmlns=\"{PACKAGE}/relationships\">{links}<Relationship Id=\"rId{styles_id}\" \
             Type=\"{OFFICE}/styles\" Target=\"styles.xml\"/></Relationships>"
        ),
    );
    archive.write("xl/styles.xml", styles.finish()?.unwrap_or_else(|| STYLES.to_owned()));
    for (name, part) in parts {
        archive.write(&name, part);
    }
    archive.finish()
}

fn sheet_part(sheet: &SheetSpec, styles: &mut StyleBook) -> Result<String, DocumentError> {
    let mut rows = String::new();
    let mut current: Option<usize> = None;
    for ((row, column), input) in place_cells(&sheet.rows, (0, 0))? {
        let style = if input.style == CellStyle::default() { None } else { Some(styles.style(0, &input.style)?) };
        if current != Some(row) {
            if current.is_some() {
                rows.push_str("</row>");
            }
            rows.push_str(&format!("<row r=\"{}\">", row + 1));
            current = Some(row);
        }
        rows.push_str(&cell_xml("", row, column, &input.content, style));
    }
    if current.is_some() {
        rows.push_str("</row>");
    }
    Ok(format!("{DECLARATION}<worksheet xmlns=\"{MAIN}\"><sheetData>{rows}</sheetData></worksheet>"))
}
