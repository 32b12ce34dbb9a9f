//! Dates and times as seconds since 1970, without time zones.

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
pub(super) const DAY: f64 = 86_400.0;

/// Reads `2026-11`, `2026-11-15` or `2026-11-15T02:30:00`. A time zone is read and ignored.
pub(super) fn parse(text: &str) -> Option<f64> {
    let text = text.trim();
    let (date, clock) = match text.find(['T', ' ']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let separator = if date.contains('/') { '/' } else { '-' };
    let mut parts = date.split(separator);
    let year = parts.next().filter(|year| year.len() == 4)?.parse::<i64>().ok()?;
    let month = number(parts.next()?, 1, 12)?;
    let day = parts.next().map_or(Some(1), |day| number(day, 1, 31))?;
    if parts.next().is_some() {
        return None;
    }
    let seconds = clock.map_or(Some(0.0), parse_clock)?;
    Some(days(year, month, day) as f64 * DAY + seconds)
}

fn parse_clock(text: &str) -> Option<f64> {
    let end = text.find(['Z', '+', '-']).unwrap_or(text.len());
    let mut parts = text[..end].split(':');
    let hour = number(parts.next()?, 0, 23)?;
    let minute = number(parts.next()?, 0, 59)?;
    let second = parts.next().map_or(Some(0.0), |second| second.parse::<f64>().ok())?;
    (parts.next().is_none() && (0.0..61.0).contains(&second)).then_some((hour * 3_600 + minute * 60) as f64 + second)
}

fn number(text: &str, min: i64, max: i64) -> Option<i64> {
    let digits = !text.is_empty() && text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && (min..=max).contains(number))
}

/// Returns the days from 1970-01-01 to a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years start in March, so that the leap day is the last one.
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

/// Returns year, month and day.
fn date(seconds: f64) -> (i64, i64, i64) {
    let days = (seconds / DAY).floor() as i64 + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = (shifted + 2) % 12 + 1;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

pub(super) fn format(seconds: f64) -> String {
    let (year, month, day) = date(seconds);
    let clock = seconds.rem_euclid(DAY) as i64;
    let date = format!("{year:04}-{month:02}-{day:02}");
    if clock == 0 { date } else { format!("{date} {:02}:{:02}", clock / 3_600, clock / 60 % 60) }
}

/// Returns about `count` round times between two times, with their labels.
pub(super) fn ticks(from: f64, to: f64, count: usize) -> Vec<(f64, String)> {
    let span = (to - from).max(1.0) / count.max(1) as f64;
    let steps = [1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 1_800.0, 3_600.0, 10_800.0, 21_600.0, 43_200.0];
    let days = [DAY, 2.0 * DAY, 7.0 * DAY, 14.0 * DAY];
    let mut ticks = Vec::new();
    if let Some(step) = steps.iter().chain(&days).find(|step| **step >= span) {
        let mut at = (from / step).ceil() * step;
        while at <= to && ticks.len() < 60 {
            let (_, month, day) = date(at);
            let clock = at.rem_euclid(DAY) as i64;
            let date = format!("{day} {}", MONTHS[(month - 1) as usize]);
            let label = if *step >= DAY || clock == 0 {
                date
            } else if *step >= 60.0 {
                format!("{:02}:{:02}", clock / 3_600, clock / 60 % 60)
            } else {
                format!("{:02}:{:02}:{:02}", clock / 3_600, clock / 60 % 60, clock % 60)
            };
            ticks.push((at, label));
            at += step;
        }
        return ticks;
    }
    let months = [1, 3, 6, 12, 24, 60, 120, 240, 600, 1_200, 2_400, 6_000, 12_000];
    let step = months.into_iter().find(|months| *months as f64 * 30.4 * DAY >= span).unwrap_or(24_000);
    let (year, month, _) = date(from);
    let mut index = (year * 12 + month - 1).div_euclid(step) * step;
    while ticks.len() < 60 {
        let (year, month) = (index.div_euclid(12), index.rem_euclid(12));
        let at = self::days(year, month + 1, 1) as f64 * DAY;
        if at > to {
            break;
        }
        if at >= from {
            let name = MONTHS[month as usize];
            ticks.push((at, if step >= 12 { year.to_string() } else { format!("{name} {year}") }));
        }
        index += step;
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_survive_a_round_trip() {
        for text in ["1970-01-01", "2000-02-29", "1899-12-31", "2026-11-15 02:30", "0001-01-01"] {
            assert_eq!(format(parse(text).unwrap()), text);
        }
        assert_eq!(parse("2026-11-15T02:30:00Z"), parse("2026-11-15 02:30"));
        for text in ["2026", "2026-13-01", "26-01-01", "2026-01-01T25:00", "10:30", "2026-01-01-01", ""] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn ticks_are_round_and_within_the_range() {
        let range = |from: &str, to: &str| {
            let ticks = ticks(parse(from).unwrap(), parse(to).unwrap(), 6);
            ticks.into_iter().map(|(_, label)| label).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(range("2026-01-15", "2026-06-20"), "Feb 2026, Mar 2026, Apr 2026, May 2026, Jun 2026");
        assert_eq!(range("1990-01-01", "2026-01-01"), "1990, 2000, 2010, 2020");
        assert_eq!(range("2026-01-01T06:00", "2026-01-01T10:00"), "06:00, 07:00, 08:00, 09:00, 10:00");
    }
}
