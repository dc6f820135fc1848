//! L6: a failed delivery comes back after the delay that it was given, from nothing to days.

use std::time::Duration;

use postrider_core::{Message, MessagingService, Nack, QueueAdmin, Settlement};
use tokio::time::Instant;

use crate::harness::Harness;
use crate::probe::{Check, Probe, ensure, ensure_same, soon};

pub(super) async fn l6_a_retry_comes_back_after_its_delay<H: Harness>(probe: &Probe<'_, H>) -> Check {
    let queue = probe.queue("delay").await?;
    probe.send(&queue, Message::new("one")).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    let after = probe.unit * 2;
    let before = Instant::now();
    probe.nack(message, Nack::retry_after(after).with_error("no")).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    let away = before.elapsed();
    ensure(away >= after, || format!("a retry after {after:?} came back after {away:?}"))?;
    ensure_same("the delivery", message.receive_count(), 2)
}

pub(super) async fn l6_a_retry_without_delay_comes_back_at_once<H: Harness>(probe: &Probe<'_, H>) -> Check {
    let queue = probe.queue("at_once").await?;
    probe.send(&queue, Message::new("one")).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    probe.nack(message, Nack::retry_after(Duration::ZERO)).await?;
    // The lease was long: a nack that did nothing would show as a message that stays away.
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the delivery", message.receive_count(), 2)
}

pub(super) async fn l6_a_long_retry_is_kept<H: Harness>(probe: &Probe<'_, H>) -> Check {
    let queue = probe.queue("long").await?;
    probe.send_bodies(&queue, &["a", "b"]).await?;
    let messages = probe.take_all(&queue, 2, &probe.long()).await?;
    let days = probe.provider.capabilities().limits.max_delay.min(Duration::from_secs(10 * 24 * 3600));
    let retry = |message| Settlement::nack(message, Nack::retry_after(days));
    let settlements = messages.into_iter().map(retry).collect();
    for row in probe.provider.settle(settlements, soon()).await? {
        row?;
    }
    probe.nothing(&queue, "its retry was days away").await?;
    probe
        .eventually(
            || probe.provider.queue_stats(&queue, soon()),
            |stats| stats.delayed.value().is_none_or(|delayed| delayed == 2),
        )
        .await?;
    Ok(())
}

pub(super) async fn l6_failures_are_counted_by_the_store<H: Harness>(probe: &Probe<'_, H>) -> Check {
    let queue = probe.queue("failures").await?;
    probe.send(&queue, Message::new("one")).await?;
    for failures in 0..3 {
        let worker = probe.open().await?;
        let message = probe.take_by(&worker, &queue, &probe.long()).await?;
        ensure_same("the failures", message.envelope.attempts_count, failures)?;
        let nack = Nack::retry_after(Duration::ZERO).with_error(format!("failure {failures}"));
        worker.nack_message(&queue, message, nack, soon()).await?;
    }
    Ok(())
}
