//! Memory that writes may hold on a node: bodies in flight, queues, version maps.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Bytes, bounded. One a node.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicU64::new(0),
        })
    }

    /// Takes a share, if it is free. One request that is larger than the whole budget may still go alone.
    pub fn try_take(self: &Arc<Self>, bytes: u64) -> Option<Permit> {
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            if used > 0 && used.saturating_add(bytes) > self.limit {
                return None;
            }
            match self
                .used
                .compare_exchange_weak(used, used + bytes, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => {
                    return Some(Permit {
                        budget: Arc::clone(self),
                        bytes,
                    });
                }
                Err(now) => used = now,
            }
        }
    }

    /// Takes a share for what cannot be refused any more.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Permit {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Permit {
            budget: Arc::clone(self),
            bytes,
        }
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bound in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }
}

/// A share of a [`Budget`]; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Permit {
    /// Bytes that it holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Cuts off a part.
    #[must_use]
    pub fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self {
            budget: Arc::clone(&self.budget),
            bytes,
        }
    }

    /// Changes the share to `bytes`, whether or not they are free.
    pub fn resize(&mut self, bytes: u64) {
        if bytes >= self.bytes {
            self.budget.used.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            self.budget.used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_budget_refuses_what_does_not_fit_and_takes_back_what_is_dropped() {
        let budget = Budget::new(100);
        let mut first = budget.try_take(80).unwrap();
        assert!(budget.try_take(30).is_none());
        drop(first.split(50));
        assert_eq!(budget.used(), 30);
        let second = budget.try_take(70).unwrap();
        drop((first, second));
        assert_eq!(budget.used(), 0);
        assert!(budget.try_take(1_000).is_some(), "one large request goes alone");
    }
}
