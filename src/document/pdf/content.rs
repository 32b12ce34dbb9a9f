//! Runs the text operators of a page and collects its characters with their places.

use std::collections::HashMap;
use std::rc::Rc;

use hayro_syntax::content::UntypedIter;
use hayro_syntax::object::{Array, Dict, Name, Number, Object, Stream};
use hayro_syntax::page::{Page, Resources, Rotation};

use super::fonts::PageFont;

/// The most characters and operators of a page, and how deep forms nest.
const MAX_GLYPHS: usize = 200_000;
const MAX_OPERATORS: usize = 3_000_000;
const MAX_FORMS: usize = 8;
/// Graphics states that can be saved at the same time.
const MAX_SAVED: usize = 512;

/// A character on a page. The origin is at the bottom left of the page as people see it.
#[derive(Debug, Clone)]
pub(super) struct PlacedGlyph {
    pub(super) text: String,
    pub(super) x: f32,
    pub(super) y: f32,
    pub(super) width: f32,
    pub(super) size: f32,
    /// In quarter turns.
    pub(super) turn: u8,
}

/// The characters of a page.
#[derive(Debug, Default)]
pub(super) struct PageGlyphs {
    pub(super) glyphs: Vec<PlacedGlyph>,
    /// Characters that the fonts do not explain.
    pub(super) unknown: usize,
    pub(super) is_cut: bool,
}

/// An affine transform.
#[derive(Debug, Clone, Copy)]
struct TextMatrix([f32; 6]);

impl TextMatrix {
    const IDENTITY: Self = Self([1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);

    /// Returns the transform that applies `self` first and `then` second.
    fn then(self, then: Self) -> Self {
        let ([a, b, c, d, e, f], [g, h, i, j, k, l]) = (self.0, then.0);
        Self([a * g + b * i, a * h + b * j, c * g + d * i, c * h + d * j, e * g + f * i + k, e * h + f * j + l])
    }

    fn translation(x: f32, y: f32) -> Self {
        Self([1.0, 0.0, 0.0, 1.0, x, y])
    }
}

#[derive(Debug, Clone)]
struct TextState {
    transform: TextMatrix,
    font: Option<Rc<PageFont>>,
    size: f32,
    character_spacing: f32,
    word_spacing: f32,
    scale: f32,
    leading: f32,
    rise: f32,
}

/// Reads pages and remembers their fonts.
#[derive(Debug, Default)]
pub(super) struct PageReader {
    /// By object number, because pages share fonts.
    fonts: HashMap<(i32, i32), Rc<PageFont>>,
}

impl PageReader {
    pub(super) fn glyphs(&mut self, page: &Page<'_>) -> PageGlyphs {
        let area = page.crop_box();
        let (left, bottom, right, top) = (area.x0 as f32, area.y0 as f32, area.x1 as f32, area.y1 as f32);
        let transform = match page.rotation() {
            Rotation::None => TextMatrix([1.0, 0.0, 0.0, 1.0, -left, -bottom]),
            Rotation::Horizontal => TextMatrix([0.0, -1.0, 1.0, 0.0, -bottom, right]),
            Rotation::Flipped => TextMatrix([-1.0, 0.0, 0.0, -1.0, right, top]),
            Rotation::FlippedHorizontal => TextMatrix([0.0, 1.0, -1.0, 0.0, top, -left]),
        };
        let state = TextState {
            transform,
            font: None,
            size: 1.0,
            character_spacing: 0.0,
            word_spacing: 0.0,
            scale: 1.0,
            leading: 0.0,
            rise: 0.0,
        };
        let mut run = ContentRun { reader: self, out: PageGlyphs::default(), operators: 0 };
        if let Some(bytes) = page.page_stream() {
            run.execute(bytes, page.resources(), state, 0);
        }
        run.out
    }

    fn font(&mut self, resources: &Resources<'_>, name: &Name<'_>) -> Option<Rc<PageFont>> {
        let font: Dict<'_> = resources.get_font(name)?;
        let Some(id) = font.obj_id() else { return Some(Rc::new(PageFont::read(&font))) };
        let font = self.fonts.entry((id.obj_number, id.gen_number)).or_insert_with(|| Rc::new(PageFont::read(&font)));
        Some(Rc::clone(font))
    }
}

struct ContentRun<'r> {
    reader: &'r mut PageReader,
    out: PageGlyphs,
    operators: usize,
}

