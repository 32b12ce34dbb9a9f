//! Images in text documents: what is added, what stays, and what is refused.

use proptest::prelude::*;

use super::archive::OfficeArchive;
use super::*;

fn png(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
    bytes.extend(width.to_be_bytes());
    bytes.extend(height.to_be_bytes());
    bytes.extend(b"pixels");
    bytes
}

fn image(bytes: Vec<u8>, caption: Option<&str>) -> TextBlock {
    let text = caption.map(str::to_owned);
    TextBlock { text, image_file: Some("plot.png".into()), image_bytes: Some(bytes), ..TextBlock::default() }
}

fn text(text: &str) -> TextBlock {
    TextBlock { text: Some(text.into()), ..TextBlock::default() }
}

fn append(bytes: &[u8], blocks: Vec<TextBlock>) -> Result<Vec<u8>, DocumentError> {
    let edit = DocumentEdit { append: Some(blocks), ..DocumentEdit::default() };
    update_document(bytes, "a.docx", &[edit]).map(|(bytes, _)| bytes)
}

fn part(bytes: &[u8], name: &str) -> Option<Vec<u8>> {
    OfficeArchive::new(bytes).expect("an archive").read(name).expect("a part")
}

fn xml(bytes: &[u8], name: &str) -> String {
    String::from_utf8(part(bytes, name).expect("a part")).expect("text")
}

#[test]
fn an_image_is_a_part_and_a_drawing_with_its_caption() {
    let blocks = [text("before"), image(png(40, 20), Some("Figure 1: <sales> & \"costs\"")), text("after")];
    let bytes = write_document("a.docx", Some(&blocks), None).expect("a document");
    assert_eq!(part(&bytes, "word/media/image1.png"), Some(png(40, 20)));
    let shown = read_document(&bytes, "a.docx", &ReadRequest::default()).expect("text").text;
    let label = "Figure 1: <sales> & \"costs\"";
    assert_eq!(shown, format!("before\n\n[image: {label}]\n\n{label}\n\nafter\n"));
    let document = xml(&bytes, "word/document.xml");
    assert!(document.contains("<wp:extent cx=\"381000\" cy=\"190500\"/>"), "{document}");
    assert!(document.contains("<w:pStyle w:val=\"Caption\"/>"), "{document}");
    let types = xml(&bytes, "[Content_Types].xml");
    assert!(types.contains("PartName=\"/word/media/image1.png\" ContentType=\"image/png\""), "{types}");
    let images = ReadRequest { what: DocumentView::Images, ..ReadRequest::default() };
    let images = read_document(&bytes, "a.docx", &images).expect("images").images;
    assert_eq!(images.iter().map(|image| image.bytes.clone()).collect::<Vec<_>>(), [png(40, 20)]);
}

#[test]
fn more_images_get_other_names_and_ids_and_the_rest_stays() {
    let first = write_document("a.docx", Some(&[image(png(1, 1), None)]), None).expect("a document");
    let second = append(&first, vec![image(png(2, 2), None), image(png(3, 3), Some("third"))]).expect("updated");
    for (name, bytes) in [("image1", png(1, 1)), ("image2", png(2, 2)), ("image3", png(3, 3))] {
        assert_eq!(part(&second, &format!("word/media/{name}.png")), Some(bytes), "{name}");
    }
    let (before, after) = (xml(&first, "word/document.xml"), xml(&second, "word/document.xml"));
    for id in 1..=3 {
        assert_eq!(after.matches(&format!("<wp:docPr id=\"{id}\"")).count(), 1, "{after}");
        assert_eq!(xml(&second, "word/_rels/document.xml.rels").matches(&format!("image{id}.png")).count(), 1);
    }
    let (start, end) = before.split_at(before.find("<w:sectPr").expect("a section"));
    assert!(after.starts_with(start) && after.ends_with(end), "only the new blocks are between: {after}");
    assert_eq!(part(&first, "_rels/.rels"), part(&second, "_rels/.rels"));
}

#[test]
fn wrong_images_are_named() {
    let bytes = write_document("a.docx", Some(&[text("x")]), None).expect("a document");
    let table = Some(vec![vec!["a".to_owned()]]);
    for (block, problem) in [
        (image(b"text".to_vec(), None), "block 1: `plot.png`: the file is no PNG, JPEG or GIF image"),
        (image(b"\x89PNG".to_vec(), None), "block 1: `plot.png`: the image is damaged"),
        (TextBlock { width: Some(90.0), ..image(png(1, 1), None) }, "`width` is between 0.5 and 50 cm"),
        (TextBlock { width: Some(9.0), ..text("x") }, "`width` is for an image"),
        (TextBlock { style: Some(BlockStyle::Code), ..image(png(1, 1), None) }, "`style` is for text"),
        (TextBlock { table, ..image(png(1, 1), None) }, "or an `image_file` with its caption in `text`"),
        (TextBlock { image_bytes: None, ..image(Vec::new(), None) }, "its bytes are missing"),
    ] {
        let error = append(&bytes, vec![block]).expect_err(problem).to_string();
        assert!(error.contains(problem), "{error}");
    }
}

proptest! {
    /// Whatever images and captions are appended, the images come back unchanged and the old text stays.
    #[test]
    fn images_survive_a_round_trip(
        images in prop::collection::vec((1u32..2000, 1u32..2000, "[a-z<>&\"']{0,12}"), 1..5)
    ) {
        let bytes = write_document("a.docx", Some(&[text("kept")]), None).expect("a document");
        let blocks = images.iter().map(|(width, height, caption)| image(png(*width, *height), Some(caption)));
        let bytes = append(&bytes, blocks.collect()).expect("updated");
        let wanted = ReadRequest { what: DocumentView::Images, ..ReadRequest::default() };
        let found = read_document(&bytes, "a.docx", &wanted).expect("images").images;
        let found: Vec<_> = found.into_iter().map(|image| image.bytes).collect();
        prop_assert_eq!(found, images.iter().map(|(width, height, _)| png(*width, *height)).collect::<Vec<_>>());
        let shown = read_document(&bytes, "a.docx", &ReadRequest::default()).expect("text").text;
        prop_assert!(shown.starts_with("kept\n"), "{}", shown);
        prop_assert_eq!(shown.matches("[image").count(), images.len());
    }
}
