//! The queues, exchanges and bindings on the broker that make up a queue.
//!
//! | name | what |
//! |---|---|
//! | `orders` | messages without a key |
//! | `orders_dlq` | dead letters |
//! | `orders:key:3` | messages whose keys hash to partition 3; created by the first message with a key |
//! | `orders:delay:160ms` | messages that wait for 160 ms; created when first needed |
//! | `postrider:delay:4` (exchange) | routes into all delay queues of 160 ms and less |
//! | `postrider:flags` (exchange, queue) | [`flags`](crate::flags) of queues |
//!
//! No queue's name has a colon, so none of these can be a user's queue.
//!
//! **Delays** are sums of powers of two. A message's routing key spells its delay in bits, highest first, and then its
//! queue; the exchange of a bit routes it to that bit's delay queue, or past it to the next exchange, and a delay queue
//! dead-letters it to the next exchange when its time is over. So a message visits every delay queue at most once, all
//! messages in one queue wait equally long, and no client has to run meanwhile. No queue expires, and no message has a time
//! to live of its own: behind a message that waits longer it would be late.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use lapin::options::{
    ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
    QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ExchangeKind};
use postrider_core::{Deadline, Key, MessagingError, QueueName};

use tokio::time::Instant;

use crate::connection::{LiveConnection, lock};
use crate::differences::differences;
use crate::error::{NOT_FOUND, PRECONDITION_FAILED, code, failed, other_arguments, words};
use crate::flags::{self, Flag};
use crate::options::{QueueType, RabbitmqOptions};

/// The broker's own delivery limit: far above any configured one, because a queue's arguments can never be changed.
pub(crate) const BROKER_DELIVERY_LIMIT: i32 = 1_000_000_000;

/// Shortest delay.
const UNIT: Duration = Duration::from_millis(10);

/// Number of delay levels, each twice as long as the one below: a little over sixty days together.
const LEVELS: u32 = 29;

/// Significant bits of a delay; the rest is rounded up, which makes it at most one part in 128 longer.
const BITS: u32 = 8;

/// Longest delay: every bit set.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_millis(10 * ((1 << LEVELS) - 1));

/// Age at which a queue survives a crash of the broker. A quorum queue declared within about half a second before the crash
/// has no leader after it, and its messages are out of reach, confirmed or not.
const CRASH_SAFE_AFTER: Duration = Duration::from_millis(1000);

/// Time limit of the request for a queue's actual arguments.
const ARGUMENTS_TIMEOUT: Duration = Duration::from_secs(2);

/// What is known to exist on the broker.
#[derive(Debug, Default)]
pub(crate) struct KnownObjects(Mutex<Names>);

#[derive(Debug, Default)]
struct Names {
    known: HashSet<String>,
    /// Known queues that may be new, and when each was first seen. Almost always empty; read by every send.
    new: HashMap<String, Instant>,
}

impl KnownObjects {
    pub(crate) fn has(&self, name: &str) -> bool {
        lock(&self.0).known.contains(name)
    }

    pub(crate) fn add(&self, name: impl Into<String>) {
        lock(&self.0).known.insert(name.into());
    }

    /// Adds a queue that may be new.
    fn add_new(&self, name: &str) {
        let mut names = lock(&self.0);
        names.known.insert(name.to_owned());
        names.new.insert(name.to_owned(), Instant::now());
    }

    /// Returns the new parts of a queue, and when all of them survive a crash.
    pub(crate) fn new_queues(&self, queue: &QueueName) -> Option<(Vec<String>, Instant)> {
        let names = lock(&self.0);
        if names.new.is_empty() {
            return None;
        }
        let (own, dead, parts) = (queue.as_str(), queue.dead_letters(), format!("{queue}:"));
        let is_of = |name: &str| name == own || name == dead.as_str() || name.starts_with(&parts);
        let new = names.new.iter().filter(|(name, _)| is_of(name)).map(|(name, seen)| (name.clone(), *seen));
        let (names, seen): (Vec<_>, Vec<_>) = new.unzip();
        seen.into_iter().max().map(|seen| (names, seen + CRASH_SAFE_AFTER))
    }

