//! The caller's side of a write: parse, let the mapping grow, hand over, wait for the acknowledgement.

use crate::{
    Role, ShardCopy, WriteError, WriteKind, WriteOp, WriteResult,
    actor::{Message, Prepared, Written},
};
use rayon::prelude::*;
use segmentry_mapping::{Mapping, Parser};
use std::sync::{Arc, atomic::Ordering};
use tokio::{sync::oneshot, time::Instant};
use tracing::debug;

/// What an operation holds in memory beside its source, in bytes.
const OVERHEAD: u64 = 256;
/// How often one request may lose the race for a mapping before it is refused.
const MAPPING_ROUNDS: usize = 20;
/// Operations from which a request is parsed by several threads.
const PARALLEL: usize = 32;

type Results = Vec<Result<WriteResult, WriteError>>;

/// Positions of refused operations, and the others ready for the actor.
struct Sorted {
    refused: Vec<(usize, WriteError)>,
    ready: Vec<(usize, Prepared)>,
    /// Mapping with the fields that operations of this request add, and how many do.
    grown: Option<Arc<Mapping>>,
}

impl ShardCopy {
    /// Carries out writes in order and answers once each is acknowledged or refused.
    ///
    /// After `deadline` an operation that was logged and not acknowledged answers [`WriteError::Unknown`]. Cancelling leaves what was
    /// handed over to go on.
    pub async fn write(self: &Arc<Self>, ops: Vec<WriteOp>, deadline: Instant) -> Results {
        let role = self.role();
        let admitted = self.admitted.load(Ordering::Acquire);
        if !matches!(role, Role::Primary { term } if term == admitted) {
            return refuse(&ops, &WriteError::NotPrimary(format!("{role:?}")));
        }
        let bytes: u64 = ops.iter().map(cost).sum();
        let budget = &self.node.budget;
        let Some(mut permit) = budget.try_take(bytes) else {
            let error = WriteError::Rejected {
                bytes,
                used: budget.used(),
                limit: budget.limit(),
            };
            return refuse(&ops, &error);
        };
        let mut results: Vec<Option<Result<WriteResult, WriteError>>> = ops.iter().map(|_| None).collect();
        let mut waiting: Vec<(usize, Prepared)> = ops
            .into_iter()
            .enumerate()
            .map(|(position, op)| {
                let permit = permit.split(cost(&op));
                (
                    position,
                    Prepared {
                        op,
                        parsed: None,
                        permit,
                    },
                )
            })
            .collect();
        let mut rounds = 0;
        while !waiting.is_empty() {
            let sorted = match self.sort(std::mem::take(&mut waiting)).await {
                Ok(sorted) => sorted,
                Err(error) => return finish(results, &error),
            };
            for (position, error) in sorted.refused {
                self.counters.index_failed.add(1);
                results[position] = Some(Err(error));
            }
            let needed = if let Some(grown) = sorted.grown {
                // Nothing goes to the log before all of this request's fields are known: operations keep their order.
                waiting = sorted.ready;
                Some(grown)
            } else {
                let (positions, prepared): (Vec<usize>, Vec<Prepared>) = sorted.ready.into_iter().unzip();
                if prepared.is_empty() {
                    break;
                }
                let answer = self.ask(|reply| Message::Write(prepared, reply)).await;
                let Ok(Written { results: done, rest }) = answer else {
                    return finish(results, &WriteError::Unknown("the copy was closed".to_owned()));
                };
                let done_count = done.len();
                for (position, result) in positions.iter().zip(done) {
                    results[*position] = Some(result);
                }
                rest.map(|(grown, rest)| {
                    waiting = positions[done_count..].iter().copied().zip(rest).collect();
                    grown
                })
            };
            if let Some(grown) = needed {
                rounds += 1;
                if rounds > MAPPING_ROUNDS {
                    let error = WriteError::MappingUpdate(
                        "other changes of the mapping came first, too often".to_owned(),
                    );
                    results = self.settle(results, deadline).await;
                    return finish(results, &error);
                }
                match self.node.mapper.grow(self.id.index, grown).await {
                    Ok(mapping) => self.learn(&mapping),
                    Err(error) => {
                        results = self.settle(results, deadline).await;
                        return finish(results, &error);
                    }
                }
            }
        }
        let results = self.settle(results, deadline).await;
        finish(results, &WriteError::Unknown("no result".to_owned()))
    }

    /// Parses on the CPU pool whatever is not parsed by the mapping in force.
    async fn sort(&self, waiting: Vec<(usize, Prepared)>) -> Result<Sorted, WriteError> {
        let parser = self.parser.load_full();
        let limit = self.index.load().settings.total_fields_limit;
        let (reply, answer) = oneshot::channel();
        self.node.cpu.spawn(move || {
            // A caller that is gone needs nothing.
            drop(reply.send(sort(&parser, waiting, limit)));
        });
        answer
            .await
            .map_err(|_| WriteError::MappingUpdate("parsing ended abnormally".to_owned()))
    }

