//! Shows numbers as the number format of their cell does: dates, times, percentages and plain numbers.

use std::collections::HashMap;

use crate::document::archive::OfficeArchive;
use crate::document::error::DocumentError;
use crate::document::relations::relations;
use crate::document::xml::{XmlEvent, XmlReader, decode};

/// How a number is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NumberKind {
    Plain,
    Percent,
    Date,
    Time,
    DateTime,
}

/// The kind of number of each cell style.
#[derive(Debug)]
pub(super) struct NumberFormats {
    styles: Vec<NumberKind>,
    has_1904_dates: bool,
}

pub(super) fn read_formats(
    archive: &mut OfficeArchive<'_>,
    workbook: &str,
    has_1904_dates: bool,
) -> Result<NumberFormats, DocumentError> {
    let mut formats = NumberFormats { styles: Vec::new(), has_1904_dates };
    let relation = relations(archive, workbook)?.into_iter().find(|relation| relation.kind == "styles");
    let Some(bytes) = relation.map(|relation| archive.read(&relation.target)).transpose()?.flatten() else {
        return Ok(formats);
    };
    let text = decode(bytes)?;
    let mut codes: HashMap<u32, String> = HashMap::new();
    let mut in_cells = false;
    let mut reader = XmlReader::new(&text);
    while let Some(event) = reader.next()? {
        match event {
            XmlEvent::Open(element) => match element.name() {
                "numFmt" => {
                    if let (Some(id), Some(code)) = (element.number("numFmtId"), element.attribute("formatCode")) {
                        codes.insert(id, code);
                    }
                }
                "cellXfs" => in_cells = true,
                "xf" if in_cells => {
                    let id = element.number("numFmtId").unwrap_or(0);
                    formats.styles.push(codes.get(&id).map_or_else(|| builtin_kind(id), |code| kind(code)));
                }
                _ => {}
            },
            XmlEvent::Close(close) if close.name() == "cellXfs" => in_cells = false,
            XmlEvent::Close(_) | XmlEvent::Text(_) => {}
        }
    }
    Ok(formats)
}

impl NumberFormats {
    /// Returns a stored number as its cell shows it. Other text is returned as it is.
    pub(super) fn show(&self, value: &str, style: usize) -> String {
        let kind = self.styles.get(style).copied().unwrap_or(NumberKind::Plain);
        let Some(number) = value.parse::<f64>().ok().filter(|number| number.is_finite()) else {
            return value.to_owned();
        };
        match kind {
            NumberKind::Plain => plain(number),
            NumberKind::Percent => format!("{}%", plain(number * 100.0)),
            NumberKind::Date | NumberKind::Time | NumberKind::DateTime => {
                show_time(number, kind, self.has_1904_dates).unwrap_or_else(|| plain(number))
            }
        }
    }
}

/// Returns a number without the noise of binary fractions.
fn plain(number: f64) -> String {
    let rounded = format!("{number:.14e}").parse::<f64>().unwrap_or(number);
    if rounded != 0.0 && (rounded.abs() >= 1e15 || rounded.abs() < 1e-9) {
        format!("{rounded:e}")
    } else {
        rounded.to_string()
    }
}

fn builtin_kind(id: u32) -> NumberKind {
    match id {
        9 | 10 => NumberKind::Percent,
        14..=17 | 27..=31 | 34..=36 | 50..=58 => NumberKind::Date,
        18..=21 | 32 | 33 | 45..=47 => NumberKind::Time,
        22 => NumberKind::DateTime,
        _ => NumberKind::Plain,
    }
}

/// Finds the kind of a format code by its letters outside of quotes, escapes and brackets.
fn kind(code: &str) -> NumberKind {
    let (mut has_date, mut has_time, mut has_percent) = (false, false, false);
    let mut letters = code.split(';').next().unwrap_or_default().chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => _ = letters.by_ref().find(|letter| *letter == '"'),
            '\\' | '_' | '*' => _ = letters.next(),
            '[' => {
                let inside: String = letters.by_ref().take_while(|letter| *letter != ']').collect();
                // `[h]` counts hours; `[Red]` and `[$-409]` say nothing about the kind.
                has_time |= inside.chars().all(|letter| matches!(letter.to_ascii_lowercase(), 'h' | 'm' | 's'))
                    && !inside.is_empty();
            }
            '%' => has_percent = true,
            letter => match letter.to_ascii_lowercase() {
                'y' | 'd' => has_date = true,
                'h' | 's' => has_time = true,
                // The letter m means months, or minutes next to hours; `h` or `s` decides then.
                'm' if !code.to_ascii_lowercase().contains(['h', 's']) => has_date = true,
                _ => {}
            },
        }
    }
    // "General" and the names of colours are no dates.
    if code.eq_ignore_ascii_case("general") {
        return NumberKind::Plain;
    }
    match (has_date, has_time) {
        (true, true) => NumberKind::DateTime,
        (true, false) => NumberKind::Date,
        (false, true) => NumberKind::Time,
        (false, false) if has_percent => NumberKind::Percent,
        (false, false) => NumberKind::Plain,
    }
}

