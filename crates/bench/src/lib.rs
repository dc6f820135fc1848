//! Workloads that measure a store, and check it while they do.
//!
//! **The idea.** A rate means something only beside another that was measured in the same minute on the same disk. So
//! the workloads here run on any [`Provider`](postrider_core::Provider), and the program `postrider-bench` runs them in
//! turns with the same work written straight on the driver.
//!
//! **The invariant.** A workload that loses a message, delivers one twice or meets one that it never sent fails; it
//! has no rate. It uses queues of its own and removes them.
//!
//! **What was rejected.** Rates that are measured while the check runs beside them: ids are noted during the clock's
//! run and judged after it, except for one look at a sorted list for each message that is drained.

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
