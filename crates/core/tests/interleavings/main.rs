//! Interleavings of the code that shares state between tasks, explored by shuttle.
//!
//! Compiled only with `RUSTFLAGS="--cfg shuttle"`, which exchanges the locks of the crate for shuttle's.

#![cfg(shuttle)]

mod coalescer;
mod memory;
