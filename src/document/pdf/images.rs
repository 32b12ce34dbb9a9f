//! Finds the images of PDF pages. JPEG data is returned as it is stored; other pixels become PNG files.

use std::collections::HashSet;
use std::io::Write as _;

use hayro_syntax::object::{Array, Name, Number, Object, Stream, String as PdfString};
use hayro_syntax::{Filter, Pdf};

use crate::document::media::{MAX_IMAGE_BYTES, MAX_IMAGES, image_type};
use crate::document::render::PageRanges;
use crate::document::request::{DocumentContent, DocumentImage};

/// The most pixels of an image.
const MAX_PIXELS: usize = 30_000_000;
/// Smaller images are lines, dots and patterns.
const MIN_SIDE: usize = 16;

pub(super) fn read(pdf: &Pdf, pages: &PageRanges) -> DocumentContent {
    let mut content = DocumentContent::default();
    let mut seen = HashSet::new();
    let mut total = 0;
    for (index, page) in pdf.pages().iter().enumerate().filter(|(index, _)| pages.contains(index + 1)) {
        let objects = &page.resources().x_objects;
        for name in objects.keys() {
            let Some(stream) = objects.get::<Stream<'_>>(name.as_ref() as &[u8]) else { continue };
            let is_image = stream.dict().get::<Name<'_>>("Subtype").is_some_and(|kind| kind.as_str() == "Image");
            if !is_image || stream.dict().obj_id().is_some_and(|id| !seen.insert((id.obj_number, id.gen_number))) {
                continue;
            }
            let side =
                |key: &str| stream.dict().get::<Number>(key).and_then(|side| usize::try_from(side.as_i64()).ok());
            let (width, height) = (side("Width").unwrap_or(0), side("Height").unwrap_or(0));
            if width < MIN_SIDE || height < MIN_SIDE {
                continue;
            }
            let label = format!("page {}, {}: {width} x {height} pixels", index + 1, name.as_str());
            let Some((mime, bytes)) = convert(&stream, width, height) else {
                content.text.push_str(&format!("{label}, in a form that cannot be shown\n"));
                continue;
            };
            if content.images.len() >= MAX_IMAGES || total + bytes.len() > MAX_IMAGE_BYTES {
                content.text.push_str(&format!("{label}, left out because of the limit; read fewer `pages`\n"));
                continue;
            }
            total += bytes.len();
            content.text.push_str(&format!("{label}, {mime}\n"));
            content.images.push(DocumentImage { name: format!("page-{}-{}", index + 1, name.as_str()), mime, bytes });
        }
    }
    if content.text.is_empty() {
        content.text.push_str("the pages have no images\n");
    }
    content
}