    /// Waits for the acknowledgement of what was logged.
    async fn settle(
        &self,
        mut results: Vec<Option<Result<WriteResult, WriteError>>>,
        deadline: Instant,
    ) -> Vec<Option<Result<WriteResult, WriteError>>> {
        let last = results
            .iter()
            .flatten()
            .filter_map(|result| result.as_ref().ok())
            .map(|result| result.seq_no)
            .max();
        let Some(last) = last else { return results };
        if let Err(reason) = self.acknowledged(last, deadline).await {
            let checkpoint = self.tracker.checkpoint();
            debug!(shard = %self.id, last, ?checkpoint, reason, "writes are not acknowledged");
            for result in results.iter_mut().flatten() {
                if result.as_ref().is_ok_and(|done| Some(done.seq_no) > checkpoint) {
                    *result = Err(WriteError::Unknown(reason.clone()));
                }
            }
        }
        results
    }

    /// Waits until the global checkpoint is at or past an operation of this activation.
    pub(crate) async fn acknowledged(&self, seq_no: u64, deadline: Instant) -> Result<(), String> {
        let mut checkpoint = self.tracker.watch();
        let mut role = self.role.subscribe();
        let term = match &*role.borrow() {
            Role::Primary { term } => *term,
            other => return Err(format!("the copy is no longer primary: {other:?}")),
        };
        tokio::select! {
            // A checkpoint that has passed it counts, whatever happened to the role since.
            biased;
            reached = checkpoint.wait_for(|reached| *reached >= Some(seq_no)) => {
                reached.map(drop).map_err(|_| "the copy was closed".to_owned())
            }
            changed = role.wait_for(|role| *role != Role::Primary { term }) => Err(match changed {
                Ok(role) => format!("the copy is no longer primary: {:?}", *role),
                Err(_) => "the copy was closed".to_owned(),
            }),
            () = tokio::time::sleep_until(deadline) => {
                let awaited = self.tracker.awaited().len();
                Err(format!("not acknowledged by all of {awaited} in-sync copies in time"))
            }
        }
    }
}

fn cost(op: &WriteOp) -> u64 {
    op.source.len() as u64 + OVERHEAD
}

fn refuse(ops: &[WriteOp], error: &WriteError) -> Results {
    ops.iter().map(|_| Err(error.clone())).collect()
}

/// What has no result yet gets this error.
fn finish(results: Vec<Option<Result<WriteResult, WriteError>>>, error: &WriteError) -> Results {
    results
        .into_iter()
        .map(|result| result.unwrap_or_else(|| Err(error.clone())))
        .collect()
}

enum Parse {
    Ready(usize, Prepared),
    Refused(usize, WriteError),
    Grows(usize, Prepared, Arc<Mapping>),
}

fn parse(parser: &Parser, position: usize, mut prepared: Prepared) -> Parse {
    let wanted = matches!(prepared.op.kind, WriteKind::Index | WriteKind::Create);
    if !wanted || prepared.parsed.is_some() {
        return Parse::Ready(position, prepared);
    }
    match parser.parse(&prepared.op.id, &prepared.op.source) {
        Err(error) => Parse::Refused(position, error.into()),
        Ok(parsed) => {
            if let Some(grown) = parsed.grown {
                return Parse::Grows(position, prepared, grown);
            }
            prepared.parsed = Some((parsed.document, Arc::clone(parser.mapping())));
            Parse::Ready(position, prepared)
        }
    }
}

fn sort(parser: &Parser, waiting: Vec<(usize, Prepared)>, limit: u64) -> Sorted {
    let parsed: Vec<Parse> = if waiting.len() < PARALLEL {
        waiting
            .into_iter()
            .map(|(position, prepared)| parse(parser, position, prepared))
            .collect()
    } else {
        waiting
            .into_par_iter()
            .map(|(position, prepared)| parse(parser, position, prepared))
            .collect()
    };
    let mut sorted = Sorted {
        refused: Vec::new(),
        ready: Vec::new(),
        grown: None,
    };
    let base = parser.mapping();
    let mut merged: Option<Mapping> = None;
    for outcome in parsed {
        match outcome {
            Parse::Ready(position, prepared) => sorted.ready.push((position, prepared)),
            Parse::Refused(position, error) => sorted.refused.push((position, error)),
            Parse::Grows(position, prepared, grown) => {
                let next = match &merged {
                    None => Ok((*grown).clone()),
                    Some(merged) => merged.merge(&grown, limit),
                };
                // Two documents that contradict each other: the later one is parsed again by the mapping that has the earlier
                // one's fields, and refused, or not, by that.
                if let Ok(next) = next {
                    merged = Some(next);
                }
                sorted.ready.push((position, prepared));
            }
        }
    }
    sorted.grown = merged.map(|mut merged| {
        merged.version = base.version + 1;
        Arc::new(merged)
    });
    sorted
}
