//! L13: what a provider offers works, what it refuses fails when it is used, and nothing is silently ignored.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use postrider_core::{
    Deadline, Feature, LiveState, Measured, Message, MessagingError, MessagingService, Nack, Priority, QueueAdmin,
    QueueStats, ReceiveOptions, Settlement, Support,
};

use crate::probe::{Check, LONG, Probe, TIME_LIMIT, ensure, ensure_same, soon, violation};

/// Upper bound of attempts at a call that a busy machine can spoil.
const TRIES: u32 = 10;

fn ensure_refused<T: std::fmt::Debug>(feature: Feature, result: Result<T, MessagingError>) -> Check {
    match result {
        Err(MessagingError::NotSupported { feature: named, .. }) if named == feature => Ok(()),
        other => violation(format!("{feature} is refused, but using it answered {other:?}")),
    }
}

pub(super) async fn l13_a_refused_feature_fails_when_it_is_used(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("refused").await?;
    let provider = &probe.provider;
    let message = || Message::new("asks for too much");
    let asking = [
        (Feature::Dedup, message().dedup_key("k")?),
        (Feature::OrderByKey, message().ordering_key("k")?),
        (Feature::Delay, message().delay(LONG)),
        (Feature::Expiry, message().expires_in(LONG)),
        (Feature::Priority, message().priority(Priority::HIGHEST)),
    ];
    for (feature, message) in asking {
        if !probe.offers(feature) {
            ensure_refused(feature, provider.send_message(&queue, message, soon()).await)?;
        }
    }
    if !probe.offers(Feature::Pause) {
        ensure_refused(Feature::Pause, provider.pause(&queue, soon()).await)?;
    }
    if !probe.offers(Feature::Peek) {
        ensure_refused(Feature::Peek, provider.peek(&queue, 1, soon()).await)?;
    }
    if !probe.offers(Feature::AttemptHistory) {
        let id = postrider_core::MessageId::generate();
        ensure_refused(Feature::AttemptHistory, provider.message_attempts(&queue, id, soon()).await)?;
    }
    if !probe.offers(Feature::Archive) {
        let (id, query) = (postrider_core::MessageId::generate(), postrider_core::ArchiveQuery::default());
        ensure_refused(Feature::Archive, provider.archived(&queue, &query, soon()).await)?;
        ensure_refused(Feature::Archive, provider.send_again(&queue, id, soon()).await)?;
    }
    if !probe.offers(Feature::WaitingMessages) {
        let id = postrider_core::MessageId::generate();
        let query = postrider_core::PeekQuery::default();
        ensure_refused(Feature::WaitingMessages, provider.peek_page(&queue, &query, soon()).await)?;
        ensure_refused(Feature::WaitingMessages, provider.deliver_now(&queue, id, soon()).await)?;
        let death = provider.dead_letter_waiting(&queue, id, "by hand".into(), None, soon());
        ensure_refused(Feature::WaitingMessages, death.await)?;
        ensure_refused(Feature::WaitingMessages, provider.delete_waiting(&queue, id, soon()).await)?;
    }
    if !probe.offers(Feature::WakeUp) {
        ensure_refused(Feature::WakeUp, provider.subscribe(&queue, soon()).await)?;
    }
    if !probe.offers(Feature::ReceiveById) {
        let id = postrider_core::MessageId::generate();
        ensure_refused(Feature::ReceiveById, provider.receive_by_id(&queue, id, &probe.long(), soon()).await)?;
    }
    probe.nothing(&queue, "everything that was sent was refused").await?;
    provider.health_check(soon()).await?;
    Ok(())
}

pub(super) async fn l13_a_wait_that_the_deadline_ends_finds_nothing(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("patience").await?;
    for is_long in [false, true] {
        // On a busy machine the first query alone can use up the deadline, which shows nothing. A correct provider passes
        // once the time suffices; a broken one never does.
        let (mut wait, mut time, mut answer) = (LONG, probe.unit, Ok(Vec::new()));
        for tries in 1..=TRIES {
            time = probe.unit * tries;
            wait = if is_long { LONG } else { time };
            let options = probe.long().wait(wait);
            answer = probe.provider.receive_messages(&queue, &options, Deadline::after(time)).await;
            if !matches!(answer, Err(MessagingError::OutcomeUnknown { .. } | MessagingError::DeadlineExceeded { .. })) {
                break;
            }
        }
        ensure(matches!(&answer, Ok(messages) if messages.is_empty()), || {
            format!("a wait of {wait:?} under a deadline of {time:?}, on an empty queue, answered {answer:?}")
        })?;
    }
    Ok(())
}

