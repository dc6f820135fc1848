//! How a subscriber works, and what no subscriber may be asked for.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use postrider_core::receive_options::check_visibility;
use postrider_core::{Capabilities, Feature, MessagingError, ReceiveOptions, RetryStrategy, Support};

/// When a message is acknowledged, and what an error does to it.
///
/// What a handler settles by hand wins over every policy. A body that cannot be decoded is dead-lettered under every
/// policy but [`AckPolicy::AckFirst`], which has acknowledged it by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AckPolicy {
    /// Acknowledged before the handler begins: at most once. A message whose acknowledgement is not certain is not
    /// handled.
    AckFirst,
    /// Acknowledged after the handler has ended, however it ended.
    Ack,
    /// Acknowledged on success, dead-lettered on any error.
    RejectOnError,
    /// Acknowledged on success; on an error, retried by the strategy and then dead-lettered. The default.
    #[default]
    NackOnError,
    /// Settled by the handler. One that ends without having done so counts as failed, and is retried by the strategy:
    /// no message is stranded.
    Manual,
}

impl AckPolicy {
    /// Every policy.
    pub const ALL: [Self; 5] = [Self::AckFirst, Self::Ack, Self::RejectOnError, Self::NackOnError, Self::Manual];

    /// The policy's name in configurations and texts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AckFirst => "ack_first",
            Self::Ack => "ack",
            Self::RejectOnError => "reject_on_error",
            Self::NackOnError => "nack_on_error",
            Self::Manual => "manual",
        }
    }
}

impl fmt::Display for AckPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for AckPolicy {
    type Err = MessagingError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|policy| policy.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            MessagingError::invalid("ack_policy", format!("'{name}' is none of {names}"))
        })
    }
}

/// How a subscriber works. Every field has a default.
#[derive(Debug, Clone, PartialEq)]
pub struct SubscriberOptions {
    /// How many handlers run at the same time, at most 100 000. 16 by default.
    pub max_workers: usize,
    /// When a failed message is tried again.
    pub retry_strategy: RetryStrategy,
    /// When a message is acknowledged.
    pub ack_policy: AckPolicy,
    /// How many messages one fetch asks for at most. 100 by default.
    pub fetch_batch_size: usize,
    /// How many messages are leased for each handler that can run, those waiting for one included. 1.5 by default; 1
    /// where the provider cannot give unstarted work back uncounted. A crash charges everything that was leased.
    pub overfetch_factor: Option<f64>,
    /// The shortest time between two fetches. Zero by default: after a full batch the next fetch follows at once.
    pub min_fetch_interval: Duration,
    /// The longest time between two fetches of an idle subscriber, in case no wake-up comes. A second by default.
    pub max_fetch_interval: Duration,
    /// The longest time that a settlement waits for a fetch to travel with. When no fetch is under way or due it does
    /// not wait at all. 100 ms by default.
    pub flush_interval: Duration,
    /// How often to look for handlers that outlived their lease. 10 s by default.
    pub release_stuck_interval: Duration,
    /// How long after its delivery a handler that has lost its lease may still hold its worker. Five minutes, or twice
    /// the visibility if that is longer, by default.
    pub release_stuck_timeout: Option<Duration>,
    /// How often a message is delivered before it is dead-lettered unseen. By default the larger of the provider's
    /// default and the strategy's attempts + 2; without end when the strategy is. A lower number than the strategy's
    /// attempts limits those too: the last delivery is the last attempt.
    pub max_deliveries: Option<u32>,
    /// How long running handlers may go on after a stop was asked for. 30 s by default.
    pub graceful_timeout: Duration,
    /// How long after that they may take to obey their cancelled token before they are dropped. A second by default.
    pub cancel_timeout: Duration,
    /// Stop when a fetch finds nothing and nothing is at work here: what is not due yet stays, and what waits behind a
    /// message of its key that another process has. Off by default.
    pub stop_when_empty: bool,
    /// How long a lease lasts. It is renewed at a third of that. 30 s by default.
    pub visibility: Duration,
}

impl Default for SubscriberOptions {
    fn default() -> Self {
        Self {
            max_workers: 16,
            retry_strategy: RetryStrategy::default(),
            ack_policy: AckPolicy::default(),
            fetch_batch_size: 100,
            overfetch_factor: None,
            min_fetch_interval: Duration::ZERO,
            max_fetch_interval: Duration::from_secs(1),
            flush_interval: Duration::from_millis(100),
            release_stuck_interval: Duration::from_secs(10),
            release_stuck_timeout: None,
            max_deliveries: None,
            graceful_timeout: Duration::from_secs(30),
            cancel_timeout: Duration::from_secs(1),
            stop_when_empty: false,
            visibility: ReceiveOptions::default().visibility,
        }
    }
}

/// A lease that is shorter would run out between two renewals on a busy machine.
const SHORTEST_VISIBILITY: Duration = Duration::from_millis(10);
const MOST_WORKERS: usize = 100_000;
const STUCK: Duration = Duration::from_secs(300);
const OVERFETCH: f64 = 1.5;

/// The options with every default filled in, as the loops read them.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) workers: usize,
    /// How many messages one worker takes at a time.
    pub(crate) at_a_time: usize,
    /// How many messages may be leased at the same time.
    pub(crate) capacity: usize,
    pub(crate) retry_strategy: RetryStrategy,
    pub(crate) ack_policy: AckPolicy,
    pub(crate) fetch_batch_size: usize,
    pub(crate) min_fetch_interval: Duration,
    pub(crate) max_fetch_interval: Duration,
    pub(crate) flush_interval: Duration,
    pub(crate) release_stuck_interval: Duration,
    pub(crate) release_stuck_timeout: Duration,
    pub(crate) max_deliveries: u32,
    pub(crate) graceful_timeout: Duration,
    pub(crate) cancel_timeout: Duration,
    pub(crate) stop_when_empty: bool,
    pub(crate) visibility: Duration,
    /// By how much the store may round a lease up.
    pub(crate) resolution: Duration,
}

