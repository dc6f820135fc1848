//! L10: dead-lettering is one move, keeps everything, and can be undone.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use postrider_core::{
    DeadLetter, DeadLetterEdit, DeadLetterQuery, DeadLetterReason, DeadLetterSelection, DeadLetters, Feature, Headers,
    Message, MessageId, MessagingError, MessagingService, Nack, QueueName, Redrive, RedriveSkip, Timestamp,
};

use crate::harness::Harness;
use crate::probe::{Check, Probe, Stop, ensure, ensure_same, soon, violation};

/// Sends a message and lets its handler reject it.
async fn kill<H: Harness>(
    probe: &Probe<'_, H>,
    queue: &QueueName,
    message: Message,
    reason: &str,
) -> Result<MessageId, Stop> {
    let id = probe.send(queue, message).await?;
    let message = probe.take(queue, &probe.long()).await?;
    ensure_same("the message", message.id(), id)?;
    probe.nack(message, Nack::dead_letter(reason).with_error(format!("because of {reason}"))).await?;
    Ok(id)
}

fn ids(letters: &[DeadLetter]) -> Vec<MessageId> {
    letters.iter().map(|letter| letter.id).collect()
}

pub(super) async fn l10_a_dead_letter_keeps_its_record<H: Harness>(probe: &Probe<'_, H>) -> Check {
    let queue = probe.queue("record").await?;
    let body = Bytes::from_static(b"\x00\xffraw");
    let mut message = Message::new(body.clone()).header("tenant", "acme")?;
    if probe.offers(Feature::OrderByKey) {
        message = message.ordering_key("k")?;
    }
    let sent = message.clone();
    let id = probe.send(&queue, message).await?;
    let first = probe.take(&queue, &probe.long()).await?;
    let accepted = first.envelope.enqueued_at;
    probe.nack(first, Nack::retry_after(Duration::ZERO).with_error("first failure")).await?;
    let second = probe.take(&queue, &probe.long()).await?;
    probe.nack(second, Nack::dead_letter("rejected").with_error("second failure")).await?;
    probe.nothing(&queue, "it was dead-lettered").await?;

    let letter = probe.provider.get_dead_letter(&queue, id, soon()).await?;
    ensure_same("the listed letters", probe.dead_letters(&queue).await?, vec![letter.clone()])?;
    ensure_same("the id", letter.id, id)?;
    ensure_same("the origin", &letter.origin, &queue)?;
    ensure_same("the body", &letter.body, &body)?;
    ensure_same("the content type", &letter.content_type, &sent.content_type)?;
    ensure_same("the headers", &letter.headers, &sent.headers)?;
    ensure_same("the ordering key", &letter.ordering_key, &sent.ordering_key)?;
    ensure_same("the reason", letter.reason.as_str(), "rejected")?;
    ensure_same("the error", letter.error.as_deref(), Some("second failure"))?;
    ensure_same("the deliveries", letter.deliveries_count, 2)?;
    ensure_same("the failures", letter.attempts_count, 1)?;
    ensure_same("when it was accepted", letter.enqueued_at, accepted)?;
    ensure(letter.last_attempt_at >= letter.first_attempt_at, || {
        format!("it was last tried before it was first: {letter:?}")
    })?;
    let first_attempt_at = letter.first_attempt_at.unwrap_or_default();
    let in_order = letter.enqueued_at <= first_attempt_at && first_attempt_at <= letter.dead_at;
    ensure(in_order, || format!("the times are out of order: {letter:?}"))?;
    let unknown = probe.provider.get_dead_letter(&queue, MessageId::generate(), soon()).await;
    ensure(matches!(unknown, Err(MessagingError::MessageNotFound { .. })), || {
        format!("a dead letter that is not there answered {unknown:?}")
    })
}

