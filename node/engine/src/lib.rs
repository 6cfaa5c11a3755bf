//! segmentry-engine.
