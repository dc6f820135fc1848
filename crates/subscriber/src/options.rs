//! Options of a subscriber, and their checks.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use postrider_core::receive_options::check_visibility;
use postrider_core::{Capabilities, Feature, MessagingError, ReceiveOptions, RetryStrategy, Support};

/// Decides when a message is acknowledged, and the effect of an error.
///
/// A handler's decision by hand wins over every policy. An undecodable body is dead-lettered under every policy except
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AckPolicy {
    /// Acknowledged before the handler begins: at most once. A message without a certain acknowledgement is not
    /// handled.
    AckFirst,
    /// Acknowledged after the handler has ended, with any result.
    Ack,
    /// Acknowledged on success, dead-lettered on any error.
    RejectOnError,
    /// Acknowledged on success; on an error, retried by the strategy and then dead-lettered. The default.
    #[default]
    NackOnError,
    /// Settled by the handler. A handler that ends without settling counts as failed and is retried by the strategy.
    Manual,
}

impl AckPolicy {
    /// Every policy.
    pub const ALL: [Self; 5] = [Self::AckFirst, Self::Ack, Self::RejectOnError, Self::NackOnError, Self::Manual];

    /// The policy's name in configurations and messages.
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

/// Options of a subscriber. Every field has a default.
#[derive(Debug, Clone, PartialEq)]
pub struct SubscriberOptions {
    /// Number of handlers that run at the same time, at most 100 000. 16 by default.
    pub max_workers: usize,
    /// Decides when a failed message is retried.
    pub retry_strategy: RetryStrategy,
    /// Decides when a message is acknowledged.
    pub ack_policy: AckPolicy,
    /// Upper bound of messages in one fetch. 100 by default.
    pub fetch_batch_size: usize,
    /// Number of leased messages for each handler that can run, including waiting messages. 1.5 by default; 1 where the
    /// provider cannot release unstarted messages uncounted. A crash charges every leased message.
    pub overfetch_factor: Option<f64>,
    /// The shortest time between two fetches. Zero by default: after a full batch the next fetch follows at once.
    pub min_fetch_interval: Duration,
    /// The longest time between two fetches of an idle subscriber, in case no wake-up comes. A second by default.
    pub max_fetch_interval: Duration,
    /// The longest time that a settlement waits for the next fetch. Without a fetch under way or due it does not wait.
    /// 100 ms by default.
    pub flush_interval: Duration,
    /// Interval at which handlers that outlived their lease are dropped. 10 s by default.
    pub release_stuck_interval: Duration,
    /// Time after its delivery at which a handler that has lost its lease is dropped. Five minutes, or twice the
    /// visibility if that is longer, by default.
    pub release_stuck_timeout: Option<Duration>,
    /// Number of deliveries after which a message is dead-lettered unread. By default the larger of the provider's
    /// default and the strategy's attempts + 2; unlimited if the strategy is. A number below the strategy's attempts
    /// limits those too: the last delivery is the last attempt.
    pub max_deliveries: Option<u32>,
    /// Time for running handlers to end after a stop is requested. 30 s by default.
    pub graceful_timeout: Duration,
    /// Time after that for handlers to end when their token is cancelled, before they are dropped. A second by default.
    pub cancel_timeout: Duration,
    /// Stop when a fetch finds nothing and no message is leased here. Messages that are not due yet stay, and so do
    /// those behind a message of their key that another process has leased. Off by default.
    pub stop_when_empty: bool,
    /// Length of a lease, which is renewed at a third of it. 30 s by default.
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

/// Lower bound of the visibility: a shorter lease would end between two renewals on a busy machine.
const MIN_VISIBILITY: Duration = Duration::from_millis(10);
const MAX_WORKERS: usize = 100_000;
const STUCK: Duration = Duration::from_secs(300);
const OVERFETCH: f64 = 1.5;

/// The options with every default filled in, as the loops read them.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) workers: usize,
    /// Number of messages that a worker takes at a time.
    pub(crate) at_a_time: usize,
    /// Upper bound of leased messages.
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
    /// Amount by which the store may round a lease up.
    pub(crate) resolution: Duration,
}

impl SubscriberOptions {
    /// Checks the options against each other and the provider, and fills in the defaults.
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
        if self.max_workers > MAX_WORKERS {
            return Err(MessagingError::invalid(
                "max_workers",
                format!(
                    "{} is more than {MAX_WORKERS}, and each is a task; use fewer, and more processes",
                    self.max_workers
                ),
            ));
        }
        if self.visibility < MIN_VISIBILITY {
            return Err(MessagingError::invalid(
                "visibility",
                format!("{:?} is too short to be renewed in time; use {MIN_VISIBILITY:?} or more", self.visibility),
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
        // Rounded down: it bounds the messages that a crash charges.
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

    /// The strategy with no more attempts than deliveries, because no retry follows the last delivery.
    fn strategy(&self) -> RetryStrategy {
        let strategy = self.retry_strategy.clone();
        match (self.max_deliveries, strategy.max_attempts()) {
            (Some(max), Some(attempts)) if max < attempts.get() => strategy.with_max_attempts(max),
            _ => strategy,
        }
    }

    fn deliveries(&self) -> Result<u32, MessagingError> {
        match (self.max_deliveries, self.retry_strategy.max_attempts()) {
            (Some(0), _) => Err(MessagingError::invalid(
                "max_deliveries",
                "0 would dead-letter every message unseen; 1 delivers each once",
            )),
            (Some(max), _) => Ok(max),
            // Two more, for deliveries that a crash interrupted and that are no attempts.
            (None, Some(attempts)) => {
                Ok(ReceiveOptions::default().max_receive_count.max(attempts.get().saturating_add(2)))
            }
            (None, None) => Ok(u32::MAX),
        }
    }
}

#[cfg(test)]
mod tests;
