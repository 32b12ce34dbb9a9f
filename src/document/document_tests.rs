//! Round trips, unchanged parts, hostile files, and every format through the public functions.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::archive::OfficeArchive;
use super::*;

fn read(bytes: &[u8], name: &str, request: ReadRequest) -> Result<String, DocumentError> {
    read_document(bytes, name, &request).map(|content| content.text)
}

fn text_of(bytes: &[u8], name: &str) -> String {
    read(bytes, name, ReadRequest::default()).expect("a readable document")
}

fn workbook(sheets: Value) -> Vec<u8> {
    let sheets: Vec<SheetSpec> = serde_json::from_value(sheets).expect("sheets");
    write_document("a.xlsx", None, Some(&sheets)).expect("a workbook")
}

fn document(blocks: Value) -> Vec<u8> {
    let blocks: Vec<TextBlock> = serde_json::from_value(blocks).expect("blocks");
    write_document("a.docx", Some(&blocks), None).expect("a document")
}

fn update(bytes: &[u8], name: &str, edits: Value) -> Result<Vec<u8>, DocumentError> {
    let edits: Vec<DocumentEdit> = serde_json::from_value(edits).expect("edits");
    update_document(bytes, name, &edits).map(|(bytes, _)| bytes)
}

fn archive(parts: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = OfficeArchive::empty();
    for (name, text) in parts {
        archive.write(name, *text);
    }
    archive.finish().expect("an archive")
}

/// The stored bytes of each entry.
fn stored_parts(bytes: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut archive = OfficeArchive::new(bytes).expect("an archive");
    let names: Vec<String> = archive.names().map(str::to_owned).collect();
    names.into_iter().map(|name| (name.clone(), archive.read(&name).expect("a part").expect("a part"))).collect()
}

fn relations_to(part: &str) -> String {
    format!(
        "<Relationships xmlns=\"http://schemas.openxmlformats.org/package/2006/relationships\"><Relationship Id=\"rId1\" \
         Type=\"http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument\" Target=\"{part}\"/></Relationships>"
    )
}

/// A PDF file with one content stream per page and the standard font Helvetica as F1.
pub(super) fn pdf(pages: &[&str]) -> Vec<u8> {
    let mut objects = vec!["<</Type/Catalog/Pages 2 0 R>>".to_owned()];
    let kids: Vec<String> = (0..pages.len()).map(|index| format!("{} 0 R", 4 + index * 2)).collect();
    objects.push(format!("<</Type/Pages/Count {}/Kids[{}]>>", pages.len(), kids.join(" ")));
    objects.push("<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>".to_owned());
    for (index, content) in pages.iter().enumerate() {
        objects.push(format!(
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Resources<</Font<</F1 3 0 R>>>>/Contents {} 0 R>>",
            5 + index * 2
        ));
        objects.push(format!("<</Length {}>>\nstream\n{content}\nendstream", content.len()));
    }
    let mut file = b"%PDF-1.4\n".to_vec();
    let mut offsets = Vec::new();
    for (index, object) in objects.iter().enumerate() {
        offsets.push(file.len());
        file.extend(format!("{} 0 obj\n{object}\nendobj\n", index + 1).bytes());
    }
    let start = file.len();
    file.extend(format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1).bytes());
    for offset in offsets {
        file.extend(format!("{offset:010} 00000 n \n").bytes());
    }
    file.extend(format!("trailer\n<</Size {}/Root 1 0 R>>\nstartxref\n{start}\n%%EOF", objects.len() + 1).bytes());
    file
}

