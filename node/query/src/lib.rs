//! segmentry-query.
