//! What time it is, and how people and protocols write it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// `2026-11-15`, in UTC.
pub fn date(at: u64) -> String {
    let (year, month, day) = civil((at / 86_400_000).cast_signed());
    format!("{year:04}-{month:02}-{day:02}")
}

/// `2026-11-15T09:30:00Z`.
pub fn iso(at: u64) -> String {
    let seconds = at / 1000 % 86_400;
    format!("{}T{:02}:{:02}:{:02}Z", date(at), seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// `2026-11-15 09:30 UTC`.
pub fn moment(at: u64) -> String {
    let seconds = at / 1000 % 86_400;
    format!("{} {:02}:{:02} UTC", date(at), seconds / 3600, seconds / 60 % 60)
}

/// `3 min ago`.
pub fn ago(at: u64) -> String {
    match now().saturating_sub(at) / 1000 {
        0..60 => "just now".to_owned(),
        seconds @ 60..3_600 => format!("{} min ago", seconds / 60),
        seconds @ 3_600..86_400 => format!("{} h ago", seconds / 3_600),
        seconds => format!("{} d ago", seconds / 86_400),
    }
}

/// Howard Hinnant's days-to-civil: exact for the proleptic Gregorian calendar.
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
        assert_eq!(moment(951_827_696_000), "2000-02-29 12:34 UTC");
        assert_eq!(ago(now() - 7_300_000), "2 h ago");
    }
}
