//! The writer: operations into tantivy, and growth of the schema.

use crate::{
    CommitPayload, Engine, EngineError,
    directory::SoftDirectory,
    engine::open_index,
    meta::{self, now_ms},
    schema::{self, Fields},
};
use bytes::Bytes;
use segmentry_mapping::{FieldValue, Mapping, ParsedDocument};
use serde_json::Value;
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
use tantivy::{
    IndexWriter, TantivyDocument, Term,
    indexer::{IndexWriterOptions, LogMergePolicy, NoMergePolicy},
    schema::{Field, FieldEntry},
};

/// Share of deleted documents from which a segment is merged.
const DELETED_RATIO: f32 = 0.3;
/// How often a forced merge begins again after a merge that was running already.
const MERGE_TRIES: u32 = 32;

/// An operation as the engine needs it.
#[derive(Debug, Clone, Copy)]
pub struct OperationRef<'a> {
    /// Document id.
    pub id: &'a str,
    /// Sequence number; operations come in ascending order.
    pub seq_no: u64,
    /// Primary term.
    pub term: u64,
    /// Version of the document.
    pub version: u64,
    /// Routing, where one was given.
    pub routing: Option<&'a str>,
    /// Source as it was sent; empty for a delete.
    pub source: &'a [u8],
}

/// State of the writer.
pub(crate) enum Slot {
    /// None is open.
    Closed,
    /// Open.
    Open(Box<Writer>),
    /// It failed, and why.
    Killed(String),
}

pub(crate) struct Writer {
    inner: IndexWriter,
    fields: Fields,
    /// Where the values of one mapping version go.
    plan: Plan,
    counters: Arc<Counters>,
    /// Payload of a commit right now.
    seen: CommitPayload,
}

/// What others may know of the writer without waiting for it.
#[derive(Default)]
pub(crate) struct Counters {
    pub open: AtomicBool,
    /// Operations that no commit has.
    pub uncommitted: AtomicU64,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.counters.open.store(false, Ordering::Release);
        self.counters.uncommitted.store(0, Ordering::Release);
    }
}

/// By position in `Mapping::fields` of the mapping with this version.
#[derive(Default)]
struct Plan {
    version: Option<u64>,
    targets: Vec<Target>,
}

enum Target {
    /// Lives in `_source` only.
    Nowhere,
    /// In the schema; true if its path goes into `_field_names`.
    Field(Field, bool),
    /// To be appended to the schema first.
    Missing,
}

impl Plan {
    fn of(mapping: &Mapping, fields: &Fields) -> Self {
        let targets = mapping
            .fields
            .iter()
            .map(
                |field| match (fields.get(&field.name), schema::field_entry(field)) {
                    (_, None) => Target::Nowhere,
                    (Some(handle), _) => Target::Field(handle, schema::needs_field_name(field)),
                    (None, Some(_)) => Target::Missing,
                },
            )
            .collect();
        Self {
            version: Some(mapping.version),
            targets,
        }
    }
}

impl Writer {
    pub(crate) fn uncommitted(&self) -> u64 {
        self.counters.uncommitted.load(Ordering::Acquire)
    }

    /// Commits under a payload, without a sync.
    pub(crate) fn commit(&mut self, payload: &CommitPayload) -> Result<(), EngineError> {
        let text = serde_json::to_string(payload).map_err(|error| EngineError::Failed(error.to_string()))?;
        let mut prepared = self.inner.prepare_commit()?;
        prepared.set_payload(&text);
        prepared.commit()?;
        self.counters.uncommitted.store(0, Ordering::Release);
        self.seen = payload.clone();
        Ok(())
    }

    fn plan(&mut self, mapping: &Mapping) {
        if self.plan.version != Some(mapping.version) || self.plan.targets.len() != mapping.fields.len() {
            self.plan = Plan::of(mapping, &self.fields);
        }
    }

