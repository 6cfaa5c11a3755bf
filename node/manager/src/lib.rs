//! segmentry-manager.
