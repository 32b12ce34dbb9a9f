//! Inserts images into a text document: the file as a part, and a drawing in its own paragraph.

use super::blocks::{TextRun, WORD};
use crate::document::archive::OfficeArchive;
use crate::document::error::DocumentError;
use crate::document::media::image_type;
use crate::document::relations::{NewPart, add_part};
use crate::document::request::TextBlock;
use crate::document::xml::{XmlEvent, XmlReader, escape};

const DRAWING: &str = "http://schemas.openxmlformats.org/drawingml/2006";
const OFFICE: &str = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";
/// Units of the format.
const PER_CENTIMETRE: f64 = 360_000.0;
const PER_PIXEL: f64 = 9_525.0;
/// The largest image that has no `width`, in cm. It fits on a page with usual margins.
const MAX_WIDTH: f64 = 16.0;
const MAX_HEIGHT: f64 = 22.0;
/// The limits of `width`, in cm.
const WIDTHS: std::ops::RangeInclusive<f64> = 0.5..=50.0;
/// No page of the format is longer, in cm.
const MAX_PAGE: f64 = 55.0;

/// Why an image cannot be inserted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum ImageError {
    #[error("its bytes are missing; give a file of the workspace")]
    NoBytes,
    #[error("the file is no PNG, JPEG or GIF image; convert it to PNG")]
    Format,
    #[error("the image is damaged: it has no size")]
    NoSize,
    #[error("`width` is between 0.5 and 50 cm")]
    Width,
    #[error("the image would be higher than a page; give a smaller `width`")]
    Height,
}

/// An image with its size on the page.
#[derive(Debug, PartialEq)]
pub(super) struct PageImage<'a> {
    bytes: &'a [u8],
    mime: &'static str,
    extension: &'static str,
    /// Width and height in units of the format.
    extent: (u64, u64),
}

impl<'a> PageImage<'a> {
    /// Reads the image of a block. Fails if it is no image, or its size does not fit on a page.
    pub(super) fn of(block: &'a TextBlock) -> Result<Self, ImageError> {
        let bytes = block.image_bytes.as_deref().ok_or(ImageError::NoBytes)?;
        let (mime, extension, size) = match image_type(bytes) {
            Some(mime @ "image/png") => (mime, "png", png_size(bytes)),
            Some(mime @ "image/jpeg") => (mime, "jpeg", jpeg_size(bytes)),
            Some(mime @ "image/gif") => (mime, "gif", gif_size(bytes)),
            Some(_) | None => return Err(ImageError::Format),
        };
        let (width, height) = size.filter(|(width, height)| *width > 0 && *height > 0).ok_or(ImageError::NoSize)?;
        let ratio = f64::from(height) / f64::from(width);
        let centimetres = match block.width {
            Some(width) if !WIDTHS.contains(&width) => return Err(ImageError::Width),
            Some(width) => width,
            None => (f64::from(width) * PER_PIXEL / PER_CENTIMETRE).min(MAX_WIDTH).min(MAX_HEIGHT / ratio),
        };
        if centimetres * ratio > MAX_PAGE {
            return Err(ImageError::Height);
        }
        let units = |length: f64| ((length * PER_CENTIMETRE).round() as u64).max(1);
        Ok(Self { bytes, mime, extension, extent: (units(centimetres), units(centimetres * ratio)) })
    }

    /// Adds the image to the archive. Returns the paragraph that shows it. `caption` is also its description.
    pub(super) fn insert(
        &self,
        archive: &mut OfficeArchive<'_>,
        part: &str,
        caption: &[TextRun],
        next_drawing: &mut u32,
    ) -> Result<String, DocumentError> {
        let names = (1..).map(|number| format!("word/media/image{number}.{}", self.extension));
        let name = names.into_iter().find(|name| !archive.contains(name)).unwrap_or_default();
        let contents = self.bytes.to_vec();
        let relation =
            add_part(archive, part, NewPart { name: &name, content_type: self.mime, kind: "image", contents })?;
        let id = *next_drawing;
        *next_drawing = id.saturating_add(1);
        let (width, height) = self.extent;
        let description: String = caption.iter().map(|run| run.text.as_str()).collect();
        let description = escape(&description.replace(['\n', '\r', '\t'], " "));
        // The caption stays on the page of its image.
        let keep = if caption.is_empty() { "" } else { "<w:pPr><w:keepNext/></w:pPr>" };
        Ok(format!(
            "<w:p xmlns:w=\"{WORD}\">{keep}<w:r><w:drawing>\
             <wp:inline xmlns:wp=\"{DRAWING}/wordprocessingDrawing\" distT=\"0\" distB=\"0\" distL=\"0\" distR=\"0\">\
             <wp:extent cx=\"{width}\" cy=\"{height}\"/><wp:docPr id=\"{id}\" name=\"Image {id}\" descr=\"{description}\"/>\
             <wp:cNvGraphicFramePr><a:graphicFrameLocks xmlns:a=\"{DRAWING}/main\" noChangeAspect=\"1\"/>\
             </wp:cNvGraphicFramePr><a:graphic xmlns:a=\"{DRAWING}/main\"><a:graphicData uri=\"{DRAWING}/picture\">\
             <pic:pic xmlns:pic=\"{DRAWING}/picture\"><pic:nvPicPr><pic:cNvPr id=\"{id}\" name=\"Image {id}\"/>\
             <pic:cNvPicPr/></pic:nvPicPr><pic:blipFill><a:blip xmlns:r=\"{OFFICE}\" r:embed=\"{relation}\"/>\
             <a:stretch><a:fillRect/></a:stretch></pic:blipFill><pic:spPr><a:xfrm><a:off x=\"0\" y=\"0\"/>\
             <a:ext cx=\"{width}\" cy=\"{height}\"/></a:xfrm><a:prstGeom prst=\"rect\"><a:avLst/></a:prstGeom>\
             </pic:spPr></pic:pic></a:graphicData></a:graphic></wp:inline></w:drawing></w:r></w:p>"
        ))
    }
}

