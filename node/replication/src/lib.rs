//! segmentry-replication.