#[test]
fn a_workbook_has_values_dates_and_formulas() {
    let bytes = workbook(json!([
        {"name": "Sales", "rows": [
            [{"value": "Item", "bold": true}, {"value": "Price", "bold": true, "fill": "#FFEE88"}, "When"],
            ["Apple | red", 1.5, {"value": "2026-01-31", "format": "yyyy-mm-dd"}],
            ["Pear", {"value": 0.25, "format": "0%"}, true],
            ["Sum", "=SUM(B2:B3)", null],
        ]},
        {"name": "Notes & more", "rows": [["'=not a formula"]]},
    ]));
    assert_eq!(
        text_of(&bytes, "a.xlsx"),
        "## Sales (A1:C4, 11 cells, 1 formulas)\n\
         | | A | B | C |\n\
         | --- | --- | --- | --- |\n\
         | 1 | Item | Price | When |\n\
         | 2 | Apple \\| red | 1.5 | 2026-01-31 |\n\
         | 3 | Pear | 25% | TRUE |\n\
         | 4 | Sum |  |  |\n\n\
         ## Notes & more (A1:A1, 1 cells, 0 formulas)\n\
         | | A |\n\
         | --- | --- |\n\
         | 1 | =not a formula |\n"
    );
    let formulas = ReadRequest { what: DocumentView::Formulas, sheet: Some("sales".into()), ..Default::default() };
    assert!(read(&bytes, "a.xlsx", formulas).expect("formulas").contains("| 4 | =SUM(B2:B3) |"));
    let search = ReadRequest { search: Some("PEAR".into()), ..Default::default() };
    assert!(read(&bytes, "a.xlsx", search).expect("hits").contains("\nA3: Pear\n"));
    let range = ReadRequest { range: Some("B2:B3".into()), sheet: Some("Sales".into()), ..Default::default() };
    assert!(
        read(&bytes, "a.xlsx", range).expect("cells").ends_with("| | B |\n| --- | --- |\n| 2 | 1.5 |\n| 3 | 25% |\n")
    );
    let missing = ReadRequest { sheet: Some("Sail".into()), ..Default::default() };
    let error = read(&bytes, "a.xlsx", missing).expect_err("no such sheet").to_string();
    assert_eq!(error, "there is no sheet `Sail`; the sheets are `Sales`, `Notes & more`");
}

#[test]
fn cells_change_and_the_rest_of_a_workbook_stays() {
    let old = workbook(json!([
        {"name": "One", "rows": [["a", {"value": 2, "bold": true}], [null, "c"]]},
        {"name": "Two", "rows": [["x"]]},
    ]));
    let new = update(
        &old,
        "a.xlsx",
        json!([
            {"sheet": "One", "at": "B1", "rows": [[3], [null], [{"value": "new", "italic": true}]]},
            {"sheet": "Three", "create": true, "rows": [["=One!B1*2"]]},
        ]),
    )
    .expect("an update");
    let text = text_of(&new, "a.xlsx");
    assert!(text.contains("| 1 | a | 3 |\n| 3 |  | new |"), "{text}");
    assert!(text.contains("## Three (A1:A1, 1 cells, 1 formulas)"), "{text}");
    let (old, new) = (stored_parts(&old), stored_parts(&new));
    assert_eq!(old["xl/worksheets/sheet2.xml"], new["xl/worksheets/sheet2.xml"]);
    assert_eq!(old["_rels/.rels"], new["_rels/.rels"]);
    let sheet = String::from_utf8(new["xl/worksheets/sheet1.xml"].clone()).expect("text");
    assert!(sheet.contains("<c r=\"B1\" s=\"1\"><v>3</v></c>"), "the style of the cell stays: {sheet}");
    assert!(String::from_utf8(new["xl/workbook.xml"].clone()).expect("text").contains("fullCalcOnLoad"));
}

#[test]
fn a_shared_formula_is_shown_and_protected() {
    let sheet = "<worksheet xmlns=\"http://schemas.openxmlformats.org/spreadsheetml/2006/main\"><sheetData>\
                 <row><c><v>1</v></c><c><f t=\"shared\" ref=\"B1:B2\" si=\"0\">A1*2</f><v>2</v></c></row>\
                 <row><c><v>2</v></c><c><f t=\"shared\" si=\"0\"/><v>4</v></c></row></sheetData></worksheet>";
    let mut parts = stored_parts(&workbook(json!([{"name": "S", "rows": [[1]]}])));
    parts.insert("xl/worksheets/sheet1.xml".into(), sheet.into());
    let parts: Vec<(String, String)> =
        parts.into_iter().map(|(name, bytes)| (name, String::from_utf8(bytes).expect("text"))).collect();
    let bytes = archive(&parts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect::<Vec<_>>());
    let request = ReadRequest { what: DocumentView::Formulas, ..Default::default() };
    assert!(read(&bytes, "a.xlsx", request).expect("formulas").contains("| 2 | =A2*2 → 4 |"));
    let error = update(&bytes, "a.xlsx", json!([{"at": "B1", "rows": [[7]]}])).expect_err("it is shared").to_string();
    assert_eq!(error, "`B1` holds the formula that the cells B1:B2 share; write all of them in one edit");
    let new = update(&bytes, "a.xlsx", json!([{"at": "B1", "rows": [[7], [8]]}])).expect("all of them");
    assert!(text_of(&new, "a.xlsx").contains("| 2 | 2 | 8 |"));
}

