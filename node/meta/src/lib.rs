//! segmentry-meta.
