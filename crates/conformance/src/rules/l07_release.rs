//! L7: work that was leased but never started can be released: it is back at once and costs no attempt.

use postrider_core::{Message, Nack};

use crate::probe::{Check, Probe, ensure_same};

pub(super) async fn l7_a_released_message_is_back_at_once_and_uncounted(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("uncounted").await?;
    probe.send(&queue, Message::new("one")).await?;
    // More releases than the limit allows deliveries: none of them may count.
    for _ in 0..5 {
        let message = probe.take(&queue, &probe.long().max_receive_count(3)).await?;
        ensure_same("the delivery", message.receive_count(), 1)?;
        ensure_same("the failures", message.envelope.attempts_count, 0)?;
        probe.nack(message, Nack::Release).await?;
    }
    Ok(())
}

pub(super) async fn l7_a_released_message_is_back_at_once(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("at_once").await?;
    let id = probe.send(&queue, Message::new("one")).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    probe.nack(message, Nack::Release).await?;
    // The lease is long: after a release without effect the message would not come back.
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the message", message.id(), id)?;
    ensure_same("the failures", message.envelope.attempts_count, 0)
}
