//! Date math, time zones and units of time.
//!
//! A date of a query is `now` or a date in one of the field's formats, followed by math: `now-1d/d`, `2015-01-01||+1M/d`. Math is
//! any number of `+N<unit>`, `-N<unit>`, `/<unit>`; units are `y M w d h H m s`. Rounding `/<unit>` goes to the first millisecond of the
//! unit, or to the last one where the caller asks for the upper end ([`Fill::High`]).

use crate::error::{QueryError, QueryErrorKind};
use segmentry_mapping::date::{Fill, Formats};
use serde::{Deserialize, Serialize};
use time::{Date, Month};

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 86_400_000;
const UNIX_EPOCH_JULIAN: i64 = 2_440_588;
/// 1970-01-01 is a Thursday; weeks begin on Monday.
const DAYS_FROM_MONDAY: i64 = 3;

/// Units of the calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "units of time")]
pub enum CalendarUnit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Quarter,
    Year,
}

impl CalendarUnit {
    /// Reads a `calendar_interval`: `day`, `1d`, …
    pub fn of_interval(text: &str) -> Option<Self> {
        Some(match text {
            "second" | "1s" => Self::Second,
            "minute" | "1m" => Self::Minute,
            "hour" | "1h" => Self::Hour,
            "day" | "1d" => Self::Day,
            "week" | "1w" => Self::Week,
            "month" | "1M" => Self::Month,
            "quarter" | "1q" => Self::Quarter,
            "year" | "1y" => Self::Year,
            _ => return None,
        })
    }

    fn of_math(unit: char) -> Option<Self> {
        Some(match unit {
            's' => Self::Second,
            'm' => Self::Minute,
            'h' | 'H' => Self::Hour,
            'd' => Self::Day,
            'w' => Self::Week,
            'M' => Self::Month,
            'y' => Self::Year,
            _ => return None,
        })
    }

    /// Milliseconds of a unit that has always the same length; none for month, quarter, year.
    pub const fn fixed_ms(self) -> Option<i64> {
        match self {
            Self::Second => Some(1_000),
            Self::Minute => Some(MINUTE_MS),
            Self::Hour => Some(HOUR_MS),
            Self::Day => Some(DAY_MS),
            Self::Week => Some(7 * DAY_MS),
            Self::Month | Self::Quarter | Self::Year => None,
        }
    }

    const fn months(self) -> i64 {
        match self {
            Self::Month => 1,
            Self::Quarter => 3,
            _ => 12,
        }
    }

    /// Number of the unit that holds a moment; consecutive units have consecutive numbers.
    pub fn index_of(self, millis: i64) -> i64 {
        match self.fixed_ms() {
            Some(_) if self == Self::Week => (millis.div_euclid(DAY_MS) + DAYS_FROM_MONDAY).div_euclid(7),
            Some(length) => millis.div_euclid(length),
            None => {
                let (year, month) = year_month(millis);
                (year * 12 + month - 1).div_euclid(self.months())
            }
        }
    }

    /// First millisecond of a unit by its number; the inverse of [`Self::index_of`]. Saturates far outside of any calendar.
    pub fn start_of(self, index: i64) -> i64 {
        match self.fixed_ms() {
            Some(_) if self == Self::Week => index
                .saturating_mul(7)
                .saturating_sub(DAYS_FROM_MONDAY)
                .saturating_mul(DAY_MS),
            Some(length) => index.saturating_mul(length),
            None => {
                let months = index.saturating_mul(self.months());
                days_from_civil(months.div_euclid(12), months.rem_euclid(12) + 1, 1).saturating_mul(DAY_MS)
            }
        }
    }
}

/// Days since 1970-01-01 of a date of the proleptic Gregorian calendar (any year; the `time` crate ends at 9999).
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is the last one.
    let shifted_year = if month <= 2 { year.saturating_sub(1) } else { year };
    let era = shifted_year.div_euclid(400);
    let year_of_era = shifted_year.rem_euclid(400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era.saturating_mul(146_097)
        .saturating_add(day_of_era)
        .saturating_sub(719_468)
}

/// Year and month of a moment.
fn year_month(millis: i64) -> (i64, i64) {
    let days = millis.div_euclid(DAY_MS) + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month)
}

