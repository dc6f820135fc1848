//! L1: a send answers the message's id only after the message is durable; a living dedup key yields one message.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use postrider_core::{ContentType, DeadLetters, Deadline, Feature, Message, MessagingService, Nack, Priority, Redrive};

use crate::probe::{Check, Probe, Stop, TIME_LIMIT, ensure, ensure_same, soon};

use super::l14_recovery::{restart, take_over_failures};

pub(super) async fn l1_an_accepted_message_can_be_received_by_another_worker(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("accepted").await?;
    let sent: HashSet<_> = probe.send_bodies(&queue, &["a", "b", "c", "d"]).await?.into_iter().collect();
    let other = probe.open().await?;
    let mut seen = HashSet::new();
    for _ in 0..sent.len() {
        let message = probe.take_by(&other, &queue, &probe.long()).await?;
        seen.insert(message.id());
        other.ack_message(&queue, message, soon()).await?;
    }
    ensure_same("what arrived", seen, sent)?;
    other.close(soon()).await?;
    probe.nothing(&queue, "everything was acknowledged").await
}

pub(super) async fn l1_a_message_arrives_whole(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("whole").await?;
    let body: Vec<u8> = (0..=255).collect();
    let mut message = Message::new(body.clone())
        .content_type(ContentType::from_static("application/x-postrider"))
        .header("traceparent", "00-aäß-\u{1F40E}")?
        .header("empty", "")?;
    if probe.offers(Feature::OrderByKey) {
        message = message.ordering_key("clé 7")?;
    }
    if probe.offers(Feature::Priority) {
        message = message.priority(Priority::HIGHEST);
    }
    let id = probe.send(&queue, message.clone()).await?;
    ensure_same("the answered id", id, message.id)?;
    let received = probe.take(&queue, &probe.long()).await?;
    ensure_same("the body", &received.message, &Bytes::from(body))?;
    let envelope = &received.envelope;
    ensure_same("the id", envelope.id, message.id)?;
    ensure_same("the queue", &envelope.queue, &queue)?;
    ensure_same("the content type", &envelope.content_type, &message.content_type)?;
    ensure_same("the headers", &envelope.headers, &message.headers)?;
    ensure_same("the ordering key", &envelope.ordering_key, &message.ordering_key)?;
    ensure_same("the priority", envelope.priority, message.priority)?;
    let receipt = received.receipt().to_string();
    let issuer = received.receipt().provider().to_owned();
    ensure_same("who issued the receipt", issuer.as_str(), probe.provider.provider_name())?;
    ensure(receipt.starts_with("pr1."), || format!("receipt '{receipt}' does not begin with pr1."))?;
    // A receipt parsed from its text settles like the original.
    drop(received.into_receipt());
    let receipt: postrider_core::ReceiptHandle = receipt.parse()?;
    probe.ack(receipt).await?;
    Ok(())
}

/// Header names that brokers, gateways and databases reserve.
const ODD_NAMES: [&str; 30] = [
    "x-tenant",
    "x-request-id",
    "X-Tenant",
    "x-death",
    "x-delivery-count",
    "x-delay",
    "x-match",
    "CC",
    "BCC",
    "cc",
    "traceparent",
    "Content-Type",
    "content-length",
    "Authorization",
    "id",
    "MessageId",
    "queue",
    "reply-to",
    "AWS.Trace",
    "Amazon.Trace",
    "tracestate",
    "baggage",
    "x-first-death-queue",
    "x-opt-delay",
    "x-pgmq-group",
    "content_type",
    "x-",
    "-",
    "__proto__",
    "postrider",
];

/// Values that look like other types than text.
const ODD_VALUES: [&str; 14] = [
    "0",
    "007",
    "-1",
    "1.50",
    "1e3",
    "12345678901234567890",
    "NaN",
    "true",
    "null",
    "{}",
    "[1]",
    "\"quoted\"",
    " a ",
    "%00",
];

pub(super) async fn l1_headers_come_back_whatever_they_are_called(probe: &Probe<'_>) -> Check {
    check_headers(probe, "headers", None).await
}

