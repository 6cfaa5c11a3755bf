//! URL parameters: decoded once, checked against the route's list, read by type.

use segmentry_coordinator::ApiError;
use segmentry_settings::units::parse_time_ms;
use std::{collections::BTreeMap, time::Duration};

/// Parameters that every route takes.
pub const COMMON: [&str; 4] = ["pretty", "human", "error_trace", "filter_path"];

/// The parameters of one request.
#[derive(Debug, Clone, Default)]
pub struct Params(BTreeMap<String, String>);

impl Params {
    /// Decodes a query string; of a name that comes twice the last value counts.
    ///
    /// # Errors
    /// A broken percent escape.
    pub fn parse(query: Option<&str>) -> Result<Self, ApiError> {
        let mut map = BTreeMap::new();
        for pair in query
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty())
        {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            map.insert(decode(name, true)?, decode(value, true)?);
        }
        Ok(Self(map))
    }

    /// Refuses what is neither in `allowed` nor in [`COMMON`], in OpenSearch's words.
    ///
    /// # Errors
    /// The names that are not known.
    pub fn check(&self, path: &str, allowed: &[&str]) -> Result<(), ApiError> {
        let unknown: Vec<&str> = self
            .0
            .keys()
            .map(String::as_str)
            .filter(|name| !allowed.contains(name) && !COMMON.contains(name))
            .collect();
        match unknown.as_slice() {
            [] => {}
            [one] => {
                return Err(ApiError::illegal(format!(
                    "request [{path}] contains unrecognized parameter: [{one}]"
                )));
            }
            many => {
                let list: Vec<String> = many.iter().map(|name| format!("[{name}]")).collect();
                return Err(ApiError::illegal(format!(
                    "request [{path}] contains unrecognized parameters: {}",
                    list.join(", ")
                )));
            }
        }
        for name in ["human", "error_trace"] {
            if self.bool(name, false)? {
                return Err(ApiError::unsupported(format!("parameter [{name}]")));
            }
        }
        Ok(())
    }

    /// The raw value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// A flag; a name without a value means true.
    ///
    /// # Errors
    /// Any other word than `true` and `false`.
    pub fn bool(&self, name: &str, default: bool) -> Result<bool, ApiError> {
        match self.get(name) {
            None => Ok(default),
            Some("" | "true") => Ok(true),
            Some("false") => Ok(false),
            Some(other) => Err(ApiError::illegal(format!(
                "Failed to parse value [{other}] as only [true] or [false] are allowed."
            ))),
        }
    }

    /// A whole number.
    ///
    /// # Errors
    /// Not a number, or negative.
    pub fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        self.get(name)
            .map(|text| {
                text.parse().map_err(|_| {
                    ApiError::illegal(format!(
                        "Failed to parse int parameter [{name}] with value [{text}]"
                    ))
                })
            })
            .transpose()
    }

    /// A time with its unit.
    ///
    /// # Errors
    /// Not a time.
    pub fn time(&self, name: &str, default: Duration) -> Result<Duration, ApiError> {
        match self.get(name) {
            None => Ok(default),
            Some(text) => parse_time_ms(name, text)?
                .map(Duration::from_millis)
                .ok_or_else(|| {
                    ApiError::illegal(format!(
                        "parameter [{name}] must be a positive time, was [{text}]"
                    ))
                }),
        }
    }

    /// A parameter that is only taken with the values given: the default, or what means the same.
    ///
    /// # Errors
    /// Any other value, by name.
    pub fn only(&self, name: &str, values: &[&str]) -> Result<(), ApiError> {
        match self.get(name) {
            Some(value) if !values.contains(&value) => Err(ApiError::unsupported(format!(
                "value [{value}] of parameter [{name}]"
            ))),
            _ => Ok(()),
        }
    }
}

/// Percent-decodes; `plus` turns `+` into a space, as in a query string.
///
/// # Errors
/// A broken escape, or bytes that are not UTF-8.
pub fn decode(text: &str, plus: bool) -> Result<String, ApiError> {
    let broken = || ApiError::illegal(format!("unterminated escape sequence at end of string: {text}"));
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let mut digit = || {
                    bytes
                        .next()
                        .and_then(|digit| char::from(digit).to_digit(16))
                        .ok_or_else(broken)
                };
                let value = digit()? * 16 + digit()?;
                out.push(u8::try_from(value).map_err(|_| broken())?);
            }
            b'+' if plus => out.push(b' '),
            other => out.push(other),
        }
    }
    String::from_utf8(out).map_err(|_| broken())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;

    #[test]
    fn names_and_values_are_decoded() {
        let params = Params::parse(Some("a=1&b=x%20y+z&pretty&c=%C3%BC")).unwrap();
        assert_eq!(params.get("b"), Some("x y z"));
        assert_eq!(params.get("c"), Some("ü"));
        assert!(params.bool("pretty", false).unwrap());
        assert_eq!(params.number("a").unwrap(), Some(1));
        assert!(Params::parse(Some("a=%2")).is_err());
        assert!(Params::parse(Some("a=%ff")).is_err());
    }

    #[test]
    fn unknown_names_are_refused_in_opensearchs_words() {
        let params = Params::parse(Some("foo=1&pretty")).unwrap();
        assert_eq!(
            params.check("/_search", &["q"]).unwrap_err().reason,
            "request [/_search] contains unrecognized parameter: [foo]"
        );
        let params = Params::parse(Some("foo=1&bar=2")).unwrap();
        assert_eq!(
            params.check("/_search", &["q"]).unwrap_err().reason,
            "request [/_search] contains unrecognized parameters: [bar], [foo]"
        );
        assert!(params.check("/_search", &["foo", "bar"]).is_ok());
        assert!(
            Params::parse(Some("human=true"))
                .unwrap()
                .check("/", &[])
                .is_err()
        );
    }

    #[test]
    fn times_and_flags_are_typed() {
        let params = Params::parse(Some("timeout=1500ms&flag=yes&never=-1")).unwrap();
        assert_eq!(
            params.time("timeout", Duration::ZERO).unwrap(),
            Duration::from_millis(1500)
        );
        assert_eq!(
            params.time("other", Duration::from_secs(3)).unwrap(),
            Duration::from_secs(3)
        );
        assert!(params.bool("flag", false).is_err());
        assert!(params.time("never", Duration::ZERO).is_err());
    }
}
