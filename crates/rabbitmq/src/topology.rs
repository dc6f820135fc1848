//! What there is on the broker for a queue.
//!
//! | name | what |
//! |---|---|
//! | `orders` | messages without a key |
//! | `orders_dlq` | dead letters |
//! | `orders:key:3` | messages whose keys fall into partition 3; made by the first message with a key |
//! | `orders:delay:160ms` | messages that wait that long; made when first needed |
//! | `postrider:delay:4` (exchange) | the way into all queues of 160 ms and less |
//! | `postrider:flags` (exchange, queue) | what is said of queues: [`flags`](crate::flags) |
//!
//! A colon is in no queue's name, so none of these can meet a user's queue.
//!
//! **Delays** are sums of powers of two. A message's routing key spells its delay in bits, highest first, and then its
//! queue; the exchange of a bit sends it to that bit's waiting queue, or past it to the next exchange, and a waiting queue
//! hands it on to the next exchange when its time is over. So a message visits every waiting queue at most once, all
//! messages in one queue wait equally long, and nobody needs to be there for it. No queue ever expires, and no message has
//! a time to live of its own: behind one that waits longer it would come too late.

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

use crate::differences::differences;
use crate::error::{NOT_FOUND, PRECONDITION_FAILED, code, failed, other_arguments, words};
use crate::flags::{self, Flag};
use crate::link::{Live, lock};
use crate::options::{QueueType, RabbitmqOptions};

/// The broker's own limit of deliveries: far above any that is meant, because a queue's arguments can never be changed.
pub(crate) const BACKSTOP: i32 = 1_000_000_000;

/// The shortest wait.
const UNIT: Duration = Duration::from_millis(10);

/// How many waits there are, each twice as long as the one before: a little over sixty days together.
const LEVELS: u32 = 29;

/// A delay has so many bits; the rest is rounded up. It comes at most one part in 128 later for it.
const BITS: u32 = 8;

/// The longest delay: every bit set.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_millis(10 * ((1 << LEVELS) - 1));

/// A quorum queue that was made within about half a second before the broker's crash comes back without a leader, and with
/// it everything in it is out of reach, confirmed or not. After so long it lasts.
const LASTS: Duration = Duration::from_millis(1000);

/// How long the management interface may take to tell why a queue is another one.
const TELLING: Duration = Duration::from_secs(2);

/// What is known to be there.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<Names>);

#[derive(Debug, Default)]
struct Names {
    known: HashSet<String>,
    /// Those of them that may be new, and since when they are known. Almost always there are none, and every send asks.
    young: HashMap<String, Instant>,
}

impl Known {
    pub(crate) fn has(&self, name: &str) -> bool {
        lock(&self.0).known.contains(name)
    }

    pub(crate) fn add(&self, name: impl Into<String>) {
        lock(&self.0).known.insert(name.into());
    }

    /// One of the broker's queues that may be new.
    fn add_young(&self, name: &str) {
        let mut names = lock(&self.0);
        names.known.insert(name.to_owned());
        names.young.insert(name.to_owned(), Instant::now());
    }

    /// What there is for a queue that may be new, and when it will have lasted.
    pub(crate) fn young(&self, queue: &QueueName) -> Option<(Vec<String>, Instant)> {
        let names = lock(&self.0);
        if names.young.is_empty() {
            return None;
        }
        let (own, dead, parts) = (queue.as_str(), queue.dead_letters(), format!("{queue}:"));
        let is_of = |name: &str| name == own || name == dead.as_str() || name.starts_with(&parts);
        let young = names.young.iter().filter(|(name, _)| is_of(name)).map(|(name, met)| (name.clone(), *met));
        let (names, met): (Vec<_>, Vec<_>) = young.unzip();
        met.into_iter().max().map(|met| (names, met + LASTS))
    }

    /// These have lasted.
    pub(crate) fn note_lasting(&self, names: &[String]) {
        lock(&self.0).young.retain(|young, _| !names.contains(young));
    }

    /// Something is not as it was known to be.
    pub(crate) fn forget_all(&self) {
        *lock(&self.0) = Names::default();
    }