pub(super) async fn l10_dead_letters_are_listed_once_and_by_pages<H: Harness>(probe: &Probe<'_, H>) -> Check {
    let queue = probe.queue("pages").await?;
    let mut expected = Vec::new();
    for n in 0..5 {
        let reason = if n % 2 == 0 { "even" } else { "odd" };
        expected.push(kill(probe, &queue, Message::new(format!("{n}")), reason).await?);
    }
    let mut seen = Vec::new();
    let mut query = DeadLetterQuery { limit: 2, ..DeadLetterQuery::default() };
    loop {
        let page = probe.provider.list_dead_letters(&queue, &query, soon()).await?;
        ensure(page.letters.len() <= 2, || format!("a page of two has {} letters", page.letters.len()))?;
        seen.extend(ids(&page.letters));
        query.after = page.next;
        if query.after.is_none() || seen.len() > 10 {
            break;
        }
    }
    let times: Vec<_> = probe.dead_letters(&queue).await?.iter().map(|letter| letter.dead_at).collect();
    ensure(times.is_sorted(), || format!("the oldest death is not listed first: {times:?}"))?;
    let (mut sorted, mut wanted) = (seen, expected.clone());
    sorted.sort_unstable();
    wanted.sort_unstable();
    ensure_same("what the pages list", sorted, wanted)?;
    let odd = DeadLetterQuery { selection: DeadLetterSelection::Reason("odd".into()), ..DeadLetterQuery::default() };
    let odd = probe.provider.list_dead_letters(&queue, &odd, soon()).await?;
    let found: HashSet<_> = ids(&odd.letters).into_iter().collect();
    ensure_same("what died for that reason", found, HashSet::from([expected[1], expected[3]]))
}

pub(super) async fn l10_a_dead_letter_can_be_edited<H: Harness>(probe: &Probe<'_, H>) -> Check {
    let queue = probe.queue("edit").await?;
    let id = kill(probe, &queue, Message::new("wrong").header("keep", "1")?, "rejected").await?;
    let edit = DeadLetterEdit { body: Some("right".into()), ..DeadLetterEdit::default() };
    let letter = probe.provider.edit_dead_letter(&queue, id, edit, soon()).await?;
    ensure_same("the body", &letter.body, &Bytes::from("right"))?;
    ensure_same("the revision", letter.revision, 1)?;
    ensure_same("the kept header", letter.headers.get("keep"), Some("1"))?;
    let edit = DeadLetterEdit { headers: Some(Headers::new()), ..DeadLetterEdit::default() };
    let letter = probe.provider.edit_dead_letter(&queue, id, edit, soon()).await?;
    ensure_same("the headers", letter.headers.len(), 0)?;
    ensure_same("the body", &letter.body, &Bytes::from("right"))?;
    ensure_same("the reason", letter.reason.as_str(), "rejected")?;
    probe.provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the redriven body", message.message.clone(), Bytes::from("right"))
}

pub(super) async fn l10_a_redrive_keeps_the_id_and_resets_the_counts<H: Harness>(probe: &Probe<'_, H>) -> Check {
    let queue = probe.queue("redrive").await?;
    let id = probe.send(&queue, Message::new("one").header("tenant", "acme")?).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    probe.nack(message, Nack::retry_after(Duration::ZERO)).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    probe.nack(message, Nack::dead_letter("rejected")).await?;

    let report = probe.provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await?;
    ensure_same("the redriven", report.redriven, vec![id])?;
    ensure_same("the dead letters left", probe.dead_letters(&queue).await?.len(), 0)?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the id", message.id(), id)?;
    ensure_same("the header", message.envelope.headers.get("tenant"), Some("acme"))?;
    ensure_same("the delivery", message.receive_count(), 1)?;
    ensure_same("the failures", message.envelope.attempts_count, 0)?;
    probe.ack(message).await?;
    probe.nothing(&queue, "it was redriven once and acknowledged").await?;
    let again = Redrive { selection: DeadLetterSelection::Ids(vec![id]), ..Redrive::default() };
    let report = probe.provider.redrive_dead_letters(&queue, &again, soon()).await?;
    ensure_same("what a second redrive skips", report.skipped, vec![(id, RedriveSkip::NotFound)])
}

pub(super) async fn l10_a_dry_run_changes_nothing<H: Harness>(probe: &Probe<'_, H>) -> Check {
    let queue = probe.queue("dry_run").await?;
    let id = kill(probe, &queue, Message::new("one"), "rejected").await?;
    let before = probe.dead_letters(&queue).await?;
    let dry_run = Redrive { dry_run: true, ..Redrive::default() };
    let report = probe.provider.redrive_dead_letters(&queue, &dry_run, soon()).await?;
    ensure_same("what would be redriven", report.redriven, vec![id])?;
    ensure_same("the dead letters", probe.dead_letters(&queue).await?, before)?;
    probe.nothing(&queue, "the redrive was a dry run").await
}