    /// Positions of the fields that a document has and the schema has not.
    fn missing(&mut self, document: &ParsedDocument, mapping: &Mapping, out: &mut Vec<FieldEntry>) {
        self.plan(mapping);
        for (position, _) in &document.values {
            if let Some(Target::Missing) = self.plan.targets.get(*position as usize)
                && let Some(entry) = mapping
                    .fields
                    .get(*position as usize)
                    .and_then(schema::field_entry)
                && !out.iter().any(|known| known.name() == entry.name())
            {
                out.push(entry);
            }
        }
    }

    fn saw(&mut self, operation: &OperationRef<'_>, mapping_version: u64) {
        self.counters.uncommitted.fetch_add(1, Ordering::AcqRel);
        self.seen.term = self.seen.term.max(operation.term);
        self.seen.max_seq_no = self.seen.max_seq_no.max(Some(operation.seq_no));
        self.seen.mapping_version = self.seen.mapping_version.max(mapping_version);
    }

    fn base(&self, operation: &OperationRef<'_>) -> TantivyDocument {
        let mut document = TantivyDocument::default();
        document.add_text(self.fields.id, operation.id);
        document.add_u64(self.fields.seq_no, operation.seq_no);
        document.add_u64(self.fields.term, operation.term);
        document.add_u64(self.fields.version, operation.version);
        document.add_bytes(self.fields.source, operation.source);
        if let Some(routing) = operation.routing {
            document.add_text(self.fields.routing, routing);
        }
        document
    }

    fn add(
        &mut self,
        operation: &OperationRef<'_>,
        document: TantivyDocument,
        unique: bool,
    ) -> Result<(), EngineError> {
        if !unique {
            self.inner
                .delete_term(Term::from_field_text(self.fields.id, operation.id));
        }
        self.inner.add_document(document)?;
        Ok(())
    }
}

impl Engine {
    /// Opens a writer for operations of `term`. Also after [`EngineError::WriterKilled`], then for a higher term: it goes on from
    /// the current meta, and the caller hands in again everything above [`Engine::commit_info`]'s `max_seq_no`.
    ///
    /// Errors: [`EngineError::StaleTerm`] for a term below that of the meta (or not above it, after a kill),
    /// [`EngineError::WriterOpen`].
    pub fn open_writer(&self, term: u64) -> Result<(), EngineError> {
        let mut slot = self.writer.lock();
        match &*slot {
            Slot::Open(_) => return Err(EngineError::WriterOpen),
            Slot::Killed(_) => {
                let known = meta::term_of(self.shared.state.lock().current.opstamp);
                if term <= known {
                    return Err(EngineError::StaleTerm { given: term, known });
                }
            }
            Slot::Closed => {}
        }
        *slot = Slot::Open(Box::new(self.start_writer(Some(term), &[])?));
        Ok(())
    }

    /// Ends the writer and its threads. A running merge is given up.
    ///
    /// Errors: [`EngineError::Uncommitted`] if it holds operations that a refresh has not committed; it stays open then.
    pub fn close_writer(&self) -> Result<(), EngineError> {
        let mut slot = self.writer.lock();
        if let Slot::Open(writer) = &*slot
            && writer.uncommitted() > 0
        {
            return Err(EngineError::Uncommitted(writer.uncommitted()));
        }
        // A killed one stays known as killed: its term may not write again.
        if let Slot::Open(_) = &*slot {
            *slot = Slot::Closed;
        }
        // A merge that goes on behind the writer's back may leave nothing.
        let mut state = self.shared.state.lock();
        self.shared.fence(&mut state);
        Ok(())
    }