/// Offset east of UTC in minutes of a `time_zone`: `Z`, `UTC`, `GMT`, `+01:00`, `-0530`, `+1`. Named zones are refused: their rules are
/// not on board.
pub fn parse_time_zone(text: &str) -> Result<i32, QueryError> {
    if matches!(text, "Z" | "UTC" | "GMT" | "UT" | "Etc/UTC" | "Etc/GMT") {
        return Ok(0);
    }
    let offset = || -> Option<i32> {
        let (sign, rest) = match text.as_bytes().first()? {
            b'+' => (1, text.get(1..)?),
            b'-' => (-1, text.get(1..)?),
            _ => return None,
        };
        if !rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b':') {
            return None;
        }
        let (hours, minutes) = match (rest.split_once(':'), rest.len()) {
            (Some((hours, minutes)), _) if minutes.len() == 2 => (hours, minutes),
            (None, 1 | 2) => (rest, "0"),
            (None, 4) => rest.split_at(2),
            _ => return None,
        };
        let (hours, minutes) = (hours.parse::<i32>().ok()?, minutes.parse::<i32>().ok()?);
        (hours <= 18 && minutes <= 59 && hours * 60 + minutes <= 18 * 60)
            .then_some(sign * (hours * 60 + minutes))
    };
    offset().ok_or_else(|| {
        QueryError::illegal(format!(
            "time_zone [{text}] is not supported, only UTC and offsets such as [+01:00] are"
        ))
    })
}

/// `+01:00`, or `Z`.
pub fn time_zone_text(minutes: i32) -> String {
    if minutes == 0 {
        return "Z".to_owned();
    }
    let absolute = minutes.abs();
    format!(
        "{}{:02}:{:02}",
        if minutes < 0 { '-' } else { '+' },
        absolute / 60,
        absolute % 60
    )
}

/// Text of a moment in an offset: in `strict_date_optional_time` the offset is written, in other formats the local time is.
pub fn write_in_zone(formats: &Formats, millis: i64, zone_minutes: i32) -> String {
    if zone_minutes == 0 {
        return formats.write(millis);
    }
    let utc = formats.write(millis);
    let local = formats.write(millis.saturating_add(i64::from(zone_minutes) * MINUTE_MS));
    match local.strip_suffix('Z') {
        Some(without_zone) => format!("{without_zone}{}", time_zone_text(zone_minutes)),
        // Epochs are the same everywhere.
        None if utc.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
            && utc.parse::<i64>().is_ok() =>
        {
            utc
        }
        None => local,
    }
}

/// Milliseconds of a `fixed_interval`: `30s`, `1h`, `90m`, `100ms`, `2d`.
pub fn parse_fixed_interval(text: &str) -> Result<i64, QueryError> {
    let refuse = || {
        QueryError::illegal(format!(
            "failed to parse setting [fixed_interval] with value [{text}] as a time value: unit is missing or unrecognized"
        ))
    };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    let unit = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => MINUTE_MS,
        "h" => HOUR_MS,
        "d" => DAY_MS,
        _ => return Err(refuse()),
    };
    let millis = count
        .parse::<i64>()
        .ok()
        .and_then(|count| count.checked_mul(unit))
        .ok_or_else(refuse)?;
    if millis == 0 {
        return Err(QueryError::illegal("Zero time interval not supported."));
    }
    Ok(millis)
}

/// A date of a query, in milliseconds since 1970 UTC.
///
/// `fill` says which end of an imprecise or rounded date is meant; `zone_minutes` is the offset of dates that carry none, and of rounding.
/// `path` and `format` are for the error text.
pub fn resolve(
    text: &str,
    formats: &Formats,
    format_text: &str,
    now_ms: i64,
    fill: Fill,
    zone_minutes: i32,
) -> Result<i64, QueryError> {
    let refuse = || {
        QueryError::new(
            QueryErrorKind::ParseException,
            format!("failed to parse date field [{text}] with format [{format_text}]"),
        )
    };
    let (anchor, math) = if let Some(math) = text.strip_prefix("now") {
        (now_ms, math)
    } else {
        let (date, math) = text.split_once("||").unwrap_or((text, ""));
        // With math behind it, an imprecise date means its beginning.
        let fill = if math.is_empty() { fill } else { Fill::Low };
        let millis = formats.millis(date, fill).ok_or_else(refuse)?;
        let shift = if is_local(date) {
            i64::from(zone_minutes) * MINUTE_MS
        } else {
            0
        };
        (millis.checked_sub(shift).ok_or_else(refuse)?, math)
    };
    apply_math(anchor, math, fill, zone_minutes).ok_or_else(|| {
        QueryError::new(
            QueryErrorKind::ParseException,
            format!("failed to parse date math [{math}] of [{text}]"),
        )
    })
}