pub(super) async fn l10_a_redrive_can_go_elsewhere_and_by_reason<H: Harness>(probe: &Probe<'_, H>) -> Check {
    let queue = probe.queue("from").await?;
    let elsewhere = probe.queue("to").await?;
    let good = kill(probe, &queue, Message::new("good"), "mistake").await?;
    let bad = kill(probe, &queue, Message::new("bad"), "poison").await?;
    let redrive = Redrive {
        selection: DeadLetterSelection::Reason("mistake".into()),
        to: Some(elsewhere.clone()),
        dry_run: false,
    };
    let report = probe.provider.redrive_dead_letters(&queue, &redrive, soon()).await?;
    ensure_same("the redriven", report.redriven, vec![good])?;
    ensure_same("the dead letters left", ids(&probe.dead_letters(&queue).await?), vec![bad])?;
    let message = probe.take(&elsewhere, &probe.long()).await?;
    ensure_same("the message", message.id(), good)?;
    probe.nothing(&queue, "it was redriven elsewhere").await?;
    let to_the_dead = Redrive { to: Some(queue.dead_letters()), ..Redrive::default() };
    match probe.provider.redrive_dead_letters(&queue, &to_the_dead, soon()).await {
        Err(MessagingError::InvalidInput { .. }) => Ok(()),
        other => violation(format!("a redrive to a dead-letter queue answered {other:?}")),
    }
}

pub(super) async fn l10_dead_letters_can_be_received_without_a_limit<H: Harness>(probe: &Probe<'_, H>) -> Check {
    let queue = probe.queue("receive").await?;
    let dead_queue = queue.dead_letters();
    let id = kill(probe, &queue, Message::new("one"), "rejected").await?;
    for _ in 0..4 {
        let message = probe.take(&dead_queue, &probe.long().max_receive_count(1)).await?;
        ensure_same("the message", message.id(), id)?;
        probe.nack(message, Nack::retry_after(Duration::ZERO)).await?;
    }
    let message = probe.take(&dead_queue, &probe.long()).await?;
    let receipt = message.into_receipt();
    let again = probe.nack(receipt.clone(), Nack::dead_letter("again")).await;
    ensure(again.is_err(), || "a dead letter died a second time".into())?;
    let report = probe.provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await?;
    ensure_same("what a redrive skips", report.skipped, vec![(id, RedriveSkip::Leased)])?;
    probe.ack(receipt).await?;
    ensure_same("the dead letters left", probe.dead_letters(&queue).await?.len(), 0)
}

pub(super) async fn l10_dead_letters_can_be_purged<H: Harness>(probe: &Probe<'_, H>) -> Check {
    let queue = probe.queue("purge").await?;
    let kept = kill(probe, &queue, Message::new("kept"), "keep").await?;
    let gone = kill(probe, &queue, Message::new("gone"), "throw away").await?;
    let selection = DeadLetterSelection::Ids(vec![gone]);
    let purged = probe.provider.purge_dead_letters(&queue, &selection, soon()).await?;
    ensure_same("the number purged", purged, 1)?;
    ensure_same("the dead letters left", ids(&probe.dead_letters(&queue).await?), vec![kept])?;
    let purged = probe.provider.purge_dead_letters(&queue, &DeadLetterSelection::All, soon()).await?;
    ensure_same("the number purged", purged, 1)?;
    ensure_same("the dead letters left", probe.dead_letters(&queue).await?.len(), 0)
}

pub(super) async fn l10_nobody_can_send_to_the_dead_letters<H: Harness>(probe: &Probe<'_, H>) -> Check {
    let queue = probe.queue("no_sends").await?;
    let refused = probe.provider.send_message(&queue.dead_letters(), Message::new("one"), soon()).await;
    ensure(refused.is_err(), || "a send to a dead-letter queue was accepted".into())?;
    ensure_same("the dead letters", probe.dead_letters(&queue).await?.len(), 0)?;
    let limit = probe.long().max_receive_count(1);
    probe.send(&queue, Message::new("one")).await?;
    let message = probe.take(&queue, &limit).await?;
    probe.nack(message, Nack::retry_after(Duration::ZERO)).await?;
    let dead = probe.read_until_dead(&queue, 1, &limit).await?;
    ensure_same("the reason", &dead[0].reason, &DeadLetterReason::MAX_RECEIVE_COUNT)
}