pub(super) async fn l13_limits_are_kept(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("limits").await?;
    let limits = probe.provider.capabilities().limits.clone();
    let whole = Bytes::from(vec![b'x'; limits.max_body_bytes]);
    probe.send(&queue, Message::new(whole.clone())).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure(message.message == whole, || "a body of the largest size arrived changed".into())?;
    probe.ack(message).await?;
    let long = limits.max_delay.saturating_add(limits.time_resolution + Duration::from_secs(1));
    let mut too_much = vec![
        ("a body over the limit", Message::new(vec![0; limits.max_body_bytes + 1])),
        ("headers over the limit", Message::new("").header("h", "x".repeat(limits.max_header_bytes + 1))?),
    ];
    if probe.offers(Feature::Delay) {
        too_much.push(("a delay over the limit", Message::new("").delay(long)));
    }
    for (what, message) in too_much {
        let answer = probe.provider.send_message(&queue, message, soon()).await;
        ensure(matches!(answer, Err(MessagingError::InvalidInput { .. })), || format!("{what} answered {answer:?}"))?;
    }
    probe.nothing(&queue, "everything that was sent was refused").await
}

pub(super) async fn l13_zeros_and_nonsense_are_refused(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("nonsense").await?;
    probe.send(&queue, Message::new("one")).await?;
    let nonsense = [
        ReceiveOptions::batch(0),
        ReceiveOptions::default().visibility(Duration::ZERO),
        ReceiveOptions::default().visibility(Duration::MAX),
        ReceiveOptions::default().max_receive_count(0),
    ];
    for options in nonsense {
        let answer = probe.provider.receive_messages(&queue, &options, soon()).await;
        ensure(matches!(answer, Err(MessagingError::InvalidInput { .. })), || {
            format!("{options:?} answered {answer:?}")
        })?;
    }
    let message = probe.take(&queue, &probe.long()).await?;
    for extension in [Duration::ZERO, Duration::MAX].into_iter().filter(|_| probe.offers(Feature::ExtendLease)) {
        let answer = probe.provider.extend_visibility(&queue, message.receipt(), extension, soon()).await;
        ensure(answer.is_err(), || format!("an extension of {extension:?} was accepted"))?;
    }
    let forever = probe.nack(message.receipt().clone(), Nack::retry_after(Duration::MAX)).await;
    ensure(forever.is_err(), || "a retry that never comes was accepted".into())?;
    let unnamed = probe.nack(message.receipt().clone(), Nack::dead_letter("")).await;
    ensure(unnamed.is_err(), || "a dead-lettering without a reason was accepted".into())?;
    // The message and its lease are unchanged.
    ensure_same("the delivery", message.receive_count(), 1)?;
    probe.ack(message).await?;
    ensure_same("the dead letters", probe.dead_letters(&queue).await?.len(), 0)
}

pub(super) async fn l13_a_missing_queue_reads_like_an_empty_one(probe: &Probe<'_>) -> Check {
    let missing = probe.unmade_queue("missing")?;
    let received = probe.provider.receive_messages(&missing, &probe.long(), soon()).await?;
    ensure(received.is_empty(), || "a queue that does not exist delivered a message".into())?;
    ensure_same("the dead letters", probe.dead_letters(&missing).await?.len(), 0)?;
    let stats = probe.provider.queue_stats(&missing, soon()).await?;
    ensure_same("the ready messages", stats.ready.value().unwrap_or(0), 0)?;
    let report = probe.provider.verify_queues(std::slice::from_ref(&missing), soon()).await?;
    ensure_same("the missing queues", report.missing, vec![missing])
}

