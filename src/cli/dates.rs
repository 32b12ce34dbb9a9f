//! Days and times as people write them, in UTC.

use std::time::SystemTime;

/// `2026-11-15`.
pub(super) fn today() -> String {
    date(now() / 1_000)
}

/// `2026-11-15 09:30 UTC`, of milliseconds since 1970.
pub(super) fn moment(milliseconds: u64) -> String {
    let seconds = milliseconds / 1_000;
    format!("{} {:02}:{:02} UTC", date(seconds), seconds / 3_600 % 24, seconds / 60 % 60)
}

/// `3 min ago`, of milliseconds since 1970.
pub(super) fn ago(milliseconds: u64) -> String {
    let seconds = now().saturating_sub(milliseconds) / 1_000;
    match seconds {
        0..60 => "just now".to_owned(),
        60..3_600 => format!("{} min ago", seconds / 60),
        3_600..86_400 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn date(seconds: u64) -> String {
    let days = (seconds / 86_400).cast_signed();
    // Howard Hinnant's days-to-civil: exact for the proleptic Gregorian calendar.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_written_as_people_do() {
        assert_eq!(moment(0), "1970-01-01 00:00 UTC");
        assert_eq!(moment(951_827_696_000), "2000-02-29 12:34 UTC");
        assert_eq!(moment(1_795_000_000_000), "2026-11-18 11:06 UTC");
        assert_eq!(ago(now() - 7_300_000), "2 h ago");
    }
}
