//! Reads the time, and formats and parses it.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::fmt::rfc2822;
use jiff::tz::TimeZone;
use rustix::time::ClockId;

/// A clock that also runs while the machine is suspended, and that cannot be set.
#[cfg(target_os = "linux")]
const BOOT_CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const BOOT_CLOCK: ClockId = ClockId::Monotonic;

/// Returns the milliseconds since 1970.
pub fn now() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0)
}

/// Returns the time since the machine started, also while it was suspended. Setting the clock does not change it.
pub fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(BOOT_CLOCK);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// Formats a time as `2026-11-15`, in UTC.
pub fn date(at: u64) -> String {
    format(at, "%Y-%m-%d")
}

/// Formats a time as `2026-11-15T09:30:00Z`.
pub fn iso(at: u64) -> String {
    format(at, "%Y-%m-%dT%H:%M:%SZ")
}

/// Formats a time as `2026-11-15 09:30 UTC`.
pub fn moment(at: u64) -> String {
    format(at, "%Y-%m-%d %H:%M UTC")
}

/// Formats a time in UTC. A time that the calendar does not reach becomes its last one.
fn format(at: u64, pattern: &str) -> String {
    let timestamp = i64::try_from(at).ok().and_then(|at| Timestamp::from_millisecond(at).ok());
    timestamp.unwrap_or(Timestamp::MAX).strftime(pattern).to_string()
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
/// `2026-11-15T10:30:00+01:00`. Returns milliseconds since 1970, in whole seconds. `None` if it is neither, or before
/// 1970.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let timestamp = if text.contains(['T', 't', ' ']) {
        text.parse().ok()?
    } else {
        text.parse::<Date>().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp()
    };
    u64::try_from(timestamp.as_second().checked_mul(1000)?).ok()
}

/// Parses a time in the form of HTTP headers, such as `Sun, 15 Nov 2026 09:30:00 GMT`. Returns milliseconds since 1970.
/// `None` if it has another form, or is before 1970.
pub fn parse_http(text: &str) -> Option<u64> {
    let timestamp = rfc2822::DateTimeParser::new().parse_timestamp(text.trim()).ok()?;
    u64::try_from(timestamp.as_millisecond()).ok()
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
        assert_eq!(parse_http(" Tue, 29 Feb 2000 00:00:00 GMT"), Some(951_782_400_000));
        assert_eq!(parse_http("2000-02-29T00:00:00Z"), None);
        assert_eq!(moment(951_827_696_000), "2000-02-29 12:34 UTC");
        assert_eq!(ago(now() - 7_300_000), "2 h ago");
    }

    #[test]
    fn the_time_since_the_start_only_grows() {
        let (earlier, later) = (since_boot(), since_boot());
        assert!(earlier > Duration::ZERO && later >= earlier);
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