pub(super) async fn l13_priority_is_served_first_and_none_is_starved(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("priority").await?;
    let with = |priority| Ok::<_, MessagingError>(Message::new("x").priority(Priority::new(priority)?));
    let low = probe.send(&queue, with(1)?).await?;
    probe.send(&queue, with(4)?).await?;
    let urgent = probe.send(&queue, with(9)?).await?;
    let first = probe.take(&queue, &probe.long()).await?;
    ensure_same("the first message", first.id(), urgent)?;
    probe.ack(first).await?;
    // Urgent messages keep coming; the low one must come too.
    for served in 0.. {
        ensure(served < 200, || "a low priority was still waiting after 200 urgent messages".into())?;
        probe.send(&queue, with(9)?).await?;
        probe.send(&queue, with(9)?).await?;
        let message = probe.take(&queue, &probe.long()).await?;
        let is_low = message.id() == low;
        probe.ack(message).await?;
        if is_low {
            break;
        }
    }
    Ok(())
}

pub(super) async fn l13_a_paused_queue_hands_nothing_out(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("pause").await?;
    probe.send(&queue, Message::new("before")).await?;
    let held = probe.take(&queue, &probe.long()).await?;
    probe.provider.pause(&queue, soon()).await?;
    let id = probe.send(&queue, Message::new("during")).await?;
    probe.ack(held).await?;
    probe.nothing_within(&queue, probe.unit, "the queue was paused").await?;
    let other = probe.open().await?;
    let seen = other.receive_messages(&queue, &probe.long(), soon()).await?;
    ensure(seen.is_empty(), || "another worker was given a message of a paused queue".into())?;
    ensure(other.queue_stats(&queue, soon()).await?.paused, || "the stats do not say that it is paused".into())?;
    probe.provider.resume(&queue, soon()).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the message", message.id(), id)?;

    let unmade = probe.unmade_queue("pause_unmade")?;
    probe.provider.pause(&unmade, soon()).await?;
    let stats = probe.provider.queue_stats(&unmade, soon()).await?;
    ensure(stats.paused, || "the stats of a queue that was paused before it was made do not say so".into())?;
    ensure_same("what is in it", stats.message_count().unwrap_or(0), 0)?;
    probe.provider.resume(&unmade, soon()).await?;
    ensure(!probe.provider.queue_stats(&unmade, soon()).await?.paused, || "it is paused for ever".into())
}

pub(super) async fn l13_peek_leases_nothing(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("peek").await?;
    let ids = probe.send_bodies(&queue, &["a", "b", "c"]).await?;
    let seen = probe.provider.peek(&queue, 2, soon()).await?;
    ensure(seen.len() <= 2, || format!("a peek at two showed {}", seen.len()))?;
    let shown: Vec<_> = seen.iter().map(|peeked| peeked.id).collect();
    if *probe.provider.capabilities().support(Feature::Peek) == Support::Native {
        ensure_same("what a peek shows, in send order", shown, ids[..2].to_vec())?;
        ensure_same("the first body", seen[0].body.clone(), Bytes::from("a"))?;
    } else {
        ensure(shown.iter().all(|id| ids.contains(id)), || "a peek showed what was never sent".into())?;
    }
    for peeked in seen {
        ensure_same("the state", peeked.state, LiveState::Pending)?;
    }
    // Some brokers can peek only by a receive and a return: the message is hidden for a moment and counted.
    let received = probe.take_all(&queue, 3, &probe.long()).await?;
    ensure_same(
        "what can be received",
        received.iter().map(postrider_core::QueuedMessage::id).collect::<HashSet<_>>(),
        ids.into_iter().collect(),
    )
}

pub(super) async fn l13_one_message_can_be_received_by_its_id(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("by_id").await?;
    let ids = probe.send_bodies(&queue, &["a", "b", "c"]).await?;
    let by_id = async |id, options: &ReceiveOptions| probe.provider.receive_by_id(&queue, id, options, soon()).await;
    let Some(message) = by_id(ids[1], &probe.long()).await? else {
        return violation("a message that was ready could not be received by its id");
    };
    ensure_same("the body", message.message.clone(), Bytes::from("b"))?;
    ensure_same("the delivery", message.receive_count(), 1)?;
    ensure(by_id(ids[1], &probe.long()).await?.is_none(), || "it was leased a second time by its id".into())?;
    probe.ack(message).await?;
    ensure(by_id(ids[1], &probe.long()).await?.is_none(), || "it was received after it was acknowledged".into())?;
    if probe.offers(Feature::Delay) {
        let later = probe.send(&queue, Message::new("later").delay(LONG)).await?;
        ensure(by_id(later, &probe.long()).await?.is_none(), || "a delayed message was received by its id".into())?;
    }
    if probe.offers(Feature::OrderByKey) {
        probe.send(&queue, Message::new("1").ordering_key("k")?).await?;
        let second = probe.send(&queue, Message::new("2").ordering_key("k")?).await?;
        ensure(by_id(second, &probe.long()).await?.is_none(), || "a key was overtaken by id".into())?;
    }
    Ok(())
}

