//! Records: the bytes that they are, and what hostile bytes may do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use bytes::Bytes;
use proptest::prelude::*;
use segmentry_translog::{Error, Operation, OperationKind, decode, encode};
use std::sync::Arc;

fn encoded(operations: &[Operation]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(operations, &mut bytes).unwrap();
    bytes
}

fn operation(kind: OperationKind) -> Operation {
    Operation {
        seq_no: 0x0102,
        term: 3,
        version: 4,
        mapping_version: 5,
        kind,
        id: "é1".into(),
        routing: Some("r".into()),
        source: Bytes::from_static(b"{\"a\":1}"),
    }
}

#[rustfmt::skip]
#[test]
fn the_bytes_of_records_are_these() {
    let term_start = Operation {
        seq_no: 0, term: 9, version: 0, mapping_version: 0,
        kind: OperationKind::TermStart { keep_to: Some(0x0a) },
        id: "".into(), routing: None, source: Bytes::new(),
    };
    let bytes = encoded(&[operation(OperationKind::Index), term_start]);
    let expected: &[u8] = &[
        // length after this field: 44 + 3 + 1 + 7
        55, 0, 0, 0,
        // index, with a routing
        0, 1, 0, 0,
        2, 1, 0, 0, 0, 0, 0, 0,
        3, 0, 0, 0, 0, 0, 0, 0,
        4, 0, 0, 0, 0, 0, 0, 0,
        5, 0, 0, 0, 0, 0, 0, 0,
        3, 0, 0, 0,
        1, 0, 0, 0,
        0xc3, 0xa9, b'1',
        b'r',
        b'{', b'"', b'a', b'"', b':', b'1', b'}',
        // the term start, with keep_to
        52, 0, 0, 0,
        3, 2, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0,
        9, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0,
        0, 0, 0, 0,
        10, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(bytes, expected);
    let codes: Vec<u8> = [
        OperationKind::Index, OperationKind::Delete, OperationKind::NoOp,
        OperationKind::TermStart { keep_to: None }, OperationKind::Unindexable,
    ].map(|kind| encoded(&[operation(kind)])[4]).to_vec();
    assert_eq!(codes, [0, 1, 2, 3, 4]);
}

fn text() -> impl Strategy<Value = Arc<str>> {
    ".{0,40}".prop_map(Arc::from)
}

fn any_operation() -> impl Strategy<Value = Operation> {
    let kind = prop_oneof![
        Just(OperationKind::Index),
        Just(OperationKind::Delete),
        Just(OperationKind::NoOp),
        Just(OperationKind::Unindexable),
        any::<Option<u64>>().prop_map(|keep_to| OperationKind::TermStart { keep_to }),
    ];
    let source = proptest::collection::vec(any::<u8>(), 0..200);
    (
        any::<[u64; 4]>(),
        kind,
        text(),
        proptest::option::of(text()),
        source,
    )
        .prop_map(
            |([seq_no, term, version, mapping_version], kind, id, routing, source)| Operation {
                seq_no,
                term,
                version,
                mapping_version,
                kind,
                id,
                routing,
                source: match kind {
                    OperationKind::TermStart { .. } => Bytes::new(),
                    _ => source.into(),
                },
            },
        )
}

proptest! {
    #[test]
    fn a_batch_comes_back_as_it_was(operations in proptest::collection::vec(any_operation(), 0..20)) {
        let bytes = encoded(&operations);
        prop_assert_eq!(bytes.len(), operations.iter().map(Operation::encoded_len).sum::<usize>());
        prop_assert_eq!(decode(bytes.into()).unwrap(), operations);
    }

    #[test]
    fn a_cut_batch_is_refused_unless_it_ends_between_records(
        operations in proptest::collection::vec(any_operation(), 1..6),
        at in any::<proptest::sample::Index>(),
    ) {
        let bytes = encoded(&operations);
        let at = at.index(bytes.len());
        let mut borders = vec![0];
        for operation in &operations {
            borders.push(borders.last().unwrap() + operation.encoded_len());
        }
        let cut = decode(Bytes::copy_from_slice(&bytes[..at]));
        if let Some(whole) = borders.iter().position(|border| *border == at) {
            prop_assert_eq!(cut.unwrap(), &operations[..whole]);
        } else {
            let refused = matches!(cut, Err(Error::Malformed { .. }));
            prop_assert!(refused);
        }
    }

    #[test]
    fn changed_bytes_never_panic_and_what_they_decode_to_is_no_longer_than_they_are(
        operations in proptest::collection::vec(any_operation(), 1..6),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = encoded(&operations);
        for (at, to) in changes {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        let length = bytes.len();
        if let Ok(decoded) = decode(bytes.into()) {
            prop_assert_eq!(decoded.iter().map(Operation::encoded_len).sum::<usize>(), length);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_decoded_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = decode(bytes.into());
    }
}

#[test]
fn lengths_beyond_the_batch_are_refused_at_their_record() {
    let good = encoded(&[operation(OperationKind::Index)]);
    // length of the record, of the id, of the routing
    for field in [0, 40, 44] {
        for length in [u32::MAX, u32::MAX - 4, 1 << 31, 4096] {
            let mut bad = [good.as_slice(), &good].concat();
            let at = good.len() + field;
            bad[at..at + 4].copy_from_slice(&length.to_le_bytes());
            match decode(bad.into()) {
                Err(Error::Malformed { offset, .. }) => assert_eq!(offset, good.len()),
                other => panic!("field {field}, length {length}: {other:?}"),
            }
        }
    }
}