#[test]
fn wrong_cells_and_sheets_are_named() {
    let bytes = workbook(json!([{"name": "S", "rows": [[1]]}, {"name": "T", "rows": [[1]]}]));
    for (edits, expected) in [
        (json!([{"rows": [[1]]}]), "`sheet` is one of S, T"),
        (json!([{"sheet": "S", "at": "2B", "rows": [[1]]}]), "`at` is `2B`; write one cell, such as `B2`"),
        (
            json!([{"sheet": "S", "at": "A2", "rows": [[1, [2]]]}]),
            "cell B2: a cell is text, a number, true, false, null, or an object with `value`",
        ),
        (
            json!([{"sheet": "S", "rows": [[{"value": 1, "color": 2}]]}]),
            "cell A1: `color` is no property of a cell; use value, bold, italic, fill and format",
        ),
        (json!([{"sheet": "s", "create": true}]), "there is a sheet `s` already"),
        (
            json!([{"sheet": "a/b", "create": true}]),
            "`a/b` is no name of a sheet: it has 1 to 31 characters, and none of [ ] : * ? / \\",
        ),
        (
            json!([{"append": []}]),
            "`append`, `before`, `after` and `all` are for DOCX; for a workbook give `sheet`, `at` and `rows`",
        ),
        (json!([]), "`edits` is empty"),
    ] {
        assert_eq!(update(&bytes, "a.xlsx", edits).expect_err("a wrong edit").to_string(), expected);
    }
}

#[test]
fn a_text_document_has_styles_lists_and_tables() {
    let bytes = document(json!([
        {"text": "Report", "style": "title"},
        {"text": "Plan & aims", "style": "heading1"},
        {"text": "Some **bold** and *italic* text, 2 * 3 = 6"},
        {"text": "one", "style": "bullet"},
        {"text": "first", "style": "number"},
        {"text": "second", "style": "number"},
        {"table": [["Name", "Age"], ["Ada", "36"]]},
        {"text": "if x:\n\tgo(**y)", "style": "code"},
    ]));
    assert_eq!(
        text_of(&bytes, "a.docx"),
        "# Report\n\n# Plan & aims\n\nSome bold and italic text, 2 * 3 = 6\n\n- one\n1. first\n1. second\n\n\
         | Name | Age |\n| --- | --- |\n| Ada | 36 |\n\nif x:\n\tgo(**y)\n"
    );
    let outline = ReadRequest { what: DocumentView::Outline, ..Default::default() };
    let outline = read(&bytes, "a.docx", outline).expect("an outline");
    assert_eq!(outline, "# Report\n\n# Plan & aims\n\n(8 paragraphs, 2 headings)\n");
}

#[test]
fn text_is_replaced_across_runs_and_the_rest_stays() {
    let old = document(json!([
        {"text": "Dear **Ms** Smith, the *price* is 5 euros."},
        {"text": "The price is fixed."},
    ]));
    let new = update(
        &old,
        "a.docx",
        json!([
            {"before": "Ms Smith, the price", "after": "Ada & Bob, the cost"},
            {"append": [{"text": "Bye", "style": "heading2"}, {"text": "x", "style": "bullet"}]},
        ]),
    )
    .expect("an update");
    assert_eq!(
        text_of(&new, "a.docx"),
        "Dear Ada & Bob, the cost is 5 euros.\n\nThe price is fixed.\n\n## Bye\n\n- x\n"
    );
    let (old_parts, new_parts) = (stored_parts(&old), stored_parts(&new));
    assert_eq!(old_parts["_rels/.rels"], new_parts["_rels/.rels"]);
    let only_text = update(&old, "a.docx", json!([{"before": "fixed", "after": "open"}])).expect("an update");
    for (name, part) in stored_parts(&only_text) {
        assert_eq!(part == old_parts[&name], name != "word/document.xml", "{name}");
    }
    let error = update(&old, "a.docx", json!([{"before": "price", "after": "x"}])).expect_err("two").to_string();
    assert_eq!(error, "\"price\" occurs 2 times, in the paragraphs 1, 2; give more text, or set `all: true`");
    let all = update(&old, "a.docx", json!([{"before": "price", "after": "x", "all": true}])).expect("both");
    assert!(text_of(&all, "a.docx").contains("the x is 5") && text_of(&all, "a.docx").contains("The x is fixed"));
    let error = update(&old, "a.docx", json!([{"before": "nowhere", "after": "x"}])).expect_err("none").to_string();
    assert!(error.starts_with("no paragraph of the document's body contains \"nowhere\""), "{error}");
}

