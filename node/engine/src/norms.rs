//! Field norms of fields that are younger than a segment.
//!
//! tantivy wants a section in `<segment>.fieldnorm` for each text field of the schema, else a merge of that segment fails. A
//! segment written before the field existed has none, so the directory shows a longer file: the real sections, then `max_doc`
//! zeros for each missing field (no document has it), then a new table. Nothing on disk changes, and since the result is a pure
//! function of (schema, file), all copies see the same.
//!
//! A composite file, as tantivy 0.27 writes it:
//!
//! ```text
//! sections, back to back
//! table:  VInt count, then for each section VInt(offset − previous offset), u32 LE field id, VInt index (0)
//! u32 LE  length of the table
//! JSON    {"version":…,"crc":…}      crc32 of all before it
//! u32 LE  length of the JSON,  u32 LE 1337
//! ```
//!
//! A VInt holds 7 bits a byte, low ones first; the last byte has bit 0x80. The crc of the shown file is not computed (it would
//! read the file at each opening); bytes on disk are checked by the checksums of the commit, never by tantivy's footer.

use std::{fmt, io, ops::Range};
use tantivy::{
    HasLen,
    directory::{FileHandle, OwnedBytes},
};

const MAGIC: u32 = 1_337;

/// Pieces of the shown file: real sections, zeros, table and footer.
pub(crate) struct WithZeros {
    head: OwnedBytes,
    /// At least as long as one section.
    zeros: OwnedBytes,
    zeros_len: usize,
    tail: OwnedBytes,
}

impl fmt::Debug for WithZeros {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "WithZeros({} + {} + {})",
            self.head.len(),
            self.zeros_len,
            self.tail.len()
        )
    }
}

impl HasLen for WithZeros {
    fn len(&self) -> usize {
        self.head.len() + self.zeros_len + self.tail.len()
    }
}

impl FileHandle for WithZeros {
    fn read_bytes(&self, range: Range<usize>) -> io::Result<OwnedBytes> {
        let (first, second) = (self.head.len(), self.head.len() + self.zeros_len);
        if range.end <= first {
            return Ok(self.head.slice(range));
        }
        if range.start >= first && range.end <= second && range.len() <= self.zeros.len() {
            return Ok(self.zeros.slice(0..range.len()));
        }
        if range.start >= second && range.end <= self.len() {
            return Ok(self.tail.slice(range.start - second..range.end - second));
        }
        if range.end > self.len() || range.start > range.end {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "range outside of the file",
            ));
        }
        // Only a reader of the whole file comes here.
        let mut out = Vec::with_capacity(range.len());
        out.extend_from_slice(self.head.as_slice().get(range.start..).unwrap_or_default());
        let zeros = range.end.min(second).saturating_sub(range.start.max(first));
        out.resize(out.len() + zeros, 0);
        if range.end > second {
            out.extend_from_slice(
                &self.tail.as_slice()[range.start.saturating_sub(second)..range.end - second],
            );
        }
        Ok(OwnedBytes::new(out))
    }
}

fn corrupt(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("field norms: {what}"))
}

fn u32_at(bytes: &[u8], at: usize) -> io::Result<u32> {
    let four = bytes
        .get(at..at.saturating_add(4))
        .and_then(|four| <[u8; 4]>::try_from(four).ok());
    four.map(u32::from_le_bytes).ok_or_else(|| corrupt("too short"))
}

fn read_vint(bytes: &mut &[u8]) -> io::Result<u64> {
    let mut value = 0_u64;
    for shift in (0..63).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or_else(|| corrupt("table too short"))?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 != 0 {
            return Ok(value);
        }
    }
    Err(corrupt("number too long"))
}

fn write_vint(mut value: u64, out: &mut Vec<u8>) {
    loop {
        let low = u8::try_from(value & 0x7f).unwrap_or_default();
        value >>= 7;
        if value == 0 {
            out.push(low | 0x80);
            return;
        }
        out.push(low);
    }
}

/// Sections of a file: (field id, index, offset), and where they end.
struct Layout {
    sections: Vec<(u32, u64, u64)>,
    end: usize,
    /// tantivy's footer with its two trailing words.
    footer: Range<usize>,
}

fn layout(file: &[u8]) -> io::Result<Layout> {
    let len = file.len();
    let words = len.checked_sub(8).ok_or_else(|| corrupt("too short"))?;
    if u32_at(file, words + 4)? != MAGIC {
        return Err(corrupt("no footer"));
    }
    let json = u32_at(file, words)? as usize;
    let body = words
        .checked_sub(json)
        .ok_or_else(|| corrupt("footer too long"))?;
    let table_words = body.checked_sub(4).ok_or_else(|| corrupt("no table"))?;
    let table_len = u32_at(file, table_words)? as usize;
    let table_start = table_words
        .checked_sub(table_len)
        .ok_or_else(|| corrupt("table too long"))?;
    let mut table = &file[table_start..table_words];
    let count = read_vint(&mut table)?;
    let mut sections = Vec::new();
    let mut offset = 0_u64;
    for _ in 0..count {
        offset = offset
            .checked_add(read_vint(&mut table)?)
            .ok_or_else(|| corrupt("offset"))?;
        let field = u32_at(table, 0)?;
        table = &table[4..];
        sections.push((field, read_vint(&mut table)?, offset));
    }
    Ok(Layout {
        sections,
        end: table_start,
        footer: body..len,
    })
}

