//! Sees and controls a screen of X11: windows, pictures, pointer and keyboard.
//!
//! Every function blocks while the X server works, but the search for labels does not.

mod keyboard;
mod keysyms;
mod labels;

use x11rb::connection::Connection as _;
use x11rb::errors::{ConnectError, ConnectionError, ReplyError};
use x11rb::protocol::xproto::{
    Atom, AtomEnum, ClientMessageEvent, ConfigureWindowAux, ConnectionExt as _, EventMask, ImageFormat, ImageOrder,
    InputFocus, MapState, StackMode, Window,
};
use x11rb::protocol::xtest::ConnectionExt as _;
use x11rb::rust_connection::RustConnection;

pub use keysyms::KeyNameError;
pub use labels::{LabelError, LabelledElement, find_label};

/// The largest picture in pixels.
const MAX_PIXELS: u64 = 64 << 20;
/// Windows that one list has.
const MAX_WINDOWS: usize = 200;
/// Words of a property.
const MAX_PROPERTY: u32 = 4096;
/// Types of events, as XTEST wants them.
const BUTTON_PRESS: u8 = 4;
const BUTTON_RELEASE: u8 = 5;
const MOTION: u8 = 6;

/// Why the screen cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScreenError {
    #[error("cannot connect to the screen `{display}`: {source}")]
    Connect { display: String, source: ConnectError },
    #[error("the X server has no XTEST extension, so nothing can be clicked or typed")]
    NoTestExtension,
    #[error("there is no window `{0:#x}`; see `list_windows`")]
    NoWindow(u32),
    #[error("the window `{0:#x}` is not on the screen")]
    OffScreen(u32),
    #[error("{x}, {y} is outside of the {width} x {height} pixels")]
    Outside { x: i32, y: i32, width: u32, height: u32 },
    #[error("the screen has a format that Skein cannot read: depth {depth}, {bits} bits per pixel")]
    Format { depth: u8, bits: u8 },
    #[error("the picture would have more than {} million pixels", MAX_PIXELS >> 20)]
    TooLarge,
    #[error("the keyboard of the screen cannot write `{0}`")]
    NoKey(char),
    #[error(transparent)]
    KeyName(#[from] KeyNameError),
    #[error("the X server failed: {0}")]
    Reply(#[from] ReplyError),
    #[error("the X server failed: {0}")]
    Connection(#[from] ConnectionError),
}

/// A connection to a screen.
#[derive(Debug)]
pub struct X11Screen {
    connection: RustConnection,
    root: Window,
    width: u32,
    height: u32,
    number: usize,
}

/// A window as the user sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScreenWindow {
    pub id: u32,
    pub title: String,
    /// The name of its program.
    pub class: String,
    pub area: ScreenArea,
    pub has_focus: bool,
}

/// A rectangle in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScreenArea {
    pub x: i32,
    pub y: i32,
    pub width: u32,
    pub height: u32,
}

/// A picture: four bytes per pixel, red, green, blue and 255.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScreenPicture {
    pub area: ScreenArea,
    pub pixels: Vec<u8>,
}

/// A button of the pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointerButton {
    Left,
    Middle,
    Right,
}

impl X11Screen {
    /// Connects to a display such as `:0`.
    pub fn connect(display: &str) -> Result<Self, ScreenError> {
        let (connection, number) = RustConnection::connect(Some(display))
            .map_err(|source| ScreenError::Connect { display: display.to_owned(), source })?;
        let screen = &connection.setup().roots[number];
        let (root, width, height) = (screen.root, screen.width_in_pixels.into(), screen.height_in_pixels.into());
        Ok(Self { connection, root, width, height, number })
    }

    /// Returns the whole screen.
    pub fn area(&self) -> ScreenArea {
        ScreenArea { x: 0, y: 0, width: self.width, height: self.height }
    }

    fn atom(&self, name: &str) -> Result<Atom, ScreenError> {
        Ok(self.connection.intern_atom(false, name.as_bytes())?.reply()?.atom)
    }

