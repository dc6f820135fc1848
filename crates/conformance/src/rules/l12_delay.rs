//! L12: a delayed message is never received early; an expired one is never handled.

use std::collections::HashMap;
use std::time::Duration;

use postrider_core::{DeadLetterReason, Message, MessagingService, Timestamp};
use tokio::time::Instant;

use crate::probe::{Check, Probe, ensure, ensure_same, violation};

pub(super) async fn l12_a_delayed_message_is_never_early(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("early").await?;
    let delays = [probe.unit * 3, probe.unit / 2, probe.unit];
    let mut sent = HashMap::new();
    for delay in delays {
        let before = Instant::now();
        sent.insert(probe.send(&queue, Message::new("later").delay(delay)).await?, (before, delay));
    }
    for _ in delays {
        let message = probe.take(&queue, &probe.long()).await?;
        let Some((before, delay)) = sent.remove(&message.id()) else {
            return violation(format!("message {} was never sent, or came twice", message.id()));
        };
        let after = before.elapsed();
        ensure(after >= delay, || format!("a message with a delay of {delay:?} came after {after:?}"))?;
        probe.ack(message).await?;
    }
    Ok(())
}

pub(super) async fn l12_a_long_delay_is_kept(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("long").await?;
    let days = probe.provider.capabilities().limits.max_delay.min(Duration::from_secs(10 * 24 * 3600));
    probe.send(&queue, Message::new("in days").delay(days)).await?;
    let now = probe.send(&queue, Message::new("now")).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the message", message.id(), now)?;
    probe.nothing(&queue, "its delay was days long").await
}

pub(super) async fn l12_a_delayed_head_holds_its_key(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("head").await?;
    let head = Message::new("head").ordering_key("k")?.delay(probe.unit * 2);
    let before = Instant::now();
    let head = probe.send(&queue, head).await?;
    let next = probe.send(&queue, Message::new("next").ordering_key("k")?).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the first message of the key", message.id(), head)?;
    let after = before.elapsed();
    ensure(after >= probe.unit * 2, || format!("the delayed head came after {after:?}"))?;
    probe.ack(message).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the second message of the key", message.id(), next)
}

pub(super) async fn l12_an_expired_message_is_dead_lettered_unread(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("expired").await?;
    // The due time is after the expiry, also when that is rounded up, so every read is too late. Without delays no
    // message can be sent in time and certainly be read too late.
    let late = if probe.offers(postrider_core::Feature::Delay) {
        Message::new("late").expires_in(probe.unit / 4).delay(probe.unit * 3)
    } else {
        Message::new("late").expires_at(Timestamp::from_micros(2))
    };
    let late = probe.send(&queue, late).await?;
    let long_ago = probe.send(&queue, Message::new("long ago").expires_at(Timestamp::from_micros(1))).await?;
    let in_time = probe.send(&queue, Message::new("in time").expires_in(Duration::from_secs(3600))).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the message", message.id(), in_time)?;
    probe.ack(message).await?;
    let mut dead = probe.read_until_dead(&queue, 2, &probe.long()).await?;
    dead.sort_by_key(|letter| letter.id != late);
    ensure_same("the dead letters", (dead[0].id, dead[1].id), (late, long_ago))?;
    for letter in dead {
        ensure_same("the reason", &letter.reason, &DeadLetterReason::EXPIRED)?;
        ensure_same("the deliveries", letter.deliveries_count, 0)?;
    }
    Ok(())
}

pub(super) async fn l12_an_expired_head_frees_its_key(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("expired_head").await?;
    let head = Message::new("head").ordering_key("k")?.expires_at(Timestamp::from_micros(1));
    probe.send(&queue, head).await?;
    let next = probe.send(&queue, Message::new("next").ordering_key("k")?).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the message behind an expired one", message.id(), next)
}
