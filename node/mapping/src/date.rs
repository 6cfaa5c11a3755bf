//! Date formats: text or epoch number → milliseconds since 1970 UTC, and back.
//!
//! Supported: `strict_date_optional_time`, `epoch_millis`, `epoch_second`, `yyyy-MM-dd`, `yyyy-MM-dd HH:mm:ss`, `yyyy/MM/dd`,
//! `yyyy/MM/dd HH:mm:ss`, and alternatives of these separated by `||`, tried in order. The first one also writes.
//!
//! `strict_date_optional_time` is `yyyy[-MM[-dd[THH[:mm[:ss[.S{1,9}]]][zone]]]]` with `zone` = `Z`, `±HH`, `±HHmm` or `±HH:mm`; the
//! fraction may begin with a comma too. Parts that are not written are the smallest possible ones, or the largest for the upper
//! end of a range ([`Fill::High`]).

use std::fmt::Write as _;
use time::{Date, Month};

/// Format of a date field that names none.
pub const DEFAULT_FORMAT: &str = "strict_date_optional_time||epoch_millis";
/// Format of dates that were detected with slashes.
pub const SLASH_FORMAT: &str = "yyyy/MM/dd HH:mm:ss||yyyy/MM/dd||epoch_millis";

const DAY_MS: i64 = 86_400_000;

/// Which moment a date of lower precision means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fill {
    /// Its first millisecond.
    #[default]
    Low,
    /// Its last millisecond.
    High,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    StrictDateOptionalTime,
    EpochMillis,
    EpochSecond,
    /// Separator of the date, and whether a time follows.
    Plain {
        separator: char,
        time: bool,
    },
}

/// A parsed `format`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formats(Vec<Format>);

impl Default for Formats {
    fn default() -> Self {
        Self(vec![Format::StrictDateOptionalTime, Format::EpochMillis])
    }
}