    /// Records that these queues survive a crash.
    pub(crate) fn note_crash_safe(&self, names: &[String]) {
        lock(&self.0).new.retain(|new, _| !names.contains(new));
    }

    /// Forgets everything, after something has changed on the broker.
    pub(crate) fn forget_all(&self) {
        *lock(&self.0) = Names::default();
    }

    /// Whether a part of a queue exists and its flag is set.
    pub(crate) fn has_part(&self, queue: &QueueName, flag: Flag) -> bool {
        self.has(&format!("{queue}:{flag:?}"))
    }

    pub(crate) fn add_part(&self, queue: &QueueName, flag: Flag) {
        self.add(format!("{queue}:{flag:?}"));
    }

    /// Forgets a queue with its parts.
    pub(crate) fn forget(&self, queue: &QueueName) {
        let (own, parts) = (queue.as_str(), format!("{queue}:"));
        let is_other = |name: &str| name != own && !name.starts_with(&parts);
        let mut names = lock(&self.0);
        names.known.retain(|name| is_other(name));
        names.new.retain(|name, _| is_other(name));
    }
}

/// The name of a partition's queue.
pub(crate) fn partition_queue(queue: &QueueName, index: u32) -> String {
    format!("{queue}:key:{index}")
}

/// The partition of a key: the same on every machine and in every version.
pub(crate) fn partition_of(key: &Key, partitions: u32) -> u32 {
    // FNV-1a: keys are short and not secret, and no library update can change the result.
    let hash = key
        .as_str()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    u32::try_from(hash % u64::from(partitions.max(1))).unwrap_or(0)
}

/// A delay in units of [`UNIT`], rounded up to [`BITS`] significant bits.
pub(crate) fn steps(delay: Duration) -> u32 {
    let units = delay.as_nanos().div_ceil(UNIT.as_nanos()).min(u128::from(u32::MAX)) as u32;
    let spare = (u32::BITS - units.leading_zeros()).saturating_sub(BITS);
    let grain = 1_u32 << spare;
    (units.div_ceil(grain).saturating_mul(grain)).min((1 << LEVELS) - 1)
}

fn delay_of(level: u32) -> Duration {
    UNIT * (1 << level)
}

/// The name of a delay queue.
pub(crate) fn delay_queue(queue: &QueueName, level: u32) -> String {
    format!("{queue}:delay:{}ms", delay_of(level).as_millis())
}

/// The levels of the delay queues that a delay passes through.
pub(crate) fn levels(steps: u32) -> impl Iterator<Item = u32> {
    (0..LEVELS).rev().filter(move |level| steps & (1 << level) != 0)
}

/// All levels.
pub(crate) fn all_levels() -> impl Iterator<Item = u32> {
    0..LEVELS
}

/// Prefix of the names that the broker reserves.
const RESERVED: &str = "amq.";

/// Refuses a name that the broker reserves.
pub(crate) fn check_name(queue: &QueueName) -> Result<(), MessagingError> {
    if queue.as_str().starts_with(RESERVED) {
        let why = format!("'{}': RabbitMQ reserves names that begin with '{RESERVED}'; choose another", queue.origin());
        return Err(MessagingError::invalid("queue name", why));
    }
    Ok(())
}

/// The exchange and the routing key of a delayed message: the exchange of its highest bit.
pub(crate) fn delay_route(queue: &QueueName, steps: u32) -> (String, String) {
    let bits = (0..LEVELS).rev().map(|level| if steps & (1 << level) != 0 { "1" } else { "0" });
    let key = bits.chain([routing_word(queue).as_str()]).collect::<Vec<_>>().join(".");
    (exchange(levels(steps).next()), key)
}