    /// Returns a property as bytes. Empty if the window has none.
    fn property(&self, window: Window, name: &str) -> Result<Vec<u8>, ScreenError> {
        let atom = self.atom(name)?;
        let cookie = self.connection.get_property(false, window, atom, AtomEnum::ANY, 0, MAX_PROPERTY)?;
        Ok(cookie.reply()?.value)
    }

    fn property_words(&self, window: Window, name: &str) -> Result<Vec<u32>, ScreenError> {
        let bytes = self.property(window, name)?;
        Ok(bytes.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect())
    }

    /// Returns the windows of programs: as the window manager lists them, or all that are visible without one.
    pub fn windows(&self) -> Result<Vec<ScreenWindow>, ScreenError> {
        let mut ids = self.property_words(self.root, "_NET_CLIENT_LIST")?;
        if ids.is_empty() {
            ids = self.connection.query_tree(self.root)?.reply()?.children;
        }
        let focus = self.focus()?;
        let mut windows = Vec::new();
        for id in ids.into_iter().take(MAX_WINDOWS) {
            // A window may close at any time.
            if let Ok(Some(window)) = self.describe(id, focus) {
                windows.push(window);
            }
        }
        Ok(windows)
    }

    fn focus(&self) -> Result<Window, ScreenError> {
        let active = self.property_words(self.root, "_NET_ACTIVE_WINDOW")?.first().copied().unwrap_or_default();
        if active != 0 {
            return Ok(active);
        }
        Ok(self.connection.get_input_focus()?.reply()?.focus)
    }

    /// Returns a window. `None` if it is not visible.
    fn describe(&self, id: Window, focus: Window) -> Result<Option<ScreenWindow>, ScreenError> {
        let attributes = self.connection.get_window_attributes(id)?.reply()?;
        if attributes.map_state != MapState::VIEWABLE {
            return Ok(None);
        }
        let mut title = self.property(id, "_NET_WM_NAME")?;
        if title.is_empty() {
            title = self.property(id, "WM_NAME")?;
        }
        let class = self.property(id, "WM_CLASS")?;
        let class = class.split(|byte| *byte == 0).rfind(|part| !part.is_empty()).unwrap_or_default();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
        let (title, class) = (text(&title), text(class));
        if title.is_empty() && class.is_empty() {
            return Ok(None);
        }
        Ok(Some(ScreenWindow { id, title, class, area: self.window_area(id)?, has_focus: id == focus }))
    }

    /// Returns where a window is, also beyond the edges of the screen.
    pub fn window_area(&self, id: u32) -> Result<ScreenArea, ScreenError> {
        let missing = |error: ReplyError| match error {
            ReplyError::X11Error(_) => ScreenError::NoWindow(id),
            error @ ReplyError::ConnectionError(_) => error.into(),
        };
        let geometry = self.connection.get_geometry(id)?.reply().map_err(missing)?;
        let place = self.connection.translate_coordinates(id, self.root, 0, 0)?.reply().map_err(missing)?;
        Ok(ScreenArea {
            x: place.dst_x.into(),
            y: place.dst_y.into(),
            width: geometry.width.into(),
            height: geometry.height.into(),
        })
    }