/// Returns the ISO form of a serial date. `None` if it is out of range.
fn show_time(serial: f64, kind: NumberKind, has_1904_dates: bool) -> Option<String> {
    if !(0.0..2_958_466.0).contains(&serial) {
        return None;
    }
    let seconds = (serial * 86_400.0).round();
    let (days, second) = ((seconds / 86_400.0).floor(), seconds.rem_euclid(86_400.0) as u32);
    let time = match (second % 60, kind) {
        (0, NumberKind::DateTime) => format!("{:02}:{:02}", second / 3600, second / 60 % 60),
        _ => format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60),
    };
    if kind == NumberKind::Time {
        // A format such as `[h]:mm` counts more than a day.
        let hours = days as u64 * 24 + u64::from(second / 3600);
        return Some(format!("{hours:02}:{:02}:{:02}", second / 60 % 60, second % 60));
    }
    let days = days as i64;
    // The format has a 29th of February 1900, which was not. Days before it are off by one.
    let epoch = match (has_1904_dates, days) {
        (true, _) => 24_107,
        (false, ..60) => 25_568,
        (false, _) => 25_569,
    };
    let date = date_of(days - epoch);
    Some(if kind == NumberKind::Date && second == 0 { date } else { format!("{date} {time}") })
}

/// Returns the ISO date of a day counted from 1970-01-01.
fn date_of(days: i64) -> String {
    // Years start in March, so that the leap day is the last one.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Returns the serial number of an ISO date or date with time, in the 1900 system. `None` if the text is no date.
pub(super) fn serial_of(text: &str) -> Option<f64> {
    let (date, time) = text.split_once(['T', ' ']).map_or((text, None), |(date, time)| (date, Some(time)));
    let mut parts = date.split('-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || year.len() != 4 || month.len() != 2 || day.len() != 2 {
        return None;
    }
    let (year, month, day): (i64, i64, i64) = (year.parse().ok()?, month.parse().ok()?, day.parse().ok()?);
    let shifted = if month <= 2 { year - 1 } else { year };
    let era = shifted.div_euclid(400);
    let year_of_era = shifted.rem_euclid(400);
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468;
    // The round trip refuses the 30th of February.
    if date_of(days) != date {
        return None;
    }
    let serial = days + 25_569;
    if serial < 61 {
        return None;
    }
    let seconds = match time {
        None => 0.0,
        Some(time) => {
            let mut parts = time.trim_end_matches('Z').split(':');
            let hour: f64 = parts.next()?.parse().ok()?;
            let minute: f64 = parts.next()?.parse().ok()?;
            let second: f64 = parts.next().map_or(Ok(0.0), str::parse).ok()?;
            let is_time = (0.0..24.0).contains(&hour) && (0.0..60.0).contains(&minute) && (0.0..60.0).contains(&second);
            if !is_time {
                return None;
            }
            hour * 3600.0 + minute * 60.0 + second
        }
    };
    Some(serial as f64 + seconds / 86_400.0)
}

/// Returns whether a format code shows a date or a time.
pub(super) fn is_time_format(code: &str) -> bool {
    matches!(kind(code), NumberKind::Date | NumberKind::Time | NumberKind::DateTime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_dates_become_iso_dates() {
        let show = |serial, kind| show_time(serial, kind, false).unwrap();
        assert_eq!(show(1.0, NumberKind::Date), "1900-01-01");
        assert_eq!(show(59.0, NumberKind::Date), "1900-02-28");
        assert_eq!(show(61.0, NumberKind::Date), "1900-03-01");
        assert_eq!(show(46_022.0, NumberKind::Date), "2025-12-31");
        assert_eq!(show(46_022.75, NumberKind::DateTime), "2025-12-31 18:00");
        assert_eq!(show(1.5, NumberKind::Time), "36:00:00");
        assert_eq!(show_time(0.0, NumberKind::Date, true).unwrap(), "1904-01-01");
        for day in [61, 25_569, 36_585, 60_000, 1_000_000] {
            assert_eq!(serial_of(&show(f64::from(day), NumberKind::Date)), Some(f64::from(day)));
        }
        assert_eq!(serial_of("2025-02-30"), None);
        assert_eq!(serial_of("2025-12-31T18:00"), Some(46_022.75));
    }

    #[test]
    fn format_codes_have_a_kind() {
        for (code, expected) in [
            ("General", NumberKind::Plain),
            ("#,##0.00", NumberKind::Plain),
            ("0.0%", NumberKind::Percent),
            ("yyyy-mm-dd", NumberKind::Date),
            ("mmm yyyy", NumberKind::Date),
            ("[h]:mm:ss", NumberKind::Time),
            ("d/m/yy h:mm", NumberKind::DateTime),
            ("[Red]0.00;[Blue]-0.00", NumberKind::Plain),
            ("0 \"days\"", NumberKind::Plain),
            ("[$-409]d-mmm;@", NumberKind::Date),
        ] {
            assert_eq!(kind(code), expected, "{code}");
        }
    }
}
