//! segmentry-rest.