/// Returns the type and the bytes of an image. `None` if its form is not supported.
fn convert(stream: &Stream<'_>, width: usize, height: usize) -> Option<(String, Vec<u8>)> {
    match stream.filters().as_slice() {
        [Filter::DctDecode] => {
            let bytes = stream.raw_data().into_owned();
            return image_type(&bytes).map(|mime| (mime.to_owned(), bytes));
        }
        filters if filters.iter().any(|filter| is_picture(*filter)) => return None,
        _ => {}
    }
    if width.checked_mul(height)? > MAX_PIXELS {
        return None;
    }
    let is_mask = stream.dict().get::<bool>("ImageMask").unwrap_or(false);
    let bits = if is_mask { 1 } else { stream.dict().get::<Number>("BitsPerComponent")?.as_i64() };
    let space = if is_mask { PixelSpace::Gray } else { pixel_space(&stream.dict().get::<Object<'_>>("ColorSpace")?)? };
    let data = stream.decoded().ok()?;
    let (kind, depth, palette): (u8, u8, Option<Vec<u8>>) = match (&space, bits) {
        (PixelSpace::Gray, 1 | 2 | 4 | 8) => (0, u8::try_from(bits).ok()?, None),
        (PixelSpace::Rgb, 8) => (2, 8, None),
        (PixelSpace::Palette(colors), 1 | 2 | 4 | 8) => (3, u8::try_from(bits).ok()?, Some(colors.clone())),
        _ => return None,
    };
    let channels = if kind == 2 { 3 } else { 1 };
    let row = (width * channels * usize::from(depth)).div_ceil(8);
    let rows = data.chunks_exact(row).take(height);
    if rows.len() < height {
        return None;
    }
    png(width, height, (kind, depth), palette.as_deref(), rows).map(|bytes| ("image/png".to_owned(), bytes))
}

fn is_picture(filter: Filter) -> bool {
    matches!(filter, Filter::DctDecode | Filter::JpxDecode | Filter::CcittFaxDecode | Filter::Jbig2Decode)
}

/// The meaning of an image's samples.
#[derive(Debug, Clone)]
enum PixelSpace {
    Gray,
    Rgb,
    /// Red, green and blue of each color.
    Palette(Vec<u8>),
}

fn pixel_space(object: &Object<'_>) -> Option<PixelSpace> {
    match object {
        Object::Name(name) => match name.as_str() {
            "DeviceGray" | "CalGray" | "G" => Some(PixelSpace::Gray),
            "DeviceRGB" | "CalRGB" | "RGB" => Some(PixelSpace::Rgb),
            _ => None,
        },
        Object::Array(array) => {
            let objects: Vec<Object<'_>> = array.iter::<Object<'_>>().take(4).collect();
            let Some(Object::Name(kind)) = objects.first() else { return None };
            match (kind.as_str(), objects.get(1), objects.get(3)) {
                ("ICCBased", Some(Object::Stream(profile)), _) => match profile.dict().get::<Number>("N")?.as_i64() {
                    1 => Some(PixelSpace::Gray),
                    3 => Some(PixelSpace::Rgb),
                    _ => None,
                },
                ("CalGray", ..) => Some(PixelSpace::Gray),
                ("CalRGB", ..) => Some(PixelSpace::Rgb),
                ("Indexed" | "I", Some(base), Some(table)) => {
                    let table = palette_bytes(table)?;
                    let colors = match pixel_space_flat(base)? {
                        PixelSpace::Rgb => table,
                        _ => table.iter().flat_map(|gray| [*gray; 3]).collect(),
                    };
                    let whole = colors.len().min(768) / 3 * 3;
                    (whole > 0).then(|| PixelSpace::Palette(colors[..whole].to_vec()))
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// Like [`pixel_space`], without palettes inside palettes.
fn pixel_space_flat(object: &Object<'_>) -> Option<PixelSpace> {
    if let Object::Array(array) = object {
        let kind: Array<'_> = array.clone();
        let first = kind.iter::<Object<'_>>().next();
        if matches!(&first, Some(Object::Name(name)) if matches!(name.as_str(), "Indexed" | "I")) {
            return None;
        }
    }
    pixel_space(object)
}

fn palette_bytes(table: &Object<'_>) -> Option<Vec<u8>> {
    match table {
        Object::String(text) => {
            let text: &PdfString<'_> = text;
            Some(text.as_bytes().to_vec())
        }
        Object::Stream(stream) => stream.decoded().ok().map(|bytes| bytes.into_owned()),
        _ => None,
    }
}

/// Returns a PNG file of rows without filters.
fn png<'a>(
    width: usize,
    height: usize,
    (kind, depth): (u8, u8),
    palette: Option<&[u8]>,
    rows: impl Iterator<Item = &'a [u8]>,
) -> Option<Vec<u8>> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    for row in rows {
        encoder.write_all(&[0]).ok()?;
        encoder.write_all(row).ok()?;
    }
    let pixels = encoder.finish().ok()?;
    let mut out = vec![0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n'];
    let mut header = Vec::new();
    header.extend(u32::try_from(width).ok()?.to_be_bytes());
    header.extend(u32::try_from(height).ok()?.to_be_bytes());
    header.extend([depth, kind, 0, 0, 0]);
    chunk(&mut out, b"IHDR", &header)?;
    if let Some(palette) = palette {
        chunk(&mut out, b"PLTE", palette)?;
    }
    chunk(&mut out, b"IDAT", &pixels)?;
    chunk(&mut out, b"IEND", &[])?;
    Some(out)
}

fn chunk(out: &mut Vec<u8>, name: &[u8; 4], data: &[u8]) -> Option<()> {
    out.extend(u32::try_from(data.len()).ok()?.to_be_bytes());
    out.extend(name);
    out.extend(data);
    let mut crc = flate2::Crc::new();
    crc.update(name);
    crc.update(data);
    out.extend(crc.sum().to_be_bytes());
    Some(())
}