impl Formats {
    /// Reads a `format`; the error is the name of the part that is not supported.
    pub fn parse(format: &str) -> Result<Self, String> {
        format
            .split("||")
            .map(|part| match part {
                "strict_date_optional_time" => Ok(Format::StrictDateOptionalTime),
                "epoch_millis" => Ok(Format::EpochMillis),
                "epoch_second" => Ok(Format::EpochSecond),
                "yyyy-MM-dd" => Ok(Format::Plain {
                    separator: '-',
                    time: false,
                }),
                "yyyy-MM-dd HH:mm:ss" => Ok(Format::Plain {
                    separator: '-',
                    time: true,
                }),
                "yyyy/MM/dd" => Ok(Format::Plain {
                    separator: '/',
                    time: false,
                }),
                "yyyy/MM/dd HH:mm:ss" => Ok(Format::Plain {
                    separator: '/',
                    time: true,
                }),
                other => Err(other.to_owned()),
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Milliseconds since 1970 UTC of a text; none if no alternative fits.
    pub fn millis(&self, text: &str, fill: Fill) -> Option<i64> {
        self.0.iter().find_map(|format| format.millis(text, fill))
    }

    /// Text of a moment in the first alternative.
    pub fn write(&self, millis: i64) -> String {
        self.0
            .first()
            .copied()
            .unwrap_or(Format::StrictDateOptionalTime)
            .write(millis)
    }
}

impl Format {
    fn millis(self, text: &str, fill: Fill) -> Option<i64> {
        match self {
            Self::StrictDateOptionalTime => strict(text, fill),
            Self::EpochMillis => epoch(text, 1),
            Self::EpochSecond => epoch(text, 1_000),
            Self::Plain { separator, time } => plain(text, separator, time, fill),
        }
    }

    fn write(self, millis: i64) -> String {
        match self {
            Self::EpochMillis => millis.to_string(),
            Self::EpochSecond => millis.div_euclid(1_000).to_string(),
            Self::StrictDateOptionalTime => {
                let Some((year, month, day, within)) = civil(millis) else {
                    return millis.to_string();
                };
                let mut out = year_text(year);
                let _ = write!(
                    out,
                    "-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
                    within / 3_600_000,
                    within / 60_000 % 60,
                    within / 1_000 % 60,
                    within % 1_000
                );
                out
            }
            Self::Plain { separator, time } => {
                let Some((year, month, day, within)) = civil(millis) else {
                    return millis.to_string();
                };
                let mut out = year_text(year);
                let _ = write!(out, "{separator}{month:02}{separator}{day:02}");
                if time {
                    let _ = write!(
                        out,
                        " {:02}:{:02}:{:02}",
                        within / 3_600_000,
                        within / 60_000 % 60,
                        within / 1_000 % 60
                    );
                }
                out
            }
        }
    }
}

fn year_text(year: i32) -> String {
    if (0..=9_999).contains(&year) {
        format!("{year:04}")
    } else {
        format!("{year:+05}")
    }
}

/// Year, month, day and milliseconds within the day; none outside the years -9999..=9999 that the calendar covers.
fn civil(millis: i64) -> Option<(i32, u8, u8, i64)> {
    let days = i32::try_from(millis.div_euclid(DAY_MS)).ok()?;
    let date = Date::from_julian_day(days.checked_add(UNIX_EPOCH_JULIAN)?).ok()?;
    Some((
        date.year(),
        u8::from(date.month()),
        date.day(),
        millis.rem_euclid(DAY_MS),
    ))
}

/// Julian day of 1970-01-01.
const UNIX_EPOCH_JULIAN: i32 = 2_440_588;

fn day_millis(year: i32, month: u8, day: u8) -> Option<i64> {
    let date = Date::from_calendar_date(year, Month::try_from(month).ok()?, day).ok()?;
    Some(i64::from(date.to_julian_day() - UNIX_EPOCH_JULIAN) * DAY_MS)
}

fn epoch(text: &str, unit: i64) -> Option<i64> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (text, None),
    };
    let digits = whole.strip_prefix('-').unwrap_or(whole);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let millis = whole.parse::<i64>().ok()?.checked_mul(unit)?;
    let Some(fraction) = fraction else {
        return Some(millis);
    };
    if fraction.is_empty() || fraction.len() > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    if unit == 1 {
        return Some(millis); // below a millisecond
    }
    let part = thousandths(fraction)?;
    if whole.starts_with('-') {
        millis.checked_sub(part)
    } else {
        millis.checked_add(part)
    }
}

/// First three digits of a decimal fraction.
fn thousandths(fraction: &str) -> Option<i64> {
    let mut value = 0;
    for place in 0..3 {
        let digit = fraction
            .as_bytes()
            .get(place)
            .map_or(0, |byte| i64::from(byte - b'0'));
        value = value * 10 + digit;
    }
    (0..1_000).contains(&value).then_some(value)
}

/// Reads fixed numbers of digits from the front.
struct Cursor<'a>(&'a str);

impl Cursor<'_> {
    fn digits(&mut self, count: usize) -> Option<u32> {
        let head = self.0.get(..count)?;
        if !head.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        self.0 = &self.0[count..];
        head.parse().ok()
    }

    fn two(&mut self) -> Option<u8> {
        self.digits(2).and_then(|value| u8::try_from(value).ok())
    }

    fn take(&mut self, wanted: char) -> bool {
        match self.0.strip_prefix(wanted) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }
}

fn plain(text: &str, separator: char, time: bool, fill: Fill) -> Option<i64> {
    let mut at = Cursor(text);
    let year = i32::try_from(at.digits(4)?).ok()?;
    if !at.take(separator) {
        return None;
    }
    let month = at.two()?;
    if !at.take(separator) {
        return None;
    }
    let day = at.two()?;
    let mut millis = day_millis(year, month, day)?;
    let unit = if time {
        if !at.take(' ') {
            return None;
        }
        let (hour, minute, second) = (
            at.two()?,
            at.take(':').then(|| at.two())??,
            at.take(':').then(|| at.two())??,
        );
        if hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        millis += i64::from(hour) * 3_600_000 + i64::from(minute) * 60_000 + i64::from(second) * 1_000;
        1_000
    } else {
        DAY_MS
    };
    at.0.is_empty().then_some(match fill {
        Fill::Low => millis,
        Fill::High => millis + unit - 1,
    })
}