pub(super) async fn l13_a_hint_follows_a_send(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("hint").await?;
    let mut hints = probe.provider.subscribe(&queue, soon()).await?;
    let sender = probe.open().await?;
    sender.send_message(&queue, Message::new("one"), soon()).await?;
    match tokio::time::timeout(TIME_LIMIT, hints.next()).await {
        Ok(Some(())) => Ok(()),
        Ok(None) => violation("the stream of hints ended"),
        Err(_) => violation(format!("no hint came within {TIME_LIMIT:?} of a send")),
    }
}

pub(super) async fn l13_stats_tell_what_the_queue_holds(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("stats").await?;
    probe.send_bodies(&queue, &["a", "b", "c", "d"]).await?;
    let mut expected = [3, 1, 0, 1];
    let held = probe.take(&queue, &probe.long()).await?;
    let dead = probe.take(&queue, &probe.long()).await?;
    probe.nack(dead, Nack::dead_letter("rejected")).await?;
    if probe.offers(Feature::Delay) {
        probe.send(&queue, Message::new("later").delay(LONG)).await?;
        expected[2] = 1;
    }
    expected[0] = 2;
    let numbers = |stats: &QueueStats| [stats.ready, stats.in_flight, stats.delayed, stats.dead];
    let is_wrong = |seen: &Measured<u64>, expected: u64| seen.value().is_some_and(|seen| seen != expected);
    // Exact numbers must be right at once; approximate ones eventually.
    let first = probe.provider.queue_stats(&queue, soon()).await?;
    for (seen, expected) in numbers(&first).iter().zip(expected) {
        ensure(!(matches!(seen, Measured::Exact(_)) && is_wrong(seen, expected)), || {
            format!("ready, in flight, delayed, dead are {:?}, not {expected:?}", numbers(&first))
        })?;
    }
    let is_right = |stats: &QueueStats| {
        let has_age = !matches!(stats.oldest_age, Measured::Exact(None) | Measured::Approximate(None));
        has_age && !numbers(stats).iter().zip(expected).any(|(seen, expected)| is_wrong(seen, expected))
    };
    probe.eventually(|| probe.provider.queue_stats(&queue, soon()), is_right).await?;
    probe.ack(held).await?;
    Ok(())
}

pub(super) async fn l13_purge_and_queue_lists_tell_the_truth(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("purge").await?;
    let unmade = probe.unmade_queue("unmade")?;
    probe.send_bodies(&queue, &["a", "b", "c"]).await?;
    let held = probe.take(&queue, &probe.long()).await?;
    let dead = probe.take(&queue, &probe.long()).await?;
    probe.nack(dead, Nack::dead_letter("rejected")).await?;
    ensure_same("the number purged", probe.provider.purge(&queue, soon()).await?, 1)?;
    probe.nothing(&queue, "the queue was purged").await?;
    ensure_same("the dead letters after a purge of the queue", probe.dead_letters(&queue).await?.len(), 1)?;
    // The purge left the leased message.
    probe.ack(held).await?;
    let listed = probe.eventually(|| probe.provider.list_queues(soon()), |listed| listed.contains(&queue)).await?;
    ensure(!listed.contains(&unmade), || format!("'{unmade}' is listed and was never made"))?;
    let report = probe.provider.verify_queues(&[queue.clone(), unmade.clone()], soon()).await?;
    ensure_same("the health report", (report.healthy, report.missing), (vec![queue.clone()], vec![unmade]))?;
    let apart = probe.provider.delete_queue(&queue.dead_letters(), soon()).await;
    ensure(matches!(apart, Err(MessagingError::InvalidInput { .. })), || {
        format!("deleting a dead-letter queue by itself answered {apart:?}")
    })?;
    probe.provider.delete_queue(&queue, soon()).await?;
    ensure_same("the dead letters after the queue was deleted", probe.dead_letters(&queue).await?.len(), 0)?;
    probe.eventually(|| probe.provider.list_queues(soon()), |listed| !listed.contains(&queue)).await?;
    Ok(())
}

