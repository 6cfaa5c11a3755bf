//! The storage node: wiring, configuration, `run()`.
