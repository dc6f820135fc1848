//! L12: a delayed message is never received early, unless an operator delivers it now.

use std::time::Duration;

use postrider_core::{DeadLetterQuery, DeadLetters, Message, Nack, QueueAdmin};

use crate::probe::{Check, LONG, Probe, ensure_same, soon};

pub(super) async fn l12_a_delayed_message_is_delivered_now(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("now").await?;
    let delayed = probe.send(&queue, Message::new("delayed").delay(LONG)).await?;
    probe.nothing(&queue, "it is delayed").await?;
    probe.provider.deliver_now(&queue, delayed, soon()).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the message that is delivered now", message.id(), delayed)?;
    ensure_same("its deliveries", message.receive_count(), 1)?;
    probe.nack(message, Nack::retry_after(LONG).with_error("no")).await?;
    probe.nothing(&queue, "it waits for another attempt").await?;
    probe.provider.deliver_now(&queue, delayed, soon()).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("its deliveries after a failure", message.receive_count(), 2)?;
    ensure_same("its failures", message.envelope.attempts_count, 1)?;
    probe.ack(message).await?;
    // A due message stays due.
    let due = probe.send(&queue, Message::new("due")).await?;
    probe.provider.deliver_now(&queue, due, soon()).await?;
    ensure_same("the message that was due", probe.take(&queue, &probe.long()).await?.id(), due)
}

pub(super) async fn l12_a_message_that_is_delivered_now_keeps_its_turn(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("turn").await?;
    let mut ids = Vec::new();
    for body in ["head", "next", "last"] {
        ids.push(probe.send(&queue, Message::new(body).ordering_key("k")?.delay(LONG)).await?);
    }
    probe.provider.deliver_now(&queue, ids[1], soon()).await?;
    probe.nothing(&queue, "it waits behind the delayed head of its key").await?;
    probe.provider.deliver_now(&queue, ids[0], soon()).await?;
    for id in &ids[..2] {
        let message = probe.take(&queue, &probe.long()).await?;
        ensure_same("the next message of the key", message.id(), *id)?;
        probe.nothing(&queue, "the head of its key is leased").await?;
        probe.ack(message).await?;
    }
    probe.nothing_within(&queue, Duration::ZERO, "the last one is still delayed").await?;
    let dead = probe.provider.list_dead_letters(&queue, &DeadLetterQuery::default(), soon()).await?;
    ensure_same("the dead letters", dead.letters, vec![])
}
