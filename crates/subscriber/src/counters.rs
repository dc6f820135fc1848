//! What has happened so far, readable at any time.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use postrider_core::{Disposition, Nack, QueueName};

macro_rules! outcomes {
    ($($(#[$doc:meta])* $variant:ident = $field:ident,)*) => {
        /// Something that happened to a message. The only values that the label `outcome` of a metric can have.
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

        /// How often each thing has happened since the start, and what is going on now.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Counts {
            $($(#[$doc])* pub $field: u64,)*
            /// With a handler now.
            pub in_flight: u64,
            /// Leased and waiting for a handler now.
            pub buffered: u64,
            /// Decided and not yet settled in the store now.
            pub unsettled: u64,
        }

        impl Counts {
            /// How often this has happened.
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
    /// Given back to be retried.
    Retried = retried,
    /// Dead-lettered by this subscriber.
    Dead = dead,
    /// Given back uncounted.
    Released = released,
    /// The lease was over before the message was settled; whatever the handler did was discarded.
    Lost = lost,
    /// A settlement was not answered, and when it was repeated the lease was over: it may or may not have been carried
    /// out.
    Unknown = unknown,
    /// The store refused a settlement for good; the message was given back with its delivery counted.
    Refused = refused,
    /// A handler answered with an error.
    Failed = failed,
    /// A handler panicked.
    Panicked = panicked,
    /// A handler took too long.
    TimedOut = timed_out,
    /// A handler was dropped by a stop that ran out of patience; the message was given back, counted.
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

/// Hears of everything that is counted. Called on the hot path: it must not block.
///
/// Its labels are bounded: a subscriber's queues are known when it is built, outcomes are an enum, and nothing else is
/// passed.
pub trait Metrics: Send + Sync + 'static {
    /// This has happened to so many messages of the queue.
    fn happened(&self, queue: &QueueName, outcome: Outcome, messages: u64);

    /// A handler of the queue took that long, whatever it came to.
    fn handled(&self, queue: &QueueName, took: Duration) {
        let _ = (queue, took);
    }

    /// A message had been in the queue for that long, by the store's clock, when its handler was given it for the first
    /// time.
    fn waited(&self, queue: &QueueName, age: Duration) {
        let _ = (queue, age);
    }
}

/// Counts, and tells the hook.
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
        self.tell(|hook| hook.happened(queue, outcome, messages));
    }

    /// A handler took that long.
    pub(crate) fn handled(&self, queue: &QueueName, took: Duration) {
        self.tell(|hook| hook.handled(queue, took));
    }

    /// A handler was given a message of that age.
    pub(crate) fn waited(&self, queue: &QueueName, age: Duration) {
        self.tell(|hook| hook.waited(queue, age));
    }

    /// A hook that panics must not take a loop with it.
    fn tell(&self, news: impl FnOnce(&dyn Metrics)) {
        if let Some(hook) = &self.hook
            && std::panic::catch_unwind(AssertUnwindSafe(|| news(&**hook))).is_err()
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

/// What is to be counted once a lock is released, so that no hook ever runs under it.
#[derive(Debug, Default)]
pub(crate) struct Tally(Vec<(QueueName, Outcome, u64)>);

impl Tally {
    pub(crate) fn add(&mut self, queue: &QueueName, outcome: Outcome) {
        // A handful of pairs: a map would cost more than the walk.
        match self.0.iter_mut().find(|(known, what, _)| *what == outcome && known == queue) {
            Some((_, _, messages)) => *messages += 1,
            None => self.0.push((queue.clone(), outcome, 1)),
        }
    }
}
