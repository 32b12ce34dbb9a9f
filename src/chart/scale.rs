//! Maps values to pixels, and chooses round values for an axis.

use super::error::ChartError;

/// A linear map from values to pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scale {
    pub(super) min: f64,
    pub(super) max: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// Creates a scale over `min..=max`. A range without extent is widened.
    pub(super) fn new(min: f64, max: f64) -> Self {
        let (min, max) = if min.is_finite() && max.is_finite() { (min, max) } else { (0.0, 1.0) };
        if max > min {
            return Self { min, max, from: 0.0, to: 1.0 };
        }
        let pad = if min == 0.0 { 1.0 } else { min.abs() * 0.1 };
        Self { min: min - pad, max: min + pad, from: 0.0, to: 1.0 }
    }

    /// Creates a scale over the values, including 0 if `zero`, with round ends unless the user sets them.
    pub(super) fn over(
        values: impl Iterator<Item = f64>,
        zero: bool,
        min: Option<f64>,
        max: Option<f64>,
    ) -> Result<Self, ChartError> {
        let start = if zero { (0.0, 0.0) } else { (f64::INFINITY, f64::NEG_INFINITY) };
        let (low, high) = values.fold(start, |(low, high), value| (low.min(value), high.max(value)));
        let scale = Self::new(low, high);
        // A range that excludes 0 only because of padding starts at 0.
        let scale = if zero && low == 0.0 && high == 0.0 { Self::new(0.0, 1.0) } else { scale };
        let step = step(scale.max - scale.min, 5);
        let round = Self::new((scale.min / step).floor() * step, (scale.max / step).ceil() * step);
        let (low, high) = (min.unwrap_or(round.min), max.unwrap_or(round.max));
        if low >= high || !low.is_finite() || !high.is_finite() {
            return Err(ChartError::BadRange { min: format_value(low), max: format_value(high) });
        }
        Ok(Self::new(low, high))
    }

    pub(super) fn to_pixels(self, from: f64, to: f64) -> Self {
        Self { from, to, ..self }
    }

    /// Returns the pixel of a value. Values outside of the range are drawn at its ends.
    pub(super) fn at(&self, value: f64) -> f64 {
        let share = ((value - self.min) / (self.max - self.min)).clamp(0.0, 1.0);
        self.from + share * (self.to - self.from)
    }

    /// Returns round values with their labels.
    pub(super) fn ticks(&self, count: usize) -> Vec<(f64, String)> {
        let step = step(self.max - self.min, count);
        let first = (self.min / step).ceil();
        let mut ticks: Vec<(f64, String)> = Vec::new();
        for index in 0..50 {
            let value = (first + f64::from(index)) * step;
            if value > self.max + step * 1e-6 {
                break;
            }
            let label = format_tick(value, step, self.min.abs().max(self.max.abs()));
            if ticks.last().is_none_or(|(_, last)| *last != label) {
                ticks.push((value, label));
            }
        }
        ticks
    }
}

/// Returns 1, 2 or 5 times a power of ten, so that about `count` steps fill the span.
pub(super) fn step(span: f64, count: usize) -> f64 {
    let raw = span / count.max(1) as f64;
    if !(raw.is_finite() && raw > 0.0) {
        return 1.0;
    }
    let power = 10f64.powf(raw.log10().floor());
    let factor = raw / power;
    let factor = [1.0, 2.0, 5.0].into_iter().find(|round| factor <= *round * 1.000_001).unwrap_or(10.0);
    let step = factor * power;
    if step > 0.0 && step.is_finite() { step } else { raw }
}

/// Formats the value of a tick with the digits that tell it from its neighbours. All ticks of an axis have the unit of
/// `size`, its largest value.
fn format_tick(value: f64, step: f64, size: f64) -> String {
    let value = if value.abs() < step * 1e-6 { 0.0 } else { value };
    if !(1e-4..1e15).contains(&size) {
        return if value == 0.0 { "0".to_owned() } else { trim_zeros(&format!("{value:.1e}")) };
    }
    let units = [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")];
    let (divisor, unit) = units.into_iter().find(|(unit, _)| size >= 10.0 * unit).unwrap_or((1.0, ""));
    let decimals = (-(step / divisor).log10().floor()).clamp(0.0, 6.0) as usize;
    let number = format!("{:.decimals$}", value / divisor);
    let unit = if value == 0.0 { "" } else { unit };
    format!("{}{unit}", trim_zeros(&number).replace('-', "−"))
}

fn trim_zeros(number: &str) -> String {
    if let Some((digits, exponent)) = number.split_once('e') {
        return format!("{}e{exponent}", trim_zeros(digits));
    }
    if !number.contains('.') {
        return number.to_owned();
    }
    number.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a value for people: six digits, with a separator of thousands.
pub(super) fn format_value(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e15).contains(&size) {
        return trim_zeros(&format!("{value:.3e}")).replace('-', "−");
    }
    let decimals = (5.0 - size.max(1.0).log10().floor()).clamp(0.0, 6.0) as usize;
    let text = trim_zeros(&format!("{size:.decimals$}"));
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        // Numbers of four digits may be years.
        if index > 0 && (whole.len() - index) % 3 == 0 && whole.len() > 4 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let sign = if value < 0.0 { "−" } else { "" };
    if fraction.is_empty() { format!("{sign}{grouped}") } else { format!("{sign}{grouped}.{fraction}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_distinct() {
        let labels = |min: f64, max: f64| {
            let ticks = Scale::new(min, max).ticks(5);
            ticks.into_iter().map(|(_, label)| label).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(labels(0.0, 10.0), "0 2 4 6 8 10");
        assert_eq!(labels(-1.0, 1.0), "−1 −0.5 0 0.5 1");
        assert_eq!(labels(0.0, 120_000.0), "0 50k 100k");
        assert_eq!(labels(2019.0, 2026.0), "2020 2022 2024 2026");
        assert_eq!(labels(1e18, 1e18), "9e17 9.5e17 1e18 1.1e18");
        assert_eq!(labels(0.001, 0.004), "0.001 0.002 0.003 0.004");
    }

    #[test]
    fn values_are_grouped_and_short() {
        assert_eq!(format_value(1_234_567.0), "1,234,567");
        assert_eq!(format_value(-0.123_456_7), "−0.12346");
        assert_eq!(format_value(2026.0), "2026");
        assert_eq!(format_value(0.0), "0");
        assert_eq!(format_value(1e200), "1e200");
    }
}
