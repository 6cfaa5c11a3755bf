#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
use super::*;
use crate::store::Batch;
use openraft::{CommittedLeaderId, EntryPayload};
use segmentry_vfs::RealFs;

fn entry(index: u64) -> Entry {
    Entry {
        log_id: LogId::new(CommittedLeaderId::new(1, 7), index),
        payload: EntryPayload::Normal(Batch::default()),
    }
}

fn entries(range: std::ops::Range<u64>) -> Record {
    Record {
        entries: range.map(entry).collect(),
        ..Record::default()
    }
}

fn indices(content: &Content) -> Vec<u64> {
    content.entries.keys().copied().collect()
}

fn real() -> (tempfile::TempDir, Arc<dyn Vfs>) {
    (tempfile::tempdir().unwrap(), Arc::new(RealFs))
}

#[test]
fn what_was_appended_is_there_after_opening_again() {
    let (dir, fs) = real();
    let (mut log, content, torn) = LogFile::open(Arc::clone(&fs), dir.path()).unwrap();
    assert!(content.entries.is_empty() && torn == 0);
    log.append(&entries(0..5)).unwrap();
    log.append(&Record {
        vote: Some(Vote::new(3, 9)),
        ..Record::default()
    })
    .unwrap();
    log.append(&Record {
        truncate: Some(3),
        ..Record::default()
    })
    .unwrap();
    log.append(&Record {
        purged: Some(entry(0).log_id),
        committed: Some(entry(2).log_id),
        ..Record::default()
    })
    .unwrap();
    drop(log);
    let (_, content, _) = LogFile::open(fs, dir.path()).unwrap();
    assert_eq!(indices(&content), [1, 2]);
    assert_eq!(content.vote, Some(Vote::new(3, 9)));
    assert_eq!(content.purged, Some(entry(0).log_id));
    assert_eq!(content.committed, Some(entry(2).log_id));
}

#[test]
fn a_rewrite_keeps_the_content_and_drops_the_rest() {
    let (dir, fs) = real();
    let (mut log, mut content, _) = LogFile::open(Arc::clone(&fs), dir.path()).unwrap();
    for n in 0..50 {
        log.append(&entries(n..n + 1)).unwrap();
        content.take_in(entries(n..n + 1));
    }
    content.take_in(Record {
        purged: Some(entry(44).log_id),
        ..Record::default()
    });
    let before = log.len();
    log.rewrite(&content).unwrap();
    assert!(log.len() < before / 4);
    log.append(&entries(50..52)).unwrap();
    let (_, read, _) = LogFile::open(fs, dir.path()).unwrap();
    assert_eq!(indices(&read), (45..52).collect::<Vec<_>>());
    assert_eq!(read.purged.map(|p| p.index), Some(44));
}

#[test]
fn a_write_cut_off_at_any_byte_is_removed_and_nothing_before_it_is_lost() {
    let (dir, fs) = real();
    let (mut log, _, _) = LogFile::open(Arc::clone(&fs), dir.path()).unwrap();
    log.append(&entries(0..2)).unwrap();
    let whole = log.len();
    log.append(&entries(2..3)).unwrap();
    let path = dir.path().join("log");
    let bytes = std::fs::read(&path).unwrap();
    for cut in usize::try_from(whole).unwrap()..bytes.len() {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let (mut log, content, torn) = LogFile::open(Arc::clone(&fs), dir.path()).unwrap();
        assert_eq!(indices(&content), [0, 1]);
        assert_eq!(torn, cut as u64 - whole);
        log.append(&entries(2..3)).unwrap();
        let (_, content, _) = LogFile::open(Arc::clone(&fs), dir.path()).unwrap();
        assert_eq!(indices(&content), [0, 1, 2]);
    }
}

#[test]
fn damage_before_a_good_frame_is_refused_with_its_place() {
    let (dir, fs) = real();
    let (mut log, _, _) = LogFile::open(Arc::clone(&fs), dir.path()).unwrap();
    log.append(&entries(0..1)).unwrap();
    let second = log.len();
    log.append(&entries(1..2)).unwrap();
    log.append(&entries(2..3)).unwrap();
    let path = dir.path().join("log");
    let good = std::fs::read(&path).unwrap();
    for at in [second, second + 5, second + 20] {
        let mut bytes = good.clone();
        bytes[usize::try_from(at).unwrap()] ^= 0x40;
        std::fs::write(&path, &bytes).unwrap();
        match LogFile::open(Arc::clone(&fs), dir.path()).err() {
            Some(OpenError::Corrupt { offset, .. }) => assert_eq!(offset, second),
            other => panic!("byte {at}: {other:?}"),
        }
    }
    let mut bytes = good;
    bytes[20] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert!(matches!(
        LogFile::open(fs, dir.path()),
        Err(OpenError::Corrupt { offset: 0, .. })
    ));
}