#[test]
fn tracked_changes_text_boxes_and_footnotes_are_read_once() {
    let xml = "<w:document xmlns:w=\"http://schemas.openxmlformats.org/wordprocessingml/2006/main\" xmlns:mc=\"m\"><w:body>\
        <w:p><w:del><w:r><w:delText>gone</w:delText></w:r></w:del><w:ins><w:r><w:t>new</w:t></w:r></w:ins></w:p>\
        <w:p><mc:AlternateContent><mc:Choice><w:r><w:t>box</w:t></w:r></mc:Choice><mc:Fallback><w:r><w:t>box</w:t></w:r></mc:Fallback></mc:AlternateContent></w:p>\
        <w:p><w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/><w:t>c</w:t></w:r></w:p></w:body></w:document>";
    let bytes = archive(&[("_rels/.rels", &relations_to("word/document.xml")), ("word/document.xml", xml)]);
    assert_eq!(text_of(&bytes, "a.docx"), "new\n\nbox\n\na\tb\nc\n");
}

#[test]
fn slides_have_titles_text_tables_and_notes() {
    let presentation = "<p:presentation xmlns:p=\"p\" xmlns:r=\"r\"><p:sldIdLst><p:sldId id=\"256\" r:id=\"rId2\"/></p:sldIdLst></p:presentation>";
    let slide = "<p:sld xmlns:p=\"p\" xmlns:a=\"a\"><p:sp><p:nvPr><p:ph type=\"title\"/></p:nvPr><a:p><a:r><a:t>Hello</a:t></a:r></a:p></p:sp>\
        <p:sp><a:p><a:pPr lvl=\"1\"/><a:r><a:t>point</a:t></a:r></a:p></p:sp>\
        <a:tbl><a:tr><a:tc><a:p><a:t>k</a:t></a:p></a:tc><a:tc><a:p><a:t>v</a:t></a:p></a:tc></a:tr></a:tbl></p:sld>";
    let notes = "<p:notes xmlns:p=\"p\" xmlns:a=\"a\"><p:sp><a:p><a:t>say it slowly</a:t></a:p></p:sp></p:notes>";
    let link = |id: &str, kind: &str, target: &str| {
        format!("<Relationships><Relationship Id=\"{id}\" Type=\"x/{kind}\" Target=\"{target}\"/></Relationships>")
    };
    let bytes = archive(&[
        ("_rels/.rels", &relations_to("ppt/presentation.xml")),
        ("ppt/presentation.xml", presentation),
        ("ppt/_rels/presentation.xml.rels", &link("rId2", "slide", "slides/slide1.xml")),
        ("ppt/slides/slide1.xml", slide),
        ("ppt/slides/_rels/slide1.xml.rels", &link("rId1", "notesSlide", "../notesSlides/notes1.xml")),
        ("ppt/notesSlides/notes1.xml", notes),
    ]);
    let expected = "## Slide 1: Hello\n  - point\n\n| k | v |\n| --- | --- |\n\nNotes: say it slowly\n";
    assert_eq!(text_of(&bytes, "a.pptx"), expected);
    let pages = ReadRequest { pages: Some("2".into()), ..Default::default() };
    assert_eq!(read(&bytes, "a.pptx", pages).expect_err("no slide").to_string(), "there is no slide 2; the file has 1");
}