impl SubscriberOptions {
    /// Refuses what contradicts itself or the provider, and fills in the defaults.
    pub(crate) fn plan(&self, at_a_time: usize, capabilities: &Capabilities) -> Result<Plan, MessagingError> {
        let at_least_one = [
            ("max_workers", self.max_workers, "no handler would ever run; use at least 1"),
            ("fetch_batch_size", self.fetch_batch_size, "no message would ever be fetched; use at least 1"),
            ("batch size", at_a_time, "a batch handler would never get a message; use at least 1"),
        ];
        for (option, value, why) in at_least_one {
            if value == 0 {
                return Err(MessagingError::invalid(option, format!("0: {why}")));
            }
        }
        if self.max_workers > MOST_WORKERS {
            return Err(MessagingError::invalid(
                "max_workers",
                format!(
                    "{} is more than {MOST_WORKERS}, and each is a task; use fewer, and more processes",
                    self.max_workers
                ),
            ));
        }
        if self.visibility < SHORTEST_VISIBILITY {
            return Err(MessagingError::invalid(
                "visibility",
                format!(
                    "{:?} is too short to be renewed in time; use {SHORTEST_VISIBILITY:?} or more",
                    self.visibility
                ),
            ));
        }
        check_visibility(self.visibility, &capabilities.limits)?;
        for (option, interval) in [
            ("max_fetch_interval", self.max_fetch_interval),
            ("flush_interval", self.flush_interval),
            ("release_stuck_interval", self.release_stuck_interval),
        ] {
            if interval.is_zero() {
                return Err(MessagingError::invalid(option, "0 would be a loop without a pause; use 1ms or more"));
            }
        }
        if self.min_fetch_interval > self.max_fetch_interval {
            let (min, max) = (self.min_fetch_interval, self.max_fetch_interval);
            return Err(MessagingError::invalid(
                "min_fetch_interval",
                format!("{min:?} is longer than max_fetch_interval ({max:?}); lower it or raise the other"),
            ));
        }
        self.retry_strategy.validate()?;
        Ok(Plan {
            workers: self.max_workers,
            at_a_time,
            capacity: self.capacity(at_a_time, capabilities)?,
            retry_strategy: self.strategy(),
            ack_policy: self.ack_policy,
            fetch_batch_size: self.fetch_batch_size,
            min_fetch_interval: self.min_fetch_interval,
            max_fetch_interval: self.max_fetch_interval,
            flush_interval: self.flush_interval,
            release_stuck_interval: self.release_stuck_interval,
            release_stuck_timeout: self.stuck_after()?,
            max_deliveries: self.deliveries()?,
            graceful_timeout: self.graceful_timeout,
            cancel_timeout: self.cancel_timeout,
            stop_when_empty: self.stop_when_empty,
            visibility: self.visibility,
            resolution: capabilities.limits.time_resolution,
        })
    }

    fn capacity(&self, at_a_time: usize, capabilities: &Capabilities) -> Result<usize, MessagingError> {
        let factor = self.overfetch_factor.unwrap_or(match capabilities.support(Feature::FreeRelease) {
            Support::Native | Support::Emulated { .. } => OVERFETCH,
            Support::Refused { .. } => 1.0,
        });
        if !factor.is_finite() || factor < 1.0 {
            return Err(MessagingError::invalid(
                "overfetch_factor",
                format!("{factor} would leave workers without messages; use 1 (no overfetch) or more"),
            ));
        }
        let at_once = self.max_workers.saturating_mul(at_a_time);
        // Rounded down: it is the most that a crash may charge.
        let capacity = (at_once as f64 * factor) as usize;
        Ok(capacity.max(at_once))
    }

    fn stuck_after(&self) -> Result<Duration, MessagingError> {
        match self.release_stuck_timeout {
            None => Ok(STUCK.max(self.visibility.saturating_mul(2))),
            Some(timeout) if timeout < self.visibility => Err(MessagingError::invalid(
                "release_stuck_timeout",
                format!(
                    "{timeout:?} is shorter than the visibility ({:?}): the lease would still be alive; use at least that",
                    self.visibility
                ),
            )),
            Some(timeout) => Ok(timeout),
        }
    }

    /// With no more attempts than deliveries: after the last one there is nothing to wait for.
    fn strategy(&self) -> RetryStrategy {
        let strategy = self.retry_strategy.clone();
        match (self.max_deliveries, strategy.max_attempts()) {
            (Some(most), Some(attempts)) if most < attempts.get() => strategy.with_max_attempts(most),
            _ => strategy,
        }
    }

    fn deliveries(&self) -> Result<u32, MessagingError> {
        match (self.max_deliveries, self.retry_strategy.max_attempts()) {
            (Some(0), _) => Err(MessagingError::invalid(
                "max_deliveries",
                "0 would dead-letter every message unseen; 1 delivers each once",
            )),
            (Some(most), _) => Ok(most),
            // Two more, for deliveries that were cut short by a crash and are no attempt of the strategy's.
            (None, Some(attempts)) => {
                Ok(ReceiveOptions::default().max_receive_count.max(attempts.get().saturating_add(2)))
            }
            (None, None) => Ok(u32::MAX),
        }
    }
}

#[cfg(test)]
mod tests;
