//! L11: messages with the same key are handled one at a time, in send order; other keys are not blocked.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::try_join_all;
use postrider_core::{
    DeadLetters, Feature, Message, MessageId, MessagingService, Nack, Priority, QueueAdmin, QueueName, QueuedMessage,
    ReceiveOptions, Redrive, Support,
};

use crate::probe::{Check, LONG, Probe, Stop, TIME_LIMIT, ensure, ensure_same, soon, violation};

async fn send_keyed(probe: &Probe<'_>, queue: &QueueName, key: &str, bodies: &[&str]) -> Result<Vec<MessageId>, Stop> {
    let mut sent = Vec::new();
    for body in bodies {
        sent.push(probe.send(queue, Message::new((*body).to_owned()).ordering_key(key)?).await?);
    }
    Ok(sent)
}

fn body(message: &QueuedMessage) -> String {
    String::from_utf8_lossy(&message.message).into_owned()
}

pub(super) async fn l11_a_key_is_handled_one_at_a_time_and_in_send_order(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("in_order").await?;
    send_keyed(probe, &queue, "k", &["1", "2", "3"]).await?;
    for expected in ["1", "2", "3"] {
        let message = probe.take(&queue, &probe.long()).await?;
        ensure_same("the next message of the key", body(&message), expected.to_owned())?;
        probe.nothing(&queue, "a message of its key was being handled").await?;
        probe.ack(message).await?;
    }
    Ok(())
}

pub(super) async fn l11_a_retrying_message_holds_its_key(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("retrying").await?;
    send_keyed(probe, &queue, "k", &["1", "2"]).await?;
    for failures in 0..3 {
        let message = probe.take(&queue, &probe.long()).await?;
        ensure_same("the message after a failure", body(&message), "1".to_owned())?;
        let after = if failures == 0 { probe.unit } else { Duration::ZERO };
        probe.nack(message, Nack::retry_after(after)).await?;
    }
    for expected in ["1", "2"] {
        let message = probe.take(&queue, &probe.long()).await?;
        ensure_same("the message", body(&message), expected.to_owned())?;
        probe.ack(message).await?;
    }
    Ok(())
}

pub(super) async fn l11_a_lost_lease_holds_its_key(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("lost_lease").await?;
    send_keyed(probe, &queue, "k", &["1", "2"]).await?;
    drop(probe.take(&queue, &probe.short()).await?.into_receipt());
    let other = probe.open().await?;
    let message = probe.take_by(&other, &queue, &probe.long()).await?;
    ensure_same("the message after a lost lease", body(&message), "1".to_owned())?;
    other.nack_message(&queue, message, Nack::Release, soon()).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the message after a release", body(&message), "1".to_owned())?;
    probe.ack(message).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the message", body(&message), "2".to_owned())
}

pub(super) async fn l11_a_look_does_not_change_the_order_of_a_key(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("looked_at").await?;
    send_keyed(probe, &queue, "k", &["dead", "1", "2", "3"]).await?;
    let dead = probe.take(&queue, &probe.long()).await?;
    match probe.offers(Feature::DeadLetters) {
        true => probe.nack(dead, Nack::dead_letter("rejected")).await?,
        false => probe.ack(dead).await?,
    }
    for nack in [Nack::retry_after(Duration::ZERO), Nack::Release] {
        let seen = probe.provider.peek(&queue, 3, soon()).await?;
        let seen: Vec<_> = seen.iter().map(|peeked| String::from_utf8_lossy(&peeked.body)).collect();
        ensure(seen.iter().zip(["1", "2", "3"]).all(|(seen, expected)| seen == expected), || {
            format!("a peek at a key showed {seen:?}, not its first messages in order")
        })?;
        if probe.offers(Feature::DeadLetters) {
            ensure_same("the number of dead letters", probe.dead_letters(&queue).await?.len(), 1)?;
        }
        let message = probe.take(&queue, &probe.long()).await?;
        ensure_same("the message after a look", body(&message), "1".to_owned())?;
        probe.nack(message, nack).await?;
    }
    probe.provider.peek(&queue, 3, soon()).await?;
    // Its worker dies.
    drop(probe.take(&queue, &probe.short()).await?.into_receipt());
    for expected in ["1", "2", "3"] {
        let message = probe.take(&queue, &probe.long()).await?;
        ensure_same("the next message after a look", body(&message), expected.to_owned())?;
        probe.ack(message).await?;
    }
    Ok(())
}

