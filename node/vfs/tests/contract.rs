//! The contract of the trait, over both implementors, and what only the model can show.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use segmentry_vfs::{CrashFs, Faults, RealFs, Vfs, create_dir_durably, write_durably};
use std::{io, path::Path};

fn contract(fs: &dyn Vfs, root: &Path) {
    let kind = |result: io::Result<()>| result.unwrap_err().kind();
    let dir = root.join("a/b");
    assert_eq!(kind(fs.create(&dir.join("f")).map(drop)), io::ErrorKind::NotFound);
    fs.create_dir_all(&dir).unwrap();
    fs.create_dir_all(&dir).unwrap();
    let file = fs.create(&dir.join("f")).unwrap();
    file.append(b"hello").unwrap();
    file.append(b" world").unwrap();
    file.write_at(b"J", 0).unwrap();
    let mut buffer = [0; 5];
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 5);
    assert_eq!(&buffer, b"Jello");
    assert_eq!(file.read_at(&mut buffer, 9).unwrap(), 2, "short only at the end");
    assert_eq!(file.read_at(&mut buffer, 100).unwrap(), 0);
    file.write_at(b"!", 13).unwrap();
    assert_eq!(fs.read(&dir.join("f")).unwrap(), b"Jello world\0\0!");
    file.set_len(5).unwrap();
    assert_eq!((file.len().unwrap(), fs.len(&dir.join("f")).unwrap()), (5, 5));
    file.sync().unwrap();
    fs.sync_dir(&dir).unwrap();

    fs.rename(&dir.join("f"), &dir.join("g")).unwrap();
    file.append(b"!").unwrap();
    assert_eq!(
        fs.read(&dir.join("g")).unwrap(),
        b"Jello!",
        "a handle outlives a rename"
    );
    assert_eq!(kind(fs.open(&dir.join("f")).map(drop)), io::ErrorKind::NotFound);
    fs.hard_link(&dir.join("g"), &dir.join("h")).unwrap();
    assert_eq!(
        kind(fs.hard_link(&dir.join("g"), &dir.join("h"))),
        io::ErrorKind::AlreadyExists
    );
    assert_eq!(fs.list(&dir).unwrap(), ["g", "h"]);
    fs.remove(&dir.join("g")).unwrap();
    assert_eq!(kind(fs.remove(&dir.join("g"))), io::ErrorKind::NotFound);
    assert_eq!(
        fs.read(&dir.join("h")).unwrap(),
        b"Jello!",
        "the other name keeps the file"
    );
    fs.remove(&dir.join("h")).unwrap();
    file.append(b"?").unwrap();
    assert_eq!(file.len().unwrap(), 7, "a handle outlives a removal");

    write_durably(fs, &dir.join("d"), b"one").unwrap();
    write_durably(fs, &dir.join("d"), b"two").unwrap();
    assert_eq!(fs.read(&dir.join("d")).unwrap(), b"two");
    assert_eq!(fs.list(&dir).unwrap(), ["d"], "nothing is left beside it");
    assert!(fs.exists(&dir).unwrap() && !fs.exists(&dir.join("x")).unwrap());
    fs.remove_dir_all(&root.join("a")).unwrap();
    assert!(!fs.exists(&dir).unwrap());
    assert_eq!(kind(fs.remove_dir_all(&root.join("a"))), io::ErrorKind::NotFound);
}

#[test]
fn the_real_file_system_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    contract(&RealFs, dir.path());
}

#[test]
fn the_model_keeps_the_contract() {
    contract(&CrashFs::new(), Path::new("/"));
}

#[test]
fn a_crash_keeps_what_was_synced_with_its_name_and_may_lose_all_else() {
    let (mut lost_data, mut lost_name) = (0, 0);
    for seed in 1..200 {
        let fs = CrashFs::new();
        let dir = Path::new("/d");
        create_dir_durably(&fs, dir).unwrap();
        let file = fs.create(&dir.join("f")).unwrap();
        file.append(b"synced").unwrap();
        file.sync().unwrap();
        fs.sync_dir(dir).unwrap();
        file.append(b" not").unwrap();
        let unnamed = fs.create(&dir.join("g")).unwrap();
        unnamed.append(b"x").unwrap();
        unnamed.sync().unwrap();
        fs.crash(seed);
        let left = fs.read(&dir.join("f")).unwrap();
        assert!(left.starts_with(b"synced"), "{left:?}");
        lost_data += usize::from(left == b"synced");
        lost_name += usize::from(!fs.exists(&dir.join("g")).unwrap());
        assert!(file.append(b"x").is_err(), "handles end with the process");
    }
    assert!(
        (1..199).contains(&lost_data),
        "{lost_data}: either way must happen"
    );
    assert!(
        (1..199).contains(&lost_name),
        "{lost_name}: either way must happen"
    );
}

#[test]
fn write_durably_leaves_the_old_or_the_new_content_at_every_cut() {
    let path = Path::new("/d/f");
    let whole = {
        let fs = CrashFs::new();
        create_dir_durably(&fs, Path::new("/d")).unwrap();
        write_durably(&fs, path, b"old").unwrap();
        let before = fs.changes();
        write_durably(&fs, path, b"new").unwrap();
        before + 1..fs.changes() + 2
    };
    let mut seen = std::collections::BTreeSet::new();
    for cut in whole {
        for seed in 1..40 {
            let fs = CrashFs::new();
            create_dir_durably(&fs, Path::new("/d")).unwrap();
            write_durably(&fs, path, b"old").unwrap();
            fs.set_faults(Faults {
                power_off: Some(cut),
                ..Faults::default()
            });
            let done = write_durably(&fs, path, b"new");
            fs.crash(seed);
            let left = fs.read(path).unwrap();
            assert!(left == b"old" || left == b"new", "cut {cut}: {left:?}");
            assert!(
                done.is_err() || left == b"new",
                "cut {cut}: reported durable and lost"
            );
            seen.insert(left);
        }
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn a_failed_sync_loses_its_bytes_though_the_next_one_says_yes() {
    let fs = CrashFs::new();
    let file = fs.create(Path::new("/f")).unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    file.append(b"lost").unwrap();
    fs.set_faults(Faults {
        fail_sync: Some(fs.syncs() + 1),
        ..Faults::default()
    });
    assert!(file.sync().is_err());
    assert!(file.sync().is_ok());
    let empty = (1..100).any(|seed| {
        let copy = CrashFs::new();
        let file = copy.create(Path::new("/f")).unwrap();
        copy.sync_dir(Path::new("/")).unwrap();
        file.append(b"lost").unwrap();
        copy.set_faults(Faults {
            fail_sync: Some(copy.syncs() + 1),
            ..Faults::default()
        });
        assert!(file.sync().is_err() && file.sync().is_ok());
        copy.crash(seed);
        copy.read(Path::new("/f")).unwrap().is_empty()
    });
    assert!(empty);
}

#[test]
fn a_full_disk_takes_what_fits_and_refuses_the_rest() {
    let fs = CrashFs::new();
    fs.set_faults(Faults {
        capacity: Some(6),
        ..Faults::default()
    });
    let file = fs.create(Path::new("/f")).unwrap();
    file.append(b"1234").unwrap();
    assert_eq!(
        file.append(b"5678").unwrap_err().kind(),
        io::ErrorKind::StorageFull
    );
    assert_eq!(fs.read(Path::new("/f")).unwrap(), b"123456");
}
