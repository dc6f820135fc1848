//! What a provider of your own needs beyond the contract: leases, batches, clocks, calls that go on without their caller.
//!
//! [`MessagingProvider::custom`](crate::MessagingProvider::custom) makes it a provider like the built-in ones.

pub use postrider_core::{
    BoxFuture, Clock, DEAD_LETTER_SUFFIX, Lease, LeaseToken, ManualClock, Moment, NativeRef, ReturnLease, Returns,
    SharedProvider, SystemClock, UnderWay, WallClock, async_trait, coalescer, spawn, wakes,
};