pub(super) async fn l1_headers_of_a_message_with_a_key_come_back(probe: &Probe<'_>) -> Check {
    check_headers(probe, "keyed_headers", Some("k")).await
}

async fn check_headers(probe: &Probe<'_>, tag: &str, key: Option<&str>) -> Check {
    let queue = probe.queue(tag).await?;
    let mut message = Message::new("one").header("n".repeat(128), "\u{1F40E} \u{7f}\u{1}\t\"\\ \r\n")?;
    message = message.header("long", "x".repeat(1024))?.header("empty", "")?;
    for (number, name) in ODD_NAMES.into_iter().enumerate() {
        message = message.header(name, format!("value {number}, which is \u{fc}"))?;
    }
    for (number, value) in ODD_VALUES.into_iter().enumerate() {
        message = message.header(format!("value{number}"), value)?;
    }
    if let Some(key) = key {
        message = message.ordering_key(key)?;
    }
    let headers = message.headers.clone();
    probe.send(&queue, message).await?;
    let first = probe.take(&queue, &probe.long()).await?;
    ensure_same("the headers", &first.envelope.headers, &headers)?;
    probe.nack(first, Nack::retry_after(Duration::ZERO)).await?;
    let second = probe.take(&queue, &probe.long()).await?;
    ensure_same("the headers after a retry", &second.envelope.headers, &headers)?;
    if !probe.offers(Feature::DeadLetters) {
        return Ok(probe.ack(second).await?);
    }
    probe.nack(second, Nack::dead_letter("rejected")).await?;
    let letters = probe.dead_letters(&queue).await?;
    ensure_same(
        "the headers of the dead letters",
        letters.iter().map(|letter| &letter.headers).collect(),
        vec![&headers],
    )?;
    probe.provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await?;
    let last = probe.take(&queue, &probe.long()).await?;
    ensure_same("the headers after a redrive", &last.envelope.headers, &headers)
}

pub(super) async fn l1_a_batch_is_accepted_row_by_row(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("rows").await?;
    ensure(probe.provider.send_batch(&queue, Vec::new(), soon()).await?.is_empty(), || {
        "an empty batch answered rows".into()
    })?;
    let too_large = probe.provider.capabilities().limits.max_body_bytes + 1;
    let batch = vec![Message::new("good"), Message::new(vec![0; too_large]), Message::new("also good")];
    let ids: Vec<_> = batch.iter().map(|message| message.id).collect();
    let rows = probe.provider.send_batch(&queue, batch, soon()).await?;
    ensure_same("the number of rows", rows.len(), 3)?;
    ensure(rows[1].is_err(), || "a body over the limit was accepted".into())?;
    for good in [0, 2] {
        match &rows[good] {
            Ok(id) => ensure_same("the answered id", *id, ids[good])?,
            Err(error) => return Err(Stop::Violation(format!("a good row failed with its neighbour: {error}"))),
        }
    }
    let _held = probe.take_all(&queue, 2, &probe.long()).await?;
    probe.nothing(&queue, "only two rows were accepted").await
}

pub(super) async fn l1_a_living_dedup_key_yields_one_message(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("dedup").await?;
    let other_queue = probe.queue("dedup_other").await?;
    let keyed = |body: &'static str| Message::new(body).dedup_key("order-7");
    let first = probe.send(&queue, keyed("first")?).await?;
    let waiting = probe.send(&queue, keyed("again while it waits")?).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    let leased = probe.send(&queue, keyed("again while it is leased")?).await?;
    probe.nack(message, Nack::retry_after(probe.unit)).await?;
    let retrying = probe.send(&queue, keyed("again while it retries")?).await?;
    ensure_same("the answered ids", [waiting, leased, retrying], [first; 3])?;
    let elsewhere = probe.send(&other_queue, keyed("another queue")?).await?;
    ensure(elsewhere != first, || "the key was taken in another queue too".into())?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the one message", message.message.clone(), Bytes::from("first"))?;
    probe.ack(message).await?;
    probe.nothing(&queue, "one message had the dedup key").await
}