    /// Takes a picture of the screen, or of the part where a window is.
    pub fn picture(&self, window: Option<u32>) -> Result<ScreenPicture, ScreenError> {
        let area = match window {
            Some(id) => self.window_area(id)?.intersect(self.area()).ok_or(ScreenError::OffScreen(id))?,
            None => self.area(),
        };
        if u64::from(area.width) * u64::from(area.height) > MAX_PIXELS {
            return Err(ScreenError::TooLarge);
        }
        // The area is within the screen, whose sizes have 16 bits.
        let (x, y) = (i16::try_from(area.x).unwrap_or_default(), i16::try_from(area.y).unwrap_or_default());
        let (width, height) = (area.width as u16, area.height as u16);
        let cookie = self.connection.get_image(ImageFormat::Z_PIXMAP, self.root, x, y, width, height, !0)?;
        let image = cookie.reply()?;
        let setup = self.connection.setup();
        let bits = setup.pixmap_formats.iter().find(|format| format.depth == image.depth).map(|f| f.bits_per_pixel);
        let format = ScreenError::Format { depth: image.depth, bits: bits.unwrap_or_default() };
        let (Some(32), Some([red, green, blue])) = (bits, self.color_masks()) else { return Err(format) };
        let is_little = setup.image_byte_order == ImageOrder::LSB_FIRST;
        let mut pixels = Vec::with_capacity(image.data.len());
        for bytes in image.data.chunks_exact(4) {
            let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
            let pixel = if is_little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) };
            let part = |mask: u32| ((pixel & mask) >> mask.trailing_zeros()) as u8;
            pixels.extend([part(red), part(green), part(blue), 255]);
        }
        if pixels.len() as u64 != u64::from(area.width) * u64::from(area.height) * 4 {
            return Err(format);
        }
        Ok(ScreenPicture { area, pixels })
    }

    /// Returns where the colours of a pixel are, if each has eight bits.
    fn color_masks(&self) -> Option<[u32; 3]> {
        let screen = &self.connection.setup().roots[self.number];
        let mut visuals = screen.allowed_depths.iter().flat_map(|depth| &depth.visuals);
        let visual = visuals.find(|visual| visual.visual_id == screen.root_visual)?;
        let masks = [visual.red_mask, visual.green_mask, visual.blue_mask];
        masks.iter().all(|mask| mask.count_ones() == 8).then_some(masks)
    }

    /// Fails if the screen cannot be controlled.
    fn require_test(&self) -> Result<(), ScreenError> {
        let version = self.connection.xtest_get_version(2, 1);
        let answered = version.and_then(|cookie| match cookie.reply() {
            Ok(_) => Ok(()),
            Err(ReplyError::ConnectionError(error)) => Err(error),
            Err(ReplyError::X11Error(_)) => Err(ConnectionError::UnsupportedExtension),
        });
        match answered {
            Err(ConnectionError::UnsupportedExtension) => Err(ScreenError::NoTestExtension),
            answered => Ok(answered?),
        }
    }

    fn fake(&self, kind: u8, detail: u8, x: i16, y: i16) -> Result<(), ScreenError> {
        self.connection.xtest_fake_input(kind, detail, 0, self.root, x, y, 0)?.check()?;
        Ok(())
    }

    /// Moves the pointer and clicks. The position is relative to the window, or to the screen.
    pub fn click(
        &self,
        window: Option<u32>,
        x: i32,
        y: i32,
        button: PointerButton,
        count: u8,
    ) -> Result<(i32, i32), ScreenError> {
        self.require_test()?;
        let within = match window {
            Some(id) => self.window_area(id)?,
            None => self.area(),
        };
        let (left, top) = click_point(within, self.area(), window, (x, y))?;
        self.fake(MOTION, 0, left, top)?;
        let detail = match button {
            PointerButton::Left => 1,
            PointerButton::Middle => 2,
            PointerButton::Right => 3,
        };
        for _ in 0..count.clamp(1, 3) {
            self.fake(BUTTON_PRESS, detail, 0, 0)?;
            self.fake(BUTTON_RELEASE, detail, 0, 0)?;
        }
        Ok((left.into(), top.into()))
    }

    /// Brings a window to the front and gives it the keyboard.
    pub fn focus_window(&self, id: u32) -> Result<(), ScreenError> {
        self.window_area(id)?;
        let active = self.atom("_NET_ACTIVE_WINDOW")?;
        if self.property_words(self.root, "_NET_SUPPORTED")?.contains(&active) {
            // The 2 says that the user wants it.
            let event = ClientMessageEvent::new(32, id, active, [2, 0, 0, 0, 0]);
            let mask = EventMask::SUBSTRUCTURE_REDIRECT | EventMask::SUBSTRUCTURE_NOTIFY;
            self.connection.send_event(false, self.root, mask, event)?.check()?;
        } else {
            let above = ConfigureWindowAux::new().stack_mode(StackMode::ABOVE);
            self.connection.configure_window(id, &above)?.check()?;
            self.connection.set_input_focus(InputFocus::PARENT, id, x11rb::CURRENT_TIME)?.check()?;
        }
        self.connection.get_input_focus()?.reply()?;
        Ok(())
    }
}