pub(super) async fn l10_a_leased_dead_letter_is_left_alone<H: Harness>(probe: &Probe<'_, H>) -> Check {
    let queue = probe.queue("leased").await?;
    let id = kill(probe, &queue, Message::new("one"), "rejected").await?;
    let held = probe.take(&queue.dead_letters(), &probe.long()).await?;
    let edit = DeadLetterEdit { body: Some("changed".into()), ..DeadLetterEdit::default() };
    let edited = probe.provider.edit_dead_letter(&queue, id, edit, soon()).await;
    ensure(matches!(edited, Err(MessagingError::MessageLeased { .. })), || format!("an edit answered {edited:?}"))?;
    let purged = probe.provider.purge_dead_letters(&queue, &DeadLetterSelection::All, soon()).await?;
    ensure_same("the number purged", purged, 0)?;
    probe.nack(held, Nack::Release).await?;
    let letter = probe.provider.get_dead_letter(&queue, id, soon()).await?;
    ensure_same("the body", letter.body, Bytes::from("one"))
}

pub(super) async fn l10_a_redrive_makes_no_second_message_for_a_dedup_key<H: Harness>(probe: &Probe<'_, H>) -> Check {
    if let Some(window) = probe.provider.capabilities().limits.dedup_window {
        return Err(Stop::NotExercised(format!("here a key is taken for {window:?}, whatever becomes of its message")));
    }
    let queue = probe.queue("redrive_dedup").await?;
    let dead = kill(probe, &queue, Message::new("old").dedup_key("k")?, "rejected").await?;
    let living = probe.send(&queue, Message::new("new").dedup_key("k")?).await?;
    let report = probe.provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await?;
    ensure_same("what a redrive skips", report.skipped, vec![(dead, RedriveSkip::DedupKeyTaken)])?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the message", message.id(), living)?;
    probe.ack(message).await?;
    let report = probe.provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await?;
    ensure_same("the redriven", report.redriven, vec![dead])?;
    let again = probe.send(&queue, Message::new("newer").dedup_key("k")?).await?;
    ensure_same("the message that has the key", again, dead)
}

pub(super) async fn l10_a_redrive_takes_the_dedup_key_of_an_expired_message<H: Harness>(probe: &Probe<'_, H>) -> Check {
    if let Some(window) = probe.provider.capabilities().limits.dedup_window {
        return Err(Stop::NotExercised(format!("here a key is taken for {window:?}, whatever becomes of its message")));
    }
    let queue = probe.queue("redrive_over").await?;
    let dead = kill(probe, &queue, Message::new("old").dedup_key("k")?, "rejected").await?;
    // It has the key and will never be read: a send would take the key from it, and so does a redrive.
    let over = Message::new("over").dedup_key("k")?.expires_at(Timestamp::from_micros(1));
    let over = probe.send(&queue, over).await?;
    for dry_run in [true, false] {
        let redrive = Redrive { selection: DeadLetterSelection::Ids(vec![dead]), to: None, dry_run };
        let report = probe.provider.redrive_dead_letters(&queue, &redrive, soon()).await?;
        ensure_same("the redriven", report.redriven, vec![dead])?;
    }
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the message", message.id(), dead)?;
    probe.ack(message).await?;
    let letters = probe.read_until_dead(&queue, 1, &probe.long()).await?;
    ensure_same("the dead letters", ids(&letters), vec![over])?;
    ensure_same("the reason", &letters[0].reason, &DeadLetterReason::EXPIRED)
}

pub(super) async fn l10_a_redriven_message_outlives_its_old_expiry<H: Harness>(probe: &Probe<'_, H>) -> Check {
    let queue = probe.queue("redrive_expired").await?;
    let id = probe.send(&queue, Message::new("late").expires_at(Timestamp::from_micros(1))).await?;
    probe.read_until_dead(&queue, 1, &probe.long()).await?;
    let from_the_dead = probe.take(&queue.dead_letters(), &probe.long()).await?;
    ensure_same("the dead letter that was received", from_the_dead.id(), id)?;
    probe.nack(from_the_dead, Nack::Release).await?;
    probe.provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the message", message.id(), id)
}
