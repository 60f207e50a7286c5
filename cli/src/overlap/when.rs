//! Instants on the command line: RFC 3339, or the time since then.

use std::time::Duration;

const DAY_SECONDS: i64 = 86_400;

/// An instant as given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Nanoseconds of Unix time.
    At(u64),
    /// Time before now.
    Ago(Duration),
}

impl When {
    /// Returns the instant in nanoseconds of Unix time.
    pub fn unix_ns(self, now_ns: u64) -> u64 {
        match self {
            Self::At(ns) => ns,
            Self::Ago(ago) => {
                now_ns.saturating_sub(u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX))
            }
        }
    }
}

impl std::str::FromStr for When {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        ago(text)
            .map(Self::Ago)
            .or_else(|| rfc3339(text).map(Self::At))
            .ok_or("expected 2026-01-31T12:00:00Z, or how long ago: 90s, 15m, 2h, 1d")
    }
}

fn ago(text: &str) -> Option<Duration> {
    let unit = match text.as_bytes().last()? {
        b's' => 1,
        b'm' => 60,
        b'h' => 3_600,
        b'd' => 86_400,
        _ => return None,
    };
    let digits = &text[..text.len() - 1];
    let count = number(digits, 1..=9)?;
    Some(Duration::from_secs(count.unsigned_abs() * unit))
}

/// Parses digits only. A sign, which `parse` would accept, is refused.
fn number(digits: &str, lengths: std::ops::RangeInclusive<usize>) -> Option<i64> {
    let fits = lengths.contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    fits.then(|| digits.parse().ok()).flatten()
}

/// Parses RFC 3339, section 5.6, from 1970 on. A leap second counts as the second after it.
fn rfc3339(text: &str) -> Option<u64> {
    let (date, rest) = text.split_at_checked(10)?;
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let zone_at = rest.find(['Z', 'z', '+', '-'])?;
    let (time, zone) = rest.split_at(zone_at);
    let [year, month, day] = parts(date, '-')?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = parts(time, ':')?;
    let valid = year >= 1970
        && (1..=12).contains(&month)
        && (1..=days_of_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    let seconds = days(year, month, day) * DAY_SECONDS + hour * 3_600 + minute * 60 + second;
    let unix = seconds - offset_seconds(zone)?;
    number(fraction, 1..=18)?;
    let nanos = number(&format!("{fraction:0<9}")[..9], 9..=9)?;
    let unix_ns = u64::try_from(unix).ok()?.checked_mul(1_000_000_000)?;
    valid.then(|| unix_ns.checked_add(nanos.unsigned_abs())).flatten()
}

fn parts(text: &str, separator: char) -> Option<[i64; 3]> {
    let mut parts = text.split(separator);
    let first = if separator == '-' { 4 } else { 2 };
    let all = [
        number(parts.next()?, first..=first)?,
        number(parts.next()?, 2..=2)?,
        number(parts.next()?, 2..=2)?,
    ];
    parts.next().is_none().then_some(all)
}

fn offset_seconds(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let (hours, minutes) = (number(hours, 2..=2)?, number(minutes, 2..=2)?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3_600 + minutes * 60))
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Returns the days from 1970-01-01 to a date that is not before it.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let years: i64 = (1970..year).map(|year| if is_leap(year) { 366 } else { 365 }).sum();
    let months: i64 = (1..month).map(|month| days_of_month(year, month)).sum();
    years + months + day - 1
}

/// Returns the instant in RFC 3339, in UTC, to the millisecond.
pub fn to_rfc3339(unix_ns: u64) -> String {
    let (seconds, ms) = (unix_ns / 1_000_000_000, unix_ns / 1_000_000 % 1_000);
    let mut left = i64::try_from(seconds / 86_400).unwrap_or(0);
    let mut year = 1970;
    let length = |year| if is_leap(year) { 366 } else { 365 };
    while left >= length(year) {
        left -= length(year);
        year += 1;
    }
    let mut month = 1;
    while left >= days_of_month(year, month) {
        left -= days_of_month(year, month);
        month += 1;
    }
    let (day, of_day) = (left + 1, seconds % 86_400);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_rfc_3339() {
        for (text, ns) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:01.5z", 1_500_000_000),
            // From `date -u -d … +%s`.
            ("2024-02-29T12:34:56Z", 1_709_210_096_000_000_000),
            ("2026-11-22T08:40:00+02:00", 1_795_329_600_000_000_000),
            ("2026-11-22 08:40:00-00:30", 1_795_338_600_000_000_000),
            ("2000-12-31T23:59:60Z", 978_307_200_000_000_000),
            ("2026-11-22T08:40:00.123456789Z", 1_795_336_800_123_456_789),
        ] {
            assert_eq!(text.parse(), Ok(When::At(ns)), "{text}");
        }
    }

    #[test]
    fn wrong_instants_are_refused() {
        for text in [
            "",
            "now",
            "2026-11-22",
            "2026-11-22T08:40:00",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-22T24:00:00Z",
            "2026-11-22T08:40Z",
            "1969-12-31T23:59:59Z",
            "2026-11-22T08:40:00.Z",
            "2026-11-22T08:40:00+0200",
            "+026-11-22T08:40:00Z",
            "-5m",
            "5",
            "m",
            "1.5h",
            "ä",
            "99999-11-22T08:40:00Z",
        ] {
            assert!(text.parse::<When>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_ago_counts_from_now() {
        let at = |text: &str| text.parse::<When>().unwrap().unix_ns(1_000_000_000_000);
        assert_eq!([at("90s"), at("15m")], [910_000_000_000, 100_000_000_000]);
        assert_eq!([at("2h"), at("1d")], [0, 0], "not before 1970");
    }

    #[test]
    fn what_is_written_can_be_read() {
        for ns in [0, 951_782_400_000_000_000, 1_709_164_800_001_000_000, 4_102_444_799_999_000_000]
        {
            let text = to_rfc3339(ns);
            assert_eq!(text.parse(), Ok(When::At(ns)), "{text}");
        }
        assert_eq!(to_rfc3339(1_709_210_096_000_000_000), "2024-02-29T12:34:56.000Z");
    }
}