/// True if a date that was read says nothing of its zone. Epochs are UTC by definition.
fn is_local(date: &str) -> bool {
    let epoch = date.strip_prefix('-').unwrap_or(date);
    if epoch.len() != 4 && epoch.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return false;
    }
    match date.split_once('T') {
        Some((_, clock)) => !clock.contains(['Z', '+', '-']),
        None => true,
    }
}

fn apply_math(anchor: i64, math: &str, fill: Fill, zone_minutes: i32) -> Option<i64> {
    let zone = i64::from(zone_minutes) * MINUTE_MS;
    let mut local = anchor.checked_add(zone)?;
    let mut rest = math;
    while let Some(operator) = rest.chars().next() {
        rest = rest.get(1..)?;
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (count, tail) = rest.split_at(digits);
        let unit = CalendarUnit::of_math(tail.chars().next()?)?;
        rest = tail.get(1..)?;
        local = match operator {
            '/' if count.is_empty() || count == "1" => {
                let index = unit.index_of(local);
                match fill {
                    Fill::Low => unit.start_of(index),
                    Fill::High => unit.start_of(index + 1).checked_sub(1)?,
                }
            }
            '+' | '-' => {
                let count = if count.is_empty() {
                    1
                } else {
                    count.parse::<i64>().ok()?
                };
                shift(local, if operator == '-' { -count } else { count }, unit)?
            }
            _ => return None,
        };
    }
    local.checked_sub(zone)
}

