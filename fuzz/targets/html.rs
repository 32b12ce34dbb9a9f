//! Pages to Markdown: any text gives a page.

use skein::services::builtin::fetch::page_to_markdown;

use super::text_of;

const MAX_PAGE: usize = 5_000_000;

pub(super) fn run(data: &[u8]) {
    let html = text_of(data);
    let page = page_to_markdown(html);
    // Marks and addresses add to the text: each link may repeat the address of the page. But a page does not explode.
    let most = 4096 + html.len() * (64 + html.len());
    assert!(page.len() <= most.min(MAX_PAGE), "{} bytes from {}", page.len(), html.len());
    assert_eq!(page, page_to_markdown(html));
}
