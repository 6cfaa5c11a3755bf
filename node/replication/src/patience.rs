//! How long a primary waits for a copy that acknowledgements need (decision 0007).
//!
//! Only progress sets the clocks back: the position of the copy that acknowledgements wait for has moved, or nothing waits for it. An
//! answer is none, for a process whose disk hangs, or whose copy has failed, goes on answering.

use crate::protocol::{NOT_HERE, OPENING, SILENCE};
use segmentry_shard::CopyError;
use segmentry_wire::CallError;
use std::time::Duration;
use tokio::time::Instant;

/// Type of the error of a copy that is here and has failed.
pub(crate) const FAILED: &str = "copy_failed";
/// Silence, or standstill, of a copy whose process answers.
pub(crate) const BUSY: Duration = Duration::from_secs(30);

/// What went wrong.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The process is gone.
    Gone(String),
    /// No answer.
    Silent(String),
    /// Its node answers, the copy is not open yet.
    Opening(String),
    /// It answers that it cannot go on. Its node may open it again.
    Failed(String),
    /// It cannot follow by its log.
    Cannot(String),
}

impl Trouble {
    pub fn reason(&self) -> &str {
        match self {
            Self::Gone(reason)
            | Self::Silent(reason)
            | Self::Opening(reason)
            | Self::Failed(reason)
            | Self::Cannot(reason) => reason,
        }
    }

    /// How long it is borne where a write needs the copy.
    pub fn borne(&self, restarting: bool, lives: bool) -> Duration {
        match self {
            Self::Gone(_) if restarting => OPENING,
            Self::Gone(_) | Self::Cannot(_) => Duration::ZERO,
            Self::Opening(_) => OPENING,
            // A process that answers is overloaded, not gone: it delays.
            Self::Silent(_) if lives => BUSY,
            Self::Silent(_) | Self::Failed(_) => SILENCE,
        }
    }
}

impl From<CallError> for Trouble {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(_) => Self::Gone(error.to_string()),
            CallError::Remote(error) if error.kind == NOT_HERE => Self::Opening(error.reason),
            CallError::Remote(error) if error.kind == FAILED => Self::Failed(error.reason),
            // Another process is there: it is met by a new handshake once the cluster state knows it.
            CallError::NewBoot(_)
            | CallError::Silent { .. }
            | CallError::Unreachable { .. }
            | CallError::Foreign(_)
            | CallError::Unauthorised(_)
            | CallError::Remote(_) => Self::Silent(error.to_string()),
        }
    }
}

/// What the primary's own log answered.
impl From<CopyError> for Trouble {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Trimmed(from) => Self::Cannot(format!(
                "the primary's log no longer holds operations from {from}"
            )),
            other => Self::Silent(format!("the primary's log cannot be read: {other}")),
        }
    }
}

/// The clocks of one stream: one for each kind of trouble, from its first occurrence on.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// Where the copy stood when it moved last.
    reached: Option<u64>,
    gone: Option<Instant>,
    silent: Option<Instant>,
    opening: Option<Instant>,
    failed: Option<Instant>,
    still: Option<Instant>,
}

impl Patience {
    /// The copy answered. Since when does it stand still? None where it moved, or where nothing waits for it.
    pub fn answered(&mut self, counts: Option<u64>, holds_up: bool, now: Instant) -> Option<Instant> {
        if counts > self.reached || !holds_up {
            *self = Self {
                reached: counts.max(self.reached),
                ..Self::default()
            };
            return None;
        }
        Some(*self.still.get_or_insert(now))
    }

    /// Since when there is trouble of this kind. `asked`: when the call began that showed it now.
    pub fn since(&mut self, what: &Trouble, asked: Instant) -> Instant {
        let clock = match what {
            Trouble::Gone(_) => &mut self.gone,
            Trouble::Silent(_) => &mut self.silent,
            Trouble::Opening(_) => &mut self.opening,
            Trouble::Failed(_) => &mut self.failed,
            Trouble::Cannot(_) => return asked,
        };
        *clock.get_or_insert(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent() -> Trouble {
        Trouble::Silent("x".to_owned())
    }

    #[test]
    fn answers_without_progress_do_not_set_the_clocks_back() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut patience = Patience::default();
        assert_eq!(patience.answered(Some(5), true, at(0)), None, "it moved");
        assert_eq!(patience.since(&silent(), at(1)), at(1));
        assert_eq!(patience.answered(Some(5), true, at(7)), Some(at(7)));
        assert_eq!(
            patience.since(&silent(), at(8)),
            at(1),
            "a handshake is no progress"
        );
        assert_eq!(patience.answered(Some(5), true, at(20)), Some(at(7)));
        assert_eq!(patience.answered(Some(6), true, at(21)), None, "it moved");
        assert_eq!(patience.since(&silent(), at(22)), at(22));
        assert_eq!(
            patience.answered(Some(6), false, at(23)),
            None,
            "nothing waits for it"
        );
        assert_eq!(patience.since(&silent(), at(24)), at(24));
    }

    #[test]
    fn a_copy_that_was_opened_for_long_has_its_whole_time_to_answer() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut patience = Patience::default();
        let opening = Trouble::Opening("x".to_owned());
        assert_eq!(patience.since(&opening, at(0)), at(0));
        assert_eq!(patience.answered(None, true, at(50)), Some(at(50)));
        assert_eq!(patience.since(&silent(), at(51)), at(51));
        assert_eq!(
            patience.since(&opening, at(55)),
            at(0),
            "it fails after each opening"
        );
    }
}
