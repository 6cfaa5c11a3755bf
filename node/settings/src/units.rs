//! Time and byte values as OpenSearch writes them: `5s`, `100ms`, `512mb`, `-1`.
//!
//! Only `0` and `-1` may stand without a unit. Texts of refusals are OpenSearch's own.

use crate::SettingError;

const KIB: u64 = 1024;

/// Milliseconds of a time value; `None` for `-1`. Values below a millisecond are rounded down.
///
/// # Errors
/// The unit is missing or unknown, the number is not a whole one, or the value does not fit.
pub fn parse_time_ms(key: &str, text: &str) -> Result<Option<u64>, SettingError> {
    let value = text.trim().to_ascii_lowercase();
    match value.as_str() {
        "-1" => return Ok(None),
        "0" => return Ok(Some(0)),
        _ => {}
    }
    // Longest suffix first: `ms` also ends in `s`. The divisor brings nanoseconds and microseconds to milliseconds.
    let units: [(&str, u64, u64); 7] = [
        ("nanos", 1, 1_000_000),
        ("micros", 1, 1_000),
        ("ms", 1, 1),
        ("s", 1_000, 1),
        ("m", 60_000, 1),
        ("h", 3_600_000, 1),
        ("d", 86_400_000, 1),
    ];
    for (suffix, factor, divisor) in units {
        if let Some(number) = value.strip_suffix(suffix) {
            let number = number.trim();
            let refuse = |why: &str| {
                SettingError(format!(
                    "failed to parse setting [{key}] with value [{text}] as a time value: {why}"
                ))
            };
            if number.contains('.') {
                return Err(refuse("fractional time values are not supported"));
            }
            if number.starts_with('-') {
                return Err(refuse("negative durations are not supported"));
            }
            let number: u64 = number
                .parse()
                .map_err(|_| refuse("the number is malformed or too large"))?;
            let product = number
                .checked_mul(factor)
                .filter(|v| i64::try_from(*v).is_ok())
                .ok_or_else(|| refuse("the value is too large"))?;
            return Ok(Some(product / divisor));
        }
    }
    Err(SettingError(format!(
        "failed to parse setting [{key}] with value [{text}] as a time value: unit is missing or unrecognized"
    )))
}

/// Milliseconds as OpenSearch prints a time value: the largest unit that divides it.
pub fn format_time_ms(ms: u64) -> String {
    for (suffix, factor) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
        if ms >= factor && ms.is_multiple_of(factor) {
            return format!("{}{suffix}", ms / factor);
        }
    }
    format!("{ms}ms")
}

/// Bytes of a size value; `None` for `-1`. Fractions (`1.5gb`) are taken exactly, rounded down to a byte.
///
/// # Errors
/// The unit is missing or unknown, the number is malformed, or the value does not fit in 63 bits.
pub fn parse_bytes(key: &str, text: &str) -> Result<Option<u64>, SettingError> {
    let value = text.trim().to_ascii_lowercase();
    match value.as_str() {
        "-1" => return Ok(None),
        "0" => return Ok(Some(0)),
        _ => {}
    }
    let units: [(&str, u32); 11] = [
        ("kb", 1),
        ("mb", 2),
        ("gb", 3),
        ("tb", 4),
        ("pb", 5),
        ("k", 1),
        ("m", 2),
        ("g", 3),
        ("t", 4),
        ("p", 5),
        ("b", 0),
    ];
    let refuse = |why: &str| {
        SettingError(format!(
            "failed to parse setting [{key}] with value [{text}] as a size in bytes: {why}"
        ))
    };
    for (suffix, power) in units {
        if let Some(number) = value.strip_suffix(suffix) {
            let number = number.trim();
            let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
            let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
            if whole.is_empty()
                || !digits(whole)
                || !digits(fraction)
                || whole.len() > 19
                || fraction.len() > 9
            {
                return Err(refuse("the number is malformed or too large"));
            }
            // At most 28 digits: fits in 128 bits, and so does its product with a pebibyte only if checked.
            let scaled: u128 = format!("{whole}{fraction}")
                .parse()
                .map_err(|_| refuse("the number is malformed"))?;
            let scale = 10_u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
            let bytes = scaled
                .checked_mul(u128::from(KIB.pow(power)))
                .map(|v| v / scale)
                .and_then(|v| i64::try_from(v).ok())
                .and_then(|v| u64::try_from(v).ok())
                .ok_or_else(|| refuse("the value is too large"))?;
            return Ok(Some(bytes));
        }
    }
    Err(refuse("unit is missing or unrecognized"))
}

/// Bytes as a setting's value: the largest unit that divides it.
pub fn format_bytes(bytes: u64) -> String {
    for (suffix, power) in [("pb", 5), ("tb", 4), ("gb", 3), ("mb", 2), ("kb", 1)] {
        let unit = KIB.pow(power);
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{suffix}", bytes / unit);
        }
    }
    format!("{bytes}b")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;

    #[test]
    fn times_are_read_with_their_units() {
        let read = |s| parse_time_ms("k", s).unwrap();
        assert_eq!(read("5s"), Some(5_000));
        assert_eq!(read("100ms"), Some(100));
        assert_eq!(read("2M"), Some(120_000));
        assert_eq!(read("1h"), Some(3_600_000));
        assert_eq!(read("1d"), Some(86_400_000));
        assert_eq!(read("2500micros"), Some(2));
        assert_eq!(read("0"), Some(0));
        assert_eq!(read("-1"), None);
    }

    #[test]
    fn a_time_without_a_unit_is_refused_with_opensearchs_text() {
        let text = parse_time_ms("index.refresh_interval", "5").unwrap_err().0;
        assert_eq!(
            text,
            "failed to parse setting [index.refresh_interval] with value [5] as a time value: unit is missing or unrecognized"
        );
        for bad in [
            "1.5s",
            "-5s",
            "s",
            "5 x",
            "",
            "99999999999999999999s",
            "9223372036854775807d",
        ] {
            assert!(parse_time_ms("k", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_read_exactly() {
        let read = |s| parse_bytes("k", s).unwrap();
        assert_eq!(read("512mb"), Some(512 << 20));
        assert_eq!(read("64MB"), Some(64 << 20));
        assert_eq!(read("1.5kb"), Some(1536));
        assert_eq!(read("7b"), Some(7));
        assert_eq!(read("1g"), Some(1 << 30));
        assert_eq!(read("-1"), None);
        for bad in ["512", "mb", "1..5mb", "x", "99999999999pb", "-5mb"] {
            assert!(parse_bytes("k", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn printed_values_are_read_back() {
        for ms in [0, 1, 100, 5_000, 60_000, 90_000, 86_400_000] {
            assert_eq!(parse_time_ms("k", &format_time_ms(ms)).unwrap(), Some(ms));
        }
        for bytes in [0, 1, 1024, 1536, 512 << 20, 3 << 40] {
            assert_eq!(parse_bytes("k", &format_bytes(bytes)).unwrap(), Some(bytes));
        }
    }
}