/// The exchange of a level; `None` is the last one, which routes to the queues themselves.
pub(crate) fn exchange(level: Option<u32>) -> String {
    match level {
        Some(level) => format!("postrider:delay:{level}"),
        None => "postrider:delay:out".to_owned(),
    }
}

pub(crate) fn below(level: u32) -> Option<u32> {
    level.checked_sub(1)
}

/// A queue's name as one word of a routing key, without dots.
pub(crate) fn routing_word(queue: &QueueName) -> String {
    queue.as_str().replace('.', ":")
}

/// A binding pattern: the bit of a level, then `rest`.
pub(crate) fn pattern(level: u32, bit: &str, rest: &str) -> String {
    let higher = usize::try_from(LEVELS - 1 - level).unwrap_or(0);
    let mut words = vec!["*"; higher];
    words.extend([bit, rest]);
    words.join(".")
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// The arguments of a queue. Messages that the broker itself drops go to `dead`, at least once.
fn arguments(queue_type: QueueType, dead: Option<&str>) -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text(queue_type.as_str()));
    if queue_type == QueueType::Quorum {
        // With a limit, a returned message is requeued at the head; without one, at the tail.
        arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(BROKER_DELIVERY_LIMIT));
    }
    if let Some(dead) = dead {
        set_dead_letter_exchange(&mut arguments, queue_type, "", Some(dead));
    }
    arguments
}

fn set_dead_letter_exchange(arguments: &mut FieldTable, queue_type: QueueType, exchange: &str, key: Option<&str>) {
    arguments.insert("x-dead-letter-exchange".into(), text(exchange));
    if let Some(key) = key {
        arguments.insert("x-dead-letter-routing-key".into(), text(key));
    }
    if queue_type == QueueType::Quorum {
        arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
        // Without this the broker silently falls back to at-most-once.
        arguments.insert("x-overflow".into(), text("reject-publish"));
    }
}

/// Creates what is missing on the broker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Builder<'a> {
    pub(crate) live: &'a LiveConnection,
    pub(crate) options: &'a RabbitmqOptions,
}

