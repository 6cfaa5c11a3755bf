//! The copies of this node behind the [`Copies`] door.
