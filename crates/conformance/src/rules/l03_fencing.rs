//! L3: a token ends with its lease. Using it afterwards changes nothing and returns `VisibilityExpired`.

use std::slice;
use std::time::Duration;

use postrider_core::{
    Feature, LeaseToken, Message, MessagingError, MessagingService, Nack, NativeRef, QueueName, ReceiptHandle,
    ReceiveOptions, RowResults, Settlement,
};

use crate::probe::{Check, LONG, Probe, Stop, ensure, ensure_expired, ensure_same, soon, violation};

/// Tries every use of a receipt whose lease is over.
async fn every_use_is_expired(probe: &Probe<'_>, receipt: &ReceiptHandle, when: &str) -> Check {
    let queue = receipt.queue();
    let ack = probe.ack(receipt.clone()).await;
    ensure_expired(&format!("an ack {when}"), ack)?;
    for nack in [Nack::retry_after(LONG), Nack::Release, Nack::dead_letter("late")] {
        let text = format!("{nack:?} {when}");
        ensure_expired(&text, probe.nack(receipt.clone(), nack).await)?;
    }
    if !probe.offers(Feature::ExtendLease) {
        return Ok(());
    }
    let extend = probe.provider.extend_visibility(queue, receipt, LONG, soon()).await;
    ensure_expired(&format!("an extend {when}"), extend)
}

pub(super) async fn l3_a_late_settle_changes_nothing_for_the_new_holder(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("late").await?;
    probe.send(&queue, Message::new("one")).await?;
    let late = probe.take(&queue, &probe.short()).await?.into_receipt();
    let other = probe.open().await?;
    let held = probe.take_by(&other, &queue, &probe.long()).await?;
    every_use_is_expired(probe, &late, "by a late worker, after another had received the message").await?;
    probe.nothing(&queue, "its new holder had not settled it").await?;
    ensure_same("the dead letters", probe.dead_letters(&queue).await?.len(), 0)?;
    other
        .ack_message(&queue, held, soon())
        .await
        .map_err(|error| Stop::Violation(format!("the new holder's ack failed after a late settle: {error}")))?;
    probe.nothing(&queue, "it was acknowledged").await
}

pub(super) async fn l3_a_lease_that_ran_out_is_over_although_nobody_took_the_message(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("ran_out").await?;
    let other_queue = probe.queue("ran_out_clock").await?;
    probe.send(&queue, Message::new("one")).await?;
    let message = probe.take(&queue, &probe.short()).await?;
    let (delivery, receipt) = (message.receive_count(), message.into_receipt());
    // A second lease, taken later and seen to expire, shows by the store's own clock that the first has expired too.
    probe.send(&other_queue, Message::new("clock")).await?;
    drop(probe.take(&other_queue, &probe.short()).await?.into_receipt());
    drop(probe.take(&other_queue, &probe.long()).await?.into_receipt());
    every_use_is_expired(probe, &receipt, "after the lease had run out").await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the delivery", message.receive_count(), delivery + 1)?;
    probe.ack(message).await?;
    Ok(())
}

pub(super) async fn l3_a_settled_lease_is_over(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("settled").await?;
    let endings = [None, Some(Nack::retry_after(LONG)), Some(Nack::Release), Some(Nack::dead_letter("over"))];
    for ending in endings {
        probe.send(&queue, Message::new("one")).await?;
        let receipt = probe.take(&queue, &probe.long()).await?.into_receipt();
        let how = ending.as_ref().map_or("an ack".to_owned(), |nack| format!("{nack:?}"));
        let text = format!("after it was settled by {how}");
        let released = ending == Some(Nack::Release);
        match ending {
            None => probe.ack(receipt.clone()).await?,
            Some(nack) => probe.nack(receipt.clone(), nack).await?,
        }
        every_use_is_expired(probe, &receipt, &text).await?;
        if released {
            let message = probe.take(&queue, &probe.long()).await?;
            probe.ack(message).await?;
        }
    }
    ensure_same("the dead letters", probe.dead_letters(&queue).await?.len(), 1)
}