/// Returns the point of the screen for a position in an area. Fails if it is outside of the area or of the screen.
fn click_point(
    within: ScreenArea,
    screen: ScreenArea,
    window: Option<u32>,
    (x, y): (i32, i32),
) -> Result<(i16, i16), ScreenError> {
    let outside = || ScreenError::Outside { x, y, width: within.width, height: within.height };
    let is_inside = |value: i32, size: u32| u32::try_from(value).is_ok_and(|value| value < size);
    if !is_inside(x, within.width) || !is_inside(y, within.height) {
        return Err(outside());
    }
    let point = (within.x.saturating_add(x), within.y.saturating_add(y));
    if !screen.contains(point) {
        return Err(window.map_or_else(outside, ScreenError::OffScreen));
    }
    let (Ok(left), Ok(top)) = (i16::try_from(point.0), i16::try_from(point.1)) else { return Err(outside()) };
    Ok((left, top))
}

impl ScreenArea {
    /// Returns the point in the middle.
    pub fn center(self) -> (i32, i32) {
        let middle = |at: i32, size: u32| at.saturating_add(i32::try_from(size / 2).unwrap_or(i32::MAX));
        (middle(self.x, self.width), middle(self.y, self.height))
    }

    /// Returns whether a point is in the area.
    pub fn contains(self, (x, y): (i32, i32)) -> bool {
        let is_inside = |at: i32, start: i32, size: u32| {
            (i64::from(start)..i64::from(start) + i64::from(size)).contains(&i64::from(at))
        };
        is_inside(x, self.x, self.width) && is_inside(y, self.y, self.height)
    }

    /// Returns the common part. `None` if there is none.
    fn intersect(self, other: Self) -> Option<Self> {
        let edge = |at: i32, size: u32| i64::from(at) + i64::from(size);
        let (x, y) = (self.x.max(other.x), self.y.max(other.y));
        let right = edge(self.x, self.width).min(edge(other.x, other.width));
        let bottom = edge(self.y, self.height).min(edge(other.y, other.height));
        let width = u32::try_from(right - i64::from(x)).ok().filter(|width| *width > 0)?;
        let height = u32::try_from(bottom - i64::from(y)).ok().filter(|height| *height > 0)?;
        Some(Self { x, y, width, height })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn area() -> impl Strategy<Value = ScreenArea> {
        (-50..50_i32, -50..50_i32, 0..60_u32, 0..60_u32).prop_map(|(x, y, width, height)| ScreenArea {
            x,
            y,
            width,
            height,
        })
    }

    proptest! {
        /// A point is in the common part exactly if it is in both.
        #[test]
        fn the_common_part_has_the_common_points(one in area(), two in area(), x in -60..120_i32, y in -60..120_i32) {
            let both = one.contains((x, y)) && two.contains((x, y));
            prop_assert_eq!(one.intersect(two).is_some_and(|common| common.contains((x, y))), both);
        }

        /// A click hits the position that was named, in the window and on the screen, or nothing.
        #[test]
        fn a_click_hits_the_named_point(within in area(), width in 1..60_u32, height in 1..60_u32, x in -5..70_i32, y in -5..70_i32) {
            let screen = ScreenArea { x: 0, y: 0, width, height };
            let point = (within.x + x, within.y + y);
            let hits = within.contains(point) && screen.contains(point);
            let clicked = click_point(within, screen, Some(7), (x, y)).ok();
            prop_assert_eq!(clicked.map(|(x, y)| (i32::from(x), i32::from(y))), hits.then_some(point));
        }

        /// The middle of an area that has points is one of them.
        #[test]
        fn the_middle_is_inside(one in area()) {
            prop_assert_eq!(one.contains(one.center()), one.width > 0 && one.height > 0);
        }
    }
}
