//! Documents through the service: the real program parses them in its sandbox. LibreOffice reads what Skein writes, and
//! Skein reads what LibreOffice writes.

#![expect(clippy::disallowed_methods, reason = "a test starts other programs and waits for them")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use skein::broker::{BindRequest, Binding};
use skein::document::{
    DocumentEdit, DocumentView, ReadRequest, SheetSpec, TableRequest, TextBlock, read_document, read_table,
    update_document, write_document,
};
use skein::manifest::{ApprovalLevel, Layer, Root};
use skein::runtime::Runtime;
use skein::sandbox::LayerRestriction;
use skein::services::{BuiltinRegistry, PoolOptions};
use skein::tool::ask::NoAsker;
use skein::tool::{CallContext, SessionContext, ToolOutcome};
use tempfile::TempDir;

use crate::support::{full_tests, launcher};

/// A session with the tools of `computercontroller`.
struct Desk {
    runtime: Runtime,
    binding: Binding,
    session: Arc<SessionContext>,
    folder: TempDir,
}

impl Desk {
    async fn new(restriction: LayerRestriction) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("project")).unwrap();
        let agent = json!({
            "version": 1, "kind": "agent", "name": "clerk", "description": "Works with documents.",
            "runtime": {"acp": {"command": "none"}}, "metadata": {"dependencies": ["computercontroller", "autovisualiser"]},
            "modes": [{
                "slug": "desk", "description": "x", "tool_groups": ["document", "visualise"],
                "dependencies": ["computercontroller", "autovisualiser"],
            }],
        });
        let files = [("clerk.json".into(), agent.to_string().into_bytes())].into();
        let extra = (Layer::Extra, Root::Snapshot { files, shown: String::new() });
        let (manifests, found) = skein::manifest::load(&[(Layer::Builtin, Root::Builtin), extra]);
        let plan = skein::graph::resolve(manifests, found).plan.expect("the manifests are right");
        let sandbox = Some(launcher(folder.path(), restriction));
        let options = PoolOptions { data: folder.path().join("data"), sandbox, ..PoolOptions::default() };
        let runtime = Runtime::start(Arc::new(plan), BuiltinRegistry::builtin(), options, None);
        let scratch = folder.path().join("scratch");
        let session = SessionContext::new("s1", folder.path().join("project"), Vec::new(), scratch);
        let request = BindRequest {
            session: Arc::clone(&session),
            approval: Some(ApprovalLevel::Auto),
            asker: Arc::new(NoAsker),
            client_services: Vec::new(),
        };
        let binding = runtime.broker().bind(&"clerk/desk".parse().unwrap(), request).await.expect("it starts");
        Self { runtime, binding, session, folder }
    }

    async fn call(&self, tool: &str, arguments: Value) -> ToolOutcome {
        self.call_tool(&format!("computercontroller__{tool}"), arguments).await
    }

    async fn call_tool(&self, tool: &str, arguments: Value) -> ToolOutcome {
        let context = CallContext::new(Arc::clone(&self.session));
        let arguments = arguments.as_object().cloned().unwrap();
        self.binding.call(tool, arguments, context).await.expect("an answer")
    }

    async fn text(&self, tool: &str, arguments: Value) -> String {
        let outcome = self.call(tool, arguments).await;
        assert!(!outcome.is_error, "{}", outcome.all_text());
        outcome.all_text()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("project").join(name)
    }

    async fn end(self) {
        drop(self.binding);
        self.runtime.stop().await;
    }
}

fn restrictions() -> [LayerRestriction; 2] {
    let none = LayerRestriction { no_namespaces: true, landlock_version: Some(0), ..LayerRestriction::default() };
    [LayerRestriction::default(), none]
}