impl ContentRun<'_> {
    fn execute(&mut self, bytes: &[u8], resources: &Resources<'_>, start: TextState, depth: usize) {
        let mut state = start;
        let mut saved: Vec<TextState> = Vec::new();
        let (mut line, mut text) = (TextMatrix::IDENTITY, TextMatrix::IDENTITY);
        let mut instructions = UntypedIter::new(bytes);
        while let Some(instruction) = instructions.next() {
            self.operators += 1;
            if self.operators > MAX_OPERATORS || self.out.glyphs.len() > MAX_GLYPHS {
                self.out.is_cut = true;
                return;
            }
            let operator: &[u8] = instruction.operator;
            // Most operators draw; their operands are not needed.
            let is_text = matches!(
                operator,
                b"q" | b"Q"
                    | b"cm"
                    | b"Do"
                    | b"BT"
                    | b"Tf"
                    | b"Tc"
                    | b"Tw"
                    | b"Tz"
                    | b"TL"
                    | b"Ts"
                    | b"Td"
                    | b"TD"
                    | b"Tm"
                    | b"T*"
                    | b"Tj"
                    | b"TJ"
                    | b"'"
                    | b"\""
            );
            if !is_text {
                continue;
            }
            let operands: Vec<&Object<'_>> = instruction.operands().collect();
            let number = |at: usize| match operands.get(at) {
                Some(Object::Number(number)) => number.as_f32(),
                _ => 0.0,
            };
            let matrix = || TextMatrix([number(0), number(1), number(2), number(3), number(4), number(5)]);
            let mut next_line = |x: f32, y: f32| {
                line = TextMatrix::translation(x, y).then(line);
                line
            };
            match operator {
                b"q" if saved.len() < MAX_SAVED => saved.push(state.clone()),
                b"Q" => state = saved.pop().unwrap_or(state),
                b"cm" => state.transform = matrix().then(state.transform),
                b"BT" => (line, text) = (TextMatrix::IDENTITY, TextMatrix::IDENTITY),
                b"Tf" => {
                    if let Some(Object::Name(name)) = operands.first() {
                        state.font = self.reader.font(resources, name);
                    }
                    state.size = number(1);
                }
                b"Tc" => state.character_spacing = number(0),
                b"Tw" => state.word_spacing = number(0),
                b"Tz" => state.scale = number(0) / 100.0,
                b"TL" => state.leading = number(0),
                b"Ts" => state.rise = number(0),
                b"Td" => text = next_line(number(0), number(1)),
                b"TD" => {
                    state.leading = -number(1);
                    text = next_line(number(0), number(1));
                }
                b"Tm" => (line, text) = (matrix(), matrix()),
                b"T*" => text = next_line(0.0, -state.leading),
                b"Tj" => text = self.show(&state, text, operands.first().copied()),
                b"'" => {
                    text = next_line(0.0, -state.leading);
                    text = self.show(&state, text, operands.first().copied());
                }
                b"\"" => {
                    state.word_spacing = number(0);
                    state.character_spacing = number(1);
                    text = next_line(0.0, -state.leading);
                    text = self.show(&state, text, operands.get(2).copied());
                }
                b"TJ" => {
                    if let Some(Object::Array(array)) = operands.first() {
                        text = self.show_array(&state, text, array);
                    }
                }
                b"Do" => {
                    if let Some(Object::Name(name)) = operands.first() {
                        self.form(resources, name, &state, depth);
                    }
                }
                _ => {}
            }
        }
    }

    /// Runs the content of a form. Images have no text.
    fn form(&mut self, resources: &Resources<'_>, name: &Name<'_>, state: &TextState, depth: usize) {
        let Some(form): Option<Stream<'_>> = resources.get_x_object(name) else { return };
        let is_form = form.dict().get::<Name<'_>>("Subtype").is_some_and(|kind| kind.as_str() == "Form");
        if !is_form || depth >= MAX_FORMS {
            return;
        }
        let Ok(bytes) = form.decoded() else { return };
        let mut state = state.clone();
        if let Some(matrix) = form.dict().get::<Array<'_>>("Matrix") {
            let numbers: Vec<f32> = matrix.iter::<Number>().take(6).map(|number| number.as_f32()).collect();
            if let Ok(numbers) = <[f32; 6]>::try_from(numbers) {
                state.transform = TextMatrix(numbers).then(state.transform);
            }
        }
        let own = form.dict().get::<Dict<'_>>("Resources").unwrap_or_default();
        let resources = Resources::from_parent(own, resources.clone());
        self.execute(&bytes, &resources, state, depth + 1);
    }

    fn show_array(&mut self, state: &TextState, mut text: TextMatrix, array: &Array<'_>) -> TextMatrix {
        for object in array.iter::<Object<'_>>() {
            match &object {
                Object::Number(number) => {
                    let shift = -number.as_f32() / 1000.0 * state.size * state.scale;
                    text = TextMatrix::translation(shift, 0.0).then(text);
                }
                Object::String(_) => text = self.show(state, text, Some(&object)),
                _ => {}
            }
        }
        text
    }

    /// Places the characters of a string. Returns the matrix behind the last one.
    fn show(&mut self, state: &TextState, mut text: TextMatrix, string: Option<&Object<'_>>) -> TextMatrix {
        let Some(Object::String(string)) = string else { return text };
        let characters = match &state.font {
            Some(font) => font.characters(string.as_bytes()),
            None => PageFont::default().characters(string.as_bytes()),
        };
        for character in characters {
            let whole = TextMatrix([state.size * state.scale, 0.0, 0.0, state.size, 0.0, state.rise])
                .then(text)
                .then(state.transform);
            let [a, b, c, d, x, y] = whole.0;
            let size = (c * c + d * d).sqrt();
            let length = (a * a + b * b).sqrt();
            let is_placed = [x, y, size, length].iter().all(|number| number.is_finite() && number.abs() < 1e6);
            if is_placed && size > 0.1 && self.out.glyphs.len() <= MAX_GLYPHS {
                let turn = match (a.abs() >= b.abs(), a >= 0.0, b >= 0.0) {
                    (true, true, _) => 0,
                    (false, _, true) => 1,
                    (true, false, _) => 2,
                    (false, _, false) => 3,
                };
                let has_text = !character.text.is_empty();
                self.out.unknown += usize::from(!has_text);
                let shown = if has_text { character.text } else { "\u{fffd}".to_owned() };
                let width = character.width * length;
                self.out.glyphs.push(PlacedGlyph { text: shown, x, y, width, size, turn });
            }
            let spacing = state.character_spacing + if character.is_space { state.word_spacing } else { 0.0 };
            let advance = (character.width * state.size + spacing) * state.scale;
            text = TextMatrix::translation(advance, 0.0).then(text);
        }
        text
    }
}
