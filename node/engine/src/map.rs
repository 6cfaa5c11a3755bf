//! Files mapped into memory: the one place of this crate with `unsafe`.
//!
//! Why it is sound: a mapped file is never written, cut or replaced in place. The directory gives each file a name that no
//! other content ever gets, writes it once, maps it only when it is complete, and afterwards only unlinks it, which leaves a map
//! intact. Other programs must not change files of a data directory; that is the rule that every memory-mapped index has.

#![allow(unsafe_code, reason = "memory maps; the argument is above")]

use memmap2::Mmap;
use stable_deref_trait::StableDeref;
use std::{fs::File, io, ops::Deref, path::Path, sync::Arc};
use tantivy::directory::OwnedBytes;

/// A mapped file.
#[derive(Debug)]
pub(crate) struct Mapped(Mmap);

/// Maps a complete file.
pub(crate) fn map(path: &Path) -> io::Result<Arc<Mapped>> {
    let file = File::open(path)?;
    // SAFETY: see above, the file does not change as long as the map lives.
    let map = unsafe { Mmap::map(&file)? };
    Ok(Arc::new(Mapped(map)))
}

struct Holder(Arc<Mapped>);

impl Deref for Holder {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.0
    }
}

// SAFETY: the address of a map does not depend on where its handle lies.
unsafe impl StableDeref for Holder {}

/// The bytes of a mapped file, which they keep alive.
pub(crate) fn bytes(mapped: Arc<Mapped>) -> OwnedBytes {
    OwnedBytes::new(Holder(mapped))
}
