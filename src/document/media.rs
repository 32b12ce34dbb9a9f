//! Finds the images inside office archives.

use super::archive::OfficeArchive;
use super::error::DocumentError;
use super::request::{DocumentContent, DocumentImage};

/// The most images and bytes of images that one call returns.
pub(super) const MAX_IMAGES: usize = 20;
pub(super) const MAX_IMAGE_BYTES: usize = 16 << 20;

/// Returns the images below a folder of the archive. Formats that models cannot see are only listed.
pub(super) fn read(archive: &mut OfficeArchive<'_>, folder: &str) -> Result<DocumentContent, DocumentError> {
    let names: Vec<String> = archive.names().filter(|name| name.starts_with(folder)).map(str::to_owned).collect();
    let mut content = DocumentContent::default();
    let mut total = 0;
    for name in &names {
        let Some(bytes) = archive.read(name)? else { continue };
        let short = name.rsplit('/').next().unwrap_or(name);
        let size = bytes.len();
        let Some(mime) = image_type(&bytes) else {
            content.text.push_str(&format!("{short}: {size} bytes, not an image that can be shown\n"));
            continue;
        };
        if content.images.len() >= MAX_IMAGES || total + size > MAX_IMAGE_BYTES {
            content.text.push_str(&format!("{short}: {mime}, {size} bytes, left out because of the limit\n"));
            continue;
        }
        total += size;
        content.text.push_str(&format!("{short}: {mime}, {size} bytes\n"));
        content.images.push(DocumentImage { name: short.to_owned(), mime: mime.to_owned(), bytes });
    }
    if names.is_empty() {
        content.text.push_str("the document has no images\n");
    }
    Ok(content)
}

/// Returns the type of an image by its first bytes. `None` for other formats.
pub(super) fn image_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}
