//! The full restart in its plain form, as a table over facts.
//!
//! ```text
//!  H wanted hash   S hash of the applied template   Pi hashes of live instances   R record of a prepared restart   Q quorum
//!
//!  row            fits when                                                       does
//!  Create         nothing is applied                                              applies H
//!  Idle           S = H, all Pi = H, no R                                         nothing
//!  Abandon        S = H, all Pi = H, R for another hash, Q                        ends R
//!  WaitNodes      S = H, all Pi = H, R for H, an instance is missing              waits
//!  WaitPrimaries  S = H, all Pi = H, R for H, a recorded primary is not active    waits
//!  Finish         S = H, all Pi = H, R for H, all nodes and primaries back        ends R
//!  Hold(g)        some Pi != H, guard g blocks                                    deletes nothing
//!  Prepare        some Pi != H runs, Q, settled, no R for H                       flushes, writes R
//!  Apply          S != H, and R for H, or nobody runs another hash                applies H
//!  StopOld        S = H and taken note of, R for H, Q, some Pi != H runs          deletes all Pi != H
//!  StopBroken     S = H and taken note of, the Pi != H that do not run may go     deletes those
//! ```
//!
//! Every row is derived from facts alone, so that an operator that was killed after any step goes on. While R is missing the
//! running template stays applied: an instance that dies in that time comes back as it was. Instances that do not run and
//! whose hash is not the wanted one are replaced without asking nodes, quorum or not: a wrong image can always be corrected.

/// The applied template against the wanted one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// Nothing is applied.
    Missing,
    /// The wanted one.
    Wanted,
    /// Another one.
    Other,
}

/// The record of a prepared restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// None, or unknown without quorum.
    None,
    /// For the wanted hash.
    Wanted,
    /// For another hash.
    Other,
}

/// Names of the rules that block a restart; shown in status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// A linearizable read works.
    Quorum,
    /// Nothing is initialising and every copy that can be placed is in sync.
    Settled,
    /// One cluster at a time restarts.
    OneRestartAtATime,
    /// The runtime has taken note of the applied template.
    TemplateObserved,
}

impl Guard {
    /// Name as status shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quorum => "Quorum",
            Self::Settled => "Settled",
            Self::OneRestartAtATime => "OneRestartAtATime",
            Self::TemplateObserved => "TemplateObserved",
        }
    }

    /// What it waits for.
    pub const fn waits_for(self) -> &'static str {
        match self {
            Self::Quorum => "a majority of the nodes to answer",
            Self::Settled => "every copy that can be placed to be in sync",
            Self::OneRestartAtATime => "the restart of another cluster to end",
            Self::TemplateObserved => "the applied template to be taken note of",
        }
    }
}

/// Facts of the table. Instances that are asked to end already count neither as old nor as wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "a row of a truth table")]
pub struct Facts {
    /// S against H.
    pub applied: Applied,
    /// The runtime would make a new instance from S.
    pub template_observed: bool,
    /// Some live instance of another hash runs, or may run soon.
    pub old_running: bool,
    /// Some live instance of another hash does not run and is broken.
    pub old_broken: bool,
    /// The cluster was never formed: no node has anything to lose.
    pub unformed: bool,
    /// A linearizable read works.
    pub quorum: bool,
    /// R against H.
    pub record: Record,
    /// Preflight.
    pub settled: bool,
    /// No other cluster restarts.
    pub slot_free: bool,
    /// Every node is a member, answers, and has opened its copies.
    pub complete: bool,
    /// Every primary of the record that still exists is active.
    pub primaries_active: bool,
}

/// Rows of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Row {
    /// Nothing is applied yet.
    Create,
    /// No restart is due.
    Idle,
    /// A prepared restart is not wanted any more.
    Abandon,
    /// Waits for instances.
    WaitNodes,
    /// Waits for primaries.
    WaitPrimaries,
    /// Ends the record.
    Finish,
    /// Blocked.
    Hold(Guard),
    /// Flush and record.
    Prepare,
    /// Apply the wanted template.
    Apply,
    /// Delete all old instances.
    StopOld,
    /// Delete the old instances that do not run.
    StopBroken,
}