    /// Whether a part of a queue is there and everybody is told.
    pub(crate) fn has_part(&self, queue: &QueueName, flag: Flag) -> bool {
        self.has(&format!("{queue}:{flag:?}"))
    }

    pub(crate) fn add_part(&self, queue: &QueueName, flag: Flag) {
        self.add(format!("{queue}:{flag:?}"));
    }

    /// Forgets everything of a queue.
    pub(crate) fn forget(&self, queue: &QueueName) {
        let (own, parts) = (queue.as_str(), format!("{queue}:"));
        let is_other = |name: &str| name != own && !name.starts_with(&parts);
        let mut names = lock(&self.0);
        names.known.retain(|name| is_other(name));
        names.young.retain(|name, _| is_other(name));
    }
}

/// The queue of a partition.
pub(crate) fn partition(queue: &QueueName, index: u32) -> String {
    format!("{queue}:key:{index}")
}

/// The partition that a key falls into: the same on every machine and in every version.
pub(crate) fn partition_of(key: &Key, partitions: u32) -> u32 {
    // FNV-1a: short keys, no secrets, and nothing that a library might change.
    let hash = key
        .as_str()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    u32::try_from(hash % u64::from(partitions.max(1))).unwrap_or(0)
}

/// A delay in units, with few bits set, and never too short.
pub(crate) fn steps(delay: Duration) -> u32 {
    let units = delay.as_nanos().div_ceil(UNIT.as_nanos()).min(u128::from(u32::MAX)) as u32;
    let spare = (u32::BITS - units.leading_zeros()).saturating_sub(BITS);
    let grain = 1_u32 << spare;
    (units.div_ceil(grain).saturating_mul(grain)).min((1 << LEVELS) - 1)
}

fn wait_of(level: u32) -> Duration {
    UNIT * (1 << level)
}

/// The queue in which a message waits that long.
pub(crate) fn waiting_queue(queue: &QueueName, level: u32) -> String {
    format!("{queue}:delay:{}ms", wait_of(level).as_millis())
}

/// The levels that a delay goes through.
pub(crate) fn levels(steps: u32) -> impl Iterator<Item = u32> {
    (0..LEVELS).rev().filter(move |level| steps & (1 << level) != 0)
}

/// All levels.
pub(crate) fn all_levels() -> impl Iterator<Item = u32> {
    0..LEVELS
}

/// How the names begin that the broker keeps for itself.
const RESERVED: &str = "amq.";

/// Refuses a name under which the broker makes no queue.
pub(crate) fn check_name(queue: &QueueName) -> Result<(), MessagingError> {
    if queue.as_str().starts_with(RESERVED) {
        let why = format!(
            "'{}': RabbitMQ keeps names that begin with '{RESERVED}' for itself; choose another",
            queue.origin()
        );
        return Err(MessagingError::invalid("queue name", why));
    }
    Ok(())
}

/// Where a message goes that is to wait: the exchange of its highest bit.
pub(crate) fn delay_route(queue: &QueueName, steps: u32) -> (String, String) {
    let bits = (0..LEVELS).rev().map(|level| if steps & (1 << level) != 0 { "1" } else { "0" });
    let key = bits.chain([word(queue).as_str()]).collect::<Vec<_>>().join(".");
    (exchange(levels(steps).next()), key)
}

/// The exchange of a level; without one, the last, which leads to the queues themselves.
pub(crate) fn exchange(level: Option<u32>) -> String {
    match level {
        Some(level) => format!("postrider:delay:{level}"),
        None => "postrider:delay:out".to_owned(),
    }
}

pub(crate) fn below(level: u32) -> Option<u32> {
    level.checked_sub(1)
}

/// A queue's name as one word of a routing key.
pub(crate) fn word(queue: &QueueName) -> String {
    queue.as_str().replace('.', ":")
}

/// A pattern of routing keys: the bit of a level, then whatever `rest` says.
pub(crate) fn pattern(level: u32, bit: &str, rest: &str) -> String {
    let higher = usize::try_from(LEVELS - 1 - level).unwrap_or(0);
    let mut words = vec!["*"; higher];
    words.extend([bit, rest]);
    words.join(".")
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// The arguments of a queue that holds messages. What the broker itself takes out of it goes to `dead`, at least once.
fn arguments(queue_type: QueueType, dead: Option<&str>) -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text(queue_type.as_str()));
    if queue_type == QueueType::Quorum {
        // With a limit, what is returned goes to the head of the queue; without one, to its tail.
        arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(BACKSTOP));
    }
    if let Some(dead) = dead {
        hand_on(&mut arguments, queue_type, "", Some(dead));
    }
    arguments
}

