//! Workloads that measure and check a store.
//!
//! **The idea.** A rate is meaningful only compared with another one from the same machine and time. So the workloads run on
//! any [`Provider`](postrider_core::Provider), and the program `postrider-bench` alternates them with the same work done
//! directly on the driver.
//!
//! **The invariant.** A workload fails if a message is lost, delivered twice or was never sent. It uses queues of its own and
//! deletes them.
//!
//! **What was rejected.** Full checks during the measurement: ids are collected while the clock runs and compared
//! afterwards, except for one lookup in a sorted list for each drained message.

mod bench;
mod drain;
mod error;
mod handle;
mod latency;
mod load;
mod measured;
mod percentile;
mod send;
mod tally;
mod workload;

pub use bench::{Bench, Progress};
pub use error::{BenchError, Mismatch};
pub use load::Load;
pub use measured::{Latency, Measured, Rate};
pub use percentile::{median, percentile};
pub use workload::Workload;
