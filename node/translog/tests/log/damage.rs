//! Files that were cut, changed or removed behind the log's back: a torn end is cut, damage is refused with its place.

use crate::{Bed, config, ops, written};
use segmentry_translog::{Config, Error};

#[tokio::test]
async fn a_torn_end_is_cut_and_reported_at_every_length() {
    let bed = Bed::new();
    let log = bed.create(config());
    log.start_term(1, None).await.unwrap();
    log.add(&ops(0..3, 1), true).await.unwrap();
    log.sync().await.unwrap();
    let whole = std::fs::metadata(bed.file(1)).unwrap().len();
    log.add(&ops(3..6, 1), false).await.unwrap();
    written(&log, 5).await;
    drop(log);
    let bytes = std::fs::read(bed.file(1)).unwrap();
    for length in (whole..bytes.len() as u64).rev() {
        std::fs::write(bed.file(1), &bytes[..usize::try_from(length).unwrap()]).unwrap();
        let (log, opened) = bed.open().unwrap();
        assert_eq!(opened.max_seq_no, Some(2), "length {length}");
        assert_eq!(
            opened.torn.map(|torn| (torn.offset, torn.bytes)),
            (length > whole).then_some((whole, length - whole))
        );
        assert_eq!(log.read_from(0, usize::MAX).unwrap(), ops(0..3, 1));
    }
}

#[tokio::test]
async fn damage_of_what_was_durable_is_refused_with_its_place() {
    let bed = Bed::new();
    let log = bed.create(config());
    log.start_term(1, None).await.unwrap();
    log.add(&ops(0..3, 1), true).await.unwrap();
    log.sync().await.unwrap();
    let first_end = std::fs::metadata(bed.file(1)).unwrap().len();
    log.add(&ops(3..4, 1), true).await.unwrap();
    log.sync().await.unwrap();
    // a frame whose own sync never came, but which says what was durable before it
    log.add(&ops(4..5, 1), false).await.unwrap();
    written(&log, 4).await;
    drop(log);
    let good = std::fs::read(bed.file(1)).unwrap();
    let ckp = std::fs::read(bed.path().join("translog.ckp")).unwrap();
    let mut refused = 0_u64;
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        std::fs::write(bed.file(1), &bad).unwrap();
        match bed.open() {
            Err(Error::Corrupt { file, .. }) => {
                assert_eq!(file, bed.file(1));
                refused += 1;
            }
            Err(Error::Foreign { .. }) => panic!("the header's checksum covers the shard's uuid"),
            Err(other) => panic!("{other}"),
            Ok((log, opened)) => {
                // only the last frame, or bytes that mean nothing
                assert!(
                    at as u64 >= first_end || (68..72).contains(&at),
                    "a flip at {at} was accepted"
                );
                let held = log.read_from(0, usize::MAX).unwrap();
                assert_eq!(held, ops(0..opened.max_seq_no.unwrap() + 1, 1), "flip at {at}");
            }
        }
        std::fs::write(bed.file(1), &good).unwrap();
        std::fs::write(bed.path().join("translog.ckp"), &ckp).unwrap();
    }
    assert!(refused >= first_end - 4, "{refused} of {first_end}");
}

#[tokio::test]
async fn a_missing_file_that_was_durable_is_refused() {
    let bed = Bed::new();
    let log = bed.create(Config {
        generation_threshold: 200,
        ..config()
    });
    log.start_term(1, None).await.unwrap();
    for seq_no in 0..20 {
        log.add(&ops(seq_no..seq_no + 1, 1), true).await.unwrap();
        written(&log, seq_no).await;
    }
    log.close().await.unwrap();
    let newest = log.stats(None).generations;
    for generation in [2, newest] {
        let bytes = std::fs::read(bed.file(generation)).unwrap();
        std::fs::remove_file(bed.file(generation)).unwrap();
        assert!(
            matches!(bed.open().err(), Some(Error::Corrupt { .. })),
            "generation {generation}"
        );
        std::fs::write(bed.file(generation), bytes).unwrap();
    }
    assert!(bed.open().is_ok());
}

#[tokio::test]
async fn a_file_that_lost_its_end_between_two_frames_is_refused_though_a_good_one_follows() {
    let bed = Bed::new();
    let log = bed.create(Config {
        generation_threshold: 300,
        ..config()
    });
    log.start_term(1, None).await.unwrap();
    let mut lengths = Vec::new();
    for seq_no in 0..8 {
        log.add(&ops(seq_no..seq_no + 1, 1), true).await.unwrap();
        written(&log, seq_no).await;
        lengths.push(std::fs::metadata(bed.file(1)).unwrap().len());
    }
    log.close().await.unwrap();
    let last = *lengths.last().unwrap();
    let before = *lengths.iter().rev().find(|length| **length < last).unwrap();
    assert!(log.stats(None).generations > 1);
    let file = std::fs::OpenOptions::new().write(true).open(bed.file(1)).unwrap();
    file.set_len(before).unwrap();
    match bed.open().err() {
        Some(Error::Corrupt { file, offset, .. }) => {
            assert_eq!((file, offset), (bed.file(1), before));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_first_file_is_missed_unless_it_was_trimmed() {
    let bed = Bed::new();
    let log = bed.create(Config {
        generation_threshold: 200,
        ..config()
    });
    log.start_term(1, None).await.unwrap();
    for seq_no in 0..12 {
        log.add(&ops(seq_no..seq_no + 1, 1), true).await.unwrap();
        written(&log, seq_no).await;
    }
    log.trim_below(4).await.unwrap();
    log.close().await.unwrap();
    let (log, opened) = bed.open().unwrap();
    let first = opened.min_seq_no.unwrap();
    assert!((1..=4).contains(&first), "{opened:?}");
    drop(log);
    let oldest = (1..20).find(|generation| bed.file(*generation).exists()).unwrap();
    std::fs::remove_file(bed.file(oldest)).unwrap();
    match bed.open().err() {
        Some(Error::Corrupt { file, .. }) => assert_eq!(file, bed.file(oldest)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_lost_checkpoint_is_refused() {
    let bed = Bed::new();
    let log = bed.create(config());
    log.close().await.unwrap();
    let checkpoint = bed.path().join("translog.ckp");
    std::fs::write(&checkpoint, vec![0; 8192]).unwrap();
    assert!(matches!(bed.open().err(), Some(Error::Corrupt { file, .. }) if file == checkpoint));
    std::fs::remove_file(&checkpoint).unwrap();
    assert!(matches!(bed.open().err(), Some(Error::Corrupt { file, .. }) if file == checkpoint));
}
