//! Which shard a document belongs to.
//!
//! OpenSearch's rule: `floorMod(murmur3(routing), routing_shards) / (routing_shards / shards)`, where the hash is
//! murmur3_x86_32 with seed 0 over the UTF-16LE code units of the routing value (the id, unless one is given), and
//! `routing_shards` is the number of shards doubled up to at most 1024 (at least once), so that an index can be split later.

/// murmur3_x86_32 with seed 0 over the UTF-16LE bytes of `routing`.
pub fn hash(routing: &str) -> i32 {
    let bytes: Vec<u8> = routing.encode_utf16().flat_map(u16::to_le_bytes).collect();
    const C1: u32 = 0xcc9e_2d51;
    const C2: u32 = 0x1b87_3593;
    let mut h: u32 = 0;
    let mut blocks = bytes.chunks_exact(4);
    for block in &mut blocks {
        // `chunks_exact(4)` gives four bytes.
        let mut k = u32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        k = k.wrapping_mul(C1).rotate_left(15).wrapping_mul(C2);
        h = (h ^ k).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    let tail = blocks.remainder();
    if !tail.is_empty() {
        let mut k: u32 = 0;
        for (position, byte) in tail.iter().enumerate() {
            k |= u32::from(*byte) << (8 * position);
        }
        h ^= k.wrapping_mul(C1).rotate_left(15).wrapping_mul(C2);
    }
    // The length enters modulo 2^32, as in Java.
    h ^= u32::try_from(bytes.len() & 0xffff_ffff).unwrap_or(0);
    h ^= h >> 16;
    h = h.wrapping_mul(0x85eb_ca6b);
    h ^= h >> 13;
    h = h.wrapping_mul(0xc2b2_ae35);
    h ^= h >> 16;
    h.cast_signed()
}

/// `index.number_of_routing_shards` that OpenSearch computes for `shards`.
pub fn routing_shards(shards: u32) -> u32 {
    let log2 = 32 - shards.saturating_sub(1).leading_zeros();
    let doublings = 10_u32.saturating_sub(log2).max(1);
    shards << doublings
}

/// The shard of a routing value in an index of `shards` (at least one) shards.
pub fn shard_of(routing: &str, shards: u32) -> u32 {
    let shards = shards.max(1);
    let total = routing_shards(shards);
    let bucket = i64::from(hash(routing)).rem_euclid(i64::from(total));
    // `bucket` < `total` < 2^32.
    u32::try_from(bucket).unwrap_or(0) / (total / shards)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hashes_are_those_of_opensearch() {
        let table: [(&str, u32); 7] = [
            ("hell", 0x5a0c_b7c3),
            ("hello", 0xd7c3_1989),
            ("hello w", 0x22ab_2984),
            ("hello wo", 0xdf0c_a123),
            ("hello wor", 0xe774_4d61),
            ("The quick brown fox jumps over the lazy dog", 0xe07d_b09c),
            ("The quick brown fox jumps over the lazy cog", 0x4e63_d2ad),
        ];
        for (text, expected) in table {
            assert_eq!(hash(text).cast_unsigned(), expected, "{text}");
        }
    }

    #[test]
    fn routing_shards_are_those_of_opensearch() {
        let table = [
            (1, 1024),
            (2, 1024),
            (3, 768),
            (5, 640),
            (9, 576),
            (512, 1024),
            (513, 1026),
            (1024, 2048),
        ];
        for (shards, expected) in table {
            assert_eq!(routing_shards(shards), expected, "{shards}");
        }
    }

    proptest! {
        #[test]
        fn each_id_has_one_shard_of_the_index(id in "\\PC{0,20}", shards in 1..=1024_u32) {
            prop_assert!(shard_of(&id, shards) < shards);
        }
    }

    #[test]
    fn ids_spread_over_all_shards() {
        let mut counts = [0_u32; 5];
        for n in 0..5_000 {
            counts[shard_of(&format!("doc-{n}"), 5) as usize] += 1;
        }
        assert!(counts.iter().all(|c| (800..1_200).contains(c)), "{counts:?}");
    }
}