    /// Fences older writers, appends fields to the schema of the current meta, and starts a writer on it.
    fn start_writer(&self, term: Option<u64>, append: &[FieldEntry]) -> Result<Writer, EngineError> {
        let (epoch, payload) = {
            let mut state = self.shared.state.lock();
            state.check()?;
            let epoch = self.shared.fence(&mut state);
            let current = Arc::clone(&state.current);
            let term = term.unwrap_or_else(|| meta::term_of(current.opstamp));
            let opstamp = meta::next_stamp(term, current.opstamp)?;
            let version = meta::next_stamp(term, current.version)?;
            let bytes = rewrite(&current.bytes, opstamp, append)?;
            state.publish(version, now_ms(), bytes)?;
            (epoch, state.current.payload.clone())
        };
        let index = open_index(
            SoftDirectory::new(Arc::clone(&self.shared), Some(epoch)),
            &self.tokenizers,
        )?;
        let fields = Fields::of(&index.schema())?;
        let options = IndexWriterOptions::builder()
            .num_worker_threads(1)
            .num_merge_threads(1)
            .memory_budget_per_thread(self.arena_bytes)
            .build();
        let writer = index.writer_with_options(options)?;
        writer.set_merge_policy(Box::new(merge_policy()));
        self.counters.open.store(true, Ordering::Release);
        Ok(Writer {
            inner: writer,
            fields,
            plan: Plan::default(),
            counters: Arc::clone(&self.counters),
            seen: payload,
        })
    }

