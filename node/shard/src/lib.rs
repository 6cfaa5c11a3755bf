//! segmentry-shard.
