//! Writes SVG: shapes with tooltips, and labels.
//!
//! Invariant: every coordinate is finite. A label lies inside the picture and overlaps no other label.

use super::color::Theme;

/// Size of ordinary labels in pixels.
pub(super) const FONT: f64 = 12.0;
const FONTS: &str = "system-ui,'Noto Sans','DejaVu Sans',sans-serif";

/// An axis-parallel rectangle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) w: f64,
    pub(super) h: f64,
}

impl Rect {
    pub(super) fn right(&self) -> f64 {
        self.x + self.w
    }

    pub(super) fn bottom(&self) -> f64 {
        self.y + self.h
    }

    pub(super) fn center(&self) -> (f64, f64) {
        (self.x + self.w / 2.0, self.y + self.h / 2.0)
    }

    pub(super) fn overlaps(&self, other: &Rect) -> bool {
        self.x < other.right() && other.x < self.right() && self.y < other.bottom() && other.y < self.bottom()
    }

    fn is_inside(&self, width: f64, height: f64) -> bool {
        self.x >= 0.0 && self.y >= 0.0 && self.right() <= width && self.bottom() <= height
    }

    pub(super) fn shrink(&self, by: f64) -> Rect {
        let w = (self.w - 2.0 * by).max(0.0);
        let h = (self.h - 2.0 * by).max(0.0);
        Rect { x: self.x + (self.w - w) / 2.0, y: self.y + (self.h - h) / 2.0, w, h }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A label on one line. `y` is the middle of the line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Label<'a> {
    pub(super) text: &'a str,
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) anchor: Anchor,
    pub(super) size: f64,
    /// CSS class: `t` text, `m` muted, `b` bold, `k` black or `w` white on a coloured area.
    pub(super) class: &'a str,
}

impl<'a> Label<'a> {
    pub(super) fn new(text: &'a str, x: f64, y: f64, anchor: Anchor) -> Self {
        Self { text, x, y, anchor, size: FONT, class: "t" }
    }

    pub(super) fn with_muted(self) -> Self {
        Self { class: "m", ..self }
    }

    pub(super) fn class(self, class: &'a str) -> Self {
        Self { class, ..self }
    }

    pub(super) fn size(self, size: f64) -> Self {
        Self { size, ..self }
    }

    pub(super) fn bounds(&self) -> Rect {
        let bold = if self.class == "b" { 1.08 } else { 1.0 };
        let w = measure(self.text, self.size) * bold;
        let x = match self.anchor {
            Anchor::Start => self.x,
            Anchor::Middle => self.x - w / 2.0,
            Anchor::End => self.x - w,
        };
        Rect { x, y: self.y - self.size * 0.6, w, h: self.size * 1.2 }
    }
}

/// A picture under construction.
#[derive(Debug)]
pub(super) struct Canvas {
    pub(super) width: f64,
    pub(super) height: f64,
    body: String,
    labels: Vec<Rect>,
}

impl Canvas {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new(), labels: Vec::new() }
    }

    /// Draws a label. Returns `false` and draws nothing if it would leave the picture or overlap another label.
    pub(super) fn label(&mut self, label: Label<'_>) -> bool {
        let text = clean(label.text);
        let label = Label { text: &text, ..label };
        let bounds = label.bounds();
        if text.trim().is_empty() || !bounds.is_inside(self.width, self.height) || !self.is_free(&bounds) {
            return false;
        }
        self.labels.push(bounds);
        let anchor = match label.anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        self.body.push_str(&format!(
            "<text class=\"{}\" x=\"{}\" y=\"{}\" font-size=\"{}\"{anchor}>{}</text>\n",
            label.class,
            num(label.x),
            num(label.y + label.size * 0.35),
            num(label.size),
            escape(&text)
        ));
        true
    }

    pub(super) fn is_free(&self, bounds: &Rect) -> bool {
        !self.labels.iter().any(|other| other.overlaps(bounds))
    }

    pub(super) fn path(&mut self, data: &str, style: &str, tip: &str) {
        self.element("path", &format!("d=\"{data}\" {style}"), tip);
    }

    pub(super) fn rect(&mut self, rect: Rect, style: &str, tip: &str) {
        let Rect { x, y, w, h } = rect;
        let place = format!(
            "x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" {style}",
            num(x),
            num(y),
            num(w.max(0.0)),
            num(h.max(0.0))
        );
        self.element("rect", &place, tip);
    }

    pub(super) fn circle(&mut self, x: f64, y: f64, r: f64, style: &str, tip: &str) {
        self.element("circle", &format!("cx=\"{}\" cy=\"{}\" r=\"{}\" {style}", num(x), num(y), num(r)), tip);
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), style: &str) {
        let place = format!("x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"", num(from.0), num(from.1), num(to.0), num(to.1));
        self.element("line", &format!("{place} {style}"), "");
    }

    /// Starts the group of a series, which the page can hide.
    pub(super) fn open_series(&mut self, series: usize) {
        self.body.push_str(&format!("<g data-series=\"{series}\">\n"));
    }

    /// Starts the legend entry of a series.
    pub(super) fn open_key(&mut self, series: usize) {
        self.body.push_str(&format!("<g class=\"key\" data-key=\"{series}\">\n"));
    }

    pub(super) fn close(&mut self) {
        self.body.push_str("</g>\n");
    }

    fn element(&mut self, name: &str, attributes: &str, tip: &str) {
        let attributes = attributes.trim_end();
        if tip.is_empty() {
            self.body.push_str(&format!("<{name} {attributes}/>\n"));
        } else {
            self.body.push_str(&format!("<{name} {attributes}><title>{}</title></{name}>\n", escape(&clean(tip))));
        }
    }

    /// Returns the whole document, and the places of its labels.
    pub(super) fn finish(self, theme: Theme, title: &str) -> (String, Vec<Rect>) {
        let (width, height) = (num(self.width), num(self.height));
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" font-family=\"{FONTS}\">\n<title>{}</title>\n<style>{}</style>\n\
             <rect class=\"bg\" width=\"{width}\" height=\"{height}\"/>\n{}</svg>\n",
            escape(&clean(title)),
            theme.style(),
            self.body
        );
        (svg, self.labels)
    }
}