/// Adds units of the calendar; a day that the month does not have becomes its last one.
fn shift(millis: i64, count: i64, unit: CalendarUnit) -> Option<i64> {
    if let Some(length) = unit.fixed_ms() {
        return millis.checked_add(count.checked_mul(length)?);
    }
    let date =
        Date::from_julian_day(i32::try_from(millis.div_euclid(DAY_MS) + UNIX_EPOCH_JULIAN).ok()?).ok()?;
    let months = (i64::from(date.year()) * 12 + i64::from(u8::from(date.month())) - 1)
        .checked_add(count.checked_mul(unit.months())?)?;
    let year = i32::try_from(months.div_euclid(12)).ok()?;
    let month = Month::try_from(u8::try_from(months.rem_euclid(12) + 1).ok()?).ok()?;
    let day = date.day().min(month.length(year));
    let moved = Date::from_calendar_date(year, month, day).ok()?;
    Some((i64::from(moved.to_julian_day()) - UNIX_EPOCH_JULIAN) * DAY_MS + millis.rem_euclid(DAY_MS))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> i64 {
        Formats::default().millis(text, Fill::Low).unwrap()
    }

    fn math(text: &str, fill: Fill, zone: i32) -> i64 {
        resolve(
            text,
            &Formats::default(),
            "strict_date_optional_time",
            at("2024-03-31T12:34:56.789Z"),
            fill,
            zone,
        )
        .unwrap()
    }

    #[test]
    fn math_moves_and_rounds() {
        for (text, low) in [
            ("now", "2024-03-31T12:34:56.789Z"),
            ("now-1d", "2024-03-30T12:34:56.789Z"),
            ("now-1M", "2024-02-29T12:34:56.789Z"),
            ("now+d", "2024-04-01T12:34:56.789Z"),
            ("now-1y/y", "2023-01-01T00:00:00.000Z"),
            ("now/w", "2024-03-25T00:00:00.000Z"),
            ("now/M", "2024-03-01T00:00:00.000Z"),
            ("now-1h/h", "2024-03-31T11:00:00.000Z"),
            ("now-1H+30m-5s", "2024-03-31T12:04:51.789Z"),
            ("2015-01-31||+1M", "2015-02-28T00:00:00.000Z"),
            ("2015-05-18||/M", "2015-05-01T00:00:00.000Z"),
        ] {
            assert_eq!(math(text, Fill::Low, 0), at(low), "{text}");
        }
    }

    #[test]
    fn the_upper_end_is_the_last_millisecond() {
        assert_eq!(math("now/d", Fill::High, 0), at("2024-03-31T23:59:59.999Z"));
        assert_eq!(math("2015-02||/M", Fill::High, 0), at("2015-02-28T23:59:59.999Z"));
        assert_eq!(math("2015-02-03", Fill::High, 0), at("2015-02-03T23:59:59.999Z"));
        assert_eq!(math("now", Fill::High, 0), at("2024-03-31T12:34:56.789Z"));
    }

    #[test]
    fn a_time_zone_moves_local_dates_and_rounding_but_not_moments() {
        assert_eq!(math("2015-01-01", Fill::Low, 60), at("2014-12-31T23:00:00Z"));
        assert_eq!(
            math("2015-01-01T00:00:00Z", Fill::Low, 60),
            at("2015-01-01T00:00:00Z")
        );
        assert_eq!(
            math("2015-01-01T00:00:00-02:00", Fill::Low, 60),
            at("2015-01-01T02:00:00Z")
        );
        assert_eq!(math("1420070400001", Fill::Low, 60), 1_420_070_400_001);
        assert_eq!(math("now/d", Fill::Low, 13 * 60), at("2024-03-31T11:00:00Z"));
    }

    #[test]
    fn what_is_no_date_math_is_refused() {
        for text in [
            "now-",
            "now-1",
            "now-1x",
            "now*2d",
            "now/2d",
            "soon",
            "2015-01-01||abc",
            "2015-13-01",
            "nowé",
            "now-99999999999999999999d",
            "now+9999999y",
        ] {
            let refused = resolve(text, &Formats::default(), "x", 0, Fill::Low, 0).unwrap_err();
            assert_eq!(refused.kind, QueryErrorKind::ParseException, "{text}");
        }
    }

    #[test]
    fn zones_are_offsets() {
        for (text, minutes) in [
            ("Z", 0),
            ("UTC", 0),
            ("+01:00", 60),
            ("-0530", -330),
            ("+1", 60),
            ("+18:00", 1_080),
        ] {
            assert_eq!(parse_time_zone(text).unwrap(), minutes, "{text}");
        }
        for text in ["Europe/Berlin", "+19:00", "+1:0", "01:00", "", "+", "+é1"] {
            assert!(parse_time_zone(text).is_err(), "{text}");
        }
        assert_eq!(
            write_in_zone(&Formats::default(), 0, 330),
            "1970-01-01T05:30:00.000+05:30"
        );
        assert_eq!(
            write_in_zone(&Formats::parse("yyyy-MM-dd").unwrap(), 0, -60),
            "1969-12-31"
        );
        assert_eq!(
            write_in_zone(&Formats::parse("epoch_millis").unwrap(), 0, -60),
            "0"
        );
    }

    #[test]
    fn fixed_intervals_have_a_count_and_a_unit() {
        for (text, millis) in [
            ("1ms", 1),
            ("30s", 30_000),
            ("90m", 5_400_000),
            ("1h", HOUR_MS),
            ("2d", 2 * DAY_MS),
        ] {
            assert_eq!(parse_fixed_interval(text).unwrap(), millis);
        }
        for text in ["1M", "d", "", "1", "0s", "-1s", "1.5h", "99999999999999999d"] {
            assert!(parse_fixed_interval(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_unit_begins_at_or_before_each_of_its_moments(millis in -62_000_000_000_000_i64..253_000_000_000_000) {
            use CalendarUnit::{Day, Hour, Minute, Month, Quarter, Second, Week, Year};
            for unit in [Second, Minute, Hour, Day, Week, Month, Quarter, Year] {
                let index = unit.index_of(millis);
                prop_assert!(unit.start_of(index) <= millis);
                prop_assert!(unit.start_of(index + 1) > millis);
                prop_assert_eq!(unit.index_of(unit.start_of(index)), index);
            }
        }

        #[test]
        fn months_begin_on_the_first_as_the_calendar_says(millis in -62_000_000_000_000_i64..253_000_000_000_000) {
            let text = Formats::default().write(millis);
            prop_assert_eq!(CalendarUnit::Month.start_of(CalendarUnit::Month.index_of(millis)), at(&format!("{}-01T00:00:00Z", &text[..7])));
        }
    }
}