fn hand_on(arguments: &mut FieldTable, queue_type: QueueType, exchange: &str, key: Option<&str>) {
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

/// Makes what is missing on the broker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Builder<'a> {
    pub(crate) live: &'a Live,
    pub(crate) options: &'a RabbitmqOptions,
}

impl Builder<'_> {
    /// The queue and its dead letters; those first, so that nothing can die into nowhere.
    pub(crate) async fn queue(&self, queue: &QueueName) -> Result<(), MessagingError> {
        if self.live.known.has(queue.as_str()) {
            return Ok(());
        }
        let dead = queue.dead_letters();
        self.declare(dead.as_str(), arguments(self.options.queue_type, None)).await?;
        self.declare(queue.as_str(), arguments(self.options.queue_type, Some(dead.as_str()))).await?;
        // It may have been deleted while messages were waiting: they must find it again.
        self.way_out(queue).await
    }

    /// The dead letters alone, for a queue that somebody else has made.
    pub(crate) async fn dead_letters(&self, queue: &QueueName) -> Result<(), MessagingError> {
        self.declare(queue.dead_letters().as_str(), arguments(self.options.queue_type, None)).await
    }

    /// The partitions of a queue: of each, one consumer at a time is served.
    pub(crate) async fn partitions(&self, queue: &QueueName) -> Result<(), MessagingError> {
        let all = format!("{queue}:key");
        if self.live.known.has(&all) {
            return Ok(());
        }
        let dead = queue.dead_letters();
        for index in 0..self.options.partitions {
            let mut arguments = arguments(self.options.queue_type, Some(dead.as_str()));
            arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
            self.declare(&partition(queue, index), arguments).await?;
        }
        self.live.known.add(all);
        Ok(())
    }

    /// The way that a delay takes.
    pub(crate) async fn delay(&self, queue: &QueueName, steps: u32) -> Result<(), MessagingError> {
        self.ladder().await?;
        self.way_out(queue).await?;
        for level in levels(steps) {
            let name = waiting_queue(queue, level);
            // The queue alone is not enough: what comes to its exchange and finds no way stays where it is.
            let bound = format!("{name}:bound");
            if self.live.known.has(&bound) {
                continue;
            }
            let mut arguments = FieldTable::default();
            let queue_type = self.options.queue_type;
            arguments.insert("x-queue-type".into(), text(queue_type.as_str()));
            let wait = i64::try_from(wait_of(level).as_millis()).unwrap_or(i64::MAX);
            arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(wait));
            hand_on(&mut arguments, queue_type, &exchange(below(level)), None);
            self.declare(&name, arguments).await?;
            self.bind(&name, &exchange(Some(level)), &pattern(level, "1", &format!("#.{}", word(queue)))).await?;
            self.live.known.add(bound);
        }
        Ok(())
    }

    /// Where messages that have waited come into their queue.
    async fn way_out(&self, queue: &QueueName) -> Result<(), MessagingError> {
        let out = format!("{queue}:delay");
        if self.live.known.has(&out) {
            return Ok(());
        }
        let make = |channel: Channel| async move { declare_exchange(&channel, None).await };
        self.live.ask("make the exchanges for delays", make).await?.map_err(|error| failed("send", error))?;
        self.bind(queue.as_str(), &exchange(None), &format!("#.{}", word(queue))).await?;
        self.live.known.add(out);
        Ok(())
    }

    /// The exchanges that all delays share.
    async fn ladder(&self) -> Result<(), MessagingError> {
        const LADDER: &str = "postrider:delay";
        if self.live.known.has(LADDER) {
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
        self.live.ask("make the exchanges for delays", build).await?.map_err(|error| failed("send", error))?;
        self.live.known.add(LADDER);
        Ok(())
    }

    async fn declare(&self, name: &str, arguments: FieldTable) -> Result<(), MessagingError> {
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let wanted = arguments.clone();
        let declare = |channel: Channel| async move { channel.queue_declare(name.into(), durable, arguments).await };
        match self.live.ask("make a queue", declare).await? {
            Ok(_) => self.meet(name).await,
            Err(error) if code(&error) == Some(PRECONDITION_FAILED) => {
                Err(other_arguments(name, &self.what_differs(name, &wanted, &error).await))
            }
            Err(error) => Err(failed("make a queue", error)),
        }
    }

    /// All that the management interface tells, or else what the broker said.
    async fn what_differs(&self, name: &str, wanted: &FieldTable, error: &lapin::Error) -> String {
        match self.live.management.queue(name, Deadline::after(TELLING)).await {
            Ok(found) => Some(differences(&found, wanted)).filter(|told| !told.is_empty()).map(|told| told.join(", ")),
            Err(_) => None,
        }
        .unwrap_or_else(|| words(error))
    }

    /// Notes one of the broker's queues. Unless somebody says that it has been there for a while it may be new, whoever
    /// made it.
    pub(crate) async fn meet(&self, name: &str) -> Result<(), MessagingError> {
        if self.live.known.has(name) {
            return Ok(());
        }
        let lasts = self.options.queue_type == QueueType::Classic
            || flags::are_lasting(self.live, &[name.to_owned()]).await?[0];
        match lasts {
            true => self.live.known.add(name),
            false => self.live.known.add_young(name),
        }
        Ok(())
    }

    async fn bind(&self, queue: &str, exchange: &str, pattern: &str) -> Result<(), MessagingError> {
        let bind = |channel: Channel| async move {
            let options = QueueBindOptions::default();
            channel.queue_bind(queue.into(), exchange.into(), pattern.into(), options, FieldTable::default()).await
        };
        self.live.ask("bind a queue", bind).await?.map_err(|error| failed("bind a queue", error))
    }
}

