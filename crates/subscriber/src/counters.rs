//! Counters of events, readable at any time.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use postrider_core::{Disposition, Nack, QueueName};

macro_rules! outcomes {
    ($($(#[$doc:meta])* $variant:ident = $field:ident,)*) => {
        /// An event of a message. The only values of the metrics label `outcome`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Outcome { $($(#[$doc])* $variant,)* }

        impl Outcome {
            /// Every outcome.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The label's value.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($field),)* }
            }
        }

        /// The number of each event since the start, and the current numbers of messages.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Counts {
            $($(#[$doc])* pub $field: u64,)*
            /// Messages with a running handler.
            pub in_flight: u64,
            /// Messages that are leased and wait for a handler.
            pub buffered: u64,
            /// Messages that are decided and not yet settled in the store.
            pub unsettled: u64,
        }

        impl Counts {
            /// The number of events with this outcome.
            pub const fn of(&self, outcome: Outcome) -> u64 {
                match outcome { $(Outcome::$variant => self.$field,)* }
            }
        }

        #[derive(Debug, Default)]
        struct Totals { $($field: AtomicU64,)* }

        impl Totals {
            fn of(&self, outcome: Outcome) -> &AtomicU64 {
                match outcome { $(Outcome::$variant => &self.$field,)* }
            }

            fn counts(&self) -> Counts {
                Counts { $($field: self.$field.load(Ordering::Relaxed),)* ..Counts::default() }
            }
        }
    };
}

outcomes! {
    /// Leased from the store.
    Received = received,
    /// Acknowledged in the store.
    Acked = acked,
    /// Retried.
    Retried = retried,
    /// Dead-lettered by this subscriber.
    Dead = dead,
    /// Released uncounted.
    Released = released,
    /// The lease ended before the message was settled; the handler's result was discarded.
    Lost = lost,
    /// The answer to a settlement was lost, and the lease had ended when it was repeated: it may have been carried out.
    Unknown = unknown,
    /// The store refused a settlement for good; the message went back with its delivery counted.
    Refused = refused,
    /// A handler returned an error.
    Failed = failed,
    /// A handler panicked.
    Panicked = panicked,
    /// A handler took too long.
    TimedOut = timed_out,
    /// A handler was dropped at the end of a stop's time limit; the message went back, counted.
    Abandoned = abandoned,
    /// A handler was dropped because it outlived its lost lease.
    Stuck = stuck,
}

impl From<&Disposition> for Outcome {
    fn from(disposition: &Disposition) -> Self {
        match disposition {
            Disposition::Ack => Self::Acked,
            Disposition::Nack(Nack::Retry { .. }) => Self::Retried,
            Disposition::Nack(Nack::Release) => Self::Released,
            Disposition::Nack(Nack::DeadLetter { .. }) => Self::Dead,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Receives everything that is counted. Called on the hot path: it must not block.
///
/// Its labels are bounded: a subscriber's queues are fixed when it is built, and outcomes are an enum.
pub trait Metrics: Send + Sync + 'static {
    /// `messages` messages of the queue had this outcome.
    fn happened(&self, queue: &QueueName, outcome: Outcome, messages: u64);

    /// A handler of the queue ended after this time, with any result.
    fn handled(&self, queue: &QueueName, took: Duration) {
        let _ = (queue, took);
    }

    /// A message started its first delivery at this age, by the store's clock.
    fn waited(&self, queue: &QueueName, age: Duration) {
        let _ = (queue, age);
    }
}

/// Counts events, and calls the metrics hook.
pub(crate) struct Counters {
    totals: Totals,
    hook: Option<Arc<dyn Metrics>>,
}

impl Counters {
    pub(crate) fn new(hook: Option<Arc<dyn Metrics>>) -> Self {
        Self { totals: Totals::default(), hook }
    }

    pub(crate) fn add(&self, queue: &QueueName, outcome: Outcome, messages: u64) {
        self.totals.of(outcome).fetch_add(messages, Ordering::Relaxed);
        self.call_hook(|hook| hook.happened(queue, outcome, messages));
    }

    /// Reports the run time of a handler.
    pub(crate) fn handled(&self, queue: &QueueName, took: Duration) {
        self.call_hook(|hook| hook.handled(queue, took));
    }

    /// Reports the age of a message at its first delivery.
    pub(crate) fn waited(&self, queue: &QueueName, age: Duration) {
        self.call_hook(|hook| hook.waited(queue, age));
    }

    /// Calls the hook; its panic must not end the calling loop.
    fn call_hook(&self, call: impl FnOnce(&dyn Metrics)) {
        if let Some(hook) = &self.hook
            && std::panic::catch_unwind(AssertUnwindSafe(|| call(&**hook))).is_err()
        {
            tracing::error!("the metrics hook panicked");
        }
    }

    pub(crate) fn add_all(&self, tally: Tally) {
        for (queue, outcome, messages) in tally.0 {
            self.add(&queue, outcome, messages);
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.totals.counts()
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts().fmt(f)
    }
}

/// Events to count after a mutex is released, so that no hook runs under it.
#[derive(Debug, Default)]
pub(crate) struct Tally(Vec<(QueueName, Outcome, u64)>);

impl Tally {
    pub(crate) fn add(&mut self, queue: &QueueName, outcome: Outcome) {
        // There are few pairs: a map would cost more than the search.
        match self.0.iter_mut().find(|(known, what, _)| *what == outcome && known == queue) {
            Some((_, _, messages)) => *messages += 1,
            None => self.0.push((queue.clone(), outcome, 1)),
        }
    }
}