/// Returns an id that no drawing of the document has, nor any after it.
pub(super) fn first_free_drawing(text: &str) -> Result<u32, DocumentError> {
    let mut reader = XmlReader::new(text);
    let mut last = 0;
    while let Some(event) = reader.next()? {
        if let XmlEvent::Open(element) = event
            && element.name() == "docPr"
        {
            last = last.max(element.number::<u32>("id").unwrap_or(0));
        }
    }
    // The largest id may be in use.
    Ok(if last < u32::MAX / 2 { last + 1 } else { 1 })
}

fn big_endian(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(length)?)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

/// Returns width and height. The first chunk of a PNG file has them.
fn png_size(bytes: &[u8]) -> Option<(u32, u32)> {
    (bytes.get(12..16)? == b"IHDR").then_some(())?;
    Some((big_endian(bytes, 16, 4)?, big_endian(bytes, 20, 4)?))
}

fn gif_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let half = |at: usize| Some(u32::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)));
    Some((half(6)?, half(8)?))
}

/// Returns width and height from the header of the frame, which follows other segments.
fn jpeg_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    loop {
        let marker = match bytes.get(at..at + 2)? {
            // Any number of fill bytes may precede a marker.
            [0xff, 0xff] => {
                at += 1;
                continue;
            }
            [0xff, marker] => *marker,
            _ => return None,
        };
        at += 2;
        match marker {
            // Tables that use the same range of numbers, and markers without a length.
            0xc4 | 0xc8 | 0xcc => {}
            0xc0..=0xcf => return Some((big_endian(bytes, at + 5, 2)?, big_endian(bytes, at + 3, 2)?)),
            0x01 | 0xd0..=0xd8 => continue,
            0xd9 | 0xda => return None,
            _ => {}
        }
        let length = big_endian(bytes, at, 2)?.max(2);
        at = at.checked_add(length as usize)?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn png(width: u32, height: u32) -> Vec<u8> {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
        bytes.extend(width.to_be_bytes());
        bytes.extend(height.to_be_bytes());
        bytes
    }

    fn block(bytes: Vec<u8>, width: Option<f64>) -> TextBlock {
        TextBlock { image_file: Some("a".into()), image_bytes: Some(bytes), width, ..TextBlock::default() }
    }

    fn extent(bytes: Vec<u8>, width: Option<f64>) -> Result<(u64, u64), ImageError> {
        PageImage::of(&block(bytes, width)).map(|image| image.extent)
    }

    #[test]
    fn an_image_has_its_own_size_a_given_one_or_that_of_the_page() {
        assert_eq!(extent(png(100, 50), None), Ok((952_500, 476_250)));
        assert_eq!(extent(png(100, 50), Some(10.0)), Ok((3_600_000, 1_800_000)));
        assert_eq!(extent(png(10_000, 5_000), None), Ok((5_760_000, 2_880_000)), "as wide as the text");
        let (width, height) = extent(png(100, 10_000), None).unwrap();
        assert_eq!((width, height), (79_200, 7_920_000), "as high as the text");
    }

    #[test]
    fn sizes_are_read_of_every_format() {
        let gif = b"GIF89a\x40\x00\x20\x00".to_vec();
        assert_eq!(extent(gif, None), Ok((64 * 9_525, 32 * 9_525)));
        // A JPEG file: an application segment, a table, then the frame with height 16 and width 8.
        let jpeg = b"\xff\xd8\xff\xe0\x00\x04xx\xff\xff\xc4\x00\x03x\xff\xc2\x00\x0b\x08\x00\x10\x00\x08\x03".to_vec();
        assert_eq!(extent(jpeg, None), Ok((8 * 9_525, 16 * 9_525)));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (bytes, width, error) in [
            (b"text".to_vec(), None, ImageError::Format),
            (b"RIFF\0\0\0\0WEBPVP8 ".to_vec(), None, ImageError::Format),
            (png(0, 5), None, ImageError::NoSize),
            (b"\x89PNG\r\n\x1a\n".to_vec(), None, ImageError::NoSize),
            (b"\xff\xd8\xff\xd9".to_vec(), None, ImageError::NoSize),
            (png(5, 5), Some(0.1), ImageError::Width),
            (png(5, 5), Some(f64::NAN), ImageError::Width),
            (png(1, 5_000), Some(20.0), ImageError::Height),
        ] {
            assert_eq!(extent(bytes.clone(), width), Err(error), "{bytes:?} {width:?}");
        }
    }

    proptest! {
        /// Any bytes are an image that fits on a page, or an error.
        #[test]
        fn any_image_fits_or_is_refused(
            start in prop::sample::select(vec![&b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"[..], b"\xff\xd8\xff", b"GIF89a", b""]),
            rest in prop::collection::vec(any::<u8>(), 0..80),
            width in prop::option::of(any::<f64>()),
        ) {
            if let Ok((width, height)) = extent([start, &rest].concat(), width) {
                prop_assert!(width > 0 && height > 0);
                prop_assert!(width <= 50 * 360_000 && height <= 55 * 360_000);
            }
        }
    }
}
