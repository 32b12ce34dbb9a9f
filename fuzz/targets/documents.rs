//! Office documents and PDF: any bytes give text or an error. The first byte chooses the format.

#![no_main]

use skein::document::{ReadRequest, read_document};

const NAMES: [&str; 6] = ["a.docx", "a.xlsx", "a.pptx", "a.pdf", "a.csv", "a"];

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((first, bytes)) = data.split_first() else { return };
    let name = NAMES[usize::from(*first) % NAMES.len()];
    drop(read_document(bytes, name, &ReadRequest::default()));
});