/// The file with a section of `max_doc` zeros for each of `wanted` (field ids) that it lacks; none if it lacks none. `zeros` gives
/// a shared buffer of at least that many zeros.
pub(crate) fn extend(
    file: &OwnedBytes,
    max_doc: u32,
    wanted: &[u32],
    zeros: impl FnOnce(usize) -> OwnedBytes,
) -> io::Result<Option<WithZeros>> {
    let Layout {
        mut sections,
        end,
        footer,
    } = layout(file.as_slice())?;
    let missing: Vec<u32> = wanted
        .iter()
        .copied()
        .filter(|id| !sections.iter().any(|(field, ..)| field == id))
        .collect();
    if missing.is_empty() {
        return Ok(None);
    }
    let each = max_doc as usize;
    let mut offset = end as u64;
    for field in &missing {
        sections.push((*field, 0, offset));
        offset += each as u64;
    }
    let mut tail = Vec::new();
    write_vint(sections.len() as u64, &mut tail);
    let mut previous = 0;
    for (field, index, offset) in sections {
        write_vint(offset - previous, &mut tail);
        tail.extend_from_slice(&field.to_le_bytes());
        write_vint(index, &mut tail);
        previous = offset;
    }
    let table = u32::try_from(tail.len()).map_err(|_| corrupt("table too long"))?;
    tail.extend_from_slice(&table.to_le_bytes());
    tail.extend_from_slice(&file.as_slice()[footer]);
    Ok(Some(WithZeros {
        head: file.slice(0..end),
        zeros: zeros(each),
        zeros_len: each * missing.len(),
        tail: OwnedBytes::new(tail),
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;
    use std::{path::Path, sync::Arc};
    use tantivy::{
        Directory,
        directory::{CompositeFile, CompositeWrite, FileSlice, ManagedDirectory, RamDirectory},
        schema::Field,
    };

    /// A composite file with tantivy's own writer: raw bytes as they lie on the disk.
    fn file(sections: &[(u32, &[u8])]) -> OwnedBytes {
        use std::io::Write as _;
        let ram = RamDirectory::create();
        let managed = ManagedDirectory::wrap(Box::new(ram.clone())).unwrap();
        let path = Path::new("a.fieldnorm");
        let mut write = CompositeWrite::wrap(managed.open_write(path).unwrap());
        for (field, bytes) in sections {
            write
                .for_field(Field::from_field_id(*field))
                .write_all(bytes)
                .unwrap();
        }
        write.close().unwrap();
        ram.open_read(path).unwrap().read_bytes().unwrap()
    }

    fn read(extended: WithZeros) -> CompositeFile {
        let slice = FileSlice::new(Arc::new(extended));
        let (_, body) = tantivy::directory::footer::Footer::extract_footer(slice).unwrap();
        CompositeFile::open(&body).unwrap()
    }

    fn zeros(len: usize) -> OwnedBytes {
        OwnedBytes::new(vec![0; len])
    }

    #[test]
    fn missing_fields_read_as_zeros_and_others_as_they_were() {
        for present in [
            vec![],
            vec![(2, [7_u8, 8, 9])],
            vec![(2, [7, 8, 9]), (300, [1, 2, 3])],
        ] {
            let sections: Vec<(u32, &[u8])> = present
                .iter()
                .map(|(field, bytes)| (*field, &bytes[..]))
                .collect();
            let extended = extend(&file(&sections), 3, &[2, 5, 300], zeros).unwrap().unwrap();
            let whole = extended.read_bytes(0..extended.len()).unwrap();
            assert_eq!(whole.len(), extended.len());
            let composite = read(extended);
            for field in [2, 5, 300] {
                let expected = present
                    .iter()
                    .find(|(id, _)| *id == field)
                    .map_or([0, 0, 0], |(_, bytes)| *bytes);
                let got = composite
                    .open_read(Field::from_field_id(field))
                    .unwrap()
                    .read_bytes()
                    .unwrap();
                assert_eq!(got.as_slice(), expected, "field {field} of {present:?}");
            }
            // Reading the whole (as a checksum does) gives the same bytes as reading the pieces.
            let again = read_raw(&whole);
            assert_eq!(
                again
                    .open_read(Field::from_field_id(5))
                    .unwrap()
                    .read_bytes()
                    .unwrap()
                    .as_slice(),
                [0, 0, 0]
            );
        }
    }

    fn read_raw(bytes: &OwnedBytes) -> CompositeFile {
        let slice = FileSlice::from(bytes.as_slice().to_vec());
        let (_, body) = tantivy::directory::footer::Footer::extract_footer(slice).unwrap();
        CompositeFile::open(&body).unwrap()
    }

    #[test]
    fn a_file_that_lacks_nothing_is_left_alone() {
        assert!(extend(&file(&[(1, &[1, 2])]), 2, &[1], zeros).unwrap().is_none());
    }

    #[test]
    fn a_damaged_file_is_an_error_not_a_panic() {
        let good = file(&[(1, &[1, 2]), (2, &[3, 4])]);
        for cut in 0..good.len() {
            let _ = extend(
                &OwnedBytes::new(good.as_slice()[..cut].to_vec()),
                2,
                &[1, 7],
                zeros,
            )
            .is_err();
        }
        for at in good.len() - 12..good.len() {
            let mut bytes = good.as_slice().to_vec();
            bytes[at] ^= 0xff;
            let _ = extend(&OwnedBytes::new(bytes), 2, &[1, 7], zeros);
        }
        assert!(extend(&OwnedBytes::new(vec![1, 2, 3]), 2, &[1], zeros).is_err());
    }
}