#[tokio::test]
async fn documents_are_written_changed_and_read() {
    for restriction in restrictions() {
        let desk = Desk::new(restriction).await;
        let sheets = json!([{"name": "Data", "rows": [["a", 1], ["b", 2]]}]);
        let text = desk.text("write_document", json!({"path": "new/data.xlsx", "sheets": sheets})).await;
        assert!(text.starts_with("wrote `new/data.xlsx` ("), "{text}");
        let edits = json!([{"at": "B2", "rows": [[20], ["=SUM(B1:B2)"]]}, {"sheet": "More", "create": true}]);
        let text = desk.text("update_document", json!({"path": "new/data.xlsx", "edits": edits})).await;
        assert_eq!(text, "updated `new/data.xlsx`: Data: 2 cells from B2; More: new sheet, 0 cells from A1");
        let text = desk.text("read_document", json!({"path": "new/data.xlsx", "sheet": "Data"})).await;
        assert!(text.starts_with("new/data.xlsx, sheet Data [d1]\nUntrusted data up to the line [end "), "{text}");
        assert!(text.contains("| 2 | b | 20 |"), "{text}");
        let cached = desk.text("list_cache", json!({})).await;
        assert!(cached.starts_with("d1  new/data.xlsx, sheet Data (5 lines, "), "{cached}");
        let refused = desk.call("read_document", json!({"path": "new/data.xlsx", "sheet": "Dada"})).await;
        assert_eq!(refused.all_text(), "there is no sheet `Dada`; the sheets are `Data`, `More`");
        desk.end().await;
    }
}

#[tokio::test]
async fn a_picture_is_drawn_from_a_workbook() {
    for restriction in restrictions() {
        let desk = Desk::new(restriction).await;
        let rows = json!([["Month", "Sales"], ["Jan", 3], ["Feb", "=B2+2"], ["Mar", 4.5]]);
        let sheets = json!([{"name": "Notes", "rows": [["text"]]}, {"name": "Data", "rows": rows}]);
        desk.text("write_document", json!({"path": "data.xlsx", "sheets": sheets})).await;
        let draw = json!({"kind": "bar", "file": "data.xlsx", "sheet": "Data", "range": "A1:B2"});
        let outcome = desk.call_tool("autovisualiser__draw", draw).await;
        assert!(!outcome.is_error, "{}", outcome.all_text());
        assert_eq!(outcome.structured.unwrap()["data"], json!([{"Month": "Jan", "Sales": 3}]));
        let wrong = json!({"kind": "bar", "file": "data.xlsx", "sheet": "Dada"});
        let wrong = desk.call_tool("autovisualiser__draw", wrong).await.all_text();
        assert_eq!(wrong, "`data.xlsx`: there is no sheet `Dada`; the sheets are `Notes`, `Data`");
        std::fs::write(desk.path("bad.xlsx"), b"PK\x03\x04 not an archive").unwrap();
        let bad = desk.call_tool("autovisualiser__draw", json!({"kind": "bar", "file": "bad.xlsx"})).await.all_text();
        assert!(bad.starts_with("`bad.xlsx`: the file is damaged"), "{bad}");
        desk.end().await;
    }
}

/// An image of 8 times 4 pixels.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAECAIAAAA8r+mnAAAAEUlEQVR42mNQSDiAFTFQTwIAvM0oAdPssEsAAAAASUVORK5CYII=";

fn png() -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(PNG).unwrap()
}

