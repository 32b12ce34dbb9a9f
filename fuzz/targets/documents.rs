//! Office documents, PDF and CSV: any bytes give text within its limits or an error. Text that starts with `--- ` has
//! the parts of an office file, each after a line with its name, so that mutations do not only break the archive.

use skein::document::{DocumentView, ReadRequest, TableRequest, read_document, read_table};

const MAX_TEXT: usize = 5 << 20;
const MAX_IMAGES: usize = 20;
/// Begins a line with the name of a part.
const MARK: &[u8] = b"--- ";

pub(super) fn run(data: &[u8]) {
    let packed;
    let bytes: &[u8] = if data.starts_with(MARK) {
        packed = archive(data);
        &packed
    } else {
        data
    };
    for what in [DocumentView::Text, DocumentView::Outline, DocumentView::Formulas, DocumentView::Images] {
        if let Ok(content) = read_document(bytes, "a.csv", &ReadRequest { what, ..ReadRequest::default() }) {
            assert!(content.text.len() <= MAX_TEXT, "{} bytes of text", content.text.len());
            assert!(content.images.len() <= MAX_IMAGES, "{} images", content.images.len());
        }
    }
    if let Ok(rows) = read_table(bytes, "a.xlsx", &TableRequest::default()) {
        assert!(rows.windows(2).all(|pair| pair[0].len() == pair[1].len()), "rows have equal length");
    }
}

/// Returns an archive of the parts, not compressed.
fn archive(data: &[u8]) -> Vec<u8> {
    let mut parts: Vec<(&[u8], Vec<u8>)> = Vec::new();
    for line in data.split_inclusive(|byte| *byte == b'\n') {
        if let Some(name) = line.strip_prefix(MARK) {
            parts.push((name.trim_ascii_end(), Vec::new()));
        } else if let Some((_, content)) = parts.last_mut() {
            content.extend_from_slice(line);
        }
    }
    let (mut archive, mut list): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
    for (name, content) in &parts {
        let offset = length(&archive);
        let mut sum = flate2::Crc::new();
        sum.update(content);
        let mut head: Vec<u8> = Vec::new();
        // Version, flags, method and time, then sum, sizes and the lengths of the name and of more fields.
        head.extend([20, 0, 0, 0, 0, 0, 0, 0, 0x21, 0]);
        for word in [sum.sum(), length(content), length(content)] {
            head.extend(word.to_le_bytes());
        }
        head.extend(u16::try_from(name.len()).unwrap_or(u16::MAX).to_le_bytes());
        head.extend([0, 0]);
        archive.extend([&b"PK\x03\x04"[..], &head, name, content].concat());
        list.extend([&b"PK\x01\x02\x14\x00"[..], &head, &[0_u8; 10], &offset.to_le_bytes(), name].concat());
    }
    let count = u16::try_from(parts.len()).unwrap_or(u16::MAX).to_le_bytes();
    let (size, offset) = (length(&list).to_le_bytes(), length(&archive).to_le_bytes());
    archive.extend([&list[..], b"PK\x05\x06\0\0\0\0", &count, &count, &size, &offset, &[0_u8, 0]].concat());
    archive
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}