impl Row {
    /// True while this cluster is the one that restarts.
    pub const fn holds_slot(self) -> bool {
        matches!(
            self,
            Self::Prepare
                | Self::Apply
                | Self::StopOld
                | Self::WaitNodes
                | Self::WaitPrimaries
                | Self::Finish
        )
    }
}

/// The row that fits.
pub const fn row(facts: Facts) -> Row {
    let Facts {
        applied,
        template_observed,
        old_running,
        old_broken,
        unformed,
        quorum,
        record,
        settled,
        slot_free,
        complete,
        primaries_active,
    } = facts;
    if matches!(applied, Applied::Missing) {
        return Row::Create;
    }
    let wanted = matches!(applied, Applied::Wanted);
    if !old_running && !old_broken {
        if !wanted {
            return Row::Apply;
        }
        return match record {
            Record::Other if quorum => Row::Abandon,
            Record::None | Record::Other => Row::Idle,
            Record::Wanted if !complete => Row::WaitNodes,
            Record::Wanted if !primaries_active => Row::WaitPrimaries,
            Record::Wanted => Row::Finish,
        };
    }
    let only_broken = old_broken && (!old_running || !quorum);
    if unformed || only_broken {
        if !wanted {
            return Row::Apply;
        }
        if !template_observed {
            return Row::Hold(Guard::TemplateObserved);
        }
        return if unformed { Row::StopOld } else { Row::StopBroken };
    }
    if !quorum {
        return Row::Hold(Guard::Quorum);
    }
    if !matches!(record, Record::Wanted) {
        if !slot_free {
            return Row::Hold(Guard::OneRestartAtATime);
        }
        return if settled {
            Row::Prepare
        } else {
            Row::Hold(Guard::Settled)
        };
    }
    if !wanted {
        return Row::Apply;
    }
    if template_observed {
        Row::StopOld
    } else {
        Row::Hold(Guard::TemplateObserved)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;

    fn every_tuple() -> Vec<Facts> {
        let both = [false, true];
        let mut all = Vec::new();
        for applied in [Applied::Missing, Applied::Wanted, Applied::Other] {
            for record in [Record::None, Record::Wanted, Record::Other] {
                for bits in 0..512_u32 {
                    let bit = |n: u32| both[usize::from(bits >> n & 1 == 1)];
                    all.push(Facts {
                        applied,
                        record,
                        template_observed: bit(0),
                        old_running: bit(1),
                        old_broken: bit(2),
                        unformed: bit(3),
                        quorum: bit(4),
                        settled: bit(5),
                        slot_free: bit(6),
                        complete: bit(7),
                        primaries_active: bit(8),
                    });
                }
            }
        }
        all
    }

    /// The table of the module's head, row by row, written as conditions that know nothing of each other.
    fn fitting(f: Facts) -> Vec<Row> {
        let old = f.old_running || f.old_broken;
        let exists = f.applied != Applied::Missing;
        let same = f.applied == Applied::Wanted;
        let ours = f.record == Record::Wanted;
        let free = f.unformed || f.old_broken && (!f.old_running || !f.quorum);
        let asks = exists && old && !free;
        let table = [
            (Row::Create, !exists),
            (
                Row::Idle,
                same && !old && (f.record == Record::None || f.record == Record::Other && !f.quorum),
            ),
            (
                Row::Abandon,
                same && !old && f.record == Record::Other && f.quorum,
            ),
            (Row::WaitNodes, same && !old && ours && !f.complete),
            (
                Row::WaitPrimaries,
                same && !old && ours && f.complete && !f.primaries_active,
            ),
            (
                Row::Finish,
                same && !old && ours && f.complete && f.primaries_active,
            ),
            (Row::Apply, exists && !same && (!old || free || f.quorum && ours)),
            (
                Row::StopOld,
                same && old && f.template_observed && (f.unformed || !free && f.quorum && ours),
            ),
            (
                Row::StopBroken,
                same && old && f.template_observed && free && !f.unformed,
            ),
            (
                Row::Hold(Guard::TemplateObserved),
                same && old && !f.template_observed && (free || f.quorum && ours),
            ),
            (Row::Hold(Guard::Quorum), asks && !f.quorum),
            (
                Row::Hold(Guard::OneRestartAtATime),
                asks && f.quorum && !ours && !f.slot_free,
            ),
            (
                Row::Hold(Guard::Settled),
                asks && f.quorum && !ours && f.slot_free && !f.settled,
            ),
            (
                Row::Prepare,
                asks && f.quorum && !ours && f.slot_free && f.settled,
            ),
        ];
        table
            .into_iter()
            .filter(|(_, fits)| *fits)
            .map(|(row, _)| row)
            .collect()
    }

    #[test]
    fn exactly_one_row_fits_every_tuple_and_it_is_the_one_taken() {
        let all = every_tuple();
        assert_eq!(all.len(), 4608);
        for facts in all {
            assert_eq!(fitting(facts), vec![row(facts)], "{facts:?}");
        }
    }

    #[test]
    fn no_running_instance_of_a_formed_cluster_is_stopped_without_quorum_and_record() {
        for facts in every_tuple().into_iter().filter(|facts| !facts.unformed) {
            if row(facts) == Row::StopOld {
                assert!(
                    facts.quorum
                        && facts.record == Record::Wanted
                        && facts.applied == Applied::Wanted
                        && facts.template_observed,
                    "{facts:?}"
                );
            }
        }
    }

    #[test]
    fn a_wrong_image_is_rolled_back_with_or_without_quorum() {
        for facts in every_tuple() {
            if facts.applied == Applied::Other && facts.old_broken && !facts.old_running {
                assert_eq!(row(facts), Row::Apply, "{facts:?}");
                let applied = Facts {
                    applied: Applied::Wanted,
                    template_observed: true,
                    unformed: false,
                    ..facts
                };
                assert_eq!(row(applied), Row::StopBroken, "{applied:?}");
            }
        }
    }

    #[test]
    fn the_running_template_stays_until_the_record_is_written() {
        for facts in every_tuple() {
            if row(facts) == Row::Apply && facts.old_running && facts.quorum && !facts.unformed {
                assert_eq!(facts.record, Record::Wanted, "{facts:?}");
            }
        }
    }

    /// A small world that obeys the steps; a crash of the operator between any two steps is nothing but another call of `row`.
    #[test]
    fn the_rows_lead_from_due_to_idle() {
        let mut facts = Facts {
            applied: Applied::Other,
            template_observed: true,
            old_running: true,
            old_broken: false,
            unformed: false,
            quorum: true,
            record: Record::None,
            settled: true,
            slot_free: true,
            complete: true,
            primaries_active: true,
        };
        let mut path = Vec::new();
        for _ in 0..16 {
            let now = row(facts);
            path.push(now);
            match now {
                Row::Prepare => facts.record = Record::Wanted,
                Row::Apply => {
                    facts.applied = Applied::Wanted;
                    facts.template_observed = false;
                }
                Row::Hold(Guard::TemplateObserved) => facts.template_observed = true,
                Row::StopOld => {
                    facts.old_running = false;
                    facts.complete = false;
                    facts.primaries_active = false;
                }
                Row::WaitNodes => facts.complete = true,
                Row::WaitPrimaries => facts.primaries_active = true,
                Row::Finish => facts.record = Record::None,
                Row::Idle => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(
            path,
            [
                Row::Prepare,
                Row::Apply,
                Row::Hold(Guard::TemplateObserved),
                Row::StopOld,
                Row::WaitNodes,
                Row::WaitPrimaries,
                Row::Finish,
                Row::Idle
            ]
        );
    }
}
