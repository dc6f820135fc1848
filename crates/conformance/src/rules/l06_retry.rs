//! L6: a failed delivery comes back after its delay, from zero to days.

use std::time::Duration;

use postrider_core::service::KEPT_ATTEMPTS;
use postrider_core::{
    DeadLetters, Message, MessageAttempt, MessageId, MessagingService, Nack, QueueAdmin, QueueName, QueuedMessage,
    Redrive, Settlement,
};
use tokio::time::Instant;

use crate::probe::{Check, Probe, Stop, ensure, ensure_same, soon};

pub(super) async fn l6_a_retry_comes_back_after_its_delay(probe: &Probe<'_>) -> Check {
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

pub(super) async fn l6_a_retry_without_delay_comes_back_at_once(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("at_once").await?;
    probe.send(&queue, Message::new("one")).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    probe.nack(message, Nack::retry_after(Duration::ZERO)).await?;
    // The lease is long: after a nack without effect the message would not come back.
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the delivery", message.receive_count(), 2)
}

pub(super) async fn l6_a_long_retry_is_kept(probe: &Probe<'_>) -> Check {
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

pub(super) async fn l6_failures_are_counted_by_the_store(probe: &Probe<'_>) -> Check {
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

/// The failed attempts that a store reports: their numbers and errors.
async fn reported_attempts(
    probe: &Probe<'_>,
    queue: &QueueName,
    id: MessageId,
) -> Result<Vec<(u32, Option<String>)>, Stop> {
    let attempts = probe.provider.message_attempts(queue, id, soon()).await?;
    for MessageAttempt { attempt, started_at, failed_at, .. } in &attempts {
        ensure(started_at.is_none_or(|started_at| started_at <= *failed_at), || {
            format!("attempt {attempt} began at {started_at:?} and failed at {failed_at:?}")
        })?;
    }
    ensure(attempts.is_sorted_by_key(|attempt| attempt.failed_at), || {
        format!("the oldest is not first: {attempts:?}")
    })?;
    Ok(attempts.into_iter().map(|attempt| (attempt.attempt, attempt.error)).collect())
}

pub(super) async fn l6_failed_attempts_are_told_with_their_errors(probe: &Probe<'_>) -> Check {
    let (queue, other) = (probe.queue("attempts").await?, probe.queue("other").await?);
    let at_once = || Nack::retry_after(Duration::ZERO);
    let id = probe.send(&queue, Message::new("one")).await?;
    ensure_same("the failures of a new message", reported_attempts(probe, &queue, id).await?, vec![])?;
    ensure_same("the failures of no message", reported_attempts(probe, &queue, MessageId::generate()).await?, vec![])?;
    probe.nack(probe.take(&queue, &probe.long()).await?, at_once().with_error("first")).await?;
    let first = (1, Some("first".to_owned()));
    ensure_same("the failures of a living message", reported_attempts(probe, &queue, id).await?, vec![first.clone()])?;
    // Neither a release nor an unfinished delivery is a failure.
    probe.nack(probe.take(&queue, &probe.long()).await?, Nack::Release).await?;
    let worker = probe.open().await?;
    let message = probe.take_by(&worker, &queue, &probe.long()).await?;
    ensure_same("the failures of a leased message", reported_attempts(probe, &queue, id).await?, vec![first.clone()])?;
    worker.nack_message(&queue, message, at_once(), soon()).await?;
    let failed = Nack::dead_letter("rejected").with_error("third");
    probe.nack(probe.take(&queue, &probe.long()).await?, failed).await?;
    let all = vec![first, (2, None), (3, Some("third".to_owned()))];
    ensure_same("the failures of a dead letter", reported_attempts(probe, &queue, id).await?, all.clone())?;
    ensure_same(
        "the failures by the dead letters' name",
        reported_attempts(probe, &queue.dead_letters(), id).await?,
        all,
    )?;
    ensure_same("the failures in another queue", reported_attempts(probe, &other, id).await?, vec![])?;

    let report = probe.provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await?;
    ensure_same("the redriven messages", report.redriven, vec![id])?;
    ensure_same("the failures after a redrive", reported_attempts(probe, &queue, id).await?, vec![])?;
    probe.nack(probe.take(&queue, &probe.long()).await?, at_once().with_error("again")).await?;
    let again = vec![(1, Some("again".to_owned()))];
    ensure_same("the failures after a redrive and a new failure", reported_attempts(probe, &queue, id).await?, again)?;
    probe.ack(probe.take(&queue, &probe.long()).await?).await?;
    ensure_same("the failures of a message that is gone", reported_attempts(probe, &queue, id).await?, vec![])
}

pub(super) async fn l6_a_failed_attempt_is_told_with_its_worker(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("credited").await?;
    let id = probe.send(&queue, Message::new("one")).await?;
    // In one call, so that the names must be kept apart within it.
    let second = probe.send(&queue, Message::new("two")).await?;
    let mut taken = probe.take_all(&queue, 2, &probe.long()).await?;
    taken.sort_by_key(|message| message.id() != id);
    let named = ["rider:7:a", "it's \"the\" other"];
    let retry = |(message, worker): (QueuedMessage, &str)| {
        Settlement::nack(message, Nack::retry_after(Duration::ZERO)).by(worker)
    };
    let settlements = taken.into_iter().zip(named).map(retry).collect();
    for row in probe.provider.settle(settlements, soon()).await? {
        row?;
    }
    let dead = probe.take(&queue, &probe.long()).await?;
    let dead_id = dead.id();
    let died = Settlement::nack(dead, Nack::dead_letter("rejected")).by("last");
    for row in probe.provider.settle(vec![died], soon()).await? {
        row?;
    }
    for (id, first) in [id, second].into_iter().zip(named) {
        let attempts = probe.provider.message_attempts(&queue, id, soon()).await?;
        let workers: Vec<_> = attempts.into_iter().map(|attempt| attempt.worker).collect();
        let last = (id == dead_id).then_some("last");
        let expected: Vec<_> = [Some(first), last].into_iter().flatten().map(|name| Some(name.to_owned())).collect();
        // A store may record no workers at all.
        ensure(workers.iter().all(Option::is_none) || workers == expected, || {
            format!("workers {workers:?}, not {expected:?}")
        })?;
    }
    Ok(())
}

pub(super) async fn l6_queues_with_one_id_have_failed_attempts_of_their_own(probe: &Probe<'_>) -> Check {
    let (queue, other) = (probe.queue("mine").await?, probe.queue("theirs").await?);
    let failed = |error: String| Nack::retry_after(Duration::ZERO).with_error(error);
    let id = probe.send(&queue, Message::new("one")).await?;
    probe.nack(probe.take(&queue, &probe.long()).await?, failed("mine".into())).await?;
    let mine = vec![(1, Some("mine".to_owned()))];
    // The same id may be sent to another queue.
    ensure_same("the id in another queue", probe.send(&other, Message::new("two").id(id)).await?, id)?;
    ensure_same("the failures in another queue", reported_attempts(probe, &other, id).await?, vec![])?;
    // One more than are kept, so that the oldest is dropped.
    for failure in 1..=KEPT_ATTEMPTS + 1 {
        probe.nack(probe.take(&other, &probe.long()).await?, failed(format!("theirs {failure}"))).await?;
    }
    ensure_same("the failures of the first", reported_attempts(probe, &queue, id).await?, mine.clone())?;
    let theirs: Vec<_> = (2..=KEPT_ATTEMPTS + 1).map(|n| (n, Some(format!("theirs {n}")))).collect();
    ensure_same("the failures of the second", reported_attempts(probe, &other, id).await?, theirs)?;

    let died = Nack::dead_letter("rejected").with_error("died");
    probe.nack(probe.take(&other, &probe.long()).await?, died).await?;
    ensure_same(
        "the failures after a dead letter in the other queue",
        reported_attempts(probe, &queue, id).await?,
        mine.clone(),
    )?;
    probe.provider.redrive_dead_letters(&other, &Redrive::default(), soon()).await?;
    ensure_same("the failures after a redrive", reported_attempts(probe, &other, id).await?, vec![])?;
    ensure_same(
        "the failures after a redrive in the other queue",
        reported_attempts(probe, &queue, id).await?,
        mine.clone(),
    )?;
    probe.nack(probe.take(&other, &probe.long()).await?, failed("again".into())).await?;
    probe.ack(probe.take(&other, &probe.long()).await?).await?;
    ensure_same(
        "the failures after an ack in the other queue",
        reported_attempts(probe, &queue, id).await?,
        mine.clone(),
    )?;
    probe.send(&other, Message::new("three").id(id)).await?;
    probe.nack(probe.take(&other, &probe.long()).await?, failed("purged".into())).await?;
    probe.provider.purge(&other, soon()).await?;
    ensure_same("the failures after a purge in the other queue", reported_attempts(probe, &queue, id).await?, mine)
}

pub(super) async fn l6_the_last_failed_attempts_are_kept(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("kept").await?;
    let id = probe.send(&queue, Message::new("one")).await?;
    let failures = KEPT_ATTEMPTS + 2;
    for failure in 1..=failures {
        let nack = if failure < failures { Nack::retry_after(Duration::ZERO) } else { Nack::dead_letter("rejected") };
        let message = probe.take(&queue, &probe.long()).await?;
        probe.nack(message, nack.with_error(format!("failure {failure}"))).await?;
        let oldest = failure.saturating_sub(KEPT_ATTEMPTS) + 1;
        let last: Vec<_> = (oldest..=failure).map(|failure| (failure, Some(format!("failure {failure}")))).collect();
        ensure_same("what is kept of the failures", reported_attempts(probe, &queue, id).await?, last)?;
    }
    Ok(())
}
