//! segmentry-translog.