async fn declare_exchange(channel: &Channel, level: Option<u32>) -> Result<(), lapin::Error> {
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(exchange(level).into(), ExchangeKind::Topic, durable, FieldTable::default()).await
}

/// Removes what is ready in a queue, and answers how many that were.
pub(crate) async fn empty(live: &Live, name: &str) -> Result<u64, MessagingError> {
    let purge = |channel: Channel| async move { channel.queue_purge(name.into(), QueuePurgeOptions::default()).await };
    match live.ask("purge", purge).await? {
        Ok(count) => Ok(count.into()),
        Err(error) if code(&error) == Some(NOT_FOUND) => Ok(0),
        Err(error) => Err(failed("purge", error)),
    }
}

/// Removes a queue with everything in it.
pub(crate) async fn remove(live: &Live, name: &str) -> Result<(), MessagingError> {
    let delete =
        |channel: Channel| async move { channel.queue_delete(name.into(), QueueDeleteOptions::default()).await };
    match live.ask("delete a queue", delete).await? {
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
    fn a_delay_is_never_shorter_and_hardly_longer() {
        for millis in [1, 9, 10, 11, 999, 1000, 1001, 59_999, 86_400_000, 5_183_999_999] {
            let delay = Duration::from_millis(millis);
            let steps = steps(delay);
            let taken: Duration = levels(steps).map(wait_of).sum();
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
        assert_eq!(waiting_queue(&queue, 4), "orders.eu:delay:160ms");
    }

    #[test]
    fn names_of_the_brokers_own_are_refused() {
        for (name, is_fine) in [("amq.orders", false), ("amq.", false), ("amq", true), ("Amq.orders", true)] {
            assert_eq!(check_name(&QueueName::new(name).unwrap()).is_ok(), is_fine, "{name}");
        }
    }

    #[test]
    fn keys_are_spread_and_stay_where_they_are() {
        let key = |text: &str| Key::new("ordering key", text).unwrap();
        assert_eq!(partition_of(&key("customer-7"), 8), partition_of(&key("customer-7"), 8));
        let used: HashSet<_> = (0..100).map(|n| partition_of(&key(&format!("k{n}")), 8)).collect();
        assert_eq!(used.len(), 8);
        assert_eq!(partition_of(&key("k"), 1), 0);
    }
}
