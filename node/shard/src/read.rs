//! Gets by id, searches, counts.

use crate::{CopyError, GetResult, Role, ShardCopy, actor::stores, follow::blocking};
use segmentry_engine::PartialResult;
use segmentry_query::{Query, SearchRequest};
use std::{
    sync::Arc,
    time::{Duration, Instant as StdInstant},
};
use tokio::time::Instant;

/// How often a read by id looks again when the place of a document changed under it.
const ATTEMPTS: usize = 8;

impl ShardCopy {
    /// One document by its id, on the primary. `realtime`: sees writes that no search sees yet, and waits until they are acknowledged:
    /// what is answered is on every in-sync copy.
    pub async fn get(
        self: &Arc<Self>,
        id: Arc<str>,
        realtime: bool,
        deadline: Instant,
    ) -> Result<Option<GetResult>, CopyError> {
        let role = self.role();
        if !matches!(role, Role::Primary { .. }) {
            return Err(CopyError::NotPrimary(format!("{role:?}")));
        }
        let copy = Arc::clone(self);
        let entry = if realtime {
            self.versions.lock().get(&id)
        } else {
            None
        };
        let Some(entry) = entry else {
            // A searcher shows nothing that is not on every in-sync copy.
            return blocking(move || copy.stored(&id)).await;
        };
        self.acknowledged(entry.seq_no, deadline)
            .await
            .map_err(CopyError::NotPrimary)?;
        if entry.deleted.is_some() {
            return Ok(None);
        }
        blocking(move || copy.logged_or_stored(&id, entry.seq_no)).await
    }

    /// The document as an operation put it: from memory, the log, or, once it is in a commit, the index. Blocks.
    pub(crate) fn logged_or_stored(&self, id: &str, seq_no: u64) -> Result<Option<GetResult>, CopyError> {
        for _ in 0..ATTEMPTS {
            let operation = self.tail.lock().get(seq_no);
            let operation = match operation {
                Some(operation) => Some(operation),
                None => match self.log.read(seq_no) {
                    Ok(operation) => operation,
                    Err(segmentry_translog::Error::Trimmed { .. }) => None,
                    Err(error) => return Err(error.into()),
                },
            };
            if let Some(operation) =
                operation.filter(|operation| stores(operation.kind) && &*operation.id == id)
            {
                return Ok(Some(GetResult {
                    version: operation.version,
                    seq_no: operation.seq_no,
                    term: operation.term,
                    routing: operation.routing.as_deref().map(str::to_owned),
                    source: operation.source,
                }));
            }
            // Trimmed: a durable commit has it, or something newer.
            if let Some(found) = self.stored(id)?
                && found.seq_no >= seq_no
            {
                return Ok(Some(found));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.stored(id)
    }

    /// What the searcher shows. Blocks.
    fn stored(&self, id: &str) -> Result<Option<GetResult>, CopyError> {
        Ok(self.engine.get(id)?.map(|found| GetResult {
            version: found.version,
            seq_no: found.seq_no,
            term: found.term,
            routing: found.routing,
            source: found.source,
        }))
    }

    fn readable(&self) -> Result<(), CopyError> {
        match self.role() {
            Role::Recovering | Role::Closed => Err(CopyError::Unusable(format!(
                "the copy is not open: {:?}",
                self.role()
            ))),
            Role::Failed(failure) => Err(CopyError::Unusable(failure.to_string())),
            Role::Replica { .. } | Role::Primary { .. } | Role::Deposed { .. } => Ok(()),
        }
    }

    /// Searches what the last refresh made visible; `ordinal` is the place of this shard among those of the request.
    pub async fn search(
        self: &Arc<Self>,
        request: Arc<SearchRequest>,
        ordinal: u32,
    ) -> Result<PartialResult, CopyError> {
        self.readable()?;
        let copy = Arc::clone(self);
        blocking(move || {
            let begun = StdInstant::now();
            let result = copy.engine.search(&request, ordinal);
            copy.counters.query_total.add(1);
            copy.counters.query_time_us.add_time(begun.elapsed());
            Ok(result?)
        })
        .await
    }

    /// Counts matches; `now_ms` is the time that date math in the query means.
    pub async fn count(self: &Arc<Self>, query: Query, now_ms: i64) -> Result<u64, CopyError> {
        self.readable()?;
        let copy = Arc::clone(self);
        blocking(move || Ok(copy.engine.count(&query, now_ms)?)).await
    }
}