pub(super) async fn l11_other_keys_are_not_held_up(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("others").await?;
    // One key is held by a lease, one by a retry, and one by a delay where there are delays.
    send_keyed(probe, &queue, "retrying", &["r1", "r2"]).await?;
    let retrying = probe.take(&queue, &probe.long()).await?;
    probe.nack(retrying, Nack::retry_after(LONG)).await?;
    send_keyed(probe, &queue, "held", &["h1", "h2"]).await?;
    let held = probe.take(&queue, &probe.long()).await?;
    if probe.offers(Feature::Delay) {
        probe.send(&queue, Message::new("d1").ordering_key("delayed")?.delay(LONG)).await?;
        send_keyed(probe, &queue, "delayed", &["d2"]).await?;
    }
    // Where keys share partitions, a free key may share one with a held key; of many keys, some do not.
    let is_native = *probe.provider.capabilities().support(Feature::OrderByKey) == Support::Native;
    let free: Vec<_> = (0..16).map(|n| format!("free {n}")).collect();
    for key in &free {
        send_keyed(probe, &queue, key, &[key]).await?;
    }
    let wanted = if is_native { free.len() } else { 1 };
    let seen: Vec<_> = probe.take_all(&queue, wanted, &probe.long()).await?.iter().map(body).collect();
    ensure(seen.iter().all(|body| free.contains(body)), || format!("a held key was overtaken: {seen:?}"))?;
    probe.ack(held).await?;
    Ok(())
}

pub(super) async fn l11_a_batch_has_one_message_of_a_key(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("one_batch").await?;
    send_keyed(probe, &queue, "k", &["1", "2", "3"]).await?;
    let options = ReceiveOptions::batch(10).visibility(LONG).wait(TIME_LIMIT);
    let batch = probe.provider.receive_messages(&queue, &options, soon()).await?;
    ensure_same("what one batch has of a key", batch.iter().map(body).collect(), vec!["1".to_owned()])
}

pub(super) async fn l11_priority_does_not_overtake_within_a_key(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("urgent").await?;
    for (text, priority) in [("1", Priority::LOWEST), ("2", Priority::HIGHEST)] {
        probe.send(&queue, Message::new(text).ordering_key("k")?.priority(priority)).await?;
    }
    for expected in ["1", "2"] {
        let message = probe.take(&queue, &probe.long()).await?;
        ensure_same("the next message of the key", body(&message), expected.to_owned())?;
        probe.ack(message).await?;
    }
    Ok(())
}

pub(super) async fn l11_a_dead_head_frees_its_key(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("dead_head").await?;
    send_keyed(probe, &queue, "k", &["1", "2", "3"]).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    probe.nack(message, Nack::dead_letter("rejected")).await?;
    let message = probe.take(&queue, &probe.short()).await?;
    ensure_same("the message after a dead one", body(&message), "2".to_owned())?;
    // Its worker dies, and the limit dead-letters it on the next read.
    drop(message.into_receipt());
    let message = probe.take(&queue, &probe.long().max_receive_count(1)).await?;
    ensure_same("the message after a poisonous one", body(&message), "3".to_owned())
}

pub(super) async fn l11_a_redriven_message_joins_the_tail_of_its_key(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("tail").await?;
    send_keyed(probe, &queue, "k", &["1", "2", "3"]).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    probe.nack(message, Nack::dead_letter("rejected")).await?;
    probe.provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await?;
    for expected in ["2", "3", "1"] {
        let message = probe.take(&queue, &probe.long()).await?;
        ensure_same("the next message of the key", body(&message), expected.to_owned())?;
        probe.nothing(&queue, "a message of its key was being handled").await?;
        probe.ack(message).await?;
    }
    Ok(())
}

pub(super) async fn l11_concurrent_workers_keep_the_order_of_every_key(probe: &Probe<'_>) -> Check {
    const KEYS: usize = 5;
    const EACH: usize = 12;
    let queue = probe.queue("workers").await?;
    let mut messages = Vec::new();
    for n in 0..EACH {
        for key in 0..KEYS {
            messages.push(Message::new(format!("{n}")).ordering_key(format!("k{key}"))?);
        }
    }
    probe.send_all(&queue, messages).await?;
    // For each key the last acknowledged number, and whether a message of it is leased.
    let keys: Mutex<HashMap<String, (i64, bool)>> = Mutex::new(HashMap::new());
    let done = Mutex::new(0);
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(probe.open().await?);
    }
    let end = tokio::time::Instant::now() + TIME_LIMIT * 4;
    try_join_all(workers.iter().map(|worker| async {
        let options = ReceiveOptions::batch(4).visibility(LONG).wait(probe.unit / 4);
        while *lock(&done) < KEYS * EACH {
            if tokio::time::Instant::now() > end {
                return violation("the keys were not drained in time");
            }
            for message in worker.receive_messages(&queue, &options, soon()).await? {
                let key = message.envelope.ordering_key.as_ref().map(ToString::to_string).unwrap_or_default();
                let number: i64 = body(&message).parse().unwrap_or(-1);
                let (last, busy) =
                    std::mem::replace(lock(&keys).entry(key.clone()).or_insert((-1, false)), (number, true));
                ensure(!busy, || format!("two messages of key {key} were leased at once"))?;
                ensure_same("the next number of a key", number, last + 1)?;
                tokio::task::yield_now().await;
                lock(&keys).insert(key, (number, false));
                worker.ack_message(&queue, message, soon()).await?;
                *lock(&done) += 1;
            }
        }
        Ok(())
    }))
    .await?;
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