pub(super) async fn l13_settle_and_receive_does_both(probe: &Probe<'_>) -> Check {
    let queues = [probe.queue("both_a").await?, probe.queue("both_b").await?];
    let first = probe.send(&queues[0], Message::new("1")).await?;
    let message = probe.take(&queues[0], &probe.long()).await?;
    probe.send(&queues[1], Message::new("2")).await?;
    let options = ReceiveOptions::batch(10).visibility(LONG).wait(TIME_LIMIT);
    let settlements = vec![Settlement::ack(message)];
    let both = probe.provider.settle_and_receive(settlements, &queues, &options, soon()).await?;
    for row in both.settled {
        row?;
    }
    let received = both.received?;
    ensure_same("the number received", received.len(), 1)?;
    ensure_same("the queue", &received[0].envelope.queue, &queues[1])?;
    probe.nothing(&queues[0], &format!("message {first} was acknowledged")).await
}

pub(super) async fn l13_an_emulation_names_its_cost(probe: &Probe<'_>) -> Check {
    let name = probe.provider.provider_name();
    ensure_same("whose capabilities they are", probe.provider.capabilities().provider(), name)?;
    for (feature, support) in probe.provider.capabilities().iter() {
        let said = match support {
            Support::Native => continue,
            Support::Emulated { cost } => cost,
            Support::Refused { why } => why,
        };
        ensure(!said.trim().is_empty(), || format!("{feature} is {support:?} without a text"))?;
    }
    Ok(())
}

pub(super) async fn l13_a_receive_brings_at_most_what_was_asked_for(probe: &Probe<'_>) -> Check {
    let queues = [probe.queue("most_a").await?, probe.queue("most_b").await?];
    for queue in &queues {
        probe.send_bodies(queue, &["1", "2", "3", "4", "5"]).await?;
    }
    let options = ReceiveOptions::batch(3).visibility(LONG).wait(TIME_LIMIT);
    let received = probe.provider.receive_messages(&queues[0], &options, soon()).await?;
    ensure((1..=3).contains(&received.len()), || format!("a receive of at most 3 returned {}", received.len()))?;
    let both = probe.provider.settle_and_receive(Vec::new(), &queues, &options, soon()).await?.received?;
    ensure((1..=3).contains(&both.len()), || format!("a receive of at most 3 from two queues returned {}", both.len()))
}

pub(super) async fn l13_a_wait_ends_with_the_first_message(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("first").await?;
    let sender = probe.open().await?;
    let options = ReceiveOptions::batch(10).visibility(LONG).wait(TIME_LIMIT * 2);
    let before = tokio::time::Instant::now();
    let receive = probe.provider.receive_messages(&queue, &options, Deadline::never());
    let send = async {
        tokio::task::yield_now().await;
        sender.send_message(&queue, Message::new("one"), soon()).await
    };
    let (received, sent) = futures_util::future::join(receive, send).await;
    sent?;
    ensure_same("the number received", received?.len(), 1)?;
    let waited = before.elapsed();
    ensure(waited < TIME_LIMIT, || format!("a receive went on waiting for {waited:?} although a message was there"))
}

pub(super) async fn l13_a_passed_deadline_does_nothing(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("deadline").await?;
    let passed = Deadline::after(Duration::ZERO);
    let send = probe.provider.send_message(&queue, Message::new("one"), passed).await;
    ensure(matches!(send, Err(MessagingError::DeadlineExceeded { .. })), || format!("a send answered {send:?}"))?;
    probe.nothing(&queue, "its sender's deadline had passed before the call").await?;
    probe.send(&queue, Message::new("two")).await?;
    let receive = probe.provider.receive_messages(&queue, &probe.long(), passed).await;
    ensure(matches!(receive, Err(MessagingError::DeadlineExceeded { .. })), || {
        format!("a receive answered {receive:?}")
    })?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the delivery", message.receive_count(), 1)
}
