//! The disk fails, or the process ends, in the middle of a write of the metadata.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod common;

use common::{Network, joined, node, open, switch};
use segmentry_meta::{MetaStore, OpenError, ProposeError, RaftMeta};
use segmentry_state::NodeId;
use segmentry_vfs::{RealFs, Vfs, VfsFile};
use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};
use uuid::Uuid;

/// The real file system until its fuse has burned down: the change that burns it is done by half, and none follows.
#[derive(Clone)]
struct Fused(Arc<AtomicI64>);

impl Fused {
    fn after(changes: i64) -> Self {
        Self(Arc::new(AtomicI64::new(changes)))
    }

    /// `Ok(true)`: do it. `Ok(false)`: do half of it and fail.
    fn burn(&self) -> io::Result<bool> {
        match self.0.fetch_sub(1, Ordering::SeqCst) {
            1.. => Ok(true),
            0 => Ok(false),
            _ => Err(gone()),
        }
    }

    fn whole(&self) -> io::Result<()> {
        if self.burn()? { Ok(()) } else { Err(gone()) }
    }
}

fn gone() -> io::Error {
    io::Error::other("the disk is gone")
}

impl Vfs for Fused {
    fn create(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        self.whole()?;
        Ok(Box::new(FusedFile {
            fuse: self.clone(),
            file: RealFs.create(path)?,
        }))
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        Ok(Box::new(FusedFile {
            fuse: self.clone(),
            file: RealFs.open(path)?,
        }))
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        RealFs.read(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealFs.list(dir)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        RealFs.exists(path)
    }
    fn len(&self, path: &Path) -> io::Result<u64> {
        RealFs.len(path)
    }
    fn modified(&self, path: &Path) -> io::Result<SystemTime> {
        RealFs.modified(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.whole()?;
        RealFs.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.whole()?;
        RealFs.remove(path)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.whole()?;
        RealFs.hard_link(from, to)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        RealFs.create_dir_all(dir)
    }
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.whole()?;
        RealFs.remove_dir_all(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.whole()?;
        RealFs.sync_dir(dir)
    }
}

struct FusedFile {
    fuse: Fused,
    file: Box<dyn VfsFile>,
}

impl VfsFile for FusedFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        if self.fuse.burn()? {
            return self.file.append(bytes);
        }
        self.file.append(&bytes[..bytes.len() / 2])?;
        Err(gone())
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.fuse.whole()?;
        self.file.write_at(bytes, offset)
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.fuse.whole()?;
        self.file.set_len(len)
    }
    fn sync(&self) -> io::Result<()> {
        self.fuse.whole()?;
        self.file.sync()
    }
    fn path(&self) -> &Path {
        self.file.path()
    }
}

/// Proposes until the disk fails; answers the version of the last success.
async fn propose_until_it_fails(meta: &RaftMeta) -> u64 {
    let mut last = meta.current().version;
    for n in 0..200 {
        match meta.propose(switch(n % 2 == 0)).await {
            Ok(state) => last = state.version,
            Err(ProposeError::Refused(refusal)) => panic!("{refusal}"),
            Err(_) => return last,
        }
    }
    panic!("the disk never failed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wherever_a_write_is_cut_off_everything_that_was_answered_is_there_again() {
    let network = Arc::new(Network::default());
    // Each number ends in another place: log writes, syncs, and the snapshots, purges and renames between them.
    for changes in (1..=56).step_by(5).chain([2, 3, 44, 45, 47, 48, 49, 52]) {
        let dir = tempfile::tempdir().unwrap();
        let meta = open(Arc::new(RealFs), dir.path(), 1, &network).await;
        meta.initialise(Uuid::new_v4(), "c".into(), vec![node(1)])
            .await
            .unwrap();
        meta.shutdown().await;
        let fused = Fused::after(changes);
        let meta = open(Arc::new(fused), dir.path(), 1, &network).await;
        let answered = propose_until_it_fails(&meta).await;
        meta.shutdown().await;
        let meta = open(Arc::new(RealFs), dir.path(), 1, &network).await;
        let version = meta.read().await.unwrap().version;
        assert!(
            version >= answered,
            "after {changes} changes: {version} < {answered}"
        );
        meta.propose(joined(1)).await.unwrap();
        meta.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_write_stops_the_node_and_says_why() {
    let network = Arc::new(Network::default());
    let dir = tempfile::tempdir().unwrap();
    let meta = open(Arc::new(RealFs), dir.path(), 1, &network).await;
    meta.initialise(Uuid::new_v4(), "c".into(), vec![node(1)])
        .await
        .unwrap();
    assert_eq!(meta.failed(), None);
    meta.shutdown().await;
    let meta = open(Arc::new(Fused::after(20)), dir.path(), 1, &network).await;
    propose_until_it_fails(&meta).await;
    let why = meta.failed().expect("raft does not go on over a failed disk");
    assert!(why.contains("the disk is gone"), "{why}");
    let mut leadership = meta.leadership();
    let none = leadership.wait_for(|l| l.leader.is_none());
    tokio::time::timeout(Duration::from_secs(5), none)
        .await
        .expect("and leads no more")
        .unwrap();
    meta.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_metadata_is_refused_not_forgotten() {
    let network = Arc::new(Network::default());
    let dir = tempfile::tempdir().unwrap();
    let meta = open(Arc::new(RealFs), dir.path(), 1, &network).await;
    meta.initialise(Uuid::new_v4(), "c".into(), vec![node(1)])
        .await
        .unwrap();
    for n in 0..30 {
        meta.propose(switch(n % 2 == 0)).await.unwrap();
    }
    // The snapshot is written beside the proposals.
    let snapshot = dir.path().join("snapshot");
    for _ in 0..500 {
        if snapshot.exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    meta.shutdown().await;
    for (name, at) in [("log", 60), ("snapshot", 40)] {
        let path = dir.path().join(name);
        let good = std::fs::read(&path).unwrap();
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        std::fs::write(&path, &bad).unwrap();
        let wire = Arc::new(Nowhere);
        match RaftMeta::open(Arc::new(RealFs), dir.path(), NodeId(1), wire).await {
            Err(OpenError::Corrupt { path: named, .. }) => assert_eq!(named, path),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("a damaged {name} was taken"),
        }
        std::fs::write(&path, &good).unwrap();
    }
    let meta = open(Arc::new(RealFs), dir.path(), 1, &network).await;
    assert_eq!(meta.read().await.unwrap().version, 31);
    meta.shutdown().await;
}

struct Nowhere;

impl segmentry_meta::RaftTransport for Nowhere {
    fn call<'a>(
        &'a self,
        _peer: &'a segmentry_meta::PeerAddr,
        _path: &'static str,
        _body: bytes::Bytes,
        _deadline: Duration,
    ) -> segmentry_meta::MetaFuture<'a, Result<bytes::Bytes, segmentry_meta::TransportError>> {
        Box::pin(async { Err(segmentry_meta::TransportError::NotSent("nobody".into())) })
    }
}
