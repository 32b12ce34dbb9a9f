//! Pages to Markdown: any text gives a page.

#![no_main]

libfuzzer_sys::fuzz_target!(|html: &str| {
    let page = skein::services::builtin::fetch::page_to_markdown(html);
    // Marks and addresses add to the text, but a page does not explode.
    assert!(page.len() <= 64 * html.len() + 4096, "{} bytes from {}", page.len(), html.len());
});