    /// Appends to the schema what these documents carry and it lacks, in one reopening for all of them; nothing happens if it lacks
    /// nothing. `index` does it by itself for one document; with a queue at hand, call this first for the whole queue.
    ///
    /// What was indexed before is committed on the way (without a sync, and not yet visible).
    pub fn ensure_fields<'a>(
        &self,
        documents: impl IntoIterator<Item = (&'a ParsedDocument, &'a Arc<Mapping>)>,
    ) -> Result<(), EngineError> {
        let mut slot = self.writer.lock();
        let mut append = Vec::new();
        let writer = slot.writer()?;
        for (document, mapping) in documents {
            writer.missing(document, mapping, &mut append);
        }
        self.grow(&mut slot, &append)
    }

    fn grow(&self, slot: &mut Slot, append: &[FieldEntry]) -> Result<(), EngineError> {
        if append.is_empty() {
            return Ok(());
        }
        let writer = slot.writer()?;
        if writer.uncommitted() > 0 {
            let payload = writer.seen.clone();
            if let Err(error) = writer.commit(&payload) {
                return Err(slot.kill(error));
            }
        }
        // Ends the old one before the new one asks for the lock.
        *slot = Slot::Closed;
        match self.start_writer(None, append) {
            Ok(writer) => {
                *slot = Slot::Open(Box::new(writer));
                Ok(())
            }
            Err(error) => Err(slot.kill(error)),
        }
    }

    /// Indexes a document, in place of the one with its id. `mapping` is the one that `document` was parsed with. `unique`: no
    /// document of this id can be here (a fresh automatic id), so none is looked for.
    ///
    /// Errors: [`EngineError::NoWriter`], [`EngineError::WriterKilled`].
    pub fn index(
        &self,
        operation: &OperationRef<'_>,
        document: &ParsedDocument,
        mapping: &Arc<Mapping>,
        unique: bool,
    ) -> Result<(), EngineError> {
        self.set_mapping(Arc::clone(mapping));
        let mut slot = self.writer.lock();
        let mut append = Vec::new();
        slot.writer()?.missing(document, mapping, &mut append);
        self.grow(&mut slot, &append)?;
        let writer = slot.writer()?;
        writer.plan(mapping);
        let mut out = writer.base(operation);
        let mut named: Vec<u32> = Vec::new();
        for (position, value) in &document.values {
            let Some(Target::Field(field, name)) = writer.plan.targets.get(*position as usize) else {
                continue;
            };
            match value {
                FieldValue::Text(text) => out.add_text(*field, text),
                FieldValue::Long(value) | FieldValue::Date(value) => out.add_i64(*field, *value),
                FieldValue::Double(value) => out.add_f64(*field, *value),
                FieldValue::Boolean(value) => out.add_bool(*field, *value),
            }
            if *name && !named.contains(position) {
                named.push(*position);
            }
        }
        for position in named {
            if let Some(field) = mapping.fields.get(position as usize) {
                out.add_text(writer.fields.field_names, &field.name);
            }
        }
        if let Err(error) = writer.add(operation, out, unique) {
            return Err(slot.kill(error));
        }
        writer.saw(operation, mapping.version);
        Ok(())
    }

    /// Deletes a document, if it is there.
    pub fn delete(&self, operation: &OperationRef<'_>) -> Result<(), EngineError> {
        let mut slot = self.writer.lock();
        let writer = slot.writer()?;
        writer
            .inner
            .delete_term(Term::from_field_text(writer.fields.id, operation.id));
        writer.saw(operation, 0);
        Ok(())
    }

    /// Keeps a document that cannot be indexed: found by id and by `_seq_no`, with its source, and by nothing else.
    pub fn add_unindexable(&self, operation: &OperationRef<'_>) -> Result<(), EngineError> {
        let mut slot = self.writer.lock();
        let writer = slot.writer()?;
        let document = writer.base(operation);
        if let Err(error) = writer.add(operation, document, false) {
            return Err(slot.kill(error));
        }
        writer.saw(operation, 0);
        Ok(())
    }

    /// Merges all segments of the current meta into one, and waits for it. Nothing else is indexed meanwhile.
    pub fn force_merge(&self) -> Result<(), EngineError> {
        let mut slot = self.writer.lock();
        let writer = slot.writer()?;
        // No new merge begins beside this one.
        writer.inner.set_merge_policy(Box::new(NoMergePolicy));
        let merged = self.merge_all(writer);
        writer.inner.set_merge_policy(Box::new(merge_policy()));
        merged
    }

    fn merge_all(&self, writer: &mut Writer) -> Result<(), EngineError> {
        let mut tries = 0;
        loop {
            let segments = {
                let state = self.shared.state.lock();
                let segments = &state.current.segments;
                if segments.is_empty()
                    || (segments.len() == 1 && segments.iter().all(|segment| segment.deletes.is_none()))
                {
                    return Ok(());
                }
                drop(state);
                writer.inner.index().searchable_segment_ids()?
            };
            tries += 1;
            match writer.inner.merge(&segments).wait() {
                Ok(_) if tries < MERGE_TRIES => {}
                Ok(_) => return Ok(()),
                // A merge that was running took some of the segments. None can begin now, so this ends.
                Err(tantivy::TantivyError::InvalidArgument(reason)) if tries < MERGE_TRIES => {
                    tracing::debug!(tries, %reason, "a background merge was faster");
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn merge_policy() -> LogMergePolicy {
    let mut policy = LogMergePolicy::default();
    policy.set_del_docs_ratio_before_merge(DELETED_RATIO);
    policy
}

/// tantivy's meta with another opstamp and more fields at the end of its schema.
fn rewrite(bytes: &[u8], opstamp: u64, append: &[FieldEntry]) -> Result<Bytes, EngineError> {
    let broken = |reason: String| EngineError::Corrupt {
        file: "meta.json".to_owned(),
        reason,
    };
    let mut meta: Value = serde_json::from_slice(bytes).map_err(|error| broken(error.to_string()))?;
    let root = meta
        .as_object_mut()
        .ok_or_else(|| broken("not an object".to_owned()))?;
    root.insert("opstamp".to_owned(), opstamp.into());
    let fields = root
        .get_mut("schema")
        .and_then(Value::as_array_mut)
        .ok_or_else(|| broken("no schema".to_owned()))?;
    for entry in append {
        fields.push(serde_json::to_value(entry).map_err(|error| broken(error.to_string()))?);
    }
    serde_json::to_vec(&meta)
        .map(Bytes::from)
        .map_err(|error| broken(error.to_string()))
}