#[test]
fn opendocument_files_have_text_and_cells() {
    let text = "<office:document-content xmlns:office=\"o\" xmlns:text=\"t\" xmlns:table=\"a\"><office:body><office:text>\
        <text:h text:outline-level=\"2\">Head</text:h><text:p>one<text:s text:c=\"2\"/>two<text:line-break/>three</text:p>\
        <text:list><text:list-item><text:p>item</text:p></text:list-item></text:list>\
        <table:table><table:table-row><table:table-cell><text:p>x</text:p></table:table-cell></table:table-row></table:table>\
        </office:text></office:body></office:document-content>";
    let bytes = archive(&[("mimetype", "application/vnd.oasis.opendocument.text"), ("content.xml", text)]);
    assert_eq!(text_of(&bytes, "a.odt"), "## Head\n\none  two\nthree\n\n- item\n\n| x |\n| --- |\n");
    let sheet = "<office:document-content xmlns:office=\"o\" xmlns:text=\"t\" xmlns:table=\"a\"><table:table table:name=\"S\">\
        <table:table-row><table:table-cell table:number-columns-repeated=\"2\"><text:p>v</text:p></table:table-cell>\
        <table:table-cell table:formula=\"of:=SUM([.A1:.B1])\"><text:p>3</text:p></table:table-cell></table:table-row>\
        <table:table-row table:number-rows-repeated=\"1048570\"><table:table-cell table:number-columns-repeated=\"16384\"/></table:table-row>\
        <table:table-row><table:table-cell><text:p>last</text:p></table:table-cell></table:table-row></table:table></office:document-content>";
    let bytes = archive(&[("mimetype", "application/vnd.oasis.opendocument.spreadsheet"), ("content.xml", sheet)]);
    assert_eq!(
        text_of(&bytes, "a.ods"),
        "## S (A1:C1048572, 4 cells, 1 formulas)\n| | A | B | C |\n| --- | --- | --- | --- |\n| 1 | v | v | 3 |\n| 1048572 | last |  |  |\n"
    );
    let formulas = ReadRequest { what: DocumentView::Formulas, ..Default::default() };
    assert!(read(&bytes, "a.ods", formulas).expect("formulas").contains("=SUM(A1:B1) → 3"));
}