/// Formats a coordinate. Coordinates that are not finite become 0, so that the picture stays valid.
pub(super) fn num(value: f64) -> String {
    let rounded = (value * 100.0).round() / 100.0;
    // Also removes the sign of a negative zero.
    if !rounded.is_finite() || rounded == 0.0 { "0".to_owned() } else { rounded.to_string() }
}

/// Builds the `d` attribute of a path.
#[derive(Debug, Default)]
pub(super) struct PathData(String);

impl PathData {
    pub(super) fn to(mut self, command: char, points: &[(f64, f64)]) -> Self {
        self.push(command, points);
        self
    }

    pub(super) fn push(&mut self, command: char, points: &[(f64, f64)]) {
        self.0.push(command);
        for (index, (x, y)) in points.iter().enumerate() {
            let space = if index > 0 { " " } else { "" };
            self.0.push_str(&format!("{space}{} {}", num(*x), num(*y)));
        }
    }

    /// Adds an arc of a circle with radius `r`.
    pub(super) fn arc(mut self, r: f64, large: bool, clockwise: bool, to: (f64, f64)) -> Self {
        let (large, sweep) = (u8::from(large), u8::from(clockwise));
        self.0.push_str(&format!("A{r} {r} 0 {large} {sweep} {} {}", num(to.0), num(to.1), r = num(r)));
        self
    }

    pub(super) fn close(mut self) -> String {
        self.0.push('Z');
        self.0
    }

    pub(super) fn end(self) -> String {
        self.0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Replaces characters that XML or one line of text cannot contain.
pub(super) fn clean(text: &str) -> String {
    let replace = |letter: char| match letter {
        '\n' | '\t' | '\r' => ' ',
        // Direction overrides could make a label show something else than the data.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}' => '\u{fffd}',
        letter if letter.is_control() => '\u{fffd}',
        letter => letter,
    };
    text.chars().map(replace).collect()
}

pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Estimates the width of a text. The picture is shown with fonts that are unknown here, so the estimate follows a
/// wide one.
pub(super) fn measure(text: &str, size: f64) -> f64 {
    let width = |letter: char| match letter {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | 'I' => 0.36,
        ' ' | 'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '/' | '-' => 0.43,
        'm' | 'w' | 'M' | 'W' | '@' | '%' => 1.02,
        'A'..='Z' => 0.75,
        '0'..='9' | 'a'..='z' => 0.65,
        letter => match unicode_width::UnicodeWidthChar::width(letter) {
            None | Some(0) => 0.0,
            Some(1) => 0.78,
            Some(_) => 1.15,
        },
    };
    text.chars().map(width).sum::<f64>() * size
}

/// Truncates a text to a width, with an ellipsis.
pub(super) fn fit(text: &str, size: f64, width: f64) -> String {
    let text = clean(text);
    if measure(&text, size) <= width {
        return text;
    }
    let mut kept = String::new();
    let mut used = measure("…", size);
    for letter in text.chars() {
        used += measure(letter.encode_utf8(&mut [0; 4]), size);
        if used > width {
            break;
        }
        kept.push(letter);
    }
    let kept = kept.trim_end();
    if kept.is_empty() { String::new() } else { format!("{kept}…") }
}

/// Wraps a text to lines of a width. The last of `max` lines is truncated.
pub(super) fn wrap(text: &str, size: f64, width: f64, max: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in clean(text).split_whitespace() {
        let is_last = lines.len() == max;
        match lines.last_mut() {
            Some(line) if is_last || measure(&format!("{line} {word}"), size) <= width => {
                *line = format!("{line} {word}")
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| fit(line, size, width)).collect()
}
