//! Converts SVG to PNG with the fonts of the system.

use std::sync::{Arc, OnceLock};

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::{Database, Family, Query};
use resvg::usvg::{self, Options, Tree};

/// Pixels per unit of the picture, unless that is too large.
const SCALE: f32 = 1.5;
/// Longest side of a PNG. Models refuse larger images, or scale them down.
const MAX_SIDE: f32 = 2_000.0;

/// Why there is no PNG.
#[derive(Debug, thiserror::Error)]
pub(super) enum RasterError {
    #[error("this machine has no fonts; install one, for example the package `fonts-dejavu-core`")]
    NoFonts,
    #[error("the SVG cannot be read: {0}")]
    Svg(#[from] usvg::Error),
    #[error("the picture is too large")]
    Size,
    #[error("the PNG cannot be written")]
    Encode,
}

/// Converts pictures. Reads the fonts at the first conversion.
#[derive(Debug, Default)]
pub(super) struct Rasterizer {
    fonts: OnceLock<Arc<Database>>,
}

impl Rasterizer {
    #[cfg(test)]
    pub(super) fn without_fonts() -> Self {
        Self { fonts: OnceLock::from(Arc::new(Database::new())) }
    }

    pub(super) fn to_png(&self, svg: &str) -> Result<Vec<u8>, RasterError> {
        let fontdb = Arc::clone(self.fonts.get_or_init(|| Arc::new(load_fonts())));
        // Without fonts a picture would have no labels and mislead.
        if fontdb.is_empty() {
            return Err(RasterError::NoFonts);
        }
        let tree = Tree::from_str(svg, &Options { fontdb, ..Options::default() })?;
        let size = tree.size();
        let scale = SCALE.min(MAX_SIDE / size.width().max(size.height()));
        let (width, height) = ((size.width() * scale).ceil() as u32, (size.height() * scale).ceil() as u32);
        let mut pixels = Pixmap::new(width.max(1), height.max(1)).ok_or(RasterError::Size)?;
        resvg::render(&tree, Transform::from_scale(scale, scale), &mut pixels.as_mut());
        pixels.encode_png().map_err(|_| RasterError::Encode)
    }
}

fn load_fonts() -> Database {
    let mut fonts = Database::new();
    fonts.load_system_fonts();
    let families = [Family::Name("Noto Sans"), Family::Name("DejaVu Sans"), Family::SansSerif];
    if fonts.query(&Query { families: &families, ..Query::default() }).is_none() {
        // The configured family is not installed, so any other takes its place.
        let first = fonts.faces().next().and_then(|face| face.families.first()).map(|(name, _)| name.clone());
        if let Some(first) = first {
            fonts.set_sans_serif_family(first);
        }
    }
    fonts
}
