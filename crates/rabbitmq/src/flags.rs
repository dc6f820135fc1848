//! What is said of queues, where every client can ask for it.
//!
//! AMQP has no place for such things, and a request for what is not there costs a channel and a line in the broker's log.
//! So a flag is a binding: set, it leads from the exchange of flags to a queue that keeps nothing. Whoever asks sends a
//! message by that way; it comes back when the flag is not set.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, ExchangeKind};
use postrider_core::{MessagingError, QueueName};

use crate::error::failed;
use crate::link::Live;
use crate::publish::{Outgoing, Published};
use crate::topology::waiting_queue;

/// The exchange, and the queue.
pub(crate) const FLAGS: &str = "postrider:flags";

/// Something that is said of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flag {
    /// Its messages are held back.
    Paused,
    /// It has partitions.
    Keyed,
    /// It has a waiting queue of that level.
    Waits(u32),
}

impl Flag {
    fn key(&self, queue: &QueueName) -> String {
        match self {
            Self::Paused => format!("{queue}:paused"),
            Self::Keyed => format!("{queue}:key"),
            Self::Waits(level) => waiting_queue(queue, *level),
        }
    }
}

/// What is said of one of the broker's queues that has been there for a while.
fn lasting(name: &str) -> String {
    format!("{name}:lasts")
}

/// Makes the exchange and the queue, unless they are known to be there.
async fn make(live: &Live) -> Result<(), MessagingError> {
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
    live.ask("make the exchange of flags", make).await?.map_err(|error| failed("make flags", error))?;
    live.known.add(FLAGS);
    Ok(())
}

/// Sets or removes a flag.
pub(crate) async fn set(live: &Live, queue: &QueueName, flag: Flag, is_set: bool) -> Result<(), MessagingError> {
    change(live, flag.key(queue), is_set).await
}

/// Which of these flags are set.
pub(crate) async fn are_set(live: &Live, queue: &QueueName, flags: &[Flag]) -> Result<Vec<bool>, MessagingError> {
    ask(live, flags.iter().map(|flag| flag.key(queue)).collect()).await
}

/// Says of one of the broker's queues that it has been there for a while, or takes that back.
pub(crate) async fn set_lasting(live: &Live, name: &str, is_lasting: bool) -> Result<(), MessagingError> {
    change(live, lasting(name), is_lasting).await
}

/// Which of the broker's queues have been there for a while.
pub(crate) async fn are_lasting(live: &Live, names: &[String]) -> Result<Vec<bool>, MessagingError> {
    ask(live, names.iter().map(|name| lasting(name)).collect()).await
}

async fn change(live: &Live, key: String, is_set: bool) -> Result<(), MessagingError> {
    make(live).await?;
    let change = |channel: Channel| async move {
        let none = FieldTable::default();
        match is_set {
            true => channel.queue_bind(FLAGS.into(), FLAGS.into(), key.into(), QueueBindOptions::default(), none).await,
            false => channel.queue_unbind(FLAGS.into(), FLAGS.into(), key.into(), none).await,
        }
    };
    live.ask("set a flag", change).await?.map_err(|error| failed("set a flag", error))
}

async fn ask(live: &Live, keys: Vec<String>) -> Result<Vec<bool>, MessagingError> {
    make(live).await?;
    let questions: Vec<_> = keys
        .into_iter()
        .map(|routing_key| {
            // Each has a name of its own, so that nobody takes the answer to an older one for its own.
            let name = format!("{:016x}", rand::random::<u64>());
            let properties = BasicProperties::default().with_message_id(name.into());
            Outgoing { exchange: FLAGS.to_owned(), routing_key, properties, body: bytes::Bytes::new() }
        })
        .collect();
    let mut answers = Vec::with_capacity(questions.len());
    for answer in live.asker.publish(live, questions).await {
        answers.push(match answer {
            // The queue of flags keeps nothing and may say so.
            Published::Stored | Published::Refused => true,
            Published::Unroutable => false,
            Published::Unknown(error) | Published::NotSent(error) => {
                // Somebody may have removed the exchange.
                live.known.forget_all();
                return Err(error);
            }
        });
    }
    Ok(answers)
}
