//! L2: at any time at most one receiver holds a valid lease on a message.

use std::collections::HashSet;

use futures_util::future::try_join_all;
use postrider_core::{Message, MessagingService, ReceiveOptions};

use crate::probe::{Check, LONG, Probe, Stop, ensure, ensure_same, soon};

pub(super) async fn l2_a_leased_message_is_not_handed_out_again(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("leased").await?;
    probe.send(&queue, Message::new("one")).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    probe.nothing_within(&queue, probe.unit, "its lease was valid").await?;
    let other = probe.open().await?;
    let seen = other.receive_messages(&queue, &probe.long().wait(probe.unit / 4), soon()).await?;
    ensure(seen.is_empty(), || "another worker was given a message whose lease was valid".into())?;
    probe.ack(message).await?;
    probe.nothing(&queue, "it was acknowledged").await
}

pub(super) async fn l2_concurrent_receivers_share_nothing(probe: &Probe<'_>) -> Check {
    const MESSAGES: usize = 200;
    let queue = probe.queue("share").await?;
    let messages = (0..MESSAGES).map(|n| Message::new(format!("{n}"))).collect();
    let sent: HashSet<_> = probe.send_all(&queue, messages).await?.into_iter().collect();
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(probe.open().await?);
    }
    let options = ReceiveOptions::batch(7).visibility(LONG);
    let taken = try_join_all(workers.iter().map(|worker| async {
        let mut mine = Vec::new();
        loop {
            let batch = worker.receive_messages(&queue, &options, soon()).await?;
            if batch.is_empty() {
                return Ok::<_, Stop>(mine);
            }
            // The leases are kept to the end, so a second delivery would be one during a lease.
            mine.extend(batch.into_iter().map(|message| message.into_receipt().message_id()));
            tokio::task::yield_now().await;
        }
    }))
    .await?;
    let mut all: Vec<_> = taken.into_iter().flatten().collect();
    // A store may return less than it has, so receive until everything has come.
    while all.len() < MESSAGES {
        let rest = probe.take_all(&queue, MESSAGES - all.len(), &probe.long()).await?;
        all.extend(rest.into_iter().map(|message| message.into_receipt().message_id()));
    }
    ensure_same("the number of deliveries", all.len(), MESSAGES)?;
    ensure_same("what was delivered", all.into_iter().collect::<HashSet<_>>(), sent)
}

pub(super) async fn l2_a_dropped_message_comes_back_with_its_delivery_counted(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("dropped").await?;
    probe.send(&queue, Message::new("one")).await?;
    // The return on drop is best effort; a short lease brings the message back within the test.
    let dropped = probe.take(&queue, &probe.short()).await?;
    let delivery = dropped.receive_count();
    drop(dropped);
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the delivery", message.receive_count(), delivery + 1)?;
    ensure_same("the failures", message.envelope.attempts_count, 0)?;
    probe.ack(message).await?;
    Ok(())
}

pub(super) async fn l2_a_receipt_taken_out_keeps_the_lease(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("taken_out").await?;
    probe.send(&queue, Message::new("one")).await?;
    let receipt = probe.take(&queue, &probe.long()).await?.into_receipt();
    probe.nothing(&queue, "its receipt was taken out of the dropped message").await?;
    probe.ack(receipt).await?;
    Ok(())
}
