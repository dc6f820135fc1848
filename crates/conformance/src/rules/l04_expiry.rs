//! L4: when a lease expires, or its holder dies, the message can be received again without intervention.

use postrider_core::{Message, MessagingService};
use tokio::time::Instant;

use crate::probe::{Check, Probe, ensure, ensure_same, soon};

pub(super) async fn l4_a_message_comes_back_when_its_lease_runs_out(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("comes_back").await?;
    probe.send(&queue, Message::new("one")).await?;
    let mut delivery = 1;
    for _ in 0..3 {
        let before = Instant::now();
        let message = probe.take(&queue, &probe.short()).await?;
        // On a busy machine a lease can expire before its message arrives here; each such lease took its full time.
        let (seen, taken) = (message.receive_count(), before.elapsed());
        let is_possible = seen >= delivery && probe.unit * (seen - delivery) <= taken;
        ensure(is_possible, || format!("the delivery is {seen}, not {delivery}, after {taken:?}"))?;
        delivery = seen + 1;
        // The holder dies: no settle, no return.
        drop(message.into_receipt());
        let again = probe.take(&queue, &probe.long()).await?;
        let held = before.elapsed();
        ensure(held >= probe.unit, || format!("it came back after {held:?} of a lease of {:?}", probe.unit))?;
        // Released, so that each round begins with a new lease.
        probe.nack(again, postrider_core::Nack::Release).await?;
        if !probe.offers(postrider_core::Feature::FreeRelease) {
            return Ok(());
        }
    }
    Ok(())
}

pub(super) async fn l4_a_waiting_receiver_gets_what_another_lost(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("waiting").await?;
    let waiter = probe.open().await?;
    probe.send(&queue, Message::new("one")).await?;
    let lost = probe.take(&queue, &probe.short()).await?.into_receipt();
    let message = probe.take_by(&waiter, &queue, &probe.long()).await?;
    ensure_same("the message", message.id(), lost.message_id())?;
    waiter.ack_message(&queue, message, soon()).await?;
    Ok(())
}