impl Builder<'_> {
    /// Creates a queue and its dead letters; those first, so that no dropped message is lost.
    pub(crate) async fn queue(&self, queue: &QueueName) -> Result<(), MessagingError> {
        if self.live.known.has(queue.as_str()) {
            return Ok(());
        }
        let dead = queue.dead_letters();
        self.declare(dead.as_str(), arguments(self.options.queue_type, None)).await?;
        self.declare(queue.as_str(), arguments(self.options.queue_type, Some(dead.as_str()))).await?;
        // If the queue was deleted, its delayed messages need the binding again.
        self.delay_exit(queue).await
    }

    /// Creates the queue of dead letters alone, for a queue that another client declared.
    pub(crate) async fn dead_letters(&self, queue: &QueueName) -> Result<(), MessagingError> {
        self.declare(queue.dead_letters().as_str(), arguments(self.options.queue_type, None)).await
    }

    /// Creates the partitions of a queue, each with a single active consumer.
    pub(crate) async fn partitions(&self, queue: &QueueName) -> Result<(), MessagingError> {
        let all = format!("{queue}:key");
        if self.live.known.has(&all) {
            return Ok(());
        }
        let dead = queue.dead_letters();
        for index in 0..self.options.partitions {
            let mut arguments = arguments(self.options.queue_type, Some(dead.as_str()));
            arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
            self.declare(&partition_queue(queue, index), arguments).await?;
        }
        self.live.known.add(all);
        Ok(())
    }

    /// Creates the delay queues and bindings of a delay.
    pub(crate) async fn delay(&self, queue: &QueueName, steps: u32) -> Result<(), MessagingError> {
        self.level_exchanges().await?;
        self.delay_exit(queue).await?;
        for level in levels(steps) {
            let name = delay_queue(queue, level);
            // Known only once it is bound: a message that its exchange cannot route stays in the queue before it.
            let bound = format!("{name}:bound");
            if self.live.known.has(&bound) {
                continue;
            }
            let mut arguments = FieldTable::default();
            let queue_type = self.options.queue_type;
            arguments.insert("x-queue-type".into(), text(queue_type.as_str()));
            let ttl = i64::try_from(delay_of(level).as_millis()).unwrap_or(i64::MAX);
            arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(ttl));
            set_dead_letter_exchange(&mut arguments, queue_type, &exchange(below(level)), None);
            self.declare(&name, arguments).await?;
            self.bind(&name, &exchange(Some(level)), &pattern(level, "1", &format!("#.{}", routing_word(queue))))
                .await?;
            self.live.known.add(bound);
        }
        Ok(())
    }

    /// Binds a queue to the exchange that delayed messages leave from.
    async fn delay_exit(&self, queue: &QueueName) -> Result<(), MessagingError> {
        let out = format!("{queue}:delay");
        if self.live.known.has(&out) {
            return Ok(());
        }
        let make = |channel: Channel| async move { declare_exchange(&channel, None).await };
        self.live.request("create the exchanges for delays", make).await?.map_err(|error| failed("send", error))?;
        self.bind(queue.as_str(), &exchange(None), &format!("#.{}", routing_word(queue))).await?;
        self.live.known.add(out);
        Ok(())
    }

    /// Creates the exchanges that all delays share.
    async fn level_exchanges(&self) -> Result<(), MessagingError> {
        const LEVEL_EXCHANGES: &str = "postrider:delay";
        if self.live.known.has(LEVEL_EXCHANGES) {
            return Ok(());
        }
        let build = |channel: Channel| async move {
            for level in [None].into_iter().chain((0..LEVELS).map(Some)) {
                declare_exchange(&channel, level).await?;
                if let Some(level) = level {
                    let (next, this) = (exchange(below(level)).into(), exchange(Some(level)).into());
                    let past = pattern(level, "0", "#").into();
                    let options = ExchangeBindOptions::default();
                    channel.exchange_bind(next, this, past, options, FieldTable::default()).await?;
                }
            }
            Ok(())
        };
        self.live.request("create the exchanges for delays", build).await?.map_err(|error| failed("send", error))?;
        self.live.known.add(LEVEL_EXCHANGES);
        Ok(())
    }

    async fn declare(&self, name: &str, arguments: FieldTable) -> Result<(), MessagingError> {
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let wanted = arguments.clone();
        let declare = |channel: Channel| async move { channel.queue_declare(name.into(), durable, arguments).await };
        match self.live.request("create a queue", declare).await? {
            Ok(_) => self.note_queue(name).await,
            Err(error) if code(&error) == Some(PRECONDITION_FAILED) => {
                Err(other_arguments(name, &self.what_differs(name, &wanted, &error).await))
            }
            Err(error) => Err(failed("create a queue", error)),
        }
    }

    /// Describes every difference that the management interface reports, or else the one that the broker reported.
    async fn what_differs(&self, name: &str, wanted: &FieldTable, error: &lapin::Error) -> String {
        match self.live.management.queue(name, Deadline::after(ARGUMENTS_TIMEOUT)).await {
            Ok(found) => Some(differences(&found, wanted))
                .filter(|described| !described.is_empty())
                .map(|described| described.join(", ")),
            Err(_) => None,
        }
        .unwrap_or_else(|| words(error))
    }

    /// Records a queue of the broker. Without the flag that it survives a crash it may be new, even if another client
    /// declared it.
    pub(crate) async fn note_queue(&self, name: &str) -> Result<(), MessagingError> {
        if self.live.known.has(name) {
            return Ok(());
        }
        let is_crash_safe = self.options.queue_type == QueueType::Classic
            || flags::are_crash_safe(self.live, &[name.to_owned()]).await?[0];
        match is_crash_safe {
            true => self.live.known.add(name),
            false => self.live.known.add_new(name),
        }
        Ok(())
    }

    async fn bind(&self, queue: &str, exchange: &str, pattern: &str) -> Result<(), MessagingError> {
        let bind = |channel: Channel| async move {
            let options = QueueBindOptions::default();
            channel.queue_bind(queue.into(), exchange.into(), pattern.into(), options, FieldTable::default()).await
        };
        self.live.request("bind a queue", bind).await?.map_err(|error| failed("bind a queue", error))
    }
}

