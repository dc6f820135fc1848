//! L5: a lease can be extended; it then ends at *now + extension*.

use std::time::Duration;

use postrider_core::{Message, MessagingService};
use tokio::time::Instant;

use crate::harness::Harness;
use crate::probe::{Check, LONG, Probe, ensure, ensure_same, soon};

pub(super) async fn l5_an_extended_lease_holds<H: Harness>(probe: &Probe<'_, H>) -> Check {
    let queue = probe.queue("extended").await?;
    probe.send(&queue, Message::new("one")).await?;
    let message = probe.take(&queue, &probe.long().visibility(probe.unit * 4)).await?;
    probe.provider.extend_visibility(&queue, message.receipt(), LONG, soon()).await?;
    probe.nothing_within(&queue, probe.unit * 6, "its lease had been extended").await?;
    probe.ack(message).await?;
    probe.nothing(&queue, "it was acknowledged").await
}

pub(super) async fn l5_an_extension_is_set_and_not_added<H: Harness>(probe: &Probe<'_, H>) -> Check {
    let queue = probe.queue("set").await?;
    probe.send(&queue, Message::new("one")).await?;
    let receipt = probe.take(&queue, &probe.long()).await?.into_receipt();
    // Added, the lease would outlive the test's patience.
    probe.provider.extend_visibility(&queue, &receipt, probe.unit, soon()).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the message", message.id(), receipt.message_id())?;
    ensure_same("the delivery", message.receive_count(), 2)
}

pub(super) async fn l5_parts_of_a_second_count<H: Harness>(probe: &Probe<'_, H>) -> Check {
    let queue = probe.queue("parts").await?;
    let part = Duration::from_millis(600);
    probe.send(&queue, Message::new("one")).await?;
    let before = Instant::now();
    let message = probe.take(&queue, &probe.long().visibility(part)).await?;
    let (told, accepted) = (message.envelope.lease_expires_at, message.envelope.enqueued_at);
    ensure(told >= accepted.saturating_add(part), || {
        format!("a message accepted at {accepted} is said to be leased for {part:?} until {told}")
    })?;
    drop(message.into_receipt());
    let message = probe.take(&queue, &probe.long()).await?;
    let held = before.elapsed();
    // Cut to whole seconds a lease would be no lease; rounded up it may only be longer.
    ensure(held >= part, || format!("a lease of {part:?} ended after {held:?}"))?;
    let before = Instant::now();
    probe.provider.extend_visibility(&queue, message.receipt(), part, soon()).await?;
    drop(message.into_receipt());
    probe.take(&queue, &probe.long()).await?;
    let held = before.elapsed();
    ensure(held >= part, || format!("an extension of {part:?} ended after {held:?}"))
}
