//! Reads the time, and formats and parses it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the milliseconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Formats a time as `2026-11-15`, in UTC.
pub fn date(at: u64) -> String {
    let (year, month, day) = civil((at / 86_400_000).cast_signed());
    format!("{year:04}-{month:02}-{day:02}")
}

/// Formats a time as `2026-11-15T09:30:00Z`.
pub fn iso(at: u64) -> String {
    let seconds = at / 1000 % 86_400;
    format!("{}T{:02}:{:02}:{:02}Z", date(at), seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Formats a time as `2026-11-15 09:30 UTC`.
pub fn moment(at: u64) -> String {
    let seconds = at / 1000 % 86_400;
    format!("{} {:02}:{:02} UTC", date(at), seconds / 3600, seconds / 60 % 60)
}

/// Formats the time since `at` as `3 min ago`.
pub fn ago(at: u64) -> String {
    match now().saturating_sub(at) / 1000 {
        0..60 => "just now".to_owned(),
        seconds @ 60..3_600 => format!("{} min ago", seconds / 60),
        seconds @ 3_600..86_400 => format!("{} h ago", seconds / 3_600),
        seconds => format!("{} d ago", seconds / 86_400),
    }
}

/// Parses a day such as `2026-11-15`, which starts at midnight UTC, or a time such as `2026-11-15T09:30:00Z` or
/// `2026-11-15T10:30:00+01:00`. Returns milliseconds since 1970. `None` if it is neither, or before 1970.
pub fn parse(text: &str) -> Option<u64> {
    let (day, time) = match text.trim().split_once(['T', 't', ' ']) {
        Some((day, time)) => (day, Some(time)),
        None => (text.trim(), None),
    };
    let midnight = days(day)? * 86_400;
    let seconds = match time {
        Some(time) => midnight + of_day(time)?,
        None => midnight,
    };
    u64::try_from(seconds.checked_mul(1000)?).ok()
}

/// Parses `09:30:00.5+01:00` into seconds of the day in UTC. The result may fall on the day before or after.
fn of_day(time: &str) -> Option<i64> {
    let end = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(end);
    let clock = clock.split_once('.').map_or(Some(clock), |(clock, rest)| {
        (!rest.is_empty() && rest.bytes().all(|digit| digit.is_ascii_digit())).then_some(clock)
    })?;
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
    let offset = match zone {
        "Z" | "z" => 0,
        _ => {
            let [hours, minutes] = numbers(zone.get(1..)?, ':', [2, 2])?;
            (hours < 24 && minutes < 60).then_some(())?;
            (hours * 3600 + minutes * 60) * if zone.starts_with('-') { -1 } else { 1 }
        }
    };
    // A leap second counts as the following second.
    (hour < 24 && minute < 60 && second <= 60).then_some(hour * 3600 + minute * 60 + second - offset)
}

/// Parses `2026-11-15` into days since 1970.
fn days(day: &str) -> Option<i64> {
    let [year, month, day] = numbers(day, '-', [4, 2, 2])?;
    (1..=12).contains(&month).then_some(())?;
    // The inverse of `civil`.
    let shifted_year = year - i64::from(month <= 2);
    let (era, year_of_era) = (shifted_year.div_euclid(400), shifted_year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468;
    // A day that the month does not have converts back to another date.
    (civil(days) == (year, month, day)).then_some(days)
}

/// Parses numbers of the given digit counts, separated by `sign`.
fn numbers<const N: usize>(text: &str, sign: char, digits: [usize; N]) -> Option<[i64; N]> {
    let parts: [&str; N] = text.split(sign).collect::<Vec<_>>().try_into().ok()?;
    let mut numbers = [0; N];
    for ((number, part), digits) in numbers.iter_mut().zip(parts).zip(digits) {
        let plain = part.len() == digits && part.bytes().all(|digit| digit.is_ascii_digit());
        *number = plain.then(|| part.parse().ok()).flatten()?;
    }
    Some(numbers)
}

/// Converts days since 1970 to year, month and day with Howard Hinnant's algorithm. Exact for the proleptic Gregorian
/// calendar.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_the_calendar_has_them() {
        for (at, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(iso(at), expected);
        }
        for at in (0..4_200_000_000_000).step_by(86_400_000 * 17 + 12_345_000) {
            assert_eq!(parse(&iso(at)), Some(at / 1000 * 1000));
        }
        assert_eq!(moment(951_827_696_000), "2000-02-29 12:34 UTC");
        assert_eq!(ago(now() - 7_300_000), "2 h ago");
    }
    #[test]
    fn days_and_times_are_read_and_nothing_else_is() {
        for (text, expected) in [
            ("2000-02-29", Some(951_782_400_000)),
            (" 2000-02-29T00:00:01Z ", Some(951_782_401_000)),
            ("2000-02-29T01:00:00.25+01:00", Some(951_782_400_000)),
            ("2000-02-28T23:30:00-00:30", Some(951_782_400_000)),
            ("2001-02-29", None),
            ("2000-13-01", None),
            ("2000-2-9", None),
            ("2000-02-29T00:00:00", None),
            ("2000-02-29T24:00:00Z", None),
            ("2000-02-29T00:00:00+1", None),
            ("1969-12-31", None),
            ("yesterday", None),
            ("", None),
            ("+000-02-29", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}