#[test]
fn delimited_text_is_a_table() {
    let text = "name;price\r\n\"Smith; John\";\"1\"\"2\"\n\u{e4};3\n";
    let expected = "3 rows, 2 columns, separated by `;`\n| | A | B |\n| --- | --- | --- |\n| 1 | name | price |\n\
                    | 2 | Smith; John | 1\"2 |\n| 3 | ä | 3 |\n";
    assert_eq!(text_of(text.as_bytes(), "a.csv"), expected);
    let (latin, ..) = encoding_rs::WINDOWS_1252.encode(text);
    assert_eq!(text_of(&latin, "a.csv"), expected);
    let utf16: Vec<u8> = [0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect();
    assert_eq!(text_of(&utf16, "a.csv"), expected);
}

#[test]
fn pdf_pages_have_lines_and_tables() {
    let first = "BT /F1 12 Tf 50 800 Td (Hello, w) Tj (orld) Tj 0 -14 Td [(A\\256)-20(B)-800(C)] TJ ET";
    let second = "BT /F1 10 Tf 1 0 0 1 50 700 Tm (Item) Tj 1 0 0 1 200 700 Tm (Price) Tj \
                  1 0 0 1 50 686 Tm (Apple) Tj 1 0 0 1 200 686 Tm (1.20) Tj ET";
    let bytes = pdf(&[first, second]);
    assert_eq!(
        text_of(&bytes, "a.pdf"),
        "## Page 1 of 2\nHello, world\nA®B C\n\n## Page 2 of 2\n| Item | Price |\n| --- | --- |\n| Apple | 1.20 |\n"
    );
    let request = |pages: &str| ReadRequest { pages: Some(pages.into()), ..Default::default() };
    assert!(read(&bytes, "a.pdf", request("2")).expect("a page").starts_with("## Page 2 of 2\n"));
    assert_eq!(
        read(&bytes, "a.pdf", request("7")).expect_err("no page").to_string(),
        "there is no page 7; the file has 2"
    );
    let search = ReadRequest { search: Some("apple".into()), ..Default::default() };
    assert_eq!(read(&bytes, "a.pdf", search).expect("a hit"), "## Page 2 of 2\n| Apple | 1.20 |\n");
    let outline = ReadRequest { what: DocumentView::Outline, ..Default::default() };
    assert_eq!(read(&bytes, "a.pdf", outline).expect("an outline"), "2 pages\n(no bookmarks)\n");
}

#[test]
fn hostile_and_damaged_files_give_clear_errors() {
    let entity = "<!DOCTYPE x [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;\">]><w:document><w:body>&b;</w:body></w:document>";
    let unknown = "<w:document><w:body><w:p><w:r><w:t>&b;</w:t></w:r></w:p></w:body></w:document>";
    let deep = "<a>".repeat(100_000);
    let docx = |xml: &str| archive(&[("_rels/.rels", &relations_to("word/document.xml")), ("word/document.xml", xml)]);
    let good = document(json!([{"text": "x"}]));
    let compound: Vec<u8> = COMPOUND_FILE.into_iter().chain([0; 600]).collect();
    let encrypted: Vec<u8> =
        compound.iter().copied().chain("EncryptedPackage".encode_utf16().flat_map(u16::to_le_bytes)).collect();
    for (bytes, name, expected) in [
        (docx(entity), "a.docx", "the file is damaged: its XML has a document type"),
        (docx(unknown), "a.docx", "the file is damaged: its XML uses the entity `b`, which nothing defines"),
        (docx(&deep), "a.docx", "the file is beyond the limits: its XML is nested more than 256 deep"),
        (good[..good.len() / 2].to_vec(), "a.docx", "the file is damaged: it is not a whole ZIP archive"),
        (archive(&[("x", "y")]), "a.docx", "the file is an archive and no office document"),
        (compound, "a.doc", "the file has a format from before 2007"),
        (encrypted, "a.docx", "the file is encrypted; ask the user for a copy without a password"),
        (b"hello".to_vec(), "a.docx", "the file is damaged: its first bytes are not those of its format"),
        (b"%PDF-1.4 nothing".to_vec(), "a.pdf", "the file is damaged: it has no readable pages"),
        (b"a\0b".to_vec(), "a.csv", "the file is binary"),
        (Vec::new(), "a.xyz", "the file is no PDF, DOCX, XLSX, PPTX, ODT, ODS or CSV file"),
    ] {
        let error = read(&bytes, name, ReadRequest::default()).expect_err(expected).to_string();
        assert!(error.starts_with(expected), "expected {expected:?}, got {error:?}");
    }
}

#[test]
fn a_flipped_bit_in_a_part_is_noticed() {
    let mut bytes = document(json!([{"text": "some text that is long enough to be deflated, deflated, deflated"}]));
    let at = bytes.windows(17).position(|window| window == b"word/document.xml").expect("the part") + 60;
    bytes[at] ^= 0x10;
    let error = read(&bytes, "a.docx", ReadRequest::default()).expect_err("damage").to_string();
    assert!(error.starts_with("the file is damaged: "), "{error}");
}

#[test]
fn many_pages_are_cut_and_ranges_still_work() {
    let pages = vec!["BT /F1 12 Tf 50 800 Td (x) Tj ET"; 6_000];
    let bytes = pdf(&pages);
    let text = text_of(&bytes, "a.pdf");
    assert!(text.contains("[stopped after 5000 pages; read others with `pages`]"), "{}", &text[text.len() - 200..]);
    let last = ReadRequest { pages: Some("6000".into()), ..Default::default() };
    assert_eq!(read(&bytes, "a.pdf", last).expect("the last page"), "## Page 6000 of 6000\nx\n");
}

fn cell() -> impl Strategy<Value = Value> {
    prop_oneof![
        "[a-zA-Z<>&\"'äß€_x0-9 |\\\\]{1,12}[a-z]".prop_map(Value::from),
        Just(Value::from("_x0041_ a\u{1}b")),
        any::<i32>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
    ]
}

/// The text that a cell shows.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(value) => value.to_string().to_uppercase(),
        Value::String(text) => text.trim().replace('|', "\\|"),
        value => value.to_string(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn cells_survive_a_round_trip(rows in prop::collection::vec(prop::collection::vec(cell(), 1..5), 1..6),
                                  changes in prop::collection::vec((0usize..8, 0usize..6, cell()), 0..10)) {
        let mut expected: BTreeMap<(usize, usize), String> = BTreeMap::new();
        for (row, cells) in rows.iter().enumerate() {
            for (column, cell) in cells.iter().enumerate() {
                expected.insert((row, column), shown(cell));
            }
        }
        let mut bytes = workbook(json!([{"name": "S", "rows": rows}, {"name": "T", "rows": [["same"]]}]));
        let other = stored_parts(&bytes)["xl/worksheets/sheet2.xml"].clone();
        for (row, column, cell) in &changes {
            let at = super::cells::cell_name(*row, *column);
            bytes = update(&bytes, "a.xlsx", json!([{"sheet": "S", "at": at, "rows": [[cell]]}])).expect("a change");
            expected.insert((*row, *column), shown(cell));
        }
        prop_assert_eq!(&stored_parts(&bytes)["xl/worksheets/sheet2.xml"], &other);
        for ((row, column), text) in expected {
            let range = Some(super::cells::cell_name(row, column));
            let request = ReadRequest { sheet: Some("S".into()), range, ..Default::default() };
            let got = read(&bytes, "a.xlsx", request).expect("a cell");
            let last = got.lines().last().unwrap_or_default();
            if text.is_empty() {
                prop_assert_eq!(last, "(no cells)");
            } else {
                prop_assert_eq!(last, format!("| {} | {text} |", row + 1));
            }
        }
    }

    #[test]
    fn paragraphs_survive_a_round_trip(texts in prop::collection::vec("[a-zA-Z<>&\"'äß€0-9 ]{0,20}[a-z]", 1..6), after in "[<>&a-z ]{0,8}") {
        let blocks: Vec<Value> = texts.iter().map(|text| json!({"text": format!("{text} END")})).collect();
        let bytes = document(Value::from(blocks));
        let lines: Vec<String> = texts.iter().map(|text| format!("{text} END")).collect();
        prop_assert_eq!(text_of(&bytes, "a.docx"), format!("{}\n", lines.join("\n\n")));
        let new = update(&bytes, "a.docx", json!([{"before": " END", "after": format!("{after}."), "all": true}])).expect("a change");
        let lines: Vec<String> = texts.iter().map(|text| format!("{text}{after}.")).collect();
        prop_assert_eq!(text_of(&new, "a.docx"), format!("{}\n", lines.join("\n\n")));
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), kind in 0usize..4) {
        let start: &[u8] = [&b"%PDF-1.7\n"[..], b"PK\x03\x04", b"", &COMPOUND_FILE][kind];
        let bytes: Vec<u8> = start.iter().copied().chain(bytes).collect();
        for what in [DocumentView::Text, DocumentView::Outline, DocumentView::Images, DocumentView::Formulas] {
            drop(read(&bytes, "a.csv", ReadRequest { what, ..Default::default() }));
        }
    }

    #[test]
    fn changed_bytes_of_real_files_never_panic(kind in 0usize..3, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20)) {
        let mut bytes = match kind {
            0 => document(json!([{"text": "a", "style": "heading1"}, {"table": [["b"]]}])),
            1 => workbook(json!([{"name": "S", "rows": [[1, "=A1", "text"]]}])),
            _ => pdf(&["BT /F1 12 Tf 50 800 Td (Hello) Tj ET"]),
        };
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        drop(read(&bytes, "a", ReadRequest::default()));
        drop(update(&bytes, "a", json!([{"append": [{"text": "x"}]}])));
        drop(update(&bytes, "a", json!([{"rows": [[1]]}])));
    }

    #[test]
    fn any_xml_never_panics(body in "(<[wacpt:]{0,3}(p|t|r|row|c|v|f|tbl|tc|body|sectPr|sheetData)( [rs]=\"[A-Z0-9]{0,8}\")?/?>|</?(w:)?(p|t|body|row|c)>|[a-z&;]{0,4}){0,20}") {
        for part in ["word/document.xml", "xl/workbook.xml", "ppt/presentation.xml"] {
            let bytes = archive(&[("_rels/.rels", &relations_to(part)), (part, &body), ("[Content_Types].xml", &body)]);
            drop(read(&bytes, "a", ReadRequest::default()));
            drop(update(&bytes, "a", json!([{"append": [{"text": "x", "style": "bullet"}]}, {"before": "a", "after": "b"}])));
            drop(update(&bytes, "a", json!([{"rows": [[1]]}])));
        }
    }

    #[test]
    fn any_page_content_never_panics(content in "((BT|ET|q|Q|Tj|TJ|Td|Tm|Tf|'|\"|cm|Do) |[0-9.-]{1,6} |\\([a-z]{0,5}\\) |/F1 |\\[|\\]){0,60}") {
        drop(read(&pdf(&[&content]), "a.pdf", ReadRequest::default()));
    }
}
