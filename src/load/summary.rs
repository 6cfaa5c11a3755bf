//! Totals of a load, and how they are printed.

use super::bulk::Outcome;
use std::{fmt::Write as _, time::Duration};

/// Failures that are printed; the rest is counted.
const LISTED: usize = 20;

/// Totals so far.
#[derive(Debug, Default)]
pub struct Summary {
    /// Documents in the index.
    pub loaded: u64,
    /// Documents that were refused.
    pub failed: u64,
    retried: u64,
    bytes: u64,
    first_failures: Vec<(u64, String)>,
}

impl Summary {
    /// Adds one batch.
    pub fn add(&mut self, outcome: Outcome) {
        let Outcome {
            loaded,
            failures,
            retried,
            bytes,
        } = outcome;
        self.loaded += loaded;
        self.failed += failures.len() as u64;
        self.retried += retried;
        self.bytes += bytes;
        self.first_failures.extend(failures);
        self.first_failures.sort_by_key(|failure| failure.0);
        self.first_failures.truncate(LISTED);
    }

    /// One line for a progress display.
    pub fn line(&self, elapsed: Duration) -> String {
        let rate = self.loaded as f64 / elapsed.as_secs_f64().max(0.001);
        format!(
            "{} documents, {rate:.0} docs/s, {} failed, {} retried",
            self.loaded, self.failed, self.retried
        )
    }

    /// The closing report.
    pub fn render(&self, index: &str, elapsed: Duration) -> String {
        let seconds = elapsed.as_secs_f64().max(0.001);
        let mut text = format!(
            "loaded {} documents into [{index}] in {seconds:.2} s ({:.0} docs/s, {:.1} MB/s), {} sent again, {} failed\n",
            self.loaded,
            self.loaded as f64 / seconds,
            self.bytes as f64 / 1e6 / seconds,
            self.retried,
            self.failed,
        );
        for (line, reason) in &self.first_failures {
            // writing to a String cannot fail
            let _ = writeln!(text, "  line {line}: {reason}");
        }
        let more = self.failed - self.first_failures.len() as u64;
        if more > 0 {
            let _ = writeln!(text, "  and {more} more");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_listed_in_file_order_and_the_rest_is_counted() {
        let mut summary = Summary::default();
        for start in [30, 0] {
            let failures = (start..start + 15)
                .map(|line| (line, format!("r{line}")))
                .collect();
            summary.add(Outcome {
                loaded: 5,
                failures,
                ..Outcome::default()
            });
        }
        let text = summary.render("i", Duration::from_secs(1));
        assert!(
            text.starts_with("loaded 10 documents into [i] in 1.00 s (10 docs/s"),
            "{text}"
        );
        assert_eq!(text.lines().nth(1), Some("  line 0: r0"));
        assert_eq!(text.lines().last(), Some("  and 10 more"));
    }
}
