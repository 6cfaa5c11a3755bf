//! segmentry-allocation.
