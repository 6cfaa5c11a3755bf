//! Reads lines from a plain, gzip or zstd file and packs them into bulk bodies.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Bytes of documents after which a body is closed, whatever its number of documents: far below the servers' 100 MB.
const BODY_BYTES: usize = 10 << 20;

/// An opened source.
pub struct Opened {
    lines: Box<dyn BufRead + Send>,
    read: Arc<AtomicU64>,
    /// Size of the file as stored; none for standard input.
    pub total_bytes: Option<u64>,
}

/// Where document ids come from.
pub enum Ids {
    /// `<prefix>-<line number>`, created, never replaced.
    Run(String),
    /// A top-level field of the document; replaces.
    Field(String),
}

/// One line of a batch.
#[derive(Debug, Clone)]
pub struct Item {
    /// Line number in the file, from 1.
    pub line: u64,
    /// Action line and document, each with its line end.
    pub body: Vec<u8>,
}

/// What one bulk request carries.
#[derive(Debug)]
pub struct Batch {
    /// Documents, in file order.
    pub items: Vec<Item>,
    /// Lines that are no document, with the reason.
    pub refused: Vec<(u64, String)>,
    /// Stored bytes of the file read so far.
    pub position: u64,
}

struct Counted<R>(R, Arc<AtomicU64>);

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.0.read(buffer)?;
        self.1.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// Opens `path` (`-` = standard input); gzip and zstd are told by their magic bytes, not by the name.
pub fn open(path: &Path) -> io::Result<Opened> {
    let (raw, total_bytes): (Box<dyn Read + Send>, _) = if path == Path::new("-") {
        (Box::new(io::stdin()), None)
    } else {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        (Box::new(file), Some(size))
    };
    let read = Arc::new(AtomicU64::new(0));
    let mut raw = BufReader::with_capacity(1 << 16, Counted(raw, read.clone()));
    let magic = raw.fill_buf()?;
    let lines: Box<dyn BufRead + Send> = if magic.starts_with(&[0x1f, 0x8b]) {
        Box::new(BufReader::new(flate2::bufread::MultiGzDecoder::new(raw)))
    } else if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Box::new(BufReader::new(zstd::Decoder::with_buffer(raw)?))
    } else {
        Box::new(raw)
    };
    Ok(Opened {
        lines,
        read,
        total_bytes,
    })
}

/// Reads to the end, or until nobody takes batches any more. Empty lines are passed over.
pub fn read(
    mut source: Opened,
    documents: usize,
    ids: &Ids,
    batches: &tokio::sync::mpsc::Sender<Batch>,
) -> io::Result<()> {
    let (mut items, mut refused, mut bytes, mut number) = (Vec::new(), Vec::new(), 0, 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        let end = source.lines.read_until(b'\n', &mut line)? == 0;
        if !end {
            number += 1;
            let document = line.trim_ascii();
            if document.is_empty() {
                continue;
            }
            match pack(document, number, ids) {
                Ok(body) => {
                    bytes += body.len();
                    items.push(Item { line: number, body });
                }
                Err(reason) => refused.push((number, reason)),
            }
        }
        let full = items.len() >= documents || bytes >= BODY_BYTES || refused.len() >= documents;
        if full || (end && !(items.is_empty() && refused.is_empty())) {
            let position = source.read.load(Ordering::Relaxed);
            let batch = Batch {
                items: std::mem::take(&mut items),
                refused: std::mem::take(&mut refused),
                position,
            };
            bytes = 0;
            if batches.blocking_send(batch).is_err() {
                return Ok(());
            }
        }
        if end {
            return Ok(());
        }
    }
}

/// One document with its action line, or why it is none.
fn pack(document: &[u8], number: u64, ids: &Ids) -> Result<Vec<u8>, String> {
    let action = match ids {
        Ids::Run(run) => {
            // checks that it is one JSON object without keeping it
            let checked: Result<serde::de::IgnoredAny, _> = serde_json::from_slice(document);
            checked.map_err(|error| format!("not JSON: {error}"))?;
            if document.first() != Some(&b'{') {
                return Err("not a JSON object".into());
            }
            serde_json::json!({"create": {"_id": format!("{run}-{number}")}})
        }
        Ids::Field(field) => {
            let object: serde_json::Map<String, serde_json::Value> =
                serde_json::from_slice(document).map_err(|error| format!("not a JSON object: {error}"))?;
            let id = match object.get(field) {
                Some(serde_json::Value::String(text)) => text.clone(),
                Some(serde_json::Value::Number(number)) => number.to_string(),
                Some(_) => return Err(format!("id field [{field}] is neither a string nor a number")),
                None => return Err(format!("id field [{field}] is missing")),
            };
            serde_json::json!({"index": {"_id": id}})
        }
    };
    let mut body = action.to_string().into_bytes();
    body.push(b'\n');
    body.extend_from_slice(document);
    body.push(b'\n');
    Ok(body)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
    use super::*;
    use std::io::Write as _;

    fn load(bytes: &[u8], documents: usize, ids: &Ids) -> Vec<Batch> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let (sender, mut receiver) = tokio::sync::mpsc::channel(64);
        read(open(file.path()).unwrap(), documents, ids, &sender).unwrap();
        drop(sender);
        let mut batches = Vec::new();
        while let Some(batch) = receiver.blocking_recv() {
            batches.push(batch);
        }
        batches
    }

    const THREE: &[u8] = b"{\"a\":1}\n\n{\"a\":2}\n{\"a\":3}";

    #[test]
    fn plain_gzip_and_zstd_give_the_same_batches() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(THREE).unwrap();
        let zstd = zstd::encode_all(THREE, 1).unwrap();
        for bytes in [THREE.to_vec(), gzip.finish().unwrap(), zstd] {
            let batches = load(&bytes, 2, &Ids::Run("r".into()));
            let lines: Vec<Vec<u64>> = batches
                .iter()
                .map(|b| b.items.iter().map(|i| i.line).collect())
                .collect();
            assert_eq!(lines, [vec![1, 3], vec![4]]);
            assert_eq!(
                batches[1].items[0].body,
                b"{\"create\":{\"_id\":\"r-4\"}}\n{\"a\":3}\n"
            );
        }
    }

    #[test]
    fn a_line_that_is_no_object_is_refused_with_its_number_and_the_rest_is_kept() {
        let batches = load(b"{\"a\":1}\n{\"a\":\n[1]\n{\"a\":4}\n", 10, &Ids::Run("r".into()));
        assert_eq!(batches.len(), 1);
        assert_eq!(
            batches[0].items.iter().map(|i| i.line).collect::<Vec<_>>(),
            [1, 4]
        );
        assert_eq!(batches[0].refused.iter().map(|r| r.0).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn an_id_field_names_the_document_and_its_absence_is_refused() {
        let batches = load(
            b"{\"k\":\"x\"}\n{\"k\":7}\n{\"o\":1}\n",
            10,
            &Ids::Field("k".into()),
        );
        assert_eq!(
            batches[0].items[1].body,
            b"{\"index\":{\"_id\":\"7\"}}\n{\"k\":7}\n"
        );
        assert_eq!(batches[0].refused, [(3, "id field [k] is missing".to_owned())]);
    }
}