pub(super) async fn l3_a_receipt_of_another_queue_or_provider_is_refused(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("mine").await?;
    let other_queue = probe.queue("theirs").await?;
    probe.send(&queue, Message::new("mine")).await?;
    probe.send(&other_queue, Message::new("theirs")).await?;
    let receipt = probe.take(&queue, &probe.long()).await?.into_receipt();
    let theirs = probe.take(&other_queue, &probe.long()).await?.into_receipt();

    refused("another queue", probe.provider.ack_message(&other_queue, receipt.clone(), soon()).await)?;
    refused("another queue", probe.provider.extend_visibility(&other_queue, &receipt, LONG, soon()).await)?;
    let rename = |provider: &'static str, queue, token, native| {
        ReceiptHandle::new(provider, queue, receipt.message_id(), token, native)
    };
    let name = probe.provider.provider_name();
    let (token, native) = (receipt.token(), receipt.native().clone());
    let forged = [
        ("another provider", rename("elsewhere", queue.clone(), token, native.clone())),
        ("another queue's name", rename(name, other_queue.clone(), token, native.clone())),
        ("a made-up token", rename(name, queue.clone(), LeaseToken::generate(), native.clone())),
        ("a made-up row", rename(name, queue.clone(), token, NativeRef::Row(u64::MAX))),
        ("a made-up handle", rename(name, queue.clone(), token, NativeRef::Handle(b"made up".as_slice().into()))),
    ];
    for (what, forged) in forged {
        let settlement = vec![Settlement::ack(forged.clone())];
        let row = probe.provider.settle(settlement, soon()).await?.into_iter().next();
        refused(what, row.unwrap_or_else(|| Err(MessagingError::invalid("rows", "none was answered"))))?;
        refused(what, probe.provider.extend_visibility(forged.queue(), &forged, LONG, soon()).await)?;
    }
    let text = receipt.to_string();
    ensure(text[..text.len() - 1].parse::<ReceiptHandle>().is_err(), || "a truncated receipt was read".into())?;
    probe.nothing(&queue, "its lease was valid").await?;
    probe.ack(receipt).await?;
    probe.ack(theirs).await?;
    Ok(())
}

fn refused<T>(what: &str, result: Result<T, MessagingError>) -> Check {
    match result {
        Err(MessagingError::InvalidReceipt { .. } | MessagingError::VisibilityExpired { .. }) => Ok(()),
        Err(other) => violation(format!("a receipt with {what} answered '{other}'")),
        Ok(_) => violation(format!("a receipt with {what} was accepted")),
    }
}

pub(super) async fn l3_a_receipt_survives_an_extend(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("survives").await?;
    probe.send(&queue, Message::new("one")).await?;
    let receipt = probe.take(&queue, &probe.long()).await?.into_receipt();
    for _ in 0..3 {
        probe.provider.extend_visibility(&queue, &receipt, LONG, soon()).await?;
    }
    probe.ack(receipt).await?;
    probe.nothing(&queue, "it was acknowledged").await
}

pub(super) async fn l3_one_bad_row_does_not_spoil_a_settle(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("rows").await?;
    probe.send_bodies(&queue, &["a", "b", "c", "d"]).await?;
    let receipts: Vec<_> = probe
        .take_all(&queue, 4, &probe.long())
        .await?
        .into_iter()
        .map(postrider_core::QueuedMessage::into_receipt)
        .collect();
    probe.ack(receipts[1].clone()).await?;
    let mixed = vec![
        Settlement::ack(receipts[0].clone()),
        Settlement::ack(receipts[1].clone()),
        Settlement::nack(receipts[2].clone(), Nack::retry_after(LONG)),
        Settlement::nack(receipts[3].clone(), Nack::dead_letter("mixed")),
    ];
    let rows = probe.provider.settle(mixed, soon()).await?;
    ensure_same("the number of rows", rows.len(), 4)?;
    for (row, result) in rows.into_iter().enumerate() {
        match row {
            1 => ensure_expired("the row that was settled before", result)?,
            _ => result.map_err(|error| Stop::Violation(format!("row {row} failed with its neighbour: {error}")))?,
        }
    }
    probe.nothing(&queue, "all four were settled").await?;
    let dead = probe.dead_letters(&queue).await?;
    ensure_same("the dead letters", dead.iter().map(|letter| letter.id).collect(), vec![receipts[3].message_id()])
}

