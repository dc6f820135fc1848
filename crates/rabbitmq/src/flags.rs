//! Flags of queues, which every client can read.
//!
//! AMQP has no place for flags, and a passive declaration of a missing object costs a channel and a line in the broker's
//! log. So a flag is a binding: when set, it leads from the exchange of flags to a queue that keeps nothing. A client reads
//! it by publishing a probe with that routing key; the probe is returned when the flag is not set.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, ExchangeKind};
use postrider_core::{MessagingError, QueueName};

use crate::connection::LiveConnection;
use crate::error::failed;
use crate::publish::{Outgoing, Published};
use crate::topology::delay_queue;

/// Name of both the exchange and the queue.
pub(crate) const FLAGS: &str = "postrider:flags";

/// A flag of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flag {
    /// Claims are stopped.
    Paused,
    /// It has partitions.
    Keyed,
    /// It has a delay queue of that level.
    Delay(u32),
}

impl Flag {
    fn key(&self, queue: &QueueName) -> String {
        match self {
            Self::Paused => format!("{queue}:paused"),
            Self::Keyed => format!("{queue}:key"),
            Self::Delay(level) => delay_queue(queue, *level),
        }
    }
}

/// The routing key of the flag that a broker's queue survives a crash.
fn crash_safe_key(name: &str) -> String {
    format!("{name}:lasts")
}

/// Declares the exchange and the queue, unless they are known to exist.
async fn make(live: &LiveConnection) -> Result<(), MessagingError> {
    if live.known.has(FLAGS) {
        return Ok(());
    }
    let make = |channel: Channel| async move {
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        channel.exchange_declare(FLAGS.into(), ExchangeKind::Direct, durable, FieldTable::default()).await?;
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let mut arguments = FieldTable::default();
        arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(0));
        arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
        channel.queue_declare(FLAGS.into(), durable, arguments).await
    };
    live.request("create the exchange of flags", make).await?.map_err(|error| failed("create flags", error))?;
    live.known.add(FLAGS);
    Ok(())
}

/// Sets or removes a flag.
pub(crate) async fn set(
    live: &LiveConnection,
    queue: &QueueName,
    flag: Flag,
    is_set: bool,
) -> Result<(), MessagingError> {
    change(live, flag.key(queue), is_set).await
}

/// Returns which of these flags are set.
pub(crate) async fn are_set(
    live: &LiveConnection,
    queue: &QueueName,
    flags: &[Flag],
) -> Result<Vec<bool>, MessagingError> {
    read(live, flags.iter().map(|flag| flag.key(queue)).collect()).await
}

/// Sets or removes the flag that a broker's queue survives a crash.
pub(crate) async fn set_crash_safe(
    live: &LiveConnection,
    name: &str,
    is_crash_safe: bool,
) -> Result<(), MessagingError> {
    change(live, crash_safe_key(name), is_crash_safe).await
}

/// Returns which of the broker's queues are known to survive a crash.
pub(crate) async fn are_crash_safe(live: &LiveConnection, names: &[String]) -> Result<Vec<bool>, MessagingError> {
    read(live, names.iter().map(|name| crash_safe_key(name)).collect()).await
}

async fn change(live: &LiveConnection, key: String, is_set: bool) -> Result<(), MessagingError> {
    make(live).await?;
    let change = |channel: Channel| async move {
        let none = FieldTable::default();
        match is_set {
            true => channel.queue_bind(FLAGS.into(), FLAGS.into(), key.into(), QueueBindOptions::default(), none).await,
            false => channel.queue_unbind(FLAGS.into(), FLAGS.into(), key.into(), none).await,
        }
    };
    live.request("set a flag", change).await?.map_err(|error| failed("set a flag", error))
}

async fn read(live: &LiveConnection, keys: Vec<String>) -> Result<Vec<bool>, MessagingError> {
    make(live).await?;
    let questions: Vec<_> = keys
        .into_iter()
        .map(|routing_key| {
            // Each probe has its own id, so that the answer to an older probe is not taken for its own.
            let name = format!("{:016x}", rand::random::<u64>());
            let properties = BasicProperties::default().with_message_id(name.into());
            Outgoing { exchange: FLAGS.to_owned(), routing_key, properties, body: bytes::Bytes::new() }
        })
        .collect();
    let mut answers = Vec::with_capacity(questions.len());
    for answer in live.flag_publisher.publish(live, questions).await {
        answers.push(match answer {
            // The queue of flags keeps nothing and may refuse the probe.
            Published::Stored | Published::Refused => true,
            Published::Unroutable => false,
            Published::Unknown(error) | Published::NotSent(error) => {
                // The exchange may have been deleted.
                live.known.forget_all();
                return Err(error);
            }
        });
    }
    Ok(answers)
}