#[tokio::test]
async fn an_image_of_the_workspace_is_inserted() {
    let desk = Desk::new(LayerRestriction::default()).await;
    std::fs::create_dir(desk.path("img")).unwrap();
    std::fs::write(desk.path("img/plot.png"), png()).unwrap();
    std::fs::write(desk.path("img/text.png"), "text").unwrap();
    desk.text("write_document", json!({"path": "a.docx", "blocks": [{"text": "Report", "style": "title"}]})).await;
    let image = json!({"image_file": "img/plot.png", "text": "Figure 1", "width": 4});
    desk.text("update_document", json!({"path": "a.docx", "edits": [{"append": [image, {"text": "End"}]}]})).await;
    let text = desk.text("read_document", json!({"path": "a.docx"})).await;
    assert!(text.contains("# Report\n\n[image: Figure 1]\n\nFigure 1\n\nEnd\n"), "{text}");
    let images = desk.call("read_document", json!({"path": "a.docx", "what": "images"})).await;
    assert!(images.all_text().contains("image1.png: image/png"), "{}", images.all_text());
    let before = std::fs::read(desk.path("a.docx")).unwrap();
    for (file, problem) in [
        ("img/text.png", "block 1: `img/text.png`: the file is no PNG, JPEG or GIF image; convert it to PNG"),
        ("img/none.png", "could not read `img/none.png`"),
        ("/etc/hostname", "is outside of what this session may reach"),
    ] {
        let edits = json!([{"append": [{"image_file": file}]}]);
        let refused = desk.call("update_document", json!({"path": "a.docx", "edits": edits})).await;
        assert!(refused.is_error && refused.all_text().contains(problem), "{}", refused.all_text());
    }
    assert_eq!(std::fs::read(desk.path("a.docx")).unwrap(), before, "a failed call changes nothing");
    desk.end().await;
}

#[tokio::test]
async fn a_hostile_file_stops_only_its_parser() {
    let desk = Desk::new(LayerRestriction::default()).await;
    // A tree of pages in which each level has the next one a hundred times: 10^20 pages.
    let mut file = b"%PDF-1.4\n1 0 obj\n<</Type/Catalog/Pages 2 0 R>>\nendobj\n".to_vec();
    for level in 2..12 {
        let kids = format!("{} 0 R ", level + 1).repeat(100);
        file.extend(format!("{level} 0 obj\n<</Type/Pages/Count 1/Kids[{kids}]>>\nendobj\n").bytes());
    }
    file.extend(b"12 0 obj\n<</Type/Page/MediaBox[0 0 9 9]>>\nendobj\ntrailer\n<</Root 1 0 R/Size 13>>\n%%EOF");
    std::fs::write(desk.path("pages.pdf"), file).unwrap();
    let refused = desk.call("read_document", json!({"path": "pages.pdf"})).await;
    let text = refused.all_text();
    assert!(refused.is_error && text.starts_with("the parser was stopped ("), "{text}");
    assert!(text.contains("needs more than 1024 MiB of memory or 60 s"), "{text}");
    std::fs::write(desk.path("a.csv"), "x,y\n1,2\n").unwrap();
    assert!(desk.text("read_document", json!({"path": "a.csv"})).await.contains("| 2 | 1 | 2 |"));
    desk.end().await;
}

/// Without a sandbox, the parser still takes nothing but its stdin.
#[test]
fn the_parser_refuses_what_is_no_job() {
    let child = Command::new(env!("CARGO_BIN_EXE_skein"))
        .arg("document-parser")
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .expect("the program");
    assert_eq!((child.status.code(), child.stdout, child.stderr), (Some(1), Vec::new(), Vec::new()));
}