pub(super) async fn l1_a_dedup_key_is_free_again_after_its_message(probe: &Probe<'_>) -> Check {
    if let Some(window) = probe.provider.capabilities().limits.dedup_window {
        return Err(Stop::NotExercised(format!(
            "a dedup key is held for {window:?} here, also after its message has ended"
        )));
    }
    let queue = probe.queue("dedup_free").await?;
    let first = probe.send(&queue, Message::new("1").dedup_key("k")?).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    probe.ack(message).await?;
    let second = probe.send(&queue, Message::new("2").dedup_key("k")?).await?;
    ensure(second != first, || "a key was still taken after its message was acknowledged".into())?;
    let message = probe.take(&queue, &probe.long()).await?;
    probe.nack(message, Nack::dead_letter("rejected")).await?;
    let third = probe.send(&queue, Message::new("3").dedup_key("k")?).await?;
    ensure(third != second, || "a key was still taken after its message died".into())?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the message", message.id(), third)
}

pub(super) async fn l1_concurrent_sends_with_one_dedup_key_yield_one_message(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("dedup_race").await?;
    let workers = [probe.open().await?, probe.open().await?];
    let mut sends = Vec::new();
    for n in 0..8 {
        let message = Message::new(format!("{n}")).dedup_key("k")?;
        sends.push(workers[n % 2].send_message(&queue, message, soon()));
    }
    let mut ids = HashSet::new();
    for answer in join_all(sends).await {
        ids.insert(answer?);
    }
    ensure_same("the number of ids answered", ids.len(), 1)?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure(ids.contains(&message.id()), || "another id than the answered one was delivered".into())?;
    probe.ack(message).await?;
    probe.nothing(&queue, "one message had the dedup key").await
}

pub(super) async fn l1_rows_of_one_batch_with_one_dedup_key_yield_one_message(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("dedup_batch").await?;
    let messages = vec![Message::new("1").dedup_key("k")?, Message::new("2"), Message::new("3").dedup_key("k")?];
    let ids = probe.send_all(&queue, messages).await?;
    ensure_same("the id answered to the second row with the key", ids[2], ids[0])?;
    let mut bodies: Vec<_> =
        probe.take_all(&queue, 2, &probe.long()).await?.into_iter().map(|message| message.into_parts().0).collect();
    bodies.sort();
    ensure_same("what arrived", bodies, vec![Bytes::from("1"), Bytes::from("2")])?;
    probe.nothing(&queue, "one message had the dedup key").await
}

pub(super) async fn l1_thousands_of_rows_go_through_in_one_call(probe: &Probe<'_>) -> Check {
    let rows = probe.rows;
    let queue = probe.queue("rows_thousands").await?;
    let messages = (0..rows).map(|n| Message::new(n.to_string())).collect();
    let deadline = Deadline::after(TIME_LIMIT * 10);
    let sent = probe.provider.send_batch(&queue, messages, deadline).await?;
    let sent = sent.into_iter().collect::<Result<HashSet<_>, _>>()?;
    ensure_same("the number of ids", sent.len(), rows)?;
    let received = probe.take_all(&queue, rows, &probe.long()).await?;
    let seen: HashSet<_> = received.iter().map(postrider_core::QueuedMessage::id).collect();
    ensure(seen == sent, || format!("{} of {rows} messages arrived", seen.len()))?;
    let acks = received.into_iter().map(postrider_core::Settlement::ack).collect();
    let acked = probe.provider.settle(acks, Deadline::after(TIME_LIMIT * 10)).await?;
    let failed = acked.iter().filter(|row| row.is_err()).count();
    ensure_same("the number of acks that failed", failed, 0)
}

pub(super) async fn l1_an_accepted_message_survives_a_restart(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("survives").await?;
    let sent: HashSet<_> = probe.send_bodies(&queue, &["a", "b", "c"]).await?.into_iter().collect();
    restart(probe).await?;
    let mut seen = HashSet::new();
    while seen.len() < sent.len() {
        let message = take_over_failures(probe, &queue).await?;
        seen.insert(message.id());
        drop(message.into_receipt());
    }
    ensure_same("what survived", seen, sent)
}
