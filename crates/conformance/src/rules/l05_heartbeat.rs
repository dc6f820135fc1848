//! L5: a lease can be extended; it then ends at *now + extension*.

use std::time::Duration;

use postrider_core::{Feature, Message, MessagingError, MessagingService, ReceiptHandle};
use tokio::time::Instant;

use crate::probe::{Check, LONG, Probe, ensure, ensure_same, soon, violation};

pub(super) async fn l5_an_extended_lease_holds(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("extended").await?;
    probe.send(&queue, Message::new("one")).await?;
    let mut lease = probe.unit * 4;
    let message = loop {
        let before = Instant::now();
        let message = probe.take(&queue, &probe.long().visibility(lease)).await?;
        match probe.provider.extend_visibility(&queue, message.receipt(), LONG, soon()).await {
            // On a busy machine the extension can come too late; the next lease is longer.
            Err(MessagingError::VisibilityExpired { .. }) if before.elapsed() >= lease && lease < LONG => lease *= 2,
            answer => {
                answer?;
                break message;
            }
        }
    };
    probe.nothing_within(&queue, lease + probe.unit * 2, "its lease had been extended").await?;
    probe.ack(message).await?;
    probe.nothing(&queue, "it was acknowledged").await
}

pub(super) async fn l5_the_receipt_that_an_extend_answers_is_good_until_the_new_end(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("handed_on").await?;
    probe.send(&queue, Message::new("one")).await?;
    // With portable receipts each step uses another connection.
    let others = match probe.offers(Feature::PortableReceipts) {
        true => Some((probe.open().await?, probe.open().await?)),
        false => None,
    };
    let (extending, settling) = match &others {
        Some((extending, settling)) => (extending, settling),
        None => (&probe.provider, &probe.provider),
    };
    let left_the_process = |receipt: ReceiptHandle| receipt.to_string().parse::<ReceiptHandle>();
    let mut lease = probe.unit * 4;
    let (receipt, next) = loop {
        let before = Instant::now();
        let message = probe.take(&queue, &probe.long().visibility(lease)).await?;
        let receipt = left_the_process(message.into_receipt())?;
        match extending.extend_visibility(&queue, &receipt, LONG, soon()).await {
            // On a busy machine the extension can come too late; the next lease is longer.
            Err(MessagingError::VisibilityExpired { .. }) if before.elapsed() >= lease && lease < LONG => lease *= 2,
            next => break (receipt, left_the_process(next?)?),
        }
    };
    let lease_of = |receipt: &ReceiptHandle| (receipt.queue().clone(), receipt.message_id(), receipt.token());
    ensure_same("the lease of the new receipt", lease_of(&next), lease_of(&receipt))?;
    probe.nothing_within(&queue, lease + probe.unit * 2, "its lease had been extended").await?;
    settling.ack_message(&queue, next, soon()).await?;
    match settling.ack_message(&queue, receipt, soon()).await {
        Err(MessagingError::VisibilityExpired { .. }) => {}
        answer => return violation(format!("the lease was ended by its new receipt; the old one answers {answer:?}")),
    }
    probe.nothing(&queue, "it was acknowledged").await?;
    if let Some((extending, settling)) = others {
        extending.close(soon()).await?;
        settling.close(soon()).await?;
    }
    Ok(())
}

pub(super) async fn l5_an_extension_is_set_and_not_added(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("set").await?;
    probe.send(&queue, Message::new("one")).await?;
    let receipt = probe.take(&queue, &probe.long()).await?.into_receipt();
    // If it were added, the lease would outlast the test's time limit.
    probe.provider.extend_visibility(&queue, &receipt, probe.unit, soon()).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the message", message.id(), receipt.message_id())?;
    ensure_same("the delivery", message.receive_count(), 2)
}

pub(super) async fn l5_parts_of_a_second_count(probe: &Probe<'_>) -> Check {
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
    // Truncated to whole seconds the lease would be zero; rounded up it may only be longer.
    ensure(held >= part, || format!("a lease of {part:?} ended after {held:?}"))?;
    let before = Instant::now();
    probe.provider.extend_visibility(&queue, message.receipt(), part, soon()).await?;
    drop(message.into_receipt());
    probe.take(&queue, &probe.long()).await?;
    let held = before.elapsed();
    ensure(held >= part, || format!("an extension of {part:?} ended after {held:?}"))
}
