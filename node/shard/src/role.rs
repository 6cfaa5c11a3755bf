//! Changes of a copy's role, made by its actor: no operation is ordered while one runs.

use crate::{
    Activation, CopyError, CopyFailure, Role,
    actor::{Actor, LOG_CHUNK},
    queue::Command,
};
use segmentry_settings::Durability;
use std::sync::atomic::Ordering;
use tracing::{info, warn};

impl Actor {
    pub(crate) fn know(&self, term: u64) {
        let before = self.copy.term.fetch_max(term, Ordering::AcqRel);
        if before < term {
            self.copy.role.send_if_modified(|role| {
                let follows = matches!(role, Role::Replica { .. });
                if follows {
                    *role = Role::Replica { term };
                }
                follows
            });
        }
    }

    fn usable(&self) -> Result<(), CopyError> {
        match self.copy.role() {
            Role::Failed(failure) => Err(CopyError::Unusable(failure.to_string())),
            Role::Closed => Err(CopyError::Unusable("the copy was closed".to_owned())),
            Role::Recovering => Err(CopyError::Unusable("the copy is being built".to_owned())),
            Role::Replica { .. } | Role::Primary { .. } | Role::Deposed { .. } => Ok(()),
        }
    }

    pub(crate) fn activate(&self, activation: &Activation) -> Result<(), CopyError> {
        let copy = &self.copy;
        let term = activation.term;
        self.usable()?;
        if copy.role() == (Role::Primary { term }) {
            return Ok(());
        }
        let known = copy.term.load(Ordering::Acquire);
        let log_term = copy.log.term();
        if term < known
            || term < log_term
            || matches!(copy.role(), Role::Deposed { term: over } if term <= over)
        {
            return Err(CopyError::StaleTerm {
                given: term,
                known: known.max(log_term),
            });
        }
        let (last, last_term) = *copy.last.borrow();
        if term > log_term {
            // Its own log stays whole: what it holds above the global checkpoint goes to the other copies now.
            if let Err(error) = self.handle.block_on(copy.log.start_term(term, last)) {
                copy.fail(CopyFailure::Log(error.to_string()));
                return Err(error.into());
            }
        }
        copy.last.send_replace((last, last_term));
        copy.term.fetch_max(term, Ordering::AcqRel);
        self.scan()?;
        *copy.inherited.lock() = last;
        copy.tail.lock().clear();
        let state = copy.log_state();
        let first = state.global_checkpoint.map_or(0, |checkpoint| checkpoint + 1);
        let request = copy.index.load().settings.durability == Durability::Request;
        let unsynced = last
            .filter(|last| request && *last >= first)
            .map(|last| (first, last));
        copy.tracker
            .activate(&activation.in_sync, copy.allocation, state.positions, unsynced);
        copy.queue.command(Command::Activate(term));
        copy.role.send_if_modified(|role| {
            let goes_on = !matches!(role, Role::Failed(_) | Role::Closed);
            if goes_on {
                *role = Role::Primary { term };
            }
            goes_on
        });
        self.usable()?;
        // What it does not hold is lost, or was asked for before.
        copy.trust();
        info!(shard = %copy.id, term, ?last, "primary: admits writes");
        Ok(())
    }

    /// What no searcher shows goes into the version map. The commit may be ahead of the searcher: new fields in the index commit what
    /// was indexed before them, and show it later.
    fn scan(&self) -> Result<(), CopyError> {
        let copy = &self.copy;
        copy.versions.lock().clear();
        let mut next = copy.visible.borrow().map_or(0, |visible| visible + 1);
        let end = copy.last.borrow().0;
        while Some(next) <= end {
            let operations = copy.log.read_from(next, LOG_CHUNK)?;
            let Some(last) = operations.last().map(|operation| operation.seq_no) else {
                return Err(CopyError::Trimmed(next));
            };
            let mut versions = copy.versions.lock();
            for operation in &operations {
                versions.put(operation);
            }
            next = last + 1;
        }
        let bytes = copy.versions.lock().bytes();
        copy.versions_permit.lock().resize(bytes);
        Ok(())
    }

    pub(crate) fn follow(&self, term: u64) -> Result<(), CopyError> {
        self.usable()?;
        let known = self.copy.term.load(Ordering::Acquire);
        match self.copy.role() {
            Role::Primary { term: own } if own >= term => {
                return Err(CopyError::StaleTerm {
                    given: term,
                    known: own,
                });
            }
            Role::Deposed { .. } if term < known => return Err(CopyError::StaleTerm { given: term, known }),
            Role::Primary { .. } | Role::Deposed { .. } => self.demote(term),
            _ => self.know(term),
        }
        Ok(())
    }

    /// No longer primary: writes in flight learn that their outcome is unknown.
    pub(crate) fn demote(&self, term: u64) {
        let copy = &self.copy;
        copy.term.fetch_max(term, Ordering::AcqRel);
        copy.role.send_if_modified(|role| {
            let goes_on = !matches!(role, Role::Failed(_) | Role::Closed);
            if goes_on {
                *role = Role::Replica { term };
            }
            goes_on
        });
        copy.tracker.stop();
        copy.tail.lock().clear();
        copy.versions.lock().clear();
        copy.versions_permit.lock().resize(0);
        copy.announced.lock().0 = copy.tracker.checkpoint();
        copy.queue.command(Command::Demote(term));
        info!(shard = %copy.id, term, "follows a new primary");
    }

    /// The end of a recovery by files: the commit is installed, the log begins behind it.
    pub(crate) fn begin(&self, term: u64, last: Option<u64>) -> Result<(), CopyError> {
        let copy = &self.copy;
        if copy.role() != Role::Recovering {
            return Err(CopyError::Unusable("the copy is not being built".to_owned()));
        }
        let commit = copy.engine.commit_info();
        if commit.max_seq_no != last {
            warn!(shard = %copy.id, commit = ?commit.max_seq_no, ?last, "another commit than the one that was installed");
            return Err(CopyError::Unusable(
                "the installed commit is not the one that was received".to_owned(),
            ));
        }
        self.handle.block_on(copy.log.start_term(term, last))?;
        copy.last.send_replace((last, commit.term));
        copy.term.fetch_max(term, Ordering::AcqRel);
        copy.tracker.raise(last);
        Ok(())
    }
}
