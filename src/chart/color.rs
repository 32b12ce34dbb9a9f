//! The colours of pictures. They are readable on a light and on a dark background, and with colour blindness.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Colours of series. Each has a contrast of at least 3 to both backgrounds, and all differ in the three common forms of
/// colour blindness; a test measures both.
const SERIES: [&str; 8] = ["#1998ff", "#c8550a", "#009276", "#8512fd", "#c28b09", "#ed42c7", "#3e6978", "#845a33"];
const SEQUENCE: [&str; 5] = ["#4b3a9b", "#2f6fb0", "#1f9a8a", "#74c365", "#f2d94e"];
/// Below zero, around zero, above zero.
const DIVERGING: [&str; 5] = ["#1f5fa8", "#7fb0dc", "#d9d9d9", "#e59a5c", "#a8480a"];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Theme {
    // A PNG is light.
    #[default]
    Auto,
    Light,
    Dark,
}

impl Theme {
    pub(super) fn style(self) -> String {
        let light = rules("#ffffff", "#1f2328", "#57606a", "#d8dee4", "#eef1f4");
        let dark = rules("#14161a", "#e6e8eb", "#a0a8b2", "#3a4048", "#252a31");
        match self {
            Theme::Auto => format!("{light}@media(prefers-color-scheme:dark){{{dark}}}"),
            Theme::Light => light,
            Theme::Dark => dark,
        }
    }
}

fn rules(background: &str, text: &str, muted: &str, grid: &str, panel: &str) -> String {
    format!(
        ".bg{{fill:{background}}}.t,.b{{fill:{text}}}.b{{font-weight:600}}.m{{fill:{muted}}}.k{{fill:#111}}\
         .w{{fill:#fff}}.grid{{stroke:{grid}}}.axis{{stroke:{muted}}}.edge{{stroke:{background}}}\
         .ink{{stroke:{text}}}.solid{{fill:{text}}}.panel{{fill:{panel}}}.node{{fill:{panel};stroke:{muted}}}\
         .key{{cursor:pointer}}"
    )
}

/// Returns the colour of a series. Colours repeat after eight series, so lines also differ in their dashes.
pub(super) fn series(index: usize) -> &'static str {
    SERIES[index % SERIES.len()]
}

/// Returns the colour of `share`, which is between 0 and 1, on a scale without a middle.
pub(super) fn sequence(share: f64) -> String {
    mix(&SEQUENCE, share)
}

/// Returns the colour of `share`, which is between 0 and 1, on a scale whose middle is zero.
pub(super) fn diverging(share: f64) -> String {
    mix(&DIVERGING, share)
}

fn mix(stops: &[&str; 5], share: f64) -> String {
    let at = share.clamp(0.0, 1.0) * 4.0;
    let index = (at.floor() as usize).min(3);
    let part = at - index as f64;
    let (from, to) = (channels(stops[index]), channels(stops[index + 1]));
    let mixed: Vec<u8> =
        from.iter().zip(to).map(|(from, to)| (from + (to - from) * part).round().clamp(0.0, 255.0) as u8).collect();
    format!("#{:02x}{:02x}{:02x}", mixed[0], mixed[1], mixed[2])
}

/// Returns the class of text that is readable on `color`.
pub(super) fn text_on(color: &str) -> &'static str {
    if luminance(color) > 0.18 { "k" } else { "w" }
}

/// Red, green and blue between 0 and 255.
fn channels(color: &str) -> [f64; 3] {
    let value = u32::from_str_radix(color.trim_start_matches('#'), 16).unwrap_or(0);
    [f64::from(value >> 16 & 255), f64::from(value >> 8 & 255), f64::from(value & 255)]
}

fn linear(color: &str) -> [f64; 3] {
    channels(color).map(|channel| {
        let channel = channel / 255.0;
        if channel <= 0.04045 { channel / 12.92 } else { ((channel + 0.055) / 1.055).powf(2.4) }
    })
}

/// Relative luminance as WCAG defines it.
fn luminance(color: &str) -> f64 {
    let [red, green, blue] = linear(color);
    0.2126 * red + 0.7152 * green + 0.0722 * blue
}

#[cfg(test)]
#[path = "color_tests.rs"]
mod tests;
