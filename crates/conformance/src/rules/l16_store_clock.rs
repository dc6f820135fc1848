//! L16: due times and leases are judged by the store's clock, never by a worker's.

use std::time::Duration;

use postrider_core::{Feature, Message, MessageId, MessagingService, Nack, Timestamp};
use tokio::time::Instant;
use uuid::{NoContext, Uuid};

use crate::harness::ClockShift;
use crate::probe::{Check, Probe, Stop, ensure, ensure_same, soon};

const HOUR: Duration = Duration::from_secs(3600);

/// An id as a sender makes it whose clock is wrong.
fn id_made_at(time: Timestamp) -> MessageId {
    let micros = time.as_micros().max(0).unsigned_abs();
    let nanos = u32::try_from(micros % 1_000_000).unwrap_or(0) * 1000;
    MessageId::from_uuid(Uuid::new_v7(uuid::Timestamp::from_unix(NoContext, micros / 1_000_000, nanos)))
}

pub(super) async fn l16_ids_from_a_wrong_clock_order_nothing(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("ids").await?;
    let now = Timestamp::now();
    let ids = [id_made_at(now.saturating_add(HOUR)), id_made_at(now.saturating_sub(HOUR)), id_made_at(now)];
    for id in ids {
        let mut message = Message::new("one").id(id);
        if probe.offers(Feature::OrderByKey) {
            message = message.ordering_key("k")?;
        }
        ensure_same("the answered id", probe.send(&queue, message).await?, id)?;
    }
    let mut seen = Vec::new();
    for _ in ids {
        let message = probe.take(&queue, &probe.long()).await?;
        seen.push(message.id());
        probe.ack(message).await?;
    }
    let mut expected = ids.to_vec();
    if !probe.offers(Feature::OrderByKey) {
        seen.sort_unstable();
        expected.sort_unstable();
    }
    ensure_same("what was delivered", seen, expected)
}

pub(super) async fn l16_a_workers_clock_moves_no_lease_and_no_due_time(probe: &Probe<'_>) -> Check {
    for (tag, shift) in [("ahead", ClockShift::Ahead(HOUR)), ("behind", ClockShift::Behind(HOUR))] {
        let Some(worker) = probe.harness.open_with_clock(shift) else {
            return Err(Stop::NotExercised("nobody can give a worker a wrong clock here".into()));
        };
        let worker = worker.await?;
        let queue = probe.queue(tag).await?;
        if probe.offers(Feature::Delay) {
            let before = Instant::now();
            worker.send_message(&queue, Message::new("delayed").delay(probe.unit), soon()).await?;
            let message = probe.take(&queue, &probe.long()).await?;
            let after = before.elapsed();
            ensure(after >= probe.unit, || {
                format!("a delay of {:?} ended after {after:?}: sent by a clock {tag} by an hour", probe.unit)
            })?;
            probe.ack(message).await?;
        }
        worker.send_message(&queue, Message::new("leased"), soon()).await?;
        let message = probe.take_by(&worker, &queue, &probe.long()).await?;
        probe.nothing(&queue, &format!("its holder's clock, {tag} by an hour, says nothing about its lease")).await?;
        let message = if probe.offers(Feature::ExtendLease) {
            worker.extend_visibility(&queue, message.receipt(), probe.unit, soon()).await?;
            drop(message.into_receipt());
            probe.take_by(&worker, &queue, &probe.long()).await?
        } else {
            message
        };
        let before = Instant::now();
        worker.nack_message(&queue, message, Nack::retry_after(probe.unit), soon()).await?;
        let message = probe.take(&queue, &probe.long()).await?;
        let after = before.elapsed();
        ensure(after >= probe.unit, || {
            format!("a retry after {:?} came after {after:?}: asked for by a clock {tag} by an hour", probe.unit)
        })?;
        probe.ack(message).await?;
        worker.close(soon()).await?;
    }
    Ok(())
}