fn strict(text: &str, fill: Fill) -> Option<i64> {
    let mut at = Cursor(text);
    let negative = at.take('-');
    let year = i32::try_from(at.digits(4)?).ok()?;
    let year = if negative { -year } else { year };
    let high = fill == Fill::High;

    let (month, day, dated) = if at.take('-') {
        let month = at.two()?;
        if at.take('-') {
            (month, at.two()?, true)
        } else {
            (month, 1, false)
        }
    } else {
        (1, 1, false)
    };
    let month_written = text.len() > if negative { 5 } else { 4 };
    if !dated {
        if !at.0.is_empty() {
            return None;
        }
        let start = day_millis(year, month, 1)?;
        return if high {
            let (next_year, next_month) = match (month_written, month) {
                (false, _) | (true, 12) => (year + 1, 1),
                (true, month) => (year, month + 1),
            };
            Some(day_millis(next_year, next_month, 1)? - 1)
        } else {
            Some(start)
        };
    }
    let mut millis = day_millis(year, month, day)?;
    let mut unit = DAY_MS;
    if at.take('T') && !at.0.is_empty() {
        let hour = at.two()?;
        let (mut minute, mut second, mut fraction) = (0, 0, 0);
        unit = 3_600_000;
        if at.take(':') {
            minute = at.two()?;
            unit = 60_000;
            if at.take(':') {
                second = at.two()?;
                unit = 1_000;
                if at.take('.') || at.take(',') {
                    let count = at.0.bytes().take_while(u8::is_ascii_digit).count();
                    if count == 0 || count > 9 {
                        return None;
                    }
                    fraction = thousandths(&at.0[..count])?;
                    at.0 = &at.0[count..];
                    unit = 1;
                }
            }
        }
        if hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        millis +=
            i64::from(hour) * 3_600_000 + i64::from(minute) * 60_000 + i64::from(second) * 1_000 + fraction;
        millis -= zone_minutes(&mut at)? * 60_000;
    }
    at.0.is_empty()
        .then_some(if high { millis + unit - 1 } else { millis })
}

/// Offset east of UTC; zero where none is written.
fn zone_minutes(at: &mut Cursor<'_>) -> Option<i64> {
    if at.0.is_empty() || at.take('Z') {
        return Some(0);
    }
    let sign = if at.take('+') {
        1
    } else if at.take('-') {
        -1
    } else {
        return None;
    };
    let hours = at.two()?;
    let minutes = if at.0.is_empty() {
        0
    } else {
        at.take(':');
        at.two()?
    };
    (hours <= 18 && minutes <= 59).then(|| sign * (i64::from(hours) * 60 + i64::from(minutes)))
}