pub(super) async fn l3_one_receipt_settles_once_within_a_batch(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("same_batch").await?;
    probe.send(&queue, Message::new("one")).await?;
    let receipt = probe.take(&queue, &probe.long()).await?.into_receipt();
    let twice = vec![
        Settlement::nack(receipt.clone(), Nack::dead_letter("first")),
        Settlement::ack(receipt.clone()),
        Settlement::nack(receipt, Nack::dead_letter("third")),
    ];
    let rows = probe.provider.settle(twice, soon()).await?;
    ensure_same("which rows were accepted", rows.iter().map(Result::is_ok).collect(), vec![true, false, false])?;
    let dead = probe.dead_letters(&queue).await?;
    ensure_same("the dead letters' reasons", dead.iter().map(|letter| letter.reason.as_str()).collect(), vec!["first"])
}

pub(super) async fn l3_a_late_receipt_beside_valid_ones_in_a_batch_is_expired(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("beside").await?;
    for late_first in [true, false] {
        probe.send_bodies(&queue, &["a", "b"]).await?;
        let late = take_two(probe, &queue).await?;
        for receipt in &late {
            probe.nack(receipt.clone(), Nack::Release).await?;
        }
        let [same, other] = take_two(probe, &queue).await?;
        let late = late.into_iter().find(|receipt| receipt.message_id() == same.message_id());
        let Some(late) = late else { return violation("another message came back than the one that was released") };
        let rows = vec![Settlement::ack(late.clone()), Settlement::ack(other)];
        ensure_same(
            "acks of a late receipt and of another message's",
            accepted(probe, rows).await?,
            vec![false, true],
        )?;
        for ending in [Some(Nack::retry_after(Duration::ZERO)), None] {
            let settle = |receipt: &ReceiptHandle| match &ending {
                Some(nack) => Settlement::nack(receipt.clone(), nack.clone()),
                None => Settlement::ack(receipt.clone()),
            };
            let held = match ending {
                Some(_) => same.clone(),
                None => probe.take(&queue, &probe.long()).await?.into_receipt(),
            };
            let mut rows = vec![settle(&late), settle(&held)];
            if !late_first {
                rows.reverse();
            }
            let what = format!("two receipts of a message, both settled by {ending:?}");
            let answers = match ending {
                Some(_) => accepted(probe, rows).await?,
                // Settle with `settle_and_receive`.
                None => {
                    let none = ReceiveOptions::batch(1);
                    let both = probe.provider.settle_and_receive(rows, slice::from_ref(&queue), &none, soon()).await?;
                    ensure(both.received?.is_empty(), || "a message came although both were held".into())?;
                    all_accepted_or_expired(both.settled)?
                }
            };
            ensure_same(&what, answers, vec![!late_first, late_first])?;
        }
        probe.nothing(&queue, "both were acknowledged").await?;
    }
    Ok(())
}

async fn take_two(probe: &Probe<'_>, queue: &QueueName) -> Result<[ReceiptHandle; 2], Stop> {
    let two = probe.take_all(queue, 2, &probe.long()).await?;
    let two: Vec<_> = two.into_iter().map(postrider_core::QueuedMessage::into_receipt).collect();
    two.try_into().map_err(|two: Vec<_>| Stop::Violation(format!("{} messages came instead of two", two.len())))
}

/// Which rows of a settle were accepted; the others must be expired.
async fn accepted(probe: &Probe<'_>, rows: Vec<Settlement>) -> Result<Vec<bool>, Stop> {
    all_accepted_or_expired(probe.provider.settle(rows, soon()).await?)
}

fn all_accepted_or_expired(answers: RowResults<()>) -> Result<Vec<bool>, Stop> {
    let accepted = answers.iter().map(Result::is_ok).collect();
    for answer in answers.into_iter().filter(Result::is_err) {
        ensure_expired("a late receipt in a batch", answer)?;
    }
    Ok(accepted)
}

pub(super) async fn l3_a_receipt_can_be_used_on_another_connection(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("portable").await?;
    probe.send_bodies(&queue, &["a", "b"]).await?;
    let other = probe.open().await?;
    let acked = probe.take(&queue, &probe.long()).await?.into_receipt().to_string();
    other.ack_message(&queue, acked.parse::<ReceiptHandle>()?, soon()).await?;
    let released = probe.take(&queue, &probe.long()).await?.into_receipt();
    other.nack_message(&queue, released.clone(), Nack::Release, soon()).await?;
    ensure_expired("an ack after a release through another connection", probe.ack(released).await)?;
    other.close(soon()).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    probe.ack(message).await?;
    probe.nothing(&queue, "both were acknowledged").await
}
