//! Command line of Segmentry: parses arguments and calls the room that does the work.
fn main() {}
