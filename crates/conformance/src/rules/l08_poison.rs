//! L8: the delivery count is checked on reading, so that a message that kills its worker cannot loop forever.

use std::time::Duration;

use postrider_core::{DeadLetterReason, Message, MessagingService, Nack};
use tokio::time::Instant;

use crate::probe::{Check, Probe, ensure, ensure_same, soon};

pub(super) async fn l8_the_delivery_count_rises_with_each_lease(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("rises").await?;
    probe.send(&queue, Message::new("one")).await?;
    let (before, mut last) = (Instant::now(), 0);
    for _ in 0..4 {
        let message = probe.take(&queue, &probe.short()).await?;
        // On a busy machine a lease can expire before its message arrives here; each counted lease took its full time.
        let (delivery, taken) = (message.receive_count(), before.elapsed());
        ensure(delivery > last && probe.unit * (delivery - 1) <= taken, || {
            format!("the delivery is {delivery} after delivery {last} and {taken:?} of leases of {:?}", probe.unit)
        })?;
        last = delivery;
        drop(message.into_receipt());
    }
    Ok(())
}

pub(super) async fn l8_a_message_past_its_limit_is_dead_lettered_unread(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("limit").await?;
    let id = probe.send(&queue, Message::new("poison")).await?;
    let mut deliveries = 0;
    for _ in 0..2 {
        // The worker dies while it holds the message, twice. Its own limit is high: a lease that expires before it arrives
        // here, on a busy machine, must not dead-letter the message too early.
        let message = probe.take(&queue, &probe.short()).await?;
        deliveries = message.receive_count();
        drop(message.into_receipt());
    }
    let good = probe.send(&queue, Message::new("good")).await?;
    let options = probe.long().max_receive_count(2);
    let message = probe.take(&queue, &options).await?;
    ensure_same("the message that was handed out", message.id(), good)?;
    probe.ack(message).await?;
    let dead = probe.read_until_dead(&queue, 1, &options).await?;
    ensure_same("the dead letter", dead[0].id, id)?;
    ensure_same("the reason", &dead[0].reason, &DeadLetterReason::MAX_RECEIVE_COUNT)?;
    ensure_same("the deliveries", dead[0].deliveries_count, deliveries)
}

pub(super) async fn l8_a_worker_may_allow_more_deliveries(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("more").await?;
    probe.send(&queue, Message::new("stubborn")).await?;
    let message = probe.take(&queue, &probe.short()).await?;
    let first = message.receive_count();
    drop(message.into_receipt());
    // The last delivery that the worker allows. Its long lease cannot expire unseen and use up another delivery.
    let last = probe.take(&queue, &probe.long().max_receive_count(first + 1)).await?;
    ensure_same("the last delivery allowed", last.receive_count(), first + 1)?;
    probe.nack(last, Nack::retry_after(Duration::ZERO)).await?;
    let message = probe.take(&queue, &probe.long().max_receive_count(first + 3)).await?;
    ensure_same("the delivery", message.receive_count(), first + 2)?;
    probe.ack(message).await?;
    ensure_same("the dead letters", probe.dead_letters(&queue).await?.len(), 0)
}

pub(super) async fn l8_a_message_past_its_limit_is_not_received_by_its_id(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("by_id").await?;
    let id = probe.send(&queue, Message::new("poison")).await?;
    let once = probe.long().max_receive_count(1);
    let message = probe.take(&queue, &once).await?;
    probe.nack(message, Nack::retry_after(Duration::ZERO).with_error("died of it")).await?;
    let again = probe.provider.receive_by_id(&queue, id, &once, soon()).await?;
    ensure(again.is_none(), || "it was received by its id once more than is allowed".into())?;
    let dead = probe.read_until_dead(&queue, 1, &once).await?;
    ensure_same("the reason", &dead[0].reason, &DeadLetterReason::MAX_RECEIVE_COUNT)?;
    ensure_same("the error", dead[0].error.as_deref(), Some("died of it"))
}
