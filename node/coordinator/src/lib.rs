//! segmentry-coordinator.