/// Converts a file with LibreOffice. Returns the new file.
fn convert(file: &Path, ending: &str) -> PathBuf {
    let folder = file.parent().unwrap();
    let profile = format!("-env:UserInstallation=file://{}/office", folder.display());
    let target = folder.join("converted");
    let run = Command::new("soffice")
        .args([profile.as_str(), "--headless", "--convert-to", ending, "--outdir"])
        .arg(&target)
        .arg(file)
        .output()
        .expect("soffice, which scripts/bootstrap installs");
    let name = Path::new(file.file_name().unwrap()).with_extension(ending.split(':').next().unwrap());
    let converted = target.join(name);
    assert!(converted.exists(), "{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    converted
}

fn read(file: &Path, request: &ReadRequest) -> String {
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    read_document(&std::fs::read(file).unwrap(), &name, request).expect("a readable file").text
}

#[test]
fn libreoffice_reads_what_skein_writes() {
    if !full_tests() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let sheets: Vec<SheetSpec> = serde_json::from_value(json!([{"name": "S & T", "rows": [
        [{"value": "Item", "bold": true, "fill": "FFEE88"}, "Price <x>"],
        ["Äpfel, \"rot\"", 1.5],
        [{"value": "2026-01-31", "format": "yyyy-mm-dd"}, {"value": 0.25, "format": "0%"}],
        ["Double", "=B2*2"], [true, "_x0041_"],
    ]}]))
    .unwrap();
    let bytes = write_document("a.xlsx", None, Some(&sheets)).unwrap();
    let edits: Vec<DocumentEdit> = serde_json::from_value(json!([
        {"at": "B2", "rows": [[2.5]]}, {"at": "D7", "rows": [[{"value": "far", "italic": true}]]},
    ]))
    .unwrap();
    let (bytes, _) = update_document(&bytes, "a.xlsx", &edits).unwrap();
    let file = folder.path().join("a.xlsx");
    std::fs::write(&file, bytes).unwrap();
    let csv = std::fs::read_to_string(convert(&file, "csv:Text - txt - csv (StarCalc):44,34,76")).unwrap();
    assert_eq!(
        csv,
        "Item,Price <x>,,\n\"Äpfel, \"\"rot\"\"\",2.5,,\n2026-01-31,25%,,\nDouble,5,,\nTRUE,_x0041_,,\n,,,\n,,,far\n"
    );
    let blocks: Vec<TextBlock> = serde_json::from_value(json!([
        {"text": "Plan & aims", "style": "heading1"}, {"text": "Some **bold** text"},
        {"text": "one", "style": "number"}, {"text": "two", "style": "number"},
        {"table": [["Name", "Age"], ["Ada", "36"]]},
    ]))
    .unwrap();
    let bytes = write_document("b.docx", Some(&blocks), None).unwrap();
    let edits: Vec<DocumentEdit> = serde_json::from_value(json!([
        {"before": "Some bold text", "after": "New text"}, {"append": [{"text": "dot", "style": "bullet"}]},
    ]))
    .unwrap();
    let (bytes, _) = update_document(&bytes, "b.docx", &edits).unwrap();
    let file = folder.path().join("b.docx");
    std::fs::write(&file, bytes).unwrap();
    let text = std::fs::read_to_string(convert(&file, "txt:Text (encoded):UTF8")).unwrap();
    let lines: Vec<&str> =
        text.trim_start_matches('\u{feff}').lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(lines, ["Plan & aims", "New text", "1. one", "2. two", "Name", "Age", "Ada", "36", "• dot"]);
}

/// Returns a length of LibreOffice in cm. The unit depends on the locale.
fn centimetres(length: &str) -> Option<f64> {
    match length.strip_suffix("in") {
        Some(inches) => inches.parse::<f64>().ok().map(|inches| inches * 2.54),
        None => length.strip_suffix("cm")?.parse().ok(),
    }
}

/// LibreOffice shows the image in its size, and writes it back.
#[test]
fn libreoffice_reads_images() {
    if !full_tests() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let caption = Some("Figure 1".to_owned());
    let image = TextBlock {
        text: caption,
        image_file: Some("plot.png".into()),
        image_bytes: Some(png()),
        width: Some(4.0),
        ..TextBlock::default()
    };
    let first =
        write_document("a.docx", Some(&[TextBlock { text: Some("Start".into()), ..TextBlock::default() }]), None);
    let edit = DocumentEdit { append: Some(vec![image]), ..DocumentEdit::default() };
    let (bytes, _) = update_document(&first.unwrap(), "a.docx", &[edit]).unwrap();
    let file = folder.path().join("a.docx");
    std::fs::write(&file, bytes).unwrap();
    let flat = std::fs::read_to_string(convert(&file, "fodt")).unwrap();
    for (side, expected) in [("svg:width=\"", 4.0), ("svg:height=\"", 2.0)] {
        let lengths: Vec<f64> =
            flat.split(side).skip(1).filter_map(|rest| centimetres(rest.split('"').next()?)).collect();
        assert!(lengths.iter().any(|length| (length - expected).abs() < 0.05), "{side}: {lengths:?}");
    }
    let odt = convert(&file, "odt:writer8");
    let images = ReadRequest { what: DocumentView::Images, ..ReadRequest::default() };
    let found = read_document(&std::fs::read(odt).unwrap(), "a.odt", &images).unwrap().images;
    assert_eq!(found.iter().map(|image| image.bytes.clone()).collect::<Vec<_>>(), [png()]);
}

#[test]
fn skein_reads_what_libreoffice_writes() {
    if !full_tests() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let text = ReadRequest::default();
    let csv = folder.path().join("data.csv");
    std::fs::write(&csv, "Item,Price\nApple,1.2\nPear,13\nSum,=B2+B3\n").unwrap();
    let table = "| 1 | Item | Price |\n| 2 | Apple | 1.2 |\n| 3 | Pear | 13 |\n| 4 | Sum | 14.2 |\n";
    for ending in ["xlsx", "ods"] {
        let file = convert(&csv, ending);
        assert!(read(&file, &text).ends_with(table), "{ending}: {}", read(&file, &text));
        let formulas = ReadRequest { what: DocumentView::Formulas, ..ReadRequest::default() };
        assert!(read(&file, &formulas).contains("=B2+B3 → 14.2"), "{ending}: {}", read(&file, &formulas));
        let name = format!("data.{ending}");
        let rows = read_table(&std::fs::read(&file).unwrap(), &name, &TableRequest::default()).unwrap();
        assert_eq!(rows, [["Item", "Price"], ["Apple", "1.2"], ["Pear", "13"], ["Sum", "14.2"]], "{ending}");
    }
    let pdf = read(&convert(&csv, "pdf"), &text);
    assert!(pdf.contains("| Item | Price |\n| --- | --- |\n| Apple | 1.2 |\n| Pear | 13 |"), "{pdf}");
    let html = folder.path().join("page.html");
    std::fs::write(
        &html,
        "<meta charset=utf-8><h1>Größe</h1><p>First <b>bold</b> text.</p><ul><li>one<li>two</ul>\
         <table border=1><tr><td>k<td>v</table><h2>End</h2>",
    )
    .unwrap();
    for ending in ["docx:MS Word 2007 XML", "odt:writer8"] {
        let file = convert(&html, ending);
        let shown = read(&file, &text);
        // LibreOffice writes the first heading of a page as a paragraph in ODT.
        let body = shown.trim_start_matches("# ");
        assert!(body.starts_with("Größe\n\nFirst bold text.\n\n- one\n- two\n"), "{ending}: {shown}");
        assert!(shown.contains("| k | v |\n") && shown.ends_with("## End\n"), "{ending}: {shown}");
    }
    let pdf = read(&convert(&convert(&html, "docx:MS Word 2007 XML"), "pdf"), &text);
    assert!(pdf.contains("Größe\n") && pdf.contains("First bold text.\n"), "{pdf}");
}

/// Files of Debian's packages, written by other programs.
#[test]
fn real_files_have_their_text() {
    if !full_tests() {
        return;
    }
    let text = ReadRequest::default();
    let library = Path::new("/usr/lib/libreoffice");
    let shown = read(&library.join("program/opencl/cl-test.ods"), &text);
    assert!(shown.starts_with("## OpenCLTest (A1:I30, 137 cells, 79 formulas)\n"), "{shown}");
    assert!(read(&library.join("share/template/common/internal/idxexample.odt"), &text).contains("# HEADING1\n"));
    let shown = read(&library.join("share/xpdfimport/xpdfimport_err.pdf"), &text);
    assert!(shown.contains("This PDF file is encrypted and can't be opened."), "{shown}");
}