async fn declare_exchange(channel: &Channel, level: Option<u32>) -> Result<(), lapin::Error> {
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(exchange(level).into(), ExchangeKind::Topic, durable, FieldTable::default()).await
}

/// Removes the ready messages of a queue, and returns how many there were.
pub(crate) async fn purge(live: &LiveConnection, name: &str) -> Result<u64, MessagingError> {
    let purge = |channel: Channel| async move { channel.queue_purge(name.into(), QueuePurgeOptions::default()).await };
    match live.request("purge", purge).await? {
        Ok(count) => Ok(count.into()),
        Err(error) if code(&error) == Some(NOT_FOUND) => Ok(0),
        Err(error) => Err(failed("purge", error)),
    }
}

/// Removes a queue with everything in it.
pub(crate) async fn delete(live: &LiveConnection, name: &str) -> Result<(), MessagingError> {
    let delete =
        |channel: Channel| async move { channel.queue_delete(name.into(), QueueDeleteOptions::default()).await };
    match live.request("delete a queue", delete).await? {
        Ok(_) => Ok(()),
        Err(error) if code(&error) == Some(NOT_FOUND) => Ok(()),
        Err(error) => Err(failed("delete a queue", error)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_delay_is_never_shorter_and_at_most_slightly_longer() {
        for millis in [1, 9, 10, 11, 999, 1000, 1001, 59_999, 86_400_000, 5_183_999_999] {
            let delay = Duration::from_millis(millis);
            let steps = steps(delay);
            let taken: Duration = levels(steps).map(delay_of).sum();
            assert!(taken >= delay, "{delay:?} takes {taken:?}");
            let most = delay + (delay / 128).max(UNIT);
            assert!(taken <= most, "{delay:?} takes {taken:?}");
            assert!(levels(steps).count() <= 8, "{delay:?}");
        }
        assert_eq!(steps(LONGEST_DELAY), (1 << LEVELS) - 1);
    }

    #[test]
    fn a_routing_key_spells_the_delay_and_the_queue() {
        let queue = QueueName::new("orders.eu").unwrap();
        let (exchange, key) = delay_route(&queue, 0b101);
        assert_eq!(exchange, "postrider:delay:2");
        assert!(key.ends_with(".0.1.0.1.orders:eu"), "{key}");
        assert_eq!(key.split('.').count(), 30);
        assert_eq!(pattern(27, "1", "#.orders:eu"), "*.1.#.orders:eu");
        assert_eq!(delay_queue(&queue, 4), "orders.eu:delay:160ms");
    }

    #[test]
    fn names_that_the_broker_reserves_are_refused() {
        for (name, is_fine) in [("amq.orders", false), ("amq.", false), ("amq", true), ("Amq.orders", true)] {
            assert_eq!(check_name(&QueueName::new(name).unwrap()).is_ok(), is_fine, "{name}");
        }
    }

    #[test]
    fn keys_are_spread_over_partitions_and_keep_theirs() {
        let key = |text: &str| Key::new("ordering key", text).unwrap();
        assert_eq!(partition_of(&key("customer-7"), 8), partition_of(&key("customer-7"), 8));
        let used: HashSet<_> = (0..100).map(|n| partition_of(&key(&format!("k{n}")), 8)).collect();
        assert_eq!(used.len(), 8);
        assert_eq!(partition_of(&key("k"), 1), 0);
    }
}
