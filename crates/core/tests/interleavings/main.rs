//! Interleavings of the code that shares state between tasks, explored by shuttle.
//!
//! Compiled only with `RUSTFLAGS="--cfg shuttle"`, which replaces the locks of the crate by shuttle's.

#![cfg(shuttle)]

mod coalescer;
mod memory;
