//! segmentry-vfs.
