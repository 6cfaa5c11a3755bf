//! What the engine's tests share: a counting file system, and a shard that parses and indexes JSON.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use segmentry_engine::{CommitPayload, Engine, EngineConfig, EngineError, OperationRef, schema::Located};
use segmentry_mapping::{Limits, Mapping, ParsedDocument, Parser};
use segmentry_vfs::{RealFs, Vfs, VfsFile};
use serde_json::Value;
use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};
use tantivy::{
    collector::{Count, TopDocs},
    query::{EnableScoring, Query, TermQuery},
    schema::{IndexRecordOption, Value as _},
};

/// Counts syncs, and fails where it is told to.
pub struct Watched {
    real: RealFs,
    pub syncs: Arc<AtomicU64>,
    pub dir_syncs: AtomicU64,
    pub fail_syncs: Arc<AtomicBool>,
    /// From this many further syncs (of files and directories), creations and renames on, all of them fail; negative: never.
    pub steps_left: Arc<AtomicI64>,
    pub fail_creates: AtomicBool,
    pub panic_in_create: AtomicBool,
}

impl Default for Watched {
    fn default() -> Self {
        Self {
            real: RealFs,
            syncs: Arc::default(),
            dir_syncs: AtomicU64::default(),
            fail_syncs: Arc::default(),
            steps_left: Arc::new(AtomicI64::new(-1)),
            fail_creates: AtomicBool::default(),
            panic_in_create: AtomicBool::default(),
        }
    }
}

struct WatchedFile {
    file: Box<dyn VfsFile>,
    syncs: Arc<AtomicU64>,
    fail: Arc<AtomicBool>,
    steps_left: Arc<AtomicI64>,
}

/// Counts one step down; an error once none is left.
fn step(steps_left: &AtomicI64) -> io::Result<()> {
    let left = steps_left.load(Ordering::SeqCst);
    if left == 0 {
        return Err(io::Error::other("the power is gone"));
    }
    steps_left.store(left - 1, Ordering::SeqCst);
    Ok(())
}

impl Watched {
    fn wrap(&self, file: Box<dyn VfsFile>) -> Box<dyn VfsFile> {
        Box::new(WatchedFile {
            file,
            syncs: Arc::clone(&self.syncs),
            fail: Arc::clone(&self.fail_syncs),
            steps_left: Arc::clone(&self.steps_left),
        })
    }

    pub fn all_syncs(&self) -> u64 {
        self.syncs.load(Ordering::SeqCst) + self.dir_syncs.load(Ordering::SeqCst)
    }
}

