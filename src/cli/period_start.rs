//! Reads the start of a period from a flag: a time span before now, a day or a time.

use crate::clock;

/// A value of `--since` that is neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("write a time span such as `7d`, `12h` or `30m`, a day such as `2026-11-15`, or a time with a zone")]
pub(super) struct SinceError;

/// Returns milliseconds since 1970. Fails if the text is neither a time span, a day nor a time.
pub(super) fn parse_since(text: &str) -> Result<u64, SinceError> {
    parse_at(text, clock::now())
}

fn parse_at(text: &str, now: u64) -> Result<u64, SinceError> {
    let units = [("m", 60_000), ("h", 3_600_000), ("d", 86_400_000), ("w", 7 * 86_400_000)];
    let span = units.iter().find_map(|(unit, milliseconds)| {
        let number: u32 = text.strip_suffix(unit)?.parse().ok()?;
        (number > 0).then(|| u64::from(number) * milliseconds)
    });
    match span {
        Some(span) => Ok(now.saturating_sub(span)),
        None => clock::parse(text).ok_or(SinceError),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_a_span_a_day_or_a_time() {
        let now = 1_790_000_000_000;
        for (text, expected) in [
            ("7d", Ok(now - 7 * 86_400_000)),
            ("2w", Ok(now - 14 * 86_400_000)),
            ("90m", Ok(now - 5_400_000)),
            ("2000-02-29", Ok(951_782_400_000)),
            ("2000-02-29T00:00:01Z", Ok(951_782_401_000)),
            ("", Err(SinceError)),
            ("7", Err(SinceError)),
            ("0d", Err(SinceError)),
            ("-1d", Err(SinceError)),
            ("last week", Err(SinceError)),
        ] {
            assert_eq!(parse_at(text, now), expected, "{text}");
        }
    }
}