/// The `format` that date detection gives to a new string field; empty for the default one; none if the text is no date.
pub fn detect(text: &str) -> Option<Option<&'static str>> {
    // Plain numbers are too often not dates at all.
    if text.len() < 7 || text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    if strict(text, Fill::Low).is_some() {
        return Some(None);
    }
    (plain(text, '/', true, Fill::Low).is_some() || plain(text, '/', false, Fill::Low).is_some())
        .then_some(Some(SLASH_FORMAT))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;

    fn low(text: &str) -> Option<i64> {
        Formats::default().millis(text, Fill::Low)
    }

    #[test]
    fn the_default_format_reads_dates_of_every_precision_and_epochs() {
        assert_eq!(low("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(low("2015-01-01T12:10:30.123Z"), Some(1_420_114_230_123));
        assert_eq!(low("2015-01-01T12:10:30.123456789Z"), Some(1_420_114_230_123));
        assert_eq!(low("2015-01-01T12:10:30,5"), Some(1_420_114_230_500));
        assert_eq!(low("2015-01-01T13:10:30+01:00"), Some(1_420_114_230_000));
        assert_eq!(low("2015-01-01T13:10:30+0100"), Some(1_420_114_230_000));
        assert_eq!(low("2015-01-01T11:10:30-01"), Some(1_420_114_230_000));
        assert_eq!(low("2015-01-01"), Some(1_420_070_400_000));
        assert_eq!(low("2015-01-01T"), Some(1_420_070_400_000));
        assert_eq!(low("2015-01"), low("2015-01-01"));
        assert_eq!(low("2015"), low("2015-01-01"));
        assert_eq!(low("1420070400001"), Some(1_420_070_400_001));
        assert_eq!(low("-1"), Some(-1));
        assert_eq!(low("9999-12-31T23:59:59.999Z"), Some(253_402_300_799_999));
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for text in [
            "",
            "abc",
            "2015-13-01",
            "2015-02-29",
            "2015-1-1",
            "2015-01-01 10:00:00",
            "2015-01-01T25:00:00",
            "2015-01-01T10:00:60",
            "2015-01-01Z",
            "2015-01-01T10:00:00X",
            "15-01-01",
            "2015-01-01T10:00:00.",
            "é015-01-01",
        ] {
            assert_eq!(low(text), None, "{text}");
        }
    }

    #[test]
    fn the_upper_end_of_a_range_is_the_last_millisecond_of_what_is_written() {
        let high = |text| Formats::default().millis(text, Fill::High);
        assert_eq!(high("2015"), low("2015-12-31T23:59:59.999Z"));
        assert_eq!(high("2015-02"), low("2015-02-28T23:59:59.999Z"));
        assert_eq!(high("2015-12"), low("2015-12-31T23:59:59.999Z"));
        assert_eq!(high("2015-02-03"), low("2015-02-03T23:59:59.999Z"));
        assert_eq!(high("2015-02-03T04"), low("2015-02-03T04:59:59.999Z"));
        assert_eq!(high("2015-02-03T04:05"), low("2015-02-03T04:05:59.999Z"));
        assert_eq!(high("2015-02-03T04:05:06"), low("2015-02-03T04:05:06.999Z"));
        assert_eq!(high("2015-02-03T04:05:06.007"), low("2015-02-03T04:05:06.007Z"));
        assert_eq!(high("7"), Some(7));
    }

    #[test]
    fn each_named_format_reads_and_writes() {
        let case = |format: &str, text: &str, millis: i64| {
            let formats = Formats::parse(format).unwrap();
            assert_eq!(formats.millis(text, Fill::Low), Some(millis), "{format}");
            assert_eq!(formats.write(millis), text, "{format}");
        };
        case("epoch_millis", "1420070400001", 1_420_070_400_001);
        case("epoch_second", "1420070400", 1_420_070_400_000);
        case("yyyy-MM-dd", "2015-01-01", 1_420_070_400_000);
        case("yyyy-MM-dd HH:mm:ss", "2015-01-01 12:10:30", 1_420_114_230_000);
        case("yyyy/MM/dd", "2015/01/01", 1_420_070_400_000);
        case(
            "yyyy/MM/dd HH:mm:ss||yyyy/MM/dd",
            "2015/01/01 12:10:30",
            1_420_114_230_000,
        );
        case(
            "strict_date_optional_time",
            "2015-01-01T12:10:30.123Z",
            1_420_114_230_123,
        );
        assert_eq!(
            Formats::parse("epoch_second").unwrap().millis("1.5", Fill::Low),
            Some(1_500)
        );
        assert_eq!(
            Formats::parse("epoch_second").unwrap().millis("-1.5", Fill::Low),
            Some(-1_500)
        );
        assert_eq!(
            Formats::parse("yyyy-MM-dd")
                .unwrap()
                .millis("2015-01-01 12:10:30", Fill::Low),
            None
        );
        assert_eq!(
            Formats::parse("epoch_millis||basic_date").unwrap_err(),
            "basic_date"
        );
    }

    #[test]
    fn detection_takes_dates_and_leaves_numbers_and_words() {
        assert_eq!(detect("2020-01-02"), Some(None));
        assert_eq!(detect("2020-01"), Some(None));
        assert_eq!(detect("2020-01-02T03:04:05Z"), Some(None));
        assert_eq!(detect("2020/01/02"), Some(Some(SLASH_FORMAT)));
        assert_eq!(detect("2020/01/02 03:04:05"), Some(Some(SLASH_FORMAT)));
        for text in ["2020", "20200102", "1.2.3.4", "hello", "2020-99", ""] {
            assert_eq!(detect(text), None, "{text}");
        }
    }
}