impl VfsFile for WatchedFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.file.append(bytes)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(bytes, offset)
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn sync(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        step(&self.steps_left)?;
        if self.fail.load(Ordering::SeqCst) {
            return Err(io::Error::other("injected"));
        }
        self.file.sync()
    }
    fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Vfs for Watched {
    fn create(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        assert!(!self.panic_in_create.load(Ordering::SeqCst), "injected panic");
        if self.fail_creates.load(Ordering::SeqCst) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        step(&self.steps_left)?;
        self.real.create(path).map(|file| self.wrap(file))
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        self.real.open(path).map(|file| self.wrap(file))
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.real.read(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.real.list(dir)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.real.exists(path)
    }
    fn len(&self, path: &Path) -> io::Result<u64> {
        self.real.len(path)
    }
    fn modified(&self, path: &Path) -> io::Result<SystemTime> {
        self.real.modified(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        step(&self.steps_left)?;
        self.real.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.real.remove(path)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real.hard_link(from, to)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.real.create_dir_all(dir)
    }
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.real.remove_dir_all(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.dir_syncs.fetch_add(1, Ordering::SeqCst);
        step(&self.steps_left)?;
        self.real.sync_dir(dir)
    }
}

/// One copy, fed with JSON.
pub struct Copy {
    pub engine: Engine,
    pub mapping: Arc<Mapping>,
    pub next_seq: u64,
    pub term: u64,
}

pub fn config(fs: Arc<dyn Vfs>, dir: &Path) -> EngineConfig {
    EngineConfig::new(fs, dir.to_owned(), Arc::new(Mapping::default()))
}

impl Copy {
    /// A new engine with a writer in term 1.
    pub fn create(config: EngineConfig) -> Self {
        let mapping = Arc::clone(&config.mapping);
        let engine = Engine::create(
            config,
            &CommitPayload {
                term: 1,
                ..CommitPayload::default()
            },
        )
        .unwrap();
        engine.open_writer(1).unwrap();
        Self {
            engine,
            mapping,
            next_seq: 0,
            term: 1,
        }
    }

    /// On real files.
    pub fn in_dir(dir: &Path) -> Self {
        Self::create(config(Arc::new(RealFs), dir))
    }

    pub fn parse(&mut self, source: &Value) -> ParsedDocument {
        let bytes = serde_json::to_vec(source).unwrap();
        let parsed = Parser::new(Arc::clone(&self.mapping), Limits::default())
            .parse("id", &bytes)
            .unwrap();
        if let Some(grown) = parsed.grown {
            self.mapping = grown;
        }
        parsed.document
    }

    pub fn try_index(&mut self, id: &str, source: &Value) -> Result<(), EngineError> {
        let document = self.parse(source);
        let bytes = serde_json::to_vec(source).unwrap();
        let operation = OperationRef {
            id,
            seq_no: self.next_seq,
            term: self.term,
            version: 1,
            routing: None,
            source: &bytes,
        };
        self.engine.index(&operation, &document, &self.mapping, false)?;
        self.next_seq += 1;
        Ok(())
    }

    pub fn index(&mut self, id: &str, source: &Value) {
        self.try_index(id, source).unwrap();
    }

    pub fn delete(&mut self, id: &str) {
        let operation = OperationRef {
            id,
            seq_no: self.next_seq,
            term: self.term,
            version: 2,
            routing: None,
            source: &[],
        };
        self.engine.delete(&operation).unwrap();
        self.next_seq += 1;
    }

    pub fn payload(&self) -> CommitPayload {
        CommitPayload {
            term: self.term,
            max_seq_no: self.next_seq.checked_sub(1),
            history: uuid::Uuid::nil(),
            mapping_version: self.mapping.version,
        }
    }

    pub fn refresh(&self) -> bool {
        self.engine.refresh(&self.payload()).unwrap()
    }

    pub fn ids(&self) -> Vec<String> {
        ids(&self.engine)
    }
}

/// All visible ids, sorted.
pub fn ids(engine: &Engine) -> Vec<String> {
    let view = engine.view();
    let mut out = Vec::new();
    for segment in view.searcher().segment_readers() {
        let store = segment.get_store_reader(1).unwrap();
        for doc in segment.doc_ids_alive() {
            let document: tantivy::TantivyDocument = store.get(doc).unwrap();
            out.push(
                document
                    .get_first(view.fields().id)
                    .unwrap()
                    .as_str()
                    .unwrap()
                    .to_owned(),
            );
        }
    }
    out.sort();
    out
}

/// Number of documents that a term query on a text field finds; none if the field is not materialised.
pub fn count_text(engine: &Engine, path: &str, word: &str) -> Option<usize> {
    let view = engine.view();
    let Located::Field(_, field) = view.locate(path) else {
        return None;
    };
    let query = TermQuery::new(
        tantivy::Term::from_field_text(field, word),
        IndexRecordOption::WithFreqs,
    );
    Some(view.searcher().search(&query, &Count).unwrap())
}

/// (id, score) of every document that a word of a text field matches, scored one by one, sorted by id.
pub fn scores(engine: &Engine, path: &str, word: &str) -> Vec<(String, f32)> {
    let view = engine.view();
    let Located::Field(_, field) = view.locate(path) else {
        return Vec::new();
    };
    let query = TermQuery::new(
        tantivy::Term::from_field_text(field, word),
        IndexRecordOption::WithFreqs,
    );
    let weight = query
        .weight(EnableScoring::enabled_from_searcher(view.searcher()))
        .unwrap();
    let mut out = Vec::new();
    for segment in view.searcher().segment_readers() {
        let store = segment.get_store_reader(1).unwrap();
        weight
            .for_each(segment, &mut |doc, score| {
                if segment.is_deleted(doc) {
                    return;
                }
                let document: tantivy::TantivyDocument = store.get(doc).unwrap();
                out.push((
                    document
                        .get_first(view.fields().id)
                        .unwrap()
                        .as_str()
                        .unwrap()
                        .to_owned(),
                    score,
                ));
            })
            .unwrap();
    }
    out.sort_by(|left, right| left.0.cmp(&right.0));
    // Searching by way of a collector reads the same segments.
    let top = view
        .searcher()
        .search(&query, &TopDocs::with_limit(1).order_by_score())
        .unwrap();
    assert_eq!(top.is_empty(), out.is_empty());
    out
}

/// Waits for a condition.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Names in a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    RealFs.list(dir).unwrap()
}

/// Copies every missing file of a checkpoint from one engine to another, and installs it.
pub fn send(from: &Engine, to: &Engine) -> Result<bool, EngineError> {
    let pinned = from.pin_checkpoint();
    for file in to.missing_files(pinned.checkpoint()) {
        let source = pinned.open(&file.name)?;
        let mut sink = to.receive_file(file)?;
        let mut buffer = vec![0; 4096];
        let mut at = 0;
        loop {
            let count = source.read_at(&mut buffer, at).unwrap();
            if count == 0 {
                break;
            }
            sink.write(&buffer[..count])?;
            at += count as u64;
        }
        sink.finish()?;
    }
    to.install(pinned.checkpoint())
}

pub fn dir() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    (dir, path)
}
