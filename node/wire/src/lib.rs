//! segmentry-wire.
